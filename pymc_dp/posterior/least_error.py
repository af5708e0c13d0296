r"""Which information on the direct estimates leaves the least error in theta.

Information is a matrix ``K``, as in :mod:`pymc_dp.posterior.information`: what a Gaussian release
says is ``h | y ~ N(K y, K)``. Its diagonal is limited, ``K_jj <= c_j``, its other entries are
free. Knows nothing of privacy, which is where the limits come from.

``K = diag(a) + B B'``, and ``V`` is the covariance of theta before the survey. The error is
convex in K, for parallel sums are operator concave. With ``T = A + D``,
``w = 1 / (1 + T a)`` and ``e = (1 + D a) w``, everything follows from weighted cross-moments of
the rows of ``B`` and ``X``, so that one matrix product serves all values of A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.posterior.information import InformationMatrix

_BLOCK = 2**17  # values of an area at a node that are held at once
_STARTS = 4
_MANY = 1_000  # areas from which on every start was seen to lead to the same error
_SEED = 20_240_613  # public, so that a design can be made again
_STEPS = 2_000
# Of the relative change of the error by a step, which leaves about 1e-9 of it.
_TOLERANCE = 1e-11


@dataclass(frozen=True, repr=False)
class DesignProblem:
    r"""Errors of theta, averaged over values of ``A``, as a function of the information K.

    The model is ``y_i ~ N(theta_i, D_i)``, ``theta_i = x_i' beta + u_i``, ``u_i ~ N(0, A)``.

    Attributes
    ----------
    variance : ndarray of shape (m,)
        ``D_i``, 0 where there is no sample.
    limit : ndarray of shape (m,)
        ``c_i``, the most that ``K_ii`` may be; 0 where there is no sample, positive elsewhere.
    basis : ndarray of shape (m, p)
        Covariates ``X``.
    prior_precision : ndarray of shape (p, p)
        Prior precision of ``beta``, zero for a flat prior.
    importance : ndarray of shape (m,)
        ``omega_i``, which add up to 1.
    between_variance : ndarray of shape (n,)
        Values of ``A``, 0 allowed.
    weight : ndarray of shape (n,)
        Their weights, which add up to 1.
    """

    variance: Array
    limit: Array
    basis: Array
    prior_precision: Array
    importance: Array
    between_variance: Array
    weight: Array

    def __repr__(self) -> str:
        """Sizes only."""
        return f"DesignProblem{(*self.basis.shape, self.between_variance.size)}"

    @property
    def size(self) -> tuple[int, int]:
        """``(m, p)``."""
        m, p = self.basis.shape
        return m, p

    @cached_property
    def squares(self) -> Array:
        """``X_i X_i'`` row by row; (m, p p)."""
        return products(self.basis, self.basis)

    @cached_property
    def without_limit(self) -> Array:
        """Mean squared error at each ``A`` where the direct estimates are known exactly; (n,)."""
        sampled = self.limit > 0
        A = self.between_variance[:, None]
        w = np.divide(1.0, A + self.variance, out=np.zeros((A.size, sampled.size)), where=sampled)
        e = np.where(sampled, self.variance * w, 1.0)
        info = self._small(w, self.squares) + self.prior_precision
        spread = self._small(self.importance * e**2, self.squares)
        own = (A * e) @ self.importance
        return np.asarray(own + np.einsum("nij,nji->n", inverse(info), spread))

    def blocks(self) -> Iterator[slice]:
        """Rows to be taken together."""
        step = max(1, _BLOCK // self.between_variance.size)
        for start in range(0, self.limit.size, step):
            yield slice(start, start + step)

    def _small(self, weights: Array, products: Array) -> Array:
        """``sum_i weights_ni P_i`` as square matrices; (n, p, p)."""
        p = self.basis.shape[1]
        return (weights @ products).reshape(-1, p, p)


@dataclass(frozen=True)
class Moments:
    """Cross-moments at each node and what follows from them; (n, ...)."""

    Mi: Array  # (sign + B' T w B)^-1
    E: Array  # B' w X
    V: Array  # (X' Lambda X + prior)^-1
    Q: Array  # B' omega w^2 B
    J: Array  # B' omega e w X
    Gm: Array  # sum of omega G G', G = d theta / d beta given the release
    error: Array  # (n,)


def products(left: Array, right: Array) -> Array:
    """``left_i right_i'`` row by row, flat."""
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), -1))


