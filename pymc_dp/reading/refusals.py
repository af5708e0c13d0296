"""Refuse constants that leave a model without a density: a scale of zero, an infinite variance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy.sparse as sp
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.logprob.utils import CheckParameterValue, ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.math import All

from pymc_dp._checks import name_some, text_labels
from pymc_dp._typing import Array
from pymc_dp.reading.curvature import CONCAVE_KINDS, curvature
from pymc_dp.reading.degree import ZERO_SUM, polynomial_degree
from pymc_dp.reading.derivatives import interpreted, without_constants
from pymc_dp.reading.symbolic import (
    NotLinearGaussianError,
    SymbolicModel,
    held_value,
    labels_of,
    observed_variable,
    symbolic_model,
)

# What lies between an assertion and the conditions, one an entry, that it is made of.
GATHERED = {
    "AND", "DimShuffle", "ExpandDims", "Join", "MakeVector", "ScalarFromTensor",
    "TensorFromScalar",
}  # fmt: skip


def refuse_impossible_values(model: pm.Model, held: pm.Model, values: Mapping[str, Any]) -> None:
    """Refuse to hold a variable at what its own distribution cannot take.

    Where that distribution has free parameters of its own nothing is known, and nothing refused.
    """
    constants = {model[name]: held[name] for name in values}
    for name in values:
        rv = model[name]
        try:
            density = pm.logp(rv, held[name])
        except NotImplementedError:  # a distribution of the user's own, without one
            continue
        [density] = graph_replace([density], constants, strict=False)
        if not set(model.basic_RVs).isdisjoint(ancestors([density])):
            continue
        try:
            [found] = interpreted([], [density])()
        except ParameterValueError:  # about its parameters, not about the value
            continue
        if np.isneginf(found).any():
            raise ValueError(f"{held[name].tag.held}: it is no value that {name!r} can take")


def refuse_impossible(model: pm.Model, symbolic: SymbolicModel) -> None:
    """Refuse constants with which a term of the log density does not exist, or is infinite.

    Raises
    ------
    ValueError
        Naming the variable, its entries, and what was held at an impossible value.
    """
    variables = [*symbolic.latents.values(), symbolic.data]
    origin = [np.zeros(v.type.shape) for v in variables]
    asserted = list(_conditions(symbolic.terms, variables))
    holds = interpreted(variables, [part for *_, part in asserted])(*origin)
    for (name, message, part), true in zip(asserted, holds, strict=True):
        if np.all(true):
            continue
        held = [w for v in ancestors([part]) if (w := getattr(v.tag, "held", None))]
        where = _entries(model, symbolic, name, np.logical_not(true))
        raise ValueError(
            f"{held[0]}: {name!r} needs {message}"
            if held
            else f"{name!r} has no density: it needs {message}, which fails{where}"
        )
    # Far from proven, a density may be zero at the origin for good reasons.
    proven = [
        name
        for name, factor in symbolic.factors.items()
        if _quick(symbolic.terms[name])
        and (
            polynomial_degree([factor], variables)[0][0] <= 2
            or curvature([factor], variables)[0] in CONCAVE_KINDS
        )
    ]
    terms = [symbolic.terms[name] for name in proven]
    for name, value in zip(proven, interpreted(variables, terms)(*origin), strict=True):
        wrong = ~np.isfinite(value)
        if wrong.any():
            where = _entries(model, symbolic, name, wrong)
            raise ValueError(
                f"the log density of {name!r} is not finite{where}: a parameter is infinite or "
                "missing there"
            )


def _conditions(
    terms: Mapping[str, Variable], variables: Iterable[Variable]
) -> Iterator[tuple[str, str, Variable]]:
    """What terms assert of constants: the term's name, the words, and a condition an entry."""
    known = list(variables)
    for name, term in terms.items():
        for node in io_toposort([], [term]):
            if isinstance(node.op, CheckParameterValue) and node.op.msg != ZERO_SUM:
                for part in _parts(node.inputs[1:]):
                    if polynomial_degree([part], known)[0][0] == 0:
                        yield name, node.op.msg, part


def _parts(gathered: Iterable[Variable]) -> Iterator[Variable]:
    for v in gathered:
        op: Any = getattr(v.owner, "op", None)
        if type(getattr(op, "scalar_op", op)).__name__ in GATHERED or isinstance(op, All):
            yield from _parts(v.owner.inputs)
        elif v.type.dtype == "bool":
            yield v


