"""What a budget costs in accuracy: poverty in the PUMAs of the ACS, persons and households.

The table has a row an area with the columns ``sum_w`` and ``sum_w2`` (sums of the weights and
of their squares), ``n``, and the largest share of the weights of a record (``max_share``) and of a
household (``max_share_hh``). Outcomes are not read. Sampling variances are P (1 - P) / n_eff.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from pymc_dp import guarantee_drivers, planned_release

RATE, SIGMA_U = 0.12, 0.06
BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)
UNITS = {"person": "max_share", "household": "max_share_hh"}


def read_areas(folder: Path, unit: str) -> xr.Dataset:
    table = pd.read_csv(folder / "acs_pums_2024_puma_table.csv.gz", dtype={"puma": str})
    n_eff = table["sum_w"] ** 2 / table["sum_w2"]
    columns = {
        "variance": RATE * (1 - RATE) / n_eff,
        "sensitivity": table[UNITS[unit]],
        "n": table["n"],
        "n_eff": n_eff,
    }
    return xr.Dataset(
        {name: ("area", column.to_numpy(dtype=float)) for name, column in columns.items()},
        coords={"area": table["puma"].to_numpy(dtype=str)},
        attrs={"outcome_bounds": [0.0, 1.0], "unit": unit},
    )


def at_budget(release: Any, rho: float) -> dict[str, Any]:
    """Areas touched, errors (root mean square over areas), and the draw's loss by tempering."""
    tempered, noise = (release.calibrate(rho, method=way).report for way in ("temper", "noise"))
    rmse = tempered["rmse"].to_series()
    return {
        "rho": rho,
        "touched": tempered.attrs["areas_touched"],
        "draw": rmse["draw"],
        "loss": rmse["draw"] / rmse["draw before calibration"] - 1,
        "draw, smoothed": rmse["smoothed draw"],
        "uniform noise, smoothed": noise["rmse"].sel(estimator="smoothed draw").item(),
        "noisy direct, smoothed": rmse["noisy direct estimate, smoothed"],
    }


def figures(folder: Path) -> dict[str, Any]:
    """For each unit: its price, what makes areas dear, and a row a budget."""
    found = {}
    for unit in UNITS:
        areas = read_areas(folder, unit)
        release = planned_release(areas, sigma_u=SIGMA_U)
        now = float(release.guarantee["rho"])
        share = guarantee_drivers(areas, release.guarantee)["share"].to_series()
        found[unit] = {
            "areas": areas.sizes["area"],
            "rho": now,
            "drivers": {str(name): float(value) for name, value in share.items()},
            "budgets": [at_budget(release, rho) for rho in (now, *BUDGETS)],
        }
    return found
