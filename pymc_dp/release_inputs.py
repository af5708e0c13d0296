"""What a release is given, checked and brought into the model's order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import MvNormalRV, NormalRV

from pymc_dp import io
from pymc_dp.advice import variance_components
from pymc_dp.changes import Changes, read_changes
from pymc_dp.checks import declared_bounds, name_some, text_labels
from pymc_dp.convergence import check_convergence
from pymc_dp.guarantee import law_dataset
from pymc_dp.law import Mechanism, ReleaseLaw
from pymc_dp.linear_guarantee import linear_dataset
from pymc_dp.linear_law import LinearLaw
from pymc_dp.log_concave import LogConcaveLaw, LogConcaveReading, log_concave_dataset
from pymc_dp.posterior import Array
from pymc_dp.recognition import LinearReading, Reading, hold
from pymc_dp.symbolic import observed_variable

# Without a declared range, direct estimates may lie this many largest standard errors from 0.
RANGE_WITHOUT_BOUNDS = 2.0**20


def hold_components(
    model: pm.Model, fixed: dict[str, float], idata: Any, observed: str | None = None
) -> tuple[pm.Model, dict[str, dict[str, float]]]:
    """Hold variance components: those in ``fixed``, and with a fit the rest at their means.

    Returns the model and the diagnostics of what was plugged in.
    """
    held = hold(model, fixed)
    if idata is None or "posterior" not in io.groups(idata):
        return held, {}
    free = variance_components(held, observed)
    if not free:
        return held, {}
    posterior = io.read_group(idata, "posterior")
    missing = [name for name in free if name not in posterior]
    if missing:
        raise ValueError(f"the posterior of idata lacks {name_some(missing)}")
    diagnostics = check_convergence(idata, free)
    means = {name: posterior[name].mean(("chain", "draw")).values for name in free}
    return hold(held, means, fitted=True), diagnostics


def in_likelihood(model: pm.Model, names: Iterable[str], observed: str | None) -> list[str]:
    """Variables, other than ``sigma_u``, that the spread of the observed values depends on.

    ``sigma_u`` belongs there where theta is integrated out of the likelihood, which makes it no
    sampling variance.
    """
    y = observed_variable(model, observed)
    op = y.owner.op
    # Of a normal distribution all parameters but the first, the mean; of others any may count.
    spread = (
        op.dist_params(y.owner)[1:] if isinstance(op, NormalRV | MvNormalRV) else y.owner.inputs
    )
    effects = [v for v in model.free_RVs if v.name not in set(names)]
    parts = set(ancestors(spread, blockers=effects))
    return [name for name in names if name != "sigma_u" and model[name] in parts]


Law = ReleaseLaw | LinearLaw | LogConcaveLaw


@dataclass(frozen=True)
class Priced:
    """What a reading and its sensitivities come to: a law, the data, and what a record moves."""

    law: Law
    y: Array = field(repr=False)  # observed values, zero where there is no sample
    moved: Array | Changes = field(repr=False)  # sensitivities by area, or any changes
    bound: float  # public bound of |y|


def priced(
    reading: Reading | LinearReading | LogConcaveReading, sensitivity: Any, mechanism: Mechanism
) -> Priced:
    """Bring data and sensitivities into the order of a model that has been read."""
    bounds = declared_bounds(getattr(sensitivity, "attrs", {}))
    if isinstance(reading, LogConcaveReading):
        law = LogConcaveLaw(reading)
        sampled = law.variance > 0
        if mechanism != "joint":
            raise ValueError("bound='log-concave' is for a joint draw: mechanism='joint'")
        return Priced(
            law=law,
            y=np.nan_to_num(reading.estimate),
            moved=joined_sensitivity(sensitivity, reading.area, sampled),
            bound=math.inf,
        )
    if isinstance(reading, Reading):
        precision = reading.posterior.precision
        sampled = precision > 0
        return Priced(
            law=ReleaseLaw(reading.posterior, mechanism),
            y=np.where(sampled, reading.estimate, 0.0),
            moved=joined_sensitivity(sensitivity, reading.area, sampled),
            bound=public_bound(bounds, precision, reading.estimate[sampled]),
        )
    changes = read_changes(
        sensitivity,
        record=reading.record,
        shape=reading.shape,
        dims=reading.dims,
        coords=reading.coords,
        index=reading.index,
        area=reading.area,
    )
    return Priced(
        law=LinearLaw(reading.linear, mechanism, index=reading.direct),
        y=reading.observed,
        moved=changes,
        bound=public_bound(bounds, reading.linear.data_precision.diagonal(), reading.observed),
    )


def described(
    law: Law, moved: Any, area: np.ndarray, *, bound: float, claim: str, draws: int
) -> xr.Dataset:
    """The guarantee of a release as a labelled data set, whatever its law."""
    if isinstance(law, LogConcaveLaw):
        return log_concave_dataset(law, moved, area, claim=claim)
    if isinstance(law, LinearLaw):
        return linear_dataset(law, moved, area, bound=bound, claim=claim, draws=draws)
    return law_dataset(law, moved, area, bound=bound, claim=claim, draws=draws)


def joined_sensitivity(given: Any, area: np.ndarray, sampled: np.ndarray) -> Array:
    """Sensitivities in the model's order; zero where there is no sample, hence no record."""
    if isinstance(given, xr.DataArray | pd.Series):
        if isinstance(given, xr.DataArray):
            if given.dims != ("area",) or "area" not in given.coords:
                raise ValueError("sensitivity needs the one dim 'area' with its labels")
            given = given.to_series()
        index = pd.Index(text_labels(given.index), dtype=object)
        series = pd.Series(given.to_numpy(dtype=float), index=index)
        again = series.index[series.index.duplicated()]
        if len(again):
            raise ValueError(f"sensitivity has areas more than once: {name_some(again)}")
        wanted = pd.Index(area[sampled], dtype=object)
        absent = wanted[~wanted.isin(series.index)]
        if len(absent):
            raise ValueError(f"no sensitivity for {len(absent)} areas: {name_some(absent)}")
        values = series.reindex(area).to_numpy(dtype=float)
    else:
        values = np.asarray(given, dtype=float)
        if values.shape not in ((), area.shape):
            raise ValueError(f"sensitivity has shape {values.shape} for {area.size} areas")
        values = np.broadcast_to(values, area.shape)
    bad = sampled & ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise ValueError(
            f"sensitivity must be positive and finite; it is not in {bad.sum()} areas: "
            f"{name_some(area[bad])}"
        )
    return np.where(sampled, values, 0.0)


