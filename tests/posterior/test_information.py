"""K and h of every kind of release against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from factories.fay_herriot import build, problems
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.posterior import information
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior

MECHANISMS = st.sampled_from(
    [
        ("joint", 1.0, 0.0),
        ("joint", 2.5, 0.0),
        ("widened", 1.0, 0.3),
        ("widened", 1.7, 0.01),
        ("independent", 1.0, 0.0),
        ("independent", 1.4, 0.0),
        ("independent", 1.2, 0.05),
    ]
)


def computed(post, release, mechanism):
    kind, k, v = mechanism
    if kind == "joint":
        return information.joint_information(post, k), information.joint_h(post, release, k)
    if kind == "widened":
        return (
            information.widened_information(post, k, v),
            information.widened_h(post, release, k, v),
        )
    return (
        information.independent_information(post, k, v),
        information.independent_h(post, release, k, v),
    )


def dense(post, release, mechanism):
    """``M' N^-1 M`` and ``M' N^-1 (theta* - c)`` as the definition says."""
    kind, k, v = mechanism
    M, N = post.propagation(), post.covariance()
    N = np.diag(k * np.diag(N) + v) if kind == "independent" else k * N + v * np.eye(len(N))
    inverse = np.linalg.pinv(N, rcond=1e-11, hermitian=True)
    return M.T @ inverse @ M, (release - post.mean(np.zeros(len(N)))) @ inverse @ M


# A draw without any variance of its own (A = 0) has a singular N: 1e-6 is what the pseudo-inverse
# can vouch for there, and what problems with D over four decades leave of a dense inverse.
@settings(max_examples=300, deadline=None)
@given(problems(), MECHANISMS)
def test_information_and_statistic_equal_their_definitions(q, mechanism):
    post = build(q)
    rng = np.random.default_rng(3)
    N = post.covariance()
    # In the range of N, as a draw is.
    release = post.mean(np.zeros(len(N))) + rng.normal(size=(2, len(N))) @ N
    K, h = computed(post, release, mechanism)
    want_K, want_h = dense(post, release, mechanism)
    scale = np.sqrt(np.outer(np.diag(want_K), np.diag(want_K)))
    assert (np.abs(K.dense() - want_K) <= 1e-6 * scale + 1e-13).all()
    np.testing.assert_allclose(h, want_h, rtol=1e-6, atol=1e-6 * np.abs(want_h).max())
    np.testing.assert_allclose(K.diagonal, np.diag(K.dense()), rtol=1e-9, atol=1e-15)
    vectors = rng.normal(size=(3, len(N)))
    rounding = 1e-10 * K.diagonal.max()  # entries are sums of terms as large as the diagonal
    np.testing.assert_allclose(K.times(vectors), vectors @ K.dense(), rtol=1e-8, atol=rounding)
    np.testing.assert_allclose(K.scaled(3.0).dense(), 3 * K.dense(), rtol=1e-9, atol=rounding)
    without = q["precision"] == 0
    assert not K.dense()[without].any() and not h[:, without].any()
    assert (K.own >= 0).all()
    assert (np.linalg.eigvalsh(K.dense()) > -1e-10 * K.diagonal.max()).all()


def test_small_inflated_noise_is_the_limit_of_widening():
    post = fay_herriot_posterior(0.01, 1 / np.array([0.01, 0.02, 0.04]), np.ones((3, 1)))
    np.testing.assert_allclose(
        information.widened_information(post, 1.0, 1e-13).dense(),
        information.joint_information(post).dense(),
        rtol=1e-10,
    )


def test_an_unsampled_area_adds_information_to_noise_that_is_independent_by_area():
    """Up to 29 % in two of six areas: sums run over all published areas."""
    precision = np.array([100.0, 50.0, 80.0, 60.0, 0.0, 0.0])
    X = np.ones((6, 1))
    every = information.independent_information(fay_herriot_posterior(0.001, precision, X))
    four = information.independent_information(fay_herriot_posterior(0.001, precision[:4], X[:4]))
    assert (every.diagonal[:4] > 1.1 * four.diagonal).all()


def test_statistics_of_any_release_in_factors():
    rng = np.random.default_rng(5)
    own, shared = rng.uniform(size=4), rng.normal(size=(4, 2))
    S = np.vstack([np.diag(own), shared.T])
    z = rng.normal(size=(3, 6))
    K = information.statistics_information(own, shared)
    np.testing.assert_allclose(K.dense(), S.T @ S, rtol=1e-13)
    np.testing.assert_allclose(information.statistics_h(own, shared, z), z @ S, rtol=1e-13)


def test_noise_on_direct_estimates_where_there_is_no_sample():
    K = information.direct_information(np.array([0.5, np.nan]))
    assert K.own.tolist() == [2.0, 0.0] and K.shared.shape == (2, 0)
    assert repr(K) == "InformationMatrix(2, 0)"


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
def test_price_of_a_record_is_half_the_information(mechanism):
    from pymc_dp.mechanisms.fay_herriot import prices

    precision = 1 / np.array([0.01, 0.02, 0.04, 0.01])
    X = np.column_stack([np.ones(4), [0.0, 1.0, 2.0, 4.0]])
    post = fay_herriot_posterior(0.0025, precision, X)
    s = np.array([0.1, 0.2, 0.1, 0.3])
    K = computed(post, np.zeros(4), (mechanism, 1.0, 0.0))[0]
    price = prices(post, s, bound=1.0, mechanism=mechanism)
    by_area = price.respondent if mechanism == "joint" else price.independent
    np.testing.assert_allclose(s**2 * K.diagonal / 2, by_area, rtol=1e-8)


@settings(max_examples=200, deadline=None)
@given(problems(), MECHANISMS)
def test_absorbing_the_sampling_error_equals_dense_algebra(q, mechanism):
    post = build(q)
    m = post.gamma.size
    rng = np.random.default_rng(4)
    K, h = computed(post, rng.normal(size=(2, m)), mechanism)
    V = np.where(q["precision"] > 0, rng.uniform(0.001, 1.0, m), 0.0)
    found = K.absorb(V)
    together = np.eye(m) + K.dense() * V
    want = np.linalg.solve(together, h.T).T
    np.testing.assert_allclose(found.statistic(h), want, rtol=1e-7, atol=1e-8 * np.abs(h).max())
    precision = np.linalg.solve(together, K.dense())
    np.testing.assert_allclose(
        found.precision.dense(), precision, rtol=1e-7, atol=1e-9 * K.diagonal.max()
    )
    log_determinant = np.linalg.slogdet(together)[1]
    assert found.log_determinant == pytest.approx(log_determinant, rel=1e-9, abs=1e-9)


# Entries of a covariance of 200,000 draws err by at most 6 of their standard errors, but for a
# chance below 1e-7 for all together.
@pytest.mark.parametrize(
    "mechanism",
    [("joint", 1.0, 0.0), ("widened", 1.0, 0.02), ("independent", 1.0, 0.0)],
    ids=lambda v: v[0],
)
def test_noise_has_the_covariance_that_the_signed_factors_say(mechanism):
    X = np.column_stack([np.ones(5), [0.0, 1.0, 2.0, 4.0, 1.0]])
    post = fay_herriot_posterior(0.01, np.array([100.0, 50.0, 80.0, 20.0, 0.0]), X)
    K = computed(post, np.zeros(5), mechanism)[0]
    n = 200_000
    both = K.noise(np.random.default_rng(6), n)
    want, got = K.dense(), both.T @ both / n
    error = np.sqrt((want**2 + np.outer(K.diagonal, K.diagonal)) / n)
    assert (np.abs(got - want) <= 6 * error).all()
    assert (mechanism[0] == "joint") == (K.sign > 0).all()
