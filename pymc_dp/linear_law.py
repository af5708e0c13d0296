"""The law of a release from any linear-Gaussian model: ``theta* | y ~ N(M y + c, N)``.

The counterpart of :mod:`pymc_dp.law` for models without the arrow's factors. Where the target is
small enough, ``Sigma`` and ``M`` are dense matrices of the target; else only their diagonals and
the factor of the latents' precision are ever held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from pymc_dp.law import Mechanism
from pymc_dp.linear_gaussian import LinearGaussian
from pymc_dp.linear_plans import LatentPlan, LinearPlan, TargetPlan
from pymc_dp.posterior import Array
from pymc_dp.precision_factor import BLOCK, Factor, factorise
from pymc_dp.symbolic import NotLinearGaussianError

# Entries of a dense matrix of the target's size by the latents' or the data's: half a gigabyte.
MOST_ENTRIES = 6e7
# Eigenvalues of the target's correlation matrix below this times the largest count as zero.
RANK = 1e-11


@dataclass(frozen=True)
class LinearLaw:
    """Distribution of a release given the data.

    Attributes
    ----------
    linear : LinearGaussian
    mechanism : {"joint", "independent"}
    index : ndarray of int of shape (k,), optional
        The entry of the target that each observation is a direct estimate of.
    """

    linear: LinearGaussian = field(repr=False)
    mechanism: Mechanism = "joint"
    index: np.ndarray | None = field(default=None, repr=False)

    @property
    def coordinates(self) -> str:
        """Where the noise of a draw is whitened: "target" or "latent"."""
        m, n = self.linear.target.shape
        small = float(m) * max(m, n, self.linear.cross.shape[1]) <= MOST_ENTRIES
        return "target" if small else "latent"

    def plan(self, bound: float, mechanism: Mechanism | None = None) -> LinearPlan:
        """Plan of the safe draw, for observations of at most `bound` in absolute value.

        By default with the law's own mechanism.

        Raises
        ------
        NotLinearGaussianError
            If the target is too large for dense matrices and uses the data openly or wants
            independent noise; or uses the data openly in directions without noise, which no
            finite price covers.
        """
        chosen = mechanism or self.mechanism
        if (bound, chosen) not in self._plans:
            self._plans[bound, chosen] = self._made(bound, chosen)
        return self._plans[bound, chosen]

    @cached_property
    def _plans(self) -> dict[tuple[float, Mechanism], LinearPlan]:
        """Plans made so far: their norms and rounding take a while, and do not change."""
        return {}

    def _made(self, bound: float, mechanism: Mechanism) -> LinearPlan:
        if self.coordinates == "latent":
            self._refuse_without_matrices()
            linear = self.linear
            return LatentPlan(
                self.precision_factor, linear.cross, linear.target, self.constant, bound
            )
        roots = self._joint if mechanism == "joint" else self._independent
        return TargetPlan(*roots, self.constant, bound)

    @cached_property
    def precision_factor(self) -> Factor:
        """Factor of the latents' posterior precision."""
        return factorise(self.linear.precision)

    @cached_property
    def constant(self) -> Array:
        """Posterior mean of the target at ``y = 0``; (m,)."""
        linear = self.linear
        return np.asarray(linear.target @ self.precision_factor.solve(linear.shift)) + (
            linear.constant
        )

    def mean(self, y: Array) -> Array:
        """Posterior mean of the target; (m,)."""
        pull = self.precision_factor.solve(self.linear.cross @ y)
        return np.asarray(self.linear.target @ pull + self.linear.openly @ y + self.constant)

    @cached_property
    def variance(self) -> Array:
        """Variance of the release around its mean, the diagonal of ``Sigma``; (m,)."""
        if self.coordinates == "target":
            return np.asarray(np.diag(self._matrices[0]))
        return self.precision_factor.quadratic(self.linear.target.T.tocsc())

    def propagation(self) -> Array:
        """Dense ``M``: how far the mean of an entry moves per unit of an observation; (m, k)."""
        return self._matrices[1]

    def covariance(self) -> Array:
        """Dense ``Sigma``; (m, m)."""
        return self._matrices[0]

    @cached_property
    def _matrices(self) -> tuple[Array, Array]:
        linear, factor = self.linear, self.precision_factor
        if self.coordinates == "latent":
            raise NotLinearGaussianError(
                f"the target has {linear.target.shape[0]} entries and the model "
                f"{linear.target.shape[1]} latents: too many for dense matrices"
            )
        m, n = linear.target.shape
        solved = np.empty((n, m))
        for start in range(0, m, BLOCK):
            block = linear.target[start : start + BLOCK].T.toarray()
            solved[:, start : start + BLOCK] = factor.solve(block)
        covariance = linear.target @ solved
        propagation = (linear.cross.T @ solved).T + linear.openly.toarray()
        return (covariance + covariance.T) / 2, np.asarray(propagation)

    @cached_property
    def _sd(self) -> Array:
        variance = self.variance
        if not (variance > 0).all():
            raise NotLinearGaussianError(
                f"{(variance <= 0).sum()} entries of the target have no posterior variance: no "
                "noise would protect anybody"
            )
        return np.sqrt(variance)

    @cached_property
    def _independent(self) -> tuple[Array, Array]:
        """``L`` and ``S`` of independent noise."""
        return np.diag(self._sd), self._matrices[1] / self._sd[:, None]

    @cached_property
    def _joint(self) -> tuple[Array, Array]:
        """``L`` and ``S`` of a joint draw."""
        covariance, propagation = self._matrices
        sd = self._sd
        correlation = covariance / np.outer(sd, sd)
        scaled = propagation / sd[:, None]
        try:
            root = sl.cholesky(correlation, lower=True)
            regular = (root.diagonal() ** 2 > RANK * len(root)).all()
        except sl.LinAlgError:
            regular = False
        if regular:
            return sd[:, None] * root, sl.solve_triangular(root, scaled, lower=True)
        value, vector = sl.eigh(correlation)
        keep = value > RANK * value[-1]
        vector, spread = vector[:, keep], np.sqrt(value[keep])
        within = vector.T @ scaled
        outside = np.abs(scaled - vector @ within).max(axis=0)
        open_columns = outside > 1e-6 * np.abs(scaled).max()
        if self.linear.openly.nnz and open_columns.any():
            raise NotLinearGaussianError(
                f"the target uses {open_columns.sum()} observations openly in directions without "
                "posterior noise: no finite price covers that"
            )
        return sd[:, None] * (vector * spread), within / spread[:, None]

    def _refuse_without_matrices(self) -> None:
        size = self.linear.target.shape[0]
        if self.linear.openly.nnz:
            raise NotLinearGaussianError(
                f"the target of {size} entries uses the data openly, which takes dense matrices "
                "of its size to price: too many entries"
            )
        if self.mechanism == "independent":
            raise NotLinearGaussianError(
                f"noise independent by area takes a dense propagation matrix, which {size} "
                "entries are too many for: use mechanism='joint'"
            )

    def smoothed(self, release: Array) -> tuple[Array, Array] | None:
        """Mean and standard deviation of theta given the release, or None.

        For a plain joint draw the chain theta -> y -> theta* is reversible, so theta given
        theta* has the law of theta* given theta: ``N(M E[y | theta*] + c, Sigma + M R M')``. It
        takes observations that are direct estimates, and dense matrices.
        """
        if self.mechanism != "joint" or self.index is None or self.coordinates == "latent":
            return None
        if self.linear.openly.nnz:
            return None
        variance = 1.0 / self.linear.data_precision.diagonal()
        M = self.propagation()
        shift = variance * self.linear.data_shift - self.linear.constant[self.index]
        mean = (release[..., self.index] + shift) @ M.T + self.constant
        return mean, np.sqrt(self.variance + (M**2) @ variance)

    def unshrunk(self, changes: sp.csc_array) -> Array:
        """Price without the model, ``d' R^-1 d / 2`` with signs at worst; (columns,)."""
        weight = abs(self.linear.data_precision)
        return np.ravel((weight @ changes).multiply(changes).sum(axis=0)) / 2
