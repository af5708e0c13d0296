"""The whole guarantee before there is any outcome: from weights, covariates and sigma_u.

Nothing here takes an outcome, so plans may be made, compared and thrown away at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp.calibration import Method
from pymc_dp.checks import declared_bounds, name_some, text_labels
from pymc_dp.html import record_price
from pymc_dp.law import Mechanism
from pymc_dp.models import fay_herriot
from pymc_dp.record import read_record
from pymc_dp.release import PrivateRelease
from pymc_dp.survey import hajek

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame


def weight_table(
    data: IntoFrame,
    *,
    weight: str,
    area: str | Sequence[str],
    rate: float,
    unit: str | Sequence[str] | None = None,
    design_factor: float = 1.0,
) -> xr.Dataset:
    """What the weights alone say of every area: sampling variance and sensitivity of a share.

    Parameters
    ----------
    data : dataframe
        One row a respondent, whatever narwhals reads. Only the columns named here are read.
    weight, area, unit
        As for :func:`hajek`.
    rate : float
        Public rate ``P`` of the outcome, not computed from the same file.
    design_factor : float, default 1
        Public factor of the variance, for outcomes alike within households or clusters.

    Returns
    -------
    xr.Dataset
        On ``area``: ``variance`` (``P (1 - P) / n_eff`` times the factor), ``sensitivity``, ``n``,
        ``n_units``, ``sum_weights``, ``max_weight``, ``n_eff``, as :func:`hajek` returns them
        with ``variance="kish"`` for the same respondents. There is no estimate.

    Raises
    ------
    ValueError
        As :func:`hajek` does about weights, areas, units and the rate.

    Examples
    --------
    >>> import pandas as pd
    >>> people = pd.DataFrame({"county": list("AAAB"), "weight": [20, 30, 50, 40]})
    >>> table = weight_table(people, weight="weight", area="county", rate=0.2)
    >>> table["sensitivity"].values.round(6)
    array([0.5, 1. ])
    """
    import narwhals as nw

    frame = nw.from_native(data)
    constant = "outcome"
    while constant in frame.collect_schema():
        constant += "_"
    described = hajek(
        frame.with_columns(nw.lit(0.0).alias(constant)).to_native(),
        outcome=constant,
        weight=weight,
        area=area,
        unit=unit,
        variance="kish",
        rate=rate,
        design_factor=design_factor,
    )
    return described.drop_vars([name for name in ("estimate", "n_dropped") if name in described])


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
    variance = (areas["variance"] * variance_factor).assign_attrs(areas["variance"].attrs)
    middle = xr.full_like(variance, (low + high) / 2).where(variance.notnull())
    model = fay_herriot(
        xr.Dataset({"estimate": middle, "variance": variance}),
        formula,
        covariates,
        sigma_u=float(sigma_u),
        beta_prior=beta_prior,
    )
    release = PrivateRelease(
        model,
        areas["sensitivity"].assign_attrs(attrs),
        mechanism=mechanism,
        assumptions=assumptions,
    )
    release._parts = replace(release._parts, planned=True)
    return release


def pool(areas: xr.Dataset, groups: Mapping[str, str] | pd.Series) -> xr.Dataset:
    r"""Areas put together, or years of one area, as they would enter a plan.

    Parameters
    ----------
    areas : xr.Dataset
        ``variance``, ``sensitivity`` and ``sum_weights`` on ``area``.
    groups : dict or Series
        Area label to the label of its group; every area needs one.

    Returns
    -------
    xr.Dataset
        ``variance``, ``sensitivity``, ``sum_weights`` and, if given, ``n`` and ``n_units``, on
        the groups as ``area``, sorted.

    Raises
    ------
    ValueError
        If variables are missing, or areas have no group.

    Notes
    -----
    The pooled Hajek estimate is :math:`\sum_i W_i y_i / \sum_i W_i` with the sums of weights
    :math:`W_i`, so its variance is :math:`\sum_i (W_i / W)^2 D_i` for independent samples, and
    one unit moves it by at most :math:`\max_i (W_i / W) s_i`. A unit with records in several areas
    of a group needs :func:`weight_table` on the pooled records instead.

    Examples
    --------
    >>> import xarray as xr
    >>> areas = xr.Dataset(
    ...     {
    ...         "variance": ("area", [0.01, 0.01]),
    ...         "sensitivity": ("area", [0.02, 0.04]),
    ...         "sum_weights": ("area", [300.0, 100.0]),
    ...     },
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> pool(areas, {"north": "all", "south": "all"})["sensitivity"].values
    array([0.015])
    """
    needed = ("variance", "sensitivity", "sum_weights")
    absent = [name for name in needed if name not in areas]
    if absent:
        raise ValueError(f"pooling needs {name_some(absent)}")
    labels = text_labels(areas["area"].values)
    known = {str(a): str(g) for a, g in dict(groups).items()}
    without = [a for a in labels if a not in known]
    if without:
        raise ValueError(f"no group for {len(without)} areas: {name_some(without)}")
    counts = [name for name in ("n", "n_units") if name in areas]
    table = areas[[*needed, *counts]].to_dataframe().set_axis(labels, axis=0)[[*needed, *counts]]
    sampled = table[table["variance"].notna()]
    by = pd.Index([known[a] for a in sampled.index], name="area")
    share = sampled["sum_weights"] / sampled["sum_weights"].groupby(by).transform("sum")
    pooled = sampled[["sum_weights", *counts]].groupby(by).sum()
    pooled["variance"] = (share**2 * sampled["variance"]).groupby(by).sum()
    pooled["sensitivity"] = (share * sampled["sensitivity"]).groupby(by).max()
    result = xr.Dataset.from_dataframe(pooled.sort_index()).assign_attrs(areas.attrs)
    for name in ("variance", "sensitivity"):
        result[name].attrs = dict(areas[name].attrs)
    return result


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
