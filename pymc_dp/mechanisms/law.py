"""The law of a release given the data: what is priced, drawn, smoothed and calibrated.

``theta* | y ~ N(M y + c, N)``. An ordinary release draws from a posterior, so ``M``, ``c`` and
``N`` are the posterior's; a calibrated one may believe less in some direct estimates than they
deserve, or have more noise than the posterior.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.mechanisms.fay_herriot_draw import IndependentPlan, JointPlan, WidenedPlan
from pymc_dp.posterior.fay_herriot import GaussianPosterior
from pymc_dp.record.claims import Mechanism as Mechanism


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


def smooth_joint(posterior: GaussianPosterior, release: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of ``theta | theta*`` for a joint posterior draw.

    The chain is then reversible with respect to the prior of theta, so the answer is
    ``N(M theta* + c, Sigma + M D M')``.

    Parameters
    ----------
    posterior : GaussianPosterior
    release : ndarray of shape (..., m)
        Released draws ``theta*``.

    Returns
    -------
    mean : ndarray of shape (..., m)
    sd : ndarray of shape (m,)
    """
    post = posterior
    # D right = left where there is a sample (and right = 0 elsewhere), so M D M' needs no D.
    inner = post.right.T @ post.left
    spread = (
        post.gamma * post.area_variance
        + 2 * post.gamma * (post.left**2).sum(axis=1)
        + ((post.left @ inner) * post.left).sum(axis=1)
    )
    return post.mean(release), np.sqrt(post.variance + spread)


def smooth_independent(posterior: GaussianPosterior, release: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of ``theta | theta*`` for noise independent by area.

    Here ``Psi = M D M' + diag(Sigma_ii)``.

    Parameters
    ----------
    posterior : GaussianPosterior
    release : ndarray of shape (..., m)

    Returns
    -------
    mean : ndarray of shape (..., m)
    sd : ndarray of shape (m,)
    """
    D = sampling_variance(posterior.precision)
    return smooth(posterior, release, variance=D, own=posterior.variance, shared=0.0)


def sampling_variance(precision: Array) -> Array:
    """``D``, and 0 where there is no sample: nothing of such an area enters a release."""
    return np.divide(1.0, precision, out=np.zeros_like(precision), where=precision > 0)


def smooth(
    posterior: GaussianPosterior,
    release: Array,
    *,
    variance: Array,
    own: Array,
    shared: float,
) -> tuple[Array, Array]:
    """Mean and standard deviation of ``theta | theta*`` for any noise of a release.

    The release is ``theta* = M y + c`` plus ``N(0, diag(own) + shared left left')``, with ``M``
    and ``c`` of `posterior`, while ``y`` has the sampling variances given, not necessarily those
    that the posterior believes in. Written with ``C = Cov(theta* | beta) = M (A + D) M'`` plus
    that noise, a diagonal plus rank ``2p``, inverted by Woodbury's formula.

    Parameters
    ----------
    posterior : GaussianPosterior
        Its ``M``, ``c`` and prior of theta.
    release : ndarray of shape (..., m)
    variance : ndarray of shape (m,)
        Sampling variances ``D`` of the direct estimates, 0 where there is no sample.
    own : ndarray of shape (m,)
        Variance of each area's own noise.
    shared : float
        Variance of the noise that all areas share through the factor ``left``.

    Returns
    -------
    mean : ndarray of shape (..., m)
    sd : ndarray of shape (m,)

    Notes
    -----
    An area whose part of the release has no variance of its own (no area effect, no noise) is
    left out of the conditioning, unless none has any, when theta is a linear function of the
    coefficients and so is the release.
    """
    post = posterior
    A, gamma, left, right = post.between_variance, post.gamma, post.left, post.right
    marginal = np.where(post.precision > 0, A + variance, 0.0)
    diagonal = gamma**2 * marginal + own
    residual = release - post.mean(post.offset)  # theta* - c - M offset
    if not (diagonal > 0).any():
        return _smooth_coefficients(post, residual, variance, shared)
    p = post.basis.shape[1]

    def carry(v: Array) -> Array:  # M v
        return np.asarray((gamma * v.T).T + left @ (right.T @ v))

    # M W M' = gamma^2 W + left (gamma W right)' + (gamma W right) left' + left right'W right left'
    weighted = marginal[:, None] * right
    U = np.hstack([left, gamma[:, None] * weighted])
    core = np.zeros((2 * p, 2 * p))
    core[:p, :p] = right.T @ weighted + shared * np.eye(p)
    core[:p, p:] = core[p:, :p] = np.eye(p)
    e = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)
    E = e[:, None] * U
    F = np.linalg.solve(np.eye(2 * p) + core @ (U.T @ E), core)  # C^-1 = diag(e) - E F E'

    def precision(v: Array) -> Array:  # C^-1 v
        return np.asarray((e * v.T).T - E @ (F @ (E.T @ v)))

    def back(v: Array) -> Array:  # A M' v = Cov(theta, theta* | beta) v
        return np.asarray((A * ((gamma * v.T).T + right @ (left.T @ v)).T).T)

    H = carry(post.basis)
    T = post.basis - back(precision(H))
    G = np.linalg.inv(post.prior_precision + H.T @ precision(H))
    eta = (residual @ precision(H) + post.prior_shift) @ G
    innovation = (residual - eta @ H.T).reshape(-1, A.size)
    explained_mean = back(precision(innovation.T)).T.reshape(release.shape)
    mean = post.offset + eta @ post.basis.T + explained_mean

    # diag(A M' C^-1 M A), from the factors of M and of C^-1.
    Q = gamma[:, None] * E + right @ (left.T @ E)
    explained = (
        gamma**2 * e
        + 2 * gamma * e * (left * right).sum(axis=1)
        + ((right @ (left.T @ (e[:, None] * left))) * right).sum(axis=1)
        - ((Q @ F) * Q).sum(axis=1)
    )
    var = A - A**2 * explained + ((T @ G) * T).sum(axis=1)
    return mean, np.sqrt(np.maximum(var, 0.0))


def _smooth_coefficients(
    post: GaussianPosterior, residual: Array, variance: Array, shared: float
) -> tuple[Array, Array]:
    """Smooth ``theta* = left t + constant``, ``t = right' y + noise``, theta being ``X beta``."""
    right = post.right
    seen = np.linalg.pinv(post.left)
    keep = seen @ post.left  # the identity unless the prior alone identifies a coefficient
    H = keep @ (right.T @ post.basis)
    spread = right.T @ (variance[:, None] * right) + shared * np.eye(right.shape[1])
    weight = H.T @ np.linalg.pinv(keep @ spread @ keep.T, hermitian=True)
    G = np.linalg.inv(post.prior_precision + weight @ H)
    eta = (residual @ seen.T @ weight.T + post.prior_shift) @ G
    sd = np.sqrt(((post.basis @ G) * post.basis).sum(axis=1))
    return post.offset + eta @ post.basis.T, sd
