"""New files: whole under their name or not there, and nothing written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pymc_dp._files import new_file


def no_links(*_: object, **__: object) -> None:
    raise OSError("no hard links here")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("folder", [True, False])
def test_what_was_written_gets_its_name_and_nothing_else_stays(
    tmp_path, monkeypatch, links, folder
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "new.store"
    with new_file(target) as hidden:
        if folder:
            (hidden / "deep").mkdir(parents=True)
            (hidden / "deep" / "part").write_text("whole")
        else:
            hidden.write_text("whole")
        assert not target.exists()
    assert (target / "deep" / "part" if folder else target).read_text() == "whole"
    assert os.listdir(tmp_path) == ["new.store"]


def test_after_an_error_or_an_interrupt_nothing_is_left(tmp_path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), new_file(tmp_path / "a.csv") as hidden:
            hidden.write_text("half")
            raise error
    with pytest.raises(FileNotFoundError), new_file(tmp_path / "a.csv"):
        pass  # nothing was written
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_nothing_is_written_over_be_it_there_before_or_meanwhile(
    tmp_path, monkeypatch, links
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    for name in ("file", "folder", "link"):
        with (
            pytest.raises(FileExistsError, match="nothing is written over"),
            new_file(tmp_path / name),
        ):
            pytest.fail("asked to write")  # pragma: no cover
    target = tmp_path / "raced"
    with pytest.raises(FileExistsError), new_file(target) as hidden:
        hidden.write_text("second")
        target.write_text("first")
    assert target.read_text() == "first" and (tmp_path / "file").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link", "raced"]


def test_folder_that_is_missing_is_named(tmp_path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"no folder '.*none'"),
        new_file(Path(tmp_path / "none" / "a")),
    ):
        pytest.fail("asked to write")  # pragma: no cover
