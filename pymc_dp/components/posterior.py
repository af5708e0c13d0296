"""The posterior of sigma_u as an adaptive quadrature rule, and exact draws from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytensor.tensor as pt
import xarray as xr

from pymc_dp import containers
from pymc_dp._typing import Array
from pymc_dp._version import __version__
from pymc_dp.models.gls import GlsFit, Sample, sample_of
from pymc_dp.models.inputs import AreaData, area_data
from pymc_dp.models.prior import SigmaPrior, sigma_prior
from pymc_dp.posterior.quadrature import LIMIT, Evaluation, Rule, adapt, start


@dataclass(frozen=True, repr=False)
class SigmaPosterior:
    """The posterior of sigma_u.

    Attributes
    ----------
    sample : Sample
        The areas with a sample, direct estimates less ``X @ centre``.
    centre : ndarray of shape (p,)
        Coefficients taken out, so that differences between nodes keep their digits.
    rule : Rule
        Density of ``log sigma_u``, with generalised least squares at the nodes; its coefficients
        are relative to `centre`.
    """

    sample: Sample
    centre: Array
    rule: Rule[GlsFit]


def posterior_of_sigma_u(data: AreaData, prior: SigmaPrior) -> SigmaPosterior:
    """Posterior of sigma_u, coefficients integrated out under their flat prior.

    Raises
    ------
    ValueError
        If it is improper, which only an improper prior can bring about.
    """
    sample = sample_of(data)
    centre = sample.fit(np.array([np.median(sample.D)])).coefficient[0]
    residual = sample.y - sample.X @ centre
    sample = Sample(residual, sample.D, sample.X)

    def evaluate(x: Array) -> Evaluation[GlsFit]:
        fit = sample.fit(np.exp(2 * x))
        log_density = fit.log_restricted_likelihood(sample.y.size) + prior.log_density(x)
        size = np.abs(fit.log_determinant) + np.abs(fit.log_information) + np.abs(fit.residual)
        return Evaluation(log_density, size, fit)

    # A first range, from far below the smallest sampling variance to the spread of the data.
    low = min(np.log(sample.D.min()) / 2 - 16, prior.inside)
    high = max(np.log(sample.D.max() + (residual**2).max()) / 2 + 2, prior.inside)
    low, high = np.clip([low, high], max(prior.lower, -LIMIT), min(prior.upper, LIMIT))
    rule = adapt(start(evaluate, low, high, (prior.lower, prior.upper)))
    return SigmaPosterior(sample, centre, rule)


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
    found = posterior_of_sigma_u(data, sigma_prior(prior, data.bounds))
    sigma = found.rule.quantile(rng.uniform(size=draws))
    fit = found.sample.fit(sigma**2)
    normal = rng.standard_normal((draws, len(data.covariate), 1))
    beta = found.centre + fit.coefficient + (fit.root @ normal)[:, :, 0]
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
    idata = containers.new_container()
    idata["posterior"], idata["observed_data"] = posterior, observed
    return idata


def _attributes() -> dict[str, str]:

    return {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "creation_library": "pymc_dp",
        "creation_library_version": __version__,
        "inference_library": "pymc_dp",
        "inference_library_version": __version__,
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
