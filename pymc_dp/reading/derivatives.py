"""Products with second derivatives of a log density, and gradients, in interpreted NumPy.

No compilation and no rewriting: float64 as NumPy has it. What does not depend on the direction of
a product is evaluated once, at the origin, and stays a constant afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Sum

from pymc_dp._typing import Array
from pymc_dp.reading.degree import degrees
from pymc_dp.reading.interpret import interpreted
from pymc_dp.reading.symbolic import SymbolicModel, fresh_input

# Operations, linear in their first input, through which constant terms are looked for.
PASS_THROUGH = {"Alloc", "CheckParameterValue", "DimShuffle", "TensorFromScalar"}


def derivatives(
    symbolic: SymbolicModel,
) -> tuple[Callable[[Array], Array], Callable[[Array, Array], Array], Callable[[Array], Array]]:
    """Functions of flat vectors: latents in the model's order, then data; then the target.

    Returns
    -------
    product : callable
        Takes a direction to the product with the Hessian of the log density and with the slopes
        of the target, at the origin.
    product_at : callable
        The same at a point, its second argument.
    gradient : callable
        Takes a point to the gradient of the log density, and the target itself.
    """
    with pytensor.config.change_flags(traceback__limit=0):  # no stack trace a node: time saved
        return _derivatives(symbolic)


def _derivatives(symbolic: SymbolicModel) -> tuple[Any, Any, Any]:
    variables = [*symbolic.latents.values(), symbolic.data]
    target = symbolic.target.ravel()
    joint = sum(symbolic.factors.values(), pt.as_tensor(0.0))
    along = slopes([joint], target, variables)

    shapes = [v.type.shape for v in variables]
    sizes = [int(np.prod(s)) for s in shapes]
    cuts = np.cumsum(sizes)[:-1]

    def split(flat: Array) -> list[Array]:
        return [q.reshape(s) for q, s in zip(np.split(flat, cuts), shapes, strict=True)]

    def pack(out: Sequence[Any]) -> Array:
        return np.concatenate([np.ravel(np.asarray(v, dtype=float)) for v in out])

    gradient_fn = interpreted(variables, specialised([*along.gradients, target], {}, variables))
    origin = split(np.zeros(sum(sizes)))
    zero_weight = np.zeros(pack(gradient_fn(*origin)).size - sum(sizes))

    outputs = specialised(along.products, {}, along.inputs)
    at_origin = dict(zip([*variables, along.weight], [*origin, zero_weight], strict=True))
    product_fn = interpreted(along.direction, specialised(outputs, at_origin, along.direction))
    product_at_fn = interpreted(along.inputs, outputs)

    def product(vector: Array) -> Array:
        return pack(product_fn(*split(vector)))

    def product_at(vector: Array, point: Array) -> Array:
        return pack(product_at_fn(*split(point), *split(vector), zero_weight))

    def gradient(point: Array) -> Array:
        return pack(gradient_fn(*split(point)))

    return product, product_at, gradient


@dataclass(frozen=True)
class Expressions:
    """Derivatives as expressions: ``gradients`` of terms, and ``products`` along a direction.

    ``products`` holds each term's Hessian times the direction, by variable, and last the slopes
    of the target, which do not depend on ``weight`` (any vector of the target's size will do).
    """

    variables: list[Any]
    direction: list[Any]
    weight: Any
    gradients: list[Any]
    products: list[Any]

    @property
    def inputs(self) -> list[Any]:
        """Inputs of the products: a point, a direction, and the weight."""
        return [*self.variables, *self.direction, self.weight]


def slopes(terms: Sequence[Variable], target: Any, variables: list[Any]) -> Expressions:
    """Derivatives of terms of a log density, and of the target, in the variables."""
    direction = [fresh_input(f"d_{v.name}", v.type.shape) for v in variables]
    weight = pt.vector("weight", dtype="float64")

    def slope(scalar: Any) -> tuple[list[Any], Any]:
        first = pt.grad(scalar, variables, disconnected_inputs="ignore")
        return first, sum((g * d).sum() for g, d in zip(first, direction, strict=True))

    gradients, products = [], []
    for term in terms:
        first, along = slope(without_constants(term, variables))
        gradients += first
        products += pt.grad(along, variables, disconnected_inputs="ignore")
    _, pushed = slope((target * weight).sum())
    products.append(pt.grad(pushed, weight, disconnected_inputs="ignore"))
    return Expressions(variables, direction, weight, gradients, products)


def specialised(
    outputs: Sequence[Any], values: dict[Variable, Array], free: Sequence[Variable]
) -> list[Any]:
    """The outputs as functions of `free` alone, everything else evaluated at `values`."""
    depends = set(free)
    nodes = list(io_toposort([], outputs))
    for node in nodes:
        if depends.intersection(node.inputs):
            depends.update(node.outputs)
    needed = [v for node in nodes if depends.intersection(node.outputs) for v in node.inputs]
    fixed = [
        v
        for v in dict.fromkeys([*needed, *outputs])
        if v not in depends and not isinstance(v, Constant)
    ]
    found = interpreted(list(values), fixed)(*values.values()) if fixed else []
    done: dict[Any, Any] = {
        v: v.type.constant_type(v.type, v.type.filter(x)) for v, x in zip(fixed, found, strict=True)
    }
    for node in nodes:
        if not depends.intersection(node.outputs):
            continue
        inputs = [done.get(v, v) for v in node.inputs]
        filled = _filled(node, inputs)
        if filled is not None:
            done[node.outputs[0]] = filled
            continue
        new = node.clone_with_new_inputs(inputs)
        done |= dict(zip(node.outputs, new.outputs, strict=True))
    return [done.get(v, v) for v in outputs]


def _filled(node: Any, inputs: Sequence[Any]) -> Any:
    """What a fill of known shape comes to: NumPy has no such function, it would be looped."""
    if not isinstance(getattr(node.op, "scalar_op", None), ps.Second):
        return None
    out, (like, value) = node.outputs[0], inputs
    shape = like.data.shape if isinstance(like, Constant) else out.type.shape
    if None in shape or value.type.dtype != out.type.dtype:
        return None
    if value.type.shape == shape:
        return value
    return pt.add(value, pt.constant(np.zeros(shape, dtype=out.type.dtype)))


def without_constants(scalar: Variable, variables: list[Any]) -> Variable:
    """The expression without terms that are constant in the variables.

    Their derivatives are zero, but interpreting a gradient evaluates them: the log determinant
    of ``pm.CAR`` takes the eigenvalues of a dense matrix, beyond any memory for many areas.
    """
    known = degrees([scalar], variables)

    def varies(v: Variable) -> bool:
        return known.get(v, 0.0) > 0

    done: dict[Variable, Variable] = {}

    def strip(v: Any) -> Any:
        if v not in done:
            done[v] = _strip(v)
        return done[v]

    def _strip(v: Any) -> Any:
        node = v.owner
        if node is None or not varies(v):
            return v
        op, inputs = node.op, list(node.inputs)
        name = type(getattr(op, "scalar_op", op)).__name__
        if isinstance(op, Elemwise) and name in {"Add", "Sub"}:
            signs = [1.0, -1.0] if name == "Sub" else [1.0] * len(inputs)
            kept = [(w, strip(u)) for w, u in zip(signs, inputs, strict=True) if varies(u)]
            terms = [u if w > 0 else -u for w, u in kept]
            total = terms[0] if len(terms) == 1 else pt.add(*terms)
            return total if total.type.broadcastable == v.type.broadcastable else v
        if (isinstance(op, Elemwise) and name in {"Mul", "Neg"}) or isinstance(op, Sum):
            if sum(map(varies, inputs)) == 1:
                changed = [strip(u) if varies(u) else u for u in inputs]
                return node.clone_with_new_inputs(changed).outputs[0]
        if name == "Alloc" and inputs[0].type.shape == v.type.shape and None not in v.type.shape:
            return strip(inputs[0])  # its shape may be asked of the constants to be left out
        if name in PASS_THROUGH and varies(inputs[0]):
            first, rest = strip(inputs[0]), inputs[1:]
            if name == "Alloc":  # PyMC asks the expression itself for sizes that dims do not tell
                rest = graph_replace(rest, {inputs[0]: first}, strict=False)
            return node.clone_with_new_inputs([first, *rest]).outputs[0]
        return v

    return strip(scalar)
