"""What the command line says: progress on standard error, guarantee and summary on the other.

Prices, claims, places and counts; never a direct estimate.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymc_dp._checks import round_up, rounded
from pymc_dp.cli.words import one_line
from pymc_dp.ledger.totals import down, up

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from rich.console import Console

    from pymc_dp.ledger.ledger import PrivacyLedger


def console(*, stderr: bool = False) -> Console:
    """Make a console that takes texts as they are, no wider than reads well."""
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    made.width = min(made.width, 100)
    return made


@contextmanager
def step(words: str) -> Iterator[None]:
    """Say what is going on: a spinner and a tick on a terminal, a plain line elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        print(f"pymc-dp: {words}", file=sys.stderr, flush=True)
        yield
        return
    with screen.status(words):
        yield
    screen.print(f"✓ {words}", style="dim")


def load_pymc() -> None:
    """Import PyMC, with nothing said that does not concern who waits for a release."""
    log = logging.getLogger("pytensor.configdefaults")
    level = log.level
    with step("loading PyMC"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
        log.setLevel(logging.ERROR)  # a missing compiler matters to samplers
        try:
            import pymc_dp.release.release  # noqa: F401
        except Exception as error:  # a dependency that is broken fails as it likes
            what = f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"PyMC cannot be loaded ({what}): see pip check") from error
        finally:
            log.setLevel(level)


def note(words: str) -> None:
    """Say what the user should know and need not act on."""
    print(f"pymc-dp: note: {words}", file=sys.stderr)


def show_guarantee(
    guarantee: xr.Dataset,
    delta: float,
    *,
    more: Sequence[tuple[str, str]] = (),
    within: float | None = None,
) -> None:
    """Print what a draw will cost, before there is one, with `more` rows.

    Where no exact epsilon is at hand, it is known to lie `within` what was calibrated to.
    """
    from pymc_dp.record.claims import mechanism_words, read_record
    from pymc_dp.record.figures import record_price

    record = read_record(guarantee.attrs)
    price = record_price(guarantee, record).to_series()[(guarantee["sensitivity"] > 0).values]
    unit = record["unit"]
    ties = int((price > (1 - 1e-9) * price.max()).sum())  # calibrated areas cost the target alike
    where = price.idxmax() if ties == 1 else f"{ties:,} areas"
    dearest = f"{round_up(price.max())} in {where}, the dearest"
    rows = [
        ("claim", record["claim_words"]),
        ("protected", f"one {unit}"),
        ("neighbours", record["neighbours"]),
        ("mechanism", mechanism_words(record)),
        ("rho (zCDP)", f"{round_up(guarantee['rho'].item())} for the whole release"),
        (f"epsilon at delta {delta:g}", epsilon_words(guarantee, delta, within=within)),
        ("rho by area", f"{round_up(price.median())} in the median area, {dearest}"),
        ("declared public", _declared(record["assumptions"])),
        *_not_checked(record),
        *more,
    ]
    areas = guarantee.sizes["area"]
    show_rows(f"Guarantee for {areas:,} areas, before any draw ({record['claim']})", rows)


def show_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of two columns."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.ROUNDED)
    table.show_header = False
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def show_summary(
    group: xr.Dataset,
    delta: float,
    *,
    files: Mapping[str, Sequence[Path]],
    ledger: PrivacyLedger | None,
) -> None:
    """Print the claim, its figures, and where the files are."""
    from pymc_dp.record.claims import read_record

    record = read_record(group.attrs)
    screen = console()
    rho = round_up(group["rho"].item())
    screen.print()
    screen.print(
        f"Released {group.sizes['area']:,} areas. Claim: {record['claim_words']}",
        style="bold",
        soft_wrap=True,
    )
    screen.print(
        f"rho {rho}, epsilon {epsilon_words(group, delta, short=True)} at delta {delta:g}, for one "
        f"{record['unit']} ({record['claim']})",
        soft_wrap=True,
    )
    for kind, paths in files.items():
        for path in map(str, paths) if paths else ["none: they would show what is left out"]:
            screen.print(f"  {kind:<9} {path}", soft_wrap=True)
    if ledger is not None:
        left = f"rho {up(ledger.spent)} spent, {down(ledger.remaining)} left"
        screen.print(f"  {'ledger':<9} {ledger.path}: {left}", soft_wrap=True)
    undeclared = sorted({name for inputs in record["left_out"].values() for name in inputs})
    if undeclared:
        screen.print(
            f"Left out is all that follows from {', '.join(undeclared)}, which nobody declares "
            "public (--declare); the record in the file lists it.",
            soft_wrap=True,
        )


