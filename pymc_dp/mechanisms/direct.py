"""The plain way to be private: noise on the direct estimates, then any model at no further cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_dp._checks import FROM_ANSWERS, declared_bounds, round_up
from pymc_dp._roots import nudged
from pymc_dp._typing import Array
from pymc_dp.mechanisms.calibration import refuse_booleans
from pymc_dp.mechanisms.lattice import EXPONENT, NORM_SLACK, SPACING, UNIT, noisy_statistics, price
from pymc_dp.mechanisms.sensitivity import joined_sensitivity, public_bound
from pymc_dp.models.inputs import area_data
from pymc_dp.record.claims import build_record, check_assumptions, claim_kind, claim_words, to_json

if TYPE_CHECKING:
    from pymc_dp.ledger.ledger import PrivacyLedger


@dataclass(frozen=True)
class DirectPlan:
    """Noise on the direct estimates themselves, ``multiple`` standard deviations to one ``s_j``.

    ``S = diag(multiple / s_j)`` and ``L = diag(s_j / multiple)``: an area's noise is in
    proportion to its sensitivity. ``sensitivity`` is zero where there is no sample.
    """

    sensitivity: Array
    bound: float
    multiple: float

    @property
    def size(self) -> int:
        """Number of lattice coordinates, ``m``."""
        return self.sensitivity.size

    @property
    def moved(self) -> int:
        """Coordinates that one record can move: its area's."""
        return 1

    @cached_property
    def norm(self) -> Array:
        """Norm of each column of S; (m,)."""
        s = self.sensitivity
        return np.divide(self.multiple, s, out=np.zeros_like(s), where=s > 0)

    @cached_property
    def slack(self) -> Array:
        """What rounding can add to the distance between two statistics; (m,)."""
        error = UNIT * self.bound * self.norm
        return np.asarray(SPACING * math.sqrt(self.size) + 2 * (1 + NORM_SLACK) * error)

    def statistic(self, y: Array) -> Array:
        """``S y``; (m,)."""
        return self.norm * y

    def publish(self, noisy: Array) -> Array:
        """``L noisy``; (m,)."""
        return self.sensitivity / self.multiple * noisy


POST_PROCESSING = (
    "whatever is computed from these noisy estimates and public quantities, any model, any number "
    "of draws, is post-processing and costs nothing more"
)


