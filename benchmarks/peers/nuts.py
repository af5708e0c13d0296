"""A Fay-Herriot model by ``pm.sample``: ``nuts.py PROBLEM.json``.

Two ways to write it with sigma_u held: as in the textbooks (centred), and with theta integrated
out of the likelihood, where every latent variable is a standard normal or a coefficient: no form
is easier to sample. ``estimated`` is that form with a prior of sigma_u. Answers carry posterior
means and standard deviations.
"""

import json
import sys
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from serve import serve

problem = json.loads(Path(sys.argv[1]).read_text())
y, D, x = (np.array(problem[name]) for name in ("y", "D", "x"))
A = problem.get("sigma_u", 0.0) ** 2


def centred():
    beta = pm.Flat("beta", shape=2)
    theta = pm.Normal("theta", beta[0] + beta[1] * x, A**0.5, shape=y.size)
    pm.Normal("y", theta, D**0.5, observed=y)


def estimated():
    return integrated(pm.HalfNormal("sigma_u", 0.25) ** 2)


def integrated(A=A):
    gamma = A / (A + D)
    beta = pm.Flat("beta", shape=2)
    mean = beta[0] + beta[1] * x
    pm.Normal("y", mean, (A + D) ** 0.5, observed=y)
    z = pm.Normal("z", shape=y.size)
    pm.Deterministic("theta", gamma * y + (1 - gamma) * mean + (gamma * D) ** 0.5 * z)


FORMS = {"centred": centred, "integrated": integrated, "estimated": estimated}


def work(task):
    form, sampler, tune, draws = task.split()
    with pm.Model():
        FORMS[form]()
        sample = pm.sample(
            int(draws),
            tune=int(tune),
            chains=2,
            cores=2,
            random_seed=1,
            nuts_sampler=sampler,
            progressbar=False,
            compute_convergence_checks=False,
        )
    if form == "estimated":
        sigma = sample.posterior["sigma_u"].values
        ess = float(az.ess(sample, var_names=["sigma_u"])["sigma_u"])
        return {"sigma_u_mean": sigma.mean(), "sigma_u_sd": sigma.std(), "ess": ess}
    theta = sample.posterior["theta"].values
    rhat = az.rhat(sample, var_names=["theta", "beta"])
    largest = max(float(rhat[name].max()) for name in ("theta", "beta"))
    return {
        "mean": theta.mean(axis=(0, 1)).tolist(),
        "sd": theta.std(axis=(0, 1)).tolist(),
        "rhat": largest,
    }


warnings.filterwarnings("ignore")
serve(work, "pymc", "nutpie")
