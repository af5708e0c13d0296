"""The file of a delimited table: what it is by its first bytes, unpacked, in UTF-8, in blocks."""

from __future__ import annotations

import codecs
import gzip
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pymc_dp._checks import name_some

# Bytes that are read at a time, and of the longest line.
BLOCK, LONGEST = 1 << 23, 1 << 26
GZIP = b"\x1f\x8b"
# What other files begin with.
OTHERS = {
    b"PK\x03\x04": "a zip or a workbook: unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook: save the sheet as CSV",
    b"PAR1": "a Parquet file: let its name end in .parquet",
    b"HEADER RECORD*******": "a SAS transport file",
    b"%PDF": "a PDF",
    b"BZh": "compressed in a way that is not read here: unpack it",
    b"\xfd7zXZ": "compressed in a way that is not read here: unpack it",
}
# Marks of an encoding, the longer first where one begins as another does.
MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# How survey files write that a number is missing.
MISSING = ("", ".", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")


@dataclass(frozen=True)
class Dialect:
    r"""How a table is written.

    Attributes
    ----------
    sep : str
        What stands between two cells: one ASCII character.
    encoding : str, optional
        Default: by the mark at the beginning of the file, or else UTF-8.
    missing : tuple of str
        Cells that stand for a missing number, in every column of numbers. In a column of text only
        a blank cell is missing: Namibia is "NA".
    missing_in : mapping of str to tuple of str
        Further ones of single columns, also of text.
    command_line : bool
        Whether remedies are options of the command line.
    """

    sep: str = ","
    encoding: str | None = None
    missing: tuple[str, ...] = MISSING
    missing_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    command_line: bool = False

    def advise(self, option: str, otherwise: str) -> str:
        """Name the remedy: an option of the command line, or what to do without one."""
        return option if self.command_line else otherwise


def members(path: Path, suffix: str) -> list[tuple[str, AbstractContextManager[BinaryIO]]]:
    """Each file of a path with this suffix, and its name: of a zip its members, or the file itself.

    Raises
    ------
    ValueError
        A zip without such a file, or a damaged one.
    """
    if not zipfile.is_zipfile(path):
        return [(path.name, unpacked(path))]
    with damage_explained(path.name), zipfile.ZipFile(path) as archive:
        held = archive.namelist()
    # In the files of the CDC the name ends in a space: "LLCP2023.XPT ".
    found = [name for name in held if name.strip().lower().endswith(suffix)]
    if not found:
        raise ValueError(
            f"{path.name}: no {suffix} file in this zip, which holds {name_some(held) or 'nothing'}"
        )
    return [(f"{path.name}, {name.strip()}", _member(path, name)) for name in found]


@contextmanager
def _member(path: Path, name: str) -> Iterator[BinaryIO]:
    with zipfile.ZipFile(path) as archive:
        with damage_explained(f"{path.name}, {name.strip()}"):
            file = archive.open(name)
        with file:
            yield file  # type: ignore[misc]


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked if it begins as gzip does, whatever its name."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        if packed:
            with gzip.open(file) as inside:
                yield inside  # type: ignore[misc]
        else:
            yield file


@contextmanager
def damage_explained(label: str) -> Iterator[None]:
    """Say which file is damaged; what a library says of it may hold bytes of the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(f"{label} is damaged, or was not copied whole") from error
    except (NotImplementedError, RuntimeError) as error:  # methods of compression, passwords
        raise ValueError(f"{label} cannot be unpacked here: unpack it first") from error


def utf8_blocks(file: BinaryIO, label: str, dialect: Dialect) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines in UTF-8, each with the number of its first line; line feeds alone.

    Raises
    ------
    ValueError
        A file that is empty, no text, or in another encoding, with the line.
    """
    with damage_explained(label):
        mark, encoding = _encoding(file, label, dialect)
        decode = codecs.getincrementaldecoder(encoding)("strict").decode
        file.read(mark)
        line, rest, some = 1, b"", False
        while True:
            raw = file.read(BLOCK)
            raw += file.readline(BLOCK)  # so that in UTF-8 whole lines need not be cut off
            try:
                text = raw if encoding == "utf-8" else decode(raw, not raw).encode()
            except UnicodeError as error:
                before = raw[: getattr(error, "start", 0)].decode(encoding, "ignore").encode()
                at = line + _line_feeds(rest + before).count(b"\n")
                raise ValueError(_undecodable(label, at, encoding, dialect)) from None
            held = rest + text
            # A carriage return at the end may be the first half of a line's end.
            half = len(held) - 1 if raw and held.endswith(b"\r") else len(held)
            held, left = _line_feeds(held[:half]), held[half:]
            cut = held.rfind(b"\n") + 1 if raw else len(held)
            block, rest = held[:cut], held[cut:] + left
            if len(rest) > LONGEST:
                raise ValueError(f"{label} is no delimited table: line {line} does not end")
            if block:
                some = some or not block.isspace()
                _check_text(block, line, label, dialect)
                yield line, block
                line += block.count(b"\n")
            if not raw:
                break
    if not some:
        raise ValueError(f"{label} is empty")


def _encoding(file: BinaryIO, label: str, dialect: Dialect) -> tuple[int, str]:
    """How many bytes the mark has, and which encoding it is."""
    head = file.read(4096)
    file.seek(0)
    for start, what in OTHERS.items():
        if head.startswith(start):
            raise ValueError(f"{label} is no delimited table, but {what}")
    given = None if dialect.encoding is None else codecs.lookup(dialect.encoding).name
    mark = next((mark for mark in MARKS if head.startswith(mark)), b"")
    if not mark:
        return 0, given or _guessed(head, label, dialect)
    found = MARKS[mark]
    if given is not None and not given.startswith(found):
        raise ValueError(
            f"{label} begins with the mark of {found.upper()}: it is not {dialect.encoding}"
        )
    # The decoders of UTF-16 and UTF-32 need the mark; in UTF-8 it would be part of the header.
    return (len(mark), found) if found == "utf-8" else (0, found)


def _guessed(head: bytes, label: str, dialect: Dialect) -> str:
    """UTF-8, unless every other byte is zero."""
    if b"\0" in head:
        for name, zeros, others in (
            ("utf-16-le", head[1::2], head[::2]),
            ("utf-16-be", head[::2], head[1::2]),
        ):
            if zeros.count(0) > len(zeros) / 2 > others.count(0):
                remedy = dialect.advise(f"--encoding {name}", "save it as UTF-8")
                raise ValueError(f"{label} looks like UTF-16 without its mark: {remedy}")
        raise ValueError(f"{label} is no delimited table: it holds bytes of zero")
    return "utf-8"


def _line_feeds(text: bytes) -> bytes:
    """Every kind of line's end as a line feed."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _check_text(block: bytes, line: int, label: str, dialect: Dialect) -> None:
    """Refuse what is no text, and no UTF-8."""
    if b"\0" in block:
        at = line + block[: block.index(b"\0")].count(b"\n")
        raise ValueError(f"{label}, line {at}: a byte of zero, so no text")
    try:
        _ = block.isascii() or block.decode()
    except UnicodeDecodeError as error:
        at = line + block[: error.start].count(b"\n")
        raise ValueError(_undecodable(label, at, "utf-8", dialect)) from None


def _undecodable(label: str, line: int, encoding: str, dialect: Dialect) -> str:
    remedy = dialect.advise(
        "name its encoding, such as --encoding latin-1 or --encoding cp1252", "save it as UTF-8"
    )
    return f"{label}, line {line}: not {encoding.upper()}; {remedy}"
