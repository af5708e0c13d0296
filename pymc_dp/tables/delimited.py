"""A delimited table: its header first, then its rows in blocks, each as long as the header.

What reads the cells (pandas) takes rows of any length: of a longer one it drops cells, or makes
the first of them an index, and every other cell stands under its neighbour's name. Hence rows are
measured before: without quotes by what is left of the text when all but separators and line ends
are deleted, with quotes by the ``csv`` module, by the same rules of quoting.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pymc_dp.tables.columns import check_columns
from pymc_dp.tables.files import Dialect, unpacked, utf8_blocks

if TYPE_CHECKING:
    import pandas as pd

TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
NUMBER_WITH_COMMA = r"[+-]?[\d.,]*,\d[\d.,]*"


@dataclass(frozen=True)
class Table:
    """A table whose header is read and whose rows are to come.

    Attributes
    ----------
    label : str
        The file, as messages name it.
    header : tuple of str
    dialect : Dialect
    blocks : iterator of (int, bytes)
        Lines in UTF-8, with the number of the first; to be read once.
    """

    label: str
    header: tuple[str, ...]
    dialect: Dialect
    blocks: Iterator[tuple[int, bytes]]

    def require(self, names: Iterable[str]) -> None:
        """Refuse a header in which a column is absent or stands twice."""
        check_columns(
            self.label,
            self.header,
            names,
            sep=self.dialect.sep,
            remedy=self.dialect.advise(" (--sep)", ""),
        )


@contextmanager
def open_path(path: Path, label: str, dialect: Dialect) -> Iterator[Table]:
    """Open a table by its path and read its header."""
    with unpacked(path) as file:
        yield open_table(file, label, dialect)


def open_table(file: BinaryIO, label: str, dialect: Dialect) -> Table:
    """Read the header of a table.

    Raises
    ------
    ValueError
        A file that is empty, no text, or in another encoding.
    """
    blocks = utf8_blocks(file, label, dialect)
    for line, block in blocks:
        reader = _rows(block, dialect.sep)
        try:
            for row in reader:
                if not _blank(row):
                    start = _line_start(block, reader.line_num)
                    rest = (line + reader.line_num, block[start:])
                    return Table(label, tuple(row), dialect, chain([rest], blocks))
        except csv.Error as error:
            raise ValueError(f"{label}, line {line}: in the header {QUOTES}") from error
    raise ValueError(f"{label} is empty")


def read_rows(
    table: Table, *, texts: Sequence[str], numbers: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """Read columns block by block; what is blank is missing.

    Parameters
    ----------
    table : Table
        Its rows can be read once.
    texts : sequence of str
        Columns of codes and names: the cells as they stand, text whatever they look like.
    numbers : sequence of str
        Columns of numbers. True and False are 1 and 0.

    Yields
    ------
    DataFrame
        `texts` and `numbers`, in this order.

    Raises
    ------
    ValueError
        A row longer or shorter than the header, a cell that is no number, a table without rows.
        The message has the line, and never a cell.
    """
    table.require([*texts, *numbers])
    rows, rest = 0, b""
    for line, block in table.blocks:
        part, rest = _measured(rest + block, line - rest.count(b"\n"), table)
        if part.rows:
            rows += part.rows
            yield _cells(part, table, texts, numbers)
    if rest:
        at = line + block.count(b"\n") - rest.count(b"\n")
        raise ValueError(f"{table.label}, line {at}: {QUOTES}")
    if not rows:
        raise ValueError(f"{table.label} has a header and no rows")


@dataclass(frozen=True)
class Part:
    """Whole rows of a table, all as long as the header.

    Attributes
    ----------
    text : bytes
        The rows, without lines of blanks.
    rows : int
    line : int
        Where they begin in the file.
    blank : tuple of int
        Lines of blanks that were between them, counted from 0.
    """

    text: bytes
    rows: int
    line: int
    blank: tuple[int, ...] = ()

    def line_of(self, row: int, sep: str) -> int:
        """The first line of a row, counted from 0, in the file."""
        reader, at = _rows(self.text, sep), 0
        for _ in range(row):
            next(reader)
            at = reader.line_num
        for skipped in self.blank:
            at += skipped <= at
        return self.line + at


def _measured(block: bytes, line: int, table: Table) -> tuple[Part, bytes]:
    """The rows of a block, and the beginning of one that goes on in the next block."""
    sep, width = table.dialect.sep, len(table.header)
    if b'"' not in block and width > 1:
        kept = block.translate(None, bytes(set(range(256)) - {ord(sep), ord("\n")}))
        kept = kept if kept.endswith(b"\n") else kept + b"\n"
        rows = len(kept) // width
        if kept == (sep.encode() * (width - 1) + b"\n") * rows:
            return Part(block, rows, line), b""
    rows, done, blank, end = 0, 0, [], len(block)
    reader = _rows(block, sep)
    try:
        for row in reader:
            if _blank(row):
                blank.append(done)
            elif len(row) != width:
                raise ValueError(_ragged(row, line + done, table))
            else:
                rows += 1
            done = reader.line_num
    except csv.Error as error:
        # Strict reading stops within quotes where the block ends, and at a quote out of place.
        if "unexpected end" not in str(error):
            raise ValueError(f"{table.label}, line {line + done}: {QUOTES}") from None
        end = _line_start(block, done)
    text = block[:end]
    if blank:
        lines = text.splitlines(keepends=True)
        text = b"".join(kept for at, kept in enumerate(lines) if at not in set(blank))
    return Part(text, rows, line, tuple(blank)), block[end:]


QUOTES = "a quote that is not closed, or within a quoted cell and not doubled"


def _rows(block: bytes, sep: str) -> Any:
    """Rows of a block, by the rules of quoting that the parser of cells has too."""
    return csv.reader(io.StringIO(block.decode(), newline="\n"), delimiter=sep, strict=True)


def _blank(row: Sequence[str]) -> bool:
    """Whether it is a line of blanks."""
    return not row or (len(row) == 1 and not row[0].strip(" \t"))


def _line_start(block: bytes, lines: int) -> int:
    """Where the line begins that comes after so many."""
    start = 0
    for _ in range(lines):
        start = block.find(b"\n", start) + 1 or len(block)
    return start


def _ragged(row: Sequence[str], line: int, table: Table) -> str:
    words = f"{table.label}, line {line}: {len(row)} cells under a header of {len(table.header)}"
    if len(row) == len(table.header) + 1 and not row[-1].strip():
        return f"{words}: rows end in one more {table.dialect.sep!r}, take it away or name a column"
    return f"{words}, so which cell belongs to which column is not known"


def _cells(part: Part, table: Table, texts: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    """Columns of some rows."""
    import pandas as pd

    place = {name: table.header.index(name) for name in [*texts, *numbers]}

    def parsed(numeric: Sequence[str]) -> pd.DataFrame | None:
        types: Any = dict.fromkeys(place.values(), "str")
        types |= {place[name]: "float64" for name in numeric}
        missing = {place[name]: _missing(name, table.dialect) for name in numeric}
        with suppress(ValueError):  # whose message would show a cell
            return pd.read_csv(
                io.BytesIO(part.text),
                sep=table.dialect.sep,
                header=None,
                names=list(range(len(table.header))),
                index_col=False,
                usecols=sorted(types),
                dtype=types,
                keep_default_na=False,
                na_values={at: missing.get(at, [""]) for at in types},
                skip_blank_lines=False,
            )
        return None

    plain = parsed(numbers)
    found = parsed([]) if plain is None else plain
    if found is None or len(found) != part.rows:
        raise ValueError(f"{table.label}, line {part.line} or later: {QUOTES}")
    for name in texts:
        if codes := table.dialect.missing_in.get(name):  # to the letter: 07 is not 7
            found[place[name]] = found[place[name]].mask(found[place[name]].isin(codes))
    for name in numbers if plain is None else ():
        found[place[name]] = _converted(found[place[name]], name, part, table)
    frame = found[list(place.values())]
    frame.columns = pd.Index(list(place))
    return frame


def to_numbers(
    cells: pd.Series[str], dialect: Dialect, name: str
) -> tuple[pd.Series[float], pd.Series[bool]]:
    """Numbers, True and False as 1 and 0, and which cells are neither these nor missing."""
    import pandas as pd

    codes = _missing(name, dialect)
    stripped = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
    missing = stripped.isin(codes)
    values = pd.to_numeric(stripped.mask(missing), errors="coerce").astype("float64")
    missing |= values.isin(pd.to_numeric(pd.Series(codes), errors="coerce").dropna())
    values = values.mask(missing).mask(stripped.isin(TRUE), 1.0).mask(stripped.isin(FALSE), 0.0)
    return values, values.isna() & ~missing


def _missing(name: str, dialect: Dialect) -> list[str]:
    return [*dialect.missing, *dialect.missing_in.get(name, ())]


def _converted(cells: pd.Series[str], name: str, part: Part, table: Table) -> pd.Series[float]:
    """Numbers of cells that are not all plain numbers."""
    values, wrong = to_numbers(cells, table.dialect, name)
    if not wrong.any():
        return values
    if cells[wrong].str.strip().str.fullmatch(NUMBER_WITH_COMMA).all():
        remedy = "write numbers with a decimal point and without commas"
    else:
        remedy = "correct it" + table.dialect.advise(
            ", or give its text to --na-values if it stands for a missing number", ""
        )
    at = part.line_of(int(wrong.to_numpy().argmax()), table.dialect.sep)
    raise ValueError(f"{table.label}, line {at}: no number in column {name!r}; {remedy}")
