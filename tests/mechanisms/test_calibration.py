"""Meeting a budget: least, exact, and smoothed rightly, against dense linear algebra."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories.chance import assert_gaussian
from factories.fay_herriot import build, problems
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp import PrivacyLedger, PrivateRelease, fay_herriot
from pymc_dp.containers import GROUP, read_group
from pymc_dp.mechanisms.calibration import (
    calibrate_law,
    calibration_report,
    own_prices,
    rho_of_epsilon,
    with_precision,
)
from pymc_dp.mechanisms.direct import DirectPlan
from pymc_dp.mechanisms.fay_herriot import law_prices
from pymc_dp.mechanisms.fay_herriot_draw import WidenedPlan
from pymc_dp.mechanisms.lattice import SPACING
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.privacy import lattice_epsilon
from pymc_dp.record.claims import read_record

METHODS = ["temper", "noise", "scale"]


def noise_covariance(law):
    """``N`` of a law, densely."""
    base = law.posterior.covariance()
    if law.mechanism == "independent":
        base = np.diag(np.diag(base))
    return law.inflation * base + law.extra * np.eye(len(base))


def dense_prices(law, s):
    """``s_j^2 (M e_j)' N^+ (M e_j) / 2``, densely."""
    M, N = law.posterior.propagation(), noise_covariance(law)
    return s**2 / 2 * np.einsum("ij,ij->j", M, np.linalg.pinv(N, rcond=1e-13, hermitian=True) @ M)


def sensitivities(q, seed=1):
    s = np.random.default_rng(seed).uniform(0.01, 0.2, q["precision"].size)
    return np.where(q["precision"] > 0, s, 0.0)


# Dense inverses of covariances with condition up to 1e5 or so: 1e-6 is what they vouch for.
@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15, deadline=None)
@given(q=problems(), share=st.sampled_from([0.9, 0.3, 0.01]))
def test_calibrated_price_meets_the_target_and_equals_the_dense_price(method, mechanism, q, share):
    law = ReleaseLaw(build(q), mechanism)
    s = sensitivities(q)
    target = share * float(own_prices(law, s, 5.0).max())
    after = calibrate_law(law, s, 5.0, target, method)
    got = own_prices(after, s, 5.0)
    # Never above; and least, up to the nudge past a root and what rounding the lattice costs.
    assert got.max() <= target
    if method != "temper" or mechanism == "joint":
        assert got.max() >= target * (1 - 1e-9)
    np.testing.assert_allclose(got, dense_prices(after, s), rtol=1e-6, atol=1e-9 * target)
    stated = law_prices(after, s, 5.0)
    assert stated.joint(mechanism) == got.max()


@settings(max_examples=25, deadline=None)
@given(q=problems(), share=st.sampled_from([0.5, 0.05]))
def test_tempering_touches_only_areas_that_end_exactly_at_the_target(q, share):
    law, s = ReleaseLaw(build(q)), sensitivities(q)
    target = share * float(own_prices(law, s, 5.0).max())
    after = calibrate_law(law, s, 5.0, target, "temper")
    rho = own_prices(after, s, 5.0)
    touched = after.posterior.precision < law.posterior.precision
    assert touched.any() and not touched[q["precision"] == 0].any()
    np.testing.assert_allclose(rho[touched], target, rtol=1e-11)
    same = ~touched
    np.testing.assert_array_equal(after.posterior.precision[same], q["precision"][same])
    np.testing.assert_array_equal(after.precision, q["precision"])


