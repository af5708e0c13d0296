"""Recover a sparse matrix from products with it: few products, no pattern declared.

Columns are split into halves again and again. What rows a group of columns touches is seen from
one product with random weights; groups that touch different rows share the next product. In the
end each product holds single columns that touch different rows, so every entry is read as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from pymc_dp.posterior import Array

Product = Callable[[Array], Array]
Group = tuple[np.ndarray, np.ndarray]  # columns, and the rows they may touch
Entries = tuple[np.ndarray, np.ndarray, Array]  # rows, columns, values

# Groups of at most this share of the columns that still touch as much as twice as many columns
# did are dense: splitting them further only delays taking their columns one at a time.
DENSE_SHARE = 1 / 8
DENSE_SHRINKAGE = 0.95


def recover(product: Product, shape: tuple[int, int], alone: np.ndarray) -> sp.csc_array:
    """The matrix behind `product`, from as few products as its pattern allows.

    Parameters
    ----------
    product : callable
        Takes a vector of shape (columns,) to one of shape (rows,), linearly.
    shape : (rows, columns)
    alone : ndarray of bool of shape (columns,)
        Columns to take one at a time because they may touch every row, such as coefficients.

    Returns
    -------
    scipy.sparse.csc_array
        Entries that are zero in floating point are left out.

    Notes
    -----
    An entry is lost only if a random weighted sum of a group's entries in its row is zero in
    floating point although the entry is not: it would have to cancel to the last bit. The rows of
    a symmetric matrix that belong to `alone` are dense too and would keep groups apart, so they
    are left out of what is shared; their entries come from the columns, by symmetry.
    """
    rows, columns = shape
    rng = np.random.default_rng(31_415_926)  # weights of a probe; no part in any release
    weights = rng.uniform(1.0, 2.0, columns)
    nothing = np.zeros(0, dtype=int)
    parts: list[Entries] = [(nothing, nothing, np.zeros(0))]
    for j in np.flatnonzero(alone).tolist():
        seen = product(_unit(columns, j))
        touched = np.flatnonzero(seen)
        parts.append((touched, np.full(touched.size, j), seen[touched]))
    shared = np.ones(rows, dtype=bool)
    shared[:columns][alone] = False

    others = np.flatnonzero(~alone)
    groups = [(others, np.flatnonzero(shared))] if others.size else []
    while groups:
        groups, finished = _split(product, columns, weights, groups, shared, others.size)
        parts += finished
    row, column, values = (np.concatenate([p[k] for p in parts]) for k in range(3))
    found = sp.coo_array((values, (row.astype(int), column.astype(int))), shape=shape).tocsc()
    return _mirrored(found, alone)


def _split(
    product: Product,
    columns: int,
    weights: Array,
    groups: list[Group],
    shared: np.ndarray,
    total: int,
) -> tuple[list[Group], list[Entries]]:
    """Halve each group; return the halves to split further, and columns that are known."""
    halves = []
    for members, touched in groups:
        few = members.size <= 1
        pieces = [members] if few else np.array_split(members, 2)
        halves += [(piece, touched) for piece in pieces if piece.size]
    left: list[Group] = []
    finished: list[Entries] = []
    for colour in _disjoint(halves, shared.size):
        weight = np.zeros(columns)
        for k in colour:
            members = halves[k][0]
            # A single column is read off with weight 1, so that no division rounds it.
            weight[members] = 1.0 if members.size == 1 else weights[members]
        seen = product(weight)
        for k in colour:
            members, could = halves[k]
            touched = could[seen[could] != 0]
            if members.size == 1:
                finished.append((touched, np.full(touched.size, members[0]), seen[touched]))
            elif _is_dense(members, touched, could, total):
                finished += _one_by_one(product, columns, members, shared)
            elif touched.size:
                left.append((members, touched))
    return left, finished


def _is_dense(members: np.ndarray, touched: np.ndarray, could: np.ndarray, total: int) -> bool:
    small = members.size <= DENSE_SHARE * total
    return small and touched.size > DENSE_SHRINKAGE * could.size > 16 * members.size


def _one_by_one(
    product: Product, columns: int, members: np.ndarray, shared: np.ndarray
) -> list[Entries]:
    found: list[Entries] = []
    for j in members:
        column = product(_unit(columns, j))
        touched = np.flatnonzero((column != 0) & shared)
        found.append((touched, np.full(touched.size, j), column[touched]))
    return found


def _disjoint(groups: list[Group], rows: int) -> list[list[int]]:
    """Colour groups, greedily, so that those of one colour touch different rows."""
    used: list[np.ndarray] = []
    members: list[list[int]] = []
    for k, (_, touched) in enumerate(groups):
        colour = next((c for c, o in enumerate(used) if not o[touched].any()), len(used))
        if colour == len(used):
            used.append(np.zeros(rows, dtype=bool))
            members.append([])
        used[colour][touched] = True
        members[colour].append(k)
    return members


def _unit(size: int, j: int) -> Array:
    vector = np.zeros(size)
    vector[j] = 1.0
    return vector


def _mirrored(found: sp.csc_array, alone: np.ndarray) -> sp.csc_array:
    """Add the rows of `alone` in the other columns, which the symmetric block's columns tell."""
    columns = alone.size
    if not alone.any():
        return found
    block = found[:columns].tocoo()
    keep = alone[block.col] & ~alone[block.row]
    mirror = sp.coo_array((block.data[keep], (block.col[keep], block.row[keep])), shape=found.shape)
    return (found + mirror).tocsc()
