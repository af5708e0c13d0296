"""ACS poverty by PUMA with a formal total of rho = 1.

``python benchmarks/acs_formal_total.py TABLE``, TABLE the file ``acs_pums_2024_puma_table.csv.gz``.
Sampling variances come from weights and a public rate, sigma_u from the data at a hundredth of the
budget, and the draw is calibrated to the rest. Errors are against the posterior mean that an
analyst without any protection would publish: the same model with sigma_u by REML. For study: the
design factor is a stand-in, as it was seen in this very file, and a release is drawn once.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp import PrivacyLedger, PrivateRelease, fay_herriot
from pymc_dp.components import estimate_sigma_u
from pymc_dp.io import GROUP, read_group
from pymc_dp.noisy_direct import private_direct
from pymc_dp.posterior import fay_herriot_posterior
from pymc_dp.private_components import private_sigma_u

BUDGET = 1.0
SHARE = 0.01  # of the budget, for sigma_u
RATE = 0.125  # poverty in the United States, 2023, as published
DESIGN_FACTOR = 2.7  # poverty is shared in a household
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
        attrs={"bounds": [0.0, 1.0], "unit": "household"},
    )
    direct["sensitivity"].attrs = dict(direct.attrs)
    return direct


def posterior_mean(direct: xr.Dataset, sigma_u: float) -> np.ndarray:
    m = direct.sizes["area"]
    posterior = fay_herriot_posterior(sigma_u**2, 1 / direct["variance"].values, np.ones((m, 1)))
    return posterior.mean(direct["estimate"].values)


def rmse(values: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((values - truth) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--repeats", type=int, default=200, help="private estimates of sigma_u")
    arguments = parser.parse_args()
    direct = read_direct(arguments.table)

    reml = estimate_sigma_u(direct)
    truth = posterior_mean(direct, reml)
    tries = [
        private_sigma_u(direct, rho=SHARE * BUDGET, assumptions=SOURCES)
        for _ in range(arguments.repeats)
    ]
    sigmas = np.array([float(found["sigma_u"]) for found in tries])
    y, D = direct["estimate"].values, direct["variance"].values
    moment = float(np.sqrt(max(y.var(ddof=1) - D.mean(), 0)))
    print(f"{direct.sizes['area']} areas, unit {direct.attrs['unit']}, rate {RATE}")
    print(f"sigma_u: REML {reml:.5f}, moment estimate {moment:.5f}")
    print(
        f"  private at rho {SHARE * BUDGET:g}, {sigmas.size} times: mean {sigmas.mean():.5f}, "
        f"sd {sigmas.std():.5f}, largest error against the moment estimate "
        f"{np.abs(sigmas - moment).max():.5f}"
    )
    print(
        "  posterior mean at the private sigma_u against REML, root mean square: "
        f"{np.mean([rmse(posterior_mean(direct, s), truth) for s in sigmas]):.5f}"
    )

    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "acs.ledger", rho=BUDGET)
        found = private_sigma_u(direct, rho=SHARE * BUDGET, ledger=ledger, assumptions=SOURCES)
        release = PrivateRelease(
            fay_herriot(direct, sigma_u=float(found["sigma_u"])),
            direct["sensitivity"],
            assumptions=SOURCES | {"sigma_u": found.attrs["source"]},
        )
        plain = release.guarantee
        above = int((plain["rho_respondent"] > ledger.remaining).sum())
        print(
            f"plain price of the draw: rho {float(plain['rho']):.4f}, left of the budget "
            f"{ledger.remaining:.4f}, {above} areas above it"
        )
        release = release.calibrate(rho=ledger.remaining)
        group = read_group(release.draw(ledger=ledger), GROUP)
        print(f"claim {release.claim}, total rho {ledger.spent:.12g} of {BUDGET:g}")
    for name in ("theta", "theta_smoothed"):
        error = rmse(group[name].values.ravel(), truth)
        print(f"  {name:15} root mean squared error against the posterior mean {error:.5f}")

    noisy = private_direct(direct, rho=BUDGET, assumptions=SOURCES)
    error = rmse(posterior_mean(noisy, estimate_sigma_u(noisy)), truth)
    print(f"  noise on the direct estimates at rho {BUDGET:g} instead, smoothed: {error:.5f}")
    spread = np.sqrt(fay_herriot_posterior(reml**2, 1 / D, np.ones((D.size, 1))).variance)
    print(f"  posterior standard deviation, root mean square: {rmse(spread, 0 * spread):.5f}")


if __name__ == "__main__":
    main()