def test_tempering_gives_the_least_sampling_variances_of_all_that_serve():
    """A random search over sampling variances: every one that serves lies above, in every area."""
    rng = np.random.default_rng(4)
    D0, X, s = np.array([0.02, 0.05, 0.03]), np.ones((3, 1)), np.array([0.09, 0.05, 0.12])
    law = ReleaseLaw(fay_herriot_posterior(0.04, 1 / D0, X))
    target = 0.3 * float(own_prices(law, s, 1.0).max())
    least = 1 / calibrate_law(law, s, 1.0, target, "temper").posterior.precision
    serving = 0
    for D in D0 * np.exp(rng.exponential(0.6, size=(4000, 3)) * (rng.random((4000, 3)) < 0.8)):
        other = replace(law, posterior=with_precision(law.posterior, 1 / D))
        if dense_prices(other, s).max() <= target:
            serving += 1
            assert (D >= least * (1 - 1e-9)).all()
    assert serving > 50


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
def test_no_uniform_noise_below_the_reported_level_meets_the_target(mechanism):
    rng = np.random.default_rng(7)
    for A in (0.0, 0.01, 0.5):
        X = np.column_stack([np.ones(5), rng.normal(size=5)])
        law = ReleaseLaw(fay_herriot_posterior(A, 1 / rng.uniform(0.01, 0.1, 5), X), mechanism)
        s = rng.uniform(0.02, 0.2, 5)
        target = 0.2 * float(own_prices(law, s, 1.0).max())
        found = calibrate_law(law, s, 1.0, target, "noise").extra
        assert found > 0
        for share in np.linspace(0.001, 1 - 1e-6, 300):
            assert dense_prices(replace(law, extra=share * found), s).max() > target
        assert dense_prices(replace(law, extra=found), s).max() <= target * (1 + 1e-9)


def test_scaling_divides_the_price_by_the_factor():
    law = ReleaseLaw(fay_herriot_posterior(0.01, 1 / np.array([0.01, 0.02, 0.05]), np.ones((3, 1))))
    s = np.array([0.03, 0.02, 0.05])
    before = own_prices(law, s, 1.0)
    after = calibrate_law(law, s, 1.0, before.max() / 7, "scale")
    assert after.inflation == pytest.approx(7, rel=1e-10)
    np.testing.assert_allclose(own_prices(after, s, 1.0), before / 7, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_a_lower_target_never_touches_less_and_costs_accuracy(method):
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(30), rng.normal(size=30)])
    law = ReleaseLaw(fay_herriot_posterior(0.02, 1 / 10.0 ** rng.uniform(-3, -1, 30), X))
    s, area = rng.uniform(0.01, 0.1, 30), np.arange(30).astype(str)
    top = float(own_prices(law, s, 1.0).max())
    last, error = None, 0.0
    for target in top * np.array([2.0, 1.0, 0.7, 0.3, 0.1, 0.01]):
        after = calibrate_law(law, s, 1.0, target, method)
        report = calibration_report(law, after, s, area, target=target, method=method)
        if last is not None:
            assert (after.posterior.precision <= last.posterior.precision * (1 + 1e-12)).all()
            assert after.extra >= last.extra and after.inflation >= last.inflation
        assert float(report["rmse"].sel(estimator="smoothed draw")) >= error * (1 - 1e-12)
        assert report.attrs["areas_touched"] == (0 if target >= top else report["touched"].sum())
        last, error = after, float(report["rmse"].sel(estimator="smoothed draw"))


def test_a_target_that_is_met_changes_nothing():
    law = ReleaseLaw(fay_herriot_posterior(0.01, 1 / np.array([0.01, 0.02]), np.ones((2, 1))))
    s = np.array([0.03, 0.02])
    for method in METHODS:
        assert calibrate_law(law, s, 1.0, 1e3, method) is law


