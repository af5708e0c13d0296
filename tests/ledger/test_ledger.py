"""The budget ledger: what it accepts, what it adds up to, and what it refuses to touch."""

from __future__ import annotations

import math
import os
import pickle
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pymc_dp.ledger import file as ledger_file
from pymc_dp.ledger.ledger import BudgetExceeded, PrivacyLedger

posix = pytest.mark.skipif(os.name != "posix", reason="about POSIX permissions or special files")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "programme.ledger"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every file in the folder."""
    return {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in folder.iterdir() if f.is_file()}


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# Adding up


def test_ten_tenths_meet_a_budget_of_one_and_a_millionth_more_is_refused(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    for number in range(10):
        ledger.charge(0.1, label=f"release {number}")
    before = snapshot(path.parent)
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.charge(1e-6, label="one too many")
    assert (refusal.value.asked, refusal.value.left) == (1e-6, 0.0)
    assert all(text in str(refusal.value) for text in ("1 is spent", "1e-06 was", "0 is left"))
    # A tenth in binary is a little more than a tenth, and sums are rounded up.
    assert ledger.budget < ledger.spent == refusal.value.spent == math.nextafter(1.0, 2.0)
    assert ledger.remaining == 0.0
    assert snapshot(path.parent) == before


def test_rounding_slack_is_granted_once_and_not_to_every_charge(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    ledger.charge(1.0, label="all of it")
    accepted = 0
    for _ in range(20):
        try:
            ledger.charge(2e-13, label="crumb")
            accepted += 1
        except BudgetExceeded:
            pass
    assert accepted <= 5
    assert ledger.spent <= 1.0 + 1.1e-12  # the slack and one rounding
    assert ledger.remaining == 0.0


CHARGES = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([None, None, "north", "south", "  North"])),
    max_size=9,
)


@settings(max_examples=25, deadline=None)
@given(CHARGES)
@example([(5, "north"), (5, "  North"), (1, "north"), (9, "south"), (1, None), (2, "south")])
@example([(6, "north"), (4, None), (4, "south"), (3, "south"), (1, None)])
def test_spent_is_the_total_of_the_person_who_is_charged_most(charges):
    """Against whole tenths, added up person by person: one in each part and one in none."""
    parts = {None: "no part", "north": "north", "  North": "north", "south": "south"}
    people = dict.fromkeys(["no part", "north", "south"], 0)
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "ledger", 1.0, create=True)
        for tenths, part in charges:
            after = {
                person: total + tenths * (part is None or parts[part] == person)
                for person, total in people.items()
            }
            if max(after.values()) <= 10:
                ledger.charge(tenths / 10, label="release", part=part)
                people = after
            else:
                affected = max(people.values()) if part is None else people[parts[part]]
                with pytest.raises(BudgetExceeded) as refusal:
                    ledger.charge(tenths / 10, label="release", part=part)
                assert refusal.value.left == pytest.approx(1 - affected / 10, abs=1e-12)
            # Sums of tenths in binary: off by a few units in the last place.
            assert ledger.spent == pytest.approx(max(people.values()) / 10, rel=1e-14)
            assert ledger.remaining == pytest.approx(1 - max(people.values()) / 10, abs=1e-14)


@pytest.mark.parametrize("part", [None, "north"])
def test_the_order_of_entries_does_not_change_a_bit_of_what_is_spent(tmp_path, part):
    prices = [0.1, 0.2, 0.3]
    assert (0.1 + 0.2) + 0.3 != (0.3 + 0.2) + 0.1
    spent = set()
    for number, order in enumerate([prices, prices[::-1]]):
        ledger = PrivacyLedger(tmp_path / f"{number}", 1.0, create=True)
        for price in order:
            ledger.charge(price, label="release", part=part)
        spent.add(ledger.spent)
    assert len(spent) == 1


def test_epsilon_is_the_best_zcdp_conversion_of_what_is_spent(path):
    ledger = PrivacyLedger(path, 2.0, create=True)
    assert ledger.epsilon(1e-6) == 0.0
    ledger.charge(0.3, label="a")
    ledger.charge(0.2, label="b")
    # Canonne, Kamath and Steinke (2020), minimised over a fine grid of orders: never below the
    # optimum, and within 1e-6 of it because the minimum is flat.
    rho, delta = 0.5, 1e-6
    order = 1 + np.geomspace(1e-2, 1e3, 400_001)
    curve = order * rho + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)
    assert ledger.epsilon(delta) == pytest.approx(curve.min(), rel=1e-6)


# Entries

COLUMNS = ["when", "label", "rho", "claim", "part", "cells", "prices", "record"]


def test_entries_come_back_as_they_were_charged_oldest_first(path):
    ledger = PrivacyLedger(path, 1.0, conditional=True, create=True)
    start = datetime.now(UTC)
    record = {"unit": "respondent", "bounds": [0, 1], "draws": 1, "名": None}
    ledger.charge(0.125, label="smoking, 2013 'final'; --", record=record)
    ledger.charge(np.float64(0.25), label="διαβήτης", claim="conditional", part="2014 sample")
    frame = ledger.to_dataframe()
    assert list(frame.columns) == COLUMNS
    assert list(frame.index) == [1, 2] and frame.index.name == "entry"
    assert list(frame["label"]) == ["smoking, 2013 'final'; --", "διαβήτης"]
    assert list(frame["rho"]) == [0.125, 0.25]
    assert list(frame["claim"]) == ["formal", "conditional"]
    assert list(frame["part"]) == [None, "2014 sample"]
    assert list(frame["cells"]) == list(frame["prices"]) == [None, None]
    assert frame["record"][1] == record and frame["record"][2] is None
    assert frame["when"].between(pd.Timestamp(start), pd.Timestamp.now("UTC")).all()
    assert frame["when"].is_monotonic_increasing


def test_an_empty_ledger_is_an_empty_frame_with_the_same_columns(path):
    frame = PrivacyLedger(path, 1.0, create=True).to_dataframe()
    assert list(frame.columns) == COLUMNS and len(frame) == 0 and frame["rho"].dtype == float
    assert str(frame["when"].dt.tz) == "UTC"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET rho = 0.001",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries SELECT * FROM entries",
        "REPLACE INTO entries VALUES (1, 'now', 'label', 0.001, 'formal', NULL, NULL, NULL)",
        "UPDATE programme SET budget = 100.0",
        "DELETE FROM programme",
        "REPLACE INTO programme VALUES (1, 100.0, 1, 'now', 'name', 'id', NULL)",
        "INSERT INTO programme VALUES (2, 100.0, 1, 'now', 'name', 'id', NULL)",
        "INSERT INTO entries VALUES (9, 'now', 'label', -0.5, 'formal', NULL, NULL, NULL)",
        "INSERT INTO entries VALUES (9, 'now', 'label', 'text', 'formal', NULL, NULL, NULL)",
        "INSERT INTO entries VALUES (9, 'now', 'label', 9e999, 'formal', NULL, NULL, NULL)",
        "INSERT INTO entries VALUES (9, 'now', 'label', 0.1, 'other', NULL, NULL, NULL)",
    ],
)
def test_sql_can_neither_change_nor_remove_nor_falsify_an_entry(path, statement):
    ledger = PrivacyLedger(path, 1.0, create=True)
    ledger.charge(0.5, label="release")
    before = snapshot(path.parent)
    with pytest.raises(sqlite3.IntegrityError):
        execute(path, statement)
    assert snapshot(path.parent) == before
    assert (ledger.budget, ledger.spent) == (1.0, 0.5)


# Kinds of claim


def test_conditional_claims_need_a_ledger_created_for_them(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    with pytest.raises(ValueError, match=r"formal claims only.*conditional=True"):
        ledger.charge(0.1, label="release", claim="conditional")
    assert ledger.spent == 0.0
    with pytest.raises(ValueError, match="disagrees with conditional=True"):
        PrivacyLedger(path, 1.0, conditional=True)
    with pytest.raises(ValueError, match="disagrees with conditional=True"):
        PrivacyLedger(path, conditional=True)


def test_a_conditional_ledger_must_be_opened_as_one_when_its_budget_is_given(path):
    PrivacyLedger(path, 1.0, conditional=True, create=True)
    with pytest.raises(ValueError, match="disagrees with conditional=False"):
        PrivacyLedger(path, 1.0)
    assert PrivacyLedger(path).budget == 1.0


def test_a_ledger_shows_what_is_spent_and_which_claims_it_holds(tmp_path):
    path = tmp_path / "<b>2013.ledger"
    ledger = PrivacyLedger(path, 1.0, conditional=True, create=True)
    assert "holds=no claims" in repr(ledger)
    ledger.charge(0.25, label="a", claim="conditional")
    assert "holds=conditional claims" in repr(ledger)
    ledger.charge(0.5, label="b")
    shown = "budget=1, spent=0.75, remaining=0.25, entries=2, holds=formal and conditional claims"
    assert shown in repr(ledger)
    page = ledger._repr_html_()
    assert "&lt;b&gt;2013.ledger" in page and "<b>" not in page
    assert "<th>spent</th><td>0.75</td>" in page and "formal and conditional claims" in page
    path.unlink()
    assert "unreadable=there is no ledger" in repr(ledger)
    assert "unreadable" in ledger._repr_html_()


# Arguments


@pytest.mark.parametrize(
    "rho", [0, 0.0, -0.0, -1e-9, math.nan, math.inf, -math.inf, True, "0.5", np.float64("nan")]
)
def test_a_price_or_budget_that_is_not_positive_and_finite_is_refused(path, rho):
    ledger = PrivacyLedger(path, 1.0, create=True)
    with pytest.raises(ValueError, match="rho must be a positive finite number"):
        ledger.charge(rho, label="release")
    assert ledger.to_dataframe().empty
    with pytest.raises(ValueError, match="budget must be a positive finite number"):
        PrivacyLedger(path.with_name("other"), rho, create=True)
    assert list(path.parent.iterdir()) == [path]


def test_blank_names_and_unknown_claims_are_refused(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    for arguments in (
        {"label": ""},
        {"label": " \t"},
        {"label": None},
        {"label": "a", "part": ""},
        {"label": "a", "part": 2023},
        {"label": "a", "claim": "Formal"},
        {"label": "a", "claim": None},
    ):
        with pytest.raises(ValueError, match=r"must be (text|'formal' or)"):
            ledger.charge(0.1, **arguments)
    assert ledger.to_dataframe().empty


def test_a_record_that_json_cannot_hold_is_refused_without_quoting_it(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    circle: dict[str, object] = {}
    circle["self"] = circle
    bad = [0.123456789], np.array([0.123456789]), "0.123456789"
    values = *bad, {"a": {1, 2}}, {"a": math.nan}, {"a": [math.inf]}, {"a": b"1"}, circle
    mixed = {"a": 1, 2: "b"}  # keys that cannot be sorted
    for record in (*values, {"a": np.array([0.123456789])}, mixed):
        with pytest.raises(ValueError, match="the record must") as refusal:
            ledger.charge(0.1, label="release", record=record)
        assert "0.123" not in str(refusal.value)
        assert refusal.value.__suppress_context__ or refusal.value.__context__ is None
    assert ledger.to_dataframe().empty


# Opening


def test_a_budget_is_fixed_at_creation(path):
    PrivacyLedger(path, 0.3, create=True)
    before = snapshot(path.parent)
    for other in (0.300001, 3.0):
        with pytest.raises(ValueError, match=r"rho 0\.3, fixed at creation; it disagrees"):
            PrivacyLedger(path, other)
    assert PrivacyLedger(path, 0.1 + 0.2).budget == 0.3  # the same number up to its last bit
    assert PrivacyLedger(path).budget == 0.3
    assert snapshot(path.parent) == before


def test_reading_leaves_the_file_as_it_is(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    ledger.charge(0.5, label="release")
    before = snapshot(path.parent)
    again = PrivacyLedger(path, 1.0)
    assert (again.spent, again.remaining, len(again.to_dataframe())) == (0.5, 0.5, 1)
    assert "spent=0.5" in repr(again)
    assert snapshot(path.parent) == before and list(before) == [path.name]


def test_a_ledger_is_created_only_when_asked_with_a_budget_and_in_a_folder(tmp_path):
    """What was moved away is not replaced by a ledger that has forgotten what was spent."""
    for budget in (None, 1.0):
        with pytest.raises(FileNotFoundError, match=r"no ledger at .* moved.* create=True"):
            PrivacyLedger(tmp_path / "a", budget)
    with pytest.raises(ValueError, match="a new ledger needs its budget"):
        PrivacyLedger(tmp_path / "a", create=True)
    with pytest.raises(FileNotFoundError, match="the folder of the ledger does not exist"):
        PrivacyLedger(tmp_path / "missing" / "a", 1.0, create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_not_created_again(path):
    PrivacyLedger(path, 1.0, create=True).charge(0.5, label="release")
    before = snapshot(path.parent)
    for budget in (1.0, 2.0):
        with pytest.raises(FileExistsError, match="never overwrites: leave create=True out"):
            PrivacyLedger(path, budget, create=True)
    assert snapshot(path.parent) == before


def test_an_opened_ledger_knows_another_one_in_its_place(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    ledger.charge(0.75, label="release")
    path.rename(path.with_name("archive"))
    PrivacyLedger(path, 1.0, create=True)
    for attempt in (lambda: ledger.charge(0.5, label="release"), lambda: ledger.spent):
        with pytest.raises(ValueError, match="not the ledger that was opened"):
            attempt()
    assert "unreadable=programme.ledger is not the ledger" in repr(ledger)
    assert PrivacyLedger(path).spent == 0.0
    path.with_name("archive").replace(path)
    assert ledger.spent == 0.75


def test_the_file_names_its_programme_and_another_name_is_refused(path):
    assert PrivacyLedger(path, 1.0, create=True).programme == "programme"  # of the file
    survey = path.with_name("survey")
    PrivacyLedger(survey, 1.0, create=True, programme=" State health  survey")
    opened = PrivacyLedger(survey, programme="STATE health survey")
    assert opened.programme == "State health survey"
    assert "programme='State health survey'" in repr(opened)
    with pytest.raises(ValueError, match="is that of 'State health survey', not that of 'ACS'"):
        PrivacyLedger(survey, programme="ACS")
    with pytest.raises(ValueError, match="the name of the programme"):
        PrivacyLedger(path.with_name("third"), 1.0, create=True, programme="ACS\u200b")
    assert not path.with_name("third").exists()


def test_no_path_of_the_machine_is_in_the_file(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    ledger.charge(0.25, label="release")
    assert str(path.parent).encode() not in path.read_bytes()
    assert str(path.parent) not in repr(ledger) + ledger._repr_html_()


def test_a_ledger_deleted_after_opening_is_not_created_anew_by_a_charge(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="there is no ledger at"):
        ledger.charge(0.1, label="release")
    assert list(path.parent.iterdir()) == []


def test_any_file_name_is_taken_literally(tmp_path):
    name = (
        "50% ?mode=memory&cache=shared#1 é 東.ledger" if os.name == "posix" else "50% #1 é.ledger"
    )
    PrivacyLedger(tmp_path / name, 1.0, create=True).charge(0.5, label="release")
    assert PrivacyLedger(tmp_path / name).spent == 0.5
    assert [f.name for f in tmp_path.iterdir()] == [name]


@posix
def test_a_symbolic_link_leads_to_the_one_ledger(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("real")
    PrivacyLedger(tmp_path / "link", 1.0, create=True).charge(0.25, label="through the link")
    monkeypatch.chdir(tmp_path)
    relative = PrivacyLedger("real", 1.0)
    monkeypatch.chdir("/")
    relative.charge(0.25, label="through a relative path")
    assert PrivacyLedger(tmp_path / "link").spent == 0.5
    assert {f.name for f in tmp_path.iterdir()} == {"link", "real"}


def test_a_pickled_ledger_is_the_same_ledger(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    copy = pickle.loads(pickle.dumps(ledger))
    copy.charge(0.25, label="by the copy")
    assert ledger.spent == copy.spent == 0.25
    error = pickle.loads(pickle.dumps(BudgetExceeded(0.5, 0.75, 0.25)))
    assert (error.spent, error.asked, error.left) == (0.5, 0.75, 0.25)
    assert "0.75 was asked for" in str(error)


def test_threads_that_share_a_ledger_never_overspend(path):
    ledger = PrivacyLedger(path, 1.0, create=True)

    def attempt(number: int) -> bool:
        try:
            # Opening anew beside running charges must not drop their locks.
            PrivacyLedger(path, 1.0).charge(1 / 16, label=f"release {number}")
        except BudgetExceeded:
            return False
        return ledger.spent <= 1.0

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(40))) == 16
    assert ledger.spent == 1.0


def test_a_ledger_held_by_another_process_is_a_timeout_and_no_charge(path, monkeypatch):
    ledger = PrivacyLedger(path, 1.0, create=True)
    monkeypatch.setattr(ledger_file, "TIMEOUT", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TimeoutError, match="another process holds the ledger"):
            ledger.charge(0.1, label="release")
        with pytest.raises(TimeoutError, match="another process holds the ledger"):
            _ = ledger.spent
    assert ledger.to_dataframe().empty


def test_a_ledger_that_another_tool_put_in_wal_mode_still_counts_and_returns_to_one_file(
    path, monkeypatch
):
    ledger = PrivacyLedger(path, 1.0, create=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        size = path.stat().st_size
        note = f'{{"note": "{"x" * 20_000}"}}'  # more pages than the file has so far
        other.execute(
            "INSERT INTO entries VALUES (1, '2024-01-01', 'a', 0.5, 'formal', NULL, NULL, ?)",
            (note,),
        )
        assert ledger.spent == 0.5 and path.stat().st_size == size  # read from the side file
        monkeypatch.setattr(ledger_file, "TIMEOUT", 0.05)
        with pytest.raises(TimeoutError, match="another process holds the ledger"):
            ledger.charge(0.25, label="refused")
    ledger.charge(0.25, label="b")
    assert ledger.spent == 0.75
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes()[18:20] == b"\x01\x01"  # the header's mark of a rollback journal


# Files that are not ledgers, or not sound ones


def foreign_text(path: Path) -> None:
    path.write_text("area,estimate\nA,0.5\n" * 300)


def foreign_empty(path: Path) -> None:
    path.touch()


def foreign_sqlite(path: Path) -> None:
    execute(path, "CREATE TABLE entries (rho)", "INSERT INTO entries VALUES (zeroblob(9000))")


def foreign_sqlite_with_wal(path: Path) -> None:
    execute(path, "PRAGMA journal_mode = WAL", "CREATE TABLE entries (rho)")


def foreign_sqlite_with_open_wal(path: Path) -> None:
    origin = path.with_name("origin")
    with closing(sqlite3.connect(origin, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE entries (rho)")
        for ending in ("", "-wal"):
            copy = path.with_name(path.name + ending)
            copy.write_bytes(origin.with_name(origin.name + ending).read_bytes())
    origin.unlink()


def newer_format(path: Path) -> None:
    PrivacyLedger(path, 1.0, create=True)
    execute(path, f"PRAGMA user_version = {ledger_file.FORMAT + 1}")


def without_trigger(path: Path) -> None:
    PrivacyLedger(path, 1.0, create=True)
    execute(path, "DROP TRIGGER entries_no_delete")


def without_budget(path: Path) -> None:
    execute(path, *ledger_file.SCHEMAS[ledger_file.FORMAT])
    execute(path, f"PRAGMA application_id = {ledger_file.APPLICATION_ID}")
    execute(path, f"PRAGMA user_version = {ledger_file.FORMAT}")


def with_a_tail(path: Path) -> None:
    PrivacyLedger(path, 1.0, create=True)
    with path.open("ab") as file:
        file.write(b"tail")


def with_a_zeroed_page(path: Path) -> None:
    PrivacyLedger(path, 1.0, create=True).charge(0.5, label="a")
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(4096)
    path.write_bytes(content)


def with_a_false_free_list(path: Path) -> None:
    """Damage that reading the entries does not meet."""
    PrivacyLedger(path, 1.0, create=True)
    content = bytearray(path.read_bytes())
    content[36:40] = (5).to_bytes(4, "big")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (foreign_text, "is not a privacy ledger"),
        (foreign_empty, "is not a privacy ledger"),
        (foreign_sqlite, "is not a privacy ledger"),
        (foreign_sqlite_with_wal, "is not a privacy ledger"),
        (foreign_sqlite_with_open_wal, "is not a privacy ledger"),
        (newer_format, "has format 3 and .* reads the formats up to 2: update pymc_dp"),
        (without_trigger, "tables or triggers .* were altered"),
        (without_budget, "tables or triggers .* were altered"),
        (with_a_tail, "truncated or damaged"),
        (with_a_zeroed_page, "damaged"),
        (with_a_false_free_list, "truncated or damaged"),
    ],
)
def test_a_file_that_is_no_sound_ledger_is_refused_untouched(path, make, reason):
    PrivacyLedger(path, 1.0, create=True)
    opened = PrivacyLedger(path)
    path.unlink()
    make(path)
    before = snapshot(path.parent)
    for attempt in (
        lambda: PrivacyLedger(path, 1.0),
        lambda: PrivacyLedger(path),
        lambda: opened.charge(0.1, label="release"),
        lambda: opened.spent,
    ):
        with pytest.raises(ValueError, match=reason):
            attempt()
        assert snapshot(path.parent) == before


def test_a_truncated_ledger_is_refused_untouched_at_every_length(path):
    ledger = PrivacyLedger(path, 1.0, create=True)
    for number in range(20):
        ledger.charge(0.01, label=f"release {number}", record={"note": "x" * 700})
    whole = path.read_bytes()
    page = 4096
    assert len(whole) > 4 * page
    lengths = {0, 1, 15, 16, 17, 60, 72, 99, 100, 101, 512, len(whole) // 2}
    lengths |= {n + d for n in range(page, len(whole), page) for d in (-1, 0, 1)}
    for length in sorted(lengths | {len(whole) - 1}):
        path.write_bytes(whole[:length])
        before = snapshot(path.parent)
        for attempt in (
            lambda: PrivacyLedger(path, 1.0),
            lambda: ledger.charge(0.01, label="release"),
        ):
            with pytest.raises(ValueError, match=r"not a privacy ledger|truncated or damaged"):
                attempt()
            assert snapshot(path.parent) == before, length
    path.write_bytes(whole)
    assert ledger.spent == pytest.approx(0.2, rel=1e-14)


@posix
def test_a_directory_or_a_pipe_is_refused_untouched(tmp_path):
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (folder, pipe):
        for rho in (1.0, None):
            with pytest.raises(ValueError, match="is not a file, so not a privacy ledger"):
                PrivacyLedger(path, rho)
    assert list(folder.iterdir()) == [] and set(tmp_path.iterdir()) == {folder, pipe}


# Permissions


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A folder, and the rights of somebody whom permissions bind (they do not bind root)."""
    with tempfile.TemporaryDirectory() as name:
        root = os.geteuid() == 0
        if root:
            os.chown(name, 65534, -1)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.chmod(name, 0o700)
            if root:
                os.seteuid(0)


