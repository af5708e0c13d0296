"""Fixtures that every test module shares."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

if version("pymc").startswith("5."):
    # PyMC 5 compiles C by default and falls back to slow Python without a C++ compiler; PyTensor
    # reads its flags once, at import, and the last one given wins.
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), "mode=NUMBA", "cxx="]
    os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, flags))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference values and real survey files; skips where it is absent."""
    places = [os.environ.get("PYMC_DP_SHARED"), REPOSITORY.parent / "shared"]
    for place in places:
        if place and (Path(place) / "reference").is_dir():
            return Path(place)
    pytest.skip("the folder with reference values and survey files is not here")
