"""Models that must be refused, each with its reason; lookalikes that must not be."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
import xarray as xr
from pymc.logprob.utils import CheckParameterValue

from pymc_dp import PrivateRelease
from pymc_dp.mechanisms.linear import LinearLaw
from pymc_dp.mechanisms.log_concave import read_log_concave
from pymc_dp.reading.read import LinearReading, read_model
from pymc_dp.reading.symbolic import NotLinearGaussianError

M = 9
RNG = np.random.default_rng(31)
AREA = [f"area {i}" for i in range(M)]
X = np.column_stack([np.ones(M), RNG.normal(size=M)])
D = RNG.uniform(0.1, 1.0, M)
Y = RNG.normal(size=M)
RING = np.roll(np.eye(M), 1, axis=0) + np.roll(np.eye(M), -1, axis=0)
MUST_NAME = "exactly one observed variable is confidential, found y, other; name it with observed"


def build(body, likelihood=None):
    """A model: ``body(mu)`` makes theta from a linear predictor, then comes its likelihood."""
    with pm.Model(coords={"area": AREA}) as context:
        beta = pm.Normal("beta", 0.0, 5.0, shape=2)
        theta = body(X @ beta)
        if theta is not None:
            (likelihood or observe)(theta)
    return context


def observe(theta):
    # Once in pm.Data, which a body may have used already.
    return pm.Normal("y", theta, np.sqrt(D), observed=data())


def data():
    known = pm.modelcontext(None).named_vars
    return known["direct"] if "direct" in known else pm.Data("direct", Y)


def normal(mu, scale=0.3):
    return pm.Normal("theta", mu, scale, dims="area")


def named(expression):
    return pm.Deterministic("theta", expression)


def effects():
    return pm.Normal("u", 0.0, 0.3, dims="area")


def with_potential(term):
    def body(mu):
        theta = normal(mu)
        pm.Potential("p", term(theta))
        return theta

    return body


def scanned(mu):
    steps = pytensor.scan(lambda e, x: pt.tanh(x) + e, sequences=mu, outputs_info=pt.zeros(()))
    return normal(steps[0] if isinstance(steps, tuple | list) else steps)  # beside its updates


def sigmoid_mixture(mu):
    weights = [0.5, 0.5]
    parts = [pm.Normal.dist(mu, 0.1), pm.Normal.dist(mu, 1.0)]
    return pm.Mixture("theta", weights, parts, dims="area")


# Each: what makes theta, and words of the reason. `fixed=` must be named only where it helps.
NOT_GAUSSIAN = {
    "a free scale": (lambda mu: normal(mu, pm.HalfNormal("s", 1.0)), r"fixed=\{'s': value\}"),
    "a free log scale": (
        lambda mu: normal(mu, pt.exp(pm.Normal("ls"))),
        r"no quadratic in ls|fixed=\{'ls'",
    ),
    "a product of latents": (
        lambda mu: normal(mu * pm.Normal("slope", 1.0, 0.1)),
        "not proven Gaussian",
    ),
    "Student effects": (
        lambda mu: pm.StudentT("theta", nu=4, mu=mu, sigma=0.3, dims="area"),
        "first obstacle: Log1p|first obstacle: Log",
    ),
    "Laplace effects": (lambda mu: pm.Laplace("theta", mu, 0.3, dims="area"), "obstacle: Abs"),
    "log-normal effects": (lambda mu: pm.LogNormal("theta", mu, 0.3, dims="area"), "Exp of theta"),
    "a mixture": (sigmoid_mixture, "first obstacle"),
    "uniform effects": (
        lambda mu: named(mu + pm.Uniform("u", -1, 1, dims="area")),
        "first obstacle",
    ),
    "uniform effects on their own scale": (
        lambda mu: named(mu + pm.Uniform("u", -1, 1, shape=M, default_transform=None)),
        "first obstacle: (G|L)",
    ),
    "half-normal effects on their own scale": (
        lambda mu: named(mu + pm.HalfNormal("u", 1.0, shape=M, default_transform=None)),
        "first obstacle: (G|L)",
    ),
    "truncated effects": (
        lambda mu: pm.Truncated("theta", pm.Normal.dist(mu, 0.3), lower=-1, dims="area"),
        "first obstacle",
    ),
    "a rounded mean": (lambda mu: normal(pt.round(mu)), "first obstacle: Round"),
    "a floor": (lambda mu: normal(mu // 0.5), "first obstacle"),
    "a clipped mean": (lambda mu: normal(pt.clip(mu, -1e9, 1e9)), "first obstacle: Clip"),
    "a comparison": (lambda mu: normal(mu + 0.5 * pt.gt(mu, 1e9)), "first obstacle: GT"),
    "a choice by a latent": (
        lambda mu: normal(pt.switch(pt.gt(mu, 1e9), mu + 1, mu)),
        "first obstacle: GT",
    ),
    "an integer cast": (
        lambda mu: normal(pt.cast(pt.cast(mu, "int64"), "float64")),
        "first obstacle: Cast",
    ),
    "a sum in single precision": (
        lambda mu: normal(pt.sum(mu[:, None] * np.ones((1, 1)), axis=1, dtype="float32")),
        "first obstacle: Cast",
    ),
    "an addition of whole numbers": (
        lambda mu: normal(
            pt.cast(pt.elemwise.Elemwise(ps.Add(ps.specific_out(ps.int64)))(mu, 0.0), "float64")
        ),
        "first obstacle",
    ),
    "a number of positive effects": (
        lambda mu: (u := effects(), named(mu + u + pt.nonzero(pt.gt(u, 1e9))[0].shape[0]))[1],
        "first obstacle: GT",
    ),
    "the length of a range up to a latent": (
        lambda mu: normal(mu + pt.arange(pt.cast(mu[0] > 1e9, "int64")).shape[0]),
        "first obstacle: GT",
    ),
    "an index by a latent": (
        lambda mu: normal(mu[pt.argsort(mu)]),
        "first obstacle",
    ),
    "a largest effect": (lambda mu: normal(mu + pt.max(mu)), "first obstacle: (CAReduce|Max)"),
    "a loop": (scanned, "first obstacle: Tanh of beta"),
    "a stopped gradient": (
        lambda mu: normal(mu + pytensor.gradient.disconnected_grad(mu**3)),
        "first obstacle",
    ),
    "a number drawn inside": (
        lambda mu: normal(mu + pm.Normal.dist(0, 1)),
        "no log density|not proven",
    ),
    "a discrete switch": (
        lambda mu: normal(mu + pm.Bernoulli("b", 0.5, shape=M)),
        "discrete variables: b",
    ),
    "a point mass": (lambda mu: normal(mu + pm.DiracDelta("b", 3)), "discrete variables: b"),
    "single-precision effects": (
        lambda mu: named(mu + pm.Normal("u", 0, 1, shape=M, dtype="float32")),
        "not of type float64: u",
    ),
    "a sum to zero that no transformation keeps": (
        lambda mu: named(mu + pm.ZeroSumNormal("u", 1.0, shape=M, default_transform=None)),
        "'u' sums to zero but is not transformed",
    ),
    "a support cut by a check": (
        with_potential(
            lambda theta: CheckParameterValue("theta > -9")(0.0 * theta.sum(), pt.all(theta > -9))
        ),
        "first obstacle",
    ),
    "a support cut by a potential": (
        with_potential(lambda theta: pt.switch(pt.all(theta > -9), 0.0, -np.inf)),
        "first obstacle",
    ),
    "a quartic potential": (with_potential(lambda theta: -((theta**4).sum())), "first obstacle"),
    "a bound by another log density": (
        with_potential(lambda theta: pm.logp(pm.HalfNormal.dist(9.0), theta).sum()),
        "first obstacle",
    ),
    "exp of log": (lambda mu: normal(pt.exp(pt.log(mu))), "first obstacle"),
    "a square of a root": (lambda mu: normal(pt.sqr(pt.sqrt(mu))), "first obstacle"),
    "a squared target": (
        lambda mu: (u := normal_latent(mu), observe(u), named(u**2), None)[3],
        "target 'theta' is not proven linear .*Pow, a power of u",
    ),
    "an indicator target": (
        lambda mu: (u := normal_latent(mu), observe(u), named(pt.gt(u, 0.1)), None)[3],
        "target 'theta' is not proven linear .*GT of u",
    ),
    "a scale from the data": (
        lambda mu: normal(mu, 0.1 + pt.std(data())),
        "log density of 'theta' .* Sqrt of y.* other than linearly: put a public number",
    ),
    "a matrix from the data": (
        lambda mu: named(effects() + mu * data()[0]),
        "not proven Gaussian",
    ),
    "a mean from data chosen by their size": (
        lambda mu: normal(mu + pt.sort(data())[0]),
        "first obstacle",
    ),
}


def normal_latent(mu):
    return pm.Normal("u", mu, 0.3, dims="area")


@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")
@pytest.mark.parametrize("name", NOT_GAUSSIAN)
def test_what_is_not_gaussian_is_refused_with_its_reason(name):
    body, reason = NOT_GAUSSIAN[name]
    with pytest.raises(NotLinearGaussianError, match=reason):
        read_model(build(body))


# What stands in the way, by the names of variables, and a way out that there is.
PLAIN = "sums, and products with constants, are linear$"
RANGE = "Take a normal prior .*, and cut what is released to the range afterwards$"
ADVICE = {
    "a free log scale": r"Exp of ls\); .* no quadratic in ls; hold ls constant with fixed=\{'ls'",
    "a product of latents": r"Mul, a product of beta, slope\); hold one of beta, slope "
    r"constant with fixed=\{'beta': value\}$",
    "Laplace effects": r"Abs of beta, theta\); it is no quadratic in beta, theta; the prior is "
    "log-concave: for direct estimates bound='log-concave' gives a bound$",
    "uniform effects": rf"Softplus of u\).* u may take some values only, .* not covered. {RANGE}",
    "log-normal effects": rf"of theta\).* theta may take some values only, .* {RANGE}",
    "Student effects": r"Log1p of beta, theta\); it is no quadratic in beta, theta; its "
    r"distribution is StudentT: take a normal prior, or a log-concave one",
    "a support cut by a potential": f"GT of theta.* write 'p' without GT: {PLAIN}",
    "a rounded mean": f"RoundHalfToEven of beta.* write 'theta' without RoundHalfToEven: {PLAIN}",
    "a comparison": f"GT of beta.* write 'theta' without GT: {PLAIN}",
    "a clipped mean": f"Clip of beta.* write 'theta' without Clip: {PLAIN}",
    "a squared target": "release what it is made of, with target=, and work it out from the",
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_is_given_where_it_helps(name):
    with pytest.raises(NotLinearGaussianError, match=ADVICE[name]):
        read_model(build(NOT_GAUSSIAN[name][0]))


@pytest.mark.parametrize("mean", [lambda b: pt.abs(b), lambda b: pt.maximum(b, 0.0)])
def test_a_bent_mean_is_no_scale(mean):
    with pytest.raises(
        NotLinearGaussianError, match=r"(Abs|Maximum) of b\); .*in b; write 'theta'"
    ):
        read_model(build(lambda mu: normal(mean(pm.Normal("b")))))


def test_a_free_scale_around_one_level_is_a_scale():
    """Along equal steps of level and effects nothing bends, so a direction must tell them apart."""
    with pytest.raises(NotLinearGaussianError, match=r"Exp of ls\).* fixed=\{'ls': value\}$"):
        read_model(build(lambda _: normal(pm.Normal("b"), pt.exp(pm.Normal("ls")))))


# --- constants with which there is no density ------------------------------------------------


def with_third(value, usual):
    return np.where(np.arange(M) == 3, value, usual)


IMPOSSIBLE = {
    "sigma": lambda v, t: pm.Normal("y", t, with_third(v, 0.3), observed=data(), dims="area"),
    "tau": lambda v, t: pm.Normal("y", t, tau=with_third(v, 9.0), observed=data(), dims="area"),
}


@pytest.mark.parametrize("read", [read_model, read_log_concave], ids=["exact", "bound"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, -1.0])
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_sampling_variance_names_its_area(name, value, read):
    model = build(normal, lambda t: IMPOSSIBLE[name](value, t))
    with pytest.raises(ValueError, match=r"'y' .* in 1 entries: area 3"):
        read(model)


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, -1.0])
def test_an_impossible_scale_of_effects_names_its_area(value):
    with pytest.raises(ValueError, match=r"'theta' .* in 1 entries: area 3"):
        read_model(build(lambda mu: normal(mu, with_third(value, 0.3))))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_mean_that_is_not_finite_names_its_area(value):
    with pytest.raises(ValueError, match="density of 'theta' is not finite in 1 entries: area 3"):
        read_model(build(lambda mu: normal(mu + with_third(value, 0.0))))


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0])
def test_an_impossible_covariance_names_its_variable(value):
    def likelihood(t):
        pm.MvNormal("y", t, cov=np.diag(with_third(value, 0.3)), observed=data())

    with pytest.raises(ValueError, match=r"'y' (is not finite|has no density)"):
        read_model(build(normal, likelihood))


def test_a_sum_to_zero_asked_of_effects_that_have_none_is_refused():
    """The density holds on a plane: the assertion of a sum to zero is false at points off it."""
    body = with_potential(lambda theta: pm.logp(pm.ZeroSumNormal.dist(1.0, shape=M), theta))
    with pytest.raises(ValueError, match="they sum to zero"):
        read_model(build(body))


def likelihoods():
    at_zero = np.round(3 + 0 * Y).astype(int)
    return {
        "counts": (
            lambda t: pm.Poisson("y", pt.exp(t), observed=at_zero),
            "the observed 'y' is of type int64: answers need a normal likelihood, as direct est",
        ),
        "successes": (
            lambda t: pm.Binomial("y", 9, pt.sigmoid(t), observed=at_zero),
            "the observed 'y' is of type int64: .*hajek.* or pymc_dp.private_direct",
        ),
        "rates": (
            lambda t: pm.Beta("y", mu=pt.sigmoid(t), nu=50.0, observed=np.full(M, 0.3)),
            "first obstacle",
        ),
        "heavy tails": (
            lambda t: pm.StudentT("y", nu=5, mu=t, sigma=0.3, observed=pm.Data("direct", Y)),
            "of 'y' .*first obstacle: Log1p of .*theta, y.* its distribution is StudentT: answers",
        ),
        "a censored outcome": (
            lambda t: pm.Censored("y", pm.Normal.dist(t, 0.5), -9, 9, observed=Y),
            "first obstacle",
        ),
        "a truncated outcome": (
            lambda t: pm.Truncated("y", pm.Normal.dist(t, 0.5), lower=-9, observed=Y),
            "first obstacle",
        ),
        "whole numbers in pm.Data": (
            lambda t: pm.Normal("y", t, 1.0, observed=pm.Data("direct", np.arange(M))),
            "'y' is an expression of other values",
        ),
        "data transformed on the way": (
            lambda t: pm.Normal("y", t, 1.0, observed=2.0 * pm.Data("direct", Y)),
            "'y' is an expression of other values",
        ),
    }


@pytest.mark.filterwarnings("ignore:the observed 'y' is a constant:UserWarning")
@pytest.mark.parametrize("name", likelihoods())
def test_other_likelihoods_are_refused(name):
    likelihood, reason = likelihoods()[name]
    with pytest.raises(NotLinearGaussianError, match=reason):
        read_model(build(normal, likelihood))


# --- dependence on the data that derivatives would not show --------------------------------------


def custom_mean(mu):
    """A constant inside the graph of a distribution of one's own."""
    return pm.CustomDist(
        "theta",
        mu,
        # Beside another constant, so that the log density may hold but their product.
        dist=lambda mu, size: pm.Normal.dist(mu + pt.as_tensor(Y.copy()) * D, 0.3, shape=M),
        shape=M,
    )


