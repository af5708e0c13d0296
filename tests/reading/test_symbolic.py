"""What a model may be named, start from and hold: none of it has a part in its density."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from factories.linear_models import priced_as
from pymc.distributions.transforms import ordered

from pymc_dp import PrivateRelease, read_public, write_public
from pymc_dp import containers as io
from pymc_dp.reading.read import hold

M = 5
RNG = np.random.default_rng(15)
Y = RNG.normal(size=M)
# Data types by name, in parts, and by letters; what bambi and R's formulas write; format strings.
NAMES = ["1|g", "1|g_sigma", "float", "int32", "a,b", "f8,f8", "d", "bs(x, 3)[0]", "{x}", "%s", ""]
ROLES = ["effect", "scale", "target", "observed", "data"]


def named(**names):
    """Areas around a common level; the variables as the roles say."""
    given = {role: names.get(role, role) for role in ROLES}
    with pm.Model() as model:
        level = pm.Normal(given["effect"], 0.0, 2.0)
        scale = pm.HalfNormal(given["scale"])
        theta = pm.Normal(given["target"], level, scale, shape=M)
        direct = pm.Data(given["data"], Y)
        pm.Normal(given["observed"], theta, 0.5, observed=direct)
    return PrivateRelease(
        model, np.full(M, 0.1), fixed={given["scale"]: 0.3}, target=given["target"]
    )


@pytest.fixture(scope="module")
def plainly_named():
    return named().guarantee


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ROLES)
def test_any_name_that_pymc_takes_gives_the_same_price(role, name, plainly_named):
    xr.testing.assert_equal(named(**{role: name}).guarantee, plainly_named)


@pytest.mark.parametrize("name", NAMES)
def test_a_release_of_any_name_goes_through_a_public_file(name, tmp_path):
    idata = named(target=name, observed=name + "y").draw()
    write_public(idata, tmp_path / "release.nc", conditional=True)
    kept = io.read_group(read_public(tmp_path / "release.nc"), "private_release")
    assert kept["theta"].shape == (1, 1, M)


# --- initial values ------------------------------------------------------------------------------


def started(initval):
    """Free scale, level and effects, each with a place where a sampler starts."""
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 2.0, initval=initval and 0.1)
        scale = pm.HalfNormal("scale", initval=initval and 0.7)
        theta = pm.Normal("theta", level, scale, shape=M, initval=initval and np.full(M, 0.2))
        pm.Normal("y", theta, 0.5, observed=pm.Data("direct", Y))
    return model


def converged(model):
    """A fit with the scale around 0.3: four chains of independent draws."""
    container = io.new_container()
    draws = 0.3 + 0.01 * RNG.normal(size=(4, 500))
    container["posterior"] = xr.Dataset({"scale": (("chain", "draw"), draws)})
    return PrivateRelease(model, np.full(M, 0.1), idata=container)


def test_initial_values_change_nothing():
    with_values, without = started(True), started(None)
    kept = dict(with_values.rvs_to_initial_values)
    for make in (lambda m: PrivateRelease(m, np.full(M, 0.1), fixed={"scale": 0.3}), converged):
        got, want = make(with_values).guarantee, make(without).guarantee
        # Two fits have two means; everything else is the same to the last bit.
        limit = 0.0 if make is not converged else 1e-2
        np.testing.assert_allclose(got["rho"], want["rho"], rtol=limit)
    assert dict(with_values.rvs_to_initial_values) == kept


@pytest.mark.filterwarnings("ignore:the observed 'y' is a constant:UserWarning")
def test_cut_points_in_order_may_be_held():
    """``transform=ordered`` needs an initial value: two levels that a mixture would tell apart."""
    with pm.Model() as model:
        levels = pm.Normal(
            "levels", 0.0, 1.0, shape=2, transform=ordered, initval=np.array([-1.0, 1.0])
        )
        theta = pm.Normal("theta", levels[np.arange(M) % 2], 0.3, shape=M)
        pm.Normal("y", theta, 0.5, observed=Y)
    release = PrivateRelease(model, np.full(M, 0.1), fixed={"levels": np.array([-0.5, 0.5])})
    # Independent areas: variance 1 / (1 / 0.09 + 1 / 0.25), mean moved by its share of 0.1.
    variance = 1 / (1 / 0.09 + 1 / 0.25)
    want = (variance / 0.25 * 0.1) ** 2 / (2 * variance)
    priced_as(release.guarantee["rho"].values, want)


# --- values to hold ------------------------------------------------------------------------------


def test_one_number_holds_for_every_entry_and_other_shapes_are_refused():
    with pm.Model(coords={"area": [f"area {i}" for i in range(M)]}) as model:
        scale = pm.HalfNormal("scale", dims="area")
        theta = pm.Normal("theta", 0.0, scale, dims="area")
        pm.Normal("y", theta, 0.5, observed=pm.Data("direct", Y), dims="area")
    one, each = (
        PrivateRelease(model, 0.1, fixed={"scale": value}).guarantee["rho"]
        for value in (0.3, np.full(M, 0.3))
    )
    assert float(one) == float(each)
    with pytest.raises(ValueError, match=r"'scale' has shape \(5,\), the value .* at \(2,\): pass"):
        hold(model, {"scale": np.ones(2)})
