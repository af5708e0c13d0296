"""The conversions of a zCDP price: stored 60-digit values, mpmath, brute force, libraries."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from pymc_dp.privacy import _curve as tradeoff
from pymc_dp.privacy import (
    advantage,
    convert,
    delta,
    epsilon,
    epsilon_zcdp,
    lattice_epsilon,
    mu,
    rdp,
)

REFERENCE = 1e-9  # the promised agreement with stored values; measured differences are below 1e-11
SMALLEST = 5e-324
prices = st.floats(-12, 4).map(lambda e: 10.0**e)
probabilities = st.one_of(
    st.floats(-300, -2).map(lambda e: 10.0**e), st.floats(0.01, 0.99), st.floats(0.9, 1 - 1e-15)
)


@pytest.fixture(scope="session")
def reference(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "reference" / "dp_reference.json").read_text())


# An independent route: the textbook formula in 60 digits, enough for the cancellation at small mu.


def exact_delta(rho: float, eps: Any) -> mpmath.mpf:
    with mpmath.workdps(60):
        shift = mpmath.sqrt(2 * mpmath.mpf(rho))
        left, right = eps / shift - shift / 2, eps / shift + shift / 2
        root = mpmath.sqrt(2)
        return (mpmath.erfc(left / root) - mpmath.exp(eps) * mpmath.erfc(right / root)) / 2


def exact_zcdp(rho: float, probability: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Optimum over real orders by bisection, and the sum of its terms without signs."""
    with mpmath.workdps(60):
        price, surprise = mpmath.mpf(rho), -mpmath.log(mpmath.mpf(probability))
        low, high = mpmath.mpf(-800), mpmath.mpf(800)
        for _ in range(200):
            middle = (low + high) / 2
            s = mpmath.exp(middle)
            if price * s**2 + mpmath.log1p(s) < surprise:
                low = middle
            else:
                high = middle
        terms = (1 + s) * price, (surprise - mpmath.log1p(s)) / s, mpmath.log1p(1 / s)
        size = terms[0] + (surprise + mpmath.log1p(s)) / s + terms[2]
        return terms[0] + terms[1] - terms[2], size


def assert_tight_upper_bound(rho: float, probability: float, reported: float) -> None:
    """At the reported epsilon delta suffices; 1e-12 * (epsilon + mu) lower it does not."""
    assert exact_delta(rho, mpmath.mpf(reported)) <= probability
    lower = mpmath.mpf(reported) - mpmath.mpf(1e-12) * (reported + mu(rho))
    if lower > 0:
        assert exact_delta(rho, lower) > probability


# Stored values


def test_conversions_equal_the_stored_table(reference: dict[str, Any]) -> None:
    for row in reference["table"]:
        rho, d = float(row["rho"]), float(row["delta"])
        exact, zcdp = epsilon(rho, d), epsilon_zcdp(rho, d)
        naive = rho + 2 * math.sqrt(rho * math.log(1 / d))
        assert mu(rho) == pytest.approx(float(row["mu"]), rel=1e-15)
        assert exact == pytest.approx(float(row["eps_exact_gaussian"]), rel=REFERENCE)
        assert zcdp == pytest.approx(float(row["eps_cks20_optimal"]), rel=REFERENCE)
        assert naive == pytest.approx(float(row["eps_naive_zcdp"]), rel=REFERENCE)
        assert exact <= zcdp <= naive
    assert len(reference["table"]) == 24


def test_delta_equals_the_stored_curve(reference: dict[str, Any]) -> None:
    for row in reference["delta_of_eps"]:
        rho, eps = float(row["mu"]) ** 2 / 2, float(row["eps"])
        stored = mpmath.mpf(row["delta_exact_gaussian"])
        if stored < SMALLEST:
            assert delta(rho, eps) == SMALLEST
        else:
            assert delta(rho, eps) == pytest.approx(float(stored), rel=REFERENCE)
    assert len(reference["delta_of_eps"]) >= 48