def custom_density(mu):
    """A constant in a density alone, nowhere in the model's graph."""
    return pm.CustomDist(
        "theta", mu, logp=lambda value, mu: -0.5 * ((value - mu - 0.1 * Y) / 0.3) ** 2, shape=M
    )


def other_observed(mu):
    theta = normal(mu)
    pm.Normal("other", theta, 1.0, observed=pm.Data("again", 3.0 * Y - 1.0))
    return theta


HIDDEN = {
    "a mean": lambda mu: normal(mu + 0.1 * pt.as_tensor(Y.copy())),
    "a centred copy in pm.Data": lambda mu: normal(mu + pm.Data("copy", Y - Y.mean())),
    "a mean of the sign turned": lambda mu: normal(mu - 2 * Y),
    "a copy in another unit": lambda mu: normal(mu + pm.Data("copy", 10 * Y + 3)),
    "a single-precision copy": lambda mu: normal(mu + pm.Data("copy", Y.astype(np.float32))),
    "some in single precision": lambda mu: normal(
        mu + np.where(np.arange(M) < 4, Y.astype(np.float32), 0.0)
    ),
    "the data in another order": lambda mu: normal(mu + pt.as_tensor(Y[::-1].copy())),
    "some of the data beside zeros": lambda mu: normal(mu + np.where(np.arange(M) < 5, Y, 0.0)),
    "some of the data alone": lambda mu: normal(mu + pt.concatenate([Y[:5], np.zeros(4)])),
    "one value": lambda mu: normal(mu + pt.as_tensor(Y[2])),
    "one value in a table": lambda mu: normal(
        mu + pt.as_tensor(np.where(np.arange(4 * M).reshape(M, 4) == 7, Y[3], 0.5)).sum(axis=1)
    ),
    "a sparse matrix": lambda mu: normal(
        mu + pytensor.sparse.dot(sp.csc_matrix(np.diag(Y)), pt.ones((M, 1)))[:, 0]
    ),
    "a potential": with_potential(lambda theta: -((theta - Y) ** 2).sum()),
    "a target": lambda mu: named(effects() + mu + Y[:]),
    "a custom distribution": custom_mean,
    "a custom density": custom_density,
    "another observed variable": other_observed,
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_constant_that_follows_the_data_is_refused(name):
    with pytest.raises(NotLinearGaussianError, match="a constant of the model follows the obs"):
        read_model(build(HIDDEN[name]), observed="y")


def two_areas(estimate, mean):
    with pm.Model() as model:
        theta = pm.Normal("theta", mean, 0.3, shape=2)
        pm.Normal("y", theta, 0.2, observed=pm.Data("direct", np.array(estimate)))
    return model


@pytest.mark.parametrize("estimate", [[0.12, 0.35], [0.123456789, 0.35]])
def test_two_areas_are_enough_for_a_copy(estimate):
    with pytest.raises(NotLinearGaussianError, match="follows the observed"):
        read_model(two_areas(estimate, np.array(estimate)))
    read_model(two_areas(estimate, np.array([0.35, 0.5])))


def test_the_place_of_a_hidden_copy_is_named_and_no_value():
    for body, place in (
        (HIDDEN["a single-precision copy"], r"'copy' of shape \(9,\), in 'theta'"),
        (HIDDEN["a potential"], r"of shape \(9,\), in 'p'"),
        (HIDDEN["a custom density"], "in the log density of 'theta'"),
        (HIDDEN["another observed variable"], "'again' .*, observed as 'other'"),
    ):
        with pytest.raises(NotLinearGaussianError, match=place) as caught:
            read_model(build(body), observed="y")
        assert not any(f"{value:.3f}" in str(caught.value) for value in np.abs(Y))


ROUND = {
    "halves and quarters": (np.array([0.5, 0.25, 0.75, 0.3, 0.1]), np.array([0.5, 0.25, 0.75])),
    "two decimals": (np.round(np.linspace(0.1, 0.3, 40) ** 1.1, 2), np.arange(0.05, 0.4, 0.01)),
    "three decimals, every one of them": (
        np.round(RNG.uniform(0.1, 0.2, 60), 3),
        np.round(np.arange(0.1, 0.2, 0.001), 3),
    ),
    "whole numbers": (np.arange(30.0) ** 2, np.arange(1000)),
    "large whole numbers": (np.array([123456.0, 234567.0, 345678.0]), np.arange(400_000)),
    "nothing known": (Y, np.array([np.nan, np.inf, 0.5])),
}


@pytest.mark.parametrize("name", ROUND)
def test_numbers_that_agree_by_chance_are_no_copies(name):
    estimate, constant = ROUND[name]
    with pm.Model() as model:
        mean = pt.as_tensor(constant)[-1] * 1.0  # the last is finite; all are in the graph
        theta = pm.Normal("theta", mean, 0.3, shape=estimate.size)
        pm.Normal("y", theta, 0.2, observed=pm.Data("direct", estimate.astype(float)))
    read_model(model)


@pytest.mark.parametrize("decimals", [2, 3, 4, 6, 9])
def test_rounded_covariates_in_the_range_of_the_data_are_no_copies(decimals):
    """Two thousand of each, of which hundreds agree: a fraction that chance explains."""
    rng = np.random.default_rng(decimals)
    estimate, covariate = (np.round(rng.uniform(0.1, 0.3, 2000), decimals) for _ in range(2))

    def modelled(mean):
        with pm.Model() as model:
            theta = pm.Normal("theta", mean, 0.3, shape=2000)
            pm.Normal("y", theta, 0.2, observed=pm.Data("direct", estimate))
        return model

    read_model(modelled(covariate))
    if decimals >= 6:  # of fewer, most of the numbers in the range are taken
        with pytest.raises(NotLinearGaussianError, match="follows the observed"):
            read_model(modelled(np.sort(estimate)))


def release(body, **options):
    return PrivateRelease(build(body), np.full(M, 0.1), **options)


def open_directions(mu):
    """A target of twice as many entries as noises: y shows where they agree."""
    u = pm.Normal("u", mu, 0.3, dims="area")
    y = observe(u)
    pm.Deterministic("theta", pt.concatenate([u + y, u + 2 * y]))


NO_NOISE = {
    "the data themselves": (
        lambda mu: (y := observe(effects() + mu), pm.Deterministic("theta", y + 0.0 * mu), None)[2],
        "every posterior variance is zero",
    ),
    "the data in some entries": (
        lambda mu: (
            u := effects(),
            y := observe(u + mu),
            pm.Deterministic("theta", pt.concatenate([u, y])),
            None,
        )[3],
        "9 entries of the target have no posterior variance",
    ),
    "the data in directions without noise": (
        open_directions,
        "9 observations openly in directions without posterior noise: no finite price",
    ),
    "a constant": (
        lambda mu: (observe(effects() + mu), named(pt.ones(M)), None)[2],
        "the target 'theta' does not depend on the observed 'y'",
    ),
}


@pytest.mark.parametrize("name", NO_NOISE)
def test_a_target_without_noise_has_no_price(name):
    body, reason = NO_NOISE[name]
    with pytest.raises(ValueError, match=reason):
        release(body)


@pytest.mark.filterwarnings("ignore:the observed 'y_observed' is a constant:UserWarning")
def test_the_observed_variable_is_no_target():
    with pytest.raises(ValueError, match="every posterior variance is zero"):
        release(normal, target="y")
    with pm.Model() as masked:
        theta = pm.Normal("theta", 0.0, 1.0, shape=M)
        with pytest.warns(UserWarning, match="imputed"):
            pm.Normal("y", theta, 1.0, observed=np.where(np.arange(M) < 2, np.nan, Y))
    # What is imputed has a posterior, what was observed none.
    with pytest.raises(NotLinearGaussianError, match="7 entries of the target have no posterior"):
        PrivateRelease(masked, np.full(7, 0.1), target="y")


def test_a_target_beside_the_data_with_little_noise_is_dear_not_refused():
    def body(mu):
        u = pm.Normal("u", mu, 0.3, dims="area")
        y = observe(u)
        pm.Deterministic("theta", y + 1e-3 * u)

    reading = read_model(build(body))
    law = LinearLaw(reading.linear)
    # theta = y + u / 1000, so a change of s costs s^2 / (2 Var(u)) times a million, or more.
    alone = 0.1**2 / (2 * law.variance.max())
    assert float(release(body).guarantee["rho"]) > alone > 1e4


# --- names, several observed variables, improper posteriors --------------------------------------


def two_observed(mu):
    theta = normal(mu)
    observe(theta)
    pm.Normal("other", theta, 1.0, observed=pm.Data("census", np.cos(Y * 7)))


def test_the_confidential_variable_is_named():
    model = build(two_observed)
    with pytest.raises(NotLinearGaussianError, match=MUST_NAME):
        read_model(model)
    with pytest.raises(ValueError, match="no observed variable 'z'; observed are y, other"):
        read_model(model, observed="z")
    with pytest.raises(ValueError, match="no observed variable 'theta'"):
        read_model(model, observed="theta")
    with pytest.raises(ValueError, match="the model has no variable 'phi'"):
        read_model(model, "phi", observed="y")
    assert read_model(model, observed="y").observed.tolist() == Y.tolist()
    with pm.Model() as prior_only:
        pm.Normal("theta", 0.0, 1.0)
    with pytest.raises(NotLinearGaussianError, match="found none"):
        read_model(prior_only)


def test_a_model_without_latents_is_refused():
    with pm.Model() as model:
        y = pm.Normal("y", 0.0, 1.0, observed=pm.Data("direct", Y))
        pm.Deterministic("theta", 2 * y)
    with pytest.raises(ValueError, match="every posterior variance is zero"):
        PrivateRelease(model, 0.1)
    with pm.Model() as curved:
        y = pm.Normal("y", 0.0, 1.0, observed=pm.Data("direct", Y))
        pm.Deterministic("theta", pt.exp(y))
    with pytest.raises(NotLinearGaussianError, match=r"target 'theta' .*Exp"):
        PrivateRelease(curved, 0.1)


def test_data_that_are_not_finite_are_refused():
    values = Y.copy()
    values[3] = np.inf
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=M)
        pm.Normal("y", theta, 1.0, observed=pm.Data("direct", values))
    with pytest.raises(ValueError, match="1 observed values are not finite"):
        read_model(model)


