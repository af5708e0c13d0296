"""What pictures are made from: a release however it is held, or the result of a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xarray as xr

from pymc_dp import containers
from pymc_dp._checks import name_some
from pymc_dp.plots.style import plain
from pymc_dp.record.claims import read_record


def opened_release(data: Any) -> tuple[xr.Dataset, dict[str, Any]]:
    """Take a release's data and its record, with texts that matplotlib may show as they are.

    Raises
    ------
    TypeError
        If `data` is nothing that holds a release.
    ValueError
        If it holds none.
    """
    group = containers.release_group(data)
    record = read_record(group.attrs)
    return group, record | {name: plain(record[name]) for name in ("unit", "target")}


def check_result(data: Any, function: str, names: Sequence[str]) -> None:
    """Refuse what is no result of a function of this package.

    Raises
    ------
    TypeError
        If `data` is no Dataset.
    ValueError
        If it lacks one of the names.
    """
    if not isinstance(data, xr.Dataset):
        raise TypeError(f"data must be what {function} returned, not {type(data).__name__}")
    missing = [name for name in names if name not in data]
    if missing:
        raise ValueError(f"not a result of {function}: it lacks {name_some(missing)}")
