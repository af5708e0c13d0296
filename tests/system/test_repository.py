"""What the files around the package say, held against each other and against the installation."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import pymc_dp

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUN = [Requirement(text) for text in PROJECT["dependencies"] + EXTRAS["parquet"] + EXTRAS["zarr"]]


def names(requirement: Requirement) -> str:
    return requirement.name


def bounds(requirement: Requirement, operator: str) -> list[str]:
    return [part.version for part in requirement.specifier if part.operator == operator]


def test_readme_gives_the_test_command_that_continuous_integration_runs() -> None:
    readme = REPOSITORY / "README.md"
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    [command] = re.findall(r"^test_command='(.+)'$", script, flags=re.MULTILINE)
    assert command in readme.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("requirement", RUN, ids=names)
def test_lower_bound_is_one_minor_series_and_no_patch_pin(requirement: Requirement) -> None:
    [lower] = bounds(requirement, ">=")
    assert re.fullmatch(r"\d+\.\d+", lower)
    # .ci/run reads bounds of this form, the lower one first.
    assert {part.operator for part in requirement.specifier} <= {">=", "<"}


@pytest.mark.parametrize("requirement", RUN, ids=names)
def test_upper_bound_is_at_most_the_next_major_version(requirement: Requirement) -> None:
    expected = {"pymc": ["7"], "arviz": ["2"]}.get(requirement.name, [])
    assert bounds(requirement, "<") == expected


@pytest.mark.parametrize("requirement", RUN, ids=names)
def test_installed_version_lies_within_the_bounds(requirement: Requirement) -> None:
    assert Version(version(requirement.name)) in requirement.specifier


def test_supported_stacks_are_pymc_5_with_arviz_0_and_pymc_6_with_arviz_1() -> None:
    stack = tuple(version(name).split(".")[0] for name in ("pymc", "arviz"))
    assert stack in {("5", "0"), ("6", "1")}


def test_installed_package_carries_the_same_dependencies_as_pyproject() -> None:
    installed = {
        Requirement(text).name for text in requires("pymc_dp") or [] if "extra" not in text
    }
    assert installed == {requirement.name for requirement in RUN} - {"pyarrow", "zarr"}


def test_version_is_the_same_in_the_package_the_metadata_the_citation_and_the_changelog() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert pymc_dp.__version__ == version("pymc_dp") == citation["version"]
    assert re.search(rf"\b{re.escape(pymc_dp.__version__)}\b", changelog)


def test_api_page_lists_every_public_name() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: (?:pymc_dp\.)?(\w+)", page, flags=re.MULTILINE)
    modules = {"audit", "datasets", "privacy"}
    assert set(listed) | modules == set(pymc_dp.__all__) - {"__version__"} | modules


def test_package_declares_that_it_is_typed() -> None:
    assert (Path(pymc_dp.__file__).parent / "py.typed").is_file()


def test_licence_is_apache_2_in_text_metadata_and_citation() -> None:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    metadata = distribution("pymc_dp").metadata
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert metadata["License-Expression"] == citation["license"] == "Apache-2.0"
