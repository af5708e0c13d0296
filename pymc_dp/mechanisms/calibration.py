"""Meeting a budget: the least change of a release that brings its price down to a target.

Three ways. *Tempering* believes less in the direct estimates of just those areas that cost too
much; *noise* adds the same independent variance to every area; *scale* inflates the posterior
covariance. All work on a
:class:`~pymc_dp.mechanisms.law.ReleaseLaw`, from public quantities alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import xarray as xr

from pymc_dp import privacy
from pymc_dp._checks import round_up, rounded
from pymc_dp._roots import safe_root
from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import SPACING, price
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.mechanisms.protocol import Target
from pymc_dp.posterior.fay_herriot import GaussianPosterior, fay_herriot_posterior
from pymc_dp.record.claims import Method

ESTIMATORS = (
    "posterior mean (not private)",
    "draw before calibration",
    "smoothed draw before calibration",
    "draw",
    "smoothed draw",
    "noisy direct estimate",
    "noisy direct estimate, smoothed",
)
# Beyond, the smoothed draw of a tempered joint release loses more than a millionth to rounding: it
# is computed with a relative error of about 1e-16 times this.
MOST_RAISED = 1e10
_STEPS = 2_000  # a step of tempering halves the distance to the answer: 60 are plenty


def refuse_booleans(**given: Any) -> None:
    """Refuse True and False in place of numbers.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    for name, value in given.items():
        if np.asarray(value).dtype.kind == "b":
            raise ValueError(f"{name} must be a positive finite number, not True or False")


def own_prices(law: ReleaseLaw, sensitivity: Array, bound: float) -> Array:
    """Price of the whole release for a record of each area, rounding included; (m,)."""
    plan = law.plan(bound)
    return price(plan.norm, sensitivity, plan.slack)


