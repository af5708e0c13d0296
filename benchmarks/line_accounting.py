"""Epsilon of 2,462 areas at five deltas: dp-accounting (exact, RDP, PLD) and OpenDP."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from harness import Options, Peer, PeerFailed, seconds_of, spread
from problems import SIGMA_U, area_table, posterior_of

from pymc_dp import privacy
from pymc_dp.mechanisms.fay_herriot import prices
from pymc_dp.record.figures import DELTAS

AREAS = 2_462
# How many areas a peer is given where all of them would take minutes: per value it is the same.
COUNTS = {"exact": AREAS, "RDP": 200, "OpenDP": AREAS, "PLD": 5}
ZCDP = ("OpenDP", "RDP")


def run(options: Options) -> dict[str, Any]:
    direct, covariates, _ = area_table(AREAS)
    posterior = posterior_of(direct, covariates, SIGMA_U)
    rho = prices(posterior, direct["sensitivity"].values, 1.0).respondent
    path = options.work / "prices.json"
    path.write_text(json.dumps({"rho": rho.tolist(), "delta": DELTAS.tolist()}))

    def lattice() -> object:
        return privacy.lattice_epsilon(rho[:, None], DELTAS, spacing=2.0**-50, coordinates=3)

    def exact() -> object:
        return privacy.epsilon(rho[:, None], DELTAS)

    def zcdp() -> object:
        return privacy.epsilon_zcdp(rho[:, None], DELTAS)

    works = {"exact": exact, "exact, on the lattice": lattice, "from zCDP": zcdp}
    first = {name: seconds_of(work) for name, work in works.items()}
    ours: dict[str, list[float]] = {name: [] for name in works}
    peers: dict[str, Any] = {}
    rounds = 1 if options.quick else 3
    try:
        peer = Peer("accounting", "accounting.py", path, options=options)
    except PeerFailed as failed:
        return {"failed": str(failed)}
    for name, count in COUNTS.items():
        count = min(count, 5) if options.quick else count
        try:
            peer.run(f"{name} 1")
            found = []
            for _ in range(rounds):
                found.append(peer.run(f"{name} {count}"))
                for ours_name, work in works.items():
                    ours[ours_name] += [seconds_of(work) for _ in range(3)]
        except PeerFailed as failed:
            peers[name] = {"failed": str(failed)}
            break
        theirs = np.array(found[0]["epsilon"])
        same = (zcdp if name in ZCDP else exact)()[:count]
        peers[name] = spread([one["seconds"] for one in found]) | {
            "areas": count,
            "apart": float(np.abs(theirs / same - 1).max()),
            "above_exact": float(np.median(theirs / exact()[:count] - 1)),
        }
    peer.close()
    return {
        "values": AREAS * DELTAS.size,
        "deltas": DELTAS.size,
        "ours": {name: spread(values, first[name]) for name, values in ours.items()},
        "peers": peers,
        "versions": peer.facts["versions"],
    }
