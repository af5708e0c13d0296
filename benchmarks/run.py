"""All benchmarks: ``python benchmarks/run.py``; one line: ``--only growth``; small: ``--quick``.

Results go to ``docs/_benchmarks``: ``results.json``, from it ``table.md`` and pictures. Lines that
are not run keep the results of the last run. Peers are installed in environments of their own
below ``--peers``. Needs the packages of the extra `test`; survey files are read from ``--data``
where they are, else records are simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # also for the processes of the growth line

from harness import Options, machine
from report import write

LINES = ("release", "fit", "direct", "accounting", "growth")
REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("PYMC_DP_SHARED", REPOSITORY.parent / "shared"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help=f"of {', '.join(LINES)}; none: tables alone")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--peers", type=Path, default=REPOSITORY / ".venv-peers")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--to", type=Path, default=REPOSITORY / "docs" / "_benchmarks")
    given = parser.parse_args()
    chosen = LINES if given.only is None else given.only
    if unknown := set(chosen) - set(LINES):
        parser.error(f"no such line: {', '.join(sorted(unknown))}")

    given.to.mkdir(parents=True, exist_ok=True)
    path = given.to / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    with tempfile.TemporaryDirectory() as work:
        options = Options(given.peers.resolve(), given.data, Path(work), given.quick)
        for name in chosen:
            print(f"{name} ...", flush=True)
            conditions = machine() | {"date": time.strftime("%Y-%m-%d"), "quick": given.quick}
            start = time.perf_counter()
            result = import_module(f"line_{name}").run(options)
            results[name] = result | {
                "machine": conditions | {"load_after": os.getloadavg()[0]},
                "took": time.perf_counter() - start,
            }
            # After every line: a later one that fails takes nothing with it.
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write(results, given.to)
    print(f"written to {given.to}")


if __name__ == "__main__":
    # Short chains are too few to diagnose; what they give is compared with the exact answer.
    warnings.filterwarnings("ignore")
    main()
