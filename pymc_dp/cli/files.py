"""What the command line writes: the release first, wherever there is room, then what shows it.

The table and the pictures are made from the public file as it was written, so that none of them
holds more than it does.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from scipy.special import ndtri

from pymc_dp import containers
from pymc_dp._files import new_file
from pymc_dp.cli.input import PICTURES
from pymc_dp.cli.words import one_line
from pymc_dp.publish.allow_list import with_zeros
from pymc_dp.publish.public_file import read_public, write_public
from pymc_dp.record.claims import read_record

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from pymc_dp.release.release import PrivateRelease


PROB = 0.9  # of the intervals in the table and in the picture of the release
HEIGHT_OF_AREAS = 80  # beyond so many areas the picture of a release has no line for each


def rehearse(release: PrivateRelease, out: Path, *, conditional: bool) -> None:
    """Write and remove what a draw would, zeros in its place: what fails now costs nothing."""
    group = with_zeros(release.guarantee)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".pymc-dp-rehearsal-") as folder:
        write_public(group, Path(folder) / f"zeros{out.suffix}", conditional=conditional)


def save(idata: Any, out: Path, *, conditional: bool) -> Path | None:
    """Write the release to its target, else where there is room: its price is paid.

    Returns
    -------
    Path or None
        What was written. None if nothing could be: the draw then stands on standard output.
    """
    try:
        write_public(idata, out, conditional=conditional)
        return out
    except BaseException as error:  # also an interrupt: there is no second draw
        saved = _recover(idata, out, conditional=conditional)
        where = "printed to standard output" if saved is None else f"saved to {saved}"
        print(
            f"pymc-dp: error: {out} could not be written ({one_line(error)}); the release is paid "
            f"for and was {where}: keep it, a second draw costs its price again",
            file=sys.stderr,
        )
        if not isinstance(error, Exception):
            raise
        return saved


def _recover(idata: Any, out: Path, *, conditional: bool) -> Path | None:
    name = f"{out.stem}.recovered.nc"
    folders: list[Callable[[], Path | str]] = [
        lambda: out.parent,
        Path.cwd,
        Path.home,
        lambda: tempfile.mkdtemp(prefix="pymc-dp-"),
    ]
    for folder in folders:
        try:
            place = Path(folder()) / name
            write_public(idata, place, conditional=conditional)
            return place
        except Exception:  # whatever it is, try the next place
            continue
    group = containers.read_group(idata, containers.GROUP)
    print(group.attrs["privacy"])
    csv.writer(sys.stdout).writerows(
        [("area", "released"), *zip(group["area"].values, _first(group, "theta"), strict=True)]
    )
    sys.stdout.flush()
    return None


def read_group(path: Path) -> xr.Dataset:
    """Read the group of a public file."""
    return containers.read_group(read_public(path), containers.GROUP)


def write_table(group: xr.Dataset, path: Path) -> None:
    """Write one line an area: the draw and, if it is public, its smoothed form with an interval.

    Columns ``area``, ``released``, ``smoothed``, ``lower``, ``upper`` (of the 90 % interval given
    the draw, under the model) and ``claim``, in the outcome's unit.
    """
    record = read_record(group.attrs)
    columns = {"released": _first(group, "theta")}
    if "theta_smoothed" in group:
        smoothed = _first(group, "theta_smoothed")
        half = ndtri((1 + PROB) / 2) * group["theta_smoothed_sd"].values
        columns |= {"smoothed": smoothed, "lower": smoothed - half, "upper": smoothed + half}
    digits = max(record["publishing_decimals"], 0)
    with new_file(path) as hidden, hidden.open("x", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["area", *columns, "claim"])
        for area, *values in zip(group["area"].values, *columns.values(), strict=True):
            table.writerow([area, *(f"{v:.{digits}f}" for v in values), record["claim_words"]])


def no_pictures() -> str:
    """Why none can be drawn here, if so; asked before the draw."""
    try:
        import matplotlib.figure  # noqa: F401

        import pymc_dp.plots.release  # noqa: F401
    except Exception as error:  # a library that is broken fails as it likes
        return f"matplotlib cannot be loaded: {type(error).__name__}: {one_line(error)}"
    return ""


def picture(group: xr.Dataset, n: xr.DataArray) -> dict[str, bytes] | str:
    """Draw the pictures that need nothing but what is public, or say why that failed.

    Parameters
    ----------
    group : xr.Dataset
        As it stands in the public file.
    n : xr.DataArray
        Sample sizes; shown only if ``universe`` (who answered) is declared public.

    Returns
    -------
    dict of bytes, or str
        PNG files by name.
    """
    drawn = {}
    try:
        for name, figure in _figures(group, n):
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=150)
            drawn[name] = content.getvalue()
    except Exception as error:  # as above; the release stands without pictures
        return f"matplotlib failed: {type(error).__name__}: {one_line(error)}"
    return drawn


def write_pictures(drawn: dict[str, bytes], folder: Path) -> list[Path]:
    """Write pictures to new files."""
    for name, content in drawn.items():
        with new_file(folder / name) as hidden:
            hidden.write_bytes(content)
    return [folder / name for name in drawn]


def _figures(group: xr.Dataset, n: xr.DataArray) -> Iterator[tuple[str, Figure]]:
    # Figures of their own: pyplot would choose a window system.
    from matplotlib.figure import Figure

    from pymc_dp.plots.release import plot_guarantee, plot_rdp, plot_release

    release, rdp, guarantee = PICTURES
    areas = group.sizes["area"]
    if "theta_smoothed" in group:
        height = 6.0 if areas > HEIGHT_OF_AREAS else 1.7 + 0.17 * max(areas, 6)
        figure = Figure(figsize=(7, height), layout="constrained")
        plot_release(group, ax=figure.subplots(), prob=PROB, max_areas=HEIGHT_OF_AREAS)
        yield release, figure
    if "rho_area" in group:
        figure = Figure(figsize=(6.5, 5), layout="constrained")
        plot_rdp(group, ax=figure.subplots())
        yield rdp, figure
    if "rho_respondent" in group and "universe" in read_record(group.attrs)["assumptions"]:
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        plot_guarantee(group, n, axes=list(figure.subplots(1, 2, sharey=True)))
        yield guarantee, figure


def _first(group: xr.Dataset, name: str) -> np.ndarray:
    """Take the one draw that the command line makes."""
    values: np.ndarray = group[name].transpose("chain", "draw", "area").values[0, 0]
    return values
