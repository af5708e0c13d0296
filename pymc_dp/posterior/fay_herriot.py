"""The exact posterior of a Fay-Herriot model whose variance components are held fixed.

Knows nothing of privacy. Everything is kept in factors (a diagonal plus rank ``p``), so time is
``O(m p^2)`` and memory ``O(m p)`` for ``m`` areas and ``p`` coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp._typing import Array


@dataclass(frozen=True)
class GaussianPosterior:
    r"""Posterior :math:`\theta \mid y \sim N(My + c, \Sigma)` in factored form.

    The model is ``y_i ~ N(theta_i, D_i)``, ``theta_i = o_i + x_i' beta + u_i``,
    ``u_i ~ N(0, A_i)``. Build one with :func:`fay_herriot_posterior`.

    Attributes
    ----------
    between_variance : ndarray of shape (m,)
        ``A_i``, zero allowed.
    precision : ndarray of shape (m,)
        ``1 / D_i``; zero for an area without sample.
    basis : ndarray of shape (m, p)
        ``B = X R^-T`` with ``P = X' diag(w) X + prior precision = R R'``. In the coordinates
        ``eta = R' beta`` the coefficients have posterior covariance ``I``.
    prior_precision : ndarray of shape (p, p)
        Prior precision of ``eta``; zero for flat coefficients.
    prior_shift : ndarray of shape (p,)
        Prior precision of ``eta`` times its prior mean.
    offset : ndarray of shape (m,)
        ``o_i``, known parts of the linear predictor.
    """

    between_variance: Array
    precision: Array
    basis: Array
    prior_precision: Array
    prior_shift: Array
    offset: Array

    @cached_property
    def shrinkage(self) -> Array:
        """``1 - gamma_i = D_i / (A_i + D_i)``, never computed as a difference; (m,)."""
        return np.asarray(1.0 / (1.0 + self.between_variance * self.precision))

    @cached_property
    def gamma(self) -> Array:
        """Weight of the area's own direct estimate, ``A_i / (A_i + D_i)``; (m,)."""
        return np.asarray(self.between_variance * self.precision * self.shrinkage)

    @cached_property
    def area_variance(self) -> Array:
        """``gamma_i D_i``, or ``A_i`` where there is no sample; (m,)."""
        return np.asarray(self.between_variance * self.shrinkage)

    @cached_property
    def left(self) -> Array:
        """Left factor of ``M = diag(gamma) + left right'``; (m, p)."""
        return np.asarray(self.shrinkage[:, None] * self.basis)

    @cached_property
    def right(self) -> Array:
        """Right factor of ``M``: ``w_j B_j`` with ``w_j = 1 / (A_j + D_j)``; (m, p)."""
        weight = self.precision * self.shrinkage
        return np.asarray(weight[:, None] * self.basis)

    @cached_property
    def variance(self) -> Array:
        """Posterior variances ``Sigma_ii``; (m,)."""
        return np.asarray(self.area_variance + (self.left**2).sum(axis=1))

    def mean(self, y: Array) -> Array:
        """Posterior mean; `y` of shape (..., m), its entries ignored where there is no sample."""
        y = np.where(self.precision > 0, y, 0.0)
        eta = (y - self.offset) @ self.right + self.prior_shift
        return np.asarray(self.gamma * y + self.shrinkage * self.offset + eta @ self.left.T)

    def propagation(self) -> Array:
        """Dense ``M``: entry (i, j) moves the mean of area i per unit of ``y_j``; (m, m)."""
        return np.asarray(np.diag(self.gamma) + self.left @ self.right.T)

    def covariance(self) -> Array:
        """Dense ``Sigma``; (m, m)."""
        return np.asarray(np.diag(self.area_variance) + self.left @ self.left.T)


def fay_herriot_posterior(
    between_variance: Array | float,
    precision: Array,
    design: Array,
    *,
    prior_precision: Array | None = None,
    prior_shift: Array | None = None,
    offset: Array | None = None,
) -> GaussianPosterior:
    """Posterior of the area means with the variance components fixed.

    Parameters
    ----------
    between_variance : array of shape () or (m,)
        ``A_i``, the variance of the area effects.
    precision : array of shape (m,)
        ``1 / D_i`` from the sampling variances; zero for an area without sample.
    design : array of shape (m, p)
        Covariates ``X``.
    prior_precision, prior_shift : array of shape (p, p) and (p,), optional
        Normal prior of the coefficients: its precision, and the precision times the mean.
        Flat by default.
    offset : array of shape (m,), optional
        Known part of the linear predictor.

    Returns
    -------
    GaussianPosterior

    Raises
    ------
    ValueError
        If the coefficients are not identified, so that the posterior is improper.

    Notes
    -----
    Standard Fay-Herriot results (Rao and Molina 2015, Small Area Estimation, ch. 6 and 10).
    The factor ``R`` comes from a QR decomposition of ``diag(sqrt w) X`` rather than from a
    Cholesky factor of ``X' diag(w) X``: the condition number is not squared. Rows are sorted
    by size first, which makes Householder QR accurate for weights many orders apart.

    Examples
    --------
    >>> import numpy as np
    >>> post = fay_herriot_posterior(1.0, np.array([1.0, 1.0]), np.ones((2, 1)))
    >>> post.mean(np.array([0.0, 1.0]))
    array([0.25, 0.75])
    """
    m, p = design.shape
    A = np.broadcast_to(np.asarray(between_variance, dtype=float), (m,)).copy()
    o = np.zeros(m) if offset is None else np.asarray(offset, dtype=float)
    P0 = np.zeros((p, p)) if prior_precision is None else np.asarray(prior_precision, dtype=float)
    shift = np.zeros(p) if prior_shift is None else np.asarray(prior_shift, dtype=float)

    weight = precision / (1.0 + A * precision)
    upper = _root(np.vstack([np.sqrt(weight)[:, None] * design, _factor(P0)]))

    def solve(rhs: Array) -> Array:  # R^-1 rhs
        return np.asarray(np.linalg.solve(upper.T, rhs), dtype=float)

    basis, inner = solve(design.T).T, solve(solve(P0).T)
    return GaussianPosterior(A, np.asarray(precision, dtype=float), basis, inner, solve(shift), o)


def _factor(precision: Array) -> Array:
    """A matrix ``F`` with ``F'F = precision``; empty when the prior is flat."""
    if not precision.any():
        return precision[:0]
    value, vector = np.linalg.eigh(precision)
    if value[0] < -1e-10 * value[-1]:
        raise ValueError("the prior precision of the coefficients has a negative eigenvalue")
    return np.asarray(np.sqrt(np.maximum(value, 0.0))[:, None] * vector.T)


def _root(rows: Array) -> Array:
    """Upper triangular ``R'`` with ``R R' = rows' rows``; refuses a singular one."""
    p = rows.shape[1]
    scale = np.sqrt((rows**2).sum(axis=0))
    if rows.shape[0] >= p and scale.all():
        order = np.argsort(-np.abs(rows / scale).max(axis=1), kind="stable")
        upper = np.linalg.qr(rows[order], mode="r")
        if (np.abs(np.diag(upper)) > rows.shape[0] * np.finfo(float).eps * scale).all():
            return np.asarray(upper)
    raise ValueError(
        f"improper posterior: the {p} coefficients are not identified by the areas with a "
        "sample (collinear covariates, or more of them than areas, under a flat prior)"
    )
