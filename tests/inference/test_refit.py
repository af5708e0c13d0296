"""The likelihood of a release and its conditional moments against dense joint algebra."""

from __future__ import annotations

import numpy as np
import pytest
from factories.releases import MECHANISMS, Dense, information
from scipy import stats

from pymc_dp.inference.refit import refit
from pymc_dp.posterior.information import InformationMatrix

X = np.column_stack([np.ones(7), [0.0, 1.0, 2.0, 4.0, 1.5, -1.0, 3.0]])
D = np.array([0.001, 0.004, 0.002, 0.008, 0.0015, np.nan, 0.03])  # one area without sample
PRIOR = np.array([0.1, 0.02]), np.array([0.5, 0.3])


def a_release(mechanism, A0=0.0004):
    rng = np.random.default_rng(11)
    y = 0.2 + 0.02 * X[:, 1] + rng.normal(0, 0.05, 7)
    return information(mechanism, A0, D, X, y, rng)


def nothing(_):
    pass


# The dense route inverts precisions of up to 1e8 times its smallest: eight digits are left.
@pytest.mark.parametrize("prior", [None, PRIOR], ids=["flat", "normal"])
@pytest.mark.parametrize("factor", [1.0, 1.7])
@pytest.mark.parametrize(
    ("mechanism", "A0"), [(name, 0.0004) for name in MECHANISMS] + [("joint", 0.0)]
)
def test_fit_and_moments_equal_dense_algebra(mechanism, A0, factor, prior):
    K, h = a_release(mechanism, A0)
    V = np.nan_to_num(D)
    mean, sd = (None, None) if prior is None else prior
    problem = refit(K, h, V, X, prior_mean=mean, prior_sd=sd)
    A = np.array([1e-5, 1e-3, 0.2])
    fit = problem.fit(A, factor)
    want = [Dense(K.dense(), h, V, X, a, factor, prior) for a in A]
    np.testing.assert_allclose(fit.log_marginal, [w.log_marginal for w in want], atol=1e-7)
    beta = problem.original(fit.coefficient)
    np.testing.assert_allclose(beta, [w.beta for w in want], rtol=1e-7, atol=1e-9)
    spread = (np.linalg.solve(problem.upper, fit.root) ** 2).sum(axis=2)
    np.testing.assert_allclose(spread, [w.beta_variance for w in want], rtol=1e-6)
    f = np.full(3, factor)
    for k in range(3):
        one = np.eye(3)[k]
        got = problem.area_moments(A, f, one, fit, nothing)
        np.testing.assert_allclose(got[0], want[k].theta, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(got[1], want[k].theta_variance, rtol=1e-6)
    weight = np.array([0.2, 0.5, 0.3])
    mixed = problem.area_moments(A, f, weight, fit, nothing)
    centre = weight @ [w.theta for w in want]
    total = weight @ [w.theta_variance + (w.theta - centre) ** 2 for w in want]
    np.testing.assert_allclose(mixed[0], centre, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(mixed[1], total, rtol=1e-6)


def test_log_marginal_is_the_density_of_the_statistic():
    """Against N(0, K), where K is invertible: a plain difference of two log densities."""
    rows = np.flatnonzero(~np.isnan(D))
    K, h = a_release("joint")
    K, h = InformationMatrix(K.own[rows], K.shared[rows], K.sign), h[rows]
    problem = refit(K, h, D[rows], X[rows], prior_mean=PRIOR[0], prior_sd=PRIOR[1])
    k = K.dense()
    V = np.diag(0.01 + D[rows]) + X[rows] @ np.diag(PRIOR[1] ** 2) @ X[rows].T
    law = stats.multivariate_normal(k @ X[rows] @ PRIOR[0], k + k @ V @ k)
    want = law.logpdf(h) - stats.multivariate_normal(np.zeros(6), k).logpdf(h)
    assert problem.fit(np.array([0.01])).log_marginal[0] == pytest.approx(want, abs=1e-9)


# 200,000 draws: means within 6 standard errors and variances within 6 * sqrt(2 / n), for which
# the chance of a false alarm is below 1e-7 over all areas and mechanisms.
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_draws_have_the_conditional_law(mechanism):
    K, h = a_release(mechanism)
    V = np.nan_to_num(D)
    problem = refit(K, h, V, X)
    n = 200_000
    rng = np.random.default_rng(12)
    A, f = np.full(n, 0.0006), np.full(n, 1.2)
    fit = problem.fit(A[:1], 1.2)
    every = type(fit)(*(np.broadcast_to(v, (n, *v.shape[1:])) for v in fit))
    normal = rng.standard_normal((n, 2))
    coefficient = fit.coefficient + normal @ fit.root[0].T
    theta = np.empty((n, 7))
    problem.draw_areas(A, f, coefficient, every, rng, nothing, theta)
    want = Dense(K.dense(), h, V, X, 0.0006, 1.2)
    sd = np.sqrt(want.theta_variance)
    assert (np.abs(theta.mean(axis=0) - want.theta) < 6 * sd / np.sqrt(n)).all()
    both = np.column_stack([theta, problem.original(coefficient)])
    scale = np.sqrt(np.diag(want.covariance))
    got = np.cov(both.T) / np.outer(scale, scale)
    np.testing.assert_allclose(
        got, want.covariance / np.outer(scale, scale), atol=6 * np.sqrt(2 / n)
    )


def test_a_flat_prior_needs_a_release_that_identifies_every_coefficient():
    """At a working sigma_u of 0 the release is a function of its own coefficients."""
    K, h = a_release("joint", 0.0)
    more = np.column_stack([X, np.arange(7.0) ** 2])
    with pytest.raises(ValueError, match="only 2 of their combinations"):
        refit(K, h, np.nan_to_num(D), more)
    mean, sd = np.zeros(3), np.ones(3)
    problem = refit(K, h, np.nan_to_num(D), more, prior_mean=mean, prior_sd=sd)
    want = Dense(K.dense(), h, np.nan_to_num(D), more, 0.001, 1.0, (mean, sd))
    fit = problem.fit(np.array([0.001]))
    np.testing.assert_allclose(problem.original(fit.coefficient)[0], want.beta, atol=1e-8)


def test_reprs_show_sizes_alone():
    K, h = a_release("joint")
    problem = refit(K, h, np.nan_to_num(D), X)
    assert repr(problem.fit(np.ones(2))) == "NodeFit(2, 2)"
    assert "array" not in repr(problem)
