r"""A Fay-Herriot model of theta fitted to a release, its variance components integrated out.

``h | y ~ N(K y, K)``, ``y | theta ~ N(theta, f D)``, ``theta ~ N(X beta, A)``: given A and f all
is Gaussian. With ``V = A + f D``, ``g = 1 + own V`` and ``M = sign + shared' (V / g) shared``,

    ``(I + K V)^-1 h = h / g - (shared / g) M^-1 shared' (V h / g)``

is what h says of ``X beta``, with precision ``K (I + V K)^-1``. At any number of pairs (A, f) only
weighted cross-moments of the columns ``[X, shared, h]`` are needed, with weights ``own / g``,
``1 / g`` and ``V / g``: products of columns are kept, and all pairs done by matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.posterior.information import InformationMatrix

CELLS = 2_000_000  # numbers in a temporary matrix of nodes by areas
SINGULAR = 1e-12  # share of its information below which a direction of beta is not identified

Advance = Callable[[float], None]


class NodeFit(NamedTuple):
    """What is known at n pairs (A, f); the leading axis of every field is n.

    Coefficients are those of the orthonormal design, less the centre.
    """

    log_marginal: Array  # log density of h, against N(0, K); (n,)
    size: Array  # of the terms in it; (n,)
    coefficient: Array  # posterior mean; (n, q)
    root: Array  # root root' is the posterior covariance of the coefficients; (n, q, q)
    inner: Array  # M^-1; (n, r, r)
    crossed: Array  # X' (shared / g); (n, q, r)
    across: Array  # shared' (V h / g); (n, r)

    def __repr__(self) -> str:
        """Sizes only."""
        return f"NodeFit{self.coefficient.shape}"


@dataclass(frozen=True, repr=False)
class Refit:
    """A release, sampling variances and a design, in coordinates that keep digits.

    Attributes
    ----------
    K : InformationMatrix
    h : ndarray of shape (m,)
        Of the release less ``K X centre``.
    variance : ndarray of shape (m,)
        ``D``, 0 where the release says nothing.
    design : ndarray of shape (m, q)
        ``X upper^-1``, orthonormal in the metric of the diagonal of K.
    upper : ndarray of shape (q, q)
        Original coefficients are ``upper^-1`` times (these plus `centre`).
    centre : ndarray of shape (q,)
    prior_precision, prior_shift : ndarray of shape (q, q) and (q,)
        Of the centred coefficients: precision, and precision times mean; zero if flat.
    constant : float
        Part of the log marginal likelihood that no variance component moves.
    """

    K: InformationMatrix
    h: Array
    variance: Array
    design: Array
    upper: Array
    centre: Array
    prior_precision: Array
    prior_shift: Array
    constant: float = 0.0

    def original(self, coefficient: Array) -> Array:
        """Coefficients of the original design, in the last axis."""
        return np.asarray(np.linalg.solve(self.upper, (coefficient + self.centre).T).T)

    @cached_property
    def scale(self) -> float:
        """Smallest variance with which an area is known from the release."""
        K = self.K.diagonal
        seen = K > 0
        return float((self.variance[seen] + 1 / K[seen]).min())

    @cached_property
    def _products(self) -> tuple[Array, Array]:
        """Products of columns that go with ``1 / g``, and those that go with ``V / g``."""
        X, B, h, a = self.design, self.K.shared, self.h, self.K.own
        with_reciprocal = [a[:, None] * _pairs(X), _crossed(X, B), X * h[:, None]]
        with_variance = [_pairs(B), B * h[:, None], h[:, None] ** 2]
        return np.hstack(with_reciprocal), np.hstack(with_variance)

    def fit(self, A: Array, f: Array | float = 1.0) -> NodeFit:
        """Fit at pairs of the effects' variance and the factor of the sampling variances; (n,)."""
        f = np.broadcast_to(np.asarray(f, dtype=float), A.shape)
        step = max(1, CELLS // 512)
        parts = [self._fit(A[i : i + step], f[i : i + step]) for i in range(0, A.size, step)]
        return NodeFit(*map(np.concatenate, zip(*parts, strict=True)))

    def _fit(self, A: Array, f: Array) -> NodeFit:
        q, r = self.design.shape[1], self.K.sign.size
        first, second, log_growth = self._moments(A, f)
        XX = _square(first[:, : q * (q + 1) // 2], q)
        XB = first[:, q * (q + 1) // 2 : -q].reshape(A.size, q, r)
        Xh = first[:, -q:]
        M = np.diag(self.K.sign) + _square(second[:, : r * (r + 1) // 2], r)
        Bh, hh = second[:, r * (r + 1) // 2 : -1], second[:, -1]
        inner = np.linalg.inv(M)
        explained = np.einsum("nrs,ns->nr", inner, Bh)
        information = XX + XB @ inner @ np.swapaxes(XB, 1, 2) + self.prior_precision
        rhs = Xh - np.einsum("nqr,nr->nq", XB, explained) + self.prior_shift
        lower = np.linalg.cholesky(information)
        half = np.linalg.solve(lower, rhs[:, :, None])
        upper = np.swapaxes(lower, 1, 2)
        root = np.linalg.inv(upper)
        log_inner = np.linalg.slogdet(M)[1]
        log_information = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        misfit = hh - (Bh * explained).sum(axis=1)
        gained = (half[:, :, 0] ** 2).sum(axis=1)
        return NodeFit(
            log_marginal=self.constant + (misfit + gained - log_growth - log_inner) / 2
            - log_information / 2,
            size=np.abs(hh) + gained + log_growth + np.abs(log_inner) + np.abs(log_information),
            coefficient=(root @ half)[:, :, 0],
            root=root,
            inner=inner,
            crossed=XB,
            across=Bh,
        )  # fmt: skip

    def _moments(self, A: Array, f: Array) -> tuple[Array, Array, Array]:
        """Weighted sums of the products of columns, and the sum of ``log g``; leading axis n."""
        with_reciprocal, with_variance = self._products
        first = np.zeros((A.size, with_reciprocal.shape[1]))
        second = np.zeros((A.size, with_variance.shape[1]))
        log_growth = np.zeros(A.size)
        step = max(1, CELLS // A.size)
        for i in range(0, self.h.size, step):
            rows = slice(i, i + step)
            V = f[:, None] * self.variance[rows]
            V += A[:, None]
            g = V * self.K.own[rows]
            log_growth += np.log1p(g).sum(axis=1)
            g += 1.0
            w = np.reciprocal(g, out=g)
            first += w @ with_reciprocal[rows]
            V *= w
            second += V @ with_variance[rows]
        return first, second, log_growth

    def area_moments(
        self, A: Array, f: Array, weight: Array, fit: NodeFit, advance: Advance
    ) -> tuple[Array, Array]:
        """Mean and variance of theta, mixed over n pairs whose weights add up to 1; (m,) each.

        Given a pair, with ``c`` the coefficients, ``s = (1 + own f D) / g`` and ``k = A / g``,

            ``mean = s X c + k (h - shared M^-1 (shared' (V h / g) + (X'shared / g)' c))``
            ``variance = A s - k^2 shared M^-1 shared' + |(s X - k shared M^-1 crossed') root|^2``.
        """
        X, B, h = self.design, self.K.shared, self.h
        m, n = h.size, A.size
        across = np.einsum("nqr,nq->nr", fit.crossed, fit.coefficient) + fit.across
        solved = np.einsum("nrs,ns->nr", fit.inner, across)  # (n, r)
        U = fit.inner @ np.swapaxes(fit.crossed, 1, 2)  # M^-1 crossed'; (n, r, q)
        cov = fit.root @ np.swapaxes(fit.root, 1, 2)
        UC = U @ cov
        from_X = _flat(cov)
        from_both = -2 * np.swapaxes(UC, 1, 2).reshape(n, UC.shape[1] * UC.shape[2])
        from_B = _flat(UC @ np.swapaxes(U, 1, 2) - fit.inner)
        mean, variance = np.empty(m), np.empty(m)
        step = max(1, CELLS // (4 * n))
        for i in range(0, m, step):
            rows = slice(i, i + step)
            own, D = self.K.own[rows, None], self.variance[rows, None] * f
            g = 1.0 + own * (A + D)
            s, k = (1.0 + own * D) / g, A / g
            at = X[rows] @ fit.coefficient.T
            at *= s
            at += k * (h[rows, None] - B[rows] @ solved.T)
            spread = A * s
            spread += s**2 * (_pairs(X[rows]) @ from_X.T)
            spread += s * k * (_crossed(X[rows], B[rows]) @ from_both.T)
            spread += k**2 * (_pairs(B[rows]) @ from_B.T)
            mean[rows] = at @ weight
            at -= mean[rows, None]
            spread += at**2
            variance[rows] = spread @ weight
            advance(at.size)
        return mean + X @ self.centre, variance

    def draw_areas(
        self,
        A: Array,
        f: Array,
        coefficient: Array,
        fit: NodeFit,
        rng: np.random.Generator,
        advance: Advance,
        out: Array,
    ) -> None:
        """Independent draws of theta, one for each of n pairs and its coefficients, into (n, m).

        Draw theta and a release from the model, then move theta by what the release missed:
        ``theta + A (I + K V)^-1 (h - h')`` has the conditional law given h.
        """
        m, B, own = self.h.size, self.K.shared, self.K.own
        step = max(1, CELLS // m)
        error = np.sqrt(self.variance)
        around = self.design @ self.centre
        for i in range(0, A.size, step):
            rows = slice(i, i + step)
            a, scale = A[rows, None], f[rows, None]
            theta = coefficient[rows] @ self.design.T
            theta += np.sqrt(a) * rng.standard_normal(theta.shape)
            y = theta + np.sqrt(scale) * (error * rng.standard_normal(theta.shape))
            missed = self.h - self.K.times(y) - self.K.noise(rng, len(theta))
            V = a + scale * self.variance
            missed /= 1.0 + own * V
            across = np.einsum("nrs,ns->nr", fit.inner[rows], (V * missed) @ B)
            theta += a * (missed - (across @ B.T) / (1.0 + own * V))
            out[rows] = theta + around
            advance(8.0 * theta.size)


def refit(
    K: InformationMatrix,
    h: Array,
    variance: Array,
    design: Array,
    *,
    prior_mean: Array | None = None,
    prior_sd: Array | None = None,
) -> Refit:
    """Bring a release and a design into coordinates that keep digits.

    Parameters
    ----------
    K : InformationMatrix
    h : ndarray of shape (m,)
    variance : ndarray of shape (m,)
        Sampling variances ``D``, 0 where the release says nothing.
    design : ndarray of shape (m, q)
    prior_mean, prior_sd : ndarray of shape (q,), optional
        Independent normal prior of the coefficients; flat by default.

    Raises
    ------
    ValueError
        If a flat prior leaves coefficients that the release does not identify.
    """
    q = design.shape[1]
    weight = np.sqrt(K.diagonal)
    rows = weight[:, None] * design
    if prior_sd is not None:  # also where the release alone does not identify them
        rows = np.vstack([rows, np.diag(1 / prior_sd)])
    size = np.abs(rows / np.maximum(np.abs(rows).max(axis=0), 1e-300)).max(axis=1)
    upper = np.linalg.qr(rows[np.argsort(-size, kind="stable")], mode="r")
    X = np.linalg.solve(upper.T, design.T).T
    P, shift = np.zeros((q, q)), np.zeros(q)
    constant = 0.0
    if prior_sd is None:
        absorbed = K.absorb(variance).precision
        information = X.T @ absorbed.times(X.T).T
        value = np.linalg.eigvalsh(information)
        if not value[0] > SINGULAR * value[-1]:
            raise ValueError(
                f"the release does not identify {q} coefficients under a flat prior: it says "
                f"something of only {(value > SINGULAR * value[-1]).sum()} of their "
                "combinations; take fewer covariates or a beta_prior"
            )
    else:
        mean = np.zeros(q) if prior_mean is None else prior_mean
        factor = np.linalg.solve(upper.T, np.diag(1 / prior_sd)).T  # P = factor' factor
        P = factor.T @ factor
        shift = factor.T @ (mean / prior_sd)
    one = Refit(K, h, variance, X, upper, np.zeros(q), P, shift, constant)
    centre = one.fit(np.array([np.median(variance[K.diagonal > 0])])).coefficient[0]
    at = X @ centre
    explained = K.times(at)
    constant = float(at @ h - at @ explained / 2)
    if prior_sd is not None:
        # exp(-|d - m|^2 / 2) of the prior, m its mean less the centre.
        rest = factor @ centre - mean / prior_sd
        constant -= float(rest @ rest) / 2 + float(np.log(prior_sd).sum())
        shift = shift - P @ centre
    else:
        constant += q * np.log(2 * np.pi) / 2
    constant -= float(np.log(np.abs(np.diag(upper))).sum())
    return replace(one, h=h - explained, centre=centre, prior_shift=shift, constant=constant)


def _pairs(columns: Array) -> Array:
    """Products of any two columns, each once; (m, q (q + 1) / 2)."""
    i, j = np.triu_indices(columns.shape[1])
    return np.asarray(columns[:, i] * columns[:, j])


def _crossed(first: Array, second: Array) -> Array:
    """Products of a column of each; (m, q r)."""
    size = first.shape[1] * second.shape[1]
    return np.asarray((first[:, :, None] * second[:, None, :]).reshape(len(first), size))


def _square(values: Array, size: int) -> Array:
    """Symmetric matrices from their upper triangles; (n, size, size)."""
    i, j = np.triu_indices(size)
    out = np.empty((len(values), size, size))
    out[:, i, j] = values
    out[:, j, i] = values
    return out


def _flat(matrices: Array) -> Array:
    """Coefficients of `_pairs` in a quadratic form; (n, q (q + 1) / 2)."""
    i, j = np.triu_indices(matrices.shape[1])
    values = matrices[:, i, j]
    values[:, i != j] *= 2
    return np.asarray(values)
