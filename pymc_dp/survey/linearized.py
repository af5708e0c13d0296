"""Linearised variances: of areas that are samples of their own, or domains of one design."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pymc_dp._checks import name_some
from pymc_dp.survey import frames
from pymc_dp.survey.columns import Sample
from pymc_dp.survey.frames import Frame, Table, collect, flag
from pymc_dp.survey.sums import Sums, ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = tuple[Any, ...]
Singleton = Literal["fail", "remove", "adjust", "average", "certainty"]


def linearized_columns(sample: Sample) -> dict[str, Any]:
    """Columns of population and design, beside those of the records."""
    return _population_columns(sample) | (_design_columns(sample) if sample.has_design else {})


def linearized_variance(
    sample: Sample, singleton: str, sums: Sums
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Variance of each area, and what the design consists of, if there is one."""
    if sample.has_design:
        return _design_variance(sample, singleton, sums)
    return _area_variance(sample, sums), {}


def _area_variance(sample: Sample, sums: Sums) -> NDArray[np.float64]:
    """Variance f n / (n - 1) sum_u z_u^2 of each area, z_u = sum_k w_k (y_k - yhat) / sum(w).

    f is 1, or with a population of N units 1 - n / N.
    """
    table, mean = sums.table, sums.mean
    n = table.get("n_units", table["n"])
    large = table["outcome_outcome"] + mean**2 * table["weight_weight"]
    squares = large - 2 * mean * table["weight_outcome"]
    # A difference below a hundredth of its terms has lost two or more of their sixteen digits.
    if np.any(sums.varies & (squares < 0.01 * large)):
        squares = frames.squared_deviations(sums.units, sums.areas, sample)["square"]
    squares = _clean_squares(squares, table["weight_weight"], sample, sums)
    variance = ratio(n * squares, n - 1) / table["weight"] ** 2
    if sample.fpc is None:
        return variance
    keys = list(zip(*sums.levels, strict=True))
    sampled = {key: count for key, count in zip(keys, n, strict=True) if count > 0}
    left = _remaining_shares(sums.records, frames.area_keys(sample), "n", sampled, sample)
    f = np.array([left.get(key, np.nan) for key in keys])
    # Of a single unit nothing is known, unless it is all there is.
    return np.where(f == 0, 0.0, f * variance)


def _clean_squares(
    squares: NDArray[np.float64], weights: NDArray[np.float64], sample: Sample, sums: Sums
) -> NDArray[np.float64]:
    """Outcomes or households that all agree have no variance, whatever rounding leaves of it."""
    n, width = sums.table["n"], sample.bounds.width
    rounding = (4 * (n + 4) * 2.0**-53 * width) ** 2 * weights
    return np.where(sums.varies & ~(squares <= rounding), squares, 0.0)


