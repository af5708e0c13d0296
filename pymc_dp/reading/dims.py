"""Take the named dims off the expressions of a ``pymc.dims`` model, as PyTensor itself does.

PyTensor defines an operation on named dims by the operations on plain arrays that it becomes
before anything is computed: what is proven of these is proven of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable, clone_get_equiv
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, graph_inputs


def has_dims(v: Variable) -> bool:
    """Whether an expression has named dims; by name, since few models load what defines them."""
    return any(kind.__name__ == "XTensorType" for kind in type(v.type).__mro__)


def with_dims(plain: Any, like: Any) -> Any:
    """A plain array with the dims of another expression, where that has any."""
    if not has_dims(like):
        return plain
    from pytensor.xtensor import as_xtensor

    return as_xtensor(plain, dims=like.type.dims)


def constant_like(values: Any, like: Any) -> Any:
    """Values to put in a variable's place: with its type, and with its dims where it has any."""
    array = np.asarray(values, dtype=like.dtype)
    if not has_dims(like):
        return array
    from pytensor.xtensor.type import xtensor_shared

    return xtensor_shared(array, dims=like.type.dims, name=like.name)


def without_dims(outputs: Sequence[Any]) -> list[Any]:
    """The outputs as plain arrays; operations on named dims that PyTensor cannot lower are left."""
    if not any(map(has_dims, ancestors(outputs))):
        return list(outputs)
    plain = [v.values if has_dims(v) else v for v in outputs]
    inputs = list(graph_inputs(plain))
    # Rewriting works in place: the model's own graph stays as it is, and inputs stay themselves.
    copied = clone_get_equiv(inputs, plain, copy_inputs=False, copy_orphans=False)
    graph = FunctionGraph(outputs=[copied[v] for v in plain], clone=False)
    in2out(_without_view).rewrite(graph)  # what a Deterministic is: it would hide what lies behind
    rewrite_graph(graph, include=("lower_xtensor",))
    return list(graph.outputs)


@node_rewriter([ViewOp])  # type: ignore[untyped-decorator]
def _without_view(graph: FunctionGraph, node: Apply) -> list[Variable]:
    return [node.inputs[0]]
