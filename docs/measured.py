"""Figures of real surveys for the pages: what `benchmarks/applications.py` measured and left.

Pages import this in a hidden cell. Prices and epsilons are shown in three digits, never rounded
down.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from myst_nb import glue

MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "_applications" / "figures.json").read_text(encoding="utf-8")
)


def up(value: float, digits: int = 3) -> str:
    """A price in so many digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return f"{math.ceil(value / unit - 1e-9) * unit:#.{digits}g}".rstrip(".")


def king_county() -> dict[str, str]:
    """Words on one changed answer in King County, where variances come from the answers."""
    found = MEASURED["king_county"]["proviso"]
    return {
        "king-tried": str(found["records_tried"]),
        "king-areas": str(found["areas"]),
        "king-by-8": str(found["infinite_by"]["8"]),
        "king-exact": up(found["exact_where_most_is_printed"]),
        "king-printed": up(found["epsilon_printed"]["1"]),
    }


def insert(words: dict[str, str]) -> None:
    """Make words known to the text of the page, as {glue:text}`name`."""
    for name, value in words.items():
        glue(name, value, display=False)
