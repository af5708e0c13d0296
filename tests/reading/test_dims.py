"""Models of ``pymc.dims`` have the price of the same model without named dims."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import PrivateRelease
from pymc_dp import containers as io
from pymc_dp.reading.symbolic import NotLinearGaussianError

M = 6
RNG = np.random.default_rng(2)
Y = RNG.normal(size=M)
D = RNG.uniform(0.1, 1.0, M)
X = np.column_stack([np.ones(M), RNG.normal(size=M)])
COORDS = {"area": [f"area {i}" for i in range(M)], "k": ["one", "x"]}


@pytest.fixture(scope="module")
def pmd():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the module is new
        return pytest.importorskip("pymc.dims")


def plain(scale=0.3, mean=lambda b: X @ b, effect=pm.Normal):
    with pm.Model(coords=COORDS) as built:
        b = pm.Normal("b", 0.0, 5.0, dims="k")
        theta = effect("theta", mean(b), scale or pm.HalfNormal("s"), dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", Y), dims="area")
    return built


def named(pmd, scale=0.3, mean=lambda X, b, pmd: X.dot(b, dim="k"), kind="Normal"):
    with pm.Model(coords=COORDS) as built:
        public = pmd.Data("X", X, dims=("area", "k"))
        b = pmd.Normal("b", 0.0, 5.0, dims="k")
        effect = getattr(pmd, kind)
        theta = effect("theta", mean(public, b, pmd), scale or pmd.HalfNormal("s"), dims="area")
        sd = pmd.math.sqrt(pmd.Data("D", D, dims="area"))
        pmd.Normal("y", theta, sd, observed=pmd.Data("direct", Y, dims="area"))
    return built


def guarantee(model, **options):
    return PrivateRelease(model, np.full(M, 0.1), **options).guarantee


MEANS = {
    "a product of matrices": lambda X, b, pmd: X.dot(b, dim="k"),
    "a sum over a dim": lambda X, b, pmd: (X * b).sum("k"),
    "entries by label order": lambda X, b, pmd: (
        X.isel(k=0) * b.isel(k=0) + X.isel(k=1) * b.isel(k=1)
    ),
    "a named expression": lambda X, b, pmd: pmd.Deterministic("mean", X.dot(b, dim="k")),
    "joined and cut again": lambda X, b, pmd: pmd.concat(
        [X.dot(b, dim="k"), 2 * X.dot(b, dim="k")], dim="area"
    ).isel(area=slice(0, M)),
}


@pytest.mark.parametrize("name", MEANS)
def test_named_dims_change_nothing(pmd, name):
    got, want = guarantee(named(pmd, mean=MEANS[name])), guarantee(plain())
    assert list(got["area"].values) == COORDS["area"]
    np.testing.assert_allclose(got["rho"], want["rho"], rtol=1e-12)
    np.testing.assert_allclose(got["posterior_sd"], want["posterior_sd"], rtol=1e-12)


def test_a_scale_is_held_by_value_or_by_a_fit(pmd):
    want = float(guarantee(plain())["rho"])
    got = guarantee(named(pmd, None), fixed={"s": 0.3})["rho"]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    container = io.new_container()
    draws = 0.3 + 0.01 * RNG.normal(size=(4, 500))
    container["posterior"] = xr.Dataset({"s": (("chain", "draw"), draws)})
    np.testing.assert_allclose(
        guarantee(named(pmd, None), idata=container)["rho"],
        guarantee(plain(None), idata=container)["rho"],
        rtol=1e-12,
    )


def test_effects_that_sum_to_zero(pmd):
    def built(kind, **options):
        with pm.Model(coords=COORDS) as model:
            u = kind.ZeroSumNormal("u", **options)
            theta = kind.Deterministic("theta", u + kind.Normal("level", 0.0, 2.0), dims="area")
            direct = kind.Data("direct", Y, dims="area")
            sd = kind.Data("sd", np.sqrt(D), dims="area")
            kind.Normal("y", theta, sd, observed=direct, dims=("area",))
        return guarantee(model)["rho"]

    want = built(pm, dims="area")
    np.testing.assert_allclose(built(pmd, core_dims="area"), want, rtol=1e-9)


def test_a_bound_is_the_same(pmd):
    def level(X, b, pmd):
        return 0.0

    got = guarantee(named(pmd, 0.5, level, "Laplace"), bound="log-concave")["rho"]
    np.testing.assert_allclose(got, (0.1**2 / (2 * D)).max(), rtol=1e-9)


REFUSED = {
    "a free scale": (None, MEANS["a sum over a dim"], r"Exp of s\).* fixed=\{'s': value\}"),
    "a bent mean": (0.3, lambda X, b, pmd: pmd.math.exp(X.dot(b, dim="k")), "Exp of b"),
    "a product of latents": (
        0.3,
        lambda X, b, pmd: b.isel(k=0) * X.dot(b, dim="k"),
        "Mul, a power of b",
    ),
    "a copy of the data": (
        0.3,
        lambda X, b, pmd: X.dot(b, dim="k") + pmd.Data("copy", 3 * Y - 1, dims="area"),
        "follows the observed 'y'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_without_dims_is_refused_with_them(pmd, name):
    scale, mean, reason = REFUSED[name]
    with pytest.raises(NotLinearGaussianError, match=reason):
        guarantee(named(pmd, scale, mean))
