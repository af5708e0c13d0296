"""Person records of the American Community Survey, from the files that the Census Bureau offers."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from pymc_dp._checks import name_some
from pymc_dp.datasets._states import state_code
from pymc_dp.tables.columns import check_columns
from pymc_dp.tables.delimited import open_table, read_rows
from pymc_dp.tables.files import Dialect, members

REPLICATES = 80
# Replicate weights in the files of 2012 to 2016.
LOWER_CASE = re.compile(r"pwgtp([1-9]|[1-7]\d|80)")
# POVPIP: 501 is 501 percent or more; -1 stands in some files for who is outside the universe.
LARGEST_RATIO, OUTSIDE = 501, -1
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
        Person files as the Census Bureau offers them, CSV (also gzipped) or zip: ``csv_pwa.zip`` of
        a state, ``csv_pus.zip`` of the nation, or several; of one-year files, any year. Several
        years only with PUMAs of one vintage: up to 2011, 2012 to 2021, or from 2022 on.
    state : str or int, or a sequence of them, optional
        FIPS codes (53) or abbreviations ("wa") of the states to keep. A state without any record is
        an error. Default: all.
    columns : sequence of str, optional
        Further columns of the file, such as "AGEP", as text: codes keep their zeros.
    replicate_weights : bool, default False
        Whether to read PWGTP1 to PWGTP80 too, for ``hajek(variance="sdr",
        replicate_weights="PWGTP")``; pwgtp1 to pwgtp80 in some files, and called PWGTP1 here too.

    Returns
    -------
    pandas.DataFrame
        One row a person: `puma` (state and PUMA, seven digits, as text), `SERIALNO` (text), `PWGTP`
        (weight, in persons), `POVPIP` (income as a percentage of the poverty threshold; missing
        outside the poverty universe, where some files have -1), `poor` (1 where POVPIP is below
        100, 0 where not, missing outside the universe), `in_universe` (whether POVPIP is known),
        and what was asked for. The attribute ``attrs["unit"]`` suggests the household column;
        :func:`~pymc_dp.hajek` warns where it is called without a unit.

    Raises
    ------
    ValueError
        A household file, a file of several years with two vintages of PUMAs, or one without the
        columns needed; codes that are not codes of states and PUMAs; records of none of the states
        asked for; a zip without a CSV file. The message says what the file is. A row longer or
        shorter than the header, a weight or POVPIP that is no number, with the line. Files that do
        not go together: of years whose PUMAs have different vintages, or with a household in
        common.

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
        for name, file in members(path, ".csv"):
            start = len(parts)
            with file as opened:
                for block in _read_blocks(opened, name, numbers, columns):
                    part = _persons(block, name, numbers, columns)
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
        raise ValueError("no file was given")
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


def _read_blocks(
    file: BinaryIO, name: str, numbers: Sequence[str], columns: Sequence[str]
) -> Iterator[pd.DataFrame]:
    table = open_table(file, name, Dialect())
    table = replace(table, header=_plain(table.header))
    state = _check_header(table.header, name, [*numbers, *columns])
    codes = dict.fromkeys(["SERIALNO", state, "PUMA", *columns])
    texts = [column for column in codes if column not in numbers]
    for block in read_rows(table, texts=texts, numbers=numbers):
        yield block.assign(ST=block[state])


def _plain(header: Sequence[str]) -> tuple[str, ...]:
    """Give replicate weights the name that they have in most years: PWGTP1, not pwgtp1."""
    others = set(header)
    return tuple(
        name.upper() if LOWER_CASE.fullmatch(name) and name.upper() not in others else name
        for name in header
    )


def _check_header(header: Sequence[str], name: str, needed: Sequence[str]) -> str:
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
    state = next((column for column in ("ST", "STATE") if column in header), "ST (or STATE)")
    check_columns(
        f"{name}: not a person file of the ACS, which", header, ["SERIALNO", "PUMA", *needed, state]
    )
    return state


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
    block: pd.DataFrame, name: str, numbers: Sequence[str], columns: Sequence[str]
) -> pd.DataFrame:
    """Give codes all their digits, and find who is poor."""
    states, pumas = (block[column].str.strip() for column in ("ST", "PUMA"))
    bad = ~(states.str.fullmatch(r"\d{1,2}").eq(True) & pumas.str.fullmatch(r"\d{1,5}").eq(True))
    if bad.any():
        raise ValueError(f"{name}: {bad.sum()} records without a code of state and PUMA")
    ratio = block["POVPIP"].mask(block["POVPIP"] == OUTSIDE)
    strange = ratio.notna() & ~ratio.between(0, LARGEST_RATIO)
    if strange.any():
        raise ValueError(
            f"{name}: POVPIP of {strange.sum()} records is no percentage from 0 to {LARGEST_RATIO}"
        )
    persons = pd.DataFrame({"puma": states.str.zfill(2) + pumas.str.zfill(5)})
    persons["SERIALNO"] = block["SERIALNO"]
    persons = persons.join(block[list(numbers)]).assign(POVPIP=ratio)
    persons.insert(4, "poor", (ratio < 100).astype(float).mask(ratio.isna()))
    persons.insert(5, "in_universe", ratio.notna())
    return persons.join(block[[c for c in dict.fromkeys(columns) if c not in persons.columns]])
