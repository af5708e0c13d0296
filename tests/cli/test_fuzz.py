"""Odd files and odd options end in a release or in one line: a place, a remedy, and no answer.

Bounded, so that a run takes seconds (FUZZ=2000 in the environment looks further, and anew each
time); what is found here becomes a case of its own elsewhere.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from factories.files import persons, respondents, write_xport
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pymc_dp.release.release  # noqa: F401  # PyMC sets the recursion limit at import
from pymc_dp.cli.app import main
from pymc_dp.datasets import read_acs_pums, read_brfss

FUZZ = settings(
    max_examples=int(os.environ.get("FUZZ", 40)),
    deadline=None,
    derandomize="FUZZ"
    not in os.environ,  # a fault that is found by chance would be somebody else's
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# Answers that no other figure has in it.
ANSWERS = ("0.7391846", "0.2684537", "0.9517263")
SECRET = re.compile("739184|268453|951726")


def survey(areas=4, size=24) -> str:
    rng = np.random.default_rng(7)
    rows = [
        f"A{k % areas},{k // 2},{rng.lognormal(3):.3f},{ANSWERS[k % 3]},note {k}"
        for k in range(size)
    ]
    return "\n".join(["area,hh,w,y,notes", *rows, ""])


COVARIATES = "area,x,t\nA0,.1,a\nA1,.5,b\nA2,.2,a\nA3,.3,b\nA4,.4,a\n"

# What happens to files on their way.
INSERTED = [b",", b";", b"\t", b'"', b"\n", b"\r", b"\0", b"\xff", b"\xe9", "é".encode(), b"NA",
            b"REFUSED", b"1e999", b"-1", b"\xef\xbb\xbf", b" ", b"0x1F", b"True"]  # fmt: skip


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """A file that was cut, patched, written anew or packed, once or several times."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        kind = draw(st.sampled_from(["cut", "insert", "delete", "replace", "every", "whole"]))
        piece = draw(st.sampled_from(INSERTED))
        if kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + piece + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + draw(st.integers(1, 30)) :]
        elif kind == "replace":
            content = content[:at] + piece + content[at + len(piece) :]
        elif kind == "every":
            content = content.replace(draw(st.sampled_from([b",", b"\n", b".", b"A", b"0"])), piece)
        else:
            how = draw(st.sampled_from(["utf-16", "utf-16-le", "utf-8-sig", "gzip", "twice"]))
            if how == "gzip":
                content = gzip.compress(content)
            elif how == "twice":
                content = content + content
            else:
                with contextlib.suppress(UnicodeError):
                    content = content.decode().encode(how)
    return content


def assert_ours(error: Exception, name: str) -> None:
    """The package's own words: the file first, one line, no cell, nothing of others behind it."""
    words = str(error)
    assert words.startswith(name) and "\n" not in words, words
    assert not SECRET.search(words)
    shown: BaseException | None = error
    while shown is not None:
        assert not SECRET.search(str(shown)), shown
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


PERSONS = persons(replicates=80).assign(POVPIP="120").to_csv(index=False).encode()


@FUZZ
@given(content=damaged(PERSONS), replicates=st.booleans())
def test_files_of_the_acs(tmp_path, content, replicates):
    path = tmp_path / "psam_p04.csv"
    path.write_bytes(content)
    try:
        records = read_acs_pums(path, replicate_weights=replicates, columns=["AGEP"])
    except ValueError as error:
        # What is said of several files names them by their paths.
        assert_ours(error, str(error) if str(path) in str(error) else path.name)
    else:
        assert records["puma"].str.fullmatch(r"\d{7}").all()
        assert set(records["poor"].dropna()) <= {0, 1}


