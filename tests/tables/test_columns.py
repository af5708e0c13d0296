"""Columns that are asked for are there once, or the header is shown with what is near."""

from __future__ import annotations

import pytest

from pymc_dp.tables.columns import check_columns, did_you_mean

HEADER = ["area", "household", "w", "Smoker ", "age_band"]


def test_all_there_is_silent():
    check_columns("a.csv", HEADER, ["w", "area", "w"])


@pytest.mark.parametrize(
    ("needed", "words"),
    [
        (["smokr"], r"a.csv has no column 'smokr' .did you mean 'Smoker '..; it has 'area', 'h"),
        (["SMOKER"], r"'SMOKER' .did you mean 'Smoker '.."),
        (["zzz", "w", "yyy"], r"no column 'zzz', 'yyy'; it has"),
    ],
)
def test_absent_columns_are_named_with_what_is_near(needed, words):
    with pytest.raises(ValueError, match=words):
        check_columns("a.csv", HEADER, needed)


def test_a_column_that_stands_twice_is_refused_only_if_it_is_needed():
    twice = [*HEADER, "area", "note", "note"]
    check_columns("a.csv", twice, ["w"])
    with pytest.raises(ValueError, match=r"a.csv has more than one column 'area'"):
        check_columns("a.csv", twice, ["w", "area"])


def test_a_header_of_many_columns_is_shown_in_part():
    with pytest.raises(ValueError, match=r"it has 'c0', .* 'c11' and 288 more"):
        check_columns("a.csv", [f"c{k}" for k in range(300)], ["w"])


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_another_separator_is_guessed(mark):
    with pytest.raises(
        ValueError, match=r"its header is not separated by ',', but looks so by .* .--sep."
    ):
        check_columns("a.csv", [mark.join(HEADER)], ["w"], sep=",", remedy=" (--sep)")
    with pytest.raises(ValueError, match=r"it has 'area'$"):
        check_columns("a.csv", ["area"], ["w"], sep=",", remedy=" (--sep)")


def test_nothing_near_is_no_guess():
    assert did_you_mean("w", ["area"]) == "" and did_you_mean("", []) == ""


@pytest.mark.parametrize("cell", ["0.7391", " 12", "-1", ".5", "1e-5", "7"])
def test_a_record_in_the_place_of_the_header_is_not_shown(cell):
    """A file without a header would otherwise print its first respondent's answer."""
    with pytest.raises(
        ValueError, match=r"^a.csv has no column 'w': its first line has n"
    ) as refused:
        check_columns("a.csv", ["Kent", "Smith", cell], ["w"])
    assert cell not in str(refused.value) and "Smith" not in str(refused.value)
    check_columns("a.csv", ["w", "2019"], ["w"])