def inverse(matrices: Array) -> Array:
    """Inverses of symmetric positive definite matrices, symmetric."""
    try:
        inverse = np.linalg.inv(matrices)
    except np.linalg.LinAlgError as singular:
        raise ValueError("the coefficients are not identified by this information") from singular
    return np.asarray((inverse + inverse.swapaxes(-1, -2)) / 2)


def turned(matrices: Array) -> Array:
    """Transposes."""
    return matrices.swapaxes(-1, -2)


def moments(problem: DesignProblem, own: Array, shared: Array, sign: Array) -> Moments:
    """Cross-moments of ``K = diag(own) + shared diag(sign) shared'``."""
    p = problem.basis.shape[1]
    q, n = shared.shape[1], problem.between_variance.size
    A, omega = problem.between_variance[:, None], problem.importance
    M, E, info = np.zeros((n, q * q)), np.zeros((n, q * p)), np.zeros((n, p * p))
    Q, J, H, error = np.zeros_like(M), np.zeros_like(E), np.zeros_like(info), np.zeros(n)
    for rows in problem.blocks():
        a, B, D, om = own[rows], shared[rows], problem.variance[rows], omega[rows]
        BB, BX, XX = products(B, B), products(B, problem.basis[rows]), problem.squares[rows]
        T = A + D
        w = 1 / (1 + T * a)
        e = (1 + D * a) * w
        M += (T * w) @ BB
        E += w @ BX
        info += (a * w) @ XX
        Q += (om * w**2) @ BB
        J += (om * e * w) @ BX
        H += (om * e**2) @ XX
        error += problem.between_variance * (e @ om)
    shape = (n, q, p)
    Mi = np.linalg.inv(np.diag(sign) + M.reshape(n, q, q))
    E, J, Q = E.reshape(shape), J.reshape(shape), Q.reshape(n, q, q)
    MiE = Mi @ E
    V = inverse(info.reshape(n, p, p) + turned(E) @ MiE + problem.prior_precision)
    crossed = A[:, :, None] * (turned(J) @ MiE)
    Gm = (
        H.reshape(n, p, p)
        - crossed
        - turned(crossed)
        + A[:, :, None] ** 2 * (turned(MiE) @ Q @ MiE)
    )
    error += np.einsum("nij,nji->n", V, Gm)
    error -= problem.between_variance**2 * np.einsum("nij,nji->n", Mi, Q)
    return Moments(Mi, E, V, Q, J, Gm, error)


def errors(problem: DesignProblem, information: InformationMatrix) -> Array:
    """Mean squared error of theta given a release, at each value of ``A``.

    Parameters
    ----------
    problem : DesignProblem
        Its limits are not looked at.
    information : InformationMatrix

    Returns
    -------
    ndarray of shape (n,)
        ``sum_i omega_i [(V^-1 + K (I + D K)^-1)^-1]_ii``.

    Raises
    ------
    ValueError
        If the coefficients have a flat prior and K does not identify them.
    """
    K = information
    return moments(problem, K.own, K.shared, K.sign).error


