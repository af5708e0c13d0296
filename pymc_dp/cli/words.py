"""Messages of the package in the words of the command line, and of errors in one line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Arguments of functions that are options of the command line too.
OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("outcome", "weight", "area", "unit", "bounds", "missing", "labels"),
        *("rate", "variance", "design_factor", "formula", "covariates", "sigma_u"),
        *("conditional", "ledger", "delta", "epsilon", "rho", "mechanism"),
    )
}
_LIST = re.compile(r"\b(\w+)=\[((?:'[^']*'(?:, )?)+)\]")
_TEXT = re.compile(r"\b(?:\w+\()?(\w+)='([^']*)'\)?")
_FLAG = re.compile(r"\b(\w+)=True\b")
# Colours, and the signs that formulaic has put in their place.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m|[\u29da\u29db]")


def one_line(error: BaseException) -> str:
    """Say an error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(_ESCAPES.sub("", str(error)).split()) or type(error).__name__


def in_options(message: str) -> str:
    """Write arguments of Python as options, or say that they are Python's.

    Examples
    --------
    >>> in_options("pass unit=['puma', 'hh'], or missing='drop'")
    'pass --unit puma --unit hh, or --missing drop'
    >>> in_options("a ledger created with conditional=True; or hajek(spanning='bound')")
    "a ledger created with --conditional; or in Python hajek(spanning='bound')"
    """

    def repeated(found: re.Match[str]) -> str:
        values = re.findall("'([^']*)'", found[2])
        if found[1] not in OPTIONS:
            return f"in Python {found[0]}"
        return " ".join(f"{OPTIONS[found[1]]} {shlex.quote(value)}" for value in values)

    def single(found: re.Match[str]) -> str:
        if found[1] not in OPTIONS:
            return f"in Python {found[0]}"
        return f"{OPTIONS[found[1]]} {shlex.quote(found[2])}"

    def flag(found: re.Match[str]) -> str:
        return OPTIONS.get(found[1], f"in Python {found[0]}")

    return _FLAG.sub(flag, _TEXT.sub(single, _LIST.sub(repeated, message)))


@contextmanager
def about(path: Path | None) -> Iterator[None]:
    """Name the file that a refusal is about."""
    try:
        yield
    except ValueError as error:
        words = one_line(error)
        if path is None or words.startswith((str(path), "--")):
            raise
        raise ValueError(f"{path}: {words}") from error
