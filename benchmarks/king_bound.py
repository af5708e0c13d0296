"""How far the price of a draw with sigma_u estimated can be bounded, and how much is attained.

Smoking in King County. The bound is that of ``bound_estimated``. What is attained comes from data
in which one area is off the regression and all others agree, the worst kind there is, by
quadrature over sigma_u.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.special import roots_legendre

import pymc_dp as pdp

SIGMA_U = 0.04
INTERVALS = ((0.035, 0.045), (0.03, 0.05), (0.02, 0.06))
# Six digits over this range: no figure depends on the grid.
OFF_BY = np.geomspace(0.01, 10, 1501)
NODES = 201


def variance_of_theta(
    direct: xr.Dataset, area: int, estimates: np.ndarray, interval: tuple[float, float]
) -> np.ndarray:
    """Posterior variance of an area's theta, sigma_u uniform, one mean, for each row of data.

    ``estimates`` has shape (k, m), the result (k,).
    """
    low, high = interval
    nodes, weights = roots_legendre(NODES)
    sigma = (low + high) / 2 + (high - low) / 2 * nodes
    D = direct["variance"].values
    w = 1 / (sigma[:, None] ** 2 + D)
    total = w.sum(axis=1)
    mean = estimates @ w.T / total
    # The weighted residual sum of squares, which is all that the likelihood sees of the data.
    square = estimates**2 @ w.T - total * mean**2
    log_density = np.log(w).sum(axis=1) / 2 - np.log(total) / 2 - square / 2
    density = weights * np.exp(log_density - log_density.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    gamma = sigma**2 * w[:, area]
    theta = gamma * estimates[:, [area]] + (1 - gamma) * mean
    within = gamma * D[area] + (1 - gamma) ** 2 / total
    centre = (density * theta).sum(axis=1)
    return (density * (within + (theta - centre[:, None]) ** 2)).sum(axis=1)


def figures(folder: Path) -> dict[str, Any]:
    """For each interval: bounds over fixed prices, and what is attained."""
    path = folder / "brfss_king_county_2009_2013.csv.gz"
    records = pd.read_csv(path, usecols=["hra", "w", "smoker"]).dropna()
    direct = pdp.hajek(records, outcome="smoker", weight="w", area="hra")
    fixed = pdp.plan(direct, sigma_u=SIGMA_U)
    price = fixed["rho_respondent"].values
    D, m = direct["variance"].values, direct.sizes["area"]
    now = (2 * D**2 * price) / direct["sensitivity"].values ** 2  # Sigma_jj
    largest = int(D.argmax())
    moved = np.tile(direct["estimate"].values, (101, 1))
    moved[:, largest] = np.linspace(0, 1, 101)
    found: dict[str, Any] = {}
    for interval in INTERVALS:
        bound = pdp.bound_estimated(direct, prior=pm.Uniform.dist(*interval), sigma_u=SIGMA_U)
        attained = np.empty(m)
        for area in range(m):
            off = np.zeros((OFF_BY.size, m))
            off[:, area] = OFF_BY
            spread = variance_of_theta(direct, area, off, interval)
            attained[area] = spread.max() / now[area]
            if area == largest:
                worst_data = float(OFF_BY[spread.argmax()])
        found[f"{interval[0]:g} to {interval[1]:g}"] = {
            "whole vector: bound": float(bound["rho"]) / price.max(),
            "whole vector: attained": float((attained * price).max() / price.max()),
            "worst area: bound": float(bound["ratio"].max()),
            "worst area: attained": float(attained.max()),
            "median area: bound": float(bound["ratio"].median()),
            "worst data, off by": worst_data,
            "moved between 0 and 1": float(
                variance_of_theta(direct, largest, moved, interval).max() / now[largest]
            ),
        }
    return {
        "areas": m,
        "dearest": str(direct["area"].values[price.argmax()]),
        "largest variance": str(direct["area"].values[largest]),
        "intervals": found,
    }
