"""The safe draw: its lattice, its moments, its price by enumeration, and its refusals."""

from __future__ import annotations

import math
import sys
import threading

import numpy as np
import pytest
from factories.chance import assert_gaussian

from pymc_dp.mechanisms.fay_herriot import prices
from pymc_dp.mechanisms.fay_herriot_draw import IndependentPlan, JointPlan
from pymc_dp.mechanisms.lattice import SPACING, noisy_statistics, price
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior

PLANS = [JointPlan, IndependentPlan]


def small(m=5, p=2, seed=5, A=0.05):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(m), rng.normal(size=(m, p - 1))])
    precision = 1 / rng.uniform(0.02, 0.3, m)
    precision[m - 2] = 0.0
    y = np.where(precision > 0, rng.uniform(size=m), 0.0)
    return fay_herriot_posterior(A, precision, X), y


def draw(plan, y, draws=1):
    distance = 1.0
    claimed = float(price(np.ones(1), np.ones(1), np.full(1, SPACING * math.sqrt(plan.size)))[0])
    return noisy_statistics(plan, y, distance, claimed, draws)


@pytest.mark.parametrize("kind", PLANS)
def test_noisy_statistics_lie_on_the_public_lattice_whatever_the_data(kind):
    post, y = small()
    plan = kind(post, 1.0)
    for data in (y, y * 0, np.where(post.precision > 0, 1 / 3, 0.0)):
        noisy = draw(plan, data, 20)
        steps = noisy / SPACING
        assert np.array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("kind", PLANS)
def test_noise_has_mean_zero_and_identity_covariance_in_every_coordinate(kind):
    post, y = small()
    plan = kind(post, 1.0)
    noise = draw(plan, y, 8_000) - plan.statistic(y)
    assert_gaussian(noise, np.zeros(plan.size), np.eye(plan.size))  # a false alarm in 1e-8 of runs


@pytest.mark.parametrize("kind", PLANS)
def test_draws_have_posterior_mean_and_covariance(kind):
    post, y = small(seed=8)
    plan = kind(post, 1.0)
    theta = np.array([plan.publish(w) for w in draw(plan, y, 8_000)])
    cov = post.covariance()
    if kind is IndependentPlan:
        cov = np.diag(np.diag(cov))
    assert_gaussian(theta, post.mean(y), cov)  # a false alarm in 1e-8 of runs


def renyi(p, q, order):
    """Renyi divergence of two laws given as dicts from outcome to probability."""
    total = math.fsum(w**order * q[k] ** (1 - order) for k, w in p.items() if k in q and w > 0)
    assert all(k in q for k, w in p.items() if w > 1e-20)
    return math.log(total) / (order - 1)


def lattice_law(centre, h, width=12.0):
    """Discrete Gaussian of unit scale on the lattice of spacing h, centred at a lattice point."""
    steps = np.arange(-round(width / h), round(width / h) + 1)
    weight = np.exp(-((steps * h) ** 2) / 2)
    start = round(centre / h)
    return {int(start + k): w for k, w in zip(steps, weight / weight.sum(), strict=True)}


def test_digits_of_one_area_carry_the_shared_noise():
    """Publishing area i alone shows z_i and z_beta: a record elsewhere pays rho_beta, not less.

    Exact enumeration on a coarse lattice (spacing 1/4): every pair of lattice coordinates gives
    its own value of theta_i, so the law of the value is the law of the pair.
    """
    m, h = 3, 0.25
    D = np.array([0.11, 0.23, 0.37])
    post = fay_herriot_posterior(0.19, 1 / D, np.ones((m, 1)))
    plan = JointPlan(post, 1.0)
    s, i, j = 0.9, 0, 2
    y = np.array([0.3, 0.6, 0.2])
    neighbour = y.copy()
    neighbour[j] += s
    a, b = math.sqrt(post.area_variance[i]), float(post.left[i, 0])

    def law(data):
        statistic = np.rint(plan.statistic(data) / h) * h
        own, shared = lattice_law(statistic[i], h), lattice_law(statistic[m], h)
        out = {}
        for k, u in own.items():
            for q, v in shared.items():
                value = a * h * k + b * h * q
                assert value not in out  # distinct: nothing is hidden by the sum
                out[value] = u * v
        return out

    moved = abs(np.rint(plan.statistic(y)[m] / h) - np.rint(plan.statistic(neighbour)[m] / h)) * h
    order = 2.0
    divergence = renyi(law(neighbour), law(y), order)
    # A shift by whole steps of a discrete Gaussian at an integer order: exactly order shift^2 / 2.
    assert divergence == pytest.approx(order * moved**2 / 2, rel=1e-9)
    got = prices(post, np.full(m, s), bound=2.0)
    ideal = (post.propagation()[i, j] * s) ** 2 / (2 * post.variance[i])
    assert divergence / order > 1.5 * ideal  # the ideal Gaussian's price would understate it
    slack = h  # rounding to this coarse lattice moves the shift by at most one step
    assert divergence / order <= (math.sqrt(2 * got.beta[j]) + slack) ** 2 / 2
    assert got.area[i] >= got.beta[j]


