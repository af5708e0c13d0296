"""The arguments of the command line ``pymc-dp``."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable
from encodings import aliases
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from pymc_dp._version import __version__
from pymc_dp.cli.input import percentage
from pymc_dp.tables.columns import did_you_mean

DESCRIPTION = """\
Differentially private releases from Bayesian small area models.

One draw from the posterior of a Fay-Herriot model is private. The guarantee is said
before the draw; the draw, and the claim it comes with, is all that is written."""
RELEASE = """\
Records in, one private posterior draw out: an estimate for every area, with the
guarantee that comes with it. Everything is checked before the draw.

Sampling variances. With --rate, a public rate of an outcome of 0 and 1, they come from
the weights and that rate, as those of a plan. Without it they come from the outcomes.

Claims. A claim is formal if a public source of the sampling variances and of sigma_u is
declared, and of covariates if there are any; without one it is conditional (treating these
inputs as fixed), and the true loss can be far larger than the figures:

  pymc-dp release survey.csv --outcome smoker --weight w --area county --rate 0.15 \\
      --sigma-u 0.04 --out smoking.nc \\
      --declare sigma_u="2012 report" sampling_variance="weights and the national rate"

What follows from inputs that nobody declares public is left out of every file: declare
weights, covariates and universe too for smoothed values, intervals and pictures."""
PLAN = """\
What a release would cost, and how accurate it would be, before there is any outcome.
No outcome is read, so plans cost nothing and may be compared:

  pymc-dp plan survey.csv --weight w --area county --rate 0.15 --sigma-u 0.03 --sigma-u 0.04

Sampling variances come from the weights and --rate, a public rate of an outcome of 0 and 1,
as those of a release with --rate: the figures are its figures, to the last digit, if it has
the same records. A release with --missing drop leaves out records without an outcome, which
changes its price: plan on those who answered.

With a target, the areas above it are tempered until each meets it, and the figures are
those of the calibrated release; PrivateRelease.calibrate in Python makes it. A plan is for
whoever holds the records: it is as public as the weights and covariates are."""
CODES = """\
exit status: 0 done; 1 something could not be written after the draw (the release is kept,
and the message says where); 2 unusable input, nothing drawn; 3 the budget does not cover
the release, nothing drawn; 4 a fault of this program"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"pymc-dp: error: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def parser() -> argparse.ArgumentParser:
    """Build the parser; ``command`` of what it returns names what to run."""
    root = _Parser(
        "pymc-dp",
        description=DESCRIPTION,
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"pymc_dp {__version__}")
    commands = root.add_subparsers(metavar="COMMAND", required=True)
    _demo(commands)
    _plan(commands)
    _release(commands)
    _ledger(commands)
    return root


