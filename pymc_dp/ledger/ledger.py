"""The privacy budget of a programme: what was charged against it, and what is left.

A release is charged *before* its noise is drawn: whatever happens afterwards may waste budget, but
nothing leaves unpaid. How the file survives crashes and races is the business of `ledger_file`.
"""

from __future__ import annotations

import html
import json
import math
import os
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pymc_dp._checks import rounded
from pymc_dp.ledger.file import Books, Entry, append, create, read, transaction

if TYPE_CHECKING:
    import pandas as pd

# Summation order and the last bit of a computed price move a sum by about 1e-15 of itself; a budget
# that is met exactly must not be refused for that. No more than this is ever overspent in total.
SLACK = 1e-12


class BudgetExceeded(Exception):
    """A charge was refused, and nothing written, because it does not fit in the budget.

    Attributes
    ----------
    spent, asked, left : float
        rho: spent on the people the charge is about, asked by it, and what they have left.

    Examples
    --------
    >>> import tempfile
    >>> from pymc_dp import PrivacyLedger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = PrivacyLedger(f"{folder}/programme.ledger", rho=0.5)
    ...     try:
    ...         ledger.charge(0.8, label="smoking 2013")
    ...     except BudgetExceeded as refusal:
    ...         print(refusal.asked, refusal.left)
    0.8 0.5
    """

    def __init__(self, spent: float, asked: float, left: float) -> None:
        super().__init__(spent, asked, left)
        self.spent, self.asked, self.left = spent, asked, left

    def __str__(self) -> str:
        """Name the three figures."""
        return (
            f"the budget does not cover this charge: rho {rounded(self.spent, 12)} is spent, "
            f"{rounded(self.asked, 12)} was asked, {rounded(self.left, 12, up=False)} is left"
        )


