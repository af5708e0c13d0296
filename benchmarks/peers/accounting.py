"""Epsilon of Gaussian releases by dp-accounting and OpenDP: ``accounting.py PRICES.json``.

The line sent names the method and how many of the prices to convert, all of the deltas each.
"""

import json
import sys
from pathlib import Path

import dp_accounting
import opendp.prelude as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from serve import serve

dp.enable_features("contrib")
problem = json.loads(Path(sys.argv[1]).read_text())
deltas = problem["delta"]


def exact(sigma):
    return [dp_accounting.get_epsilon_gaussian(sigma, delta) for delta in deltas]


def accountant(kind):
    def convert(sigma):
        composed = kind().compose(dp_accounting.GaussianDpEvent(sigma))
        return [composed.get_epsilon(delta) for delta in deltas]

    return convert


def opendp(sigma):
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=2), dp.l2_distance(T=float)
    measurement = dp.m.make_gaussian(*space, scale=1.0, k=-50)
    profile = dp.c.make_zCDP_to_approxDP(measurement).map(1 / sigma)
    return [profile.epsilon(delta) for delta in deltas]


METHODS = {
    "exact": exact,
    "RDP": accountant(RdpAccountant),
    "PLD": accountant(PLDAccountant),
    "OpenDP": opendp,
}


def work(task):
    method, count = task.split()
    sigmas = [(2 * rho) ** -0.5 for rho in problem["rho"][: int(count)]]
    return {"epsilon": [METHODS[method](sigma) for sigma in sigmas]}


serve(work, "dp-accounting", "opendp")
