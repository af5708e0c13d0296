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

DESIGN = ("_STATE", "_STSTR", "_PSU", "_LLCPWT")
CHUNK = 50_000
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
    with _transport_file(Path(fspath(path))) as (file, name), _explained(name):
        with pd.read_sas(file, format="xport", chunksize=CHUNK) as reader:
            for chunk in reader:
                outcome = _check_columns(list(chunk.columns), name, columns)
                codes = chunk["_STATE"]
                found |= set(codes.dropna().astype(int).unique().tolist())
                keep = list(dict.fromkeys([*DESIGN, outcome, *columns]))
                parts.append(chunk.loc[codes == wanted, keep])
    if wanted not in found:
        held = name_some(f"{code:02d}" for code in sorted(found)) or "none at all"
        raise ValueError(f"{name}: no records of state {wanted:02d}; the file holds {held}")
    return _respondents(pd.concat(parts, ignore_index=True), outcome, name, columns)


@contextmanager
def _transport_file(path: Path) -> Iterator[tuple[Path, str]]:
    """The SAS transport file, unpacked to a temporary place if it comes in a zip."""
    if not zipfile.is_zipfile(path):
        yield path, path.name
        return
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        # In the files of the CDC the name ends in a space: "LLCP2023.XPT ".
        names = [name for name in archive.namelist() if name.strip().upper().endswith(".XPT")]
        if len(names) != 1:
            raise ValueError(f"{path.name}: {len(names)} SAS transport files in this zip, not one")
        unpacked = Path(folder, "records.xpt")
        with archive.open(names[0]) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield unpacked, f"{path.name}, {names[0].strip()}"


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say which file is no SAS transport file."""
    try:
        yield
    except (ValueError, TypeError, KeyError, EOFError) as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name}: not a SAS transport file (LLCP<year>.XPT)") from None


def _check_columns(found: list[str], name: str, columns: Sequence[str]) -> str:
    """Require the design and an outcome, and say what the file is if they are not there."""
    if "_LLCPWT" not in found and "_FINALWT" in found:
        raise ValueError(f"{name}: a file of before 2011 (weight _FINALWT, no _LLCPWT)")
    absent = [column for column in (*DESIGN, *columns) if column not in found]
    outcome = next((column for column in SMOKING if column in found), "")
    absent += ["_SMOKER3 (or _RFSMOK3)"] * (not outcome)
    if absent:
        raise ValueError(f"{name}: not a file of the BRFSS, no column {name_some(absent)}")
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
