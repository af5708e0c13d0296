"""Messages in the words of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymc_dp.cli.words import about, in_options, one_line


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("pass unit=['puma', 'hh']; or", "pass --unit puma --unit hh; or"),
        ("unit=['my area']", "--unit 'my area'"),
        ("take missing='drop'", "take --missing drop"),
        ("hajek(variance='kish') with", "--variance kish with"),
        ("labels='as-given' accepts", "--labels as-given accepts"),
        ("created with conditional=True", "created with --conditional"),
        ("spanning='bound' raises", "in Python spanning='bound' raises"),
        ("strata=['a', 'b']", "in Python strata=['a', 'b']"),
        ("take method='noise'", "take in Python method='noise'"),
        ("column 'w': 2 missing", "column 'w': 2 missing"),
        ("--declare sigma_u=SOURCE", "--declare sigma_u=SOURCE"),
    ],
)
def test_arguments_become_options(python, words):
    assert in_options(python) == words


def test_errors_are_one_line_without_colours():
    assert one_line(ValueError("a\n  b \x1b[1;31m(\x1b[0m")) == "a b ("
    assert one_line(FileNotFoundError(2, "No such file", "a.csv")) == "a.csv: No such file"
    assert one_line(KeyError()) == "KeyError"


def test_a_refusal_names_its_file_once():
    path = Path("a.csv")
    for given, words in (
        ("column 'w': 1 missing weight", "a.csv: column 'w': 1 missing weight"),
        ("a.csv, line 3: no number", "a.csv, line 3: no number"),
        ("--rate: 2", "--rate: 2"),
    ):
        with pytest.raises(ValueError) as refused, about(path):
            raise ValueError(given)
        assert str(refused.value) == words
    with pytest.raises(ValueError, match=r"^x$"), about(None):
        raise ValueError("x")
