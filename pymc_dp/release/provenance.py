"""Where the constants of a release come from, and whether they are still what was priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp._typing import Array
from pymc_dp.mechanisms.sensitivity import joined_sensitivity
from pymc_dp.record.origin import (
    ANSWERS,
    DECLARED,
    HAJEK_SENSITIVITY,
    UNDECLARED,
    FromAnswers,
    digest,
)


@dataclass(frozen=True)
class Watched:
    """A constant of a model, and a digest of its values when the release was priced."""

    name: str
    variable: Any
    digest: str


def watched(model: pm.Model) -> tuple[Watched, ...]:
    """Every constant of a model that :func:`pm.set_data` can change."""
    return tuple(Watched(str(v.name), v, _digest(v)) for v in model.data_vars)


def refuse_changed(constants: tuple[Watched, ...]) -> None:
    """Refuse a draw after the model's data were set to others.

    Raises
    ------
    ValueError
        Naming the constants.
    """
    changed = [c.name for c in constants if _digest(c.variable) != c.digest]
    if changed:
        raise ValueError(
            f"{name_some(changed)} of the model changed after the release was priced: make a new "
            "PrivateRelease, which prices what is there now"
        )


def constant_origin(model: pm.Model, name: str) -> str | None:
    """What is known of a constant that a builder made; None if it made none of that name."""
    for variable in model.data_vars:
        if variable.name == name and (origin := getattr(variable.tag, "origin", None)) is not None:
            return str(origin.of(variable.get_value()))
    return None


def sigma_u_from_answers(model: pm.Model, fixed: Mapping[str, Any]) -> bool:
    """Whether a component is held at what an estimate from the answers returned."""
    held = any(isinstance(value, FromAnswers) for value in fixed.values())
    return held or constant_origin(model, "sigma_u") == ANSWERS


def left_sensitivity(model: pm.Model) -> xr.DataArray | None:
    """The sensitivities that came with the direct estimates of a model."""
    for variable in model.data_vars:
        if (found := getattr(variable.tag, "sensitivity", None)) is not None:
            return found
    return None


def sensitivity_origin(given: Any, left: xr.DataArray | None, area: np.ndarray, used: Array) -> str:
    """Where the sensitivities of a release come from.

    Parameters
    ----------
    given : Any
        As the user gave them, with their attributes.
    left : DataArray or None
        Those that came with the direct estimates.
    area : ndarray of str of shape (m,)
    used : ndarray of shape (m,)
        Those that are priced, zero where there is no sample.

    Raises
    ------
    ValueError
        If some are below those that came with the direct estimates, for the same unit.
    """
    if left is None:
        return DECLARED
    own = joined_sensitivity(left, area, used > 0)
    below = used < own * (1 - 1e-9)
    if not below.any():
        return HAJEK_SENSITIVITY if np.array_equal(used, own) else DECLARED
    unit, other = (str(getattr(s, "attrs", {}).get("unit", "record")) for s in (left, given))
    if unit == other:
        raise ValueError(
            f"the sensitivity given is below the one that came with the direct estimates in "
            f"{below.sum()} areas: {name_some(area[below])}; leave the argument out to take that "
            "one, or make the model from direct.drop_vars('sensitivity') if it does not apply"
        )
    return f"{DECLARED}: below that of the direct estimates, whose unit is {unit!r}"


def origins(
    model: pm.Model, declared: Mapping[str, str], components: Mapping[str, str], sensitivity: str
) -> dict[str, str]:
    """Where sampling variances, sigma_u and sensitivities come from, as far as anybody knows."""
    found = {"sensitivity": sensitivity}
    for name in components:
        known = constant_origin(model, name)
        unknown = DECLARED if name in declared else UNDECLARED
        found[name] = known if known is not None and known != DECLARED else unknown
    return found


def _digest(variable: Any) -> str:
    values = np.asarray(variable.get_value(borrow=True))
    return digest(values) if values.dtype.kind in "biuf" else str(values.shape)