def value_and_gradient(
    problem: DesignProblem, own: Array, shared: Array
) -> tuple[float, Array, Array]:
    """Average error, and its derivatives with respect to ``own`` and ``shared``.

    Parameters
    ----------
    problem : DesignProblem
    own : ndarray of shape (m,)
        ``a`` of ``K = diag(a) + B B'``.
    shared : ndarray of shape (m, q)
        ``B``.

    Returns
    -------
    value : float
    by_own : ndarray of shape (m,)
        ``-Q_jj`` where ``-Q`` is the derivative with respect to K.
    by_shared : ndarray of shape (m, q)
        ``-2 Q B``.

    Notes
    -----
    With ``M = I + B' T w B``, ``E = B' w X``, ``V^-1 = X' a w X + E' M^-1 E + prior``,
    ``S = B' omega w^2 B``, ``J = B' omega e w X`` and ``H = X' omega e^2 X``, the error at A is

        ``A sum(omega e) - A^2 tr(M^-1 S)
        + tr(V (H - A J' M^-1 E - A E' M^-1 J + A^2 E' M^-1 S M^-1 E))``,

    and the derivatives go the same way back: ``w' = -T w^2``, ``(a w)' = w^2``, ``e' = -A w^2``.
    """
    q, p = shared.shape[1], problem.basis.shape[1]
    n = problem.between_variance.size
    A, omega = problem.between_variance[:, None], problem.importance
    at = moments(problem, own, shared, np.ones(q))
    A3, nu = A[:, :, None], problem.weight[:, None, None]
    MiE = at.Mi @ at.E
    U = at.V @ at.Gm @ at.V
    P = MiE @ at.V  # M^-1 E V
    by_Q = nu * A3**2 * (P @ turned(MiE) - at.Mi)
    by_J = nu * -2 * A3 * P
    by_E = nu * 2 * (at.Mi @ (A3**2 * at.Q @ P - A3 * at.J @ at.V) - MiE @ U)
    crossed = A3 * at.J @ at.V @ turned(at.E) - A3**2 * at.Q @ P @ turned(at.E)
    by_inverse = -(A3**2) * at.Q - crossed - turned(crossed) - at.E @ U @ turned(at.E)
    by_M = nu * -(at.Mi @ by_inverse @ at.Mi)
    flat_M, flat_Q = by_M.reshape(n, q * q), by_Q.reshape(n, q * q)
    flat_E, flat_J = by_E.reshape(n, q * p), by_J.reshape(n, q * p)
    flat_I, flat_H = (nu * -U).reshape(n, p * p), (nu * at.V).reshape(n, p * p)
    by_own, by_shared = np.empty_like(own), np.empty_like(shared)
    for rows in problem.blocks():
        a, B, D, om = own[rows], shared[rows], problem.variance[rows], omega[rows]
        X = problem.basis[rows]
        BB, BX, XX = products(B, B), products(B, X), problem.squares[rows]
        T = A + D
        w = 1 / (1 + T * a)
        e = (1 + D * a) * w
        w2, Tw = w**2, T * w
        inner = (Tw.T @ flat_M + (om * w2).T @ flat_Q).reshape(len(B), q, q)
        outer = (w.T @ flat_E + (om * e * w).T @ flat_J).reshape(len(B), q, p)
        by_shared[rows] = 2 * (inner @ B[:, :, None])[:, :, 0] + (outer @ X[:, :, None])[:, :, 0]
        terms = flat_I @ XX.T - T * (flat_E @ BX.T) - T**2 * (flat_M @ BB.T)
        terms -= om * (
            2 * Tw * (flat_Q @ BB.T)
            + (A * w + e * T) * (flat_J @ BX.T)
            + 2 * A * e * (flat_H @ XX.T)
            + problem.weight[:, None] * A**2
        )
        by_own[rows] = np.einsum("nj,nj->j", w2, terms)
    return float(problem.weight @ at.error), by_own, by_shared


def errors_by_area(problem: DesignProblem, information: InformationMatrix) -> Array:
    """Mean squared error of theta of each area, averaged over the values of ``A``; (m,).

    Parameters
    ----------
    problem : DesignProblem
        Its limits and importance are not looked at.
    information : InformationMatrix
    """
    own, shared, sign = information.own, information.shared, information.sign
    at = moments(problem, own, shared, sign)
    n, A, nu = problem.weight.size, problem.between_variance[:, None], problem.weight
    MiE = at.Mi @ at.E
    P = MiE @ at.V
    across = (P @ turned(MiE) - at.Mi).reshape(n, -1)
    out = np.empty_like(own)
    for rows in problem.blocks():
        a, B, D = own[rows], shared[rows], problem.variance[rows]
        BB, BX = products(B, B), products(B, problem.basis[rows])
        w = 1 / (1 + (A + D) * a)
        e = (1 + D * a) * w
        by_node = A * e + (A * w) ** 2 * (across @ BB.T)
        by_node += e**2 * (at.V.reshape(n, -1) @ problem.squares[rows].T)
        by_node -= 2 * e * A * w * (P.reshape(n, -1) @ BX.T)
        out[rows] = nu @ by_node
    return out


