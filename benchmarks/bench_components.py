"""Exact draws against NUTS, and the comparison of variance components: speed and memory.

``python benchmarks/bench_components.py [areas ...]``, by default 52 and 2462. Everything is
measured side by side in one run and printed; ratios matter, seconds depend on the machine.
NUTS is given its best form of the model and 500 + 500 draws of one chain.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings

import numpy as np
import pymc as pm
import xarray as xr

from pymc_dp import compare_variance_components, fay_herriot, sample_posterior
from pymc_dp.io import read_group

PRIOR_SCALE = 0.25


def problem(m: int) -> xr.Dataset:
    """Direct estimates like those of a poverty survey, with sensitivities."""
    rng = np.random.default_rng(m)
    D = rng.uniform(1e-4, 2e-3, m)
    y = 0.12 + 0.06 * rng.normal(size=m) + np.sqrt(D) * rng.normal(size=m)
    columns = {"estimate": y, "variance": D, "sensitivity": rng.uniform(2e-3, 2e-2, m)}
    return xr.Dataset(
        {name: ("area", values) for name, values in columns.items()},
        coords={"area": np.char.mod("%06d", np.arange(m))},
    )


def seconds(work):
    """Result and wall-clock seconds."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def effective_draws(values: np.ndarray) -> float:
    """Draws over their integrated autocorrelation time (Geyer's initial positive sequence)."""
    n = values.size
    centred = values - values.mean()
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlation = np.fft.irfft(spectrum)[:n]
    pairs = (correlation[: n - n % 2] / correlation[0]).reshape(-1, 2).sum(axis=1)
    stop = np.flatnonzero(pairs <= 0)
    return n / max(2 * pairs[: stop[0] if stop.size else None].sum() - 1, 1e-3)


def posterior(m: int) -> None:
    """Seconds per 1,000 independent draws of sigma_u: exact, and NUTS by effective draws."""
    direct = problem(m)

    def exact():
        return sample_posterior(direct, prior=pm.HalfNormal.dist(PRIOR_SCALE), random_seed=1)

    def nuts():
        with fay_herriot(direct, sigma_u=pm.HalfNormal.dist(PRIOR_SCALE)):
            return pm.sample(500, tune=500, chains=1, cores=1, random_seed=1, progressbar=False)

    exact()  # imports
    drawn, here = seconds(exact)
    mcmc, there = seconds(nuts)
    sigma = [read_group(d, "posterior")["sigma_u"].values[0] for d in (drawn, mcmc)]
    ess = effective_draws(sigma[1])
    per_thousand = there * 1000 / ess
    print(
        f"{m:>6} areas: exact 1,000 draws {here:.2f} s; NUTS {there:.1f} s for {ess:.0f} effective "
        f"draws of sigma_u, {per_thousand:.0f} s per 1,000: ratio {per_thousand / here:.0f}"
    )
    print(
        f"{'':>13} sigma_u {sigma[0].mean():.5f} sd {sigma[0].std():.5f} exact, "
        f"{sigma[1].mean():.5f} sd {sigma[1].std():.5f} NUTS"
    )


def comparison(m: int) -> None:
    """64 orders for every area, with epsilon and the check of the quadrature."""
    direct, prior = problem(m), pm.HalfNormal.dist(PRIOR_SCALE)
    found, taken = seconds(
        lambda: compare_variance_components(direct, prior=prior, order=np.arange(2, 66))
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    error = float(found["quadrature_error"].max())
    print(
        f"{m:>6} areas x 64 orders: {taken:.2f} s, peak of the process {peak:.0f} MiB, "
        f"largest quadrature error {error:.0e}"
    )


if __name__ == "__main__":
    # One short chain is too few to diagnose; the ratio needs no diagnosis.
    warnings.filterwarnings("ignore")
    sizes = [int(a) for a in sys.argv[1:]] or [52, 2462]
    for size in sizes:
        comparison(size)
    for size in sizes:
        posterior(size)
