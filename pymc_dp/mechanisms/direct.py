"""The plain way to be private: noise on the direct estimates, then any model at no further cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Never

import numpy as np
import xarray as xr

from pymc_dp import privacy
from pymc_dp._checks import FROM_ANSWERS, check_ledger, declared_bounds, round_up
from pymc_dp._roots import nudged
from pymc_dp._typing import Array
from pymc_dp.mechanisms.calibration import budget_of, refuse_booleans, with_precision
from pymc_dp.mechanisms.fay_herriot import intercept_only
from pymc_dp.mechanisms.lattice import EXPONENT, NORM_SLACK, SPACING, UNIT, price
from pymc_dp.mechanisms.protocol import (
    Charge,
    Draw,
    Request,
    Target,
    Variables,
    floating_draws,
    lattice_draws,
    with_information,
)
from pymc_dp.mechanisms.sensitivity import joined_sensitivity, public_bound
from pymc_dp.models.inputs import area_data
from pymc_dp.posterior.fay_herriot import GaussianPosterior
from pymc_dp.posterior.information import InformationMatrix, statistics_information
from pymc_dp.reading.read import Reading
from pymc_dp.record.claims import (
    Mechanism,
    Method,
    build_record,
    check_assumptions,
    claim_kind,
    claim_words,
    to_json,
)
from pymc_dp.record.figures import DELTAS, ORDERS, joint_figures, worded

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


@dataclass(frozen=True)
class NoisyDirect:
    """The mechanism ``noisy-direct``: noise on the direct estimates, and nothing of a model.

    Attributes
    ----------
    plan : DirectPlan
        With the sensitivities, zero where there is no sample.
    area : ndarray of str of shape (m,)
    sampling_variance : ndarray of shape (m,)
        ``D``, NaN where there is no sample: handed on with the release.
    posterior : GaussianPosterior, optional
        The model's, if it holds sigma_u: the release is smoothed with its prior.
    """

    plan: DirectPlan
    area: np.ndarray = field(repr=False)
    sampling_variance: Array = field(repr=False)
    posterior: GaussianPosterior | None = field(default=None, repr=False)
    name: Mechanism = "noisy-direct"
    noun = "areas"
    once = None
    also_public = ()
    rests_on = ("sampling_variance",)

    @property
    def sensitivity(self) -> Array:
        """``s_j``, zero where there is no sample; (m,)."""
        return self.plan.sensitivity

    @property
    def facts(self) -> dict[str, Any]:
        """What follows from it, and whether its smoothing has covariates to declare."""
        constant = self.posterior is None or intercept_only(self.posterior)
        return {
            "target": "direct estimates",
            "intercept_only": constant,
            "post_processing": POST_PROCESSING,
        }

    @property
    def decimals(self) -> int:
        """Decimals of the public grid: a hundredth of the smallest noise."""
        s = self.sensitivity
        # The smallest noise is that of the smallest sensitivity.
        return -math.floor(math.log10(s[s > 0].min() / self.plan.multiple / 100))

    @property
    def noise_variance(self) -> Array:
        """Variance of the noise and of the rounding to the grid, NaN without sample; (m,)."""
        s = self.sensitivity
        # The grid as a float of its own: 10.0 ** -2 is not 0.01 in the last place everywhere.
        grid = 10.0 ** (-self.decimals)
        noise = (s / self.plan.multiple) ** 2 + grid**2 / 12
        return np.where(s > 0, noise, np.nan)

    @property
    def information(self) -> InformationMatrix:
        """``K``, diagonal: the statistics before any rounding to the grid."""
        m = self.area.size
        return statistics_information(self.plan.norm, np.empty((m, 0)))

    def price(self) -> Array:
        """Price of one draw for a record of each area; (m,)."""
        return price(self.plan.norm, self.sensitivity, self.plan.slack)

    def guarantee(self, *, claim: str, draws: int = 1) -> xr.Dataset:
        """The guarantee: every area costs the same, alone and with all others."""
        each = draws * self.price()
        rho = float(each.max())
        lattice = {"spacing": SPACING, "coordinates": draws * self.plan.moved}
        precision = np.nan_to_num(1 / self.sampling_variance)
        values = {
            "noise_variance": self.noise_variance,
            "sensitivity": self.sensitivity,
            "rho_respondent": each,
            "rho_area": each,
            "rho_unshrunk": draws * self.sensitivity**2 * precision / 2,
        }
        if (smoothed := self._smoothed(np.zeros((1, self.area.size)))) is not None:
            values["theta_smoothed_sd"] = smoothed[1]
        data = xr.Dataset(
            {name: ("area", value) for name, value in values.items()}
            | joint_figures(rho, each, partial(privacy.lattice_epsilon, **lattice)),
            coords={"area": self.area, "order": ORDERS, "delta": DELTAS},
        )
        return with_information(worded(data, claim), self.information)

    def _smoothed(self, release: Array) -> tuple[Array, Array] | None:
        """Mean and sd of theta given noisy estimates under the model's held components."""
        if self.posterior is None:
            return None
        seen = self.sensitivity > 0
        total = np.where(seen, self.sampling_variance + self.noise_variance, 1.0)
        posterior = with_precision(self.posterior, np.where(seen, 1 / total, 0.0))
        mean = np.stack([posterior.mean(np.where(seen, values, 0.0)) for values in release])
        return mean, np.sqrt(posterior.variance)

    def drawing(self, y: Array, draws: int, container: Any) -> Draw:
        """Noisy direct estimates on the publishing grid, smoothed if the model holds sigma_u."""
        rho, seen = float(self.price().max()), self.sensitivity > 0

        def make(charge: Charge) -> Variables:
            noisy = lattice_draws(self.plan, y, rho, draws, charge)
            published = np.stack([self.plan.publish(w) for w in noisy]).round(self.decimals)
            made: Variables = {"noisy_direct": (("area",), np.where(seen, published, np.nan))}
            if (smoothed := self._smoothed(published)) is not None:
                made["theta_smoothed"] = (("area",), smoothed[0].round(self.decimals))
            made["information_h"] = (("area",), self.plan.norm * noisy)
            return made

        return make

    def simulate(self, y: Array, draws: int, rng: np.random.Generator) -> Array:
        """Ordinary floating-point draws of noisy estimates; (draws, m)."""
        seen = self.sensitivity > 0
        return np.where(seen, floating_draws(self.plan, y, draws, rng), np.nan)

    def propagation(self) -> xr.DataArray:
        """The identity where there is a sample: a record moves its own area and no other."""
        return xr.DataArray(
            np.diag((self.sensitivity > 0).astype(float)),
            dims=("area", "area_bis"),
            coords={"area": self.area, "area_bis": self.area},
            name="propagation",
        )

    def calibrated(self, target: Target, method: Method) -> Never:
        """Refused: the noise was chosen for its budget."""
        raise ValueError(
            "noise on the direct estimates is made for a budget: make a new PrivateRelease with "
            "another rho"
        )


