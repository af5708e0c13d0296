"""A private estimate of sigma_u: how far a record can move it, and what it costs."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories.chance import assert_gaussian

import pymc_dp as pdp
from pymc_dp.components.private import (
    BLOCK,
    MomentPlan,
    MomentStatistic,
    _noise_sd,
    private_sigma_u,
)
from pymc_dp.mechanisms import lattice
from pymc_dp.mechanisms.lattice import SPACING, noisy_statistics
from pymc_dp.survey.columns import Bounds

PUBLIC = {"sampling_variance": "weights and a national rate"}


def as_direct(estimate, variance, sensitivity, bounds=(0.0, 1.0)) -> xr.Dataset:
    columns = {"estimate": estimate, "variance": variance, "sensitivity": sensitivity}
    return xr.Dataset(
        {name: ("area", np.asarray(v, float)) for name, v in columns.items()},
        coords={"area": np.char.mod("a%d", np.arange(len(estimate)))},
        attrs={"bounds": list(bounds), "unit": "record"},
    )


def design(m: int, kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = {
        "intercept": [np.ones(m)],
        "intercept and x": [np.ones(m), rng.normal(size=m)],
        "intercept and two": [np.ones(m), rng.normal(size=m), np.arange(m) % 2.0],
        "no intercept": [rng.uniform(0.5, 3, m)],
        "one area alone": [np.eye(m)[0], rng.normal(size=m)],
    }
    return np.column_stack(columns[kind])


DESIGNS = ["intercept", "intercept and x", "intercept and two", "no intercept", "one area alone"]


def statistic_of(X: np.ndarray, bounds=(0.0, 1.0)) -> MomentStatistic:
    return MomentStatistic(np.linalg.qr(X)[0], Bounds(*map(float, bounds)))


def projection(X: np.ndarray) -> np.ndarray:
    return np.eye(len(X)) - X @ np.linalg.solve(X.T @ X, X.T)


# The sensitivity


def largest_change(Q, contrasts, j, s, low, high):
    """Over the vertices of all other estimates; the pair of area j at both ends and inside."""
    m, width = len(Q), high - low
    ends = [-width / 2, width / 2]
    others = np.array(list(itertools.product(ends, repeat=m - 1)))
    others = np.insert(others, j, 0.0, axis=1)
    best = 0.0
    for delta in np.unique([*np.linspace(0, 1, 41) * min(s, width), min(s, width)]):
        for start in np.linspace(-width / 2, width / 2 - delta, 9):
            # The form is quadratic in z_j with known coefficients: no need to form it 2^m times.
            linear = 2 * others @ Q[:, j]
            change = linear * delta + Q[j, j] * ((start + delta) ** 2 - start**2)
            best = max(best, np.abs(change).max())
    return best / contrasts


@pytest.mark.parametrize("kind", DESIGNS)
@pytest.mark.parametrize("bounds", [(0, 1), (-3, 5)])
def test_sensitivity_is_exactly_the_largest_change_over_all_vertices(kind, bounds):
    m = 9
    rng = np.random.default_rng(4)
    X = design(m, kind)
    Q, (low, high) = projection(X), bounds
    # Also one larger than the range, which clipping cuts, and one that nobody has.
    s = (high - low) * np.array([0.02, 0.1, 0.3, 0.6, 0.9, 1.0, 1.7, 0.0, rng.uniform()])
    statistic = statistic_of(X, bounds)
    got = statistic.change(s)
    want = [largest_change(Q, m - X.shape[1], j, s[j], low, high) for j in range(m)]
    # Where the largest is inside the range of moves, the grid of 41 moves misses it by 1 / 41^2.
    np.testing.assert_array_less(np.array(want) * (1 - 1e-9), got + 1e-15)
    exact = s * (1 + 1e-12) <= (high - low) * np.abs(Q).sum(axis=0) / (2 * np.diag(Q) + 1e-300)
    np.testing.assert_allclose(got[exact], np.array(want)[exact], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-14)
    assert exact.sum() >= 4


@pytest.mark.parametrize("m", [2, 10, 52, 2_462])
def test_sensitivity_with_an_intercept_alone_is_s_times_2r_less_s_over_m(m):
    s = np.random.default_rng(m).uniform(0.001, 1, m)
    for basis in (np.full((m, 1), m**-0.5), np.linalg.qr(np.ones((m, 1)))[0]):
        got = MomentStatistic(basis, Bounds(0.0, 1.0)).change(s)
        np.testing.assert_allclose(got, s * (2 - s) / m, rtol=1e-11)


@pytest.mark.parametrize("kind", DESIGNS)
def test_sensitivity_is_below_the_simple_bound_and_random_changes_below_it(kind):
    m = 40
    rng = np.random.default_rng(7)
    X, s = design(m, kind, seed=3), rng.uniform(0.01, 0.4, m)
    Q, contrasts = projection(X), m - X.shape[1]
    got = statistic_of(X).change(s)
    simple = s * (np.abs(Q).sum(axis=0) + np.diag(Q) * s) / contrasts
    assert (got <= simple * (1 + 1e-12)).all()
    statistic = statistic_of(X)
    for _ in range(300):
        y = rng.choice([0, 1, rng.uniform()], m)
        neighbour, j = y.copy(), rng.integers(m)
        neighbour[j] = np.clip(y[j] + s[j] * rng.choice([-1, 1]), 0, 1)
        assert abs(statistic.value(neighbour) - statistic.value(y)) <= got[j] * (1 + 1e-9) + 1e-15


def test_sums_in_blocks_are_those_of_the_dense_matrix():
    m = 3_000
    X = design(m, "intercept and two")
    assert m * m > BLOCK
    statistic = statistic_of(X)
    Q = np.eye(m) - statistic.basis @ statistic.basis.T
    np.testing.assert_allclose(statistic.absolute_sums, np.abs(Q).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistic.diagonal, np.diag(Q), rtol=1e-12)


# The computed value


@pytest.mark.parametrize("kind", DESIGNS[:4])
@pytest.mark.parametrize("bounds", [(0, 1), (1e6, 1e6 + 3)])
def test_computed_value_errs_by_no_more_than_is_paid_for(kind, bounds):
    """Exact rational arithmetic with the same basis, over estimates that make rounding show."""
    m = 25
    rng = np.random.default_rng(2)
    X, (low, high) = design(m, kind), bounds
    statistic = statistic_of(X, bounds)
    B = [[Fraction(float(v)) for v in row] for row in statistic.basis]
    for _ in range(20):
        y = rng.uniform(low, high, m)
        z = [Fraction(float(v)) for v in np.clip(y - (low + high) / 2, -1.5, 1.5)]
        t = [sum(b[k] * v for b, v in zip(B, z, strict=True)) for k in range(X.shape[1])]
        r = [v - sum(p * q for p, q in zip(b, t, strict=True)) for b, v in zip(B, z, strict=True)]
        exact = sum(v * v for v in r) / statistic.contrasts
        assert abs(Fraction(statistic.value(y)) - exact) <= Fraction(statistic.rounding)
    assert statistic.rounding < 1e-12 * statistic.largest


def test_estimates_outside_the_bounds_are_clipped():
    X = np.ones((4, 1))
    statistic = statistic_of(X, (0.2, 0.6))
    y = np.array([0.1, 0.3, 0.5, 0.9])
    assert statistic.value(y) == statistic.value(np.clip(y, 0.2, 0.6))
    assert statistic.value(y) == pytest.approx(np.var(np.clip(y, 0.2, 0.6), ddof=1))


# The noise and its price


def test_opendp_prices_neighbours_at_what_is_asked():
    statistic = statistic_of(np.ones((30, 1)))
    change = float(statistic.change(np.full(30, 0.05)).max())
    for rho in (1e-6, 0.01, 0.5, 20.0):
        sd = _noise_sd(statistic, change, rho)
        # Raised by a relative 1e-9 against rounding, and no more.
        assert change / math.sqrt(2 * rho) < sd < 1.00001 * change / math.sqrt(2 * rho)
        distance = (change + 2 * statistic.rounding) / sd + SPACING
        assert lattice._gaussian(1).map(distance) <= rho * (1 + 1e-9)


def test_released_value_lies_on_the_public_lattice():
    statistic, y = statistic_of(np.ones((4, 1))), np.array([0.1, 1 / 3, 0.7123456789, 0.9])
    for sd in (1.0, 0.3, 1e-3):
        noisy = noisy_statistics(MomentPlan(statistic, sd), y, 1.0, 0.5, 20) / SPACING
        assert noisy.shape == (20, 1)
        assert np.array_equal(noisy, np.rint(noisy))
        # Within nine standard deviations of the noise of the statistic: 1e-17 each.
        assert (np.abs(noisy * SPACING - statistic.value(y) / sd) < 9).all()


def test_value_that_is_not_finite_is_not_released():
    plan, charged = MomentPlan(statistic_of(np.ones((3, 1))), 1.0), []
    with pytest.raises(ValueError, match="not finite"):
        noisy_statistics(plan, np.array([0.1, np.nan, 0.2]), 1.0, 0.5, 1, lambda: charged.append(1))
    assert not charged


@pytest.fixture(scope="module")
def areas() -> tuple[xr.Dataset, pd.DataFrame]:
    rng = np.random.default_rng(12)
    m = 120
    x = rng.normal(size=m)
    D = rng.uniform(2e-4, 2e-3, m)
    y = 0.3 + 0.05 * x + rng.normal(0, 0.04, m) + rng.normal(0, np.sqrt(D))
    direct = as_direct(y.clip(0, 1), D, rng.uniform(0.005, 0.03, m))
    return direct, pd.DataFrame({"x": x}, index=direct["area"].values)


def moment(direct, X, low=0.0, high=1.0):
    """Moment estimate of A by dense algebra."""
    y = direct["estimate"].values.clip(low, high)
    Q, contrasts = projection(X), len(y) - X.shape[1]
    return (y @ Q @ y - np.trace(Q @ np.diag(direct["variance"].values))) / contrasts


def test_with_next_to_no_noise_it_is_the_moment_estimate(areas):
    direct, table = areas
    X = np.column_stack([np.ones(len(table)), table["x"]])
    cases = [("~ x", table, X), ("~ 1", None, X[:, :1])]
    for formula, covariates, columns in cases:
        got = private_sigma_u(direct, formula, covariates, rho=1e12, assumptions=PUBLIC)
        want = moment(direct, columns)
        # Eight standard deviations of the noise that is left, some 1e-9.
        assert abs(float(got["between_variance"]) - want) < 8 * float(got["noise_sd"])
        assert float(got["sigma_u"]) == pytest.approx(math.sqrt(want), rel=1e-5)
    # Without the covariate its effect would count as a difference between areas.
    assert moment(direct, X[:, :1]) > 2 * moment(direct, X)


def test_noise_has_mean_zero_and_the_stated_standard_deviation(areas):
    direct, table = areas
    n = 300
    found = [private_sigma_u(direct, rho=0.05, assumptions=PUBLIC) for _ in range(n)]
    noise = np.array([float(f["between_variance"]) for f in found])
    noise -= moment(direct, np.ones((len(table), 1)))
    sd = float(found[0]["noise_sd"])
    # A false alarm in 1e-8 of runs; two equal values on the lattice of 2^-50 sd, in 2e-11.
    assert_gaussian(noise[:, None], 0.0, sd**2)
    assert len(set(noise)) == n


def test_negative_estimates_are_raised_to_zero_after_the_noise():
    flat = as_direct(np.linspace(0.39, 0.41, 30), np.full(30, 0.05), np.full(30, 0.01))
    found = private_sigma_u(flat, rho=0.5, assumptions=PUBLIC)
    assert float(found["between_variance"]) < 0 and float(found["sigma_u"]) == 0
    model = pdp.fay_herriot(flat, sigma_u=float(found["sigma_u"]))
    release = pdp.PrivateRelease(model, flat["sensitivity"])
    assert float(release.guarantee["rho"]) > 0


def test_the_worst_area_pays_rho_and_others_by_the_square_of_their_sensitivity(areas):
    direct, _ = areas
    found = private_sigma_u(direct, rho=0.2, assumptions=PUBLIC)
    s = direct["sensitivity"].values
    change = s * (2 - s)
    np.testing.assert_allclose(
        found["rho_respondent"], 0.2 * (change / change.max()) ** 2, rtol=1e-9
    )
    assert float(found["rho_respondent"].max()) == pytest.approx(0.2)


def test_areas_without_sample_change_nothing(areas):
    direct, table = areas
    more = direct.reindex(area=[*direct["area"].values, "unsampled"])
    wider = pd.concat([table, pd.DataFrame({"x": [9.0, 3.0]}, index=["unsampled", "elsewhere"])])
    got = private_sigma_u(more, "~ x", wider, rho=0.1, assumptions=PUBLIC)
    want = private_sigma_u(direct, "~ x", table, rho=0.1, assumptions=PUBLIC)
    assert float(got["noise_sd"]) == float(want["noise_sd"])
    assert float(got["rho_respondent"].sel(area=["unsampled", "elsewhere"]).max()) == 0
    assert json.loads(got.attrs["privacy"])["areas"] == len(table)


def test_narrower_bounds_need_less_noise(areas):
    direct, _ = areas
    wide, narrow = (
        float(private_sigma_u(direct, rho=0.1, bounds=b)["noise_sd"]) for b in (None, (0, 0.5))
    )
    s = direct["sensitivity"].values.max()
    assert narrow / wide == pytest.approx((1 - s) / (2 - s), rel=1e-6)


# The claim and the ledger


def test_claim_is_formal_only_with_a_source_of_the_sampling_variances(areas):
    direct, _ = areas
    formal = private_sigma_u(direct, rho=0.01, assumptions=PUBLIC)
    plain = private_sigma_u(direct, rho=0.01)
    records = [json.loads(found.attrs["privacy"]) for found in (formal, plain)]
    assert [r["claim"] for r in records] == ["formal", "conditional"]
    assert "treating the variance components as fixed" in records[1]["claim_words"]
    assert formal["rho"].attrs["claim"] == "formal"
    assert plain["rho_respondent"].attrs["claim"].startswith("conditional")
    assert formal.attrs["source"] == "estimated privately at rho = 0.01 (private_sigma_u)"
    assert records[0]["bounds"] == [0, 1] and records[0]["rho"] == 0.01


def test_words_about_the_price_never_say_less(areas):
    """To six digits and rounded to nearest it would be 0.123456."""
    found = private_sigma_u(areas[0], rho=0.12345649)
    assert found.attrs["source"] == "estimated privately at rho = 0.12345649 (private_sigma_u)"


def test_the_price_is_charged_before_the_noise_is_drawn(areas, tmp_path, monkeypatch):
    direct, _ = areas
    ledger = pdp.PrivacyLedger(tmp_path / "l.ledger", rho=1.0, create=True)
    private_sigma_u(direct, rho=0.25, ledger=ledger, assumptions=PUBLIC)
    assert ledger.spent == 0.25
    entry = ledger.to_dataframe().iloc[0]
    assert entry["label"] == "sigma_u of 120 areas" and entry["record"]["target"] == "sigma_u"

    class Failing:
        def map(self, distance):
            return distance**2 / 2

        def __call__(self, value):
            raise OSError("no randomness")

    monkeypatch.setattr(lattice, "_gaussian", lambda size: Failing())
    with pytest.raises(OSError, match="no randomness"):
        private_sigma_u(direct, rho=0.25, ledger=ledger, assumptions=PUBLIC)
    assert ledger.spent == 0.5


def test_a_budget_that_does_not_suffice_stops_everything(areas, tmp_path, monkeypatch):
    direct, _ = areas
    ledger = pdp.PrivacyLedger(tmp_path / "l.ledger", rho=0.1, create=True)
    drawn = []
    real = lattice._gaussian

    class Watched:
        def __init__(self, size):
            self.inner = real(size)

        def map(self, distance):
            return self.inner.map(distance)

        def __call__(self, value):
            drawn.append(value)
            return self.inner(value)

    monkeypatch.setattr(lattice, "_gaussian", Watched)
    with pytest.raises(pdp.BudgetExceeded):
        private_sigma_u(direct, rho=0.11, ledger=ledger, assumptions=PUBLIC)
    with pytest.raises(ValueError, match="formal claims only"):
        private_sigma_u(direct, rho=0.05, ledger=ledger)
    assert drawn == [] and ledger.spent == 0
    private_sigma_u(direct, rho=0.1, ledger=ledger, assumptions=PUBLIC)
    assert len(drawn) == 1


def test_a_claim_below_opendps_own_price_stops_the_draw(areas, tmp_path, monkeypatch):
    class Dearer:
        def map(self, distance):
            return distance**2

        def __call__(self, value):
            raise AssertionError("drawn")

    direct, _ = areas
    ledger = pdp.PrivacyLedger(tmp_path / "l.ledger", rho=1.0, create=True)
    monkeypatch.setattr(lattice, "_gaussian", lambda size: Dearer())
    with pytest.raises(RuntimeError, match="above the claim"):
        private_sigma_u(direct, rho=0.25, ledger=ledger, assumptions=PUBLIC)
    assert ledger.spent == 0


def test_formal_route_from_records_to_a_release_with_one_total(tmp_path):
    """Public sampling variances, private sigma_u, release calibrated to what is left."""
    records = pdp.datasets.simulate_state_survey()
    direct = pdp.hajek(
        records,
        outcome="smoker",
        weight="weight",
        area="area",
        unit="household",
        variance="kish",
        rate=0.15,
        design_factor=1.2,
    )
    budget = 0.5
    ledger = pdp.PrivacyLedger(tmp_path / "l.ledger", rho=budget, create=True)
    found = private_sigma_u(
        direct, rho=0.1 * budget, bounds=(0, 0.5), ledger=ledger, assumptions=PUBLIC
    )
    declared = PUBLIC | {"sigma_u": found.attrs["source"]}
    model = pdp.fay_herriot(direct, sigma_u=float(found["sigma_u"]))
    release = pdp.PrivateRelease(model, direct["sensitivity"], assumptions=declared)
    if float(release.guarantee["rho"]) > ledger.remaining:
        release = release.calibrate(rho=ledger.remaining)
    assert release.claim == "formal"
    release.draw(ledger=ledger)
    total = float(found["rho"]) + float(release.guarantee["rho"])
    assert ledger.spent == pytest.approx(total) and total <= budget * (1 + 1e-12)
    assert set(ledger.to_dataframe()["claim"]) == {"formal"}
    by_area = found["rho_respondent"] + release.guarantee["rho_respondent"]
    assert float(by_area.max()) <= total * (1 + 1e-12)


# Refusals


@pytest.mark.parametrize("rho", [0, -1, math.nan, math.inf, True, "1"])
def test_a_price_that_is_no_price_is_refused(areas, rho):
    with pytest.raises(ValueError, match="rho"):
        private_sigma_u(areas[0], rho=rho)


def test_what_cannot_be_priced_is_refused(areas):
    direct, table = areas
    with pytest.raises(ValueError, match="sensitivity"):
        private_sigma_u(direct.drop_vars("sensitivity"), rho=0.1)
    unknown = direct.copy(deep=True)
    unknown["sensitivity"][3] = np.nan
    with pytest.raises(ValueError, match="1 areas: a3"):
        private_sigma_u(unknown, rho=0.1)
    with pytest.raises(ValueError, match="nobody to protect"):
        private_sigma_u(direct.assign(sensitivity=0 * direct["sensitivity"]), rho=0.1)
    bare = direct.copy()
    bare.attrs = {}
    with pytest.raises(ValueError, match="needs bounds"):
        private_sigma_u(bare, rho=0.1)
    with pytest.raises(ValueError, match="low < high"):
        private_sigma_u(direct, rho=0.1, bounds=(1, 0))
    with pytest.raises(ValueError, match="cannot be declared public"):
        private_sigma_u(direct, rho=0.1, assumptions={"sigma_u": "literature"})
    with pytest.raises(ValueError, match="2 areas with a sample for 2 coefficients"):
        private_sigma_u(direct.isel(area=[0, 1]), "~ x", table.iloc[:2], rho=0.1)


def test_many_areas_with_covariates_take_no_square_matrix():
    import tracemalloc

    m = 6_000
    basis = np.linalg.qr(design(m, "intercept and two"))[0]
    statistic = MomentStatistic(basis, Bounds(0.0, 1.0))
    tracemalloc.start()
    statistic.value(np.full(m, 0.3))
    statistic.change(np.full(m, 0.01))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * m * m / 3  # bytes of a third of a square matrix
