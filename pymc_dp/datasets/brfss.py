"""Records of the Behavioral Risk Factor Surveillance System, from the files of the CDC."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path

import numpy as np
import pandas as pd

from pymc_dp._checks import name_some
from pymc_dp.datasets._states import state_code
from pymc_dp.tables.columns import check_columns
from pymc_dp.tables.files import damage_explained, members

DESIGN = ("_STATE", "_STSTR", "_PSU", "_LLCPWT")
CHUNK = 50_000
# SAS writes zero as eight zero bytes, which pandas reads as the smallest number of IBM's format.
ZERO = 2.0**-260
# What the codes of the two smoking variables say; 9 (don't know, refused) is missing.
SMOKING = {
    "_SMOKER3": {1: 1.0, 2: 1.0, 3: 0.0, 4: 0.0, 9: np.nan},
    "_RFSMOK3": {1: 0.0, 2: 1.0, 9: np.nan},
}


def read_brfss(
    path: str | PathLike[str], *, state: str | int, columns: Sequence[str] = ()
) -> pd.DataFrame:
    """Read a state's records of the BRFSS combined landline and cell phone file.

    Parameters
    ----------
    path : path
        ``LLCP<year>.XPT``, the SAS transport file of the Centers for Disease Control and
        Prevention, or the zip it comes in; 2011 and later. The file is read in blocks.
    state : str or int
        FIPS code of the state, 53 for Washington, or its abbreviation, "wa".
    columns : sequence of str, optional
        Further columns of the file, as the numbers they are there: codes such as 7, 9, 77, 88 and
        99 still need a meaning.

    Returns
    -------
    pandas.DataFrame
        One row a respondent: `_STATE`, `_STSTR` (substratum: the areas) and `_PSU` as text,
        `_LLCPWT` (weight, in adults), `smoker` (1 current smoker, 0 not, missing where not known),
        and what was asked for.

    Raises
    ------
    ValueError
        A file that is no SAS transport file, holds none of the state's records, has other columns
        (before 2011 there was no `_LLCPWT`), or codes of smoking that the code book does not have.

    Notes
    -----
    `smoker` comes from `_SMOKER3` (1 and 2 are current smokers) or, where a file lacks it, from
    `_RFSMOK3` (2). Every respondent is sampled alone: ``hajek(records, outcome="smoker",
    weight="_LLCPWT", area="_STSTR", missing="drop")`` takes each substratum as a sample of its own.

    Examples
    --------
    >>> from pymc_dp import hajek
    >>> from pymc_dp.datasets import fetch_brfss, read_brfss
    >>> records = read_brfss(fetch_brfss(2023), state="wa")  # doctest: +SKIP
    >>> direct = hajek(
    ...     records, outcome="smoker", weight="_LLCPWT", area="_STSTR", missing="drop"
    ... )  # doctest: +SKIP
    """
    wanted = int(state_code(state))
    found: set[int] = set()
    parts = []
    with _transport_file(Path(fspath(path))) as (file, name):
        for block in _blocks(file, name):
            outcome = _check_columns(list(block.columns), name, columns)
            codes = block["_STATE"]
            found |= set(codes.dropna().astype(int).unique().tolist())
            keep = list(dict.fromkeys([*DESIGN, outcome, *columns]))
            parts.append(_with_zeros(block.loc[codes == wanted, keep]))
    if wanted not in found:
        held = name_some(f"{code:02d}" for code in sorted(found)) or "none at all"
        raise ValueError(f"{name}: no records of state {wanted:02d}; the file holds {held}")
    return _respondents(pd.concat(parts, ignore_index=True), outcome, name, columns)


@contextmanager
def _transport_file(path: Path) -> Iterator[tuple[Path, str]]:
    """The SAS transport file and its name, unpacked to a temporary place if it comes in a zip."""
    if not zipfile.is_zipfile(path):
        yield path, path.name
        return
    found = members(path, ".xpt")
    if len(found) != 1:
        raise ValueError(f"{path.name}: {len(found)} SAS transport files in this zip, not one")
    [(name, file)] = found
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder, "records.xpt")
        with damage_explained(name), file as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield unpacked, name


def _blocks(file: Path, name: str) -> Iterator[pd.DataFrame]:
    """Read blocks of records; what the parser says of a file may show its values."""
    refusal = f"{name}: not a SAS transport file (LLCP<year>.XPT), or a damaged one"
    try:
        reader = pd.read_sas(file, format="xport", chunksize=CHUNK)
    except OSError:
        raise
    except Exception:
        raise ValueError(refusal) from None
    with reader:
        while True:
            try:
                block = next(reader, None)
            except Exception:
                raise ValueError(refusal) from None
            if block is None:
                return
            yield block


def _with_zeros(block: pd.DataFrame) -> pd.DataFrame:
    """Put 0 where pandas reads SAS's zero as something else."""
    numbers = block.select_dtypes("number")
    return block.assign(**numbers.mask(numbers.abs() == ZERO, 0.0))


def _check_columns(found: list[str], name: str, columns: Sequence[str]) -> str:
    """Require the design and an outcome, and say what the file is if they are not there."""
    if "_LLCPWT" not in found and "_FINALWT" in found:
        raise ValueError(f"{name}: a file of before 2011 (weight _FINALWT, no _LLCPWT)")
    outcome = next((c for c in SMOKING if c in found), "_SMOKER3 (or _RFSMOK3)")
    check_columns(f"{name}: not a file of the BRFSS, which", found, [*DESIGN, *columns, outcome])
    return outcome


def _respondents(
    raw: pd.DataFrame, outcome: str, name: str, columns: Sequence[str]
) -> pd.DataFrame:
    """Codes as text, and whether the respondent smokes."""
    meaning, codes = SMOKING[outcome], raw[outcome].round()
    strange = codes.notna() & ~codes.isin(meaning)
    if strange.any():
        raise ValueError(
            f"{name}: {strange.sum()} codes of {outcome} that are not in the code book"
        )
    missing = [column for column in ("_STSTR", "_PSU") if raw[column].isna().any()]
    if missing:
        raise ValueError(f"{name}: records without {name_some(missing)}")
    records = pd.DataFrame(
        {
            "_STATE": [f"{code:02.0f}" for code in raw["_STATE"]],
            **{c: [f"{code:.0f}" for code in raw[c]] for c in ("_STSTR", "_PSU")},
            "_LLCPWT": raw["_LLCPWT"],
            "smoker": codes.map(meaning),
        }
    )
    return records.join(raw[[c for c in dict.fromkeys(columns) if c not in records.columns]])
