"""The SQLite file of a privacy ledger: made whole or not at all, only ever added to.

- Every transaction opens its own connection and closes it. Nothing is held between calls, so a
  ledger may be pickled, forked, and used from many threads and processes.
- A charge reads, compares and writes in one ``BEGIN IMMEDIATE`` transaction: of two processes that
  race for the last of a budget, one waits and then sees what the other spent.
- The journal is a plain rollback journal, not a write-ahead log: between charges a ledger is then
  exactly one file, which may be copied or backed up without losing entries to a side file.
  ``synchronous=EXTRA`` also syncs the folder once the journal is deleted; with ``FULL`` a power cut
  could bring the journal back, and with it undo a charge already answered.
- A file is identified before it is locked, by a read that takes no lock and leaves no side file.

This guards against accidents, not against somebody with write access who means to alter the file;
and an older copy put in its place has forgotten what was charged since.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

APPLICATION_ID = int.from_bytes(b"pmdp", "big")
FORMAT = 2
TIMEOUT = 60.0  # seconds to wait for others; a charge takes milliseconds
_PROGRAMME = (
    "CREATE TABLE programme (id INTEGER PRIMARY KEY CHECK (id = 1), "
    "budget REAL NOT NULL CHECK (typeof(budget) = 'real' AND budget > 0 AND budget < 9e999), "
    "conditional INTEGER NOT NULL CHECK (conditional IN (0, 1)), created_at TEXT NOT NULL"
)
_ENTRIES = (
    'CREATE TABLE entries (entry INTEGER PRIMARY KEY, "when" TEXT NOT NULL, label TEXT NOT NULL, '
    "rho REAL NOT NULL CHECK (typeof(rho) = 'real' AND rho > 0 AND rho < 9e999), "
    "claim TEXT NOT NULL CHECK (claim IN ('formal', 'conditional')), "
)
# REPLACE deletes without firing a DELETE trigger, hence the triggers on INSERT.
_TRIGGERS = (
    "CREATE TRIGGER programme_once BEFORE INSERT ON programme "
    "WHEN EXISTS (SELECT 1 FROM programme) "
    "BEGIN SELECT RAISE(ABORT, 'the budget is fixed at creation'); END",
    "CREATE TRIGGER entries_once BEFORE INSERT ON entries "
    "WHEN EXISTS (SELECT 1 FROM entries WHERE entry = NEW.entry) "
    "BEGIN SELECT RAISE(ABORT, 'entries are only ever added'); END",
    *(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'entries are only ever added'); END"
        for table in ("programme", "entries")
        for verb in ("UPDATE", "DELETE")
    ),
)
# Format 1 calls a part a population, and has neither a name, nor an identity, nor cells. A ledger
# keeps the format that it was created with, so that the version that created it still reads it.
SCHEMAS = {
    1: (_PROGRAMME + ")", _ENTRIES + "population TEXT, record TEXT)", *_TRIGGERS),
    2: (
        _PROGRAMME + ", name TEXT NOT NULL, identity TEXT NOT NULL, cells TEXT)",
        _ENTRIES + "part TEXT, cells TEXT, record TEXT)",
        *_TRIGGERS,
    ),
}


class Entry(NamedTuple):
    """One charge, as it is stored; the number comes from the file."""

    entry: int | None
    when: str
    label: str
    rho: float
    claim: str
    part: str | None
    cells: str | None  # JSON: the column, and the price of each of its labels
    record: str | None


class Programme(NamedTuple):
    """What is fixed when a ledger is created."""

    budget: float
    conditional: bool
    name: str | None
    cells: str | None  # JSON: the possible combinations
    identity: str = ""  # tells this ledger from any other, whatever its file is called


class Books(NamedTuple):
    """All that a ledger holds."""

    programme: Programme
    entries: list[Entry]


def create(path: Path, programme: Programme) -> None:
    """Make a ledger at `path` in one step; raise FileExistsError, and change nothing, if one is."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the ledger does not exist: {path.parent}")
    draft = path.with_name(f".ledger-{secrets.token_hex(8)}.tmp")
    try:
        with _explained(path), closing(_connect(draft, "mode=rwc")) as connection:
            _make_durable(connection)
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            for statement in SCHEMAS[FORMAT]:
                connection.execute(statement)
            budget, conditional, name, cells, _ = programme
            now, identity = datetime.now(UTC).isoformat(), secrets.token_hex(8)
            connection.execute(
                "INSERT INTO programme VALUES (1, ?, ?, ?, ?, ?, ?)",
                (budget, conditional, now, name, identity, cells),
            )
            connection.execute("COMMIT")
        os.link(draft, path)  # unlike a rename, never overwrites
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def transaction(path: Path, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a sound ledger inside a transaction, committed to disk at the end if `write`.

    An exception inside rolls back. A charge that was killed half-way is rolled back first.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"there is no ledger at {path}. If it was moved, open it where it is now; a new "
            "programme's is made with create=True"
        )
    if not path.is_file():
        raise ValueError(f"{path} is not a file, so not a privacy ledger")
    with _explained(path):
        _identify(path)
        # Where the file may not be written SQLite opens it for reading, and reading is all it does
        # here before the checks are passed, unless a killed charge has to be rolled back.
        with closing(_connect(path, "mode=rw")) as connection:
            if write:
                _make_durable(connection)
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            _check_whole(connection, path)
            yield connection
            if write:
                connection.execute("COMMIT")


