"""From ``results.json`` to ``table.md``, and the pictures beside it; nothing is measured here.

Each line of the benchmarks is a section between ``<!-- name -->`` and ``<!-- /name -->``, which
the page on benchmarks includes one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pictures import WORDS, growth_picture, ratio, ratios_picture

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


def calls(t: dict[str, Any]) -> list[str]:
    """The first call of a process, and those after it: none where the first took too long."""
    once = t["runs"] == 1 and t["median"] == t["first"]
    return [secs(t["first"]), "" if once else times(t)]


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
    lines += table(head, rows)
    return [*lines, "", *replicates(line["replicates"])] if "replicates" in line else lines


def replicates(runs: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in runs:
        columns = [f"{run['count']}", f"{run['rows']:,}", f"{run['columns_mib']:,.0f} MiB"]
        figures = [f"{run['added_mib']:,.0f} MiB", *calls(run)] if "median" in run else []
        rows.append(columns + (figures or [run["failed"], "", ""]))
    head = ["replicate weights", "rows", "their columns in memory", "memory added by hajek"]
    return table([*head, "first call", "later calls"], rows)


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
                *(calls(small) if small else ["", ""]),
                f"{last['areas']:,}",
                *calls(last),
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
    seconds = ["first call", "later calls"]
    head = ["task", "2,462 areas: first call", "later calls", "largest", *seconds]
    lines = [*table([*head, "peak memory", "of it added", "exponent"], rows), ""]
    return lines + table(["one run with a profiler", "time"], profiles)


SECTIONS = {
    "release": release,
    "fit": fit,
    "direct": direct,
    "accounting": accounting,
    "growth": growth,
}
