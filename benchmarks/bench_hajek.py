"""Direct estimates of every PUMA: ``pytest benchmarks/bench_hajek.py --benchmark-group-by=group``.

Within a group the same sums are taken by hand-written Polars, in memory and from Parquet, and by
``hajek`` on each engine; `times hand-written` is the ratio of medians. The records are the six
files of ACS persons in the folder that PYMC_DP_SHARED names. Nothing here is asserted.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import polars as pl
import pytest

from pymc_dp.survey import hajek

FOLDER = Path(os.environ.get("PYMC_DP_SHARED", Path(__file__).parents[2] / "shared")) / "data"
ROLES = {"outcome": "poor", "weight": "w", "area": "puma"}
ROUNDS = 7


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    paths = sorted(FOLDER.glob("acs_pums_2024_persons_part*.csv.gz"))
    if not paths:
        pytest.skip("the ACS person files are not here")
    parts = [pl.read_csv(path, schema_overrides={"puma": pl.String}) for path in paths]
    persons = pl.concat(parts).drop_nulls("povpip").with_columns(poor=pl.col("povpip") < 100)
    path = tmp_path_factory.mktemp("hajek") / "persons.parquet"
    persons.write_parquet(path)
    return path


def by_hand(frame, unit):
    """Sums for estimate, linearised variance, sensitivity and effective size, in plain Polars."""
    w, y = pl.col("w").cast(pl.Float64), pl.col("poor").cast(pl.Float64) - 0.5
    keys = ["puma", "hh"] if unit else ["puma"]
    rows = frame.select(*keys, w.alias("w"), (w * y).alias("a"), (w * w).alias("ww"), y.alias("y"))
    ends = pl.col("y").min().alias("low"), pl.col("y").max().alias("high")
    if unit:
        sums = pl.col("w").sum(), pl.col("a").sum(), pl.col("ww").sum(), pl.len().alias("n")
        rows = rows.group_by(keys).agg(*sums, *ends)
        ends = pl.col("low").min(), pl.col("high").max()
        n = pl.col("n").sum(), pl.len().alias("units")
    else:
        n = (pl.len().alias("n"),)
    a, w = pl.col("a"), pl.col("w")
    products = {"w2": w * w, "aw": a * w, "aa": a * a}
    sums = (pl.col(name).sum() for name in ("w", "a", "ww", *products))
    areas = rows.with_columns(**products).group_by("puma").agg(*n, *sums, w.max().alias("m"), *ends)
    return areas.sort("puma").collect(engine="streaming")


def load(engine, path):
    if engine == "polars":
        return pl.read_parquet(path)
    if engine == "polars, from Parquet":
        return pl.scan_parquet(path)
    if engine == "pandas":
        return pl.read_parquet(path).to_pandas()
    duckdb = pytest.importorskip("duckdb")
    return duckdb.read_parquet(str(path))


@pytest.mark.parametrize("engine", ["polars", "polars, from Parquet", "duckdb", "pandas"])
@pytest.mark.parametrize("unit", [None, ["puma", "hh"]], ids=["persons", "households"])
def test_hajek(benchmark, parquet, engine, unit):
    data = load(engine, parquet)
    in_memory = engine in ("polars", "pandas")
    hand_frame = (pl.read_parquet if in_memory else pl.scan_parquet)(parquet).lazy()
    hand = []

    def one_of_each():
        # By turns, so that a busy machine slows both.
        start = time.perf_counter()
        by_hand(hand_frame, unit)
        hand.append(time.perf_counter() - start)

    benchmark.group = "households" if unit else "persons"
    benchmark.pedantic(
        lambda: hajek(data, unit=unit, **ROLES),
        setup=one_of_each,
        rounds=ROUNDS,
        warmup_rounds=1,
    )
    median = statistics.median(hand)
    benchmark.extra_info["hand-written, s"] = round(median, 3)
    benchmark.extra_info["times hand-written"] = round(benchmark.stats.stats.median / median, 2)
