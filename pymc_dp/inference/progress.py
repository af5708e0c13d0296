"""A progress bar for what takes longer than two seconds, and none for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds


@contextmanager
def progress(words: str, total: float) -> Iterator[Callable[[float], None]]:
    """Give a function to call with the work done since its last call; `total` is all work."""
    start, done = time.monotonic(), 0.0
    shown: list[Any] = []

    def advance(work: float) -> None:
        nonlocal done
        done += work
        if not shown and time.monotonic() - start > PATIENCE:
            from rich.progress import Progress

            bar = Progress(transient=True)
            shown.extend([bar, bar.add_task(words, total=total)])
            bar.start()
        if shown:
            shown[0].update(shown[1], completed=min(done, total))

    try:
        yield advance
    finally:
        if shown:
            shown[0].stop()
