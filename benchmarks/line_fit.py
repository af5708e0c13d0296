"""A Fay-Herriot fit on the counties: REML against samplics and svy-sae, quadrature against NUTS."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pymc as pm
from harness import Options, Peer, PeerFailed, seconds_of, spread
from problems import counties, posterior_of

from pymc_dp import sample_posterior
from pymc_dp.components.estimates import estimate_sigma_u
from pymc_dp.containers import read_group

PEERS = {"samplics": ("survey", "samplics_fit.py"), "svy-sae": ("sae", "svy_fit.py")}


def run(options: Options) -> dict[str, Any]:
    direct, covariates, formula, words = counties(options.data)
    if options.quick:
        direct, covariates = direct.isel(area=slice(300)), covariates.iloc[:300]

    def reml() -> float:
        return estimate_sigma_u(direct, formula, covariates)

    def eblup() -> None:
        posterior = posterior_of(direct, covariates, reml())
        posterior.mean(direct["estimate"].values), posterior.variance

    def integrated() -> np.ndarray:
        drawn = sample_posterior(
            direct, formula, covariates, prior=pm.HalfNormal.dist(0.25), random_seed=1
        )
        return read_group(drawn, "posterior")["sigma_u"].values

    works = {"REML": reml, "REML, means and variances": eblup, "1,000 exact draws": integrated}
    first = {name: seconds_of(work) for name, work in works.items()}
    columns = {
        "area": direct["area"].values.tolist(),
        "y": direct["estimate"].values.tolist(),
        "D": direct["variance"].values.tolist(),
        "x": covariates["x1"].tolist(),
    }
    path = options.work / "counties.json"
    path.write_text(json.dumps(columns))
    ours: dict[str, list[float]] = {name: [] for name in works}
    peers, versions = {}, {}
    rounds = 1 if options.quick else 3
    for name, place in PEERS.items():
        try:
            peer = Peer(*place, path, options=options)
            begun = peer.run()
            found = []
            for _ in range(1 if begun["seconds"] > 20 and name == "samplics" else rounds):
                found.append(peer.run())
                for ours_name, work in works.items():  # by turns: a busy machine slows both
                    ours[ours_name].append(seconds_of(work))
            peer.close()
        except PeerFailed as failed:
            peers[name] = {"failed": str(failed)}
            continue
        versions |= peer.facts["versions"]
        times = spread([one["seconds"] for one in found], begun["seconds"])
        peers[name] = times | {"sigma_u": begun["sigma_u"]}
    samplers = {}
    for sampler in ("pymc", "nutpie"):
        try:
            peer = Peer("nuts", "nuts.py", path, options=options)
            if not options.quick:
                peer.run(f"estimated {sampler} 20 20")  # compilers
            samplers[sampler] = peer.run(f"estimated {sampler} 1000 1000")
            peer.close()
        except PeerFailed as failed:
            samplers[sampler] = {"failed": str(failed)}
            continue
        ours["1,000 exact draws"].append(seconds_of(integrated))
        versions |= {f"{name} (peer)": v for name, v in peer.facts["versions"].items()}
    exact = integrated()
    if not all(ours.values()):
        ours = {name: [seconds_of(work) for _ in range(rounds)] for name, work in works.items()}
    return {
        "data": words,
        "sigma_u": reml(),
        "ours": {name: spread(values, first[name]) for name, values in ours.items()},
        "peers": peers,
        "exact": {"sigma_u_mean": float(exact.mean()), "sigma_u_sd": float(exact.std())},
        "samplers": samplers,
        "versions": versions,
    }
