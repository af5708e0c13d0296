r"""What a Gaussian release says about the direct estimates, as precision and statistic.

A release ``theta* = M y + c + e``, ``e ~ N(0, N)``, says of ``y`` what ``h = M' N^-1 (theta* - c)``
says: ``h | y ~ N(K y, K)`` with ``K = M' N^-1 M``, a diagonal plus low rank. Knows nothing of
privacy. ``Sigma0 = diag(a) + L L'`` is the covariance of the posterior, ``W`` its ``precision``:
zero without a sample, so those rows of K and h are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.posterior.fay_herriot import GaussianPosterior


@dataclass(frozen=True, repr=False)
class InformationMatrix:
    """``K = diag(own) + shared diag(sign) shared'``, positive semidefinite.

    Attributes
    ----------
    own : ndarray of shape (m,)
        Nonnegative.
    shared : ndarray of shape (m, r)
    sign : ndarray of shape (r,)
        1, or -1: a joint draw's K less its ``own`` is positive, but noise that is independent
        by area leaves ``rank`` p above and p below zero, and no other diagonal helps.
    """

    own: Array
    shared: Array
    sign: Array

    def __repr__(self) -> str:
        """Sizes only."""
        return f"InformationMatrix{self.shared.shape}"

    @property
    def diagonal(self) -> Array:
        """``K_jj``; a change s of ``y_j`` alone has the price ``s^2 K_jj / 2``; (m,)."""
        return np.asarray(self.own + (self.shared**2) @ self.sign)

    def times(self, vector: Array) -> Array:
        """``K v`` for vectors in the last axis."""
        return np.asarray(self.own * vector + (vector @ self.shared * self.sign) @ self.shared.T)

    def dense(self) -> Array:
        """``K``; (m, m)."""
        return np.asarray(np.diag(self.own) + (self.shared * self.sign) @ self.shared.T)

    def scaled(self, factor: float) -> InformationMatrix:
        """``factor K``, factor positive."""
        return InformationMatrix(factor * self.own, np.sqrt(factor) * self.shared, self.sign)

    def rows(self, chosen: np.ndarray) -> InformationMatrix:
        """Some areas, where the others have rows of zeros."""
        return InformationMatrix(self.own[chosen], self.shared[chosen], self.sign)

    def extended(self, more: int) -> InformationMatrix:
        """With that many areas more, of which nothing is known."""
        shared = np.vstack([self.shared, np.zeros((more, self.sign.size))])
        return InformationMatrix(np.append(self.own, np.zeros(more)), shared, self.sign)

    @cached_property
    def noise_factors(self) -> tuple[Array, Array, Array, Array]:
        """Factors of ``N(0, K) = root z + above z' - below (turn' z)``, z standard normal."""
        above, below = self.shared[:, self.sign > 0], self.shared[:, self.sign < 0]
        root = np.sqrt(self.own)
        # own - below below' = root (I - U U') root with U'U = T s T': I - U U' is the square of
        # I - U T (1 + sqrt(1 - s))^-1 T' U'.
        U = np.divide(below, root[:, None], out=np.zeros_like(below), where=below != 0)
        s, T = np.linalg.eigh(U.T @ U)
        turn = U @ (T / (1 + np.sqrt(1 - np.clip(s, 0.0, 1.0)))) @ T.T
        return root, above, below, turn

    def noise(self, rng: np.random.Generator, size: int) -> Array:
        """Independent ``N(0, K)``, one a row: what h is beside ``K y``; (size, m)."""
        root, above, below, turn = self.noise_factors
        z = rng.standard_normal((size, root.size))
        noise = rng.standard_normal((size, above.shape[1])) @ above.T
        if below.shape[1]:
            noise -= (z @ turn) @ below.T
        z *= root
        noise += z
        return np.asarray(noise)

    def absorb(self, variance: Array) -> Absorbed:
        """What h says of theta where ``y ~ N(theta, diag(variance))``."""
        growth = 1.0 + self.own * variance
        inner = np.diag(self.sign) + self.shared.T @ ((variance / growth)[:, None] * self.shared)
        return Absorbed(self, variance, growth, inner)


@dataclass(frozen=True, repr=False)
class Absorbed:
    """A release with the sampling error of the direct estimates taken in.

    ``h = K theta + N(0, K + K V K)`` says of theta what ``(I + K V)^-1 h`` says, whose precision
    is ``K (I + V K)^-1``. With ``g = 1 + own v`` and ``inner = sign + shared' (V / g) shared``,
    Woodbury's formula takes no difference and inverts nothing of size m.
    """

    K: InformationMatrix
    variance: Array
    growth: Array
    inner: Array

    @property
    def rows(self) -> Array:
        """``shared / g``; (m, r)."""
        return np.asarray(self.K.shared / self.growth[:, None])

    def statistic(self, h: Array) -> Array:
        """``(I + K V)^-1 h`` for h in the last axis."""
        across = (h * self.variance / self.growth) @ self.K.shared
        return np.asarray(h / self.growth - np.linalg.solve(self.inner, across.T).T @ self.rows.T)

    @property
    def precision(self) -> InformationMatrix:
        """``K (I + V K)^-1``."""
        value, vector = np.linalg.eigh(self.inner)
        shared = self.rows @ (vector / np.sqrt(np.abs(value)))
        return InformationMatrix(self.K.own / self.growth, shared, np.sign(value))

    @property
    def log_determinant(self) -> float:
        """``log det(I + K V)``."""
        return float(np.log(self.growth).sum() + np.linalg.slogdet(self.inner)[1])


def joint_information(posterior: GaussianPosterior, inflation: float = 1.0) -> InformationMatrix:
    """``W Sigma0 W / k`` of a draw from the posterior, its covariance inflated by k.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
    >>> post = fay_herriot_posterior(1.0, np.array([1.0, 1.0]), np.ones((2, 1)))
    >>> joint_information(post).dense()
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    own = posterior.gamma * posterior.precision / inflation
    shared = posterior.right / np.sqrt(inflation)
    return InformationMatrix(np.asarray(own), np.asarray(shared), np.ones(shared.shape[1]))


