"""The budget ledger under races, kills and failing disks: real processes, real files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import pymc_dp
from pymc_dp.ledger.ledger import PrivacyLedger

posix = pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")

# The modules of the ledger alone: importing the package would bring PyMC into every process.
PRELUDE = """
import json, os, sys, time, types
package = types.ModuleType("pymc_dp")
package.__path__ = [sys.argv[1]]
sys.modules["pymc_dp"] = package
from pymc_dp.ledger.ledger import BudgetExceeded, PrivacyLedger
"""

# Jobs come as lines, each with the moment at which every worker starts it.
WORKER = """
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    while time.time() < job["at"]:
        pass
    outcomes = []
    for _ in range(job["times"]):
        try:
            ledger = PrivacyLedger(job["path"], job["budget"], create=job["create"])
            if job["price"]:
                ledger.charge(job["price"], label="release", part=job["part"])
            outcomes.append("done")
        except (BudgetExceeded, FileExistsError) as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    print(json.dumps(outcomes), flush=True)
"""

# Charges, then "releases" into a file, on and on until it is killed.
RELEASER = """
ledger = PrivacyLedger(sys.argv[2])
with open(sys.argv[3], "ab", buffering=0) as released:
    print("ready", flush=True)
    while True:
        ledger.charge(0.001, label="release", record={"note": "x" * 600})
        released.write(b".")
        os.fsync(released.fileno())
"""

# One charge of about five pages, and what became of it.
CHARGER = """
try:
    PrivacyLedger(sys.argv[2], 1.0).charge(0.25, label="release", record={"note": "x" * 18000})
except OSError as error:
    print(type(error).__name__, error)
else:
    print("paid")
"""


def command(script: str, *arguments: object) -> list[str]:
    package = Path(pymc_dp.__file__).parent
    return [sys.executable, "-I", "-c", PRELUDE + script, str(package), *map(str, arguments)]


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has started its work; it never outlives the test."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(script, *arguments), stdin=pipe, stdout=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


@pytest.fixture(scope="module")
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(WORKER)) for _ in range(8)]


def all_at_once(
    workers: list[subprocess.Popen[str]],
    path: Path,
    budgets: list[float],
    *,
    price: float | None = None,
    part: str | None = None,
    create: bool = False,
    times: int = 1,
) -> list[str]:
    """What every worker says of its attempts, all begun at the same moment."""
    at = time.time() + 0.02
    for worker, budget in zip(workers, budgets, strict=True):
        job = {"path": str(path), "budget": budget, "price": price, "at": at, "times": times}
        job |= {"part": part, "create": create}
        print(json.dumps(job), file=worker.stdin, flush=True)
    return [outcome for worker in workers for outcome in json.loads(worker.stdout.readline())]


# Races


@pytest.mark.parametrize("part", [None, "north"])
def test_of_two_processes_racing_for_the_last_of_the_budget_exactly_one_wins(
    workers, tmp_path, part
):
    for number in range(10):
        path = tmp_path / f"{number}"
        PrivacyLedger(path, 1.0, create=True).charge(0.4, label="before")
        outcomes = all_at_once(workers[:2], path, [1.0] * 2, price=0.6, part=part)
        assert sorted(outcomes) == [
            "BudgetExceeded: the budget does not cover this charge: "
            "rho 1 is spent, 0.6 was asked for, 0 is left",
            "done",
        ]
        assert PrivacyLedger(path).spent == 1.0


def test_of_200_concurrent_charges_against_a_budget_for_50_exactly_50_succeed(workers, tmp_path):
    path = tmp_path / "ledger"
    PrivacyLedger(path, 1.0, create=True)
    outcomes = all_at_once(workers, path, [1.0] * 8, price=0.02, times=25)
    assert len(outcomes) == 200 and outcomes.count("done") == 50
    assert sum(outcome.startswith("BudgetExceeded") for outcome in outcomes) == 150
    ledger = PrivacyLedger(path)
    assert len(ledger.to_dataframe()) == 50 and ledger.remaining < 1e-12
    assert list(tmp_path.iterdir()) == [path]


def test_of_processes_that_create_one_ledger_exactly_one_does(workers, tmp_path):
    for number in range(12):
        path = tmp_path / f"{number}"
        budgets = [1.0 + worker for worker in range(8)]
        outcomes = all_at_once(workers, path, budgets, create=True)
        winner = outcomes.index("done")
        assert PrivacyLedger(path).budget == 1.0 + winner
        losers = [outcome for outcome in outcomes if outcome != "done"]
        assert len(losers) == 7
        assert all(loser.startswith("FileExistsError") for loser in losers)
    assert {file.name for file in tmp_path.iterdir()} == {str(number) for number in range(12)}


# Kills


@posix
def test_after_a_kill_at_any_moment_the_ledger_opens_and_every_release_is_paid(tmp_path):
    """50 kills of one programme: each may waste the one charge under way, none may forget one."""
    path, released = tmp_path / "ledger", tmp_path / "released"
    PrivacyLedger(path, 100.0, create=True)
    released.touch()
    moments = random.Random(20240607)
    for run in range(1, 51):
        with running(RELEASER, path, released) as child:
            enough = released.stat().st_size + moments.randrange(4)
            while released.stat().st_size < enough:
                assert child.poll() is None
            time.sleep(moments.uniform(0, 0.01))
            child.send_signal(signal.SIGKILL)
            child.wait()
        charges = len(PrivacyLedger(path, 100.0).to_dataframe())
        releases = released.stat().st_size
        assert releases <= charges <= releases + run
    assert PrivacyLedger(path).spent == pytest.approx(charges * 0.001, rel=1e-12)
    assert releases >= 50  # about one and a half in each process were waited for
    # A journal that died before it said anything stays until the next charge.
    PrivacyLedger(path).charge(0.001, label="after")
    assert {file.name for file in tmp_path.iterdir()} == {"ledger", "released"}


def interrupt(path: Path) -> None:
    """Leave the ledger as a process killed while it wrote the file leaves it: in two halves."""
    script = """
