"""Factors of a posterior precision: solve, whiten, and variances without a dense inverse.

``Q = R R'``. A sparse ``Q`` is factored by SuperLU without pivoting, its few dense columns
(coefficients) bordered: minimum degree would fill with them. Entries of ``Q^-1`` on the factor's
pattern come from the Takahashi recursion (Takahashi, Fagan and Chen 1973; Rue and Martino 2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from pymc_dp._typing import Array

UNIT = 2.0**-53
# Below this size, or above this share of entries, dense algebra is faster.
DENSE_SIZE = 500
DENSE_SHARE = 0.05
# A column with this many times the square root of n entries is bordered.
BORDER = 5.0
BLOCK = 128  # right-hand sides at a time: a row of them stays in the cache
IMPROPER = (
    "improper posterior: the precision of the latents is not positive definite (coefficients or "
    "effects that the data do not identify under flat priors)"
)


@dataclass(frozen=True)
class DenseFactor:
    """``Q = R R'`` with a dense triangular ``R``."""

    root: Array

    def solve(self, rhs: Array) -> Array:
        """``Q^-1 rhs``."""
        return np.asarray(sl.cho_solve((self.root, True), rhs))

    def unwhiten(self, vector: Array) -> Array:
        """``R^-T vector``."""
        return np.asarray(sl.solve_triangular(self.root, vector, lower=True, trans="T"))

    def quadratic(self, columns: sp.csc_array) -> Array:
        """``k' Q^-1 k`` for each column ``k``; (columns,)."""

        def norms(block: Array) -> Array:
            solved = sl.solve_triangular(self.root, block, lower=True)
            return np.asarray((solved**2).sum(axis=0))

        return _blockwise(norms, columns)

    @property
    def triangle(self) -> tuple[sp.csc_array, np.ndarray]:
        """``R``, and the latent of each of its rows."""
        return sp.csc_array(np.tril(self.root)), np.arange(len(self.root))

    @cached_property
    def trace(self) -> tuple[float, float]:
        """Traces of ``Q`` and of ``Q^-1``."""
        inverse = sl.solve_triangular(self.root, np.eye(len(self.root)), lower=True)
        return float((self.root**2).sum()), float((inverse**2).sum())


