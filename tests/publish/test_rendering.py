"""Templates: all there wherever the package is installed, strict, and escaping."""

from __future__ import annotations

import importlib.resources
import os
import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import pymc_dp
from pymc_dp.publish import rendering
from pymc_dp.publish.rendering import render

REPOSITORY = Path(pymc_dp.__file__).parents[1]
TEMPLATES = importlib.resources.files("pymc_dp.publish") / "templates"


def test_loader_finds_every_template_and_each_one_that_another_asks_for() -> None:
    found = rendering._environment().list_templates()
    assert {"statement.html.j2", "notebook.html.j2"} <= set(found)
    assert all(name.endswith(".j2") for name in found)
    for name in found:
        text = (TEMPLATES / name).read_text(encoding="utf-8")
        rendering._environment().get_template(name)  # compiles
        asked = re.findall(r"{% (?:from|include|import|extends) \"(.*?)\"", text)
        assert set(asked) <= set(found)


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_distributions_carry_every_template(kind) -> None:
    builders = pytest.importorskip("hatchling.builders." + kind, reason="hatchling is not here")
    builder = {"wheel": "WheelBuilder", "sdist": "SdistBuilder"}[kind]
    there = os.listdir(str(TEMPLATES))
    taken = getattr(builders, builder)(str(REPOSITORY)).recurse_included_files()
    prefix = "pymc_dp/publish/templates/"
    carried = {Path(file.distribution_path).as_posix() for file in taken}
    assert {prefix + name for name in there} <= carried


def test_name_that_is_missing_is_an_error_not_a_gap() -> None:
    with pytest.raises(UndefinedError, match="is undefined"):
        render("notebook.html.j2", target="theta", areas=3)


def test_every_value_is_escaped_in_text_and_in_attributes() -> None:
    environment = rendering._environment()
    page = environment.from_string(
        '<p title="{{ x }}">{{ x }}{{ x | isolated }}{{ "to " ~ x }}{{ [x] | join(", ") }}</p>'
    ).render(x="<b>\"'&")
    safe = "&lt;b&gt;&#34;&#39;&amp;"
    assert page == f'<p title="{safe}">{safe}<bdi>{safe}</bdi>to {safe}{safe}</p>'
