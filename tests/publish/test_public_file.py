"""The public file: what it holds, what it refuses, and that it is whole or absent."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import pymc_dp.publish.allow_list
import pymc_dp.publish.public_file
from pymc_dp import PrivateRelease, fay_herriot
from pymc_dp import containers as io
from pymc_dp.mechanisms.law import smooth_joint
from pymc_dp.posterior.information import joint_h
from pymc_dp.publish.allow_list import ALWAYS, COORDS, RECORD_KEYS
from pymc_dp.publish.public_file import read_public, write_public
from pymc_dp.reading.read import read_model
from pymc_dp.record.claims import CONDITIONAL, build_record, read_record, to_json
from pymc_dp.record.figures import RECORD_NAMES

# Those of a draw from a Fay-Herriot model; other models have figures by record.
OTHERS = {*RECORD_NAMES, "noisy_direct", "noise_variance"}
VARIABLES = {k: v for k, v in pymc_dp.publish.allow_list.VARIABLES.items() if k not in OTHERS}

SUFFIXES = [".nc", ".zarr"]
both = pytest.mark.parametrize("suffix", SUFFIXES)
posix = pytest.mark.skipif(os.name != "posix", reason="rights, limits and forks as POSIX has them")

EVERYTHING = {
    "weights": "design weights, published with the sample design",
    "sampling_variance": "census of 2010",
    "sigma_u": "census of 2010",
    "covariates": "tax register, published",
    "universe": "everybody in the published sample",
}
FORMAL = {key: EVERYTHING[key] for key in ("sampling_variance", "sigma_u")}
FIGURES = [name for name in VARIABLES if name.startswith(("rho", "mu", "rdp", "epsilon"))]
GROUP_ATTRS = {"privacy", "created_at", "creation_library", "creation_library_version"}

M = 8
RNG = np.random.default_rng(8)
LABELS = [f"area {i}" for i in range(M)]
ESTIMATE = RNG.uniform(0.1, 0.4, M)
INPUTS = {
    "weights": RNG.uniform(0.01, 0.05, M),
    "sampling_variance": RNG.uniform(5e-4, 5e-3, M),
    "sigma_u": 0.05,
    "covariates": RNG.normal(size=M),
}


def a_model(labels, inputs, formula):
    m = len(labels)
    direct = xr.Dataset(
        {
            "estimate": ("area", np.resize(ESTIMATE, m)),
            "variance": ("area", np.resize(inputs["sampling_variance"], m)),
        },
        coords={"area": list(labels)},
    )
    x = pd.DataFrame({"x": np.resize(inputs["covariates"], m)}, index=list(labels))
    return fay_herriot(direct, formula, x, sigma_u=inputs["sigma_u"])


def a_release(assumptions=None, labels=LABELS, inputs=INPUTS, formula="~ x"):
    s = xr.DataArray(
        np.resize(inputs["weights"], len(labels)),
        dims="area",
        coords={"area": list(labels)},
        attrs={"bounds": [0.0, 1.0], "unit": "household"},
    )
    return PrivateRelease(a_model(labels, inputs, formula), s, assumptions=assumptions)


def drawn(assumptions=None, **model):
    release = a_release(assumptions, **model)
    release.draw()
    return release.released


@pytest.fixture(scope="module")
def formal():
    return drawn(EVERYTHING)


@pytest.fixture(scope="module")
def undeclared():
    return drawn()


def plain_listing(path):
    """Every object of a file, with its attributes: a reader of its own, as a reviewer has."""
    found = {}
    if path.suffix == ".nc":
        with h5py.File(path, "r") as file:
            file.visititems_links(lambda name, link: found.setdefault("/" + name, None))
            assert (
                file.visititems_links(lambda n, k: None if isinstance(k, h5py.HardLink) else n)
                is None
            )
            for name in ["/", *found]:
                found[name] = {k: file[name].attrs[k] for k in file[name].attrs}
        return found
    for file in path.rglob("*"):
        assert not file.is_symlink()
        if file.is_file() and file.name == "zarr.json":
            node = json.loads(file.read_text())
            found["/" + file.parent.relative_to(path).as_posix().strip(".")] = node["attributes"]
    assert all(
        file.name == "zarr.json" or "/c" in file.relative_to(path).as_posix()
        for file in path.rglob("*")
        if file.is_file()
    )
    return found


NETCDF_OWN = {
    "_NCProperties",
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "_Netcdf4Dimid",
    "_Netcdf4Coordinates",
}


def everything_in(path):
    """Raw bytes of all files below a path, by name."""
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
    contents = {f.relative_to(path).as_posix(): f.read_bytes() for f in files}
    if "zarr.json" in contents:  # zarr 3.1.0 lists arrays in the order in which tasks end
        contents["zarr.json"] = to_json(json.loads(contents["zarr.json"])).encode()
    return contents


def full_fit(group):
    """A container as a fit leaves it: the confidential groups, and the release."""
    idata = io.new_container()
    rng = np.random.default_rng(1)
    for name in ["posterior", "prior", "log_likelihood", "sample_stats"]:
        idata[name] = xr.Dataset(
            {"theta": (("chain", "draw", "area"), rng.normal(size=(2, 50, M)))},
            coords={"chain": [0, 1], "draw": np.arange(50), "area": LABELS},
        )
    for name in ["observed_data", "constant_data"]:
        idata[name] = xr.Dataset({"direct": ("area", ESTIMATE)}, coords={"area": LABELS})
    return io.attach(idata, group)


def save_whole(idata, path):
    """Save a container with all its groups, as people do."""
    tree = idata if isinstance(idata, xr.DataTree) else idata.to_datatree()
    if path.suffix == ".nc":
        tree.to_netcdf(path, engine="h5netcdf")
    else:
        tree.to_zarr(path)


# What it holds ------------------------------------------------------------------------------


@both
def test_file_of_a_full_fit_holds_the_release_and_nothing_else(formal, tmp_path, suffix):  # A18
    path = tmp_path / f"public{suffix}"
    write_public(full_fit(formal), path)
    listing = plain_listing(path)
    inside = {f"/private_release/{name}" for name in (*VARIABLES, *COORDS)}
    assert set(listing) == {"/", "/private_release", *inside}
    assert set(listing["/"]) - NETCDF_OWN == set()
    assert set(listing["/private_release"]) - NETCDF_OWN == GROUP_ATTRS
    for name in inside:
        assert set(listing[name]) - NETCDF_OWN <= {"long_name", "claim"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


@both
def test_reading_back_gives_the_released_values_in_the_container_of_the_stack(
    formal, tmp_path, suffix
):
    path = tmp_path / f"public{suffix}"
    write_public(formal, path)
    container = read_public(path)
    assert type(container) is type(io.new_container())
    assert io.groups(container) == ["private_release"]
    group = io.read_group(container, "private_release")
    shutil.rmtree(path) if path.is_dir() else path.unlink()  # it is in memory
    assert set(group.variables) == set(formal.variables)
    xr.testing.assert_equal(group, formal)
    for name in VARIABLES:
        assert group[name].dtype == formal[name].dtype
        assert group[name].attrs == formal[name].attrs
    assert group["area"].dtype.kind == group["area_bis"].dtype.kind == "U"
    added = {"file_schema", "left_out", "declaration", "withheld"}
    record, before = read_record(group.attrs), read_record(formal.attrs)
    kept_back = {"plugged_in"}  # what a fit says of itself
    assert {k: v for k, v in record.items() if k not in added} == {
        k: v for k, v in before.items() if k not in kept_back
    }
    assert record["left_out"] == {} and set(record["withheld"]) == kept_back & set(before)
    assert {k: group.attrs[k] for k in GROUP_ATTRS - {"privacy"}} == {
        k: formal.attrs[k] for k in GROUP_ATTRS - {"privacy"}
    }


@both
def test_xarray_and_arviz_read_the_file_as_a_container(formal, tmp_path, suffix):
    import arviz as az

    path = tmp_path / f"public{suffix}"
    write_public(formal, path)
    tree = xr.open_datatree(path, engine="h5netcdf" if suffix == ".nc" else "zarr")
    assert tree.groups == ("/", "/private_release")
    assert not tree.attrs and not tree.dataset.variables
    xr.testing.assert_equal(tree["private_release"].to_dataset().load(), formal)
    tree.close()
    if suffix == ".nc":
        idata = az.from_netcdf(path)
        assert io.groups(idata) == ["private_release"]
        np.testing.assert_array_equal(idata["private_release"]["theta"], formal["theta"])
        idata.close()


@both
def test_container_group_node_and_dataset_give_the_same_bytes(formal, tmp_path, suffix):
    container = full_fit(formal)
    tree = xr.DataTree.from_dict({"/posterior": xr.Dataset({"b": 1}), "/private_release": formal})
    given = [formal, container, container["private_release"], tree, tree["private_release"]]
    contents = []
    for i, what in enumerate(given):
        write_public(what, tmp_path / f"{i}{suffix}")
        contents.append(everything_in(tmp_path / f"{i}{suffix}"))
    assert all(c == contents[0] for c in contents)


def test_a_public_file_can_be_written_again_in_the_other_format(undeclared, tmp_path):
    write_public(undeclared, tmp_path / "a.nc", conditional=True)
    write_public(read_public(tmp_path / "a.nc"), tmp_path / "b.zarr", conditional=True)
    write_public(read_public(tmp_path / "b.zarr"), tmp_path / "c.nc", conditional=True)
    assert everything_in(tmp_path / "a.nc") == everything_in(tmp_path / "c.nc")


@both
def test_area_labels_of_any_kind_survive(tmp_path, suffix):
    labels = ["01", "a/b", "  lead", "trail ", "東京", "Å", "NaN", "None", "both \" and '"]
    labels += ["two\nlines", "tab\t", "😀", "e\u0301", "\ufeffbom", "x" * 300, "..", "c", "\\"]
    group = drawn(EVERYTHING, labels=labels)
    assert group["area"].values.tolist() == labels
    path = tmp_path / f"labels{suffix}"
    write_public(group, path)
    back = read_public(path)["private_release"]
    assert back["area"].values.tolist() == back["area_bis"].values.tolist() == labels
    if suffix == ".nc":
        with h5py.File(path) as file:
            plain = file["private_release/area"].asstr()[...].tolist()
    else:
        plain = zarr.open_group(path, mode="r")["private_release/area"][...].tolist()
    assert plain == labels


@both
@pytest.mark.parametrize("label", ["zero\0byte", "half \ud83d of a pair"])
def test_labels_that_files_cannot_keep_are_named(formal, tmp_path, suffix, label):
    labels = np.array([label, *LABELS[1:]], dtype=str)
    group = formal.assign_coords(area=labels, area_bis=labels)
    with pytest.raises(ValueError, match=r"1 area labels cannot be kept as text: '(zero|half)"):
        write_public(group, tmp_path / f"odd{suffix}")
    assert not list(tmp_path.iterdir())


@both
def test_record_with_every_ordinary_type_survives(  # A19
    formal, tmp_path, suffix, monkeypatch
):
    facts = {
        "of_unit": None,
        "public_weights": True,
        "range": {"lo": 0, "hi": 30},
        "orders": [1.5, 2, 4],
        "one": ["text"],
        "notes": [],
        "at_delta": 1e-06,
        "areas": 3,
        "large": 2**80,
        "title": 'Ménages \u2013 2019 \u2028 東京 \0 "quoted"',
    }
    monkeypatch.setattr(pymc_dp.publish.allow_list, "RECORD_KEYS", (*RECORD_KEYS, *facts))
    record = read_record(formal.attrs) | facts
    path = tmp_path / f"record{suffix}"
    write_public(formal.assign_attrs(privacy=to_json(record)), path)
    back = read_record(read_public(path)["private_release"].attrs)
    for key in RECORD_KEYS + tuple(facts):
        if key in record:
            assert back[key] == record[key] and type(back[key]) is type(record[key])


@both
def test_key_of_the_record_that_is_not_on_the_list_is_withheld_and_named(formal, tmp_path, suffix):
    record = read_record(formal.attrs) | {"posterior_means": ESTIMATE.tolist()}
    path = tmp_path / f"a{suffix}"
    write_public(formal.assign_attrs(privacy=to_json(record)), path)
    back = read_record(read_public(path)["private_release"].attrs)
    assert "posterior_means" not in back and "posterior_means" in back["withheld"]
    assert "0." + f"{ESTIMATE[0]:.12f}"[2:9] not in to_json(back)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_record_refuses_infinity_and_nan_before_anything_is_drawn(value):
    with pytest.raises(ValueError):
        to_json(build_record(epsilon=value))


def test_infinite_epsilon_stays_infinite(formal, tmp_path):
    group = formal.copy(deep=True)
    group["epsilon_area"][0, 0] = np.inf
    for suffix in SUFFIXES:
        write_public(group, tmp_path / f"inf{suffix}")
        back = read_public(tmp_path / f"inf{suffix}")["private_release"]
        assert np.isposinf(back["epsilon_area"][0, 0])


# What the declared assumptions permit -------------------------------------------------------


def outputs_for(inputs):
    """Everything a release shows, as a function of the inputs alone: the draw held fixed."""
    model = a_model(LABELS, inputs, "~ x")
    posterior, draw = read_model(model).posterior, np.linspace(0.1, 0.4, M)
    after = {
        "theta_smoothed": smooth_joint(posterior, draw)[0],
        "information_h": joint_h(posterior, draw),
    }
    guarantee = a_release(EVERYTHING, inputs=inputs).guarantee
    return {n: v.values for n, v in guarantee.data_vars.items()} | after


def calibrated_outputs_for(inputs, method):
    guarantee = a_release(inputs=inputs).calibrate(rho=0.02, method=method).guarantee
    return {name: v.values for name, v in guarantee.data_vars.items()}


def dependences(outputs):
    """Which inputs move each output."""
    shifted = {
        "weights": INPUTS["weights"] * np.linspace(1.01, 1.5, M),
        "sampling_variance": INPUTS["sampling_variance"] * np.linspace(1.01, 1.5, M),
        "sigma_u": 0.06,
        "covariates": INPUTS["covariates"] ** 2,
    }
    base = outputs(INPUTS)
    depends = {name: set() for name in base}
    for key, value in shifted.items():
        for name, moved in outputs(INPUTS | {key: value}).items():
            # Reading a model moves the last bits; the shifts move the first ones.
            if not np.allclose(moved, base[name], rtol=1e-9, atol=0):
                depends[name].add(key)
    return depends


def test_table_of_inputs_is_what_the_outputs_depend_on():
    depends = dependences(outputs_for)
    assert set(depends) == set(VARIABLES) - {"theta"}
    for name, inputs in depends.items():
        if name in ALWAYS:
            assert inputs == set(INPUTS)  # the joint figure, one number, stays all the same
        elif name == "information_sign":
            assert not inputs  # goes with the factor that it belongs to
        elif name == "information_h":
            assert inputs <= set(VARIABLES[name][1])  # beside other noise it takes all of them
        else:
            assert inputs == set(VARIABLES[name][1])


@pytest.mark.parametrize("method", ["temper", "noise", "scale"])
def test_what_a_calibrated_release_shows_of_undeclared_inputs_is_left_out(tmp_path, method):
    depends = dependences(lambda inputs: calibrated_outputs_for(inputs, method))
    for undeclared in INPUTS:
        declared = {key: EVERYTHING[key] for key in EVERYTHING if key != undeclared}
        release = a_release(declared).calibrate(rho=0.02, method=method)
        release.draw()
        path = tmp_path / f"{undeclared}.nc"
        write_public(release.released, path, conditional=True)
        back = read_public(path)["private_release"]
        assert "theta" in back and not {
            name for name in back.data_vars if undeclared in depends.get(name, ())
        } - set(ALWAYS)
        record = read_record(back.attrs)
        assert record["calibration"] == {"method": method, "target": {"rho": 0.02}}
        assert "calibration.areas_touched" in record["withheld"]
    if method == "temper":  # variances raised because of the weights
        assert "weights" in depends["posterior_sd"] and "weights" in depends["propagation_own"]


def test_calibration_is_told_in_full_where_all_inputs_are_public(tmp_path):
    release = a_release(EVERYTHING).calibrate(rho=0.02)
    release.draw()
    write_public(release.released, tmp_path / "a.nc")
    back = read_public(tmp_path / "a.nc")["private_release"]
    record = read_record(back.attrs)
    assert set(back.data_vars) == set(VARIABLES) and record["left_out"] == {}
    assert record["calibration"] == read_record(release.guarantee.attrs)["calibration"]


def test_joint_figure_and_draw_are_what_always_stays():
    assert set(ALWAYS) == {"rho", "mu", "rdp", "epsilon", "epsilon_zcdp"}


SUBSETS = [s for k in range(5) for s in itertools.combinations(list(INPUTS), k)]


@pytest.mark.parametrize("declared", SUBSETS, ids="+".join)
def test_what_is_computed_from_undeclared_inputs_is_left_out_and_listed(tmp_path, declared):
    group = drawn({key: EVERYTHING[key] for key in declared})
    path = tmp_path / "release.nc"
    write_public(group, path, conditional=True)
    back = read_public(path)["private_release"]
    undeclared = {name: set(VARIABLES[name][1]) - set(declared) for name in VARIABLES}
    assert set(back.data_vars) == {name for name, inputs in undeclared.items() if not inputs}
    record = read_record(back.attrs)
    # Sampling variances that nobody declares public are not even in the group.
    assert {n: set(i) for n, i in record["left_out"].items()} == {
        name: inputs for name, inputs in undeclared.items() if inputs and name in group
    }
    listing = plain_listing(path)
    assert not any(f"/private_release/{name}" in listing for name in record["left_out"])
    # Coordinates that nothing uses go as well.
    assert ("factor" in back.coords) == ("propagation_left" in back)
    for key in declared:
        assert key in record["declaration"]


@both
def test_without_any_declaration_the_draw_and_the_joint_figure_remain_and_the_file_says_so(
    undeclared, tmp_path, suffix
):
    path = tmp_path / f"release{suffix}"
    write_public(undeclared, path, conditional=True)
    back = read_public(path)["private_release"]
    assert set(back.data_vars) == {"theta", *ALWAYS}
    assert set(back.coords) == {"chain", "draw", "area", "order", "delta"}
    record = read_record(back.attrs)
    assert record["declaration"] == "nobody declares any input public"
    assert record["assumptions"] == {}


def test_a_design_of_ones_has_no_covariates_to_declare(tmp_path):
    group = drawn(FORMAL, formula="~ 1")
    record = read_record(group.attrs) | {"intercept_only": True}
    write_public(group.assign_attrs(privacy=to_json(record)), tmp_path / "a.nc")
    back = read_public(tmp_path / "a.nc")["private_release"]
    assert {"posterior_sd", "theta_smoothed", "propagation_left"} <= set(back.data_vars)
    assert "sensitivity" not in back and "rho_respondent" not in back
    record["intercept_only"] = False
    write_public(group.assign_attrs(privacy=to_json(record)), tmp_path / "b.nc")
    assert "posterior_sd" not in read_public(tmp_path / "b.nc")["private_release"]


# The kind of claim --------------------------------------------------------------------------


@both
def test_conditional_claim_is_written_only_on_request(undeclared, tmp_path, suffix):
    path = tmp_path / f"release{suffix}"
    with pytest.raises(ValueError, match="conditional=True") as error:
        write_public(undeclared, path)
    assert "'sampling_variance'" in str(error.value) and "'sigma_u'" in str(error.value)
    assert not list(tmp_path.iterdir())


@both
@pytest.mark.parametrize("kind", ["formal", "conditional"])
def test_words_of_the_claim_stand_beside_every_figure(tmp_path, suffix, kind):
    rest = {key: EVERYTHING[key] for key in EVERYTHING if key != "sigma_u"}
    group = drawn(EVERYTHING if kind == "formal" else rest)
    path = tmp_path / f"release{suffix}"
    write_public(group, path, conditional=kind == "conditional")
    words = "formal" if kind == "formal" else CONDITIONAL
    assert kind in words
    listing = plain_listing(path)
    figures = [name for name in FIGURES if f"/private_release/{name}" in listing]
    assert {"rho", "mu", "rdp", "epsilon", "epsilon_zcdp"} <= set(figures)
    for name in figures:
        assert listing[f"/private_release/{name}"]["claim"] == words
    record = json.loads(listing["/private_release"]["privacy"])
    assert record["claim"] == kind and record["claim_words"] == words


@pytest.mark.parametrize("name", FIGURES)
def test_figure_without_the_words_of_its_claim_is_refused(formal, undeclared, tmp_path, name):
    for group, words in [(formal, None), (formal, "safe"), (undeclared, "formal")]:
        broken = group.copy(deep=True)
        broken[name].attrs.pop("claim")
        if words:
            broken[name].attrs["claim"] = words
        with pytest.raises(ValueError, match=f"^{name} does not carry the words of its claim"):
            write_public(broken, tmp_path / "a.nc", conditional=True)
    assert not list(tmp_path.iterdir())


def test_record_whose_claim_does_not_follow_from_its_components_is_refused(undeclared, tmp_path):
    record = read_record(undeclared.attrs) | {"claim": "formal", "claim_words": "formal"}
    with pytest.raises(ValueError, match="variance components make it 'conditional"):
        write_public(
            undeclared.assign_attrs(privacy=to_json(record)), tmp_path / "a.nc", conditional=True
        )


# What it refuses ----------------------------------------------------------------------------


def existing_targets(folder, suffix):
    for kind in ["file", "folder", "full folder", "dangling link", "link to a folder"]:
        path = folder / f"{kind}{suffix}"
        if kind == "file":
            path.write_text("mine")
        elif "link" not in kind:
            path.mkdir()
            if kind == "full folder":
                (path / "mine").write_text("mine")
        else:
            elsewhere = folder / "elsewhere"
            if kind == "link to a folder":
                elsewhere = folder / "there"
                elsewhere.mkdir()
            path.symlink_to(elsewhere)
        yield path


@posix
@both
def test_existing_target_of_any_kind_is_refused_and_left_alone(formal, tmp_path, suffix):
    targets = list(existing_targets(tmp_path, suffix))
    before = sorted(tmp_path.rglob("*"))
    for path in targets:
        with pytest.raises(FileExistsError, match="exists: nothing is written over"):
            write_public(formal, path)
    assert sorted(tmp_path.rglob("*")) == before
    assert targets[0].read_text() == (targets[2] / "mine").read_text() == "mine"


@both
def test_full_fit_at_the_target_is_refused_and_left_alone(formal, tmp_path, suffix):  # A18
    path = tmp_path / f"fit{suffix}"
    idata = full_fit(formal)
    save_whole(idata, path)
    before = everything_in(path)
    with pytest.raises(FileExistsError):
        write_public(idata, path)
    assert everything_in(path) == before


@pytest.mark.parametrize("inside", ["release.zarr", "posterior/release.nc", "private_release"])
def test_nothing_is_written_into_a_zarr_store(formal, tmp_path, inside):  # A18
    store = tmp_path / "fit.zarr"
    save_whole(full_fit(formal), store)
    before = everything_in(store)
    with pytest.raises((ValueError, FileExistsError)):
        write_public(formal, store / inside)
    assert everything_in(store) == before


@pytest.mark.parametrize("name", ["release", "release.csv", "release.nc4", ".nc", "zarr"])
def test_other_endings_are_refused(formal, tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.nc or \.zarr"):
        write_public(formal, tmp_path / name)
    with pytest.raises(ValueError, match=r"must end in \.nc or \.zarr"):
        read_public(tmp_path / name)


def test_folder_that_does_not_exist_is_not_made(formal, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        write_public(formal, tmp_path / "new" / "a.nc")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["posterior_mean", "direct", "seed"])
def test_variable_that_no_release_has_is_refused_by_name(formal, tmp_path, name):
    for group in [
        formal.assign({name: ("area", ESTIMATE)}),
        formal.assign_coords({name: ("area", ESTIMATE)}),
    ]:
        with pytest.raises(ValueError, match=f"the group holds {name}, which is no part"):
            write_public(group, tmp_path / "a.nc")
    assert not list(tmp_path.iterdir())


@both
def test_attributes_encodings_and_counters_carry_nothing_else(formal, tmp_path, suffix):
    group = formal.assign_attrs(seed=12345, note="direct estimates follow")
    group["theta"].attrs["posterior_mean"] = ESTIMATE
    group["theta"].encoding = {"source": "/confidential/survey.parquet", "scale_factor": 0.5}
    group["area"].attrs["n"] = np.arange(M)
    group.encoding["source"] = "/confidential/survey.parquet"
    group = group.assign_coords(chain=[4711], draw=[31337], factor=[2.25, 3.25])
    clean, path = tmp_path / f"clean{suffix}", tmp_path / f"a{suffix}"
    write_public(formal, clean)
    write_public(group, path)
    assert everything_in(path) == everything_in(clean)


def test_group_without_a_draw_is_refused(tmp_path):
    release = a_release(EVERYTHING)
    with pytest.raises(ValueError, match=r"lacks theta.*call draw\(\) first"):
        write_public(release.guarantee.assign_attrs(created_at="now"), tmp_path / "a.nc")
    with pytest.raises(TypeError, match=r"not a release: .*, not NoneType"):
        write_public(release.released, tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"lacks theta.*call draw\(\) first"):
        write_public(release, tmp_path / "a.nc")
    with pytest.raises(ValueError, match="no group 'private_release'; found posterior"):
        write_public(xr.DataTree.from_dict({"/posterior": xr.Dataset()}), tmp_path / "a.nc")
    with pytest.raises(ValueError, match="not a release"):
        write_public(release.guarantee.drop_attrs(), tmp_path / "a.nc")


@pytest.mark.parametrize("name", list(VARIABLES))
def test_missing_values_are_refused_by_name_and_count(formal, tmp_path, name):
    group = formal.copy(deep=True)
    group[name][...] = np.nan
    with pytest.raises(ValueError, match=f"^{name} has {group[name].size} missing or infinite"):
        write_public(group, tmp_path / "a.nc")
    assert not list(tmp_path.iterdir())


def test_release_cut_by_a_selection_is_refused(tmp_path):
    release = a_release(EVERYTHING)
    release.draw(draws=3)
    group = release.released
    for cut in [group.isel(draw=slice(2, None)), group.isel(draw=slice(5, None))]:
        with pytest.raises(ValueError, match=r"has . draws in 1 chains, its record says 3 in 1"):
            write_public(cut, tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"^theta is not as the release made it"):
        write_public(group.isel(draw=0), tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"^rho is not as the release made it"):
        write_public(group.assign(rho=group["rho"].astype("float32")), tmp_path / "a.nc")
    write_public(group, tmp_path / "a.nc")
    assert read_public(tmp_path / "a.nc")["private_release"]["theta"].shape == (1, 3, M)


@both
def test_records_and_files_of_a_later_version_are_refused(formal, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    record = read_record(formal.attrs)
    later = formal.assign_attrs(privacy=to_json(record | {"schema_version": 2}))
    with pytest.raises(ValueError, match="schema 2, later than 1: update pymc_dp"):
        write_public(later, path)
    for key in ["schema_version", "file_schema"]:
        path = tmp_path / f"{key}{suffix}"
        text = to_json(record | {"file_schema": 1} | {key: 2})
        idata = io.attach(io.new_container(), formal.assign_attrs(privacy=text))
        save_whole(idata, path)
        with pytest.raises(ValueError, match="has schema 2, later than 1: update pymc_dp"):
            read_public(path)


@both
def test_files_that_are_no_public_file_are_refused(formal, tmp_path, suffix):
    with pytest.raises(FileNotFoundError, match="no file or store"):
        read_public(tmp_path / f"absent{suffix}")
    whole = tmp_path / f"fit{suffix}"
    save_whole(full_fit(formal), whole)
    with pytest.raises(ValueError, match="was not written by write_public"):
        read_public(whole)
    other = tmp_path / f"other{suffix}"
    save_whole(xr.DataTree.from_dict({"/posterior": xr.Dataset({"b": 1.0})}), other)
    with pytest.raises(ValueError, match="cannot be read as a public file"):
        read_public(other)
    junk = tmp_path / f"junk{suffix}"
    junk.write_bytes(b"not a file of any kind")
    with pytest.raises(ValueError, match="cannot be read as a public file"):
        read_public(junk)


def test_truncated_file_is_refused(formal, tmp_path):
    write_public(formal, tmp_path / "a.nc")
    data = (tmp_path / "a.nc").read_bytes()
    for part in (0, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.nc").write_bytes(data[:part])
        with pytest.raises(ValueError, match="cannot be read as a public file"):
            read_public(tmp_path / "cut.nc")


def test_without_zarr_the_missing_extra_is_named(formal, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    for call in (lambda p: write_public(formal, p), read_public):
        with pytest.raises(ImportError, match=r"pip install 'pymc_dp\[zarr\]'"):
            call(tmp_path / "a.zarr")
    assert not list(tmp_path.iterdir())


# Read back before it has its name -----------------------------------------------------------


def spoil_netcdf(path, how):
    with h5py.File(path, "a") as file:
        group = file["private_release"]
        if how == "group":
            file["observed_data/y"] = ESTIMATE
        elif how == "empty group":
            file.create_group("private_release/empty")
        elif how == "root attribute":
            file.attrs["note"] = "y"
        elif how == "hidden attribute":
            group["theta"].attrs["_hidden"] = ESTIMATE
        elif how == "link":
            group["y"] = h5py.ExternalLink("other.nc", "/y")
        elif how == "type":
            file["named"] = np.dtype("f8")
        elif how == "value":
            group["rho"][()] = np.nextafter(group["rho"][()], np.inf)
        elif how == "label":
            group["area"][0] = "elsewhere"
        elif how == "record":
            group.attrs["privacy"] = group.attrs["privacy"] + " "
        else:
            del group["mu"]


def spoil_zarr(path, how):
    store = zarr.open_group(path, mode="a", use_consolidated=False)
    group = store["private_release"]
    if how == "group":
        store.create_array("observed_data/y", data=ESTIMATE)
    elif how == "empty group":
        group.create_group("empty")
    elif how == "root attribute":
        store.attrs["note"] = "y"
    elif how == "hidden attribute":
        group["theta"].attrs["_hidden"] = list(ESTIMATE)
    elif how == "link":
        (path / "private_release" / "y").symlink_to(path.parent)
    elif how == "type":
        (path / ".hidden").write_bytes(ESTIMATE.tobytes())
    elif how == "value":
        group["rho"][...] = np.nextafter(group["rho"][...], np.inf)
    elif how == "label":
        labels = group["area"][...]
        labels[0] = "else"
        group["area"][...] = labels
    elif how == "record":
        text = (path / "zarr.json").read_text()
        (path / "zarr.json").write_text(text.replace("household", "person", 1))
    else:
        shutil.rmtree(path / "private_release" / "mu")


SPOILS = ["group", "empty group", "root attribute", "hidden attribute", "link", "type", "value"]
SPOILS += ["label", "record", "lost variable"]


@posix
@both
@pytest.mark.parametrize("how", SPOILS)
def test_file_that_holds_anything_else_after_writing_is_removed(
    formal, tmp_path, suffix, how, monkeypatch
):
    write, read = pymc_dp.publish.public_file.FORMATS[suffix]
    spoil = spoil_netcdf if suffix == ".nc" else spoil_zarr

    def write_and_spoil(data, group, path):
        write(data, group, path)
        spoil(path, how)

    monkeypatch.setitem(pymc_dp.publish.public_file.FORMATS, suffix, (write_and_spoil, read))
    with pytest.raises(RuntimeError, match=r"something else than the release.*it was removed"):
        write_public(formal, tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())


# Whole or absent ----------------------------------------------------------------------------


@contextmanager
def file_size_limit(size):
    """No file grows beyond this many bytes: what a full disk does, at a chosen place."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@posix