@posix
def test_a_read_only_ledger_opens_for_reading_and_refuses_charges():
    with ordinary_user() as folder:
        path = folder / "ledger"
        PrivacyLedger(path, 1.0, create=True).charge(0.5, label="release")
        for file_mode, folder_mode in ((0o444, 0o700), (0o444, 0o500), (0o644, 0o500)):
            path.chmod(file_mode)
            folder.chmod(folder_mode)
            before = snapshot(folder)
            ledger = PrivacyLedger(path, 1.0)
            assert (ledger.spent, len(ledger.to_dataframe())) == (0.5, 1)
            with pytest.raises(PermissionError, match="may be read-only, and a charge needs"):
                ledger.charge(0.1, label="refused")
            assert snapshot(folder) == before
            assert ledger.spent == 0.5


@posix
def test_a_ledger_is_not_created_where_nothing_may_be_written():
    with ordinary_user() as folder:
        folder.chmod(0o500)
        with pytest.raises(PermissionError, match="cannot open or write the ledger"):
            PrivacyLedger(folder / "ledger", 1.0, create=True)
        folder.chmod(0o700)
        assert list(folder.iterdir()) == []


@posix
def test_an_unreadable_ledger_is_a_permission_error():
    with ordinary_user() as folder:
        path = folder / "ledger"
        PrivacyLedger(path, 1.0, create=True)
        path.chmod(0)
        with pytest.raises(PermissionError, match="cannot open or write the ledger"):
            PrivacyLedger(path)
