"""Models are read with proof or refused: the forms of Fay-Herriot, and adversaries."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from pymc_dp import PrivateRelease
from pymc_dp import containers as io
from pymc_dp.mechanisms.linear import LinearLaw
from pymc_dp.models.builder import fay_herriot
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.reading.read import LinearReading, hold, read_model
from pymc_dp.reading.refusals import variance_components
from pymc_dp.reading.symbolic import NotLinearGaussianError

M = 9
RNG = np.random.default_rng(4)
X = np.column_stack([np.ones(M), RNG.normal(size=M)])
D = 10.0 ** RNG.uniform(-10, 2, M)
Y = RNG.normal(size=M)
A = 0.3**2
AREA = [f"area {i}" for i in range(M)]


def model(build):
    """A model with the usual inputs in context; ``build(beta_mean)`` adds the rest."""
    with pm.Model(coords={"area": AREA, "k": range(2)}) as context:
        beta = pm.Flat("beta", dims="k")
        build(X @ beta)
    return context


def observe(theta, **kwargs):
    pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", Y), dims="area", **kwargs)


def centred(mu):
    observe(pm.Normal("theta", mu, 0.3, dims="area"))


def noncentred(mu):
    z = pm.Normal("z", dims="area")
    observe(pm.Deterministic("theta", mu + 0.3 * z, dims="area"))


def scaled_effects(mu):
    u = pm.Normal("u", 0.0, 3.0, dims="area")
    observe(pm.Deterministic("theta", mu + 0.1 * u, dims="area"))


def shifted_effects(mu):
    u = pm.Normal("u", 5.0, 0.3, dims="area")
    observe(pm.Deterministic("theta", mu + u - 5.0, dims="area"))


def own_effect_name(mu):
    u = pm.Normal("u", 0.0, 0.3, dims="area")
    theta = pm.Deterministic("theta", u + mu, dims="area")
    pm.Normal("y", theta, tau=1 / D, observed=pm.Data("direct", Y), dims="area")


def marginal(mu):
    z = pm.Normal("z", dims="area")
    y = pm.Normal("y", mu, np.sqrt(A + D), observed=pm.Data("direct", Y), dims="area")
    gamma = A / (A + D)
    spread = np.sqrt(gamma * D)
    pm.Deterministic("theta", gamma * y + D / (A + D) * mu + spread * z, dims="area")


def marginal_from_data(mu):
    z = pm.Normal("z", dims="area")
    direct = pm.Data("direct", Y)
    pm.Normal("y", mu, np.sqrt(A + D), observed=direct, dims="area")
    gamma = A / (A + D)
    spread = np.sqrt(gamma * D)
    pm.Deterministic("theta", gamma * direct + D / (A + D) * mu + spread * z, dims="area")


def permuted(mu):
    order = np.arange(M)[::-1].copy()
    theta = pm.Normal("theta", mu, 0.3, dims="area")
    pm.Normal("y", theta[order], np.sqrt(D[order]), observed=pm.Data("direct", Y[order]))


FORMS = [
    centred,
    noncentred,
    scaled_effects,
    shifted_effects,
    own_effect_name,
    marginal,
    marginal_from_data,
    permuted,
]


# 1e-10: the numbers are read from derivatives, not from differences.
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_every_algebraic_form_of_fay_herriot_gives_the_same_posterior(form):
    reading = read_model(model(form))
    want = fay_herriot_posterior(A, 1 / D, X)
    post = reading.posterior
    np.testing.assert_allclose(post.variance, want.variance, rtol=1e-10)
    np.testing.assert_allclose(post.propagation(), want.propagation(), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(post.mean(reading.estimate), want.mean(Y), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(reading.estimate, Y)
    assert list(reading.area) == AREA


@pytest.mark.parametrize(
    ("parametrization", "sigma_u"),  # the centred form has no density at sigma_u = 0
    [("auto", 0.0), ("auto", 0.3), ("centered", 0.3), ("noncentered", 0.0), ("noncentered", 0.3)],
)
@pytest.mark.parametrize("unsampled", [False, True])
@pytest.mark.parametrize("proper", [False, True])
def test_the_builders_forms_are_read_exactly(parametrization, sigma_u, unsampled, proper):
    estimate, variance = Y.copy(), D.copy()
    if unsampled:
        estimate[[2, 5]] = variance[[2, 5]] = np.nan
    direct = xr.Dataset(
        {"estimate": ("area", estimate), "variance": ("area", variance)}, coords={"area": AREA}
    )
    built = fay_herriot(
        direct,
        "~ x",
        pd.DataFrame({"x": X[:, 1]}, index=AREA),
        sigma_u=sigma_u,
        beta_prior=pm.Normal.dist(1.0, 2.0) if proper else None,
        parametrization=parametrization,
    )
    reading = read_model(built)
    prior = {"prior_precision": np.eye(2) / 4, "prior_shift": np.ones(2) / 4} if proper else {}
    precision = np.where(np.isnan(variance), 0.0, 1 / np.nan_to_num(variance, nan=1.0))
    want = fay_herriot_posterior(sigma_u**2, precision, X, **prior)
    np.testing.assert_allclose(reading.posterior.variance, want.variance, rtol=1e-10)
    np.testing.assert_allclose(reading.posterior.gamma, want.gamma, rtol=1e-10)
    got = reading.posterior.mean(np.nan_to_num(estimate))
    np.testing.assert_allclose(got, want.mean(np.nan_to_num(estimate)), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(reading.estimate, estimate)


def test_region_effects_with_a_normal_prior_are_coefficients():
    region = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])

    def build(mu):
        effect = pm.Normal("region", 0.0, 0.5, shape=3)
        observe(pm.Normal("theta", mu + effect[region], 0.3, dims="area"))

    wide = np.column_stack([X, np.eye(3)[region]])
    precision = np.diag([0, 0, 4, 4, 4.0])
    want = fay_herriot_posterior(A, 1 / D, wide, prior_precision=precision)
    post = read_model(model(build)).posterior
    np.testing.assert_allclose(post.variance, want.variance, rtol=1e-10)


def free_scale(mu):
    observe(pm.Normal("theta", mu, pm.HalfNormal("s", 1.0), dims="area"))


def test_a_free_variance_component_is_named_with_the_two_ways_out():
    built = model(free_scale)
    assert variance_components(built) == ["s"]
    with pytest.raises(NotLinearGaussianError, match=r"fixed=\{'s': value\}, or pass idata"):
        read_model(built)
    held = read_model(hold(built, {"s": 0.3})).posterior
    np.testing.assert_allclose(held.variance, fay_herriot_posterior(A, 1 / D, X).variance)
    with pytest.raises(ValueError, match="not free variables of the model: tau; free are beta, s"):
        hold(built, {"tau": 1.0})
    with pytest.raises(ValueError, match="'s' at is not finite"):
        hold(built, {"s": np.nan})


def signed_scale(mu):
    observe(pm.Normal("theta", mu, pm.Normal("s", 1.0, 1.0), dims="area"))


def interval_scale(mu):
    observe(pm.Normal("theta", mu, pm.Uniform("s", -1.0, 1.0), dims="area"))


def scaled_by_free(mu):
    z = pm.Normal("z", dims="area")
    observe(pm.Deterministic("theta", mu + pm.HalfNormal("s", 1.0) * z, dims="area"))


@pytest.mark.parametrize(
    ("form", "value", "reason"),
    [
        (free_scale, -0.3, "'s' cannot be held at -0.3: it is no value that 's' can take"),
        (free_scale, 0.0, "'s' cannot be held at 0: 'theta' needs sigma > 0"),
        (signed_scale, -0.3, "'s' cannot be held at -0.3: 'theta' needs sigma > 0"),
        (scaled_by_free, -0.3, "'s' cannot be held at -0.3: it is no value"),
        (interval_scale, 2.0, "'s' cannot be held at 2: it is no value"),
    ],
)
def test_an_impossible_value_to_hold_is_named_with_its_variable(form, value, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        PrivateRelease(model(form), 0.1, fixed={"s": value})
    assert type(caught.value) is ValueError


def test_a_scale_may_be_held_at_zero_where_it_multiplies():
    held = read_model(hold(model(scaled_by_free), {"s": 0.0})).posterior
    want = fay_herriot_posterior(0.0, 1 / D, X)
    np.testing.assert_allclose(held.variance, want.variance, rtol=1e-10)


def test_an_impossible_posterior_mean_is_named_and_not_shown():
    draws = -0.25 + 0.01 * RNG.normal(size=(4, 500))
    container = io.new_container()
    container["posterior"] = xr.Dataset({"s": (("chain", "draw"), draws)})
    with pytest.raises(ValueError, match="'s' cannot be held at its posterior mean") as caught:
        PrivateRelease(model(interval_scale), 0.1, idata=container)
    assert "0.2" not in str(caught.value)


ADVERSARIES = {
    "jump": lambda mu: observe(pm.Normal("theta", mu + 0.5 * pt.gt(mu, 1e3), 0.3, dims="area")),
    "round": lambda mu: observe(pm.Normal("theta", pt.round(mu), 0.3, dims="area")),
    "floor": lambda mu: observe(pm.Normal("theta", pt.floor(mu), 0.3, dims="area")),
    "absolute value": lambda mu: observe(pm.Normal("theta", pt.abs(mu), 0.3, dims="area")),
    "maximum": lambda mu: observe(pm.Normal("theta", pt.maximum(mu, 0.0), 0.3, dims="area")),
    "sign": lambda mu: observe(pm.Normal("theta", mu + pt.sign(mu), 0.3, dims="area")),
    "integer cast": lambda mu: observe(
        pm.Normal("theta", pt.cast(pt.cast(mu, "int64"), "float64"), 0.3, dims="area")
    ),
    "single precision": lambda mu: observe(
        pm.Normal("theta", pt.cast(pt.cast(mu, "float32"), "float64"), 0.3, dims="area")
    ),
    "square": lambda mu: observe(pm.Normal("theta", mu**2, 0.3, dims="area")),
    "product": lambda mu: observe(pm.Normal("theta", pt.cumprod(mu), 0.3, dims="area")),
    "Student effects": lambda mu: observe(
        pm.StudentT("theta", nu=4, mu=mu, sigma=0.3, dims="area")
    ),
    "Laplace effects": lambda mu: observe(pm.Laplace("theta", mu, 0.3, dims="area")),
    "uniform effects": lambda mu: observe(pm.Uniform("theta", -1, 1, dims="area")),
    "scale from data": lambda mu: pm.Normal(
        "y",
        pm.Normal("theta", mu, 0.1 + pt.std(pm.Data("direct", Y)), dims="area"),
        np.sqrt(D),
        observed=pm.modelcontext(None)["direct"],
        dims="area",
    ),
    "Poisson counts": lambda mu: pm.Poisson(
        "y", pt.exp(pm.Normal("theta", mu, 0.3, dims="area")), observed=np.arange(M), dims="area"
    ),
    "Student likelihood": lambda mu: pm.StudentT(
        "y",
        nu=5,
        mu=pm.Normal("theta", mu, 0.3, dims="area"),
        sigma=0.1,
        observed=pm.Data("direct", Y),
        dims="area",
    ),
    "truncated effects": lambda mu: observe(
        pm.TruncatedNormal("theta", mu, 0.3, lower=0, dims="area")
    ),
    "discrete latent": lambda mu: observe(
        pm.Normal("theta", mu + pm.Bernoulli("b", 0.5, dims="area"), 0.3, dims="area")
    ),
    "random constant": lambda mu: observe(
        pm.Deterministic(
            "theta", mu + pm.Normal("u", 0, 0.3, dims="area") + pm.Normal.dist(0, 1), dims="area"
        )
    ),
    "mean from NumPy's y": lambda mu: observe(
        pm.Normal("theta", mu + 0.1 * pt.as_tensor(Y.copy()), 0.3, dims="area")
    ),
    "two observed": lambda mu: (
        observe(pm.Normal("theta", mu, 0.3, dims="area")),
        pm.Normal("y2", mu, 1.0, observed=Y),
    ),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_models_that_are_not_linear_gaussian_are_refused(name):
    with pytest.raises(NotLinearGaussianError):
        read_model(model(ADVERSARIES[name]))


def test_a_marginal_form_with_the_wrong_target_is_not_taken_for_fay_herriot():
    """theta's noise must be gamma D: half of its spread quadruples the price of a record."""

    def build(mu):
        z = pm.Normal("z", dims="area")
        y = pm.Normal("y", mu, np.sqrt(A + D), observed=pm.Data("direct", Y), dims="area")
        gamma = A / (A + D)
        spread = 0.5 * np.sqrt(gamma * D)
        pm.Deterministic("theta", gamma * y + D / (A + D) * mu + spread * z, dims="area")

    reading = read_model(model(build))
    assert isinstance(reading, LinearReading)
    right = fay_herriot_posterior(A, 1 / D, X)
    law = LinearLaw(reading.linear)
    covariance = np.diag(right.area_variance / 4) + right.left @ right.left.T
    np.testing.assert_allclose(law.covariance(), covariance, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(law.propagation(), right.propagation(), rtol=1e-9, atol=1e-14)


def test_collinear_flat_coefficients_are_refused_as_improper():
    with pm.Model() as context:
        beta = pm.Flat("beta", shape=2)
        mu = np.ones((M, 2)) @ beta
        theta = pm.Normal("theta", mu, 0.3)
        pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", Y))
    with pytest.raises(ValueError, match="not identified"):
        read_model(context)


def test_data_held_as_a_constant_are_read_with_a_loud_warning():
    def build(mu):
        theta = pm.Normal("theta", mu, 0.3, dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=Y, dims="area")

    with pytest.warns(UserWarning, match="compile cache"):
        reading = read_model(model(build))
    np.testing.assert_array_equal(reading.estimate, Y)


def test_the_warning_about_constant_data_points_at_who_made_the_release():
    def build(mu):
        theta = pm.Normal("theta", mu, 0.3, dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=Y, dims="area")

    with pytest.warns(UserWarning, match="compile cache") as caught:
        PrivateRelease(model(build), 0.1)
    assert [w.filename for w in caught if "compile cache" in str(w.message)] == [__file__]


def test_equal_direct_estimates_are_not_taken_for_a_hidden_constant():
    def build(mu):
        theta = pm.Normal("theta", mu, 0.3, dims="area")
        same = pm.Data("direct", np.full(M, 0.1))
        pm.Normal("y", theta, np.sqrt(D), observed=same, dims="area")

    np.testing.assert_array_equal(read_model(model(build)).estimate, 0.1)


def test_a_reading_never_shows_direct_estimates():
    text = repr(read_model(model(centred)))
    assert not any(f"{value:.4f}" in text for value in Y)
