"""From direct estimates over the release and its public file to what a reader concludes."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import (
    PrivateRelease,
    containers,
    fay_herriot,
    noisy_direct,
    release_posterior,
    write_public,
)
from pymc_dp.inference import check_working
from pymc_dp.inference.information import DECLARED, INSIDE, PUBLIC, read_information

AREA = [f"{i:02d}" for i in range(12)]
PUBLIC_INPUTS = {
    name: "an earlier report" for name in ("sampling_variance", "sigma_u", "covariates", "weights")
}


def a_direct(seed=4):
    rng = np.random.default_rng(seed)
    D = rng.uniform(0.001, 0.004, 12)
    x = rng.normal(size=12)
    y = 0.3 + 0.03 * x + np.sqrt(0.0016 + D) * rng.standard_normal(12)
    D[[3, 7]] = y[[3, 7]] = np.nan  # without sample
    direct = xr.Dataset(
        {
            "estimate": ("area", y),
            "variance": ("area", D),
            "sensitivity": ("area", np.where(np.isnan(D), 0.0, 0.03)),
        },
        coords={"area": AREA},
        attrs={"bounds": [0.0, 1.0], "unit": "record"},
    )
    direct["sensitivity"].attrs = {"outcome_bounds": [0.0, 1.0], "unit": "record"}
    return direct, pd.DataFrame({"x": x}, index=AREA)


def a_release(kind, assumptions=PUBLIC_INPUTS):
    direct, table = a_direct()
    model = fay_herriot(direct, "~ x", table, sigma_u=0.03)
    made = {"sensitivity": direct["sensitivity"], "assumptions": assumptions}
    if kind == "noisy-direct":
        return PrivateRelease(model, **made, mechanism="noisy-direct", rho=0.2)
    mechanism = "independent" if kind.startswith("independent") else "joint"
    release = PrivateRelease(model, **made, mechanism=mechanism)
    if kind.endswith(("temper", "noise", "scale")):
        rho = 0.4 * float(release.guarantee["rho"])
        release = release.calibrate(rho=rho, method=kind.split()[1])
    return release


KINDS = ["joint", "independent", "noisy-direct"] + [
    f"{mechanism} {method}"
    for mechanism in ("joint", "independent")
    for method in ("temper", "noise", "scale")
]


def summary(found):
    return containers.read_group(found, "posterior_summary")


@pytest.mark.parametrize("kind", KINDS)
def test_a_public_file_suffices(kind, tmp_path):
    release = a_release(kind)
    container = release.draw(draws=1 if kind == "noisy-direct" else 2)
    write_public(container, tmp_path / "release.nc")
    write_public(container, tmp_path / "release.zarr")
    _, table = a_direct()
    places = [tmp_path / "release.nc", tmp_path / "release.zarr", container, release]
    prior = pm.HalfNormal.dist(0.1)
    found = [
        release_posterior(place, "~ x", table, prior=prior, draws=2, random_seed=1)
        for place in places
    ]
    for one in found:
        assert containers.read_group(one, "posterior").attrs["privacy"] == PUBLIC
        xr.testing.assert_allclose(summary(one), summary(found[0]), rtol=1e-9)
    assert list(summary(found[0])["area"].values) == AREA


@pytest.mark.parametrize("kind", KINDS)
def test_information_is_the_price_and_fits_what_was_released(kind):
    release = a_release(kind)
    group = containers.read_group(release.draw(), containers.GROUP)
    read = read_information(group)
    # Prices include what rounding on the lattice can add, far below 1e-6 of them.
    price = release.guarantee["sensitivity"].values ** 2 * read.K.diagonal / 2
    assert float(price.max()) == pytest.approx(float(group["rho"]), rel=1e-6)
    if kind == "noisy-direct":
        K = read.own[read.informed]
        # Published on a grid of a hundredth of the smallest noise.
        y = group["noisy_direct"].values[0, 0, read.informed]
        assert (np.abs(read.h[read.informed] / K - y) <= 0.02 / np.sqrt(K)).all()
    else:
        # h is linear in theta*: K theta in the mean, within 8 standard deviations.
        error = np.sqrt(read.K.diagonal)
        direct, _ = a_direct()
        centre = read.K.times(np.nan_to_num(direct["estimate"].values))
        assert (np.abs(read.h - centre)[read.informed] < 8 * error[read.informed]).all()


def test_the_statistic_of_a_joint_draw_is_that_of_its_published_digits():
    """``W (theta* - c)``, c zero under a flat prior; digits are lost in theta* alone."""
    group = containers.read_group(a_release("joint").draw(), containers.GROUP)
    direct, _ = a_direct()
    W = np.nan_to_num(1 / direct["variance"].values)
    half = 0.5 * 10.0 ** -json.loads(group.attrs["privacy"])["publishing_decimals"]
    away = group["information_h"].values[0, 0] - W * group["theta"].values[0, 0]
    assert (np.abs(away) <= W * half * (1 + 1e-6)).all()


def test_the_working_value_is_tested_where_the_draw_is_as_modelled():
    _, table = a_direct()
    release = a_release("joint")
    release.draw()
    found = check_working(release, "~ x", table)
    assert found.attrs["tested_sigma_u"] == pytest.approx(0.03, rel=1e-9)
    assert int(found["degrees_of_freedom"]) == 8
    widened = a_release("independent noise")
    widened.draw()
    assert np.isfinite(check_working(widened, "~ x", table)["statistic"])
    tempered = a_release("joint temper")
    tempered.draw()
    with pytest.raises(ValueError, match="gives no working sigma_u"):
        check_working(tempered, "~ x", table)
    assert np.isfinite(check_working(tempered, "~ x", table, sigma_u=0.03)["statistic"])


def test_undeclared_inputs_keep_the_conclusion_inside(tmp_path):
    direct, table = a_direct()
    release = a_release("joint", {})
    container = release.draw()
    with pytest.raises(ValueError, match="gives no sampling variances"):
        release_posterior(container, "~ x", table)
    found = release_posterior(
        container, "~ x", table, sampling_variance=direct["variance"], draws=1
    )
    attrs = containers.read_group(found, "posterior").attrs
    assert attrs["privacy"] == DECLARED and attrs["claim_of_release"].startswith("conditional")
    marked = direct["variance"].assign_attrs(computed_from="answers")
    found = release_posterior(container, "~ x", table, sampling_variance=marked, draws=1)
    assert containers.read_group(found, "posterior").attrs["privacy"] == INSIDE
    write_public(container, tmp_path / "release.nc", conditional=True)
    with pytest.raises(ValueError, match="not declared public"):
        release_posterior(tmp_path / "release.nc", sampling_variance=direct["variance"])


def test_noise_on_direct_estimates_needs_no_public_model(tmp_path):
    """Their noise is that of the sensitivities: whoever knows the weights can read them."""
    direct, _ = a_direct()
    release = a_release("noisy-direct", {"sampling_variance": "design", "weights": "design"})
    write_public(release.draw(), tmp_path / "release.nc")
    inside, outside = read_information(release), read_information(tmp_path / "release.nc")
    # The file's noise variance counts the rounding of what is published.
    np.testing.assert_allclose(outside.own, inside.own, rtol=1e-3)
    found = noisy_direct(tmp_path / "release.nc")
    total = direct["variance"] + found["noise_variance"]
    np.testing.assert_allclose(found["variance"], total, rtol=1e-12)


def test_releases_by_two_mechanisms_together_say_more():
    releases = [a_release("joint"), a_release("noisy-direct")]
    for release in releases:
        release.draw()
    _, table = a_direct()
    prior = pm.HalfNormal.dist(0.1)
    both = summary(release_posterior(releases, "~ x", table, prior=prior, draws=1))
    told = read_information(releases)
    one, two = (read_information(r) for r in releases)
    np.testing.assert_allclose(told.K.dense(), one.K.dense() + two.K.dense(), rtol=1e-10)
    np.testing.assert_allclose(told.h, one.h + two.h, rtol=1e-10)
    assert told.facts["mechanism"] == "joint and noisy-direct"
    assert np.isfinite(both["theta_mean"]).all()
