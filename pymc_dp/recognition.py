"""Read the posterior of a target off a PyMC model, with proof, or refuse.

Three steps: prove from the graph that the log density is quadratic and the target affine in
latents and data (:mod:`pymc_dp.degree`); read the numbers from Hessian-vector products; check
the reading against products in random directions at points far out. A model of the arrow shape
(a diagonal block and ``p`` dense columns, as every form of Fay-Herriot) takes the factored closed
form (:mod:`pymc_dp.arrow`), any other the sparse general one (:mod:`pymc_dp.linear_gaussian`).
The numbers are computed in interpreted NumPy: compiled PyTensor code may use fast-math.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors

from pymc_dp.arrow import read_arrow
from pymc_dp.checks import name_some, text_labels
from pymc_dp.degree import ZERO_SUM, polynomial_degree
from pymc_dp.derivatives import interpreted
from pymc_dp.linear_gaussian import LinearGaussian, read_linear
from pymc_dp.neighbours import check_neighbours
from pymc_dp.posterior import Array, GaussianPosterior
from pymc_dp.symbolic import NotLinearGaussianError as NotLinearGaussianError
from pymc_dp.symbolic import SymbolicModel, observed_variable, symbolic_model


@dataclass(frozen=True)
class Reading:
    """What a model says: the posterior of its target, area labels and direct estimates."""

    posterior: GaussianPosterior
    area: np.ndarray
    estimate: Array = field(repr=False)


@dataclass(frozen=True)
class LinearReading:
    """What a model of any other shape says: numbers, labels of the target, observed values.

    ``direct`` holds the area that each observation is a direct estimate of, None where some
    observation is not; ``index`` the same, or the area that has the observation's label.
    ``record`` labels the observations, ``dims`` and ``coords`` are those that PyMC knows of them.
    """

    linear: LinearGaussian
    area: np.ndarray
    observed: Array = field(repr=False)
    direct: np.ndarray | None
    index: np.ndarray | None
    record: np.ndarray
    dims: tuple[str, ...]
    coords: Mapping[str, np.ndarray]
    shape: tuple[int, ...]


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


def variance_components(model: pm.Model, observed: str | None = None) -> list[str]:
    """Free variables with a range of their own that scale the rest: what has to be held fixed.

    A variable with a value transform (positive, within an interval, a covariance) with which, in
    its own scale, the rest of the log density is no quadratic. An effect or coefficient whose
    prior is not normal is none: held at its mean it would leave the release without its spread.
    """
    found = obstacles(model, observed)
    if not found:
        return []
    held = pm.do(model, {name: np.ones(tuple(model[name].shape.eval())) for name in found})
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


def obstacles(model: pm.Model, observed: str | None = None) -> list[str]:
    """Free variables in which the log density is no polynomial of degree two."""
    if not model.free_RVs:
        return []
    symbolic = symbolic_model(model, model.free_RVs[0].name, observed)
    joint = sum(symbolic.factors.values())
    return [
        name
        for name, latent in symbolic.latents.items()
        if polynomial_degree([joint], [latent])[0][0] > 2
    ]


def read_model(
    model: pm.Model, target: str = "theta", observed: str | None = None, *, arrow: bool = True
) -> Reading | LinearReading:
    """Prove that the model is linear-Gaussian and read the posterior of its target.

    Parameters
    ----------
    model : pm.Model
    target : str
    observed : str, optional
        The confidential observed variable, where there are several.
    arrow : bool
        Take the closed form of Fay-Herriot models where it applies; it prices one entry a record.

    Raises
    ------
    NotLinearGaussianError
        Naming the first obstacle and, where a variance component is free, that variable.
    ValueError
        If a neighbour matrix is asymmetric or has an island, or the posterior is improper.
    """
    symbolic = opened(model, target, observed)
    _prove(model, symbolic, observed)
    _check_sums_to_zero(symbolic)
    refuse_hidden_data(model, symbolic)
    found = read_arrow(symbolic) if arrow else None
    if found is not None:
        posterior, index = found
        estimate = np.full(posterior.precision.shape, np.nan)
        estimate[index] = symbolic.values
        return Reading(posterior, labels_of(model, target, estimate.size), estimate)
    linear = read_linear(symbolic)
    dims = model.named_vars_to_dims.get(symbolic.observed, ())
    shape = tuple(symbolic.data.type.shape)
    direct = linear.direct_index()
    coords = {d: np.asarray(text_labels(model.coords[d])) for d in dims if model.coords.get(d)}
    return LinearReading(
        linear=linear,
        area=labels_of(model, target, linear.target.shape[0]),
        observed=symbolic.values,
        direct=direct,
        index=_labelled_index(symbolic, linear) if direct is None else direct,
        record=labels_of(model, symbolic.observed, symbolic.values.size),
        dims=tuple(dims) if len(coords) == len(dims) == len(shape) else (),
        coords=coords,
        shape=shape,
    )


def opened(model: pm.Model, target: str, observed: str | None) -> SymbolicModel:
    """The model in fresh inputs, once what PyMC takes in silence has been looked at."""
    if target not in model.named_vars:
        raise ValueError(f"the model has no variable {target!r}")
    check_neighbours(model)
    symbolic = symbolic_model(model, target, observed)
    if isinstance(model.rvs_to_values[model[symbolic.observed]], Constant):
        warnings.warn(
            f"the observed {symbolic.observed!r} is a constant array: sampling this model writes "
            "the data into the compile cache on disk; pass observed=pm.Data(...) instead",
            UserWarning,
            stacklevel=5,  # who made the PrivateRelease
        )
    return symbolic


def _labelled_index(symbolic: SymbolicModel, linear: LinearGaussian) -> np.ndarray | None:
    """The area with each observation's label, where target and data have the same labels."""
    labelled = symbolic.positions
    if labelled is None or linear.target.shape[0] < symbolic.values.size:
        return None
    return labelled if np.unique(labelled).size == symbolic.values.size else None


