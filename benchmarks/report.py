"""From ``results.json`` to ``table.md`` and pictures; nothing is measured here.

Each line of the benchmarks is a section between ``<!-- name -->`` and ``<!-- /name -->``, which
the page on benchmarks includes one by one.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
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
# What a large guarantee is made of; functions that run inside these are left out.
STAGES = {
    "models.fay_herriot": "build the PyMC model",
    "recognition.read_model": "prove it linear-Gaussian and read it",
    "release_inputs.joined_sensitivity": "join sensitivities by label",
    "posterior.fay_herriot_posterior": "posterior in factors: sort, QR, solve",
    "guarantee.law_prices": "prices of every area",
    "privacy.lattice_epsilon": "epsilon of every area at five deltas",
    "noise.noisy_statistics": "statistic and lattice noise (OpenDP, threads)",
    "noise_plans.statistic": "of which the statistic, exactly summed",
    "noise_plans.publish": "map the noisy statistic to areas",
}


def write(results: dict[str, Any], folder: Path) -> None:
    sections = {name: SECTIONS[name](results[name]) for name in SECTIONS if name in results}
    # Sphinx reads the file as a page of its own, which no table of contents lists.
    text = "---\norphan: true\n---\n\n# Benchmarks: all tables\n"
    for name, lines in sections.items():
        lines = [*lines, "", conditions(results[name])]
        text += f"\n<!-- {name} -->\n\n" + "\n".join(lines) + f"\n\n<!-- /{name} -->\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    if set(results) >= {"release", "fit", "direct", "accounting"}:
        ratios_picture(results, folder / "ratios.png")
    if "growth" in results:
        growth_picture(results["growth"], folder / "growth.png")


def conditions(line: dict[str, Any]) -> str:
    m = line["machine"]
    versions = m["versions"] | line.get("versions", {})
    for one in line.get("sizes", []):
        versions |= {f"{name} (peer)": v for name, v in one["versions"].items()}
    memory = f", {m['memory_gib']:.0f} GiB" if m["memory_gib"] else ""
    load = f"{m['load_before']:.1f} before and {m['load_after']:.1f} after"
    bandwidth = f"{m['copy_gib_per_second']:.1f} GiB/s"
    return (
        f"Measured {m['date']} on {m['system']}, {m['processor']}, {m['cores']} cores{memory}; "
        f"load {load}, own work included; a NumPy copy moves {bandwidth}. Python {m['python']}, "
        + ", ".join(f"{name} {v}" for name, v in versions.items())
        + ("; **quick run, small sizes**." if m["quick"] else ".")
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def secs(value: float) -> str:
    """Two or three digits, in the unit that suits."""
    unit, factor = next(
        (u for u in (("s", 1), ("ms", 1e3), ("µs", 1e6)) if value * u[1] >= 1), ("µs", 1e6)
    )
    scaled = value * factor
    return f"{scaled:.0f} {unit}" if scaled >= 9.95 else f"{scaled:.1f} {unit}"


def times(t: dict[str, Any]) -> str:
    one = t["runs"] == 1
    return secs(t["median"]) + ("" if one else f" ({secs(t['low'])} to {secs(t['high'])})")


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


# --- sections -------------------------------------------------------------------------------------


def release(line: dict[str, Any]) -> list[str]:
    rows = []
    for one in line["sizes"]:
        ours = one["ours"]
        rows.append(
            [
                f"{one['areas']:,}",
                "**model, guarantee and safe draw**",
                times(ours),
                "",
                *["0 / 0"] * 2,
                "",
            ]
        )
        for peer in one["peers"]:
            length = " + ".join(map(str, peer["length"]))
            name = f"pm.sample, {peer['sampler']}, {peer['form']}, 2 x ({length})"
            if "failed" in peer:
                rows.append([f"{one['areas']:,}", name, peer["failed"], *[""] * 4])
                continue
            rows.append(
                [
                    f"{one['areas']:,}",
                    name,
                    secs(peer["seconds"]),
                    ratio(peer["seconds"] / ours["median"]),
                    f"{peer['mean_error_rms']:.3f} / {peer['mean_error_max']:.2f}",
                    f"{peer['sd_error_rms']:.1%} / {peer['sd_error_max']:.0%}",
                    f"{peer['rhat']:.3f}",
                ]
            )
    head = ["areas", "what", "seconds", "times ours"]
    return table([*head, "error of means, in sd", "error of sds", "r-hat"], rows)


def fit(line: dict[str, Any]) -> list[str]:
    ours, peers = line["ours"], line["peers"]
    base = ours["REML, means and variances"]["median"]
    rows = [
        [
            f"**{name}**",
            times(t),
            secs(t["first"]),
            ratio(t["median"] / base),
            f"{line['sigma_u']:.8f}",
        ]
        for name, t in ours.items()
    ]
    rows[-1][-1] = ""
    for name, t in peers.items():
        if "failed" in t:
            rows.append([name, t["failed"], "", "", ""])
            continue
        times_ours = ratio(t["median"] / base)
        rows.append([name, times(t), secs(t["first"]), times_ours, f"{t['sigma_u']:.8f}"])
    head = ["REML fit", "seconds", "first call", "times ours", "sigma_u"]
    lines = [f"Data: {line['data']}.", "", *table(head, rows), ""]
    exact, base = line["exact"], ours["1,000 exact draws"]["median"]
    rows = [["**1,000 exact draws**", secs(base), "1,000", secs(base), "1.0", _sigma(exact)]]
    for name, t in line["samplers"].items():
        if "failed" in t:
            rows.append([name, t["failed"], *[""] * 4])
            continue
        per = t["seconds"] / t["ess"] * 1000
        numbers = [secs(t["seconds"]), f"{t['ess']:,.0f}", secs(per), ratio(per / base)]
        rows.append([f"pm.sample, {name}, 2 x (1000 + 1000)", *numbers, _sigma(t)])
    head = [
        "sigma_u integrated",
        "seconds",
        "effective draws of sigma_u",
        "per 1,000",
        "times ours",
    ]
    return lines + table([*head, "sigma_u: mean, sd"], rows)


def _sigma(t: dict[str, Any]) -> str:
    return f"{t['sigma_u_mean']:.6f}, {t['sigma_u_sd']:.6f}"


def direct(line: dict[str, Any]) -> list[str]:
    lines = [f"Data: {line['data']}.", ""]
    rows = []
    for unit, found in line["units"].items():
        for name, t in found.items():
            kind, engine = name.split(", ", 1)
            if kind == "hajek":
                floor = found[f"by hand, {engine}"]
                rows.append(
                    [unit, engine, times(t), times(floor), f"{t['median'] / floor['median']:.2f}"]
                )
    head = ["unit", "engine", "hajek", "the same sums by hand", "times by hand"]
    lines += [*table(head, rows), ""]
    rows = []
    for name, peer in line["peers"].items():
        if "failed" in peer:
            rows.append([name, peer["failed"], "", "", ""])
            continue
        ours, theirs = peer["times"]["ours"], peer["times"][name]
        rows.append(
            [
                name,
                f"{peer['rows']:,}",
                times(theirs),
                times(ours),
                ratio(theirs["median"] / ours["median"]),
            ]
        )
        lines += [f"{name} did not finish on {text}.\n" for text in peer["failures"]]
    head = ["peer", "rows", "peer", "hajek, Polars", "times ours"]
    return lines + table(head, rows)


def accounting(line: dict[str, Any]) -> list[str]:
    if "failed" in line:
        return [line["failed"]]
    deltas, ours = line["deltas"], line["ours"]
    areas = line["values"] // deltas

    def row(name: str, t: dict[str, Any], count: int, base: float, above: str) -> list[str]:
        per = t["median"] / count / deltas
        return [name, times(t), f"{count:,}", secs(per), ratio(per * line["values"] / base), above]

    exact = ours["exact, on the lattice"]["median"]
    rows = [
        row(f"**{name}**", t, areas, exact, {"from zCDP": ""}.get(name, "0"))
        for name, t in ours.items()
    ]
    names = {
        "exact": "dp-accounting, exact Gaussian",
        "PLD": "dp-accounting, PLD",
        "RDP": "dp-accounting, RDP",
        "OpenDP": "OpenDP, zCDP to (epsilon, delta)",
    }
    for key, t in line["peers"].items():
        if "failed" in t:
            rows.append([names[key], t["failed"], "", "", "", ""])
        else:
            above = t["above_exact"]
            words = "0" if abs(above) < 1e-9 else f"{above:.0e}" if above < 1e-3 else f"{above:.1%}"
            rows.append(row(names[key], t, t["areas"], exact, words))
    head = ["method", "seconds", "areas", "per value", "times ours", "above exact, median"]
    return table(head, rows)


def growth(line: dict[str, Any]) -> list[str]:
    rows, profiles = [], []
    for name, task in line["tasks"].items():
        runs = [run for run in task["runs"] if "median" in run]
        if not runs:
            continue
        last, slope = runs[-1], task["exponent"]
        small = next((run for run in runs if run["areas"] in (2_462, 2_500)), None)
        rows.append(
            [
                WORDS[name][0],
                times(small) if small else "",
                f"{last['areas']:,}",
                times(last),
                f"{last['peak_mib']:,.0f} MiB",
                f"{last['added_mib']:,.0f} MiB",
                "" if slope is None else f"{slope:.2f}",
            ]
        )
        failed = [run for run in task["runs"] if "failed" in run]
        profiles += [
            ["", f"{WORDS[name][0]}, {run['areas']:,} areas: {run['failed']}"] for run in failed
        ]
        for run in runs:
            seen = run.get("profile", {})
            if seen:
                title = f"**{WORDS[name][0]}, {run['areas']:,} areas**"
                profiles.append([title, secs(seen["whole"])])
            profiles += [
                [words, f"{secs(seen[stage])}, {seen[stage] / seen['whole']:.0%}"]
                for stage, words in STAGES.items()
                if stage in seen
            ]
    head = ["task", "2,462 areas", "largest", "seconds", "peak memory", "of it added", "exponent"]
    lines = [*table(head, rows), ""]
    return lines + table(["one run with a profiler", "time"], profiles)


SECTIONS = {
    "release": release,
    "fit": fit,
    "direct": direct,
    "accounting": accounting,
    "growth": growth,
}

# --- pictures -------------------------------------------------------------------------------------


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
