"""Parts that every picture is made of: colours, axes, legends, and titles with the claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    Key = list[tuple[str, Artist]]

# The colours of Okabe and Ito, told apart by the colour-blind.
ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
LABEL = 32  # characters of an area's label


def new_axes(columns: int, size: tuple[float, float], *, sharey: bool = True) -> list[Axes]:
    """Axes side by side on a new figure of so many inches."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained")
    return list(figure.subplots(1, columns, sharey=sharey, squeeze=False)[0])


def log_axis(ax: Axes, which: Literal["x", "y"], *, base: int = 10, ratio: float = np.inf) -> None:
    """Make an axis logarithmic, with plain numbers: more of them where values span little."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    few, some, many = (1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    between = many if ratio < 6 else some if ratio < 300 else few
    axis.set_major_locator(LogLocator(base, subs=between))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend(ax: Axes, key: Iterable[tuple[str, Artist]], **where: Any) -> Artist:
    """Add a legend in small type."""
    words, artists = zip(*key, strict=True)
    return ax.legend(artists, words, fontsize="small", title_fontsize="small", **where)


def claim_title(ax: Axes, words: str, record: dict[str, Any]) -> None:
    """Set a title that ends with the kind of claim, in lines short enough for narrow axes."""
    claim = record["claim_words"].replace(" (", "\n(")
    ax.set_title(f"{words}\nclaim: {claim}", loc="left", fontsize="medium")


def plain(label: object) -> str:
    """Shorten a label, and take the meaning from its dollar signs."""
    text = str(label)
    text = text if len(text) <= LABEL else text[: LABEL - 1] + "…"
    return text.replace("$", r"\$")
