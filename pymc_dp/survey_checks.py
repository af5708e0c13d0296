"""What is asked of a survey and of its records before an estimate is returned.

Every refusal is a ValueError that names columns, areas and counts and never shows an outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.checks import name_some

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
class Roles:
    """Which columns hold outcome, weight, area and unit; without a unit each record is one."""

    outcome: str
    weight: str
    area: tuple[str, ...]
    unit: tuple[str, ...]

    @property
    def unit_name(self) -> str:
        """What is protected: a record, or what the unit columns number."""
        return " ".join(self.unit) or "record"


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


def check_roles(
    outcome: str, weight: str, area: str | Sequence[str], unit: str | Sequence[str] | None
) -> Roles:
    """Sort the columns by role; one or several area and unit columns become a tuple."""
    areas = (area,) if isinstance(area, str) else tuple(area)
    units = () if unit is None else (unit,) if isinstance(unit, str) else tuple(unit)
    for role, names in (("area", areas), ("unit", units)):
        if len(set(names)) < len(names):
            raise ValueError(f"{role} names a column twice: {', '.join(names)}")
    if not areas:
        raise ValueError("area names no column")
    if unit is not None and not units:
        raise ValueError("unit names no column; leave it out to protect single records")
    return Roles(outcome, weight, areas, units)


def check_variance(
    variance: str, rate: float | None, factor: float, bounds: Bounds
) -> dict[str, Any]:
    """Accept a method that exists with the public numbers that it needs, and record them."""
    if variance not in ("linearized", "kish"):
        raise ValueError(f"variance must be 'linearized' or 'kish', got {variance!r}")
    if variance == "linearized":
        if rate is not None or factor != 1:
            raise ValueError("rate and design_factor belong to variance='kish'")
        return {"variance_method": variance}
    if (bounds.low, bounds.high) != (0, 1):
        raise ValueError("variance='kish' is P (1 - P) / n_eff and needs bounds (0, 1)")
    if rate is None or not 0 < rate < 1:
        raise ValueError("variance='kish' needs a public rate between 0 and 1, both excluded")
    if not 0 < factor < math.inf:
        raise ValueError("design_factor must be positive and finite")
    return {"variance_method": variance, "rate": float(rate), "design_factor": float(factor)}


def check_missing(missing: str) -> None:
    """Accept one of the two ways to treat records without an outcome or a weight."""
    if missing not in ("fail", "drop"):
        raise ValueError(f"missing must be 'fail' or 'drop', got {missing!r}")


def check_columns(schema: Mapping[str, Any], roles: Roles) -> None:
    """Require every column: weights as numbers, outcomes as numbers or booleans, never text."""
    import narwhals as nw

    wanted = dict.fromkeys([roles.outcome, roles.weight, *roles.area, *roles.unit])
    absent = [repr(name) for name in wanted if name not in schema]
    if absent:
        raise ValueError(f"the data have no column {name_some(absent)}")
    weight, outcome = schema[roles.weight], schema[roles.outcome]
    if not weight.is_numeric():
        raise ValueError(f"column {roles.weight!r} holds {weight}: weights must be numbers")
    if not (outcome.is_numeric() or outcome == nw.Boolean):
        raise ValueError(
            f"column {roles.outcome!r} holds {outcome}: outcomes must be numbers or booleans"
        )


def check_labels(
    levels: Sequence[Sequence[str | None]], rows: NDArray[np.int64], names: Sequence[str]
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
        raise ValueError(f"{where}: no area (missing or blank) in {rows[blank].sum()} records")
    labels = np.asarray([" ".join(key) for key in keys], dtype=str)
    distinct, count = np.unique(labels, return_counts=True)
    if (count > 1).any():
        raise ValueError(
            f"{where}: more than one area has the label "
            f"{name_some(repr(str(label)) for label in distinct[count > 1])}"
        )
    return labels


def check_spanning(count: int, roles: Roles) -> None:
    """Refuse units with records in more than one area: each would move several estimates."""
    if count:
        columns = ", ".join(map(repr, dict.fromkeys(roles.area + roles.unit)))
        raise ValueError(
            f"column {roles.unit_name!r}: {count} units have records in more than one area; if "
            f"units are numbered anew in each area, pass unit=[{columns}]"
        )


def check_counts(
    table: Mapping[str, NDArray[Any]],
    labels: NDArray[np.str_],
    roles: Roles,
    bounds: Bounds,
    missing: str,
) -> None:
    """Refuse unusable records: one message with every kind of fault, its column, areas, counts."""
    faults = [
        ("negative_weight", roles.weight, "negative weight", ""),
        ("infinite_weight", roles.weight, "infinite weight", ""),
        ("outside", roles.outcome, "outcome", f" outside {bounds.low:g}..{bounds.high:g}"),
        ("missing_unit", roles.unit_name, "missing unit", ""),
    ]
    if missing == "fail":
        faults += [
            ("missing_weight", roles.weight, "missing weight", ""),
            ("missing_outcome", roles.outcome, "missing outcome", ""),
        ]
    found = []
    for fault, column, noun, rest in faults:
        counts, total = table[fault], int(table[fault].sum())
        if total:
            areas = [f"{a} ({c})" for a, c in zip(labels, counts, strict=True) if c]
            plural = noun + "s" * (total > 1) + rest
            found.append(f"column {column!r}: {total} {plural}, in {name_some(areas)}")
    if found:
        raise ValueError("; ".join(found))


def check_totals(weight: NDArray[np.float64], labels: NDArray[np.str_]) -> None:
    """Require a positive weight somewhere, and sums of a size that can be squared."""
    if not weight.any():
        raise ValueError("no record that can be used has a positive weight")
    extreme = ~((weight == 0) | ((weight >= SMALLEST) & (weight <= LARGEST)))
    if extreme.any():
        raise ValueError(
            f"weights add up to less than {SMALLEST:g} or more than {LARGEST:g} in "
            f"{extreme.sum()} areas, {name_some(labels[extreme])}: rescale them"
        )
