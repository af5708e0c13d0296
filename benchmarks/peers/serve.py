"""The peers' side: do the work once for each line that comes in, answer in JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version


def serve(work, *packages):
    """`work` takes the line it was sent and returns a dict; what it prints goes to the log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    facts = {"versions": {name: version(name) for name in packages}}
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        result = work(line.strip())
        result = {"seconds": time.perf_counter() - start} | result
        print(json.dumps(result), file=answers, flush=True)
