"""Releases with a seed, for readers of releases; and what dense algebra concludes from them."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr

from pymc_dp.inference.information import Information
from pymc_dp.posterior import information as info
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior

MECHANISMS = ["joint", "scaled", "widened", "independent", "direct", "statistics"]


def information(
    mechanism: str,
    A0: float,
    D0: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    rng: np.random.Generator,
) -> tuple[info.InformationMatrix, np.ndarray]:
    """K and h of a release made at working components; ``D0`` NaN where there is no sample."""
    m = len(D0)
    sampled = ~np.isnan(D0)
    precision = np.where(sampled, 1 / np.where(sampled, D0, 1.0), 0.0)
    if mechanism == "direct":
        noise = np.where(sampled, rng.uniform(0.3, 2.0, m) * D0, np.nan)
        K = info.direct_information(noise)
        return K, K.own * np.where(sampled, y + np.sqrt(noise) * rng.standard_normal(m), 0.0)
    if mechanism == "statistics":
        own = np.sqrt(precision) * rng.uniform(0.1, 0.9, m)
        shared = np.sqrt(precision)[:, None] * rng.normal(size=(m, 2)) / 2
        S = np.vstack([np.diag(own), shared.T])
        z = S @ np.where(sampled, y, 0.0) + rng.standard_normal(m + 2)
        return info.statistics_information(own, shared), info.statistics_h(own, shared, z)
    post = fay_herriot_posterior(A0, precision, X)
    k, v = {"joint": (1.0, 0.0), "scaled": (2.0, 0.0), "widened": (1.0, 0.4 * np.nanmin(D0))}.get(
        mechanism, (1.0, 0.0)
    )
    centre = post.mean(y)
    if mechanism == "independent":
        release = centre + np.sqrt(post.variance) * rng.standard_normal(m)
        return info.independent_information(post), info.independent_h(post, release)
    spread = np.sqrt(post.area_variance) * rng.standard_normal(m)
    spread += post.left @ rng.standard_normal(X.shape[1])
    release = centre + np.sqrt(k) * spread + np.sqrt(v) * rng.standard_normal(m)
    return info.widened_information(post, k, v), info.widened_h(post, release, k, v)


def as_group(K: info.InformationMatrix, h: np.ndarray, area, D=None, **record) -> xr.Dataset:
    """The part of a released group that a reader of it needs; h of shape (draws, m)."""
    h = np.atleast_2d(h)
    factor = "information_factor"
    group = xr.Dataset(
        {
            "theta": (("chain", "draw", "area"), np.zeros((1, *h.shape))),
            "information_own": ("area", K.own),
            "information_shared": (("area", factor), K.shared),
            "information_sign": (factor, K.sign),
            "information_h": (("chain", "draw", "area"), h[None]),
        },
        coords={"area": list(area)},
    )
    if D is not None:
        group["sampling_variance"] = "area", D
    record = {"schema_version": 1, "bounds": [0, 1], "unit": "record", "mechanism": "made"} | record
    return group.assign_attrs(privacy=json.dumps(record))


def as_information(K: info.InformationMatrix, h: np.ndarray, D=None) -> Information:
    area = tuple(f"area {i:02d}" for i in range(len(h)))
    return Information(area, K, h, D, public=D is not None, bounds=(0.0, 1.0))


class Dense:
    """``p(theta, beta, h)`` at one (A, f), from the joint precision of effects and beta."""

    def __init__(self, K, h, D, X, A, f=1.0, prior=None):
        m, q = X.shape
        D = f * D
        together = np.eye(m) + K * D  # I + K D
        precision = np.linalg.solve(together, K)
        told = np.linalg.solve(together, h)
        mean, sd = (np.zeros(q), np.full(q, np.inf)) if prior is None else prior
        T = np.column_stack([np.sqrt(A) * np.eye(m), X])  # theta = T (standard effects, beta)
        Q = T.T @ precision @ T + np.diag(np.append(np.ones(m), 1 / sd**2))
        b = T.T @ told + np.append(np.zeros(m), mean / sd**2)
        both = np.vstack([T, np.eye(m + q)[m:]])  # theta and beta
        spread = np.linalg.inv(Q)
        self.covariance = both @ spread @ both.T
        mode = spread @ b
        self.log_marginal = (
            b @ mode - np.linalg.slogdet(Q)[1] + h @ (D * told) - np.linalg.slogdet(together)[1]
        ) / 2
        if prior is None:
            self.log_marginal += q * np.log(2 * np.pi) / 2
        else:
            self.log_marginal -= np.log(sd).sum() + (mean**2 / sd**2).sum() / 2
        self.theta, self.beta = T @ mode, mode[m:]
        variance = np.diag(self.covariance)
        self.theta_variance, self.beta_variance = variance[:m], variance[m:]
