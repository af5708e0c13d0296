"""Pictures of a statement: SVG inside the page, in the page's own ink."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.plots.style import BLUE, VERMILLION, log_axis

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"  # becomes the colour of the page's text, on light and on dark
SIZE = (5.0, 3.4)  # inches; small, so that letters stay legible on a telephone
MANY = 300  # more dots than this are small


@dataclass(frozen=True)
class Picture:
    """What a page puts between ``<svg>`` and ``</svg>``, with a title and a description.

    Attributes
    ----------
    name : str
        Begins every id in the picture.
    box : str
        Its ``viewBox``.
    shapes : Markup
    """

    name: str
    box: str
    shapes: Markup


def rdp_picture(order: Array, divergence: Array) -> Picture:
    """Draw the Renyi divergence bound against its order.

    Parameters
    ----------
    order, divergence : ndarray of shape (orders,)
        Positive and finite.

    Returns
    -------
    Picture
    """
    figure, ax = _axes()
    ax.plot(order, divergence, color=VERMILLION, linewidth=2.5)
    log_axis(ax, "x", base=2)
    log_axis(ax, "y")
    ax.set_xlim(order[0], order[-1])
    ax.set_xlabel("order \N{GREEK SMALL LETTER ALPHA}")
    ax.set_ylabel("Rényi divergence bound (nats)")
    return _svg(figure, "rdp")


def attack_picture(mu: float) -> Picture:
    """Draw the best true positive rate against the false positive rate, and that of a guess."""
    from scipy.special import ndtr, ndtri

    figure, ax = _axes()
    # Even steps in either rate, so that the curve is smooth at both ends.
    even = np.linspace(0, 1, 201)
    wrong = np.unique(np.concatenate([even, ndtr(ndtri(even) - mu)]))
    ax.plot(100 * wrong, 100 * ndtr(ndtri(wrong) + mu), color=VERMILLION, linewidth=2.5)
    ax.plot([0, 100], [0, 100], color=INK, linewidth=1, linestyle="--")
    ax.text(60, 53, "a guess", color=INK, ha="left", va="top")
    ax.set(xlim=(0, 100), ylim=(0, 100))
    ax.set_xlabel("false positive rate (%)")
    ax.set_ylabel("true positive rate, at most (%)")
    return _svg(figure, "attack")


def price_picture(price: Array, whole: float) -> Picture:
    """Draw the prices of areas, most costly first, and that of the whole release.

    Parameters
    ----------
    price : ndarray of shape (areas,)
        In falling order, positive and finite.
    whole : float

    Returns
    -------
    Picture
    """
    from matplotlib.ticker import MaxNLocator

    figure, ax = _axes()
    few = price.size <= MANY
    ax.axhline(whole, color=VERMILLION, linewidth=1.5)
    ax.annotate(
        "whole release", (1, whole), xycoords=("axes fraction", "data"), color=INK,
        xytext=(-3, 3), textcoords="offset points", ha="right", va="bottom",
    )  # fmt: skip
    rank = np.arange(1, price.size + 1)
    ax.plot(rank, price, "o", color=BLUE, ms=4.5 if few else 2.2, mew=0)
    # At least a factor of ten, so that small differences look small.
    low = min(price.min(), whole / 10)
    log_axis(ax, "y", ratio=whole / low)
    ax.set_ylim(low / 1.3, whole * (whole / low) ** 0.15)
    margin = 0.02 * price.size
    ax.set_xlim(1 - margin, price.size + margin)
    ticks = np.asarray(MaxNLocator(nbins=6, integer=True).tick_values(1, price.size))
    ax.set_xticks([1, *ticks[(ticks > 1) & (ticks <= price.size)]])  # nobody is at rank 0
    ax.set_xlabel("areas, most costly first")
    ax.set_ylabel("price \N{GREEK SMALL LETTER RHO} (zCDP)")
    return _svg(figure, "prices")


def _axes() -> tuple[Figure, Axes]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: Any = {"font.size": 10, "font.family": "sans-serif", **dict.fromkeys(inks, INK)}
    with rc_context(style):
        figure = Figure(figsize=SIZE, layout="constrained")
        ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color=INK, alpha=0.15, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_facecolor("none")
    figure.patch.set_visible(False)
    return figure, ax


def _svg(figure: Figure, name: str) -> Picture:
    """Make SVG that can stand inside a page: one name for each thing, letters as text."""
    from markupsafe import Markup
    from matplotlib import rc_context

    written = io.StringIO()
    unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(written, format="svg", metadata=unsaid)
    root = re.search(r'<svg[^>]*viewBox="([\d. ]+)"[^>]*>(.*)</svg>', written.getvalue(), re.S)
    assert root is not None
    box, inside = root.groups()
    for mark in (' id="', '="#', "url(#"):
        inside = inside.replace(mark, f"{mark}{name}-")
    inside = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px sans-serif", inside)
    inside = inside.replace(INK, "currentColor").replace("xlink:href", "href")
    return Picture(name, box, Markup(inside))
