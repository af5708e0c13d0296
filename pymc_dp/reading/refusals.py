"""Say why a model is not taken, by the names of its variables, and what helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.utils import ParameterValueError

from pymc_dp._checks import name_some
from pymc_dp.reading.curvature import CONCAVE_KINDS, curvature
from pymc_dp.reading.degree import polynomial_degree
from pymc_dp.reading.derivatives import interpreted, without_constants
from pymc_dp.reading.symbolic import SymbolicModel, shape_of, symbolic_model, with_constants


def variance_components(model: pm.Model, observed: str | None = None) -> list[str]:
    """Free variables with a range of their own that scale the rest: what has to be held fixed.

    A variable with a value transform (positive, within an interval, a covariance) with which, in
    its own scale, the rest of the log density is no quadratic. An effect or coefficient whose
    prior is not normal is none: held at its mean it would leave the release without its spread.
    """
    if not model.free_RVs:
        return []
    found = obstacles(symbolic_model(model, model.free_RVs[0].name, observed))
    if not found:
        return []
    held = with_constants(model, {name: np.ones(shape_of(model, name)) for name in found})
    if not held.free_RVs:
        return []
    symbolic = symbolic_model(held, held.free_RVs[0].name, observed)
    joint, rest = sum(symbolic.factors.values()), [*symbolic.latents.values(), symbolic.data]
    return [
        name
        for name in found
        if model.rvs_to_transforms.get(model[name]) is not None
        and polynomial_degree([joint], [held[name], *rest])[0][0] > 2
    ]


def obstacles(symbolic: SymbolicModel) -> list[str]:
    """Free variables in which the log density is no polynomial of degree two."""
    joint = sum(symbolic.factors.values())
    return [
        name
        for name, latent in symbolic.latents.items()
        if polynomial_degree([joint], [latent])[0][0] > 2
    ]


def advice(model: pm.Model, symbolic: SymbolicModel, observed: str | None) -> str:
    """What a model that is not proven is no quadratic in, and what helps, where something does."""
    if free := variance_components(model, observed):
        return (
            f"; hold the variance component {name_some(free)} constant with "
            f"fixed={{{free[0]!r}: value}}, or pass idata to hold it at its posterior mean"
        )
    names = obstacles(symbolic)
    if not names:
        return ""
    hint = f"; it is no quadratic in {name_some(names)}"
    if scales := [name for name in names if _is_scale(symbolic, name)]:
        hint += f"; hold the scale {name_some(scales)} constant with fixed={{{scales[0]!r}: value}}"
    elif why_no_bound(model, symbolic) is None:
        hint += "; the prior is log-concave: for direct estimates bound='log-concave' gives a bound"
    return hint + constrained(model, symbolic)


def _is_scale(symbolic: SymbolicModel, name: str) -> bool:
    """Whether the rest is a quadratic whose second derivatives depend on the variable."""
    latent = symbolic.latents[name]
    rest = [v for v in (*symbolic.latents.values(), symbolic.data) if v is not latent]
    joint: Any = sum(symbolic.factors.values())
    if polynomial_degree([joint], rest)[0][0] > 2:
        return False
    first = pt.grad(without_constants(joint, rest), rest, disconnected_inputs="ignore")
    second = pt.grad(sum(g.sum() for g in first), rest, disconnected_inputs="ignore")
    curved = interpreted([latent, *rest], second)
    origin = [np.zeros(v.type.shape) for v in rest]
    try:  # two values will do: this is for advice, and proves nothing
        one, other = (curved(np.full(latent.type.shape, x), *origin) for x in (0.3, 0.7))
    except ParameterValueError:
        return True
    return not all(np.allclose(a, b) for a, b in zip(one, other, strict=True))


def why_no_bound(model: pm.Model, symbolic: SymbolicModel) -> str | None:
    """What keeps a model from a bound, and what helps; None if all that a graph shows is proven.

    A bound takes a likelihood that is Gaussian with the target for its mean, and every other term
    log-concave in the latents, without the data.
    """
    latents = list(symbolic.latents.values())
    terms = [symbolic.factors[symbolic.observed], symbolic.target]
    (density, mean), obstacle = polynomial_degree(terms, [*latents, symbolic.data])
    if density > 2 or mean > 1:
        return (
            f"the likelihood of {symbolic.observed!r} is not proven Gaussian with the target for "
            f"its mean ({obstacle or 'degree'}){constrained(model, symbolic)}"
        )
    for name, factor in symbolic.factors.items():
        if name == symbolic.observed:
            continue
        if polynomial_degree([factor], [symbolic.data])[0][0] > 0:
            return f"the prior term of {name!r} depends on the data"
        if curvature([factor], latents)[0] not in CONCAVE_KINDS:
            hint = ""
            if free := [n for n in obstacles(symbolic) if model.rvs_to_transforms[model[n]]]:
                hint = f"; hold {name_some(free)} constant with fixed={{{free[0]!r}: value}}"
            return f"the prior term of {name!r} is not proven log-concave in the latents{hint}"
    return None


def constrained(model: pm.Model, symbolic: SymbolicModel) -> str:
    """Words on effects that PyMC transforms in order to keep them within a range."""
    mean = [symbolic.factors[symbolic.observed], symbolic.target]
    found = [
        name
        for name, latent in symbolic.latents.items()
        if model.rvs_to_transforms.get(model[name]) is not None
        and polynomial_degree(mean, [latent])[1] is not None
    ]
    if not found:
        return ""
    return (
        f"; {name_some(found)} may take some values only, so PyMC samples a transformation, in "
        "which nothing is proven: constrained effects are not covered"
    )
