"""A bound for models that are Gaussian in the data alone: any log-concave prior of the target.

With ``y_j ~ N(theta_j, D_j)`` and a log-concave prior, the posterior variance of ``theta_j`` is at
most ``D_j`` whatever the data, so one draw of all areas is ``s_j / sqrt(D_j)``-Gaussian
differentially private for a record of area j (design 2.3). The draw itself comes from a sampler,
whose fit must be one of this model: of its data, and no wider than the bound allows.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Never

import numpy as np
import pymc as pm
import xarray as xr

from pymc_dp import containers, privacy
from pymc_dp._checks import name_some
from pymc_dp._typing import Array
from pymc_dp.containers.convergence import check_convergence
from pymc_dp.mechanisms.lattice import publishing_decimals
from pymc_dp.mechanisms.protocol import Charge, Draw, Request, Target, Variables
from pymc_dp.mechanisms.sensitivity import joined_sensitivity
from pymc_dp.reading.hidden import refuse_hidden_data
from pymc_dp.reading.linear import TOLERANCE, read_linear
from pymc_dp.reading.read import opened
from pymc_dp.reading.refusals import why_no_bound
from pymc_dp.reading.symbolic import (
    NotLinearGaussianError,
    held_value,
    labels_of,
    observed_variable,
)
from pymc_dp.record.claims import Mechanism, Method
from pymc_dp.record.figures import DELTAS, ORDERS, joint_figures, worded

BOUND = (
    "log-concave: s_j^2 / (2 D_j), an upper bound for any log-concave prior; the draw is one of "
    "the user's sampler, taken as an exact draw from the posterior, without lattice noise"
)
# Chance that a sound fit looks wider than the bound allows.
CHANCE = 1e-6


@dataclass(frozen=True)
class LogConcaveReading:
    """Direct estimates, their sampling variances and labels; (m,), NaN where there is none.

    ``values`` are those that the model holds, by name: observed variables, ``pm.Data``, and what
    is held constant; ``observed`` is the name of the confidential ones.
    """

    area: np.ndarray
    estimate: Array = field(repr=False)
    sampling_variance: Array = field(repr=False)
    observed: str
    values: Mapping[str, np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class SampledDraw:
    """The mechanism ``joint`` where a bound is known and not the law: a draw of the user's fit.

    No posterior variance exceeds the sampling variance.
    """

    reading: LogConcaveReading = field(repr=False)
    sensitivity: Array = field(repr=False)  # (m,), zero where there is no direct estimate
    target: str = "theta"
    name: Mechanism = "joint"
    noun = "areas"
    also_public = ()
    rests_on = ("sigma_u", "sampling_variance")
    once = "draws of a sampler are not independent"

    @property
    def area(self) -> np.ndarray:
        """Labels of the areas."""
        return self.reading.area

    @property
    def facts(self) -> dict[str, Any]:
        """The bound in words."""
        return {"intercept_only": False, "bound": BOUND}

    @property
    def variance(self) -> Array:
        """Bound of the posterior variances, the sampling variances; 0 where there is none; (m,)."""
        return np.nan_to_num(self.reading.sampling_variance)

    @property
    def decimals(self) -> int:
        """Decimals of the public grid on which the draw is published."""
        return publishing_decimals(self.variance)

    @property
    def sampling_variance(self) -> Array:
        """``D``, NaN where there is no direct estimate; (m,)."""
        return self.reading.sampling_variance

    def price(self) -> Array:
        """``s_j^2 / (2 D_j)``, an upper bound of the price for a record of each area; (m,)."""
        seen = self.sensitivity > 0
        respondent = np.zeros(seen.size)
        respondent[seen] = self.sensitivity[seen] ** 2 / (2 * self.variance[seen]) * (1 + 1e-12)
        return respondent

    def guarantee(self, *, claim: str, draws: int = 1) -> xr.Dataset:
        """The bound as a labelled data set: what a guarantee holds that needs no posterior."""
        respondent = self.price()
        rho = float(respondent.max())
        alone = np.full(respondent.size, rho)
        data = xr.Dataset(
            {
                "sensitivity": ("area", self.sensitivity),
                "rho_respondent": ("area", respondent),
                "rho_area": ("area", alone),
                "rho_unshrunk": ("area", respondent),
            }
            | joint_figures(rho, alone, privacy.epsilon),
            coords={"area": self.area, "order": ORDERS, "delta": DELTAS},
        )
        return worded(data, claim)

    def drawing(self, y: Array, draws: int, container: Any) -> Draw:
        """One draw of the fit, which is checked here, before it is paid for."""
        theta = sampled_draw(container, self.target, self.reading).round(self.decimals)

        def make(charge: Charge) -> Variables:
            charge()
            return {"theta": (("area",), theta)}

        return make

    def _unknown(self) -> ValueError:
        return ValueError("bound='log-concave' knows a bound, not the law of the draw")

    def simulate(self, y: Array, draws: int, rng: np.random.Generator) -> Never:
        """Refused: the law is not known."""
        raise self._unknown()

    def propagation(self) -> Never:
        """Refused: the law is not known."""
        raise self._unknown()

    def calibrated(self, target: Target, method: Method) -> Never:
        """Refused: no method knows these models."""
        target.asked()
        raise ValueError(
            "calibrate takes Fay-Herriot models; for this one, raise the sampling variances that "
            "the model believes in, or its fixed variance components, until the guarantee meets "
            "the target"
        )


def sampled(
    reading: LogConcaveReading, sensitivity: Any, name: Mechanism, request: Request
) -> tuple[SampledDraw, Array]:
    """The mechanism for a model whose prior is log-concave, and its direct estimates."""
    request.refuse_options(name)
    seen = np.nan_to_num(reading.sampling_variance) > 0
    moved = joined_sensitivity(sensitivity, reading.area, seen)
    return SampledDraw(reading, moved, request.target), np.nan_to_num(reading.estimate)


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
    if why := why_no_bound(model, symbolic):
        raise NotLinearGaussianError(why)
    likelihood = symbolic.factors[symbolic.observed]
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
    area, name = labels_of(model, target, m), observed_variable(model, observed).name
    return LogConcaveReading(area, estimate, variance, name, _values(model))


def _values(model: pm.Model) -> dict[str, np.ndarray]:
    """Observed values and constants that have a name in the model."""
    named = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs}
    named |= {v.name: v for v in model.data_vars}
    values = {name: held_value(variable) for name, variable in named.items()}
    return {name: np.asarray(value) for name, value in values.items() if value is not None}


def sampled_draw(idata: Any, target: str, reading: LogConcaveReading) -> Array:
    """One draw of a converged fit, picked at random by the operating system; (1, m).

    Raises
    ------
    ValueError
        If the fit lacks the target, has other areas or other data, has not converged, or is
        wider than any fit of the model can be.
    """
    if idata is None or "posterior" not in containers.groups(idata):
        raise ValueError(
            "bound='log-concave' releases a draw of your own sampler: pass the fit as idata"
        )
    posterior = containers.read_group(idata, "posterior")
    if target not in posterior:
        raise ValueError(f"the posterior of idata lacks {target!r}")
    draws = posterior[target].transpose("chain", "draw", ...)
    labels = [str(v) for v in draws.coords[draws.dims[2]].values] if draws.ndim == 3 else []
    if labels != list(reading.area):
        raise ValueError(f"{target!r} in idata has other areas than the model: {name_some(labels)}")
    _check_data(idata, reading)
    check_convergence(idata, [target])
    values = draws.values.reshape(-1, reading.area.size)
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} draws of {target!r} are not finite")
    _check_spread(draws, reading)
    return np.asarray(values[[secrets.randbelow(len(values))]], dtype=float)


def _check_data(idata: Any, reading: LogConcaveReading) -> None:
    """Refuse a fit of other data, whose draw has another law and another price."""
    kept: dict[str, np.ndarray] = {}
    for group in ("constant_data", "observed_data"):
        if group in containers.groups(idata):
            kept |= {
                str(k): v.values for k, v in containers.read_group(idata, group).data_vars.items()
            }
    if reading.observed not in kept:
        raise ValueError(
            f"idata has no {reading.observed!r} in a group 'observed_data', so nothing tells that "
            "it is a fit of the model's data: take what pm.sample returns"
        )
    other = [
        name
        for name, values in reading.values.items()
        if name in kept
        and not (
            kept[name].dtype.kind in "biuf"
            and np.array_equal(kept[name].ravel(), values.ravel(), equal_nan=True)
        )
    ]
    if other:
        raise ValueError(f"idata is a fit of other data: {name_some(other)} differ from the model")
    sampled = [v for v in reading.values if v in containers.read_group(idata, "posterior")]
    if sampled:
        raise ValueError(
            f"idata has draws of {name_some(sampled)}, which this release holds constant: fit the "
            "model with the same constants, as pm.do makes it"
        )


def _check_spread(draws: xr.DataArray, reading: LogConcaveReading) -> None:
    r"""Refuse a fit that is clearly wider than the bound that the price rests on.

    Under the model, theta_j is more log-concave than a normal of variance ``D_j``, so any convex
    function of ``theta_j`` minus its mean expects at most what it does of that normal (Harge
    2004, Probability Theory and Related Fields 130: 415-440). Sums of squares of n draws thus
    have the tail of a chi square: with probability ``1 - exp(-t)`` their mean is below
    ``D_j (1 + 2 sqrt(t / n) + 2 t / n)`` (Laurent and Massart 2000, Annals of Statistics 28:
    1302-1338, lemma 1), all areas with ``exp(-t) = CHANCE / m``. For n stands the effective
    sample size of the squares, at most the number of draws: the fewer, the wider the allowance.
    """
    import arviz as az

    square = (draws - draws.mean(("chain", "draw"))) ** 2
    effective = containers.as_dataset(az.ess(xr.Dataset({"square": square}), method="mean"))[
        "square"
    ]
    n = np.minimum(effective.values, draws.sizes["chain"] * draws.sizes["draw"])
    seen = np.isfinite(reading.sampling_variance)
    t = math.log(seen.sum() / CHANCE)
    allowed = reading.sampling_variance * (1 + 2 * np.sqrt(t / n) + 2 * t / n)
    # Written so that NaN is too wide.
    wide = seen & ~(square.mean(("chain", "draw")).values <= allowed)
    if wide.any():
        raise ValueError(
            f"the fit varies more than its model allows in {wide.sum()} areas: "
            f"{name_some(reading.area[wide])}; it is no fit of this model, or has not converged"
        )
