"""What a survey's weights alone say of each area, before there is any outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import xarray as xr

from pymc_dp._checks import name_some, text_labels
from pymc_dp.survey.estimate import hajek

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
