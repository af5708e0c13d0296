"""Read the posterior of a target off a PyMC model, with proof, or refuse.

Three steps: prove from the graph that the log density is quadratic and the target affine in
latents and data (:mod:`pymc_dp.reading.degree`); read the numbers from Hessian-vector products;
check the reading against products in random directions at points far out. A model of the arrow
shape (a diagonal block and ``p`` dense columns, as every form of Fay-Herriot) takes the factored
closed form (:mod:`pymc_dp.reading.arrow`), any other the sparse general one
(:mod:`pymc_dp.reading.linear`).
The numbers are computed in interpreted NumPy: compiled PyTensor code may use fast-math.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from scipy.sparse.csgraph import connected_components

from pymc_dp._checks import name_some, text_labels
from pymc_dp._typing import Array
from pymc_dp.posterior.fay_herriot import GaussianPosterior
from pymc_dp.reading.arrow import read_arrow
from pymc_dp.reading.degree import ZERO_SUM
from pymc_dp.reading.hidden import refuse_hidden_data
from pymc_dp.reading.impossible import refuse_impossible, refuse_impossible_values
from pymc_dp.reading.interpret import interpreted
from pymc_dp.reading.linear import LinearGaussian, read_linear
from pymc_dp.reading.neighbours import check_neighbours
from pymc_dp.reading.refusals import why_not_gaussian
from pymc_dp.reading.strangers import without_strangers
from pymc_dp.reading.symbolic import NotLinearGaussianError as NotLinearGaussianError
from pymc_dp.reading.symbolic import (
    SymbolicModel,
    labels_of,
    shape_of,
    symbolic_model,
    with_constants,
)


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


def hold(model: pm.Model, values: Mapping[str, float | Array], *, fitted: bool = False) -> pm.Model:
    """Hold free variables at constants; the model itself is left as it is.

    Values of a fit come from the answers: no message shows them.

    Raises
    ------
    ValueError
        If a name is no free variable, or its own distribution cannot take the value.
    """
    unknown = [name for name in values if name not in {v.name for v in model.free_RVs}]
    if unknown:
        raise ValueError(
            f"not free variables of the model: {name_some(unknown)}; "
            f"free are {name_some(v.name for v in model.free_RVs)}"
        )
    if not values:
        return model
    full = {}
    for name, value in values.items():
        number, shape = np.asarray(value, dtype=float), shape_of(model, name)
        if not np.isfinite(number).all():
            raise ValueError(f"the value to hold {name!r} at is not finite")
        if model[name].dtype.startswith(("int", "uint", "bool")) and (number % 1).any():
            raise ValueError(f"the value to hold {name!r} at must be whole")
        if number.shape not in ((), shape):
            raise ValueError(
                f"{name!r} has shape {shape}, the value to hold it at {number.shape}: pass one "
                "number, or one an entry"
            )
        full[name] = np.broadcast_to(number, shape).copy()
    held = with_constants(model, full)
    for name, value in values.items():
        shown = "its posterior mean" if fitted else _shown(value)
        held[name].tag.held = f"{name!r} cannot be held at {shown}"
    refuse_impossible_values(model, held, values)
    return held


def _shown(value: float | Array) -> str:
    numbers = np.atleast_1d(np.asarray(value, dtype=float)).ravel()
    return f"{numbers[0]:g}" if numbers.size == 1 else f"{numbers.min():g} to {numbers.max():g}"


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
    _check_connection(symbolic, linear)
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
    symbolic = without_strangers(model, symbolic_model(model, target, observed))
    if isinstance(model.rvs_to_values[model[symbolic.observed]], Constant):
        warnings.warn(
            f"the observed {symbolic.observed!r} is a constant array: sampling this model writes "
            "the data into the compile cache on disk; pass observed=pm.Data(...) instead",
            UserWarning,
            stacklevel=5,  # who made the PrivateRelease
        )
    refuse_impossible(model, symbolic)
    return symbolic


def _check_connection(symbolic: SymbolicModel, linear: LinearGaussian) -> None:
    """Refuse a target that no chain of entries that are not zero joins to the data."""
    _, group = connected_components(linear.precision, directed=False)
    pulled = np.unique(group[np.unique(linear.cross.tocoo().row)])
    if not linear.openly.nnz and not np.isin(group[np.unique(linear.target.indices)], pulled).any():
        raise NotLinearGaussianError(
            f"the target {symbolic.target_name!r} does not depend on the observed "
            f"{symbolic.observed!r}: its draw says nothing of the answers, and has no price; name "
            "with target= a variable that the data inform"
        )


def _labelled_index(symbolic: SymbolicModel, linear: LinearGaussian) -> np.ndarray | None:
    """The area with each observation's label, where target and data have the same labels."""
    labelled = symbolic.positions
    if labelled is None or linear.target.shape[0] < symbolic.values.size:
        return None
    return labelled if np.unique(labelled).size == symbolic.values.size else None


def _prove(model: pm.Model, symbolic: SymbolicModel, observed: str | None) -> None:
    if why := why_not_gaussian(model, symbolic, observed):
        raise NotLinearGaussianError(why)


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
