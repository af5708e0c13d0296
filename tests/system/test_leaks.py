"""No direct estimate on any way out: public files, ledger, compile caches, messages, pictures."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories.chance import seed_noise

from pymc_dp import PrivacyLedger, PrivateRelease, fay_herriot
from pymc_dp import containers as io
from pymc_dp.containers.formats import write_zarr
from pymc_dp.models.inputs import area_data
from pymc_dp.publish.public_file import read_public, write_public
from pymc_dp.reading.read import read_model
from pymc_dp.reading.symbolic import NotLinearGaussianError
from pymc_dp.record.claims import read_record, to_json

REPOSITORY = Path(__file__).resolve().parents[2]
both = pytest.mark.parametrize("suffix", [".nc", ".zarr"])
mechanisms = pytest.mark.parametrize("mechanism", ["joint", "independent"])

M = 9
AREA = [f"area {i}" for i in range(M)]
RNG = np.random.default_rng(20131113)
VARIANCE = RNG.uniform(5e-4, 5e-3, M)
X = pd.DataFrame({"x": RNG.normal(size=M)}, index=AREA)
SENSITIVITY = RNG.uniform(0.01, 0.05, M)
# Full mantissas: no such number arises by chance.
ESTIMATE = RNG.uniform(0.1, 0.4, M)
OTHER = 0.9 - RNG.uniform(0.1, 0.4, M)
DECLARED = dict.fromkeys(
    ["weights", "sampling_variance", "sigma_u", "covariates", "universe"], "published"
)


@pytest.fixture
def seeded(monkeypatch):
    """Random digits and bytes of a draw meet a trace now and then, four bytes in 1e-6 of runs."""
    seed_noise(monkeypatch, 20131113)


def direct_of(estimate, missing=()):
    direct = xr.Dataset(
        {"estimate": ("area", estimate.copy()), "variance": ("area", VARIANCE.copy())},
        coords={"area": AREA},
        attrs={"bounds": [0.0, 1.0]},
    )
    for i in missing:
        direct["estimate"][i] = direct["variance"][i] = np.nan
    return direct


def release_of(estimate, assumptions=None, bounds=(0.0, 1.0), missing=(), **options):
    attrs = {"bounds": list(bounds)} if bounds else {}
    s = xr.DataArray(SENSITIVITY, dims="area", coords={"area": AREA}, attrs=attrs)
    model = fay_herriot(direct_of(estimate, missing), "~ x", X, sigma_u=0.05)
    return PrivateRelease(model, s, assumptions=assumptions, **options)


def traces(*values):
    """How each number may look in a file: eight or four bytes either way round, or digits."""
    looks = set()
    for value in np.concatenate([np.ravel(v) for v in values]):
        for number in (np.float64(value), np.float32(value)):
            looks |= {number.tobytes(), number.tobytes()[::-1]}
        # Leading zeros and the last digits aside, whatever the notation.
        looks.add(re.sub(r"^0*", "", f"{value:.17f}".replace(".", ""))[:8].encode())
        looks.add(f"{value:.17f}"[:9].encode())
    return looks


def found(looks, where):
    """Traces in bytes, text, or every file below a path."""
    if isinstance(where, Path):
        files = [where] if where.is_file() else [f for f in where.rglob("*") if f.is_file()]
        assert files
        return {look for f in files for look in found(looks, f.read_bytes())}
    data = where.encode() if isinstance(where, str) else where
    return {look for look in looks if look in data}


def posterior_mean(estimate):
    model = fay_herriot(direct_of(estimate), "~ x", X, sigma_u=0.05)
    return read_model(model).posterior.mean(estimate)


# Public files -------------------------------------------------------------------------------


def masked_bytes(path, created_at):
    """All bytes of a file or store, those of the draw and of the time replaced."""
    drawn = ("theta", "theta_smoothed", "information_h")
    if path.suffix == ".nc":
        data = bytearray(path.read_bytes())
        with h5py.File(path) as file:
            group = file["private_release"]
            for name in drawn:
                if name in group:
                    start, size = group[name].id.get_offset(), group[name].id.get_storage_size()
                    assert start is not None and size == 8 * group[name].size
                    data[start : start + size] = b"?" * size
        contents = {"": bytes(data)}
    else:
        contents = {
            f.relative_to(path).as_posix(): f.read_bytes() for f in path.rglob("*") if f.is_file()
        }
        for name in drawn:
            contents.pop(f"private_release/{name}/c/0/0/0", None)
        # zarr 3.1.0 lists arrays in the order in which tasks end.
        contents["zarr.json"] = to_json(json.loads(contents["zarr.json"])).encode()
    assert sum(data.count(created_at.encode()) for data in contents.values()) in (1, 2)
    return {
        name: data.replace(created_at.encode(), b"?" * len(created_at))
        for name, data in contents.items()
    }


@both
@pytest.mark.parametrize("mechanism", ["joint", "independent", "calibrated"])
@pytest.mark.parametrize(
    "declared, bounds",
    [(DECLARED, (0.0, 1.0)), (None, None)],
    ids=["everything declared", "nothing declared, no range"],
)
def test_other_estimates_change_no_byte_of_the_file_but_the_draw(
    tmp_path, suffix, mechanism, declared, bounds
):
    contents, groups = [], []
    for i, estimate in enumerate([ESTIMATE, OTHER, np.full(M, 0.5)]):
        kind = "joint" if mechanism == "calibrated" else mechanism
        release = release_of(estimate, declared, bounds, missing=[3], mechanism=kind)
        if mechanism == "calibrated":
            release = release.calibrate(rho=0.01)
        release.draw()
        path = tmp_path / f"{i}{suffix}"
        write_public(release.released, path, conditional=declared is None)
        contents.append(masked_bytes(path, release.released.attrs["created_at"]))
        groups.append(read_public(path)["private_release"])
    assert contents[0] == contents[1] == contents[2]
    # And by value: everything but the draw is there, and equal to the last bit.
    kept = [n for n in groups[0].variables if n not in ("theta", "theta_smoothed", "information_h")]
    assert "rho" in kept
    for group in groups[1:]:
        for name in kept:
            assert group[name].values.tobytes() == groups[0][name].values.tobytes()
            assert group[name].attrs == groups[0][name].attrs
        assert group.attrs["privacy"] == groups[0].attrs["privacy"]
        assert not np.array_equal(group["theta"], groups[0]["theta"])


@mechanisms
def test_guarantee_and_reprs_are_known_before_the_estimates(mechanism):
    first, second = (release_of(y, DECLARED, mechanism=mechanism) for y in (ESTIMATE, OTHER))
    xr.testing.assert_identical(first.guarantee, second.guarantee)
    assert repr(first) == repr(second)
    assert first._repr_html_() == second._repr_html_()


@pytest.mark.usefixtures("seeded")
@both
@mechanisms
def test_no_byte_of_the_public_file_is_a_direct_estimate_or_posterior_mean(
    tmp_path, suffix, mechanism
):
    release = release_of(ESTIMATE, DECLARED, mechanism=mechanism)
    looks = traces(ESTIMATE, posterior_mean(ESTIMATE))
    release.draw()
    write_public(release.released, tmp_path / f"a{suffix}")
    assert not found(looks, tmp_path)


@pytest.mark.usefixtures("seeded")
@both
def test_file_of_a_release_with_a_plugged_in_fit_shows_nothing_of_the_fit(tmp_path, suffix):
    model = fay_herriot(direct_of(ESTIMATE), "~ x", X)
    rng = np.random.default_rng(3)
    fit = {
        "sigma_u": (("chain", "draw"), 0.05 + 0.01 * rng.random((2, 1000))),
        "theta": (("chain", "draw", "area"), ESTIMATE + 0.01 * rng.random((2, 1000, M))),
    }
    idata = io.new_container()
    idata["posterior"] = xr.Dataset(fit, coords={"chain": [0, 1], "draw": np.arange(1000)})
    release = PrivateRelease(model, 0.02, idata=idata)
    path = tmp_path / f"a{suffix}"
    write_public(release.draw(), path, conditional=True)
    group = read_public(path)["private_release"]
    assert read_record(group.attrs)["variance_components"]["sigma_u"] == "plug-in"
    fitted = read_record(release.guarantee.attrs)["plugged_in"]
    diagnostics = [value for facts in fitted.values() for value in facts.values()]
    assert diagnostics
    means = [np.mean(values, axis=(0, 1)) for _, values in fit.values()]
    spread = [release.guarantee[n].values for n in ("posterior_sd", "propagation_own")]
    assert not found(traces(diagnostics, ESTIMATE, *means, *spread), path)


@both
def test_scan_finds_estimates_in_a_file_that_holds_them(tmp_path, suffix):
    data = xr.Dataset({"direct": ("area", ESTIMATE)}, coords={"area": AREA})
    if suffix == ".nc":
        data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    else:
        write_zarr(data, "constant_data", tmp_path / "a.zarr")
    assert len(found(traces(ESTIMATE), tmp_path)) == M
    assert found(traces(ESTIMATE), f"y = {ESTIMATE[0]}, {ESTIMATE[1]:.10e}")
    assert found(traces(ESTIMATE), np.array2string(ESTIMATE)) and found(
        traces(ESTIMATE), ESTIMATE.astype(">f4").tobytes()
    )


@pytest.mark.usefixtures("seeded")
def test_ledger_file_holds_no_estimate(tmp_path):
    looks = traces(ESTIMATE, posterior_mean(ESTIMATE))
    ledger = PrivacyLedger(tmp_path / "budget.db", rho=1000.0, create=True)
    release_of(ESTIMATE, DECLARED).draw(ledger=ledger)
    assert ledger.spent > 0
    assert not found(looks, tmp_path)
    assert not found(looks, ledger.to_dataframe().to_csv() + repr(ledger))


# Seeds --------------------------------------------------------------------------------------


def keys_of(value):
    if isinstance(value, dict):
        return [*value, *(k for v in value.values() for k in keys_of(v))]
    return [k for v in value for k in keys_of(v)] if isinstance(value, list) else []


@both
def test_no_seed_or_generator_is_kept(tmp_path, suffix):
    release = release_of(ESTIMATE, DECLARED)
    release.draw()
    path = tmp_path / f"a{suffix}"
    write_public(release.released, path)
    group = read_public(path)["private_release"]
    names = [*group.variables, *group.attrs, *keys_of(read_record(group.attrs))]
    names += [key for v in group.variables.values() for key in v.attrs]
    assert "claim" in names and "versions" in names
    assert not [n for n in map(str, names) if re.search("seed|random|rng|generator|state", n)]


@mechanisms
def test_seeds_of_the_process_do_not_fix_a_draw_and_no_draw_moves_them(mechanism):
    drawn = []
    for _ in range(2):
        np.random.seed(7)  # noqa: NPY002
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        release = release_of(ESTIMATE, DECLARED, mechanism=mechanism)
        drawn.append(release.draw()["private_release"]["theta"].values)
        assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    # One area of two independent draws meets on the publishing grid in up to 0.3 % of runs, all
    # nine in less than 1e-20.
    assert not np.array_equal(drawn[0], drawn[1])


# What people see ----------------------------------------------------------------------------


@pytest.mark.usefixtures("seeded")
def test_reprs_show_no_estimate_and_no_posterior_mean(tmp_path):
    release = release_of(ESTIMATE)
    looks = traces(ESTIMATE, posterior_mean(ESTIMATE))
    calibrated = release.calibrate(rho=0.01)
    shown = [release, release.guarantee, release.propagation(), calibrated, calibrated.report]
    shown += [area_data(direct_of(ESTIMATE), "~ x", X)]
    shown += [read_model(fay_herriot(direct_of(ESTIMATE), "~ x", X, sigma_u=0.05))]
    idata = release.draw()
    write_public(idata, tmp_path / "a.nc", conditional=True)
    shown += [release, release.released, idata, read_public(tmp_path / "a.nc")]
    with np.printoptions(precision=17, threshold=10**6), xr.set_options(display_max_rows=99):
        for thing in shown:
            html = thing._repr_html_() if hasattr(thing, "_repr_html_") else ""
            assert not found(looks, f"{thing} {thing!r} {html}")


def plain_model(likelihood, **parts):
    """A model of a user who passes the data as an array."""
    with pm.Model(coords={"area": AREA}) as model:
        beta = pm.Normal("beta", 0, 1)
        theta = pm.Normal("theta", beta, 0.05, dims="area")
        likelihood(theta, **parts)
    return model


def failing_calls(folder):
    """Calls that fail between the estimates and the file, by what they say."""
    good, release = direct_of(ESTIMATE), release_of(ESTIMATE)
    idata = release.draw()
    small = PrivacyLedger(folder / "small.db", rho=1e-6, conditional=True, create=True)
    s = SENSITIVITY.copy()
    s[2] = np.nan
    bad_variance = good.assign(variance=good["variance"] - good["variance"][4])
    infinite = np.where(np.arange(M) == 1, np.inf, ESTIMATE)
    narrow = xr.DataArray(SENSITIVITY, dims="area", coords={"area": AREA})
    narrow.attrs["bounds"] = [float(np.sort(ESTIMATE)[2]) - 1e-3, 1.0]
    fine = fay_herriot(good, "~ x", X, sigma_u=0.05)
    group, file, sd = release.released, folder / "a.nc", np.sqrt(VARIANCE)

    def normal(theta, y=ESTIMATE):
        pm.Normal("y", theta, sd, observed=y, dims="area")

    def heavy(theta):
        pm.StudentT("y", 4, theta, sigma=sd, observed=ESTIMATE, dims="area")

    def curved(theta):
        normal(theta**2 * ESTIMATE)

    def shifted(theta):
        normal(theta)
        pm.Deterministic("mean", theta + ESTIMATE, dims="area")

    def outside(theta):
        normal(theta, infinite)

    def read(likelihood, **options):
        return lambda: PrivateRelease(plain_model(likelihood), 0.02, **options)

    return {
        "unusable in 3 areas": lambda: fay_herriot(bad_variance, sigma_u=0.05),
        "not finite: area 1": lambda: fay_herriot(direct_of(infinite), sigma_u=0.05),
        "more than once: area 1": lambda: fay_herriot(good.isel(area=[0, 1, 1]), sigma_u=0.05),
        "lack: nothing": lambda: fay_herriot(good, "~ nothing", X, sigma_u=0.05),
        "no covariates for": lambda: fay_herriot(good, "~ x", X.iloc[1:], sigma_u=0.05),
        "hold the variance component": lambda: PrivateRelease(fay_herriot(good), 0.02),
        "not in 1 areas: area 2": lambda: PrivateRelease(fine, s),
        "outside the declared range": lambda: PrivateRelease(fine, narrow),
        "no variable 'nothing'": lambda: PrivateRelease(fine, 0.02, target="nothing"),
        "not free variables": lambda: PrivateRelease(fine, 0.02, fixed={"sigma": 1.0}),
        "first obstacle": read(heavy),
        "a power of theta": read(curved),
        "a constant of the model": read(shifted, target="mean"),
        "1 observed values are not finite": read(outside),
        "has been drawn": release.draw,
        "already has a group": lambda: release.draw(idata),
        "draws must be": lambda: release.draw(draws=0),
        "budget does not cover": lambda: release_of(ESTIMATE).draw(ledger=small),
        "the claim is conditional": lambda: write_public(idata, file),
        "the group holds y": lambda: write_public(
            group.assign(y=("area", ESTIMATE)), file, conditional=True
        ),
        "theta has 9 missing": lambda: write_public(
            group.assign(theta=group["theta"] * np.nan), file, conditional=True
        ),
        "not a release": lambda: write_public(good, file),
        "not DataFrame": lambda: write_public(good.to_dataframe(), file),
    }


@pytest.mark.usefixtures("seeded")
def test_errors_warnings_and_logs_show_no_estimate(tmp_path, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    looks = traces(ESTIMATE, OTHER, posterior_mean(ESTIMATE))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        messages = []
        for reason, call in failing_calls(tmp_path).items():
            with pytest.raises(Exception, match=reason) as error:
                call()
            chain, one = [], error.value
            while one is not None:
                chain.append(f"{one} {one!r} {getattr(one, '__notes__', '')}")
                one = one.__cause__
            messages.append(" ".join(chain))
    printed = capsys.readouterr()
    everything = [*messages, *(str(w.message) for w in caught), caplog.text, *printed]
    for text in everything:
        assert not found(looks, text), text[:20]


def test_release_path_prints_logs_and_warns_nothing(tmp_path, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        release = release_of(ESTIMATE, DECLARED)
        write_public(release.draw(), tmp_path / "a.nc")
        read_public(tmp_path / "a.nc")
    # At the level of debugging PyTensor tells how long it took; nobody else tells anything.
    records = [r for r in caplog.records if r.levelno > logging.DEBUG or "pymc_dp" in r.name]
    assert not records
    assert capsys.readouterr() == ("", "")


# Compile caches -----------------------------------------------------------------------------

# Everything that PyTensor, Numba and others keep on disk goes below one folder.
CACHE_JOB = """
import json, sys, warnings
from pathlib import Path
import numpy as np
import pymc as pm
import pytensor
import xarray as xr
warnings.simplefilter("ignore")
from pymc_dp import PrivateRelease, fay_herriot