def joint_h(posterior: GaussianPosterior, release: Array, inflation: float = 1.0) -> Array:
    """``W (theta* - c) / k``: no inverse is taken, so A = 0 is no exception; (..., m)."""
    return np.asarray(posterior.precision * _centred(posterior, release) / inflation)


def widened_information(
    posterior: GaussianPosterior, inflation: float = 1.0, extra: float = 0.0
) -> InformationMatrix:
    """``W Sigma0 (k Sigma0 + v I)^-1 Sigma0 W`` of a joint draw and independent ``N(0, v)``."""
    if extra == 0:
        return joint_information(posterior, inflation)
    return _information(posterior, inflation * posterior.area_variance + extra, inflation)


def widened_h(
    posterior: GaussianPosterior, release: Array, inflation: float = 1.0, extra: float = 0.0
) -> Array:
    """``W Sigma0 (k Sigma0 + v I)^-1 (theta* - c)``; (..., m)."""
    if extra == 0:
        return joint_h(posterior, release, inflation)
    own = inflation * posterior.area_variance + extra
    return _h(posterior, release, own, inflation)


def independent_information(
    posterior: GaussianPosterior, inflation: float = 1.0, extra: float = 0.0
) -> InformationMatrix:
    """``W Sigma0 N^-1 Sigma0 W`` of noise by area, ``N = diag(k Sigma0_ii + v)``."""
    return _information(posterior, inflation * posterior.variance + extra, 0.0)


def independent_h(
    posterior: GaussianPosterior, release: Array, inflation: float = 1.0, extra: float = 0.0
) -> Array:
    """``W Sigma0 N^-1 (theta* - c)``; (..., m)."""
    return _h(posterior, release, inflation * posterior.variance + extra, 0.0)


def direct_information(noise_variance: Array) -> InformationMatrix:
    """``diag(1 / noise)`` of noise on the direct estimates; NaN where there is no sample.

    The statistic is ``h = K y~``.
    """
    own = np.where(np.isnan(noise_variance), 0.0, 1.0 / noise_variance)
    return InformationMatrix(own, np.empty((own.size, 0)), np.empty(0))


def statistics_information(own: Array, shared: Array) -> InformationMatrix:
    """``S'S`` of statistics ``S y + N(0, I)``, ``S = [diag(own); shared']``.

    Parameters
    ----------
    own : ndarray of shape (m,)
    shared : ndarray of shape (m, q)
        Shared rows of S, one column here each.
    """
    return InformationMatrix(np.asarray(own**2), shared, np.ones(shared.shape[1]))


def statistics_h(own: Array, shared: Array, noisy: Array) -> Array:
    """``S' z`` for noisy statistics z of shape (..., m + q); (..., m)."""
    m = own.size
    return np.asarray(own * noisy[..., :m] + noisy[..., m:] @ shared.T)


def _centred(posterior: GaussianPosterior, release: Array) -> Array:
    """``theta* - c``."""
    return np.asarray(release - posterior.mean(np.zeros(posterior.gamma.size)))


def _reciprocal(own: Array) -> Array:
    """``1 / own``; an area without noise has no variance and says nothing: 0."""
    return np.divide(1.0, own, out=np.zeros_like(own), where=own > 0)


def _information(posterior: GaussianPosterior, own: Array, shared: float) -> InformationMatrix:
    """``W Sigma0 N^-1 Sigma0 W`` for the noise ``N = diag(own) + shared L L'``.

    With ``E = (a / own) L``, ``G = L' diag(1 / own) L`` and ``t = shared``, completing a square
    in Woodbury's formula,

        ``Sigma0 N^-1 Sigma0 = diag(a^2 / own) + (L G + E) (G + t G^2)^-1 (L G + E)' - E G^-1 E'``.

    The part taken away is at most the diagonal part: ``L_j G^-1 L_j' / own_j`` is a leverage.
    """
    weight = _reciprocal(own)
    left, right, gamma = posterior.left, posterior.right, posterior.gamma
    G = left.T @ (weight[:, None] * left)
    value, vector = np.linalg.eigh(G)
    # A direction that only the prior identifies: the columns of L have none of it.
    seen = value > value[-1] * value.size * np.finfo(float).eps
    value, vector = value[seen], vector[:, seen]
    # W L = right and W a = gamma: nothing is divided by D.
    WE = (gamma * weight)[:, None] * (left @ vector)
    above = (right @ vector * value + WE) / np.sqrt(value * (1 + shared * value))
    below = WE / np.sqrt(value)
    if not below.any():
        below = below[:, :0]
    sign = np.repeat([1.0, -1.0], [above.shape[1], below.shape[1]])
    return InformationMatrix(np.asarray(gamma**2 * weight), np.hstack([above, below]), sign)


def _h(posterior: GaussianPosterior, release: Array, own: Array, shared: float) -> Array:
    """``W Sigma0 N^-1 (theta* - c)`` for the noise ``N = diag(own) + shared L L'``."""
    weight = _reciprocal(own)
    left = posterior.left
    solved = weight * _centred(posterior, release)
    if shared > 0:
        inner = np.eye(left.shape[1]) + shared * (left.T @ (weight[:, None] * left))
        solved = solved - shared * weight * (np.linalg.solve(inner, (solved @ left).T).T @ left.T)
    return np.asarray(posterior.gamma * solved + (solved @ left) @ posterior.right.T)
