"""Plans of a safe draw from a linear-Gaussian posterior: dense in the target, or in the latents."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import SPACING, UNIT
from pymc_dp.posterior.sparse import Factor, exact_forward

# Column norms come from a recursion or a dense product, checked to far below this.
NORM_SLACK = 1e-9
SIGNS = 10  # a record that moves more entries is priced by the triangle inequality
BLOCK = 512


@dataclass(frozen=True)
class TargetPlan:
    """``theta* = L (S y + noise) + c`` with dense public ``L`` (m x r) and ``S`` (r x k)."""

    to_target: Array = field(repr=False)
    from_data: Array = field(repr=False)
    constant: Array = field(repr=False)
    bound: float

    @property
    def size(self) -> int:
        """Number of lattice coordinates."""
        return self.from_data.shape[0]

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: all."""
        return self.size

    @cached_property
    def slack(self) -> float:
        """What rounding can add to the distance between two statistics.

        A product errs by one unit, the exactly rounded sum of the products by another.
        """
        error = 2 * UNIT * self.bound * np.abs(self.from_data).sum(axis=1)
        return SPACING * math.sqrt(self.size) + 2 * (1 + NORM_SLACK) * math.hypot(*error)

    def statistic(self, y: Array) -> Array:
        """``S y``, each sum of the computed products rounded once."""
        rows = (self.from_data[i : i + BLOCK] * y for i in range(0, self.size, BLOCK))
        return np.array([math.fsum(row) for block in rows for row in block.tolist()])

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``; (m,)."""
        return np.asarray(self.to_target @ noisy + self.constant)

    def distance(self, changes: sp.csc_array) -> Array:
        """How far each column of largest changes can move the statistics; (columns,)."""
        count = np.diff(changes.indptr)
        out = np.zeros(count.size)
        single = count == 1
        norm = np.sqrt((self.from_data**2).sum(axis=0))
        out[single] = norm[changes[:, single].indices] * changes[:, single].data
        for j in np.flatnonzero(count > 1):
            at = slice(changes.indptr[j], changes.indptr[j + 1])
            rows, most = changes.indices[at], changes.data[at]
            if rows.size > SIGNS:
                out[j] = norm[rows] @ most
            else:
                out[j] = largest_norm(self.from_data[:, rows] * most)
        return out


@dataclass(frozen=True)
class LatentPlan:
    """``theta* = T R^-T (R^-1 K y + noise) + c``, all sparse."""

    factor: Factor = field(repr=False)
    cross: sp.csc_array = field(repr=False)
    target: sp.csr_array = field(repr=False)
    constant: Array = field(repr=False)
    bound: float

    @property
    def size(self) -> int:
        """Number of lattice coordinates, one a latent."""
        return self.cross.shape[0]

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: all."""
        return self.size

    @cached_property
    def norm(self) -> Array:
        """Norm of each column of S: ``sqrt(K_j' Q^-1 K_j)``; (k,)."""
        return np.sqrt(self.factor.quadratic(self.cross))

    @cached_property
    def slack(self) -> float:
        """What rounding can add to the distance between two statistics.

        Forward substitution solves a system whose entries are off by ``w`` units, ``w`` the
        most terms in a row (Higham 2002, theorem 8.5), so that its result errs by at most
        ``w u |R^-1| |R| |x|``; the norms of ``R^-1`` and ``|R|`` are at most the roots of the
        traces of ``Q^-1`` and of ``Q``. In double-double, ``u`` is below 2^-98; what remains is
        the rounding at the end, allowed for twice.
        """
        total, inverse = self.factor.trace
        largest = 2 * self._operator_norm() * math.sqrt(self.cross.shape[1]) * self.bound
        amplified = 2.0 * self.size * 2.0**-98 * math.sqrt(total * inverse)
        error = (2 * UNIT + amplified) * largest
        return SPACING * math.sqrt(self.size) + 2 * (1 + NORM_SLACK) * error

    def _operator_norm(self) -> float:
        """Largest singular value of S, to a few percent (its use allows a factor of two)."""
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

        k = self.cross.shape[1]
        frobenius = float(np.sqrt((self.norm**2).sum()))  # never below it
        if k < 3 or frobenius == 0:
            return frobenius

        def square(v: Array) -> Array:
            return np.asarray(self.cross.T @ self.factor.solve(self.cross @ v.ravel()))

        start = np.random.default_rng(1).uniform(1.0, 2.0, k)
        try:
            [value] = eigsh(
                LinearOperator((k, k), matvec=square, dtype=float),
                k=1,
                tol=1e-2,
                v0=start,
                return_eigenvectors=False,
            )
        except ArpackError:  # did not converge, or S is too close to zero
            return frobenius
        return max(math.sqrt(max(float(value), 0.0)), float(self.norm.max()))

    def statistic(self, y: Array) -> Array:
        """``S y``; (n,)."""
        return exact_forward(self.factor, self.cross, y)

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``; (m,)."""
        return np.asarray(self.target @ self.factor.unwhiten(noisy) + self.constant)

    def distance(self, changes: sp.csc_array) -> Array:
        """How far each column of largest changes can move the statistics, at most; (columns,)."""
        return np.asarray(changes.T @ self.norm)


LinearPlan = TargetPlan | LatentPlan


def largest_norm(columns: Array) -> float:
    """Largest norm of the columns' sum over all signs: a convex function peaks at a corner."""
    gram = columns.T @ columns
    signs = np.array(list(itertools.product([1.0], *[[1.0, -1.0]] * (gram.shape[0] - 1))))
    return math.sqrt(float(np.einsum("si,ij,sj->s", signs, gram, signs).max()))


def price(plan: LinearPlan, changes: sp.csc_array) -> Array:
    """Price in zCDP of each column of largest changes, rounding included; (columns,)."""
    distance = (1 + NORM_SLACK) * plan.distance(changes)
    return np.where(distance > 0, (distance + plan.slack) ** 2 / 2, 0.0)
