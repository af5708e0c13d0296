"""New files, written whole: beside their target under a hidden name, which then gets its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_new(target: Path) -> None:
    """Refuse a target that exists, or whose folder does not.

    Raises
    ------
    FileExistsError
        Also for a dangling link.
    FileNotFoundError
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{str(target)!r} exists: nothing is written over, choose a new name")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {str(target.parent)!r}")


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Give a path to write a file or a folder to; what is there at the end gets the target's name.

    The target appears in one step, with its content on the disk. After an error, nothing is left.

    Raises
    ------
    FileExistsError
        If the target exists, or appears meanwhile.
    FileNotFoundError
        If its folder does not exist.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "a.txt"
    ...     with new_file(target) as hidden:
    ...         _ = hidden.write_text("whole")
    ...         early = target.exists()
    ...     early, target.read_text(), len(os.listdir(folder))
    (False, 'whole', 1)
    """
    check_new(target)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name[:40]}.", suffix=".partial", dir=target.parent
    ) as folder:
        hidden = Path(folder) / f"new{target.suffix}"
        yield hidden
        sync(*sorted(hidden.rglob("*")), hidden)
        _give_name(hidden, target)
    sync(target.parent)


def sync(*paths: Path) -> None:
    """Have files, and on POSIX folders, on the disk."""
    for path in paths:
        if os.name == "posix" or path.is_file():
            handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _give_name(hidden: Path, target: Path) -> None:
    """Move to the target in one step, over nothing."""
    if hidden.is_file():
        try:
            os.link(hidden, target)  # refuses any existing name, also in a race
            return
        except FileExistsError:
            check_new(target)
        except OSError:
            pass  # a file system without hard links
    check_new(target)
    try:
        # Without hard links a file could, in a race, still replace a file; a folder replaces
        # nothing but an empty folder.
        os.rename(hidden, target)
    except OSError:
        check_new(target)
        raise
