"""Prices of a release from any linear-Gaussian model, as a labelled data set."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from pymc_dp import privacy
from pymc_dp.changes import Changes
from pymc_dp.guarantee import DELTAS, ORDERS, joint_figures, worded
from pymc_dp.linear_law import LinearLaw
from pymc_dp.linear_plans import NORM_SLACK, price
from pymc_dp.noise_plans import SPACING
from pymc_dp.posterior import Array

BLOCK = 512
BY_AREA = {"rho": "rho_respondent", "independent": "rho_independent", "unshrunk": "rho_unshrunk"}
BY_RECORD = {
    "rho": "rho_record",
    "independent": "rho_independent_record",
    "unshrunk": "rho_unshrunk_record",
}


def linear_dataset(
    law: LinearLaw,
    changes: Changes,
    area: np.ndarray,
    *,
    bound: float,
    claim: str,
    draws: int = 1,
) -> xr.Dataset:
    """The guarantee of a release as a labelled data set; every figure says its kind of claim.

    Parameters
    ----------
    law : LinearLaw
    changes : Changes
    area : ndarray of str of shape (m,)
    bound : float
    claim : str
        Words that go with every figure.
    draws : int
        Number of draws released together; rho adds.

    Returns
    -------
    xr.Dataset
        On ``area``, ``order`` and ``delta``, and on ``record`` where kinds of record are not one
        an area.

    Notes
    -----
    Design 2.3, last point. What the digits of a single area of a joint draw show is bounded by
    the whole: the noise of all areas enters them.
    """
    plan = law.plan(bound)
    paid = price(plan, changes.matrix)
    rho = draws * float(paid.max())
    by_record = {"rho": paid, "unshrunk": law.unshrunk(changes.matrix)}
    if changes.area is not None and law.mechanism == "independent":
        # By area, as in Fay-Herriot models, a joint draw's price stands beside what is paid.
        by_record["rho"] = price(law.plan(bound, "joint"), changes.matrix)
    lattice = {"spacing": SPACING, "coordinates": draws * plan.moved}
    by_area = {"posterior_sd": np.sqrt(law.variance)}
    smoothed = law.smoothed(np.zeros(area.size))
    if smoothed is not None:
        by_area["theta_smoothed_sd"] = smoothed[1]
    if law.coordinates == "target":
        ideal = _largest_by_area(law, changes)
        independent = law.plan(bound, "independent")
        by_record["independent"] = price(independent, changes.matrix)
        shown = (np.sqrt(2 * ideal) * (1 + NORM_SLACK) + independent.slack) ** 2 / 2
        alone = shown if law.mechanism == "independent" else np.full(area.size, rho / draws)
        by_area |= {"rho_area": draws * alone, "rho_area_ideal": draws * ideal}
    else:
        by_area["rho_area"] = np.full(area.size, rho)
    data = xr.Dataset(
        {name: ("area", values) for name, values in by_area.items()}
        | _of_records(by_record, changes, area, draws)
        | joint_figures(rho, by_area["rho_area"], partial(privacy.lattice_epsilon, **lattice)),
        coords={"area": area, "order": ORDERS, "delta": DELTAS},
    )
    return worded(data, claim)


def _of_records(
    prices: dict[str, Array], changes: Changes, area: np.ndarray, draws: int
) -> dict[str, tuple[str, Array]]:
    """Prices by area where each area has its kind of record, else by record."""
    if changes.area is None:
        label = {"record": ("record", changes.label)}
        return label | {
            BY_RECORD[key]: ("record", draws * values) for key, values in prices.items()
        }
    figures = {BY_AREA[key]: draws * values for key, values in prices.items()}
    out: dict[str, tuple[str, Array]] = {}
    for name, values in {"sensitivity": changes.matrix.data, **figures}.items():
        spread = np.zeros(area.size)
        spread[changes.area] = values
        out[name] = ("area", spread)
    return out


def _largest_by_area(law: LinearLaw, changes: Changes) -> Array:
    """``max_r |M_i| d_r`` squared over ``2 Sigma_ii`` for each area i, signs at worst; (m,)."""
    moved = np.zeros(law.variance.size)
    M = np.abs(law.propagation())
    for start in range(0, changes.label.size, BLOCK):
        part = changes.matrix[:, start : start + BLOCK]
        moved = np.maximum(moved, (part.T @ M.T).max(axis=0))
    return np.asarray(moved**2 / (2 * law.variance))
