"""What the command line refuses before it reads or draws anything."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pymc_dp.record.claims import ASSUMPTIONS, check_assumptions
from pymc_dp.tables.columns import did_you_mean

PICTURES = ("release.png", "rdp.png", "guarantee.png")


@dataclass(frozen=True)
class Targets:
    """Where a release goes: its file, and on request a table and a folder of pictures."""

    out: Path
    table: Path | None = None
    pictures: Path | None = None

    def check(self) -> None:
        """Refuse targets that exist, or that nothing can be written to.

        Raises
        ------
        ValueError
            Naming the target; nothing has been drawn then.
        """
        check_suffix(self.out, (".nc", ".zarr"), "--out")
        if self.pictures is not None:
            _make_folder(self.pictures)
        check_new(self.out)
        if self.table is not None:
            check_suffix(self.table, (".csv",), "--table")
            check_new(self.table)
        if self.pictures is not None:
            for name in PICTURES:
                check_new(self.pictures / name)


def check_suffix(path: Path, suffixes: Sequence[str], what: str) -> None:
    """Refuse a name with another ending."""
    if not path.name.lower().endswith(tuple(suffixes)):
        rest = "; a table of one line an area is --table" if ".nc" in suffixes else ""
        raise ValueError(f"{what} must end in {' or '.join(suffixes)}, not {path.name!r}{rest}")


def _make_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"no folder {path.parent}")
    if not path.is_dir() and os.path.lexists(path):
        raise ValueError(f"{path} is no folder")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be made: {error.strerror}") from error


def check_new(path: Path) -> None:
    """Refuse a target that exists, or that nothing can be written to."""
    if not path.parent.is_dir():
        raise ValueError(f"no folder {path.parent}")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error
    else:
        raise ValueError(f"{path} exists: nothing is written over, choose another name")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".pymc-dp-"):
            pass
    except OSError as error:
        raise ValueError(f"nothing can be written in {path.parent}: {error.strerror}") from error


def declarations(given: Iterable[str]) -> dict[str, str]:
    """Who declares what public, from texts ``KEY=SOURCE``.

    Raises
    ------
    ValueError
        If a text has no ``=``, a key is unknown or there twice, or a source is blank.
    """
    declared: dict[str, str] = {}
    for text in given:
        key, sign, source = (part.strip() for part in text.partition("="))
        if not sign:
            raise ValueError(f"--declare takes KEY=SOURCE, such as sigma_u='2010 census': {text!r}")
        if key not in ASSUMPTIONS:
            near = did_you_mean(key, ASSUMPTIONS)
            raise ValueError(
                f"--declare knows no {key!r}{near}; what can be declared public is "
                f"{', '.join(ASSUMPTIONS)}"
            )
        if not source:
            raise ValueError(f"--declare {key}= needs its source in words")
        if key in declared:
            raise ValueError(f"--declare names {key!r} twice")
        declared[key] = source
    return check_assumptions(declared)


def variance_of(args: argparse.Namespace) -> Literal["linearized", "kish"]:
    """Name where sampling variances come from: weights and rate, or without a rate the outcomes.

    Raises
    ------
    ValueError
        If ``--variance`` says otherwise, or an option belongs to the other way.
    """
    asked = getattr(args, "variance", None)
    if asked == "kish" and args.rate is None:
        raise ValueError("--variance kish needs a public rate: --rate P")
    if asked == "linearized" and args.rate is not None:
        raise ValueError(
            "--rate is a public rate, for sampling variances from the weights and that rate; "
            "--variance linearized computes them from the outcomes: leave one of the two out"
        )
    if args.rate is None and args.design_factor != 1:
        raise ValueError("--design-factor belongs to --rate: it raises its sampling variances")
    return "linearized" if args.rate is None else "kish"


def check_model(args: argparse.Namespace) -> None:
    """Refuse roles, ranges and numbers that do not go together, before a file is read.

    Raises
    ------
    ValueError
        Naming the options.
    """
    roles = {"--outcome": [args.outcome] if hasattr(args, "outcome") else []}
    roles |= {"--weight": [args.weight], "--area": args.area, "--unit": args.unit}
    numbers: dict[str, str] = {}
    for option, names in roles.items():
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{option} names the column {name!r} twice")
            if name in numbers:
                raise ValueError(f"{numbers[name]} and {option} name the same column {name!r}")
        if option in ("--outcome", "--weight"):
            numbers |= dict.fromkeys(names, option)
    low, high = getattr(args, "bounds", (0.0, 1.0))
    if not low < high:
        raise ValueError(
            f"--bounds takes the lowest and then the highest value, not {low:g} {high:g}"
        )
    if args.rate is not None and (low, high) != (0, 1):
        raise ValueError(
            "--rate is for outcomes of 0 and 1; with other --bounds sampling variances come from "
            "the outcomes: leave --rate out"
        )
    given = args.sigma_u if isinstance(args.sigma_u, list) else [args.sigma_u]
    for sigma_u in given:
        if sigma_u > high - low:
            hint = percentage(sigma_u, "--sigma-u") if (low, high) == (0, 1) else ""
            raise ValueError(
                f"--sigma-u {sigma_u:g} is more than the range of the outcome, {low:g} to "
                f"{high:g}{hint}"
            )


def percentage(value: float, option: str) -> str:
    """Ask whether a number from 1 to 100 was meant as a percentage."""
    if not 1 < value <= 100:
        return ""
    return f"; {value:.15g} looks like a percentage: {option} {value / 100:.15g}?"


def check_claim(
    declared: dict[str, str], *, variance: str, covariates: bool, conditional: bool
) -> None:
    """Refuse a declaration that cannot be true, and a conditional claim that nobody asked for.

    Raises
    ------
    ValueError
        Saying what to declare, or to ask for.
    """
    if variance == "linearized" and "sampling_variance" in declared:
        raise ValueError(
            "--declare sampling_variance: without a public --rate the sampling variances are "
            "computed from the confidential outcomes: nobody can declare them public; give --rate"
        )
    needed = ["sigma_u", "sampling_variance", *["covariates"] * covariates]
    absent = [name for name in needed if name not in declared]
    if not absent or conditional:
        return
    rate = "give a public --rate, and " if variance == "linearized" else ""
    raise ValueError(
        f"the claim would be conditional, because nobody declares {' or '.join(absent)} public: "
        "if they come from the same answers, the true loss can be far larger than the figures. "
        f"For a formal claim {rate}name the sources: "
        f"--declare {' '.join(f'{name}=SOURCE' for name in needed)}. "
        "To release under a conditional claim, add --conditional"
    )
