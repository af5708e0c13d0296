"""Files that the command line reads: how they are written, what they hold, and what is refused."""

from __future__ import annotations

import argparse
import decimal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pymc_dp.cli.arguments import parser
from pymc_dp.cli.records import check_files, read_covariates, read_records

ROWS = "area,hh,w,y\n00100,7,1.5,1\n00101,07,2,0\n NA,7.0,3,NA\n,x,4,1\n"


def arguments(records: Path, *more: str) -> argparse.Namespace:
    command = ["plan", str(records), "--weight", "w", "--area", "area", "--unit", "hh"]
    return parser().parse_args([*command, "--rate", "0.2", "--sigma-u", "0.1", *map(str, more)])


def records_of(path: Path, *more: str, drop: bool = False) -> tuple[pd.DataFrame, int]:
    args = arguments(path, *more)
    files = check_files(args, ["y", "w"])
    return read_records(files.records, numbers=["y", "w"], area=["area"], unit=["hh"], drop=drop)


def covariates_of(folder: Path, path: Path, formula: str, *more: str) -> pd.DataFrame:
    (folder / "r.csv").write_text(ROWS)
    args = arguments(folder / "r.csv", "--covariates", path, "--formula", formula, *more)
    read = read_covariates(check_files(args, ["w"]), ["area"])
    assert read is not None
    return read


def check(frame: pd.DataFrame) -> None:
    assert frame["area"].fillna("").tolist() == ["00100", "00101", " NA", ""]
    assert frame["hh"].tolist() == ["7", "07", "7.0", "x"]
    np.testing.assert_array_equal(frame["w"], [1.5, 2, 3, 4])
    np.testing.assert_array_equal(frame["y"], [1, 0, np.nan, 1])


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", ROWS.encode(), []),
        ("a.txt", ROWS.encode("utf-8-sig"), []),
        ("a.csv", ROWS.encode("utf-16"), []),
        ("a.csv", ROWS.encode("utf-16-le"), ["--encoding", "utf-16-le"]),
        ("a.csv", ROWS.encode("cp500"), ["--encoding", "cp500"]),
        ("a.csv", ROWS.replace(",", ";").encode(), ["--sep", ";"]),
        ("a.txt", ROWS.replace(",", "\t").encode(), ["--sep", "tab"]),
        ("a.txt", ROWS.replace(",", "\t").encode(), ["--sep", r"\t"]),
        ("a.tsv", ROWS.replace(",", "\t").encode(), []),
        ("a.csv", ROWS.replace("\n", "\r\n").encode(), []),
        ("a.csv", ROWS.replace("NA\n", "(X)\n").encode(), ["--na-values", "(X)", "-9"]),
        ("a.csv", ROWS.replace("3,NA", "3,9").encode(), ["--na-values", "y=9"]),
    ],
)
def test_records_are_the_same_however_they_are_written(tmp_path, name, content, options):
    path = tmp_path / name
    path.write_bytes(content)
    frame, dropped = records_of(path, *options)
    check(frame)
    kept, dropped = records_of(path, *options, drop=True)
    assert dropped == 1 and len(kept) == 3


def test_letters_beyond_ascii_in_latin_1_are_named_or_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(ROWS.replace("00101", "Málaga").encode("latin-1"))
    with pytest.raises(ValueError, match=r"a.csv, line 3: not UTF-8; .* --encoding latin-1"):
        records_of(path)
    frame, _ = records_of(path, "--encoding", "latin-1")
    assert frame["area"].iloc[1] == "Málaga"


def test_a_code_that_stands_for_no_area_can_be_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(ROWS)
    kept, dropped = records_of(path, "--na-values", "area=00101", "area= NA", drop=True)
    assert kept["area"].tolist() == ["00100"] and dropped == 3
    # To the letter: 00100 is not 100.
    assert records_of(path, "--na-values", "area=100", drop=True)[1] == 1


