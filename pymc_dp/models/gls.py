"""Generalised least squares of the direct estimates at many values of the effects' variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.models.inputs import AreaData

BLOCK = 2_000_000  # numbers in one batch of factorisations


class GlsFit(NamedTuple):
    """Generalised least squares at q values of ``A``; the leading axis of every field is q.

    With ``W = diag(1 / (A + D))``: ``log_determinant`` is ``-log|W|``, ``log_information`` is
    ``log|X'WX|``, ``residual`` is ``r'Wr``, ``coefficient`` is beta-hat of shape (q, p) and
    ``root`` is T of shape (q, p, p) with ``TT' = (X'WX)^-1``.
    """

    log_determinant: Array
    log_information: Array
    residual: Array
    coefficient: Array
    root: Array

    def __repr__(self) -> str:
        """Sizes only: coefficients of confidential data stay out of a repr."""
        return f"GlsFit{self.coefficient.shape}"

    def log_restricted_likelihood(self, n: int) -> Array:
        """Log density of n direct estimates with flat coefficients integrated out; (q,)."""
        contrasts = n - self.coefficient.shape[-1]
        deviance = self.log_determinant + self.log_information + self.residual
        return np.asarray(-(deviance + contrasts * np.log(2 * np.pi)) / 2)

    def log_profile_likelihood(self, n: int) -> Array:
        """Log density of n direct estimates at beta-hat; (q,)."""
        deviance = self.log_determinant + self.residual
        return np.asarray(-(deviance + n * np.log(2 * np.pi)) / 2)


@dataclass(frozen=True, repr=False)
class Sample:
    """The areas with a direct estimate, largest rows of the design first.

    Householder QR is then accurate for weights many orders apart.
    """

    y: Array
    D: Array
    X: Array

    def fit(self, between_variance: Array) -> GlsFit:
        """Fit at every entry of a vector of ``A``."""
        A = np.asarray(between_variance, dtype=float)
        step = max(1, BLOCK // (self.X.shape[0] * (self.X.shape[1] + 1)))
        parts = [self._fit(A[i : i + step]) for i in range(0, A.size, step)]
        return GlsFit(*map(np.concatenate, zip(*parts, strict=True)))

    def _fit(self, A: Array) -> GlsFit:
        p = self.X.shape[1]
        variance = A[:, None] + self.D
        # The factor of [X y] holds the factor of X, beta-hat and the residual sum of squares; a
        # row of zeros leaves it as it is when there are as many coefficients as areas.
        rows = np.vstack([np.column_stack([self.X, self.y]), np.zeros(p + 1)])
        root_weight = np.column_stack([variance**-0.5, np.ones(A.size)])
        upper = np.asarray(np.linalg.qr(root_weight[:, :, None] * rows, mode="r"))
        R, right = upper[:, :p, :p], upper[:, :p, p:]
        root = np.linalg.solve(R, np.broadcast_to(np.eye(p), R.shape))
        diagonal = np.abs(np.diagonal(R, axis1=1, axis2=2))
        return GlsFit(
            log_determinant=np.log(variance).sum(axis=1),
            log_information=2 * np.log(diagonal).sum(axis=1),
            residual=upper[:, p, p] ** 2,
            coefficient=(root @ right)[:, :, 0],
            root=root,
        )


def sample_of(data: AreaData) -> Sample:
    """Take the areas of `data` that have a direct estimate."""
    y, D, X = (v[data.sampled] for v in (data.estimate, data.variance, data.design))
    size = np.abs(X / np.abs(X).max(axis=0)).max(axis=1) / np.sqrt(D)
    order = np.argsort(-size, kind="stable")
    return Sample(y[order], D[order], X[order])