def conditioned(law, q, release):
    """theta | theta* by dense conditioning, with the data's sampling variances."""
    m, p = q["X"].shape
    sampled = q["precision"] > 0
    D = np.where(sampled, 1 / np.where(sampled, q["precision"], 1), 0.0)
    M = law.posterior.propagation()
    psi = M @ np.diag(D) @ M.T + noise_covariance(law)
    has = q["A"] > 0
    Z = np.hstack([np.eye(m)[:, has], q["X"]])
    prior = np.zeros((has.sum() + p,) * 2)
    prior[: has.sum(), : has.sum()] = np.diag(1 / q["A"][has])
    prior[has.sum() :, has.sum() :] = q["P0"]
    shift = np.r_[np.zeros(has.sum()), q["P0"] @ q["b0"]]
    H = M @ Z
    R = np.linalg.pinv(psi, rcond=1e-12, hermitian=True)
    S = np.linalg.inv(H.T @ R @ H + prior)
    constant = law.posterior.mean(np.zeros(m)) + M @ q["offset"]
    mean = q["offset"] + Z @ S @ (H.T @ R @ (release - constant) + shift)
    return mean, np.sqrt(np.diag(Z @ S @ Z.T))


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=12, deadline=None)
@given(q=problems(positive_a=True), share=st.sampled_from([0.5, 0.05]))
def test_smoothed_calibrated_draw_is_the_conditional_expectation(method, mechanism, q, share):
    law, s = ReleaseLaw(build(q), mechanism), sensitivities(q)
    target = share * float(own_prices(law, s, 5.0).max())
    after = calibrate_law(law, s, 5.0, target, method)
    release = q["y"][::-1].copy()
    mean, sd = after.smoothed(release)
    want_mean, want_sd = conditioned(after, q, release)
    # As for the smoother of a plain draw: the dense route inverts twice.
    np.testing.assert_allclose(mean, want_mean, rtol=1e-5, atol=1e-5 * np.abs(want_mean).max())
    np.testing.assert_allclose(sd, want_sd, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_smoothing_without_area_effects(method):
    """sigma_u = 0: theta and the release are functions of the coefficients."""
    rng = np.random.default_rng(5)
    m = 8
    q = {
        "A": np.zeros(m),
        "precision": 1 / rng.uniform(0.01, 0.1, m),
        "X": np.column_stack([np.ones(m), rng.normal(size=m)]),
        "P0": np.diag([0.0, 0.0]),
        "b0": np.zeros(2),
        "offset": rng.normal(size=m),
    }
    law, s = ReleaseLaw(build(q)), rng.uniform(0.02, 0.1, m)
    target = 0.3 * float(own_prices(law, s, 5.0).max())
    after = calibrate_law(law, s, 5.0, target, method)
    release = after.posterior.mean(rng.normal(size=m))
    mean, sd = after.smoothed(release)
    want_mean, want_sd = conditioned(after, q, release)
    np.testing.assert_allclose(mean, want_mean, rtol=1e-7)
    np.testing.assert_allclose(sd, want_sd, rtol=1e-7)


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=12, deadline=None)
@given(q=problems())
def test_expected_error_of_a_draw_equals_the_dense_second_moment(method, mechanism, q):
    law, s = ReleaseLaw(build(q), mechanism), sensitivities(q)
    after = calibrate_law(law, s, 5.0, 0.2 * float(own_prices(law, s, 5.0).max()), method)
    M, N = after.posterior.propagation(), noise_covariance(after)
    m = len(M)
    sampled = q["precision"] > 0
    D = np.where(sampled, 1 / np.where(sampled, q["precision"], 1), 0.0)
    V = np.diag(q["A"])
    if q["P0"].any():  # flat coefficients are reproduced exactly, and need no variance
        V = V + q["X"] @ np.linalg.inv(q["P0"]) @ q["X"].T
    else:
        np.testing.assert_allclose(M @ q["X"], q["X"], atol=1e-9 * np.abs(q["X"]).max())
    B = M - np.eye(m)
    want = np.diag(B @ V @ B.T + M @ np.diag(D) @ M.T + N)
    # A diffuse prior (an eigenvalue of P0 near 0) costs the dense route digits.
    np.testing.assert_allclose(after.error(), want, rtol=1e-5)


