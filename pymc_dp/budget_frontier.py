"""Accuracy against privacy: what each way of meeting a budget leaves, over a grid of budgets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import xarray as xr

from pymc_dp.calibration import Method
from pymc_dp.release import PrivateRelease

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
