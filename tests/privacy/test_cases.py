"""Conversions that went wrong elsewhere in public: cases A05 and A14 to A17."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pymc_dp.privacy import advantage, epsilon, epsilon_zcdp, rdp

DELTA = 1e-6


def simple(rho: float, delta: float) -> float:
    """Bun and Steinke (2016), Proposition 1.3: the looser figure that no other may exceed."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def price(sensitivity: float, variance: float) -> float:
    return sensitivity**2 / (2 * variance)


def assert_epsilons(rho: float, delta: float, exact: float, rdp_figure: float, rel: float) -> None:
    """The stored digits, and exact <= reported <= simple as the cases ask."""
    assert epsilon(rho, delta) == pytest.approx(exact, rel=rel)
    assert epsilon_zcdp(rho, delta) == pytest.approx(rdp_figure, rel=rel)
    assert epsilon(rho, delta) <= epsilon_zcdp(rho, delta) <= simple(rho, delta) * (1 + 1e-12)


def test_a05_household_and_person_epsilons() -> None:
    person, household = price(80 / 350, 0.01), price(100 / 350, 0.01)
    assert (person, household) == pytest.approx((2.612244898, 4.081632653), rel=1e-9)
    assert_epsilons(person, DELTA, 12.9387456411, 13.7355621134, rel=1e-10)
    assert_epsilons(household, DELTA, 17.0764130846, 18.0880069821, rel=1e-10)


def test_a14_epsilons_of_weighted_means() -> None:
    sensitivity = np.array([0.5, 0.2, 0.6])
    rho = sensitivity**2 / (2 * np.array([0.04, 0.01, 0.09]))
    np.testing.assert_allclose(rho, [3.125, 2, 2], rtol=1e-14)
    assert_epsilons(rho[0], DELTA, 14.45077696599, 15.32752957483, rel=1e-11)
    assert simple(rho[0], DELTA) == pytest.approx(16.26630442439, rel=1e-11)
    assert_epsilons(rho[1], DELTA, 10.99715121422, 11.68859624935, rel=1e-11)
    assert simple(rho[1], DELTA) == pytest.approx(12.51304353951, rel=1e-11)
    # A range a hundred times as wide costs 10^4 times as much; nothing overflows.
    wide = epsilon(1e4 * rho, DELTA)
    assert np.all(np.isfinite(wide)) and np.all(wide > 1e4 * rho)


@pytest.mark.parametrize(
    ("rho", "exact", "rdp_figure", "simple_figure"),
    [
        (1e-6, 0.003991535401, 0.004496493981, 0.007434844378),
        (0.005, 0.3968573776, 0.4299414688, 0.530652177),
        (0.5, 4.886554117, 5.221534445, 5.75652177),
    ],
)
def test_a15_the_best_order_is_found_beyond_any_grid(
    rho: float, exact: float, rdp_figure: float, simple_figure: float
) -> None:
    assert_epsilons(rho, DELTA, exact, rdp_figure, rel=5e-10)  # ten digits stored
    assert simple(rho, DELTA) == pytest.approx(simple_figure, rel=5e-10)


@pytest.mark.parametrize("orders", [[1, 2, 4], [0.5], [np.nan], [2, np.nan], 1, -3, -np.inf])
def test_a15_orders_at_or_below_one_are_refused(orders: object) -> None:
    with pytest.raises(ValueError, match="order must be above 1"):
        rdp(0.005, orders)


def test_a15_an_empty_list_of_orders_is_refused() -> None:
    with pytest.raises(ValueError, match="order is empty"):
        rdp(0.005, [])


def test_a15_an_order_just_above_one_gives_its_finite_figure() -> None:
    order = 1.00000001
    curve = rdp(0.005, [order])
    assert curve[0] == pytest.approx(0.00500000005, rel=1e-14)
    single = curve[0] + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
    # 1e-8: the double nearest to 1.00000001 exceeds 1 by 0.9999999939e-8.
    assert single == pytest.approx(1381551036.4, rel=1e-8)
    assert epsilon_zcdp(0.005, DELTA) < single


def test_a15_rho_zero_costs_nothing_at_every_delta() -> None:
    delta = np.array([0.0, 5e-324, 1e-300, 1e-6, 0.5, 1.0])
    np.testing.assert_array_equal(epsilon(0.0, delta), 0)
    np.testing.assert_array_equal(epsilon_zcdp(0.0, delta), 0)


def test_a16_delta_zero_and_one_need_no_search() -> None:
    for function in (epsilon, epsilon_zcdp):
        assert function(0.5, 0.0) == math.inf
        assert function(0.5, 1.0) == 0


@pytest.mark.parametrize("delta", [-1e-9, 1.000001, math.nan, math.inf, -math.inf])
def test_a16_an_impossible_delta_is_refused(delta: float) -> None:
    for function in (epsilon, epsilon_zcdp):
        with pytest.raises(ValueError, match="delta must be between 0 and 1"):
            function(0.5, delta)


def test_a16_large_deltas() -> None:
    assert epsilon(0.5, 0.5) == 0
    assert epsilon_zcdp(0.5, 0.5) == pytest.approx(0.1890566302, rel=5e-10)
    assert_epsilons(0.5, 0.38, 0.009486405961, 0.5618425372, rel=5e-10)
    assert_epsilons(0.5, 0.3, 0.2766173989, 0.8176396118, rel=5e-10)
    for delta in (0.7, 0.9):  # the expression is negative there
        assert epsilon(0.5, delta) == 0
        assert epsilon_zcdp(0.5, delta) == 0


def test_a16_zero_is_right_where_delta_exceeds_the_total_variation() -> None:
    assert advantage(1e-7) == pytest.approx(1.784124101e-4, rel=5e-10)
    assert epsilon(1e-7, 1e-3) == 0


def test_a17_disjoint_areas_take_the_maximum_and_shared_people_the_sum() -> None:
    rho = np.array([3.125, 2, 2])
    by_area = epsilon(rho, DELTA)
    assert epsilon(rho.max(), DELTA) == by_area.max()
    assert_epsilons(rho.sum(), DELTA, 24.4238718976, 25.7902423554, rel=1e-11)
    assert simple(rho.sum(), DELTA) == pytest.approx(26.9679345335, rel=1e-11)
    assert epsilon(rho.sum(), DELTA) > by_area.max()