def _prove(model: pm.Model, symbolic: SymbolicModel, observed: str | None) -> None:
    variables = [*symbolic.latents.values(), symbolic.data]
    joint = sum(symbolic.factors.values())
    (density, target), obstacle = polynomial_degree([joint, symbolic.target], variables)
    if density <= 2 and target <= 1:
        return
    free = variance_components(model, observed)
    hint = ""
    if free:
        hint = (
            f"; hold the variance component {name_some(free)} constant with "
            f"fixed={{{free[0]!r}: value}}, or pass idata to hold it at its posterior mean"
        )
    elif names := obstacles(model, observed):
        hint = (
            f"; it is no quadratic in {name_some(names)}: hold a scale constant with fixed=...; "
            "for effects with a log-concave prior, bound='log-concave' gives a bound"
        )
    what = "log density" if density > 2 else f"target {symbolic.target_name!r}"
    reason = f"first obstacle: {obstacle}" if obstacle else f"degree {max(density, target):.0f}"
    raise NotLinearGaussianError(
        f"the {what} is not proven Gaussian in latents and data ({reason}){hint}"
    )


def _check_sums_to_zero(symbolic: SymbolicModel) -> None:
    """The proof takes PyMC's assertion of a sum to zero for true: see that it is, far out.

    It is for effects that the transform of ``pm.ZeroSumNormal`` makes; asserted of any others it
    would cut their support down to a plane.
    """
    variables = [*symbolic.latents.values(), symbolic.data]
    nodes = {v.owner for v in ancestors(list(symbolic.factors.values())) if v.owner is not None}
    asserted = [c for n in nodes if getattr(n.op, "msg", None) == ZERO_SUM for c in n.inputs[1:]]
    if not asserted:
        return
    holds = interpreted(variables, asserted)
    rng = np.random.default_rng(20_240_229)  # checks a structure; has no part in any release
    for scale in (1.0, 1e3):
        point = [scale * rng.normal(size=v.type.shape) for v in variables]
        if not all(np.all(value) for value in holds(*point)):
            raise NotLinearGaussianError(
                "the log density asserts of effects that they sum to zero, which they need not do: "
                "use pm.ZeroSumNormal as a variable of the model"
            )


def refuse_hidden_data(model: pm.Model, symbolic: SymbolicModel) -> None:
    """Refuse a constant that follows the observed data: a dependence no derivative shows.

    The model's own graph is walked, with the graphs inside its operations, and the log density's:
    a distribution of the user's own may keep a constant in either alone.
    """
    y = symbolic.values - symbolic.values.mean()
    own = model.rvs_to_values[observed_variable(model, symbolic.observed)]
    if y.size < 3 or np.ptp(symbolic.values) == 0:
        return
    public = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    roots = [*model.basic_RVs, *model.deterministics, *model.potentials, *public]
    for node in _with_inner([*roots, *symbolic.factors.values(), symbolic.target]):
        if node.owner is not None or node is own:
            continue
        value = node.data if isinstance(node, Constant) else getattr(node, "get_value", dict)()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            continue
        if _follows(value.ravel(), y) or _contains(value.ravel(), symbolic.values):
            raise NotLinearGaussianError(
                f"a constant of the model follows the observed {symbolic.observed!r} exactly: "
                "the target may depend on the data in a way that cannot be seen; build it from "
                "the observed variable or from the pm.Data that holds it"
            )


def _follows(value: Array, y: Array) -> bool:
    """Correlation one with the centred data: the data, or centred, scaled or shifted."""
    if value.size != y.size or np.ptp(value) == 0:
        return False
    x = value - value.mean()
    return bool(abs(x @ y) >= (1 - 1e-12) * np.sqrt((x @ x) * (y @ y)))


def _contains(value: Array, observed: Array) -> bool:
    """Whether a larger constant holds every observed value, which must not be mere counts."""
    kinds = np.unique(observed)
    telling = kinds[kinds != np.round(kinds)].size >= 3
    return bool(telling and value.size > observed.size and np.isin(kinds, value).all())


def _with_inner(roots: Sequence[Variable]) -> list[Variable]:
    """The ancestors of the roots, and those in the graphs inside their operations."""
    found: list[Variable] = []
    for v in ancestors(roots):
        found.append(v)
        if isinstance(getattr(v.owner, "op", None), HasInnerGraph):
            found += _with_inner(v.owner.op.inner_outputs)
    return found


def labels_of(model: pm.Model, name: str, size: int) -> np.ndarray:
    """Labels of a variable's entries: its coordinates, joined by a space, else their numbers."""
    dims: Sequence[Any] = model.named_vars_to_dims.get(name, ())
    coords = [model.coords.get(d) for d in dims]
    if coords and all(c is not None for c in coords):
        labels = text_labels(itertools.product(*map(text_labels, coords)))
        if len(labels) == size:
            return np.asarray(labels, dtype=str)
    return np.asarray([str(i) for i in range(size)], dtype=str)