@both
def test_full_disk_leaves_nothing(tmp_path, suffix):
    group = drawn(EVERYTHING, labels=[f"area {i}" for i in range(700)])
    path = tmp_path / f"a{suffix}"
    for size in (0, 600, 20_000):
        with file_size_limit(size), pytest.raises(OSError, match="File too large"):
            write_public(group, path)
        assert not list(tmp_path.iterdir())
    write_public(group, path)
    assert read_public(path)["private_release"].sizes["area"] == 700


@contextmanager
def ordinary_user():
    """Root may write anywhere, so it steps back for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@posix
@both
def test_read_only_folder_is_reported_and_nothing_is_left(formal, tmp_path, suffix):
    write_public(formal, tmp_path / f"warm{suffix}")  # everything is imported as the full user
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        with ordinary_user(), pytest.raises(PermissionError):
            write_public(formal, folder / f"a{suffix}")
        assert not list(folder.iterdir())
    finally:
        shutil.rmtree(folder)


@posix
@both
def test_file_has_the_rights_of_any_new_file(formal, tmp_path, suffix):
    old = os.umask(0o027)
    try:
        write_public(formal, tmp_path / f"a{suffix}")
    finally:
        os.umask(old)
    path = tmp_path / f"a{suffix}"
    assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640)


@posix
def test_file_system_without_hard_links_is_served_too(formal, tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    write_public(formal, tmp_path / "a.nc")
    assert [p.name for p in tmp_path.iterdir()] == ["a.nc"]
    with pytest.raises(FileExistsError):
        write_public(formal, tmp_path / "a.nc")


# Children are forked from one process that has imported everything, so that each starts at once.
CRASH = """
import json, os, signal, sys, time, warnings
from pathlib import Path
import h5netcdf, zarr
from pymc_dp.posterior.information import joint_h
from pymc_dp.publish.public_file import read_public, write_public
warnings.filterwarnings("ignore", message=".*fork")
folder = Path(sys.argv[1])
group = read_public(folder / "release.nc")["private_release"]

