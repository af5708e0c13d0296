"""Say why a model is not taken, by the names of its variables, and what helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.utils import ParameterValueError

from pymc_dp._checks import name_some
from pymc_dp.reading.curvature import CONCAVE_KINDS, curvature
from pymc_dp.reading.degree import UNKNOWN, Obstacle, first_obstacle, polynomial_degree
from pymc_dp.reading.derivatives import without_constants
from pymc_dp.reading.interpret import interpreted
from pymc_dp.reading.symbolic import (
    LIKELIHOODS,
    SymbolicModel,
    shape_of,
    symbolic_model,
    with_constants,
)


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
        and polynomial_degree([joint], [held[name], *rest])[0] > 2
    ]


def obstacles(symbolic: SymbolicModel) -> list[str]:
    """Free variables in which the log density is no polynomial of degree two."""
    joint = sum(symbolic.factors.values())
    return [
        name
        for name, latent in symbolic.latents.items()
        if polynomial_degree([joint], [latent])[0] > 2
    ]


def why_not_gaussian(
    model: pm.Model, symbolic: SymbolicModel, observed: str | None = None
) -> str | None:
    """What keeps a model from being linear-Gaussian, and what helps; None if it is proven."""
    variables = {**symbolic.latents, symbolic.observed: symbolic.data}
    for name, factor in symbolic.factors.items():
        if obstacle := first_obstacle(factor, variables, 2):
            return (
                f"the log density of {name!r} is not proven Gaussian in latents and data (first "
                f"obstacle: {obstacle}){_advice(model, symbolic, observed, name, obstacle)}"
            )
    if obstacle := first_obstacle(symbolic.target, variables, 1):
        return (
            f"the target {symbolic.target_name!r} is not proven linear in latents and data (first "
            f"obstacle: {obstacle}); release what it is made of, with target=, and work it out "
            "from the released draw, which costs nothing more"
        )
    return None


def _advice(
    model: pm.Model, symbolic: SymbolicModel, observed: str | None, term: str, obstacle: Obstacle
) -> str:
    """What helps, for a term of the log density in which an obstacle stands."""
    if free := variance_components(model, observed):
        return (
            f"; hold the variance component {name_some(free)} constant with "
            f"fixed={{{free[0]!r}: value}}, or pass idata to hold it at its posterior mean"
        )
    names = obstacles(symbolic)
    candidates = names or [n for n in obstacle.variables if n in symbolic.latents]
    hint = f"; it is no quadratic in {name_some(names)}" if names else ""
    if scales := [name for name in candidates if _is_scale(symbolic, name)]:
        one = "" if len(scales) == 1 else "one of "
        return f"{hint}; hold {one}{name_some(scales)} constant with fixed={{{scales[0]!r}: value}}"
    if names and why_no_bound(model, symbolic) is None:
        return (
            f"{hint}; the prior is log-concave: for direct estimates bound='log-concave' gives a "
            "bound"
        )
    if limited := constrained(model, symbolic):
        return hint + limited
    return hint + _in_words(model, symbolic, term, obstacle)


def _in_words(model: pm.Model, symbolic: SymbolicModel, term: str, obstacle: Obstacle) -> str:
    """What to write instead of a term, by the kind of its distribution."""
    if set(obstacle.variables) == {symbolic.observed} != {term}:
        return (
            f"; {term!r} depends on the observed {symbolic.observed!r} other than linearly: put a "
            "public number in its place"
        )
    kind = _distribution(model, term)
    if kind in GAUSSIAN or kind is None:
        what = "that product" if obstacle.product else obstacle.operation
        return f"; write {term!r} without {what}: sums, and products with constants, are linear"
    if term == symbolic.observed:
        return f"; its distribution is {kind}: {LIKELIHOODS}"
    return (
        f"; its distribution is {kind}: take a normal prior, or a log-concave one (Laplace, "
        "logistic) and bound='log-concave'"
    )


GAUSSIAN = {"Normal", "MvNormal", "CAR", "ICAR", "Flat", "ZeroSumNormal", "MatrixNormal"}


def _distribution(model: pm.Model, name: str) -> str | None:
    """The name of a variable's distribution; None of a potential."""
    if name not in {rv.name for rv in model.basic_RVs}:
        return None
    op: Any = model[name].owner.op
    return type(getattr(op, "core_op", op)).__name__.removesuffix("RV")


def _is_scale(symbolic: SymbolicModel, name: str) -> bool:
    """Whether the rest is a quadratic whose derivatives depend on the variable."""
    latent = symbolic.latents[name]
    rest = [v for v in (*symbolic.latents.values(), symbolic.data) if v is not latent]
    joint: Any = sum(symbolic.factors.values())
    if polynomial_degree([joint], rest)[0] > 2:
        return False
    # In a direction that is no model's own: along equal steps of level and effects nothing bends.
    rng = np.random.default_rng(20_240_229)  # for advice: has no part in any release
    direction = [rng.normal(size=v.type.shape) for v in rest]
    first = pt.grad(without_constants(joint, rest), rest, disconnected_inputs="ignore")
    along = sum((g * d).sum() for g, d in zip(first, direction, strict=True))
    second = pt.grad(along, rest, disconnected_inputs="ignore")
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
    latents, observed = list(symbolic.latents.values()), symbolic.observed
    variables = {**symbolic.latents, observed: symbolic.data}
    for expression, most in ((symbolic.factors[observed], 2), (symbolic.target, 1)):
        if obstacle := first_obstacle(expression, variables, most):
            limited = constrained(model, symbolic) or f"; {LIKELIHOODS}"
            return (
                f"the likelihood of {observed!r} is not proven Gaussian with the target "
                f"{symbolic.target_name!r} for its mean (first obstacle: {obstacle}){limited}"
            )
    for name, factor in symbolic.factors.items():
        if name == observed:
            continue
        if polynomial_degree([factor], [symbolic.data])[0] > 0:
            return (
                f"the prior term of {name!r} depends on the observed {observed!r}: put public "
                "numbers in place of the data there"
            )
        if curvature([factor], latents)[0] not in CONCAVE_KINDS:
            hint = "; take a log-concave prior: normal, Laplace, logistic, Gumbel"
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
        and UNKNOWN in polynomial_degree(mean, [latent])
    ]
    if not found:
        return ""
    return (
        f"; {name_some(found)} may take some values only, so PyMC samples a transformation, in "
        "which nothing is proven: constrained effects are not covered. Take a normal prior (of the "
        "logarithm, where effects multiply), and cut what is released to the range afterwards"
    )
