"""Read a Fay-Herriot posterior off a PyMC model, with proof, or refuse.

Three steps: prove from the graph that the log density is quadratic and the target affine in
latents and data (:mod:`pymc_dp.degree`); read the few numbers that an arrow-shaped model has
(a diagonal block and ``p`` dense columns) from Hessian-vector products; check the reading
against products in random directions at points far out. The numbers are computed in
interpreted NumPy: compiled PyTensor code may use fast-math.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_dp.arrow import read_arrow
from pymc_dp.checks import name_some
from pymc_dp.degree import polynomial_degree
from pymc_dp.posterior import Array, GaussianPosterior


class NotLinearGaussianError(ValueError):
    """The model is not, or not provably, Gaussian in its latents and data."""


@dataclass(frozen=True)
class Reading:
    """What a model says: the posterior of its target, area labels and direct estimates."""

    posterior: GaussianPosterior
    area: np.ndarray
    estimate: Array = field(repr=False)


@dataclass(frozen=True)
class SymbolicModel:
    """A model's log density and target as expressions in fresh inputs.

    ``factors`` maps each random variable's name to its term of the log density, ``latents``
    each free variable's name to its input; ``data`` is the input of the observed ``values``,
    ``positions`` the area of each of them where labels tell.
    """

    factors: Mapping[str, Variable]
    latents: Mapping[str, Any]
    observed: str
    data: Any
    values: Array = field(repr=False)
    target: Any
    target_name: str
    positions: np.ndarray | None


def hold(model: pm.Model, values: Mapping[str, float | Array]) -> pm.Model:
    """Hold free variables at constants; the model itself is left as it is."""
    unknown = [name for name in values if name not in {v.name for v in model.free_RVs}]
    if unknown:
        raise ValueError(
            f"not free variables of the model: {name_some(unknown)}; "
            f"free are {name_some(v.name for v in model.free_RVs)}"
        )
    for name, value in values.items():
        if not np.isfinite(np.asarray(value, dtype=float)).all():
            raise ValueError(f"the value to hold {name!r} at is not finite")
    return pm.do(model, dict(values)) if values else model


def variance_components(model: pm.Model) -> list[str]:
    """Free variables in which the log density is no polynomial: what has to be held fixed."""
    symbolic = _symbolic(model, model.free_RVs[0].name)
    joint = sum(symbolic.factors.values())
    return [
        name
        for name, latent in symbolic.latents.items()
        if polynomial_degree([joint], [latent])[0][0] > 2
    ]


def read_model(model: pm.Model, target: str = "theta") -> Reading:
    """Prove that the model is linear-Gaussian and read the posterior of its target.

    Raises
    ------
    NotLinearGaussianError
        Naming the first obstacle and, where a variance component is free, that variable.
    """
    if target not in model.named_vars:
        raise ValueError(f"the model has no variable {target!r}")
    symbolic = _symbolic(model, target)
    if isinstance(model.rvs_to_values[model[symbolic.observed]], Constant):
        warnings.warn(
            f"the observed {symbolic.observed!r} is a constant array: sampling this model writes "
            "the data into the compile cache on disk; pass observed=pm.Data(...) instead",
            UserWarning,
            stacklevel=3,
        )
    _prove(model, symbolic)
    _refuse_hidden_data(model, symbolic)
    arrow = read_arrow(symbolic)
    if arrow is None:
        raise NotLinearGaussianError(
            f"the model is linear-Gaussian, but not a Fay-Herriot model of {target!r}: one "
            "independent effect an area with known variance, observed with known variance"
        )
    posterior, index = arrow
    estimate = np.full(posterior.precision.shape, np.nan)
    estimate[index] = symbolic.values
    return Reading(posterior, _labels(model, target, estimate.size), estimate)


def _symbolic(model: pm.Model, target: str) -> SymbolicModel:
    if model.potentials:
        raise NotLinearGaussianError(
            f"potentials are not supported: {name_some(v.name for v in model.potentials)}"
        )
    if model.discrete_value_vars:
        raise NotLinearGaussianError(
            f"discrete variables: {name_some(v.name for v in model.discrete_value_vars)}"
        )
    if len(model.observed_RVs) != 1:
        names = name_some(v.name for v in model.observed_RVs) or "none"
        raise NotLinearGaussianError(f"exactly one observed variable is needed, found {names}")
    [observed] = model.observed_RVs
    if observed.dtype != "float64":
        raise NotLinearGaussianError(f"the observed {observed.name!r} is of type {observed.dtype}")
    data = model.rvs_to_values[observed]
    values = np.asarray(data.data if isinstance(data, Constant) else data.get_value())
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} observed values are not finite")

    latents = {
        rv.name: pt.tensor(rv.name, dtype="float64", shape=_shape(model, rv))
        for rv in model.free_RVs
    }
    y = pt.tensor(observed.name, dtype="float64", shape=values.shape)
    swap: dict[Variable, Variable] = {
        model.rvs_to_values[rv]: latents[rv.name] for rv in model.free_RVs
    }
    swap[data] = y
    try:
        terms = model.logp(vars=[*model.free_RVs, observed], sum=False)
    except ValueError as error:  # a random number that is no variable of the model, say
        raise NotLinearGaussianError(f"PyMC finds no log density: {error}") from error
    expressions = [*terms, *model.replace_rvs_by_values([model[target]])]
    swapped = graph_replace(expressions, swap, strict=False)
    return SymbolicModel(
        factors={
            rv.name: t.sum()
            for rv, t in zip([*model.free_RVs, observed], swapped[:-1], strict=True)
        },
        latents=latents,
        observed=observed.name,
        data=y,
        values=values.ravel(),
        target=swapped[-1],
        target_name=target,
        positions=_positions(model, target, observed.name),
    )


def _shape(model: pm.Model, rv: Any) -> tuple[int, ...]:
    """Shape of a variable, without compiling or drawing it where dims or types tell."""
    if None not in rv.type.shape:
        return tuple(rv.type.shape)
    dims = model.named_vars_to_dims.get(rv.name, ())
    coords = [model.coords.get(d) for d in dims]
    if coords and all(c is not None for c in coords):
        return tuple(len(c) for c in coords)
    return tuple(model.initial_point()[model.rvs_to_values[rv].name].shape)


def _prove(model: pm.Model, symbolic: SymbolicModel) -> None:
    variables = [*symbolic.latents.values(), symbolic.data]
    joint = sum(symbolic.factors.values())
    (density, target), obstacle = polynomial_degree([joint, symbolic.target], variables)
    if density <= 2 and target <= 1:
        return
    free = variance_components(model)
    if free:
        hint = (
            f"; hold the variance component {name_some(free)} constant with "
            f"fixed={{{free[0]!r}: value}}, or pass idata to hold it at its posterior mean"
        )
    else:
        hint = ""
    what = "log density" if density > 2 else f"target {symbolic.target_name!r}"
    reason = f"first obstacle: {obstacle}" if obstacle else f"degree {max(density, target):.0f}"
    raise NotLinearGaussianError(
        f"the {what} is not proven Gaussian in latents and data ({reason}){hint}"
    )


def _refuse_hidden_data(model: pm.Model, symbolic: SymbolicModel) -> None:
    """Refuse a constant that follows the observed data: a dependence no derivative shows.

    The model's own graph is walked, not the log density's, where PyMC has folded constants.
    """
    y = symbolic.values - symbolic.values.mean()
    own = {model.rvs_to_values[rv] for rv in model.observed_RVs}
    if y.size < 3 or np.ptp(symbolic.values) == 0:
        return
    for node in ancestors([*model.basic_RVs, *model.deterministics]):
        if node.owner is not None or node in own:
            continue
        value = node.data if isinstance(node, Constant) else getattr(node, "get_value", dict)()
        if (
            not isinstance(value, np.ndarray)
            or value.size != y.size
            or value.dtype.kind not in "fiu"
        ):
            continue
        x = value.ravel() - value.mean()
        # Correlation one: the data themselves, or centred, scaled or shifted.
        if np.ptp(value) > 0 and abs(x @ y) >= (1 - 1e-12) * np.sqrt((x @ x) * (y @ y)):
            raise NotLinearGaussianError(
                f"a constant of the model follows the observed {symbolic.observed!r} exactly: "
                "the target may depend on the data in a way that cannot be seen; build it from "
                "the observed variable or from the pm.Data that holds it"
            )


def _positions(model: pm.Model, target: str, observed: str) -> np.ndarray | None:
    """The area of each observation by its label, where both have labels."""
    dims = [model.named_vars_to_dims.get(name, ()) for name in (target, observed)]
    coords = [model.coords.get(d[0]) if len(d) == 1 else None for d in dims]
    if coords[0] is None or coords[1] is None:
        return None
    place = {label: i for i, label in enumerate(coords[0])}
    found = [place.get(label, -1) for label in coords[1]]
    return None if -1 in found or len(place) < len(coords[0]) else np.asarray(found, dtype=int)


def _labels(model: pm.Model, target: str, size: int) -> np.ndarray:
    dims: Sequence[Any] = model.named_vars_to_dims.get(target, ())
    coords = model.coords.get(dims[0]) if len(dims) == 1 else None
    labels = range(size) if coords is None else coords
    return np.asarray([str(label) for label in labels], dtype=str)
