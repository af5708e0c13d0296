"""What a release is made of, once its model has been read, and what a calibration makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import pymc as pm
import xarray as xr

from pymc_dp import io
from pymc_dp.calibration import (
    Method,
    calibrate_law,
    calibrated_coordinates,
    calibration_report,
    refuse_booleans,
    rho_of_epsilon,
)
from pymc_dp.changes import moves_several
from pymc_dp.checks import declared_bounds
from pymc_dp.law import Mechanism, ReleaseLaw
from pymc_dp.linear_law import LinearLaw
from pymc_dp.log_concave import BOUND, LogConcaveLaw, LogConcaveReading, read_log_concave
from pymc_dp.noise import EXPONENT
from pymc_dp.posterior import Array
from pymc_dp.recognition import LinearReading, Reading, read_model
from pymc_dp.record import check_assumptions, check_plugged_in, claim_kind, claim_words
from pymc_dp.record import variance_components as component_kinds
from pymc_dp.release_inputs import (
    Law,
    calibration_target,
    hold_components,
    in_likelihood,
    priced,
)


@dataclass(frozen=True)
class Ingredients:
    """Everything a release is made of, once the model has been read. Its repr shows no data."""

    law: Law
    modelled: Law  # the law before any calibration
    area: np.ndarray
    y: Array = field(repr=False)  # observed values, zero where there is no sample
    moved: Any = field(repr=False)  # by one record: sensitivities, or Changes of a LinearLaw
    bound: float  # public bound of |y|
    facts: Mapping[str, Any]
    read: Reading | LinearReading | LogConcaveReading = field(repr=False)
    idata: Any = field(repr=False)
    report: xr.Dataset | None = None
    planned: bool = False  # there are no outcomes: a constant is in place of each of them

    @property
    def label(self) -> str:
        """What is released, in words."""
        by_area = not isinstance(self.read, LinearReading) or (
            self.read.index is not None and len(self.read.dims) <= 1
        )
        noun = "areas" if by_area else "entries"
        return f"{self.facts['target']} of {self.area.size} {noun}"

    @property
    def gaussian(self) -> ReleaseLaw | LinearLaw:
        """The law where it is known, which a bound does not need."""
        if isinstance(self.law, LogConcaveLaw):
            raise ValueError("bound='log-concave' knows a bound, not the law of the draw")
        return self.law


def gather(
    model: pm.Model,
    sensitivity: Any,
    *,
    idata: Any,
    fixed: Mapping[str, float] | None,
    target: str,
    mechanism: Mechanism,
    assumptions: Mapping[str, str] | None,
    observed: str | None,
    bound: Literal["log-concave"] | None,
) -> Ingredients:
    """Check what a release is given, hold variance components, and read the model."""
    if mechanism not in get_args(Mechanism):
        raise ValueError(f"mechanism must be 'joint' or 'independent', not {mechanism!r}")
    if bound not in (None, "log-concave"):
        raise ValueError(f"bound must be None or 'log-concave', not {bound!r}")
    model = pm.modelcontext(model)
    from_answers = any(getattr(v.tag, "from_answers", False) for v in model.data_vars)
    declared = check_assumptions(assumptions, from_answers=from_answers)
    if idata is not None:
        io.check_container(idata)
    plain = bound is None
    held, plugged_in = hold_components(model, dict(fixed or {}), idata if plain else None, observed)
    components = component_kinds(declared, plug_in=bool(plugged_in))
    reading: Reading | LinearReading | LogConcaveReading
    if plain:
        reading = read_model(held, target, observed, arrow=not moves_several(sensitivity))
    else:
        reading = read_log_concave(held, target, observed)
    if plugged_in:
        check_plugged_in(declared, in_likelihood(model, plugged_in, observed))
    parts = priced(reading, sensitivity, mechanism)
    claim = claim_kind(components)
    facts = {
        "claim": claim,
        "claim_words": claim_words(claim),
        "mechanism": mechanism,
        "target": target,
        "variance_components": components,
        "plugged_in": plugged_in,
        "unit": str(getattr(sensitivity, "attrs", {}).get("unit", "record")),
        "bounds": declared_bounds(getattr(sensitivity, "attrs", {})),
        "assumptions": declared,
        "lattice_exponent": EXPONENT,
        "intercept_only": _intercept_only(parts.law),
    }
    if isinstance(parts.law, LinearLaw):
        facts["coordinates"] = parts.law.coordinates
    if observed is not None:
        facts["observed"] = observed
    if bound is not None:
        facts["bound"] = BOUND
    return Ingredients(
        law=parts.law,
        modelled=parts.law,
        area=reading.area,
        y=parts.y,
        moved=parts.moved,
        bound=parts.bound,
        facts=facts,
        read=reading,
        idata=idata,
    )


def calibrated(
    parts: Ingredients,
    rho: float | None,
    epsilon: float | None,
    delta: float | None,
    method: Method,
) -> Ingredients:
    """The same release with a law that meets a target, and the report on it."""
    before = parts.modelled
    refuse_booleans(rho=rho, epsilon=epsilon, delta=delta)
    asked = calibration_target(rho, epsilon, delta)
    if not isinstance(before, ReleaseLaw):
        raise ValueError(
            "calibrate takes Fay-Herriot models; for this one, raise the sampling variances that "
            "the model believes in, or its fixed variance components, until the guarantee meets "
            "the target"
        )
    if rho is None:
        moved = calibrated_coordinates(before, method, parts.bound)
        asked["rho"] = rho_of_epsilon(asked["epsilon"], asked["delta"], moved)
    after = calibrate_law(before, parts.moved, parts.bound, asked["rho"], method)
    report = calibration_report(
        before, after, parts.moved, parts.area, target=asked["rho"], method=method
    )
    keys = ("method", "areas_touched", "inflation", "extra_variance")
    facts = {
        **parts.facts,
        "calibration": {key: report.attrs[key] for key in keys} | {"target": asked},
    }
    return replace(parts, law=after, facts=facts, report=report)


def propagation_array(parts: Ingredients) -> xr.DataArray:
    """The dense propagation matrix with its labels; see :meth:`PrivateRelease.propagation`."""
    values, areas, read = parts.gaussian.propagation(), parts.area, parts.read
    if isinstance(read, LinearReading) and read.index is None:
        return xr.DataArray(
            values,
            dims=("area", "record"),
            coords={"area": areas, "record": read.record},
            name="propagation",
        )
    if isinstance(read, LinearReading):
        own = np.zeros((areas.size, areas.size))
        own[:, read.index] = values
        values = own
    return xr.DataArray(
        values,
        dims=("area", "area_bis"),
        coords={"area": areas, "area_bis": areas},
        name="propagation",
    )


def _intercept_only(law: Law) -> bool:
    """Whether the design is a column of ones, so that there are no covariates to declare."""
    if not isinstance(law, ReleaseLaw):
        return False
    posterior = law.posterior
    constant = posterior.basis.shape[1] == 1 and np.ptp(posterior.basis) == 0
    return bool(constant and not posterior.offset.any())
