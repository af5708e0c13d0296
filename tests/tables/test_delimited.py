"""Every cell under its own column's name, or a refusal with the line and without a cell."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.tables import files
from pymc_dp.tables.delimited import open_path, open_table, read_rows
from pymc_dp.tables.files import Dialect

WORDS = Dialect(command_line=True)
HEADER = "id,area,stratum,w,wraw,y,female"
ROWS = [f"{k},A{k % 2},{k % 3},{10 + k},{20 + k},{k % 2},1" for k in range(1, 7)]


def table_of(content: str | bytes, dialect: Dialect = WORDS):
    content = content if isinstance(content, bytes) else content.encode()
    return open_table(io.BytesIO(content), "a.csv", dialect)


def read(content, texts=(), numbers=(), dialect: Dialect = WORDS) -> pd.DataFrame:
    parts = list(read_rows(table_of(content, dialect), texts=texts, numbers=numbers))
    return pd.concat(parts, ignore_index=True)


def written(*lines: str, end="\n") -> str:
    return "".join(line + end for line in lines)


CELLS = st.text('ab ,;\t"\né\x0b\u20280', max_size=5)


@st.composite
def tables(draw, cells=CELLS, least=0):
    width = draw(st.integers(1, 5))
    rows = st.lists(cells, min_size=width, max_size=width)
    return [[f"c{k}" for k in range(width)], *draw(st.lists(rows, min_size=least, max_size=8))]


class TestText:
    @given(
        rows=tables(least=1),
        sep=st.sampled_from(",;\t| "),
        end=st.sampled_from(["\n", "\r\n"]),
        quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        block=st.sampled_from([1, 5, 17, 1 << 23]),
        data=st.data(),
    )
    def test_cells_are_those_that_the_csv_module_wrote(self, rows, sep, end, quoting, block, data):
        """Quotes, separators, line ends and marks within cells; blocks that end anywhere."""
        file = io.StringIO(newline="")
        writer = csv.writer(file, delimiter=sep, lineterminator=end, quoting=quoting)
        writer.writerows(rows)
        header, body = rows[0], rows[1:]
        asked = data.draw(st.lists(st.sampled_from(header), min_size=1, unique=True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "BLOCK", block)
            # A single column's blank cell is a blank line.
            body = [row for row in body if len(row) > 1 or row[0].strip(" \t")]
            if not body:
                with pytest.raises(ValueError, match="no rows"):
                    read(file.getvalue(), asked, dialect=Dialect(sep))
                return
            found = read(file.getvalue(), asked, dialect=Dialect(sep))
        assert list(found) == asked
        for name in asked:
            want = [row[header.index(name)] for row in body]
            assert found[name].fillna("").tolist() == want
            assert found[name].isna().tolist() == [cell == "" for cell in want]

    def test_codes_are_text_whatever_they_look_like(self):
        codes = ["00100", "7", "7.0", "1e3", "NA", "", "True", "2024-01-01", "12345678901234567"]
        found = read(written("code,w", *(f"{code},1" for code in codes)), ["code"], ["w"])
        assert found["code"].fillna("").tolist() == codes

    def test_a_code_that_is_number_like_in_one_part_stays_text(self, monkeypatch):
        """What reads a file in pieces and guesses has numbers in one and text in another."""
        monkeypatch.setattr(files, "BLOCK", 40)
        codes = ["1"] * 50 + ["x"] + ["1"] * 50
        assert (
            read(written("code,w", *(f"{code},1" for code in codes)), ["code"])["code"].tolist()
            == codes
        )


class TestRows:
    @pytest.mark.parametrize("column", ["female", "y", "id"])
    def test_rows_that_end_in_one_more_separator_are_refused(self, column):
        """C08: the first cell becomes an index, and every other stands under its neighbour."""
        content = written(HEADER, *(row + "," for row in ROWS))
        with pytest.raises(
            ValueError, match=r"^a.csv, line 2: 8 cells .* of 7: rows end in one more ','"
        ):
            read(content, [column])

    def test_a_header_that_ends_so_too_is_a_column_without_a_name(self):
        found = read(written(HEADER + ",", *(row + "," for row in ROWS)), ["area"], ["w", "y"])
        assert found["w"].tolist() == [11, 12, 13, 14, 15, 16]
        assert found["y"].tolist() == [1, 0, 1, 0, 1, 0]

    @given(
        rows=tables(least=1),
        quoted=st.booleans(),
        change=st.sampled_from([-1, 1, 2]),
        block=st.sampled_from([1, 9, 1 << 23]),
        data=st.data(),
    )
    def test_a_row_of_another_length_is_refused_with_its_line(
        self, rows, quoted, change, block, data
    ):
        """Wherever it is, and also where blank lines and line ends within quotes precede it."""
        width = len(rows[0])
        odd = data.draw(st.integers(1, len(rows) - 1))
        rows = [row[:] for row in rows]
        rows[odd] = (rows[odd] + ["x"] * 2)[: width + change]
        if len(rows[odd]) in (0, width) or (width == 1 and change < 0):
            return
        file = io.StringIO(newline="")
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL * quoted)
        at = 0
        for number, row in enumerate(rows):
            if number == odd:
                at = 1 + file.getvalue().count("\n")
            if number != odd and len(row) == 1 and not row[0].strip(" \t"):
                continue
            writer.writerow(row)
        if len(rows[odd]) == 1 and not rows[odd][0].strip(" \t"):
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "BLOCK", block)
            with pytest.raises(
                ValueError, match=rf"^a.csv, line {at}: \d+ cells under a header of"
            ):
                read(file.getvalue(), ["c0"])

    def test_one_longer_and_one_shorter_row_do_not_make_up_for_each_other(self):
        content = written(HEADER, *ROWS[:2], ROWS[2] + ",9", ROWS[3][:-2], *ROWS[4:])
        with pytest.raises(ValueError, match=r"line 4: 8 cells under a header of 7, so which cell"):
            read(content, ["area"], ["w"])

    def test_a_file_that_was_cut_is_refused(self):
        content = written(HEADER, *ROWS)
        with pytest.raises(ValueError, match=r"line 7: 5 cells under a header of 7"):
            read(content[: content.rindex(",", 0, -3) - 1], ["area"], ["w"])

    def test_blank_lines_are_no_rows_and_are_counted_as_lines(self):
        content = written("", "  ", "area,w", "A,1", "", "\t", "B,2", "", '"C\n",3', "", "D,x", "")
        with pytest.raises(ValueError, match=r"a.csv, line 12: no number in column 'w'"):
            read(content, ["area"], ["w"])
        assert read(content.replace("D,x", "D,4"), ["area"], ["w"])["w"].tolist() == [1, 2, 3, 4]

    def test_blanks_at_the_beginning_of_a_line_belong_to_the_cell(self, monkeypatch):
        """Also where what parses the cells has just refilled its buffer of 262,144 bytes."""
        rows = [f"   A{k:04d},{'x' * 5}" for k in range(30_000)]
        found = read(written("area,note", *rows), ["area"])
        assert set(found["area"].str[:4]) == {"   A"}

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "a.csv is empty"),
            ("\n\n", "a.csv is empty"),
            ('""\n', "a.csv is empty"),
            ("area,w", "a.csv has a header and no rows"),
            ("area,w\n\n \n", "a.csv has a header and no rows"),
            ('"area,w\nA,1\n', "a.csv, line 1: in the header a quote that is not closed"),
            ('area,w\n"A,1\nB,2\n', "a.csv, line 2: a quote that is not closed"),
            ('area,w\nA,1\n"B"b,2\n', "a.csv, line 3: a quote .* not doubled"),
            (
                "area;w\nA;1\n",
                "'area', 'w': its header is not .* by ',', but looks so by ';' .--sep.",
            ),
            ("area w\nA 1\n", "no column 'area' .did you mean 'area w'"),
            ("area,w,w\nA,1,1\n", "more than one column 'w'"),
        ],
    )
    def test_what_is_no_table_is_refused(self, content, words):
        with pytest.raises(ValueError, match=words):
            read(content, ["area"], ["w"])

    def test_a_quote_within_a_cell_without_quotes_is_a_letter(self):
        found = read('area,w,note\nA,1,5" pipe\nB,2,"5"" pipe"\n', ["note"])
        assert found["note"].tolist() == ['5" pipe', '5" pipe']

    def test_a_stray_quote_does_not_swallow_the_rest(self, monkeypatch):
        monkeypatch.setattr(files, "BLOCK", 1000)
        rows = [f"A{k},1" for k in range(100_000)]
        rows[500] = '"A500,1'
        with pytest.raises(ValueError, match=r"a.csv, line 502: a quote that is not closed"):
            read(written("area,w", *rows), ["area"])


class TestNumbers:
    @given(
        values=st.lists(
            st.one_of(st.none(), st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9)), min_size=1
        ),
        block=st.sampled_from([1, 13, 1 << 23]),
        blanks=st.booleans(),
    )
    def test_numbers_are_read_as_written(self, values, block, blanks):
        pad = " " * blanks
        cells = ["NA" if value is None else f"{pad}{value!r}{pad}" for value in values]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "BLOCK", block)
            found = read(written("w,a", *(f"{cell},x" for cell in cells)), ["a"], ["w"])
        want = [np.nan if value is None else float(value) for value in values]
        # The parser's own reading of decimals may be off by the last digit.
        np.testing.assert_allclose(found["w"], want, rtol=4e-16, atol=0)

    @pytest.mark.parametrize("code", ["", ".", "NA", "N/A", "nan", "NULL", "None", " NA "])
    def test_what_survey_files_write_for_nothing_is_missing(self, code):
        found = read(written("w,area", "1,A", f"{code},B", "3,C"), ["area"], ["w"])
        np.testing.assert_array_equal(found["w"], [1, np.nan, 3])

    def test_codes_of_missing_numbers_can_be_named_for_all_columns_and_for_one(self):
        dialect = Dialect(missing=(*files.MISSING, "(X)", "-9"), missing_in={"y": ("7", "9")})
        content = written("y,w,area", "1,9,7", "7,2,9", "9.0,-9.0,x", "0,(X),y", "0,7,(X)")
        found = read(content, ["area"], ["y", "w"], dialect)
        np.testing.assert_array_equal(found["y"], [1, np.nan, np.nan, 0, 0])
        np.testing.assert_array_equal(found["w"], [9, 2, np.nan, np.nan, 7])
        assert found["area"].tolist() == ["7", "9", "x", "y", "(X)"]

    @pytest.mark.parametrize("words", [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
    @pytest.mark.parametrize("block", [1, 1 << 23])
    def test_true_and_false_are_one_and_zero_with_gaps(self, monkeypatch, words, block):
        monkeypatch.setattr(files, "BLOCK", block)
        cells = [words[0], "", words[1], "NA", "1"]
        found = read(written("y,area", *(f"{cell},A" for cell in cells)), ["area"], ["y"])
        np.testing.assert_array_equal(found["y"], [1, np.nan, 0, np.nan, 1])
        assert found["y"].dtype == "float64"

    @pytest.mark.parametrize(
        ("cell", "remedy"),
        [
            ("8.0731x", "correct it, or give its text to --na-values"),
            ('"8,0731"', "write numbers with a decimal point and without commas"),
            ('"8,073.1"', "write numbers with a decimal point and without commas"),
            ("8_0731", "correct it"),
            ("0x80731", "correct it"),
            ("٨", "correct it"),
        ],
    )
    def test_what_is_no_number_is_refused_with_the_line_and_not_shown(self, cell, remedy):
        content = written("y,area", "1,A", f"{cell},B")
        with pytest.raises(ValueError, match=rf"^a.csv, line 3: no number in column 'y'; {remedy}"
                           ) as refused:  # fmt: skip
            read(content, ["area"], ["y"])
        error: BaseException | None = refused.value
        while error is not None:  # what is shown of an error that is not caught
            assert not re.search("0731|073.1|٨", str(error))
            error = error.__cause__ or error.__context__

    def test_remedies_of_the_command_line_are_for_the_command_line(self):
        with pytest.raises(ValueError, match=r"; correct it$"):
            read(written("y,area", "x,A"), ["area"], ["y"], Dialect())


def test_a_table_is_opened_by_its_path_packed_or_not(tmp_path):
    import gzip

    text = written("area,w", "00100,1.5").encode()
    for name, content in (("a.csv", text), ("b.csv.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(content)
        with open_path(tmp_path / name, name, WORDS) as table:
            [found] = read_rows(table, texts=["area"], numbers=["w"])
        assert found["area"].tolist() == ["00100"] and found["w"].tolist() == [1.5]


def test_the_header_is_read_without_pandas():
    import subprocess
    import sys

    code = """
import io, sys
from pymc_dp.tables.delimited import open_table
from pymc_dp.tables.files import Dialect
table = open_table(io.BytesIO(b"area,w\\nA,1\\n"), "a.csv", Dialect())
print(table.header, "pandas" in sys.modules, "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "('area', 'w') False False\n"