def show_ledger(ledger: PrivacyLedger, delta: float) -> None:
    """Print the entries of a ledger and what is left of its budget."""
    from rich import box
    from rich.table import Table

    from pymc_dp.privacy.convert import epsilon_zcdp

    entries = ledger.to_dataframe()
    table = Table(title=str(ledger.path), title_justify="left", title_style="bold", box=box.ROUNDED)
    for name in ("entry", "when (UTC)", "label", "claim", "people"):
        table.add_column(name, overflow="fold")
    table.add_column("rho", justify="right")
    for number, entry in entries.iterrows():
        table.add_row(str(number), *_entry(entry))
    console().print(table)
    kinds = [kind for kind in ("formal", "conditional") if (entries["claim"] == kind).any()]
    zcdp = [round_up(float(epsilon_zcdp(rho, delta))) for rho in (ledger.budget, ledger.spent)]
    rows = [
        ("programme", ledger.programme or "not named"),
        ("budget", f"rho {rounded(ledger.budget, 12, up=False)}"),
        ("spent", f"rho {up(ledger.spent)}"),
        ("remaining", f"rho {down(ledger.remaining)}"),
        (f"epsilon at delta {delta:g}", f"{zcdp[0]} of the budget, {zcdp[1]} of what is spent"),
        ("holds", f"{' and '.join(kinds)} claims" if kinds else "no claims yet"),
        (
            "what is claimed",
            "the budget, also where a release was chosen after seeing earlier ones",
        ),
    ]
    show_rows("Budget", rows)


def _entry(entry: pd.Series[Any]) -> tuple[str, ...]:
    when = entry["when"].strftime("%Y-%m-%d %H:%M")
    people = entry["part"] or "everybody"
    if entry["cells"]:
        people += f", by {entry['cells']}"
    # A label written by an earlier version may hold what a terminal takes for a command.
    label, people = (repr(t)[1:-1] if not t.isprintable() else t for t in (entry["label"], people))
    return when, label, entry["claim"], people, up(entry["rho"])


def epsilon_words(
    group: xr.Dataset, delta: float, *, short: bool = False, within: float | None = None
) -> str:
    """Epsilon at delta; the exact conversion is there for the usual deltas.

    Elsewhere a release calibrated to epsilon at this delta is known to lie `within` it.
    """
    import numpy as np

    from pymc_dp.privacy.convert import epsilon_zcdp

    zcdp = f"{round_up(float(epsilon_zcdp(group['rho'].item(), delta)))} from zCDP alone"
    [usual] = np.nonzero(np.isclose(group["delta"].values, delta, rtol=1e-9, atol=0.0))
    if not usual.size and within is not None:
        known = f"at most {within:.15g}"
        return known if short else f"{known} (exact Gaussian; {zcdp})"
    if not usual.size:
        return zcdp
    exact = round_up(group["epsilon"].values[usual[0]])
    return exact if short else f"{exact} (exact Gaussian; {zcdp})"


def _not_checked(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    from pymc_dp.record.origin import unchecked

    names = unchecked(record.get("origin", {}))
    return [("of these not checked", ", ".join(names))] if names else []


def _declared(assumptions: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {source}" for name, source in assumptions.items()) or "nothing"
