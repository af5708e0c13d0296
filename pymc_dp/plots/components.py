"""Pictures of what it costs that variance components are learned from the same data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_dp._checks import round_up
from pymc_dp.plots.data import check_result
from pymc_dp.plots.style import (
    BLUE,
    PURPLE,
    VERMILLION,
    claim_title,
    legend,
    log_axis,
    new_axes,
    plain,
)
from pymc_dp.record.claims import CONDITIONAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pymc_dp.plots.style import Key

CURVES = {
    "rdp_fixed": ("sigma_u fixed", BLUE, "-"),
    "rdp_plug_in": ("sigma_u plugged in (REML)", PURPLE, ":"),
    "rdp_estimated": ("sigma_u estimated, for the data at hand", VERMILLION, "--"),
}


def plot_variance_components(
    data: xr.Dataset, *, area: str | None = None, axes: Sequence[Axes] | None = None
) -> list[Axes]:
    r"""Plot Renyi curves with sigma_u fixed, plugged in and estimated, and their ratio.

    Parameters
    ----------
    data : xr.Dataset
        Result of :func:`compare_variance_components`.
    area : str, optional
        The area of the first panel; by default the one where estimating costs most, relatively.
    axes : two matplotlib Axes, optional
        By default on a new figure.

    Returns
    -------
    list of two matplotlib Axes
        First, the divergence (nats) of a record of one area against the order. Second, the
        estimated divergence over the fixed one against the order: all areas, their middle half,
        and the median. Logarithmic axes.

    Raises
    ------
    ValueError
        If the data set is no result of :func:`compare_variance_components`, or lacks the area.

    Examples
    --------
    >>> import pymc as pm
    >>> import xarray as xr
    >>> from pymc_dp import compare_variance_components
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3, 0.2]),
    ...         "variance": ("area", [0.01, 0.02, 0.01]),
    ...         "sensitivity": ("area", [0.02, 0.05, 0.03]),
    ...     },
    ...     coords={"area": ["north", "east", "south"]},
    ... )
    >>> costs = compare_variance_components(
    ...     direct, sigma_u=0.05, prior=pm.HalfNormal.dist(0.05), order=[2, 4, 8, 16, 32]
    ... )
    >>> curves, ratio = plot_variance_components(costs, area="east")
    >>> ratio.get_ylabel()
    'estimated / fixed'
    """
    check_result(data, "compare_variance_components", [*CURVES, "ratio"])
    # An area without sample has no record, hence no ratio.
    data = data.isel(area=np.flatnonzero((data["rdp_fixed"] > 0).all("order")))
    if area is None:
        area = str(data["area"].values[int(data["ratio"].max("order").values.argmax())])
    if area not in data["area"].values:
        raise ValueError(f"no area {area!r} with a sample in the comparison")
    left, right = new_axes(2, (10, 4.5), sharey=False) if axes is None else axes

    order = data["order"].values
    key = []
    for name, (words, colour, style) in CURVES.items():
        [line] = left.plot(order, data[name].sel(area=area), style, color=colour, linewidth=2)
        key.append((words, line))
    left.set_ylabel("Rényi divergence (nats)")
    left.set_title(f"A record of {plain(area)}\n{CONDITIONAL}", loc="left", fontsize="medium")
    legend(left, key, loc="upper left")

    low, q1, median, q3, high = data["ratio"].quantile([0, 0.25, 0.5, 0.75, 1], "area").values
    everybody = right.fill_between(order, low, high, color=VERMILLION, alpha=0.18, linewidth=0)
    half = right.fill_between(order, q1, q3, color=VERMILLION, alpha=0.45, linewidth=0)
    [middle] = right.plot(order, median, color=VERMILLION)
    right.axhline(1, color="0.4", linewidth=1)
    right.set_ylabel("estimated / fixed")
    right.set_title("What estimating sigma_u adds", loc="left", fontsize="medium")
    legend(
        right,
        [("all areas", everybody), ("half of them", half), ("median area", middle)],
        loc="upper left",
    )
    log_axis(left, "y")
    log_axis(right, "y", ratio=high.max() / min(low.min(), 1))
    for ax in (left, right):
        ax.set_xlabel(r"order $\alpha$")
        log_axis(ax, "x", base=2)
        ax.set_xlim(order.min(), order.max())
    return [left, right]


ORDER = 8.0  # of the sentence about infinite divergences, if the data set has it


def plot_proviso(data: xr.Dataset, *, ax: Axes | None = None, delta: float | None = None) -> Axes:
    r"""Plot the exact epsilon of each area against the conditional one.

    Parameters
    ----------
    data : xr.Dataset
        Result of :func:`check_proviso`.
    ax : matplotlib Axes, optional
        By default on a new figure.
    delta : float, optional
        One of the data set's; by default the middle one.

    Returns
    -------
    matplotlib Axes
        Epsilon without unit, both axes logarithmic. Areas above the line are worse protected than
        printed, the worst is named; an infinite epsilon is a triangle at the upper edge. The title
        says in how many areas the Renyi divergence is infinite.

    Raises
    ------
    ValueError
        If the data set is no result of :func:`check_proviso`, or `delta` is not among its values.

    Examples
    --------
    >>> import pandas as pd
    >>> from pymc_dp import check_proviso
    >>> records = pd.DataFrame(
    ...     {
    ...         "county": ["A"] * 5 + ["B"] * 5,
    ...         "weight": [20, 30, 50, 20, 30, 40, 40, 30, 20, 25],
    ...         "smoker": [0, 1, 0, 0, 1, 1, 0, 0, 0, 1],
    ...     }
    ... )
    >>> found = check_proviso(
    ...     records, outcome="smoker", weight="weight", area="county", sigma_u=0.1
    ... )
    >>> axes = plot_proviso(found, delta=1e-6)
    >>> axes.get_xscale(), axes.get_yscale()
    ('log', 'log')
    """
    check_result(data, "check_proviso", ["epsilon_conditional", "epsilon_exact", "rdp_exact"])
    deltas, orders = data["delta"].values, data["order"].values
    chosen = deltas[deltas.size // 2] if delta is None else delta
    if chosen not in deltas:
        raise ValueError(f"delta {chosen:g} is not in the data set")
    data = data.sel(delta=chosen)
    data = data.isel(area=np.flatnonzero(data["epsilon_conditional"] > 0))
    ax = new_axes(1, (6.5, 5.5))[0] if ax is None else ax

    kinds = {"epsilon_exact": ("sampling variance recomputed", BLUE, "o")}
    if "epsilon_reestimated" in data:
        kinds["epsilon_reestimated"] = ("and sigma_u re-estimated (lower bound)", PURPLE, "x")
    found = np.stack([data[name].values for name in kinds])
    printed = data["epsilon_conditional"].values
    finite = found[np.isfinite(found) & (found > 0)]
    low = min(printed.min(), finite.min(initial=np.inf)) / 1.3
    high = max(printed.max(), finite.max(initial=0.0)) * 1.6
    [line] = ax.plot([low, high], [low, high], color="0.4", linewidth=1)
    key: Key = [("as printed", line)]
    for values, (words, color, marker) in zip(found, kinds.values(), strict=True):
        inside = np.isfinite(values)
        [points] = ax.plot(printed[inside], values[inside], marker, color=color, ms=5)
        ax.plot(printed[~inside], np.full((~inside).sum(), high / 1.1), "^", color=color, ms=7)
        key.append((words, points))
    worst = int(np.argmax(found[0]))
    if np.isfinite(found[0, worst]):
        figures = f"{round_up(found[0, worst])}, printed {round_up(printed[worst])}"
        ax.annotate(
            f"{plain(data['area'].values[worst])}: {figures}",
            (printed[worst], found[0, worst]),
            xytext=(-8, 4),
            textcoords="offset points",
            ha="right",
            color=VERMILLION,
            fontsize="small",
        )
    log_axis(ax, "x", ratio=printed.max() / printed.min())
    log_axis(ax, "y", ratio=high / low)
    ax.set_xlim(printed.min() / 1.3, printed.max() * 1.6)
    ax.set_ylim(low, high)
    ax.set_xlabel(rf"$\varepsilon$ at $\delta$ = {chosen:g}, treating variance components as fixed")
    ax.set_ylabel(rf"$\varepsilon$ at $\delta$ = {chosen:g}, largest found")
    order = ORDER if ORDER in orders else orders.max()
    count = int(np.isinf(data["rdp_exact"].sel(order=order)).sum())
    words = f"Rényi divergence infinite at order {order:g} in {count} of {data.sizes['area']} areas"
    claim_title(ax, words, {"claim_words": CONDITIONAL})
    legend(ax, key, loc="lower right")
    return ax
