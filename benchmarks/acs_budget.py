"""What a budget costs in accuracy: ``python benchmarks/acs_budget.py AREA_TABLE.csv``.

The table has a row an area with the columns ``sum_w`` and ``sum_w2`` (sums of the weights and
of their squares), ``n``, and the largest share of the weights of a record (``max_share``) and of a
household (``max_share_hh``). Outcomes are not read. Sampling variances are P (1 - P) / n_eff.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp.drivers import guarantee_drivers
from pymc_dp.planning import planned_release


def read_areas(path: str, rate: float, share: str, unit: str) -> xr.Dataset:
    table = pd.read_csv(path)
    n_eff = table["sum_w"] ** 2 / table["sum_w2"]
    columns = {
        "variance": rate * (1 - rate) / n_eff,
        "sensitivity": table[share],
        "n": table["n"],
        "n_eff": n_eff,
    }
    return xr.Dataset(
        {name: ("area", column.to_numpy(dtype=float)) for name, column in columns.items()},
        coords={"area": table.index.astype(str).to_numpy()},
        attrs={"bounds": [0.0, 1.0], "unit": unit},
    )


def budget_table(areas: xr.Dataset, sigma_u: float, targets: list[float]) -> pd.DataFrame:
    """One row a budget: areas touched, errors (root mean square over areas), loss by tempering."""
    release = planned_release(areas, sigma_u=sigma_u)
    now = float(release.guarantee["rho"])
    rows = []
    for rho in [now, *targets]:
        reports = {
            method: release.calibrate(rho, method=method).report for method in ("temper", "noise")
        }
        tempered = reports["temper"]
        rmse = tempered["rmse"].to_series()
        rows.append(
            {
                "rho": rho,
                "touched": tempered.attrs["areas_touched"],
                "draw": rmse["draw"],
                "loss %": 100 * (rmse["draw"] / rmse["draw before calibration"] - 1),
                "draw, smoothed": rmse["smoothed draw"],
                "uniform noise, smoothed": reports["noise"]["rmse"]
                .sel(estimator="smoothed draw")
                .item(),
                "noisy direct": rmse["noisy direct estimate"],
                "noisy direct, smoothed": rmse["noisy direct estimate, smoothed"],
            }
        )
    return pd.DataFrame(rows).set_index("rho")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", help="area table, CSV")
    parser.add_argument("--rate", type=float, default=0.12)
    parser.add_argument("--sigma-u", type=float, default=0.06)
    parser.add_argument("--rho", type=float, nargs="+", default=[1.0, 0.5, 0.2, 0.1, 0.05, 0.01])
    options = parser.parse_args()
    for unit, share in (("person", "max_share"), ("household", "max_share_hh")):
        areas = read_areas(options.table, options.rate, share, unit)
        print(f"\nunit {unit}, {areas.sizes['area']} areas, rate {options.rate}, ", end="")
        print(f"sigma_u {options.sigma_u}: root mean squared errors under the model\n")
        table = budget_table(areas, options.sigma_u, options.rho)
        print(table.to_string(float_format="{:.4f}".format))
        guarantee = planned_release(areas, sigma_u=options.sigma_u).guarantee
        drivers = guarantee_drivers(areas, guarantee)
        print("\nwhat makes areas dear (shares of the variance of log rho)\n")
        print(
            drivers[["share", "rank_correlation"]]
            .to_dataframe()
            .to_string(float_format="{:.3f}".format)
        )
        price = np.sort(guarantee["rho_respondent"].values)
        print(f"\nmedian rho over areas {np.median(price):.4f}, 99% {np.quantile(price, 0.99):.4f}")


if __name__ == "__main__":
    main()
