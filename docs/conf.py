"""Sphinx configuration: `python -m sphinx -W docs docs/_build/html`."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import pymc_dp

project = "pymc_dp"
author = "The pymc_dp developers"
copyright = "The pymc_dp developers"
version = release = pymc_dp.__version__

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = True

# Sphinx reads only what lies below this folder. The notebooks keep their outputs in the repository;
# the site shows what they give now.
copies = Path(__file__).parent / "notebooks"
shutil.rmtree(copies, ignore_errors=True)
copies.mkdir()
for notebook in (copies.parents[1] / "notebooks").glob("*.ipynb"):
    shutil.copy(notebook, copies)
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# numpydoc renders the types from the docstrings, so signatures stay short.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_theme_options = {"use_edit_page_button": False, "show_prev_next": False}
html_sidebars = {"**": []}
html_title = "pymc_dp"
html_css_files = ["tables.css", "formulas.css"]
html_show_sourcelink = False
# Browsers show MathML themselves: formulas need no script and the pages no network, but many
# systems have no font for mathematics. The package ziamath brings one (STIX Two, OFL).
html_math_renderer = "mathml"
html_static_path = ["_static", str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")]


def _formula(translator: Any, node: nodes.Element) -> None:
    tex = node.astext().replace("'", r"^{\prime}")
    translator.body.append(tex2mathml(tex, as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Add docutils' own renderer of formulas, which Sphinx does not offer."""
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