def calibrate_law(
    law: ReleaseLaw, sensitivity: Array, bound: float, target: float, method: Method = "temper"
) -> ReleaseLaw:
    """Change a release as little as its method allows so that it costs at most the target.

    Parameters
    ----------
    law : ReleaseLaw
        A plain draw.
    sensitivity : ndarray of shape (m,)
        ``s_j``, zero where there is no sample.
    bound : float
        Public bound of the absolute direct estimates.
    target : float
        zCDP price to meet, rounding of the lattice draw included.
    method : {"temper", "noise", "scale"}

    Returns
    -------
    ReleaseLaw
        The one given, if it meets the target as it is.

    Raises
    ------
    ValueError
        If the method is unknown, or the target is not positive, finite and above what the
        lattice's own rounding costs (about 1e-26 times the number of areas), or so low that
        tempering would have to raise a sampling variance by more than ten orders of magnitude.
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be 'temper', 'noise' or 'scale', not {method!r}")
    if not (math.isfinite(target) and target > 0):
        raise ValueError("the target must be a positive finite number")
    floor = SPACING * math.sqrt(law.plan(bound).size)
    if math.sqrt(2 * target) < 100 * floor:
        raise ValueError(f"no release on the lattice can be as cheap as rho {round_up(target)}")
    if own_prices(law, sensitivity, bound).max() <= target:
        return law
    return {"temper": _temper, "noise": _widen, "scale": _scale}[method](
        law, sensitivity, bound, target
    )


def with_precision(posterior: GaussianPosterior, precision: Array) -> GaussianPosterior:
    """The posterior of the same prior under other sampling variances, ``1 / precision``."""
    return fay_herriot_posterior(
        posterior.between_variance,
        precision,
        posterior.basis,
        prior_precision=posterior.prior_precision,
        prior_shift=posterior.prior_shift,
        offset=posterior.offset,
    )


def _temper(law: ReleaseLaw, sensitivity: Array, bound: float, target: float) -> ReleaseLaw:
    """Raise ``D_j`` of areas above the target until each meets it.

    ``log D <- max(log D_0, log D + log(rho / target) / 2)``. For the joint mechanism
    ``d log rho_i / d log D_j = -2 [i = j] + Sigma_ij^2 / (Sigma_ii D_j)``, and the row sums of
    the second part are at most 1: the map is a contraction by 1/2 that keeps order, and from
    ``D_0`` the iterates rise to its one fixed point, the least ``D`` that serves. For independent
    noise they rise likewise, to some ``D`` that serves.
    """
    first = law.posterior.precision
    sampled = first > 0
    raised = np.zeros(first.size)  # log D - log D_0

    def tempered() -> ReleaseLaw:
        precision = np.where(raised > 0, first * np.exp(-raised), first)
        return replace(law, posterior=with_precision(law.posterior, precision), precision=first)

    found, nudge = law, 1e-14
    for _ in range(_STEPS):
        rho = own_prices(found, sensitivity, bound)
        if rho.max() <= target:
            return found
        step = np.zeros(first.size)
        step[sampled] = np.maximum(np.log(rho[sampled] / target) / 2, 0.0)
        raised += step  # from below, so that the answer is no lower
        if law.mechanism == "joint" and raised.max() > math.log(MOST_RAISED):
            raise ValueError(
                f"tempering to rho {round_up(target)} would raise sampling variances by more than "
                f"{MOST_RAISED:.0e}, where rounding spoils the smoothed draw: take "
                "method='noise' or method='scale', or a larger target"
            )
        if step.max() < 1e-13:  # within rounding of the fixed point: go past it, a little
            raised[raised > 0] += nudge
            nudge *= 2
        found = tempered()
    raise ValueError(f"tempering found no release of price rho {round_up(target)}")


def _widen(law: ReleaseLaw, sensitivity: Array, bound: float, target: float) -> ReleaseLaw:
    """Add the least variance ``v`` to every area: the price falls as it grows."""
    post = law.posterior
    # |(N + v I)^-1/2 M e_j| <= |M e_j| / sqrt(v)
    own = post.gamma + (post.left * post.right).sum(axis=1)
    inner = post.left.T @ post.left
    length = own**2 + ((post.right @ inner) * post.right).sum(axis=1)
    high = float((length * sensitivity**2).max()) / target
    return _least(
        lambda v: replace(law, extra=v),
        lambda found: float(own_prices(found, sensitivity, bound).max()),
        target,
        high,
    )


def _scale(law: ReleaseLaw, sensitivity: Array, bound: float, target: float) -> ReleaseLaw:
    """Inflate the covariance by the least factor: the price is divided by it."""
    high = 2 * float(own_prices(law, sensitivity, bound).max()) / target
    return _least(
        lambda k: replace(law, inflation=k),
        lambda found: float(own_prices(found, sensitivity, bound).max()),
        target,
        high,
    )


def _least(
    change: Callable[[float], ReleaseLaw],
    cost: Callable[[ReleaseLaw], float],
    target: float,
    high: float,
) -> ReleaseLaw:
    """The release with the least level whose cost, falling in it, is at most the target."""

    def excess(log_level: float) -> float:
        return math.log(cost(change(math.exp(log_level))) / target)

    top = math.log(high)
    bottom = top - math.log(4)
    while excess(bottom) < 0 and bottom > top - 70:
        top, bottom = bottom, bottom - math.log(4)
    while excess(top) > 0:
        top += math.log(4)
    return change(math.exp(safe_root(excess, top, bottom)))


def rho_of_epsilon(epsilon: float, delta: float, coordinates: int = 1) -> float:
    """The largest price whose epsilon at `delta`, as stated for a lattice draw, is within reach.

    Parameters
    ----------
    epsilon : float
        Positive.
    delta : float
        Between 0 and 1, both excluded.
    coordinates : int
        Noise coordinates that one record can move.

    Returns
    -------
    float
        Rounded down: the stated epsilon of this rho is at most the one asked for.

    Raises
    ------
    ValueError
        If epsilon or delta is out of range, or no price serves.

    Examples
    --------
    >>> round(rho_of_epsilon(4.886554117, 1e-6), 9)
    0.5
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError("epsilon must be a positive finite number")
    if not 0 < delta < 1:
        raise ValueError("delta must lie between 0 and 1, both excluded")

    def excess(log_rho: float) -> float:
        stated = privacy.lattice_epsilon(
            math.exp(log_rho), delta, spacing=SPACING, coordinates=coordinates
        )
        return float(stated) - epsilon

    low = high = 0.0
    while excess(low) > 0:
        low -= 2.0
        if low < -150:
            raise ValueError(f"no price gives epsilon {rounded(epsilon, 6)} at delta {delta:g}")
    while excess(high) <= 0:
        high += 2.0
    return math.exp(safe_root(excess, low, high))


