"""Means of every area with design variances by svy: ``svy_means.py ROWS.parquet``."""

import sys

import polars as pl
import svy
from serve import serve

persons = pl.read_parquet(sys.argv[1]).with_columns(poor=pl.col("poor").cast(float))
sample = svy.Sample(data=persons, design=svy.Design(wgt="w"))


def work(task):
    table = sample.estimation.mean(y="poor", by="puma").to_polars()
    if task != "table":
        return {}
    return {"table": table.select("puma", "est", "se").to_dict(as_series=False)}


serve(work, "svy")
