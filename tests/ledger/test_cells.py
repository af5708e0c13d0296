"""Prices by cell: against people added up one by one, and what a ledger refuses."""

from __future__ import annotations

import json
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp import plan, weight_table
from pymc_dp.ledger import file as ledger_file
from pymc_dp.ledger.ledger import BudgetExceeded, PrivacyLedger
from pymc_dp.ledger.totals import SLACK, sum_up

LABELS = {"area": ["a", "b", "c"], "age": ["1", "2"], "sex": ["f", "m"]}
PRICES = [0.0, 0.1, 0.2, 0.25, 1 / 3, 1e-9]


@st.composite
def programmes(draw):
    """Columns, some of their combinations, and charges: (price or prices by label, part)."""
    columns = draw(st.sampled_from([["area"], ["area", "age"], ["area", "age", "sex"]]))
    full = pd.MultiIndex.from_product([LABELS[c] for c in columns], names=columns).to_frame(False)
    chosen = draw(st.lists(st.integers(0, len(full) - 1), min_size=1, unique=True))
    cells = full.iloc[chosen]
    charges = []
    for _ in range(draw(st.integers(0, 7))):
        part = draw(st.sampled_from([None, None, "north", " NORTH", "south"]))
        column = draw(st.sampled_from([None, *columns]))
        if column is None:
            price = draw(st.sampled_from(PRICES[1:]))
        else:
            labels = sorted(cells[column].unique())
            values = [draw(st.sampled_from(PRICES)) for _ in labels]
            values[draw(st.integers(0, len(labels) - 1))] = draw(st.sampled_from(PRICES[1:]))
            price = pd.Series(values, index=pd.Index(labels, name=column))
        charges.append((price, part))
    return cells, charges


def cost(price, person: dict[str, str]) -> Fraction:
    """What a charge takes from a person, exactly."""
    if isinstance(price, pd.Series):
        return Fraction(float(price[person[price.index.name]]))
    return Fraction(price)


@settings(max_examples=60, deadline=None)
@given(programmes())
def test_no_person_ever_pays_more_than_the_budget_and_spent_is_what_the_costliest_pays(programme):
    """Against every possible person, one by one, in exact fractions."""
    cells, charges = programme
    everybody = [
        row | {"part": part}
        for row in cells.to_dict("records")
        for part in (None, "north", "south")
    ]
    paid = [Fraction(0)] * len(everybody)
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "ledger", 0.8, create=True, cells=cells)
        for price, part in charges:
            key = part and part.strip().casefold()
            asked = [cost(price, p) * (key in (None, p["part"])) for p in everybody]
            after = [a + b for a, b in zip(paid, asked, strict=True)]
            touched = max(a for a, b in zip(after, asked, strict=True) if b > 0)
            if touched <= Fraction(0.8 * (1 + SLACK)):
                ledger.charge(price, label="release", part=part)
                paid = after
            else:
                with pytest.raises(BudgetExceeded) as refusal:
                    ledger.charge(price, label="release", part=part)
                error = refusal.value
                worst = [i for i, a in enumerate(after) if a == touched]
                assert (error.spent, error.asked) in {
                    (least_float_above(paid[i]), float(asked[i])) for i in worst
                }
                assert 0 <= Fraction(error.left) <= max(Fraction(0.8) - Fraction(error.spent), 0)
            assert ledger.spent == least_float_above(max(paid))
            assert Fraction(ledger.remaining) <= max(Fraction(0.8) - max(paid), 0)
            for column in cells.columns:
                for label, spent in ledger.spent_by(column).items():
                    exact = max(
                        p for p, row in zip(paid, everybody, strict=True) if row[column] == label
                    )
                    # Sums of a few floats, rounded up: off by some units in the last place.
                    assert exact <= Fraction(spent) <= exact * Fraction(1 + 1e-14)
        reopened = PrivacyLedger(ledger.path, cells=cells.sample(frac=1.0, random_state=1))
        assert reopened.spent == ledger.spent


