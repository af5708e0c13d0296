"""Whether a fit is good enough for its variance components to be plugged in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_dp.containers.groups import as_dataset, groups, read_group

# Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian Analysis 16: 667-718.
LARGEST_RHAT = 1.01
SMALLEST_ESS = 400.0
# The default parametrization has a few divergences in 2,000 draws without harm; a funnel has
# hundreds.
LARGEST_SHARE_OF_DIVERGENCES = 0.005


def check_convergence(idata: Any, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Diagnostics of the variance components in a fit; refuses one that has not converged.

    Parameters
    ----------
    idata : InferenceData or DataTree
        With a group ``posterior``; divergences are read from ``sample_stats`` where it exists.
    names : sequence of str
        Variance components.

    Returns
    -------
    dict
        ``{name: {"rhat": ..., "ess": ...}}``, the worst entry of each; ``rhat`` is left out
        for a single chain, which has none.

    Raises
    ------
    ValueError
        Naming the variables and their diagnostics.
    """
    import arviz as az

    posterior = read_group(idata, "posterior")[list(names)]
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    measures = {"ess": az.ess} | ({"rhat": az.rhat} if posterior.sizes["chain"] > 1 else {})
    for measure, function in measures.items():
        values = as_dataset(function(posterior))
        for name in names:
            worst = values[name].min() if measure == "ess" else values[name].max()
            found[name][measure] = float(worst)

    problems = [
        f"{name} ({', '.join(f'{k} {v:.4g}' for k, v in measures.items())})"
        for name, measures in found.items()
        # Written so that NaN, the diagnostic of a chain that never moved, is a problem.
        if not (measures["ess"] >= SMALLEST_ESS and measures.get("rhat", 1.0) <= LARGEST_RHAT)
    ]
    if "sample_stats" in groups(idata):
        stats = read_group(idata, "sample_stats")
        diverging = np.asarray(stats["diverging"]) if "diverging" in stats else np.zeros(1)
        if diverging.mean() > LARGEST_SHARE_OF_DIVERGENCES:
            problems.append(f"{int(diverging.sum())} divergences in {diverging.size} draws")
    if problems:
        raise ValueError(
            f"the fit has not converged and cannot be plugged in: {'; '.join(problems)}; needed "
            f"are rhat <= {LARGEST_RHAT}, ess >= {SMALLEST_ESS:.0f} and at most "
            f"{LARGEST_SHARE_OF_DIVERGENCES:.1%} divergences"
        )
    return found
