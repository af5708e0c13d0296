"""The command ``pymc-dp plan``: what a release would cost, from everything but the outcomes.

The column of the outcome is not even an argument, so nothing here can depend on it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymc_dp._checks import name_some, round_up
from pymc_dp._files import new_file
from pymc_dp.cli.input import check_model, check_new, check_suffix, declarations
from pymc_dp.cli.output import console, epsilon_words, load_pymc, show_guarantee, step
from pymc_dp.cli.records import (
    about_model,
    check_files,
    read_covariates,
    read_records,
    with_weight,
)
from pymc_dp.cli.words import about

if TYPE_CHECKING:
    import xarray as xr

    from pymc_dp.release.release import PrivateRelease

BEFORE, AFTER, NOISY = (
    "smoothed draw before calibration",
    "smoothed draw",
    "noisy direct estimate, smoothed",
)


@dataclass(frozen=True)
class Plan:
    """A release as the model makes it, and what calibration to a target makes of it."""

    sigma_u: float
    raw: PrivateRelease
    release: PrivateRelease

    @property
    def error(self) -> float:
        """Expected root mean squared error of the smoothed draw, under the model."""
        return float((self.release.guarantee["theta_smoothed_sd"] ** 2).mean() ** 0.5)


def plan(args: argparse.Namespace) -> int:
    """Plan a release from a file of records, or several, one for each sigma_u."""
    declared = declarations(args.declare)
    check_model(args)
    files = check_files(args, [args.weight])
    if args.out is not None:
        check_suffix(args.out, (".csv",), "--out")
        check_new(args.out)
    without_weight = 0
    with step(f"reading {args.records.name}"):
        from pymc_dp.survey.weights import weight_table

        records, without_area = read_records(
            files.records,
            numbers=(args.weight,),
            area=args.area,
            unit=args.unit,
            drop=args.missing == "drop",
        )
        if args.missing == "drop":
            records, without_weight = with_weight(records, args.weight)
        covariates = read_covariates(files, args.area)
        with about(args.records):
            areas = weight_table(
                records,
                weight=args.weight,
                area=args.area,
                rate=args.rate,
                unit=args.unit or None,
                design_factor=args.design_factor,
            )
    load_pymc()
    from pymc_dp.planning.plans import planned_release

    plans = []
    with step("pricing a posterior draw"):
        for sigma_u in dict.fromkeys(args.sigma_u):
            with about_model(args):
                raw = planned_release(
                    areas,
                    args.formula,
                    covariates,
                    sigma_u=sigma_u,
                    mechanism=args.mechanism,
                    assumptions=declared,
                )
            plans.append(Plan(sigma_u, raw, _calibrated(raw, args)))
    if args.out is not None:
        write_plans(plans, areas, args.out)
    if args.missing == "drop":
        print(
            f"Records left out: {without_area} without an area, {without_weight} without a weight."
        )
    facts = f"{int(areas['n'].sum()):,} records, each taken to have an outcome"
    if len(plans) == 1:
        _show_one(plans[0], facts, args)
    else:
        _show_several(plans, facts, args)
    if args.out is not None:
        console().print(f"  {'plan':<9} {args.out}", soft_wrap=True)
    return 0


def _calibrated(raw: PrivateRelease, args: argparse.Namespace) -> PrivateRelease:
    try:
        if args.epsilon is not None:
            return raw.calibrate(epsilon=args.epsilon, delta=args.delta)
        return raw if args.rho is None else raw.calibrate(rho=args.rho)
    except ValueError as error:
        option = f"--rho {args.rho:g}" if args.epsilon is None else f"--epsilon {args.epsilon:g}"
        raise ValueError(f"{option}: {error}") from error


def write_plans(plans: Sequence[Plan], areas: xr.Dataset, path: Path) -> None:
    """Write one line an area and sigma_u, figures to all their digits.

    Columns ``sigma_u``, ``area``, ``n``, ``n_units``, ``n_eff``, ``sampling_variance``,
    ``sensitivity``, ``rho`` (price of the whole release for a unit of the area), ``smoothed_sd``
    (of the smoothed draw's error, under the model), ``sampling_variance_factor`` (by which
    calibration raised the sampling variance; only with a target) and ``claim``. An area without
    sample has no sampling variance.
    """
    from pymc_dp.record.claims import read_record
    from pymc_dp.record.figures import record_price

    known = areas[["n", "n_units", "n_eff", "variance"]].to_dataframe()
    with new_file(path) as hidden, hidden.open("x", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        for number, planned in enumerate(plans):
            guarantee = planned.release.guarantee
            record = read_record(guarantee.attrs)
            labels = guarantee["area"].values
            sample = known.reindex(labels)
            counts = sample[["n", "n_units", "n_eff"]].fillna(0)
            columns: dict[str, Any] = {
                "n": counts["n"].astype(int),
                "n_units": counts["n_units"].astype(int),
                "n_eff": counts["n_eff"],
                "sampling_variance": sample["variance"],
                "sensitivity": guarantee["sensitivity"].values,
                "rho": record_price(guarantee, record).values,
                "smoothed_sd": guarantee["theta_smoothed_sd"].values,
            }
            report = planned.release.report
            if report is not None:
                columns["sampling_variance_factor"] = report["sampling_variance_factor"].values
            if not number:
                table.writerow(["sigma_u", "area", *columns, "claim"])
            for area, *values in zip(labels, *columns.values(), strict=True):
                cells = ["" if value != value else str(value) for value in values]
                table.writerow([planned.sigma_u, area, *cells, record["claim_words"]])


def _show_one(planned: Plan, facts: str, args: argparse.Namespace) -> None:
    """Print one plan: its guarantee and its accuracy, and what calibration did."""
    report = planned.release.report
    public = f"sigma_u {_exact(planned.sigma_u)}, rate {_exact(args.rate)}"
    rows = [
        ("planned with", f"{public}, design factor {_exact(args.design_factor)}"),
        ("respondents", facts),
        ("expected error", f"{round_up(planned.error)}, root mean square of the smoothed draw, "
                           "if sigma_u is right"),
    ]  # fmt: skip
    if report is not None:
        error = {name: round_up(report["rmse"].sel(estimator=name).item())
                 for name in (BEFORE, NOISY)}  # fmt: skip
        rows.append(("target", f"{_target(args)}: met {_how(report)}"))
        if report.attrs["areas_touched"]:
            raw = planned.raw.guarantee
            epsilon = epsilon_words(raw, args.delta, short=True)
            price = f"rho {round_up(raw['rho'].item())}, epsilon {epsilon}"
            words = f"{price}, error {error[BEFORE]}; {_dearest(raw)} the dearest"
            rows.append(("without a target", words))
        words = f"error {error[NOISY]}, of noisy direct estimates of the target's rho, smoothed"
        rows.append(("the plain way", f"{words} (private_direct)"))
    if hint := _formal_hint(planned):
        rows.append(("for a formal claim", hint))
    show_guarantee(planned.release.guarantee, args.delta, more=rows, within=args.epsilon)


def _show_several(plans: Sequence[Plan], facts: str, args: argparse.Namespace) -> None:
    """Print one line a sigma_u."""
    from rich import box
    from rich.table import Table

    from pymc_dp.planning.plans import compare_plans
    from pymc_dp.record.claims import read_record

    # Epsilon is stated below for any delta; this one is always among those of a guarantee.
    compared = compare_plans({f"{p.sigma_u!r}": p.release.guarantee for p in plans}, delta=1e-6)
    record = read_record(plans[0].release.guarantee.attrs)
    areas = plans[0].release.guarantee.sizes["area"]
    target = plans[0].release.report is not None
    words = f" that cost {_target(args)}" if target else ""
    table = Table(
        title=f"Plans for {areas:,} areas{words}, before any draw ({record['claim']})",
        title_justify="left",
        title_style="bold",
        box=box.ROUNDED,
    )
    table.add_column("sigma_u", justify="right", style="cyan", no_wrap=True)
    for name in (["rho without target"] if target else []) + ["rho", "epsilon"]:
        table.add_column(name, justify="right")
    table.add_column("areas touched" if target else "rho of the median area", justify="right")
    table.add_column("dearest area, without target" if target else "dearest area", overflow="fold")
    table.add_column("expected error", justify="right")
    for planned, (_, row) in zip(plans, compared.iterrows(), strict=True):
        guarantee, report = planned.release.guarantee, planned.release.report
        epsilon = epsilon_words(guarantee, args.delta, short=True, within=args.epsilon)
        table.add_row(
            _exact(planned.sigma_u),
            *([round_up(planned.raw.guarantee["rho"].item())] if target else []),
            round_up(row["rho"]),
            epsilon.removesuffix(" from zCDP alone"),
            round_up(row["median_rho"]) if report is None else f"{report.attrs['areas_touched']:,}",
            _dearest(planned.raw.guarantee),
            round_up(row["smoothed_rmse"]),
        )
    screen = console()
    screen.print(table)
    usual = "from zCDP alone" not in epsilon
    screen.print(
        f"Rho (zCDP) and epsilon ({'exact Gaussian' if usual else 'from zCDP alone'}, at delta "
        f"{args.delta:g}) of one draw of all areas, for one {record['unit']}: "
        f"{record['claim_words']}. {facts[0].upper()}{facts[1:]}. Errors are root mean squares of "
        "the smoothed draw, each if its own sigma_u is right: the table cannot say which is. "
        "Figures are rounded up."
    )
    if hint := _formal_hint(plans[0]):
        screen.print(f"For a formal claim: {hint}.")


def _target(args: argparse.Namespace) -> str:
    if args.epsilon is not None:
        return f"at most epsilon {_exact(args.epsilon)} at delta {_exact(args.delta)}"
    return f"at most rho {_exact(args.rho)}"


def _exact(value: float) -> str:
    """Write a number as it was given."""
    return f"{value:.15g}"


def _how(report: xr.Dataset) -> str:
    """Say which areas were tempered, those tempered most first."""
    touched = int(report.attrs["areas_touched"])
    if not touched:
        return "as it is"
    factor = report["sampling_variance_factor"].to_series().sort_values(ascending=False)
    return (
        f"by tempering {touched:,} of {factor.size:,} areas, {name_some(factor.index[:touched])}; "
        f"their sampling variances are taken up to {round_up(factor.iloc[0])} times as large"
    )


def _dearest(guarantee: xr.Dataset) -> str:
    from pymc_dp.record.claims import read_record
    from pymc_dp.record.figures import record_price

    return str(record_price(guarantee, read_record(guarantee.attrs)).to_series().idxmax())


def _formal_hint(planned: Plan) -> str:
    from pymc_dp.record.claims import read_record

    record = read_record(planned.release.guarantee.attrs)
    components: dict[str, str] = record["variance_components"]
    absent = [name for name, kind in components.items() if kind != "fixed"]
    lacking = [f"{name}=SOURCE" for name in (*absent, *record.get("undeclared", ()))]
    return f"--declare {' '.join(lacking)}" if lacking else ""