@pytest.mark.parametrize("kind", PLANS)
def test_computed_statistics_of_neighbours_stay_within_the_priced_distance(kind):
    """Floating-point sums included: many pairs, with weights that make rounding show."""
    from fractions import Fraction

    rng = np.random.default_rng(2)
    m, p = 40, 3
    X = rng.normal(size=(m, p)) * [1, 1e3, 1e-3]
    precision = 1 / 10.0 ** rng.uniform(-6, 0, m)
    post = fay_herriot_posterior(1e-3, precision, X)
    plan = kind(post, 1.0)
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
        allowed = (
            plan.norm[j] * moved * (1 + 1e-12) + plan.slack[j] - SPACING * math.sqrt(plan.size)
        )
        assert math.sqrt(exact) <= allowed
        worst = max(worst, math.sqrt(exact) - plan.norm[j] * moved)
    assert worst > 0  # without the slack the claim would be false


def test_opendp_prices_the_release_at_what_is_claimed():
    opendp = pytest.importorskip("opendp.prelude")
    from pymc_dp.mechanisms.lattice import EXPONENT, _gaussian

    post, _ = small()
    plan = JointPlan(post, 1.0)
    s = np.where(post.precision > 0, 0.07, 0.0)
    got = prices(post, s, bound=1.0)
    distance = plan.norm.max() * 0.07
    mapped = _gaussian(plan.size).map(float(distance))
    assert mapped == pytest.approx(got.joint("joint"), rel=1e-9)
    assert opendp is not None and EXPONENT == -50


def test_a_claim_below_opendps_own_price_stops_the_draw():
    post, y = small()
    with pytest.raises(RuntimeError, match="above the claim"):
        noisy_statistics(JointPlan(post, 1.0), y, 1.0, 0.4999, 1)


def test_a_statistic_that_is_not_finite_stops_the_draw():
    post, y = small()
    y = y.copy()
    y[0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        draw(JointPlan(post, 1.0), y)


def test_opendp_contrib_switch_is_left_as_the_user_had_it():
    from opendp.mod import GLOBAL_FEATURES, disable_features, enable_features

    post, y = small()
    before = set(GLOBAL_FEATURES)
    try:
        disable_features("contrib")
        draw(JointPlan(post, 1.0), y)
        assert "contrib" not in GLOBAL_FEATURES
        enable_features("contrib")
        draw(JointPlan(post, 1.0), y)
        assert "contrib" in GLOBAL_FEATURES
    finally:
        (enable_features if "contrib" in before else disable_features)("contrib")


def test_draws_from_many_threads_do_not_disturb_each_other():
    post, y = small()
    plan = JointPlan(post, 1.0)
    out: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: out.append(draw(plan, y, 5))) for _ in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    # Two equal sets of 30 lattice values: in less than 2^-1400 of runs.
    assert len(out) == 16 and len({a.tobytes() for a in out}) == 16


def test_no_pseudo_random_generator_is_touched_by_a_draw():
    import random

    post, y = small()
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = np.random.get_state()[1].tobytes(), random.getstate()  # noqa: NPY002
    first = draw(JointPlan(post, 1.0), y)
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == before  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    # Equal by chance in less than 2^-280 of runs.
    assert not np.array_equal(first, draw(JointPlan(post, 1.0), y))
    assert "opendp" in sys.modules
