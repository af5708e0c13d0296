"""What a mechanism is: public quantities that price a release, make it and say what it is.

A mechanism never holds the answers: they are passed to :meth:`ReleaseMechanism.drawing` alone. To
add one, write its class in a module of its own, enter its maker in
:mod:`pymc_dp.mechanisms.registry` and its words in :data:`pymc_dp.record.claims.MECHANISMS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xarray as xr

from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import Plan, noisy_statistics
from pymc_dp.posterior.information import InformationMatrix
from pymc_dp.record.claims import Mechanism, Method
from pymc_dp.record.figures import LONG_NAMES

# Variables of a release: the dims that follow (chain, draw), and values whose first axis is draws.
Variables = dict[str, tuple[tuple[str, ...], Array]]
Charge = Callable[[], None]  # pays for the noise, or fails
Draw = Callable[[Charge], Variables]  # pays, then makes the noise


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


@dataclass(frozen=True)
class Request:
    """What is asked of a mechanism: the variable to release, a budget, and its own options."""

    target: str = "theta"
    budget: Target = field(default_factory=Target)
    components_held: bool = True  # sigma_u is the model's own constant
    working: float | None = None
    design_prior: Any = None
    caps: Any = None
    importance: Any = None

    def refuse_options(self, name: str, *known: str) -> None:
        """Refuse options that a mechanism does not know."""
        given = {"working", "design_prior", "caps", "importance"} - set(known)
        odd = sorted(option for option in given if getattr(self, option) is not None)
        if odd:
            raise ValueError(f"mechanism {name!r} takes no {', '.join(odd)}")


PLAIN = Request()


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
    def rests_on(self) -> tuple[str, ...]:
        """Variance components that must be public for the claim to be formal."""

    @property
    def also_public(self) -> tuple[str, ...]:
        """What else the formulas take as public: keys of ``assumptions``."""

    @property
    def once(self) -> str | None:
        """Why it makes one draw and no more; None where it may be repeated at its price."""

    @property
    def decimals(self) -> int:
        """Decimals of the public grid on which values are published."""

    @property
    def sampling_variance(self) -> Array | None:
        """``D`` of the data, NaN where there is no sample; None if values are no estimates."""

    def price(self) -> Array:
        """Price (zCDP) of one draw for each kind of record, rounding included."""

    def guarantee(self, *, claim: str, draws: int = 1) -> xr.Dataset:
        """The guarantee of that many draws as a labelled data set; figures carry the claim."""

    def drawing(self, y: Array, draws: int, container: Any) -> Draw:
        """Check all that can fail; what is returned pays and makes the draws."""

    def simulate(self, y: Array, draws: int, rng: np.random.Generator) -> Array:
        """Make ordinary floating-point draws, which are not private; (draws, m)."""

    def propagation(self) -> xr.DataArray:
        """How far the mean of each entry moves per unit of each observed value; dense."""

    def calibrated(
        self, target: Target, method: Method
    ) -> tuple[ReleaseMechanism, xr.Dataset, dict[str, float]]:
        """The least change of the mechanism that meets a target, its report, and the target."""


def lattice_draws(plan: Plan, y: Array, rho: float, draws: int, charge: Charge) -> Array:
    """Statistics with lattice noise, once a draw, where one draw costs ``rho``; (draws, size)."""
    return noisy_statistics(plan, y, math.sqrt(2 * rho), rho, draws, charge)


def nothing_to_pay() -> None:
    """Charge nothing: for audits, on made-up data."""


def floating_draws(plan: Plan, y: Array, draws: int, rng: np.random.Generator) -> Array:
    """What a plan publishes with noise of a pseudo-random generator; (draws, m)."""
    centre = plan.statistic(y)
    return np.stack([plan.publish(centre + rng.normal(size=plan.size)) for _ in range(draws)])


def with_information(data: xr.Dataset, information: InformationMatrix) -> xr.Dataset:
    """A guarantee with the factors of one draw's ``K``, for whoever infers from the release."""
    factor = "information_factor"
    data = data.assign(
        information_own=("area", information.own),
        information_shared=(("area", factor), information.shared),
        information_sign=(factor, information.sign),
    ).assign_coords({factor: np.arange(information.sign.size)})
    for name in ("information_own", "information_shared", "information_sign"):
        data[name].attrs["long_name"] = LONG_NAMES[name]
    return data
