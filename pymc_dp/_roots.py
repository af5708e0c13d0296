"""Roots of functions that rise or fall, found on the side where a claim still holds."""

from __future__ import annotations

from collections.abc import Callable

STEP = 1e-15  # of the first nudge


def safe_root(excess: Callable[[float], float], safe: float, other: float) -> float:
    """The point nearest to ``other``, up to rounding, where ``excess`` is at most 0.

    Brent's method finds the root and may end on either side of it; steps that double then lead
    back to the side of ``safe``. What is returned has been evaluated: a claim that rests on it
    needs no error bound.

    Parameters
    ----------
    excess : callable
        A monotone function, at most 0 at ``safe``.
    safe, other : float

    Returns
    -------
    float
        ``other`` itself, if that serves.

    Raises
    ------
    ValueError
        If the excess at ``safe`` is positive or not a number.

    Examples
    --------
    >>> root = safe_root(lambda x: x * x - 2, safe=1.0, other=2.0)
    >>> root * root <= 2 and abs(root - 2**0.5) < 1e-14
    True
    """
    from scipy.optimize import brentq

    if not excess(safe) <= 0:
        raise ValueError("the search for a root starts where the excess is positive")
    if excess(other) <= 0:
        return other
    found = float(brentq(excess, safe, other, xtol=STEP))
    return nudged(excess, found, safe)


def nudged(excess: Callable[[float], float], start: float, safe: float) -> float:
    """The first point from ``start`` towards ``safe``, by steps that double, that is not in excess.

    Examples
    --------
    >>> nudged(lambda x: x - 1.0, 1.0 + 1e-14, safe=0.0) <= 1.0
    True
    """
    found, step = start, STEP if safe > start else -STEP
    while not excess(found) <= 0:  # what is no number is in excess
        found, step = found + step, 2 * step
        if (step > 0) == (found >= safe):
            return safe
    return found
