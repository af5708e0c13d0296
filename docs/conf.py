"""Sphinx configuration: `python -m sphinx -W docs docs/_build/html`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pymc_dp

project = "pymc_dp"
author = "The pymc_dp developers"
copyright = "The pymc_dp developers"
version = release = pymc_dp.__version__

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False

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
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_sourcelink = False