def _command(commands: _Commands, name: str, run: str, words: str, text: str = "") -> _Parser:
    made = commands.add_parser(
        name,
        help=words,
        description=text or words,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.set_defaults(command=run)
    return made


def _demo(commands: _Commands) -> None:
    words = "a release from a simulated state health survey: file, table and pictures"
    add = _command(commands, "demo", "demo", words).add_argument
    add(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("pymc-dp-demo"),
        help="folder to write to (default: %(default)s)",
    )


def _release(commands: _Commands) -> None:
    words = "a release from a file of survey records"
    made = _command(commands, "release", "release", words, RELEASE)

    add = _records(made, outcome=True)
    add(
        "--bounds",
        metavar=("LO", "HI"),
        nargs=2,
        type=_finite,
        default=[0.0, 1.0],
        help="range that the outcome can have (default: 0 1)",
    )
    add(
        "--missing",
        choices=["fail", "drop"],
        default="fail",
        help="records without outcome, weight or area: refuse them, or leave them out and "
        "count them (default: fail)",
    )

    _tables(made)
    add = _model(made)
    add("--sigma-u", metavar="X", type=_sigma_u, required=True, help="sd of the area effects")
    add("--rate", metavar="P", type=_rate,
        help="public rate of the outcome, for sampling variances from the weights and the rate "
        "(default: they come from the outcomes)")  # fmt: skip
    add("--variance", choices=["linearized", "kish"],
        help="say the same in words: kish with --rate, linearized without")  # fmt: skip

    add = _claim(made)
    add("--conditional", action="store_true", help="release also under a conditional claim")
    add("--ledger", metavar="FILE", type=Path, help="privacy ledger to charge, before the draw")
    add("--delta", **DELTA)

    add = made.add_argument_group("output: new files").add_argument
    add("--out", metavar="FILE", type=Path, required=True, help="the release, .nc or .zarr")
    add("--table", metavar="FILE.csv", type=Path, help="one line an area")
    add("--plots", metavar="DIR", type=Path, help="folder for pictures (PNG)")


def _plan(commands: _Commands) -> None:
    words = "what a release would cost, from everything but the outcomes"
    made = _command(commands, "plan", "plan", words, PLAN)

    add = _records(made, outcome=False)
    add(
        "--missing",
        choices=["fail", "drop"],
        default="fail",
        help="records without weight or area: refuse them, or leave them out and count them "
        "(default: fail)",
    )

    _tables(made)
    add = _model(made)
    add(
        "--sigma-u",
        metavar="X",
        type=_sigma_u,
        action="append",
        required=True,
        help="sd of the area effects; again for each further value to compare",
    )
    add("--rate", metavar="P", type=_rate, required=True, help="public rate of the outcome")

    _claim(made)

    group = made.add_argument_group("target: what the whole release may cost")
    target = group.add_mutually_exclusive_group()
    target.add_argument("--rho", metavar="RHO", type=_positive, help="target (zCDP)")
    target.add_argument("--epsilon", metavar="E", type=_positive, help="target, at --delta")
    group.add_argument("--delta", **DELTA)

    add = made.add_argument_group("output: a new file").add_argument
    add("--out", metavar="FILE.csv", type=Path, help="one line an area")


def _records(made: _Parser, *, outcome: bool) -> Callable[..., argparse.Action]:
    """Take the records, with or without an outcome; more can be added to the group."""
    add = made.add_argument_group("records").add_argument
    add("records", metavar="RECORDS", type=Path,
        help=".csv, .tsv or .txt (also .gz), or .parquet (an extra)")  # fmt: skip
    if outcome:
        add("--outcome", metavar="COL", required=True, help="confidential outcome")
    add("--weight", metavar="COL", required=True, help="survey weight")
    add(
        "--area",
        metavar="COL",
        action="append",
        required=True,
        help="area, read as text; again for each further column of the area's label",
    )
    add(
        "--unit",
        metavar="COL",
        action="append",
        default=[],
        help="what is protected, such as a household, read as text; may be given again "
        "(default: each record)",
    )
    return add


def _tables(made: _Parser) -> None:
    """Take how the files of records and of covariates are written."""
    add = made.add_argument_group("how records and covariates are written").add_argument
    add("--sep", metavar="C", type=_separator, help="what is between two cells (default: a comma; "
        "a tab in .tsv)")  # fmt: skip
    add("--encoding", metavar="NAME", type=_encoding,
        help="such as latin-1 (default: by the file's mark, or UTF-8)")  # fmt: skip
    add("--na-values", metavar="TEXT", nargs="+", action="extend", default=[],
        help="further cells that stand for a missing number, such as '(X)'; COL=TEXT in one "
        "column only, such as smoker=9")  # fmt: skip


def _model(made: _Parser) -> Callable[..., argparse.Action]:
    """Take the linear predictor and the design factor; more can be added to the group."""
    add = made.add_argument_group("model").add_argument
    add("--design-factor", metavar="F", type=_positive, default=1.0,
        help="public factor of the sampling variances, with --rate (default: 1)")  # fmt: skip
    add("--formula", metavar="'~ x'", default="~ 1", help="linear predictor (default: ~ 1)")
    add("--covariates", metavar="FILE", type=Path, help="covariates, with the same area columns")
    return add


def _claim(made: _Parser) -> Callable[..., argparse.Action]:
    """Take what the claim rests on; more can be added to the group."""
    add = made.add_argument_group("claim").add_argument
    add(
        "--declare",
        metavar="KEY=SOURCE",
        nargs="+",
        action="extend",
        default=[],
        help="what is public, and by which source: weights, sampling_variance, sigma_u, "
        "covariates, universe",
    )
    add(
        "--mechanism",
        choices=["joint", "independent"],
        default="joint",
        help="one joint draw, or noise independent by area (default: joint)",
    )
    return add


def _ledger(commands: _Commands) -> None:
    words = "the privacy budget of a programme"
    ledger = commands.add_parser("ledger", help=words, description=words, allow_abbrev=False)
    actions = ledger.add_subparsers(metavar="COMMAND", required=True)

    words = "what was charged, and what is left"
    show = _command(actions, "show", "ledger show", words)
    show.add_argument("file", metavar="FILE", type=Path)
    show.add_argument("--delta", **DELTA)

    words = "create a ledger, once for a programme; its budget is fixed for good"
    create = _command(actions, "create", "ledger create", words)
    create.add_argument("file", metavar="FILE", type=Path)
    create.add_argument("--rho", metavar="RHO", type=_positive, required=True, help="budget (zCDP)")
    name = "name of the programme (default: the file's name)"
    create.add_argument("--programme", metavar="NAME", help=name)
    create.add_argument("--conditional", action="store_true", help="take conditional claims too")


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
        with contextlib.suppress(ValueError):
            share = float(text.removesuffix("%")) / 100
            raise argparse.ArgumentTypeError(
                f"{text} is a percentage: write {share:.15g}"
            ) from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is no number")
    return value


def _positive(text: str) -> float:
    value = _finite(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _sigma_u(text: str) -> float:
    value = _finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _probability(text: str) -> float:
    value = _finite(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return value


def _rate(text: str) -> float:
    try:
        return _probability(text)
    except argparse.ArgumentTypeError as error:
        hint = percentage(_finite(text), "--rate")
        raise argparse.ArgumentTypeError(f"{error}{hint}") from None


def _separator(text: str) -> str:
    sep = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(sep) != 1 or not sep.isascii() or sep.isalnum() or sep in "\"'\r\n\0.-+":
        raise argparse.ArgumentTypeError(f"{text!r} cannot be it; ',', ';', '|' and tab can")
    return sep


def _encoding(text: str) -> str:
    try:
        _ = "a".encode(text)
    except (LookupError, ValueError):  # also codecs that do not make bytes of text
        known = {*aliases.aliases, *aliases.aliases.values()}
        near = did_you_mean(text.replace("-", "_"), known)
        raise argparse.ArgumentTypeError(f"no encoding {text!r} is known{near}") from None
    return text


DELTA: dict[str, Any] = {
    "metavar": "DELTA",
    "type": _probability,
    "default": 1e-6,
    "help": "for epsilon (default: 1e-6)",
}