folder, job = Path(sys.argv[1]), sys.argv[2]
y, D = np.array(json.loads(sys.argv[3])), np.array(json.loads(sys.argv[4]))
area = [f"area {i}" for i in range(y.size)]
assert str(folder) in str(pytensor.config.compiledir)

def sample(model):
    return pm.sample(
        tune=20, draws=20, chains=1, cores=1, random_seed=1, progressbar=False, model=model,
        compute_convergence_checks=False, nuts_sampler="pymc",
    )

if job == "ours":
    direct = xr.Dataset(
        {"estimate": ("area", y), "variance": ("area", D)},
        coords={"area": area}, attrs={"bounds": [0.0, 1.0]},
    )
    PrivateRelease(fay_herriot(direct, sigma_u=0.05), 0.02).draw()
    model = fay_herriot(direct)
    idata = sample(model)
    mean = float(idata["posterior"]["sigma_u"].mean())
    PrivateRelease(model, 0.02, fixed={"sigma_u": mean}).draw(idata)
    # A few bytes in the cache: it is in use.
    assert len([f for f in folder.rglob("*") if f.is_file()]) > 10
else:
    with pm.Model(coords={"area": area}) as model:
        sigma_u = pm.HalfNormal("sigma_u", 0.1)
        beta = pm.Flat("beta")
        theta = pm.Normal("theta", beta, sigma_u, dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=y, dims="area")
    if job == "compiled":
        model.compile_logp()(model.initial_point())
    else:
        for read in (model, pm.do(model, {"sigma_u": 0.05})):
            fixed = {"sigma_u": 0.05} if read is model else None
            release = PrivateRelease(read, 0.02, fixed=fixed)
            release.draw(), release.simulate(3, random_seed=1), repr(release), release.guarantee