def budget_of(target: Target, coordinates: int) -> float:
    """The price that a target asks for; `coordinates` are those that one record can move.

    Raises
    ------
    ValueError
        If there is no target, or it is not given in one of the two ways or out of range.
    """
    asked = target.asked()
    if "rho" not in asked:
        return rho_of_epsilon(asked["epsilon"], asked["delta"], coordinates)
    if not (math.isfinite(asked["rho"]) and asked["rho"] > 0):
        raise ValueError("rho must be a positive finite number")
    return asked["rho"]


def calibrated_coordinates(law: ReleaseLaw, method: Method, bound: float) -> int:
    """Noise coordinates that one record can move once the release is calibrated."""
    changed = replace(law, extra=1.0) if method == "noise" else law
    return changed.plan(bound).moved


def touched_areas(before: ReleaseLaw, after: ReleaseLaw) -> np.ndarray:
    """Which areas a calibration changed by itself: those tempered, or all; (m,) of bool."""
    if after is before:
        return np.zeros(before.posterior.precision.size, dtype=bool)
    if after.precision is None:
        return np.ones(before.posterior.precision.size, dtype=bool)
    return np.asarray(after.posterior.precision < before.posterior.precision)


def calibration_report(
    before: ReleaseLaw,
    after: ReleaseLaw,
    sensitivity: Array,
    area: np.ndarray,
    *,
    target: float,
    method: Method,
) -> xr.Dataset:
    """What a calibration costs in accuracy, under the model, beside the alternatives.

    Parameters
    ----------
    before, after : ReleaseLaw
    sensitivity : ndarray of shape (m,)
    area : ndarray of str of shape (m,)
    target : float
        zCDP price met.
    method : {"temper", "noise", "scale"}

    Returns
    -------
    xr.Dataset
        On ``area``: ``touched`` and ``sampling_variance_factor`` (how much less the direct
        estimate is believed). ``mse`` (``estimator``, ``area``), expected squared error under the
        model in squared units of the outcome, missing where an area without sample has no such
        estimate; ``rmse`` (``estimator``), the root of its mean over areas.
    """
    post = before.posterior
    D, sampled = before.sampling_variance, post.precision > 0
    noisy = D + sensitivity**2 / (2 * target)
    competitor = with_precision(
        post, np.divide(1.0, noisy, out=np.zeros_like(noisy), where=sampled)
    )
    nothing = np.zeros(area.size)
    mse = np.stack(
        [
            post.variance,
            before.error(),
            before.smoothed(nothing)[1] ** 2,
            after.error(),
            after.smoothed(nothing)[1] ** 2,
            np.where(sampled, noisy, np.nan),
            competitor.variance,
        ]
    )
    touched = touched_areas(before, after)
    factor = np.divide(
        post.precision, after.posterior.precision, out=np.ones(area.size), where=sampled
    )
    return xr.Dataset(
        {
            "touched": ("area", touched),
            "sampling_variance_factor": ("area", factor),
            "mse": (("estimator", "area"), mse),
            "rmse": ("estimator", np.sqrt(np.nanmean(mse, axis=1))),
        },
        coords={"area": area, "estimator": list(ESTIMATORS)},
        attrs={
            "method": method,
            "rho": target,
            "areas_touched": int(touched.sum()),
            "inflation": after.inflation,
            "extra_variance": after.extra,
        },
    )
