"""Person records of the American Community Survey, from the files that the Census Bureau offers."""

from __future__ import annotations

import zipfile
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from pymc_dp._checks import name_some
from pymc_dp.datasets._states import state_code

REPLICATES = 80
# Larger than any file's block of columns needs to be: bounds what is held as text at a time.
CHUNK = 200_000
# Years in which the codes in the column PUMA became those of another census.
NEW_CODES = (2012, 2022)
# Serial numbers that say their year: 2019HU0000123; 13 digits before 2018, in five-year files.
DATED = r"^(20\d\d)(?:HU|GQ|\d{9}$)"
NO_YEAR = "no year"


def read_acs_pums(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    state: str | int | Sequence[str | int] | None = None,
    columns: Sequence[str] = (),
    replicate_weights: bool = False,
) -> pd.DataFrame:
    r"""Read person records of the ACS Public Use Microdata Sample, for :func:`~pymc_dp.hajek`.

    Poverty is a property of families: all members of a household share it, and the household,
    `SERIALNO`, is the unit to protect (and to compute a design variance over).

    Parameters
    ----------
    paths : path or sequence of paths
        Person files as the Census Bureau offers them, CSV or zip: ``csv_pwa.zip`` of a state,
        ``csv_pus.zip`` of the nation, or several; of one-year files, any year. Several years only
        with PUMAs of one vintage: up to 2011, 2012 to 2021, or from 2022 on.
    state : str or int, or a sequence of them, optional
        FIPS codes (53) or abbreviations ("wa") of the states to keep. A state without any record is
        an error. Default: all.
    columns : sequence of str, optional
        Further columns of the file, such as "AGEP", as text: codes keep their zeros.
    replicate_weights : bool, default False
        Whether to read PWGTP1 to PWGTP80 too, for ``hajek(variance="sdr",
        replicate_weights="PWGTP")``.

    Returns
    -------
    pandas.DataFrame
        One row a person: `puma` (state and PUMA, seven digits, as text), `SERIALNO` (text), `PWGTP`
        (weight, in persons), `POVPIP` (income as a percentage of the poverty threshold; missing
        outside the poverty universe), `poor` (1 where POVPIP is below 100, 0 where not, missing
        outside the universe), `in_universe` (whether POVPIP is known), and what was asked for. The
        attribute ``attrs["unit"]`` suggests the household column; :func:`~pymc_dp.hajek` warns
        where it is called without a unit.

    Raises
    ------
    ValueError
        A household file, a file of several years with two vintages of PUMAs, or one without the
        columns needed; codes that are not codes of states and PUMAs; records of none of the states
        asked for; a zip without a CSV file. The message says what the file is. Files that do not
        go together: of years whose PUMAs have different vintages, or with a household in common.

    Notes
    -----
    The same code of a PUMA is another area in another vintage, so the year of each household is
    read from its `SERIALNO`. One-year files from before 2018 do not say their year there: they are
    refused beside 2022 or later only, so do not put those up to 2011 beside later ones. They also
    begin their numbers anew every year, so that two of them seem to have households in common.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> rows = "SERIALNO,PUMA,ST,PWGTP,POVPIP\n2019HU01,101,4,25,501\n2019GQ02,101,4,30,\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "psam_p04.csv")
    ...     _ = path.write_text(rows)
    ...     records = read_acs_pums(path)
    >>> records["puma"].tolist(), records["in_universe"].tolist()
    (['0400101', '0400101'], [True, False])
    """
    wanted = {state_code(s) for s in _listed(state)}
    weights = [f"PWGTP{k}" for k in range(1, REPLICATES + 1)] if replicate_weights else []
    numbers = ["PWGTP", "POVPIP", *weights]
    parts: list[pd.DataFrame] = []
    found: set[str] = set()
    files: list[tuple[str, pd.Series]] = []
    for path in (Path(fspath(path)) for path in _listed(paths)):
        for name, file in _csv_files(path):
            start = len(parts)
            with file as opened:
                for chunk in _read_chunks(opened, name, numbers, columns):
                    part = _persons(chunk, name, numbers, columns)
                    states = part["puma"].str[:2]
                    found |= set(states.unique())
                    parts.append(part[states.isin(wanted)] if wanted else part)
            if serials := [part["SERIALNO"].drop_duplicates() for part in parts[start:]]:
                held = pd.concat(serials).drop_duplicates().dropna()
                files.append((str(path.parent / name), held))
    if absent := sorted(wanted - found):
        raise ValueError(
            f"no records of state {name_some(absent)}; the files hold {name_some(sorted(found))}"
        )
    if not found:
        raise ValueError("the files hold no records")
    _check_years(files)
    _check_overlap(files)
    persons = pd.concat(parts, ignore_index=True)
    persons.attrs["unit"] = "SERIALNO"
    return persons


def _listed(values: Any) -> list[Any]:
    """One value or several, as a list."""
    if values is None:
        return []
    single = isinstance(values, (str, int, PathLike))
    return [values] if single else list(values)


