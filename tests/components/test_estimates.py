"""Marginal likelihood, REML, ML and moment estimates of sigma_u."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats

from pymc_dp.components.estimates import estimate_sigma_u, log_marginal_likelihood
from pymc_dp.models.gls import sample_of
from pymc_dp.models.inputs import area_data

A10 = [0.30, 0.31, 0.29, 0.305, 0.295, 0.30, 0.31, 0.29]


def as_direct(estimate, variance, area=None) -> xr.Dataset:
    area = np.arange(len(estimate)).astype(str) if area is None else np.asarray(area, dtype=str)
    return xr.Dataset(
        {
            "estimate": ("area", np.asarray(estimate, float)),
            "variance": ("area", np.asarray(variance, float)),
        },
        coords={"area": area},
    )


@st.composite
def surveys(draw):
    """Direct estimates with D over decades, covariates, and some areas without sample."""
    p, sigma = draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.05, 0.5]))
    m = draw(st.integers(p + 2, 15))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    D = 10.0 ** rng.uniform(-4, 0, m)
    x = rng.normal(size=(m, p - 1))
    y = x.sum(axis=1) + sigma * rng.normal(size=m) + np.sqrt(D) * rng.normal(size=m)
    names = [f"x{k}" for k in range(p - 1)]
    covariates = pd.DataFrame(x, columns=names, index=np.arange(m).astype(str))
    if draw(st.booleans()):
        extra = pd.DataFrame(rng.normal(size=(2, p - 1)), columns=names, index=["u", "v"])
        covariates = pd.concat([covariates, extra])
    design = np.column_stack([np.ones(m), x])
    return as_direct(y, D), " + ".join(["~ 1", *names]), covariates, design


def test_marginal_likelihood_stays_finite_where_the_determinant_underflows():
    # Case A13, computed elsewhere with 40 digits and given to six decimals.
    i = np.arange(400)
    D = 1e-4 * (1 + i % 7)
    assert np.prod(5e-5 + D) == 0.0
    direct = as_direct(0.25 + 0.01 * np.sin(i), D)
    found = log_marginal_likelihood(direct, np.sqrt(5e-5))
    assert found == pytest.approx(1163.522266, abs=5e-7)
    fit = sample_of(area_data(direct)).fit([5e-5])
    assert fit.log_determinant.item() == pytest.approx(-3132.537862, abs=5e-7)
    # The likelihood is normal around beta-hat, so its value at any b follows from the fit.
    apart = 0.25 - fit.coefficient.item()
    at_b = fit.log_profile_likelihood(400) - np.exp(fit.log_information) * apart**2 / 2
    assert at_b.item() == pytest.approx(1169.575078, abs=5e-7)


@settings(max_examples=60, deadline=None)
@given(surveys(), st.sampled_from([0.0, 0.01, 0.3, 5.0]))
def test_marginal_likelihood_is_the_density_of_the_error_contrasts(survey, sigma):
    direct, formula, covariates, X = survey
    y, D = direct["estimate"].values, direct["variance"].values
    K = linalg.null_space(X.T)
    V = K.T @ np.diag(sigma**2 + D) @ K
    contrasts = stats.multivariate_normal(cov=V, allow_singular=True).logpdf(K.T @ y)
    # The contrasts leave out the volume of the columns of X.
    want = contrasts - np.linalg.slogdet(X.T @ X)[1] / 2
    found = log_marginal_likelihood(direct, sigma, formula, covariates)
    assert found == pytest.approx(want, rel=1e-8, abs=1e-8)


def test_marginal_likelihood_takes_any_shape_of_sigma_u():
    direct = as_direct(A10, [0.0025] * 8)
    grid = np.array([[0.0, 0.1], [0.2, 0.3]])
    values = log_marginal_likelihood(direct, grid)
    assert values.shape == (2, 2)
    assert values[1, 0] == log_marginal_likelihood(direct, 0.2)


@pytest.mark.parametrize("sigma", [-0.1, np.nan, np.inf, [0.1, -1.0]])
def test_marginal_likelihood_refuses_an_impossible_sigma_u(sigma):
    with pytest.raises(ValueError, match="finite and zero or positive"):
        log_marginal_likelihood(as_direct(A10, [0.0025] * 8), sigma)


@pytest.fixture(scope="module")
def published(shared):
    data = shared / "data"
    milk = pd.read_csv(data / "fh_milk.csv", dtype={"SmallArea": str}).set_index("SmallArea")
    county = pd.read_csv(data / "fh_county_poverty_acs_2007_2011.csv.gz", dtype={"fips": str})
    county = county[county["var"] >= 1e-6].set_index("fips")
    grapes = pd.read_csv(data / "fh_grapes.csv")
    grapes.index = grapes.index.astype(str)
    king = pd.read_csv(data / "brfss_king_county_area_table.csv")
    king = king[(king["domain"] == "hra") & (king["outcome"] == "smoker")].set_index("area")
    return {
        "milk": (as_direct(milk.yi, milk.SD**2, milk.index), "~ C(MajorArea)", milk),
        "county_poverty": (
            as_direct(county.pov_rate, county["var"], county.index),
            "~ snap_rate",
            county,
        ),
        "grapes": (
            as_direct(grapes.grapehect, grapes["var"], grapes.index),
            "~ area + workdays - 1",
            grapes,
        ),
        "king_county_smoking_hra": (as_direct(king.hajek, king.var_lin, king.index), "~ 1", None),
    }


@pytest.mark.parametrize(
    ("case", "method", "key"),
    [
        ("milk", "reml", "REML"),
        ("milk", "ml", "ML"),
        ("milk", "moment", "FH"),
        ("county_poverty", "reml", "REML"),
        ("grapes", "reml", "REML"),
        ("king_county_smoking_hra", "reml", "REML"),
    ],
)
def test_estimates_agree_with_the_r_package_sae(shared, published, case, method, key):
    reference = json.loads((shared / "reference" / "eblup.json").read_text())
    direct, formula, covariates = published[case]
    found = estimate_sigma_u(direct, formula, covariates, method=method) ** 2
    # Twelve digits are given, one of them rounded.
    assert found == pytest.approx(reference[case][key]["sigma_u2"], rel=1e-11)


def test_areas_that_hardly_differ_have_an_estimate_of_zero():
    direct = as_direct(A10, [0.0025] * 8)
    for method in ("reml", "ml", "moment"):
        assert estimate_sigma_u(direct, method=method) == 0.0
    # The published slope of the restricted likelihood in A at 0, by a one-sided difference.
    step = 1e-9
    rise = log_marginal_likelihood(direct, np.sqrt(step)) - log_marginal_likelihood(direct, 0.0)
    assert rise / step == pytest.approx(-1364.0, rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(surveys())
def test_reml_estimate_is_the_highest_point_of_the_marginal_likelihood(survey):
    direct, formula, covariates, _ = survey
    best = estimate_sigma_u(direct, formula, covariates)
    others = np.concatenate([[0.0], np.geomspace(1e-4, 1e2, 3000), best * np.array([0.999, 1.001])])
    height = log_marginal_likelihood(direct, others, formula, covariates)
    assert log_marginal_likelihood(direct, best, formula, covariates) >= height.max() - 1e-9


@settings(max_examples=40, deadline=None)
@given(surveys())
def test_ml_and_moment_estimates_solve_their_dense_equations(survey):
    direct, formula, covariates, X = survey
    y, D = direct["estimate"].values, direct["variance"].values
    m, p = X.shape

    def dense(A):
        W = np.diag(1 / (A + D))
        r = y - X @ np.linalg.solve(X.T @ W @ X, X.T @ W @ y)
        return r, 1 / (A + D)

    A = estimate_sigma_u(direct, formula, covariates, method="moment") ** 2
    r, w = dense(A)
    if A > 0:
        assert (w * r**2).sum() == pytest.approx(m - p, rel=1e-7)
    else:
        assert (w * r**2).sum() <= (m - p) * (1 + 1e-9)

    A = estimate_sigma_u(direct, formula, covariates, method="ml") ** 2
    r, w = dense(A)
    slope = (w**2 * r**2).sum() - w.sum()
    assert abs(slope) < 1e-7 * w.sum() if A > 0 else slope <= 1e-9 * w.sum()


def test_estimation_refuses_what_cannot_be_estimated():
    with pytest.raises(ValueError, match="1 areas with a sample for 1 coefficients"):
        estimate_sigma_u(as_direct([0.1], [0.01]))
    with pytest.raises(ValueError, match="'reml', 'ml' or 'moment'"):
        estimate_sigma_u(as_direct(A10, [0.0025] * 8), method="bayes")
    with pytest.raises(ValueError, match="zero: 1"):
        estimate_sigma_u(as_direct([0.1, 0.2], [0.01, 0.0]))