def private_direct(
    direct: xr.Dataset,
    *,
    rho: float,
    ledger: PrivacyLedger | None = None,
    assumptions: Mapping[str, str] | None = None,
) -> xr.Dataset:
    r"""Direct estimates with noise, ready for :func:`fay_herriot` and any sampler.

    The noise comes from the operating system through OpenDP and has no seed. The price is charged
    to the ledger before it is drawn. **Every call costs its price again.**

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate``, ``variance`` and ``sensitivity`` on ``area``, as :func:`hajek` returns them.
    rho : float
        zCDP price, in every area.
    ledger : PrivacyLedger, optional
    assumptions : dict, optional
        ``{what: source in words}``, as for :class:`PrivateRelease`. The noise needs no variance
        component, but the sampling variances are handed on in ``variance``: without a source
        for ``sampling_variance`` the claim is conditional, treating them as public.

    Returns
    -------
    xr.Dataset
        On ``area``: ``estimate`` (noisy), ``noise_variance`` and ``variance`` (sampling variance
        plus noise variance), in the unit of the outcome and its square; missing for an area
        without sample. Attributes: ``bounds`` and ``unit`` of the outcome, ``rho``, and the
        record ``privacy``. Noisy estimates may leave the bounds.

    Raises
    ------
    ValueError
        If estimates, variances, sensitivities, the assumptions or rho are unusable, naming areas.
    BudgetExceeded
        If the ledger's budget does not cover the price.

    Notes
    -----
    Noise :math:`N(0, s_j^2 / (2\rho))` costs a record of area j exactly :math:`\rho` and others
    nothing; the Gaussian mechanism for zCDP (Bun and Steinke 2016). The noise lives on a public
    lattice of spacing :math:`2^{-50}` of its standard deviation, whose rounding the price
    includes. Results are rounded to a public grid of at most a hundredth of the smallest noise
    standard deviation, and the variance of that rounding is in ``noise_variance``.

    Examples
    --------
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3]),
    ...         "variance": ("area", [0.001, 0.002]),
    ...         "sensitivity": ("area", [0.02, 0.04]),
    ...     },
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"bounds": [0, 1]},
    ... )
    >>> noisy = private_direct(direct, rho=0.5)
    >>> noisy["variance"].values.round(6)
    array([0.0014, 0.0036])
    """
    refuse_booleans(rho=rho)
    if not (math.isfinite(rho) and rho > 0):
        raise ValueError("rho must be a positive finite number")
    if "sensitivity" not in direct:
        raise ValueError("direct needs the variable 'sensitivity'")
    data = area_data(direct)
    area = np.array(data.area)
    sampled = ~np.isnan(data.variance)
    s = joined_sensitivity(direct["sensitivity"], area, sampled)
    attrs = {**direct.attrs, **direct["sensitivity"].attrs}
    D = np.where(sampled, data.variance, 1.0)
    bound = public_bound(declared_bounds(attrs), sampled / D, data.estimate[sampled])
    plan = _plan(s, bound, float(rho))
    stated = float(price(plan.norm, s, plan.slack).max())

    declared = check_assumptions(assumptions, from_answers=data.from_answers)
    components = {"sampling_variance": "fixed" if "sampling_variance" in declared else "plug-in"}
    claim = claim_kind(components)
    # The smallest noise is that of the smallest sensitivity.
    grid = 10.0 ** math.floor(math.log10(s[sampled].min() / plan.multiple / 100))
    record = build_record(
        draws=1,
        claim=claim,
        claim_words=claim_words(claim),
        mechanism="noisy direct estimates",
        target="direct estimates",
        variance_components=components,
        unit=str(attrs.get("unit", "record")),
        bounds=declared_bounds(attrs),
        assumptions=declared,
        lattice_exponent=EXPONENT,
        publishing_decimals=-round(math.log10(grid)),
        post_processing=POST_PROCESSING,
    )
    label = f"direct estimates of {area.size} areas"

    def charge() -> None:
        if ledger is not None:
            ledger.charge(stated, label=label, claim=claim, record=record)

    y = np.where(sampled, data.estimate, 0.0)
    [noisy] = noisy_statistics(plan, y, math.sqrt(2 * stated), stated, 1, charge)
    published = plan.publish(noisy).round(record["publishing_decimals"])
    noise = (s / plan.multiple) ** 2 + grid**2 / 12
    result = xr.Dataset(
        {
            "estimate": ("area", np.where(sampled, published, np.nan)),
            "variance": ("area", np.where(sampled, data.variance + noise, np.nan)),
            "noise_variance": ("area", np.where(sampled, noise, np.nan)),
        },
        coords={"area": area},
        attrs={name: attrs[name] for name in ("bounds", "outcome_bounds", "unit") if name in attrs}
        | {
            "rho": stated,
            "privacy": to_json(record),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    result["estimate"].attrs["long_name"] = "direct estimate with noise"
    result["variance"].attrs = dict(FROM_ANSWERS) if data.from_answers else {}
    return result


def _plan(sensitivity: Array, bound: float, rho: float) -> DirectPlan:
    """Noise whose price, rounding included, is just within rho."""
    unit = DirectPlan(sensitivity, bound, 1.0)
    lattice = SPACING * math.sqrt(unit.size)
    # The slack of rounding the statistic grows with the multiple, that of the lattice does not.
    by_multiple = float(((1 + NORM_SLACK) * unit.norm * sensitivity + unit.slack - lattice).max())
    multiple = (math.sqrt(2 * rho) - lattice) / by_multiple

    def scaled(part: float) -> DirectPlan:
        return DirectPlan(sensitivity, bound, part * multiple)

    def excess(part: float) -> float:
        plan = scaled(part)
        return float(price(plan.norm, sensitivity, plan.slack).max()) - rho

    part = nudged(excess, 1.0, 0.0) if multiple > 0 else 0.0
    if part == 0:
        raise ValueError(f"no noise on the lattice can be as cheap as rho {round_up(rho)}")
    return scaled(part)
