"""A file is text in a known encoding, or refused by name with what it is and what to do."""

from __future__ import annotations

import gzip
import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.tables import files
from pymc_dp.tables.files import Dialect, members, unpacked, utf8_blocks

WORDS = Dialect(command_line=True)


def blocks_of(content: bytes, dialect: Dialect = WORDS) -> list[tuple[int, bytes]]:
    return list(utf8_blocks(io.BytesIO(content), "a.csv", dialect))


def read(content: bytes, dialect: Dialect = WORDS) -> str:
    return b"".join(block for _, block in blocks_of(content, dialect)).decode()


# Letters of one, two, three and four bytes, and everything that ends a line somewhere.
LINES = st.lists(st.text('aé\u2013\U0001d11e,"\x0b\x0c\x85\u2028', max_size=6), max_size=8)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"]


@given(
    lines=LINES,
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(ENCODINGS),
    block=st.integers(1, 40),
    last=st.booleans(),
)
def test_blocks_are_the_text_in_utf8_whatever_the_encoding_and_the_size(
    lines, end, encoding, block, last
):
    lines = ["head", *lines]
    content = (end.join(lines) + end * last).encode(encoding)
    named = Dialect(encoding=encoding if encoding[-3:] in ("-le", "-be") else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        found = blocks_of(content, named)
    assert b"".join(text for _, text in found).decode() == "\n".join(lines) + "\n" * last
    line = 1
    for number, text in found:
        assert number == line
        line += text.count(b"\n")
    assert all(text.endswith(b"\n") for _, text in found[:-1])


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-le", "utf-16-be", "cp037"])
def test_a_named_encoding_is_taken(encoding):
    assert read("Málaga,1\n".encode(encoding), Dialect(encoding=encoding)) == "Málaga,1\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("block", [1, 7, 1 << 23])
def test_another_encoding_is_refused_with_the_line_and_the_option(monkeypatch, end, block):
    monkeypatch.setattr(files, "BLOCK", block)
    content = end.join([b"area,w", "Köln,1".encode(), b"M\xe1laga,2", b""])
    with pytest.raises(ValueError, match=r"a.csv, line 3: not UTF-8; .*--encoding latin-1"):
        blocks_of(content)
    with pytest.raises(ValueError, match=r"a.csv, line 3: not UTF-8; save it as UTF-8$"):
        blocks_of(content, Dialect())
    with pytest.raises(ValueError, match=r"a.csv, line 2: not ASCII"):
        blocks_of(content, Dialect(encoding="ascii"))


def test_half_a_letter_at_the_end_is_refused():
    with pytest.raises(ValueError, match=r"line 2: not UTF-16"):
        blocks_of("area\nb".encode("utf-16")[:-1])


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_its_mark_is_named(name):
    with pytest.raises(ValueError, match=f"looks like UTF-16 without its mark: --encoding {name}"):
        blocks_of("area,w\nA,1\n".encode(name))


def test_a_mark_of_another_encoding_than_the_one_named_is_refused():
    content = "area,w\n".encode("utf-8-sig")
    assert read(content, Dialect(encoding="utf8")) == "area,w\n"
    with pytest.raises(ValueError, match=r"begins with the mark of UTF-8: it is not latin-1"):
        blocks_of(content, Dialect(encoding="latin-1"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "a.csv is empty"),
        (b" \r\n\n", "a.csv is empty"),
        (b"PK\x03\x04...", "a zip or a workbook"),
        (b"PAR1...", "a Parquet file"),
        (b"%PDF-1.7", "a PDF"),
        (b"HEADER RECORD*******LIBRARY", "a SAS transport file"),
        (bytes(range(256)), "bytes of zero"),
        (b"area,w\n" * 1000 + b"\0\n", "line 1001: a byte of zero"),
        (b"\xff\xfe\x00\x00\x00", "not UTF-32"),
    ],
)
def test_what_is_no_table_is_named(content, words):
    with pytest.raises(ValueError, match=words):
        blocks_of(content)


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 100)
    monkeypatch.setattr(files, "BLOCK", 30)
    with pytest.raises(ValueError, match="line 2 does not end"):
        blocks_of(b"a,b\n" + b"x" * 1000)


def test_gzip_is_known_by_its_content_and_damage_by_the_files_name(tmp_path):
    packed = gzip.compress(b"area,w\n" * 500)
    path = tmp_path / "a.csv"
    path.write_bytes(packed)
    with unpacked(path) as file:
        assert file.read() == b"area,w\n" * 500
    for damaged in (packed[:20], packed[:-9] + b"\xff" * 9, packed[:10] + b"\xff" * 30):
        path.write_bytes(damaged)
        with unpacked(path) as file, pytest.raises(ValueError, match=r"^a.csv is damaged, or"):
            list(utf8_blocks(file, "a.csv", WORDS))


def test_members_of_a_zip_are_named_and_damage_too(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("b.CSV ", "notes.txt", "c.csv"):
            archive.writestr(name, b"area\n" * 300)
    found = {}
    for name, opened in members(path, ".csv"):
        with opened as file:
            found[name] = file.read()
    assert found == dict.fromkeys(["a.zip, b.CSV", "a.zip, c.csv"], b"area\n" * 300)
    with pytest.raises(ValueError, match=r"a.zip: no .xpt file in this zip, which holds b.CSV"):
        members(path, ".xpt")
    content = bytearray(path.read_bytes())
    content[38:44] = b"\xff" * 6
    path.write_bytes(content)
    (name, opened), _ = members(path, ".csv")
    with opened as file, pytest.raises(ValueError, match=r"^a.zip, b.CSV is damaged"):
        list(utf8_blocks(file, name, WORDS))
