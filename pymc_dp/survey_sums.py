"""Grouped sums over survey records, written once for every dataframe that narwhals reads.

Engines agree on the sum, minimum and maximum of plain columns and on little else inside a group, so
every product, comparison and cast is a column of its own first. Casts come before products: small
integers would overflow. Rows flow records -> units -> areas, and only area rows are collected.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING, Any

from pymc_dp.survey_checks import Bounds, Roles

if TYPE_CHECKING:
    from numpy.typing import NDArray

Frame = Any  # an eager or a lazy narwhals frame
Table = dict[str, "NDArray[Any]"]

# What a group adds up: a 0 or 1 of each record, amounts of each record, products of unit totals.
COUNTS = (
    *("rows", "missing_weight", "negative_weight", "infinite_weight", "missing_outcome"),
    *("outside", "missing_unit", "dropped", "n"),
)
AMOUNTS = ("weight", "squared_weight", "weighted_outcome")
UNIT_SUMS = ("n_units", "weight_weight", "weight_outcome", "outcome_outcome")


def area_keys(roles: Roles) -> list[str]:
    """Names of the area columns in these frames, which no column of the user's can clash with."""
    return [f"area_{k}" for k in range(len(roles.area))]


def unit_keys(roles: Roles) -> list[str]:
    """Names of the unit columns in these frames; an area column among them is not kept twice."""
    areas = dict(zip(roles.area, area_keys(roles), strict=True))
    return [areas.get(name, f"unit_{k}") for k, name in enumerate(roles.unit)]


def read_records(frame: Frame, roles: Roles, bounds: Bounds) -> Frame:
    """One row a record: keys, counts, and amounts to which unusable records add nothing.

    The outcome is taken as its deviation from the middle of the declared range, a public constant,
    so that large outcomes with small differences do not lose their digits in the sums.
    """
    import narwhals as nw

    weight, outcome, dropped = nw.col("weight"), nw.col("outcome"), nw.col("dropped")
    return (
        _with_counts(frame, roles, bounds)
        .with_columns(weight=nw.when(dropped == 0).then(weight).otherwise(0.0))
        .with_columns(
            n=_flag(weight > 0),
            outcome=nw.when(weight > 0).then(outcome - bounds.middle),
        )
        .with_columns(
            squared_weight=weight * weight,
            weighted_outcome=nw.when(weight > 0).then(weight * outcome).otherwise(0.0),
            lowest=outcome,
            highest=outcome,
        )
    )


def _with_counts(frame: Frame, roles: Roles, bounds: Bounds) -> Frame:
    """One row a record: keys, weight, outcome, and a 0 or 1 for each thing to be counted."""
    import narwhals as nw

    w, y = nw.col("weight"), nw.col("outcome")
    schema = frame.collect_schema()
    blank = [_is_blank(nw.col(name), schema[name]) for name in roles.unit]
    keys = dict(zip(area_keys(roles) + unit_keys(roles), roles.area + roles.unit, strict=True))
    return (
        frame.select(
            *(nw.col(name).alias(key) for key, name in keys.items()),
            nw.col(roles.weight).cast(nw.Float64).alias("weight"),
            nw.col(roles.outcome).cast(nw.Float64).alias("outcome"),
            (_flag(reduce(or_, blank), unknown=1) if blank else nw.lit(0)).alias("missing_unit"),
        )
        .with_columns(
            rows=nw.lit(1),
            missing_weight=_flag(w.is_null() | w.is_nan(), unknown=1),
            negative_weight=_flag(w < 0),
            legal_weight=_flag(w.is_between(0, sys.float_info.max)),
            missing_outcome=_flag(y.is_null() | y.is_nan(), unknown=1),
            inside=_flag(y.is_between(bounds.low, bounds.high)),
        )
        .with_columns(
            infinite_weight=1 - _total("legal_weight", "missing_weight", "negative_weight"),
            outside=1 - _total("inside", "missing_outcome"),
            dropped=1 - nw.col("legal_weight") * (1 - nw.col("missing_outcome")),
        )
    )