connection = __import__("sqlite3").connect(sys.argv[2], isolation_level=None)
connection.execute("PRAGMA cache_size = 5")  # more changed pages than that go to the file at once
connection.execute("BEGIN IMMEDIATE")
for _ in range(40):
    connection.execute(
        "INSERT INTO entries (\\"when\\", label, rho, claim) VALUES ('now', ?, 0.01, 'formal')",
        ("x" * 3000,),
    )
os.kill(os.getpid(), 9)
"""
    child = subprocess.run(command(script, path), check=False)
    assert child.returncode == -signal.SIGKILL
    assert path.with_name(path.name + "-journal").stat().st_size > 0


@posix
def test_a_half_written_charge_is_rolled_back_at_the_next_opening(tmp_path):
    path = tmp_path / "ledger"
    PrivacyLedger(path, 1.0, create=True).charge(0.5, label="before")
    before = path.read_bytes()
    interrupt(path)
    assert path.read_bytes() != before
    ledger = PrivacyLedger(path, 1.0)
    assert ledger.spent == 0.5 and list(ledger.to_dataframe()["label"]) == ["before"]
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    ledger.charge(0.5, label="after")


@posix
def test_a_half_written_charge_is_rolled_back_when_the_header_announces_missing_pages(tmp_path):
    """Page 1 is written first: a kill right after it leaves more pages announced than present."""
    path = tmp_path / "ledger"
    PrivacyLedger(path, 1.0, create=True).charge(0.5, label="before")
    before = path.read_bytes()
    interrupt(path)
    content = bytearray(path.read_bytes())
    content[28:32] = (len(content) // 4096 + 7).to_bytes(4, "big")  # pages in the file
    content[92:96] = content[24:28]  # and that number is valid
    path.write_bytes(content)
    assert PrivacyLedger(path, 1.0).spent == 0.5
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@posix
def test_a_half_written_charge_on_a_read_only_disk_is_refused_untouched():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, journal = folder / "ledger", folder / "ledger-journal"
        PrivacyLedger(path, 1.0, create=True).charge(0.5, label="before")
        interrupt(path)
        contents = path.read_bytes(), journal.read_bytes()
        script = """
if os.geteuid() == 0:
    os.seteuid(65534)  # permissions do not bind root
try:
    PrivacyLedger(sys.argv[2])
except PermissionError as error:
    print(error)
"""
        for file, mode in ((path, 0o444), (journal, 0o444), (folder, 0o555)):
            file.chmod(mode)
        try:
            told = subprocess.run(command(script, path), check=True, capture_output=True, text=True)
        finally:
            folder.chmod(0o700)
        assert "may be read-only" in told.stdout
        assert (path.read_bytes(), journal.read_bytes()) == contents
        assert PrivacyLedger(path).spent == 0.5


# Every system call that a charge makes on its files, one after the other: killed there, or failing

# `PrivacyLedger(path, 1.0)`, and what became of it.
CREATOR = """
try:
    PrivacyLedger(sys.argv[2], 1.0, create=True)
except OSError as error:
    print(type(error).__name__, error)
else:
    print("made")
