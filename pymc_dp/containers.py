"""The one place that knows the two containers, InferenceData and DataTree, and what a fit tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

GROUP = "private_release"


def _container_type() -> type:
    """The container that PyMC returns here."""
    if int(pm.__version__.split(".")[0]) >= 6:
        return xr.DataTree
    import arviz as az

    return az.InferenceData


def new_container() -> Any:
    """An empty InferenceData or DataTree, whichever PyMC returns here."""
    return _container_type()()


def groups(idata: Any) -> list[str]:
    """Names of the groups of a container."""
    names = idata.groups() if callable(idata.groups) else idata.children
    return [str(name) for name in names]


def attach(idata: Any, dataset: xr.Dataset) -> Any:
    """Add the release as a group, in place, and return the container as it came."""
    idata[GROUP] = dataset
    return idata


def read_group(idata: Any, name: str) -> xr.Dataset:
    """One group of a container as a Dataset.

    Raises
    ------
    ValueError
        If the container has no such group.
    """
    if name not in groups(idata):
        raise ValueError(f"no group {name!r}; found {', '.join(groups(idata)) or 'none'}")
    return as_dataset(idata[name])


def as_dataset(group: Any) -> xr.Dataset:
    """A group, or what ArviZ computes from one, as a Dataset on both stacks."""
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def check_container(idata: Any) -> Any:
    """Refuse, before any draw, a container that cannot take a release or already holds one.

    Raises
    ------
    TypeError
        If it is neither an InferenceData nor a DataTree.
    ValueError
        If it already has a release, which would be overwritten.
    """
    if not isinstance(idata, (_container_type(), xr.DataTree)):
        raise TypeError(f"idata must be InferenceData or DataTree, not {type(idata).__name__}")
    if GROUP in groups(idata):
        raise ValueError(
            f"idata already has a group {GROUP!r}; a release is never overwritten: pass another "
            "container, or none"
        )
    return idata


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
