"""The law of a release given the data: what is priced, drawn, smoothed and calibrated.

``theta* | y ~ N(M y + c, N)``. An ordinary release draws from a posterior, so ``M``, ``c`` and
``N`` are the posterior's; a calibrated one may believe less in some direct estimates than they
deserve, or have more noise than the posterior.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from pymc_dp.noise_plans import IndependentPlan, JointPlan, WidenedPlan
from pymc_dp.posterior import Array, GaussianPosterior
from pymc_dp.smoothing import sampling_variance, smooth, smooth_independent, smooth_joint

Mechanism = Literal["joint", "independent"]


@dataclass(frozen=True)
class ReleaseLaw:
    """Distribution of a release given the direct estimates.

    Attributes
    ----------
    posterior : GaussianPosterior
        Its propagation matrix and constant move the mean of the release.
    mechanism : {"joint", "independent"}
    inflation : float
        The posterior covariance is multiplied by it.
    extra : float
        Variance of independent noise added to every area, beside.
    precision : ndarray of shape (m,), optional
        ``1 / D`` of the data, where the posterior believes in other sampling variances.
    """

    posterior: GaussianPosterior
    mechanism: Mechanism = "joint"
    inflation: float = 1.0
    extra: float = 0.0
    precision: Array | None = field(default=None, repr=False)

    def plan(self, bound: float) -> JointPlan | WidenedPlan | IndependentPlan:
        """Plan of the safe draw, for direct estimates of at most `bound` in absolute value."""
        if self.mechanism == "independent":
            return IndependentPlan(self.posterior, bound, self.inflation, self.extra)
        if self.extra > 0:
            return WidenedPlan(self.posterior, bound, self.extra)
        return JointPlan(self.posterior, bound, self.inflation)

    @property
    def as_modelled(self) -> bool:
        """Whether the release is a plain draw from the posterior of the data."""
        return self.precision is None and self.inflation == 1 and self.extra == 0

    @cached_property
    def variance(self) -> Array:
        """Variance of the release around its mean, the diagonal of ``N``; (m,)."""
        return np.asarray(self.inflation * self.posterior.variance + self.extra)

    @cached_property
    def sampling_variance(self) -> Array:
        """``D`` of the data, 0 where there is no sample; (m,)."""
        data = self.posterior.precision if self.precision is None else self.precision
        return sampling_variance(data)

    def propagation(self) -> Array:
        """Dense ``M``; (m, m)."""
        return self.posterior.propagation()

    def smoothed(self, release: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of theta given the release.

        Parameters
        ----------
        release : ndarray of shape (..., m)

        Returns
        -------
        mean : ndarray of shape (..., m)
        sd : ndarray of shape (m,)
        """
        post = self.posterior
        if self.as_modelled:
            by_mechanism = smooth_joint if self.mechanism == "joint" else smooth_independent
            return by_mechanism(post, release)
        joint = self.mechanism == "joint"
        own = post.area_variance if joint else post.variance
        return smooth(
            post,
            release,
            variance=self.sampling_variance,
            own=self.inflation * own + self.extra,
            shared=self.inflation if joint else 0.0,
        )

    def error(self) -> Array:
        r"""Mean squared error of the release under the model, by area; (m,).

        Notes
        -----
        With ``V`` the prior variance of theta given the coefficients and ``D`` that of the data,
        :math:`(M - I) V (M - I)' + M D M' + N`, plus what a normal prior of the coefficients
        leaves open. For a plain joint draw that is :math:`2\Sigma_{ii}`.
        """
        post = self.posterior
        A, D, left, right = (
            post.between_variance,
            self.sampling_variance,
            post.left,
            post.right,
        )
        V = np.where(post.precision > 0, A + D, 0.0)
        diagonal = A * post.shrinkage**2 + post.gamma**2 * D
        crossed = 2 * (post.gamma * D - post.shrinkage * A) * (left * right).sum(axis=1)
        inner = right.T @ (V[:, None] * right) + post.prior_precision
        return np.asarray(diagonal + crossed + ((left @ inner) * left).sum(axis=1) + self.variance)
