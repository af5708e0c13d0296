"""ACS poverty by PUMA with a formal total of rho = 1.

Sampling variances come from weights and a public rate, sigma_u from the data at a hundredth of the
budget, and the draw is calibrated to the rest. Errors are against the posterior mean that an
analyst without any protection would publish: the same model with sigma_u by REML. For study: the
design factor is a stand-in, as it was seen in this very file, and a release is drawn once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp import (
    PrivacyLedger,
    PrivateRelease,
    estimate_sigma_u,
    fay_herriot,
    private_direct,
    private_sigma_u,
)
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior

BUDGET = 1.0
SHARE = 0.01  # of the budget, for sigma_u
RATE = 0.125  # poverty in the United States, 2023, as published
DESIGN_FACTOR = 2.7  # poverty is shared in a household
REPEATS = 200  # private estimates of sigma_u
SOURCES = {
    "weights": "public-use file",
    "sampling_variance": "weights, the published national rate of 2023, a design factor",
    "universe": "public-use file",
}


def read_direct(path: Path) -> xr.Dataset:
    """Direct estimates as ``hajek(unit="household", variance="kish", ...)`` would return them."""
    table = pd.read_csv(path, dtype={"puma": str, "state": str})
    n_eff = table["sum_w"] ** 2 / table["sum_w2"]
    columns = {
        "estimate": table["p_hat"],
        "variance": DESIGN_FACTOR * RATE * (1 - RATE) / n_eff,
        # The file gives shares to six digits: round up.
        "sensitivity": table["max_share_hh"] + 1e-6,
    }
    direct = xr.Dataset(
        {name: ("area", np.asarray(values, dtype=float)) for name, values in columns.items()},
        coords={"area": table["puma"].to_numpy(dtype=str)},
        attrs={"outcome_bounds": [0.0, 1.0], "unit": "household"},
    )
    direct["sensitivity"].attrs = dict(direct.attrs)
    return direct


def posterior_mean(direct: xr.Dataset, sigma_u: float) -> np.ndarray:
    m = direct.sizes["area"]
    posterior = fay_herriot_posterior(sigma_u**2, 1 / direct["variance"].values, np.ones((m, 1)))
    return posterior.mean(direct["estimate"].values)


def rmse(values: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((values - truth) ** 2)))


def figures(folder: Path) -> dict[str, Any]:
    """What the private sigma_u and the draw at the rest of the budget cost in accuracy."""
    direct = read_direct(folder / "acs_pums_2024_puma_table.csv.gz")
    reml = estimate_sigma_u(direct)
    truth = posterior_mean(direct, reml)
    tries = [
        private_sigma_u(direct, rho=SHARE * BUDGET, assumptions=SOURCES) for _ in range(REPEATS)
    ]
    sigmas = np.array([float(found["sigma_u"]) for found in tries])
    with tempfile.TemporaryDirectory() as place:
        ledger = PrivacyLedger(Path(place) / "acs.ledger", rho=BUDGET, create=True)
        found = private_sigma_u(direct, rho=SHARE * BUDGET, ledger=ledger, assumptions=SOURCES)
        release = PrivateRelease(
            fay_herriot(direct, sigma_u=float(found["sigma_u"])),
            direct["sensitivity"],
            assumptions=SOURCES | {"sigma_u": found.attrs["source"]},
        )
        plain = release.guarantee
        above = int((plain["rho_respondent"] > ledger.remaining).sum())
        release = release.calibrate(rho=ledger.remaining)
        group = release.draw(ledger=ledger)["private_release"]
        total = ledger.spent
    noisy = private_direct(direct, rho=BUDGET, assumptions=SOURCES)
    return {
        "areas": direct.sizes["area"],
        "rho": BUDGET,
        "rho of sigma_u": SHARE * BUDGET,
        "sigma_u by REML": reml,
        "private sigma_u, mean": sigmas.mean(),
        "private sigma_u, standard deviation": sigmas.std(),
        "posterior mean at the private sigma_u": float(
            np.mean([rmse(posterior_mean(direct, s), truth) for s in sigmas])
        ),
        "price before calibration": float(plain["rho"]),
        "areas above the rest of the budget": above,
        "claim": release.claim,
        "total": total,
        "draw": rmse(group["theta"].values.ravel(), truth),
        "draw, smoothed": rmse(group["theta_smoothed"].values.ravel(), truth),
        "noisy direct, smoothed": rmse(posterior_mean(noisy, estimate_sigma_u(noisy)), truth),
    }
