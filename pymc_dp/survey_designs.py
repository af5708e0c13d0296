"""Linearised variances of areas that are domains of one stratified, clustered sample."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pymc_dp import survey_sums
from pymc_dp.checks import name_some
from pymc_dp.survey_checks import Roles
from pymc_dp.survey_frames import Frame, Table, collect, flag
from pymc_dp.survey_population import remaining_shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        sampled = survey_sums.add_up(records, nested, ("sampled",))
        sampled = sampled.with_columns(sampled=flag(nw.col("sampled") > 0))
    keys, table = collect(survey_sums.add_up(sampled, strata, ("sampled",)), strata)
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
    keys, table = _stratum_sums(totals, roles, survey_sums.PRODUCTS)
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
        again = survey_sums.add_deviations(totals, areas, roles)
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
        return survey_sums.add_products(records)
    keys = dict.fromkeys(survey_sums.area_keys(roles) + _strata_keys(roles) + clusters)
    sums = ("n", "weight", "weighted_outcome")
    return survey_sums.add_products(survey_sums.add_up(records, list(keys), sums))


def _stratum_sums(
    totals: Frame, roles: Roles, sums: tuple[str, ...]
) -> tuple[list[list[Any]], Table]:
    """One row an area and stratum."""
    keys = survey_sums.area_keys(roles) + _strata_keys(roles)
    every = ("n", "weight", "weighted_outcome", *sums)
    return collect(survey_sums.add_up(totals, keys, every), keys)


def _strata_keys(roles: Roles) -> list[str]:
    return [f"stratum_{k}" for k in range(max(1, len(roles.strata)))]


def _cluster_keys(roles: Roles) -> list[str]:
    """What was sampled: clusters, or without them units, or without those single records."""
    clusters = [f"cluster_{k}" for k in range(len(roles.cluster))]
    return clusters or survey_sums.unit_keys(roles)