def least_float_above(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else float(np.nextafter(near, np.inf))


@given(st.lists(st.floats(1e-300, 1e300), max_size=20))
def test_a_sum_is_the_least_float_that_is_not_below_it(prices):
    assert sum_up(prices) == least_float_above(sum(map(Fraction, prices), Fraction(0)))


def test_with_all_combinations_possible_the_total_is_the_sum_of_maxima(tmp_path):
    rng = np.random.default_rng(1)
    index = pd.MultiIndex.from_product([range(40), range(30)], names=["puma", "age"])
    prices = [
        pd.Series(rng.uniform(0, 0.01, n), index=pd.Index(range(n), name=name))
        for name, n in (("puma", 40), ("age", 30), ("puma", 40))
    ]
    cells = index.to_frame(index=False)
    ledger = PrivacyLedger(tmp_path / "all", 1.0, create=True, cells=cells)
    fewer = PrivacyLedger(
        tmp_path / "few", 1.0, create=True, cells=cells[cells["puma"] % 30 != cells["age"]]
    )
    for price in prices:
        ledger.charge(price, label="release")
        fewer.charge(price, label="release")
    by_age = (prices[0] + prices[2]).max() + prices[1].max()
    assert ledger.spent == pytest.approx(by_age, rel=1e-14)  # three additions
    assert fewer.spent < ledger.spent
    assert list(ledger.to_dataframe()["rho"]) == [price.max() for price in prices]


def test_the_price_of_a_release_may_exceed_those_of_cells_and_not_the_reverse(tmp_path):
    cells = pd.DataFrame({"area": ["a", "b"]})
    ledger = PrivacyLedger(tmp_path / "l", 1.0, create=True, cells=cells)
    prices = pd.Series({"a": 0.5, "b": 0.25}).rename_axis("area")
    ledger.charge(0.75, label="release", cells=prices)
    assert ledger.spent == 0.5
    assert ledger.to_dataframe()["rho"][1] == 0.75
    assert ledger.to_dataframe()["cells"][1] == "area"
    assert ledger.to_dataframe()["prices"][1] == {"a": 0.5, "b": 0.25}
    with pytest.raises(ValueError, match="not above rho"):
        ledger.charge(0.4, label="release", cells=prices)
    with pytest.raises(BudgetExceeded, match=r"people in area a: rho 0\.5 is spent, 0\.6 was"):
        ledger.charge(0.6, label="release")
    with pytest.raises(BudgetExceeded, match=r"people in area b.* 0\.25 is spent, 1 was"):
        ledger.charge(pd.Series({"a": 0.5, "b": 1.0}).rename_axis("area"), label="release")
    ledger.charge(pd.Series({"a": 0.0, "b": 0.75}).rename_axis("area"), label="of b alone")
    assert ledger.spent == 1.0 and ledger.remaining == 0.0
    assert list(ledger.spent_by("area").index) == ["a", "b"]
    assert "cells=2 combinations of area" in repr(ledger)


AREA = pd.Index(["a", "b"], name="area")
MORE = pd.Index(["a", "b", "c"], name="area")
HIDDEN = ["\u200b", "\u00ad", "\ufeff", "\u202e", "\x00", "\x1b[2J"]
HIDDEN += ["\u2060", "\u3164", "\ud800", "\x7f"]


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        (pd.Series([0.1, 0.2], index=["a", "b"]), "index of the prices is named None.*rename_axis"),
        (pd.Series([0.1, 0.2], index=pd.Index(["a", "b"], name="puma")), "named 'puma'"),
        (pd.Series([0.1], index=AREA[:1]), "1 cells have no price: b"),
        (
            pd.Series([0.1, 0.2, 0.3], index=AREA.append(pd.Index(["c"], name="area"))),
            "not in .* c",
        ),
        (pd.Series([0.1, 0.2, 0.3], index=AREA.append(AREA[:1])), "1 cells have two prices: a"),
        (pd.Series([0.1, np.nan], index=AREA), "missing, not finite or below 0 in 1 cells: b"),
        (pd.Series([np.inf, 0.1], index=AREA), "in 1 cells: a"),
        (pd.Series([-0.1, 0.1], index=AREA), "in 1 cells: a"),
        (pd.Series([0.0, 0.0], index=AREA), "rho must be a positive finite number"),
        (pd.Series(["0.1", "0.2"], index=AREA), "prices must be numbers"),
        (pd.Series([True, False], index=AREA), "prices must be numbers"),
        (np.array([0.1, 0.2]), "must be a pandas Series of prices"),
    ],
)
def test_prices_that_do_not_fit_the_cells_are_refused_and_nothing_is_charged(
    tmp_path, prices, words
):
    cells = pd.DataFrame({"area": ["a", "b"]})
    ledger = PrivacyLedger(tmp_path / "l", 1.0, create=True, cells=cells)
    with pytest.raises(ValueError, match=words):
        ledger.charge(prices, label="release")
    with pytest.raises(ValueError, match=words.replace("rho must be a .*", "above 0")):
        ledger.charge(0.5 if "positive" not in words else 0.0, label="release", cells=prices)
    assert ledger.to_dataframe().empty


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (pd.DataFrame(), "with a row for each"),
        ([["a"]], "pandas DataFrame"),
        (pd.DataFrame({"area": ["a", None]}), "column 'area' of cells lacks 1 labels"),
        (pd.DataFrame({"area": ["a", "A "]}), "two spellings of a label: 'a' and 'A '"),
        (pd.DataFrame({"area": ["a", "a\u200b"]}), "two spellings of a label"),
        (pd.DataFrame({"area": [1, "1"]}, dtype=object), "two spellings of a label"),
        (pd.DataFrame({"area": ["a"], "Area": ["b"]}), "almost the same name: 'area' and 'Area'"),
        (pd.DataFrame({0: ["a"]}), "the name of a column of cells must be text"),
    ],
)
def test_cells_that_could_be_taken_for_others_are_refused(tmp_path, cells, words):
    with pytest.raises(ValueError, match=words):
        PrivacyLedger(tmp_path / "l", 1.0, create=True, cells=cells)
    assert list(tmp_path.iterdir()) == []


