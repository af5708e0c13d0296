"""What the survey sums need of an engine: flags, keys, and the few rows that come to the driver.

Engines agree on the sum, minimum, maximum and number of plain columns and on little else inside a
group, so every product, comparison and cast is a column of its own first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add, mul, or_
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.survey.columns import Sample

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


COUNTS = (
    *("rows", "missing_weight", "negative_weight", "infinite_weight", "missing_outcome"),
    *("outside", "missing_unit", "missing_stratum", "missing_cluster"),
    *("unknown_universe", "outside_universe", "dropped"),
)
SUMS = ("n", "weight", "squared_weight", "weighted_outcome")
PRODUCTS = ("weight_weight", "weight_outcome", "outcome_outcome")


def area_keys(sample: Sample) -> list[str]:
    """Names of the area columns in these frames, which no column of the user's can clash with."""
    return [f"area_{k}" for k in range(len(sample.area))]


def unit_keys(sample: Sample) -> list[str]:
    """Names of the unit columns in these frames; an area column among them is not kept twice."""
    areas = dict(zip(sample.area, area_keys(sample), strict=True))
    return [areas.get(name, f"unit_{k}") for k, name in enumerate(sample.unit)]


def read_records(frame: Frame, sample: Sample, more: Mapping[str, Any] | None = None) -> Frame:
    """One row a record: keys, weight, outcome, and what is in `more`, by the name it gets there.

    `n` is 1 where the record takes part; else 0, and weight and outcome are null. The outcome is
    taken as its deviation from the middle of the declared range, a public constant, so that large
    outcomes with small differences do not lose their digits in the sums.
    """
    import narwhals as nw

    weight, outcome, n = nw.col("weight"), nw.col("outcome"), nw.col("n")
    present = (weight > 0) & (weight <= sys.float_info.max)
    usable = flag(present & outcome.is_between(sample.bounds.low, sample.bounds.high))
    conditions = map(nw.col, _conditions(sample, frame.collect_schema()))
    return (
        _select(frame, sample, more or {})
        .with_columns(n=reduce(mul, conditions, usable))
        .with_columns(
            weight=nw.when(n == 1).then(weight),
            outcome=nw.when(n == 1).then(outcome - sample.bounds.middle),
        )
        .with_columns(squared_weight=weight * weight, weighted_outcome=weight * outcome)
    )


def _conditions(sample: Sample, schema: Any) -> dict[str, Any]:
    """Further 0 or 1 columns that must all be 1 for a record to take part, on the user's frame."""
    import narwhals as nw

    keys = (*sample.unit, *sample.strata, *sample.cluster)
    conditions = {"has_keys": 1 - is_blank(keys, schema)} if keys else {}
    if sample.universe is not None:
        conditions["in_universe"] = flag(nw.col(sample.universe).cast(nw.Float64) == 1)
    return conditions


def _select(frame: Frame, sample: Sample, more: Mapping[str, Any]) -> Frame:
    """Give columns the names they have in these frames, and numbers their type."""
    import narwhals as nw

    keys = dict(zip(area_keys(sample) + unit_keys(sample), sample.area + sample.unit, strict=True))
    conditions = _conditions(sample, frame.collect_schema())
    return frame.select(
        *(nw.col(name).alias(key) for key, name in keys.items()),
        nw.col(sample.weight).cast(nw.Float64).alias("weight"),
        nw.col(sample.outcome).cast(nw.Float64).alias("outcome"),
        *(column.alias(name) for name, column in (conditions | dict(more)).items()),
    )


def count_records(frame: Frame, sample: Sample) -> Table:
    """By area, in the order of `collect`: how many records there are of each kind of fault."""
    import narwhals as nw

    w, y, keys = nw.col("weight"), nw.col("outcome"), area_keys(sample)
    schema = frame.collect_schema()
    named = {"unit": sample.unit, "stratum": sample.strata, "cluster": sample.cluster}
    more = {f"missing_{noun}": is_blank(names, schema) for noun, names in named.items()}
    if sample.universe is not None:
        universe = nw.col(sample.universe).cast(nw.Float64)
        more["outside_universe"] = flag(universe == 0)
        more["unknown_universe"] = 1 - flag(universe == 0) - flag(universe == 1)
    else:
        more |= {"outside_universe": nw.lit(0), "unknown_universe": nw.lit(0)}
    inside = ("missing_weight", "negative_weight", "infinite_weight", "missing_outcome", "outside")
    counts = (
        _select(frame, sample, more)
        .with_columns(
            rows=nw.lit(1),
            missing_weight=flag(is_missing(w), unknown=1),
            negative_weight=flag(w < 0),
            legal_weight=flag(w.is_between(0, sys.float_info.max)),
            missing_outcome=flag(is_missing(y), unknown=1),
            inside=flag(y.is_between(sample.bounds.low, sample.bounds.high)),
        )
        .with_columns(
            infinite_weight=1 - total("legal_weight", "missing_weight", "negative_weight"),
            outside=1 - total("inside", "missing_outcome"),
            dropped=1 - nw.col("legal_weight") * (1 - nw.col("missing_outcome")),
        )
        .with_columns(
            *(nw.col(name) * (1 - nw.col("outside_universe")) for name in (*inside, "dropped"))
        )
        .group_by(*keys)
        .agg(*(nw.col(name).sum() for name in COUNTS))
    )
    return collect(counts, keys)[1]