def test_plain_draw_errs_by_twice_the_posterior_variance():
    post = fay_herriot_posterior(0.01, 1 / np.array([0.01, 0.02, 0.5]), np.ones((3, 1)))
    np.testing.assert_allclose(ReleaseLaw(post).error(), 2 * post.variance, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(q=problems(), extra=st.sampled_from([1e-6, 1e-2, 10.0]))
def test_widened_plan_is_the_least_statistic_of_the_widened_noise(q, extra):
    post = build(q)
    m = q["precision"].size
    plan = WidenedPlan(post, 5.0, extra)
    S = np.column_stack([plan.statistic(e) for e in np.eye(m)])
    zero = plan.publish(np.zeros(plan.size))
    L = np.column_stack([plan.publish(e) - zero for e in np.eye(plan.size)])
    M, N = post.propagation(), post.covariance() + extra * np.eye(m)
    scale = np.abs(N).max()
    np.testing.assert_allclose(L @ S, M, atol=1e-9 * np.abs(M).max())
    np.testing.assert_allclose(L @ L.T, N, atol=1e-9 * scale)
    # Rounding in the dense products L S, with entries that may differ by decades.
    least = L.T @ np.linalg.solve(N, M)
    np.testing.assert_allclose(S, least, atol=1e-6 * np.abs(least).max())
    np.testing.assert_allclose(plan.norm, np.sqrt((S**2).sum(axis=0)), rtol=1e-9)
    # What the digits of one area show: its own coordinate and the shared ones.
    law = ReleaseLaw(post, extra=extra)
    s = sensitivities(q)
    shown = (S[:m, :] ** 2 + (S[m:, :] ** 2).sum(axis=0)) * s**2 / 2
    got = law_prices(law, s, 5.0)
    assert (got.area >= shown.max(axis=1) * (1 - 1e-9)).all()
    assert got.area.max() <= got.joint("joint")


@pytest.mark.parametrize("kind", ["widened", "direct"])
def test_computed_statistics_of_neighbours_stay_within_the_priced_distance(kind):
    """Floating-point sums included: many pairs, with weights that make rounding show."""
    rng = np.random.default_rng(2)
    m = 40
    X = rng.normal(size=(m, 3)) * [1, 1e3, 1e-3]
    post = fay_herriot_posterior(1e-3, 1 / 10.0 ** rng.uniform(-6, 0, m), X)
    if kind == "widened":
        plan = WidenedPlan(post, 1.0, 1e-4)
    else:
        plan = DirectPlan(10.0 ** rng.uniform(-6, -1, m), 1.0, 0.7)
    worst = 0.0
    for _ in range(300):
        y = rng.uniform(-1, 1, m)
        j = rng.integers(m)
        s = 10.0 ** rng.uniform(-12, -1)
        neighbour = y.copy()
        neighbour[j] = np.clip(y[j] + s * rng.choice([-1, 1]), -1, 1)
        moved = abs(neighbour[j] - y[j])
        a, b = plan.statistic(y), plan.statistic(neighbour)
        exact = sum(
            (Fraction(float(u)) - Fraction(float(v))) ** 2 for u, v in zip(a, b, strict=True)
        )
        lattice = SPACING * math.sqrt(plan.size)
        allowed = plan.norm[j] * moved * (1 + 1e-12) + plan.slack[j] - lattice
        assert math.sqrt(exact) <= allowed
        worst = max(worst, math.sqrt(exact) - plan.norm[j] * moved)
    assert worst > 0  # without the slack the claim would be false


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(0.01, 30), exponent=st.floats(-12, -1), coordinates=st.integers(1, 100_000)
)
def test_epsilon_target_is_met_and_nearly_used_up(epsilon, exponent, coordinates):
    delta = 10.0**exponent
    rho = rho_of_epsilon(epsilon, delta, coordinates)

    def stated(value):
        return lattice_epsilon(value, delta, spacing=SPACING, coordinates=coordinates)

    assert stated(rho) <= epsilon < stated(rho * (1 + 1e-9))


# The public face.

AREA = ["north", "east", "south", "west", "middle"]
BOTH = {"sampling_variance": "design table 7", "sigma_u": "last year's publication"}


@pytest.fixture(scope="module")
def direct():
    rng = np.random.default_rng(0)
    s = xr.DataArray([0.01, 0.02, 0.03, 0.015, 0.05], dims="area")
    data = xr.Dataset(
        {
            "estimate": ("area", rng.uniform(0.1, 0.3, 5).round(4)),
            "variance": ("area", rng.uniform(2e-4, 2e-3, 5)),
            "sensitivity": s.assign_attrs(bounds=[0.0, 1.0], unit="household"),
        },
        coords={"area": AREA},
        attrs={"bounds": [0.0, 1.0]},
    )
    return data


