"""The log-concave bound: which models it takes, what it says, and where the draw comes from."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.stats import chi2

from pymc_dp import NotLinearGaussianError, PrivacyLedger, PrivateRelease, read_public, write_public
from pymc_dp import containers as io
from pymc_dp.mechanisms.log_concave import CHANCE, read_log_concave
from pymc_dp.reading.curvature import Curvature, curvature
from pymc_dp.record.claims import read_record

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


def fit(theta, names=("area",), areas=AREA, data=Y, **constants):
    """A container with given posterior draws of theta, and the data that they are said to be of."""
    dims = ("chain", "draw", *names)
    values = xr.DataArray(theta, dims=dims, coords={"area": areas})
    container = io.new_container()
    container["posterior"] = xr.Dataset({"theta": values})
    if data is not None:
        container["observed_data"] = xr.Dataset({"y": ("area", data)})
    if constants:
        container["constant_data"] = xr.Dataset(constants)
    return container


def draws_within(share=0.7, size=(2, 1000)):
    """Draws around the data, each area with a share of the largest variance that it may have."""
    return Y + np.sqrt(share * D) * RNG.normal(size=(*size, M))


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
        "'theta' is not proven log-concave in the latents; take a log-concave prior: normal, Lap",
    ),
    "Cauchy": (
        lambda mu: pm.Cauchy("theta", mu, 0.5, dims="area"),
        "'theta' is not proven log-concave in the latents; take a log-concave prior: normal, Lap",
    ),
    "positive effects": (
        lambda mu: pm.Deterministic("theta", mu + pm.HalfNormal("u", dims="area"), dims="area"),
        "u may take some values only, .* constrained effects are not covered",
    ),
    "bounded effects": (
        lambda mu: pm.Deterministic("theta", mu + pm.Uniform("u", dims="area"), dims="area"),
        "u may take some values only, .* constrained effects are not covered",
    ),
    "free scale": (
        lambda mu: pm.Laplace("theta", mu, pm.HalfNormal("b"), dims="area"),
        r"'(b|theta)' is not proven log-concave in the latents; hold b constant with fixed=\{'b'",
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
    theta = draws_within()
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
    good = draws_within()
    with pytest.raises(ValueError, match="other areas"):
        PrivateRelease(built, S, idata=fit(good, areas=AREA[::-1]), bound="log-concave").draw()
    with pytest.raises(ValueError, match="draws=1"):
        PrivateRelease(built, S, idata=fit(good), bound="log-concave").draw(draws=2)
    with pytest.raises(ValueError, match="bound must be"):
        PrivateRelease(built, S, bound="convex")
    with pytest.raises(ValueError, match="joint"):
        PrivateRelease(built, S, bound="log-concave", mechanism="independent")


def test_a_fit_that_cannot_be_used_costs_nothing(tmp_path):
    ledger = PrivacyLedger(tmp_path / "budget.ledger", rho=1.0, conditional=True, create=True)
    release = PrivateRelease(model(ACCEPTED["Laplace"]), S, bound="log-concave")
    with pytest.raises(ValueError, match="pass the fit as idata"):
        release.draw(ledger=ledger)
    assert ledger.spent == 0 and release.released is None


def refused_fit(idata, reason, built=None):
    release = PrivateRelease(
        model(ACCEPTED["Laplace"]) if built is None else built, S, idata=idata, bound="log-concave"
    )
    with pytest.raises(ValueError, match=reason) as caught:
        release.draw()
    shown = [f"{v:.4f}"[:6] for v in (*Y, *D)]
    assert not any(v in str(caught.value) for v in shown) and release.released is None


def test_a_fit_of_other_data_is_refused():
    """The labels agree; a single value of the data, or of a constant, does not."""
    other = Y.copy()
    other[2] += 1e-9
    refused_fit(fit(draws_within(), data=other), "fit of other data: y differ")
    refused_fit(fit(draws_within(), data=Y[:-1]), "fit of other data: y differ")
    refused_fit(fit(draws_within(), data=Y.astype(str)), "fit of other data: y differ")
    refused_fit(fit(draws_within(), data=None), "no 'y' in a group 'observed_data'")
    refused_fit(fit(draws_within(), data=None, z=("area", Y)), "no 'y' in a group 'observed_data'")
    with pm.Model(coords={"area": AREA}) as built:
        sd = pm.Data("sd", np.sqrt(D), dims="area")
        theta = pm.Laplace("theta", pm.Flat("mu"), 0.5, dims="area")
        pm.Normal("y", theta, sd, observed=pm.Data("direct", Y), dims="area")
    smaller = fit(draws_within(), sd=("area", np.sqrt(D) / 2))
    refused_fit(smaller, "fit of other data: sd differ", built)
    same = fit(draws_within(), sd=("area", np.sqrt(D)))
    assert PrivateRelease(built, S, idata=same, bound="log-concave").draw() is same


def test_a_fit_that_sampled_what_the_release_holds_is_refused():
    """With a free scale the posterior has no log-concave prior, so the bound says nothing."""
    with pm.Model(coords={"area": AREA}) as free:
        theta = pm.Laplace("theta", pm.Flat("mu"), pm.HalfNormal("b"), dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", Y), dims="area")
    idata = fit(draws_within())
    posterior = io.read_group(idata, "posterior")
    sampled = fit(draws_within())
    sampled["posterior"] = posterior.assign(b=posterior["theta"][..., 0] ** 2)
    options = {"fixed": {"b": 0.5}, "bound": "log-concave"}
    with pytest.raises(ValueError, match="draws of b, which this release holds constant"):
        PrivateRelease(free, S, idata=sampled, **options).draw()
    assert PrivateRelease(free, S, idata=idata, **options).draw() is idata


def test_a_fit_wider_than_the_bound_is_refused_by_area():
    """Half as wide again in one area, where 10,000 draws allow about a tenth."""
    theta = draws_within(1.0, size=(2, 5000))
    assert PrivateRelease(
        model(ACCEPTED["Laplace"]), S, idata=fit(theta), bound="log-concave"
    ).draw()
    theta[..., 3] = Y[3] + (theta[..., 3] - Y[3]) * 1.5**0.5
    refused_fit(fit(theta), "varies more than its model allows in 1 areas: area 3;")


def test_the_allowance_is_no_less_than_a_chi_square_needs():
    """The widest law that a model allows, a normal of variance D, passes all but 1e-6 of times."""
    for n in (400, 1_000, 100_000):
        t = np.log(M / CHANCE)
        allowed = 1 + 2 * np.sqrt(t / n) + 2 * t / n
        assert M * chi2.sf(n * allowed, n) <= CHANCE
        assert M * chi2.sf(n * (1 + np.sqrt(t / n)), n) > CHANCE  # half of it would not do


def test_a_fit_of_pm_sample_is_taken_on_either_stack():
    built = model(ACCEPTED["Laplace, non-centred"])
    with built:
        idata = pm.sample(
            800, tune=800, chains=2, cores=1, progressbar=False, random_seed=4, target_accept=0.95
        )
    released = PrivateRelease(built, S, idata=idata, bound="log-concave").draw()
    assert "private_release" in io.groups(released)


def test_a_second_draw_of_one_fit_is_refused_and_not_charged(tmp_path):
    ledger = PrivacyLedger(tmp_path / "budget.ledger", rho=5.0, conditional=True, create=True)
    built = model(ACCEPTED["Laplace"])
    release = PrivateRelease(built, S, idata=fit(draws_within()), bound="log-concave")
    release.draw(ledger=ledger)
    spent, first = ledger.spent, release.released
    assert spent > 0
    with pytest.raises(ValueError, match="a new fit and a new PrivateRelease"):
        release.draw(fit(draws_within()), ledger=ledger)
    with pytest.raises(ValueError, match="a new fit and a new PrivateRelease"):
        release.draw(fit(draws_within()))
    assert ledger.spent == spent
    xr.testing.assert_identical(release.released, first)


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