@pytest.fixture(scope="module")
def transport(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("xport") / "a.xpt"
    return write_xport(path, respondents()).read_bytes()


@FUZZ
@given(data=st.data())
def test_files_of_the_brfss(tmp_path, transport, data):
    path = tmp_path / "LLCP2023.XPT"
    path.write_bytes(data.draw(damaged(transport)))
    try:
        records = read_brfss(path, state=53)
    except ValueError as error:
        assert_ours(error, path.name)
    else:
        assert set(records["smoker"].dropna()) <= {0, 1}


COLUMN = ["area", "hh", "w", "y", "notes", "x", "Y", "y ", "", "é", "0"]
NUMBER = ["0.2", "0", "1", "17", "17%", "-1", "nan", "inf", "x", "1e-320", "1e300", "1_0", ""]
ODD = {
    "--outcome": COLUMN,
    "--weight": COLUMN,
    "--area": COLUMN,
    "--unit": COLUMN,
    "--rate": NUMBER,
    "--sigma-u": NUMBER,
    "--design-factor": NUMBER,
    "--delta": NUMBER,
    "--formula": ["~ x", "~ 0", "~ 1 + x", "~ t", "~ .", "~ (", "y ~ x", "~ log(x)", "~ f(x)", "",
                  "~ x + x", "~ C(x)", "~ x | x", "~ {x}", "~ x**9", "~ `x", "~ w", "x"],
    "--missing": ["fail", "drop", "x"],
    "--mechanism": ["joint", "independent", "x"],
    "--sep": [",", ";", "tab", "\\t", "\t", "", ",,", "x", "\n", '"', "é", " "],
    "--encoding": ["utf-8", "utf8", "latin-1", "utf-16", "utf-7", "idna", "punycode", "hex", "x",
                   "unicode_escape", "cp037", "undefined", "rot13", "", "mbcs", "utf-8-sig"],
    "--na-values": ["1", "y=0.7391846", "=1", "y=", "q=3", "-9", "A0", "area=A1", "", "="],
    "--declare": ["sigma_u=x", "sigma=x", "weights=", "=x", "x", "", "weights=census"],
    "--variance": ["kish", "linearized", "x"],
    "--ledger": ["none", "r.csv", ".", "", "dir/none"],
    "--table": ["t.csv", "r.csv", "t.txt", "no/t.csv", "", "."],
    "--plots": ["pics", "r.csv", "no/pics", "."],
    "--out": ["o.nc", "o.csv", "r.csv", "no/o.nc", "", ".nc", "o.NC", "x" * 300 + ".nc"],
    "--covariates": ["x.csv", "r.csv", "none.csv", ".", ""],
    "--labels": ["x"],
}  # fmt: skip
PLAIN = {
    "--weight": ["w"],
    "--area": ["area"],
    "--rate": ["0.2"],
    "--sigma-u": ["0.1"],
    "--declare": ["sigma_u=a report", "sampling_variance=weights and a rate"],
}


def run(folder: Path, command: list[str]) -> tuple[int, str, str]:
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(command)
            except SystemExit as stop:
                code = stop.code
    finally:
        os.chdir(before)
    return code, out.getvalue(), err.getvalue()


def check_run(folder: Path, command: list[str]) -> int:
    """A release, or one line and no answer in it."""
    code, out, err = run(folder, command)
    said = f"{command}\n{err}"
    assert code in (0, 2), said
    faults = [line for line in err.splitlines() if line.startswith("pymc-dp: error: ")]
    assert len(faults) == (code == 2), said
    assert "Traceback" not in err and not SECRET.search(err), said
    # Every other line is progress or a note.
    assert all(line.startswith("pymc-dp: ") for line in err.splitlines()), said
    if code:
        python = re.sub(r"in Python \S+", "", faults[0])
        assert not out and not re.search(r"\b\w+='|=\[|=True", python), said
    return code


@st.composite
def commands(draw, command: str) -> list[str]:
    """A command with some of its options odd, absent or given again."""
    options = dict(PLAIN)
    if command == "release":
        options |= {"--outcome": ["y"], "--out": ["o.nc"]}
    known = [o for o in ODD if command == "release" or o not in
             ("--outcome", "--variance", "--ledger", "--table", "--plots")]  # fmt: skip
    for name in draw(st.lists(st.sampled_from(known), max_size=3, unique=True)):
        options[name] = draw(st.lists(st.sampled_from(ODD[name]), min_size=0, max_size=2))
        if name == "--formula":
            options.setdefault("--covariates", ["x.csv"])
    words = []
    for name, values in options.items():
        if name in ("--declare", "--na-values"):
            words += [name, *values] if values else []
        else:
            words += itertools.chain.from_iterable((name, value) for value in values)
    return [command, "r.csv", *words]


@FUZZ
@given(command=commands("release"))
def test_options_of_release(command):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Answers of 0 and 1 for those that end in a release.
        (folder / "r.csv").write_text(
            survey().replace(ANSWERS[0], "1").replace(ANSWERS[1], "0").replace(ANSWERS[2], "1")
        )
        (folder / "x.csv").write_text(COVARIATES)
        check_run(folder, command)


@FUZZ
@given(command=commands("plan"))
def test_options_of_plan(command):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "r.csv").write_text(survey())
        (folder / "x.csv").write_text(COVARIATES)
        check_run(folder, command)


@FUZZ
@given(
    records=damaged(survey().encode()),
    covariates=damaged(COVARIATES.encode()),
    command=st.sampled_from(["release", "plan"]),
    drop=st.booleans(),
    unit=st.booleans(),
)
def test_files_of_the_command_line(records, covariates, command, drop, unit):
    """Conditional, so that also variances from the answers are computed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "r.csv").write_bytes(records)
        (folder / "x.csv").write_bytes(covariates)
        words = [command, "r.csv", "--weight", "w", "--area", "area", "--sigma-u", "0.1"]
        words += ["--covariates", "x.csv", "--formula", "~ x"]
        words += ["--missing", "drop"] * drop + ["--unit", "hh"] * unit
        if command == "release":
            words += ["--outcome", "y", "--conditional", "--out", "o.nc"]
        else:
            words += ["--rate", "0.2"]
        if check_run(folder, words) and not Path(folder, "o.nc").exists():
            # Nothing is left of what was tried.
            assert {p.name for p in folder.iterdir()} == {"r.csv", "x.csv"}
