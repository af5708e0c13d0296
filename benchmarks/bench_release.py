"""Speed and memory of a guarantee and a draw: ``pytest benchmarks/bench_release.py``.

Ratios are measured side by side in one run: the draw against OpenDP's own time for the same
number of lattice values, larger problems against smaller ones. Nothing here is asserted.
"""

from __future__ import annotations

import resource

import numpy as np
import pytest
import xarray as xr

import pymc_dp as pdp
from pymc_dp.guarantee import law_dataset
from pymc_dp.law import ReleaseLaw
from pymc_dp.noise import EXPONENT, JointPlan, _gaussian
from pymc_dp.posterior import fay_herriot_posterior

assert EXPONENT == -50


def problem(m: int, p: int):
    """A posterior of m areas and p coefficients, sensitivities, labels and direct estimates."""
    rng = np.random.default_rng(m)
    X = np.column_stack([np.ones(m), rng.normal(size=(m, p - 1))])
    posterior = fay_herriot_posterior(0.06**2, 1 / rng.uniform(1e-4, 2e-3, m), X)
    area = np.char.mod("%06d", np.arange(m))
    return posterior, rng.uniform(2e-3, 2e-2, m), area, rng.uniform(0.05, 0.3, m)


@pytest.mark.parametrize(("m", "p"), [(2_462, 1), (24_000, 8), (240_000, 8)])
def test_guarantee(benchmark, m, p):
    posterior, sensitivity, area, _ = problem(m, p)
    options = {"bound": 1.0, "claim": "formal"}
    # A fresh posterior each time: its factors are computed once and kept.
    benchmark.pedantic(
        lambda post: law_dataset(ReleaseLaw(post), sensitivity, area, **options),
        setup=lambda: ((type(posterior)(**vars_of(posterior)),), {}),
        rounds=7,
    )
    benchmark.extra_info["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def vars_of(posterior):
    names = type(posterior).__dataclass_fields__
    return {name: getattr(posterior, name) for name in names}


@pytest.mark.parametrize("m", [2_462, 240_000])
@pytest.mark.benchmark(group="draw")
def test_draw(benchmark, m):
    posterior, _, _, y = problem(m, 2)
    plan = JointPlan(posterior, 1.0)
    measurement = _gaussian(plan.size)
    benchmark.pedantic(
        lambda: plan.publish(np.asarray(measurement(plan.statistic(y)))), rounds=5, warmup_rounds=1
    )


@pytest.mark.parametrize("m", [2_462, 240_000])
@pytest.mark.benchmark(group="draw")
def test_opendp_alone(benchmark, m):
    plan = JointPlan(problem(m, 2)[0], 1.0)
    measurement, values = _gaussian(plan.size), np.zeros(plan.size)
    benchmark.pedantic(lambda: measurement(values), rounds=5, warmup_rounds=1)


def test_private_release_of_a_fay_herriot_model(benchmark):
    m = 2_462
    _, sensitivity, area, y = problem(m, 1)
    rng = np.random.default_rng(0)
    direct = xr.Dataset(
        {"estimate": ("area", y), "variance": ("area", rng.uniform(1e-4, 2e-3, m))},
        coords={"area": area},
    )
    model = pdp.fay_herriot(direct, sigma_u=0.06)
    benchmark.pedantic(lambda: pdp.PrivateRelease(model, sensitivity), rounds=5, warmup_rounds=1)
