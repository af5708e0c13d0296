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
touched = [getattr(pymc_dp, name) for name in pymc_dp.__all__]
added = set(sys.modules) - before
new = sorted({name.split(".")[0] for name in added})
slow = sorted(added & {"matplotlib.pyplot", "scipy.special", "scipy.optimize", "scipy.stats"})
names = [n for n in logging.root.manager.loggerDict if n.startswith("pymc_dp")]
print(json.dumps([new, slow, logging.getLogger().handlers == handlers, names]))
"""
HEAVY = {"opendp", "formulaic", "narwhals", "zarr", "h5netcdf", "matplotlib", "polars", "pyarrow"}
HEAVY |= {"jinja2"}


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


def test_every_public_name_resolves_and_dir_shows_no_other():
    import pymc_dp

    assert all(hasattr(pymc_dp, name) for name in pymc_dp.__all__)
    assert sorted(pymc_dp.__all__) == sorted(dir(pymc_dp))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pymc_dp.nonsense


def test_bare_import_does_not_load_pymc():
    code = "import sys, pymc_dp; print('pymc' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_supported_pymc_is_installed():
    assert pm.__version__.startswith(("5.", "6."))
