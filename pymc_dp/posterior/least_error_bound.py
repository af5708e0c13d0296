r"""A proof that no information within the limits leaves much less error than one at hand.

With ``P`` the precision of ``y`` before the release, ``R = M' omega M`` for the propagation matrix
``M`` of the direct estimates and ``f0`` the error where these are known exactly, the error is
``f(K) = f0 + tr(R (P + K)^-1)``. For any matrices ``W`` with ``R = r r'`` that is at least

    ``f0 + 2 s tr(W'r) - s^2 [tr(W'P W) + tr(K W W')]``,    any number s,

and the part with K is largest, over all K within the limits, at most ``sum c_j l_j`` for every
``l`` with ``W W' <= diag(l)``. The bound holds for an average over values of A as well, ``W W'``
being averaged, and is equal to ``f(K)`` where K is optimal and ``W = (P + K)^-1 r``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.posterior.information import InformationMatrix
from pymc_dp.posterior.least_error import (
    DesignProblem,
    Moments,
    inverse,
    moments,
    value_and_gradient,
)

_FLOOR = 1e-7  # relative to the average; the bound is so much lower
_RESOLUTION = 10.0 ** (1 / 16)  # of the excess of the largest eigenvalue over 1


@dataclass(frozen=True)
class _Node:
    """``Q = N' omega N`` at one value of A, ``N = diag(d) + U Z'`` with columns of sampled areas.

    ``N`` is the derivative of the mean of theta with respect to h; ``-Q`` that of the error with
    respect to K.
    """

    weight: float
    importance: Array
    sampled: np.ndarray
    d: Array
    U: Array
    Z: Array

    def columns(self, v: Array) -> Array:
        """``N v`` for v of the areas with a sample; (m, k)."""
        out = self.U @ (self.Z[self.sampled].T @ v)
        out[self.sampled] += self.d[self.sampled, None] * v
        return np.asarray(out)

    def rows(self, v: Array) -> Array:
        """``N' v``; (sampled, k)."""
        own = self.d[self.sampled, None] * v[self.sampled]
        return np.asarray(own + self.Z[self.sampled] @ (self.U.T @ v))

    def factors(self) -> tuple[Array, Array, Array]:
        """``Q = diag(q) + F E F'``: weighted ``q``, ``F`` and the inverse of ``E``."""
        omega = self.importance
        used = self.U.any(axis=0) & self.Z[self.sampled].any(axis=0)
        U, Z = self.U[:, used], self.Z[:, used]
        own = (self.d**2 * omega)[self.sampled]
        H = ((self.d * omega)[:, None] * U)[self.sampled]
        J = U.T @ (omega[:, None] * U)
        one, none = np.eye(len(J)), np.zeros_like(J)
        return (
            self.weight * own,
            np.hstack([H, Z[self.sampled]]),
            np.block([[-J, one], [one, none]]) / self.weight,
        )


def lower_bound(problem: DesignProblem, own: Array, shared: Array) -> float:
    r"""Bound the least average error from below, from a candidate for it.

    Parameters
    ----------
    problem : DesignProblem
    own : ndarray of shape (m,)
    shared : ndarray of shape (m, q)
        ``K = diag(own^2) + shared shared'``, as :func:`least_error` finds it.

    Returns
    -------
    float
        No K within the limits, of any rank, leaves less.

    Notes
    -----
    ``W = (P + K)^-1 r`` makes ``W W' = Q``, ``-Q`` the derivative of the error. At an optimum
    ``Q <= diag(l)`` with ``l_j = (Q K)_jj / c_j``. Elsewhere some eigenvalues of
    ``l^-1/2 Q l^-1/2`` exceed 1; their directions ``v`` are shrunk in W until they are 1, which
    costs little, as they are few. That what is left has no eigenvalue above ``kappa`` is then
    proven by Sylvester's law of inertia, for a matrix of the size of the factors: an iterated
    eigenvalue would come from below. Optimal over s, the bound is
    ``f0 + tr(W'r)^2 / (tr(W'P W) + kappa sum c_j l_j)``. Rounding errors are not bounded.
    """
    value, by_own, by_shared = value_and_gradient(problem, own**2, shared)
    sampled = problem.limit > 0
    limit = problem.limit[sampled]
    least = float(problem.weight @ problem.without_limit)
    QK = -(own**2 * by_own + (shared * by_shared).sum(axis=1) / 2)[sampled]
    if not QK.sum() > 0:
        return least
    # Where a limit does not bind, l is 0; a little more keeps the directions there few.
    scale = np.sqrt(np.maximum(QK, _FLOOR * QK.mean()) / limit)
    nodes = _nodes(problem, InformationMatrix(own**2, shared, np.ones(shared.shape[1])))
    small = _scaled(nodes, scale)
    kappa, V, value_above = small.clipped()

    gamma = 1 - 1 / np.sqrt(value_above)  # W is replaced by (1 - scale V gamma V' / scale) W
    inside, outside = V / scale[:, None], V * scale[:, None]
    traced, spent = value - least, value - least - QK.sum()
    for node, prior in zip(nodes, _priors(problem), strict=True):
        moved = problem.importance[:, None] * node.columns(inside)
        Q_inside, P_outside = node.rows(moved), prior.precision(outside)
        traced -= node.weight * float(gamma @ (moved * prior.propagated(outside)).sum(axis=0))
        spent -= 2 * node.weight * float(gamma @ (P_outside * Q_inside).sum(axis=0))
        crossed = (outside.T @ P_outside) * (inside.T @ Q_inside)
        spent += node.weight * float(gamma @ crossed @ gamma)
    return float(least + max(traced, 0.0) ** 2 / (spent + kappa * (scale**2 @ limit)))


