"""What a reader of a released draw may infer: smoothing it once more (post-processing).

The chain ``theta -> y -> theta*`` is Gaussian, so ``theta | theta*`` follows by conditioning the
prior of theta on ``theta* | theta ~ N(M theta + c, Psi)``. Only public quantities enter.
"""

from __future__ import annotations

import numpy as np

from pymc_dp.posterior import Array, GaussianPosterior


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

    Here ``Psi = M D M' + diag(Sigma_ii)``. Written with ``C = Cov(theta* | beta) =
    M (A + D) M' + diag(Sigma_ii)``, a diagonal plus rank ``2p``, inverted by Woodbury's formula.

    Parameters
    ----------
    posterior : GaussianPosterior
    release : ndarray of shape (..., m)

    Returns
    -------
    mean : ndarray of shape (..., m)
    sd : ndarray of shape (m,)
    """
    post = posterior
    p = post.basis.shape[1]
    A, gamma, left, right, offset = (
        post.between_variance,
        post.gamma,
        post.left,
        post.right,
        post.offset,
    )

    def carry(v: Array) -> Array:  # M v
        return np.asarray((gamma * v.T).T + left @ (right.T @ v))

    # M (A + D) M' = gamma A + left (A right)' + (A right) left' + left (right'(A + D)right) left',
    # and (A + D) right = basis where there is a sample.
    U = np.hstack([left, A[:, None] * right])
    core = np.zeros((2 * p, 2 * p))
    core[:p, :p] = right.T @ post.basis
    core[:p, p:] = core[p:, :p] = np.eye(p)
    diagonal = gamma * A + post.variance
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
    residual = release - post.mean(offset)  # theta* - c - M offset
    eta = (residual @ precision(H) + post.prior_shift) @ G
    innovation = (residual - eta @ H.T).reshape(-1, A.size)
    mean = offset + eta @ post.basis.T + back(precision(innovation.T)).T.reshape(release.shape)

    # diag(A M' C^-1 M A), from the factors of M and of C^-1.
    W = gamma[:, None] * E + right @ (left.T @ E)
    explained = (
        gamma**2 * e
        + 2 * gamma * e * (left * right).sum(axis=1)
        + ((right @ (left.T @ (e[:, None] * left))) * right).sum(axis=1)
        - ((W @ F) * W).sum(axis=1)
    )
    variance = A - A**2 * explained + ((T @ G) * T).sum(axis=1)
    return mean, np.sqrt(np.maximum(variance, 0.0))
