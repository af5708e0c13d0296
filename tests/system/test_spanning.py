"""Units with records in several areas: what holds for their raised sensitivities, what refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_dp as pdp
from pymc_dp._checks import AREAS_PER_UNIT, areas_per_unit, refuse_spanning
from pymc_dp.components.private import MomentStatistic, private_sigma_u
from pymc_dp.mechanisms.direct import plan_within
from pymc_dp.survey.columns import Bounds

PUBLIC = {"sampling_variance": "weights and a national rate"}
ROLES = {"outcome": "y", "weight": "w", "area": "area", "unit": "person"}


def estimates(records: pd.DataFrame, spanning="bound", **roles):
    named = ROLES | {"variance": "kish", "rate": 0.3, "spanning": spanning} | roles
    return pdp.hajek(records, **named)


def in_pairs(shared: float) -> pd.DataFrame:
    """Twelve areas in pairs: one person in both, of weight 6, and four of weight 1 in each."""
    rows = []
    for a in range(12):
        rows.append((f"a{a:02d}", f"pair{a // 2}", 6.0, shared * (a < 2)))
        rows += [(f"a{a:02d}", f"own{a}-{k}", 1.0, float(a < 2)) for k in range(4)]
    return pd.DataFrame(rows, columns=["area", "person", "w", "y"])


@pytest.fixture(scope="module")
def spanning():
    """Persons in one, two or three of four areas, their shares of the weights, the estimates."""
    rng = np.random.default_rng(3)
    records = pd.DataFrame(
        [(a, p) for p in range(7) for a in rng.choice(list("abcd"), rng.integers(1, 4), False)],
        columns=["area", "person"],
    )
    records = records.assign(w=rng.lognormal(0, 0.8, len(records)), y=0.0)
    parts = records.groupby(["person", "area"])["w"].sum().unstack(fill_value=0.0)
    return records, parts / parts.sum(), estimates(records)


def loss(before, after, sd):
    """zCDP loss between two values of the moment statistic with noise of that deviation."""
    return (np.var(after, ddof=1) - np.var(before, ddof=1)) ** 2 / (2 * sd**2)


def test_private_sigma_u_prices_a_person_in_two_areas():
    """The change is concave in the sensitivity: at twice it, the price was 1.166 for .5."""
    before, after = (estimates(in_pairs(v)) for v in (0.0, 1.0))
    found = private_sigma_u(before, rho=0.5, assumptions=PUBLIC)
    sd = float(found["noise_sd"])
    assert loss(before["estimate"], after["estimate"], sd) == pytest.approx(0.41322, rel=1e-4)
    # Two areas, each s (2R - s) / m at s = .6: nothing is given away either.
    assert sd == pytest.approx(2 * 0.6 * 1.4 / 12, rel=1e-6)
    np.testing.assert_allclose(found["rho_respondent"], 0.5, rtol=1e-9)


def test_no_data_of_zeros_and_ones_move_the_private_statistic_by_more(spanning):
    """Every data set of zeros and ones, every person, all its answers changed to anything."""
    records, shares, direct = spanning
    found = private_sigma_u(direct, rho=0.5, assumptions=PUBLIC)
    sd, by_area = float(found["noise_sd"]), found["rho_respondent"].to_series()
    persons = [np.flatnonzero(records["person"] == p) for p in shares.index]
    areas = [np.flatnonzero(records["area"] == a) for a in shares.columns]
    w = records["w"].to_numpy()
    rows = np.array(list(itertools.product([0.0, 1.0], repeat=len(w))))

    def mean(y):
        return np.stack([y[:, at] @ w[at] / w[at].sum() for at in areas], axis=1)

    worst = 0.0
    for person, at in zip(shares.index, persons, strict=True):
        mine = by_area[shares.columns[shares.loc[person] > 0]].min()
        for values in itertools.product([0.0, 1.0], repeat=len(at)):
            changed = rows.copy()
            changed[:, at] = values
            variances = [np.var(mean(y), axis=1, ddof=1) for y in (rows, changed)]
            most = (np.abs(variances[1] - variances[0]).max() / sd) ** 2 / 2
            assert most <= mine <= 0.5 * (1 + 1e-9)
            worst = max(worst, most)
    assert worst > 0.05  # of .5: nobody is the largest in all areas at once


def test_change_of_a_unit_is_the_largest_sum_over_its_areas():
    """Against all sets of areas that it may be in, by enumeration."""
    rng = np.random.default_rng(9)
    m = 7
    statistic = MomentStatistic(
        np.linalg.qr(np.c_[np.ones(m), rng.normal(size=m)])[0], Bounds(0.0, 1.0)
    )
    s = rng.uniform(0.05, 1.8, m)
    for areas in (1, 2, 3, 7, 20):
        want = np.zeros(m)
        for k in range(1, min(areas, m) + 1):
            change = statistic.change(s / k)
            for chosen in itertools.combinations(range(m), k):
                at = list(chosen)
                want[at] = np.maximum(want[at], change[at].sum())
        np.testing.assert_allclose(statistic.unit_change(s, areas), want, rtol=1e-14)
    assert np.array_equal(statistic.unit_change(s, 1), statistic.change(s))


def test_the_count_of_areas_travels_with_the_sensitivity(spanning):
    records, shares, direct = spanning
    most = int((shares > 0).sum(axis=1).max())
    assert most == 3 == direct["sensitivity"].attrs[AREAS_PER_UNIT] == areas_per_unit(direct)
    # Whichever of the two attributes is left.
    alone = direct[["estimate", "variance", "sensitivity"]].copy()
    alone.attrs = {}
    bare = direct.assign(sensitivity=direct["sensitivity"] * 1.0)
    bare["sensitivity"].attrs = {}
    assert areas_per_unit(alone) == areas_per_unit(bare) == 3
    assert areas_per_unit(estimates(records, "fail", unit=["area", "person"])) == 1
    broken = direct.copy(deep=True)
    broken["sensitivity"].attrs[AREAS_PER_UNIT] = math.nan
    with pytest.raises(ValueError, match="must count areas"):
        areas_per_unit(broken)


def test_rounding_counts_once_for_each_area_of_a_unit(spanning):
    _, shares, direct = spanning
    k = (shares > 0).sum(axis=1)
    exact = shares.mul(k, axis=0).max().to_numpy()
    # The public grid, for every area of the unit with most areas among those in the area.
    grid = direct.attrs["outcome_grid"] * np.array([k[shares[a] > 0].max() for a in shares])
    over = direct["sensitivity"].values - exact
    assert (over >= grid).all() and (over < 1.01 * grid).all()


def test_what_is_not_linear_refuses_them(spanning):
    records, _, direct = spanning
    with pytest.raises(ValueError, match=r"one direct estimate.*up to 3 areas"):
        pdp.compare_variance_components(direct, sigma_u=0.1, prior=pm.HalfNormal.dist(0.1))
    with pytest.raises(ValueError, match=r"one area at a time.*up to 3 areas"):
        pdp.check_proviso(
            records, **ROLES, sigma_u=0.1, spanning="bound", variance="kish", rate=0.3
        )
    guarantee = pdp.plan(direct, sigma_u=0.1)
    names = {"weight": "w", "area": "area", "unit": "person"}
    with pytest.raises(ValueError, match="units have records in several areas"):
        pdp.record_guarantee(records, guarantee, **names)
    refuse_spanning(estimates(records, "fail", unit=["area", "person"]), "never said")


def test_sensitivities_above_the_range_without_the_count_are_refused(spanning):
    direct = estimates(in_pairs(0.0))
    direct["sensitivity"].attrs.pop(AREAS_PER_UNIT)
    direct.attrs.pop("max_areas_of_a_unit")
    with pytest.raises(ValueError, match=r"larger than the outcome's range in 12 areas"):
        private_sigma_u(direct, rho=0.5)


def unit_price(kernel: np.ndarray, shares: pd.DataFrame) -> float:
    """The dearest unit: maximum over signs of ``d' K d / 2``."""
    signs = np.array(list(itertools.product([1, -1], repeat=shares.shape[1])))
    moved = signs[:, None, :] * shares.to_numpy()
    return float(np.einsum("sui,ij,suj->su", moved, kernel, moved).max() / 2)