def released(direct, **options):
    model = fay_herriot(direct, sigma_u=0.05)
    return PrivateRelease(model, direct["sensitivity"], assumptions=BOTH, **options)


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize("method", METHODS)
def test_calibrated_release_says_what_was_done_and_draws(direct, method, mechanism):
    release = released(direct, mechanism=mechanism)
    before = release.guarantee
    target = float(before["rho"]) / 3
    calibrated = release.calibrate(rho=target, method=method)
    xr.testing.assert_identical(release.guarantee, before)  # the first is left as it is
    assert release.report is None
    g = calibrated.guarantee
    assert float(g["rho"]) <= target and float(g["rho"]) > 0.9 * target
    record = read_record(g.attrs)
    assert record["calibration"]["method"] == method
    assert record["calibration"]["target"] == {"rho": target}
    touched = int(calibrated.report["touched"].sum())
    assert record["calibration"]["areas_touched"] == touched
    if method != "temper":
        assert touched == 5
    group = read_group(calibrated.draw(), GROUP)
    assert float(group["rho"]) == float(g["rho"])
    smoothed, _ = calibrated.specification.law.smoothed(group["theta"].values[0])
    decimals = record["publishing_decimals"]
    np.testing.assert_array_equal(group["theta_smoothed"][0], smoothed.round(decimals))
    assert release.calibrate(rho=target, method=method).guarantee.identical(g)


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_draws_have_the_moments_of_their_law(direct, method):
    calibrated = released(direct).calibrate(rho=1e-3, method=method)
    theta = read_group(calibrated.draw(draws=3_000), GROUP)["theta"].values[0]
    law = calibrated.specification.law
    N = noise_covariance(law)
    sd = np.sqrt(np.diag(N))
    mean = law.posterior.mean(direct["estimate"].values)
    assert_gaussian(theta, mean, N)  # a false alarm in 1e-8 of runs
    np.testing.assert_allclose(calibrated.guarantee["posterior_sd"], sd, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_epsilon_and_delta_as_a_target(direct, method):
    calibrated = released(direct).calibrate(epsilon=0.3, delta=1e-6, method=method)
    stated = float(calibrated.guarantee["epsilon"].sel(delta=1e-6))
    assert 0.3 * (1 - 1e-6) < stated <= 0.3
    asked = read_record(calibrated.guarantee.attrs)["calibration"]["target"]
    assert asked["epsilon"] == 0.3 and asked["delta"] == 1e-6
    assert float(calibrated.guarantee["rho"]) <= asked["rho"]


def test_calibrating_again_starts_from_the_release_as_modelled(direct):
    release = released(direct)
    rho = float(release.guarantee["rho"])
    twice = release.calibrate(rho=rho / 10).calibrate(rho=rho / 2)
    once = release.calibrate(rho=rho / 2)
    xr.testing.assert_identical(twice.guarantee, once.guarantee)
    loose = release.calibrate(rho=2 * rho)
    np.testing.assert_array_equal(
        loose.guarantee["rho_respondent"], release.guarantee["rho_respondent"]
    )
    assert not loose.report["touched"].any()


def test_a_calibrated_release_is_charged_at_its_own_price(direct, tmp_path):
    ledger = PrivacyLedger(tmp_path / "programme.ledger", 0.01, create=True)
    calibrated = released(direct).calibrate(rho=0.01)
    calibrated.draw(ledger=ledger)
    assert ledger.spent == pytest.approx(0.01, rel=1e-9)
    entry = ledger.to_dataframe().iloc[0]
    assert entry["record"]["calibration"]["method"] == "temper"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "as rho, or as epsilon and delta"),
        ({"rho": 1.0, "delta": 1e-6}, "as rho, or as epsilon and delta"),
        ({"epsilon": 1.0}, "as rho, or as epsilon and delta"),
        ({"rho": 0.0}, "positive finite"),
        ({"rho": math.nan}, "positive finite"),
        ({"rho": math.inf}, "positive finite"),
        ({"rho": 1e-30}, "no release on the lattice"),
        ({"epsilon": -1.0, "delta": 1e-6}, "epsilon must be"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must lie"),
        ({"epsilon": 1.0, "delta": math.nan}, "delta must lie"),
        ({"rho": 0.1, "method": "clip"}, "method must be"),
        ({"epsilon": 1.0, "delta": 1e-6, "method": "clip"}, "method must be"),
    ],
)
def test_unusable_targets_are_refused(direct, options, message):
    with pytest.raises(ValueError, match=message):
        released(direct).calibrate(**options)


def test_a_release_that_was_drawn_is_not_calibrated(direct):
    release = released(direct)
    release.draw()
    with pytest.raises(ValueError, match="has been drawn"):
        release.calibrate(rho=0.01)


def test_report_and_repr_show_no_estimate(direct):
    calibrated = released(direct).calibrate(rho=0.01)
    text = repr(calibrated) + repr(calibrated._parts) + str(calibrated.report.to_dict())
    assert not any(str(v) in text for v in direct["estimate"].values)


