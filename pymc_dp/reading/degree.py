"""Proof, from a PyTensor graph, that an expression is a polynomial of low degree.

A static walk with a whitelist: every operation either has a rule or counts as unknown, and
unknown means infinite degree. So a bound is a proof, and a failure is only "not proven". A test
of derivatives could not replace it: comparisons, rounding and casts have zero derivatives.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType

from pymc_dp._checks import name_some

UNKNOWN = math.inf
ZERO_SUM = "mean(value, axis=n_zerosum_axes) = 0"
Rule = Callable[[Apply, Sequence[float]], float]


@dataclass(frozen=True)
class Obstacle:
    """The first operation that takes an expression beyond what is asked of it.

    ``operation`` is its class, ``variables`` the names of the indeterminates that go into it, and
    ``product`` says that it is a product of such, so that the degree is known and too high.
    """

    operation: str
    variables: tuple[str, ...]
    product: bool

    def __str__(self) -> str:
        """The operation and its variables in words."""
        names = name_some(self.variables)
        if not self.product:
            return f"{self.operation} of {names}" if names else self.operation
        power = len(self.variables) == 1
        return f"{self.operation}, a {'power' if power else 'product'} of {names}"


def polynomial_degree(outputs: Sequence[Variable], variables: Iterable[Variable]) -> list[float]:
    """Bound the joint polynomial degree of each output in the given variables.

    Parameters
    ----------
    outputs : sequence of Variable
    variables : iterable of Variable
        The indeterminates; everything else that has no owner counts as a constant.

    Returns
    -------
    list of float
        One bound an output, infinite where nothing is proven.
    """
    known = degrees(outputs, variables)
    return [known.get(v, 0.0) for v in outputs]


def degrees(outputs: Sequence[Variable], variables: Iterable[Variable]) -> dict[Variable, float]:
    """Bounds of every expression in the graph of the outputs; a constant may be left out."""
    known = dict.fromkeys(variables, 1.0)
    for node in io_toposort([], outputs):
        if all(v in known for v in node.outputs):
            continue
        found = _degree(node, [known.get(v, 0.0) for v in node.inputs])
        if found > 0:
            known |= {v: found for v in node.outputs if v not in known}
    return known


def first_obstacle(
    output: Variable, variables: Mapping[str, Variable], most: float
) -> Obstacle | None:
    """What keeps an output from a degree of at most `most`; None if nothing does.

    Parameters
    ----------
    output : Variable
    variables : mapping of str to Variable
        The indeterminates by name.
    most : float
    """
    known = degrees([output], variables.values())
    if known.get(output, 0.0) <= most:
        return None
    for node in io_toposort([], [output]):
        entering = max((known.get(v, 0.0) for v in node.inputs), default=0.0)
        if entering <= most < max(known.get(v, 0.0) for v in node.outputs):
            break
    product = not any(known.get(v, 0.0) == UNKNOWN for v in node.outputs)
    if product:
        node = _multiplication(node, known)
    parts = set(ancestors(node.inputs))
    names = tuple(name for name, v in variables.items() if v in parts)
    return Obstacle(_describe(node), names, product)


def _multiplication(node: Apply, known: Mapping[Variable, float]) -> Apply:
    """What was multiplied before a power was taken of it, which says more than the power."""
    while True:
        [first, *more] = _varying(node, known)
        if more or known[first] < 2 or first.owner is None:
            return node
        node = first.owner
        while not _raises(node, known):  # it passes on the degree of an input, two or more
            node = max(_varying(node, known), key=lambda v: known[v]).owner


def _varying(node: Apply, known: Mapping[Variable, float]) -> list[Variable]:
    return [v for v in dict.fromkeys(node.inputs) if known.get(v, 0.0) > 0]


def _raises(node: Apply, known: Mapping[Variable, float]) -> bool:
    """Whether an operation's degree is above that of each of its inputs."""
    return max(known.get(v, 0.0) for v in node.outputs) > max(
        known.get(v, 0.0) for v in node.inputs
    )