def total_units(records: Frame, roles: Roles) -> Frame:
    """One row a unit (without unit columns: a record) with its totals and their products."""
    import narwhals as nw

    units = records
    if roles.unit:
        keys = dict.fromkeys(area_keys(roles) + unit_keys(roles))
        units = _add_up(records, list(keys), COUNTS + AMOUNTS)
    weight, outcome = nw.col("weight"), nw.col("weighted_outcome")
    return units.with_columns(
        n_units=_flag(weight > 0),
        max_weight=weight,
        weight_weight=weight * weight,
        weight_outcome=weight * outcome,
        outcome_outcome=outcome * outcome,
    )


def total_areas(units: Frame, roles: Roles) -> Frame:
    """One row an area: sums over its units, their largest weight, and whether outcomes vary."""
    import narwhals as nw

    sums = (*COUNTS, *AMOUNTS, *UNIT_SUMS)
    areas = _add_up(units, area_keys(roles), sums, nw.col("max_weight").max())
    # Some engines widen sums of integers beyond 64 bits.
    counts = (nw.col(name).cast(nw.Int64) for name in (*COUNTS, "n_units"))
    return areas.with_columns(*counts, varies=_flag(nw.col("highest") > nw.col("lowest")))


def squared_deviations(units: Frame, areas: Frame, roles: Roles) -> Frame:
    """One row an area: sum over units of (sum_k w_k (y_k - yhat))^2, in a second pass.

    The same sum follows from the products of the first pass, except where it is a small difference
    of large numbers.
    """
    import narwhals as nw

    keys = area_keys(roles)
    mean = (nw.col("weighted_outcome") / nw.col("weight")).alias("mean")
    deviation = nw.col("weighted_outcome") - nw.col("mean") * nw.col("weight")
    return (
        units.join(areas.select(*keys, mean), on=keys, how="left")
        .with_columns(deviation=deviation)
        .with_columns(square=nw.col("deviation") * nw.col("deviation"))
        .group_by(*keys)
        .agg(nw.col("square").sum())
    )


def count_spanning(units: Frame, roles: Roles) -> int:
    """How many units have records in more than one area."""
    import narwhals as nw

    if not roles.unit or set(roles.area) <= set(roles.unit):
        return 0
    areas = units.group_by(*unit_keys(roles)).agg(nw.len().alias("areas"))
    return len(_on_driver(areas.filter(nw.col("areas") > 1).select("areas")))


def is_empty(frame: Frame) -> bool:
    """Whether there is no record at all."""
    return len(_on_driver(frame.head(1))) == 0


def collect(areas: Frame, roles: Roles) -> tuple[list[list[str | None]], Table]:
    """Fetch the area rows, in the order of their joined labels, and the text of each key.

    Returns
    -------
    levels : for each area column the text of every area, None where it is missing
    table : the other columns by name
    """
    frame = _on_driver(areas)
    keys = area_keys(roles)
    levels = [_texts(frame.get_column(key)) for key in keys]
    order = sorted(range(len(frame)), key=lambda row: " ".join(str(text[row]) for text in levels))
    table = {c: frame.get_column(c).to_numpy()[order] for c in frame.columns if c not in keys}
    return [[text[row] for row in order] for text in levels], table


def _add_up(frame: Frame, keys: Sequence[str], sums: Sequence[str], *more: Any) -> Frame:
    """Sum by group, and keep the ends of the group's outcomes."""
    import narwhals as nw

    ends = nw.col("lowest").min(), nw.col("highest").max()
    return frame.group_by(*keys).agg(*(nw.col(name).sum() for name in sums), *ends, *more)


def _on_driver(frame: Frame) -> Frame:
    import narwhals as nw

    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def _flag(condition: Any, unknown: int = 0) -> Any:
    """Turn a condition into 0 or 1; into `unknown` where an engine answers null."""
    import narwhals as nw

    return condition.cast(nw.Int64).fill_null(unknown)


def _total(*names: str) -> Any:
    """Add columns within a row."""
    import narwhals as nw

    return reduce(add, map(nw.col, names))


def _is_blank(column: Any, dtype: Any) -> Any:
    """Whether a unit has no number or name."""
    import narwhals as nw

    blank = column.is_null()
    if dtype.is_float():
        blank = blank | column.is_nan()
    if dtype == nw.String:
        blank = blank | (column == "")
    return blank


def _texts(series: Any) -> list[str | None]:
    """Values as text, None where they are missing (null or not a number)."""
    values = zip(series.to_list(), series.is_null().to_list(), strict=True)
    return [None if null or value != value else str(value) for value, null in values]
