"""The columns of a table: all that are asked for are there once, or the header is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pymc_dp._checks import name_some

# Separators that a header of a single column may have been written with.
SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'", ",": "','"}
SHOWN = 12
# The beginning of a number. Of a record in the header's place no cell may be shown.
NUMBER = r"\s*[-+]?[.,]?\d"


def check_columns(
    label: str, header: Sequence[str], needed: Iterable[str], *, sep: str = "", remedy: str = ""
) -> None:
    """Require each column exactly once; close matches are named where one is absent.

    Parameters
    ----------
    label : str
        The file.
    header : sequence of str
        The names that it has.
    needed : iterable of str
    sep : str
        What the header was split by, if it comes from a delimited table.
    remedy : str
        How to say that it is another character.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_columns("survey.csv", ["area", "smoker"], ["smokr"])
    Traceback (most recent call last):
        ...
    ValueError: survey.csv has no column 'smokr' (did you mean 'smoker'?); it has 'area', 'smoker'
    """
    wanted = list(dict.fromkeys(needed))
    absent = [name for name in wanted if name not in header]
    if absent and any(re.match(NUMBER, name) for name in header):
        raise ValueError(
            f"{label} has no column {name_some(map(repr, absent))}: its first line has numbers "
            "where names should be, as a record has; put a header above it"
        )
    if absent:
        other = [mark for mark in SEPARATORS if mark in "".join(header) and mark != sep]
        if sep and len(header) == 1 and other:
            wrong, right = SEPARATORS.get(sep, repr(sep)), SEPARATORS[other[0]]
            raise ValueError(
                f"{label} has no column {name_some(map(repr, absent))}: its header is not "
                f"separated by {wrong}, but looks so by {right}{remedy}"
            )
        named = (repr(name) + did_you_mean(name, header) for name in absent)
        held = name_some(map(repr, header), SHOWN)
        raise ValueError(f"{label} has no column {name_some(named)}; it has {held}")
    twice = [repr(name) for name in wanted if list(header).count(name) > 1]
    if twice:
        raise ValueError(f"{label} has more than one column {name_some(twice)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Name the nearest known name, in brackets, if one is near.

    Examples
    --------
    >>> did_you_mean("Smoker", ["area", "smoker"]), did_you_mean("x", ["area"])
    (" (did you mean 'smoker'?)", '')
    """
    from difflib import get_close_matches

    plain: dict[str, str] = {}
    for other in known:
        plain.setdefault(other.strip().casefold(), other)
    near = get_close_matches(name.strip().casefold(), plain, n=1)
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""