def test_epsilon_is_exactly_zero_where_delta_covers_the_total_variation(
    reference: dict[str, Any],
) -> None:
    zeros = 0
    for row in reference["eps_zero_region"]:
        rho, d = float(row["rho"]), float(row["delta"])
        assert advantage(rho) == pytest.approx(float(row["total_variation"]), rel=REFERENCE)
        for function, key in ((epsilon, "eps_exact_gaussian"), (epsilon_zcdp, "eps_cks20_optimal")):
            if float(row[key]) == 0:
                assert function(rho, d) == 0
                zeros += 1
            else:
                assert function(rho, d) == pytest.approx(float(row[key]), rel=REFERENCE)
    assert zeros > 0


def test_advantage_equals_the_stored_attack_metrics(reference: dict[str, Any]) -> None:
    for row in reference["attack_metrics"]:
        rho = float(row["mu"]) ** 2 / 2
        assert advantage(rho) == pytest.approx(float(row["max_advantage"]), rel=REFERENCE)
        accuracy = (1 + advantage(rho)) / 2
        assert accuracy == pytest.approx(float(row["max_attack_accuracy_equal_prior"]), rel=1e-9)


def test_groups_square_and_releases_add(reference: dict[str, Any]) -> None:
    for row in reference["group_and_composition"]:
        k, rho = row["k"], float(row["mu"]) ** 2 / 2
        assert rdp(k**2 * rho, 2) / 2 == pytest.approx(float(row["group_rho"]), rel=REFERENCE)
        assert mu(k**2 * rho) == pytest.approx(float(row["group_mu"]), rel=REFERENCE)
        assert k * rho == pytest.approx(float(row["composed_rho_k_releases"]), rel=REFERENCE)
        assert mu(k * rho) == pytest.approx(float(row["composed_mu_k_releases"]), rel=REFERENCE)


def test_epsilons_of_the_stored_fay_herriot_vectors(reference: dict[str, Any]) -> None:
    for row in reference["fay_herriot_vectors"]:
        by_area = np.array(row["rho_joint_by_record_area"], dtype=float)
        np.testing.assert_allclose(
            mu(by_area), np.array(row["mu_joint_by_record_area"], dtype=float), rtol=REFERENCE
        )
        worst = by_area.max()
        assert epsilon(worst, 1e-6) == pytest.approx(float(row["eps_exact_1e-6"]), rel=REFERENCE)
        assert epsilon_zcdp(worst, 1e-6) == pytest.approx(float(row["eps_cks_1e-6"]), rel=REFERENCE)


# Independent routes


@pytest.mark.parametrize("seed", range(4))
def test_epsilon_is_a_tight_upper_bound_of_the_60_digit_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rho = 10 ** rng.uniform(-12, 4, 120)
    d = np.where(rng.random(120) < 0.5, 10 ** rng.uniform(-300, 0, 120), rng.uniform(0, 0.99, 120))
    near = rng.random(120) < 0.4  # a delta that tells something at small rho
    d[near] = advantage(rho[near]) * 10 ** rng.uniform(-6, 0, near.sum())
    reported = epsilon(rho, d)
    zero = 0
    for r, p, e in zip(rho, d, reported, strict=True):
        if e == 0:
            assert exact_delta(r, mpmath.mpf(0)) <= p
            zero += 1
        else:
            assert_tight_upper_bound(r, p, e)
    assert 0 < zero < 100


@pytest.mark.parametrize("rho", [1e5, 12345.678e3, 1e8, 1.7e9])
def test_epsilon_is_a_tight_upper_bound_where_rho_dwarfs_the_rest(rho: float) -> None:
    for d in (1e-12, 1e-6, 0.01, 0.3, 0.49, 0.6, 0.99):
        for r in rho * (1 + np.arange(8) / 64):
            assert_tight_upper_bound(r, d, epsilon(r, d))


