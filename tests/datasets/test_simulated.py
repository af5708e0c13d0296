"""Simulated surveys: as unequal as real ones, and true to the state they are drawn from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pymc_dp.datasets import (
    read_acs_pums,
    simulate_acs,
    simulate_state_survey,
    state_covariates,
    state_prevalence,
)
from pymc_dp.survey.estimate import hajek


@pytest.fixture(scope="module")
def records():
    return simulate_state_survey()


def test_columns_and_labels(records):
    assert list(records.columns) == ["area", "household", "weight", "smoker", "age_band"]
    assert len(records) == 13_000
    assert records["area"].unique().tolist() == [f"R{k:02d}" for k in range(1, 53)]
    assert all(pd.api.types.is_string_dtype(records[c]) for c in ("area", "household", "age_band"))
    assert set(records["smoker"]) == {0, 1}
    assert set(records["age_band"]) == {"18-24", "25-44", "45-64", "65+"}


def test_sample_sizes_are_very_unequal(records):
    sizes = records.groupby("area").size()
    assert 50 <= sizes.min() <= 70
    assert 800 <= sizes.max() <= 950


@pytest.mark.parametrize("seed", [2013, 0, 1, 2])
def test_weights_are_as_unequal_as_a_telephone_surveys_in_every_area(seed):
    records = simulate_state_survey(random_seed=seed)
    groups = records.groupby("area")["weight"]
    variation = groups.std(ddof=0) / groups.mean()
    assert variation.between(0.949, 1.401).all()
    assert (records["weight"] > 0).all()
    # A long right tail: the largest weight is many times the median one.
    assert (groups.max() / groups.median()).median() > 8


def test_weights_add_up_to_the_adults_of_each_area(records):
    totals = records.groupby("area")["weight"].sum()
    # Weights have four decimals, so a thousand of them add up to within 0.05.
    np.testing.assert_allclose(totals, state_covariates()["adults"], rtol=0, atol=0.05)


def test_every_area_has_smokers_and_others(records):
    assert records.groupby("area")["smoker"].mean().between(0, 1, inclusive="neither").all()


def test_households_lie_in_one_area_and_have_one_to_three_respondents_who_tend_to_agree(records):
    households = records.groupby("household")
    assert (households["area"].nunique() == 1).all()
    assert set(households.size()) == {1, 2, 3}
    pairs = records[households["household"].transform("size") == 2]
    agree = pairs.groupby("household")["smoker"].nunique().eq(1).mean()
    p = pairs["smoker"].mean()
    independent = p**2 + (1 - p) ** 2
    assert agree > independent + 4 * np.sqrt(independent * (1 - independent) / (len(pairs) / 2))


def test_the_same_seed_gives_the_same_records_and_another_seed_others(records):
    pd.testing.assert_frame_equal(simulate_state_survey(), records)
    assert not simulate_state_survey(random_seed=1)["smoker"].equals(records["smoker"])


@pytest.mark.parametrize("areas", [10, 52, 300])
def test_the_state_is_the_same_every_time_and_its_areas_differ_by_four_points(areas):
    prevalence, covariates = state_prevalence(areas), state_covariates(areas)
    pd.testing.assert_series_equal(prevalence, state_prevalence(areas))
    pd.testing.assert_frame_equal(covariates, state_covariates(areas))
    assert prevalence.index.equals(covariates.index)
    assert prevalence.between(0.08, 0.30).all()
    assert 0.035 < prevalence.std() < 0.045


def test_covariates_explain_about_half_of_the_variance_between_areas():
    prevalence = state_prevalence()
    table = state_covariates().assign(intercept=1.0)[["intercept", "college", "unemployment"]]
    fitted = table @ np.linalg.lstsq(table, prevalence, rcond=None)[0]
    assert 0.35 < np.var(fitted) / np.var(prevalence) < 0.65


def test_direct_estimates_are_centred_on_the_true_prevalence():
    """Over samples, by four standard errors of the mean: weights undo who answers."""
    deviations = []
    for seed in range(15):
        records = simulate_state_survey(random_seed=seed)
        direct = hajek(records, outcome="smoker", weight="weight", area="area")
        deviations.append(direct["estimate"].values - state_prevalence().values)
    deviations = np.ravel(deviations)
    assert abs(deviations.mean()) < 4 * deviations.std() / np.sqrt(deviations.size)
    # Without the weights the answers are too old and smoke too little.
    crude = records["smoker"].mean() - np.average(
        state_prevalence(), weights=records.groupby("area").size()
    )
    assert crude < -0.01


def test_other_sizes():
    records = simulate_state_survey(areas=120, respondents=20_000)
    assert len(records) == 20_000
    assert records["area"].iloc[0] == "R001"
    assert records["area"].nunique() == 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"areas": 1}, "needs two or more, got 1"),
        ({"areas": 52, "respondents": 1000}, "52 areas need 2600 respondents or more, got 1000"),
    ],
)
def test_too_small_a_survey_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        simulate_state_survey(**options)


@pytest.fixture(scope="module")
def persons():
    return simulate_acs(areas=300, persons=400_000)


class TestSimulatedAcs:
    def test_columns_are_those_of_the_reader(self, persons, tmp_path):
        rows = "SERIALNO,PUMA,ST,PWGTP,POVPIP\n2024HU01,101,4,25,501\n2024GQ02,101,4,30,\n"
        (tmp_path / "psam_p04.csv").write_text(rows)
        read = read_acs_pums(tmp_path / "psam_p04.csv")
        assert persons.dtypes.to_dict() == read.dtypes.to_dict()
        assert list(persons.columns) == list(read.columns)
        assert persons.attrs == read.attrs

    def test_codes_and_universe(self, persons):
        assert len(persons) == 400_000
        assert persons["puma"].nunique() == 300
        assert persons["puma"].str.fullmatch(r"\d{7}").all()
        assert persons["puma"].str[:2].nunique() == 51
        assert persons["SERIALNO"].str.fullmatch("2024(HU|GQ)[0-9]{7}").all()
        outside = persons["SERIALNO"].str[4:6] == "GQ"
        np.testing.assert_array_equal(persons["in_universe"], ~outside)
        for column in ("POVPIP", "poor"):
            np.testing.assert_array_equal(persons[column].isna(), outside)
        percent = persons["POVPIP"].dropna()
        assert percent.between(0, 501).all() and (percent % 1 == 0).all()
        np.testing.assert_array_equal(persons["poor"].dropna(), percent < 100)
        assert (persons["PWGTP"] >= 1).all() and (persons["PWGTP"] % 1 == 0).all()

    def test_households_lie_in_one_area_and_families_share_their_income(self, persons):
        homes = persons[persons["in_universe"]].groupby("SERIALNO")
        assert (homes["puma"].nunique() == 1).all()
        several = homes.size() > 1
        assert 0.65 < several.mean() < 0.75
        # In the file of 2024 members of 87 % of the households of several share their POVPIP.
        assert (homes["POVPIP"].nunique()[several] == 1).mean() == pytest.approx(0.87, abs=0.06)

    def test_the_three_lines_run(self, persons):
        direct = hajek(
            persons,
            outcome="poor",
            weight="PWGTP",
            area="puma",
            unit=persons.attrs["unit"],
            universe="in_universe",
        )
        assert (direct["variance"] > 0).all()
        assert direct["n_outside_universe"].sum() == (~persons["in_universe"]).sum()

    @pytest.mark.parametrize("seed", [2024, 0, 1])
    def test_it_is_as_unequal_as_the_file_of_2024(self, seed):
        """Ranges around the medians that 2,462 real PUMAs have: 0.83, 0.0056, 0.018, 1,249."""
        persons = simulate_acs(random_seed=seed)
        inside = persons[persons["in_universe"]]
        groups = inside.groupby("puma")["PWGTP"]
        variation = groups.std(ddof=0) / groups.mean()
        assert 0.75 < variation.median() < 0.9 and variation.between(0.4, 1.6).all()
        assert 0.0045 < (groups.max() / groups.sum()).median() < 0.0065
        homes = inside.groupby(["puma", "SERIALNO"])["PWGTP"].sum().groupby("puma")
        assert 0.015 < (homes.max() / homes.sum()).median() < 0.021
        assert 1_000 < groups.size().median() < 1_400
        assert groups.size().max() > 2 * groups.size().min()
        direct = hajek(inside, outcome="poor", weight="PWGTP", area="puma", unit="SERIALNO")
        assert 0.10 < direct["estimate"].mean() < 0.15
        assert direct["estimate"].min() < 0.06 and direct["estimate"].max() > 0.2

    def test_it_is_like_the_file_of_2024(self, shared):
        """Quantiles over 2,462 areas, within a tenth to a quarter of those of the real file."""
        table = pd.read_csv(shared / "data" / "acs_pums_2024_puma_table.csv.gz")
        persons = simulate_acs(areas=2462, persons=3_422_888)
        assert persons["puma"].nunique() == len(table) == 2462
        roles = {"outcome": "poor", "weight": "PWGTP", "area": "puma", "universe": "in_universe"}
        home = hajek(persons, unit="SERIALNO", **roles)
        with pytest.warns(UserWarning, match="suggests unit='SERIALNO'"):
            person = hajek(persons, **roles)
        simulated = {
            "n": person["n"],
            "n_hh": home["n_units"],
            "p_hat": person["estimate"],
            "sum_w": person["sum_weights"],
            "cv_w": np.sqrt(person["n"] / person["n_eff"] - 1),
            "max_share": person["sensitivity"],
            "max_share_hh": home["sensitivity"],
            "var_person": person["variance"],
            "var_hh": home["variance"],
        }
        for name, values in simulated.items():
            for q, tolerance in ((0.05, 0.25), (0.5, 0.15), (0.95, 0.25)):
                ratio = np.quantile(values, q) / table[name].quantile(q)
                assert abs(ratio - 1) < tolerance, (name, q, ratio)

    def test_the_same_seed_gives_the_same_records_of_the_same_nation(self):
        options = {"areas": 20, "persons": 20_000}
        first, again = simulate_acs(**options), simulate_acs(**options)
        pd.testing.assert_frame_equal(first, again)
        other = simulate_acs(**options, random_seed=1)
        assert not other["POVPIP"].equals(first["POVPIP"])
        pd.testing.assert_series_equal(first.groupby("puma").size(), other.groupby("puma").size())

    def test_small_samples_have_a_household_in_every_area(self):
        persons = simulate_acs(areas=50, persons=2_500)
        assert len(persons) == 2_500
        assert (persons[persons["in_universe"]].groupby("puma").size() > 0).sum() == 50

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"areas": 1}, "needs two or more, got 1"),
            ({"areas": 10, "persons": 400}, "10 areas need 500 persons or more, got 400"),
        ],
    )
    def test_too_few_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            simulate_acs(**options)
