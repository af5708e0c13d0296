"""The one place that knows the two containers: InferenceData (PyMC 5) and DataTree (PyMC 6)."""

from __future__ import annotations

from typing import Any

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


def release_group(data: Any) -> xr.Dataset:
    """Find the group of a release: in a PrivateRelease or a container, or it is given itself.

    Of a PrivateRelease it is the guarantee as long as nothing has been drawn.

    Raises
    ------
    TypeError
        If it is nothing that holds a release.
    ValueError
        If it is a container without one.
    """
    if isinstance(data, xr.Dataset):
        return data
    if hasattr(data, "guarantee") and hasattr(data, "released"):
        found: xr.Dataset = data.guarantee if data.released is None else data.released
        return found
    if isinstance(data, xr.DataTree) and "privacy" in data.attrs:
        return data.to_dataset()
    if not hasattr(data, "groups"):
        raise TypeError(
            "not a release: give a PrivateRelease, what draw() returned, or its group "
            f"{GROUP!r}, not {type(data).__name__}"
        )
    return read_group(data, GROUP)


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
