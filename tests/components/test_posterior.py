"""The posterior of sigma_u by quadrature, and exact draws from the whole posterior."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy import integrate, linalg, stats

from pymc_dp import containers as io
from pymc_dp.components.posterior import posterior_of_sigma_u, sample_posterior
from pymc_dp.models.inputs import area_data
from pymc_dp.models.prior import sigma_prior
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.posterior.quadrature import halve

A10 = [0.30, 0.31, 0.29, 0.305, 0.295, 0.30, 0.31, 0.29]
X = pd.DataFrame(
    {"x": [0.5, 0.1, 0.4, 0.2, 0.3, 0.6]}, index=["d", "a", "e", "c", "b", "f"]
)  # area f has no sample


def as_direct(estimate, variance, area="abcdefgh", **attrs) -> xr.Dataset:
    return xr.Dataset(
        {"estimate": ("area", np.array(estimate)), "variance": ("area", np.array(variance))},
        coords={"area": list(area)},
        attrs=attrs,
    )


@pytest.fixture
def alike() -> xr.Dataset:
    return as_direct(A10, [0.0025] * 8)


@pytest.fixture
def five() -> xr.Dataset:
    D = [0.0010, 0.0040, 0.0020, 0.0080, 0.0015]
    return as_direct([0.12, 0.20, 0.17, 0.31, 0.26], D, "abcde")


def moments(direct, formula="~ 1", covariates=None, prior=None):
    """Exact posterior mean and sd of beta and theta: Gaussian moments mixed over the rule."""
    data = area_data(direct, formula, covariates)
    found = posterior_of_sigma_u(data, sigma_prior(prior, data.bounds))
    rule = found.rule
    precision = np.where(np.isnan(data.variance), 0.0, 1 / data.variance)
    at = [fay_herriot_posterior(s**2, precision, data.design) for s in rule.sigma.ravel()]

    def mixed(mean, variance):
        centre = rule.expectation(mean)
        return centre, np.sqrt(rule.expectation(variance + (mean - centre) ** 2))

    y = np.nan_to_num(data.estimate)
    theta = mixed(np.array([q.mean(y) for q in at]), np.array([q.variance for q in at]))
    beta = mixed(found.centre + rule.fit.coefficient, (rule.fit.root**2).sum(axis=2))
    return rule, beta, theta


def test_areas_that_hardly_differ_half_normal(alike):
    rule, beta, theta = moments(alike, prior=pm.HalfNormal.dist(0.1))
    sigma = rule.sigma.ravel()
    # Ten digits are given.
    assert rule.expectation(sigma) == pytest.approx(0.01813969765, rel=1e-9)
    assert rule.expectation(sigma**2) == pytest.approx(0.0005680150674, rel=1e-9)
    assert beta[0] == pytest.approx([0.3], rel=1e-12)
    assert beta[1] == pytest.approx([0.01958320412], rel=1e-9)
    want_mean = [0.3, 0.3013714531, 0.2986285469, 0.3006857265]
    want_sd = [0.02474884566, 0.02479909891, 0.02479909891, 0.02476141854]
    np.testing.assert_allclose(theta[0][:4], want_mean, rtol=1e-9)
    np.testing.assert_allclose(theta[1][:4], want_sd, rtol=1e-9)


def test_areas_that_hardly_differ_half_cauchy(alike):
    rule, beta, theta = moments(alike, prior=pm.HalfCauchy.dist(0.1))
    assert rule.expectation(rule.sigma.ravel()) == pytest.approx(0.017680321, rel=1e-8)
    assert beta[1] == pytest.approx([0.01949026922], rel=1e-9)
    assert theta[1][0] == pytest.approx(0.02453654239, rel=1e-9)


def test_area_without_sample(five):
    _, _, theta = moments(five, "~ x", X, pm.HalfNormal.dist(0.1))
    assert theta[0][5] == pytest.approx(0.3515932282, rel=1e-9)
    assert theta[1][5] == pytest.approx(0.09060617455, rel=1e-9)


# Prior, the same density for scipy, breaks in it. Edges, a kink, a pole at 0, heavy and light
# tails, a prior far from the data, and one narrower than the rule's first panels.
PRIORS = {
    "uniform": (lambda: pm.Uniform.dist(0.02, 0.06), stats.uniform(0.02, 0.04), (0.02, 0.06)),
    "narrow": (lambda: pm.Uniform.dist(0.04, 0.0401), stats.uniform(0.04, 1e-4), (0.04, 0.0401)),
    "triangular": (
        lambda: pm.Triangular.dist(lower=0, upper=0.2, c=0.05),
        stats.triang(0.25, 0, 0.2),
        (0.0, 0.05, 0.2),
    ),
    "gamma": (lambda: pm.Gamma.dist(0.5, 3.0), stats.gamma(0.5, scale=1 / 3), (0, 0.01, 0.3, 9)),
    "half-Cauchy": (lambda: pm.HalfCauchy.dist(0.05), stats.halfcauchy(0, 0.05), (0, 0.1, 1, 1e4)),
    "log-normal": (
        lambda: pm.LogNormal.dist(-9.0, 0.5),
        stats.lognorm(0.5, scale=np.exp(-9)),
        (1e-6, 1e-4, 1e-2),
    ),
    "truncated": (
        lambda: pm.Truncated.dist(pm.Normal.dist(0.1, 0.03), lower=0.05),
        stats.truncnorm(-0.05 / 0.03, np.inf, 0.1, 0.03),
        (0.05, 0.1, 0.6),
    ),
}


@pytest.mark.parametrize("name", PRIORS)
def test_any_prior_agrees_with_adaptive_quadrature(five, name):
    make, scipy_prior, breaks = PRIORS[name]
    data = area_data(five, "~ x", X)
    rule = posterior_of_sigma_u(data, sigma_prior(make(), None)).rule
    sampled = data.sampled
    K = linalg.null_space(data.design[sampled].T)
    contrast = K.T @ data.estimate[sampled]

    def density(s):
        """Prior times the likelihood of the error contrasts."""
        V = K.T @ np.diag(s**2 + data.variance[sampled]) @ K
        fit = contrast @ np.linalg.solve(V, contrast)
        return np.exp(-fit / 2) / np.sqrt(np.linalg.det(V)) * scipy_prior.pdf(s)

    def integral(f, upto=np.inf):
        # In the square root of sigma, where the pole at 0 of a gamma density disappears.
        edges = np.sqrt(np.append([b for b in breaks if b < upto], min(upto, breaks[-1])))
        pieces = pairwise(edges)
        return sum(
            integrate.quad(lambda t: 2 * t * f(t * t), *e, epsrel=1e-12, epsabs=0, limit=500)[0]
            for e in pieces
        )

    whole = integral(density)
    mean = integral(lambda s: s * density(s)) / whole
    # 1e-8: a kink inside a panel converges slowly, and the half-Cauchy is cut at 1e4.
    assert rule.expectation(rule.sigma.ravel()) == pytest.approx(mean, rel=1e-8)
    for probability in (0.01, 0.3, 0.9):
        quantile = float(rule.quantile(np.array([probability]))[0])
        # The distribution function is promised to 1e-7.
        assert integral(density, quantile) / whole == pytest.approx(probability, abs=1e-7)


def test_halving_every_panel_changes_nothing(five):
    data = area_data(five, "~ x", X)
    rule = posterior_of_sigma_u(data, sigma_prior(pm.HalfCauchy.dist(0.1), None)).rule
    finer = halve(rule)
    assert finer.left.size == 2 * rule.left.size
    for power in (1, 2):
        coarse, fine = (r.expectation(r.sigma.ravel() ** power) for r in (rule, finer))
        # The second moment exists only barely: its tail is cut where 1e-15 of the mass is left.
        assert coarse == pytest.approx(fine, rel=1e-10)


def test_prior_of_sigma_u_comes_from_the_declared_range_alone(five):
    ranged = five.assign_attrs(bounds=(0.0, 2.0))
    data = area_data(ranged, "~ x", X)
    default = posterior_of_sigma_u(data, sigma_prior(None, data.bounds)).rule
    given = posterior_of_sigma_u(data, sigma_prior(pm.HalfNormal.dist(0.5), None)).rule
    assert default.expectation(default.sigma.ravel()) == given.expectation(given.sigma.ravel())
    with pytest.raises(ValueError, match="no default is computed from data"):
        sample_posterior(five, "~ x", X)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda: 0.1, "scalar PyMC distribution"),
        (lambda: pm.HalfNormal.dist(0.1, shape=2), "scalar PyMC distribution"),
        (lambda: pm.Poisson.dist(3), "continuous"),
        (lambda: pm.Normal.dist(0, 1), "no weight to negative values"),
        (lambda: pm.HalfNormal.dist(pm.HalfNormal.dist(1)), "constant parameters"),
        (lambda: pm.HalfNormal.dist(-1.0), "sigma"),
    ],
)
def test_unusable_priors_are_refused(five, prior, message):
    with pytest.raises(ValueError, match=message):
        sample_posterior(five, prior=prior())


def test_improper_posterior_is_refused():
    two = as_direct([0.1, 0.3], [0.01, 0.02], "ab")
    with pytest.raises(ValueError, match="improper"):
        sample_posterior(two, prior=pm.HalfFlat.dist())
    # With four areas the likelihood alone is integrable.
    four = as_direct([0.1, 0.3, 0.2, 0.5], [0.01, 0.02, 0.01, 0.01], "abcd")
    assert np.isfinite(sample_posterior(four, prior=pm.HalfFlat.dist()).posterior["theta"]).all()


def test_draws_look_like_those_of_pymc(five):
    idata = sample_posterior(five, "~ x", X, prior=pm.HalfNormal.dist(0.1), draws=7, random_seed=1)
    assert type(idata) is type(io.new_container())
    assert sorted(io.groups(idata)) == ["observed_data", "posterior"]
    posterior = io.read_group(idata, "posterior")
    assert {k: v.dims for k, v in posterior.data_vars.items()} == {
        "beta": ("chain", "draw", "covariate"),
        "sigma_u": ("chain", "draw"),
        "theta": ("chain", "draw", "area"),
    }
    assert dict(posterior.sizes) == {"chain": 1, "draw": 7, "covariate": 2, "area": 6}
    assert list(posterior["area"].values) == list("abcdef")
    assert list(posterior["covariate"].values) == ["Intercept", "x"]
    observed = io.read_group(idata, "observed_data")["y"]
    assert observed.dims == ("sampled_area",)
    assert list(observed["sampled_area"].values) == list("abcde")
    np.testing.assert_array_equal(observed, five["estimate"])
    whole = sample_posterior(five, prior=pm.HalfNormal.dist(0.1), draws=2)
    assert io.read_group(whole, "observed_data")["y"].dims == ("area",)


def test_seed_decides_the_draws_and_no_seed_does_not(five):
    def draw(seed):
        prior = pm.HalfNormal.dist(0.1)
        return sample_posterior(five, prior=prior, draws=3, random_seed=seed).posterior["theta"]

    np.testing.assert_array_equal(draw(5), draw(5))
    assert not np.array_equal(draw(None), draw(None))  # 18 equal floats: never


@pytest.mark.parametrize("draws", [0, -1, 2.5, True])
def test_number_of_draws_is_checked(five, draws):
    with pytest.raises(ValueError, match="positive whole number"):
        sample_posterior(five, prior=pm.HalfNormal.dist(0.1), draws=draws)


def test_draws_have_the_exact_distribution(five):
    prior = pm.HalfNormal.dist(0.1)
    rule, beta, theta = moments(five, "~ x", X, prior)
    n = 40_000
    idata = sample_posterior(five, "~ x", X, prior=prior, draws=n, random_seed=20)
    drawn = io.read_group(idata, "posterior").isel(chain=0)
    # The seed is fixed, so these pass or fail for good; four Monte Carlo errors as elsewhere.
    for name, (mean, sd) in {"beta": beta, "theta": theta}.items():
        values = drawn[name].values
        error = values.std(axis=0) / np.sqrt(n)
        assert (np.abs(values.mean(axis=0) - mean) < 4 * error).all()
        kurtosis = stats.kurtosis(values, fisher=False)
        assert (np.abs(values.std(axis=0) / sd - 1) < 4 * np.sqrt((kurtosis - 1) / 4 / n)).all()
    # sigma_u against its distribution function, not only its moments.
    grid = rule.sigma.ravel()
    levels = np.linspace(0.05, 0.95, 19)
    below = (drawn["sigma_u"].values[:, None] <= rule.quantile(levels)).mean(axis=0)
    assert (np.abs(below - levels) < 4 * np.sqrt(levels * (1 - levels) / n)).all()
    assert drawn["sigma_u"].values.min() > 0
    assert np.unique(drawn["sigma_u"]).size == n  # continuous, not the nodes of the rule
    assert not np.isin(drawn["sigma_u"], grid).any()


def test_draws_keep_the_dependence_between_areas(five):
    prior = pm.HalfNormal.dist(0.1)
    rule, _, theta = moments(five, "~ x", X, prior)
    data = area_data(five, "~ x", X)
    precision = np.where(np.isnan(data.variance), 0.0, 1 / data.variance)
    y = np.nan_to_num(data.estimate)
    at = [fay_herriot_posterior(s**2, precision, data.design) for s in rule.sigma.ravel()]
    means = np.array([q.mean(y) for q in at]) - theta[0]
    want = rule.expectation(
        np.array([q.covariance() for q in at]) + means[:, :, None] * means[:, None, :]
    )
    n = 40_000
    idata = sample_posterior(five, "~ x", X, prior=prior, draws=n, random_seed=21)
    values = io.read_group(idata, "posterior")["theta"].values[0] - theta[0]
    products = values[:, :, None] * values[:, None, :]
    error = products.std(axis=0) / np.sqrt(n)
    # 21 different entries: five Monte Carlo errors.
    assert (np.abs(products.mean(axis=0) - want) < 5 * error).all()