def general(body):
    """Through the sparse general way: theta is an expression of two fields."""

    def both(mu):
        field = pm.CAR("field", np.zeros(M), RING, 0.5, 4.0)
        return named(body() + field)

    return both


def loose():
    pm.Flat("loose")
    return effects()


def collinear():
    return np.ones((M, 2)) @ pm.Flat("flat", shape=2)


def doubly_flat():
    return pm.Flat("a", shape=M) + pm.Flat("b", shape=M)


@pytest.mark.parametrize("body", [loose, collinear, doubly_flat], ids=lambda f: f.__name__)
def test_improper_posteriors_are_refused(body):
    model = build(general(body))
    with pytest.raises(
        ValueError, match=r"improper posterior: .* not (positive definite|identified)"
    ):
        PrivateRelease(model, np.full(M, 0.1))


@pytest.mark.parametrize("growth", [0.5, 1e3, 1e6])
def test_a_potential_that_outgrows_the_data_is_refused(growth):
    def body():
        u = effects()
        # 1 / 0.09 from the prior and up to 1 / 0.1 from the data hold up to about 11 + 10.
        pm.Potential("p", growth * 50.0 * (u**2).sum())
        return u

    with pytest.raises(ValueError, match="improper posterior"):
        PrivateRelease(build(general(body)), np.full(M, 0.1))