def _degree(node: Apply, degrees: Sequence[float]) -> float:
    if any(isinstance(v.type, RandomType) for v in node.inputs):
        return UNKNOWN  # a random number drawn inside the graph is not a constant
    if max(degrees, default=0.0) == 0:
        return 0.0
    if UNKNOWN in degrees and not _ignores_unknown(node):
        return UNKNOWN
    op: Any = node.op
    if isinstance(op, Elemwise):
        rule = SCALAR_RULES.get(type(op.scalar_op))
    else:
        core = op.core_op if type(op) is Blockwise else op
        rule = RULES.get(type(core))
    return UNKNOWN if rule is None else rule(node, degrees)


def _ignores_unknown(node: Apply) -> bool:
    """A shape of unknown values is a constant only if their type tells it: they may be a count."""
    known: Any = type(node.op) in _SHAPES and None not in node.inputs[0].type.shape
    return known or getattr(node.op, "msg", None) == ZERO_SUM


def _describe(node: Apply) -> str:
    op: Any = node.op
    inner = getattr(op, "scalar_op", getattr(op, "core_op", op))
    return type(inner).__name__


# --- rules: degree of the output, given those of the inputs -------------------------------------
def _largest(node: Apply, d: Sequence[float]) -> float:
    return max(d)


def _total(node: Apply, d: Sequence[float]) -> float:
    return sum(d)


def _first_only(node: Apply, d: Sequence[float]) -> float:
    """Linear in the first input; the others (indices, shapes, axes) must be constants."""
    return d[0] if not any(d[1:]) else UNKNOWN


def _second_only(node: Apply, d: Sequence[float]) -> float:
    return d[1] if d[0] == 0 else UNKNOWN


def _after_first(node: Apply, d: Sequence[float]) -> float:
    return max(d[1:]) if d[0] == 0 else UNKNOWN


def _first_two(node: Apply, d: Sequence[float]) -> float:
    return max(d[:2]) if not any(d[2:]) else UNKNOWN


def _fill(node: Apply, d: Sequence[float]) -> float:
    return d[1]  # only the shape of the first input matters


def _shape(node: Apply, d: Sequence[float]) -> float:
    return 0.0


def _square(node: Apply, d: Sequence[float]) -> float:
    return 2 * d[0]


def _power(node: Apply, d: Sequence[float]) -> float:
    exponents = constant_value(node.inputs[1])
    if d[1] or exponents is None or not set(exponents.ravel().tolist()) <= {0.0, 1.0, 2.0}:
        return UNKNOWN
    return float(exponents.max()) * d[0]


def _cast(node: Apply, d: Sequence[float]) -> float:
    source, target = (np.dtype(v.type.dtype) for v in (node.inputs[0], node.outputs[0]))
    widens = source.kind == target.kind == "f" and target.itemsize >= source.itemsize
    return d[0] if widens else UNKNOWN


def _cumulative(node: Apply, d: Sequence[float]) -> float:
    op: Any = node.op
    return d[0] if op.mode == "add" else UNKNOWN


def _check(node: Apply, d: Sequence[float]) -> float:
    """An assertion must be about constants: about a latent, it would cut its support.

    ``pm.ZeroSumNormal`` asserts what its own transformation makes true for every value.
    """
    op: Any = node.op
    return d[0] if op.msg == ZERO_SUM or not any(d[1:]) else UNKNOWN


def _assertion(node: Apply, d: Sequence[float]) -> float:
    """What is asserted must be about constants, as above; the value itself passes unchanged."""
    return d[0] if not any(d[1:]) else UNKNOWN


def constant_value(variable: Variable) -> np.ndarray | None:
    """The value of a constant, looking through broadcasting; None if it is not one."""
    while variable.owner is not None:
        op: Any = variable.owner.op
        if type(op).__name__ not in {"DimShuffle", "TensorFromScalar"}:
            return None
        variable = variable.owner.inputs[0]
    return np.asarray(variable.data, dtype=float) if isinstance(variable, Constant) else None


