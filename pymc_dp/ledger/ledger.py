"""The privacy budget of a programme: what was charged against it, and what is left.

A release is charged *before* its noise is drawn: whatever happens afterwards may waste budget, but
nothing is released without being paid for. How the file survives crashes and races is the business
of ``ledger.file``, and what a person pays in total that of ``ledger.totals``.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pymc_dp._checks import plain_text, positive_number, rounded, spelling
from pymc_dp.ledger import cells as combinations
from pymc_dp.ledger import totals
from pymc_dp.ledger.file import Books, Entry, Programme, append, create, read, transaction
from pymc_dp.ledger.totals import SLACK, Charge, down, up

if TYPE_CHECKING:
    import pandas as pd


COSTS = ": a release always costs something"


class BudgetExceeded(Exception):
    """A charge was refused, and nothing written, because it does not fit in the budget.

    Attributes
    ----------
    spent, asked, left : float
        rho: already spent on the people concerned, asked for, and what they have left.
    where : str
        The combination of cells concerned, if prices differ by cell.

    Examples
    --------
    >>> import tempfile
    >>> from pymc_dp import PrivacyLedger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = PrivacyLedger(f"{folder}/health.ledger", rho=0.5, create=True)
    ...     try:
    ...         ledger.charge(0.8, label="smoking 2013")
    ...     except BudgetExceeded as refusal:
    ...         print(refusal.asked, refusal.left)
    0.8 0.5
    """

    def __init__(self, spent: float, asked: float, left: float, where: str = "") -> None:
        super().__init__(spent, asked, left, where)
        self.spent, self.asked, self.left, self.where = spent, asked, left, where

    def __str__(self) -> str:
        """Name the three figures."""
        people = f" for people in {self.where}" if self.where else ""
        return (
            f"the budget does not cover this charge{people}: rho {up(self.spent)} is spent, "
            f"{up(self.asked)} was asked for, {down(self.left)} is left"
        )


class PrivacyLedger:
    """The privacy budget of one programme, and every charge against it.

    Parameters
    ----------
    path : str or os.PathLike
        The ledger file, on a local disk. One file per programme; never part of a publication.
    rho : float, optional
        Budget, in units of rho (zCDP). Needed to create a ledger and fixed from then on; where an
        existing one is opened, its budget must agree.
    create : bool, default False
        Whether to create the ledger, once, at the start of the programme. A file that exists is
        never overwritten, and a file that is missing is never replaced by an empty one: that would
        forget what was spent.
    conditional : bool, default False
        Whether the ledger is created to take conditional claims in addition to formal ones.
    programme : str, optional
        Name of the programme, written into the file; by default the file's name without its
        ending. Where an existing ledger is opened, its name must agree.
    cells : pandas.DataFrame, optional
        The possible combinations of cells, one per row, with a column of labels for each way of
        dividing the people: ``puma`` and ``age``, say. Releases may then be charged by cell. Fixed
        when the ledger is created; where an existing one is opened, it must agree.

    Raises
    ------
    FileNotFoundError
        The file is missing and not to be created, or its folder is missing.
    FileExistsError
        The file is to be created and is there.
    ValueError
        The budget is missing or not a positive finite number, or it, the name, the cells or
        `conditional` disagree with the file's; a name is blank or holds characters that cannot be
        seen; or the file is not a ledger, is damaged, or has a newer format. It stays untouched.
    OSError
        The file cannot be read or created (a file system without hard links cannot hold one).

    Notes
    -----
    **What is claimed is the budget**: no person loses more than `rho` to everything charged, also
    when each release is chosen, priced or given up in view of earlier results, because every charge
    that would take somebody above the budget is refused (Feldman and Zrnic, 2021, "Individual
    privacy accounting via a Renyi filter"). The sum reached so far, `spent`, is a claim by itself
    only where the prices did not depend on earlier results.

    A scalar charge is about everybody. A charge by cell has a price for the people of every cell of
    one column. What is spent is the largest sum over the combinations of cells: never more than the
    sum of the largest prices. **To list the combinations is to vouch** that every protected unit (a
    respondent, or a household where households are protected) is in one of them, that the list
    comes from public knowledge, not from the file of answers, and that cells do not depend on an
    outcome. A unit in two cells of one column pays a joint price, which a scalar charge must hold.

    A charge with a ``part`` is about a part of the people only. **To name parts is to vouch** that
    they share no unit and that belonging to one does not depend on an outcome. Two years of a panel
    are not disjoint; two independent samples may have people in common. A name that was mistyped is
    one more part: `cells`, whose labels are fixed beforehand, cannot be mistyped. When in doubt,
    leave `part` out: charges without it always add up.

    Prices of different promises (of a household and of one member, of the whole record and of the
    answer) add up to a promise about what all of them protect.

    The ledger stores what it is given and nothing else, no path and no name of a machine. Labels,
    parts and records must hold no outcome, direct estimate or posterior mean.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import pandas as pd
    >>> folder = tempfile.TemporaryDirectory()
    >>> place = pathlib.Path(folder.name)
    >>> ledger = PrivacyLedger(place / "health.ledger", rho=1.0, create=True)
    >>> ledger.charge(0.25, label="smoking 2013")
    >>> ledger.spent, ledger.remaining
    (0.25, 0.75)
    >>> ledger.charge(0.8, label="diabetes 2013")
    Traceback (most recent call last):
    pymc_dp.ledger.ledger.BudgetExceeded: ... 0.25 is spent, 0.8 was asked for, 0.75 is left

    Two releases, by county and by age. Nobody old lives in the north, so nobody pays both 0.5:

    >>> cells = pd.DataFrame(
    ...     {"county": ["north", "south", "south"], "age": ["young", "young", "old"]}
    ... )
    >>> ledger = PrivacyLedger(place / "cells.ledger", rho=1.0, create=True, cells=cells)
    >>> county = pd.Series({"north": 0.5, "south": 0.25}).rename_axis("county")
    >>> ledger.charge(0.5, label="smoking by county", cells=county)
    >>> age = pd.Series({"young": 0.125, "old": 0.5}).rename_axis("age")
    >>> ledger.charge(0.5, label="smoking by age", cells=age)
    >>> ledger.spent
    0.75
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rho: float | None = None,
        *,
        create: bool = False,
        conditional: bool = False,
        programme: str | None = None,
        cells: pd.DataFrame | None = None,
    ) -> None:
        self.path = Path(path).resolve()
        budget = None if rho is None else positive_number("the budget", rho)
        name = None if programme is None else plain_text(programme, "the name of the programme")
        listed = None if cells is None else combinations.to_text(combinations.read_cells(cells))
        if create:
            self._create(budget, bool(conditional), name, listed)
        with transaction(self.path) as connection:
            fixed = read(connection).programme
        if budget is not None and not math.isclose(budget, fixed.budget, rel_tol=SLACK):
            raise ValueError(
                f"the budget of {self.path} is rho {fixed.budget!r}, fixed at creation; "
                f"it disagrees with {budget!r}"
            )
        if conditional != fixed.conditional and (conditional or budget is not None):
            raise ValueError(
                f"{self.path} takes {_taken(fixed)}, fixed at creation; it disagrees with "
                f"conditional={conditional}"
            )
        if name is not None and spelling(name) != spelling(fixed.name or ""):
            held = "names no programme" if fixed.name is None else f"is that of {fixed.name!r}"
            raise ValueError(f"{self.path} {held}, not that of {name!r}")
        if listed not in (None, fixed.cells):
            raise ValueError(
                f"the combinations of cells in {self.path} were fixed at creation; they disagree "
                "with these"
            )
        self.programme = fixed.name
        self._identity = fixed.identity
        self._cells = None if fixed.cells is None else combinations.from_text(fixed.cells)

    def _create(
        self, budget: float | None, conditional: bool, name: str | None, cells: str | None
    ) -> None:
        if budget is None:
            raise ValueError("a new ledger needs its budget: rho=...")
        if name is None:
            name = plain_text(self.path.stem, "the name of the file")
        try:
            create(self.path, Programme(budget, conditional, name, cells))
        except FileExistsError:
            raise FileExistsError(
                f"{self.path} exists, and a ledger never overwrites: leave create=True out to open "
                "it"
            ) from None

    def charge(
        self,
        rho: float | pd.Series[Any],
        *,
        label: str,
        cells: pd.Series[Any] | None = None,
        claim: Literal["formal", "conditional"] = "formal",
        part: str | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        """Charge a release, before its noise is drawn; on disk when the call returns.

        If the call raises, do not release: nothing is charged, or (on a failing disk) the charge
        stands and its budget is wasted.

        Parameters
        ----------
        rho : float or pandas.Series
            Price of the release (zCDP), positive. A Series stands for `cells`, and for the largest
            of its prices.
        label : str
            What is released, for the reader of the ledger.
        cells : pandas.Series, optional
            Prices by cell, indexed by the labels of one column of the ledger's `cells`; the name of
            the index is the column. Every label has a price, 0 where the release does not touch the
            people of a cell, and none is above `rho`: ``release.guarantee["rho_respondent"]``
            of a joint draw, say. Without it everybody is charged `rho`.
        claim : {"formal", "conditional"}
            Kind of claim that the prices are.
        part : str, optional
            Part of the people that the release is about; you vouch that nobody is in two named
            parts (see the class). Names that differ in case, spacing, width or characters that
            cannot be seen are the same part.
        record : dict, optional
            The release's record, stored as JSON. It must hold nothing confidential.

        Raises
        ------
        BudgetExceeded
            The charge does not fit, for some person that it may be about; nothing is written.
        ValueError
            A price is not a positive finite number (0 is allowed in `cells`), the cells are not
            those of the ledger, a name is blank or holds characters that cannot be seen, the claim
            is not one the ledger takes, the record is no JSON object, or the file is no longer a
            sound ledger or no longer this one.
        OSError
            The file is gone (FileNotFoundError), may not be written (PermissionError), is held by
            another process for a minute (TimeoutError), or the disk fails.
        """
        new = self._read_charge(rho, cells, part)
        label = plain_text(label, "the label")
        if claim not in ("formal", "conditional"):
            raise ValueError(f"the claim must be 'formal' or 'conditional', not {claim!r}")
        document = _document(record)
        prices = None
        if new.column is not None and new.prices is not None and self._cells is not None:
            prices = combinations.prices_to_text(new.column, new.prices, self._cells)
        with transaction(self.path, write=True) as connection:
            books = self._mine(read(connection))
            if claim == "conditional" and not books.programme.conditional:
                raise ValueError(
                    f"{self.path} takes formal claims only; a ledger for conditional claims is "
                    "created with conditional=True"
                )
            self._check_budget(books, new)
            now = datetime.now(UTC).isoformat()
            append(connection, Entry(None, now, label, new.rho, claim, new.part, prices, document))

    @property
    def budget(self) -> float:
        """The budget, in rho."""
        return self._read().programme.budget

    @property
    def spent(self) -> float:
        """What is spent on the person who is charged most, in rho, rounded up.

        The largest sum over the combinations of cells, with the costliest part.
        """
        return self._spent(self._read())

    @property
    def remaining(self) -> float:
        """What a charge about everybody may still cost, in rho, rounded down."""
        books = self._read()
        return totals.left(books.programme.budget, self._spent(books))

    def spent_by(self, column: str) -> pd.Series[Any]:
        """What is spent on the people of each cell, in rho, rounded up.

        Parameters
        ----------
        column : str
            Column of the ledger's cells.

        Returns
        -------
        pandas.Series
            By label: the largest sum over the combinations that the cell is part of. The budget
            less this is what a release by cells of this column may cost the people of each.

        Raises
        ------
        ValueError
            The ledger has no such column.
        """
        import pandas as pd

        if self._cells is None or column not in self._cells.labels:
            held = "no cells" if self._cells is None else ", ".join(map(repr, self._cells.labels))
            raise ValueError(f"the ledger has no column {column!r} of cells; it has {held}")
        charges = [self._charge(entry) for entry in self._read().entries]
        most = pd.Series(totals.by_combination(charges, self._cells)).groupby(
            self._cells.code(column)
        )
        return pd.Series(
            most.max().to_numpy(),
            index=pd.Index(self._cells.labels[column], name=column),
            name="spent",
        )

    def epsilon(self, delta: float) -> float:
        """Epsilon at `delta` of what was spent; conditional when any entry is.

        A claim where prices did not depend on earlier results; otherwise the claim is that of the
        budget, ``pymc_dp.epsilon_zcdp(ledger.budget, delta)``. Entries need not come from Gaussian
        noise, so this is the conversion that holds for every zCDP mechanism.
        """
        from pymc_dp.privacy.convert import epsilon_zcdp

        return float(epsilon_zcdp(self.spent, delta))

    def to_dataframe(self) -> pd.DataFrame:
        """Every entry, oldest first, indexed by ``entry``.

        Columns: ``when`` (UTC), ``label``, ``rho`` (of the whole release), ``claim``, ``part``
        (missing: everybody), ``cells`` (the column that the prices are over; missing: one price for
        all), ``prices`` (a dict by label, or missing) and ``record`` (a dict, or missing).
        """
        import pandas as pd

        entries = self._read().entries
        frame = pd.DataFrame(entries, columns=list(Entry._fields)).astype({"rho": float})
        frame["when"] = pd.to_datetime(frame["when"], utc=True, format="ISO8601")
        prices = [json.loads(entry.cells) if entry.cells else {} for entry in entries]
        records = [entry.record and json.loads(entry.record) for entry in entries]
        for name, values in (
            ("part", [entry.part for entry in entries]),
            ("cells", [found.get("column") for found in prices]),
            ("prices", [found.get("prices") for found in prices]),
            ("record", records),
        ):
            frame[name] = pd.Series(values, index=frame.index, dtype=object)
        order = ["entry", "when", "label", "rho", "claim", "part", "cells", "prices", "record"]
        return frame[order].set_index("entry")

    def __repr__(self) -> str:
        """Say what is spent and left, and which kinds of claim are held."""
        facts = ", ".join(f"{name}={value}" for name, value in self._facts().items())
        return f"PrivacyLedger({self.path.name!r}, {facts})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table><caption>{html.escape(self.path.name)}</caption>{rows}</table>"

    def _facts(self) -> dict[str, str]:
        try:
            books = self._read()
            spent = self._spent(books)
        except (OSError, ValueError) as error:  # a repr in a debugger must not raise
            return {"unreadable": str(error).replace(str(self.path), self.path.name)}
        fixed = books.programme
        kinds = [k for k in ("formal", "conditional") if any(e.claim == k for e in books.entries)]
        facts = {
            "programme": repr(fixed.name),
            "budget": rounded(fixed.budget, 12, up=False),
            "spent": up(spent),
            "remaining": down(totals.left(fixed.budget, spent)),
            "entries": str(len(books.entries)),
            "cells": "" if self._cells is None else self._cells.summary(),
            "protects": "; ".join(protected(books.entries)),
            "holds": f"{' and '.join(kinds) or 'no'} claims",
            "takes": _taken(fixed),
        }
        return {name: value for name, value in facts.items() if value and value != "None"}

    def _read(self) -> Books:
        with transaction(self.path) as connection:
            return self._mine(read(connection))

    def _mine(self, books: Books) -> Books:
        """The books, if they are those of the ledger that was opened."""
        if books.programme.identity != self._identity:
            raise ValueError(
                f"{self.path} is not the ledger that was opened: another one is in its place"
            )
        return books

    def _read_charge(
        self, rho: float | pd.Series[Any], cells: pd.Series[Any] | None, part: str | None
    ) -> Charge:
        alone = cells is None and getattr(rho, "ndim", 0) == 1
        if alone:
            cells = cast("pd.Series[Any]", rho)
        part = None if part is None else plain_text(part, "the part")
        if cells is None:
            return Charge(positive_number("rho", rho, COSTS), part)
        if self._cells is None:
            raise ValueError(
                f"{self.path} was created without cells, so it takes no prices by cell: charge rho "
                "alone"
            )
        column, prices = combinations.read_prices(cells, self._cells)
        price = positive_number("rho", prices.max() if alone else rho, COSTS)
        if not 0 < prices.max() <= price * (1 + SLACK):
            raise ValueError(
                "the largest price of a cell must be above 0 and not above rho, the price of the "
                "release"
            )
        return Charge(price, part, column, prices)

    def _check_budget(self, books: Books, new: Charge) -> None:
        before = [self._charge(entry) for entry in books.entries]
        budget = books.programme.budget
        most = totals.largest_with(before, new, self._cells)
        if most.rho > budget * (1 + SLACK):
            spent = totals.on(before, most, self._cells)
            where = "" if self._cells is None or most.row is None else self._cells.words(most.row)
            asked = totals.on([new], most, self._cells)
            raise BudgetExceeded(spent, asked, totals.left(budget, spent), where)

    def _charge(self, entry: Entry) -> Charge:
        if entry.cells is None:
            return Charge(entry.rho, entry.part)
        if self._cells is None:
            raise ValueError(f"entry {entry.entry} of {self.path} has cells and the ledger none")
        column, prices = combinations.prices_from_text(entry.cells, self._cells)
        return Charge(entry.rho, entry.part, column, prices)

    def _spent(self, books: Books) -> float:
        return totals.largest([self._charge(e) for e in books.entries], self._cells).rho


def protected(entries: Sequence[Entry]) -> list[str]:
    """What the entries protect, as far as their records say; each wording once.

    Examples
    --------
    >>> entry = Entry(1, "", "", 1.0, "formal", None, None, '{"unit": "household"}')
    >>> protected([entry, entry])
    ['answer of one household']
    """
    found = {}
    for entry in entries:
        record = json.loads(entry.record) if entry.record else {}
        if "unit" in record:
            found[f"{record.get('protects', 'answer')} of one {record['unit']}"] = True
    return list(found)


def _taken(fixed: Programme) -> str:
    return "formal and conditional claims" if fixed.conditional else "formal claims only"


def _document(record: dict[str, Any] | None) -> str | None:
    if record is not None and not isinstance(record, dict):
        raise ValueError(f"the record must be a dict, not {type(record).__name__}")
    try:
        return None if record is None else json.dumps(record, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # Without the cause, which may quote a value of the record.
        raise ValueError("the record must hold only what JSON can: no NaN, array or date") from None