class TestParquet:
    FRAME = pd.DataFrame(
        {
            "area": ["00100", "00101", " NA", None],
            "hh": ["7", "07", "7.0", "x"],
            "w": [1.5, 2, 3, 4],
            "y": [1, 0, np.nan, 1],
        }
    )

    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"area": "category"},
            {"w": "float32"},
            {"y": "Int8"},
            {"y": "boolean"},
            {"w": [decimal.Decimal(d) for d in ("1.5", "2", "3", "4")]},
            {"w": "category"},
        ],
        ids=str,
    )
    def test_gives_the_records_of_text(self, tmp_path, change):
        path = tmp_path / "a.parquet"
        frame = self.FRAME.copy()
        for name, kind in change.items():
            frame[name] = frame[name].astype(kind) if isinstance(kind, str) else kind
        frame.to_parquet(path, index=False, row_group_size=2)
        found, _ = records_of(path)
        check(found)

    @pytest.mark.parametrize(
        ("codes", "labels"),
        [
            ([1, 2, 3, 40], ["1", "2", "3", "40"]),
            ([1.0, np.nan, 3.0, 40.0], ["1", "", "3", "40"]),
            ([2.0**53 - 1, 1.0, 2.0, 3.0], ["9007199254740991", "1", "2", "3"]),
            ([None] * 4, [""] * 4),
        ],
    )
    def test_codes_that_are_numbers_become_text(self, tmp_path, codes, labels):
        self.FRAME.assign(area=codes).to_parquet(tmp_path / "a.parquet", index=False)
        found, _ = records_of(tmp_path / "a.parquet")
        assert found["area"].fillna("").tolist() == labels

    @pytest.mark.parametrize(
        ("name", "values", "words"),
        [
            ("area", [1.5, 2, 3, 4], "holds numbers with decimals: codes are text or whole"),
            ("area", [2.0**53, 2, 3, 4], "holds numbers with decimals"),
            ("area", [np.inf, 2, 3, 4], "holds numbers with decimals"),
            ("hh", [True, False, True, True], "holds bool: codes are text or whole numbers"),
            ("hh", [b"a", b"b", b"c", b"d"], "holds binary: codes are text or whole numbers"),
            ("w", ["1", "2", "3", "4"], "holds .*string, not numbers"),
            ("y", pd.to_datetime(["2020-01-01"] * 4), r"holds timestamp.*, not numbers"),
        ],
    )
    def test_refuses_what_is_neither(self, tmp_path, name, values, words):
        self.FRAME.assign(**{name: values}).to_parquet(tmp_path / "a.parquet", index=False)
        with pytest.raises(ValueError, match=rf"a.parquet: column '{name}' {words}"):
            records_of(tmp_path / "a.parquet")

    def test_names_what_is_damaged_empty_or_not_there(self, tmp_path):
        path = tmp_path / "a.parquet"
        self.FRAME.drop(columns="w").to_parquet(path, index=False)
        with pytest.raises(ValueError, match=r"a.parquet has no column 'w'; it has 'area'"):
            records_of(path)
        self.FRAME.iloc[:0].to_parquet(path, index=False)
        with pytest.raises(ValueError, match=r"a.parquet has columns and no rows"):
            records_of(path)
        self.FRAME.to_parquet(path, index=False)
        content = path.read_bytes()
        path.write_bytes(content[:10] + b"\xff" * 200 + content[210:])
        with pytest.raises(ValueError, match=r"a.parquet is (damaged|no Parquet)"):
            records_of(path)


