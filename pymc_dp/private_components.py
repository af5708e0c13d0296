r"""A private estimate of sigma_u: a way to a formal claim without a public value.

The moment estimate of ``A = sigma_u^2`` is ``S^2 - tr(QD) / (m - p)`` with
``S^2 = y'Qy / (m - p)`` and ``Q = I - X (X'X)^-1 X'``. Only ``S^2`` looks at outcomes; it gets
Gaussian noise on a public lattice, and all else is post-processing. ``Q`` is never formed: with an
orthonormal basis ``B`` of the covariates it is ``I - BB'``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp.area_level import AreaData, area_data
from pymc_dp.comparison import direct_sensitivity
from pymc_dp.moment_statistic import UNIT, MomentStatistic
from pymc_dp.noise import EXPONENT, NORM_SLACK, SPACING, _gaussian
from pymc_dp.posterior import Array
from pymc_dp.record import build_record, check_assumptions, claim_kind, claim_words, to_json
from pymc_dp.survey_checks import Bounds, check_bounds

if TYPE_CHECKING:
    from pymc_dp.ledger import PrivacyLedger

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
        If the inputs are unusable (see :func:`fay_herriot`), sensitivities are missing or all
        zero, no range is declared, rho is not positive and finite, or there are no more areas with
        a sample than coefficients.
    BudgetExceeded
        If the ledger's budget does not cover rho.

    Notes
    -----
    The moment estimate of Prasad and Rao (1990),
    :math:`A = (y'Qy - \operatorname{tr}(QD)) / (m - p)` with
    :math:`Q = I - X (X'X)^{-1} X'` over the areas with a sample. When :math:`y_j` moves by at
    most :math:`s_j` inside a range of width R, it moves by at most
    :math:`s_j (R \sum_i |Q_{ij}| - Q_{jj} s_j) / (m - p)` (with an intercept; derivation under
    ``pymc_dp.moment_statistic``), and the largest over areas sets the noise. A record of area j
    pays :math:`\rho (\Delta_j / \Delta_{max})^2`. The value is unbiased before it is raised to
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
    price = _price(rho)
    data = area_data(direct, formula, covariates)
    declared = check_assumptions(assumptions, from_answers=data.from_answers)
    if "sigma_u" in declared:
        raise ValueError("sigma_u is estimated here from the data and cannot be declared public")
    sensitivity = direct_sensitivity(direct, data)
    at = data.sampled
    statistic = MomentStatistic(_basis(data), _range(bounds, data))
    change = np.zeros(sensitivity.size)
    change[at] = statistic.change(sensitivity[at])
    largest = float(change.max())
    if not largest > 0:
        raise ValueError("no area has a positive sensitivity: there is nobody to protect")
    sd = _noise_sd(statistic, largest, price)

    components = {"sampling_variance": "fixed" if "sampling_variance" in declared else "plug-in"}
    claim = claim_kind(components)
    words = f"estimated privately at rho = {price:.6g} (private_sigma_u)"
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
        rho=price,
        noise_sd=sd,
        lattice_exponent=EXPONENT,
        assumptions=declared,
        draws=1,
    )
    noisy = _noisy(statistic.value(data.estimate[at]), sd, price, ledger, record)
    expected = float(statistic.diagonal @ data.variance[at]) / statistic.contrasts
    variance = noisy - expected

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


def _noisy(
    value: float, sd: float, rho: float, ledger: PrivacyLedger | None, record: dict[str, Any]
) -> float:
    """The statistic with noise; charged to the ledger once nothing but the noise is left to do."""
    if not math.isfinite(value / sd):
        raise ValueError("the statistic to be released is not finite")  # OpenDP would accept it
    measurement = _gaussian(1)
    # OpenDP rounds its figure up once more, in the last places.
    if measurement.map(math.sqrt(2 * rho)) > rho * (1 + 1e-9):
        raise RuntimeError("OpenDP prices this estimate above the claim; nothing was drawn")
    if ledger is not None:
        label = f"sigma_u of {record['areas']} areas"
        ledger.charge(rho, label=label, claim=record["claim"], record=record)
    return float(measurement([value / sd])[0]) * sd