def _design_variance(
    sample: Sample, singleton: str, sums: Sums
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Variance of the areas as domains of the whole design, and what the design consists of."""
    clusters = _count_clusters(sums.records, sample)
    remaining = _remaining_shares(sums.records, _strata_keys(sample), "sampled", clusters, sample)
    counts = {
        "n_strata": len(clusters),
        "n_clusters": int(sum(clusters.values())),
        "n_singleton_strata": _check_singletons(clusters, remaining, sample, singleton),
    }
    squares, weights = _design_squares(sums, clusters, remaining, sample, singleton)
    squares = _clean_squares(squares, weights, sample, sums)
    return ratio(squares, sums.table["weight"] ** 2), counts


def check_singleton(singleton: str) -> None:
    """Accept one of the rules for a stratum with a single sampled cluster."""
    if singleton not in get_args(Singleton):
        rules = ", ".join(map(repr, get_args(Singleton)))
        raise ValueError(f"singleton must be one of {rules}, got {singleton!r}")


def _design_columns(sample: Sample) -> dict[str, Any]:
    """Columns of the design beside those of the records: strata, clusters, and who was sampled."""
    import narwhals as nw

    weight = nw.col(sample.weight).cast(nw.Float64)
    strata = {f"stratum_{k}": nw.col(name) for k, name in enumerate(sample.strata)}
    clusters = {f"cluster_{k}": nw.col(name) for k, name in enumerate(sample.cluster)}
    sampled = flag((weight > 0) & (weight <= sys.float_info.max))
    return (strata or {"stratum_0": nw.lit(0)}) | clusters | {"sampled": sampled}


def _count_clusters(records: Frame, sample: Sample) -> dict[Key, float]:
    """How many clusters each stratum has in the sample, whatever their areas and answers."""
    import narwhals as nw

    strata, clusters, sampled = _strata_keys(sample), _cluster_keys(sample), records
    if clusters:
        nested = list(dict.fromkeys(strata + clusters))
        sampled = frames.add_up(records, nested, ("sampled",))
        sampled = sampled.with_columns(sampled=flag(nw.col("sampled") > 0))
    keys, table = collect(frames.add_up(sampled, strata, ("sampled",)), strata)
    counts = zip(zip(*keys, strict=True), table["sampled"], strict=True)
    return {stratum: count for stratum, count in counts if count > 0}


def _check_singletons(
    clusters: dict[Key, float], remaining: dict[Key, float], sample: Sample, singleton: str
) -> int:
    """Count the strata with a single cluster, and refuse them unless a rule was chosen.

    A single cluster that is the whole population of its stratum adds nothing, and needs no rule.
    """
    single = [
        " ".join(map(str, key))
        for key, count in clusters.items()
        if count == 1 and remaining[key] > 0
    ]
    if single and singleton == "fail":
        rules = "choose singleton='remove', 'adjust', 'average' or 'certainty'"
        if not sample.strata:
            raise ValueError(f"the sample has a single cluster, and no strata: {rules}")
        columns = ", ".join(map(repr, sample.strata))
        noun = "stratum has" if len(single) == 1 else "strata have"
        raise ValueError(
            f"column {columns}: {len(single)} {noun} a single sampled cluster, "
            f"{name_some(single)}: {rules}, or join strata"
        )
    return len(single)


def _design_squares(
    sums: Sums,
    clusters: dict[Key, float],
    remaining: dict[Key, float],
    sample: Sample,
    singleton: str,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By area: the squared standard error of sum w (y - yhat), and the squares of cluster weights.

    With d_c the sum over a cluster's records in the area, 0 for clusters without any, the first is
    sum_h f_h n_h / (n_h - 1) sum_c (d_c - mean of d)^2 over strata h of n_h clusters, f_h the share
    of the stratum's population that is `remaining`.
    """
    totals = _cluster_totals(sums.records, sample)
    keys, table = _stratum_sums(totals, sample, frames.PRODUCTS)
    position = {key: i for i, key in enumerate(zip(*sums.levels, strict=True))}
    depth, rows = len(sample.area), list(zip(*keys, strict=True))
    area = np.array([position[row[:depth]] for row in rows], dtype=int)
    n_h = np.array([clusters.get(row[depth:], math.nan) for row in rows])
    f_h = np.array([remaining.get(row[depth:], math.nan) for row in rows])
    present = table["n"] > 0

    def add(values: Any) -> NDArray[np.float64]:
        summed = np.bincount(area[present], values[present], minlength=len(position))
        return summed.astype(np.float64)

    m = sums.mean[area]
    deviation = table["weighted_outcome"] - m * table["weight"]
    large = table["outcome_outcome"] + m**2 * table["weight_weight"]
    square = large - 2 * m * table["weight_outcome"]
    # A difference below a hundredth of its terms has lost two or more of their sixteen digits.
    if np.any(add(square) < 0.01 * add(large)):
        again = frames.add_deviations(totals, sums.areas, sample)
        table |= _stratum_sums(again, sample, ("deviation", "square"))[1]
        deviation, square = table["deviation"], table["square"]

    alone = n_h == 1
    single = alone & (f_h > 0)
    around_mean = np.maximum(square - deviation**2 / n_h, 0.0)
    squares = np.where(alone, 0.0, f_h * n_h / np.where(alone, 1.0, n_h - 1) * around_mean)
    if singleton == "adjust":
        # Around the mean of all deviations of the area, which is 0.
        squares = np.where(single, f_h * square, squares)
    summed = add(squares)
    if singleton == "average":
        # Strata of one cluster count as the average of the area's other strata.
        all_strata, others = add(np.ones(len(rows))), add(np.where(single, 0.0, 1.0))
        summed = summed * all_strata / np.where(others > 0, others, np.nan)
    return summed, add(table["weight_weight"])


def _cluster_totals(records: Frame, sample: Sample) -> Frame:
    """One row an area, stratum and cluster (without clusters: a record) and products of sums."""
    if not (clusters := _cluster_keys(sample)):
        return frames.add_products(records)
    keys = dict.fromkeys(frames.area_keys(sample) + _strata_keys(sample) + clusters)
    sums = ("n", "weight", "weighted_outcome")
    return frames.add_products(frames.add_up(records, list(keys), sums))


def _stratum_sums(
    totals: Frame, sample: Sample, sums: tuple[str, ...]
) -> tuple[list[list[Any]], Table]:
    """One row an area and stratum."""
    keys = frames.area_keys(sample) + _strata_keys(sample)
    every = ("n", "weight", "weighted_outcome", *sums)
    return collect(frames.add_up(totals, keys, every), keys)


def _strata_keys(sample: Sample) -> list[str]:
    return [f"stratum_{k}" for k in range(max(1, len(sample.strata)))]


def _cluster_keys(sample: Sample) -> list[str]:
    """What was sampled: clusters, or without them units, or without those single records."""
    clusters = [f"cluster_{k}" for k in range(len(sample.cluster))]
    return clusters or frames.unit_keys(sample)


def _population_columns(sample: Sample) -> dict[str, Any]:
    """Column of the population counts, beside those of the records; none unless asked for."""
    import narwhals as nw

    return {} if sample.fpc is None else {"population": nw.col(sample.fpc).cast(nw.Float64)}


def _remaining_shares(
    records: Frame, keys: Sequence[str], counted: str, sampled: Mapping[Key, float], sample: Sample
) -> dict[Key, float]:
    """By stratum 1 - n / N: n were `sampled` of the N that the column says; 1 without a column.

    `keys` name the strata, and `counted` the column that is 1 where a record was sampled, else 0.
    """
    import narwhals as nw

    if sample.fpc is None:
        return dict.fromkeys(sampled, 1.0)
    taken, size = nw.col(counted), nw.col("population")
    rows = records.with_columns(legal=flag(size.is_between(1, sys.float_info.max))).with_columns(
        unusable=taken * (1 - nw.col("legal")),
        population=nw.when(taken * nw.col("legal") == 1).then(size),
    )
    ends = size.min().alias("smallest"), size.max().alias("largest")
    levels, table = collect(frames.add_up(rows, keys, ("unusable",), *ends), keys)
    strata = list(zip(*levels, strict=True))
    n = np.array([sampled.get(key, 0.0) for key in strata])
    faults = {
        "missing or below 1": table["unusable"] > 0,
        "not the same in all records": table["smallest"] < table["largest"],
        "smaller than the sample (take counts, not fractions)": table["largest"] < n,
    }
    for what, is_so in faults.items():
        bad = [" ".join(map(str, strata[row])) for row in np.flatnonzero(is_so & (n > 0))]
        if bad:
            noun = "areas" if keys == frames.area_keys(sample) else "strata"
            raise ValueError(
                f"column {sample.fpc!r}: the population is {what} in {len(bad)} {noun}, "
                f"{name_some(bad)}"
            )
    left = 1.0 - n / np.where(n > 0, table["largest"], 1.0)
    return {key: float(left[row]) for row, key in enumerate(strata) if n[row] > 0}
