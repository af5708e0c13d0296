r"""What "treating the variance components as fixed" leaves out, from the records.

A changed record moves the direct estimate of its area and, where sampling variances are computed
from the outcomes, that of its area too. The two neighbouring posteriors then differ through
``(y_j, D_j)``: the likelihood ratio of the whole vector is that of area j's factor, a function of
``theta_j`` alone, so the divergence of the joint draws is that of two Gaussians of different
variance, and is computed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from pymc_dp import privacy
from pymc_dp._checks import refuse_spanning
from pymc_dp._typing import Array
from pymc_dp.bound.estimated import fixed_rho
from pymc_dp.components.comparison import checked_deltas, checked_orders
from pymc_dp.components.estimates import between_variance
from pymc_dp.models.gls import sample_of
from pymc_dp.models.inputs import AreaData, area_data, direct_sensitivity
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.privacy.gaussian_pair import exact_epsilon, infinite_from, renyi_divergence
from pymc_dp.record.claims import CONDITIONAL
from pymc_dp.record.figures import DELTAS, ORDERS
from pymc_dp.survey.estimate import hajek
from pymc_dp.survey.frames import on_driver

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame

EXACT = (
    "exact for the changes tried at the data at hand, sigma_u fixed: a lower bound over all "
    "changes, no guarantee"
)
REESTIMATED = (
    "exact for theta of the area alone, sigma_u re-estimated by REML: a lower bound for the whole "
    "vector and over all changes, no guarantee"
)
LONG_NAMES = {
    "rdp_conditional": "Renyi divergence as printed, treating the variance components as fixed",
    "rdp_exact": "Renyi divergence with the sampling variance recomputed",
    "rdp_plug_in": "Renyi divergence as printed at the REML value of sigma_u",
    "rdp_reestimated": "Renyi divergence with sampling variance and sigma_u recomputed",
    "epsilon_conditional": "epsilon at delta as printed, treating variance components as fixed",
    "epsilon_exact": "epsilon at delta with the sampling variance recomputed",
    "epsilon_plug_in": "epsilon at delta as printed at the REML value of sigma_u",
    "epsilon_reestimated": "epsilon at delta with sampling variance and sigma_u recomputed",
    "order_infinite": "lowest order at which rdp_exact is infinite",
    "order_infinite_reestimated": "lowest order at which rdp_reestimated is infinite",
    "sigma_u_reestimated": "REML estimate of sigma_u after the change that moves it farthest",
}


class Pairs(NamedTuple):
    """Posterior of ``theta_j`` before and after the change in area j, for each j."""

    shift: Array  # (m,), mean after less mean before
    before: Array  # (m,), variances
    after: Array  # (m,)


def check_proviso(
    data: IntoFrame,
    *,
    outcome: str,
    weight: str,
    area: str | Sequence[str],
    sigma_u: float,
    bounds: Sequence[float] = (0, 1),
    unit: str | Sequence[str] | None = None,
    missing: Literal["fail", "drop"] = "fail",
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    order: npt.ArrayLike = ORDERS,
    delta: npt.ArrayLike = DELTAS,
    records: int = 5,
    reestimate: bool = True,
    **survey: Any,
) -> xr.Dataset:
    r"""Compare the conditional figures of a draw with the exact ones, record by record.

    Each area's heaviest records are changed one at a time, to the other end of the outcome's range
    (or to each end, where they are at neither). Direct estimate and sampling variance are
    computed anew, and the two posteriors compared.

    Parameters
    ----------
    data : dataframe
        One row a record, as for :func:`hajek`. It is read into memory.
    outcome, weight, area, bounds, unit, missing
        As for :func:`hajek`. With a `unit`, all outcomes of a unit change together.
    sigma_u : float
        The value that the release holds fixed.
    formula, covariates
        As for :func:`fay_herriot`.
    order : array_like
        Renyi orders above 1.
    delta : array_like
        Probabilities between 0 and 1.
    records : int
        How many of each area's heaviest records (or units) are tried.
    reestimate : bool
        Whether to estimate sigma_u anew after each change as well: one REML fit for each, about 4
        ms at 48 areas and 0.4 s at 2,462.
    **survey
        Further options of :func:`hajek`, such as ``variance``.

    Returns
    -------
    xr.Dataset
        For each area, on ``order``: ``rdp_conditional``, what a release at this sigma_u prints,
        and ``rdp_exact``, the largest over the changes tried and both directions, infinite from
        ``order_infinite`` on; on ``delta``: ``epsilon_conditional`` and ``epsilon_exact``. With
        `reestimate`, the same at the REML value of sigma_u: ``rdp_plug_in`` as printed,
        ``rdp_reestimated`` with sigma_u estimated before and after, ``order_infinite_reestimated``,
        epsilons alike, and ``sigma_u_reestimated``. Zero where an area has no sample.

    Raises
    ------
    ValueError
        If records, options or covariates are unusable (see :func:`hajek` and
        :func:`fay_herriot`), an area's sampling variance is zero or missing, sigma_u is negative
        or not finite, `records` is not a positive integer, an order or delta is out of range, or
        units have records in several areas.

    Notes
    -----
    Given the variance components, the ratio of the two posteriors of the whole vector is
    :math:`N(y_j; \theta_j, D_j) / N(y_j'; \theta_j, D_j')` up to a constant, a function of
    :math:`\theta_j` alone. So every divergence of the joint draws equals that of the two
    Gaussians of :math:`\theta_j`: Renyi divergence in closed form, epsilon from the normal
    distribution function. If sigma_u moves too, the ratio involves the whole vector, and the
    figure for :math:`\theta_j` is a lower bound (data processing).

    Where the sampling variances do not move (``variance="kish"``), ``rdp_exact`` is what is
    printed, or less where the record moves the estimate by less than the sensitivity. It can also
    be less where the larger variance of the neighbour hides the shift.

    Examples
    --------
    >>> import pandas as pd
    >>> records = pd.DataFrame(
    ...     {
    ...         "county": ["A"] * 5 + ["B"] * 5,
    ...         "weight": [20, 30, 50, 20, 30, 40, 40, 30, 20, 25],
    ...         "smoker": [1, 0, 0, 1, 0, 0, 1, 0, 0, 1],
    ...     }
    ... )
    >>> found = check_proviso(
    ...     records, outcome="smoker", weight="weight", area="county", sigma_u=0.1, order=[2, 64]
    ... )
    >>> found["rdp_conditional"].sel(area="A").values.round(3)
    array([ 1.839, 58.839])
    >>> found["rdp_exact"].sel(area="A").values.round(3)
    array([2.677,   inf])
    """
    if isinstance(records, bool) or not isinstance(records, int | np.integer) or records < 1:
        raise ValueError("records must be a positive integer")
    if isinstance(sigma_u, bool) or not (isinstance(sigma_u, Real) and 0 <= sigma_u < math.inf):
        raise ValueError("sigma_u must be a finite number, zero or positive")
    orders, deltas = checked_orders(order), checked_deltas(delta)
    options = {"outcome": outcome, "weight": weight, "area": area, "bounds": bounds, "unit": unit}
    options |= {"missing": missing, **survey}
    direct = hajek(data, **options)
    refuse_spanning(direct, "check_proviso changes a unit in one area at a time")
    areas = area_data(direct, formula, covariates)
    sensitivity = direct_sensitivity(direct, areas)
    changes = list(changes_of_heaviest(data, options, records))
    sampled = ~np.isnan(areas.variance)

    def figures(sigma_u: float, printed: str, found: str, pairs: list[Pairs]) -> dict[str, Any]:
        rho = fixed_rho(areas, sensitivity, sigma_u)[:, None]
        rdp, epsilon, infinite = _worst(pairs, orders, deltas)
        end = "" if found == "exact" else f"_{found}"
        return {
            f"rdp_{printed}": (("area", "order"), privacy.rdp(rho, orders)),
            f"rdp_{found}": (("area", "order"), rdp),
            f"epsilon_{printed}": (("area", "delta"), privacy.epsilon(rho, deltas)),
            f"epsilon_{found}": (("area", "delta"), epsilon),
            f"order_infinite{end}": ("area", infinite),
        }

    fixed = np.full(sampled.size, float(sigma_u))
    pairs = [_pairs(areas, change, fixed[0], fixed) for change in changes]
    variables = figures(float(sigma_u), "conditional", "exact", pairs)
    attributes: dict[str, Any] = {"sigma_u": float(sigma_u), "records": int(records)}
    if reestimate:
        reml = math.sqrt(between_variance(sample_of(areas), "reml"))
        after = [_reestimated(areas, change, reml) for change in changes]
        pairs = [_pairs(areas, c, reml, s) for c, s in zip(changes, after, strict=True)]
        variables |= figures(reml, "plug_in", "reestimated", pairs)
        moved = np.stack(after)
        farthest = np.abs(moved - reml).argmax(axis=0)
        variables["sigma_u_reestimated"] = ("area", moved[farthest, np.arange(sampled.size)])
        attributes["sigma_u_reml"] = reml
    attributes["changes"] = (
        f"each area's {records} heaviest: one {direct.attrs.get('unit', 'record')} at a time, its "
        "outcomes moved to an end of the range"
    )
    attributes["privacy"] = "computed from the records, for study: not itself private"
    result = xr.Dataset(
        variables,
        coords={"area": list(areas.area), "order": orders, "delta": deltas},
        attrs=attributes,
    )
    for name in result.data_vars:
        result[name].attrs["long_name"] = LONG_NAMES[str(name)]
        if str(name).startswith(("rdp", "epsilon", "order")):
            printed = str(name).endswith(("conditional", "plug_in"))
            claim = REESTIMATED if str(name).endswith("reestimated") else EXACT
            result[name].attrs["claim"] = CONDITIONAL if printed else claim
    return result


def _moved(areas: AreaData, change: Change, j: int) -> AreaData:
    """The data with the change in area j alone."""
    y, D = areas.estimate.copy(), areas.variance.copy()
    y[j], D[j] = change.estimate[j], change.variance[j]
    return replace(areas, estimate=y, variance=D)


def _changed_areas(areas: AreaData, change: Change) -> npt.NDArray[np.int64]:
    """Areas that the change moves and leaves with a positive sampling variance."""
    m = change.estimate.size  # areas that only the covariates have come after these
    y, D = areas.estimate[:m], areas.variance[:m]
    moved = ((change.estimate != y) | (change.variance != D)) & ~np.isnan(D)
    return np.flatnonzero(moved & (change.variance > 0))


def _reestimated(areas: AreaData, change: Change, reml: float) -> Array:
    """REML estimates of sigma_u after the change in each area; as before where there is none."""
    sigma_u = np.full(len(areas.area), reml)
    for j in _changed_areas(areas, change):
        sample = sample_of(_moved(areas, change, int(j)))
        sigma_u[j] = math.sqrt(between_variance(sample, "reml"))
    return sigma_u


def _pairs(areas: AreaData, change: Change, before: float, after: Array) -> Pairs:
    """Posteriors of each ``theta_j`` at sigma_u `before`, and at ``after[j]`` with the change."""
    mean, variance = _posterior(areas, before)
    shift, changed = np.zeros_like(mean), variance.copy()
    for j in _changed_areas(areas, change):
        moved_mean, moved_variance = _posterior(_moved(areas, change, int(j)), after[j])
        shift[j], changed[j] = moved_mean[j] - mean[j], moved_variance[j]
    # A change that leaves an area's outcomes all alike: the direct estimate is taken for the truth.
    certain = np.flatnonzero((change.variance == 0) & (areas.variance[: change.variance.size] > 0))
    changed[certain] = 0.0
    return Pairs(shift, variance, changed)


def _posterior(areas: AreaData, sigma_u: float) -> tuple[Array, Array]:
    precision = np.where(np.isnan(areas.variance), 0.0, 1 / areas.variance)
    posterior = fay_herriot_posterior(sigma_u**2, precision, areas.design)
    return posterior.mean(areas.estimate), posterior.variance


def _worst(pairs: list[Pairs], orders: Array, deltas: Array) -> tuple[Array, Array, Array]:
    """Largest divergences and epsilons over the changes, lowest order of infinite divergence."""
    columns = [Pairs(*(v[:, None] for v in pair)) for pair in pairs]
    rdp = np.max([renyi_divergence(c.shift, c.before, c.after, orders) for c in columns], axis=0)
    epsilon = np.max([exact_epsilon(c.shift, c.before, c.after, deltas) for c in columns], axis=0)
    infinite = np.min([infinite_from(pair.before, pair.after) for pair in pairs], axis=0)
    return np.asarray(rdp, float), np.asarray(epsilon, float), np.asarray(infinite, float)


Indices = npt.NDArray[np.int64]


class Change(NamedTuple):
    """Every area with one of its units changed: its new direct estimate and sampling variance."""

    estimate: Array  # (m,), in the order of :func:`hajek`
    variance: Array  # (m,)


def changes_of_heaviest(data: IntoFrame, options: dict[str, Any], records: int) -> Iterator[Change]:
    """Change the heaviest unit of every area, then the second, and so on.

    Areas share no records, so one pass over the data changes a unit in each of them.

    Parameters
    ----------
    data : dataframe
    options : dict
        Keyword arguments of :func:`hajek`, with ``outcome``, ``weight``, ``area``, ``bounds`` and
        ``unit`` among them.
    records : int
        How many units of each area; units of equal weight in the order of their first rows.

    Yields
    ------
    Change
        With the outcomes of the units at the other end of the range, where single records are at
        an end already; else all at the lower end, then all at the upper.
    """
    import narwhals as nw

    frame = on_driver(nw.from_native(data))
    name = options["outcome"]
    y, w = (_numbers(frame, options[key]) for key in ("outcome", "weight"))
    usable = np.isfinite(y) & (w > 0)
    if options.get("universe") is not None:
        usable &= _numbers(frame, options["universe"]) == 1
    rank = _rank(frame, options, np.where(usable, w, 0.0))
    low, high = (float(b) for b in options["bounds"])
    for k in range(min(records, int(rank.max()) + 1)):
        chosen = rank == k
        at_ends = options["unit"] is None and np.isin(y[chosen], [low, high]).all()
        for values in [low + high - y] if at_ends else [low, high]:
            new = np.where(chosen, values, y)
            column = nw.new_series(name, new, nw.Float64, backend=frame.implementation)
            changed = hajek(frame.with_columns(column).to_native(), **options)
            yield Change(changed["estimate"].values, changed["variance"].values)


def _numbers(frame: Any, name: str) -> Array:
    """Read a column as floats, NaN where it is missing."""
    import narwhals as nw

    return np.array(frame.select(nw.col(name).cast(nw.Float64))[name].to_list(), dtype=float)


def _rank(frame: Any, options: dict[str, Any], weight: Array) -> Indices:
    """Rank of each row's unit among the units of its area, heaviest 0; -1 for unusable rows."""
    used = np.flatnonzero(weight > 0)
    area = _codes(frame, options["area"])[used]
    unit = np.arange(used.size) if options["unit"] is None else _codes(frame, options["unit"])[used]
    # Units are numbered by first row; one with records in two areas counts as one in each.
    unit, first = _number(area * (unit.max() + 1) + unit)
    total = np.bincount(unit, weight[used])
    order = np.lexsort((-total, area[first]))
    start = np.searchsorted(area[first][order], np.arange(area.max() + 1))
    place = np.empty(total.size, dtype=np.int64)
    place[order] = np.arange(total.size) - start[area[first][order]]
    rank = np.full(weight.size, -1)
    rank[used] = place[unit]
    return rank


def _codes(frame: Any, columns: str | Sequence[str]) -> Indices:
    """Number the distinct values, or combinations of values, of columns."""
    codes = np.zeros(len(frame), dtype=np.int64)
    for name in [columns] if isinstance(columns, str) else columns:
        column = np.array(frame[name].to_list(), dtype=object)
        values, _ = pd.factorize(column, use_na_sentinel=False)
        codes, _ = _number(codes * (values.max() + 1) + values)
    return codes


def _number(values: Indices) -> tuple[Indices, Indices]:
    """Number distinct values in the order of their first positions, which come second."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(by_first.size)
    return rank[inverse], first[by_first]
