"""Releases read from wherever they are kept, and added up."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories.releases import as_group, information

from pymc_dp import containers, private_direct
from pymc_dp._checks import FROM_ANSWERS
from pymc_dp.containers.formats import write_netcdf, write_zarr
from pymc_dp.inference.information import (
    DECLARED,
    INSIDE,
    PUBLIC,
    read_information,
    sampling_variances,
)
from pymc_dp.posterior.information import InformationMatrix

AREA = ["east", "north", "south", "west"]
D = np.array([0.001, 0.004, 0.002, np.nan])
X = np.ones((4, 1))


@pytest.fixture
def kept():
    """K, the statistics of three draws, and the group with both."""
    rng = np.random.default_rng(2)
    y = np.array([0.1, 0.2, 0.3, 0.0])
    K = information("independent", 0.001, D, X, y, rng)[0]
    h = np.array([information("independent", 0.001, D, X, y, rng)[1] for _ in range(3)])
    return K, h, as_group(K, h, AREA, D)


def same(got, K, h):
    np.testing.assert_allclose(got.K.dense(), K.dense(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.h, h, rtol=1e-12, atol=1e-12)


def test_draws_in_one_group_add_up(kept):
    K, h, group = kept
    got = read_information(group)
    same(got, K.scaled(3.0), h.sum(axis=0))
    assert got.area == tuple(AREA) and got.public and got.bounds == (0.0, 1.0)
    np.testing.assert_array_equal(got.sampling_variance, np.nan_to_num(D))
    assert got.informed.tolist() == [True, True, True, False]


def test_a_release_is_the_same_wherever_it_is_kept(kept, tmp_path):
    _, _, group = kept
    want = read_information(group)
    container = containers.attach(containers.new_container(), group)
    write_netcdf(group, containers.GROUP, tmp_path / "release.nc")
    write_zarr(group, containers.GROUP, tmp_path / "release.zarr")

    class Release:
        guarantee, released = group, group

    places = [container, Release(), tmp_path / "release.nc", str(tmp_path / "release.zarr"), want]
    if isinstance(container, xr.DataTree):
        places.append(container[containers.GROUP])
    for place in places:
        got = read_information(place)
        same(got, want.K, want.h)
        assert got.area == want.area and got.bounds == want.bounds and got.public


def test_releases_of_the_same_estimates_add_up_by_label(kept):
    K, h, _ = kept
    first = as_group(K, h[0], AREA, D)
    order = [2, 0, 1]  # an area fewer, another order
    other = InformationMatrix(K.own[order], K.shared[order], K.sign)
    second = as_group(other, h[1][order], [AREA[i] for i in order])
    got = read_information([first, second])
    same(got, K.scaled(2.0), h[0] + h[1])
    swapped = read_information([second, first])
    assert swapped.area == ("south", "east", "north", "west")
    place = [swapped.area.index(a) for a in AREA]
    np.testing.assert_allclose(swapped.K.dense()[np.ix_(place, place)], got.K.dense(), rtol=1e-12)
    np.testing.assert_array_equal(swapped.sampling_variance[place], np.nan_to_num(D))
    assert got.public and swapped.public


def test_one_noise_counts_once(kept):
    K, h, _ = kept
    group = as_group(K, h[0], AREA, D)
    with pytest.raises(ValueError, match="the same release twice"):
        read_information([group, group])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bounds": [0, 100]}, "two declared ranges"),
        ({"unit": "household"}, "two protected units"),
        ({"D": 2 * D}, "different sampling variances.* in 3 areas: east, north, south"),
    ],
)
def test_releases_of_other_estimates_are_refused(kept, change, message):
    K, h, _ = kept
    with pytest.raises(ValueError, match=message):
        read_information(
            [as_group(K, h[0], AREA, D), as_group(K, h[1], AREA, **({"D": D} | change))]
        )


def direct(**marks):
    return xr.Dataset(
        {
            "estimate": ("area", [0.1, 0.3, np.nan]),
            "variance": ("area", [0.001, 0.002, np.nan], marks),
            "sensitivity": ("area", [0.02, 0.04, 0.0]),
        },
        coords={"area": ["north", "south", "west"]},
        attrs={"bounds": [0, 1]},
    )


@pytest.mark.parametrize("declared", [True, False])
def test_noisy_direct_estimates_are_a_release(declared):
    assumptions = {"sampling_variance": "public rate"} if declared else None
    noisy = private_direct(direct(), rho=0.5, assumptions=assumptions)
    got = read_information(noisy)
    noise = noisy["noise_variance"].values[:2]
    np.testing.assert_allclose(got.own, [*(1 / noise), 0.0])
    np.testing.assert_allclose(got.h[:2] * noise, noisy["estimate"].values[:2])
    variance, words = sampling_variances(got, None)
    np.testing.assert_allclose(variance, [0.001, 0.002, 0.0], rtol=1e-12)
    assert words == (PUBLIC if declared else INSIDE)


def test_sampling_variances_given_are_joined_by_label_and_marked(kept):
    K, h, _ = kept
    secret = read_information(as_group(K, h, AREA))
    with pytest.raises(ValueError, match="gives no sampling variances"):
        sampling_variances(secret, None)
    series = pd.Series({"south": 0.002, "other": 7.0, "north": 0.004, "east": 0.001})
    array = xr.DataArray([0.001, 0.002, 0.004], {"area": ["east", "south", "north"]}, "area")
    for given in (series, dict(series), array):
        variance, words = sampling_variances(secret, given)
        np.testing.assert_array_equal(variance, np.nan_to_num(D))
        assert words == DECLARED
    assert sampling_variances(secret, array.assign_attrs(FROM_ANSWERS))[1] == INSIDE


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"east": 0.001, "north": 0.0}, "in 2 areas: north, south"),
        ({"east": np.inf, "north": 0.1, "south": 0.1}, "in 1 areas: east"),
        (np.ones(4), "must have area labels"),
        (0.01, "must have area labels"),
        (xr.DataArray(np.ones(4), dims="area"), "with labels"),
        (pd.Series([1.0, 2.0], index=["east", "east"]), "more than once: east"),
    ],
)
def test_unusable_sampling_variances_are_refused(kept, given, message):
    with pytest.raises(ValueError, match=message):
        sampling_variances(read_information(kept[2]), given)


def broken(group, name, position, value):
    found = group.copy(deep=True)
    found[name].values[position] = value
    return found


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda g: broken(g, "information_own", 1, np.nan), "missing or infinite in 1 areas: nort"),
        (lambda g: broken(g, "information_own", 1, -1.0), "missing or infinite in 1 areas: north"),
        (lambda g: broken(g, "information_shared", (2, 0), np.inf), "in 1 areas: south"),
        (lambda g: broken(g, "information_h", (0, 1, 0), np.nan), "in 1 areas: east"),
        (lambda g: broken(g, "information_h", (0, 1, 3), 1.0), "statistic without information"),
        (lambda g: broken(g, "information_sign", 0, 0.5), "must be 1 or -1"),
        (lambda g: g.assign_coords(area=["a", "b", "a", "c"]), "more than once: a"),
        (lambda g: g.drop_vars("information_h"), "keeps no information_own and inf"),
        (lambda g: g.drop_attrs(), "not a release of pymc_dp"),
        (lambda g: [], "at least one"),
    ],
)
def test_unusable_releases_are_refused(kept, break_it, message):
    with pytest.raises(ValueError, match=message):
        read_information(break_it(kept[2]))


def test_what_is_no_release_is_refused(tmp_path):
    class Planned:
        guarantee, released = None, None

    with pytest.raises(ValueError, match="draw"):
        read_information(Planned())
    with pytest.raises(TypeError, match="not int"):
        read_information(3)
    with pytest.raises(FileNotFoundError):
        read_information(tmp_path / "absent.nc")


def test_a_repr_shows_no_values(kept):
    assert repr(read_information(kept[2])) == "Information(4 areas, 2 shared factors)"
