"""Small checks and message helpers that several stages share."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any


def name_some(names: Iterable[object], limit: int = 5) -> str:
    """The first few names, and how many more there are.

    Examples
    --------
    >>> name_some("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    listed = [str(n) for n in names]
    rest = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {rest} more" if rest > 0 else "")


def positive_number(name: str, value: Any, rest: str = "") -> float:
    """Take one positive finite number; no text, no array and neither True nor False.

    Raises
    ------
    ValueError
        Naming the argument, with `rest` after the sentence.

    Examples
    --------
    >>> positive_number("rho", Decimal("0.5")), positive_number("rho", 2)
    (0.5, 2.0)
    """
    numeric = getattr(getattr(value, "dtype", None), "kind", "f") in "iuf"
    number = math.nan
    if numeric and not getattr(value, "ndim", 0) and not isinstance(value, bool | str | bytes):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a positive finite number{rest}")
    return number


def whole_number(name: str, value: Any, rest: str = "") -> int:
    """Take one positive whole number; 2.0 is none, and neither is True.

    Raises
    ------
    ValueError
        Naming the argument, with `rest` after the sentence.

    Examples
    --------
    >>> whole_number("draws", 3)
    3
    """
    number = 0
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
    if number < 1:
        raise ValueError(f"{name} must be a positive whole number{rest}")
    return number


def declared_bounds(attrs: Mapping[str, Any]) -> list[float] | None:
    """The outcome's declared range among attributes, [low, high].

    A variable's attribute is called ``outcome_bounds``: xarray, writing a file that was read,
    takes ``bounds`` for the name of a variable. Both are read.

    Examples
    --------
    >>> declared_bounds({"outcome_bounds": (0, 1)}), declared_bounds({})
    ([0.0, 1.0], None)
    """
    found = attrs.get("outcome_bounds", attrs.get("bounds"))
    return None if found is None else [float(b) for b in found]


# Marks a variable that was computed from the answers, hence differs between neighbours.
FROM_ANSWERS = {"computed_from": "answers"}


def from_answers(attrs: Mapping[str, Any]) -> bool:
    """Whether a variable's attributes say that it was computed from the answers.

    Examples
    --------
    >>> from_answers(FROM_ANSWERS), from_answers({})
    (True, False)
    """
    return FROM_ANSWERS.items() <= attrs.items()


def text_labels(index: Iterable[object]) -> list[str]:
    """Area labels as text; several levels are joined by a space, as everywhere.

    Examples
    --------
    >>> text_labels([("04", "00100"), 7])
    ['04 00100', '7']
    """
    if hasattr(index, "nlevels"):  # of pandas: element by element, text takes its time
        index = index.tolist()  # type: ignore[attr-defined]
    return [" ".join(map(str, a)) if isinstance(a, tuple) else str(a) for a in index]


def round_up(value: float) -> str:
    """Write a price with four digits, never below it.

    Examples
    --------
    >>> round_up(1.00001), round_up(1.7396), round_up(2e-9 / 3)
    ('1.001', '1.740', '6.667e-10')
    """
    return f"{Context(prec=4, rounding=ROUND_CEILING).create_decimal(Decimal(float(value))):g}"