class PrivacyLedger:
    """The privacy budget of one programme, and every charge against it.

    Parameters
    ----------
    path : str or os.PathLike
        The ledger file, on a local disk: a new one is created with this budget, an existing one
        opened. One file a programme; never part of a publication.
    rho : float, optional
        Budget, in units of rho (zCDP). Fixed at creation; an existing file must agree. Without it
        an existing file is opened and none created.
    conditional : bool, default False
        Whether the ledger is created to take conditional claims beside formal ones.

    Raises
    ------
    FileNotFoundError
        The folder is missing, or the file is and no budget is given.
    ValueError
        The budget is not a positive finite number, or disagrees with the file's, as `conditional`
        may; or the file is not a ledger, is damaged, or has a newer format. It stays untouched.
    OSError
        The file cannot be read or created (a file system without hard links cannot hold one).

    Notes
    -----
    Prices add up as zCDP does, also when each is chosen in view of earlier results, because the
    budget is fixed beforehand (Feldman and Zrnic, 2021, "Individual privacy accounting via a Renyi
    filter").

    Entries with a ``population`` are about a part of the people. **To name populations is to
    declare**, and to vouch, that the named parts share nobody, nor any protected unit (a household,
    where households are protected), and that membership does not depend on an outcome. Two years of
    a panel are not disjoint; two independent samples may have people in common. What is spent is
    then the sum of the entries about everybody plus the largest sum of a part, because nobody is in
    two parts. When in doubt, leave `population` out: entries without it always add up.

    The ledger stores what it is given and nothing else. Labels, populations and records must hold
    no outcome, direct estimate or posterior mean.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = PrivacyLedger(pathlib.Path(folder.name) / "programme.ledger", rho=1.0)
    >>> ledger.charge(0.25, label="smoking 2013")
    >>> ledger.spent, ledger.remaining
    (0.25, 0.75)
    >>> ledger.charge(0.8, label="diabetes 2013")
    Traceback (most recent call last):
    pymc_dp.ledger.ledger.BudgetExceeded: ... rho 0.25 is spent, 0.8 was asked, 0.75 is left
    >>> folder.cleanup()
    """

    def __init__(
        self, path: str | os.PathLike[str], rho: float | None = None, *, conditional: bool = False
    ) -> None:
        self.path = Path(path).resolve()
        budget = None if rho is None else _positive(rho, "the budget")
        if budget is not None and not self.path.exists():
            create(self.path, budget, conditional)
        books = _read(self.path)
        if budget is not None and not math.isclose(budget, books.budget, rel_tol=SLACK):
            raise ValueError(
                f"the budget of {self.path} is rho {books.budget!r}, fixed at creation; "
                f"it disagrees with {budget!r}"
            )
        if conditional != books.conditional and (conditional or budget is not None):
            raise ValueError(
                f"{self.path} takes {_taken(books)}, fixed at creation; it disagrees with "
                f"conditional={conditional}"
            )

    def charge(
        self,
        rho: float,
        *,
        label: str,
        claim: Literal["formal", "conditional"] = "formal",
        population: str | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        """Charge a release, before its noise is drawn; on disk when the call returns.

        If the call raises, do not release: nothing is charged, or (on a failing disk) the charge
        stands and its budget is wasted.

        Parameters
        ----------
        rho : float
            Price of the release (zCDP), positive.
        label : str
            What is released, for the reader of the ledger.
        claim : {"formal", "conditional"}
            Kind of claim that `rho` is.
        population : str, optional
            Part of the people that the release is about; you vouch that nobody is in two named
            parts (see the class). Names that differ in case or spacing only are the same part.
        record : dict, optional
            The release's record, stored as JSON. It must hold nothing confidential.

        Raises
        ------
        BudgetExceeded
            The charge does not fit; nothing is written.
        ValueError
            `rho` is not a positive finite number, a name is blank, the claim is not one the ledger
            takes, the record is no JSON object, or the file is no longer a sound ledger.
        OSError
            The file is gone (FileNotFoundError), may not be written (PermissionError), is held by
            another process for a minute (TimeoutError), or the disk fails.
        """
        price = _positive(rho, "rho")
        label = _named(label, "the label")
        population = None if population is None else _named(population, "the population")
        if claim not in ("formal", "conditional"):
            raise ValueError(f"the claim must be 'formal' or 'conditional', not {claim!r}")
        document = _document(record)
        with transaction(self.path, write=True) as connection:
            books = read(connection)
            if claim == "conditional" and not books.conditional:
                raise ValueError(
                    f"{self.path} takes formal claims only; a ledger for conditional claims is "
                    "created with conditional=True"
                )
            spent = _spent(books.entries, population)
            if spent + price > books.budget * (1 + SLACK):
                raise BudgetExceeded(spent, price, max(books.budget - spent, 0.0))
            now = datetime.now(UTC).isoformat()
            append(connection, Entry(None, now, label, price, claim, population, document))

    @property
    def budget(self) -> float:
        """The budget, in rho."""
        return _read(self.path).budget

    @property
    def spent(self) -> float:
        """What is spent, in rho: on everybody, plus on the costliest of the populations."""
        return _spent(_read(self.path).entries)

    @property
    def remaining(self) -> float:
        """What a charge about everybody may still cost, in rho."""
        books = _read(self.path)
        return max(books.budget - _spent(books.entries), 0.0)

    def epsilon(self, delta: float) -> float:
        """Epsilon at `delta` of all that was spent; conditional when any entry is.

        Entries need not come from Gaussian noise, so this is the conversion that holds for every
        zCDP mechanism, `pymc_dp.privacy.epsilon_zcdp`.
        """
        from pymc_dp.privacy.convert import epsilon_zcdp

        return float(epsilon_zcdp(self.spent, delta))

    def to_dataframe(self) -> pd.DataFrame:
        """Every entry, oldest first, indexed by ``entry``.

        Columns: ``when`` (UTC), ``label``, ``rho``, ``claim``, ``population`` (missing: everybody)
        and ``record`` (a dict, or missing).
        """
        import pandas as pd

        entries = _read(self.path).entries
        frame = pd.DataFrame(entries, columns=list(Entry._fields)).astype({"rho": float})
        frame["when"] = pd.to_datetime(frame["when"], utc=True, format="ISO8601")
        records = [entry.record and json.loads(entry.record) for entry in entries]
        frame["record"] = pd.Series(records, index=frame.index, dtype=object)
        return frame.set_index("entry")

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
            books = _read(self.path)
        except (OSError, ValueError) as error:  # a repr in a debugger must not raise
            return {"unreadable": str(error)}
        spent = _spent(books.entries)
        kinds = [k for k in ("formal", "conditional") if any(e.claim == k for e in books.entries)]
        return {
            "budget": rounded(books.budget, 12, up=False),
            "spent": rounded(spent, 12),
            "remaining": rounded(max(books.budget - spent, 0.0), 12, up=False),
            "entries": str(len(books.entries)),
            "holds": f"{' and '.join(kinds) or 'no'} claims",
            "takes": _taken(books),
        }


def _read(path: Path) -> Books:
    with transaction(path) as connection:
        return read(connection)


def _taken(books: Books) -> str:
    return "formal and conditional claims" if books.conditional else "formal claims only"


def _spent(entries: Sequence[Entry], population: str | None = None) -> float:
    """Rho spent on the worst-off person, or on the people of one population."""
    everybody = [entry.rho for entry in entries if entry.population is None]
    parts: dict[str, list[float]] = {}
    for entry in entries:
        if entry.population is not None:
            parts.setdefault(_part(entry.population), []).append(entry.rho)
    affected = parts.values() if population is None else [parts.get(_part(population), [])]
    return max((math.fsum(everybody + part) for part in affected), default=math.fsum(everybody))


def _part(population: str) -> str:
    """One key for spellings apart in case or spacing: a slip must not make people disjoint."""
    return " ".join(unicodedata.normalize("NFKC", population).casefold().split())


def _positive(rho: float, name: str) -> float:
    value = math.nan if isinstance(rho, bool | str | bytes) else float(rho)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"{name} must be a positive finite number: a release always costs something"
        )
    return value


def _named(text: str, name: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} must be text and not blank")
    return text


def _document(record: dict[str, Any] | None) -> str | None:
    if record is not None and not isinstance(record, dict):
        raise ValueError(f"the record must be a dict, not {type(record).__name__}")
    try:
        return None if record is None else json.dumps(record, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # Without the cause, which may quote a value of the record.
        raise ValueError("the record must hold only what JSON can: no NaN, array or date") from None
