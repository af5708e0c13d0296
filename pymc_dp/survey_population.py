"""Finite population correction: the share of a population that is not in the sample."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dp import survey_sums
from pymc_dp.checks import name_some
from pymc_dp.survey_checks import Roles
from pymc_dp.survey_frames import Frame, collect, flag

Key = tuple[Any, ...]


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
    levels, table = collect(survey_sums.add_up(rows, keys, ("unusable",), *ends), keys)
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
            noun = "areas" if keys == survey_sums.area_keys(roles) else "strata"
            raise ValueError(
                f"column {roles.fpc!r}: the population is {what} in {len(bad)} {noun}, "
                f"{name_some(bad)}"
            )
    left = 1.0 - n / np.where(n > 0, table["largest"], 1.0)
    return {key: float(left[row]) for row, key in enumerate(strata) if n[row] > 0}
