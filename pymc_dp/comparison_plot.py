"""The picture of what it costs that sigma_u is learned from the same data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_dp.plot_parts import BLUE, PURPLE, VERMILLION, legend, log_axis, new_axes, plain
from pymc_dp.record import CONDITIONAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = {
    "rdp_fixed": ("sigma_u fixed", BLUE, "-"),
    "rdp_plug_in": ("sigma_u plugged in (REML)", PURPLE, ":"),
    "rdp_estimated": ("sigma_u estimated, for the data at hand", VERMILLION, "--"),
}


def plot_variance_components(
    comparison: xr.Dataset, *, area: str | None = None, axes: Sequence[Axes] | None = None
) -> list[Axes]:
    r"""Plot Renyi curves with sigma_u fixed, plugged in and estimated, and their ratio.

    Parameters
    ----------
    comparison : xr.Dataset
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
    missing = [name for name in (*CURVES, "ratio") if name not in comparison]
    if missing:
        raise ValueError(f"not a result of compare_variance_components: it lacks {missing}")
    # An area without sample has no record, hence no ratio.
    data = comparison.isel(area=np.flatnonzero((comparison["rdp_fixed"] > 0).all("order")))
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
