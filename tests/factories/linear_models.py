"""Textbook Gaussian conditioning in dense NumPy, and what every release is compared with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

# Prices are computed upward: columns' norms by 1e-9 twice over, rounding of the draw (declared
# ranges keep it below 1e-10 of the distance), and what a dense inverse in NumPy itself loses.
PRICE = 1e-7
BELOW = 1e-9


@dataclass(frozen=True)
class Conditioned:
    """``theta | y ~ N(M y + c, covariance)``, written down from a model's matrices by hand."""

    covariance: np.ndarray
    propagation: np.ndarray
    constant: np.ndarray
    error: np.ndarray  # covariance of the data given the latents

    def mean(self, y):
        return self.propagation @ np.ravel(y) + self.constant

    @property
    def sd(self):
        return np.sqrt(np.diag(self.covariance))

    def joint(self, changes):
        """``max over signs |Sigma^(-1/2) M d|^2 / 2`` for each column d, by pseudo-inverse."""
        inverse = np.linalg.pinv(self.covariance, rcond=1e-10, hermitian=True)
        form = self.propagation.T @ inverse @ self.propagation
        return np.array([_worst(form, d) / 2 for d in changes.T])

    def independent(self, changes):
        form = self.propagation.T @ (self.propagation / np.diag(self.covariance)[:, None])
        return np.array([_worst(form, d) / 2 for d in changes.T])

    def unshrunk(self, changes):
        """Without a model: the distance of the data in units of their own error."""
        inverse = np.linalg.inv(self.error)
        return np.array([_worst(inverse, d) / 2 for d in changes.T])

    def area_ideal(self, changes):
        """Publishing one area alone: the largest change of its mean over its own spread."""
        moved = np.abs(self.propagation) @ changes
        return (moved**2 / np.diag(self.covariance)[:, None]).max(axis=1) / 2


def _worst(form, d):
    at = np.flatnonzero(d)
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=at.size)))
    moved = signs * d[at]
    return np.einsum("si,ij,sj->s", moved, form[np.ix_(at, at)], moved).max()


def condition(P, H, R, T, *, prior_mean=None, B=None, t=None, h=None):
    """Condition latents of prior precision P (flat: zero) on ``y ~ N(H z + h, R)``.

    The target is ``T z + B y + t``. Precisions add, since a flat prior has no covariance.
    """
    n, (k, m) = len(P), (len(H), len(T))
    prior_mean = np.zeros(n) if prior_mean is None else prior_mean
    B = np.zeros((m, k)) if B is None else B
    t = np.zeros(m) if t is None else t
    h = np.zeros(k) if h is None else h
    pull = np.linalg.solve(R, H).T
    spread = np.linalg.inv(P + pull @ H)
    M = T @ spread @ pull
    return Conditioned(
        covariance=T @ spread @ T.T,
        propagation=M + B,
        constant=T @ spread @ (P @ prior_mean) - M @ h + t,
        error=R,
    )


def condition_jointly(V, H, R, T, *, prior_mean):
    """The same for a proper prior of covariance V, from the joint covariance of theta and y."""
    cross = T @ V @ H.T
    M = np.linalg.solve(H @ V @ H.T + R, cross.T).T
    return Conditioned(
        covariance=T @ V @ T.T - M @ cross.T,
        propagation=M,
        constant=(T - M @ H) @ prior_mean,
        error=R,
    )


def blocks(*matrices):
    """Block-diagonal matrix, dense."""
    n = sum(len(m) for m in matrices)
    out, at = np.zeros((n, n)), 0
    for m in matrices:
        out[at : at + len(m), at : at + len(m)] = m
        at += len(m)
    return out


def same(got, want, rtol=1e-9):
    """Equal to rtol of each entry or, where terms cancel, of the largest one."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def priced_as(got, want):
    """A computed price: never below the exact one by more than NumPy's rounding, hardly above."""
    assert (got >= want * (1 - BELOW)).all()
    np.testing.assert_allclose(got, want, rtol=PRICE, atol=1e-12)
