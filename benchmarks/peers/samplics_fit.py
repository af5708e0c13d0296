"""REML fit of a Fay-Herriot model by samplics: ``samplics_fit.py PROBLEM.json``."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore")
from samplics.sae import EblupAreaModel  # noqa: E402
from serve import serve  # noqa: E402

problem = json.loads(Path(sys.argv[1]).read_text())
y, D, x = (np.array(problem[name]) for name in ("y", "D", "x"))


def work(task):
    model = EblupAreaModel()  # REML
    X = x[:, None]
    area = np.array(problem["area"])
    model.fit(yhat=y, X=X, area=area, error_std=D**0.5, intercept=True, tol=1e-8)
    return {"sigma_u": float(model.re_std), "converged": bool(model.convergence["achieved"])}


serve(work, "samplics")
