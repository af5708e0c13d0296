"""What a release is made of, once its model has been read, and what a calibration makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import MvNormalRV, NormalRV

from pymc_dp import containers
from pymc_dp._checks import declared_bounds, name_some
from pymc_dp._typing import Array
from pymc_dp.containers.convergence import check_convergence
from pymc_dp.mechanisms import registry
from pymc_dp.mechanisms.lattice import EXPONENT
from pymc_dp.mechanisms.protocol import PLAIN, ReleaseMechanism, Request, Target
from pymc_dp.mechanisms.sensitivity import (
    checked_name,
    moves_several,
)
from pymc_dp.posterior.fay_herriot import GaussianPosterior, fay_herriot_posterior
from pymc_dp.reading.read import Reading, hold, read_model
from pymc_dp.reading.refusals import variance_components
from pymc_dp.reading.symbolic import NotLinearGaussianError, observed_variable
from pymc_dp.record.claims import (
    Bound,
    Mechanism,
    Method,
    check_assumptions,
    check_plugged_in,
    claim_of,
)
from pymc_dp.record.claims import variance_components as component_kinds
from pymc_dp.record.origin import ANSWERS, DECLARED
from pymc_dp.release.provenance import (
    Watched,
    constant_origin,
    left_sensitivity,
    origins,
    sensitivity_origin,
    sigma_u_from_answers,
    watched,
)


@dataclass(frozen=True)
class Ingredients:
    """Everything a release is made of, once the model has been read. Its repr shows no data."""

    mechanism: ReleaseMechanism
    y: Array = field(repr=False)  # observed values, zero where there is no sample
    read: registry.AnyReading = field(repr=False)
    facts: Mapping[str, Any]
    idata: Any = field(repr=False)
    report: xr.Dataset | None = None
    constants: tuple[Watched, ...] = field(default=(), repr=False)
    planned: bool = False  # there are no outcomes: a constant is in place of each of them

    @property
    def label(self) -> str:
        """What is released, in words."""
        made = self.mechanism
        return f"{self.facts['target']} of {made.area.size} {made.noun}"


def gather(
    model: pm.Model,
    sensitivity: Any,
    *,
    idata: Any = None,
    fixed: Mapping[str, float] | None = None,
    request: Request = PLAIN,
    mechanism: Mechanism = "joint",
    assumptions: Mapping[str, str] | None = None,
    observed: str | None = None,
    bound: Bound | None = None,
    planned: bool = False,
) -> Ingredients:
    """Check what a release is given, hold variance components, and read the model."""
    if mechanism not in get_args(Mechanism):
        known = " or ".join(map(repr, get_args(Mechanism)))
        raise ValueError(f"mechanism must be {known}, not {mechanism!r}")
    if bound not in (None, *get_args(Bound)):
        known = " or ".join(map(repr, get_args(Bound)))
        raise ValueError(f"bound must be None or {known}, not {bound!r}")
    model = pm.modelcontext(model)
    declared = check_assumptions(
        assumptions,
        from_answers=constant_origin(model, "sampling_variance") == ANSWERS,
        sigma_u_from_answers=sigma_u_from_answers(model, dict(fixed or {})),
    )
    left = left_sensitivity(model)
    sensitivity = left if sensitivity is None else checked_name(sensitivity)
    if sensitivity is None:
        raise ValueError(
            "the model does not come with sensitivities: give the most that one protected unit "
            "can move each direct estimate, as hajek computes it"
        )
    if idata is not None:
        containers.check_container(idata)
    plugged_in: dict[str, dict[str, float]] = {}
    reading: registry.AnyReading
    if bound is None and mechanism in registry.WITHOUT_COMPONENTS:
        reading, components_held = read_without_components(
            hold(model, dict(fixed or {})), request.target, observed
        )
        request = replace(request, components_held=components_held)
    else:
        fit = idata if bound is None else None
        held, plugged_in = hold_components(model, dict(fixed or {}), fit, observed)
        if bound is None:
            several = moves_several(sensitivity)
            reading = read_model(held, request.target, observed, arrow=not several)
        else:
            reading = registry.READERS[bound](held, request.target, observed)
    made, y = registry.made(reading, sensitivity, mechanism, request)
    plug_in = bool(plugged_in)
    components = component_kinds(declared, plug_in=plug_in, rests_on=made.rests_on)
    if plugged_in:
        check_plugged_in(declared, in_likelihood(model, plugged_in, observed))
    undeclared = [name for name in made.also_public if name not in declared]
    claim, words = claim_of(components, undeclared)
    used = getattr(made, "sensitivity", None)
    origin = DECLARED if used is None else sensitivity_origin(sensitivity, left, made.area, used)
    facts = {
        "claim": claim,
        "claim_words": words,
        "mechanism": mechanism,
        "target": request.target,
        "variance_components": components,
        "undeclared": undeclared,
        "origin": origins(model, declared, components, origin),
        "protects": "answer",
        "plugged_in": plugged_in,
        "unit": str(getattr(sensitivity, "attrs", {}).get("unit", "record")),
        "bounds": declared_bounds(getattr(sensitivity, "attrs", {})),
        "assumptions": declared,
        "lattice_exponent": EXPONENT,
        **made.facts,
    }
    if observed is not None:
        facts["observed"] = observed
    parts = Ingredients(
        mechanism=made,
        y=y,
        read=reading,
        facts=facts,
        idata=idata,
        planned=planned,
        constants=watched(model),
    )
    if request.budget.given and mechanism not in registry.MADE_FOR_A_BUDGET:
        return calibrated(parts, request.budget, "temper")
    return parts


def read_without_components(
    model: pm.Model, target: str, observed: str | None
) -> tuple[Reading, bool]:
    """Read direct estimates, their variances and the design of a Fay-Herriot model.

    Components of the effects that are free are held at two values of their prior: nothing that is
    read may depend on them. Also returns whether none was free.
    """
    free = variance_components(model, observed)
    if free:
        values = pm.draw([model[name] for name in free], draws=2, random_seed=1)
        held = [hold(model, dict(zip(free, (v[i] for v in values), strict=True))) for i in (0, 1)]
    else:
        held = [model]
    found = []
    for each in held:
        reading = read_model(each, target, observed)
        if not isinstance(reading, Reading):
            raise NotLinearGaussianError(
                "noise on the direct estimates takes a Fay-Herriot model: one direct estimate per "
                "area, with its sampling variance; take mechanism='joint' for this one"
            )
        found.append(reading)
    if free and not _alike(*(reading.posterior for reading in found)):
        raise NotLinearGaussianError(
            f"{name_some(free)} are free, and more than the area effects depends on them: hold "
            "with fixed=... whatever is no variance of the effects"
        )
    return found[0], not free


def _alike(first: GaussianPosterior, second: GaussianPosterior) -> bool:
    """Whether two posteriors are those of one model but for the variance of the area effects."""
    second = fay_herriot_posterior(
        first.between_variance,
        second.precision,
        second.basis,
        prior_precision=second.prior_precision,
        prior_shift=second.prior_shift,
        offset=second.offset,
    )
    probe = np.random.default_rng(1).normal(size=first.gamma.size)
    pairs = [
        (first.precision, second.precision),
        (first.variance, second.variance),
        (first.mean(probe), second.mean(probe)),
        (first.mean(0 * probe), second.mean(0 * probe)),
    ]
    return all(np.allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(a).max()) for a, b in pairs)


def calibrated(parts: Ingredients, target: Target, method: Method) -> Ingredients:
    """The same release with a mechanism that meets a target, and the report on it."""
    mechanism, report, asked = parts.mechanism.calibrated(target, method)
    keys = ("method", "areas_touched", "inflation", "extra_variance")
    facts = {
        **parts.facts,
        "calibration": {key: report.attrs[key] for key in keys} | {"target": asked},
    }
    return replace(parts, mechanism=mechanism, facts=facts, report=report)


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
