"""Prices of a draw: reference values, dense linear algebra, and what the design promises."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from factories.fay_herriot import build, problems
from hypothesis import given, settings

from pymc_dp.mechanisms.fay_herriot import prices
from pymc_dp.mechanisms.fay_herriot_draw import IndependentPlan, JointPlan
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.privacy import epsilon, epsilon_zcdp

CASES = [
    "brfss_king_county hra smoker, intercept only; y=hajek, D=var_lin",
    "brfss_king_county hra smoker, intercept only; y=hajek, D=0.136",
    "sae_incomedata poor",
    "milk",
]


def reference_case(shared, name):
    """Inputs of a reference case from its data file: labels, y, D, s, X."""
    data = shared / "data"
    if name.startswith("brfss"):
        t = pd.read_csv(data / "brfss_king_county_area_table.csv")
        t = t[(t.domain == "hra") & (t.outcome == "smoker")]
        D = 0.136 * (1 - 0.136) / t.n_eff if "0.136" in name else t.var_lin
        return t.area, t.hajek, D, t.max_share, np.ones((len(t), 1))
    if name.startswith("sae"):
        t = pd.read_csv(data / "sae_incomedata_area_table.csv")
        return t.area, t.hajek, t.var_lin, t.max_share, np.ones((len(t), 1))
    t = pd.read_csv(data / "fh_milk.csv")
    groups = [np.ones(len(t))] + [(t.MajorArea == g) * 1.0 for g in (2, 3, 4)]
    return t.SmallArea.astype(str), t.yi, t.SD**2, 0.05 + 0 * t.yi, np.column_stack(groups)


# 1e-9 relative, as the reference promises; what the lattice adds is below it (bound 1).
@pytest.mark.parametrize("name", CASES)
def test_prices_and_moments_equal_the_thirty_digit_reference(shared, name):
    cases = json.loads((shared / "reference" / "fay_herriot.json").read_text())["cases"]
    [case] = [c for c in cases if c["name"].startswith(name)]
    area, y, D, s, X = (np.asarray(v) for v in reference_case(shared, name))
    sigma_u = float(case["sigma_u"])
    post = fay_herriot_posterior(sigma_u**2, 1 / D, X)
    got = prices(post, s, bound=1.2)
    mean, M = post.mean(y), post.propagation()

    def close(value, text):
        assert value == pytest.approx(float(text), rel=1e-9)

    close(got.joint("joint"), case["rho_joint"])
    assert area[np.argmax(got.respondent)] == case["rho_joint_area"]
    close(got.joint("independent"), case["rho_independent_joint"])
    close(got.joint("independent") / got.joint("joint"), case["independent_over_joint"])
    close(got.area_ideal.max(), case["max_rho_area_ideal"])
    close(got.unshrunk.max(), case["rho_joint_without_shrinkage"])
    place = {label: i for i, label in enumerate(area)}
    for label, want in case["show"].items():
        i = place[label]
        close(mean[i], want["theta_mean"])
        close(post.variance[i], want["theta_var"])
        close(post.gamma[i], want["gamma"])
        close(got.respondent[i], want["rho_respondent"])
        close(got.beta[i], want["rho_beta"])
        close(got.area_ideal[i], want["rho_area_ideal"])
        close(got.independent[i], want["rho_independent"])
        close(M[i, i], want["M_ii"])
        close(M[i, 0], want["M_i_first"])


@pytest.mark.parametrize("k", [0, 1, 2])
def test_fay_herriot_vectors_of_the_privacy_reference(shared, k):
    reference = json.loads((shared / "reference" / "dp_reference.json").read_text())
    v = reference["fay_herriot_vectors"][k]
    D, s = (np.array(v[key], dtype=float) for key in ("D", "Delta"))
    X = np.array(v["X"], dtype=float)
    prior = np.eye(2) / 4 if v["case"] == "beta ~ N(0, 4 I)" else None
    post = fay_herriot_posterior(float(v["sigma_v2"]), 1 / D, X, prior_precision=prior)
    got = prices(post, s, bound=0.0)
    V = np.array(v["V"], dtype=float)
    np.testing.assert_allclose(post.covariance(), V, rtol=1e-8, atol=1e-10)
    respondent = np.array(v["rho_joint_by_record_area"], dtype=float)
    np.testing.assert_allclose(got.respondent, respondent, rtol=1e-9)
    marginal = np.array(v["rho_marginal_release_area_j_record_area_i"], dtype=float)
    np.testing.assert_allclose(got.area_ideal, marginal.max(axis=1), rtol=1e-9)
    assert got.joint("joint") == pytest.approx(float(v["rho_joint_worst"]), rel=1e-9)
    assert int(np.argmax(got.respondent)) == v["worst_area"]
    assert epsilon(got.joint("joint"), 1e-6) == pytest.approx(float(v["eps_exact_1e-6"]), rel=1e-9)
    optimal = float(v["eps_cks_1e-6"])
    assert epsilon_zcdp(got.joint("joint"), 1e-6) == pytest.approx(optimal, rel=1e-9)


def sensitivities(q):
    rng = np.random.default_rng(7)
    return np.where(q["precision"] > 0, rng.uniform(0.01, 0.5, q["precision"].size), 0.0)


# Pseudo-inverse of Sigma with A = 0 has rank p: 1e-6 is what the dense route can vouch for.
@settings(max_examples=150, deadline=None)
@given(problems())
def test_joint_price_equals_mahalanobis_length_of_the_moved_mean(q):
    post, s = build(q), sensitivities(q)
    M, cov = post.propagation(), post.covariance()
    inverse = np.linalg.pinv(cov, rcond=1e-10, hermitian=True)
    got = prices(post, s, bound=1.0)
    for j in range(s.size):
        d = s[j] * M[:, j]
        assert got.respondent[j] == pytest.approx(d @ inverse @ d / 2, rel=1e-6, abs=1e-14)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_every_price_against_its_dense_formula(q):
    post, s = build(q), sensitivities(q)
    M, cov = post.propagation(), post.covariance()
    variance = np.diag(cov)
    got = prices(post, s, bound=1.0)
    ratio = np.divide(M**2, variance[:, None], out=np.zeros_like(M), where=variance[:, None] > 0)
    price = ratio * s**2 / 2
    # 1e-8: the reported prices include the rounding of the draw, which is smaller.
    np.testing.assert_allclose(got.area_ideal, price.max(axis=1), rtol=1e-8, atol=1e-15)
    np.testing.assert_allclose(got.independent, price.sum(axis=0), rtol=1e-8, atol=1e-15)
    np.testing.assert_allclose(
        got.respondent, s**2 * variance * q["precision"] ** 2 / 2, rtol=1e-7, atol=1e-13
    )
    np.testing.assert_allclose(got.unshrunk, s**2 * q["precision"] / 2, rtol=1e-12)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_shrinkage_only_tightens_and_joint_equals_largest_own_area_price(q):
    post, s = build(q), sensitivities(q)
    got = prices(post, s, bound=1.0)
    assert (got.respondent <= got.unshrunk * (1 + 1e-8) + 1e-12).all()
    assert (got.respondent <= got.independent * (1 + 1e-8) + 1e-12).all()
    assert (got.area_ideal <= got.joint("joint") * (1 + 1e-8) + 1e-12).all()
    assert got.joint("joint") == got.area.max()
    own = np.diag(post.propagation()) ** 2 * s**2
    sampled = post.variance > 0
    np.testing.assert_allclose(
        got.respondent[sampled], (own / 2)[sampled] / post.variance[sampled], rtol=1e-6, atol=1e-13
    )


@settings(max_examples=60, deadline=None)
@given(problems())
def test_independent_noise_costs_the_squared_posterior_correlations_more(q):
    post, s = build(q), sensitivities(q)
    cov = post.covariance()
    positive = np.diag(cov) > 0
    sd = np.sqrt(np.diag(cov)[positive])
    correlation = cov[np.ix_(positive, positive)] / np.outer(sd, sd)
    got = prices(post, s, bound=1.0)
    np.testing.assert_allclose(
        got.independent[positive],
        (got.respondent[positive] * (correlation**2).sum(axis=0)),
        rtol=1e-6,
        atol=1e-12,
    )


def test_independent_over_joint_on_king_county_smoking_at_strong_pooling(shared):
    _, _, D, s, X = (np.asarray(v) for v in reference_case(shared, CASES[0]))
    ratio = {}
    for sigma_u in (0.04, 0.01):
        got = prices(fay_herriot_posterior(sigma_u**2, 1 / D, X), s, bound=1.0)
        ratio[sigma_u] = got.joint("independent") / got.joint("joint")
    assert ratio[0.04] == pytest.approx(1.00419, abs=1e-5)
    assert ratio[0.01] == pytest.approx(1.68, abs=5e-3)


def test_statistic_and_map_are_the_factors_of_posterior_mean_and_covariance():
    rng = np.random.default_rng(3)
    m = 7
    X = np.column_stack([np.ones(m), rng.normal(size=m)])
    precision = 1 / rng.uniform(0.01, 1, m)
    precision[4] = 0.0
    post = fay_herriot_posterior(0.2, precision, X)
    for plan in (JointPlan(post, 1.0), IndependentPlan(post, 1.0)):
        S = np.column_stack([plan.statistic(e) for e in np.eye(m)])
        zero = plan.publish(np.zeros(plan.size))
        L = np.column_stack([plan.publish(e) - zero for e in np.eye(plan.size)])
        np.testing.assert_allclose(L @ S, post.propagation(), atol=1e-13)
        cov = post.covariance()
        want = cov if isinstance(plan, JointPlan) else np.diag(np.diag(cov))
        np.testing.assert_allclose(L @ L.T, want, atol=1e-13)
        np.testing.assert_allclose(np.sqrt((S**2).sum(axis=0)), plan.norm, rtol=1e-12)
        y = rng.normal(size=m)
        np.testing.assert_allclose(plan.publish(plan.statistic(y)), post.mean(y), atol=1e-12)


def test_largest_propagation_is_found_where_no_area_dominates():
    """With A = 0 every entry of M has the same size: the pruned search must still be exact."""
    rng = np.random.default_rng(11)
    m, p = 3000, 5
    X = rng.normal(size=(m, p))
    post = fay_herriot_posterior(0.0, 1 / rng.uniform(0.5, 2, m), X)
    s = rng.uniform(0.01, 0.2, m)
    got = prices(post, s, bound=1.0).area_ideal
    M = np.abs(post.propagation()) * s
    np.testing.assert_allclose(got, M.max(axis=1) ** 2 / (2 * post.variance), rtol=1e-10)
