"""What it costs that sigma_u is learned from the same data: fixed, plug-in and estimated."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytensor.tensor as pt
import xarray as xr

from pymc_dp import privacy
from pymc_dp._checks import refuse_spanning
from pymc_dp._typing import Array
from pymc_dp.bound.estimated import fixed_rho
from pymc_dp.components.estimates import between_variance
from pymc_dp.components.posterior import SigmaPosterior, posterior_of_sigma_u
from pymc_dp.components.renyi import PAIRS, Records, renyi_divergences
from pymc_dp.models.gls import sample_of
from pymc_dp.models.inputs import AreaData, area_data, direct_sensitivity
from pymc_dp.models.prior import sigma_prior
from pymc_dp.record.claims import CONDITIONAL
from pymc_dp.record.figures import DELTAS, ORDERS

CONVERSION_ORDERS = 48  # extra orders, for epsilon
HIGHEST_ORDER = 1e4  # of them: what a higher one could gain is an epsilon of about 0.003
QUANTILES = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
ESTIMATED = (
    "for the data at hand, no formal guarantee: sigma_u integrated over its posterior, sampling "
    "variances treated as fixed"
)
LONG_NAMES = {
    "rdp_fixed": "Renyi divergence bound at a fixed sigma_u",
    "rdp_plug_in": "Renyi divergence bound at the REML value of sigma_u, as if it were fixed",
    "rdp_estimated": "Renyi divergence with sigma_u integrated out, largest of four neighbours",
    "rdp_pairs": "Renyi divergence with sigma_u integrated out, by pair of neighbours",
    "ratio": "rdp_estimated over rdp_fixed",
    "epsilon_fixed": "epsilon at delta at a fixed sigma_u, exact Gaussian",
    "epsilon_plug_in": "epsilon at delta at the REML value of sigma_u, exact Gaussian",
    "epsilon_fixed_zcdp": "epsilon at delta at a fixed sigma_u, from its Renyi curve",
    "epsilon_estimated": "epsilon at delta with sigma_u integrated out, from its Renyi curve",
    "quadrature_error": "largest relative change of rdp_pairs when every panel is halved",
    "sigma_u_mean": "posterior mean of sigma_u",
    "sigma_u_sd": "posterior standard deviation of sigma_u",
    "sigma_u_quantile": "posterior quantiles of sigma_u",
}


def compare_variance_components(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    sigma_u: float | None = None,
    prior: pt.TensorVariable | None = None,
    order: npt.ArrayLike = ORDERS,
    delta: npt.ArrayLike = DELTAS,
) -> xr.Dataset:
    r"""Price one joint posterior draw with sigma_u fixed, plugged in, and estimated.

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate``, ``variance`` and ``sensitivity`` on dim ``area``, as :func:`hajek` returns
        them. An area without sample needs no sensitivity.
    formula, covariates
        As for :func:`fay_herriot`.
    sigma_u : float, optional
        The fixed value. By default the REML estimate, and the attributes say so.
    prior : PyMC distribution, optional
        Prior of sigma_u for the estimated curve, such as ``pm.HalfNormal.dist(0.1)``. By default
        HalfNormal with a scale of a quarter of the outcome's declared range.
    order : array_like
        Renyi orders above 1.
    delta : array_like
        Probabilities between 0 and 1.

    Returns
    -------
    xr.Dataset
        For a record of each area (dim ``area``): on ``order``, ``rdp_fixed``, ``rdp_plug_in``,
        ``rdp_estimated`` and ``ratio``, estimated over fixed; ``rdp_pairs`` by ``pair`` of
        neighbouring data sets; on ``delta``, ``epsilon_fixed``, ``epsilon_plug_in``,
        ``epsilon_estimated`` and, for a like comparison with the last, ``epsilon_fixed_zcdp``;
        ``quadrature_error``. About sigma_u: ``sigma_u_mean``, ``sigma_u_sd``,
        ``sigma_u_quantile`` (``quantile``).

    Raises
    ------
    ValueError
        If the inputs or the prior are unusable, sensitivities are missing, negative or infinite
        (naming the areas) or raised for units in several areas, sigma_u is negative or not
        finite, or an order or delta is out of range.

    Notes
    -----
    With sigma_u fixed the divergence of order alpha is
    :math:`\alpha s_j^2 \Sigma_{jj} / (2 D_j^2)`, whatever the data. With sigma_u estimated it is
    :math:`[K_j(\alpha t) - \alpha K_j(t)] / (\alpha - 1)`, :math:`K_j` the cumulant generating
    function of :math:`\theta_j` under the neighbour's posterior and :math:`t = \pm s_j / D_j`:
    a record then also moves what is learned about sigma_u. It depends on the data, so the largest
    value over the worst neighbours, y against y - s and y + s both ways, holds for the data at
    hand and is no formal guarantee. At high orders it reaches ``D_j / Sigma_jj`` times the fixed
    figure: far tilts push sigma_u up until the model no longer shrinks.

    ``epsilon_estimated`` is the least value, over the given orders and 48 more around the best
    one, of the conversion of Canonne, Kamath and Steinke (2020): within 0.3 % above its minimum.

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
    >>> costs = compare_variance_components(
    ...     direct, sigma_u=0.05, prior=pm.HalfNormal.dist(0.05), order=[2, 32]
    ... )
    >>> costs["ratio"].sel(area="east").round(2).values
    array([1.02, 2.77])
    """
    data = area_data(direct, formula, covariates)
    sensitivity = direct_sensitivity(direct, data)
    refuse_spanning(direct, "compare_variance_components moves one direct estimate at a time")
    orders, deltas = checked_orders(order), checked_deltas(delta)
    if sigma_u is not None and not (isinstance(sigma_u, Real) and 0 <= sigma_u < math.inf):
        raise ValueError("sigma_u must be a finite number, zero or positive")
    reml = math.sqrt(between_variance(sample_of(data), "reml"))
    fixed = reml if sigma_u is None else float(sigma_u)
    rho_fixed, rho_plug_in = (fixed_rho(data, sensitivity, sigma) for sigma in (fixed, reml))
    read_prior = sigma_prior(prior, data.bounds)
    found = posterior_of_sigma_u(data, read_prior)
    rule = found.rule
    pairs, epsilon, error = _estimated(found, data, sensitivity, rho_fixed, orders, deltas)

    rdp_fixed = privacy.rdp(rho_fixed[:, None], orders)
    estimated = pairs.max(axis=2)
    with np.errstate(invalid="ignore"):
        ratio = estimated / rdp_fixed
    sigma = rule.sigma.ravel()
    mean = rule.expectation(sigma)
    result = xr.Dataset(
        {
            "rdp_fixed": (("area", "order"), rdp_fixed),
            "rdp_plug_in": (("area", "order"), privacy.rdp(rho_plug_in[:, None], orders)),
            "rdp_estimated": (("area", "order"), estimated),
            "rdp_pairs": (("area", "order", "pair"), pairs),
            "ratio": (("area", "order"), ratio),
            "epsilon_fixed": (("area", "delta"), privacy.epsilon(rho_fixed[:, None], deltas)),
            "epsilon_plug_in": (("area", "delta"), privacy.epsilon(rho_plug_in[:, None], deltas)),
            "epsilon_fixed_zcdp": (
                ("area", "delta"),
                privacy.epsilon_zcdp(rho_fixed[:, None], deltas),
            ),
            "epsilon_estimated": (("area", "delta"), epsilon),
            "quadrature_error": ("area", error),
            "sigma_u_mean": ((), mean),
            "sigma_u_sd": ((), np.sqrt(rule.expectation((sigma - mean) ** 2))),
            "sigma_u_quantile": ("quantile", rule.quantile(QUANTILES)),
        },
        coords={
            "area": list(data.area),
            "order": orders,
            "delta": deltas,
            "pair": list(PAIRS),
            "quantile": QUANTILES,
        },
        attrs={
            "sigma_u_fixed": fixed,
            "sigma_u_fixed_source": "given" if sigma_u is not None else "REML, from the same data",
            "sigma_u_reml": reml,
            "sigma_u_prior": read_prior.words,
            "privacy": "computed from the direct estimates, for study: not itself private",
        },
    )
    for name, words in LONG_NAMES.items():
        result[name].attrs["long_name"] = words
        if name.startswith(("rdp", "epsilon", "ratio")):
            learned = "estimated" in name or name in ("rdp_pairs", "ratio")
            result[name].attrs["claim"] = ESTIMATED if learned else CONDITIONAL
    return result


def checked_orders(order: npt.ArrayLike) -> Array:
    """Renyi orders as a vector, each above 1 and finite."""
    orders = np.atleast_1d(np.asarray(privacy.rdp(1.0, order)))
    if not np.isfinite(orders).all():
        raise ValueError("orders must be finite")
    return orders


def checked_deltas(delta: npt.ArrayLike) -> Array:
    """Probabilities as a vector."""
    privacy.epsilon(1.0, delta)  # refuses what is not a probability
    return np.atleast_1d(np.asarray(delta, dtype=float))


def _estimated(
    found: SigmaPosterior,
    data: AreaData,
    sensitivity: Array,
    rho_fixed: Array,
    orders: Array,
    deltas: Array,
) -> tuple[Array, Array, Array]:
    """Divergences by pair, epsilon and quadrature error; zero where nothing can move."""
    at = np.flatnonzero(sensitivity > 0)
    residual = data.estimate[at] - data.design[at] @ found.centre
    records = Records(residual, data.variance[at], data.design[at], sensitivity[at])
    unshrunk = sensitivity[at] ** 2 / (2 * data.variance[at])
    more = _conversion_orders(rho_fixed[at], unshrunk, deltas)
    asked = np.broadcast_to(orders, (at.size, orders.size))
    every = np.concatenate([asked, more], axis=1)
    values, found_error = renyi_divergences(found.rule, records, every)

    pairs = np.zeros((sensitivity.size, orders.size, len(PAIRS)))
    epsilon = np.zeros((sensitivity.size, deltas.size))
    error = np.zeros(sensitivity.size)
    pairs[at], error[at] = values[:, : orders.size], found_error
    epsilon[at] = _epsilon(values.max(axis=2), every, deltas)
    return pairs, epsilon, error


def _conversion_orders(rho: Array, unshrunk: Array, deltas: Array) -> Array:
    """Orders around the best one for epsilon, for each area; (n, 48).

    For a line of slope rho the best ``order - 1`` is about ``sqrt(log(1 / delta) / rho)``; the
    slope lies between that at a fixed sigma_u and that without shrinkage, roughly.
    """
    surprise = -np.log(np.clip(deltas, 1e-300, 0.5))
    low = np.sqrt(surprise.min() / np.maximum(rho, unshrunk)) / 4
    high = np.sqrt(surprise.max() / np.minimum(rho, unshrunk)) * 1.5
    low, high = np.minimum(low, HIGHEST_ORDER / 10), np.minimum(high, HIGHEST_ORDER)
    steps = np.linspace(0.0, 1.0, CONVERSION_ORDERS)
    return np.asarray(1 + low[:, None] * (high / low)[:, None] ** steps)


def _epsilon(rdp: Array, order: Array, delta: Array) -> Array:
    """Least epsilon over the orders, from the curve (n, U); (n, deltas), never below 0."""
    constant = rdp + np.log1p(-1 / order) - np.log(order) / (order - 1)
    with np.errstate(divide="ignore"):
        surprise = -np.log(delta)
    by_order = constant[:, :, None] + surprise / (order - 1)[:, :, None]
    return np.asarray(np.maximum(by_order.min(axis=1), 0.0))
