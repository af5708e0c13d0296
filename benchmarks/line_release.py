"""One valid draw: the exact closed form against ``pm.sample``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from harness import Options, Peer, PeerFailed, seconds_of, spread
from problems import SIGMA_U, area_table, posterior_of

from pymc_dp import PrivateRelease, fay_herriot

# Warm-up and draws of each of two chains; the largest problem is cut short.
USUAL, SHORT = (1000, 1000), (500, 250)
LIMIT = 240.0  # seconds
SIZES = {52: USUAL, 2_462: USUAL, 24_620: SHORT}
FORMS = ("integrated", "centred")
SAMPLERS = ("pymc", "nutpie")


def run(options: Options) -> dict[str, Any]:
    sizes = dict.fromkeys([52, 2_462], (300, 200)) if options.quick else SIZES
    return {"sizes": [_one(m, length, options) for m, length in sizes.items()]}


def _one(m: int, length: tuple[int, int], options: Options) -> dict[str, Any]:
    direct, covariates, formula = area_table(m)
    posterior = posterior_of(direct, covariates, SIGMA_U)
    mean, sd = posterior.mean(direct["estimate"].values), np.sqrt(posterior.variance)

    def release() -> None:
        model = fay_herriot(direct, formula, covariates, sigma_u=SIGMA_U)
        PrivateRelease(model, direct["sensitivity"]).draw()

    problem = {"y": direct["estimate"], "D": direct["variance"], "x": covariates["x1"]}
    path = options.work / f"release-{m}.json"
    path.write_text(
        json.dumps({k: v.values.tolist() for k, v in problem.items()} | {"sigma_u": SIGMA_U})
    )
    first = seconds_of(release)
    ours, peers, versions = [], [], {}
    # The centred form is left out where the run is cut short.
    forms = FORMS[:1] if length == SHORT else FORMS
    for form in forms:
        for sampler in SAMPLERS:
            ours += [seconds_of(release) for _ in range(2)]
            row: dict[str, Any] = {"form": form, "sampler": sampler, "length": length}
            try:
                peer = Peer("nuts", "nuts.py", path, options=options)
                peer.run(f"{form} {sampler} 10 10")  # compilers: kept for the next call
                found = peer.run(f"{form} {sampler} {length[0]} {length[1]}", LIMIT)
                peer.close()
            except PeerFailed as failed:
                peers.append(row | {"failed": str(failed)})
                continue
            versions |= peer.facts["versions"]
            error = (np.array(found["mean"]) - mean) / sd
            ratio = np.array(found["sd"]) / sd - 1
            peers.append(
                row
                | {
                    "seconds": found["seconds"],
                    "rhat": found["rhat"],
                    "mean_error_rms": float(np.sqrt((error**2).mean())),
                    "mean_error_max": float(np.abs(error).max()),
                    "sd_error_rms": float(np.sqrt((ratio**2).mean())),
                    "sd_error_max": float(np.abs(ratio).max()),
                }
            )
    return {"areas": m, "ours": spread(ours, first), "peers": peers, "versions": versions}
