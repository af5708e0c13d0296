"""What a release is made of, once its model has been read, and what a calibration makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import MvNormalRV, NormalRV

from pymc_dp import containers
from pymc_dp._checks import declared_bounds, name_some
from pymc_dp._typing import Array
from pymc_dp.containers.convergence import check_convergence
from pymc_dp.mechanisms.calibration import (
    Method,
    calibrate_law,
    calibrated_coordinates,
    calibration_report,
    refuse_booleans,
    rho_of_epsilon,
)
from pymc_dp.mechanisms.fay_herriot import law_dataset
from pymc_dp.mechanisms.lattice import EXPONENT
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.mechanisms.linear import LinearLaw, linear_dataset
from pymc_dp.mechanisms.log_concave import (
    BOUND,
    LogConcaveLaw,
    LogConcaveReading,
    log_concave_dataset,
    read_log_concave,
)
from pymc_dp.mechanisms.sensitivity import (
    Changes,
    joined_sensitivity,
    moves_several,
    public_bound,
    read_changes,
)
from pymc_dp.reading.read import LinearReading, Reading, hold, read_model
from pymc_dp.reading.refusals import variance_components
from pymc_dp.reading.symbolic import observed_variable
from pymc_dp.record.claims import (
    Mechanism,
    check_assumptions,
    check_plugged_in,
    claim_kind,
    claim_words,
)
from pymc_dp.record.claims import variance_components as component_kinds


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
        containers.check_container(idata)
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


def hold_components(
    model: pm.Model, fixed: dict[str, float], idata: Any, observed: str | None = None
) -> tuple[pm.Model, dict[str, dict[str, float]]]:
    """Hold variance components: those in ``fixed``, and with a fit the rest at their means.

    Returns the model and the diagnostics of what was plugged in.
    """
    held = hold(model, fixed)
    if idata is None or "posterior" not in containers.groups(idata):
        return held, {}
    free = variance_components(held, observed)
    if not free:
        return held, {}
    posterior = containers.read_group(idata, "posterior")
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
