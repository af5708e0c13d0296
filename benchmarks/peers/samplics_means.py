"""Means of every area with design variances by samplics: ``samplics_means.py ROWS.parquet``."""

import sys
import warnings

import pandas as pd

warnings.filterwarnings("ignore")
from samplics.estimation import TaylorEstimator  # noqa: E402
from samplics.utils.types import PopParam  # noqa: E402
from serve import serve  # noqa: E402

persons = pd.read_parquet(sys.argv[1])


def work(task):
    estimator = TaylorEstimator(PopParam.mean)
    estimator.estimate(
        y=persons["poor"].to_numpy(float),
        samp_weight=persons["w"].to_numpy(float),
        domain=persons["puma"].to_numpy(),
    )
    if task != "table":
        return {}
    found = estimator.to_dataframe()
    columns = {"_domain": "puma", "_estimate": "est", "_stderror": "se"}
    return {"table": found[list(columns)].rename(columns=columns).to_dict(orient="list")}


serve(work, "samplics")
