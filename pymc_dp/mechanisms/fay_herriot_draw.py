"""Plans of a safe draw: which statistics get lattice noise, and how they become a release.

Each plan holds public factors of ``S`` and ``L`` of ``theta* = L (S y + noise) + c``, the norms of
the columns of ``S``, which are what a record pays for, and a proven bound on rounding errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import NORM_SLACK, SPACING, UNIT
from pymc_dp.posterior.fay_herriot import GaussianPosterior


@dataclass(frozen=True)
class JointPlan:
    """Noise for one draw of the whole vector: ``m`` area coordinates, then ``p`` shared ones.

    ``S = [diag(sqrt(gamma / D)); right']`` and ``L = [diag(sqrt(gamma D)), left]``; with the
    covariance inflated by ``k``, ``S / sqrt(k)`` and ``sqrt(k) L``.
    """

    posterior: GaussianPosterior
    bound: float  # public bound of |y|
    inflation: float = 1.0

    @property
    def size(self) -> int:
        """Number of lattice coordinates, ``m + p``."""
        return sum(self.posterior.left.shape)

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: its area's, and the shared ones."""
        return 1 + self.posterior.left.shape[1]

    @cached_property
    def own(self) -> Array:
        """``sqrt(gamma / D)``, zero where there is no sample; (m,)."""
        post = self.posterior
        return np.asarray(np.sqrt(post.gamma * post.precision / self.inflation))

    @cached_property
    def shared(self) -> Array:
        """Shared rows of S, one column here each; (m, p)."""
        return self.posterior.right / math.sqrt(self.inflation)

    @cached_property
    def shared_norm(self) -> Array:
        """Norm of each column of S in the shared coordinates; (m,)."""
        return np.asarray(np.sqrt((self.shared**2).sum(axis=1)))

    @cached_property
    def norm(self) -> Array:
        """Norm of each column of S: ``sqrt(Sigma_jj) / D_j``; (m,)."""
        return np.asarray(np.hypot(self.own, self.shared_norm))

    @cached_property
    def slack(self) -> Array:
        """What rounding can add to the distance between two statistics; (m,).

        The lattice adds ``2^k sqrt(m + p)``; the computed ``S y`` errs by at most ``e`` on
        either side, in the coordinates that the record moves (the others are the same numbers).
        A product errs by one unit, the exactly rounded sum of the products by another.
        """
        shared = 2 * UNIT * self.bound * np.abs(self.shared).sum(axis=0)
        error = np.hypot(UNIT * self.bound * self.own, math.hypot(*shared))
        return np.asarray(SPACING * math.sqrt(self.size) + 2 * (1 + NORM_SLACK) * error)

    def statistic(self, y: Array) -> Array:
        """``S y``; (m + p,)."""
        return np.concatenate([self.own * y, _exact_product(self.shared, y)])

    def sufficient(self, noisy: Array) -> Array:
        """``S' noisy``: all that the noisy statistics say of the direct estimates; (m,)."""
        m = self.own.size
        return np.asarray(self.own * noisy[:m] + self.shared @ noisy[m:])

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``: a posterior draw; (m,)."""
        post = self.posterior
        m = post.gamma.size
        spread = np.sqrt(post.area_variance) * noisy[:m] + post.left @ noisy[m:]
        return np.asarray(math.sqrt(self.inflation) * spread + post.mean(np.zeros(m)))


@dataclass(frozen=True)
class WidenedPlan:
    """A joint draw plus independent ``N(0, v)`` on every area, v positive.

    ``L = [diag(sqrt(a)), left]`` with ``a = gamma D + v``, so that ``L L' = Sigma + v I``, and
    ``S = L' (L L')^-1 M``, the least of all S with ``L S = M``. With Woodbury's formula,
    ``K = I + left' diag(1/a) left`` and ``T = (right - gamma left / a) K^-1``,

        ``S = [diag(gamma / sqrt(a)) + diag(1 / sqrt(a)) left T'; right' - T']``.

    ``L S = M`` holds for any ``T``, so an error in ``T`` would cost accuracy of the price alone,
    and the price is that of the ``S`` in use.
    """

    posterior: GaussianPosterior
    bound: float
    extra: float

    @property
    def size(self) -> int:
        """Number of lattice coordinates, ``m + p``."""
        return sum(self.posterior.left.shape)

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: all."""
        return self.size

    @cached_property
    def spread(self) -> Array:
        """``sqrt(a)``; (m,)."""
        return np.asarray(np.sqrt(self.posterior.area_variance + self.extra))

    @cached_property
    def own(self) -> Array:
        """``gamma / sqrt(a)``; (m,)."""
        return np.asarray(self.posterior.gamma / self.spread)

    @cached_property
    def rows(self) -> Array:
        """``left / sqrt(a)``; (m, p)."""
        return np.asarray(self.posterior.left / self.spread[:, None])

    @cached_property
    def crossed(self) -> Array:
        """``T``; (m, p)."""
        post = self.posterior
        # right - gamma left / a = right v / a where there is a sample: no difference is taken.
        part = post.right * (self.extra / self.spread**2)[:, None]
        K = np.eye(part.shape[1]) + self.rows.T @ self.rows
        return np.asarray(np.linalg.solve(K, part.T).T)

    @cached_property
    def shared(self) -> Array:
        """Shared rows of S, one column here each; (m, p)."""
        return self.posterior.right - self.crossed

    @cached_property
    def shared_norm(self) -> Array:
        """Norm of each column of S in the shared coordinates; (m,)."""
        return np.asarray(np.sqrt((self.shared**2).sum(axis=1)))

    @cached_property
    def norm(self) -> Array:
        """Norm of each column of S; (m,)."""
        return np.hypot(_column_norm(self.own, self.rows, self.crossed), self.shared_norm)

    @cached_property
    def slack(self) -> Array:
        """What rounding can add to the distance between two statistics; (m,)."""
        areas = _product_error(self.own, self.rows, self.crossed, self.bound)
        shared = 2 * UNIT * self.bound * np.abs(self.shared).sum(axis=0)
        error = math.sqrt(areas @ areas + shared @ shared)
        return np.full(self.own.size, _distance_slack(self.size, error))

    def statistic(self, y: Array) -> Array:
        """``S y``; (m + p,)."""
        areas = self.own * y + self.rows @ _exact_product(self.crossed, y)
        return np.concatenate([areas, _exact_product(self.shared, y)])

    def sufficient(self, noisy: Array) -> Array:
        """``S' noisy``: all that the noisy statistics say of the direct estimates; (m,)."""
        m = self.own.size
        areas = self.own * noisy[:m] + self.crossed @ (self.rows.T @ noisy[:m])
        return np.asarray(areas + self.shared @ noisy[m:])

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``; (m,)."""
        post = self.posterior
        m = self.own.size
        return np.asarray(self.spread * noisy[:m] + post.left @ noisy[m:] + post.mean(np.zeros(m)))


@dataclass(frozen=True)
class IndependentPlan:
    """Noise for each area on its own: posterior mean plus ``N(0, Sigma_ii)``, independent.

    ``S = diag(Sigma_ii)^-1/2 M`` and ``L = diag(Sigma_ii)^1/2``; a calibrated release has
    ``k Sigma_ii + v`` in place of ``Sigma_ii``.
    """

    posterior: GaussianPosterior
    bound: float
    inflation: float = 1.0
    extra: float = 0.0

    @property
    def size(self) -> int:
        """Number of lattice coordinates, ``m``."""
        return self.posterior.gamma.size

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: all."""
        return self.size

    @cached_property
    def spread(self) -> Array:
        """Standard deviation of the noise; (m,)."""
        return np.asarray(np.sqrt(self.inflation * self.posterior.variance + self.extra))

    @cached_property
    def scale(self) -> Array:
        """``Sigma_ii^-1/2``, zero where the posterior has no variance; (m,)."""
        sd = self.spread
        return np.divide(1.0, sd, out=np.zeros_like(sd), where=sd > 0)

    @cached_property
    def norm(self) -> Array:
        """Norm of each column of S, from the factors of M; (m,)."""
        post = self.posterior
        return _column_norm(self.scale * post.gamma, self.scale[:, None] * post.left, post.right)

    @cached_property
    def slack(self) -> Array:
        """What rounding can add to the distance between two statistics; (m,)."""
        post = self.posterior
        rows = self.scale[:, None] * post.left
        error = _product_error(self.scale * post.gamma, rows, post.right, self.bound)
        return np.full(self.size, _distance_slack(self.size, math.sqrt(error @ error)))

    def statistic(self, y: Array) -> Array:
        """``S y``; (m,)."""
        post = self.posterior
        return np.asarray(
            self.scale * post.gamma * y
            + (self.scale[:, None] * post.left) @ _exact_product(post.right, y)
        )

    def sufficient(self, noisy: Array) -> Array:
        """``S' noisy``: all that the noisy statistics say of the direct estimates; (m,)."""
        post, weighted = self.posterior, self.scale * noisy
        return np.asarray(post.gamma * weighted + post.right @ (post.left.T @ weighted))

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``; (m,)."""
        post = self.posterior
        return np.asarray(self.spread * noisy + post.mean(np.zeros(self.size)))


def _column_norm(own: Array, rows: Array, factor: Array) -> Array:
    """Norms of the columns of ``diag(own) + rows factor'``."""
    shared = ((factor @ (rows.T @ rows)) * factor).sum(axis=1)
    crossed = own * (rows * factor).sum(axis=1)
    return np.asarray(np.sqrt(own**2 + 2 * crossed + shared))


def _product_error(own: Array, rows: Array, factor: Array, bound: float) -> Array:
    """Rounding error of ``own y + rows (factor' y)`` for any ``|y| <= bound``, by coordinate."""
    largest = bound * np.abs(factor).sum(axis=0)
    shared = np.abs(rows) @ largest
    return UNIT * ((rows.shape[1] + 3) * (own * bound + shared) + 2 * shared)


def _distance_slack(size: int, error: float) -> float:
    """Distance that the lattice and an error of the statistics on either side can add."""
    return SPACING * math.sqrt(size) + 2 * (1 + NORM_SLACK) * error


def _exact_product(matrix: Array, y: Array) -> Array:
    """``matrix' y`` with each sum of the computed products rounded once."""
    return np.array([math.fsum(column) for column in (matrix * y[:, None]).T.tolist()])