def total_units(records: Frame, sample: Sample) -> Frame:
    """One row a unit (without unit columns: a record) with its totals and their products."""
    import narwhals as nw

    if not sample.unit:
        return add_products(records)
    keys = list(dict.fromkeys(area_keys(sample) + unit_keys(sample)))
    ends = _ends("outcome", "outcome")
    units = add_up(records, keys, SUMS, nw.len().alias("rows"), *ends)
    return add_products(units.with_columns(n_units=flag(nw.col("weight") > 0)))


def add_products(totals: Frame) -> Frame:
    """To rows of weights and weighted outcomes: the products of the two, each with each."""
    import narwhals as nw

    weight, outcome = nw.col("weight"), nw.col("weighted_outcome")
    return totals.with_columns(
        weight_weight=weight * weight,
        weight_outcome=weight * outcome,
        outcome_outcome=outcome * outcome,
    )


def total_areas(units: Frame, sample: Sample) -> Frame:
    """One row an area: sums over its units, their largest weight, and the ends of the outcomes."""
    import narwhals as nw

    keys, largest = area_keys(sample), nw.col("weight").max().alias("max_weight")
    if sample.unit:
        sums = (*SUMS, *PRODUCTS, "rows", "n_units")
        groups = nw.len().alias("groups")
        return add_up(units, keys, sums, largest, groups, *_ends("lowest", "highest"))
    rows = nw.len().alias("rows")
    return add_up(units, keys, (*SUMS, *PRODUCTS), largest, rows, *_ends("outcome", "outcome"))


def squared_deviations(units: Frame, areas: Frame, sample: Sample) -> Table:
    """By area: sum over units of (sum_k w_k (y_k - yhat))^2, in a second pass.

    The same sum follows from the products of the first pass, except where it is a small difference
    of large numbers.
    """
    keys = area_keys(sample)
    squares = add_deviations(units, areas, sample)
    return collect(add_up(squares, keys, ("square",)), keys)[1]


def add_deviations(totals: Frame, areas: Frame, sample: Sample) -> Frame:
    """To rows of summed weights and weighted outcomes: sum_k w_k (y_k - yhat) and its square."""
    import narwhals as nw

    keys = area_keys(sample)
    mean = (nw.col("weighted_outcome") / nw.col("weight")).alias("mean")
    deviation = nw.col("weighted_outcome") - nw.col("mean") * nw.col("weight")
    return (
        totals.join(areas.select(*keys, mean), on=keys, how="left")
        .with_columns(deviation=deviation)
        .with_columns(square=nw.col("deviation") * nw.col("deviation"))
    )


def count_spanning(records: Frame, units: Frame, groups: float, sample: Sample) -> int:
    """How many units have records in more than one area, of `groups` pairs of unit and area."""
    import narwhals as nw

    if not sample.unit or set(sample.area) <= set(sample.unit):
        return 0
    keys = unit_keys(sample)
    if _count_rows(records.select(*keys).unique()) == groups:
        return 0
    areas = add_up(units, keys, (), nw.len().alias("areas"))
    return _count_rows(areas.filter(nw.col("areas") > 1))


def _count_rows(frame: Frame) -> int:
    """How many rows there are, without fetching them."""
    import narwhals as nw

    one = frame.with_columns(one=nw.lit(1))
    return int(collect(add_up(one, ["one"], (), nw.len().alias("rows")), ["one"])[1]["rows"].sum())


def spanning_weights(units: Frame, sample: Sample) -> Table:
    """By area: the largest product of a unit's weight there and the number of its areas."""
    import narwhals as nw

    keys, unit = area_keys(sample), unit_keys(sample)
    present = units.filter(nw.col("weight") > 0)
    areas = add_up(present, unit, (), nw.len().alias("unit_areas"))
    reach = units.select(*dict.fromkeys(keys + unit), "weight").join(areas, on=unit, how="left")
    reach = reach.with_columns(reach=nw.col("weight") * nw.col("unit_areas").cast(nw.Float64))
    largest = (nw.col(name).max() for name in ("reach", "unit_areas"))
    return collect(add_up(reach, keys, (), *largest), keys)[1]


def _ends(low: str, high: str) -> tuple[Any, Any]:
    import narwhals as nw

    return nw.col(low).min().alias("lowest"), nw.col(high).max().alias("highest")


def add_up(frame: Frame, keys: Sequence[str], sums: Sequence[str], *more: Any) -> Frame:
    """Sum by group, and whatever `more` asks for."""
    import narwhals as nw

    return frame.group_by(*keys).agg(*(nw.col(name).sum() for name in sums), *more)