"""


def cache_after(folder, job):
    """Fill a new cache with a job of another process; the traces of its estimates in there."""
    flags = [f"base_compiledir={folder / 'pytensor'}", "cxx="]
    if pm.__version__.startswith("5."):
        flags.append("mode=NUMBA")
    folders = {
        name: str(folder / name.lower())
        for name in ["HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "TMPDIR"]
    }
    for made in folders.values():
        Path(made).mkdir(parents=True)
    numbers = [json.dumps(v.tolist()) for v in (ESTIMATE, VARIANCE)]
    run = subprocess.run(
        [sys.executable, "-c", CACHE_JOB, str(folder), job, *numbers],
        env=os.environ | folders | {"PYTENSOR_FLAGS": ",".join(flags)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    assert not found(traces(ESTIMATE), run.stdout + run.stderr)
    looks = traces(ESTIMATE)
    files = [f for f in folder.rglob("*") if f.is_file()]
    return {look for f in files for look in found(looks, f.read_bytes())}


def test_compile_cache_of_our_model_holds_no_estimate_even_after_sampling(tmp_path):
    assert not cache_after(tmp_path, "ours")


def test_reading_a_model_with_plain_observed_data_leaves_nothing_in_the_cache(tmp_path):
    assert not cache_after(tmp_path, "read")


def test_compiling_a_model_with_plain_observed_data_does_leave_them_there(tmp_path):
    assert len(cache_after(tmp_path, "compiled")) >= M


def test_plain_observed_data_call_forth_a_loud_warning_and_held_data_do_not():
    def normal(theta, held=False):
        y = pm.Data("direct", ESTIMATE) if held else ESTIMATE
        pm.Normal("y", theta, np.sqrt(VARIANCE), observed=y, dims="area")

    with pytest.warns(UserWarning, match=r"'y' is a constant array.*compile cache.*pm\.Data"):
        PrivateRelease(plain_model(normal), 0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateRelease(plain_model(normal, held=True), 0.02)
    with (
        pytest.warns(UserWarning, match="compile cache"),
        contextlib.suppress(NotLinearGaussianError),
    ):
        PrivateRelease(plain_model(lambda t: pm.Cauchy("y", t, 1.0, observed=ESTIMATE)), 0.02)


def test_our_model_and_what_is_held_in_it_keep_the_estimates_out_of_constants():
    from pytensor.graph.basic import Constant
    from pytensor.graph.traversal import ancestors

    model = fay_herriot(direct_of(ESTIMATE, missing=[3]), "~ x", X)
    graphs = [model.logp(), *model.deterministics, *pm.do(model, {"sigma_u": 0.1}).deterministics]
    constants = [v.data for v in ancestors(graphs) if isinstance(v, Constant)]
    assert len(constants) > 3
    looks = traces(np.delete(ESTIMATE, 3))
    assert not any(found(looks, np.asarray(c).tobytes()) for c in constants if c is not None)
    assert io.GROUP not in model.named_vars
