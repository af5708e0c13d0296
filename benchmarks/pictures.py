"""The pictures of ``results.json``, and how tasks and ratios are written there and in tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from PIL import Image

BLUE, ORANGE, GREEN, VERMILLION, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"
PURPLE, GREY = "#CC79A7", "#777777"
WORDS = {
    "guarantee": ("guarantee, from arrays, 8 coefficients", BLUE),
    "release": ("model and guarantee, 8 coefficients", SKY),
    "draw": ("safe draw, 8 coefficients", GREEN),
    "noise": ("OpenDP's noise alone, one call", GREY),
    "comparison": ("comparison of variance components, 64 orders", ORANGE),
    "fay_herriot_like": ("a user's Fay-Herriot model: proof and guarantee", PURPLE),
    "sparse_car": ("CAR, sparse neighbours: proof and guarantee", VERMILLION),
    "icar": ("ICAR, dense: proof and guarantee", "black"),
}


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def ratios(results: dict[str, Any]) -> list[tuple[str, float]]:
    """How many times longer each peer takes for the same work."""
    bars = []
    for one in results["release"]["sizes"]:
        best: dict[str, float] = {}
        for peer in one["peers"]:
            if "seconds" in peer:
                name = f"draw, {one['areas']:,} areas: pm.sample, {peer['sampler']}"
                best[name] = min(best.get(name, float("inf")), peer["seconds"])
        bars += [(name, value / one["ours"]["median"]) for name, value in best.items()]
    base = results["fit"]["ours"]["REML, means and variances"]["median"]
    bars += [
        (f"fit, 3,141 counties: {name}", t["median"] / base)
        for name, t in results["fit"]["peers"].items()
        if "median" in t
    ]
    for name, peer in results["direct"]["peers"].items():
        if "times" in peer:
            both = peer["times"]
            value = both[name]["median"] / both["ours"]["median"]
            bars.append((f"means, {peer['rows']:,} rows: {name}", value))
    for name, t in results["direct"]["units"]["persons"].items():
        if name.startswith("by hand"):
            engine = name.split(", ", 1)[1]
            ours = results["direct"]["units"]["persons"][f"hajek, {engine}"]
            bars.append((f"the same query by hand: {engine}", t["median"] / ours["median"]))
    line = results["accounting"]
    ours = line.get("ours", {}).get("exact, on the lattice", {}).get("median", 0)
    for name, t in line.get("peers", {}).items():
        if "median" in t:
            value = t["median"] / t["areas"] / line["deltas"] * line["values"] / ours
            package = "OpenDP" if name == "OpenDP" else f"dp-accounting, {name}"
            bars.append((f"epsilon, 2,462 areas: {package}", value))
    return bars


def ratios_picture(results: dict[str, Any], path: Path) -> None:
    bars = ratios(results)[::-1]
    figure, ax = plt.subplots(figsize=(7, 0.3 * len(bars) + 0.8), layout="constrained")
    colours = [ORANGE if value < 1 else BLUE for _, value in bars]
    ax.barh([name for name, _ in bars], [v - 1 for _, v in bars], left=1, color=colours)
    ax.set_xscale("log")
    for i, (_, value) in enumerate(bars):
        ax.annotate(
            ratio(value) if value >= 1 else f"{value:.2f}",
            (max(value, 1), i),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_xlim(min(0.3, *(v for _, v in bars)), 4 * max(v for _, v in bars))
    ax.set_xlabel("time over ours, the same work (above 1: pymc_dp is faster)")
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def growth_picture(line: dict[str, Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.8), layout="constrained")
    handles = []
    for name, task in line["tasks"].items():
        runs = [run for run in task["runs"] if "median" in run]
        words, colour = WORDS[name]
        slope = "" if task["exponent"] is None else f"  [{task['exponent']:.2f}]"
        style = {"color": colour, "marker": "o", "markersize": 3, "linewidth": 1.3}
        style["linestyle"] = "--" if name == "noise" else "-"
        areas = [run["areas"] for run in runs]
        [handle] = left.plot(areas, [r["median"] for r in runs], label=words + slope, **style)
        handles.append(handle)
        right.plot(areas, [r["peak_mib"] for r in runs], **style)
    _axes(left, "seconds")
    _axes(right, "peak memory of the process, MiB")
    right.set_yticks([200, 500, 1_000, 2_000], ["200", "500", "1,000", "2,000"])
    right.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
        title="in brackets: exponent of the areas that time grows by, over the three largest sizes",
        title_fontsize=8,
    )
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """As a PNG of few colours, a third of the usual size."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110)
    plt.close(figure)
    image = Image.open(buffer).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def _axes(ax: Axes, label: str) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("areas")
    ax.set_ylabel(label)
    ax.grid(alpha=0.3, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)
