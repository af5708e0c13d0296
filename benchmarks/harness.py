"""Timing by turns, peers in environments of their own, and the machine: what every line uses."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# One environment each, so that pins touch neither ours nor one another's.
ENVIRONMENTS = {
    "survey": ["svy", "samplics"],
    "sae": ["svy-sae"],
    "nuts": ["pymc", "nutpie"],
    "accounting": ["dp-accounting", "opendp"],
}
OURS = ("pymc_dp", "pymc", "numpy", "scipy", "opendp", "polars", "duckdb", "pandas")


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    peers: Path
    data: Path
    work: Path
    quick: bool


class PeerFailed(RuntimeError):
    """A peer that cannot be installed or does not finish: reported on the page, not hidden."""


def python_of(environment: str, folder: Path) -> Path:
    """The Python of a peers' environment, which is made on first use."""
    home = folder / environment
    python = home / "bin" / "python"
    if not python.exists():
        print(f"installing {', '.join(ENVIRONMENTS[environment])} in {home}", flush=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", home], [*pip, *ENVIRONMENTS[environment]]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1:]
                raise PeerFailed(f"{environment} cannot be installed: {' '.join(last)}")
    return python


class Peer:
    """A script of the folder ``peers``, kept running in its environment; JSON comes back.

    It does its work once a line that it is sent, and times itself, so that starting Python and
    handing over numbers cost it nothing.
    """

    def __init__(self, environment: str, script: str, *arguments: object, options: Options) -> None:
        self.name = script
        command = [python_of(environment, options.peers), HERE / "peers" / script, *arguments]
        self._log = options.work / f"{script}.log"
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            start_new_session=True,  # a sampler's own processes end with it
        )
        self.facts = self._read()

    def run(self, task: str = "", limit: float = 600.0) -> dict[str, Any]:
        """Do the work once; ``seconds`` and whatever else the script returns."""
        assert self._process.stdin
        try:
            self._process.stdin.write(task + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reason is in the log
        late = threading.Event()
        clock = threading.Timer(
            limit, lambda: (late.set(), os.killpg(self._process.pid, signal.SIGKILL))
        )
        clock.start()
        try:
            return self._read()
        except PeerFailed as failed:
            if late.is_set():
                raise PeerFailed(f"not done after {limit:.0f} s") from failed
            raise
        finally:
            clock.cancel()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            last = self._log.read_text().strip().splitlines()[-1:]
            raise PeerFailed(f"{self.name} stopped: {' '.join(last)[:200]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def by_turns(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds of each contestant, one of each a round, so that a busy machine slows all.

    Every work returns its own seconds. The first call of each is not counted; it is kept as
    ``first``, since that is where imports and compilers show.
    """
    first = {name: work() for name, work in works.items()}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(work())
    return {name: spread(values, first[name]) for name, values in seconds.items()}


def spread(values: list[float], first: float | None = None) -> dict[str, Any]:
    out = {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "runs": len(values),
    }
    return out if first is None else out | {"first": first}


def in_a_process(script: str, *arguments: object) -> dict[str, Any]:
    """Run one of our scripts in a fresh process and read what it prints last."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-1:])[:200]
        return {"failed": f"exit code {done.returncode} {last}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def peak_mib() -> float:
    """Peak resident memory of this process.

    From /proc where there is one: ``ru_maxrss`` starts with what the parent process held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)


def copy_gib_per_second() -> float:
    """Memory bandwidth: bytes read and written by a NumPy copy that no cache holds."""
    import numpy as np

    values = np.ones(2**26)
    target = np.empty_like(values)
    np.copyto(target, values)
    best = min(seconds_of(lambda: np.copyto(target, values)) for _ in range(5))
    return 2 * values.nbytes / 2**30 / best


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    memory = None
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":")[1].strip() if names else cpu
        memory = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) / 2**20
    return {
        "processor": cpu,
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "system": platform.system(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "copy_gib_per_second": copy_gib_per_second(),
        "versions": {name: version(name) for name in OURS},
    }
