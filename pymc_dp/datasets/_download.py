"""Download files of the ACS and the BRFSS from the servers that offer them, once and whole."""

from __future__ import annotations

import time
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any

from pymc_dp.datasets._states import STATES, state_code

CENSUS = "https://www2.census.gov/programs-surveys/acs/data/pums"
CDC = "https://www.cdc.gov/brfss/annual_data"
ATTEMPTS = 3
# Seconds between two attempts, and until a silent server is given up.
PAUSE, TIMEOUT = 2.0, 60.0


def fetch_acs_pums(
    state: str | int = "us",
    *,
    year: int,
    years: int = 1,
    folder: str | PathLike[str] | None = None,
    known_hash: str | None = None,
    base_url: str = CENSUS,
    progress: bool = True,
) -> Path:
    """Download a person file of the ACS Public Use Microdata Sample, for :func:`read_acs_pums`.

    A file that is there already is not downloaded again. Needs the extra ``fetch``
    (``pip install "pymc_dp[fetch]"``).

    Parameters
    ----------
    state : str or int, default "us"
        FIPS code (53) or abbreviation ("wa") of a state, or "us": the whole nation, hundreds of MB.
    year : int
        Year of the file; of a five-year file the last one.
    years : {1, 5}
        A one-year file (2007 and later, none of 2020) or a five-year file (2009 and later).
    folder : path, optional
        Where files are kept. Default: the cache folder of the user, as pooch finds it.
    known_hash : str, optional
        SHA-256 that the file must have. Without it the hash of the first download is shown and kept
        beside the file, in ``<name>.sha256``, and the file must have that hash ever after.
    base_url : str, optional
        Another server with the same folders, such as an agency's mirror.
    progress : bool, default True
        Whether to show a bar.

    Returns
    -------
    pathlib.Path
        The zip, in a folder for its year: ``<folder>/acs/2024/1-Year/csv_pwa.zip``.

    Raises
    ------
    ValueError
        A state or year of which there is no such file; what came is not a zip with the file in it
        (a server's error page, half a file); a file with another hash, downloaded or kept.
    FileNotFoundError
        The server has no such file.
    ConnectionError
        The server did not answer, or not to the end, three times.
    ImportError
        pooch is not installed.

    Notes
    -----
    A download gets its name when it is complete and checked; until then, and after any error,
    nothing is there under that name. The Census Bureau publishes no hashes and at times corrects a
    file: note the hash with your results.

    Examples
    --------
    >>> path = fetch_acs_pums("wa", year=2024)  # doctest: +SKIP
    >>> records = read_acs_pums(path)  # doctest: +SKIP
    """
    first = {1: 2007, 5: 2009}
    if years not in first:
        raise ValueError(f"years must be 1 or 5, got {years!r}")
    if year < first[years]:
        raise ValueError(f"no {years}-year files before {first[years]}, got year {year}")
    if (year, years) == (2020, 1):
        raise ValueError("the Census Bureau made no standard 1-year file of 2020")
    place = f"{year}/{years}-Year"
    path = _folder(folder) / "acs" / place
    name = f"csv_p{'us' if str(state).lower() == 'us' else STATES[state_code(state)]}.zip"
    url = f"{base_url.rstrip('/')}/{place}/{name}"
    return _fetch(url, path / name, ".csv", known_hash, progress)


def fetch_brfss(
    *,
    year: int,
    folder: str | PathLike[str] | None = None,
    known_hash: str | None = None,
    base_url: str = CDC,
    progress: bool = True,
) -> Path:
    """Download a year's file of the BRFSS (all states, 60 to 130 MB), for :func:`read_brfss`.

    Parameters
    ----------
    year : int
        2011 or later.
    folder, known_hash, base_url, progress
        As for :func:`fetch_acs_pums`.

    Returns
    -------
    pathlib.Path
        The zip, ``<folder>/brfss/LLCP2023XPT.zip``.

    Raises
    ------
    ValueError, FileNotFoundError, ConnectionError, ImportError
        As for :func:`fetch_acs_pums`.

    Examples
    --------
    >>> records = read_brfss(fetch_brfss(year=2023), state=53)  # doctest: +SKIP
    """
    if year < 2011:
        raise ValueError(f"the combined files begin in 2011, got year {year}")
    name = f"LLCP{year}XPT.zip"
    path = _folder(folder) / "brfss" / name
    url = f"{base_url.rstrip('/')}/{year}/files/{name}"
    return _fetch(url, path, ".xpt", known_hash, progress)


def _folder(folder: str | PathLike[str] | None) -> Path:
    return Path(_pooch().os_cache("pymc_dp") if folder is None else folder).expanduser()


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise ImportError('downloads need pooch: pip install "pymc_dp[fetch]"') from None
    return pooch


def _fetch(url: str, path: Path, suffix: str, known_hash: str | None, progress: bool) -> Path:
    """The file at this path, downloaded if it is not there; its hash is checked either way."""
    pooch, record = _pooch(), path.with_name(path.name + ".sha256")
    recorded = "".join(record.read_text().split()[:1]) if record.exists() else ""
    known = recorded if known_hash is None else _check_hash(known_hash)
    source = record.name if known_hash is None else "known_hash"

    def check(file: Path, name: object, advice: str) -> None:
        found = pooch.file_hash(file)
        if known and found != known:
            raise ValueError(f"{name}: SHA-256 {found}, not {known} ({source}){advice}")

    def download(_: str, target: str, __: Any) -> None:
        _download(url, Path(target), progress)
        _check_zip(Path(target), url, suffix)
        check(Path(target), url, "")

    if path.exists():
        check(path, path, "; remove the file and its .sha256 to download it again")
    else:
        # pooch gives the file its name when this has succeeded.
        pooch.retrieve(url, known or None, path.name, path.parent, downloader=download)
    found = pooch.file_hash(path)
    if found != recorded:
        record.write_text(f"{found}  {path.name}\n")
    return path


def _check_hash(known_hash: str) -> str:
    """A SHA-256 as 64 lower-case digits, with or without the name of the algorithm."""
    digits = known_hash.strip().lower().removeprefix("sha256:")
    if len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(f"known_hash must be a SHA-256 of 64 hexadecimal digits: {known_hash!r}")
    return digits


def _download(url: str, target: Path, progress: bool) -> None:
    """Try again what may pass: no connection, an interrupted transfer, a busy server."""
    import requests

    downloader = _pooch().HTTPDownloader(progressbar=progress, timeout=TIMEOUT)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            downloader(url, str(target), None)
            return
        except requests.exceptions.RequestException as error:
            status = getattr(error.response, "status_code", None)
            if status in (401, 403, 404, 410):
                raise FileNotFoundError(
                    f"{url}: the server has no such file or does not give it (HTTP {status})"
                ) from None
            if attempt == ATTEMPTS:
                what = f"HTTP {status}" if status else type(error).__name__
                raise ConnectionError(
                    f"{url}: not received after {ATTEMPTS} attempts ({what})"
                ) from None
        time.sleep(PAUSE)


def _check_zip(path: Path, url: str, suffix: str) -> None:
    """Require a whole zip that holds the file: servers answer errors with pages, and break off."""
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if not zipfile.is_zipfile(path):
        page = start.startswith((b"<!doctype", b"<html", b"<?xml"))
        what = "a web page, not a zip" if page else "not a zip, or only the beginning of one"
        raise ValueError(f"{url}: what the server sent is {what} ({path.stat().st_size} bytes)")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    # In the files of the CDC the name ends in a space.
    if not any(name.strip().lower().endswith(suffix) for name in names):
        raise ValueError(f"{url}: a zip without a {suffix} file")
