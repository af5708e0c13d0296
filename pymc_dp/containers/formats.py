"""Data sets in one group of a netCDF file or zarr store: written, and read with plain readers.

The plain readers list everything that a file holds, also what xarray would not show.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._checks import name_some

# Path of a group or variable in the file: dims, values, attributes; None for a group's first two.
Content = dict[str, tuple[tuple[str, ...] | None, Any, dict[str, Any]]]
# What HDF5 and netCDF keep for themselves: dimension scales, and the versions of the libraries.
_NETCDF_OWN = frozenset(
    ["CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"]
)


def content(data: xr.Dataset, group: str) -> Content:
    """List what a file has to hold: a bare root, and one group with the data set."""
    root: Content = {"/": (None, None, {}), f"/{group}": (None, None, dict(data.attrs))}
    return root | {
        f"/{group}/{name}": (tuple(map(str, v.dims)), v.values, dict(v.attrs))
        for name, v in data.variables.items()
    }


def differences(found: Content, wanted: Content) -> list[str]:
    """Paths that only one of them has, or that differ in dims, attributes, type or values."""
    one_sided = found.keys() ^ wanted.keys()
    other = [
        path
        for path in found.keys() & wanted.keys()
        if found[path][::2] != wanted[path][::2] or not _equal(found[path][1], wanted[path][1])
    ]
    return sorted([*one_sided, *other])


def _equal(found: Any, wanted: Any) -> bool:
    if found is None or wanted is None:
        return found is wanted
    same_type = found.dtype == wanted.dtype or found.dtype.kind == wanted.dtype.kind == "U"
    numbers = np.asarray(wanted).dtype.kind == "f"  # missing where there is no sample
    return bool(same_type and np.array_equal(found, wanted, equal_nan=numbers))


def write_netcdf(data: xr.Dataset, group: str, path: Path) -> None:
    """Write to a netCDF file, by way of memory: HDF5 aborts the process on a full disk."""
    import h5netcdf
    import h5py  # type: ignore[import-untyped]

    buffer = BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        node = file.create_group(group)
        node.attrs.update(data.attrs)
        node.dimensions = {str(dim): size for dim, size in data.sizes.items()}
        for name, v in data.variables.items():
            text = v.dtype.kind == "U"
            dtype = h5py.string_dtype() if text else v.dtype
            values = v.values.astype(object) if text else v.values
            node.create_variable(str(name), v.dims, dtype, data=values).attrs.update(v.attrs)
    path.write_bytes(buffer.getbuffer())


def read_netcdf(path: Path) -> Content:
    """Every object and attribute of a netCDF file, read as plain HDF5.

    Raises
    ------
    ValueError
        If it holds links, which could point to anything.
    """
    import h5py

    def nodes(group: Any) -> Iterator[Any]:
        yield group
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"a link, {name!r}")
            child = group[name]
            yield from nodes(child) if isinstance(child, h5py.Group) else [child]

    found: Content = {}
    with h5py.File(path, "r") as file:
        for node in nodes(file):
            own = {"_NCProperties"} if node.name == "/" else _NETCDF_OWN
            attrs = {name: node.attrs[name] for name in node.attrs if name not in own}
            dims, values = None, None
            if isinstance(node, h5py.Dataset):
                text = h5py.check_string_dtype(node.dtype) is not None
                values = np.asarray(node.asstr()[...], dtype=str) if text else np.asarray(node)
                scales = [node] if node.is_scale else [dim[0] for dim in node.dims if len(dim)]
                dims = tuple(scale.name.rpartition("/")[2] for scale in scales)
            found[node.name] = (dims, values, attrs)
    return found


def write_zarr(data: xr.Dataset, group: str, path: Path) -> None:
    """Write to a zarr store, uncompressed: little is lost, and its bytes can be searched."""
    encoding = {str(name): {"compressors": None, "_FillValue": None} for name in data.variables}
    tree = xr.DataTree.from_dict({f"/{group}": data})
    with quiet_zarr():
        tree.to_zarr(path, encoding={f"/{group}": encoding})


def read_zarr(path: Path) -> Content:
    """Every file, array and attribute of a zarr store.

    Raises
    ------
    ValueError
        If it holds files that belong to no array, or its two copies of the metadata differ.
    """
    import zarr

    nodes: dict[str, Any] = {}
    copies: dict[str, Any] = {}
    others = []
    for file in (f for f in path.rglob("*") if f.is_symlink() or not f.is_dir()):
        if file.name == "zarr.json" and not file.is_symlink():
            node = json.loads(file.read_text(encoding="utf-8"))
            copies |= (node.pop("consolidated_metadata", None) or {}).get("metadata", {})
            nodes[file.parent.relative_to(path).as_posix()] = node
        else:
            others.append(file.relative_to(path))
    for node in copies.values():
        node.pop("consolidated_metadata", None)
    if copies != {name: node for name, node in nodes.items() if name != "."}:
        raise ValueError("two copies of the metadata that differ")
    arrays = {name for name, node in nodes.items() if node["node_type"] == "array"}
    chunks = {f"{name}/c" for name in arrays}
    stray = [f for f in others if chunks.isdisjoint(p.as_posix() for p in (f, *f.parents))]
    if stray:
        raise ValueError(f"files of no array, {name_some(stray)}")
    with quiet_zarr():
        store: Any = zarr.open_group(path, mode="r", use_consolidated=False)
        return {
            "/" if name == "." else f"/{name}": (
                tuple(node.get("dimension_names") or ()) if name in arrays else None,
                np.asarray(store[name][...]) if name in arrays else None,
                node["attributes"],
            )
            for name, node in nodes.items()
        }


def format_of(path: Path) -> str:
    """``.nc`` or ``.zarr``, as the path ends.

    Raises
    ------
    ValueError
        If it ends in something else.
    ImportError
        If it is a zarr store and zarr is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in (".nc", ".zarr"):
        raise ValueError(f"the path must end in .nc or .zarr, not {path.suffix!r}")
    if suffix == ".zarr":
        try:
            import zarr  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "zarr stores need an extra: pip install 'pymc_dp[zarr]', or write to .nc"
            ) from error
    return suffix


def open_group(path: Path, group: str) -> xr.Dataset:
    """One group of a file, in memory, its labels as text.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ValueError
        If it cannot be read.
    """
    engine: Any = "zarr" if format_of(path) == ".zarr" else "h5netcdf"
    if not path.exists():
        raise FileNotFoundError(f"no file or store {str(path)!r}")
    try:
        with quiet_zarr(), xr.open_dataset(path, group=group, engine=engine) as opened:
            data = opened.load().drop_encoding()
    except (OSError, LookupError, ValueError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as a public file") from error
    text = {
        name: np.asarray(data[name].values, dtype=str)
        for name in ("area", "area_bis")
        if name in data.coords
    }
    return data.assign_coords(text)


@contextmanager
def quiet_zarr() -> Iterator[None]:
    """Keep back what zarr 3 says of text arrays and of consolidated metadata: it is tested."""
    with warnings.catch_warnings():
        for message in ("The data type .* does not have a Zarr V3", "Consolidated metadata is"):
            warnings.filterwarnings("ignore", message=message)
        yield
