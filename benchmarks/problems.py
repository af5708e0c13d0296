"""The data of the benchmarks: simulated area tables, and survey files where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pymc as pm
import scipy.sparse as sp
import xarray as xr

from pymc_dp import datasets
from pymc_dp.posterior.fay_herriot import GaussianPosterior, fay_herriot_posterior

SIGMA_U = 0.06


def area_table(m: int, p: int = 2) -> tuple[xr.Dataset, pd.DataFrame, str]:
    """Direct estimates like those of a poverty survey, p - 1 covariates, and the formula."""
    rng = np.random.default_rng(m)
    x = rng.normal(size=(m, p - 1))
    D = rng.uniform(1e-4, 2e-3, m)
    theta = 0.12 + 0.01 * x.sum(axis=1) + SIGMA_U * rng.normal(size=m)
    columns = {
        "estimate": np.clip(theta + np.sqrt(D) * rng.normal(size=m), 0, 1),
        "variance": D,
        "sensitivity": rng.uniform(2e-3, 2e-2, m),
    }
    area = np.char.mod("%07d", np.arange(m))
    direct = xr.Dataset(
        {name: ("area", values) for name, values in columns.items()}, coords={"area": area}
    )
    direct["sensitivity"].attrs = {"outcome_bounds": [0.0, 1.0], "unit": "household"}
    direct.attrs = {"bounds": [0.0, 1.0], "unit": "household"}
    names = [f"x{k}" for k in range(1, p)]
    formula = "~ " + " + ".join(["1", *names])
    return direct, pd.DataFrame(x, index=area, columns=names), formula


def posterior_of(direct: xr.Dataset, covariates: pd.DataFrame, sigma_u: float) -> GaussianPosterior:
    X = np.column_stack([np.ones(len(covariates)), covariates])
    return fay_herriot_posterior(sigma_u**2, 1 / direct["variance"].values, X)


def grid(m: int) -> sp.csc_matrix:
    """Neighbours on a square grid of about m areas."""
    side = round(m**0.5)
    path = sp.diags([np.ones(side - 1)] * 2, [-1, 1])
    eye = sp.identity(side)
    return sp.csc_matrix(sp.kron(path, eye) + sp.kron(eye, path))


def spatial_model(m: int, prior: str) -> tuple[pm.Model, xr.DataArray]:
    """Two coefficients and a spatial effect on a grid; sensitivities with a declared range."""
    W = grid(m)
    m = W.shape[0]
    direct, covariates, _ = area_table(m)
    X = np.column_stack([np.ones(m), covariates])
    with pm.Model(coords={"area": direct["area"].values}) as model:
        beta = pm.Flat("beta", shape=2)
        if prior == "CAR":
            phi = pm.CAR("phi", np.zeros(m), W, 0.9, 1 / SIGMA_U**2)
        else:
            phi = pm.ICAR("phi", W=W.toarray(), sigma=SIGMA_U, zero_sum_stdev=0.01)
        theta = pm.Deterministic("theta", X @ beta + phi, dims="area")
        y = pm.Data("direct", direct["estimate"].values)
        pm.Normal("y", theta, direct["variance"].values ** 0.5, observed=y, dims="area")
    return model, direct["sensitivity"]


def counties(data: Path) -> tuple[xr.Dataset, pd.DataFrame, str, str]:
    """Poverty of counties and participation in food stamps, or a simulated table as large."""
    path = data / "fh_county_poverty_acs_2007_2011.csv.gz"
    if not path.exists():
        direct, covariates, formula = area_table(3_141)
        return direct, covariates, formula, "simulated, 3,141 areas"
    table = pd.read_csv(path, dtype={"fips": str}).set_index("fips")
    direct = xr.Dataset(
        {"estimate": ("area", table["pov_rate"]), "variance": ("area", table["var"])},
        coords={"area": table.index.to_numpy(dtype=str)},
        attrs={"bounds": [0.0, 1.0]},
    )
    covariates = table[["snap_rate"]].rename(columns={"snap_rate": "x1"})
    return direct, covariates, "~ 1 + x1", "poverty of 3,141 counties, ACS 2007-2011"


def persons(data: Path, target: Path, quick: bool) -> tuple[Path, str]:
    """Records of persons as Parquet: columns puma, hh, w, poor."""
    columns = ["puma", "hh", "w", "poor"]
    paths = sorted(data.glob("acs_pums_2024_persons_part*.csv.gz"))[: 1 if quick else None]
    if paths:
        parts = [pl.read_csv(path, schema_overrides={"puma": pl.String}) for path in paths]
        frame = pl.concat(parts).drop_nulls("povpip").with_columns(poor=pl.col("povpip") < 100)
        words = "ACS 2024"
    else:
        size = (
            {"areas": 100, "persons": 130_000} if quick else {"areas": 2_462, "persons": 3_400_000}
        )
        simulated = pl.from_pandas(datasets.simulate_acs(**size)).filter(pl.col("in_universe"))
        frame = simulated.rename({"SERIALNO": "hh", "PWGTP": "w"}).with_columns(
            poor=pl.col("poor") > 0
        )
        words = "simulated"
    frame = frame.select(columns)
    frame.write_parquet(target)
    return target, f"{words}, {len(frame):,} persons, {frame['puma'].n_unique():,} areas"
