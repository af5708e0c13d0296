"""What the survey sums need of an engine: flags, keys, and the few rows that come to the driver.

Engines agree on the sum, minimum, maximum and number of plain columns and on little else inside a
group, so every product, comparison and cast is a column of its own first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Frame = Any  # an eager or a lazy narwhals frame
Table = dict[str, "NDArray[np.float64]"]


def lazily(data: Any) -> Frame:
    """Take the user's frame; an eager Polars frame as a lazy one, whose columns are computed once.

    Other eager frames stay eager: their engines would gain nothing.
    """
    import narwhals as nw

    frame = nw.from_native(data)
    eager_polars = isinstance(frame, nw.DataFrame) and frame.implementation.is_polars()
    return frame.lazy() if eager_polars else frame


def on_driver(frame: Frame) -> Frame:
    """Fetch a result: what an engine needs for it differs, and none needs more than is here."""
    import narwhals as nw

    if not isinstance(frame, nw.LazyFrame):
        return frame
    if frame.implementation.is_polars():
        # Streaming reads a file batch by batch and is no slower in memory.
        return frame.collect(backend="polars", engine="streaming")
    if frame.implementation.is_spark_like():
        return frame.collect()
    # Dask computes pandas frames; DuckDB and Ibis need PyArrow for their default.
    return frame.collect(backend="pandas")


def collect(frame: Frame, keys: Sequence[str]) -> tuple[list[list[Any]], Table]:
    """Fetch rows, in the order of their keys as text: the values of each key, and the numbers.

    A sum over no values is null on some engines and 0 on others; a missing number becomes 0 here.
    """
    rows = on_driver(frame)
    values = [_values(rows.get_column(key)) for key in keys]
    order = sorted(range(len(rows)), key=lambda row: " ".join(str(v[row]) for v in values))
    numbers = [name for name in rows.columns if name not in keys]
    table = {name: _numbers(rows.get_column(name))[order] for name in numbers}
    return [[v[row] for row in order] for v in values], table


def texts(values: Sequence[Any]) -> list[str | None]:
    """Values of a key as text, None where it is missing."""
    return [None if value is None else str(value) for value in values]


def flag(condition: Any, unknown: int = 0) -> Any:
    """Turn a condition into 0 or 1; into `unknown` where an engine answers null."""
    import narwhals as nw

    return condition.cast(nw.Int64).fill_null(unknown)


def total(*names: str) -> Any:
    """Add columns within a row."""
    import narwhals as nw

    return reduce(add, map(nw.col, names))


def is_missing(column: Any) -> Any:
    """Whether a number is null or not a number: one and the same on some engines only."""
    return column.is_null() | column.is_nan()


def is_blank(names: Sequence[str], schema: Any) -> Any:
    """Whether any of the columns has no number or name, as 0 or 1."""
    import narwhals as nw

    conditions = []
    for name in names:
        column, dtype = nw.col(name), schema[name]
        conditions.append(column.is_null())
        if dtype.is_float():
            conditions.append(column.is_nan())
        if dtype == nw.String:
            conditions.append(column == "")
    return flag(reduce(or_, conditions), unknown=1) if conditions else nw.lit(0)


def _values(series: Any) -> list[Any]:
    """Values of a key; None where it is null or not a number."""
    pairs = zip(series.to_list(), series.is_null().to_list(), strict=True)
    return [None if null or value != value else value for value, null in pairs]


def _numbers(series: Any) -> NDArray[np.float64]:
    import narwhals as nw

    numbers = np.array(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
    missing = np.array(series.is_null().to_list(), dtype=bool)
    numbers[missing] = 0.0
    return numbers
