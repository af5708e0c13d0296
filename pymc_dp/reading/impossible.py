"""Refuse constants that leave a model without a density: a scale of zero, an infinite variance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.math import All

from pymc_dp._checks import name_some
from pymc_dp.reading.curvature import CONCAVE_KINDS, curvature
from pymc_dp.reading.degree import ZERO_SUM, polynomial_degree
from pymc_dp.reading.interpret import interpreted
from pymc_dp.reading.symbolic import SymbolicModel, labels_of

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
    expressions = [*symbolic.terms.items(), (symbolic.target_name, symbolic.target)]
    asserted = list(_conditions(expressions, variables))
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
            polynomial_degree([factor], variables)[0] <= 2
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
    expressions: Iterable[tuple[str, Variable]], variables: Iterable[Variable]
) -> Iterator[tuple[str, str, Variable]]:
    """What is asserted of constants: the expression's name, the words, a condition an entry."""
    known = list(variables)
    for name, expression in expressions:
        for node in io_toposort([], [expression]):
            if isinstance(node.op, CheckAndRaise) and node.op.msg != ZERO_SUM:
                for part in _parts(node.inputs[1:]):
                    if polynomial_degree([part], known)[0] == 0:
                        yield name, node.op.msg or "an assertion", part


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
    by_entry = name in symbolic.terms and symbolic.terms[name].type.ndim == len(shape)
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
