"""Read any linear-Gaussian model: precision, cross term and target in sparse form.

For latents ``z`` and data ``y`` whose joint log density is a quadratic,

    z | y ~ N(Q^-1 (K y + c), Q^-1),    theta = T z + B y + t,

with constant ``Q, K, c, T, B, t``: minus the second derivatives, and the target's slopes. Rows
and columns are found by products with the Hessian (:mod:`pymc_dp.reading.linear`), then checked
against products and gradients at random points far out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from pymc_dp._typing import Array
from pymc_dp.reading.derivatives import derivatives
from pymc_dp.reading.symbolic import NotLinearGaussianError, SymbolicModel

# Products and gradients carry rounding of a few units in the last place of their largest term; a
# structural difference shows at order one.
TOLERANCE = 1e-9
# Blocks of at most this many latents (coefficients, a year's level) may touch everything.
SMALL_BLOCK = 32


@dataclass(frozen=True)
class LinearGaussian:
    """Numbers of a linear-Gaussian model; n latents, k observations, m entries of the target.

    Attributes
    ----------
    precision : csc_array of shape (n, n)
        ``Q``, the posterior precision of the latents.
    cross : csc_array of shape (n, k)
        ``K``: how the data pull the latents.
    data_precision : csc_array of shape (k, k)
        Precision of the data given the latents, ``R^-1``.
    shift : ndarray of shape (n,)
        ``c``.
    data_shift : ndarray of shape (k,)
        Pull of the data at the origin: ``R^-1`` times their mean there.
    target : csr_array of shape (m, n)
        ``T``.
    openly : csr_array of shape (m, k)
        ``B``: how the target uses the data beside the latents.
    constant : ndarray of shape (m,)
        ``t``.
    """

    precision: sp.csc_array
    cross: sp.csc_array
    data_precision: sp.csc_array
    shift: Array = field(repr=False)
    data_shift: Array = field(repr=False)
    target: sp.csr_array
    openly: sp.csr_array
    constant: Array = field(repr=False)

    def direct_index(self) -> np.ndarray | None:
        """The area that each observation is a direct estimate of; (k,) of int.

        None unless every observation is independent with mean equal to one entry of the target,
        each another one: then ``K = T' R^-1`` in these columns.
        """
        variance = _inverse_diagonal(self.data_precision)
        k, m = self.cross.shape[1], self.target.shape[0]
        if variance is None or self.openly.nnz or k > m:
            return None
        mean = (self.cross @ sp.diags_array(variance)).T.tocsr()  # E[y] = mean z + constant
        probe = np.random.default_rng(27_182_818).normal(size=self.shift.size)
        want, have = self.target @ probe, mean @ probe
        order = np.argsort(want)
        place = np.clip(np.searchsorted(want[order], have), 1, max(m - 1, 1))
        nearer = np.abs(want[order[place - 1]] - have) < np.abs(want[order[place % m]] - have)
        index = order[np.where(nearer, place - 1, place % m)]
        if np.unique(index).size < k:
            return None
        difference = abs(self.target[index] - mean)
        size = abs(self.target[index]).max(axis=1).toarray().ravel()
        if (difference.max(axis=1).toarray().ravel() > TOLERANCE * size).any():
            return None
        return np.asarray(index)


def read_linear(symbolic: SymbolicModel) -> LinearGaussian:
    """Read the numbers of a model that is proven linear-Gaussian.

    Raises
    ------
    NotLinearGaussianError
        If the reading does not agree with the model at random points.
    """
    product, product_at, gradient = derivatives(symbolic)
    sizes = [int(np.prod(v.type.shape)) for v in symbolic.latents.values()]
    n, k = sum(sizes), symbolic.values.size
    small = np.repeat([s <= SMALL_BLOCK for s in sizes], sizes) if n else np.zeros(0, dtype=bool)
    origin = np.zeros(n + k)
    at_zero = gradient(origin)
    m = at_zero.size - n - k
    found = recover(product, (n + k + m, n + k), np.append(small, np.zeros(k, dtype=bool)))
    hessian = found[: n + k]
    _agree(found, product_at, gradient, at_zero)
    Q = -hessian[:n, :n]
    return LinearGaussian(
        precision=((Q + Q.T) / 2).tocsc(),
        cross=hessian[n:, :n].T.tocsc(),
        data_precision=(-hessian[n:, n:]).tocsc(),
        shift=at_zero[:n],
        data_shift=at_zero[n : n + k],
        target=found[n + k :, :n].tocsr(),
        openly=found[n + k :, n:].tocsr(),
        constant=at_zero[n + k :],
    )


def _agree(found: sp.csc_array, product_at: Any, gradient: Any, at_zero: Array) -> None:
    """Random directions at random points far out: symmetry, products, gradients and target."""
    size = found.shape[1]
    hessian = found[:size]
    scale = sp.csr_array(abs(hessian)).max() if hessian.nnz else 0.0
    rng = np.random.default_rng(20_240_229)  # checks a structure; has no part in any release
    ok = abs(hessian - hessian.T).max() <= TOLERANCE * scale
    for factor in (1.0, 1e3):
        direction, point = rng.normal(size=size), factor * rng.normal(size=size)
        for got, vector, base in (
            (product_at(direction, point), direction, 0.0),
            (gradient(point), point, at_zero),
        ):
            limit = TOLERANCE * (abs(found) @ np.abs(vector) + np.abs(base))
            # Terms that cancel within an entry (a sum to zero) leave rounding of their own size.
            limit[:size] += TOLERANCE * 1e-3 * scale * np.abs(vector).max()
            ok &= bool((np.abs(got - found @ vector - base) <= limit).all())
    if not ok:
        raise NotLinearGaussianError(
            "the log density and its quadratic form disagree at points far out: the numbers of "
            "this model cannot be read reliably"
        )


def _inverse_diagonal(matrix: sp.csc_array) -> Array | None:
    """Inverse of a positive diagonal matrix, as a vector; None for any other."""
    diagonal = matrix.diagonal()
    if matrix.nnz > np.count_nonzero(diagonal) or not (diagonal > 0).all():
        return None
    return np.asarray(1.0 / diagonal)


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
