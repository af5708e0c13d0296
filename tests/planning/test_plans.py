"""Plans: the guarantee from public quantities alone, and what-ifs."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import PrivacyLedger, PrivateRelease, datasets, fay_herriot, hajek, write_public
from pymc_dp.planning.plans import compare_plans, plan, planned_release
from pymc_dp.record.claims import read_record
from pymc_dp.survey.weights import pool, weight_table

NAMES = {"weight": "weight", "area": "area"}
KISH = {"rate": 0.15, "design_factor": 1.2}


@pytest.fixture(scope="module")
def records():
    return datasets.simulate_state_survey(areas=12, respondents=1500)


@pytest.fixture(scope="module")
def direct(records):
    return hajek(records, outcome="smoker", unit="household", variance="kish", **NAMES, **KISH)


@pytest.fixture(scope="module")
def table(records):
    return weight_table(records.drop(columns="smoker"), unit="household", **NAMES, **KISH)


def test_weights_alone_give_what_the_survey_gives(direct, table):
    assert "estimate" not in table
    for name in table:
        xr.testing.assert_identical(table[name], direct[name])
    assert table.attrs["bounds"] == [0.0, 1.0] and table.attrs["unit"] == "household"


def test_weight_table_reads_polars_and_lazy_frames_and_a_column_called_outcome(records, table):
    frame = pl.from_pandas(records.drop(columns="smoker")).with_columns(outcome=pl.lit("secret"))
    for given in (frame, frame.lazy()):
        got = weight_table(given, unit="household", **NAMES, **KISH)
        xr.testing.assert_allclose(got, table)


def test_no_function_of_a_plan_takes_an_outcome():
    for function in (weight_table, plan, planned_release, pool, compare_plans):
        assert not {"outcome", "y", "estimate"} & set(inspect.signature(function).parameters)


def test_a_plan_reads_no_estimate(direct):
    with_estimates = plan(direct, sigma_u=0.03)
    other = direct.assign(estimate=direct["estimate"] * np.nan)
    xr.testing.assert_identical(with_estimates, plan(other, sigma_u=0.03))


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize(
    "target",
    [
        {},
        {"rho": 0.05},
        {"rho": 0.05, "method": "noise"},
        {"rho": 0.05, "method": "scale"},
        {"epsilon": 1.0, "delta": 1e-6},
    ],
)
def test_a_plan_equals_the_release_calibrated_or_not(direct, table, mechanism, target):
    covariates = datasets.state_covariates(12)
    model = fay_herriot(direct, "~ college", covariates, sigma_u=0.03)
    declared = {"sigma_u": "an earlier survey", "sampling_variance": "weights"}
    release = PrivateRelease(
        model, direct["sensitivity"], mechanism=mechanism, assumptions=declared
    )
    if target:
        release = release.calibrate(**target)
    planned = plan(
        table,
        "~ college",
        covariates,
        sigma_u=0.03,
        mechanism=mechanism,
        assumptions=declared,
        **target,
    )
    xr.testing.assert_identical(planned, release.guarantee)


def test_a_plan_with_areas_without_sample_and_a_normal_prior(table):
    some = table.copy(deep=True)
    some["variance"][3] = np.nan
    some["sensitivity"][3] = 0.0
    got = plan(some, sigma_u=0.03, beta_prior=pm.Normal.dist(0, 1))
    assert float(got["rho_respondent"][3]) == 0.0
    data = some.assign(estimate=xr.where(some["variance"].notnull(), 0.2, np.nan).drop_attrs())
    model = fay_herriot(data, sigma_u=0.03, beta_prior=pm.Normal.dist(0, 1))
    want = PrivateRelease(model, some["sensitivity"]).guarantee
    xr.testing.assert_identical(got, want)


def test_what_ifs_go_the_way_they_must(records, table):
    base = plan(table, sigma_u=0.03)
    people = weight_table(records, **NAMES, **KISH)
    plans = {
        "base": base,
        "smaller sigma_u": plan(table, sigma_u=0.01),
        "more alike": plan(table, sigma_u=0.03, variance_factor=2.0),
        "persons": plan(people, sigma_u=0.03),
        "calibrated": plan(table, sigma_u=0.03, rho=0.05),
    }
    compared = compare_plans(plans)
    rho = compared["rho"]
    assert rho["smaller sigma_u"] < rho["base"] and rho["more alike"] < rho["base"]
    one, whole = (plans[name]["rho_respondent"] for name in ("persons", "base"))
    assert (one <= whole * (1 + 1e-9)).all() and (one < 0.9 * whole).any()
    assert rho["calibrated"] == pytest.approx(0.05, rel=1e-9)
    assert compared.loc["base", "dearest_area"] == str(base["rho_respondent"].idxmax().item())
    assert (compared["areas"] == 12).all()


def test_pooling_areas_equals_pooling_their_records(records, table):
    region = {a: f"region {int(a[1:]) % 3}" for a in table["area"].values}
    pooled = pool(table, region)
    direct = weight_table(
        records.assign(area=records["area"].map(region)), unit="household", **NAMES, **KISH
    )
    assert list(pooled["area"].values) == list(direct["area"].values)
    for name in ("variance", "sensitivity", "sum_weights"):
        # The sensitivity also covers rounding, about 1e-12, which adds up differently.
        np.testing.assert_allclose(pooled[name], direct[name], rtol=1e-8)
    np.testing.assert_array_equal(pooled["n"], direct["n"])
    # Larger samples cost less; but larger areas are shrunk less, so only this is certain here.
    together, apart = (plan(t, sigma_u=0.03)["rho_unshrunk"].max() for t in (pooled, table))
    assert together < 0.7 * apart


def test_pooling_with_an_area_without_sample_and_levels_kept_aside(table):
    some = table.copy(deep=True)
    some["variance"][0] = np.nan
    some = some.assign_coords(state=("area", ["x"] * 12))
    pooled = pool(some, pd.Series("all", index=some["area"].values))
    rest = pool(table.isel(area=slice(1, None)), pd.Series("all", index=table["area"].values))
    np.testing.assert_allclose(pooled["variance"], rest["variance"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: plan(t.drop_vars("variance"), sigma_u=0.1), "a plan needs variance"),
        (lambda t: plan(t, sigma_u=0.1, variance_factor=0.0), "variance_factor"),
        (lambda t: plan(t, sigma_u=0.1, variance_factor=np.nan), "variance_factor"),
        (lambda t: plan(t, sigma_u=np.nan), "sigma_u must be finite"),
        (lambda t: plan(t, sigma_u=0.1, delta=1e-6), "as rho, or as epsilon and delta"),
        (lambda t: pool(t, {"R01": "a"}), "no group for 11 areas: R02"),
        (lambda t: pool(t.drop_vars("sum_weights"), {}), "pooling needs sum_weights"),
    ],
)
def test_unusable_plans_are_refused(table, call, message):
    with pytest.raises(ValueError, match=message):
        call(table)


@pytest.mark.parametrize("target", [None, 0.05])
def test_a_plan_is_never_drawn_nor_charged(table, tmp_path, target):
    """There are no outcomes in it: a draw would be published as a release about nobody."""
    declared = {"sigma_u": "an earlier survey", "sampling_variance": "weights"}
    planned = planned_release(table, sigma_u=0.03, assumptions=declared)
    if target is not None:
        planned = planned.calibrate(target)
    ledger = PrivacyLedger(tmp_path / "budget.ledger", rho=10.0, create=True)
    for given in ({}, {"ledger": ledger}, {"draws": 2}):
        with pytest.raises(ValueError, match="this is a plan, which holds no outcomes"):
            planned.draw(**given)
    assert ledger.spent == 0 and planned.released is None
    with pytest.raises(ValueError, match=r"call draw\(\) first"):
        write_public(planned.guarantee, tmp_path / "plan.nc")
    # What can be asked without outcomes still can.
    planned.statement(tmp_path / "plan.html")
    assert "planned" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert planned.simulate(draws=3, random_seed=1).shape == (1, 3, 12)
    assert float(planned.calibrate(0.01).guarantee["rho"]) == pytest.approx(0.01)


def test_plans_raise_no_warnings(table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(table, sigma_u=0.03, rho=0.05)


def test_record_of_a_plan_says_whether_there_are_covariates_to_declare(table):
    assert read_record(plan(table, sigma_u=0.03).attrs)["intercept_only"] is True
    covariates = datasets.state_covariates(12)
    with_one = plan(table, "~ college", covariates, sigma_u=0.03)
    assert read_record(with_one.attrs)["intercept_only"] is False
    slope = plan(table, "~ 0 + college", covariates, sigma_u=0.03)
    assert read_record(slope.attrs)["intercept_only"] is False
