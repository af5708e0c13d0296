"""What is asked of a survey and of its records before an estimate is returned.

Every refusal is a ValueError that names columns, areas and counts and never shows an outcome.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp._checks import name_some

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Outcome ranges and summed weights between these have squares that neither overflow nor vanish.
SMALLEST, LARGEST = 1e-50, 1e50


@dataclass(frozen=True)
class Bounds:
    """The declared range of an outcome, in its own units: public, never taken from the data."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """The most that one outcome can change."""
        return self.high - self.low

    @property
    def middle(self) -> float:
        """A public centre, so that sums run over deviations and not over large values."""
        return self.low / 2 + self.high / 2

    @property
    def largest(self) -> float:
        """The largest absolute value of an outcome."""
        return max(abs(self.low), abs(self.high))

    @property
    def grid(self) -> float:
        """Spacing of the grid of estimates: 2**-40 of the width rounded up to a power of two."""
        mantissa, exponent = math.frexp(self.width)
        return math.ldexp(1.0, exponent - 40 if mantissa > 0.5 else exponent - 41)


@dataclass(frozen=True)
class Sample:
    """What is asked of the records: which columns hold what, the range, and what may pass.

    Without a unit each record is one, without strata all are one stratum.
    """

    outcome: str
    weight: str
    area: tuple[str, ...]
    bounds: Bounds
    unit: tuple[str, ...] = ()
    strata: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    universe: str | None = None
    fpc: str | None = None
    spanning: str = "fail"
    missing: str = "fail"

    @property
    def has_design(self) -> bool:
        """Whether areas are domains of one design, and not samples of their own."""
        return bool(self.strata or self.cluster)

    @property
    def unit_name(self) -> str:
        """What is protected: a record, or what the unit columns number."""
        return " ".join(self.unit) or "record"

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns whose values are names: of areas, units, strata and clusters."""
        return tuple(dict.fromkeys((*self.area, *self.unit, *self.strata, *self.cluster)))


def check_bounds(bounds: Sequence[float]) -> Bounds:
    """Take the declared range, or say why no sensitivity follows from it."""
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise ValueError("bounds must be two numbers: the lowest and highest outcome") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"bounds must be finite with low < high, got {low:g} and {high:g}")
    if not SMALLEST <= high - low <= LARGEST:
        raise ValueError(f"bounds must lie {SMALLEST:g} to {LARGEST:g} apart: rescale the outcome")
    return Bounds(low, high)


def describe_sample(
    *,
    outcome: str,
    weight: str,
    bounds: Sequence[float],
    area: str | Sequence[str],
    unit: str | Sequence[str] | None,
    strata: str | Sequence[str] | None,
    cluster: str | Sequence[str] | None,
    universe: str | None,
    fpc: str | None,
    spanning: str,
    missing: str,
) -> Sample:
    """Sort the columns by role, a tuple where there may be several; refuse unknown choices."""
    limits = check_bounds(bounds)
    columns = {
        role: _several(role, names)
        for role, names in {
            "area": area,
            "unit": unit,
            "strata": strata,
            "cluster": cluster,
        }.items()
    }
    if not columns["area"]:
        raise ValueError("area names no column")
    if missing not in ("fail", "drop"):
        raise ValueError(f"missing must be 'fail' or 'drop', got {missing!r}")
    if spanning not in ("fail", "bound"):
        raise ValueError(f"spanning must be 'fail' or 'bound', got {spanning!r}")
    return Sample(
        outcome,
        weight,
        bounds=limits,
        universe=universe,
        fpc=fpc,
        spanning=spanning,
        missing=missing,
        **columns,
    )


