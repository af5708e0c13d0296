"""Refuse constants that come from the confidential data: copies, parts, and summaries of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors

from pymc_dp._typing import Array
from pymc_dp.reading.symbolic import (
    NotLinearGaussianError,
    SymbolicModel,
    held_value,
    observed_variable,
)

# One value of so many significant digits says where it comes from; rounder ones take several.
TELLING_DIGITS = 6
SEVERAL = 3
# Probabilities, if constant and data have nothing to do with each other, of what is refused.
CHANCE_OF_TELLING = 1e-3
CHANCE_OF_SEVERAL = 1e-6


def refuse_hidden_data(model: pm.Model, symbolic: SymbolicModel) -> None:
    """Refuse a constant that follows the observed data, or holds some of them.

    The model's own graph is walked, with the graphs inside its operations, and the log density's:
    a distribution of the user's own may keep a constant in either alone.

    Raises
    ------
    NotLinearGaussianError
        Naming the place of the constant, never a value.
    """
    own = model.rvs_to_values[observed_variable(model, symbolic.observed)]
    public = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs}
    roots: list[tuple[str, Variable]] = [
        (f"observed as {name!r}", v) for name, v in public.items() if v is not own
    ]
    rvs = [*model.basic_RVs, *model.deterministics, *model.potentials]
    roots += [(f"in {v.name!r}", v) for v in rvs]
    roots += [(f"in the log density of {n!r}", f) for n, f in symbolic.factors.items()]
    sources = _sources(symbolic.values)
    for node in _with_inner([*(v for _, v in roots), symbolic.target]):
        if node.owner is not None or node is own:
            continue
        value = held_value(node)
        value = getattr(value, "data", None) if hasattr(value, "tocsr") else value
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            continue
        flat = value.ravel().astype(float)
        if _follows(flat, symbolic.values) or any(_holds(flat, *source) for source in sources):
            # The first of the model's variables that has it is the nearest to it.
            places = [words for words, root in roots if node in _with_inner([root])]
            place = places[0] if places else "in the target"
            named = f"{node.name!r} " if node.name else ""
            raise NotLinearGaussianError(
                f"a constant of the model follows the observed {symbolic.observed!r} exactly or "
                f"holds some of its values ({named}of shape {value.shape}, {place}): the target "
                "may depend on the data in a way that cannot be seen; build it from the observed "
                "variable or from the pm.Data that holds it"
            )


def _follows(value: Array, observed: Array) -> bool:
    """The data in their order, or centred, scaled or shifted."""
    if value.size != observed.size or value.size < 2 or np.ptp(observed) == 0:
        return False
    if not np.isfinite(value).all():
        return False
    if value.size == 2:  # any two numbers follow any two: they must be the same
        single = observed.astype(np.float32)
        same = np.array_equal(value, observed) or np.array_equal(value.astype(np.float32), single)
        return same and bool((observed != np.round(observed)).all())
    x, y = value - value.mean(), observed - observed.mean()
    size = np.sqrt((x @ x) * (y @ y))
    return bool(size > 0 and abs(x @ y) >= (1 - 1e-12) * size)


def _sources(observed: Array) -> list[tuple[Array, Array]]:
    """Distinct observed values, and those of their single-precision copies; with their grids."""
    kinds = np.unique(observed[observed != 0])
    if not kinds.size:
        return []
    single = kinds.astype(np.float32)
    coarse = np.maximum(_step(kinds), np.spacing(np.abs(single)).astype(float))
    return [(kinds, _step(kinds)), (single.astype(float), coarse)]


def _step(values: Array) -> Array:
    """The last decimal place that each value, not zero, is written with at its shortest."""
    digits = np.full(values.size, 17.0)
    size = np.floor(np.log10(np.abs(values)))
    for d in range(16, 0, -1):
        scale = 10.0 ** np.abs(d - 1 - size)
        small = d - 1 >= size
        rounded = np.where(small, np.rint(values * scale) / scale, np.rint(values / scale) * scale)
        digits[rounded == values] = d
    return np.asarray(10.0 ** (size + 1 - digits))


def _holds(value: Array, kinds: Array, step: Array) -> bool:
    """Whether a constant has more of the observed values than chance explains.

    A value written to a last decimal place is met by chance as often as that grid is occupied by
    the constant's other values around: a row of whole numbers holds every whole number, while no
    two independent numbers of sixteen digits agree.
    """
    there = np.unique(value[np.isfinite(value)])
    met = np.isin(kinds, there)
    if not met.any():
        return False
    size = np.abs(kinds)
    chance = there.size * step / (2 * size)
    for reach in (size * part for part in (1.0, 0.1, 0.01, 0.001)):
        above = np.searchsorted(there, kinds + reach, side="right")
        others = above - np.searchsorted(there, kinds - reach) - met  # beside the value itself
        chance = np.maximum(chance, others * step / (2 * reach))
    telling = step <= size * 10.0 ** (1 - TELLING_DIGITS)
    return _beyond_chance(chance[telling], met[telling], 1, CHANCE_OF_TELLING) or _beyond_chance(
        chance, met, SEVERAL, CHANCE_OF_SEVERAL
    )


def _beyond_chance(chance: Array, met: np.ndarray, least: int, limit: float) -> bool:
    """Whether too many are met, among the least likely to be, the less likely, and so on."""
    from scipy.special import pdtrc  # not at import: it takes its time

    for most in (1e-9, 1e-6, 1e-4, 1e-2, np.inf):
        count, expected = met[chance <= most].sum(), chance[chance <= most].sum()
        if count >= least and pdtrc(count - 1, expected) < limit:
            return True
    return False


def _with_inner(roots: Sequence[Variable]) -> list[Any]:
    """The ancestors of the roots, and those in the graphs inside their operations."""
    found: list[Any] = []
    for v in ancestors(roots):
        found.append(v)
        if isinstance(getattr(v.owner, "op", None), HasInnerGraph):
            found += _with_inner(v.owner.op.inner_outputs)
    return found
