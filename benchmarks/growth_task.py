"""One task in a process of its own: ``growth_task.py TASK AREAS [profile]``, or a file's path.

Prints JSON: seconds (first, median, low, high), peak memory, and what the task adds to the memory
held before it. With ``profile``, seconds of one run by function too.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pymc as pm
from harness import peak_mib, seconds_of, spread
from problems import SIGMA_U, area_table, posterior_of, spatial_model

from pymc_dp import PrivateRelease, compare_variance_components, fay_herriot, hajek
from pymc_dp.mechanisms.fay_herriot import law_dataset
from pymc_dp.mechanisms.fay_herriot_draw import JointPlan
from pymc_dp.mechanisms.lattice import _gaussian, noisy_statistics, price
from pymc_dp.mechanisms.law import ReleaseLaw

ENOUGH = 2.0  # seconds of one call after which it is not repeated
REPEATS = 5


def guarantee(m: int) -> Callable[[], object]:
    """Every figure of the guarantee, from arrays; 8 coefficients."""
    direct, covariates, _ = area_table(m, 8)
    s, area = direct["sensitivity"].values, direct["area"].values

    def work() -> object:
        law = ReleaseLaw(posterior_of(direct, covariates, SIGMA_U))
        return law_dataset(law, s, area, bound=1.0, claim="formal")

    return work


def release(m: int) -> Callable[[], object]:
    """From labelled tables through a PyMC model to the guarantee; 8 coefficients."""
    direct, covariates, formula = area_table(m, 8)

    def work() -> object:
        model = fay_herriot(direct, formula, covariates, sigma_u=SIGMA_U)
        return PrivateRelease(model, direct["sensitivity"])

    return work


def draw(m: int) -> Callable[[], object]:
    """The safe draw of one vector: statistic, noise, map; 8 coefficients."""
    plan, y, distance, claimed = _plan(m)
    return lambda: plan.publish(noisy_statistics(plan, y, distance, claimed, 1)[0])


def noise(m: int) -> Callable[[], object]:
    """OpenDP's own time for as many lattice values, in one call."""
    plan, *_ = _plan(m)
    measurement, values = _gaussian(plan.size), np.zeros(plan.size)
    return lambda: measurement(values)


def comparison(m: int) -> Callable[[], object]:
    """Fixed, plug-in and estimated variance components; 64 orders, 2 coefficients."""
    direct, covariates, formula = area_table(m)
    prior = pm.HalfNormal.dist(0.25)
    orders = np.arange(2, 66)
    return lambda: compare_variance_components(
        direct, formula, covariates, prior=prior, order=orders
    )


def fay_herriot_like(m: int) -> Callable[[], object]:
    """Proof and guarantee of a model already built, as a user would write it; 2 coefficients."""
    direct, covariates, formula = area_table(m)
    model = fay_herriot(direct, formula, covariates, sigma_u=SIGMA_U, parametrization="centered")
    return lambda: PrivateRelease(model, direct["sensitivity"])


def sparse_car(m: int) -> Callable[[], object]:
    """Proof and guarantee of a CAR model with a sparse matrix of neighbours."""
    model, sensitivity = spatial_model(m, "CAR")
    return lambda: PrivateRelease(model, sensitivity)


def icar(m: int) -> Callable[[], object]:
    """Proof and guarantee of an ICAR model, whose soft sum to zero is dense."""
    model, sensitivity = spatial_model(m, "ICAR")
    return lambda: PrivateRelease(model, sensitivity)


def replicates(path: str) -> Callable[[], object]:
    """Direct estimates with the variance of all replicate weights in a Parquet file."""
    roles = {"outcome": "poor", "weight": "w", "area": "puma"}
    replicate = {"variance": "sdr", "replicate_weights": "PWGTP"}
    return lambda: hajek(pl.scan_parquet(path), **roles, **replicate)


TASKS = {
    task.__name__: task
    for task in (guarantee, release, draw, noise, comparison, fay_herriot_like, sparse_car, icar)
}


def _plan(m: int) -> tuple[JointPlan, np.ndarray, float, float]:
    direct, covariates, _ = area_table(m, 8)
    plan = JointPlan(posterior_of(direct, covariates, SIGMA_U), 1.0)
    s = direct["sensitivity"].values
    claimed = float(price(plan.norm, s, plan.slack).max())
    distance = float((plan.norm * s).max())
    return plan, direct["estimate"].values, distance, claimed


def profile(work: Callable[[], object]) -> dict[str, float]:
    """Seconds in the package's functions, with what they call, at least a fiftieth of the whole.

    The first is the whole. What runs in threads counts where it is waited for.
    """
    profiler = cProfile.Profile()
    whole = seconds_of(lambda: profiler.runcall(work))
    rows = pstats.Stats(profiler).stats
    found: dict[str, float] = {}
    for (file, _, name), (_, _, _, cumulative, _) in rows.items():
        if "pymc_dp" in Path(file).parts:
            key = f"{Path(file).stem}.{name}"
            found[key] = max(cumulative, found.get(key, 0.0))
    ordered = sorted(found.items(), key=lambda item: -item[1])
    kept = {name: value for name, value in ordered if value > whole / 50}
    return {"whole": whole} | kept


def main() -> None:
    task, given = sys.argv[1:3]
    work = replicates(given) if task == "replicates" else TASKS[task](int(given))
    before = peak_mib()
    first = seconds_of(work)
    peak = peak_mib()
    # Compilers and imports show in the first call: that is what a user waits for once.
    values = [first] if first > 10 * ENOUGH else [seconds_of(work)]
    while sum(values) < ENOUGH and len(values) < REPEATS:
        values.append(seconds_of(work))
    result = {"peak_mib": peak, "added_mib": peak - before}
    result |= spread(values, first)
    if "profile" in sys.argv[3:]:
        result["profile"] = profile(work)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
