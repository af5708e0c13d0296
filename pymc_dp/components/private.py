r"""A private estimate of sigma_u: a way to a formal claim without a public value.

The moment estimate of ``A = sigma_u^2`` is ``S^2 - tr(QD) / (m - p)`` with
``S^2 = y'Qy / (m - p)`` and ``Q = I - X (X'X)^-1 X'``. Only ``S^2`` looks at outcomes; it gets
Gaussian noise on a public lattice, and all else is post-processing. ``Q`` is never formed: with an
orthonormal basis ``B`` of the covariates it is ``I - BB'``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._checks import AREAS_PER_UNIT, areas_per_unit, check_ledger, name_some
from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import EXPONENT, NORM_SLACK, SPACING, UNIT, noisy_statistics
from pymc_dp.models.inputs import AreaData, area_data, direct_sensitivity
from pymc_dp.record.claims import build_record, check_assumptions, claim_kind, claim_words, to_json
from pymc_dp.survey.columns import Bounds, check_bounds

if TYPE_CHECKING:
    from pymc_dp.ledger.ledger import PrivacyLedger

# The sums of |Q_ij|, and the departure of the computed B from orthonormality, are good to this.
SLACK = 1e-9
STATISTIC = (
    "y'Qy / (m - p), y clipped to the bounds and centred at their middle, Q the projection off the "
    "covariates; sigma_u^2 is it less tr(QD) / (m - p), and at least 0"
)


def private_sigma_u(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    rho: float,
    bounds: Sequence[float] | None = None,
    ledger: PrivacyLedger | None = None,
    assumptions: Mapping[str, str] | None = None,
) -> xr.Dataset:
    r"""Estimate the standard deviation of the area effects privately.

    Each call draws new noise and costs `rho`. The noise comes from the operating system through
    OpenDP and has no seed.

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate``, ``variance`` and ``sensitivity`` on dim ``area``, as :func:`hajek` returns
        them. The sampling variances must be public for a formal claim: ``variance="kish"``.
    formula, covariates
        As for :func:`fay_herriot`; public.
    rho : float
        Price in zCDP.
    bounds : pair of float, optional
        Public range to which the direct estimates are clipped, narrower than the outcome's declared
        range if it is known that no area lies outside: the noise is proportional to its width.
        By default the declared range.
    ledger : PrivacyLedger, optional
        Charged before the noise is drawn.
    assumptions : dict, optional
        As for :class:`PrivateRelease`: the claim is formal when ``sampling_variance`` has a
        declared source, else conditional.

    Returns
    -------
    xr.Dataset
        ``sigma_u`` (unit of the outcome), ``between_variance`` (its square, before it is raised to
        0 where negative), ``noise_sd`` (standard deviation of the noise in the latter) and ``rho``;
        by ``area``, ``rho_respondent``: the price for a record of that area. Attribute ``privacy``
        is the record as JSON, and ``source`` the words for ``assumptions["sigma_u"]`` of the
        release that uses the value.

    Raises
    ------
    ValueError
        If the inputs are unusable (see :func:`fay_herriot`), sensitivities are missing, all zero
        or, for units in one area, larger than the outcome's range, no range is declared, rho is
        not positive and finite, or there are no more areas with a sample than coefficients.
    BudgetExceeded
        If the ledger's budget does not cover rho.

    Notes
    -----
    The moment estimate of Prasad and Rao (1990),
    :math:`A = (y'Qy - \operatorname{tr}(QD)) / (m - p)` with
    :math:`Q = I - X (X'X)^{-1} X'` over the areas with a sample. When :math:`y_j` moves by at
    most :math:`s_j` inside a range of width R, it moves by at most
    :math:`s_j (R \sum_i |Q_{ij}| - Q_{jj} s_j) / (m - p)` (with an intercept; derivation under
    ``pymc_dp.components.private``), and the largest over areas sets the noise. A record of area j
    pays :math:`\rho (\Delta_j / \Delta_{max})^2`. Where units have records in up to k areas
    (``spanning="bound"``), :math:`\Delta_j` is the largest sum of such changes over area j and
    k - 1 others, each at :math:`s_i / k`. The value is unbiased before it is raised to
    0. All areas weigh the same in it, so it is less precise than REML where sampling variances
    differ.

    The sums over :math:`|Q_{ij}|` take :math:`O(m^2 p)` time with covariates: about a second for
    10,000 areas.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> rng = np.random.default_rng(1)
    >>> m = 2000
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", 0.2 + rng.normal(0, np.hypot(0.05, 0.02), m)),
    ...         "variance": ("area", np.full(m, 0.02**2)),
    ...         "sensitivity": ("area", np.full(m, 0.01)),
    ...     },
    ...     coords={"area": np.arange(m).astype(str)},
    ...     attrs={"bounds": [0.0, 1.0]},
    ... )
    >>> found = private_sigma_u(
    ...     direct, rho=0.5, assumptions={"sampling_variance": "known design, national rate"}
    ... )
    >>> bool(abs(found["sigma_u"] - 0.05) < 0.005)
    True
    >>> found.attrs["source"]
    'estimated privately at rho = 0.5 (private_sigma_u)'
    """
    check_ledger(ledger)
    price = _price(rho)
    data = area_data(direct, formula, covariates)
    declared = check_assumptions(assumptions, from_answers=data.from_answers)
    if "sigma_u" in declared:
        raise ValueError("sigma_u is estimated here from the data and cannot be declared public")
    sensitivity = direct_sensitivity(direct, data)
    at = data.sampled
    statistic = MomentStatistic(_basis(data), _range(bounds, data))
    areas = _areas_per_unit(direct, sensitivity[at], data)
    change = np.zeros(sensitivity.size)
    change[at] = statistic.unit_change(sensitivity[at], areas)
    largest = float(change.max())
    if not largest > 0:
        raise ValueError("no area has a positive sensitivity: there is nobody to protect")
    sd = _noise_sd(statistic, largest, price)

    components = {"sampling_variance": "fixed" if "sampling_variance" in declared else "plug-in"}
    claim = claim_kind(components)
    words = f"estimated privately at rho = {price!r} (private_sigma_u)"
    unit = direct["sensitivity"].attrs.get("unit", direct.attrs.get("unit", "record"))
    record = build_record(
        claim=claim,
        claim_words=claim_words(claim),
        mechanism="discrete Gaussian noise",
        target="sigma_u",
        variance_components=components,
        statistic=STATISTIC,
        formula=formula,
        areas=int(at.size),
        bounds=[statistic.bounds.low, statistic.bounds.high],
        unit=str(unit),
        areas_per_unit=areas,
        rho=price,
        noise_sd=sd,
        lattice_exponent=EXPONENT,
        assumptions=declared,
        draws=1,
    )
    label = f"sigma_u of {at.size} areas"

    def charge() -> None:
        if ledger is not None:
            ledger.charge(price, label=label, claim=claim, record=record)

    plan, y = MomentPlan(statistic, sd), data.estimate[at]
    noisy = plan.publish(noisy_statistics(plan, y, math.sqrt(2 * price), price, 1, charge)[0])[0]
    expected = float(statistic.diagonal @ data.variance[at]) / statistic.contrasts
    variance = float(noisy) - expected

    result = xr.Dataset(
        {
            "sigma_u": ((), math.sqrt(max(variance, 0.0))),
            "between_variance": ((), variance),
            "noise_sd": ((), sd),
            "rho": ((), price),
            "rho_respondent": ("area", price * (change / largest) ** 2),
        },
        coords={"area": list(data.area)},
        attrs={
            "privacy": to_json(record),
            "source": words,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    result["sigma_u"].attrs["long_name"] = "private estimate of the standard deviation of effects"
    result["between_variance"].attrs["long_name"] = "private moment estimate of sigma_u^2"
    result["noise_sd"].attrs["long_name"] = "standard deviation of the noise in between_variance"
    result["rho"].attrs["long_name"] = "zCDP price of the estimate"
    result["rho_respondent"].attrs["long_name"] = "zCDP price for a record of the area"
    for name in ("rho", "rho_respondent"):
        result[name].attrs["claim"] = claim_words(claim)
    return result


def _price(rho: float) -> float:
    value = math.nan if isinstance(rho, bool | str | bytes) else float(rho)
    if not 1e-20 <= value < math.inf:
        raise ValueError("rho must be a positive finite number, at least 1e-20")
    return value


def _range(bounds: Sequence[float] | None, data: AreaData) -> Bounds:
    given = data.bounds if bounds is None else bounds
    if given is None:
        raise ValueError(
            "private_sigma_u needs bounds: the direct estimates do not say the outcome's declared "
            "range (attribute 'bounds'), and none is computed from data"
        )
    return check_bounds(given)


def _areas_per_unit(direct: xr.Dataset, sensitivity: Array, data: AreaData) -> int:
    """In how many areas a unit may have records; refused where the attributes cannot be true."""
    areas = areas_per_unit(direct)
    if areas == 1 and data.bounds is not None:
        width = data.bounds[1] - data.bounds[0]
        wide = sensitivity > width * (1 + 1e-6)
        if wide.any():
            raise ValueError(
                f"sensitivity is larger than the outcome's range in {wide.sum()} areas: "
                f"{name_some(np.array(data.area)[data.sampled][wide])}; if it was raised for units "
                f"in several areas, its attribute {AREAS_PER_UNIT!r} must say in how many at most"
            )
    return areas


def _basis(data: AreaData) -> Array:
    """Orthonormal basis of the covariates over the areas with a sample."""
    X = data.design[data.sampled]
    m, p = X.shape
    if m <= p:
        raise ValueError(
            f"sigma_u cannot be estimated: {m} areas with a sample for {p} coefficients"
        )
    if p == 1 and np.ptp(X) == 0:
        return np.full((m, 1), 1 / math.sqrt(m))
    return np.asarray(np.linalg.qr(X / np.abs(X).max(axis=0))[0])


def _noise_sd(statistic: MomentStatistic, change: float, rho: float) -> float:
    """Noise for which two computed, rounded statistics cost at most rho.

    In units of the noise they lie ``change / sd`` apart, plus the errors of both, plus one step of
    the lattice for the rounding of both.
    """
    error = statistic.rounding + UNIT * statistic.largest
    distance = math.sqrt(2 * rho) * (1 - NORM_SLACK) - SPACING
    return (change * (1 + SLACK) + 2 * error) / distance


BLOCK = 4_000_000  # numbers of Q looked at together


@dataclass(frozen=True, repr=False)
class MomentStatistic:
    """``S^2 = z'Qz / (m - p)`` of direct estimates z, centred at the middle of public bounds.

    Attributes
    ----------
    basis : ndarray of shape (m, p)
        Orthonormal basis B of the covariates over the areas with a sample.
    bounds : Bounds
        Public range to which direct estimates are clipped.
    """

    basis: Array
    bounds: Bounds

    @property
    def contrasts(self) -> int:
        """``m - p``."""
        m, p = self.basis.shape
        return m - p

    @cached_property
    def diagonal(self) -> Array:
        """``Q_jj``; (m,)."""
        return np.asarray(1 - (self.basis**2).sum(axis=1))

    @cached_property
    def absolute_sums(self) -> Array:
        """``sum_i |Q_ij|``; (m,). An intercept alone needs no sum, else ``O(m^2 p)`` in blocks."""
        m, p = self.basis.shape
        if p == 1 and np.ptp(self.basis) == 0:
            return np.full(m, 2 * (1 - 1 / m))
        step = max(1, BLOCK // m)
        rows = [self.basis[i : i + step] for i in range(0, m, step)]
        sums = np.concatenate([np.abs(some @ self.basis.T).sum(axis=1) for some in rows])
        own = (self.basis**2).sum(axis=1)
        return np.asarray(sums - own + np.abs(self.diagonal))

    def value(self, y: Array) -> float:
        """``S^2``, its sums rounded once."""
        half = self.bounds.width / 2
        z = np.clip(np.clip(y, self.bounds.low, self.bounds.high) - self.bounds.middle, -half, half)
        coordinates = [math.fsum(column) for column in (self.basis * z[:, None]).T.tolist()]
        residual = z - self.basis @ np.array(coordinates)
        return math.fsum((residual**2).tolist()) / self.contrasts

    def change(self, sensitivity: Array) -> Array:
        r"""Most that ``S^2`` moves when one ``y_j`` moves by at most ``s_j``; exact, (m,).

        With :math:`R = hi - lo`, a move by :math:`\delta` changes :math:`(m - p) S^2` by
        :math:`\delta [2 \sum_{i \ne j} Q_{ij} z_i + Q_{jj} (z_j + z_j')]`, where
        :math:`|z_i| \le R / 2` and :math:`|z_j + z_j'| \le R - |\delta|`, all attained. So the
        most is :math:`\delta (R \sum_i |Q_{ij}| - Q_{jj} \delta)`, which rises in
        :math:`\delta` up to :math:`R \sum_i |Q_{ij}| / (2 Q_{jj})`. With an intercept among the
        covariates that is at least R; for an intercept alone the result is
        :math:`s_j (2R - s_j) / m`.
        """
        reach = self.bounds.width * self.absolute_sums
        with np.errstate(divide="ignore", invalid="ignore"):
            top = np.where(self.diagonal > 0, reach / (2 * self.diagonal), np.inf)
        # Centring rounds at the size of the bounds.
        moved = np.where(sensitivity > 0, sensitivity + 4 * UNIT * self.bounds.largest, 0.0)
        delta = np.minimum(np.minimum(moved, self.bounds.width), top)
        return np.asarray(delta * (reach - self.diagonal * delta) / self.contrasts)

    def unit_change(self, sensitivity: Array, areas: int) -> Array:
        """Most that ``S^2`` moves by a unit with records in area j and ``areas - 1`` others; (m,).

        With records in k areas it moves each of their ``y_i`` by at most ``s_i / k``, and ``S^2``
        by at most the sum of the k changes: one area after the other. The change is concave in
        ``s_i``, so one change at ``s_i`` would be too little. As nobody says which areas go
        together, the largest changes are taken.
        """
        most = np.zeros_like(sensitivity)
        for k in range(1, min(areas, sensitivity.size) + 1):
            change = self.change(sensitivity / k)
            top = np.sort(change)[::-1][:k]
            # An area among the k largest, or it and the k - 1 largest.
            unit = np.where(change >= top[-1], top.sum(), top[:-1].sum() + change)
            most = np.maximum(most, unit)
        return np.where(sensitivity > 0, most, 0.0)

    @property
    def largest(self) -> float:
        """Largest possible value: all direct estimates at the ends."""
        return self.basis.shape[0] / self.contrasts * self.bounds.width**2 / 4

    @property
    def rounding(self) -> float:
        r"""Bound of the error of the computed value.

        The residual errs by at most :math:`4 (p + 1) \sqrt p\, u \|z\|` in norm, so its squared
        norm by :math:`12 (p + 1) \sqrt p\, u \|z\|^2`, the last roundings included.
        """
        p = self.basis.shape[1]
        return 12 * (p + 1) * math.sqrt(p) * UNIT * self.largest


@dataclass(frozen=True, repr=False)
class MomentPlan:
    """Noise on the moment statistic, ``sd`` its standard deviation; one lattice coordinate."""

    of: MomentStatistic
    sd: float
    size: int = 1
    moved: int = 1

    def statistic(self, y: Array) -> Array:
        """``S^2 / sd``; (1,)."""
        return np.array([self.of.value(y) / self.sd])

    def publish(self, noisy: Array) -> Array:
        """``S^2`` with noise; (1,)."""
        return noisy * self.sd