class TestCovariates:
    def write(self, folder: Path, cells: list[str], name="x") -> Path:
        path = folder / "x.csv"
        areas = ["00100", "00101", "00102", "00103"]
        rows = [f"{a},{c},note {a}" for a, c in zip(areas, cells, strict=True)]
        path.write_text("\n".join([f"area,{name},notes", *rows]))
        return path

    def test_numbers_are_numbers_and_codes_of_areas_text(self, tmp_path):
        path = self.write(tmp_path, ["1", " 2.5", "", "-9"])
        found = covariates_of(tmp_path, path, "~ x", "--na-values", "-9")
        assert found.index.tolist() == ["00100", "00101", "00102", "00103"]
        np.testing.assert_array_equal(found["x"], [1, 2.5, np.nan, np.nan])
        assert list(found) == ["x"]

    def test_text_throughout_is_text(self, tmp_path):
        found = covariates_of(tmp_path, self.write(tmp_path, ["a", "b", "NA", "a"]), "~ x")
        assert found["x"].tolist() == ["a", "b", "NA", "a"]

    @pytest.mark.parametrize("mark", ["(X)", "52 100", "-", "*", "1.5%"])
    def test_text_among_numbers_is_refused_by_area(self, tmp_path, mark):
        """It would make every number a level of its own: a model with as many terms as areas."""
        path = self.write(tmp_path, ["1", mark, "3", "4"])
        with pytest.raises(ValueError, match=r"x.csv: column 'x' holds no number in 1 of 4 areas, "
                                             r"00101, other .* --na-values"):  # fmt: skip
            covariates_of(tmp_path, path, "~ x")
        np.testing.assert_array_equal(
            covariates_of(tmp_path, path, "~ x", "--na-values", mark)["x"], [1, np.nan, 3, 4]
        )
        # What the formula does not use may be anything.
        assert covariates_of(tmp_path, path, "~ 1").shape == (4, 0)

    def test_a_number_among_texts_is_refused_by_area(self, tmp_path):
        path = self.write(tmp_path, ["1", "a", "b", "c"])
        with pytest.raises(ValueError, match="holds a number in 1 of 4 areas, 00100"):
            covariates_of(tmp_path, path, "~ x")

    def test_names_with_blanks_and_functions(self, tmp_path):
        path = self.write(tmp_path, ["1", "2", "3", "4"], name="my x")
        assert list(covariates_of(tmp_path, path, "~ `my x` + log(`my x`)")) == ["my x"]

    def test_parquet_keeps_types_and_takes_decimals_for_numbers(self, tmp_path):
        path = tmp_path / "x.parquet"
        pd.DataFrame(
            {"area": ["00100", "00101"], "x": [decimal.Decimal(1), None], "k": [1, 2]}
        ).to_parquet(path, index=False)
        found = covariates_of(tmp_path, path, "~ x + k")
        np.testing.assert_array_equal(found["x"], [1, np.nan])
        assert found["k"].dtype == "int64"


HEAVY = {"pymc", "pytensor", "arviz", "pandas", "numpy", "xarray", "scipy", "formulaic"}


@pytest.mark.parametrize(
    "change",
    [
        ["--outcome", "smokr"],
        ["--weight", "weigth"],
        ["--area", "conty"],
        ["--unit", "hous"],
        ["--rate", "17"],
        ["--sigma-u", "4"],
        ["--formula", "~ x"],
        ["--out", "a.csv"],
        ["--ledger", "none.ledger"],
        ["--declare", "sigma=x"],
        ["--sep", ";"],
        ["--covariates", "none.csv"],
    ],
    ids=" ".join,
)
def test_a_mistake_in_the_arguments_is_said_before_anything_is_loaded(tmp_path, change):
    """Loading PyMC takes seconds."""
    (tmp_path / "r.csv").write_text("area,household,weight,smoker\nA,1,2.5,1\n")
    command = ["release", "r.csv", "--outcome", "smoker", "--weight", "weight", "--area", "area"]
    command += ["--rate", "0.2", "--sigma-u", "0.1", "--out", "a.nc"]
    command += ["--declare", "sigma_u=a", "sampling_variance=b", *change]
    code = f"""
import json, sys
from pymc_dp.cli import main
try:
    code = main({command!r})
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted({HEAVY!r} & set(sys.modules))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=tmp_path)  # fmt: skip
    assert done.stdout == "[2, []]\n"
    [line] = done.stderr.splitlines()
    assert line.startswith("pymc-dp: error: ")
    assert [p.name for p in tmp_path.iterdir()] == ["r.csv"]
