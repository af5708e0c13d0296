# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Loops over a sparse triangular matrix in columns, compiled by numba: the only ones there are.

``indptr, indices, data`` describe the part below the diagonal, ``diagonal`` the diagonal. Without
fast-math, numba rounds as IEEE says, which the double-double arithmetic rests on.
"""

from __future__ import annotations

import numpy as np
from numba import njit


def _kept(function):
    """Compile, and keep the code on disk for later processes where there is a place for it."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # neither beside the module nor in the user's folder for caches
        return njit(function)


@_kept
def forward(indptr, indices, data, diagonal, x):
    """Solve ``R x = b`` in place; b of shape (n, columns)."""
    n, width = x.shape
    for j in range(n):
        for c in range(width):
            x[j, c] /= diagonal[j]
        for p in range(indptr[j], indptr[j + 1]):
            i, value = indices[p], data[p]
            for c in range(width):
                x[i, c] -= value * x[j, c]


@_kept
def backward(indptr, indices, data, diagonal, x):
    """Solve ``R' x = b`` in place; b of shape (n, columns)."""
    n, width = x.shape
    for j in range(n - 1, -1, -1):
        for p in range(indptr[j], indptr[j + 1]):
            i, value = indices[p], data[p]
            for c in range(width):
                x[j, c] -= value * x[i, c]
        for c in range(width):
            x[j, c] /= diagonal[j]


@_kept
def selected_inverse(indptr, indices, data, diagonal):
    """Entries of ``(R R')^-1`` on the pattern of R: its diagonal, and below it.

    The Takahashi recursion for ``R R' = L D L'`` with ``L = R diag(R)^-1``, from the last column.
    """
    n = diagonal.size
    own = np.empty(n)
    below = np.empty(data.size)
    place = np.full(n, -1)
    total = np.zeros(n)
    for j in range(n - 1, -1, -1):
        start, stop = indptr[j], indptr[j + 1]
        for p in range(start, stop):
            place[indices[p]] = p
            total[indices[p]] = 0.0
        for p in range(start, stop):
            i = indices[p]
            total[i] += own[i] * data[p]
            for q in range(indptr[i], indptr[i + 1]):
                k = indices[q]
                if place[k] >= 0:
                    total[k] += below[q] * data[p]
                    total[i] += below[q] * data[place[k]]
        last = 1.0 / diagonal[j]
        for p in range(start, stop):
            below[p] = -total[indices[p]] / diagonal[j]
            last += data[p] * total[indices[p]] / diagonal[j]
            place[indices[p]] = -1
        own[j] = last / diagonal[j]
    return own, below


@_kept
def two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@_kept
def two_product(a, b):
    p = a * b
    c = 134217729.0 * a
    a1 = c - (c - a)
    a2 = a - a1
    c = 134217729.0 * b
    b1 = c - (c - b)
    b2 = b - b1
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


@_kept
def minus_product(high, low, a, x, y):
    """``(high, low) - a (x, y)`` in double-double."""
    p, e = two_product(-a, x)
    e -= a * y
    s, f = two_sum(high, p)
    return two_sum(s, f + (low + e))


@_kept
def forward_exactly(indptr, indices, data, diagonal, rows, entries, values, y):
    """``R^-1 K y`` in double-double (106 bits), rounded once at the end; (n,).

    Parameters
    ----------
    indptr, indices, data, diagonal
        ``R``.
    rows, entries, values
        ``K`` in compressed rows, in R's order.
    y : ndarray of shape (k,)
    """
    n = diagonal.size
    high, low = np.zeros(n), np.zeros(n)
    for i in range(n):
        for p in range(rows[i], rows[i + 1]):
            high[i], low[i] = minus_product(high[i], low[i], -values[p], y[entries[p]], 0.0)
    for j in range(n):
        first = high[j] / diagonal[j]
        rest, tail = minus_product(high[j], low[j], diagonal[j], first, 0.0)
        high[j], low[j] = two_sum(first, (rest + tail) / diagonal[j])
        for p in range(indptr[j], indptr[j + 1]):
            i = indices[p]
            high[i], low[i] = minus_product(high[i], low[i], data[p], high[j], low[j])
    return high + low
