"""The variance of the area effects: marginal likelihood, REML, ML and moment estimates.

Everything here rests on one generalised least squares fit at each value of ``A = sigma_u^2``,
from one QR factor, vectorised over ``A``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from pymc_dp._typing import Array
from pymc_dp.models.gls import Sample, sample_of
from pymc_dp.models.inputs import area_data
from pymc_dp.record.origin import FromAnswers

Method = Literal["reml", "ml", "moment"]


def log_marginal_likelihood(
    direct: xr.Dataset,
    sigma_u: npt.ArrayLike,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
) -> float | Array:
    r"""Log density of the direct estimates given sigma_u, flat coefficients integrated out.

    .. math:: -\tfrac12 \Bigl[\sum_i \log V_i + \log|X'V^{-1}X| + r'V^{-1}r
              + (m - p)\log 2\pi\Bigr], \qquad V_i = \sigma_u^2 + D_i

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate`` and ``variance`` on dim ``area``.
    sigma_u : array_like
        Standard deviations of the area effects, zero allowed.
    formula, covariates
        As for :func:`fay_herriot`.

    Returns
    -------
    float or ndarray
        Of the shape of `sigma_u`. ``r`` are the residuals at the generalised least squares
        coefficients, ``m`` the areas with a sample, ``p`` the coefficients. The constant
        belongs to a prior density of 1 for the coefficients of these covariates: compare only
        fits with the same covariates in the same units.

    Raises
    ------
    ValueError
        If the inputs are unusable, or a sigma_u is negative, infinite or missing.

    Notes
    -----
    The restricted likelihood of Patterson and Thompson (1971), up to a constant that depends on
    the covariates; Rao and Molina (2015), section 6.1. Logarithms throughout: no determinant
    is formed that could underflow.

    Examples
    --------
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.0, 2.0]), "variance": ("area", [1.0, 1.0])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> round(log_marginal_likelihood(direct, 1.0), 6)  # N(2; 0, 4) of the difference
    -2.112086
    """
    sample = sample_of(area_data(direct, formula, covariates))
    sigma = np.asarray(sigma_u, dtype=float)
    if not (np.isfinite(sigma) & (sigma >= 0)).all():
        raise ValueError("sigma_u must be finite and zero or positive")
    fit = sample.fit(np.ravel(sigma) ** 2)
    values = fit.log_restricted_likelihood(sample.y.size).reshape(sigma.shape)
    return float(values) if sigma.ndim == 0 else values


def estimate_sigma_u(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    method: Method = "reml",
) -> float:
    r"""Estimate the standard deviation of the area effects.

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate`` and ``variance`` on dim ``area``.
    formula, covariates
        As for :func:`fay_herriot`.
    method : {"reml", "ml", "moment"}
        Restricted likelihood, likelihood, or the moment equation
        :math:`\sum_i r_i^2 / (\sigma_u^2 + D_i) = m - p` of Fay and Herriot.

    Returns
    -------
    float
        sigma_u in the outcome's unit; 0 where the criterion has its maximum there. It is
        computed from the direct estimates: a release that uses it makes a conditional claim.

    Raises
    ------
    ValueError
        If the inputs are unusable, there are no more areas with a sample than coefficients, or
        the method is unknown.

    Notes
    -----
    Fay and Herriot (1979); Rao and Molina (2015), section 6.1.2. The likelihoods can have
    several maxima: the highest on a grid of 400 values of ``A`` is refined.

    Examples
    --------
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.0, 2.0, 4.0]), "variance": ("area", [1.0, 1.0, 1.0])},
    ...     coords={"area": ["north", "east", "south"]},
    ... )
    >>> round(estimate_sigma_u(direct) ** 2, 9)  # sample variance 4, less 1
    3.0
    """
    if method not in ("reml", "ml", "moment"):
        raise ValueError(f"method must be 'reml', 'ml' or 'moment', not {method!r}")
    sample = sample_of(area_data(direct, formula, covariates))
    return FromAnswers(np.sqrt(between_variance(sample, method)))


def between_variance(sample: Sample, method: Method = "reml") -> float:
    """Estimate ``A = sigma_u^2``; see :func:`estimate_sigma_u`."""
    from scipy.optimize import brentq

    n, p = sample.X.shape
    if n <= p:
        raise ValueError(
            f"sigma_u cannot be estimated: {n} areas with a sample for {p} coefficients"
        )
    ordinary = np.linalg.lstsq(sample.X, sample.y, rcond=None)[0]
    highest = 10 * (sample.D.max() + ((sample.y - sample.X @ ordinary) ** 2).sum())
    grid = np.append(0.0, np.geomspace(1e-6 * sample.D.min(), highest, 400))
    if method == "moment":  # its equation falls in A: one root at most
        low, high = 0, grid.size - 1
    else:
        fit = sample.fit(grid)
        criterion = {"reml": fit.log_restricted_likelihood, "ml": fit.log_profile_likelihood}
        best = int(np.argmax(criterion[method](n)))
        low, high = max(best - 1, 0), min(best + 1, grid.size - 1)
    # The equation has more digits than the criterion: where that is flat, widen the bracket.
    while low > 0 and _equation(grid[low], sample, method) <= 0:
        low -= 1
    while high < grid.size - 1 and _equation(grid[high], sample, method) > 0:
        high += 1
    if _equation(grid[low], sample, method) <= 0:
        return 0.0
    xtol = 1e-15 * grid[high]
    return float(brentq(_equation, grid[low], grid[high], (sample, method), xtol, rtol=1e-15))


def _equation(A: float, sample: Sample, method: Method) -> float:
    """Twice the derivative of the criterion, or the moment equation: zero at the estimate."""
    fit = sample.fit(np.array([A]))
    w = 1 / (A + sample.D)
    r = sample.y - sample.X @ fit.coefficient[0]
    if method == "moment":
        return float((w * r**2).sum() - (sample.y.size - sample.X.shape[1]))
    leverage = w * ((sample.X @ fit.root[0]) ** 2).sum(axis=1) if method == "reml" else 0.0
    return float((w**2 * r**2).sum() - (w * (1 - leverage)).sum())
