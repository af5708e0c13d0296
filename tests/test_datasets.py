"""The simulated state survey: as unequal as a real one, and true to the state it is drawn from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pymc_dp.datasets import simulate_state_survey, state_covariates, state_prevalence
from pymc_dp.survey import hajek


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