def _entries(model: pm.Model, symbolic: SymbolicModel, name: str, wrong: Any) -> str:
    """Which entries of a variable are wrong, where there is one condition an entry."""
    shapes = {n: v.type.shape for n, v in symbolic.latents.items()}
    shape = (shapes | {symbolic.observed: symbolic.data.type.shape}).get(name, np.shape(wrong))
    by_entry = symbolic.terms[name].type.ndim == len(shape)
    if not shape or not by_entry or np.shape(wrong) != shape:
        return ""
    labels = labels_of(model, name, int(np.prod(shape)))[np.ravel(wrong)]
    return f" in {labels.size} entries: {name_some(labels)}"


def _quick(term: Variable) -> bool:
    """Whether a term takes no eigenvalues: those of ``pm.CAR`` are of a dense matrix of all areas.

    Its parameters stand in its precision too, whose entries are checked when they are read.
    """
    ops = (getattr(node.op, "core_op", node.op) for node in io_toposort([], [term]))
    return all(type(op).__name__ != "Eigvalsh" for op in ops)


# One value of so many significant digits says where it comes from; rounder ones take several.
TELLING_DIGITS = 6
SEVERAL = 3
# Probabilities, if constant and data have nothing to do with each other, of what is refused.
CHANCE_OF_TELLING = 1e-3
CHANCE_OF_SEVERAL = 1e-6


def refuse_hidden_data(model: pm.Model, symbolic: SymbolicModel) -> None:
    """Refuse a constant that follows the observed data, or holds some of them.

    The model's own graph is walked, with the graphs inside its operations, and the log density's:
    a distribution of the user's own may keep a constant in either alone.

    Raises
    ------
    NotLinearGaussianError
        Naming the place of the constant, never a value.
    """
    own = model.rvs_to_values[observed_variable(model, symbolic.observed)]
    public = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs}
    roots: list[tuple[str, Variable]] = [
        (f"observed as {name!r}", v) for name, v in public.items() if v is not own
    ]
    rvs = [*model.basic_RVs, *model.deterministics, *model.potentials]
    roots += [(f"in {v.name!r}", v) for v in rvs]
    roots += [(f"in the log density of {n!r}", f) for n, f in symbolic.factors.items()]
    sources = _sources(symbolic.values)
    for node in _with_inner([*(v for _, v in roots), symbolic.target]):
        if node.owner is not None or node is own:
            continue
        value = held_value(node)
        value = getattr(value, "data", None) if hasattr(value, "tocsr") else value
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            continue
        flat = value.ravel().astype(float)
        if _follows(flat, symbolic.values) or any(_holds(flat, *source) for source in sources):
            # The first of the model's variables that has it is the nearest to it.
            places = [words for words, root in roots if node in _with_inner([root])]
            place = places[0] if places else "in the target"
            named = f"{node.name!r} " if node.name else ""
            raise NotLinearGaussianError(
                f"a constant of the model follows the observed {symbolic.observed!r} exactly or "
                f"holds some of its values ({named}of shape {value.shape}, {place}): the target "
                "may depend on the data in a way that cannot be seen; build it from the observed "
                "variable or from the pm.Data that holds it"
            )


def _follows(value: Array, observed: Array) -> bool:
    """The data in their order, or centred, scaled or shifted."""
    if value.size != observed.size or value.size < 2 or np.ptp(observed) == 0:
        return False
    if not np.isfinite(value).all():
        return False
    if value.size == 2:  # any two numbers follow any two: they must be the same
        single = observed.astype(np.float32)
        same = np.array_equal(value, observed) or np.array_equal(value.astype(np.float32), single)
        return same and bool((observed != np.round(observed)).all())
    x, y = value - value.mean(), observed - observed.mean()
    size = np.sqrt((x @ x) * (y @ y))
    return bool(size > 0 and abs(x @ y) >= (1 - 1e-12) * size)


def _sources(observed: Array) -> list[tuple[Array, Array]]:
    """Distinct observed values, and those of their single-precision copies; with their grids."""
    kinds = np.unique(observed[observed != 0])
    if not kinds.size:
        return []
    single = kinds.astype(np.float32)
    coarse = np.maximum(_step(kinds), np.spacing(np.abs(single)).astype(float))
    return [(kinds, _step(kinds)), (single.astype(float), coarse)]


def _step(values: Array) -> Array:
    """The last decimal place that each value, not zero, is written with at its shortest."""
    digits = np.full(values.size, 17.0)
    size = np.floor(np.log10(np.abs(values)))
    for d in range(16, 0, -1):
        scale = 10.0 ** np.abs(d - 1 - size)
        small = d - 1 >= size
        rounded = np.where(small, np.rint(values * scale) / scale, np.rint(values / scale) * scale)
        digits[rounded == values] = d
    return np.asarray(10.0 ** (size + 1 - digits))


