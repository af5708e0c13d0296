"""Sampling variances from replicate weights: one Hajek estimate a replicate, and its spread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp._checks import name_some
from pymc_dp.survey import frames
from pymc_dp.survey.columns import Sample
from pymc_dp.survey.frames import Frame, collect, flag
from pymc_dp.survey.sums import Sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Replicates in one pass over the records: memory is bounded by this many columns, not by all.
BATCH = 20


@dataclass(frozen=True)
class Replicates:
    """Replicate weights, the factor of each squared difference, and the centre they differ from."""

    columns: tuple[str, ...]
    scale: NDArray[np.float64]
    center: str


def check_scale(scale: ArrayLike, count: int) -> NDArray[np.float64]:
    """Take one factor for all replicates, or one for each."""
    factors = np.array(scale, dtype=float)
    if factors.shape not in ((), (count,)):
        raise ValueError(f"replicate_scale must be one number, or one for each of {count}")
    if not (np.all(np.isfinite(factors)) and np.all(factors >= 0) and factors.any()):
        raise ValueError("replicate_scale must be finite, not negative, and not 0 throughout")
    return np.broadcast_to(factors, count)


def replicate_columns(schema: Mapping[str, Any], wanted: str | Sequence[str]) -> tuple[str, ...]:
    """List the replicate columns; of a prefix those with a number and nothing else after it.

    The numbers must be consecutive: a replicate that is not there would change the factor.
    """
    names = list(schema)
    if not isinstance(wanted, str):
        columns = tuple(wanted)
        absent = [repr(name) for name in columns if name not in names]
        if absent:
            raise ValueError(f"the data have no column {name_some(absent)}")
        if len(set(columns)) < len(columns):
            raise ValueError("replicate_weights names a column twice")
    else:
        found = [(int(name[len(wanted) :]), name) for name in names if _numbered(wanted, name)]
        numbers = sorted(number for number, _ in found)
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise ValueError(
                f"replicate_weights={wanted!r}: the numbers of the {len(numbers)} columns are not "
                f"consecutive from {numbers[0]} to {numbers[-1]}"
            )
        columns = tuple(name for _, name in sorted(found))
    if len(columns) < 2:
        raise ValueError(
            f"replicate_weights={wanted!r} finds {len(columns)} columns, not 2 or more"
        )
    text = [repr(name) for name in columns if not schema[name].is_numeric()]
    if text:
        raise ValueError(f"replicate weights must be numbers, not as in column {name_some(text)}")
    return columns


def _numbered(prefix: str, name: str) -> bool:
    return re.fullmatch(re.escape(prefix) + "[0-9]+", name) is not None


def replicate_variance(
    sample: Sample, replicates: Replicates, sums: Sums
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """By area: sum_r c_r (yhat_r - centre)^2; missing where a replicate's weights are not positive.

    Outcomes that all agree have no variance, whatever rounding leaves of it.
    """
    columns = replicates.columns
    batches = [columns[k : k + BATCH] for k in range(0, len(columns), BATCH)]
    parts = [_sum_batch(sums.frame, batch, sums.labels, sample) for batch in batches]
    weight, outcome = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    estimate = outcome / np.where(weight > 0, weight, np.nan)
    used = replicates.scale > 0
    center = sums.mean if replicates.center == "estimate" else estimate[:, used].mean(axis=1)
    squares = (estimate[:, used] - center[:, None]) ** 2
    spread = squares @ replicates.scale[used]
    return np.where(sums.varies | np.isnan(spread), spread, 0.0), {}


def _sum_batch(
    frame: Frame,
    columns: Sequence[str],
    labels: NDArray[np.str_],
    sample: Sample,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of the replicate weights and of their products with the outcome; (areas, columns)."""
    import narwhals as nw

    largest = np.finfo(float).max
    names = [f"replicate_{k}" for k in range(len(columns))]
    products = [f"product_{k}" for k in range(len(columns))]
    casts = {n: nw.col(c).cast(nw.Float64) for n, c in zip(names, columns, strict=True)}
    # A weight that is missing or infinite makes this sum so, and a null is in no sum of a group.
    finite = flag(reduce(add, map(nw.col, names)).is_between(-largest, largest))
    records = (
        frames.read_records(frame, sample, casts)
        .with_columns(
            *(nw.when(nw.col("n") == 1).then(nw.col(name)).alias(name) for name in names),
            finite=finite * nw.col("n"),
        )
        .with_columns(
            *(
                (nw.col(name) * nw.col("outcome")).alias(product)
                for name, product in zip(names, products, strict=True)
            )
        )
    )
    keys = frames.area_keys(sample)
    sums = frames.add_up(records, keys, ["n", "finite", *names, *products])
    _, table = collect(sums, keys)
    unusable = table["n"] - table["finite"]
    if unusable.any():
        areas = [f"{a} ({c:.0f})" for a, c in zip(labels, unusable, strict=True) if c]
        raise ValueError(
            f"columns {columns[0]!r} to {columns[-1]!r}: replicate weights are missing or infinite "
            f"in {unusable.sum():.0f} records, in {name_some(areas)}"
        )
    weight = np.column_stack([table[name] for name in names])
    return weight, np.column_stack([table[product] for product in products])
