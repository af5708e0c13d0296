"""Variables that have no part in target or data are left out; nothing else is."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import PrivateRelease
from pymc_dp import containers as io
from pymc_dp.reading.read import hold, read_model
from pymc_dp.reading.symbolic import NotLinearGaussianError

M = 5
RNG = np.random.default_rng(17)
Y = RNG.normal(size=M)


def model(scale, extra=lambda held: None):
    """Areas around a level with the scale that ``scale()`` makes; ``extra`` adds to the model."""
    with pm.Model() as built:
        s = scale()
        level = pm.Normal("level", 0.0, 2.0)
        theta = pm.Normal("theta", level, s, shape=M)
        pm.Normal("y", theta, 0.5, observed=pm.Data("direct", Y))
        extra(theta)
    return built


def price(built, **options):
    return float(PrivateRelease(built, np.full(M, 0.1), **options).guarantee["rho"])


def one_above():
    return pm.HalfNormal("s", pm.HalfNormal("h", 1.0))


def two_above():
    return pm.HalfNormal("s", pm.HalfNormal("h", pm.Gamma("g", 2.0, 1.0)))


def product_above():
    """A mixture of scales, as the horseshoe has: s and its two parents."""
    return pm.HalfNormal("s", pm.HalfCauchy("h", 1.0) * pm.HalfCauchy("g", 1.0))


ABOVE = [one_above, two_above, product_above]


@pytest.fixture(scope="module")
def plain():
    return price(model(lambda: 0.3))


@pytest.mark.parametrize("scale", ABOVE, ids=lambda f: f.__name__)
def test_hyperpriors_of_a_held_scale_have_no_part_in_the_price(scale, plain):
    assert price(model(scale), fixed={"s": 0.3}) == plain


@pytest.mark.parametrize("scale", ABOVE, ids=lambda f: f.__name__)
def test_hyperpriors_of_a_scale_that_a_fit_holds_have_none_either(scale, plain):
    container = io.new_container()
    draws = 0.3 + 0.01 * RNG.normal(size=(4, 500))
    container["posterior"] = xr.Dataset({"s": (("chain", "draw"), draws)})
    # The mean of 2,000 draws is within 5e-4 of 0.3 but for a chance of 1e-6.
    np.testing.assert_allclose(price(model(scale), idata=container), plain, rtol=0.01)


def test_a_bound_takes_such_models_too():
    def laplace():
        with pm.Model() as built:
            s = one_above()
            theta = pm.Laplace("theta", 0.0, s, shape=M)
            pm.Normal("y", theta, 0.5, observed=pm.Data("direct", Y))
        return built

    got = price(laplace(), fixed={"s": 0.3}, bound="log-concave")
    np.testing.assert_allclose(got, 0.1**2 / (2 * 0.25), rtol=1e-9)


def shared(theta):
    """Another scale from the same hyperprior, of other effects that stay free."""
    h = pm.modelcontext(None)["h"]
    pm.Normal("v", 0.0, pm.HalfNormal("t", h), shape=M)


def in_the_target(theta):
    pm.Deterministic("shifted", theta + pm.modelcontext(None)["h"])


def with_a_potential(theta):
    pm.Potential("p", pm.modelcontext(None)["h"] ** 2)  # it may not integrate to one


def test_a_hyperprior_that_has_a_part_in_the_target_is_none():
    held = hold(model(one_above, in_the_target), {"s": 0.3})
    read_model(held)  # theta itself is apart from it
    with pytest.raises(NotLinearGaussianError, match=r"density of 'h' .*Exp of h"):
        read_model(held, "shifted")


def test_what_nothing_says_that_it_integrates_to_one_stays():
    held = hold(model(one_above, with_a_potential), {"s": 0.3})
    with pytest.raises(NotLinearGaussianError, match="first obstacle: Exp of h"):
        read_model(held)
    with pytest.raises(NotLinearGaussianError, match="Exp of h"):
        read_model(hold(model(lambda: pm.HalfNormal("s", pm.HalfFlat("h"))), {"s": 0.3}))


def test_a_hyperprior_with_other_scales_below_it_goes_with_their_effects():
    """Effects that are apart from target and data go with their scales; joined ones stay."""
    read_model(hold(model(one_above, shared), {"s": 0.3}))

    def joined(theta):
        h = pm.modelcontext(None)["h"]
        v = pm.Normal("v", 0.0, pm.HalfNormal("t", h), shape=M)
        pm.Normal("other", theta + v, 1.0, observed=pm.Data("census", np.cos(Y * 7)))

    held = hold(model(one_above, joined), {"s": 0.3})
    with pytest.raises(NotLinearGaussianError, match=r"hold the variance component t constant"):
        read_model(held, observed="y")
    read_model(hold(held, {"t": 0.2}), observed="y")


# --- targets apart from the data ------------------------------------------------------------------


def apart(target):
    with pm.Model() as built:
        u, v = (pm.Normal(name, 0.0, 1.0, shape=M) for name in "uv")
        target(u, v)
        pm.Normal("y", u, 0.5, observed=pm.Data("direct", Y))
    return built


APART = {
    "of its own": lambda u, v: pm.Normal("theta", v, 1.0),
    "times nothing": lambda u, v: pm.Deterministic("theta", v + 0.0 * u),
    "a constant": lambda u, v: pm.Deterministic("theta", 0.0 * u + 3.0),
}


@pytest.mark.parametrize("name", APART)
def test_a_target_apart_from_the_data_is_refused(name):
    with pytest.raises(NotLinearGaussianError, match="'theta' does not depend on the observed 'y'"):
        PrivateRelease(apart(APART[name]), 0.1)


def test_a_target_in_which_the_data_cancel_is_refused():
    """The data move u + v; of two equal effects u - v is independent of it."""
    with pm.Model() as built:
        u, v = (pm.Normal(name, 0.0, 1.0, shape=M) for name in "uv")
        pm.Deterministic("theta", u - v)
        pm.Normal("y", u + v, 0.5, observed=pm.Data("direct", Y))
    with pytest.raises(ValueError, match="the target does not depend on the observed values"):
        PrivateRelease(built, 0.1)