def child(path):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        write_public(group, path)
        code = 0
    except FileExistsError:
        code = 3
    finally:
        os._exit(code)

def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

killed, whole, races = 0, 0, []
for suffix in (".nc", ".zarr"):
    began = time.perf_counter()
    assert wait(child(folder / f"timed{suffix}")) == 0
    took = time.perf_counter() - began
    for i in range(12):
        path = folder / f"killed{i}{suffix}"
        pid = child(path)
        time.sleep(took * (i + 0.5) / 12)
        os.kill(pid, signal.SIGKILL)
        killed += wait(pid) == -signal.SIGKILL
        whole += path.exists()
    racers = [child(folder / f"race{suffix}") for _ in range(5)]
    races.append(sorted(wait(pid) for pid in racers))
print(json.dumps([killed, whole, races]))
"""


@posix
def test_killed_writers_leave_whole_files_or_none_and_of_racing_ones_one_wins(formal, tmp_path):
    write_public(formal, tmp_path / "release.nc")
    run = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert run.returncode == 0, run.stderr
    killed, whole, races = json.loads(run.stdout)
    assert killed >= 4  # else nothing was tested
    assert races == [[0, 3, 3, 3, 3]] * 2
    named = [p for p in tmp_path.iterdir() if not p.name.startswith(".")]
    assert len(named) == 1 + 2 + whole + 2
    for path in named:
        xr.testing.assert_equal(io.read_group(read_public(path), "private_release"), formal)