def test_strong_pooling_makes_the_smoothed_draw_better_than_noisy_direct_estimates():
    """At one price: the joint draw spends on the common mean, noise on every estimate does not.

    Dense conditioning with a nearly flat prior of the mean (variance 1e6) as independent route.
    """
    m, A, D, s = 50, 0.01**2, 1e-3, 0.02
    law = ReleaseLaw(fay_herriot_posterior(A, np.full(m, 1 / D), np.ones((m, 1))))
    rho = float(own_prices(law, np.full(m, s), 1.0).max())
    report = calibration_report(
        law, law, np.full(m, s), np.arange(m).astype(str), target=rho, method="temper"
    )
    P = A * np.eye(m) + 1e6

    def dense(H, R):
        return np.sqrt(np.diag(P - P @ H.T @ np.linalg.solve(H @ P @ H.T + R, H @ P)).mean())

    M, S = law.posterior.propagation(), law.posterior.covariance()
    draw = dense(M, S + D * M @ M.T)
    noisy = dense(np.eye(m), (D + s**2 / (2 * rho)) * np.eye(m))
    got = report["rmse"].to_series()
    # A prior variance of 1e6 against 1e-4 leaves the dense route three digits.
    assert got["smoothed draw"] == pytest.approx(draw, rel=1e-3)
    assert got["noisy direct estimate, smoothed"] == pytest.approx(noisy, rel=1e-3)
    assert got["smoothed draw"] < 0.7 * got["noisy direct estimate, smoothed"]


@pytest.mark.parametrize(
    ("unit", "target", "touched", "loss"),
    [
        ("max_share", 0.5, 11, 0.0003),
        ("max_share", 0.1, 1354, 0.081),
        ("max_share_hh", 1.0, 1515, 0.092),
    ],
)
def test_budgets_of_the_american_community_survey(shared, unit, target, touched, loss):
    table = pd.read_csv(shared / "data" / "acs_pums_2024_puma_table.csv.gz", dtype={"puma": str})
    D = 0.12 * 0.88 * (table["sum_w2"] / table["sum_w"] ** 2).to_numpy()
    s = table[unit].to_numpy()
    law = ReleaseLaw(fay_herriot_posterior(0.06**2, 1 / D, np.ones((len(D), 1))))
    after = calibrate_law(law, s, 1.0, target, "temper")
    report = calibration_report(
        law, after, s, table["puma"].to_numpy(), target=target, method="temper"
    )
    rmse = report["rmse"].to_series()
    assert report.attrs["areas_touched"] == touched
    assert rmse["draw"] / rmse["draw before calibration"] - 1 == pytest.approx(loss, rel=0.05)
    if target == 0.5:
        assert rmse["noisy direct estimate, smoothed"] == pytest.approx(0.0134, abs=5e-5)
        assert rmse["smoothed draw"] == pytest.approx(0.0168, abs=5e-5)


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", [{"rho": 1e-10}, {"epsilon": 1e-9, "delta": 1e-12}])
def test_tiny_targets_are_drawn_as_claimed_or_refused_before_any_charge(
    direct, tmp_path, method, mechanism, target
):
    """The second is a rho of about 1e-19, where tempering trusts the data 1e17 times less."""
    release = released(direct, mechanism=mechanism)
    if "epsilon" in target and (method, mechanism) == ("temper", "joint"):
        with pytest.raises(ValueError, match="by more than 1e\\+10, where rounding spoils"):
            release.calibrate(**target, method=method)
        return
    calibrated = release.calibrate(**target, method=method)
    ledger = PrivacyLedger(tmp_path / "budget.ledger", rho=1.0, create=True)
    group = read_group(calibrated.draw(ledger=ledger), GROUP)
    assert 0 < ledger.spent < 1e-9 and ledger.spent == float(group["rho"])
    assert np.isfinite(group["theta_smoothed"]).all()
    # Under the model, smoothing never makes a draw worse.
    rmse = calibrated.report["rmse"]
    smoothed, drawn = (float(rmse.sel(estimator=k)) for k in ("smoothed draw", "draw"))
    assert 0.3 < smoothed / drawn <= 1 + 1e-5  # the accuracy that MOST_RAISED leaves


@pytest.mark.parametrize("value", [True, np.True_, xr.DataArray(True)])
def test_true_is_no_target(direct, value):
    release = released(direct)
    for target in (
        {"rho": value},
        {"epsilon": value, "delta": 0.1},
        {"epsilon": 1, "delta": value},
    ):
        with pytest.raises(ValueError, match="not True or False"):
            release.calibrate(**target)
