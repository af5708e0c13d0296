"""What an audit attacks: releases of made-up data, through the path that a release uses.

The direct estimates that a release holds are replaced or not touched, never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp._typing import Array
from pymc_dp.mechanisms.fay_herriot import AreaDraw
from pymc_dp.mechanisms.protocol import lattice_draws, nothing_to_pay
from pymc_dp.release.release import PrivateRelease

Sampler = Callable[[Array, int], Array]


"""Direct estimates (m,) and a number of draws in, that many vectors (draws, m) out."""
AT_ONCE = 2_000_000  # numbers asked of a sampler at a time


def audited(release: PrivateRelease) -> AreaDraw:
    """The mechanism to attack.

    Raises
    ------
    ValueError
        If it is none that audits know.
    """
    mechanism = release.specification
    if not isinstance(mechanism, AreaDraw):
        raise ValueError("audits take Fay-Herriot models: one direct estimate an area")
    return mechanism


def published_values(mechanism: AreaDraw) -> Sampler:
    """Draw on other data by the code that makes a release."""

    def sample(y: Array, draws: int) -> Array:
        return mechanism.drawing(y, draws, None)(nothing_to_pay)["theta"][1]

    return sample


def lattice_values(mechanism: AreaDraw) -> Sampler:
    """Draw the lattice values that are mapped to what a release publishes."""
    rho = float(mechanism.price().max())

    def sample(y: Array, draws: int) -> Array:
        return lattice_draws(mechanism.plan, y, rho, draws, nothing_to_pay)

    return sample


def drawn(sample: Sampler, y: Array, draws: int, *, wider: bool = False) -> Array:
    """Call a sampler and check what it gives: (draws, m), or more columns if `wider`."""
    values = np.asarray(sample(y.copy(), draws), dtype=float)
    m = y.size
    fits = values.ndim == 2 and (values.shape[1] >= m if wider else values.shape[1] == m)
    if not fits or values.shape[0] != draws:
        raise ValueError(
            f"the sampler returned shape {values.shape} for {draws} draws of {m} areas"
        )
    if not np.isfinite(values).all():
        raise ValueError("the sampler returned values that are not finite")
    return values


def projected(sample: Sampler, y: Array, draws: int, direction: Array) -> Array:
    """Inner products of draws with a direction, a memory-sized block of draws at a time."""
    step = max(1, AT_ONCE // y.size)
    sizes = [min(step, draws - start) for start in range(0, draws, step)]
    return np.concatenate([drawn(sample, y, size) @ direction for size in sizes])


def place_of(mechanism: AreaDraw, area: str | None, *, with_record: bool = True) -> int:
    """Position of an area; by default of the one whose records pay most."""
    if area is None:
        return int(np.argmax(mechanism.price()))
    found = np.flatnonzero(mechanism.area == str(area))
    if not found.size:
        raise ValueError(f"the release has no area {area!r}")
    place = int(found[0])
    if with_record and not mechanism.sensitivity[place] > 0:
        raise ValueError(f"area {area!r} has no sample, so no record of it can change")
    return place


def made_up(mechanism: AreaDraw, given: Any) -> Array:
    """Direct estimates to audit on, in the model's order; zero where there is no sample."""
    area, sampled = mechanism.area, mechanism.sensitivity > 0
    if given is None:
        return np.zeros(area.size)
    if isinstance(given, xr.DataArray) and "area" in given.coords:
        given = given.assign_coords(area=given["area"].values.astype(str))
        given = given.reindex(area=area).values  # an area that is absent becomes NaN
    y = np.asarray(given, dtype=float)
    if y.shape != area.shape:
        raise ValueError(f"estimate has shape {y.shape} for {area.size} areas")
    bad = sampled & ~np.isfinite(y)
    if bad.any():
        raise ValueError(
            f"estimate is missing or not finite in {bad.sum()} areas: {name_some(area[bad])}"
        )
    return np.where(sampled, y, 0.0)


def at_least(name: str, value: int, least: int) -> int:
    """Check a number of draws or guesses."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}")
    return int(value)


def positive(name: str, value: float) -> float:
    """Check a claim."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite")
    return float(value)


def error_allowed(confidence: float) -> float:
    """Probability that some lower bound may exceed the truth."""
    if not 0.5 <= confidence < 1:
        raise ValueError("confidence must be at least 0.5 and below 1")
    return 1.0 - float(confidence)


def probability(delta: float) -> float:
    """Check a delta."""
    if not 0 < delta < 1:
        raise ValueError("delta must lie between 0 and 1")
    return float(delta)
