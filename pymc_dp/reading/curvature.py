"""Proof, from a PyTensor graph, that an expression is concave.

A walk with a whitelist, as in :mod:`pymc_dp.reading.degree`: sums and positive multiples of concave
expressions are concave, and so is minus a convex function of an affine expression. What has no
rule is unknown, which proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType

from pymc_dp.reading.degree import RULES, SCALAR_RULES, UNKNOWN, constant_value
from pymc_dp.reading.interpret import interpreted


class Curvature(Enum):
    """How an expression bends in the variables."""

    CONSTANT = 0
    AFFINE = 1
    CONVEX = 2
    CONCAVE = 3
    UNKNOWN = 4


CONSTANT, AFFINE, CONVEX, CONCAVE = list(Curvature)[:4]
NOTHING = Curvature.UNKNOWN
CONCAVE_KINDS = (CONSTANT, AFFINE, CONCAVE)
FLIPPED = {CONVEX: CONCAVE, CONCAVE: CONVEX}
Bends = Sequence[Curvature]


def curvature(outputs: Sequence[Variable], variables: Iterable[Variable]) -> list[Curvature]:
    """How each output bends, jointly in the variables.

    Parameters
    ----------
    outputs : sequence of Variable
    variables : iterable of Variable
        Everything else that has no owner counts as a constant.

    Returns
    -------
    list of Curvature
    """
    known = dict.fromkeys(variables, AFFINE)
    for node in io_toposort([], outputs):
        bends = [known.get(v, CONSTANT) for v in node.inputs]
        found = _bend(node, bends)
        known |= {v: found for v in node.outputs if v not in known and found is not CONSTANT}
    return [known.get(v, CONSTANT) for v in outputs]


def _bend(node: Apply, bends: Bends) -> Curvature:
    if any(isinstance(v.type, RandomType) for v in node.inputs):
        return NOTHING  # a random number drawn inside the graph is not a constant
    if all(b is CONSTANT for b in bends):
        return CONSTANT
    op: Any = node.op
    scalar = op.scalar_op if isinstance(op, Elemwise) else None
    rule = _OWN.get(type(scalar))
    if rule is not None and NOTHING not in bends:
        found = rule(node, bends)
        if found is not NOTHING:
            return found
    if all(b in (CONSTANT, AFFINE) for b in bends):
        return AFFINE if _is_affine(node, bends) else NOTHING
    core = op.core_op if type(op) is Blockwise else op
    if type(core).__name__ in SPREADS and all(b is CONSTANT for b in bends[1:]):
        return bends[0]
    return NOTHING


def _is_affine(node: Apply, bends: Bends) -> bool:
    """Whether the degree walk's rule makes an affine expression of affine ones."""
    op: Any = node.op
    core = op.core_op if type(op) is Blockwise else op
    is_scalar = isinstance(op, Elemwise)
    rule = SCALAR_RULES.get(type(op.scalar_op)) if is_scalar else RULES.get(type(core))
    degrees = [0.0 if b is CONSTANT else 1.0 for b in bends]
    return rule is not None and rule(node, degrees) in (0.0, 1.0) and UNKNOWN not in degrees


# Sums and changes of shape: they keep the curvature of their first input.
SPREADS = {
    "Alloc", "CheckParameterValue", "DimShuffle", "ExpandDims", "Reshape", "SpecifyShape",
    "Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1", "Sum", "TensorFromScalar",
    "ScalarFromTensor",
}  # fmt: skip


def _sum(node: Apply, bends: Bends) -> Curvature:
    """The one kind of curvature among the terms; two kinds prove nothing."""
    kinds = {b for b in bends if b is not CONSTANT}
    curved = kinds - {AFFINE}
    if not curved:
        return AFFINE
    return curved.pop() if len(curved) == 1 else NOTHING


def _difference(node: Apply, bends: Bends) -> Curvature:
    return _sum(node, [bends[0], FLIPPED.get(bends[1], bends[1])])


def _negative(node: Apply, bends: Bends) -> Curvature:
    return FLIPPED.get(bends[0], bends[0])


def _product(node: Apply, bends: Bends) -> Curvature:
    varying = [b for b in bends if b is not CONSTANT]
    if len(varying) != 1:
        return NOTHING
    [bend] = varying
    if bend is AFFINE:
        return AFFINE
    signs = [_sign(v) for v, b in zip(node.inputs, bends, strict=True) if b is CONSTANT]
    sign = int(np.prod(signs))
    return NOTHING if sign == 0 else bend if sign > 0 else FLIPPED[bend]


def _quotient(node: Apply, bends: Bends) -> Curvature:
    return _product(node, bends) if bends[1] is CONSTANT else NOTHING


def _convex_of_affine(node: Apply, bends: Bends) -> Curvature:
    return CONVEX if bends[0] is AFFINE else NOTHING


def _convex_and_increasing(node: Apply, bends: Bends) -> Curvature:
    return CONVEX if bends[0] in (AFFINE, CONVEX) else NOTHING


def _power(node: Apply, bends: Bends) -> Curvature:
    exponent = constant_value(node.inputs[1]) if bends[1] is CONSTANT else None
    square = exponent is not None and set(exponent.ravel().tolist()) == {2.0}
    return CONVEX if square and bends[0] is AFFINE else NOTHING


def _log_one_plus(node: Apply, bends: Bends) -> Curvature:
    """``log(1 + exp(x))``, as the logistic distribution has it."""
    inner = node.inputs[0].owner
    exponential = inner is not None and isinstance(getattr(inner.op, "scalar_op", None), ps.Exp)
    # exp of an affine expression is convex; of a convex one too, and the whole is still convex.
    return CONVEX if exponential and bends[0] is CONVEX else NOTHING


def _largest(node: Apply, bends: Bends) -> Curvature:
    return CONVEX if set(bends) <= {CONSTANT, AFFINE, CONVEX} else NOTHING


def _smallest(node: Apply, bends: Bends) -> Curvature:
    return CONCAVE if set(bends) <= {CONSTANT, AFFINE, CONCAVE} else NOTHING


def _fill(node: Apply, bends: Bends) -> Curvature:
    return bends[1]


def _sign(variable: Variable) -> int:
    """1 or -1 where all of a constant expression has that sign, else 0."""
    [value] = interpreted([], [variable])()
    if (value >= 0).all():
        return 1
    return -1 if (value <= 0).all() else 0


_OWN: dict[type, Callable[[Apply, Bends], Curvature]] = {
    ps.Add: _sum,
    ps.Sub: _difference,
    ps.Neg: _negative,
    ps.Mul: _product,
    ps.TrueDiv: _quotient,
    ps.Abs: _convex_of_affine,
    ps.Sqr: _convex_of_affine,
    ps.Pow: _power,
    ps.Exp: _convex_and_increasing,
    ps.Softplus: _convex_and_increasing,
    ps.Log1p: _log_one_plus,
    ps.ScalarMaximum: _largest,
    ps.ScalarMinimum: _smallest,
    ps.Second: _fill,
}
