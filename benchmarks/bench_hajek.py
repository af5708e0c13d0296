"""Direct estimates of every PUMA: ``pytest benchmarks/bench_hajek.py --benchmark-group-by=group``.

Within a group the same sums are taken by hand-written Polars, in memory and from Parquet, and by
``hajek`` on each engine; `times hand-written` is the ratio of medians. The records are the six
files of ACS persons in the folder that PYMC_DP_SHARED names. No time is asserted.

svy, which estimates means by area with design variances, is timed on the same rows where
PYMC_DP_PEERS names the Python of an environment that has it: ``python3 -m venv peers``, then
``peers/bin/python -m pip install svy`` and ``PYMC_DP_PEERS=peers/bin/python pytest ...``.

With replicate weights the memory that a call adds is measured in a process of its own, over more
and more replicates of one file: it is to stay the same.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from pymc_dp.survey.estimate import hajek

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


SVY = """
import json, sys, time
import polars as pl, svy
persons = pl.read_parquet(sys.argv[1]).with_columns(poor=pl.col("poor").cast(float))
sample = svy.Sample(data=persons, design=svy.Design(wgt="w"))
times = []
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    result = sample.estimation.mean(y="poor", by="puma")
    times.append(time.perf_counter() - start)
table = result.to_polars().select("puma", "est", "se")
table = table.to_dict(as_series=False)
print(json.dumps({"times": times, "version": svy.__version__, "table": table}))
"""


@pytest.mark.parametrize("engine", ["polars", "polars, from Parquet", "duckdb", "pandas"])
@pytest.mark.parametrize("rows", [213_000])
def test_svy(benchmark, parquet, tmp_path_factory, rows, engine):
    """The whole sample as one design with areas as its domains, which is what svy computes."""
    python = os.environ.get("PYMC_DP_PEERS")
    if not python:
        pytest.skip("PYMC_DP_PEERS does not name a Python with svy")
    path = tmp_path_factory.mktemp("svy") / "rows.parquet"
    pl.scan_parquet(parquet).head(rows).with_columns(all=1).sink_parquet(path)
    data = load(engine, path)
    # Anew for each engine: a busy machine is as busy for both.
    theirs = json.loads(subprocess.check_output([python, "-c", SVY, str(path), "3"], text=True))
    benchmark.group = f"svy, {rows} rows"
    direct = benchmark.pedantic(
        lambda: hajek(data, strata="all", **ROLES), rounds=ROUNDS, warmup_rounds=1
    )
    table = pl.DataFrame(theirs["table"]).sort("puma")
    assert table["puma"].to_list() == direct["area"].values.tolist()
    np.testing.assert_allclose(direct["estimate"], table["est"], rtol=1e-9)
    np.testing.assert_allclose(direct["variance"], table["se"] ** 2, rtol=1e-9)
    median = statistics.median(theirs["times"])
    benchmark.extra_info["svy"] = theirs["version"]
    benchmark.extra_info["svy, s"] = round(median, 3)
    benchmark.extra_info["times faster"] = round(median / benchmark.stats.stats.median, 1)


@pytest.fixture(scope="module")
def replicates(parquet, tmp_path_factory):
    """The same records with eighty replicate weights, in blocks of rows."""
    path = tmp_path_factory.mktemp("replicates") / "persons.parquet"
    persons, rng, writer = pl.read_parquet(parquet), np.random.default_rng(80), None
    for block in persons.iter_slices(200_000):
        factor = rng.normal(1, 0.6, (len(block), 80)).astype("float32")
        weights = np.rint(factor * block["w"].to_numpy()[:, None]).astype("int16")
        names = [f"PWGTP{k}" for k in range(1, 81)]
        wide = block.hstack(pl.from_numpy(weights, schema=names)).to_arrow()
        writer = writer or pa.parquet.ParquetWriter(path, wide.schema)
        writer.write_table(wide)
    writer.close()
    return path


MEMORY = """
import json, pathlib, sys, time
path, engine, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
import duckdb, pandas, polars as pl, pyarrow
from pymc_dp.survey import hajek
columns = [f"PWGTP{k}" for k in range(1, count + 1)]
data = pl.scan_parquet(path) if engine == "polars" else duckdb.read_parquet(path)
roles = {"outcome": "poor", "weight": "w", "area": "puma"}
duckdb.sql("set enable_progress_bar = false")
def kib(what):
    return int(pathlib.Path("/proc/self/status").read_text().split(what + ":")[1].split()[0])
before, start = kib("VmRSS"), time.perf_counter()
if engine == "by hand":
    y = pl.col("poor").cast(float)
    sums = [s for c in columns for s in (pl.col(c).cast(float).sum(),
            (pl.col(c).cast(float) * y).sum().alias(c + "y"))]
    pl.scan_parquet(path).group_by("puma").agg(sums).collect(engine="streaming")
else:
    hajek(data, variance="sdr", replicate_weights=columns, **roles)
print(json.dumps({"s": time.perf_counter() - start, "MiB": (kib("VmHWM") - before) / 1024}))
"""


@pytest.mark.parametrize("engine", ["polars", "duckdb", "by hand"])
@pytest.mark.parametrize("count", [20, 40, 80])
def test_memory_with_replicates(benchmark, replicates, engine, count):
    """As Linux counts it; `by hand` is plain Polars with the sums of all replicates in one pass."""
    command = [sys.executable, "-c", MEMORY, str(replicates), engine, str(count)]
    benchmark.group = f"replicates of {replicates.stat().st_size / 2**20:.0f} MiB"
    output = benchmark.pedantic(
        lambda: subprocess.check_output(command, text=True), rounds=1, warmup_rounds=0
    )
    benchmark.extra_info |= {k: round(v, 2) for k, v in json.loads(output).items()}