def _csv_files(path: Path) -> Iterator[tuple[str, Any]]:
    """Each CSV file of a path, which may be a zip, with its name."""
    if not zipfile.is_zipfile(path):
        yield path.name, path.open("rb")
        return
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.strip().lower().endswith(".csv")]
        if not names:
            raise ValueError(f"{path.name}: no CSV file in this zip; take csv_p*.zip")
        for name in names:
            yield f"{path.name}, {name}", archive.open(name)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say which file a parser could not read."""
    try:
        yield
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: not a CSV file of the ACS ({type(error).__name__})") from None


def _read_chunks(
    file: IO[bytes], name: str, numbers: Sequence[str], columns: Sequence[str]
) -> Iterator[pd.DataFrame]:
    with _explained(name):
        header = pd.read_csv(file, nrows=0, dtype=str).columns
    state = _check_header(list(header), name, [*numbers, *columns])
    file.seek(0)
    use = list(dict.fromkeys(["SERIALNO", state, "PUMA", *numbers, *columns]))
    dtype = {column: "float64" if column in numbers else "str" for column in use}
    options: dict[str, Any] = {"usecols": use, "dtype": dtype, "chunksize": CHUNK}
    with _explained(name):
        try:
            # The reader lets go of the file wherever reading ends, also where a caller breaks off.
            with pd.read_csv(file, **options) as reader:
                for chunk in reader:
                    yield chunk.rename(columns={state: "ST"})
        except ValueError as error:
            if isinstance(error, (pd.errors.ParserError, UnicodeDecodeError)):
                raise
            raise ValueError(f"{name}: a weight or POVPIP is not a number") from None


def _check_header(header: list[str], name: str, needed: Sequence[str]) -> str:
    """Require a person file of one year, and say what it is if it is another; the state column."""
    if "PWGTP" not in header and "WGTP" in header:
        raise ValueError(
            f"{name}: a household file (WGTP, no PWGTP); persons are in csv_p*.zip, psam_p*.csv"
        )
    vintages = [column for column in header if column in ("PUMA00", "PUMA10", "PUMA20")]
    if "PUMA" not in header and len(vintages) == 1:
        raise ValueError(
            f"{name}: no column PUMA, but {vintages[0]}: if every record has a code of that "
            "vintage (none is -9), name the column PUMA"
        )
    if "PUMA" not in header and vintages:
        raise ValueError(
            f"{name}: a file of several years, with PUMAs of two vintages ({', '.join(vintages)}), "
            "which no area joins; take a one-year file, or a five-year file with one column PUMA"
        )
    state = next((column for column in ("ST", "STATE") if column in header), None)
    absent = [column for column in ("SERIALNO", "PUMA", *needed) if column not in header]
    absent += ["ST (or STATE)"] * (state is None)
    if absent:
        raise ValueError(f"{name}: not a person file of the ACS, no column {name_some(absent)}")
    return str(state)


def _check_years(files: Sequence[tuple[str, pd.Series]]) -> None:
    """Refuse years whose codes of PUMAs have different vintages: one code, two areas."""
    years = [
        set(serials.str.extract(DATED, expand=False).fillna(NO_YEAR).unique())
        for _, serials in files
    ]
    every = set().union(*years)
    vintages = {bisect(NEW_CODES, int(year)) for year in every - {NO_YEAR}}
    latest = len(NEW_CODES)
    if len(vintages) > 1 or (latest in vintages and NO_YEAR in every):
        both = zip(files, years, strict=True)
        held = [f"{label} ({', '.join(sorted(y))})" for (label, _), y in both if y]
        raise ValueError(
            "records of years with different vintages of PUMAs (up to 2011, 2012 to 2021, from "
            f"2022 on), whose codes do not go together: {name_some(held)}; read them apart"
        )


def _check_overlap(files: Sequence[tuple[str, pd.Series]]) -> None:
    """Refuse a household in two files: each of its persons would count twice."""
    serials = pd.concat([serials for _, serials in files])
    twice = serials[serials.duplicated()].unique()
    if twice.size:
        held = [label for label, serials in files if serials.isin(twice).any()]
        raise ValueError(
            f"{twice.size} households (SERIALNO) are in more than one of the files "
            f"{name_some(held)}: give each file once; one-year files from before 2018 number "
            "their households anew every year, so read those apart"
        )


def _persons(
    chunk: pd.DataFrame, name: str, numbers: Sequence[str], columns: Sequence[str]
) -> pd.DataFrame:
    """Give codes all their digits, and find who is poor."""
    states, pumas = (chunk[column].str.strip() for column in ("ST", "PUMA"))
    bad = ~(states.str.fullmatch(r"\d{1,2}").eq(True) & pumas.str.fullmatch(r"\d{1,5}").eq(True))
    if bad.any():
        raise ValueError(f"{name}: {bad.sum()} records without a code of state and PUMA")
    unknown = chunk["POVPIP"].isna()
    persons = pd.DataFrame({"puma": states.str.zfill(2) + pumas.str.zfill(5)})
    persons["SERIALNO"] = chunk["SERIALNO"]
    persons = persons.join(chunk[list(numbers)])
    persons.insert(4, "poor", np.where(unknown, np.nan, (chunk["POVPIP"] < 100).astype(float)))
    persons.insert(5, "in_universe", ~unknown)
    return persons.join(chunk[[c for c in dict.fromkeys(columns) if c not in persons.columns]])
