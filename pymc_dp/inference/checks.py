"""Is the model right, and which covariates? Asked of a release instead of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytensor.tensor as pt
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp._typing import Array
from pymc_dp.inference.information import Information, read_information, sampling_variances
from pymc_dp.inference.likelihood import inverted
from pymc_dp.inference.posterior import join, scale_rule
from pymc_dp.inference.refit import NodeFit, Refit
from pymc_dp.models.inputs import check_rank, design_matrix
from pymc_dp.models.prior import sigma_prior

MULTIPLES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the working sigma_u, for the power
SIMULATED = 4000
MOST_NUMBERS = 40_000_000  # in all simulated estimates
SEED = 20_170_602  # the power is a number, not a draw: it does not change between calls


def check_working(
    release: Any,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    sigma_u: float | None = None,
    sampling_variance: Any = None,
    level: float = 0.05,
) -> xr.Dataset:
    r"""Test exactly whether a release looks as if its working model were true.

    A working value need not be true for the release to be private, nor for
    :func:`~pymc_dp.release_posterior` to be right; this says whether it was a good guess. It tests
    sigma_u, sampling variances, covariates and normality together; the posterior of sigma_u says
    more of sigma_u, so look at both.

    Parameters
    ----------
    release : PrivateRelease, InferenceData, DataTree, Dataset, path, or a list of these
        As for :func:`~pymc_dp.release_posterior`.
    formula, covariates
        As for :func:`~pymc_dp.fay_herriot`.
    sigma_u : float, optional
        The value to test, in the unit of the outcome; by default the working value that the
        release gives.
    sampling_variance : DataArray, Series or dict, optional
        ``D`` by area label; by default those that the release gives.
    level : float
        Level of the test whose power is given.

    Returns
    -------
    xr.Dataset
        ``statistic``, ``degrees_of_freedom``, two-sided ``p_value``; ``power`` by the true
        ``sigma_u``, from simulations (standard error at most .008 up to 10,000 areas); and
        ``residual`` by ``area``, standardised: standard normal under the model.

    Raises
    ------
    ValueError
        If the release or the inputs are unusable, if sigma_u is no positive number, or if there
        are no degrees of freedom. A release at a working sigma_u of 0 says nothing beyond its own
        coefficients and cannot be checked.

    Notes
    -----
    With ``y~ = K^-1 h``, ``Om = (sigma_u^2 I + D + K^-1)^-1`` and the generalised least squares
    residual r, :math:`T = r' Om r \sim \chi^2_{m - p}`, m the areas with a sample. For a joint
    draw at the same model that is :math:`|(I - P_X) \theta^*|^2 / \sigma_u^2`.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import private_direct
    >>> from pymc_dp.inference import check_working
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3, 0.2]),
    ...         "variance": ("area", [0.001, 0.002, 0.001]),
    ...         "sensitivity": ("area", [0.02, 0.04, 0.02]),
    ...     },
    ...     coords={"area": ["north", "south", "west"]},
    ...     attrs={"bounds": [0, 1]},
    ... )
    >>> found = check_working(private_direct(direct, rho=0.5), sigma_u=0.1)
    >>> int(found["degrees_of_freedom"])
    2
    """
    from scipy import stats

    if not 0 < level < 1:
        raise ValueError("level must be between 0 and 1")
    information = read_information(release)
    sigma_u = information.facts.get("sigma_u") if sigma_u is None else sigma_u
    if sigma_u is None:
        raise ValueError("the release gives no working sigma_u: pass sigma_u=")
    if not (np.isfinite(sigma_u) and sigma_u > 0):
        raise ValueError("sigma_u must be a positive finite number")
    D, _ = sampling_variances(information, sampling_variance)
    told = information.informed
    _, names, design = design_matrix(list(information.area), formula, covariates)
    design = design[: told.size][told]
    check_rank(design, names)
    K, D = information.K.rows(told), D[told]
    m, p = design.shape
    if m <= p:
        raise ValueError(f"{m} areas with a sample and {p} coefficients leave nothing to test")
    inverse = inverted(information).rows(told)
    precision = K.absorb(sigma_u**2 + D).precision

    covariance = np.linalg.inv(design.T @ precision.times(design.T).T)

    def residuals(y: Array) -> Array:
        beta = precision.times(y) @ design @ covariance
        return np.asarray(y - beta @ design.T)

    def statistic(y: Array) -> Array:
        r = residuals(y)
        return np.asarray((r * precision.times(r)).sum(axis=-1))

    y = inverse.times(information.h[told])
    law = stats.chi2(m - p)
    T = float(statistic(y))
    variance = sigma_u**2 + D + inverse.diagonal
    variance -= ((design @ covariance) * design).sum(axis=1)
    residual = np.full(told.size, np.nan)
    residual[told] = residuals(y) / np.sqrt(variance)

    rng = np.random.default_rng(SEED)
    n = int(np.clip(MOST_NUMBERS / m, 200, SIMULATED))
    true = sigma_u * np.array(MULTIPLES)
    inside = law.ppf([level / 2, 1 - level / 2])
    effects = rng.standard_normal((n, m))
    errors = np.sqrt(D) * rng.standard_normal((n, m)) + inverse.times(K.noise(rng, n))
    power = []
    for value in true:
        found = statistic(value * effects + errors)
        power.append(float(((found < inside[0]) | (found > inside[1])).mean()))
    return xr.Dataset(
        {
            "statistic": T,
            "degrees_of_freedom": m - p,
            "p_value": 2 * min(law.cdf(T), law.sf(T)),
            "power": ("sigma_u", power),
            "residual": ("area", residual),
        },
        coords={"sigma_u": true, "area": list(information.area)},
        attrs={"tested_sigma_u": float(sigma_u), "formula": formula, "level": level},
    )


def compare_formulas(
    release: Any,
    formulas: Sequence[str],
    covariates: pd.DataFrame | None = None,
    *,
    prior: pt.TensorVariable | None = None,
    sampling_variance: Any = None,
) -> xr.Dataset:
    r"""Compare sets of covariates by what the release says of them: marginal likelihoods.

    Covariates that were chosen by looking at the answers make the model a function of them.
    Chosen on a release they do not.

    Parameters
    ----------
    release : PrivateRelease, InferenceData, DataTree, Dataset, path, or a list of these
        As for :func:`~pymc_dp.release_posterior`.
    formulas : sequence of str
        Each with an intercept: ``["~ 1", "~ x", "~ x + z"]``.
    covariates : DataFrame, optional
        As for :func:`~pymc_dp.fay_herriot`.
    prior : PyMC distribution, optional
        Prior of sigma_u under each formula; by default as for :func:`~pymc_dp.release_posterior`.
    sampling_variance : DataArray, Series or dict, optional
        ``D`` by area label; by default those that the release gives.

    Returns
    -------
    xr.Dataset
        On ``formula``: ``log_marginal`` likelihood less that of the best, ``probability`` where
        all formulas are equally likely beforehand, number of ``coefficients``, and the posterior
        mean of ``sigma_u``.

    Raises
    ------
    ValueError
        If the release, the formulas or the prior are unusable.

    Notes
    -----
    Flat priors do not allow a comparison. Here the intercept is flat, and the other coefficients
    have the unit-information prior given sigma_u: as precise as one of the m areas with a sample,
    around 0 (Kass and Wasserman 1995). Given sigma_u, adding k coefficients multiplies the
    likelihood by :math:`(1 + m)^{-k/2} \exp(G m / (2 (1 + m)))`, G what they take off the weighted
    sum of squares.

    Examples
    --------
    >>> import pandas as pd
    >>> import xarray as xr
    >>> from pymc_dp import private_direct
    >>> from pymc_dp.inference import compare_formulas
    >>> area = ["north", "south", "west", "east"]
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3, 0.2, 0.4]),
    ...         "variance": ("area", [0.001, 0.002, 0.001, 0.002]),
    ...         "sensitivity": ("area", [0.0002, 0.0004, 0.0002, 0.0004]),
    ...     },
    ...     coords={"area": area},
    ...     attrs={"bounds": [0, 1]},
    ... )
    >>> table = pd.DataFrame({"x": [1.0, 3.0, 2.0, 4.0]}, index=area)
    >>> found = compare_formulas(private_direct(direct, rho=0.5), ["~ 1", "~ x"], table)
    >>> str(found["probability"].idxmax().item())
    '~ x'
    """
    formulas = list(formulas)
    if not formulas or len(set(formulas)) < len(formulas):
        raise ValueError("formulas must be a list of different formulas")
    information = read_information(release)
    D, words = sampling_variances(information, sampling_variance)
    read = sigma_prior(prior, information.bounds)
    told = int(information.informed.sum())
    _, _, alone = join(information, D, "~ 1", None, None)
    height, size, mean = [], [], []
    for formula in formulas:
        problem = _with_intercept(information, D, formula, covariates)

        def log_marginal(A: Array, problem: Refit = problem) -> tuple[Array, NodeFit]:
            return _unit_information(alone.fit(A), problem, A, told, alone.upper)

        rule = scale_rule(log_marginal, problem.scale, read)
        height.append(rule.log_total)
        size.append(problem.centre.size)
        mean.append(float(rule.expectation(rule.sigma.ravel())))
    relative = np.array(height) - max(height)
    share = np.exp(relative)
    return xr.Dataset(
        {
            "log_marginal": ("formula", relative),
            "probability": ("formula", share / share.sum()),
            "coefficients": ("formula", size),
            "sigma_u": ("formula", mean),
        },
        coords={"formula": formulas},
        attrs={"privacy": words, "prior_sigma_u": read.words},
    )


def _with_intercept(
    information: Information, D: Array, formula: str, covariates: pd.DataFrame | None
) -> Refit:
    _, names, problem = join(information, D, formula, covariates, None)
    if "Intercept" not in names:
        raise ValueError(
            f"formulas need an intercept to be compared: {formula!r} has {name_some(names)}"
        )
    return problem


def _unit_information(
    alone: NodeFit, problem: Refit, A: Array, told: int, upper: Array
) -> tuple[Array, NodeFit]:
    """Log marginal likelihood at each A with the unit-information prior, and the fit."""
    fit = problem.fit(A)
    more = problem.centre.size - 1
    # What integrating flat coefficients out left of log determinants, taken back.
    gained = (
        fit.log_marginal
        - alone.log_marginal
        + (_log_information(fit, problem.upper) - _log_information(alone, upper)) / 2
        - more * np.log(2 * np.pi) / 2
    )
    share = told / (1.0 + told)
    return alone.log_marginal + share * gained - more * np.log1p(told) / 2, fit


def _log_information(fit: NodeFit, upper: Array) -> Array:
    """Log determinants of the information on the original coefficients."""
    diagonal = np.abs(np.diagonal(fit.root, axis1=1, axis2=2))
    return np.asarray(2 * np.log(np.abs(np.diag(upper))).sum() - 2 * np.log(diagonal).sum(axis=1))