def public_bound(bounds: Any, precision: Array, estimate: Array) -> float:
    """A public bound of the absolute direct estimates: it decides what rounding can cost."""
    if bounds is not None:
        lo, hi = (float(b) for b in bounds)
        # Estimates are rounded to a grid, so they may pass the range by less than its width.
        outside = (estimate < lo - 1e-9 * (hi - lo)) | (estimate > hi + 1e-9 * (hi - lo))
        if outside.any():
            raise ValueError(f"{outside.sum()} observed values lie outside the declared range")
        return max(abs(lo), abs(hi)) * (1 + 1e-9)
    largest_sd = 1 / math.sqrt(precision[precision > 0].min())
    bound = RANGE_WITHOUT_BOUNDS * largest_sd
    if (np.abs(estimate) > bound).any():
        raise ValueError(
            "observed values are very large against their sampling variances: declare the "
            "outcome's range in sensitivity.attrs['outcome_bounds']"
        )
    return bound


def calibration_target(
    rho: float | None, epsilon: float | None, delta: float | None
) -> dict[str, float]:
    """The target as it was given, in one of the two ways."""
    given = {
        name: float(value)
        for name, value in (("rho", rho), ("epsilon", epsilon), ("delta", delta))
        if value is not None
    }
    if set(given) not in ({"rho"}, {"epsilon", "delta"}):
        raise ValueError("give the target as rho, or as epsilon and delta")
    return given


def publishing_decimals(variance: Array) -> int:
    """Decimals of the public publishing grid: a hundredth of the smallest sd of the release."""
    positive = variance[variance > 0]
    if not positive.size:
        raise ValueError("every posterior variance is zero: there is no noise to protect anybody")
    return -math.floor(math.log10(math.sqrt(float(positive.min())) / 100))
