"""A PyMC model's log density and target as expressions in fresh inputs, without its data.

PyMC's own graph is taken as it stands: every variable that may vary gets an input with its shape
in the type, and the confidential observations are one of these inputs. Public observations stay.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.multivariate import ZeroSumNormalRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace

from pymc_dp._checks import name_some, text_labels
from pymc_dp._typing import Array
from pymc_dp.reading.dims import constant_like, with_dims, without_dims
from pymc_dp.reading.expand import written_out


class NotLinearGaussianError(ValueError):
    """The model is not, or not provably, Gaussian in its latents and data.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_dp import PrivateRelease
    >>> with pm.Model(coords={"area": ["north", "south"]}) as model:
    ...     theta = pm.Normal("theta", 0, 1, dims="area")
    ...     _ = pm.Poisson("y", pm.math.exp(theta), observed=[3, 5], dims="area")
    >>> PrivateRelease(model, sensitivity=1)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    NotLinearGaussianError: the model's log density is not quadratic ...
    """


# What a likelihood must be, and what there is for answers that have another.
LIKELIHOODS = (
    "answers need a normal likelihood, as direct estimates of areas have with their sampling "
    "variances (pymc_dp.hajek, then pm.Normal), or pymc_dp.private_direct, after which any model "
    "may follow"
)


@dataclass(frozen=True)
class SymbolicModel:
    """A model's log density and target as expressions in fresh inputs.

    ``terms`` maps each random variable's and each potential's name to its term of the log
    density, entry by entry, and ``factors`` to their sum; ``latents`` maps each free variable's
    name to its input. ``data`` is the input of the observed ``values``, ``positions`` the area of
    each of them where labels tell.
    """

    terms: Mapping[str, Variable]
    factors: Mapping[str, Variable]
    latents: Mapping[str, Any]
    observed: str
    data: Any
    values: Array = field(repr=False)
    target: Any
    target_name: str
    positions: np.ndarray | None


def symbolic_model(model: pm.Model, target: str, observed: str | None = None) -> SymbolicModel:
    """Express a model in fresh inputs.

    Parameters
    ----------
    model : pm.Model
    target : str
        Name of the variable to release.
    observed : str, optional
        Name of the confidential observed variable, if there are several. The others are public.

    Raises
    ------
    NotLinearGaussianError
        If the model has discrete variables, or no log density.
    ValueError
        If `observed` is not an observed variable, is needed, or is not finite.
    """
    if found := [v.name for v in model.free_RVs if v.dtype.startswith(("int", "uint", "bool"))]:
        raise NotLinearGaussianError(
            f"discrete variables: {name_some(found)}; they have no Gaussian posterior: sum them "
            f"out of the model, or hold them constant with fixed={{{found[0]!r}: value}}"
        )
    for rv in model.basic_RVs:
        op: Any = rv.owner.op
        sums_to_zero = isinstance(getattr(op, "core_op", op), ZeroSumNormalRV)
        if sums_to_zero and model.rvs_to_transforms.get(rv) is None:
            raise NotLinearGaussianError(
                f"{rv.name!r} sums to zero but is not transformed: its density holds on a part of "
                "the space only; leave out transform= and default_transform="
            )
    narrow = [v.name for v in model.free_RVs if v.dtype != "float64"]
    if narrow:
        raise NotLinearGaussianError(
            f"variables that are not of type float64: {name_some(narrow)}; make them with "
            "dtype='float64'"
        )
    confidential = observed_variable(model, observed)
    if confidential.dtype != "float64":
        raise NotLinearGaussianError(
            f"the observed {confidential.name!r} is of type {confidential.dtype}: {LIKELIHOODS}"
        )
    data = model.rvs_to_values[confidential]
    if data.owner is not None:
        raise NotLinearGaussianError(
            f"the observed {confidential.name!r} is an expression of other values: pass the values "
            "themselves in pm.Data, as floating-point numbers and in the order of the dims"
        )
    values = np.asarray(held_value(data))
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} observed values are not finite")

    shapes = _shapes(model)
    latents = {rv.name: fresh_input(rv.name, shapes[rv.name]) for rv in model.free_RVs}
    y = fresh_input(confidential.name, values.shape)
    inputs = {model.rvs_to_values[rv]: latents[rv.name] for rv in model.free_RVs} | {data: y}
    swap: dict[Variable, Variable] = {v: with_dims(new, v) for v, new in inputs.items()}
    variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    try:
        terms = model.logp(vars=variables, sum=False)
    except ValueError as error:  # a random number that is no variable of the model, say
        raise NotLinearGaussianError(f"PyMC finds no log density: {error}") from error
    expressions = [*terms, *model.replace_rvs_by_values([model[target]])]
    swapped = without_dims(graph_replace(expressions, swap, strict=False))
    swapped = written_out(swapped, [*latents.values(), y])
    by_name = dict(zip((v.name for v in variables), swapped[:-1], strict=True))
    return SymbolicModel(
        terms=by_name,
        factors={name: term.sum() for name, term in by_name.items()},
        latents=latents,
        observed=confidential.name,
        data=y,
        values=values.ravel(),
        target=swapped[-1],
        target_name=target,
        positions=_positions(model, target, confidential.name),
    )


def fresh_input(name: str, shape: Sequence[int | None]) -> Any:
    """An input of double precision under any name: ``pt.tensor`` takes some for data types."""
    return pt.TensorType("float64", shape=tuple(shape))(name)


def observed_variable(model: pm.Model, observed: str | None) -> Any:
    """The confidential observed variable, by its name or because it is the only one."""
    found = {rv.name: rv for rv in model.observed_RVs}
    # PyMC splits masked data: `y` is then assembled from `y_observed` and a free `y_unobserved`.
    for name in (observed, f"{observed}_observed"):
        if name in found:
            return found[name]
    names = name_some(found) or "none"
    if observed is not None:
        raise ValueError(f"no observed variable {observed!r}; observed are {names}")
    if len(found) != 1:
        raise NotLinearGaussianError(
            f"exactly one observed variable is confidential, found {names}"
            + ("; name it with observed=..., the others then count as public" if found else "")
        )
    return next(iter(found.values()))


def with_constants(model: pm.Model, values: Mapping[str, Any]) -> pm.Model:
    """A copy of the model with free variables held at constants, and without their densities.

    ``pm.do`` takes no model with initial values, which say where a sampler starts and nothing of
    a density: it gets a view of the model that has none.
    """
    view: Any = object.__new__(type(model))
    vars(view).update(vars(model), rvs_to_initial_values={})
    with warnings.catch_warnings():  # it speaks of GP objects, of which nothing is used later
        warnings.filterwarnings("ignore", "Detected variables likely created by GP", UserWarning)
        return pm.do(view, {k: constant_like(v, model[k]) for k, v in values.items()})


def held_value(variable: Variable) -> Any:
    """The value of a constant or a shared variable; None of any other."""
    if isinstance(variable, Constant):
        return variable.data
    return variable.get_value() if isinstance(variable, SharedVariable) else None


def _shapes(model: pm.Model) -> dict[str, tuple[int, ...]]:
    """Shapes of the free variables' values, without compiling where dims or types tell."""
    known = {}
    for rv in model.free_RVs:
        shape = _static(model.rvs_to_values[rv])
        if shape is None and model.rvs_to_transforms.get(rv) is None:
            shape = _shape(model, rv)
        if shape is None:
            point = model.initial_point()
            return {v.name: point[model.rvs_to_values[v].name].shape for v in model.free_RVs}
        known[rv.name] = shape
    return known


