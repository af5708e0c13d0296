"""Time and memory as areas grow from a hundred to a million, and where the time goes."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Options, in_a_process

SIZES = {
    "guarantee": [100, 1_000, 2_462, 10_000, 100_000, 240_000, 1_000_000],
    "release": [100, 1_000, 2_462, 10_000, 100_000, 1_000_000],
    "draw": [100, 1_000, 2_462, 10_000, 100_000, 240_000, 1_000_000],
    "noise": [2_462, 240_000, 1_000_000],
    "comparison": [100, 1_000, 2_462, 10_000, 24_620],
    "fay_herriot_like": [100, 1_000, 2_462, 10_000, 100_000],
    "sparse_car": [100, 1_024, 2_500, 10_000, 20_164, 50_176],
    "icar": [100, 400, 1_024, 2_500],
}
PROFILED = {"guarantee": 1_000_000, "release": 100_000, "draw": 1_000_000}
SMALL_ENOUGH = 10_000  # for --quick
LAST = 3  # sizes that the exponent is fitted to: below them, starting costs hide the growth


def run(options: Options) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for task, sizes in SIZES.items():
        kept = [m for m in sizes if m <= SMALL_ENOUGH] if options.quick else sizes
        rows = []
        for m in kept:
            extra = ["profile"] if PROFILED.get(task) == m else []
            rows.append({"areas": m} | in_a_process("growth_task.py", task, m, *extra))
            print(f"  {task} {m:,}: {rows[-1].get('median', rows[-1].get('failed'))}", flush=True)
        tasks[task] = {"runs": rows, "exponent": exponent(rows)}
    return {"tasks": tasks}


def exponent(rows: list[dict[str, Any]]) -> float | None:
    """Slope of log seconds on log areas over the largest sizes."""
    at = [(row["areas"], row["median"]) for row in rows if "median" in row][-LAST:]
    if len(at) < 2:
        return None
    areas, seconds = np.log(np.array(at).T)
    return float(np.polyfit(areas, seconds, 1)[0])