def test_cells_are_fixed_at_creation(tmp_path):
    cells = pd.DataFrame({"area": [1, 1, 2], "age": ["x", "y", "x"]})
    PrivacyLedger(tmp_path / "l", 1.0, create=True, cells=cells)
    PrivacyLedger(tmp_path / "plain", 1.0, create=True)
    same = pd.concat([cells[["age", "area"]][::-1]] * 2)
    assert PrivacyLedger(tmp_path / "l", cells=same).spent == 0
    for path, other in (("l", cells[:2]), ("plain", cells)):
        with pytest.raises(ValueError, match="fixed at creation; they disagree"):
            PrivacyLedger(tmp_path / path, cells=other)
    plain = PrivacyLedger(tmp_path / "plain")
    with pytest.raises(ValueError, match="was created without cells"):
        plain.charge(pd.Series([0.1], index=pd.Index([1], name="area")), label="release")
    with pytest.raises(ValueError, match="no column 'area' of cells; it has no cells"):
        plain.spent_by("area")


# The published example


def test_acs_by_puma_and_by_state_and_age_costs_less_than_the_sum_of_the_largest(shared, tmp_path):
    """Poverty in 2,462 PUMAs, then by state and four age groups: 1.743 as maxima, 1.257 by unit."""
    files = sorted((shared / "data").glob("acs_pums_2024_persons_part*.csv.gz"))
    if len(files) != 6:
        pytest.skip("the files of the ACS 2024 are not here")
    columns = ["puma", "w", "age", "povpip"]
    records = pd.concat(pd.read_csv(f, usecols=columns, dtype={"puma": str}) for f in files)
    records = records[records["povpip"].notna()]
    band = np.digitize(records["age"], [18, 35, 65]).astype(str)
    records["state_age"] = records["puma"].str[:2] + "/" + band
    prices = {}
    for column, sigma_u in (("puma", 0.06), ("state_age", 0.04)):
        areas = weight_table(records, weight="w", area=column, rate=0.12)
        price = plan(areas, sigma_u=sigma_u)["rho_respondent"].to_series()
        prices[column] = price.rename_axis(column)
    # Every age is possible in every PUMA, whoever was asked.
    pumas = records["puma"].unique()
    cells = pd.DataFrame(
        [(puma, f"{puma[:2]}/{age}") for puma in pumas for age in range(4)],
        columns=["puma", "state_age"],
    )
    ledger = PrivacyLedger(tmp_path / "acs", 2.0, create=True, cells=cells)
    for column, price in prices.items():
        ledger.charge(price, label=f"poverty by {column}")
    assert sum(price.max() for price in prices.values()) == pytest.approx(1.743, abs=5e-4)
    assert ledger.spent == pytest.approx(1.257, abs=5e-4)


