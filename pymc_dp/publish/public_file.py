"""The public file: one release and its claim, and nothing else.

Take from the group what the allow-list permits; write it beside the target under a hidden name;
read everything back with a plain reader; only then give it its name. A target never exists
half-written or unchecked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pymc_dp import containers
from pymc_dp._checks import name_some
from pymc_dp._files import check_new, new_file
from pymc_dp.containers.formats import (
    content,
    differences,
    format_of,
    open_group,
    read_netcdf,
    read_zarr,
    write_netcdf,
    write_zarr,
)
from pymc_dp.publish.allow_list import FILE_SCHEMA, public_part
from pymc_dp.record.claims import read_record

FORMATS = {".nc": (write_netcdf, read_netcdf), ".zarr": (write_zarr, read_zarr)}


def write_public(idata: Any, path: str | os.PathLike[str], *, conditional: bool = False) -> None:
    """Write the ``private_release`` group, and nothing else, to a new file or store.

    Parameters
    ----------
    idata : PrivateRelease, InferenceData, DataTree or Dataset
        A release that has been drawn, what :meth:`PrivateRelease.draw` returned, or its group.
    path : path
        A new netCDF file (``.nc``) or zarr store (``.zarr``) in an existing folder.
    conditional : bool
        Write also a claim that treats the variance components as fixed. The word "conditional"
        then stands beside every figure of the file.

    Raises
    ------
    ValueError
        If the claim is conditional and this was not asked for; if the group holds what is no
        part of a release, lacks the draw, or has missing values; if the path ends in neither
        ``.nc`` nor ``.zarr``, or lies inside a zarr store.
    FileExistsError
        If the target exists, be it a file, a folder or a dangling link.
    ImportError
        If the target is a zarr store and zarr is not installed.
    OSError
        If the target cannot be written; nothing is left under its name.
    RuntimeError
        If what was written is not exactly what was to be written; nothing is left of it.

    Notes
    -----
    Values computed from inputs that no assumption declares public are left out: sensitivities
    and the prices of single areas without ``weights``; posterior standard deviations, the
    propagation matrix and the smoothed draw without ``sampling_variance``, ``sigma_u`` and
    ``covariates``. The draw and the joint figure stay. The record in the file says what is
    missing and why (``left_out``) and what is declared public (``declaration``). Diagnostics
    of a fit are not written (``withheld``), nor are attributes other than the record, its
    time and its library.

    Examples
    --------
    >>> import tempfile
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> public = {"sampling_variance": "2010 census", "sigma_u": "2010 census"}
    >>> model = fay_herriot(direct, sigma_u=0.05)
    >>> release = PrivateRelease(model, sensitivity=0.02, assumptions=public)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_public(release.draw(), f"{folder}/release.nc")
    ...     group = read_public(f"{folder}/release.nc")["private_release"]
    >>> "theta" in group, "rho" in group, "sensitivity" in group
    (True, True, False)
    """
    target = _new_target(path)
    public = public_part(containers.release_group(idata), conditional=conditional)
    write, read = FORMATS[format_of(target)]
    with new_file(target) as hidden:
        write(public, containers.GROUP, hidden)
        try:
            wrong = differences(read(hidden), content(public, containers.GROUP))
        except ValueError as error:
            wrong = [str(error)]
        if wrong:
            raise RuntimeError(
                f"the file written holds something else than the release: {name_some(wrong)}; "
                "it was removed"
            )


def read_public(path: str | os.PathLike[str]) -> Any:
    """Read what :func:`write_public` wrote, into memory.

    Parameters
    ----------
    path : path
        A netCDF file (``.nc``) or zarr store (``.zarr``).

    Returns
    -------
    InferenceData or DataTree
        Whichever PyMC returns, with the one group ``private_release``.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ValueError
        If it is something else, or a later version of the package wrote it.

    Examples
    --------
    >>> import tempfile
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> public = {"sampling_variance": "2010 census", "sigma_u": "2010 census"}
    >>> model = fay_herriot(direct, sigma_u=0.05)
    >>> release = PrivateRelease(model, sensitivity=0.02, assumptions=public)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_public(release.draw(), f"{folder}/release.zarr")
    ...     published = read_public(f"{folder}/release.zarr")["private_release"]
    >>> published["theta"].dims
    ('chain', 'draw', 'area')
    >>> round(float(published["rho"]), 6) == round(float(release.guarantee["rho"]), 6)
    True
    """
    source = Path(path)
    group = open_group(source, containers.GROUP)
    schema = read_record(group.attrs).get("file_schema")
    if schema is None:
        raise ValueError(f"{str(source)!r} was not written by write_public")
    if schema > FILE_SCHEMA:
        raise ValueError(f"the file has schema {schema}, later than {FILE_SCHEMA}: update pymc_dp")
    return containers.attach(containers.new_container(), group)


def _new_target(path: str | os.PathLike[str]) -> Path:
    """Check that nothing is at the path, and that its folder is an ordinary one."""
    target = Path(path)
    format_of(target)
    check_new(target)
    for folder in target.absolute().parents:
        if any((folder / name).exists() for name in ("zarr.json", ".zgroup")):
            raise ValueError(
                f"{str(folder)!r} is a zarr store, which may hold more than the release: choose "
                "another folder"
            )
    return target
