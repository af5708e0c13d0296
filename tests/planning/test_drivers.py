"""Drivers of the price: the exact decomposition, what it says of real surveys, and by record."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_dp import datasets
from pymc_dp.planning.drivers import DRIVERS, guarantee_drivers, record_guarantee
from pymc_dp.planning.plans import plan
from pymc_dp.plots.planning import plot_drivers
from pymc_dp.survey.weights import weight_table

matplotlib.use("Agg")
NAMES = {"weight": "weight", "area": "area", "unit": "household"}


@pytest.fixture(scope="module")
def records():
    return datasets.simulate_state_survey(areas=15, respondents=1500)


@pytest.fixture(scope="module")
def table(records):
    return weight_table(records, rate=0.15, design_factor=1.2, **NAMES)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mechanism": "independent"},
        {"rho": 0.05},
        {"rho": 0.05, "method": "noise"},
        {"rho": 0.05, "method": "scale"},
    ],
)
def test_parts_add_up_to_the_price_and_shares_to_one(table, options):
    g = plan(table, sigma_u=0.03, **options)
    d = guarantee_drivers(table, g)
    assert list(d["driver"].values) == list(DRIVERS)
    price = g["rho_independent" if "mechanism" in options else "rho_respondent"]
    np.testing.assert_allclose(d["term"].sum("driver") + d["constant"], np.log(price), atol=1e-12)
    if options.get("rho") is None or options.get("method"):
        assert float(d["share"].sum()) == pytest.approx(1, abs=1e-9)


def test_terms_are_the_quantities_they_are_named_after(table):
    g = plan(table, sigma_u=0.03)
    d = guarantee_drivers(table, g)["term"]
    n, n_eff = table["n"].values, table["n_eff"].values
    D, s = table["variance"].values, table["sensitivity"].values
    want = {
        "sample size": -np.log(n),
        "weight inequality": 2 * np.log(n * s),
        "outcome variance": -np.log(D * n_eff),
        "design effect": -np.log(n / n_eff),
        "shrinkage": np.log(g["posterior_sd"].values ** 2 / D),
    }
    for name, values in want.items():
        np.testing.assert_allclose(d.sel(driver=name), values, rtol=1e-9, atol=1e-9)
    assert (d.sel(driver="shrinkage") < 0).all()  # shrinkage tightens
    # Kish variances differ by weights alone.
    np.testing.assert_allclose(d.sel(driver="outcome variance"), -np.log(0.15 * 0.85 * 1.2))


def test_shares_equal_regression_of_each_part_on_the_whole(table):
    d = guarantee_drivers(table, plan(table, sigma_u=0.03))
    for name in DRIVERS:
        slope = np.polyfit(d["log_rho"], d["term"].sel(driver=name), 1)[0]
        assert float(d["share"].sel(driver=name)) == pytest.approx(slope, abs=1e-9)
    rank = pd.Series(table["n"]).corr(pd.Series(d["log_rho"]), method="spearman")
    assert float(d["rank_correlation"].sel(driver="sample size")) == pytest.approx(rank)
    assert np.isnan(d["rank_correlation"].sel(driver="outcome variance"))


def test_tempering_shows_as_disbelief_in_the_outcomes(table):
    d = guarantee_drivers(table, plan(table, sigma_u=0.03, rho=0.3))
    plain = guarantee_drivers(table, plan(table, sigma_u=0.03))
    change = d["term"] - plain["term"]
    touched = change.sel(driver="outcome variance") < -1e-9
    assert touched.any() and not touched.all()
    assert (
        np.abs(change.sel(driver=["sample size", "weight inequality", "design effect"])).max() == 0
    )


@pytest.mark.parametrize("unit", ["max_share", "max_share_hh"])
def test_inequality_of_the_weights_matters_far_more_than_sample_size(shared, unit):
    """The claim about real surveys: poverty by area in the American Community Survey."""
    data = pd.read_csv(shared / "data" / "acs_pums_2024_puma_table.csv.gz", dtype={"puma": str})
    data = data.set_index(data["puma"].rename("area"))
    n_eff = data["sum_w"] ** 2 / data["sum_w2"]
    areas = xr.Dataset.from_dataframe(
        pd.DataFrame(
            {
                "variance": 0.12 * 0.88 / n_eff,
                "sensitivity": data[unit],
                "n": data["n"],
                "n_eff": n_eff,
            }
        )
    )
    d = guarantee_drivers(areas, plan(areas, sigma_u=0.06))
    share = d["share"].to_series()
    assert share["weight inequality"] > 0.8
    assert share["weight inequality"] > 3 * abs(share["sample size"])
    assert (d["term"].sel(driver="shrinkage") < 0).all()


def test_an_area_without_sample_has_no_drivers(table):
    some = table.copy(deep=True)
    some["variance"][3], some["sensitivity"][3], some["n"][3] = np.nan, 0.0, 0
    d = guarantee_drivers(some, plan(some, sigma_u=0.03))
    assert d.sizes["area"] == 14 and "R04" not in d["area"].values


def test_missing_counts_are_refused_by_area(table):
    g = plan(table, sigma_u=0.03)
    with pytest.raises(ValueError, match="'n_eff'"):
        guarantee_drivers(table.drop_vars("n_eff"), g)
    with pytest.raises(ValueError, match="n is missing or not positive in 14 areas: R02"):
        guarantee_drivers(table.isel(area=[0]), g)


def test_drivers_picture_shows_the_shares_and_the_claim(table):
    d = guarantee_drivers(table, plan(table, sigma_u=0.03))
    ax = plot_drivers(d)
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_allclose(widths, d["share"])
    assert "conditional" in ax.get_title(loc="left")
    assert "household" in ax.get_title(loc="left")
    assert [t.get_text() for t in ax.get_yticklabels()] == list(DRIVERS)
    with pytest.raises(ValueError, match="not a result of guarantee_drivers"):
        plot_drivers(table)
    same = xr.Dataset(
        {
            "variance": ("area", [1e-3] * 4),
            "sensitivity": ("area", [0.02] * 4),
            "n": ("area", [100] * 4),
            "n_eff": ("area", [50.0] * 4),
        },
        coords={"area": list("abcd")},
    )
    with pytest.raises(ValueError, match="nothing to decompose"):
        plot_drivers(guarantee_drivers(same, plan(same, sigma_u=0.03)))
    matplotlib.pyplot.close("all")


def test_price_by_record_scales_with_the_square_of_the_weight(records):
    people = weight_table(records, rate=0.15, weight="weight", area="area")
    g = plan(people, sigma_u=0.03)
    r = record_guarantee(records, g, weight="weight", area="area")
    assert r.sizes["record"] == len(records)
    # From the definition: s_k = w_k / sum(w) in the area, rho = s_k^2 Sigma / (2 D^2).
    share = records["weight"] / records.groupby("area")["weight"].transform("sum")
    factor = (g["posterior_sd"].values / people["variance"].values) ** 2 / 2
    by_area = pd.Series(factor, index=g["area"].values)
    want = share**2 * records["area"].map(by_area)
    # The sensitivity is raised for rounding by about 1e-10 of itself.
    np.testing.assert_allclose(r["rho"], want, rtol=1e-8)
    np.testing.assert_array_equal(r["worst_case"], g["rho_respondent"])
    np.testing.assert_allclose(r["rho_quantile"].sel(quantile=1.0), r["worst_case"], rtol=1e-12)
    assert (r["average"] < r["worst_case"]).all()
    assert "worst case" in r["average"].attrs["note"]
    mean = want.groupby(records["area"]).mean()
    np.testing.assert_allclose(r["average"], mean, rtol=1e-8)


def test_price_by_household_sums_its_weights(records, table):
    g = plan(table, sigma_u=0.03)
    r = record_guarantee(records, g, **NAMES)
    total = records.groupby(["area", "household"])["weight"].sum()
    assert r.sizes["record"] == len(total)
    np.testing.assert_allclose(r["rho_quantile"].sel(quantile=1.0), r["worst_case"], rtol=1e-12)
    largest = total.groupby("area").max()
    ratio = (total / largest.reindex(total.index.get_level_values(0)).to_numpy()) ** 2
    np.testing.assert_allclose(r["average"] / r["worst_case"], ratio.groupby("area").mean())


def test_records_of_weight_zero_cost_nothing_and_bad_ones_are_refused(records, table):
    people = {"weight": "weight", "area": "area"}
    zero = records.assign(weight=records["weight"].where(records.index != 3, 0.0))
    g = plan(weight_table(zero, rate=0.15, **people), sigma_u=0.03)
    r = record_guarantee(zero, g, **people)
    assert r["rho"].values[3] == 0 and float(r["rho_quantile"].min()) > 0
    with pytest.raises(ValueError, match="1 weights are missing"):
        missing = records.assign(weight=records["weight"].where(records.index != 3))
        record_guarantee(missing, g, **people)
    with pytest.raises(ValueError, match="1 areas are not in the guarantee: R99"):
        moved = records.assign(area=records["area"].where(records.index != 3, "R99"))
        record_guarantee(moved, g, **people)


def test_records_of_another_unit_or_other_weights_are_refused(records, table):
    """Their prices would be too low: nothing of the guarantee was computed for them."""
    g = plan(table, sigma_u=0.03)
    people = {"weight": "weight", "area": "area"}
    with pytest.raises(ValueError, match="protects the unit 'household', not 'record'"):
        record_guarantee(records, g, **people)
    with pytest.raises(ValueError, match="protects the unit 'household', not 'area household'"):
        record_guarantee(records, g, **people, unit=["area", "household"])
    one = records["area"].eq("R05") & records["household"].eq(
        records.loc[records["area"] == "R05", "household"].iloc[0]
    )
    heavier = records.assign(weight=records["weight"].where(~one, records["weight"] * 50.0))
    with pytest.raises(ValueError, match=r"in 1 areas the heaviest unit .* its records: R05$"):
        record_guarantee(heavier, g, **NAMES)
    # Other records of an area that move it by less are covered: their prices are not too low.
    lighter = records[records["area"] == "R05"].assign(weight=1.0)
    assert record_guarantee(lighter, g, **NAMES).sizes["record"]
    by_people = plan(weight_table(records, rate=0.15, **people), sigma_u=0.03)
    with pytest.raises(ValueError, match="protects the unit 'record', not 'household'"):
        record_guarantee(records, by_people, **NAMES)
    with pytest.raises(ValueError, match="protects the unit 'record', not 'household'"):
        guarantee_drivers(table, by_people)
    without = plan(table.drop_attrs(), sigma_u=0.03)
    with pytest.raises(ValueError, match="declares no range"):
        record_guarantee(records, without, **people)
