"""The safe draw: lattice Gaussian noise before a public linear map.

A posterior draw is ``theta* = L (S y + noise) + c`` with public ``L`` and ``S``, ``L S = M`` and
``L L' = Sigma``. So ``S y`` is rounded to a public lattice, discrete Gaussian noise on that
lattice is added by OpenDP from the operating system's randomness, and everything after is
post-processing: floating-point error there cannot hurt privacy. Noise added to an unrounded
posterior mean would give the mean away through the support of the draw.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pymc_dp.posterior import Array, GaussianPosterior

# Spacing 2^-50 standard deviations: rounding then costs about 1e-13 in sqrt(2 rho).
EXPONENT = -50
SPACING = 2.0**EXPONENT
UNIT = 2.0**-53  # relative error of one floating-point operation
# Column norms of S are sums of up to a few million non-negative terms, added pairwise.
NORM_SLACK = 1e-12

_CONTRIB = threading.Lock()


@dataclass(frozen=True)
class JointPlan:
    """Noise for one draw of the whole vector: ``m`` area coordinates, then ``p`` shared ones.

    ``S = [diag(sqrt(gamma / D)); right']`` and ``L = [diag(sqrt(gamma D)), left]``.
    """

    posterior: GaussianPosterior
    bound: float  # public bound of |y|

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
        return np.asarray(np.sqrt(self.posterior.gamma * self.posterior.precision))

    @cached_property
    def shared_norm(self) -> Array:
        """Norm of each column of S in the shared coordinates; (m,)."""
        return np.asarray(np.sqrt((self.posterior.right**2).sum(axis=1)))

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
        shared = 2 * UNIT * self.bound * np.abs(self.posterior.right).sum(axis=0)
        error = np.hypot(UNIT * self.bound * self.own, math.hypot(*shared))
        return np.asarray(SPACING * math.sqrt(self.size) + 2 * (1 + NORM_SLACK) * error)

    def statistic(self, y: Array) -> Array:
        """``S y``; (m + p,)."""
        return np.concatenate([self.own * y, _exact_product(self.posterior.right, y)])

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``: a posterior draw; (m,)."""
        post = self.posterior
        m = post.gamma.size
        spread = np.sqrt(post.area_variance) * noisy[:m] + post.left @ noisy[m:]
        return np.asarray(spread + post.mean(np.zeros(m)))


@dataclass(frozen=True)
class IndependentPlan:
    """Noise for each area on its own: posterior mean plus ``N(0, Sigma_ii)``, independent.

    ``S = diag(Sigma_ii)^-1/2 M`` and ``L = diag(Sigma_ii)^1/2``.
    """

    posterior: GaussianPosterior
    bound: float

    @property
    def size(self) -> int:
        """Number of lattice coordinates, ``m``."""
        return self.posterior.gamma.size

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: all."""
        return self.size

    @cached_property
    def scale(self) -> Array:
        """``Sigma_ii^-1/2``, zero where the posterior has no variance; (m,)."""
        sd = np.sqrt(self.posterior.variance)
        return np.divide(1.0, sd, out=np.zeros_like(sd), where=sd > 0)

    @cached_property
    def norm(self) -> Array:
        """Norm of each column of S, from the factors of M; (m,)."""
        post = self.posterior
        own, rows = self.scale * post.gamma, self.scale[:, None] * post.left
        shared = ((post.right @ (rows.T @ rows)) * post.right).sum(axis=1)
        crossed = own * self.scale * (post.left * post.right).sum(axis=1)
        return np.asarray(np.sqrt(own**2 + 2 * crossed + shared))

    @cached_property
    def slack(self) -> Array:
        """What rounding can add to the distance between two statistics; (m,)."""
        post = self.posterior
        p = post.left.shape[1]
        largest = self.bound * np.abs(post.right).sum(axis=0)
        rows = self.scale[:, None] * np.abs(post.left)
        size = self.scale * post.gamma * self.bound + rows @ largest
        error = UNIT * ((p + 3) * size + 2 * rows @ largest)
        total = SPACING * math.sqrt(self.size) + 2 * (1 + NORM_SLACK) * math.sqrt(error @ error)
        return np.full(self.size, total)

    def statistic(self, y: Array) -> Array:
        """``S y``; (m,)."""
        post = self.posterior
        return np.asarray(
            self.scale * post.gamma * y
            + (self.scale[:, None] * post.left) @ _exact_product(post.right, y)
        )

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``; (m,)."""
        post = self.posterior
        return np.asarray(np.sqrt(post.variance) * noisy + post.mean(np.zeros(self.size)))


Plan = JointPlan | IndependentPlan


def price(norm: Array, sensitivity: Array, slack: Array) -> Array:
    """Price in zCDP of a change of at most ``sensitivity`` in one direct estimate.

    Parameters
    ----------
    norm : ndarray of shape (m,)
        Norm of the statistic's column, in standard deviations per unit of ``y_j``.
    sensitivity : ndarray of shape (m,)
        ``s_j``; zero where no record exists, which then costs nothing.
    slack : ndarray of shape (m,)
        Distance that rounding can add.
    """
    distance = (1 + NORM_SLACK) * norm * sensitivity + slack
    return np.where(sensitivity > 0, distance**2 / 2, 0.0)


def noisy_statistics(plan: Plan, y: Array, distance: float, claimed: float, draws: int) -> Array:
    """``S y`` rounded to the lattice, plus discrete Gaussian noise, once a draw.

    Parameters
    ----------
    plan : JointPlan or IndependentPlan
    y : ndarray of shape (m,)
        Direct estimates, zero where there is no sample.
    distance : float
        Largest distance between the computed statistics of neighbouring data sets.
    claimed : float
        The zCDP price of one draw that the caller states; OpenDP's own map must not exceed it.
    draws : int

    Returns
    -------
    ndarray of shape (draws, plan.size)

    Raises
    ------
    ValueError
        If the statistic is not finite.
    RuntimeError
        If OpenDP prices the noise above the claim.
    """
    statistic = plan.statistic(y)
    if statistic.shape != (plan.size,) or not np.isfinite(statistic).all():
        raise ValueError("the statistic to be released is not finite")  # OpenDP would accept it
    measurement = _gaussian(plan.size)
    # OpenDP rounds its figure up once more, in the last places.
    if measurement.map(distance) > claimed * (1 + 1e-9):
        raise RuntimeError("OpenDP prices this release above the claim; nothing was drawn")
    return np.array([measurement(statistic) for _ in range(draws)], dtype=float)


def _gaussian(size: int) -> Any:
    """OpenDP's discrete Gaussian of unit scale on the lattice, for vectors of a size."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance

    with _contrib():
        return make_gaussian(
            vector_domain(atom_domain(T=float, nan=False), size=size),
            l2_distance(T=float),
            scale=1.0,
            k=EXPONENT,
        )


@contextmanager
def _contrib() -> Iterator[None]:
    """OpenDP's switch for constructors not yet fully vetted, left as the user had it."""
    from opendp.mod import GLOBAL_FEATURES, disable_features, enable_features

    with _CONTRIB:
        switch = "contrib" not in GLOBAL_FEATURES
        if switch:
            enable_features("contrib")
        try:
            yield
        finally:
            if switch:
                disable_features("contrib")


def _exact_product(matrix: Array, y: Array) -> Array:
    """``matrix' y`` with each sum of the computed products rounded once."""
    return np.array([math.fsum(column) for column in (matrix * y[:, None]).T.tolist()])