# A file of the first format


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger that was written before there were cells, names and parts."""
    kept = Path(__file__).parent / "files" / "format-1.ledger"
    return Path(shutil.copy(kept, tmp_path / "old.ledger"))


def test_a_ledger_of_the_first_format_opens_charges_and_keeps_its_format(old):
    before = old.read_bytes()
    ledger = PrivacyLedger(old, 1.0, conditional=True)
    frame = ledger.to_dataframe()
    assert list(frame["part"]) == [None, "North", "north\u200b", "south"]
    assert list(frame["rho"]) == [0.125, 0.25, 0.0625, 0.25]
    assert list(frame["cells"]) == [None] * 4
    assert frame["record"][1] == {"unit": "household", "claim": "formal"}
    # Two names that differ by what cannot be seen were two parts when this was written.
    assert ledger.spent == 0.125 + 0.25 + 0.0625
    assert ledger.programme is None and "programme" not in repr(ledger)
    assert old.read_bytes() == before
    ledger.charge(0.5, label="more, north", part="NORTH")
    assert ledger.spent == 0.9375
    with pytest.raises(BudgetExceeded):
        ledger.charge(0.125, label="too much")
    with pytest.raises(ValueError, match="was created without cells"):
        ledger.charge(pd.Series({"a": 0.1}).rename_axis("area"), label="release")
    with pytest.raises(ValueError, match="names no programme, not that of 'health'"):
        PrivacyLedger(old, programme="health")
    with ledger_file.transaction(old) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        [row] = connection.execute("SELECT * FROM entries WHERE entry = 5").fetchall()
    assert row[2:6] == ("more, north", 0.5, "formal", "NORTH") and row[6] is None


def test_an_opened_ledger_of_the_first_format_knows_another_in_its_place(old):
    ledger = PrivacyLedger(old)
    old.unlink()
    PrivacyLedger(old, 1.0, create=True, conditional=True)
    with pytest.raises(ValueError, match="not the ledger that was opened"):
        ledger.charge(0.1, label="release")


# Names


@pytest.mark.parametrize(
    "other",
    ["North side", " north\u00a0 SIDE", "north\tside", "\uff4eorth side", "nort\u200dh side"],
)
def test_names_that_look_alike_are_one_part(tmp_path, other):
    ledger = PrivacyLedger(tmp_path / "l", 1.0, create=True)
    ledger.charge(0.5, label="release", part="north side")
    ledger.charge(0.25, label="release", part=other)
    assert ledger.spent == 0.75


@pytest.mark.parametrize(
    "hidden",
    [
        "\u200b",
        "\u00ad",
        "\ufeff",
        "\u202e",
        "\x00",
        "\x1b[2J",
        "\u2060",
        "\u3164",
        "\ud800",
        "\x7f",
    ],
)
@pytest.mark.parametrize("argument", ["part", "label", "programme"])
def test_characters_that_cannot_be_seen_are_refused(tmp_path, hidden, argument):
    ledger = PrivacyLedger(tmp_path / "l", 1.0, create=True)
    with pytest.raises(ValueError, match=r"holds characters that cannot be seen \(U\+"):
        if argument == "programme":
            PrivacyLedger(tmp_path / "m", 1.0, create=True, programme=f"a{hidden}b")
        else:
            ledger.charge(0.5, **{"label": "release", argument: f"nor{hidden}th"})
    assert ledger.to_dataframe().empty


def test_a_ledger_says_what_its_entries_protect(tmp_path):
    ledger = PrivacyLedger(tmp_path / "l", 1.0, create=True)
    ledger.charge(0.25, label="a", record={"unit": "respondent"})
    ledger.charge(0.25, label="b", record={"unit": "household", "protects": "record"})
    assert "protects=answer of one respondent; record of one household" in repr(ledger)
    assert json.loads(json.dumps(ledger.to_dataframe()["record"][2]))["protects"] == "record"
