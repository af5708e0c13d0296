"""The whole guarantee before there is any outcome: from weights, covariates and sigma_u.

Nothing here takes an outcome, so plans may be made, compared and thrown away at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._checks import declared_bounds, name_some
from pymc_dp.models.builder import fay_herriot
from pymc_dp.record.claims import Mechanism, Method, read_record
from pymc_dp.record.figures import record_price
from pymc_dp.record.origin import HAJEK, origin_of, public_mark
from pymc_dp.release.assemble import gather
from pymc_dp.release.release import PrivateRelease

if TYPE_CHECKING:
    pass


def plan(
    areas: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    sigma_u: float,
    variance_factor: float = 1.0,
    beta_prior: Any = None,
    mechanism: Mechanism = "joint",
    assumptions: Mapping[str, str] | None = None,
    rho: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    method: Method = "temper",
) -> xr.Dataset:
    """The guarantee that a release would have, from public quantities alone.

    Parameters
    ----------
    areas : xr.Dataset
        ``variance`` and ``sensitivity`` on ``area``, from :func:`weight_table` or
        :func:`hajek`, with the attributes ``bounds`` and ``unit``. Nothing else is read.
    formula, covariates, sigma_u, beta_prior
        As for :func:`fay_herriot`; ``sigma_u`` is a number.
    variance_factor : float, default 1
        Multiplies every sampling variance: what if outcomes were more alike in clusters?
    mechanism, assumptions
        As for :class:`PrivateRelease`.
    rho, epsilon, delta, method
        A target to calibrate to, as for :meth:`PrivateRelease.calibrate`; none by default.

    Returns
    -------
    xr.Dataset
        Equal to :attr:`PrivateRelease.guarantee` of the release that is planned.

    Raises
    ------
    ValueError
        As :func:`fay_herriot`, :class:`PrivateRelease` and its ``calibrate`` do.

    Examples
    --------
    >>> import xarray as xr
    >>> areas = xr.Dataset(
    ...     {"variance": ("area", [0.01, 0.02]), "sensitivity": ("area", [0.02, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> round(float(plan(areas, sigma_u=0.05)["rho"]), 6)
    0.014286
    >>> round(float(plan(areas, sigma_u=0.05, rho=0.01)["rho"]), 6)
    0.01
    """
    release = planned_release(
        areas,
        formula,
        covariates,
        sigma_u=sigma_u,
        variance_factor=variance_factor,
        beta_prior=beta_prior,
        mechanism=mechanism,
        assumptions=assumptions,
    )
    if (rho, epsilon, delta) != (None, None, None):
        release = release.calibrate(rho, epsilon=epsilon, delta=delta, method=method)
    return release.guarantee


def planned_release(
    areas: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    sigma_u: float,
    variance_factor: float = 1.0,
    beta_prior: Any = None,
    mechanism: Mechanism = "joint",
    assumptions: Mapping[str, str] | None = None,
) -> PrivateRelease:
    """The release of a plan, with a constant in place of every direct estimate.

    For what can be asked without drawing: the guarantee, calibration and its report. A draw from
    it would be a draw about nobody, and is refused.

    Parameters
    ----------
    areas : xr.Dataset
        ``variance`` and ``sensitivity`` on ``area``, as :func:`weight_table` gives them.
    formula, covariates, beta_prior
        As in :func:`fay_herriot`.
    sigma_u : float
        Standard deviation of the area effects, in the outcome's unit.
    variance_factor : float
        The sampling variances are multiplied by it.
    mechanism, assumptions
        As in :class:`PrivateRelease`.

    Returns
    -------
    PrivateRelease

    Raises
    ------
    ValueError
        If the areas lack variances or sensitivities, or the factor is not positive.

    Examples
    --------
    >>> import xarray as xr
    >>> areas = xr.Dataset(
    ...     {"variance": ("area", [0.01, 0.02]), "sensitivity": ("area", [0.03, 0.05])},
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"outcome_bounds": [0.0, 1.0]},
    ... )
    >>> planned_release(areas, sigma_u=0.05).calibrate(rho=0.01).report.attrs["areas_touched"]
    2
    """
    absent = [name for name in ("variance", "sensitivity") if name not in areas]
    if absent:
        raise ValueError(f"a plan needs {name_some(absent)} on dim 'area'")
    if not (math.isfinite(variance_factor) and variance_factor > 0):
        raise ValueError("variance_factor must be positive and finite")
    attrs = {
        name: value
        for source in (areas.attrs, areas["sensitivity"].attrs)
        for name, value in source.items()
        if name in ("bounds", "outcome_bounds", "unit")
    }
    low, high = declared_bounds(attrs) or (0.0, 0.0)
    said = areas["variance"]
    variance = (said * variance_factor).assign_attrs(said.attrs)
    if origin_of(said.values, said.attrs) == HAJEK:  # a public factor changes nothing about that
        variance = variance.assign_attrs(public_mark(variance.values))
    middle = xr.full_like(variance, (low + high) / 2).where(variance.notnull())
    model = fay_herriot(
        xr.Dataset(
            {"estimate": middle, "variance": variance, "sensitivity": areas["sensitivity"]},
            attrs=attrs,
        ),
        formula,
        covariates,
        sigma_u=float(sigma_u),
        beta_prior=beta_prior,
    )
    return PrivateRelease(
        gather(
            model,
            areas["sensitivity"].assign_attrs(attrs),
            mechanism=mechanism,
            assumptions=assumptions,
            planned=True,
        )
    )


def compare_plans(plans: Mapping[str, xr.Dataset], *, delta: float = 1e-6) -> pd.DataFrame:
    """One row a plan: what the release costs, who sets the price, and how accurate it is.

    Parameters
    ----------
    plans : dict
        Name to what :func:`plan` or :attr:`PrivateRelease.guarantee` gave.
    delta : float
        Where epsilon is stated; among the values that a guarantee has.

    Returns
    -------
    DataFrame
        ``areas``, ``rho``, ``epsilon``, ``dearest_area``, ``median_rho`` (of the areas'
        own prices), ``smoothed_rmse``: root mean squared error of the smoothed draw under the
        model.

    Raises
    ------
    ValueError
        If a guarantee says nothing at that delta.

    Examples
    --------
    >>> import xarray as xr
    >>> areas = xr.Dataset(
    ...     {"variance": ("area", [0.01, 0.02]), "sensitivity": ("area", [0.03, 0.05])},
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"outcome_bounds": [0.0, 1.0]},
    ... )
    >>> plans = {f"sigma_u {s}": plan(areas, sigma_u=s) for s in (0.05, 0.1)}
    >>> compare_plans(plans)[["areas", "rho", "dearest_area"]].round(4)
                  areas     rho dearest_area
    sigma_u 0.05      2  0.0321        north
    sigma_u 0.1       2  0.0375        south
    """
    rows = {}
    for name, guarantee in plans.items():
        if delta not in guarantee["delta"].values:
            stated = ", ".join(f"{d:g}" for d in guarantee["delta"].values)
            raise ValueError(f"plan {name!r} states epsilon at delta {stated}, not at {delta:g}")
        price = record_price(guarantee, read_record(guarantee.attrs)).to_series()
        rows[name] = {
            "areas": guarantee.sizes["area"],
            "rho": guarantee["rho"].item(),
            "epsilon": guarantee["epsilon"].sel(delta=delta).item(),
            "dearest_area": price.idxmax(),
            "median_rho": price[price > 0].median(),
            "smoothed_rmse": float(np.sqrt((guarantee["theta_smoothed_sd"] ** 2).mean())),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
