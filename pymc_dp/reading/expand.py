"""Write out operations that hold graphs of their own: functions in a graph, and loops.

``pt.einsum``, ``pt.pad``, ``pt.linalg.kron`` and any ``OpFromGraph`` are their inner graph with
the inputs put in; a ``scan`` of a known number of steps is that many copies of its inner graph.
Both compute the same function, so that a proof about what is written out is one about the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scan.op import Scan

from pymc_dp.reading.degree import degrees
from pymc_dp.reading.interpret import interpreted

# A longer loop stays one operation, of which nothing is proven: written out it would be a graph
# too deep for derivatives.
MOST_STEPS = 100


def written_out(outputs: Sequence[Variable], variables: Iterable[Any]) -> list[Any]:
    """The outputs without functions in the graph and loops, where these can be written out.

    Parameters
    ----------
    outputs : sequence of Variable
    variables : iterable of Variable
        The indeterminates, of known shape; the number of a loop's steps must not depend on them.
    """
    known = list(variables)
    if not any(_holds_graph(v) for v in ancestors(outputs)):
        return list(outputs)
    return _rebuilt(outputs, {}, known, set(known))


def _holds_graph(v: Variable) -> bool:
    return v.owner is not None and (isinstance(v.owner.op, OpFromGraph | Scan) or _is_real(v.owner))


def _is_real(node: Apply) -> bool:
    """The real part of a real number, which is that number, and has no derivative in PyTensor."""
    kind = type(getattr(node.op, "scalar_op", None))
    return kind is ps.Real and np.dtype(node.inputs[0].type.dtype).kind == "f"


def _rebuilt(
    outputs: Sequence[Variable],
    given: Mapping[Any, Any],
    variables: Sequence[Any],
    varying: set[Any],
) -> list[Any]:
    """The outputs with other inputs, written out where they vary with the variables.

    ``varying`` holds the expressions in which the variables are, and gets the new ones.
    """
    done = dict(given)
    for node in io_toposort(list(given), outputs):
        inputs = [done.get(v, v) for v in node.inputs]
        varies = not varying.isdisjoint(inputs)
        new = _written_out(node, inputs, variables, varying) if varies else None
        if new is None and not hasattr(node, "clone_with_new_inputs"):
            new = node.op.make_node(*inputs).outputs  # a frozen inner graph: all of it made anew
        elif new is None and any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            new = node.clone_with_new_inputs(inputs, strict=False).outputs
        if new is not None:
            done |= dict(zip(node.outputs, new, strict=True))
        if varies:
            varying.update(done.get(v, v) for v in node.outputs)
    return [done.get(v, v) for v in outputs]


def _written_out(
    node: Apply, inputs: Sequence[Any], variables: Sequence[Any], varying: set[Any]
) -> Sequence[Any] | None:
    op: Any = node.op
    # A subclass that computes something else than its inner graph is left as it is.
    if isinstance(op, OpFromGraph) and type(op).perform is OpFromGraph.perform:
        given = dict(zip(op.inner_inputs, inputs, strict=True))
        return _rebuilt(op.inner_outputs, given, variables, varying)
    if _is_real(node):
        return inputs
    return _unrolled(op, inputs, variables, varying) if isinstance(op, Scan) else None


def _unrolled(
    op: Any, inputs: Sequence[Any], variables: Sequence[Any], varying: set[Any]
) -> list[Any] | None:
    """Outputs of a loop, each step a copy of the inner graph; None for kinds that are not known.

    An outer input of a state is a buffer that begins with its initial values and has room for one
    more a step; the output is that buffer filled.
    """
    info = op.info
    if info.as_while or info.n_mit_mot or info.n_untraced_sit_sot:
        return None
    states = [*op.outer_mitsot(inputs), *op.outer_sitsot(inputs)]
    lags = [
        [-int(tap) for tap in taps] for taps in (*info.mit_sot_in_slices, *info.sit_sot_in_slices)
    ]
    rooms = [b.shape[0] for b in states] + list(op.outer_nitsot(inputs))
    known = _whole_numbers([inputs[0], *rooms], variables)
    if known is None or not 0 < known[0] <= MOST_STEPS:
        return None
    steps, rooms = known[0], known[1:]
    starts = [max(taps) for taps in lags]
    if rooms != [steps + start for start in starts] + [steps] * info.n_nit_sot:
        return None
    paths = [[b[i] for i in range(n)] for b, n in zip(states, starts, strict=True)]
    made: list[list[Any]] = [[] for _ in range(info.n_nit_sot)]
    sequences, constant = op.outer_seqs(inputs), list(op.outer_non_seqs(inputs))
    for t in range(steps):
        past = [path[-lag] for path, taps in zip(paths, lags, strict=True) for lag in taps]
        values = [*(s[t] for s in sequences), *past, *constant]
        varying.update(values)  # entries of sequences and states are new expressions
        given = dict(zip(op.inner_inputs, values, strict=True))
        out = _rebuilt(op.inner_outputs, given, variables, varying)
        for path, value in zip([*paths, *made], out, strict=True):
            path.append(value)
    return [pt.stack(path) for path in [*paths, *made]]


def _whole_numbers(numbers: Sequence[Any], variables: Sequence[Any]) -> list[int] | None:
    """Values of expressions that the variables' values have no part in; None where they may."""
    known = degrees(numbers, variables)
    if any(known.get(v, 0.0) > 0 for v in numbers if isinstance(v, Variable)):
        return None
    symbolic = [pt.as_tensor(v) for v in numbers]
    origin = [np.zeros(v.type.shape) for v in variables]
    return [int(v) for v in interpreted(variables, symbolic)(*origin)]
