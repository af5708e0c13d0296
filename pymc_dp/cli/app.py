"""The command line ``pymc-dp``: from survey records to a private release, without Python.

Everything that can fail is tried before the draw; once it is drawn and paid for, the release is
kept, wherever there is room.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pymc_dp.cli.arguments import parser
from pymc_dp.cli.input import Targets, check_claim, check_model, declarations, variance_of
from pymc_dp.cli.output import load_pymc, note, show_guarantee, show_ledger, show_summary, step
from pymc_dp.cli.plan import plan
from pymc_dp.cli.records import about_model, check_files, read_covariates, read_records
from pymc_dp.cli.words import about, in_options, one_line
from pymc_dp.ledger.ledger import BudgetExceeded, PrivacyLedger

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from pymc_dp.release.release import PrivateRelease

AFTER_THE_DRAW, BAD_INPUT, OVER_BUDGET, FAULT, INTERRUPTED = 1, 2, 3, 4, 130
# The demo's public constants, none of them computed from its records.
RATE, DESIGN_FACTOR, SIGMA_U = 0.15, 1.2, 0.03
DEMO_SOURCES = {
    "weights": "design weights of the simulated survey",
    "sampling_variance": (
        f"an assumed national smoking rate of {RATE} and design factor of {DESIGN_FACTOR}, with "
        "the weights"
    ),
    "sigma_u": f"{SIGMA_U}, assumed as if from an earlier survey",
    "covariates": "invented public statistics of the areas",
    "universe": "the simulated sample: who was asked and who answered",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default those of the process.

    Returns
    -------
    int
        0; 1 if something could not be written after the draw; 2 for unusable input; 3 if the
        budget does not cover the release; 4 for a fault of this program; 130 if interrupted.
    """
    args = parser().parse_args(argv)
    try:
        return COMMANDS[args.command](args)
    except BudgetExceeded as error:
        return _fail(one_line(error), OVER_BUDGET)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return _fail(in_options(one_line(error)), BAD_INPUT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:  # whose message may hold what is confidential
        return _fail(f"a fault of this program, {_place(error)}: please report it", FAULT)


def demo(args: argparse.Namespace) -> int:
    """Do the main job on a simulated state health survey."""
    targets = Targets(args.out / "release.nc", args.out / "release.csv", args.out)
    targets.check()
    load_pymc()
    from pymc_dp import datasets
    from pymc_dp.models.builder import fay_herriot
    from pymc_dp.release.release import PrivateRelease
    from pymc_dp.survey.estimate import hajek

    with step("simulating a state health survey"):
        records = datasets.simulate_state_survey()
        covariates = datasets.state_covariates()
    print(
        f"A simulated state health survey: {len(records):,} respondents in {len(covariates)} areas."
        "\nThe outcome is smoking; the answers of a household are protected together.\n"
    )
    with step("pricing a posterior draw"):
        direct = hajek(
            records,
            outcome="smoker",
            weight="weight",
            area="area",
            unit="household",
            variance="kish",
            rate=RATE,
            design_factor=DESIGN_FACTOR,
        )
        model = fay_herriot(direct, "~ college + unemployment", covariates, sigma_u=SIGMA_U)
        release = PrivateRelease(model, direct["sensitivity"], assumptions=DEMO_SOURCES)
    return _publish(release, direct["n"], targets, delta=1e-6)


def release(args: argparse.Namespace) -> int:
    """Release estimates from a file of records."""
    declared, variance = declarations(args.declare), variance_of(args)
    check_model(args)
    files = check_files(args, [args.outcome, args.weight])
    check_claim(
        declared, variance=variance, covariates=bool(files.used), conditional=args.conditional
    )
    targets = Targets(args.out, args.table, args.plots)
    targets.check()
    ledger = None if args.ledger is None else open_ledger(args.ledger)
    drop = args.missing == "drop"
    with step(f"reading {args.records.name}"):
        from pymc_dp.survey.estimate import hajek

        records, without_area = read_records(
            files.records,
            numbers=(args.outcome, args.weight),
            area=args.area,
            unit=args.unit,
            drop=drop,
        )
        covariates = read_covariates(files, args.area)
        with about(args.records):
            direct = hajek(
                records,
                outcome=args.outcome,
                weight=args.weight,
                area=args.area,
                bounds=args.bounds,
                unit=args.unit or None,
                variance=variance,
                rate=args.rate,
                design_factor=args.design_factor,
                missing=args.missing,
            )
    load_pymc()
    from pymc_dp.models.builder import fay_herriot
    from pymc_dp.release.release import PrivateRelease

    with step("pricing a posterior draw"), about_model(args):
        release = PrivateRelease(
            fay_herriot(direct, args.formula, covariates, sigma_u=args.sigma_u),
            direct["sensitivity"],
            mechanism=args.mechanism,
            assumptions=declared,
        )
    if drop:
        print(
            f"Records left out: {without_area} without an area, "
            f"{direct.attrs['n_missing_weight_dropped']} without a weight, "
            f"{direct.attrs['n_missing_outcome_dropped']} without an outcome."
        )
    return _publish(
        release,
        direct["n"],
        targets,
        delta=args.delta,
        ledger=ledger,
        conditional=args.conditional,
    )


def ledger_show(args: argparse.Namespace) -> int:
    """Show what was charged to a ledger."""
    show_ledger(open_ledger(args.file), args.delta)
    return 0


def ledger_create(args: argparse.Namespace) -> int:
    """Create a ledger, its budget fixed for good."""
    if args.file.exists():
        raise ValueError(f"{args.file} exists: the budget of a ledger is fixed at creation")
    ledger = PrivacyLedger(
        args.file,
        args.rho,
        create=True,
        conditional=args.conditional,
        programme=args.programme,
    )
    show_ledger(ledger, 1e-6)
    return 0


def open_ledger(path: Path) -> PrivacyLedger:
    """Open a ledger that was created before."""
    if not path.exists():
        raise ValueError(
            f"there is no ledger at {path}: give the place that it was moved to, or start a new "
            f"programme: pymc-dp ledger create {path} --rho BUDGET"
        )
    return PrivacyLedger(path)


def _publish(
    release: PrivateRelease,
    n: xr.DataArray,
    targets: Targets,
    *,
    delta: float,
    ledger: PrivacyLedger | None = None,
    conditional: bool = False,
) -> int:
    """Say the price, draw, and write: the release at once, the rest after it."""
    from pymc_dp.cli.files import (
        no_pictures,
        picture,
        read_group,
        rehearse,
        save,
        write_pictures,
        write_table,
    )

    pictures = targets.pictures
    if pictures is not None and (why := no_pictures()):
        note(f"no pictures, {why}")
        pictures = None
    with step("checking that the release can be written"):
        rehearse(release, targets.out, conditional=conditional)
    show_guarantee(release.guarantee, delta)
    with step("drawing"):
        saved = save(release.draw(ledger=ledger), targets.out, conditional=conditional)
    if saved is None:
        return AFTER_THE_DRAW
    files = {"release": [saved]}
    code = 0 if saved == targets.out else AFTER_THE_DRAW
    try:
        group = read_group(saved)
        if targets.table is not None:
            write_table(group, targets.table)
            files["table"] = [targets.table]
        if pictures is not None:
            with step("making the pictures"):
                drawn = picture(group, n)
            if isinstance(drawn, str):
                note(f"no pictures, {drawn}")
            else:
                files["pictures"] = write_pictures(drawn, pictures)
        show_summary(group, delta, files=files, ledger=ledger)
    except Exception as error:  # whatever it is, say where the release is
        words = f"the release is in {saved}, but what was to follow failed: {one_line(error)}"
        return _fail(words, AFTER_THE_DRAW)
    return code


def _fail(words: str, code: int) -> int:
    print(f"pymc-dp: error: {words}", file=sys.stderr)
    return code


def _place(error: BaseException) -> str:
    """Name an error's kind and the last line of this package that it passed."""
    place = "nowhere"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if (module := frame.f_globals.get("__name__", "")).startswith("pymc_dp"):
            place = f"{module}, line {line}"
    return f"{type(error).__name__} in {place}"


COMMANDS = {
    "demo": demo,
    "plan": plan,
    "release": release,
    "ledger show": ledger_show,
    "ledger create": ledger_create,
}