def _static(variable: Any) -> tuple[int, ...] | None:
    return None if None in variable.type.shape else tuple(variable.type.shape)


def _shape(model: pm.Model, rv: Any) -> tuple[int, ...] | None:
    if (shape := _static(rv)) is not None:
        return shape
    dims = model.named_vars_to_dims.get(rv.name, ())
    sizes = [held_value(model.dim_lengths[d]) for d in dims if d in model.dim_lengths]
    known = bool(dims) and len(sizes) == len(dims) and all(s is not None for s in sizes)
    return tuple(int(s) for s in sizes) if known else None


def shape_of(model: pm.Model, name: str) -> tuple[int, ...]:
    """Shape of a variable on its own scale, without compiling where dims or types tell."""
    known = _shape(model, model[name])
    return tuple(map(int, model[name].shape.eval())) if known is None else known


def _positions(model: pm.Model, target: str, observed: str) -> np.ndarray | None:
    """The area of each observation by its label, where both have labels."""
    dims = [model.named_vars_to_dims.get(name, ()) for name in (target, observed)]
    coords = [model.coords.get(d[0]) if len(d) == 1 else None for d in dims]
    if coords[0] is None or coords[1] is None:
        return None
    place = {label: i for i, label in enumerate(coords[0])}
    found = [place.get(label, -1) for label in coords[1]]
    return None if -1 in found or len(place) < len(coords[0]) else np.asarray(found, dtype=int)


def labels_of(model: pm.Model, name: str, size: int) -> np.ndarray:
    """Labels of a variable's entries: its coordinates, joined by a space, else their numbers."""
    dims: Sequence[Any] = model.named_vars_to_dims.get(name, ())
    coords = [model.coords.get(d) for d in dims]
    if coords and all(c is not None for c in coords):
        labels = text_labels(itertools.product(*map(text_labels, coords)))
        if len(labels) == size:
            return np.asarray(labels, dtype=str)
    return np.asarray([str(i) for i in range(size)], dtype=str)