"""

CALLS = "pwrite64,fdatasync,fsync,unlink,linkat,link"


def strace(*options: str, script: str, path: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    log = path.with_name("trace")
    tracer = ["strace", "-f", "-o", str(log), "-e", f"trace={CALLS}", *options]
    done = subprocess.run(
        [*tracer, *command(script, path)], check=False, capture_output=True, text=True
    )
    text = log.read_text()
    log.unlink()
    return done, text


def calls(script: str, path: Path, answer: str) -> list[tuple[str, int]]:
    """The calls of a script in their order, each with its number among its kind."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not here")
    done, log = strace(script=script, path=path)
    if done.returncode != 0 or done.stdout != answer:
        pytest.skip(f"strace may not trace here: {done.stderr[:200]}")
    path.unlink()
    names = [line.split()[1].split("(")[0] for line in log.splitlines() if "(" in line]
    return [(name, names[: at + 1].count(name)) for at, name in enumerate(names)]


@pytest.fixture
def counted(tmp_path: Path) -> list[tuple[str, int]]:
    path = tmp_path / "counted"
    PrivacyLedger(path, 1.0, create=True).charge(0.5, label="before")
    return calls(CHARGER, path, "paid\n")


def test_a_charge_is_synced_with_its_folder_before_the_call_returns(counted):
    names = [name for name, _ in counted]
    assert names[-3:] == ["fdatasync", "unlink", "fdatasync"]  # file, journal gone, folder
    assert names.count("pwrite64") > 12  # several pages: page 1 is written apart from the rest


def test_a_charge_killed_at_any_system_call_is_charged_whole_or_not_at_all(counted, tmp_path):
    path = tmp_path / "ledger"
    outcomes = []
    for name, number in counted:
        PrivacyLedger(path, 1.0, create=True).charge(0.5, label="before")
        done, _ = strace(
            "-e", f"inject={name}:signal=KILL:when={number}", script=CHARGER, path=path
        )
        assert done.returncode == -signal.SIGKILL
        ledger = PrivacyLedger(path, 1.0)
        labels = list(ledger.to_dataframe()["label"])
        assert labels in (["before"], ["before", "release"]), (name, number)
        assert done.stdout == "" or len(labels) == 2  # what answered "paid" is paid
        ledger.charge(1.0 - ledger.spent, label="the ledger still works")
        assert list(tmp_path.iterdir()) == [path]
        outcomes.append(len(labels))
        path.unlink()
    assert set(outcomes) == {1, 2} and outcomes == sorted(outcomes)  # one moment of commitment


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_charge_on_a_failing_disk_raises_and_the_ledger_stays_sound(counted, tmp_path, fault):
    path = tmp_path / "ledger"
    raised = set()
    for name, number in counted:
        if fault == "ENOSPC" and name != "pwrite64":
            continue
        PrivacyLedger(path, 1.0, create=True).charge(0.5, label="before")
        done, _ = strace(
            "-e", f"inject={name}:error={fault}:when={number}", script=CHARGER, path=path
        )
        assert done.returncode == 0 and done.stderr == ""
        labels = list(PrivacyLedger(path, 1.0).to_dataframe()["label"])
        assert labels in (["before"], ["before", "release"]), (name, number)
        if done.stdout == "paid\n":
            assert len(labels) == 2, (name, number)
        else:
            assert done.stdout.startswith("OSError the ledger"), (name, number)
            raised.add((name, number))
        path.unlink()
    assert {call for call in counted if call[0] == "pwrite64"} <= raised


def test_a_creation_killed_at_any_system_call_leaves_a_whole_ledger_or_none(tmp_path):
    path = tmp_path / "ledger"
    made = []
    for name, number in calls(CREATOR, path, "made\n"):
        done, _ = strace(
            "-e", f"inject={name}:signal=KILL:when={number}", script=CREATOR, path=path
        )
        assert done.returncode == -signal.SIGKILL
        made.append(path.exists())
        assert PrivacyLedger(path, 1.0, create=not made[-1]).remaining == 1.0
        path.unlink()
    assert set(made) == {False, True} and made == sorted(made)  # one moment of creation


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_creation_on_a_failing_disk_raises_and_leaves_nothing(tmp_path, fault):
    path = tmp_path / "ledger"
    writes = [call for call in calls(CREATOR, path, "made\n") if call[0] in ("pwrite64", "link")]
    assert len(writes) > 5
    for name, number in writes:
        done, _ = strace(
            "-e", f"inject={name}:error={fault}:when={number}", script=CREATOR, path=path
        )
        assert done.returncode == 0 and done.stdout.startswith("OSError"), done.stderr
        assert list(tmp_path.iterdir()) == []
