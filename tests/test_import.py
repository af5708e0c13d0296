"""What ``import pymc_dp`` costs and leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pymc as pm
import pytest

CODE = """
import json, logging, sys, warnings
import pymc
before, handlers = set(sys.modules), list(logging.getLogger().handlers)
import pymc_dp
added = set(sys.modules) - before
new = sorted({name.split(".")[0] for name in added})
slow = sorted(added & {"matplotlib.pyplot", "scipy.special", "scipy.optimize", "scipy.stats"})
names = [n for n in logging.root.manager.loggerDict if n.startswith("pymc_dp")]
print(json.dumps([new, slow, logging.getLogger().handlers == handlers, names]))
"""
HEAVY = {"opendp", "formulaic", "narwhals", "zarr", "h5netcdf", "matplotlib", "polars", "pyarrow"}


@pytest.fixture(scope="module")
def imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_import_brings_in_no_heavy_library(imported):
    new, slow, _, _ = imported
    # On PyMC 5 ArviZ has imported matplotlib before us: nothing new there either.
    assert not HEAVY & set(new)
    assert not slow


def test_import_adds_no_logging_handler(imported):
    _, _, same_handlers, loggers = imported
    assert same_handlers and not loggers


def test_supported_pymc_is_installed():
    assert pm.__version__.startswith(("5.", "6."))
