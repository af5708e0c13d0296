"""Which mechanisms there are for a model that has been read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymc_dp._typing import Array
from pymc_dp.mechanisms.direct import noisy_direct
from pymc_dp.mechanisms.fay_herriot import area_draw
from pymc_dp.mechanisms.linear import linear_draw
from pymc_dp.mechanisms.log_concave import LogConcaveReading, read_log_concave, sampled
from pymc_dp.mechanisms.protocol import ReleaseMechanism, Request
from pymc_dp.reading.read import LinearReading, Reading
from pymc_dp.record.claims import Bound, Mechanism

AnyReading = Reading | LinearReading | LogConcaveReading

MAKERS: dict[type, dict[str, Any]] = {
    Reading: {"joint": area_draw, "independent": area_draw, "noisy-direct": noisy_direct},
    LinearReading: {"joint": linear_draw, "independent": linear_draw},
    LogConcaveReading: {"joint": sampled},
}


# How a model is read under a bound, in place of the proof that it is linear-Gaussian.
READERS: dict[Bound, Callable[..., AnyReading]] = {"log-concave": read_log_concave}
# Mechanisms whose noise takes no variance component of the effects.
WITHOUT_COMPONENTS = ("noisy-direct",)
MADE_FOR_A_BUDGET = ("noisy-direct",)


def made(
    reading: AnyReading, sensitivity: Any, name: Mechanism, request: Request
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
    mechanism, y = known[name](reading, sensitivity, name, request)
    return mechanism, y
