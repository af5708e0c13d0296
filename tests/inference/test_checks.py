"""The test of a working model, and covariates compared, on releases of every kind."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from factories.releases import MECHANISMS, Dense, as_group, information
from scipy import stats

from pymc_dp.inference import check_working, compare_formulas
from pymc_dp.inference.information import read_information
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.posterior.information import joint_h, joint_information

AREA = list("abcdefg")
X = np.column_stack([np.ones(7), [0.0, 1.0, 2.0, 4.0, 1.5, -1.0, 3.0]])
TABLE = pd.DataFrame({"x": X[:, 1], "noise": [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]}, index=AREA)
D = np.array([0.001, 0.004, 0.002, 0.008, 0.0015, np.nan, 0.03])
TOLD = np.flatnonzero(~np.isnan(D))
A0 = 0.0009


def a_group(mechanism, seed=11, slope=0.02):
    rng = np.random.default_rng(seed)
    y = 0.2 + slope * X[:, 1] + rng.normal(0, 0.03, 7)
    return as_group(*information(mechanism, A0, D, X, y, rng), AREA, D)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_statistic_is_the_generalised_sum_of_squares(mechanism):
    found = check_working(a_group(mechanism), "~ x", TABLE, sigma_u=0.05)
    release = read_information(a_group(mechanism))
    noise = np.linalg.inv(release.K.dense()[np.ix_(TOLD, TOLD)])
    y = noise @ release.h[TOLD]
    V = 0.0025 * np.eye(6) + np.diag(D[TOLD]) + noise
    design, inverse = X[TOLD], np.linalg.inv(V)
    left = np.linalg.inv(design.T @ inverse @ design)
    r = y - design @ left @ design.T @ inverse @ y
    assert float(found["statistic"]) == pytest.approx(r @ inverse @ r, rel=1e-7)
    assert int(found["degrees_of_freedom"]) == 4
    law = stats.chi2(4)
    p = 2 * min(law.cdf(float(found["statistic"])), law.sf(float(found["statistic"])))
    assert float(found["p_value"]) == pytest.approx(p, rel=1e-6)
    spread = np.diag(V - design @ left @ design.T)
    np.testing.assert_allclose(found["residual"][TOLD], r / np.sqrt(spread), rtol=1e-6)
    assert np.isnan(found["residual"][5])


def test_of_a_joint_draw_it_is_the_spread_of_the_draw_itself():
    sampled = D[TOLD]
    post = fay_herriot_posterior(A0, 1 / sampled, X[TOLD])
    draw = np.random.default_rng(3).normal(0.2, 0.1, 6)
    names = [AREA[i] for i in TOLD]
    group = as_group(joint_information(post), joint_h(post, draw), names, sampled)
    found = check_working(group, "~ x", TABLE.loc[names], sigma_u=np.sqrt(A0))
    beta = np.linalg.lstsq(X[TOLD], draw, rcond=None)[0]
    want = ((draw - X[TOLD] @ beta) ** 2).sum() / A0
    assert float(found["statistic"]) == pytest.approx(want, rel=1e-9)


# Simulated with 4,000 draws: .008 is one standard error, and the seed is fixed.
@pytest.mark.parametrize(
    ("working", "true", "power"), [(0.01, 0.04, 0.12), (0.02, 0.04, 0.24), (0.04, 0.08, 0.96)]
)
def test_power_for_king_county(shared, working, true, power):
    table = pd.read_csv(shared / "data" / "brfss_king_county_area_table.csv")
    table = table[(table.domain == "hra") & (table.outcome == "smoker")]
    sampling = (0.15 * 0.85 / table.n_eff).to_numpy()
    post = fay_herriot_posterior(working**2, 1 / sampling, np.ones((sampling.size, 1)))
    draw = np.full(sampling.size, 0.15) + working * np.linspace(-1, 1, sampling.size)
    group = as_group(joint_information(post), joint_h(post, draw), table.area, sampling)
    found = check_working(group, sigma_u=working)
    assert float(found["power"].sel(sigma_u=true)) == pytest.approx(power, abs=0.03)
    assert float(found["power"].sel(sigma_u=working)) == pytest.approx(0.05, abs=0.02)


# p-values of 400 releases at their own model, uniform: 2.9 / sqrt(n) (Dvoretzky, Kiefer and
# Wolfowitz) bounds the chance of a false alarm by 1e-7.
def test_p_values_are_uniform_under_the_model(monkeypatch):
    monkeypatch.setattr("pymc_dp.inference.checks.SIMULATED", 200)
    rng = np.random.default_rng(5)
    p = []
    for _ in range(400):
        y = 0.2 + 0.03 * rng.standard_normal(7) + np.sqrt(np.nan_to_num(D)) * rng.standard_normal(7)
        K, h = information("independent", 0.01, D, X, y, rng)
        p.append(float(check_working(as_group(K, h, AREA, D), sigma_u=0.03)["p_value"]))
    below = np.sort(p) - (np.arange(400) + 0.5) / 400
    assert np.abs(below).max() < 2.9 / np.sqrt(400)


def marginal(release, columns, prior):
    """Trapezoids in log sigma_u, the unit-information prior as a dense normal one."""
    design = X[:, :1] if not columns else np.column_stack([X[:, :1], TABLE[columns]])
    K, V = release.K.dense(), np.nan_to_num(D)
    x = np.linspace(-25, 2, 700)
    height = []
    for s in np.exp(x):
        alone = Dense(K, release.h, V, X[:, :1], s**2).log_marginal
        value = alone
        if columns:
            together = np.linalg.solve(np.eye(7) + K * (V + s**2), K)
            first, rest = design[:, :1], design[:, 1:]
            rest = rest - first @ np.linalg.solve(
                first.T @ together @ first, first.T @ together @ rest
            )
            unit = np.linalg.inv(rest.T @ together @ rest) * TOLD.size
            # Normal with that covariance: written as a prior on coordinates with variance 1.
            Z = np.column_stack([first, rest @ np.linalg.cholesky(unit)])
            prior_of = np.zeros(Z.shape[1]), np.append(1e6, np.ones(rest.shape[1]))
            flat = np.log(1e6) + np.log(2 * np.pi) / 2
            value = Dense(K, release.h, V, Z, s**2, 1.0, prior_of).log_marginal + flat
        height.append(value + prior.logpdf(s) + np.log(s))
    height = np.array(height)
    return np.log(np.exp(height - height.max()).sum()) + height.max()


# A flat intercept is a normal one of sd 1e6 here, and dense algebra leaves some digits: 1e-5.
@pytest.mark.parametrize("mechanism", ["joint", "widened", "direct"])
def test_marginal_likelihoods_equal_brute_force(mechanism):
    import pymc as pm

    group = a_group(mechanism)
    formulas = {"~ 1": [], "~ x": ["x"], "~ x + noise": ["x", "noise"]}
    found = compare_formulas(group, list(formulas), TABLE, prior=pm.HalfNormal.dist(0.1))
    release = read_information(group)
    want = np.array([marginal(release, c, stats.halfnorm(scale=0.1)) for c in formulas.values()])
    np.testing.assert_allclose(found["log_marginal"], want - want.max(), atol=1e-5)
    share = np.exp(want - want.max())
    np.testing.assert_allclose(found["probability"], share / share.sum(), atol=1e-5)
    assert found["coefficients"].values.tolist() == [1, 2, 3]


def test_a_covariate_that_matters_is_found():
    found = compare_formulas(a_group("direct", slope=0.3), ["~ 1", "~ x", "~ noise"], TABLE)
    assert found["probability"].idxmax() == "~ x"
    assert float(found["probability"].sel(formula="~ x")) > 0.8
    assert float(found["sigma_u"].sel(formula="~ x")) < float(found["sigma_u"].sel(formula="~ 1"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: check_working(g), "gives no working sigma_u"),
        (lambda g: check_working(g, sigma_u=0.0), "positive finite"),
        (lambda g: check_working(g, sigma_u=np.nan), "positive finite"),
        (lambda g: check_working(g, sigma_u=0.1, level=0.0), "level"),
        (lambda g: check_working(g, "~ C(x)", TABLE, sigma_u=0.1), "collinear|leave nothing"),
        (lambda g: compare_formulas(g, []), "list of different formulas"),
        (lambda g: compare_formulas(g, ["~ 1", "~ 1"]), "list of different formulas"),
        (lambda g: compare_formulas(g, ["~ 0 + x"], TABLE), "need an intercept"),
    ],
)
def test_unusable_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(a_group("joint"))


def test_a_release_of_coefficients_alone_cannot_be_checked():
    rng = np.random.default_rng(1)
    K, h = information("joint", 0.0, D, X, np.full(7, 0.2), rng)
    with pytest.raises(ValueError, match="nothing but what it says of all together"):
        check_working(as_group(K, h, AREA, D), sigma_u=0.1)