def _holds(value: Array, kinds: Array, step: Array) -> bool:
    """Whether a constant has more of the observed values than chance explains.

    A value written to a last decimal place is met by chance as often as that grid is occupied by
    the constant's other values around: a row of whole numbers holds every whole number, while no
    two independent numbers of sixteen digits agree.
    """
    there = np.unique(value[np.isfinite(value)])
    met = np.isin(kinds, there)
    if not met.any():
        return False
    size = np.abs(kinds)
    chance = there.size * step / (2 * size)
    for reach in (size * part for part in (1.0, 0.1, 0.01, 0.001)):
        above = np.searchsorted(there, kinds + reach, side="right")
        others = above - np.searchsorted(there, kinds - reach) - met  # beside the value itself
        chance = np.maximum(chance, others * step / (2 * reach))
    telling = step <= size * 10.0 ** (1 - TELLING_DIGITS)
    return _beyond_chance(chance[telling], met[telling], 1, CHANCE_OF_TELLING) or _beyond_chance(
        chance, met, SEVERAL, CHANCE_OF_SEVERAL
    )


def _beyond_chance(chance: Array, met: np.ndarray, least: int, limit: float) -> bool:
    """Whether too many are met, among the least likely to be, the less likely, and so on."""
    from scipy.special import pdtrc  # not at import: it takes its time

    for most in (1e-9, 1e-6, 1e-4, 1e-2, np.inf):
        count, expected = met[chance <= most].sum(), chance[chance <= most].sum()
        if count >= least and pdtrc(count - 1, expected) < limit:
            return True
    return False


def _with_inner(roots: Sequence[Variable]) -> list[Any]:
    """The ancestors of the roots, and those in the graphs inside their operations."""
    found: list[Any] = []
    for v in ancestors(roots):
        found.append(v)
        if isinstance(getattr(v.owner, "op", None), HasInnerGraph):
            found += _with_inner(v.owner.op.inner_outputs)
    return found


FORMATS = {"DenseFromSparse", "SparseFromDense"}
POSITION = {CARRV: 1, ICARRV: 0}  # of the matrix among the distribution's parameters


def check_neighbours(model: pm.Model) -> None:
    """Refuse a neighbour matrix of ``pm.CAR`` or ``pm.ICAR`` that is no neighbourhood.

    Raises
    ------
    ValueError
        If the matrix is asymmetric, has entries that are negative or not finite, a diagonal, or
        an area without neighbours; the message names areas and their number.
    """
    for rv in model.basic_RVs:
        op: Any = rv.owner.op
        for kind, position in POSITION.items():
            if isinstance(op, kind):
                matrix = op.dist_params(rv.owner)[position]
                _check(rv.name, _value(matrix), _labels(model, rv.name))


def _value(matrix: Any) -> sp.csr_array:
    """The matrix as a sparse array, looking through a change of format."""
    while matrix.owner is not None and type(matrix.owner.op).__name__ in FORMATS:
        matrix = matrix.owner.inputs[0]
    if matrix.owner is not None:
        matrix = matrix.eval()
    else:
        matrix = held_value(matrix)
    return sp.csr_array(matrix, dtype=float)


def _labels(model: pm.Model, name: str) -> list[str] | None:
    dims = model.named_vars_to_dims.get(name, ())
    coords = model.coords.get(dims[-1]) if dims else None
    return None if coords is None else text_labels(coords)


def _check(name: str, W: sp.csr_array, labels: list[str] | None) -> None:
    areas = np.asarray(labels if labels is not None else [str(i) for i in range(W.shape[0])])
    where = f"the neighbour matrix of {name!r}"
    if not (np.isfinite(W.data) & (W.data >= 0)).all():
        raise ValueError(f"{where} has entries that are negative or not finite")
    unequal = abs(W - W.T).tocoo()
    one_sided = np.unique(unequal.row[unequal.data > 1e-12 * max(W.data, default=0.0)])
    if one_sided.size:
        raise ValueError(
            f"{where} is not symmetric: {one_sided.size} areas differ from their neighbours' "
            f"view: {name_some(areas[one_sided])}"
        )
    own = np.flatnonzero(W.diagonal())
    if own.size:
        raise ValueError(f"{where} makes {own.size} areas their own neighbour: "
                         f"{name_some(areas[own])}")  # fmt: skip
    island = np.flatnonzero(W.sum(axis=1) == 0)
    if island.size:
        raise ValueError(
            f"{where} leaves {island.size} areas without neighbours: {name_some(areas[island])}; "
            "join them to their nearest area, or model them outside the spatial effect"
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
