"""The measured figures that the docs show are those that their scripts give, on the real files."""

from __future__ import annotations

import importlib
import json

import pytest
from factories import REPOSITORY


@pytest.fixture
def script(monkeypatch):
    """Import one of the scripts in ``benchmarks``, which are not part of the package."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module


@pytest.fixture(scope="module")
def shown():
    path = REPOSITORY / "docs" / "_applications" / "figures.json"
    return json.loads(path.read_text(encoding="utf-8"))


def leaves(value, place=""):
    """Every number and text below a figure, with the way to it."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    else:
        return {place: value}
    return {k: v for key, inner in pairs for k, v in leaves(inner, f"{place}/{key}").items()}


def same(found, shown):
    """Equal to the six digits that are written, one unit of the last apart."""
    found, shown = leaves(found), leaves(shown)
    assert found.keys() == shown.keys()
    for place, value in found.items():
        if isinstance(value, float):
            assert value == pytest.approx(shown[place], rel=2e-5, abs=1e-12), place
        else:
            assert value == shown[place], place


def test_king_county(script, shown, shared, tmp_path):
    applications = script("applications")
    found = applications.king_county(shared / "data", tmp_path)
    same(applications.rounded(found), shown["king_county"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "king-components.png",
        "king-epsilon.png",
        "king-prices.png",
        "king-proviso.png",
    }


def test_bounds_for_king_county(script, shown, shared):
    same(script("king_bound").figures(shared / "data"), shown["king_bound"])


def test_budgets_for_the_acs(script, shown, shared):
    budget = script("acs_budget")
    release = budget.planned_release(
        budget.read_areas(shared / "data", "household"), sigma_u=budget.SIGMA_U
    )
    rows = shown["acs_budget"]["household"]["budgets"]
    row = next(row for row in rows if row["rho"] == 0.2)
    same(budget.at_budget(release, 0.2), row)


def test_prices_of_the_acs(script, shown, shared):
    """Persons 1.195 and households 8.284, as all figures of the pages rest on them."""
    budget = script("acs_budget")
    for unit in budget.UNITS:
        areas = budget.read_areas(shared / "data", unit)
        price = budget.planned_release(areas, sigma_u=budget.SIGMA_U).guarantee["rho"].item()
        assert price == pytest.approx(shown["acs_budget"][unit]["rho"], rel=1e-5)
    assert shown["acs"]["settings"]["persons"]["rho"] == pytest.approx(1.195, abs=5e-4)
    assert shown["acs"]["settings"]["households"]["rho"] == pytest.approx(8.284, abs=5e-4)