@pytest.mark.parametrize("sigma_u", [0.02, 0.3])
def test_linear_mechanisms_cover_every_unit(spanning, sigma_u):
    _, shares, direct = spanning
    model = pdp.fay_herriot(direct, sigma_u=sigma_u)
    joint = pdp.PrivateRelease(model, direct["sensitivity"])
    alone = pdp.PrivateRelease(model, direct["sensitivity"], mechanism="independent")
    D, A = direct["variance"].values, sigma_u**2
    g, v = D / (A + D), 1 / (A + D)
    Sigma = np.diag(A * g) + np.outer(g, g) / v.sum()
    M = Sigma / D
    joint_kernel = M.T @ np.linalg.inv(Sigma) @ M
    assert unit_price(joint_kernel, shares) <= float(joint.guarantee["rho"])
    independent = M.T @ np.diag(1 / np.diag(Sigma)) @ M
    assert unit_price(independent, shares) <= float(alone.guarantee["rho"])
    for method in ("temper", "noise", "scale"):
        assert float(joint.calibrate(rho=0.01, method=method).guarantee["rho"]) <= 0.01
    plan = plan_within(direct["sensitivity"].values, 1.0, 0.5)
    assert unit_price(np.diag(plan.norm**2), shares) <= 0.5


def test_bound_for_all_data_covers_every_unit(spanning):
    """Of ``Var(t'theta)`` by brute force over data, t the tilts of all areas of a unit."""
    _, shares, direct = spanning
    low, high = 0.1, 0.3
    bound = float(pdp.bound_estimated(direct, prior=pm.Uniform.dist(low, high))["rho"])
    D = direct["variance"].values
    sigma = np.linspace(low, high, 200)[:, None]
    g, v = D / (sigma**2 + D), 1 / (sigma**2 + D)
    rng = np.random.default_rng(2)
    for _ in range(200):
        y = rng.normal(0, rng.uniform(0, 3), D.size) * (rng.uniform(size=D.size) < 0.5)
        beta = (v * y).sum(axis=1) / v.sum(axis=1)
        means = y - g * (y - beta[:, None])
        logs = (
            np.log(v).sum(axis=1)
            - np.log(v.sum(axis=1))
            - (v * (y - beta[:, None]) ** 2).sum(axis=1)
        ) / 2
        f = np.exp(logs - logs.max())
        f /= f.sum()
        spread = means - f @ means
        cov = np.einsum("q,qi,qj->ij", f, spread, spread)
        shared = np.einsum("q,qi,qj->ij", f / v.sum(axis=1), g, g)
        cov += np.diag(f @ (sigma**2 * g)) + shared
        assert unit_price(cov / np.outer(D, D), shares) <= bound
