"""Direct estimates of neighbouring data sets: each area's heaviest units changed one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pymc_dp.posterior import Array
from pymc_dp.survey import hajek
from pymc_dp.survey_frames import on_driver

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame

Indices = npt.NDArray[np.int64]


class Change(NamedTuple):
    """Every area with one of its units changed: its new direct estimate and sampling variance."""

    estimate: Array  # (m,), in the order of :func:`hajek`
    variance: Array  # (m,)


def changes_of_heaviest(data: IntoFrame, options: dict[str, Any], records: int) -> Iterator[Change]:
    """Change the heaviest unit of every area, then the second, and so on.

    Areas share no records, so one pass over the data changes a unit in each of them.

    Parameters
    ----------
    data : dataframe
    options : dict
        Keyword arguments of :func:`hajek`, with ``outcome``, ``weight``, ``area``, ``bounds`` and
        ``unit`` among them.
    records : int
        How many units of each area; units of equal weight in the order of their first rows.

    Yields
    ------
    Change
        With the outcomes of the units at the other end of the range, where single records are at
        an end already; else all at the lower end, then all at the upper.
    """
    import narwhals as nw

    frame = on_driver(nw.from_native(data))
    name = options["outcome"]
    y, w = (_numbers(frame, options[key]) for key in ("outcome", "weight"))
    usable = np.isfinite(y) & (w > 0)
    if options.get("universe") is not None:
        usable &= _numbers(frame, options["universe"]) == 1
    rank = _rank(frame, options, np.where(usable, w, 0.0))
    low, high = (float(b) for b in options["bounds"])
    for k in range(min(records, int(rank.max()) + 1)):
        chosen = rank == k
        at_ends = options["unit"] is None and np.isin(y[chosen], [low, high]).all()
        for values in [low + high - y] if at_ends else [low, high]:
            new = np.where(chosen, values, y)
            column = nw.new_series(name, new, nw.Float64, backend=frame.implementation)
            changed = hajek(frame.with_columns(column).to_native(), **options)
            yield Change(changed["estimate"].values, changed["variance"].values)


def _numbers(frame: Any, name: str) -> Array:
    """Read a column as floats, NaN where it is missing."""
    import narwhals as nw

    return np.array(frame.select(nw.col(name).cast(nw.Float64))[name].to_list(), dtype=float)


def _rank(frame: Any, options: dict[str, Any], weight: Array) -> Indices:
    """Rank of each row's unit among the units of its area, heaviest 0; -1 for unusable rows."""
    used = np.flatnonzero(weight > 0)
    area = _codes(frame, options["area"])[used]
    unit = np.arange(used.size) if options["unit"] is None else _codes(frame, options["unit"])[used]
    # Units are numbered by first row; one with records in two areas counts as one in each.
    unit, first = _number(area * (unit.max() + 1) + unit)
    total = np.bincount(unit, weight[used])
    order = np.lexsort((-total, area[first]))
    start = np.searchsorted(area[first][order], np.arange(area.max() + 1))
    place = np.empty(total.size, dtype=np.int64)
    place[order] = np.arange(total.size) - start[area[first][order]]
    rank = np.full(weight.size, -1)
    rank[used] = place[unit]
    return rank


def _codes(frame: Any, columns: str | Sequence[str]) -> Indices:
    """Number the distinct values, or combinations of values, of columns."""
    codes = np.zeros(len(frame), dtype=np.int64)
    for name in [columns] if isinstance(columns, str) else columns:
        column = np.array(frame[name].to_list(), dtype=object)
        values, _ = pd.factorize(column, use_na_sentinel=False)
        codes, _ = _number(codes * (values.max() + 1) + values)
    return codes


def _number(values: Indices) -> tuple[Indices, Indices]:
    """Number distinct values in the order of their first positions, which come second."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(by_first.size)
    return rank[inverse], first[by_first]
