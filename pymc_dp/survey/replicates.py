"""Sampling variances from replicate weights: one Hajek estimate a replicate, and its spread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pymc_dp._checks import name_some
from pymc_dp.survey import frames
from pymc_dp.survey.columns import Bounds, Roles
from pymc_dp.survey.frames import Frame, collect, flag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

REPLICATE_METHODS = ("sdr", "brr", "fay", "jk1", "jkn", "bootstrap")
# Replicates in one pass over the records: memory is bounded by this many columns, not by all.
BATCH = 20


@dataclass(frozen=True)
class Replicates:
    """Replicate weights, the factor of each squared difference, and the centre they differ from."""

    columns: tuple[str, ...]
    scale: NDArray[np.float64]
    center: Literal["estimate", "mean"]


def check_replicates(
    schema: Iterable[str],
    method: str,
    replicate_weights: str | Sequence[str] | None,
    replicate_scale: ArrayLike | None,
    center: str,
    fay_rho: float | None,
) -> Replicates:
    """Find the columns and the factors, or say what is missing for the method.

    With R replicates the factor of each is 4 / R for successive differences, 1 / R for balanced
    half-samples and the bootstrap, 1 / (R (1 - rho)^2) for Fay's method, (R - 1) / R when one
    cluster is left out at a time; for stratified jackknives it has to be given.
    """
    if replicate_weights is None:
        raise ValueError(f"variance={method!r} needs replicate_weights: a prefix or columns")
    if center not in ("estimate", "mean"):
        raise ValueError(f"replicate_center must be 'estimate' or 'mean', got {center!r}")
    if (method == "fay") != (fay_rho is not None):
        raise ValueError("fay_rho and variance='fay' belong together")
    if fay_rho is not None and not 0 <= fay_rho < 1:
        raise ValueError("fay_rho must be at least 0 and below 1")
    columns = replicate_columns(schema, replicate_weights)
    count = len(columns)
    if replicate_scale is None:
        if method == "jkn":
            raise ValueError("variance='jkn' needs replicate_scale: one number for each replicate")
        shrinkage = 1.0 - (fay_rho or 0.0)
        factors = {"sdr": 4.0, "jk1": count - 1.0, "fay": 1 / shrinkage**2}
        scale = np.full(count, factors.get(method, 1.0) / count)
    else:
        scale = np.array(replicate_scale, dtype=float)
        if scale.shape not in ((), (count,)):
            raise ValueError(f"replicate_scale must be one number, or one for each of {count}")
        scale = np.broadcast_to(scale, count)
    if not (np.all(np.isfinite(scale)) and np.all(scale >= 0) and scale.any()):
        raise ValueError("replicate_scale must be finite, not negative, and not 0 throughout")
    return Replicates(columns, scale, center)  # type: ignore[arg-type]


def replicate_columns(schema: Iterable[str], wanted: str | Sequence[str]) -> tuple[str, ...]:
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
    return columns


def _numbered(prefix: str, name: str) -> bool:
    return re.fullmatch(re.escape(prefix) + "[0-9]+", name) is not None


def replicate_variance(
    frame: Frame,
    mean: NDArray[np.float64],
    labels: NDArray[np.str_],
    replicates: Replicates,
    roles: Roles,
    bounds: Bounds,
) -> NDArray[np.float64]:
    """By area: sum_r c_r (yhat_r - centre)^2; missing where a replicate's weights are not positive.

    `mean` are the full-sample estimates as deviations from the middle of the bounds.
    """
    columns = replicates.columns
    batches = [columns[k : k + BATCH] for k in range(0, len(columns), BATCH)]
    sums = [_sum_batch(frame, batch, labels, roles, bounds) for batch in batches]
    weight, outcome = (np.concatenate(part, axis=1) for part in zip(*sums, strict=True))
    estimate = outcome / np.where(weight > 0, weight, np.nan)
    used = replicates.scale > 0
    center = mean if replicates.center == "estimate" else estimate[:, used].mean(axis=1)
    squares = (estimate[:, used] - center[:, None]) ** 2
    return squares @ replicates.scale[used]


def _sum_batch(
    frame: Frame,
    columns: Sequence[str],
    labels: NDArray[np.str_],
    roles: Roles,
    bounds: Bounds,
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
        frames.read_records(frame, roles, bounds, casts)
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
    keys = frames.area_keys(roles)
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


def check_replicate_types(schema: Any, columns: Sequence[str]) -> None:
    """Require numbers, never text."""
    text = [repr(name) for name in columns if not schema[name].is_numeric()]
    if text:
        raise ValueError(f"replicate weights must be numbers, not as in column {name_some(text)}")