@dataclass(frozen=True)
class SparseFactor:
    """``Q = R R'``, ``R = [[R_s, 0], [Y', R_b]]`` once its rows are put in order.

    Attributes
    ----------
    inner, border : ndarray of int
        Latents of the sparse part, in elimination order, and those bordered.
    below : csc_array
        ``R_s`` below its diagonal.
    diagonal : ndarray
        Diagonal of ``R_s``.
    crossed : ndarray of shape (inner, border)
        ``Y = R_s^-1 C``, where ``C`` holds the border's columns.
    root : ndarray of shape (border, border)
        ``R_b``, lower triangular.
    """

    inner: np.ndarray
    border: np.ndarray
    below: sp.csc_array
    diagonal: Array
    crossed: Array
    root: Array
    core: sp.csc_array  # R_s R_s', in elimination order

    def solve(self, rhs: Array) -> Array:
        """``Q^-1 rhs``."""
        flat = rhs.reshape(len(rhs), -1)
        out = np.empty_like(flat, dtype=float)
        for start in range(0, flat.shape[1], BLOCK):
            block = flat[:, start : start + BLOCK]
            first = _solve(self.below, self.diagonal, block[self.inner])
            second = self._corner(block[self.border] - self.crossed.T @ first)
            out[:, start : start + BLOCK] = self._back(first, second)
        return out.reshape(rhs.shape)

    def unwhiten(self, vector: Array) -> Array:
        """``R^-T vector``."""
        first, second = np.split(vector[:, None], [self.inner.size])
        corner = sl.solve_triangular(self.root, second, lower=True, trans="T")
        return np.asarray(self._back(first, corner))[:, 0]

    def _corner(self, rhs: Array) -> Array:
        return np.asarray(sl.cho_solve((self.root, True), rhs))

    def _back(self, first: Array, second: Array) -> Array:
        """Put the border's solution in, and solve ``R_s' x = first - Y second``."""
        out = np.empty((self.inner.size + self.border.size, first.shape[1]))
        out[self.border] = second
        rest = first - self.crossed @ second
        out[self.inner] = _solve(self.below, self.diagonal, rest, transposed=True)
        return out

    def quadratic(self, columns: sp.csc_array) -> Array:
        """``k' Q^-1 k`` for each column ``k``; (columns,).

        Pairs of a column's entries that lie on the factor's pattern are read off the selected
        inverse; columns with other pairs take a solve each.
        """
        inner, border = columns[self.inner].tocsc(), columns[self.border].tocsc()
        on = _pattern_covers(self.selected, inner)
        out = np.empty(columns.shape[1])
        if on.any():
            part = inner[:, on]
            first = (self.selected @ part).multiply(part).sum(axis=0)
            pull = border[:, on].toarray() - (part.T @ self.pulled).T
            rest = sl.solve_triangular(self.root, pull, lower=True)
            out[on] = np.ravel(first) + (rest**2).sum(axis=0)
        if not on.all():
            others = columns[:, ~on].tocsc()
            out[~on] = _blockwise(lambda b: (b * self.solve(b)).sum(axis=0), others)
        return out

    @cached_property
    def pulled(self) -> Array:
        """``(R_s R_s')^-1 C``; (inner, border)."""
        return _solve(self.below, self.diagonal, self.crossed, transposed=True)

    @cached_property
    def selected(self) -> sp.csc_array:
        """Entries of ``(R_s R_s')^-1`` on the pattern of ``R_s + R_s'``."""
        from pymc_dp.posterior._compiled import selected_inverse

        own, values = selected_inverse(*_csc(self.below), self.diagonal)
        below = sp.csc_array((values, self.below.indices, self.below.indptr), self.below.shape)
        inverse = (below + below.T + sp.diags_array(own)).tocsc()
        # The trace of a matrix times its inverse: an entry that the pattern lacks would show.
        terms = self.core.multiply(inverse)
        if abs(terms.sum() - own.size) > 1e-9 * abs(terms).sum():
            raise RuntimeError("the selected inverse does not invert the precision")
        return inverse

    @property
    def triangle(self) -> tuple[sp.csc_array, np.ndarray]:
        """``R``, and the latent of each of its rows."""
        first = self.below + sp.diags_array(self.diagonal)
        if not self.border.size:
            return first.tocsc(), self.inner
        last = [sp.csc_array(self.crossed.T), sp.csc_array(np.tril(self.root))]
        return (
            sp.block_array([[first, None], last]).tocsc(),
            np.concatenate([self.inner, self.border]),
        )

    @cached_property
    def trace(self) -> tuple[float, float]:
        """Traces of ``Q`` and of ``Q^-1``."""
        rest = sl.solve_triangular(self.root, self.pulled.T, lower=True)
        corner = sl.solve_triangular(self.root, np.eye(self.border.size), lower=True)
        inverse = self.selected.diagonal().sum() + (rest**2).sum() + (corner**2).sum()
        parts = (self.below.data, self.diagonal, self.crossed, np.tril(self.root))
        return float(sum((p**2).sum() for p in parts)), float(inverse)


Factor = DenseFactor | SparseFactor


def factorise(precision: sp.csc_array) -> Factor:
    """Factor a posterior precision, proving that it is positive definite.

    Parameters
    ----------
    precision : csc_array of shape (n, n)

    Raises
    ------
    ValueError
        If it is not: the posterior is then improper.
    """
    n = precision.shape[0]
    if not (precision.diagonal() > 0).all():
        raise ValueError(IMPROPER)
    if n <= DENSE_SIZE or precision.nnz > DENSE_SHARE * n * n:
        return _dense(precision)
    return _sparse(precision)


def exact_forward(factor: Factor, columns: sp.csc_array, y: Array) -> Array:
    """``R^-1 K y`` with the stored ``R`` and ``K``, to the last bit or so; (n,)."""
    from pymc_dp.posterior._compiled import forward_exactly

    triangle, latent = factor.triangle
    below = sp.tril(triangle, k=-1, format="csc")
    rows = columns[latent].tocsr()
    return np.asarray(
        forward_exactly(
            *_csc(below),
            triangle.diagonal(),
            rows.indptr,
            rows.indices,
            rows.data,
            np.asarray(y, dtype=float),
        )
    )


def _dense(precision: sp.csc_array) -> DenseFactor:
    dense = precision.toarray()
    scale = np.sqrt(dense.diagonal())
    return DenseFactor(scale[:, None] * _cholesky(dense / np.outer(scale, scale), len(dense)))


def _cholesky(matrix: Array, n: int) -> Array:
    """Root of a matrix with unit diagonal, refused if a pivot is what rounding would leave."""
    try:
        root = np.asarray(sl.cholesky(matrix, lower=True))
    except sl.LinAlgError as error:
        raise ValueError(IMPROPER) from error
    _refuse_small(root.diagonal() ** 2, n)
    return root


def _refuse_small(pivots: Array, n: int) -> None:
    if not (pivots > 4 * n * UNIT).all():
        raise ValueError(IMPROPER)


