"""Records and covariates that the command line reads: headers first, areas and units as text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pymc_dp._checks import name_some
from pymc_dp.cli.words import one_line
from pymc_dp.tables.columns import check_columns
from pymc_dp.tables.delimited import open_path, read_rows, to_numbers
from pymc_dp.tables.files import MISSING, Dialect
from pymc_dp.tables.parquet import parquet_header, read_parquet

if TYPE_CHECKING:
    import pandas as pd

TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
ENDINGS = (*TEXT, *(f"{ending}.gz" for ending in TEXT), *PARQUET)


@dataclass(frozen=True)
class Source:
    """A file of records or covariates, and how it is written."""

    path: Path
    dialect: Dialect

    @property
    def is_parquet(self) -> bool:
        """Whether its name says that it is Parquet."""
        return self.path.name.lower().endswith(PARQUET)


def source(path: Path, args: argparse.Namespace) -> Source:
    """Describe a file by the options of the command line.

    Raises
    ------
    ValueError
        If there is no such file, or its name ends otherwise.
    """
    name = path.name.lower()
    if not path.is_file():
        raise ValueError(f"{path} is a folder" if path.is_dir() else f"no file {path}")
    if not name.endswith(ENDINGS):
        raise ValueError(f"{path} must end in {', '.join((*TEXT, *PARQUET))}; text also in .gz")
    single: dict[str, tuple[str, ...]] = {}
    for column, text in (given.split("=", 1) for given in args.na_values if "=" in given):
        single[column] = (*single.get(column, ()), text)
    missing = (*MISSING, *(text for text in args.na_values if "=" not in text))
    sep = args.sep or ("\t" if ".tsv" in name[-7:] else ",")
    return Source(path, Dialect(sep, args.encoding, missing, single, command_line=True))


@dataclass(frozen=True)
class Files:
    """The files of a command, their headers checked.

    Attributes
    ----------
    records : Source
    covariates : Source or None
    used : list of str
        Columns of the covariates that the formula needs.
    """

    records: Source
    covariates: Source | None
    used: list[str]


def check_files(args: argparse.Namespace, numbers: Sequence[str]) -> Files:
    """Refuse files without the columns that are asked for, before anything slow is imported.

    Raises
    ------
    ValueError
        Naming the file and the column, and columns whose names are near.
    """
    records = source(args.records, args)
    header = _require(records, [*numbers, *args.area, *args.unit])
    covariates, used = None, []
    if args.covariates is not None:
        covariates = source(args.covariates, args)
        header += _require(covariates, args.area)
    for column in records.dialect.missing_in:
        if column not in header:
            check_columns(f"--na-values {column}=...: {records.path}", header, [column])
    if covariates is not None:
        used = formula_columns(args.formula)
        _require(covariates, used)
    elif any(map(str.isalpha, args.formula)):
        raise ValueError(
            f"--formula {args.formula!r} names columns: give their file with --covariates"
        )
    return Files(records, covariates, used)


def _require(given: Source, needed: Sequence[str]) -> tuple[str, ...]:
    """Read the header, which has each of these columns once."""
    label = str(given.path)
    if given.is_parquet:
        header = parquet_header(given.path, label)
        check_columns(label, header, needed)
        return header
    with open_path(given.path, label, given.dialect) as table:
        table.require(needed)
        return table.header


def read_records(
    given: Source, *, numbers: Sequence[str], area: Sequence[str], unit: Sequence[str], drop: bool
) -> tuple[pd.DataFrame, int]:
    """Read the columns that are needed, areas and units as text.

    Parameters
    ----------
    given : Source
    numbers, area, unit : sequence of str
        Columns of the outcome and the weight, of the area, and of the unit.
    drop : bool
        Whether to leave out records without an area; otherwise they stay, to be refused.

    Returns
    -------
    records : DataFrame
    dropped : int
        How many records were left out.

    Raises
    ------
    ValueError
        If the file is of another kind, damaged, lacks a column or has it twice, or if a row is not
        what the header says.
    """
    frame = _read(given, texts=list(dict.fromkeys([*area, *unit])), numbers=numbers)
    if not drop:
        return frame, 0
    known = frame[list(area)].apply(lambda column: column.fillna("").str.strip() != "")
    kept = frame[known.all(axis=1)]
    return kept, len(frame) - len(kept)


def with_weight(records: pd.DataFrame, weight: str) -> tuple[pd.DataFrame, int]:
    """Leave out records without a weight; the others, and how many were left out."""
    kept = records[records[weight].notna()]
    return kept, len(records) - len(kept)


def formula_columns(formula: str) -> list[str]:
    """The columns that a formula needs.

    Raises
    ------
    ValueError
        If it cannot be read, or has a left-hand side.
    """
    import formulaic

    with formula_explained():
        parsed = formulaic.Formula(formula)
    if hasattr(parsed, "lhs"):
        raise ValueError(f"--formula describes the covariates only: write '~ x', not {formula!r}")
    if not isinstance(parsed, formulaic.SimpleFormula):
        raise ValueError(f"--formula must be a single sum of terms, not {formula!r}")
    return sorted(map(str, parsed.required_variables))


@contextmanager
def about_model(args: argparse.Namespace) -> Iterator[None]:
    """Name the file that a refusal of the model is about, and a remedy that the files cannot be."""
    try:
        with formula_explained():
            yield
    except ValueError as error:
        words = one_line(error)
        about = words.startswith(("covariate", "no covariates", "terms", "--formula"))
        path = args.covariates if about and args.covariates else args.records
        if words.startswith("sampling variance unusable") and args.rate is None:
            words += "; with a public --rate they come from the weights"
        raise ValueError(words if words.startswith("--") else f"{path}: {words}") from error


@contextmanager
def formula_explained() -> Iterator[None]:
    """Say that it is the formula which cannot be read."""
    from formulaic.errors import FormulaicError

    try:
        yield
    except FormulaicError as error:
        first, _, rest = one_line(error).partition(". ")
        if "`.` operator" in first:
            first = "'.' names no column here: write the columns out"
        where = rest if "~" in rest else ""  # the formula, a mark where it went wrong
        raise ValueError(f"--formula: {first}. {where}".strip(". ")) from error


def read_covariates(files: Files, area: Sequence[str]) -> pd.DataFrame | None:
    """Read the covariates of the formula, indexed by the area columns that the records have too.

    A column is numbers, or text throughout.

    Raises
    ------
    ValueError
        As :func:`read_records`; a column of numbers with a cell that is none, by its areas.
    """
    import pandas as pd

    given, used = files.covariates, files.used
    if given is None:
        return None
    label = str(given.path)
    if given.is_parquet:
        frame = read_parquet(given.path, label, given.dialect, texts=area, numbers=(), others=used)
    else:
        frame = _read(given, texts=[*area, *used], numbers=())
    covariates = frame.set_index(list(area))
    for name in used:
        kind = covariates[name].dtype
        if pd.api.types.is_object_dtype(kind) or isinstance(kind, pd.StringDtype):
            covariates[name] = _guessed(covariates[name], label, given.dialect)
    return covariates


def _guessed(cells: pd.Series[str], label: str, dialect: Dialect) -> pd.Series:
    """Numbers if every cell that is not missing is one; text if none is."""
    name = str(cells.name)
    values, text = to_numbers(cells, dialect, name)
    if not text.any():
        return values
    number = values.notna()
    if not number.any():
        return cells
    odd = text if text.sum() <= number.sum() else number
    kind = "no number" if odd is text else "a number"
    areas = (" ".join(a) if isinstance(a, tuple) else str(a) for a in cells.index[odd])
    raise ValueError(
        f"{label}: column {name!r} holds {kind} in {odd.sum()} of {len(cells)} areas, "
        f"{name_some(areas)}, other than in the rest: write it in one way, or give to --na-values "
        "what stands for a missing number"
    )


def _read(given: Source, *, texts: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    label = str(given.path)
    if given.is_parquet:
        return read_parquet(given.path, label, given.dialect, texts=texts, numbers=numbers)
    with open_path(given.path, label, given.dialect) as table:
        return pd.concat(read_rows(table, texts=texts, numbers=numbers), ignore_index=True)