def test_an_effect_that_the_data_do_not_reach_is_refused():
    """ICAR's level is held by its soft sum to zero only; a flat level beside a field is not."""
    with pm.Model() as model:
        field = pm.ICAR("field", W=RING.astype(int))
        level = pm.Flat("level", shape=2)
        theta = pm.Deterministic("theta", field + level[0])
        pm.Normal("y", theta, 1.0, observed=pm.Data("direct", Y))
    with pytest.raises(ValueError, match="improper posterior"):
        PrivateRelease(model, 0.1)


# --- neighbour matrices --------------------------------------------------------------------------


def island():
    W = RING.copy()
    W[3, :] = W[:, 3] = 0.0
    W[2, 4] = W[4, 2] = 1.0
    return W, "leaves 1 areas without neighbours: area 3; join them"


def one_sided():
    W = RING.copy()
    W[0, 4] = 1.0
    return W, "is not symmetric: 2 areas differ from their neighbours' view: area 0, area 4"


def negative():
    W = RING.copy()
    W[0, 4] = W[4, 0] = -1.0
    return W, "has entries that are negative or not finite"


def own_neighbour():
    W = RING.copy()
    W[5, 5] = 1.0
    return W, "makes 1 areas their own neighbour: area 5"


MATRICES = [island, one_sided, negative, own_neighbour]
KINDS = {
    "array": np.asarray,
    "sparse": sp.csc_matrix,
    "expression": lambda W: -pt.as_tensor(-W),
    "pm.Data": lambda W: pm.Data("W", W),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("matrix", MATRICES, ids=lambda f: f.__name__)
def test_matrices_of_car_that_are_no_neighbourhood_are_refused(matrix, kind):
    W, reason = matrix()
    model = build(lambda mu: pm.CAR("theta", mu, KINDS[kind](W), 0.5, 2.0, dims="area"))
    with pytest.raises(ValueError, match=f"the neighbour matrix of 'theta' {reason}"):
        read_model(model)


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda f: f.__name__)
def test_matrices_of_icar_that_are_no_neighbourhood_are_refused(matrix):
    """By PyMC when the model is built, or by us before it is read."""
    W, reason = matrix()
    with pytest.raises(ValueError, match=f"{reason}|W must be|symmetric|0's and 1's|ones and zero"):
        read_model(build(lambda mu: named(mu + pm.ICAR("phi", W=W, dims="area"))))


