"""How a sampling variance is to be computed: the method, and the numbers and columns it needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pymc_dp._checks import name_some, positive_number
from pymc_dp.survey import frames
from pymc_dp.survey.columns import Bounds, Roles
from pymc_dp.survey.frames import Frame, Table, collect, flag
from pymc_dp.survey.replicates import (
    REPLICATE_METHODS,
    Replicates,
    check_replicate_types,
    check_replicates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

Variance = Literal["linearized", "kish", "sdr", "brr", "fay", "jk1", "jkn", "bootstrap"]


@dataclass(frozen=True)
class Method:
    """A method that exists, with what it needs and nothing that belongs to another."""

    name: str
    rate: float = math.nan
    design_factor: float = 1.0
    singleton: Singleton = "fail"
    fay_rho: float | None = None
    replicates: Replicates | None = None

    def attributes(self, roles: Roles) -> dict[str, Any]:
        """What the result records of it, in types that every file format keeps."""
        record: dict[str, Any] = {"variance_method": self.name}
        if self.name == "kish":
            record |= {"rate": self.rate, "design_factor": self.design_factor}
        if roles.has_design:
            names = {"strata": roles.strata, "cluster": roles.cluster}
            record |= {role: " ".join(columns) for role, columns in names.items() if columns}
            record["singleton"] = self.singleton
        if roles.fpc is not None:
            record["fpc"] = roles.fpc
        if self.replicates is not None:
            record["n_replicates"] = len(self.replicates.columns)
            record["replicate_center"] = self.replicates.center
            scale = self.replicates.scale
            same = bool((scale == scale[0]).all())
            record["replicate_scale"] = float(scale[0]) if same else scale.tolist()
        if self.fay_rho is not None:
            record["fay_rho"] = self.fay_rho
        return record


def check_method(
    variance: str,
    roles: Roles,
    bounds: Bounds,
    schema: Any,
    *,
    rate: float | None,
    design_factor: float,
    singleton: Singleton,
    replicate_weights: str | Sequence[str] | None,
    replicate_scale: ArrayLike | None,
    replicate_center: str,
    fay_rho: float | None,
) -> Method:
    """Accept a method that exists, with what it needs and nothing that belongs to another."""
    if variance not in ("linearized", "kish", *REPLICATE_METHODS):
        others = ", ".join(map(repr, REPLICATE_METHODS))
        raise ValueError(
            f"variance must be 'linearized' or 'kish', or with replicate_weights one of {others}; "
            f"got {variance!r}"
        )
    if variance != "kish" and (rate is not None or design_factor != 1):
        raise ValueError("rate and design_factor belong to variance='kish'")
    if variance != "linearized" and roles.has_design:
        raise ValueError("strata and cluster belong to variance='linearized'")
    if variance != "linearized" and roles.fpc is not None:
        raise ValueError("fpc belongs to variance='linearized'")
    check_singleton(singleton)
    if singleton != "fail" and not roles.has_design:
        raise ValueError("singleton belongs to strata and cluster")
    if variance in REPLICATE_METHODS:
        replicates = check_replicates(
            schema, variance, replicate_weights, replicate_scale, replicate_center, fay_rho
        )
        check_replicate_types(schema, replicates.columns)
        return Method(variance, replicates=replicates, fay_rho=fay_rho)
    given = (replicate_weights, replicate_scale, fay_rho)
    if any(value is not None for value in given) or replicate_center != "estimate":
        others = ", ".join(map(repr, REPLICATE_METHODS))
        raise ValueError(f"replicate weights and what goes with them belong to variance={others}")
    if variance == "linearized":
        return Method(variance, singleton=singleton)
    if (bounds.low, bounds.high) != (0, 1):
        raise ValueError("variance='kish' is P (1 - P) / n_eff and needs bounds (0, 1)")
    if rate is None or not 0 < rate < 1:
        raise ValueError("variance='kish' needs a public rate between 0 and 1, both excluded")
    factor = positive_number("design_factor", design_factor)
    return Method(variance, rate=float(rate), design_factor=factor)


Key = tuple[Any, ...]
Singleton = Literal["fail", "remove", "adjust", "average", "certainty"]


def check_singleton(singleton: str) -> None:
    """Accept one of the rules for a stratum with a single sampled cluster."""
    if singleton not in get_args(Singleton):
        rules = ", ".join(map(repr, get_args(Singleton)))
        raise ValueError(f"singleton must be one of {rules}, got {singleton!r}")


def design_columns(roles: Roles) -> dict[str, Any]:
    """Columns of the design beside those of the records: strata, clusters, and who was sampled."""
    import narwhals as nw

    weight = nw.col(roles.weight).cast(nw.Float64)
    strata = {f"stratum_{k}": nw.col(name) for k, name in enumerate(roles.strata)}
    clusters = {f"cluster_{k}": nw.col(name) for k, name in enumerate(roles.cluster)}
    sampled = flag((weight > 0) & (weight <= sys.float_info.max))
    return (strata or {"stratum_0": nw.lit(0)}) | clusters | {"sampled": sampled}


def count_clusters(records: Frame, roles: Roles) -> dict[Key, float]:
    """How many clusters each stratum has in the sample, whatever their areas and answers."""
    import narwhals as nw

    strata, clusters, sampled = _strata_keys(roles), _cluster_keys(roles), records
    if clusters:
        nested = list(dict.fromkeys(strata + clusters))
        sampled = frames.add_up(records, nested, ("sampled",))
        sampled = sampled.with_columns(sampled=flag(nw.col("sampled") > 0))
    keys, table = collect(frames.add_up(sampled, strata, ("sampled",)), strata)
    counts = zip(zip(*keys, strict=True), table["sampled"], strict=True)
    return {stratum: count for stratum, count in counts if count > 0}


def check_singletons(
    clusters: dict[Key, float], remaining: dict[Key, float], roles: Roles, singleton: str
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
        if not roles.strata:
            raise ValueError(f"the sample has a single cluster, and no strata: {rules}")
        columns = ", ".join(map(repr, roles.strata))
        noun = "stratum has" if len(single) == 1 else "strata have"
        raise ValueError(
            f"column {columns}: {len(single)} {noun} a single sampled cluster, "
            f"{name_some(single)}: {rules}, or join strata"
        )
    return len(single)


def shares_left(records: Frame, clusters: dict[Key, float], roles: Roles) -> dict[Key, float]:
    """By stratum: the share of its clusters that is not in the sample; 1 without a population."""
    return remaining_shares(records, _strata_keys(roles), "sampled", clusters, roles)


def design_squares(
    records: Frame,
    areas: Frame,
    area_levels: list[list[Any]],
    mean: NDArray[np.float64],
    clusters: dict[Key, float],
    remaining: dict[Key, float],
    roles: Roles,
    singleton: str,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By area: the squared standard error of sum w (y - yhat), and the squares of cluster weights.

    With d_c the sum over a cluster's records in the area, 0 for clusters without any, the first is
    sum_h f_h n_h / (n_h - 1) sum_c (d_c - mean of d)^2 over strata h of n_h clusters, f_h the share
    of the stratum's population that is `remaining`. `mean` holds yhat as deviation from the middle
    of the bounds, as the sums do.
    """
    totals = _cluster_totals(records, roles)
    keys, table = _stratum_sums(totals, roles, frames.PRODUCTS)
    position = {key: i for i, key in enumerate(zip(*area_levels, strict=True))}
    depth, rows = len(roles.area), list(zip(*keys, strict=True))
    area = np.array([position[row[:depth]] for row in rows], dtype=int)
    n_h = np.array([clusters.get(row[depth:], math.nan) for row in rows])
    f_h = np.array([remaining.get(row[depth:], math.nan) for row in rows])
    present = table["n"] > 0

    def add(values: Any) -> NDArray[np.float64]:
        sums = np.bincount(area[present], values[present], minlength=len(position))
        return sums.astype(np.float64)

    m = mean[area]
    deviation = table["weighted_outcome"] - m * table["weight"]
    large = table["outcome_outcome"] + m**2 * table["weight_weight"]
    square = large - 2 * m * table["weight_outcome"]
    # A difference below a hundredth of its terms has lost two or more of their sixteen digits.
    if np.any(add(square) < 0.01 * add(large)):
        again = frames.add_deviations(totals, areas, roles)
        table |= _stratum_sums(again, roles, ("deviation", "square"))[1]
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


