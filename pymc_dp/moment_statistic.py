"""The quadratic form behind the moment estimate of sigma_u, and how far one record can move it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_dp.posterior import Array
from pymc_dp.survey_checks import Bounds

BLOCK = 4_000_000  # numbers of Q looked at together
UNIT = 2.0**-53  # relative error of one floating-point operation


@dataclass(frozen=True, repr=False)
class MomentStatistic:
    """``S^2 = z'Qz / (m - p)`` of direct estimates z, centred at the middle of public bounds.

    Attributes
    ----------
    basis : ndarray of shape (m, p)
        Orthonormal basis B of the covariates over the areas with a sample.
    bounds : Bounds
        Public range to which direct estimates are clipped.
    """

    basis: Array
    bounds: Bounds

    @property
    def contrasts(self) -> int:
        """``m - p``."""
        m, p = self.basis.shape
        return m - p

    @cached_property
    def diagonal(self) -> Array:
        """``Q_jj``; (m,)."""
        return np.asarray(1 - (self.basis**2).sum(axis=1))

    @cached_property
    def absolute_sums(self) -> Array:
        """``sum_i |Q_ij|``; (m,). An intercept alone needs no sum, else ``O(m^2 p)`` in blocks."""
        m, p = self.basis.shape
        if p == 1 and np.ptp(self.basis) == 0:
            return np.full(m, 2 * (1 - 1 / m))
        step = max(1, BLOCK // m)
        rows = [self.basis[i : i + step] for i in range(0, m, step)]
        sums = np.concatenate([np.abs(some @ self.basis.T).sum(axis=1) for some in rows])
        own = (self.basis**2).sum(axis=1)
        return np.asarray(sums - own + np.abs(self.diagonal))

    def value(self, y: Array) -> float:
        """``S^2``, its sums rounded once."""
        half = self.bounds.width / 2
        z = np.clip(np.clip(y, self.bounds.low, self.bounds.high) - self.bounds.middle, -half, half)
        coordinates = [math.fsum(column) for column in (self.basis * z[:, None]).T.tolist()]
        residual = z - self.basis @ np.array(coordinates)
        return math.fsum((residual**2).tolist()) / self.contrasts

    def change(self, sensitivity: Array) -> Array:
        r"""Most that ``S^2`` moves when one ``y_j`` moves by at most ``s_j``; exact, (m,).

        With :math:`R = hi - lo`, a move by :math:`\delta` changes :math:`(m - p) S^2` by
        :math:`\delta [2 \sum_{i \ne j} Q_{ij} z_i + Q_{jj} (z_j + z_j')]`, where
        :math:`|z_i| \le R / 2` and :math:`|z_j + z_j'| \le R - |\delta|`, all attained. So the
        most is :math:`\delta (R \sum_i |Q_{ij}| - Q_{jj} \delta)`, which rises in
        :math:`\delta` up to :math:`R \sum_i |Q_{ij}| / (2 Q_{jj})`. With an intercept among the
        covariates that is at least R; for an intercept alone the result is
        :math:`s_j (2R - s_j) / m`.
        """
        reach = self.bounds.width * self.absolute_sums
        with np.errstate(divide="ignore", invalid="ignore"):
            top = np.where(self.diagonal > 0, reach / (2 * self.diagonal), np.inf)
        # Centring rounds at the size of the bounds.
        moved = np.where(sensitivity > 0, sensitivity + 4 * UNIT * self.bounds.largest, 0.0)
        delta = np.minimum(np.minimum(moved, self.bounds.width), top)
        return np.asarray(delta * (reach - self.diagonal * delta) / self.contrasts)

    @property
    def largest(self) -> float:
        """Largest possible value: all direct estimates at the ends."""
        return self.basis.shape[0] / self.contrasts * self.bounds.width**2 / 4

    @property
    def rounding(self) -> float:
        r"""Bound of the error of the computed value.

        The residual errs by at most :math:`4 (p + 1) \sqrt p\, u \|z\|` in norm, so its squared
        norm by :math:`12 (p + 1) \sqrt p\, u \|z\|^2`, the last roundings included.
        """
        p = self.basis.shape[1]
        return 12 * (p + 1) * math.sqrt(p) * UNIT * self.largest