def _sparse(precision: sp.csc_array) -> Factor:
    from scipy.sparse.linalg import splu

    n = precision.shape[0]
    is_border = np.diff(precision.indptr) > BORDER * math.sqrt(n)
    inner, border = np.flatnonzero(~is_border), np.flatnonzero(is_border)
    if border.size > n // 10:
        return _dense(precision)
    core = precision[inner][:, inner].tocsc()
    try:
        lu = splu(core, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except RuntimeError:  # singular without the border: flat effects that only the rest identifies
        return _dense(precision)
    pivot = lu.U.diagonal()
    if (lu.perm_r != lu.perm_c).any() or not (pivot > 0).all():
        raise ValueError(IMPROPER)
    order = np.argsort(lu.perm_c)
    _refuse_small(pivot / core.diagonal()[order], n)
    diagonal = np.sqrt(pivot)
    below = (sp.tril(lu.L, k=-1) @ sp.diags_array(diagonal)).tocsc()
    below = _closed(below)
    inner = inner[order]
    crossed = _solve(below, diagonal, precision[inner][:, border].toarray())
    corner = precision[border][:, border].toarray()
    scale = np.sqrt(corner.diagonal())
    schur = (corner - crossed.T @ crossed) / np.outer(scale, scale)
    root = scale[:, None] * _cholesky(schur, n) if border.size else np.zeros((0, 0))
    return SparseFactor(
        inner, border, below, diagonal, crossed, root, core[order][:, order].tocsc()
    )


def _closed(below: sp.csc_array) -> sp.csc_array:
    """The factor with every entry that elimination can fill, also where it is zero.

    SuperLU leaves out entries that happen to be zero; the recursion for the inverse needs them:
    a column's rows after its first must all be rows of the column that its first row names.
    """
    below.sort_indices()
    n, start = below.shape[0], below.indptr[:-1]
    count = np.diff(below.indptr)
    parent = np.full(n, -1)
    parent[count > 0] = below.indices[start[count > 0]]
    column = np.repeat(np.arange(n), count)
    later = np.ones(below.nnz, dtype=bool)
    later[start[count > 0]] = False
    keys = column.astype(np.int64) * n + below.indices
    wanted = parent[column[later]].astype(np.int64) * n + below.indices[later]
    if np.isin(wanted, keys).all():
        return below
    rows = [below.indices[a:b] for a, b in zip(start, below.indptr[1:], strict=True)]
    for j in range(n):
        if rows[j].size > 1:
            p = rows[j][0]
            rows[p] = np.union1d(rows[p], rows[j][1:])
    indptr = np.concatenate([[0], np.cumsum([r.size for r in rows])])
    indices, data = np.concatenate(rows), np.zeros(indptr[-1])
    full = np.repeat(np.arange(n), np.diff(indptr)).astype(np.int64) * n + indices
    data[np.searchsorted(full, keys)] = below.data  # both in order of columns, then rows
    return sp.csc_array((data, indices, indptr), below.shape)


def _solve(below: sp.csc_array, diagonal: Array, rhs: Array, *, transposed: bool = False) -> Array:
    """``R^-1 rhs`` or ``R^-T rhs``; (n, columns)."""
    from pymc_dp.posterior._compiled import backward, forward

    x = np.array(rhs, dtype=float, order="C")
    (backward if transposed else forward)(*_csc(below), diagonal, x)
    return x


def _csc(matrix: sp.csc_array) -> tuple[np.ndarray, np.ndarray, Array]:
    return matrix.indptr, matrix.indices, matrix.data


def _blockwise(function: Callable[[Array], Array], columns: sp.csc_array) -> Array:
    parts = [
        function(columns[:, start : start + BLOCK].toarray())
        for start in range(0, columns.shape[1], BLOCK)
    ]
    return np.concatenate([*parts, np.zeros(0)])


def _pattern_covers(pattern: sp.csc_array, columns: sp.csc_array) -> np.ndarray:
    """Whether all pairs of a column's entries lie on a symmetric pattern with full diagonal."""
    count = np.diff(columns.indptr)
    wide = count > 64  # a mean over many areas: not looked up
    ones = sp.csc_array((np.ones(columns.nnz), columns.indices, columns.indptr), columns.shape)
    on = sp.csc_array((np.ones(pattern.nnz), pattern.indices, pattern.indptr), pattern.shape)
    few = ones[:, ~wide]
    pairs = np.zeros(count.size)
    pairs[~wide] = np.ravel((on @ few).multiply(few).sum(axis=0))
    return np.asarray(~wide & (pairs == count.astype(float) ** 2))
