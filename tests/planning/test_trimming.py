"""Trimming weights: by a public rule, and what it does to accuracy and price."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

from pymc_dp import datasets
from pymc_dp.planning.plans import plan
from pymc_dp.planning.trimming import trim_weights
from pymc_dp.survey.weights import weight_table

NAMES = {"weight": "weight", "area": "area", "unit": "household", "rate": 0.15}


@pytest.fixture(scope="module")
def records():
    return datasets.simulate_state_survey(areas=6, respondents=600)


@pytest.fixture(scope="module")
def trimmed(records):
    return trim_weights(records, max_ratio=3, sigma_u=0.03, **NAMES)


def test_weights_are_cut_at_the_ratio_and_nothing_else_changes(records, trimmed):
    frame, report = trimmed
    mean = records.groupby("area")["weight"].transform("mean")
    want = np.minimum(records["weight"], 3 * mean)
    np.testing.assert_allclose(frame["weight"], want, rtol=1e-12)
    pd.testing.assert_frame_equal(frame.drop(columns="weight"), records.drop(columns="weight"))
    cut = (records["weight"] > 3 * mean).groupby(records["area"]).sum()
    np.testing.assert_array_equal(report["n_trimmed"], cut.reindex(report["area"].values))
    assert report.attrs["trimmed_records"] == cut.sum() > 0


def test_report_holds_what_the_weights_say_before_and_after(records, trimmed):
    frame, report = trimmed
    for stage, data in (("before", records), ("after", frame)):
        table = weight_table(data, **NAMES)
        for name in ("sensitivity", "variance", "n_eff", "max_weight", "sum_weights"):
            np.testing.assert_array_equal(report[name].sel(stage=stage), table[name])
        price = plan(table, sigma_u=0.03)["rho_respondent"]
        np.testing.assert_array_equal(report["rho"].sel(stage=stage), price)
    touched = report["n_trimmed"] > 0
    before, after = (report.sel(stage=s).where(touched, drop=True) for s in ("before", "after"))
    assert (after["n_eff"] > before["n_eff"]).all()
    assert (after["variance"] < before["variance"]).all()
    assert float(report["rho"].sel(stage="after").max()) < float(
        report["rho"].sel(stage="before").max()
    )


def test_the_price_is_that_of_the_model_that_is_released(records):
    areas = sorted(records["area"].unique())
    x = np.random.default_rng(3).normal(size=(len(areas), 2))
    covariates = pd.DataFrame(x, index=areas, columns=["income", "age"])
    model = {"formula": "~ 1 + income + age", "covariates": covariates, "sigma_u": 0.03}
    frame, report = trim_weights(records, max_ratio=3, **model, **NAMES)
    for stage, data in (("before", records), ("after", frame)):
        table = weight_table(data, **NAMES)
        planned = plan(table, **model)["rho_respondent"]
        np.testing.assert_array_equal(report["rho"].sel(stage=stage), planned)
        # With covariates a model shrinks less, so its draw costs more.
        assert (planned > plan(table, sigma_u=0.03)["rho_respondent"]).all()


@pytest.mark.parametrize("model", [{"formula": "~ 0 + x"}, {"covariates": pd.DataFrame()}])
def test_a_model_without_sigma_u_is_refused(records, model):
    with pytest.raises(ValueError, match="needs sigma_u too"):
        trim_weights(records, max_ratio=3, **model, **NAMES)


def test_without_sigma_u_the_price_is_that_of_no_shrinkage(records):
    _, report = trim_weights(records, cap=2000.0, **NAMES)
    want = report["sensitivity"] ** 2 / (2 * report["variance"])
    np.testing.assert_allclose(report["rho"], want, rtol=1e-12)
    assert float(report["max_weight"].sel(stage="after").max()) >= 2000.0  # summed in households


@pytest.mark.parametrize("kind", ["polars", "pyarrow"])
def test_other_frames_give_the_same_and_come_back_as_they_are(records, trimmed, kind):
    given = pl.from_pandas(records) if kind == "polars" else pa.Table.from_pandas(records)
    frame, report = trim_weights(given, max_ratio=3, sigma_u=0.03, **NAMES)
    assert type(frame) is type(given)
    np.testing.assert_allclose(np.asarray(frame["weight"]), trimmed[0]["weight"], rtol=1e-12)
    xr.testing.assert_allclose(report, trimmed[1])


def test_the_data_given_stay_as_they_are_and_outcomes_make_no_difference(records):
    kept = records.copy(deep=True)
    frame, report = trim_weights(records, max_ratio=3, **NAMES)
    pd.testing.assert_frame_equal(records, kept)
    other, again = trim_weights(records.assign(smoker=1 - records["smoker"]), max_ratio=3, **NAMES)
    xr.testing.assert_identical(report, again)
    np.testing.assert_array_equal(frame["weight"], other["weight"])
    trim_weights(records.drop(columns="smoker"), max_ratio=3, **NAMES)
    assert "outcome" not in inspect.signature(trim_weights).parameters


def test_several_area_columns_and_weights_of_zero(records):
    data = records.assign(state=records["area"].str[:2], part=records["area"].str[2:])
    data.loc[data.index[:5], "weight"] = 0.0
    frame, _ = trim_weights(data, weight="weight", area=["state", "part"], rate=0.2, max_ratio=2)
    positive = data["weight"].where(data["weight"] > 0)
    mean = positive.groupby(data["area"]).transform("mean")
    np.testing.assert_allclose(frame["weight"], np.minimum(data["weight"], 2 * mean), rtol=1e-12)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "max_ratio or as cap"),
        ({"max_ratio": 3, "cap": 3}, "max_ratio or as cap"),
        ({"max_ratio": 0.9}, "at least 1"),
        ({"max_ratio": np.nan}, "at least 1"),
        ({"cap": 0.0}, "cap positive"),
        ({"cap": np.inf}, "both finite"),
    ],
)
def test_unusable_rules_are_refused(records, rule, message):
    with pytest.raises(ValueError, match=message):
        trim_weights(records, **rule, **NAMES)


def test_unusable_weights_are_refused(records):
    with pytest.raises(ValueError, match=r"weight"):
        trim_weights(records.assign(weight=-records["weight"]), max_ratio=3, **NAMES)