# --- lookalikes that are Gaussian, and must be read as they are ----------------------------------


def law_of(body):
    reading = read_model(build(body))
    if isinstance(reading, LinearReading):
        law = LinearLaw(reading.linear)
        return law.covariance(), law.propagation()
    post = reading.posterior
    return (post.propagation() * D, post.propagation())


def plain(mu):
    return normal(mu)


def chosen_by_constants(mu):
    return normal(pt.switch(pt.as_tensor(np.arange(M) % 2 == 0), mu, mu + 0.0))


def shape_of_latents(mu):
    return normal(mu - mu.shape[0] + M)


def cumulated(mu):
    steps = pm.Normal("steps", 0.0, 0.3, dims="area")
    return named(mu + pt.cumsum(steps) - pt.concatenate([[0.0], pt.cumsum(steps)[:-1]]))


def set_piece_by_piece(mu):
    u = effects()
    return named(pt.set_subtensor(pt.zeros(M)[: M // 2], mu[: M // 2])
                 + pt.concatenate([pt.zeros(M // 2), mu[M // 2 :]]) + u)  # fmt: skip


def squares_that_cancel(mu):
    u = effects()
    return named(mu + u + u * u - u**2)


def variance_as_a_potential(mu):
    """``-0.5 u'u / 0.3^2`` written as a potential over a flat effect."""
    u = pm.Flat("u", shape=M)
    pm.Potential("prior", -0.5 * (u**2).sum() / 0.09)
    return named(mu + u)


ALIKE = [
    chosen_by_constants,
    shape_of_latents,
    cumulated,
    set_piece_by_piece,
    variance_as_a_potential,
]


@pytest.mark.parametrize("body", ALIKE, ids=lambda f: f.__name__)
def test_lookalikes_that_are_gaussian_are_read_as_they_are(body):
    covariance, propagation = law_of(body)
    want = law_of(plain)
    np.testing.assert_allclose(covariance, want[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(propagation, want[1], rtol=1e-9, atol=1e-12)


def test_squares_that_cancel_in_the_target_are_not_proven_to():
    with pytest.raises(
        NotLinearGaussianError, match=r"Mul, a power of u.* write 'y' without that product"
    ):
        read_model(build(squares_that_cancel))


@pytest.mark.parametrize("values", [0.3, np.array(0.3)])
def test_a_single_number_is_an_observation(values):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 2.0)
        pm.Normal("y", theta, 1.0, observed=pm.Data("direct", values))
    guarantee = PrivateRelease(
        model, xr.DataArray(0.1, attrs={"bounds": (-1.0, 1.0)}).values
    ).guarantee
    # Var(theta | y) = 1 / (1 / 4 + 1) = 0.8, so rho = 0.8 * 0.1^2 / 2; rounding up to 1e-3.
    np.testing.assert_allclose(guarantee["rho_respondent"], 0.004, rtol=1e-3)


def test_an_array_of_whole_numbers_is_read_as_numbers():
    with pytest.warns(UserWarning, match="compile cache"):
        reading = read_model(
            build(normal, lambda t: pm.Normal("y", t, np.sqrt(D), observed=np.arange(M)))
        )
    np.testing.assert_array_equal(reading.estimate, np.arange(M))


def test_data_that_change_size_are_read_as_they_are_now():
    with pm.Model(coords={"area": AREA}) as model:
        values = pm.Data("direct", Y, dims="area")
        theta = pm.Normal("theta", 0.0, 0.5, shape=values.shape[0])
        pm.Normal("y", theta, 1.0, observed=values)
    first = PrivateRelease(model, 0.1).guarantee["posterior_sd"].values
    assert first.shape == (M,)
    model.set_data("direct", Y[:5], coords={"area": AREA[:5]})
    second = PrivateRelease(model, 0.1).guarantee["posterior_sd"].values
    np.testing.assert_allclose(second, np.full(5, np.sqrt(1 / (4 + 1))), rtol=1e-12)
