"""What the notebook about variance components states: agreement with NUTS, and a real survey."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_dp.components.posterior import sample_posterior
from pymc_dp.containers import read_group
from pymc_dp.models.builder import fay_herriot

matplotlib.use("Agg")

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "variance-components.ipynb"


def cells(tag: str | None = None) -> list[str]:
    """Sources of the cells with a tag, or of all code cells."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if (tag in cell["metadata"].get("tags", []) if tag else cell["cell_type"] == "code")
    ]


@pytest.fixture(scope="module")
def real_run(shared):
    """The names that the King County cell leaves behind, run on the file after the imports."""
    import matplotlib.pyplot as plt

    [cell] = cells("king-county")
    names: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        path = shared / "data" / "brfss_king_county_2009_2013.csv.gz"
        patch.setenv("PYMC_DP_KING_COUNTY", str(path))
        exec(compile(cells()[0], "first cell", "exec"), names)
        exec(compile(cell, "King County cell", "exec"), names)
    plt.close("all")
    return names


def test_king_county_cell_gives_the_divergences_of_the_finding(real_run):
    here = real_run["king_costs"].sel(area="Auburn-North")
    # Four and three digits of the finding.
    assert float(here["rdp_estimated"].sel(order=2)) == pytest.approx(0.2722, abs=5e-5)
    assert float(here["rdp_fixed"].sel(order=2)) == pytest.approx(0.2280, abs=5e-5)
    assert float(here["rdp_estimated"].sel(order=32)) == pytest.approx(8.11, abs=5e-3)
    assert float(here["rdp_fixed"].sel(order=32)) == pytest.approx(3.65, abs=5e-3)


def test_figures_in_the_words_after_the_cell_are_those_of_the_cell(real_run):
    [words] = cells("king-county-figures")
    here, proviso = real_run["king_costs"].sel(area="Auburn-North"), real_run["king_proviso"]
    figures = []
    for order, form in ((2, ".4f"), (32, ".2f")):
        at = here.sel(order=order)
        figures += [format(at[f"rdp_{k}"].item(), form) for k in ("estimated", "fixed")]
    assert re.findall(r"\d+\.\d+", words) == [f"{here.attrs['sigma_u_fixed']:g}", *figures]
    by_8 = int((proviso["order_infinite"] <= 8).sum())
    assert f"{by_8} of {proviso.sizes['area']} areas" in " ".join(words.split())


@pytest.fixture(scope="module")
def thirty() -> xr.Dataset:
    """A survey of 30 areas whose sampling variances differ by a factor of 30."""
    rng = np.random.default_rng(8)
    variance = np.geomspace(0.0003, 0.009, 30)
    share = 0.2 + 0.04 * rng.normal(size=30)
    return xr.Dataset(
        {
            "estimate": ("area", share + np.sqrt(variance) * rng.normal(size=30)),
            "variance": ("area", variance),
        },
        coords={"area": [f"R{i:02d}" for i in range(30)]},
    )


def test_exact_draws_agree_with_nuts_on_the_same_model(thirty):
    import arviz as az

    prior = pm.HalfNormal.dist(0.1)
    names = ["beta", "sigma_u", "theta"]
    exact = sample_posterior(thirty, prior=prior, draws=100_000, random_seed=5)
    ours = read_group(exact, "posterior")[names]
    nuts = pm.sample(
        1500,
        tune=1000,
        chains=2,
        cores=1,
        target_accept=0.9,
        model=fay_herriot(thirty, sigma_u=prior),
        random_seed=6,
        progressbar=False,
        compute_convergence_checks=False,
    )
    theirs = read_group(nuts, "posterior")[names]
    assert int(read_group(nuts, "sample_stats")["diverging"].sum()) <= 3

    both, draws = ("chain", "draw"), ours.sizes["draw"]
    for name in names:
        got, want = theirs[name], ours[name]
        spread = want.std(both)
        # Monte Carlo errors of both sides, from the effective number of draws. A mean has
        # sd / sqrt(n); a standard deviation sd / sqrt(2 n), times sqrt((kurtosis - 1) / 2) where
        # the posterior is not normal. 64 comparisons: 4 errors are passed by chance once in 250
        # seeds, and the seeds are set.
        ess = az.ess(nuts, var_names=[name])[name].values
        error = spread * np.sqrt(1 / ess + 1 / draws)
        assert (np.abs(got.mean(both) - want.mean(both)) < 4 * error).all(), name
        kurtosis = ((want - want.mean(both)) ** 4).mean(both) / spread**4
        ess = az.ess(nuts, var_names=[name], method="sd")[name].values
        error = spread * np.sqrt((kurtosis - 1) / 4 * (1 / ess + 1 / draws))
        assert (np.abs(got.std(both) - spread) < 4 * error).all(), name
