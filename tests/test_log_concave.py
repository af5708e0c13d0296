"""The log-concave bound: which models it takes, what it says, and where the draw comes from."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from pymc_dp import (
    NotLinearGaussianError,
    PrivacyLedger,
    PrivateRelease,
    io,
    read_public,
    write_public,
)
from pymc_dp.curvature import Curvature, curvature
from pymc_dp.log_concave import read_log_concave
from pymc_dp.record import read_record

M = 7
RNG = np.random.default_rng(6)
D = RNG.uniform(0.5, 2.0, M)
Y = RNG.normal(size=M)
S = RNG.uniform(0.1, 0.3, M)
AREA = [f"area {i}" for i in range(M)]


def model(prior, likelihood=None):
    with pm.Model(coords={"area": AREA}) as built:
        theta = prior(pm.Flat("mu"))
        data = pm.Data("direct", Y)
        if likelihood is None:
            pm.Normal("y", theta, np.sqrt(D), observed=data, dims="area")
        else:
            likelihood(theta, data)
    return built


def fit(theta, names=("area",), areas=AREA):
    """A container with given posterior draws of theta."""
    dims = ("chain", "draw", *names)
    values = xr.DataArray(theta, dims=dims, coords={"area": areas})
    container = io.new_container()
    container["posterior"] = xr.Dataset({"theta": values})
    return container


ACCEPTED = {
    "normal": lambda mu: pm.Normal("theta", mu, 1.0, dims="area"),
    "Laplace": lambda mu: pm.Laplace("theta", mu, 0.5, dims="area"),
    "logistic": lambda mu: pm.Logistic("theta", mu, 0.5, dims="area"),
    "Laplace, non-centred": lambda mu: pm.Deterministic(
        "theta", mu + 0.5 * pm.Laplace("z", 0, 1, dims="area"), dims="area"
    ),
    "Gumbel": lambda mu: pm.Gumbel("theta", mu, 0.5, dims="area"),
    "Huber by a potential": lambda mu: (
        pm.Flat("theta", dims="area"),
        pm.Potential("p", -pt.softplus(pt.sqr(pm.modelcontext(None)["theta"] - mu)).sum()),
    )[0],
    "fused differences": lambda mu: (
        pm.Normal("theta", mu, 1.0, dims="area"),
        pm.Potential("p", -pt.abs(pt.diff(pm.modelcontext(None)["theta"])).sum()),
    )[0],
}
REFUSED = {
    "Student": (
        lambda mu: pm.StudentT("theta", nu=4, mu=mu, sigma=0.5, dims="area"),
        "'theta' is not proven",
    ),
    "Cauchy": (lambda mu: pm.Cauchy("theta", mu, 0.5, dims="area"), "'theta' is not proven"),
    "free scale": (
        lambda mu: pm.Laplace("theta", mu, pm.HalfNormal("b"), dims="area"),
        "'b' is not proven|'theta' is not proven",
    ),
    "two modes": (
        lambda mu: (
            pm.Normal("theta", mu, 1.0, dims="area"),
            pm.Potential("p", pt.abs(pm.modelcontext(None)["theta"]).sum()),
        )[0],
        "'p' is not proven",
    ),
    "prior that looks at the data": (
        lambda mu: (
            pm.Normal("theta", mu, 1.0, dims="area"),
            pm.Potential("p", -pt.sqr(pm.modelcontext(None)["theta"] - pm.Data("d", Y)).sum()),
        )[0],
        "follows the observed",
    ),
    "random constant": (
        lambda mu: pm.Laplace("theta", mu + pm.Normal.dist(0, 1), 0.5, dims="area"),
        "no log density|not proven",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_log_concave_priors_are_proven(name):
    reading = read_log_concave(model(ACCEPTED[name]))
    np.testing.assert_allclose(reading.sampling_variance, D, rtol=1e-12)
    np.testing.assert_array_equal(reading.estimate, Y)
    assert list(reading.area) == AREA


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_the_name_of_the_term(name):
    prior, reason = REFUSED[name]
    with pytest.raises(NotLinearGaussianError, match=reason):
        read_log_concave(model(prior))


@pytest.mark.parametrize(
    ("likelihood", "reason"),
    [
        (lambda t, d: pm.Normal("y", 2 * t, np.sqrt(D), observed=d), "not direct estimates"),
        (lambda t, d: pm.Normal("y", t.mean(), 1.0, observed=d), "not direct estimates"),
        (
            lambda t, d: pm.StudentT("y", nu=5, mu=t, sigma=1.0, observed=d),
            "likelihood of 'y' is not proven",
        ),
        (lambda t, d: pm.Laplace("y", t, 1.0, observed=d), "likelihood of 'y' is not proven"),
        (lambda t, d: pm.MvNormal("y", t, np.eye(M) + 0.1, observed=d), "not direct estimates"),
    ],
)
def test_other_likelihoods_are_refused(likelihood, reason):
    with pytest.raises(NotLinearGaussianError, match=reason):
        read_log_concave(model(ACCEPTED["Laplace"], likelihood))


def test_the_bound_holds_for_laplace_effects_by_quadrature():
    """One area, intercept held at 0: the posterior variance at any y is at most D."""
    grid = np.linspace(-30, 30, 60_001)
    for y in (-3.0, 0.0, 0.7, 8.0):
        density = np.exp(-((y - grid) ** 2) / (2 * D[0]) - np.abs(grid) / 0.5)
        density /= density.sum()
        mean = density @ grid
        assert density @ (grid - mean) ** 2 <= D[0]


def test_figures_are_the_bound_and_the_record_says_so(tmp_path):
    theta = Y + RNG.normal(size=(2, 1000, M))
    idata = fit(theta)
    s = xr.DataArray(S, dims="area", coords={"area": AREA}, attrs={"unit": "person"})
    built = model(ACCEPTED["Laplace"])
    release = PrivateRelease(built, s, idata=idata, bound="log-concave")
    want = S**2 / (2 * D)
    np.testing.assert_allclose(release.guarantee["rho_respondent"], want, rtol=1e-11)
    assert float(release.guarantee["rho"]) >= want.max()
    assert "upper bound" in read_record(release.guarantee.attrs)["bound"]
    drawn = io.read_group(release.draw(), "private_release")
    value = drawn["theta"].values[0, 0]
    # One of the fit's draws, rounded: no mixture of several.
    distance = np.abs(theta.reshape(-1, M) - value).max(axis=1)
    assert distance.min() <= 0.5 * 10.0 ** -read_record(drawn.attrs)["publishing_decimals"] + 1e-12
    write_public(release.released, tmp_path / "a.nc", conditional=True)
    assert "bound" in read_record(read_public(tmp_path / "a.nc")["private_release"].attrs)
    for refused in (release.calibrate, release.propagation, release.simulate):
        with pytest.raises(ValueError):
            refused(0.1) if refused == release.calibrate else refused()


def test_a_fit_is_needed_that_is_of_the_model_and_has_converged():
    built = model(ACCEPTED["Laplace"])
    with pytest.raises(ValueError, match="pass the fit as idata"):
        PrivateRelease(built, S, bound="log-concave").draw()
    stuck = np.cumsum(RNG.normal(size=(2, 500, M)), axis=1)
    with pytest.raises(ValueError, match="not converged"):
        PrivateRelease(built, S, idata=fit(stuck), bound="log-concave").draw()
    good = Y + RNG.normal(size=(2, 1000, M))
    with pytest.raises(ValueError, match="other areas"):
        PrivateRelease(built, S, idata=fit(good, areas=AREA[::-1]), bound="log-concave").draw()
    with pytest.raises(ValueError, match="draws=1"):
        PrivateRelease(built, S, idata=fit(good), bound="log-concave").draw(draws=2)
    with pytest.raises(ValueError, match="bound must be"):
        PrivateRelease(built, S, bound="convex")
    with pytest.raises(ValueError, match="joint"):
        PrivateRelease(built, S, bound="log-concave", mechanism="independent")


def test_a_fit_that_cannot_be_used_costs_nothing(tmp_path):
    ledger = PrivacyLedger(tmp_path / "budget.ledger", rho=1.0, conditional=True)
    release = PrivateRelease(model(ACCEPTED["Laplace"]), S, bound="log-concave")
    with pytest.raises(ValueError, match="pass the fit as idata"):
        release.draw(ledger=ledger)
    assert ledger.spent == 0 and release.released is None


def test_a_neighbour_matrix_is_looked_at_before_a_bound_too():
    W = np.ones((M, M)) - np.eye(M)
    W[2, :] = W[:, 2] = 0.0
    with pytest.raises(ValueError, match="leaves 1 areas without neighbours: area 2"):
        read_log_concave(model(lambda mu: pm.ICAR("theta", W, dims="area")))


CURVES = {
    "square of a square": (lambda x: pt.sqr(pt.sqr(x)), Curvature.UNKNOWN),
    "exponential of a square": (lambda x: pt.exp(pt.sqr(x)), Curvature.CONVEX),
    "product": (lambda x: x * pt.exp(x), Curvature.UNKNOWN),
    "mixed signs": (lambda x: np.array([1.0, -1.0]) * pt.abs(x), Curvature.UNKNOWN),
    "negative multiple": (lambda x: -2.0 * pt.abs(x), Curvature.CONCAVE),
    "smallest": (lambda x: pt.minimum(x, -pt.abs(x)), Curvature.CONCAVE),
    "largest of concave": (lambda x: pt.maximum(x, -pt.abs(x)), Curvature.UNKNOWN),
    "convex and concave": (lambda x: pt.abs(x) - pt.sqr(x), Curvature.UNKNOWN),
    "square root": (lambda x: pt.sqrt(pt.abs(x)), Curvature.UNKNOWN),
    "rounded": (lambda x: -pt.abs(pt.round(x)), Curvature.UNKNOWN),
    "sum": (lambda x: (3 - pt.abs(x)).sum() + x[0], Curvature.CONCAVE),
}


@pytest.mark.parametrize("name", CURVES)
def test_curvature_is_proven_or_unknown(name):
    expression, want = CURVES[name]
    x = pt.vector("x", shape=(2,))
    assert curvature([expression(x)], [x]) == [want]
