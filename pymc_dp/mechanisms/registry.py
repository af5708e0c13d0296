"""Which mechanisms there are for a model that has been read."""

from __future__ import annotations

from typing import Any

from pymc_dp._typing import Array
from pymc_dp.mechanisms.fay_herriot import area_draw
from pymc_dp.mechanisms.linear import linear_draw
from pymc_dp.mechanisms.log_concave import LogConcaveReading, sampled
from pymc_dp.mechanisms.protocol import ReleaseMechanism
from pymc_dp.reading.read import LinearReading, Reading
from pymc_dp.record.claims import Mechanism

AnyReading = Reading | LinearReading | LogConcaveReading

MAKERS: dict[type, dict[str, Any]] = {
    Reading: {"joint": area_draw, "independent": area_draw},
    LinearReading: {"joint": linear_draw, "independent": linear_draw},
    LogConcaveReading: {"joint": sampled},
}


def made(
    reading: AnyReading, sensitivity: Any, name: Mechanism, target: str
) -> tuple[ReleaseMechanism, Array]:
    """The mechanism of that name for a reading, and the observed values, 0 where there are none.

    Raises
    ------
    ValueError
        If there is none for this kind of model, or sensitivities do not fit.
    """
    known = MAKERS[type(reading)]
    if name not in known:
        if isinstance(reading, LogConcaveReading):
            raise ValueError("bound='log-concave' is for a joint draw: mechanism='joint'")
        raise ValueError(f"mechanism must be {' or '.join(map(repr, known))}, not {name!r}")
    mechanism, y = known[name](reading, sensitivity, name, target)
    return mechanism, y
