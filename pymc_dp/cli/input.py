"""What the command line reads, and what it refuses before it reads or draws anything."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymc_dp._checks import name_some
from pymc_dp.record.claims import check_assumptions, claim_kind, variance_components

if TYPE_CHECKING:
    import pandas as pd

# How survey files write that a number is missing. Text columns have no such codes: Namibia is "NA".
MISSING = ("", ".", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")
CSV, PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
PICTURES = ("release.png", "rdp.png", "guarantee.png")


@dataclass(frozen=True)
class Targets:
    """Where a release goes: its file, and on request a table and a folder of pictures."""

    out: Path
    table: Path | None = None
    pictures: Path | None = None

    def check(self) -> None:
        """Refuse targets that exist, or that nothing can be written to.

        Raises
        ------
        ValueError
            Naming the target; nothing has been drawn then.
        """
        check_suffix(self.out, (".nc", ".zarr"), "--out")
        if self.pictures is not None:
            self.pictures.mkdir(exist_ok=True)
        check_new(self.out)
        if self.table is not None:
            check_suffix(self.table, (".csv",), "--table")
            check_new(self.table)
        if self.pictures is not None:
            for name in PICTURES:
                check_new(self.pictures / name)


def check_suffix(path: Path, suffixes: Sequence[str], what: str) -> None:
    """Refuse a name with another ending."""
    if not path.name.lower().endswith(tuple(suffixes)):
        raise ValueError(f"{what} must end in {' or '.join(suffixes)}, not {path.name!r}")


def check_new(path: Path) -> None:
    """Refuse a target that exists, or that nothing can be written to."""
    if os.path.lexists(path):
        raise ValueError(f"{path} exists: nothing is written over, choose another name")
    if not path.parent.is_dir():
        raise ValueError(f"no folder {path.parent}")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".pymc-dp-"):
            pass
    except OSError as error:
        raise ValueError(f"nothing can be written in {path.parent}: {error.strerror}") from error


def declarations(given: Iterable[str]) -> dict[str, str]:
    """Who declares what public, from texts ``KEY=SOURCE``.

    Raises
    ------
    ValueError
        If a text has no ``=``, a key is unknown or there twice, or a source is blank.
    """
    declared: dict[str, str] = {}
    for text in given:
        key, sign, source = (part.strip() for part in text.partition("="))
        if not sign:
            raise ValueError(f"--declare takes KEY=SOURCE, such as sigma_u='2010 census': {text!r}")
        if key in declared:
            raise ValueError(f"--declare names {key!r} twice")
        declared[key] = source
    return check_assumptions(declared)


def check_claim(declared: dict[str, str], *, variance: str, conditional: bool) -> None:
    """Refuse a declaration that cannot be true, and a conditional claim that nobody asked for.

    Raises
    ------
    ValueError
        Saying what to declare, or to ask for.
    """
    if variance == "linearized" and "sampling_variance" in declared:
        raise ValueError(
            "sampling_variance cannot be declared public with --variance linearized, which "
            "computes it from the confidential outcomes; use --variance kish and a public --rate"
        )
    components = variance_components(declared, plug_in=False)
    if claim_kind(components) == "formal" or conditional:
        return
    open_ones = [name for name, kind in components.items() if kind != "fixed"]
    raise ValueError(
        f"the claim would be conditional, because nobody declares {' or '.join(open_ones)} public: "
        "if they come from the same answers, the true loss can be far larger than the figures. "
        "For a formal claim use --variance kish with a public --rate, and name both sources: "
        "--declare sigma_u=SOURCE sampling_variance=SOURCE. "
        "To release under a conditional claim, add --conditional"
    )


def read_records(
    path: Path, *, numbers: Sequence[str], area: Sequence[str], unit: Sequence[str], drop: bool
) -> tuple[Any, int]:
    """Read the columns that are needed, areas and units as text.

    Parameters
    ----------
    path : Path
        ``.csv``, ``.csv.gz`` or ``.parquet``. Parquet columns keep the types they have.
    numbers, area, unit : sequence of str
        Columns of the outcome and the weight, of the area, and of the unit.
    drop : bool
        Whether to leave out records without an area; otherwise they stay, to be refused.

    Returns
    -------
    records : dataframe
    dropped : int
        How many records were left out.

    Raises
    ------
    ValueError
        If the file is of another kind, damaged, or lacks a column or has it twice.
    """
    import narwhals as nw

    frame = nw.from_native(_read(path, [*numbers, *area, *unit], texts=[*area, *unit]))
    rows = len(frame)
    if drop:
        for name in area:
            column = nw.col(name)
            given = ~column.is_null()
            if frame.schema[name] == nw.String:
                given = given & (column.str.strip_chars() != "")
            frame = frame.filter(given)
    return frame.to_native(), rows - len(frame)


def with_weight(records: Any, weight: str) -> tuple[Any, int]:
    """Leave out records without a weight; the others, and how many were left out."""
    import narwhals as nw

    from pymc_dp.survey.frames import is_missing

    frame = nw.from_native(records)
    if not frame.schema[weight].is_numeric():
        return records, 0  # to be refused
    kept = frame.filter(~is_missing(nw.col(weight)).fill_null(True))
    return kept.to_native(), len(frame) - len(kept)


@contextmanager
def formula_explained() -> Iterator[None]:
    """Say that it is the formula which cannot be read."""
    from formulaic.errors import FormulaicError

    try:
        yield
    except FormulaicError as error:
        raise ValueError(f"--formula: {error}") from error


def read_covariates(path: Path, area: Sequence[str]) -> pd.DataFrame:
    """Read covariates, indexed by the area columns that the records have too.

    Raises
    ------
    ValueError
        As :func:`read_records`.
    """
    frame = _read(path, None, texts=area)
    frame = frame if hasattr(frame, "set_index") else frame.to_pandas()
    covariates: pd.DataFrame = frame.set_index(list(area))
    return covariates


def _read(path: Path, columns: Sequence[str] | None, *, texts: Sequence[str]) -> Any:
    """Read columns of a file, or all of them."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    name = path.name.lower()
    if name.endswith(CSV):
        read = _read_csv
    elif name.endswith(PARQUET):
        read = _read_parquet
    else:
        raise ValueError(f"{path} must end in {', '.join(CSV + PARQUET)}")
    with _damage_explained(path):
        return read(path, None if columns is None else list(dict.fromkeys(columns)), texts)


def _read_csv(path: Path, columns: list[str] | None, texts: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
    found = header.iloc[0].tolist()
    _check_columns(path, found, texts if columns is None else columns)
    wanted = found if columns is None else columns
    return pd.read_csv(
        path,
        usecols=wanted,
        dtype=dict.fromkeys(texts, str),
        keep_default_na=False,
        na_values={name: list(MISSING) for name in wanted if name not in texts},
        low_memory=False,  # one type a column
    )


def _read_parquet(path: Path, columns: list[str] | None, texts: Sequence[str]) -> Any:
    try:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(
            f"{path}: Parquet files need an extra: pip install 'pymc_dp[parquet]'; or give CSV"
        ) from None
    found = pq.read_schema(path).names
    _check_columns(path, found, texts if columns is None else columns)
    return pq.read_table(path, columns=columns)


def _check_columns(path: Path, found: Sequence[str], needed: Sequence[str]) -> None:
    absent = [repr(name) for name in needed if name not in found]
    if absent:
        raise ValueError(
            f"{path} has no column {name_some(absent)}; it has {name_some(map(repr, found), 12)}"
        )
    twice = [repr(name) for name in needed if found.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has more than one column {name_some(twice)}")


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