def test_advantage_is_a_tight_upper_bound_of_the_60_digit_value() -> None:
    for rho in np.geomspace(1e-12, 300, 200):
        with mpmath.workdps(60):
            truth = mpmath.erf(mpmath.sqrt(mpmath.mpf(rho)) / 2)
            assert truth <= advantage(rho) <= min(1, truth * (1 + mpmath.mpf(3e-15)))


@pytest.mark.parametrize("rho", [1e-12, 1e-6, 1e-3, 0.02, 0.3, 0.5, 0.95, 3.0, 40.0, 120.0])
def test_epsilon_is_tight_just_below_the_zero_boundary(rho: float) -> None:
    with mpmath.workdps(60):
        boundary = exact_delta(rho, mpmath.mpf(0))
        for k in range(1, 16):
            # Relative distance 10^-k of delta, or of 1 - delta where that is the smaller.
            gap = min(boundary, 1 - boundary) * mpmath.mpf(10) ** -k
            d = float(boundary - gap)
            if d >= 1 or d > boundary:
                continue
            reported = epsilon(rho, d)
            assert reported > 0
            assert_tight_upper_bound(rho, d, reported)


@pytest.mark.parametrize("rho", [1e-12, 1e-6, 1e-3, 0.02, 0.3, 0.5, 0.95, 3.0])
def test_epsilon_is_zero_from_the_boundary_on(rho: float) -> None:
    # Twice the rounding margin, 1e-13 relative: from there on nothing but 0 is right.
    boundary = advantage(rho)
    assert epsilon(rho, min(1.0, boundary * (1 + 4e-13))) == 0
    assert epsilon(rho, (1 + boundary) / 2) == 0


