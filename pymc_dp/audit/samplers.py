"""What an audit attacks: releases of made-up data, through the path that a release uses.

The direct estimates that a release holds are replaced or not touched, never read.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import noisy_statistics
from pymc_dp.release.release import PrivateRelease

Sampler = Callable[[Array, int], Array]


"""Direct estimates (m,) and a number of draws in, that many vectors (draws, m) out."""
AT_ONCE = 2_000_000  # numbers asked of a sampler at a time


def published_values(release: PrivateRelease) -> Sampler:
    """Draw as ``release.draw`` does, on other data: a copy of the release runs its own code."""
    rho = float(release.guarantee["rho"])

    def sample(y: Array, draws: int) -> Array:
        other = copy.copy(release)
        other._y = y
        return other._noisy_draws(draws, draws * rho)

    return sample


def lattice_values(release: PrivateRelease) -> Sampler:
    """Draw the lattice values that are mapped to what a release publishes."""
    rho = float(release.guarantee["rho"])
    plan = release._fay_herriot.plan(release._bound)

    def sample(y: Array, draws: int) -> Array:
        return noisy_statistics(plan, y, math.sqrt(2 * rho), rho, draws)

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


def moved_by(release: PrivateRelease, j: int) -> Array:
    """Column of M: how far the mean of each area moves per unit of ``y_j``; (m,)."""
    posterior = release._fay_herriot.posterior
    column = posterior.left @ posterior.right[j]
    column[j] += posterior.gamma[j]
    return column


def best_direction(release: PrivateRelease, j: int) -> Array:
    """``N^-1 M e_j``: the log likelihood ratio of a record of area j is linear along it; (m,).

    ``N`` is the covariance of the noise. For a posterior draw, ``M = N D^-1``: only the area's own
    value counts. With independent noise added to a draw, Woodbury's formula.
    """
    law, column = release._fay_herriot, moved_by(release, j)
    if law.mechanism == "independent":
        variance = law.variance
        return np.divide(column, variance, out=np.zeros_like(column), where=variance > 0)
    if law.extra == 0:
        return np.where(np.arange(column.size) == j, 1.0, 0.0)
    left, own = law.posterior.left, law.posterior.area_variance + law.extra
    rows = left / own[:, None]
    shared = np.linalg.solve(np.eye(left.shape[1]) + left.T @ rows, rows.T @ column)
    return np.asarray(column / own - rows @ shared)


def prices_by_area(release: PrivateRelease) -> Array:
    """What the release states for a record of each area (zCDP); (m,)."""
    name = "rho_respondent" if release.mechanism == "joint" else "rho_independent"
    return np.asarray(release.guarantee[name].values)


def place_of(release: PrivateRelease, area: str | None, *, with_record: bool = True) -> int:
    """Position of an area; by default of the one whose records pay most."""
    if area is None:
        return int(np.argmax(prices_by_area(release)))
    found = np.flatnonzero(release._area == str(area))
    if not found.size:
        raise ValueError(f"the release has no area {area!r}")
    place = int(found[0])
    if with_record and not release._sensitivity[place] > 0:
        raise ValueError(f"area {area!r} has no sample, so no record of it can change")
    return place


def made_up(release: PrivateRelease, given: Any) -> Array:
    """Direct estimates to audit on, in the model's order; zero where there is no sample."""
    area, sampled = release._area, release._sensitivity > 0
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
