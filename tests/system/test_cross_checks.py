"""Price, curves and composition against other libraries: dp-accounting and OpenDP's own maps.

The distance between neighbouring releases is computed here by dense algebra, from nothing but the
model's inputs; the libraries turn it into prices.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories.fay_herriot import build, problems
from hypothesis import given, settings
from hypothesis import strategies as st

import pymc_dp as pdp
from pymc_dp.mechanisms.fay_herriot import law_dataset
from pymc_dp.mechanisms.lattice import _contrib
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.record.figures import DELTAS, ORDERS

dp_accounting = pytest.importorskip("dp_accounting")

MECHANISMS = ["joint", "independent"]
SIGMA_U = 0.04
# Prices include the rounding of the lattice draw: about 1e-12 of themselves, for bounds near 1.
CLOSE = {"rel": 1e-9}


def opendp_gaussian(size, scale=1.0):
    """OpenDP's measurement: the vector Gaussian on the lattice of a release."""
    dp = pytest.importorskip("opendp.prelude")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale, k=-50)


def opendp_composition(measurements):
    dp = pytest.importorskip("opendp.prelude")
    return dp.c.make_composition(measurements)


def opendp_profile(measurement, distance):
    dp = pytest.importorskip("opendp.prelude")
    return dp.c.make_zCDP_to_approxDP(measurement).map(distance)


def distances(M, covariance, s, mechanism):
    """Mahalanobis length of what one record moves, densely, for a record of each area."""
    if mechanism == "independent":
        covariance = np.diag(np.diag(covariance))
    inverse = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
    moved = M * s
    return np.sqrt(np.einsum("ij,ik,kj->j", moved, inverse, moved))


@pytest.fixture(scope="module")
def king_county(shared):
    """Releases of smoking and diabetes, and the distances of their neighbours by dense algebra."""
    table = pd.read_csv(shared / "data" / "brfss_king_county_area_table.csv")

    def release(outcome, mechanism="joint"):
        t = table[(table.domain == "hra") & (table.outcome == outcome)]
        D = 0.136 * (1 - 0.136) / t.n_eff.to_numpy()
        direct = xr.Dataset(
            {"estimate": ("area", t.hajek), "variance": ("area", D)},
            coords={"area": t.area.to_numpy()},
        )
        sensitivity = xr.DataArray(t.max_share.to_numpy(), direct.coords, ["area"])
        sensitivity.attrs["bounds"] = [0.0, 1.0]
        model = pdp.fay_herriot(direct, sigma_u=SIGMA_U)
        public = dict.fromkeys(("sampling_variance", "sigma_u"), "a published table")
        got = pdp.PrivateRelease(model, sensitivity, mechanism=mechanism, assumptions=public)
        # One latent a area and the flat mean, from the normal equations.
        m = len(t)
        Z = np.hstack([np.eye(m), np.ones((m, 1))])
        Q = Z.T @ np.diag(1 / D) @ Z + np.diag(np.r_[np.full(m, SIGMA_U**-2), 0.0])
        covariance = Z @ np.linalg.solve(Q, Z.T)
        far = distances(covariance / D, covariance, t.max_share.to_numpy(), mechanism)
        return got, far

    return release


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rho_is_opendps_price_of_the_distance_on_king_county(king_county, mechanism):
    release, far = king_county("smoker", mechanism)
    g = release.guarantee
    price = opendp_gaussian_price(far)
    name = "rho_respondent" if mechanism == "joint" else "rho_independent"
    np.testing.assert_allclose(g[name], price, rtol=CLOSE["rel"])
    assert float(g["rho"]) == pytest.approx(max(price), **CLOSE)


def opendp_gaussian_price(far):
    with _contrib():
        measurement = opendp_gaussian(len(far) + 1)
        return [measurement.map(float(distance)) for distance in far]


def random_guarantee(q, mechanism):
    post = build(q)
    rng = np.random.default_rng(7)
    m = post.gamma.size
    s = np.where(q["precision"] > 0, rng.uniform(0.01, 0.5, m), 0.0)
    area = np.array([f"a{i}" for i in range(m)])
    g = law_dataset(ReleaseLaw(post, mechanism), s, area, bound=1.0, claim="formal")
    return g, distances(post.propagation(), post.covariance(), s, mechanism)


