r"""A price for draws with sigma_u estimated that holds for all data, if its prior has bounds.

A record of area j tilts the posterior of ``theta_j`` by ``exp(t theta_j)``, ``t = s_j / D_j``. The
cumulant generating function along the tilt has second derivative ``Var(theta_j | y)`` at data with
another ``y_j``, so with V_j the supremum of that variance over *all* data, a draw costs at most
``s_j^2 V_j / (2 D_j^2)`` in zCDP. What follows bounds ``V_j`` by a search in one dimension.

**The variance given the data.** Given A the posterior variance is :math:`S(A) = \Sigma_{jj}`. With
K contrasts (``KX = 0``, ``KK' = I``), ``KDK'`` has eigenvalues :math:`d_l` and eigenvectors that do
not depend on A. So with z the contrasts of y in these directions and c those of the unit vector
of area j, the density of A is its prior times :math:`\prod_l (A + d_l)^{-1/2} e^{-Z(A)/2}`,
:math:`Z(A) = \sum_l z_l^2 / (A + d_l)`, the mean of theta_j given A is
:math:`y_j - D_j \sum_l c_l z_l / (A + d_l)`, and its variance
:math:`S(A) = D_j - D_j^2 \sum_l c_l^2 / (A + d_l)`. For two values of A
all differences of :math:`1 / (A + d_l)` have one sign, so by Cauchy-Schwarz the squared difference
of the means is at most :math:`|S(A) - S(A')| |Z(A) - Z(A')|`, hence

.. math:: \operatorname{Var}(\theta_j \mid y) \le F(\nu) = E S - \operatorname{Cov}(S, Z),
          \qquad Z(A) = \int \frac{\nu(dd)}{A + d},

with equality where the data depart from a regression in area j alone.

**All data at once.** Data enter F through the measure :math:`\nu \ge 0` on
:math:`[\min D, \max D]` only. Write f for the density of A, :math:`u = ES - S`, :math:`v = Z - EZ`
and :math:`c = E uv`. Mass at d changes F at the rate :math:`g(d) = E [k / (A + d)]`,
:math:`k = (c + u (3 - v)) / 2`, and :math:`E k = 0`. As u is an increasing function of v, k has at
most two changes of sign in A, at :math:`a_1` and :math:`a_2` say. If g had two zeros
:math:`d_1, d_2` (or a double one), some combination of 1, :math:`1 / (A + d_1)` and
:math:`1 / (A + d_2)` would be :math:`(A - a_1)(A - a_2)` over a positive function, and its
expectation with k could not vanish, though it would have to. So g has at most one simple zero.
Where F is largest, g is at most 0, and 0 at the masses: an inner mass would be a double zero, and
masses at both ends two zeros. Hence all mass sits at one end, ``min D`` or ``max D``, and only its
amount is left to be searched for. (As the amount grows, A goes to its upper end, and F to ``S``
there.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytensor.tensor as pt
import xarray as xr
from numpy.polynomial import legendre

from pymc_dp._typing import Array
from pymc_dp.models.gls import Sample, sample_of
from pymc_dp.models.inputs import AreaData, area_data, direct_sensitivity
from pymc_dp.models.prior import SigmaPrior, sigma_prior
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.record.claims import CONDITIONAL

LABEL = (
    "bound for all data sets, if the sampling variances and the prior are public; for an ideal "
    "draw: sample_posterior draws in floating point and carries no guarantee"
)
POINTS, WEIGHTS = legendre.leggauss(16)
# Panels of [0, 1]: even ones, then ever smaller ones towards 1, where much mass pushes sigma_u.
EDGES = np.concatenate([np.arange(15) / 16, 1 - 0.5 ** np.arange(4.0, 14.0), [1.0]])
SEARCHED = np.concatenate([[0.0], np.geomspace(1e-3, 1e4, 281)])
REFINEMENTS = 4
TOLERANCE = 1e-6  # relative, above the error of search and quadrature


class Mixture(NamedTuple):
    """Quadrature over sigma_u: Q nodes from the lower to the upper end of the prior."""

    between_variance: Array  # (Q,), A at the nodes
    log_weight: Array  # (Q,), log of prior, likelihood factors without data, quadrature weight
    variance: Array  # (Q, m), S_j at the nodes
    information: float  # mean over the nodes of sum_l 1 / (A + d_l)


def bound_estimated(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    prior: pt.TensorVariable,
    sigma_u: float | None = None,
) -> xr.Dataset:
    r"""Bound, over all data sets, the price of a draw with sigma_u estimated.

    :func:`compare_variance_components` says what such a draw costs for the data at hand. This is
    a bound that looks at no estimate. It needs a prior with an upper end, and is only useful when
    the prior is narrow: see the page on variance components.

    Parameters
    ----------
    direct : xr.Dataset
        ``variance`` and ``sensitivity`` on dim ``area``; of ``estimate``, only which areas have
        one is used.
    formula, covariates
        As for :func:`fay_herriot`.
    prior : PyMC distribution
        Prior of sigma_u, with a finite upper end of its support and positive density there, such
        as ``pm.Uniform.dist(0.035, 0.045)``. Public.
    sigma_u : float, optional
        A fixed value to compare with.

    Returns
    -------
    xr.Dataset
        By ``area``: ``rho_bound``, a zCDP price for a record of the area that holds for all data
        at all orders, and ``variance_bound``, the bound of the variance of theta that it comes
        from (unit of the outcome squared). 0-d ``rho``, the largest price. With `sigma_u`,
        ``rho_fixed`` and ``ratio``, bound over fixed.

    Raises
    ------
    ValueError
        If the inputs or the prior are unusable, the prior has no upper end, sensitivities are
        missing, negative or infinite, or sigma_u is negative or not finite.

    Notes
    -----
    With :math:`V_j \ge \operatorname{Var}(\theta_j \mid y)` for all y, the Renyi divergence of
    neighbouring posteriors is at most :math:`\alpha s_j^2 V_j / (2 D_j^2)`. The proof, and why a
    search over one number suffices, stand at the head of the module. Where the bound is far
    above one, so is the truth: a single area far off the regression attains it nearly, if its
    sampling variance is the largest.

    Examples
    --------
    >>> import pymc as pm
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3, 0.2]),
    ...         "variance": ("area", [0.01, 0.02, 0.01]),
    ...         "sensitivity": ("area", [0.05, 0.08, 0.05]),
    ...     },
    ...     coords={"area": ["north", "east", "south"]},
    ... )
    >>> found = bound_estimated(direct, prior=pm.Uniform.dist(0.04, 0.06), sigma_u=0.05)
    >>> found["ratio"].values.round(2)
    array([1.1 , 1.16, 1.1 ])
    """
    data = area_data(direct, formula, covariates)
    sensitivity = direct_sensitivity(direct, data)
    read = sigma_prior(prior, data.bounds)
    if not read.upper < np.inf:
        raise ValueError(f"the prior of sigma_u, {read.words}, has no upper end: no finite bound")
    at = data.sampled
    mixture = _mixture(sample_of(data), data.variance[at], data.design[at], read)
    ends = data.variance[at].min(), data.variance[at].max()
    largest = np.max([_largest_variance(mixture, d) for d in np.unique(ends)], axis=0)
    top = _conditional_variance(
        sample_of(data), data.variance[at], data.design[at], np.exp([2 * read.upper])
    )
    bound = np.full(sensitivity.size, np.nan)
    bound[at] = (1 + TOLERANCE) * np.maximum(largest, top[0])
    rho = np.zeros(sensitivity.size)
    rho[at] = (sensitivity[at] / data.variance[at]) ** 2 * bound[at] / 2

    result = xr.Dataset(
        {
            "variance_bound": ("area", bound),
            "rho_bound": ("area", rho),
            "rho": ((), rho.max()),
        },
        coords={"area": list(data.area)},
        attrs={"sigma_u_prior": read.words, "claim": LABEL},
    )
    result["variance_bound"].attrs["long_name"] = "largest posterior variance of theta, all data"
    result["rho_bound"].attrs |= {"long_name": "zCDP price bound, sigma_u estimated"}
    result["rho"].attrs |= {"long_name": "zCDP price bound of the whole vector"}
    if sigma_u is not None:
        if isinstance(sigma_u, bool) or not 0 <= sigma_u < np.inf:
            raise ValueError("sigma_u must be a finite number, zero or positive")
        fixed = fixed_rho(data, sensitivity, float(sigma_u))
        with np.errstate(invalid="ignore"):
            result["ratio"] = ("area", rho / fixed)
        result["rho_fixed"] = ("area", fixed, {"claim": CONDITIONAL})
        result.attrs["sigma_u_fixed"] = float(sigma_u)
    for name in ("rho_bound", "rho"):
        result[name].attrs["claim"] = LABEL
    return result


def _mixture(sample: Sample, D: Array, X: Array, prior: SigmaPrior) -> Mixture:
    low, high = np.exp(prior.lower), np.exp(prior.upper)
    width = (high - low) * np.diff(EDGES)
    sigma = (low + (high - low) * EDGES[:-1, None] + width[:, None] * (1 + POINTS) / 2).ravel()
    A = sigma**2
    fit = sample.fit(A)
    log_prior = prior.log_density(np.log(sigma)) - np.log(sigma)
    log_weight = log_prior - (fit.log_determinant + fit.log_information) / 2
    log_weight += np.log(np.outer(width, WEIGHTS).ravel())
    variance = _conditional_variance(sample, D, X, A)
    information = ((1 - variance / D) / D).sum(axis=1).mean()
    return Mixture(A, log_weight, variance, float(information))


def _conditional_variance(sample: Sample, D: Array, X: Array, A: Array) -> Array:
    """``Sigma_jj`` at each value of A; (Q, m)."""
    root = sample.fit(A).root
    shrinkage = D / (A[:, None] + D)
    return np.asarray(shrinkage * A[:, None] + shrinkage**2 * ((X @ root) ** 2).sum(axis=2))


def _largest_variance(mixture: Mixture, d: float) -> Array:
    """Largest F over the amount of mass at d, for each area; (m,)."""
    A, log_weight, S, information = mixture
    inverse = 1 / (A + d)
    # At one unit the data pull sigma_u up as hard, roughly, as their number pulls it down.
    amounts = SEARCHED * information / (inverse**2).mean()

    def law(amount: Array) -> Array:
        exponent = log_weight - amount[..., None] / 2 * inverse
        density = np.exp(exponent - exponent.max(axis=-1, keepdims=True))
        return np.asarray(density / density.sum(axis=-1, keepdims=True))

    def weights(amount: Array) -> Array:
        """F is linear in S given the law of A: ``E S - amount Cov(S, 1 / (A + d))``."""
        density = law(amount)
        centred = inverse - (density @ inverse)[..., None]
        return density * (1 - amount[..., None] * centred)

    values = weights(amounts) @ S
    best, place = values.max(axis=0), values.argmax(axis=0)
    left = amounts[np.maximum(place - 1, 0)]
    right = amounts[np.minimum(place + 1, amounts.size - 1)]
    for _ in range(REFINEMENTS):
        step = np.linspace(0, 1, 9)
        tried = left[:, None] + (right - left)[:, None] * step
        values = np.stack([weights(row) @ S[:, j] for j, row in enumerate(tried)])
        place = values.argmax(axis=1)
        best = np.maximum(best, values.max(axis=1))
        rows = np.arange(place.size)
        left, right = tried[rows, np.maximum(place - 1, 0)], tried[rows, np.minimum(place + 1, 8)]
    return np.asarray(best)


def fixed_rho(data: AreaData, sensitivity: Array, sigma_u: float) -> Array:
    """Price (zCDP) of one joint draw for a record of each area, sigma_u fixed."""
    precision = np.where(np.isnan(data.variance), 0.0, 1 / data.variance)
    posterior = fay_herriot_posterior(sigma_u**2, precision, data.design)
    return np.asarray((sensitivity * precision) ** 2 * posterior.variance / 2)