def least_error(problem: DesignProblem, columns: int | None = None) -> tuple[Array, Array]:
    r"""Find the information within the limits that leaves the least error on average.

    Parameters
    ----------
    problem : DesignProblem
    columns : int, optional
        ``q``, by default ``p + 1``.

    Returns
    -------
    own : ndarray of shape (m,)
    shared : ndarray of shape (m, q)
        ``K = diag(own^2) + shared shared'``; row i of ``[own, shared]`` has the norm
        :math:`\sqrt{c_i}`, as more information never hurts.

    Raises
    ------
    ValueError
        If coefficients with a flat prior are not identified by the areas with a sample.

    Notes
    -----
    Rows are directions, ``w_i / |w_i|`` with ``w_i`` free, which leaves neither constraint nor
    boundary, and L-BFGS searches. Where all of ``shared`` or all of ``own`` is zero the
    derivatives by it are zero as well, so no search begins there: the first begins with half of
    the information of an area in the columns of a posterior draw, others at random. That
    ``p + 1`` columns are nearly enough is seen, not proven: see :func:`lower_bound`.

    Examples
    --------
    Of two equal areas each tells less of itself alone than it might, so that both together tell
    more of their mean.

    >>> import numpy as np
    >>> one = np.ones(2)
    >>> problem = DesignProblem(
    ...     variance=one, limit=one, basis=np.ones((2, 1)), prior_precision=np.zeros((1, 1)),
    ...     importance=one / 2, between_variance=np.array([0.8]), weight=np.ones(1),
    ... )
    >>> own, shared = least_error(problem)
    >>> (np.diag(own**2) + shared @ shared.T).round(3)
    array([[1.   , 0.769],
           [0.769, 1.   ]])
    """
    from scipy.optimize import minimize

    m, p = problem.size
    q = p + 1 if columns is None else columns
    sampled = problem.limit > 0
    limit = problem.limit[sampled]
    root = np.sqrt(limit)

    def spread(unit: Array) -> tuple[Array, Array]:
        own, shared = np.zeros(m), np.zeros((m, q))
        own[sampled], shared[sampled] = root * unit[:, 0], root[:, None] * unit[:, 1:]
        return own, shared

    alone, nothing = spread(np.eye(1, q + 1).repeat(limit.size, axis=0))
    scale = value_and_gradient(problem, alone**2, nothing)[0]

    def objective(x: Array) -> tuple[float, Array]:
        free = x.reshape(-1, q + 1)
        length = np.sqrt((free**2).sum(axis=1))[:, None]
        unit = free / length
        own, shared = spread(unit)
        value, by_own, by_shared = value_and_gradient(problem, own**2, shared)
        slope = np.column_stack(
            [2 * limit * unit[:, 0] * by_own[sampled], root[:, None] * by_shared[sampled]]
        )
        slope -= (slope * unit).sum(axis=1)[:, None] * unit
        return value / scale, (slope / length / scale).ravel()

    options = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": _TOLERANCE, "gtol": 0}
    found = [
        minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        for start in _starts(problem, q)
    ]
    best = min(found, key=lambda result: result.fun).x.reshape(-1, q + 1)
    own, shared = spread(best / np.sqrt((best**2).sum(axis=1))[:, None])
    return np.abs(own), shared


def _starts(problem: DesignProblem, q: int) -> Iterator[Array]:
    """Where to begin: rows ``[own, shared]`` of the areas with a sample, of any length."""
    rng = np.random.default_rng(_SEED)
    sampled = problem.limit > 0
    X, m, p = problem.basis[sampled], int(sampled.sum()), problem.size[1]
    weight = 1 / (problem.weight @ problem.between_variance + problem.variance[sampled])
    info = X.T @ (weight[:, None] * X) + problem.prior_precision
    # The shared columns of a posterior draw.
    columns = weight[:, None] * np.linalg.solve(np.linalg.cholesky(info), X.T).T
    columns /= np.sqrt((columns**2).sum(axis=1)).mean()
    extra = rng.normal(size=(m, max(q - p, 0)))
    yield np.column_stack([np.ones(m), columns[:, :q], 0.1 * extra])
    for _ in range(_STARTS - 1 if m < _MANY else 0):
        shared = columns @ rng.normal(size=(p, q)) + 0.3 * rng.normal(size=(m, q))
        yield np.column_stack([rng.normal(size=m), shared])
