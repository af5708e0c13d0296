"""Small checks and message helpers that several stages share."""

from __future__ import annotations

from collections.abc import Iterable


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