# The dense route and its pseudo-inverse (A = 0 has rank p) can vouch for 1e-6.
@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=40, deadline=None)
@given(problems())
def test_rho_is_opendps_price_of_the_distance_on_random_problems(mechanism, q):
    g, far = random_guarantee(q, mechanism)
    name = "rho_respondent" if mechanism == "joint" else "rho_independent"
    np.testing.assert_allclose(g[name], opendp_gaussian_price(far), rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rdp_curve_is_the_accountants_for_the_gaussian_and_for_zcdp(king_county, mechanism):
    release, far = king_county("smoker", mechanism)
    g = release.guarantee
    for event in (
        dp_accounting.GaussianDpEvent(1 / far.max()),
        dp_accounting.ZCDpEvent(far.max() ** 2 / 2),
    ):
        accountant = dp_accounting.rdp.RdpAccountant(ORDERS)
        accountant.compose(event)
        np.testing.assert_allclose(g["rdp"], accountant.rdp, rtol=CLOSE["rel"])


# The discretised loss is rounded up, by less than 1e-3 of epsilon at its default grid of 1e-4; at
# delta 1e-10 it also cuts tails of 1e-15, and rounds in the last digits.
def check_against_loss_distribution(epsilon, far, draws=1):
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(1 / far), draws)
    for bound, delta in zip(np.asarray(epsilon), DELTAS, strict=True):
        discretised = accountant.get_epsilon(delta)
        assert bound * (1 - 1e-6) <= discretised <= bound * (1 + 1e-3)


def test_epsilon_is_the_loss_distributions_and_the_analytic_one(king_county):
    release, far = king_county("smoker")
    epsilon = release.guarantee["epsilon"]
    check_against_loss_distribution(epsilon, far.max())
    for bound, delta in zip(epsilon.values, DELTAS, strict=True):
        analytic = dp_accounting.get_epsilon_gaussian(1 / far.max(), delta)
        assert bound == pytest.approx(analytic, **CLOSE)


def test_epsilon_of_each_area_alone_is_the_analytic_one_at_its_price(king_county):
    release, far = king_county("smoker")
    g = release.guarantee
    for i in range(far.size):
        # In King County an area's own records pay most for its value.
        analytic = dp_accounting.get_epsilon_gaussian(1 / far[i], 1e-6)
        assert float(g["epsilon_area"].sel(delta=1e-6)[i]) == pytest.approx(analytic, **CLOSE)


def fine_orders(rho):
    """Renyi orders close together about the best one for each delta."""
    best = 1 + np.sqrt(np.log(1 / DELTAS) / rho)
    return np.unique(np.concatenate([1 + (b - 1) * np.geomspace(0.5, 1.5, 4001) for b in best]))


def check_zcdp_conversion(g, measurement, distance, event, draws=1):
    """Epsilon from zCDP alone: OpenDP's profile, and the accountant's least over fine orders."""
    with _contrib():
        profile = opendp_profile(measurement, distance)
    accountant = dp_accounting.rdp.RdpAccountant(fine_orders(float(g["rho"])))
    accountant.compose(event, draws)
    for bound, delta in zip(g["epsilon_zcdp"].values, DELTAS, strict=True):
        assert bound == pytest.approx(profile.epsilon(delta), **CLOSE)
        # A grid of orders can only be above the optimum, here by little.
        least = accountant.get_epsilon(delta)
        assert bound * (1 - 1e-9) <= least <= bound * (1 + 1e-6)


def test_epsilon_from_zcdp_is_opendps_profile_and_the_accountants_limit(king_county):
    release, far = king_county("smoker")
    with _contrib():
        measurement = opendp_gaussian(far.size + 1)
    event = dp_accounting.ZCDpEvent(far.max() ** 2 / 2)
    check_zcdp_conversion(release.guarantee, measurement, float(far.max()), event)


@settings(max_examples=15, deadline=None)
@given(problems(), st.sampled_from(MECHANISMS))
def test_every_figure_of_random_problems_is_the_other_libraries(q, mechanism):
    g, _ = random_guarantee(q, mechanism)
    rho = float(g["rho"])
    distance, m = math.sqrt(2 * rho), g.sizes["area"]
    with _contrib():
        measurement = opendp_gaussian(3)
    check_zcdp_conversion(g, measurement, distance, dp_accounting.GaussianDpEvent(1 / distance))
    for name, delta in itertools.product(["epsilon", "epsilon_zcdp"], DELTAS):
        # dp-accounting's search stops within 1e-7 of its figure or so.
        analytic = dp_accounting.get_epsilon_gaussian(1 / distance, delta)
        bound = float(g[name].sel(delta=delta))
        assert bound >= analytic * (1 - 1e-6) - 1e-9
        # The lattice takes up to (1 + e^epsilon) 0.0202 2^-100 of delta a coordinate.
        if name == "epsilon" and math.exp(analytic) * m * 2.0**-105 < 1e-8 * delta:
            assert bound == pytest.approx(analytic, rel=1e-6, abs=1e-9)


