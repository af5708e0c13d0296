"""The Fay-Herriot model as an ordinary ``pm.Model``."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.tensor.random.basic import NormalRV

from pymc_dp.models.inputs import AreaData, area_data
from pymc_dp.models.prior import is_distribution
from pymc_dp.record.origin import ANSWERS, FromAnswers, Origin, digest

Parametrization = Literal["auto", "centered", "noncentered"]


def fay_herriot(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    sigma_u: float | pt.TensorVariable | None = None,
    beta_prior: pt.TensorVariable | None = None,
    parametrization: Parametrization = "auto",
) -> pm.Model:
    r"""Build the Bayesian Fay-Herriot model.

    .. math:: y_i \sim N(\theta_i, D_i), \qquad \theta_i = x_i'\beta + u_i, \qquad
              u_i \sim N(0, \sigma_u^2)

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate`` and ``variance`` (sampling variance ``D_i``, known) on dim ``area``, as
        :func:`hajek` returns them. An area with both missing has no sample.
    formula : str
        Right-hand side of the linear predictor, in the usual formula language.
    covariates : DataFrame, optional
        One row an area, indexed by area label and joined by label. Areas that only this table
        has become areas without sample.
    sigma_u : float or PyMC distribution, optional
        A number holds it fixed (zero is allowed unless centered). A distribution without a
        name, ``pm.HalfNormal.dist(0.1)``, is its prior. By default ``HalfNormal`` with a scale
        of a quarter of the outcome's declared range: no default is computed from the data.
    beta_prior : PyMC normal distribution, optional
        ``pm.Normal.dist(0, 1)``, for every coefficient. Flat by default, the textbook model;
        PyMC can then neither sample the prior nor draw the graph.
    parametrization : {"auto", "centered", "noncentered"}
        "auto" is the marginal form: ``y ~ N(x'beta, D + sigma_u^2)`` and
        ``theta = gamma y + (1 - gamma) x'beta + sqrt(gamma D) z``. It samples well both when
        areas hardly differ and when sampling variances are decades apart; the others each
        fail in one of these situations.

    Returns
    -------
    pm.Model
        Variables ``beta`` (dim ``covariate``), ``sigma_u``, ``theta`` (dim ``area``), the
        observed ``y`` and, unless centered, standard normal ``z`` (dim ``area``). Data ``X``,
        ``sampling_variance`` and ``direct`` (the direct estimates). If some areas have no
        sample, ``y`` has its own dim ``sampled_area``.

    Raises
    ------
    ValueError
        If estimates, variances, labels or covariates are unusable (see :func:`hajek` for the
        survey side), naming the areas and columns; if ``sigma_u`` or a prior is not usable.

    Notes
    -----
    Fay and Herriot (1979); Rao and Molina (2015), ch. 10. The direct estimates are held in
    ``pm.Data``: constants would be written into the compile caches on disk. In the marginal
    form ``theta`` is built from the random variable ``y``, so replicated data from
    ``pm.sample_posterior_predictive`` come with their own ``theta``: ask for
    ``var_names=["y"]`` to replicate the data of the same areas.

    Examples
    --------
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> model = fay_herriot(direct, sigma_u=0.05)
    >>> sorted(model.named_vars)
    ['X', 'beta', 'direct', 'sampling_variance', 'sigma_u', 'theta', 'y', 'z']
    """
    data = area_data(direct, formula, covariates, flat=beta_prior is None)
    if parametrization not in ("auto", "centered", "noncentered"):
        raise ValueError(
            f"parametrization must be 'auto', 'centered' or 'noncentered', not {parametrization!r}"
        )
    everywhere = len(data.sampled) == len(data.area)
    y_dim = "area" if everywhere else "sampled_area"
    coords: dict[str, Any] = {"area": data.area, "covariate": data.covariate}
    if not everywhere:
        coords["sampled_area"] = [data.area[i] for i in data.sampled]

    with pm.Model(coords=coords) as model:
        X = pm.Data("X", data.design, dims=("area", "covariate"))
        D = pm.Data("sampling_variance", data.variance[data.sampled], dims=y_dim)
        D.tag.origin = Origin(data.origin, digest(D.get_value()))
        y = pm.Data("direct", data.estimate[data.sampled], dims=y_dim)
        y.tag.sensitivity = data.sensitivity
        beta = _beta(beta_prior, len(data.covariate))
        sigma = _sigma_u(model, sigma_u, data, zero=parametrization != "centered")
        _likelihood(parametrization, X @ beta, sigma, D, y, data, y_dim)
    return model


def _likelihood(
    form: Parametrization,
    mean: pt.TensorVariable,
    sigma: pt.TensorVariable,
    D: pt.TensorVariable,
    y: pt.TensorVariable,
    data: AreaData,
    y_dim: str,
) -> None:
    """Add ``theta`` and the observed ``y`` to the model in context."""

    def sampled(v: pt.TensorVariable) -> pt.TensorVariable:
        return v if y_dim == "area" else v[data.sampled]

    def scatter(v: pt.TensorVariable) -> pt.TensorVariable:
        return v if y_dim == "area" else pt.zeros(len(data.area))[data.sampled].set(v)

    if form == "centered":
        theta = pm.Normal("theta", mean, sigma, dims="area")
        pm.Normal("y", sampled(theta), pt.sqrt(D), observed=y, dims=y_dim)
        return
    z = pm.Normal("z", dims="area")
    if form == "noncentered":
        theta = pm.Deterministic("theta", mean + sigma * z, dims="area")
        pm.Normal("y", sampled(theta), pt.sqrt(D), observed=y, dims=y_dim)
        return
    A = sigma**2
    observed = pm.Normal("y", sampled(mean), pt.sqrt(A + D), observed=y, dims=y_dim)
    # With 1/D = 0 where there is no sample, one formula serves all areas:
    # 1 - gamma = 1 / (1 + A/D), and theta = x'beta + sigma_u z there.
    shrinkage = 1 / (1 + A * scatter(1 / D))
    centre = shrinkage * (mean + A * scatter(observed / D))
    pm.Deterministic("theta", centre + sigma * pt.sqrt(shrinkage) * z, dims="area")


def _beta(prior: pt.TensorVariable | None, size: int) -> pt.TensorVariable:
    if prior is None:
        return pm.Flat("beta", dims="covariate")
    if not (is_distribution(prior) and isinstance(prior.owner.op, NormalRV)):
        raise ValueError("beta_prior must be a PyMC normal distribution: pm.Normal.dist(0, 1)")
    mu, sigma = prior.owner.op.dist_params(prior.owner)
    if prior.type.ndim and prior.type.shape != (size,):
        raise ValueError(f"beta_prior must be a scalar or have one entry a column ({size})")
    return pm.Normal("beta", mu, sigma, dims="covariate")


def _sigma_u(
    model: pm.Model, sigma_u: float | pt.TensorVariable | None, data: AreaData, *, zero: bool
) -> pt.TensorVariable:
    if sigma_u is None:
        if data.bounds is None:
            raise ValueError(
                "sigma_u needs a prior or a number: the direct estimates do not say the "
                "outcome's declared range (attribute 'bounds'), and no default is computed "
                "from data"
            )
        return pm.HalfNormal("sigma_u", (data.bounds[1] - data.bounds[0]) / 4)
    if isinstance(sigma_u, Real | float):
        value = float(sigma_u)
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            wanted = "zero or positive" if zero else "positive in the centered form"
            raise ValueError(f"sigma_u must be finite and {wanted}")
        held = pm.Data("sigma_u", value)
        if isinstance(sigma_u, FromAnswers):
            held.tag.origin = Origin(ANSWERS, digest(value))
        return held
    if not is_distribution(sigma_u) or sigma_u.type.ndim:
        raise ValueError(
            "sigma_u must be a number or a scalar PyMC distribution without a name, "
            "such as pm.HalfNormal.dist(0.1)"
        )
    # Interpreted: compiling one scalar would take seconds.
    mode = pytensor.compile.mode.Mode(linker="py", optimizer=None)
    below = pytensor.function([], pm.logp(sigma_u, -1e-12), mode=mode)()
    if not np.isneginf(below):
        raise ValueError("the prior of sigma_u must give no weight to negative values")
    position = sigma_u.owner.outputs.index(sigma_u)
    return model.register_rv(sigma_u.owner.clone().outputs[position], "sigma_u")
