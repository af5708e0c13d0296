"""Pictures for choosing a budget: what makes areas costly, and accuracy against privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_dp._checks import rounded
from pymc_dp.plots.data import check_result
from pymc_dp.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    claim_title,
    legend,
    log_axis,
    new_axes,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES: tuple[tuple[str, Any], ...] = (
    (BLUE, "-"),
    (ORANGE, "--"),
    (GREEN, "-."),
    (VERMILLION, "-"),
    (PURPLE, ":"),
    (SKY, (0, (5, 1))),
    ("0.4", (0, (1, 1))),
)


def plot_drivers(data: xr.Dataset, *, ax: Axes | None = None) -> Axes:
    """Plot each driver's share of the variance of log rho over areas.

    Parameters
    ----------
    data : xr.Dataset
        What :func:`guarantee_drivers` returned.
    ax : matplotlib Axes, optional
        By default on a new figure.

    Returns
    -------
    matplotlib Axes
        One bar per driver, its share without unit; the shares add up to 1 and may be negative.

    Raises
    ------
    ValueError
        If the data has no shares, or all prices are equal.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import guarantee_drivers, plan
    >>> areas = xr.Dataset(
    ...     {
    ...         "variance": ("area", [0.002, 0.001, 0.001]),
    ...         "sensitivity": ("area", [0.05, 0.02, 0.01]),
    ...         "n": ("area", [100, 150, 200]),
    ...         "n_eff": ("area", [60, 110, 170]),
    ...     },
    ...     coords={"area": ["north", "south", "west"]},
    ... )
    >>> axes = plot_drivers(guarantee_drivers(areas, plan(areas, sigma_u=0.05)))
    >>> [label.get_text() for label in axes.get_yticklabels()][:3]
    ['sample size', 'weight inequality', 'outcome variance']
    """
    check_result(data, "guarantee_drivers", ["share", "rank_correlation"])
    share = data["share"].to_series()
    if share.isna().any():
        raise ValueError("all areas have the same price: there is nothing to decompose")
    correlation = data["rank_correlation"].to_series()
    ax = new_axes(1, (7, 3.4))[0] if ax is None else ax
    place = np.arange(len(share))[::-1]
    colors = [BLUE if value >= 0 else ORANGE for value in share]
    ax.barh(place, share, color=colors, height=0.6)
    ax.axvline(0, color="0.3", linewidth=0.8)
    span = max(share.max(), 0) - min(share.min(), 0)
    for y, name in zip(place, share.index, strict=True):
        rank = correlation[name]
        words = "constant" if np.isnan(rank) else f"rank correlation {rank:.2f}"
        ax.annotate(
            f"{round(share[name], 2) + 0.0:.2f}  ({words})",
            (max(share[name], 0) + 0.015 * span, y),
            va="center",
            fontsize="small",
        )
    ax.set_xlim(min(share.min(), 0) - 0.05 * span, max(share.max(), 0) + 0.62 * span)
    ax.set_yticks(place, list(share.index))
    ax.set_xlabel(r"share of the variance of $\log\rho$ over areas")
    m, unit = data.sizes["area"], plain(data.attrs["unit"])
    record = {"claim_words": data.attrs["claim"]}
    claim_title(ax, f"What makes areas costly: {m} areas, unit: {unit}", record)
    return ax


def plot_frontier(
    data: xr.Dataset,
    *,
    ax: Axes | None = None,
    rho: float | None = None,
    way: str = "temper",
) -> Axes:
    """Plot accuracy against privacy for each way to meet a budget, and mark the chosen point.

    Parameters
    ----------
    data : xr.Dataset
        What :func:`frontier` returned.
    ax : matplotlib Axes, optional
        By default on a new figure.
    rho : float, optional
        The budget chosen, within the grid; marked on the curve of `way`.
    way : str

    Returns
    -------
    matplotlib Axes
        Budgets rho and root mean squared errors (unit of the outcome), both logarithmic.

    Raises
    ------
    ValueError
        If the data is no frontier, has too many curves to distinguish, the way is unknown, or
        rho lies outside the grid.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import frontier, planned_release
    >>> areas = xr.Dataset(
    ...     {"variance": ("area", [0.01, 0.02]), "sensitivity": ("area", [0.03, 0.05])},
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"outcome_bounds": [0.0, 1.0]},
    ... )
    >>> curves = frontier(planned_release(areas, sigma_u=0.05), rho=[0.01, 0.02, 0.03])
    >>> axes = plot_frontier(curves, rho=0.02)
    >>> axes.get_legend().get_texts()[-1].get_text()
    'chosen: temper, rho 0.02'
    """
    check_result(data, "frontier", ["rmse", "way", "rho", "rho_now", "rmse_now"])
    rmse, grid = data["rmse"], data["rho"].values
    ways = [str(name) for name in data["way"].values]
    if len(ways) > len(LINES):
        raise ValueError(f"at most {len(LINES)} ways can be distinguished, not {len(ways)}")
    if way not in ways:
        raise ValueError(f"no way {way!r} in the frontier")
    ax = new_axes(1, (7, 4.8))[0] if ax is None else ax
    key, colors = [], {}
    for name, (color, style) in zip(ways, LINES, strict=False):
        colors[name] = color
        [line] = ax.plot(grid, rmse.sel(way=name), color=color, linestyle=style, linewidth=1.8)
        key.append((plain(name), line))
    [now] = ax.plot(data["rho_now"], data["rmse_now"], "D", color="0.3", mfc="none", ms=8, mew=1.5)
    key.append(("the draw without calibration", now))
    if rho is not None:
        if not grid[0] <= rho <= grid[-1]:
            raise ValueError("the chosen rho lies outside the grid of the frontier")
        curve = rmse.sel(way=way).values
        height = np.exp(np.interp(np.log(rho), np.log(grid), np.log(curve)))
        [chosen] = ax.plot(rho, height, "*", color=colors[way], ms=14, mec="0.2", mew=0.6)
        key.append((f"chosen: {plain(way)}, rho {rounded(rho, 6)}", chosen))
    log_axis(ax, "x", ratio=grid[-1] / grid[0])
    log_axis(ax, "y", ratio=float(rmse.max() / rmse.min()))
    ax.set_xlabel(r"price $\rho$ (zCDP) of the release")
    ax.set_ylabel("root mean squared error, smoothed\n(unit of the outcome)")
    claim_title(ax, "Accuracy against privacy", {"claim_words": data.attrs["claim"]})
    legend(ax, key, loc="upper right")
    return ax
