"""Small checks and message helpers that several stages share."""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
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


# On a sensitivity that was raised for units with records in several areas: in how many at most.
AREAS_PER_UNIT = "areas_per_unit"


def areas_per_unit(direct: Any) -> int:
    """In how many areas a protected unit may have records, from the sensitivity's attributes.

    The sensitivities of :func:`hajek` are then that many times what one area can move: right for
    whatever is linear in the direct estimates, and for nothing else.

    Examples
    --------
    >>> import xarray as xr
    >>> direct = xr.Dataset({"sensitivity": ("area", [0.2], {AREAS_PER_UNIT: 3})})
    >>> areas_per_unit(direct)
    3
    """
    sources = [(direct["sensitivity"].attrs, AREAS_PER_UNIT), (direct.attrs, "max_areas_of_a_unit")]
    found = [float(attrs[name]) for attrs, name in sources if name in attrs]
    if any(not (n >= 1 and n == int(n)) for n in found):
        raise ValueError(f"the attribute {AREAS_PER_UNIT!r} of sensitivity must count areas")
    return int(max(found, default=1))


def refuse_spanning(direct: Any, what: str) -> None:
    """Refuse sensitivities that were raised for units with records in several areas.

    Raises
    ------
    ValueError
        Saying what does not apply to them.
    """
    if (areas := areas_per_unit(direct)) > 1:
        raise ValueError(
            f"{what}: the sensitivities were raised for units with records in up to {areas} areas "
            "(spanning='bound'), which is right for estimates and draws that are linear in the "
            "direct estimates alone; protect units within an area, such as "
            "unit=['area', 'household'], or single records"
        )


def check_ledger(ledger: object) -> None:
    """Refuse what cannot be charged, such as a path, before anything is computed or drawn.

    Raises
    ------
    TypeError
        Naming the way to open a ledger.
    """
    if ledger is not None and not hasattr(ledger, "charge"):
        given = repr(ledger) if isinstance(ledger, str) else f"a {type(ledger).__name__}"
        raise TypeError(
            f"ledger must be a PrivacyLedger, not {given}: open the file of one with "
            "PrivacyLedger(path), or create one with create=True"
        )


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


# Characters that show nothing. Joiners and variation selectors belong to ordinary writing (Persian,
# emoji): texts keep them, comparisons do not see them.
_JOINERS = {"\u200c", "\u200d", *map(chr, range(0xFE00, 0xFE10))}
_FILLERS = set("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u2800\u3164\uffa0")
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats, halves of pairs, separators


def plain_text(text: object, what: str) -> str:
    r"""A text on one line, without spaces around it and with nothing in it that cannot be seen.

    Raises
    ------
    ValueError
        If it is no text, is blank, or holds control or invisible characters, naming these.

    Examples
    --------
    >>> plain_text("  last year's\n report ", "the source")
    "last year's report"
    >>> plain_text("north\u200b", "the part")
    Traceback (most recent call last):
    ValueError: the part holds characters that cannot be seen (U+200B): leave them out
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{what} must be text and not blank")
    line = " ".join(text.split())
    unseen = {
        f"U+{ord(c):04X}"
        for c in line
        if c in _FILLERS or (unicodedata.category(c) in _UNSEEN and c not in _JOINERS)
    }
    if unseen:
        raise ValueError(
            f"{what} holds characters that cannot be seen ({name_some(sorted(unseen))}): "
            "leave them out"
        )
    if not spelling(line):
        raise ValueError(f"{what} must be text and not blank")
    return line


def spelling(text: str) -> str:
    r"""One key for spellings of a name that differ in case, spaces, width or what cannot be seen.

    Examples
    --------
    >>> spelling(" North  Side") == spelling("\uff2eorth side\u200b")
    True
    """
    wide = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    seen = (
        c
        for c in wide
        if c.isspace() or not (c in _FILLERS or c in _JOINERS or unicodedata.category(c) in _UNSEEN)
    )
    return " ".join("".join(seen).split())


def round_up(value: float) -> str:
    """Write a price with four digits, never below it.

    Examples
    --------
    >>> round_up(1.00001), round_up(1.7396), round_up(2e-9 / 3)
    ('1.001', '1.740', '6.667e-10')
    """
    return f"{Context(prec=4, rounding=ROUND_CEILING).create_decimal(Decimal(float(value))):g}"


def rounded(value: float, digits: int, *, up: bool = True) -> str:
    """Write a figure that somebody declared: as it is, or rounded to the safe side if longer.

    Its shortest decimal counts, which is read back as the same float: 0.1 is written 0.1.

    Examples
    --------
    >>> rounded(0.1, 6), rounded(0.12345649, 6), rounded(0.12345649, 6, up=False)
    ('0.1', '0.123457', '0.123456')
    """
    context = Context(prec=digits, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return f"{float(context.create_decimal(repr(float(value)))):.{digits}g}"
