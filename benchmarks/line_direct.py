"""Direct estimates: ``hajek`` on its engines against the bare query, and against svy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
from bench_hajek import by_hand
from harness import Options, Peer, PeerFailed, by_turns, in_a_process, seconds_of
from problems import persons

from pymc_dp.survey.estimate import hajek

ROLES = {"outcome": "poor", "weight": "w", "area": "puma"}
HOUSEHOLD = ["puma", "hh"]
PEER_ROWS = (213_000, 20_000)  # svy needs gigabytes and minutes for a million
REPLICATES, REPLICATE_ROWS = (20, 40, 80), 500_000
PEERS = {"svy": "svy_means.py", "samplics": "samplics_means.py"}


def by_hand_pandas(frame: pd.DataFrame, unit: list[str] | None) -> pd.DataFrame:
    """The sums of ``by_hand`` in pandas."""
    w, y = frame["w"].astype(float), frame["poor"].astype(float) - 0.5
    rows = pd.DataFrame({"puma": frame["puma"], "w": w, "a": w * y, "ww": w * w, "y": y})
    if unit:
        rows["hh"] = frame["hh"]
        groups = rows.groupby(unit, sort=False, observed=True)
        ends = groups["y"].agg(["min", "max"])
        rows = groups[["w", "a", "ww"]].sum().join(ends).reset_index()
    low, high = ("min", "max") if unit else ("y", "y")
    rows = rows.assign(w2=rows["w"] ** 2, aw=rows["a"] * rows["w"], aa=rows["a"] ** 2)
    groups = rows.groupby("puma")
    return (
        groups[["w", "a", "ww", "w2", "aw", "aa"]]
        .sum()
        .join(
            pd.DataFrame(
                {"n": groups.size(), "m": groups["w"].max()}
                | {"low": groups[low].min(), "high": groups[high].max()}
            )
        )
    )


def by_hand_duckdb(path: str, unit: list[str] | None) -> object:
    """The same in SQL, from Parquet."""
    rows = f"select puma, hh, w::double w, w * (poor::double - 0.5) a, w * w::double ww, \
        poor::double - 0.5 lo, poor::double - 0.5 hi from '{path}'"
    if unit:
        rows = f"select puma, sum(w) w, sum(a) a, sum(ww) ww, min(lo) lo, max(hi) hi \
            from ({rows}) group by puma, hh"
    return duckdb.sql(
        f"select puma, count(*) n, sum(w) w, sum(a) a, sum(ww) ww, sum(w * w) w2, sum(a * w) aw, \
        sum(a * a) aa, max(w) m, min(lo), max(hi) from ({rows}) group by puma order by puma"
    ).fetchall()


def run(options: Options) -> dict[str, Any]:
    path, words = persons(options.data, options.work / "persons.parquet", options.quick)
    duckdb.sql("set enable_progress_bar = false")
    frame = pl.read_parquet(path)
    pandas = frame.to_pandas()
    sources = {
        "Polars": lambda: frame,
        "Polars, from Parquet": lambda: pl.scan_parquet(path),
        "DuckDB, from Parquet": lambda: duckdb.read_parquet(str(path)),
        "pandas": lambda: pandas,
    }
    floors = {
        "Polars": lambda unit: by_hand(frame.lazy(), unit),
        "Polars, from Parquet": lambda unit: by_hand(pl.scan_parquet(path), unit),
        "DuckDB, from Parquet": lambda unit: by_hand_duckdb(str(path), unit),
        "pandas": lambda unit: by_hand_pandas(pandas, unit),
    }
    out: dict[str, Any] = {"data": words, "units": {}, "peers": {}, "versions": {}}
    for name, unit in (("persons", None), ("households", HOUSEHOLD)):
        works: dict[str, Any] = {}
        for engine, source in sources.items():
            works[f"hajek, {engine}"] = lambda source=source, unit=unit: seconds_of(
                lambda: hajek(source(), unit=unit, **ROLES)
            )
            works[f"by hand, {engine}"] = lambda engine=engine, unit=unit: seconds_of(
                lambda: floors[engine](unit)
            )
        out["units"][name] = by_turns(works, 3 if options.quick else 7)
    out["replicates"] = replicates(path, options)
    for name, script in PEERS.items():
        out["peers"][name] = _peer(name, script, path, options, out["versions"])
    return out


def replicates(path: Path, options: Options) -> list[dict[str, Any]]:
    """Seconds and memory with replicate weights in a file, against their size in memory.

    They are made up, as the records have none: an ACS weight is multiplied by 0.3, 1 or 1.7.
    """
    rng = np.random.default_rng(80)
    frame = pl.read_parquet(path).head(REPLICATE_ROWS // 10 if options.quick else REPLICATE_ROWS)
    out = []
    for count in REPLICATES:
        factors = rng.choice([0.3, 1.0, 1.0, 1.7], (len(frame), count))
        weights = np.rint(factors * frame["w"].to_numpy()[:, None])
        columns = pl.from_numpy(weights, schema=[f"PWGTP{k + 1}" for k in range(count)])
        wide = options.work / "replicates.parquet"
        frame.hstack(columns).write_parquet(wide)
        size = {"rows": len(frame), "count": count, "columns_mib": columns.estimated_size("mb")}
        out.append(size | in_a_process("growth_task.py", "replicates", wide))
    return out


def _peer(name, script, path, options, versions) -> dict[str, Any]:
    """A peer on as many of the rows as it can take in a minute or so; ours on the same rows."""
    failures = []
    for rows in PEER_ROWS:
        part = options.work / "rows.parquet"
        # svy takes the sample as one design with areas as its domains: a constant stratum.
        pl.scan_parquet(path).head(rows).with_columns(all=1).sink_parquet(part)
        frame = pl.read_parquet(part)
        try:
            peer = Peer("survey", script, part, options=options)
            table = peer.run("table")["table"]
            works = {
                "ours": lambda frame=frame: seconds_of(lambda: hajek(frame, strata="all", **ROLES)),
                name: lambda peer=peer: peer.run()["seconds"],
            }
            times = by_turns(works, 1 if options.quick else 3)
            peer.close()
        except PeerFailed as failed:
            failures.append(f"{rows:,} rows: {failed}")
            continue
        versions |= peer.facts["versions"]
        direct = hajek(frame, strata="all", **ROLES)
        theirs = pd.DataFrame(table).set_index("puma").loc[direct["area"].values]
        apart = np.abs(theirs["se"] ** 2 / direct["variance"].values - 1).max()
        return {"rows": rows, "times": times, "variance_apart": float(apart), "failures": failures}
    return {"failed": "; ".join(failures)}