@pytest.mark.parametrize("seed", range(4))
def test_delta_is_a_tight_upper_bound_of_the_60_digit_value(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    rho = 10 ** rng.uniform(-12, 5, 200)
    shift = np.sqrt(2 * rho)
    eps = shift * np.maximum(rng.uniform(-8.5, 37, 200) + shift / 2, 10 ** rng.uniform(-9, 0, 200))
    for r, e, reported in zip(rho, eps, delta(rho, eps), strict=True):
        truth = exact_delta(r, mpmath.mpf(e))
        assert truth <= reported <= 1
        if truth > 1e-300:
            # Margin 3e-15 * (10 + 690) each way; one unit in the last place where delta is near 1.
            assert reported <= truth * (1 + mpmath.mpf(1e-11))


def test_delta_of_one_is_the_integral_of_the_positive_part() -> None:
    for rho, eps in ((0.5, 0.0), (0.5, 1.0), (0.02, 0.3), (4.0, 5.0)):
        shift, ratio = math.sqrt(2 * rho), math.exp(eps)
        start = eps / shift + shift / 2  # where the likelihood ratio reaches e^eps
        value, _ = quad(
            lambda t, m=shift, r=ratio: norm.pdf(t, m) - r * norm.pdf(t), start, start + 40
        )
        # 1e-8: the tolerance of the quadrature.
        assert delta(rho, eps) == pytest.approx(value, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_epsilon_zcdp_is_a_tight_upper_bound_of_the_best_order(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    rho = 10 ** rng.uniform(-12, 4, 60)
    d = np.where(rng.random(60) < 0.5, 10 ** rng.uniform(-300, 0, 60), rng.uniform(0.001, 0.99, 60))
    positive = 0
    for r, p, reported in zip(rho, d, epsilon_zcdp(rho, d), strict=True):
        truth, size = exact_zcdp(r, p)
        assert reported >= truth
        # Any order is sound; six Newton steps leave nothing but rounding, 1e-14 of the terms.
        assert reported <= max(truth + mpmath.mpf(1e-14) * size, 0)
        positive += truth > 0
    assert positive > 20


def test_epsilon_agrees_with_dp_accounting() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    for rho in (1e-4, 0.02, 0.5, 8.0, 50.0):
        for d in (1e-10, 1e-6, 1e-3):
            theirs = dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), d)
            # Their root search stops at 2e-8 relative at worst.
            assert epsilon(rho, d) == pytest.approx(theirs, rel=1e-7)


def test_epsilon_zcdp_is_the_limit_of_dp_accounting_over_finer_orders() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    for rho in (0.02, 0.5, 8.0):
        for d in (1e-8, 1e-5):
            best = 1 + math.sqrt(math.log(1 / d) / rho)
            orders = 1 + (best - 1) * np.linspace(0.5, 1.2, 2001)
            accountant = dp_accounting.rdp.RdpAccountant(orders)
            accountant.compose(dp_accounting.ZCDpEvent(rho))
            theirs = accountant.get_epsilon(d)
            # The grid misses the best order by 2e-4 of it, which costs the square of that.
            assert epsilon_zcdp(rho, d) <= theirs * (1 + 1e-12)
            assert epsilon_zcdp(rho, d) == pytest.approx(theirs, rel=1e-6)


def test_delta_equals_dp_accountings_published_vectors() -> None:
    # Unit noise, unit sensitivity: test data of dp_accounting (Apache-2.0), eight digits.
    for eps, stored in ((0.0, 0.38292492), (1.0, 0.12693674), (2.0, 0.02092364)):
        assert delta(0.5, eps) == pytest.approx(stored, abs=6e-9)


# Properties


@given(prices, prices, probabilities)
@settings(max_examples=200, deadline=None)
def test_epsilon_does_not_fall_as_rho_grows(rho: float, other: float, d: float) -> None:
    low, high = sorted((rho, other))
    # Rounding up by at most 1e-12 may turn the order of figures that are that close.
    assert epsilon(low, d) <= epsilon(high, d) + 1e-12 * (epsilon(high, d) + mu(high))
    assert epsilon_zcdp(low, d) <= epsilon_zcdp(high, d) * (1 + 1e-12) + 1e-12


@given(prices, probabilities, probabilities)
@settings(max_examples=200, deadline=None)
def test_epsilon_does_not_grow_with_delta(rho: float, d: float, other: float) -> None:
    low, high = sorted((d, other))
    assert epsilon(rho, low) >= epsilon(rho, high) - 1e-12 * (epsilon(rho, high) + mu(rho))
    assert epsilon_zcdp(rho, low) >= epsilon_zcdp(rho, high) * (1 - 1e-12) - 1e-12


@given(prices, probabilities)
@example(1e-12, 5.6e-7)
@example(0.5, 0.38292492254802)
@example(1e4, 1 - 1e-15)
@settings(max_examples=400, deadline=None)
def test_delta_at_epsilon_does_not_exceed_delta(rho: float, d: float) -> None:
    assert delta(rho, epsilon(rho, d)) <= d


@given(prices, st.floats(0, 1e5))
@settings(max_examples=200, deadline=None)
def test_epsilon_at_delta_returns(rho: float, eps: float) -> None:
    d = delta(rho, eps)
    if 1e-300 < d < 0.9:
        # The digits of delta fix epsilon up to their number over the slope of log delta, which in
        # units of epsilon / mu is above 0.3 for delta below 0.9.
        tolerance = 1e-10 * (eps + mu(rho))
        assert epsilon(rho, d) == pytest.approx(eps, rel=1e-10, abs=tolerance)


@given(prices, probabilities)
@settings(max_examples=400, deadline=None)
def test_exact_epsilon_is_never_above_the_zcdp_figure(rho: float, d: float) -> None:
    exact, zcdp = epsilon(rho, d), epsilon_zcdp(rho, d)
    assert exact <= zcdp
    naive = rho + 2 * math.sqrt(rho * math.log(1 / d))
    assert zcdp <= naive * (1 + 1e-12)


@given(st.floats(0, 1e308, allow_subnormal=True), st.floats(0, 1, allow_subnormal=True))
@example(1e308, 0.3)
@example(1e300, 1e-5)
@example(SMALLEST, SMALLEST)
@example(1e-162, 1e-163)
@settings(max_examples=400, deadline=None)
def test_every_double_gives_a_number_without_a_warning(rho: float, d: float) -> None:
    exact, zcdp = epsilon(rho, d), epsilon_zcdp(rho, d)
    assert 0 <= exact <= zcdp
    assert (exact == math.inf) == (rho > 0 and d < 1 and (d == 0 or rho > 1e300))
    assert (delta(rho, exact) == 0) == (rho == 0 or exact == math.inf) or mu(rho) == math.inf
    assert lattice_epsilon(rho, d, spacing=2.0**-40, coordinates=3) <= zcdp


# Why there is no pure epsilon


def test_no_finite_epsilon_holds_with_delta_zero() -> None:
    # theta | y ~ N(gamma y, gamma D); one record moves y from 0.10 to 0.15.
    gamma, variance, low, high = 0.4, 0.01, 0.10, 0.15
    sd = math.sqrt(gamma * variance)
    theta = np.linspace(-1e4, 1e4, 11)
    log_ratio = norm.logpdf(theta, gamma * high, sd) - norm.logpdf(theta, gamma * low, sd)
    slope = np.diff(log_ratio) / np.diff(theta)
    # A line of slope (y - y') / D: whatever epsilon is named, some theta lies beyond it.
    # 1e-5: differences of logarithms near 1e10 keep that many digits.
    np.testing.assert_allclose(slope, (high - low) / variance, rtol=1e-5)
    rho = ((high - low) / variance) ** 2 * gamma * variance / 2
    for eps in (0.1, 1.0, 30.0, 1e3, 1e6, 1e300):
        threshold = eps / ((high - low) / variance)
        assert (high - low) / variance * (2 * threshold) > eps  # theta = 2 eps D / (y - y')
        assert delta(rho, eps) > 0
    assert epsilon(rho, 0.0) == math.inf
    shrinking = epsilon(rho, 10.0 ** -np.arange(1, 301, 20.0))
    assert np.all(np.diff(shrinking) > 0) and np.all(np.isfinite(shrinking))


# The lattice


def lattice_variation(spacing: float) -> float:
    """Total variation of a discrete Gaussian and a Gaussian rounded to the lattice, both sd 1."""
    points = np.arange(-int(14 / spacing), int(14 / spacing) + 1.0)
    discrete = np.exp(-((points * spacing) ** 2) / 2)
    outer, inner = (np.abs(points) + 0.5) * spacing, (np.abs(points) - 0.5) * spacing
    rounded = ndtr(-inner) - ndtr(-outer)
    return np.abs(discrete / discrete.sum() - rounded).sum() / 2


def lattice_delta(spacing: float, steps: tuple[int, ...], eps: float) -> float:
    """Exact delta of discrete Gaussians moved by whole steps, by enumeration."""
    points = np.arange(-int(14 / spacing), int(14 / spacing) + 1.0)
    one, other = np.ones(1), np.ones(1)
    for step in steps:
        mass = np.exp(-((points * spacing) ** 2) / 2)
        moved = np.exp(-(((points - step) * spacing) ** 2) / 2)
        one = np.multiply.outer(one, mass / mass.sum()).ravel()
        other = np.multiply.outer(other, moved / mass.sum()).ravel()
    return float(np.maximum(one - math.exp(eps) * other, 0).sum())


def test_lattice_slack_is_as_stated(reference: dict[str, Any]) -> None:
    assert "0.0202 h^2" in reference["lattice_slack"]["claim"]
    for spacing in 2.0 ** -np.arange(1, 6):
        # "About": 5 % below at h = 1/2, 0.2 % below at h = 1/32.
        assert lattice_variation(spacing) == pytest.approx(0.0202 * spacing**2, rel=0.05)
    limit = norm.pdf(1) / 12
    assert lattice_variation(1 / 64) == pytest.approx(limit / 64**2, rel=1e-3)
    # As an upper bound it serves up to h = 1/8, and fails at 0.4.
    for spacing in np.linspace(1 / 64, tradeoff.COARSEST, 200):
        assert lattice_variation(spacing) <= tradeoff.LATTICE_SLACK * spacing**2
    assert lattice_variation(0.4) > tradeoff.LATTICE_SLACK * 0.4**2


@pytest.mark.parametrize(
    ("spacing", "steps"),
    [(1 / 8, (8,)), (1 / 8, (3,)), (1 / 8, (24,)), (1 / 16, (16,)), (1 / 8, (5, 4)), (1 / 2, (2,))],
)
def test_lattice_epsilon_bounds_the_enumerated_discrete_gaussian(
    spacing: float, steps: tuple[int, ...]
) -> None:
    rho = sum((step * spacing) ** 2 for step in steps) / 2
    for d in (1e-8, 1e-5, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3):
        reported = lattice_epsilon(rho, d, spacing=spacing, coordinates=len(steps))
        assert lattice_delta(spacing, steps, reported) <= d
        assert reported <= epsilon_zcdp(rho, d)
        assert reported >= epsilon(rho, d)


@pytest.mark.parametrize(
    ("rho", "spacing", "d", "share"),
    [
        (0.05, 2.0**-8, 1e-5, 1e-3),
        (0.5, 2.0**-12, 1e-5, 1e-3),
        (3.0, 2.0**-16, 1e-4, 1e-3),
        (20.0, 2.0**-38, 1e-4, 1e-3),
        # The slack exceeds delta at the zCDP figure and takes nearly half of it at the least: the
        # rounds go on slowly.
        (20.0, 2.0**-37, 1e-4, 0.2),
    ],
)
def test_lattice_epsilon_is_near_the_least_that_pays_for_the_slack(
    rho: float, spacing: float, d: float, share: float
) -> None:
    slack = tradeoff.LATTICE_SLACK * 4 * spacing**2
    grid = np.linspace(epsilon(rho, d), epsilon_zcdp(rho, d), 100_001)
    least = grid[np.argmax(delta(rho, grid) + (1 + np.exp(grid)) * slack <= d)]
    reported = lattice_epsilon(rho, d, spacing=spacing, coordinates=4)
    assert grid[0] < least < grid[-1]  # the slack shows, and zCDP does not win
    assert reported > least - (grid[1] - grid[0])
    # Beyond the width of the grid, a small share of what the slack costs.
    assert reported - least <= share * (least - grid[0]) + grid[1] - grid[0]


def test_lattice_epsilon_is_the_exact_one_on_a_fine_lattice() -> None:
    rho = np.geomspace(1e-6, 2, 50)[:, None]
    d = np.array([1e-10, 1e-8, 1e-6, 1e-5, 1e-4])
    fine = lattice_epsilon(rho, d, spacing=2.0**-50, coordinates=11)
    np.testing.assert_allclose(fine, epsilon(rho, d), rtol=1e-10)


def test_lattice_epsilon_falls_back_on_zcdp() -> None:
    # e^epsilon overflows, or the slack exceeds delta, or the lattice is coarse.
    for rho, d, spacing in ((5e3, 1e-6, 2.0**-40), (0.5, 1e-6, 0.01), (0.5, 1e-6, 0.5)):
        fallback = lattice_epsilon(rho, d, spacing=spacing, coordinates=2)
        assert fallback == epsilon_zcdp(rho, d)
        assert math.isfinite(fallback)
    assert lattice_epsilon(0.0, 0.0, spacing=0.5, coordinates=2) == 0
    assert lattice_epsilon(math.inf, 1e-6, spacing=2.0**-40, coordinates=2) == math.inf
    assert lattice_epsilon(0.5, 0.0, spacing=2.0**-40, coordinates=2) == math.inf
    assert lattice_epsilon(0.5, 1.0, spacing=2.0**-40, coordinates=2) == 0


def test_lattice_epsilon_does_not_fall_as_the_lattice_grows() -> None:
    spacing = 2.0 ** -np.arange(50, 0, -1.0)
    values = lattice_epsilon(0.5, 1e-5, spacing=spacing, coordinates=3)
    assert np.all(np.diff(values) >= -1e-12)
    assert values[0] == pytest.approx(epsilon(0.5, 1e-5), rel=1e-12)
    assert values[-1] == epsilon_zcdp(0.5, 1e-5)


# Boundaries, shapes and refusals


def test_boundaries_come_before_any_search() -> None:
    for function in (epsilon, epsilon_zcdp):
        np.testing.assert_array_equal(function(0.0, [0.0, 1e-300, 0.5, 1.0]), np.zeros(4))
        np.testing.assert_array_equal(function([1e-300, 0.5, 1e300, np.inf], 1.0), np.zeros(4))
        np.testing.assert_array_equal(
            function([1e-300, 0.5, 1e300, np.inf], 0.0), np.full(4, np.inf)
        )
        np.testing.assert_array_equal(function(np.inf, [1e-300, 0.5, 0.99]), np.full(3, np.inf))
    assert delta(0.0, 0.0) == 0 == delta(0.0, np.inf) == delta(0.5, np.inf)
    assert delta(np.inf, 0.0) == 1 == delta(np.inf, np.inf) == delta(np.inf, 1e300)
    assert delta(0.5, 1e5) == SMALLEST
    assert rdp(0.0, np.inf) == 0 == rdp(0.0, 2)
    assert rdp(0.5, np.inf) == np.inf == rdp(np.inf, 2)
    assert (mu(0), mu(np.inf), advantage(0), advantage(np.inf)) == (0, np.inf, 0, 1)


def test_scalars_give_floats_and_arrays_broadcast() -> None:
    for value in (
        mu(1),
        advantage(1),
        rdp(1, 2),
        epsilon(1, 1e-6),
        delta(1, 1),
        epsilon_zcdp(1, 0.1),
    ):
        assert type(value) is float
    assert type(lattice_epsilon(1, 1e-6, spacing=0.001, coordinates=1)) is float
    rho, d = np.geomspace(1e-6, 10, 7), np.array([1e-8, 1e-6, 0.2, 0.7])
    for function in (epsilon, epsilon_zcdp, lambda r, q: delta(r, -np.log(q))):
        table = function(rho[:, None], d)
        assert table.shape == (7, 4)
        single = [[function(float(r), float(q)) for q in d] for r in rho]
        # 1e-13: a neighbour in the block may ask for one more iteration.
        np.testing.assert_allclose(table, single, rtol=1e-13)
        tall = function(rho[:, None, None], d[:, None])
        np.testing.assert_allclose(tall, table[..., None], rtol=1e-13)
        columns = np.asfortranarray(np.broadcast_to(rho[:, None], (7, 4)))
        np.testing.assert_allclose(function(columns, d), table, rtol=1e-13)
    assert rdp([0.1, 0.2], [[2], [3], [4]]).shape == (3, 2)
    assert epsilon([0.5], 1e-6).shape == (1,)
    assert isinstance(epsilon(xr.DataArray([0.1, 0.5], dims="area"), 1e-6), np.ndarray)


def test_blocks_do_not_show() -> None:
    rng = np.random.default_rng(7)
    rho = 10 ** rng.uniform(-8, 3, 3 * convert._BLOCK + 17)
    d = np.array([[1e-6], [0.3]])
    whole = epsilon(rho, d)
    for i in (0, convert._BLOCK - 1, convert._BLOCK, 2 * convert._BLOCK + 5, rho.size - 1):
        np.testing.assert_allclose(whole[:, i], epsilon(rho[i], d[:, 0]), rtol=1e-13)
    assert np.all(whole <= epsilon_zcdp(rho, d))


BAD = [
    (lambda v: epsilon(v, 1e-6), "rho", [[-0.1, 0.1], [np.nan, 1.0], [-np.inf, 1.0]]),
    (lambda v: epsilon_zcdp(v, 1e-6), "rho", [[-0.1, 0.1], [np.nan, 1.0]]),
    (lambda v: delta(v, 1.0), "rho", [[-0.1, 0.1], [np.nan, 1.0]]),
    (lambda v: rdp(v, 2), "rho", [[-0.1, 0.1], [np.nan, 1.0]]),
    (mu, "rho", [[-0.1, 0.1], [np.nan, 1.0]]),
    (advantage, "rho", [[-0.1, 0.1], [np.nan, 1.0]]),
    (lambda v: epsilon(0.5, v), "delta", [[-1e-9, 0.1], [1.000001, 0.1], [np.nan, 0.1]]),
    (lambda v: epsilon(0.0, v), "delta", [[-1e-9, 0.1], [np.nan, 0.1]]),
    (lambda v: epsilon_zcdp(0.5, v), "delta", [[-1e-9, 0.1], [2, 0.1], [np.nan, 0.1]]),
    (lambda v: delta(0.5, v), "epsilon", [[-1e-9, 1.0], [np.nan, 1.0]]),
    (lambda v: rdp(0.5, v), "order", [[1, 2], [0.5, 2], [np.nan, 2], [-np.inf, 2]]),
    (lambda v: rdp(0.0, v), "order", [[1, 2], [np.nan, 2]]),
    (
        lambda v: lattice_epsilon(0.5, 1e-6, spacing=v, coordinates=1),
        "spacing",
        [[0, 0.1], [-0.1, 0.1], [np.inf, 0.1], [np.nan, 0.1]],
    ),
    (
        lambda v: lattice_epsilon(0.5, 1e-6, spacing=0.1, coordinates=v),
        "coordinates",
        [[0, 1], [0.5, 1], [np.nan, 1], [np.inf, 1]],
    ),
    (
        lambda v: lattice_epsilon(v, 1e-6, spacing=0.1, coordinates=1),
        "rho",
        [[-0.1, 0.1], [np.nan, 1.0]],
    ),
]


@pytest.mark.parametrize(("function", "name", "entries"), BAD)
def test_impossible_values_are_refused_by_name_and_count(
    function: Any, name: str, entries: list[list[float]]
) -> None:
    for pair in entries:
        with pytest.raises(ValueError, match=rf"^{name} .*1 of 2 entries is not \(positions "):
            function(pair)
        with pytest.raises(ValueError, match=rf"^{name} must be .*, it is not$"):
            function(pair[0])
    for useless in ([], np.array([]), "0.5", ["0.5"], None, [None, 0.5], True, 1j):
        with pytest.raises(ValueError, match=rf"^{name} (is empty|must be numbers)"):
            function(useless)
    with pytest.raises(ValueError, match=rf"^{name} must be numbers without gaps"):
        function(np.ma.masked_array([2.0, 0.5], mask=[True, False]))


def test_a_refusal_lists_five_positions_and_counts_the_rest() -> None:
    values = np.full(12, 0.1)
    values[3:11] = np.nan
    with pytest.raises(ValueError, match=r"8 of 12 .* \(positions 3, 4, 5, 6, 7 and 3 more\)"):
        epsilon(values, 1e-6)


def test_nan_never_becomes_zero() -> None:
    for arguments in (
        (np.nan, 1e-6),
        (0.5, np.nan),
        (np.nan, np.nan),
        (np.nan, 0.0),
        (np.nan, 1.0),
    ):
        for function in (epsilon, epsilon_zcdp, delta):
            with pytest.raises(ValueError, match="must be"):
                function(*arguments)
