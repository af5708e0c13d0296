"""Evaluate expressions in interpreted NumPy: compiled PyTensor code may use fast-math."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable


def interpreted(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Any:
    """A function that NumPy evaluates node by node.

    PyTensor shows the values that an operation failed on, which may be answers: its own words go
    no further than their first line.
    """
    mode = pytensor.compile.mode.Mode(linker="py", optimizer=None)
    evaluate = pytensor.function(list(inputs), list(outputs), mode=mode, on_unused_input="ignore")

    def evaluated(*values: Any) -> Any:
        try:
            return evaluate(*values)
        except ParameterValueError as error:
            raise ParameterValueError(_first_line(error)) from None
        except Exception as error:
            raise ValueError(
                "PyTensor cannot evaluate the model or its derivatives "
                f"({type(error).__name__}: {_first_line(error)}); write what it names in plainer "
                "operations"
            ) from None

    return evaluated


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