@dataclass(frozen=True)
class _Scaled:
    """``diag(own) + F E F'``, an average of Q in units of l, with the inverse of E."""

    own: Array
    F: Array
    inverse: Array
    negative: int  # eigenvalues of E below zero

    def times(self, v: Array) -> Array:
        return np.asarray(
            self.own[:, None] * v + self.F @ np.linalg.solve(self.inverse, self.F.T @ v)
        )

    def clipped(self) -> tuple[float, Array, Array]:
        """Directions with eigenvalues above 1, and a bound of all once those are made 1."""
        size = np.sqrt((self.F**2).sum(axis=0))
        F = self.F / np.where(size > 0, size, 1.0)
        value, vector = np.linalg.eigh(F.T @ F)
        basis = np.linalg.qr(F @ vector[:, value > 1e-13 * value[-1]])[0]
        inner = basis.T @ self.times(basis)
        value, vector = np.linalg.eigh((inner + inner.T) / 2)
        above = value > 1 + 1e-9
        V, value = basis @ vector[:, above], value[above]
        excess = 1e-11
        while not self.below(1 + excess, V, value):
            excess *= 10
        low, high = excess / 10, excess
        while high > low * _RESOLUTION:
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if self.below(1 + middle, V, value) else (middle, high)
        return 1 + high, V, value

    def below(self, kappa: float, V: Array, value: Array) -> bool:
        """Whether ``kappa (I + V (value - 1) V') - Q`` is proven positive definite.

        The matrix that borders ``gap = kappa - own`` with ``[F, V]`` has the eigenvalues below
        zero of either part, in number, plus those of the Schur complement of the other part.
        """
        gap = kappa - self.own
        allowed = self.negative + value.size - int((gap < 0).sum())
        if allowed < 0 or not gap.all():
            return False
        C = np.hstack([self.F, V])
        k = len(self.inverse)
        T = -(C.T @ (C / gap[:, None]))
        T[:k, :k] += self.inverse
        T[range(k, len(T)), range(k, len(T))] -= 1 / (kappa * (value - 1))
        size = np.sqrt(np.abs(np.diag(T)))
        if not size.all():
            return False
        eigenvalues = np.linalg.eigvalsh(T / size / size[:, None])
        return bool(eigenvalues[allowed] > 0)


def _scaled(nodes: list[_Node], scale: Array) -> _Scaled:
    """The average over nodes of Q, in units of ``scale^2``."""
    from scipy.linalg import block_diag

    own, F, inverses = zip(*(node.factors() for node in nodes), strict=True)
    joined = np.hstack(F) / scale[:, None]
    return _Scaled(
        own=np.sum(own, axis=0) / scale**2,
        F=joined,
        inverse=block_diag(*inverses),
        negative=joined.shape[1] // 2,
    )


def _nodes(problem: DesignProblem, K: InformationMatrix) -> list[_Node]:
    at: Moments = moments(problem, K.own, K.shared, K.sign)
    out = []
    for n, (A, weight) in enumerate(zip(problem.between_variance, problem.weight, strict=True)):
        T = A + problem.variance
        w = 1 / (1 + T * K.own)
        e = (1 + problem.variance * K.own) * w
        rows, MiE = w[:, None] * K.shared, at.Mi[n] @ at.E[n]
        G = e[:, None] * problem.basis - A * rows @ MiE
        Y = w[:, None] * problem.basis - T[:, None] * rows @ MiE
        U = np.hstack([-A * rows @ at.Mi[n], G @ at.V[n]])
        Z = np.hstack([T[:, None] * rows, Y])
        out.append(_Node(float(weight), problem.importance, problem.limit > 0, A * w, U, Z))
    return out


@dataclass(frozen=True)
class _Prior:
    """Before the release: precision P of the direct estimates, and their propagation M."""

    gamma: Array
    weight: Array  # 1 / (A + D) of the areas with a sample
    shrunk: Array  # X less gamma of it, all areas
    basis: Array  # X of the areas with a sample
    V: Array
    sampled: np.ndarray

    def precision(self, v: Array) -> Array:
        weighted = self.weight[:, None] * v
        shared = self.weight[:, None] * self.basis @ (self.V @ (self.basis.T @ weighted))
        return np.asarray(weighted - shared)

    def propagated(self, v: Array) -> Array:
        out = self.shrunk @ (self.V @ (self.basis.T @ (self.weight[:, None] * v)))
        out[self.sampled] += self.gamma[:, None] * v
        return np.asarray(out)


def _priors(problem: DesignProblem) -> list[_Prior]:
    sampled = problem.limit > 0
    X, D = problem.basis[sampled], problem.variance[sampled]
    out = []
    for A in problem.between_variance:
        weight = 1 / (A + D)
        V = inverse(X.T @ (weight[:, None] * X) + problem.prior_precision)
        shrunk = problem.basis.copy()
        shrunk[sampled] *= (D * weight)[:, None]
        out.append(_Prior(A * weight, weight, shrunk, X, V, sampled))
    return out
