"""A bound for models that are Gaussian in the data alone: any log-concave prior of the target.

With ``y_j ~ N(theta_j, D_j)`` and a log-concave prior, the posterior variance of ``theta_j`` is at
most ``D_j`` whatever the data, so one draw of all areas is ``s_j / sqrt(D_j)``-Gaussian
differentially private for a record of area j (design 2.3). The draw itself comes from a sampler.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_dp import io, privacy
from pymc_dp.checks import name_some
from pymc_dp.convergence import check_convergence
from pymc_dp.curvature import Curvature, curvature
from pymc_dp.degree import polynomial_degree
from pymc_dp.guarantee import DELTAS, ORDERS, joint_figures, worded
from pymc_dp.law import Mechanism
from pymc_dp.linear_gaussian import TOLERANCE, read_linear
from pymc_dp.posterior import Array
from pymc_dp.recognition import labels_of, opened, refuse_hidden_data
from pymc_dp.symbolic import NotLinearGaussianError

CONCAVE = (Curvature.CONSTANT, Curvature.AFFINE, Curvature.CONCAVE)
BOUND = (
    "log-concave: s_j^2 / (2 D_j), an upper bound for any log-concave prior; the draw is one of "
    "the user's sampler, taken as an exact draw from the posterior, without lattice noise"
)


@dataclass(frozen=True)
class LogConcaveReading:
    """Direct estimates, their sampling variances and labels; (m,), NaN where there is none."""

    area: np.ndarray
    estimate: Array = field(repr=False)
    sampling_variance: Array = field(repr=False)


@dataclass(frozen=True)
class LogConcaveLaw:
    """What is known of a draw: that no posterior variance exceeds the sampling variance."""

    reading: LogConcaveReading = field(repr=False)
    mechanism: Mechanism = "joint"

    @property
    def variance(self) -> Array:
        """Bound of the posterior variances, the sampling variances; 0 where there is none; (m,)."""
        return np.nan_to_num(self.reading.sampling_variance)

    def smoothed(self, release: Array) -> None:
        """None: smoothing a draw once more takes its prior."""


def read_log_concave(
    model: pm.Model, target: str = "theta", observed: str | None = None
) -> LogConcaveReading:
    """Prove that a model has a Gaussian likelihood of direct estimates and a log-concave prior.

    Raises
    ------
    NotLinearGaussianError
        Naming the part of the model that is not proven.
    """
    symbolic = opened(model, target, observed)
    refuse_hidden_data(model, symbolic)
    latents = list(symbolic.latents.values())
    variables = [*latents, symbolic.data]
    likelihood = symbolic.factors[symbolic.observed]
    (density, mean), obstacle = polynomial_degree([likelihood, symbolic.target], variables)
    if density > 2 or mean > 1:
        raise NotLinearGaussianError(
            f"the likelihood of {symbolic.observed!r} is not proven Gaussian with the target for "
            f"its mean ({obstacle or 'degree'})"
        )
    prior = {name: f for name, f in symbolic.factors.items() if name != symbolic.observed}
    for name, factor in prior.items():
        if polynomial_degree([factor], [symbolic.data])[0][0] > 0:
            raise NotLinearGaussianError(f"the prior term of {name!r} depends on the data")
        if curvature([factor], latents)[0] not in CONCAVE:
            raise NotLinearGaussianError(
                f"the prior term of {name!r} is not proven log-concave in the latents; hold its "
                "scale constant with fixed=..., or see which distributions are log-concave"
            )
    linear = read_linear(replace(symbolic, factors={symbolic.observed: likelihood}))
    index = linear.direct_index()
    weight = linear.data_precision.diagonal()
    squares = linear.cross @ (linear.cross / np.maximum(weight, 1e-300)).T
    if index is None or abs(linear.precision - squares).max() > TOLERANCE * abs(squares).max():
        raise NotLinearGaussianError(
            f"the observed {symbolic.observed!r} are not direct estimates of {target!r}: each "
            "normal, independent, around one entry of the target"
        )
    m = linear.target.shape[0]
    estimate, variance = np.full(m, np.nan), np.full(m, np.nan)
    estimate[index], variance[index] = symbolic.values, 1 / weight
    return LogConcaveReading(labels_of(model, target, m), estimate, variance)


def log_concave_dataset(
    law: LogConcaveLaw, sensitivity: Array, area: np.ndarray, *, claim: str
) -> xr.Dataset:
    """The bound as a labelled data set: what a guarantee holds that needs no posterior.

    Parameters
    ----------
    law : LogConcaveLaw
    sensitivity : ndarray of shape (m,)
        Zero where there is no direct estimate.
    area : ndarray of str of shape (m,)
    claim : str

    Returns
    -------
    xr.Dataset
        ``rho_respondent`` is ``s_j^2 / (2 D_j)``, an upper bound of the price.
    """
    seen = sensitivity > 0
    respondent = np.zeros(seen.size)
    respondent[seen] = sensitivity[seen] ** 2 / (2 * law.variance[seen]) * (1 + 1e-12)
    rho = float(respondent.max())
    alone = np.full(seen.size, rho)
    data = xr.Dataset(
        {
            "sensitivity": ("area", sensitivity),
            "rho_respondent": ("area", respondent),
            "rho_area": ("area", alone),
            "rho_unshrunk": ("area", respondent),
        }
        | joint_figures(rho, alone, privacy.epsilon),
        coords={"area": area, "order": ORDERS, "delta": DELTAS},
    )
    return worded(data, claim)


def sampled_draw(idata: Any, target: str, reading: LogConcaveReading) -> Array:
    """One draw of a converged fit, picked at random by the operating system; (1, m).

    Raises
    ------
    ValueError
        If the fit lacks the target, has other areas, or has not converged.
    """
    if idata is None or "posterior" not in io.groups(idata):
        raise ValueError(
            "bound='log-concave' releases a draw of your own sampler: pass the fit as idata"
        )
    posterior = io.read_group(idata, "posterior")
    if target not in posterior:
        raise ValueError(f"the posterior of idata lacks {target!r}")
    draws = posterior[target].transpose("chain", "draw", ...)
    labels = [str(v) for v in draws.coords[draws.dims[2]].values] if draws.ndim == 3 else []
    if labels != list(reading.area):
        raise ValueError(f"{target!r} in idata has other areas than the model: {name_some(labels)}")
    check_convergence(idata, [target])
    values = draws.values.reshape(-1, reading.area.size)
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} draws of {target!r} are not finite")
    return np.asarray(values[[secrets.randbelow(len(values))]], dtype=float)