def noisy_direct(
    reading: Reading, sensitivity: Any, name: Mechanism, request: Request
) -> tuple[NoisyDirect, Array]:
    """The mechanism for a Fay-Herriot model that has been read, and its direct estimates."""
    request.refuse_options(name)
    precision = reading.posterior.precision
    seen = precision > 0
    s = joined_sensitivity(sensitivity, reading.area, seen)
    bounds = declared_bounds(getattr(sensitivity, "attrs", {}))
    plan = plan_within(
        s,
        public_bound(bounds, precision, reading.estimate[seen]),
        budget_of(request.budget, coordinates=1),
    )
    D = np.divide(1.0, precision, out=np.full(seen.size, np.nan), where=seen)
    posterior = reading.posterior if request.components_held else None
    mechanism = NoisyDirect(plan, reading.area, D, posterior)
    return mechanism, np.where(seen, reading.estimate, 0.0)


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
    check_ledger(ledger)
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
    mechanism = NoisyDirect(plan_within(s, bound, float(rho)), area, data.variance)
    stated = float(mechanism.price().max())

    declared = check_assumptions(assumptions, from_answers=data.from_answers)
    components = {"sampling_variance": "fixed" if "sampling_variance" in declared else "plug-in"}
    claim = claim_kind(components)
    record = build_record(
        draws=1,
        claim=claim,
        claim_words=claim_words(claim),
        mechanism=mechanism.name,
        target="direct estimates",
        variance_components=components,
        unit=str(attrs.get("unit", "record")),
        bounds=declared_bounds(attrs),
        assumptions=declared,
        lattice_exponent=EXPONENT,
        publishing_decimals=mechanism.decimals,
        post_processing=POST_PROCESSING,
    )
    label = f"direct estimates of {area.size} areas"

    def charge() -> None:
        if ledger is not None:
            ledger.charge(stated, label=label, claim=claim, record=record)

    y = np.where(sampled, data.estimate, 0.0)
    made = mechanism.drawing(y, 1, None)(charge)
    noise = mechanism.noise_variance
    result = xr.Dataset(
        {
            "estimate": ("area", made["noisy_direct"][1][0]),
            "variance": ("area", data.variance + noise),
            "noise_variance": ("area", noise),
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


def plan_within(sensitivity: Array, bound: float, rho: float) -> DirectPlan:
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
