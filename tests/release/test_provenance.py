"""Where constants come from travels with their values, or is said to be unknown."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as pdp
from pymc_dp.containers import read_group
from pymc_dp.record.claims import read_record
from pymc_dp.record.origin import DECLARED, HAJEK, HAJEK_SENSITIVITY

SOURCES = {"sampling_variance": "a public rate", "sigma_u": "the survey of last year"}


def records() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    area = np.repeat(["north", "east", "south", "west"], 50)
    return pd.DataFrame(
        {"area": area, "w": rng.uniform(1, 5, 200), "y": (np.arange(200) % 7 < 2).astype(int)}
    )


def hajek(**how) -> xr.Dataset:
    return pdp.hajek(records(), outcome="y", weight="w", area="area", **how)


@pytest.fixture(scope="module")
def linearized() -> xr.Dataset:
    return hajek()


@pytest.fixture(scope="module")
def kish() -> xr.Dataset:
    return hajek(variance="kish", rate=0.3)


def origin(direct: xr.Dataset, **given) -> dict[str, str]:
    model = pdp.fay_herriot(direct, sigma_u=0.05)
    release = pdp.PrivateRelease(model, assumptions=SOURCES, **given)
    assert release.claim == "formal"
    return read_record(release.guarantee.attrs)["origin"]


def test_a_model_of_hajeks_estimates_comes_with_their_sensitivity(kish):
    model = pdp.fay_herriot(kish, sigma_u=0.05)
    release = pdp.PrivateRelease(model, assumptions=SOURCES)
    given = pdp.PrivateRelease(model, kish["sensitivity"], assumptions=SOURCES)
    xr.testing.assert_identical(release.guarantee, given.guarantee)
    record = read_record(release.guarantee.attrs)
    assert record["origin"] == {
        "sampling_variance": HAJEK,
        "sensitivity": HAJEK_SENSITIVITY,
        "sigma_u": DECLARED,
    }
    assert record["protects"] == "answer"
    # The only thing that nobody has checked is the one that only the user can know.
    assert f"{DECLARED}: sigma_u\n" in repr(release)


def test_a_model_without_sensitivities_says_so(kish):
    model = pdp.fay_herriot(kish.drop_vars("sensitivity"), sigma_u=0.05)
    with pytest.raises(ValueError, match="does not come with sensitivities"):
        pdp.PrivateRelease(model)


def test_variances_whose_mark_was_lost_are_of_unknown_origin(linearized, kish):  # C04
    with xr.set_options(keep_attrs=False):
        scaled = linearized.assign(variance=linearized["variance"] * 1.5)
    parts = xr.concat(
        [kish.isel(area=slice(0, 2)), linearized.isel(area=slice(2, 4))],
        dim="area",
        combine_attrs="override",
    )
    cases = [
        scaled,
        parts,
        kish.assign(variance=("area", linearized["variance"].values)),
        kish.assign(variance=kish["variance"].copy(data=linearized["variance"].values)),
    ]
    for direct in cases:
        assert origin(direct)["sampling_variance"] == DECLARED
    frame = linearized[["estimate", "variance", "sensitivity"]].to_dataframe()
    table = xr.Dataset.from_dataframe(frame)
    assert origin(table)["sampling_variance"] == DECLARED
    assert origin(kish)["sampling_variance"] == HAJEK


def test_a_mark_against_variances_stays_whatever_becomes_of_the_values(linearized):
    with xr.set_options(keep_attrs=True):
        for direct in (linearized, linearized.assign(variance=linearized["variance"] * 1.5)):
            model = pdp.fay_herriot(direct, sigma_u=0.05)
            with pytest.raises(ValueError, match="were computed from the answers"):
                pdp.PrivateRelease(model, assumptions=SOURCES)


def test_variances_set_after_the_model_was_made_lose_its_mark(linearized, kish):
    model = pdp.fay_herriot(kish, sigma_u=0.05)
    pm.set_data({"sampling_variance": linearized["variance"].values}, model=model)
    release = pdp.PrivateRelease(model, assumptions=SOURCES)
    assert read_record(release.guarantee.attrs)["origin"]["sampling_variance"] == DECLARED
    assert "sampling_variance" in repr(release).split(DECLARED)[1]


@pytest.mark.parametrize("name", ["direct", "sampling_variance", "sigma_u"])
def test_data_set_between_pricing_and_drawing_are_noticed(kish, name):
    model = pdp.fay_herriot(kish, sigma_u=0.05)
    release = pdp.PrivateRelease(model, assumptions=SOURCES)
    value = np.asarray(model[name].get_value())
    with model:
        pm.set_data({name: value * 1.1})
    with pytest.raises(ValueError, match=f"^{name} of the model changed after"):
        release.draw()
    with model:
        pm.set_data({name: value})
    assert "theta" in read_group(release.draw(), "private_release")


def test_a_sigma_u_estimated_from_the_answers_cannot_be_declared(linearized, kish):
    estimate = pdp.estimate_sigma_u(linearized)
    assert repr(estimate) == repr(float(estimate))
    estimate = type(estimate)(max(estimate, 0.01))
    for model, fixed in (
        (pdp.fay_herriot(kish, sigma_u=estimate), None),
        (pdp.fay_herriot(kish), {"sigma_u": estimate}),
    ):
        with pytest.raises(ValueError, match=r"sigma_u was estimated from the answers"):
            pdp.PrivateRelease(model, fixed=fixed, assumptions=SOURCES)
        only = {"sampling_variance": "a public rate"}
        assert pdp.PrivateRelease(model, fixed=fixed, assumptions=only).claim == "conditional"
    # Of another survey: without the mark.
    model = pdp.fay_herriot(kish, sigma_u=float(estimate) + 0.0)
    assert pdp.PrivateRelease(model, assumptions=SOURCES).claim == "formal"


def test_covariates_and_a_prior_of_coefficients_are_declared_or_conditional(kish):
    x = pd.DataFrame({"x": [0.1, 0.4, 0.2, 0.3]}, index=["north", "east", "south", "west"])
    model = pdp.fay_herriot(kish, "~ x", x, sigma_u=0.05)
    release = pdp.PrivateRelease(model, assumptions=SOURCES)
    words = "conditional (treating the covariates as public)"
    assert release.guarantee["rho"].attrs["claim"] == words
    assert words in repr(release)
    declared = SOURCES | {"covariates": "the tax register"}
    assert pdp.PrivateRelease(model, assumptions=declared).claim == "formal"
    prior = pm.Normal.dist(0.2, 0.1)
    model = pdp.fay_herriot(kish, sigma_u=0.05, beta_prior=prior)
    release = pdp.PrivateRelease(model, assumptions=SOURCES)
    assert "treating the prior of the coefficients as public" in repr(release)
    declared = SOURCES | {"beta_prior": "the survey of last year"}
    assert pdp.PrivateRelease(model, assumptions=declared).claim == "formal"


def test_a_claim_that_rests_on_covariates_is_published_in_its_own_words(kish, tmp_path):
    x = pd.DataFrame({"x": [0.1, 0.4, 0.2, 0.3]}, index=["north", "east", "south", "west"])
    release = pdp.PrivateRelease(pdp.fay_herriot(kish, "~ x", x, sigma_u=0.05), assumptions=SOURCES)
    idata = release.draw()
    with pytest.raises(ValueError, match="treating the covariates as public"):
        pdp.write_public(idata, tmp_path / "a.nc")
    pdp.write_public(idata, tmp_path / "a.nc", conditional=True)
    group = read_group(pdp.read_public(tmp_path / "a.nc"), "private_release")
    record = read_record(group.attrs)
    assert record["undeclared"] == ["covariates"] and record["claim"] == "conditional"
    assert record["origin"]["sampling_variance"] == HAJEK
    release.statement(tmp_path / "a.html", conditional=True)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert HAJEK in page and DECLARED in page


def test_a_sensitivity_below_hajeks_is_refused_and_another_unit_is_named(kish):  # C04
    model = pdp.fay_herriot(kish, sigma_u=0.05)
    smaller = kish["sensitivity"].copy()
    smaller[1] = smaller[1] * 0.999
    with pytest.raises(ValueError, match=r"below the one that came .* in 1 areas: north"):
        pdp.PrivateRelease(model, smaller)
    with pytest.raises(ValueError, match=r"below the one that came"):
        pdp.PrivateRelease(model, 1e-6)
    persons = smaller.assign_attrs(unit="person")
    release = pdp.PrivateRelease(model, persons, assumptions=SOURCES)
    words = read_record(release.guarantee.attrs)["origin"]["sensitivity"]
    assert words.startswith(DECLARED) and "whose unit is 'record'" in words
    larger = pdp.PrivateRelease(model, kish["sensitivity"] * 2, assumptions=SOURCES)
    assert read_record(larger.guarantee.attrs)["origin"]["sensitivity"] == DECLARED


def test_another_variable_is_no_sensitivity(kish):  # C07
    model = pdp.fay_herriot(kish, sigma_u=0.05)
    for name in ("variance", "n", "max_weight"):
        for given in (kish[name], kish[name].to_series()):
            with pytest.raises(ValueError, match=f"the sensitivity given is the variable '{name}'"):
                pdp.PrivateRelease(model, given)


def test_tables_are_joined_by_label_and_never_taken_by_position(kish):  # C07
    model = pdp.fay_herriot(kish, sigma_u=0.05)
    want = pdp.PrivateRelease(model, kish["sensitivity"]).guarantee["rho_respondent"]
    frame = kish["sensitivity"].to_series().to_frame()
    got = pdp.PrivateRelease(model, frame.iloc[::-1]).guarantee["rho_respondent"]
    # The table has no declared range, so that rounding is allowed for more generously.
    np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(ValueError, match="no sensitivity for"):
        pdp.PrivateRelease(model, frame.reset_index(drop=True))
    matrix = pd.DataFrame(
        np.diag(kish["sensitivity"].values), index=kish["area"].values, columns=list("abcd")
    )
    plain = pdp.PrivateRelease(model, matrix).guarantee
    turned = pdp.PrivateRelease(model, matrix.iloc[::-1]).guarantee
    np.testing.assert_array_equal(plain["rho_record"], turned["rho_record"])
    np.testing.assert_allclose(plain["rho_record"], want, rtol=1e-6)
    with pytest.raises(ValueError, match="no sensitivity for 4 of"):
        pdp.PrivateRelease(model, matrix.reset_index(drop=True))