SCALAR_RULES: dict[type, Rule] = {
    ps.Add: _largest,
    ps.Sub: _largest,
    ps.Neg: _largest,
    ps.Identity: _largest,
    ps.Mul: _total,
    ps.TrueDiv: _first_only,
    ps.Sqr: _square,
    ps.Pow: _power,
    ps.Cast: _cast,
    ps.Second: _fill,
    ps.Switch: _after_first,  # a choice by constants is linear in what is chosen
}


def _rules(rule: Rule, *names: str) -> dict[type, Rule]:
    """Rules for the classes that this version of PyTensor or PyMC has, wherever it keeps them."""
    found = {}
    for name in names:
        module, _, attribute = name.rpartition(".")
        with contextlib.suppress(ModuleNotFoundError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a class that has moved
            cls = getattr(import_module(module), attribute, None)
            if cls is not None:
                found[cls] = rule
    return found


_SHAPES = _rules(_shape, "pytensor.tensor.shape.Shape", "pytensor.tensor.shape.Shape_i")
RULES: dict[type, Rule] = {
    **_SHAPES,
    **_rules(
        _largest,
        "pytensor.tensor.elemwise.DimShuffle",
        "pytensor.compile.ops.ViewOp",
        "pytensor.tensor.math.Sum",
        "pytensor.tensor.basic.Join",  # an axis, where it is an input, is an integer: degree 0
        "pytensor.tensor.basic.MakeVector",
        "pytensor.tensor.basic.TensorFromScalar",
        "pytensor.tensor.basic.ScalarFromTensor",
        # Entries of its matrices, each in one place, beside zeros.
        "pytensor.tensor.slinalg.BlockDiagonal",
        "pytensor.tensor.linalg.BlockDiagonal",
        "pytensor.tensor.linalg.constructors.BlockDiagonal",
    ),
    **_rules(
        _first_only,
        "pytensor.tensor.shape.Reshape",
        "pytensor.tensor.shape.SpecifyShape",
        "pytensor.tensor.reshape.JoinDims",
        "pytensor.tensor.reshape.SplitDims",
        "pytensor.tensor.basic.Alloc",
        "pytensor.tensor.basic.Split",
        "pytensor.tensor.basic.ExtractDiag",
        # Each entry as often as constants say.
        "pytensor.tensor.extra_ops.Repeat",
        "pytensor.tensor.subtensor.Subtensor",
        "pytensor.tensor.subtensor.AdvancedSubtensor",
        "pytensor.tensor.subtensor.AdvancedSubtensor1",
    ),
    **_rules(_check, "pymc.logprob.utils.CheckParameterValue"),
    **_rules(
        _assertion,
        "pytensor.raise_op.Assert",
        "pytensor.raise_op.CheckAndRaise",
    ),
    **_rules(
        _first_two,
        "pytensor.tensor.subtensor.IncSubtensor",
        "pytensor.tensor.subtensor.AdvancedIncSubtensor",
        "pytensor.tensor.subtensor.AdvancedIncSubtensor1",
    ),
    **_rules(
        _total,
        "pytensor.tensor.math.Dot",
        "pytensor.tensor.math.BatchedDot",
        "pytensor.sparse.basic.StructuredDot",
        "pytensor.sparse.math.StructuredDot",
        "pytensor.sparse.math.Dot",
        # Sums of products of an entry of one with an entry of the other.
        "pytensor.tensor.signal.conv.Convolve1d",
    ),
    **_rules(
        _second_only,
        "pytensor.tensor.slinalg.SolveTriangular",
        "pytensor.tensor.linalg.SolveTriangular",
        "pytensor.tensor.slinalg.CholeskySolve",
        "pytensor.tensor.linalg.CholeskySolve",
        "pytensor.tensor.slinalg.Solve",
        "pytensor.tensor.linalg.Solve",
    ),
    **_rules(_cumulative, "pytensor.tensor.extra_ops.CumOp"),
}
