"""Exact independent posterior draws with sigma_u integrated over its prior."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytensor.tensor as pt
import xarray as xr

from pymc_dp import io
from pymc_dp.area_level import AreaData, area_data
from pymc_dp.posterior import Array
from pymc_dp.prior import sigma_prior
from pymc_dp.quadrature import posterior_of_sigma_u


def sample_posterior(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    prior: pt.TensorVariable | None = None,
    draws: int = 1000,
    random_seed: int | np.random.Generator | None = None,
) -> Any:
    """Draw from the posterior of the Fay-Herriot model, exactly and independently.

    The model is that of :func:`fay_herriot` with flat coefficients. sigma_u is drawn by
    inverting its distribution function, computed by quadrature; then the coefficients and the
    area means from their normal distributions. No warm-up, no divergences, no autocorrelation.

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate`` and ``variance`` on dim ``area``; both missing where there is no sample.
    formula, covariates
        As for :func:`fay_herriot`.
    prior : PyMC distribution, optional
        Prior of sigma_u, any continuous scalar distribution without a name, such as
        ``pm.HalfNormal.dist(0.1)``. By default HalfNormal with a scale of a quarter of the
        outcome's declared range.
    draws : int
    random_seed : int or Generator, optional

    Returns
    -------
    InferenceData (PyMC 5) or DataTree (PyMC 6)
        Group ``posterior`` with dims ``chain`` (1) and ``draw``: ``sigma_u``, ``beta``
        (``covariate``), ``theta`` (``area``); group ``observed_data`` with ``y``, as
        ``pm.sample`` leaves them. There are no sampler statistics to report.

    Raises
    ------
    ValueError
        If the inputs or the prior are unusable, the posterior is improper, or `draws` is not a
        positive whole number.

    Notes
    -----
    The draws are for study, and come with no privacy guarantee: sigma_u is learned from the same
    data (see :func:`compare_variance_components`). The distribution function of sigma_u is
    accurate to better than 1e-7.

    Examples
    --------
    >>> import pymc as pm
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> idata = sample_posterior(direct, prior=pm.HalfNormal.dist(0.1), draws=50, random_seed=1)
    >>> idata.posterior["theta"].shape
    (1, 50, 2)
    """
    data = area_data(direct, formula, covariates)
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError("draws must be a positive whole number")
    rng = np.random.default_rng(random_seed)
    rule = posterior_of_sigma_u(data, sigma_prior(prior, data.bounds))
    sigma = rule.quantile(rng.uniform(size=draws))
    fit = rule.sample.fit(sigma**2)
    normal = rng.standard_normal((draws, len(data.covariate), 1))
    beta = rule.centre + fit.coefficient + (fit.root @ normal)[:, :, 0]
    theta = _draw_areas(data, sigma, beta, rng)
    attrs = _attributes()
    posterior = xr.Dataset(
        {
            "beta": (("chain", "draw", "covariate"), beta[None]),
            "sigma_u": (("chain", "draw"), sigma[None]),
            "theta": (("chain", "draw", "area"), theta[None]),
        },
        coords={
            "chain": [0],
            "draw": np.arange(draws),
            "covariate": list(data.covariate),
            "area": list(data.area),
        },
        attrs=attrs,
    )
    everywhere = len(data.sampled) == len(data.area)
    dim = "area" if everywhere else "sampled_area"
    observed = xr.Dataset(
        {"y": (dim, data.estimate[data.sampled])},
        coords={dim: [data.area[i] for i in data.sampled]},
        attrs=attrs,
    )
    idata = io.new_container()
    idata["posterior"], idata["observed_data"] = posterior, observed
    return idata


def _attributes() -> dict[str, str]:
    import pymc_dp

    return {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "creation_library": "pymc_dp",
        "creation_library_version": pymc_dp.__version__,
        "inference_library": "pymc_dp",
        "inference_library_version": pymc_dp.__version__,
        "sampler": "exact and independent, sigma_u by quadrature",
        "privacy": "no claim: sigma_u is estimated from the same data",
    }


def _draw_areas(data: AreaData, sigma: Array, beta: Array, rng: np.random.Generator) -> Array:
    """``theta`` given sigma_u, beta and the direct estimates, independent by area; (draws, m).

    With ``1 / D = 0`` where there is no sample, one formula serves all areas.
    """
    precision = np.where(np.isnan(data.variance), 0.0, 1 / data.variance)
    y = np.nan_to_num(data.estimate)
    A = (sigma**2)[:, None]
    shrinkage = 1 / (1 + A * precision)
    centre = shrinkage * (beta @ data.design.T + A * (precision * y))
    noise = rng.standard_normal(centre.shape)
    return np.asarray(centre + sigma[:, None] * np.sqrt(shrinkage) * noise)
