"""The factored posterior against dense linear algebra, and what a reader of a draw may infer."""

from __future__ import annotations

import numpy as np
import pytest
from factories.fay_herriot import build, problems
from hypothesis import given, settings

from pymc_dp.mechanisms.law import smooth_independent, smooth_joint
from pymc_dp.posterior.fay_herriot import GaussianPosterior, fay_herriot_posterior


def dense(q: dict):
    """Mean, covariance and propagation from the joint Gaussian of (u, beta), densely."""
    m, p = q["X"].shape
    s = q["precision"] > 0
    Z = np.hstack([np.eye(m), q["X"]])[:, np.r_[np.flatnonzero(q["A"] > 0), m : m + p]]
    k = (q["A"] > 0).sum()
    prior = np.zeros((k + p, k + p))
    prior[:k, :k] = np.diag(1 / q["A"][q["A"] > 0])
    prior[k:, k:] = q["P0"]
    shift = np.r_[np.zeros(k), q["P0"] @ q["b0"]]
    Q = Z.T @ np.diag(q["precision"]) @ Z + prior
    S = np.linalg.inv(Q)
    M = (Z @ S @ Z.T * q["precision"])[:, :]
    y = np.where(s, q["y"], 0.0)
    mean = q["offset"] + Z @ S @ (Z.T @ (q["precision"] * (y - q["offset"])) + shift)
    return mean, Z @ S @ Z.T, M


# 1e-9 relative to the largest entry: the dense route inverts matrices of condition up to 1e6.
@settings(max_examples=150, deadline=None)
@given(problems())
def test_factored_posterior_equals_dense_gaussian_conditioning(q):
    post = build(q)
    mean, cov, M = dense(q)
    np.testing.assert_allclose(post.mean(q["y"]), mean, rtol=1e-8, atol=1e-8 * np.abs(mean).max())
    np.testing.assert_allclose(post.covariance(), cov, atol=1e-9 * np.abs(cov).max())
    np.testing.assert_allclose(post.variance, np.diag(cov), rtol=1e-7)
    np.testing.assert_allclose(post.propagation(), M, atol=1e-9 * np.abs(M).max())


@settings(max_examples=60, deadline=None)
@given(problems())
def test_propagation_is_covariance_over_sampling_variance(q):
    post = build(q)
    np.testing.assert_allclose(
        post.propagation(),
        post.covariance() * q["precision"],
        rtol=1e-9,
        atol=1e-12 * np.abs(post.propagation()).max(),
    )


def conditioned(q: dict, post: GaussianPosterior, independent: bool, release):
    """theta | theta* by conditioning the joint Gaussian of (theta, theta*), densely."""
    s = q["precision"] > 0
    m, p = q["X"].shape
    M = post.propagation()
    noise = np.diag(post.variance) if independent else post.covariance()
    D = np.where(s, 1 / np.where(s, q["precision"], 1), 0.0)
    psi = M @ np.diag(D) @ M.T + noise
    # theta = offset + Z (u, beta); condition in the precision form so that beta may be flat.
    Z = np.hstack([np.eye(m), q["X"]])
    prior = np.zeros((m + p, m + p))
    prior[:m, :m] = np.diag(1 / q["A"])
    prior[m:, m:] = q["P0"]
    shift = np.r_[np.zeros(m), q["P0"] @ q["b0"]]
    H = M @ Z
    R = np.linalg.inv(psi)
    S = np.linalg.inv(H.T @ R @ H + prior)
    constant = post.mean(np.zeros(m)) + M @ q["offset"]
    mean = q["offset"] + Z @ S @ (H.T @ R @ (release - constant) + shift)
    return mean, np.sqrt(np.diag(Z @ S @ Z.T))


# Dense conditioning inverts twice, with A down to 1e-3: 1e-6 is what it can vouch for.
@pytest.mark.parametrize("independent", [False, True])
@settings(max_examples=80, deadline=None)
@given(q=problems(positive_a=True))
def test_smoothed_draw_is_the_conditional_expectation_given_the_draw(independent, q):
    post = build(q)
    release = q["y"][::-1].copy()
    mean, sd = (smooth_independent if independent else smooth_joint)(post, release)
    want_mean, want_sd = conditioned(q, post, independent, release)
    np.testing.assert_allclose(mean, want_mean, rtol=1e-6, atol=1e-6 * np.abs(want_mean).max())
    np.testing.assert_allclose(sd, want_sd, rtol=1e-6)


def test_sampling_variances_twelve_orders_apart_keep_full_accuracy():
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 60
    m = 24
    D = 10.0 ** np.linspace(-10, 2, m)
    X = np.column_stack([np.ones(m), np.cos(np.arange(m))])
    A = 0.37
    post = fay_herriot_posterior(A, 1 / D, X)
    w = [1 / (mpmath.mpf(A) + mpmath.mpf(d)) for d in D]
    P = mpmath.matrix(2, 2)
    for i in range(2):
        for j in range(2):
            P[i, j] = mpmath.fsum(
                w[k] * mpmath.mpf(X[k, i]) * mpmath.mpf(X[k, j]) for k in range(m)
            )
    G = P**-1
    for k in range(m):
        x = mpmath.matrix([mpmath.mpf(v) for v in X[k]])
        q = (x.T * G * x)[0]
        gd = A * w[k] * mpmath.mpf(D[k])
        variance = gd + (mpmath.mpf(D[k]) * w[k]) ** 2 * q
        assert abs(post.variance[k] / float(variance) - 1) < 1e-13


def test_collinear_coefficients_under_a_flat_prior_are_refused():
    X = np.array([[1.0, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1]])
    with pytest.raises(ValueError, match="not identified"):
        fay_herriot_posterior(0.1, np.full(4, 100.0), X)
    with pytest.raises(ValueError, match="not identified"):
        fay_herriot_posterior(0.1, np.full(2, 100.0), X[:2])
    post = fay_herriot_posterior(0.1, np.full(4, 100.0), X, prior_precision=np.eye(3))
    assert np.isfinite(post.variance).all()