def read(connection: sqlite3.Connection) -> Books:
    """Everything in the ledger, oldest entry first."""
    old = _format(connection) == 1
    fixed = "NULL, NULL, created_at" if old else "name, cells, identity"
    ((budget, conditional, *rest),) = connection.execute(
        f"SELECT budget, conditional, {fixed} FROM programme"
    )
    about = "population, NULL" if old else "part, cells"
    rows = connection.execute(
        f'SELECT entry, "when", label, rho, claim, {about}, record FROM entries ORDER BY entry'
    )
    return Books(Programme(budget, bool(conditional), *rest), [Entry(*row) for row in rows])


def append(connection: sqlite3.Connection, entry: Entry) -> None:
    """Add one entry."""
    values = tuple(entry)
    if _format(connection) == 1:  # which has no cells, so the entry has none
        values = (*values[:6], values[7])
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO entries VALUES ({marks})", values)


def _format(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{how}", uri=True, timeout=TIMEOUT, isolation_level=None
    )


def _make_durable(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")  # macOS, where fsync stops at the drive's cache


def _identify(path: Path) -> None:
    # "immutable" reads without locks, journals and side files. Reading the bytes with open() would
    # do that too, but closing it would drop the locks that other threads hold on the file (POSIX).
    with closing(_connect(path, "mode=ro&immutable=1")) as connection:
        # Lets the header be read where a killed charge has left fewer pages than it announces.
        connection.execute("PRAGMA writable_schema = ON")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        version = _format(connection)
    if application != APPLICATION_ID:
        raise ValueError(f"{path} is not a privacy ledger; it was left as it is")
    if version not in SCHEMAS:
        raise ValueError(
            f"{path} has format {version} and this version of pymc_dp reads the formats up to "
            f"{FORMAT}: update pymc_dp. The file was left as it is"
        )


def _check_whole(connection: sqlite3.Connection, path: Path) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()  # takes the lock
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    cut = journal == "delete" and path.stat().st_size != pages * page_size
    if cut or connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise ValueError(f"{path} is truncated or damaged; it was left as it is")
    statements = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}
    budgets = connection.execute("SELECT count(*) FROM programme").fetchone()
    if not statements.issuperset(SCHEMAS[_format(connection)]) or budgets != (1,):
        raise ValueError(f"the tables or triggers of {path} were altered; it was left as it is")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """SQLite's errors as the built-in exceptions that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # extended codes share the low byte
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise ValueError(
                f"{path} is not a privacy ledger, or is damaged; it was left as it is"
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise TimeoutError(f"another process holds the ledger {path}") from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
            raise PermissionError(
                f"cannot open or write the ledger {path}: it or its folder may be read-only, and a "
                "charge needs both writable"
            ) from error
        raise OSError(f"the ledger {path} failed: {error}") from error


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
