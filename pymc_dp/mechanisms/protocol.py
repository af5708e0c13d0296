"""What a mechanism is: public quantities that price a release, make it and say what it is.

A mechanism never holds the answers: they are passed to :meth:`ReleaseMechanism.drawing` alone. To
add one, write its class in a module of its own, enter its maker in
:mod:`pymc_dp.mechanisms.registry` and its words in :data:`pymc_dp.record.claims.MECHANISMS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xarray as xr

from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import Plan, noisy_statistics
from pymc_dp.record.claims import Mechanism, Method

# Variables of a release: the dims that follow (chain, draw), and values whose first axis is draws.
Variables = dict[str, tuple[tuple[str, ...], Array]]


@dataclass(frozen=True)
class Target:
    """A budget as it was asked for: ``rho``, or ``epsilon`` at ``delta``; else None."""

    rho: float | None = None
    epsilon: float | None = None
    delta: float | None = None

    @property
    def given(self) -> bool:
        """Whether anything was asked for."""
        return any(value is not None for value in (self.rho, self.epsilon, self.delta))

    def asked(self) -> dict[str, float]:
        """The target as it was given, in one of the two ways."""
        values = {"rho": self.rho, "epsilon": self.epsilon, "delta": self.delta}
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            if np.asarray(value).dtype.kind == "b":
                raise ValueError(f"{name} must be a positive finite number, not True or False")
        if set(given) not in ({"rho"}, {"epsilon", "delta"}):
            raise ValueError("give the target as rho, or as epsilon and delta")
        return {name: float(value) for name, value in given.items()}


class ReleaseMechanism(Protocol):
    """A way of making a release, with the public quantities that it takes."""

    @property
    def name(self) -> Mechanism:
        """As :class:`PrivateRelease` takes it and the record has it."""

    @property
    def area(self) -> np.ndarray:
        """Labels of what is released; (m,)."""

    @property
    def noun(self) -> str:
        """What the labels name: areas, or entries."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the record says of this mechanism and of no other."""

    @property
    def once(self) -> str | None:
        """Why it makes one draw and no more; None where it may be repeated at its price."""

    @property
    def decimals(self) -> int:
        """Decimals of the public grid on which values are published."""

    def price(self) -> Array:
        """Price (zCDP) of one draw for each kind of record, rounding included."""

    def guarantee(self, *, claim: str, draws: int = 1) -> xr.Dataset:
        """The guarantee of that many draws as a labelled data set; figures carry the claim."""

    def drawing(self, y: Array, draws: int, container: Any) -> Callable[[], Variables]:
        """Check all that can fail, and return what makes the draws once they are paid for."""

    def simulate(self, y: Array, draws: int, rng: np.random.Generator) -> Array:
        """Make ordinary floating-point draws, which are not private; (draws, m)."""

    def propagation(self) -> xr.DataArray:
        """How far the mean of each entry moves per unit of each observed value; dense."""

    def calibrated(
        self, target: Target, method: Method
    ) -> tuple[ReleaseMechanism, xr.Dataset, dict[str, float]]:
        """The least change of the mechanism that meets a target, its report, and the target."""


def lattice_draws(plan: Plan, y: Array, rho: float, draws: int) -> Array:
    """Statistics with lattice noise, once a draw, where one draw costs ``rho``; (draws, size)."""
    return noisy_statistics(plan, y, math.sqrt(2 * rho), rho, draws)


def floating_draws(plan: Plan, y: Array, draws: int, rng: np.random.Generator) -> Array:
    """What a plan publishes with noise of a pseudo-random generator; (draws, m)."""
    centre = plan.statistic(y)
    return np.stack([plan.publish(centre + rng.normal(size=plan.size)) for _ in range(draws)])