def _cluster_totals(records: Frame, roles: Roles) -> Frame:
    """One row an area, stratum and cluster (without clusters: a record) and products of sums."""
    if not (clusters := _cluster_keys(roles)):
        return frames.add_products(records)
    keys = dict.fromkeys(frames.area_keys(roles) + _strata_keys(roles) + clusters)
    sums = ("n", "weight", "weighted_outcome")
    return frames.add_products(frames.add_up(records, list(keys), sums))


def _stratum_sums(
    totals: Frame, roles: Roles, sums: tuple[str, ...]
) -> tuple[list[list[Any]], Table]:
    """One row an area and stratum."""
    keys = frames.area_keys(roles) + _strata_keys(roles)
    every = ("n", "weight", "weighted_outcome", *sums)
    return collect(frames.add_up(totals, keys, every), keys)


def _strata_keys(roles: Roles) -> list[str]:
    return [f"stratum_{k}" for k in range(max(1, len(roles.strata)))]


def _cluster_keys(roles: Roles) -> list[str]:
    """What was sampled: clusters, or without them units, or without those single records."""
    clusters = [f"cluster_{k}" for k in range(len(roles.cluster))]
    return clusters or frames.unit_keys(roles)


def population_columns(roles: Roles) -> dict[str, Any]:
    """Column of the population counts, beside those of the records; none unless asked for."""
    import narwhals as nw

    return {} if roles.fpc is None else {"population": nw.col(roles.fpc).cast(nw.Float64)}


def remaining_shares(
    records: Frame, keys: Sequence[str], counted: str, sampled: Mapping[Key, float], roles: Roles
) -> dict[Key, float]:
    """By stratum 1 - n / N: n were `sampled` of the N that the column says; 1 without a column.

    `keys` name the strata, and `counted` the column that is 1 where a record was sampled, else 0.
    """
    import narwhals as nw

    if roles.fpc is None:
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
            noun = "areas" if keys == frames.area_keys(roles) else "strata"
            raise ValueError(
                f"column {roles.fpc!r}: the population is {what} in {len(bad)} {noun}, "
                f"{name_some(bad)}"
            )
    left = 1.0 - n / np.where(n > 0, table["largest"], 1.0)
    return {key: float(left[row]) for row, key in enumerate(strata) if n[row] > 0}