def test_draws_released_together_cost_what_the_libraries_compose(king_county):
    k = 3
    release, far = king_county("smoker")
    one = float(release.guarantee["rho"])
    release.draw(draws=k)
    g = release.released
    with _contrib():
        composed = opendp_composition([opendp_gaussian(far.size + 1)] * k)
    assert float(g["rho"]) == pytest.approx(composed.map(float(far.max())), **CLOSE)
    assert float(g["rho"]) == pytest.approx(k * one, rel=1e-12)
    event = dp_accounting.GaussianDpEvent(1 / far.max())
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS)
    accountant.compose(event, k)
    np.testing.assert_allclose(g["rdp"], accountant.rdp, rtol=CLOSE["rel"])
    check_against_loss_distribution(g["epsilon"], far.max(), draws=k)
    check_zcdp_conversion(g, composed, float(far.max()), event, draws=k)


def test_a_ledger_of_releases_adds_up_as_the_libraries_compose_them(king_county, tmp_path):
    """Two outcomes about the same people, one with two draws and one with independent noise."""
    smoking, far_smoking = king_county("smoker")
    diabetes, far_diabetes = king_county("diabetes", "independent")
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", rho=10.0, create=True)
    smoking.draw(ledger=ledger, draws=2)
    diabetes.draw(ledger=ledger)

    # In units of one change: noise of scale 1 / distance, and a change of 1.
    scales = [1 / far_smoking.max()] * 2 + [1 / far_diabetes.max()]
    with _contrib():
        composed = opendp_composition([opendp_gaussian(49, scale) for scale in scales])
        profile = opendp_profile(composed, 1.0)
    assert ledger.spent == pytest.approx(composed.map(1.0), **CLOSE)
    builder = dp_accounting.DpEventBuilder()
    for scale in scales:
        builder.compose(dp_accounting.GaussianDpEvent(scale))
    accountant = dp_accounting.rdp.RdpAccountant(fine_orders(ledger.spent))
    accountant.compose(builder.build())
    for delta in DELTAS:
        assert ledger.epsilon(delta) == pytest.approx(profile.epsilon(delta), **CLOSE)
        least = accountant.get_epsilon(delta)
        assert ledger.epsilon(delta) <= least * (1 + 1e-9)
        assert least <= ledger.epsilon(delta) * (1 + 1e-6)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.3, 300.0), min_size=1, max_size=6))
def test_any_charges_add_up_to_opendps_composition(tmp_path_factory, scales):
    folder = tmp_path_factory.mktemp("ledger")
    ledger = pdp.PrivacyLedger(folder / "programme.ledger", rho=100.0, create=True)
    with _contrib():
        measurements = [opendp_gaussian(2, scale) for scale in scales]
        composed = opendp_composition(measurements)
        for i, measurement in enumerate(measurements):
            ledger.charge(measurement.map(1.0), label=f"release {i}")
    # Both round upwards; OpenDP's sum by the last digit of each term.
    assert ledger.spent == pytest.approx(composed.map(1.0), rel=1e-14)


def test_a_ledger_and_opendps_filter_stop_at_the_same_charge(tmp_path):
    """A budget that covers three charges of four, spent one after the other."""
    dp = pytest.importorskip("opendp.prelude")
    scale, distance = 2.0, 1.0
    with _contrib():
        measurement = opendp_gaussian(3, scale)
        price = measurement.map(distance)
        budget = 3.5 * price
        odometer = dp.c.make_fully_adaptive_composition(
            measurement.input_domain,
            measurement.input_metric,
            dp.zero_concentrated_divergence(),
        )
        queryable = dp.c.make_privacy_filter(odometer, d_in=distance, d_out=budget)([0.0] * 3)
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", rho=budget, create=True)
    for _ in range(3):
        queryable(measurement)
        ledger.charge(price, label="release")
    with pytest.raises(dp.OpenDPException, match="filter"):
        queryable(measurement)
    with pytest.raises(pdp.BudgetExceeded):
        ledger.charge(price, label="release")
