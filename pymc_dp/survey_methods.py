"""How a sampling variance is to be computed: the method, and the numbers and columns it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pymc_dp.survey_checks import Bounds, Roles
from pymc_dp.survey_designs import Singleton, check_singleton
from pymc_dp.survey_replicates import (
    REPLICATE_METHODS,
    Replicates,
    check_replicate_types,
    check_replicates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

Variance = Literal["linearized", "kish", "sdr", "brr", "fay", "jk1", "jkn", "bootstrap"]


@dataclass(frozen=True)
class Method:
    """A method that exists, with what it needs and nothing that belongs to another."""

    name: str
    rate: float = math.nan
    design_factor: float = 1.0
    singleton: Singleton = "fail"
    fay_rho: float | None = None
    replicates: Replicates | None = None

    def attributes(self, roles: Roles) -> dict[str, Any]:
        """What the result records of it, in types that every file format keeps."""
        record: dict[str, Any] = {"variance_method": self.name}
        if self.name == "kish":
            record |= {"rate": self.rate, "design_factor": self.design_factor}
        if roles.has_design:
            names = {"strata": roles.strata, "cluster": roles.cluster}
            record |= {role: " ".join(columns) for role, columns in names.items() if columns}
            record["singleton"] = self.singleton
        if roles.fpc is not None:
            record["fpc"] = roles.fpc
        if self.replicates is not None:
            record["n_replicates"] = len(self.replicates.columns)
            record["replicate_center"] = self.replicates.center
            scale = self.replicates.scale
            same = bool((scale == scale[0]).all())
            record["replicate_scale"] = float(scale[0]) if same else scale.tolist()
        if self.fay_rho is not None:
            record["fay_rho"] = self.fay_rho
        return record


def check_method(
    variance: str,
    roles: Roles,
    bounds: Bounds,
    schema: Any,
    *,
    rate: float | None,
    design_factor: float,
    singleton: Singleton,
    replicate_weights: str | Sequence[str] | None,
    replicate_scale: ArrayLike | None,
    replicate_center: str,
    fay_rho: float | None,
) -> Method:
    """Accept a method that exists, with what it needs and nothing that belongs to another."""
    if variance not in ("linearized", "kish", *REPLICATE_METHODS):
        others = ", ".join(map(repr, REPLICATE_METHODS))
        raise ValueError(
            f"variance must be 'linearized' or 'kish', or with replicate_weights one of {others}; "
            f"got {variance!r}"
        )
    if variance != "kish" and (rate is not None or design_factor != 1):
        raise ValueError("rate and design_factor belong to variance='kish'")
    if variance != "linearized" and roles.has_design:
        raise ValueError("strata and cluster belong to variance='linearized'")
    if variance != "linearized" and roles.fpc is not None:
        raise ValueError("fpc belongs to variance='linearized'")
    check_singleton(singleton)
    if singleton != "fail" and not roles.has_design:
        raise ValueError("singleton belongs to strata and cluster")
    if variance in REPLICATE_METHODS:
        replicates = check_replicates(
            schema, variance, replicate_weights, replicate_scale, replicate_center, fay_rho
        )
        check_replicate_types(schema, replicates.columns)
        return Method(variance, replicates=replicates, fay_rho=fay_rho)
    given = (replicate_weights, replicate_scale, fay_rho)
    if any(value is not None for value in given) or replicate_center != "estimate":
        others = ", ".join(map(repr, REPLICATE_METHODS))
        raise ValueError(f"replicate weights and what goes with them belong to variance={others}")
    if variance == "linearized":
        return Method(variance, singleton=singleton)
    if (bounds.low, bounds.high) != (0, 1):
        raise ValueError("variance='kish' is P (1 - P) / n_eff and needs bounds (0, 1)")
    if rate is None or not 0 < rate < 1:
        raise ValueError("variance='kish' needs a public rate between 0 and 1, both excluded")
    if not 0 < design_factor < math.inf:
        raise ValueError("design_factor must be positive and finite")
    return Method(variance, rate=float(rate), design_factor=float(design_factor))