def _several(role: str, names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Column names of a role, none twice."""
    columns = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    if len(set(columns)) < len(columns):
        raise ValueError(f"{role} names a column twice: {', '.join(columns)}")
    if names is not None and not columns:
        rest = "; leave it out to protect single records" if role == "unit" else ""
        raise ValueError(f"{role} names no column{rest}")
    return columns


def suggest_unit(data: Any, sample: Sample) -> None:
    """Warn that records are protected one by one where their reader suggests another unit."""
    unit = getattr(data, "attrs", {}).get("unit") if not sample.unit else None
    if unit is not None:
        warnings.warn(
            f"single records are protected, but whoever read the data suggests unit={unit!r}: an "
            "outcome that a household shares, such as poverty, stands in all of its records. For "
            "an outcome of persons, take the suggestion back: del data.attrs['unit']",
            stacklevel=3,
        )


def check_columns(schema: Mapping[str, Any], sample: Sample) -> None:
    """Require every column: weights as numbers, outcomes as numbers or booleans, never text."""
    import narwhals as nw

    universe = () if sample.universe is None else (sample.universe,)
    fpc = () if sample.fpc is None else (sample.fpc,)
    wanted = dict.fromkeys([sample.outcome, sample.weight, *sample.keys, *universe, *fpc])
    absent = [repr(name) for name in wanted if name not in schema]
    if absent:
        raise ValueError(f"the data have no column {name_some(absent)}")
    weight, outcome = schema[sample.weight], schema[sample.outcome]
    if not weight.is_numeric():
        raise ValueError(f"column {sample.weight!r} holds {weight}: weights must be numbers")
    if not (outcome.is_numeric() or outcome == nw.Boolean):
        raise ValueError(
            f"column {sample.outcome!r} holds {outcome}: outcomes must be numbers or booleans"
        )
    for name in fpc:
        if not schema[name].is_numeric():
            raise ValueError(f"column {name!r} holds {schema[name]}: population counts are numbers")
    for name in universe:
        if not (schema[name].is_numeric() or schema[name] == nw.Boolean):
            raise ValueError(
                f"column {name!r} holds {schema[name]}: the universe must be booleans, or 0 and 1"
            )


def check_labels(
    levels: Sequence[Sequence[str | None]], rows: NDArray[np.float64], names: Sequence[str]
) -> NDArray[np.str_]:
    """Join the levels of each area by a space into its label; none blank, no two alike.

    Parameters
    ----------
    levels : for each area column the text of each area, None where it is missing
    rows : how many records each area has
    names : the area columns
    """
    where = f"area column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
    keys = list(zip(*levels, strict=True))
    blank = np.array([any(not (text or "").strip() for text in key) for key in keys], dtype=bool)
    if blank.any():
        raise ValueError(f"{where}: no area (missing or blank) in {rows[blank].sum():.0f} records")
    labels = np.asarray([" ".join(key) for key in keys], dtype=str)
    distinct, count = np.unique(labels, return_counts=True)
    if (count > 1).any():
        raise ValueError(
            f"{where}: more than one area has the label "
            f"{name_some(repr(str(label)) for label in distinct[count > 1])}"
        )
    return labels


def check_spanning(count: int, sample: Sample) -> None:
    """Refuse units with records in several areas, each of which would move several estimates."""
    if sample.spanning == "fail":
        columns = ", ".join(map(repr, dict.fromkeys(sample.area + sample.unit)))
        raise ValueError(
            f"column {sample.unit_name!r}: {count} units have records in more than one area; if "
            f"units are numbered anew in each area, pass unit=[{columns}]; if they are the same "
            "units, spanning='bound' raises the sensitivity for them"
        )


def check_counts(
    table: Mapping[str, NDArray[Any]],
    labels: NDArray[np.str_],
    sample: Sample,
) -> None:
    """Refuse unusable records: one message with every kind of fault, its column, areas, counts."""
    bounds, universe = sample.bounds, str(sample.universe)
    faults = [
        ("negative_weight", sample.weight, "negative weight", ""),
        ("infinite_weight", sample.weight, "infinite weight", ""),
        ("outside", sample.outcome, "outcome", f" outside {bounds.low:g}..{bounds.high:g}"),
        ("missing_unit", sample.unit_name, "missing unit", ""),
        ("missing_stratum", " ".join(sample.strata), "missing stratum", ""),
        ("missing_cluster", " ".join(sample.cluster), "missing cluster", ""),
        ("unknown_universe", universe, "record", " neither in the universe nor outside"),
    ]
    if sample.missing == "fail":
        faults += [
            ("missing_weight", sample.weight, "missing weight", ""),
            ("missing_outcome", sample.outcome, "missing outcome", ""),
        ]
    found = []
    for fault, column, noun, rest in faults:
        counts, total = table[fault], int(table[fault].sum())
        if total:
            areas = [f"{a} ({c:.0f})" for a, c in zip(labels, counts, strict=True) if c]
            ending = "" if total == 1 else "s"
            plural = "missing strata" if ending and noun == "missing stratum" else noun + ending
            plural += rest
            found.append(f"column {column!r}: {total} {plural}, in {name_some(areas)}")
    if found:
        raise ValueError("; ".join(found))


def check_totals(
    weight: NDArray[np.float64], largest: NDArray[np.float64], labels: NDArray[np.str_]
) -> None:
    """Require a positive weight somewhere, and sums of a size that can be squared."""
    if not largest.any():
        raise ValueError("no record that can be used has a positive weight")
    # A sum beyond all numbers is missing on some engines, and then read as 0.
    extreme = ~((largest == 0) | ((weight >= SMALLEST) & (weight <= LARGEST)))
    if extreme.any():
        raise ValueError(
            f"weights add up to less than {SMALLEST:g} or more than {LARGEST:g} in "
            f"{extreme.sum()} areas, {name_some(labels[extreme])}: rescale them"
        )
