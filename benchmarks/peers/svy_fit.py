"""REML fit by svy-sae, with means and their errors: ``svy_fit.py PROBLEM.json``."""

import json
import sys
from pathlib import Path

import polars as pl
from serve import serve
from svy_sae import AreaLevel

problem = json.loads(Path(sys.argv[1]).read_text())
table = pl.DataFrame({name: problem[name] for name in ("area", "y", "x", "D")})


def work(task):
    fit = AreaLevel(table).fh("y", x=["x"], area="area", variance="D", method="reml")
    return {"sigma_u": float(fit.stats.sigma_u)}


serve(work, "svy-sae", "jax")
