"""The most accurate way to spend a budget: draw, tempered draw, or noisy direct estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from pymc_dp._checks import round_up, rounded
from pymc_dp.record.claims import Method
from pymc_dp.release.release import PrivateRelease

EQUAL = 0.005  # relative differences of root mean squared errors below this are no reason


@dataclass(frozen=True)
class Recommendation:
    """The answer of :func:`recommend`.

    Attributes
    ----------
    best : str
        Row of the table with the smallest error within the budget.
    sentence : str
        What to do and what it gains, in words.
    table : DataFrame
        ``rho`` (price), ``fits`` (within the budget), ``areas_touched``, ``rmse`` (as
        released) and ``rmse_smoothed`` (after smoothing, which costs nothing), in the unit of
        the outcome.
    """

    best: str
    sentence: str
    table: pd.DataFrame = field(repr=False)

    def __str__(self) -> str:
        """The sentence and the table."""
        return f"{self.sentence}\n\n{self.table.to_string(float_format=_up)}"

    def _repr_html_(self) -> str:
        table = self.table.to_html(float_format=_up)
        return f"<p>{escape(self.sentence)}</p>{table}"


def recommend(
    release: PrivateRelease,
    *,
    rho: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Recommendation:
    """Say which way of spending a budget is most accurate under the model, and by how much.

    Parameters
    ----------
    release : PrivateRelease
        Not drawn yet; before there are outcomes, what :func:`planned_release` gives.
    rho : float, optional
        zCDP budget of one release. Give this, or `epsilon` and `delta`.
    epsilon, delta : float, optional
        The budget as epsilon at delta.

    Returns
    -------
    Recommendation

    Raises
    ------
    ValueError
        As :meth:`PrivateRelease.calibrate` does.

    Notes
    -----
    Errors are root mean squares over areas of expected squared errors under the model with its
    variance components as they are held. The ways compared all cost the budget for the record
    that is worst off; records of other areas pay less with the draw, and as much with
    noisy direct estimates, :func:`private_direct`. With those, ``sigma_u`` can be estimated at
    no further cost, which counts in their favour and is not in the table.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
    >>> recommend(release, rho=0.01).best
    'tempered draw'
    """
    tempered = release.calibrate(rho, epsilon=epsilon, delta=delta)
    report = tempered.report
    assert report is not None
    budget = float(report.attrs["rho"])
    price = float(release.guarantee["rho"])
    touched = int(report.attrs["areas_touched"])
    rmse = report["rmse"].to_series()
    sampled = int((release.guarantee["sensitivity"] > 0).sum())
    rows = {
        "draw": (price, 0, "draw before calibration", "smoothed draw before calibration"),
        "tempered draw": (
            float(tempered.guarantee["rho"]),
            touched,
            "draw",
            "smoothed draw",
        ),
        "noisy direct estimates": (
            budget,
            sampled,
            "noisy direct estimate",
            "noisy direct estimate, smoothed",
        ),
    }
    if price <= budget:
        del rows["tempered draw"]
    table = pd.DataFrame(
        [(cost, cost <= budget, n, rmse[a], rmse[b]) for cost, n, a, b in rows.values()],
        index=pd.Index(rows, name="way"),
        columns=["rho", "fits", "areas_touched", "rmse", "rmse_smoothed"],
    )
    ours = "draw" if price <= budget else "tempered draw"
    asked = f"rho {rounded(budget, 4, up=False)}"
    if epsilon is not None:
        asked = f"epsilon {rounded(epsilon, 6)}, delta {delta:g} ({asked})"
    best, words = _verdict(table, ours, price <= budget, price)
    return Recommendation(best, f"At {asked}, {words}.", table)


def _verdict(table: pd.DataFrame, ours: str, fits: bool, price: float) -> tuple[str, str]:
    """Name of the most accurate way, and the sentence about it."""
    plain = "noisy direct estimates"
    error = table["rmse_smoothed"]
    best, other = (plain, ours) if error[plain] < error[ours] else (ours, plain)
    gain = 1 - error[best] / error[other]
    figures = f"{error[best]:.3g} against {error[other]:.3g}"
    if gain < EQUAL:
        words = (
            f"the {ours} and {plain} are equally accurate once smoothed (root mean squared error "
            f"{figures}): take the {ours}, which protects most areas better"
        )
        best = ours
    else:
        words = (
            f"{'the ' if best == ours else ''}{best}, smoothed, {'is' if best == ours else 'are'} "
            f"the most accurate: root mean squared error {figures} for "
            f"{'the ' if other == ours else ''}{other}, {100 * gain:.2g}% less"
        )
    return best, words if fits else f"{words}; the draw as it is would cost rho {round_up(price)}"


def _up(value: float) -> str:
    """Four digits, rounded up."""
    return rounded(value, 4)


METHODS: tuple[Method, ...] = ("temper", "noise", "scale")


def frontier(
    release: PrivateRelease,
    rho: npt.ArrayLike | None = None,
    *,
    trimmed: Mapping[str, PrivateRelease] | None = None,
) -> xr.Dataset:
    """Root mean squared error under the model over a grid of budgets, way by way.

    Parameters
    ----------
    release : PrivateRelease
        Not drawn yet; before there are outcomes, what :func:`planned_release` gives.
    rho : array_like, optional
        Targets, positive; by default 25 from a hundredth to twice the release's own price.
    trimmed : dict, optional
        Name to a release with trimmed weights, :func:`trim_weights`; each is tempered to the
        targets. Its errors leave out what trimming may bias.

    Returns
    -------
    xr.Dataset
        ``rmse`` (``way``, ``rho``), of the smoothed release in the outcome's unit; ways
        "temper", "noise", "scale", "noisy direct estimates" and the names of `trimmed`. 0-d
        ``rho_now`` and ``rmse_now``: the release as it is.

    Raises
    ------
    ValueError
        As :meth:`PrivateRelease.calibrate` does.

    Examples
    --------
    >>> import xarray as xr
    >>> areas = xr.Dataset(
    ...     {"variance": ("area", [0.01, 0.02]), "sensitivity": ("area", [0.03, 0.05])},
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"outcome_bounds": [0.0, 1.0]},
    ... )
    >>> from pymc_dp import planned_release
    >>> curves = frontier(planned_release(areas, sigma_u=0.05), rho=[0.01, 0.03])
    >>> curves["rmse"].sel(way="temper").round(4).values
    array([0.1632, 0.1222])
    """
    now = float(release.guarantee["rho"])
    grid = np.geomspace(now / 100, 2 * now, 25) if rho is None else np.atleast_1d(rho)
    targets = np.sort(np.asarray(grid, dtype=float))
    curves: dict[str, list[float]] = {}
    for method in METHODS:
        reports = [_rmse(release, target, method) for target in targets]
        curves[method] = [r["smoothed draw"] for r in reports]
        if method == "temper":
            direct = [r["noisy direct estimate, smoothed"] for r in reports]
            as_it_is = reports[0]["smoothed draw before calibration"]
    curves["noisy direct estimates"] = direct
    for name, other in (trimmed or {}).items():
        curves[name] = [_rmse(other, target, "temper")["smoothed draw"] for target in targets]
    return xr.Dataset(
        {
            "rmse": (("way", "rho"), np.array(list(curves.values()))),
            "rho_now": ((), now),
            "rmse_now": ((), as_it_is),
        },
        coords={"way": list(curves), "rho": targets},
        attrs={
            "claim": release.guarantee["rho"].attrs["claim"],
            "errors": "expected under the model, of the smoothed release, over all areas",
        },
    )


def _rmse(release: PrivateRelease, target: float, method: Method) -> dict[str, float]:
    report = release.calibrate(float(target), method=method).report
    assert report is not None
    values = report["rmse"]
    return dict(zip(values["estimator"].values.tolist(), values.values.tolist(), strict=True))
