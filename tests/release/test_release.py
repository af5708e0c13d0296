"""PrivateRelease: the guarantee before any draw, the draw, the record, and refusals."""

from __future__ import annotations

import copy
import json
import pickle
import threading

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as pdp
from pymc_dp import PrivacyLedger, PrivateRelease, fay_herriot
from pymc_dp._checks import round_up
from pymc_dp.containers import GROUP, groups, new_container, read_group
from pymc_dp.record.claims import read_record

AREA = ["north", "east", "south", "west", "middle"]
BOTH = {"sampling_variance": "design table 7", "sigma_u": "last year's publication"}


@pytest.fixture(scope="module")
def direct():
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            "estimate": ("area", rng.uniform(0.1, 0.3, 5).round(4)),
            "variance": ("area", rng.uniform(2e-4, 2e-3, 5)),
        },
        coords={"area": AREA},
        attrs={"bounds": [0.0, 1.0]},
    )


@pytest.fixture(scope="module")
def sensitivity():
    values = np.array([0.01, 0.02, 0.03, 0.015, 0.05])
    attrs = {"bounds": [0.0, 1.0], "unit": "household"}
    return xr.DataArray(values, dims="area", coords={"area": AREA}, attrs=attrs)


@pytest.fixture(scope="module")
def model(direct):
    return fay_herriot(direct, sigma_u=0.05)


def test_guarantee_has_the_documented_variables_and_dims(model, sensitivity):
    g = PrivateRelease(model, sensitivity).guarantee
    by_area = {
        "posterior_sd",
        "theta_smoothed_sd",
        "sensitivity",
        "rho_respondent",
        "rho_beta",
        "rho_area",
        "rho_area_ideal",
        "rho_independent",
        "rho_unshrunk",
        "propagation_own",
        "information_own",
    }
    dims = {name: ("area",) for name in by_area} | {
        "propagation_left": ("area", "factor"),
        "propagation_right": ("area_bis", "factor"),
        "information_shared": ("area", "information_factor"),
        "information_sign": ("information_factor",),
        "rdp": ("order",),
        "epsilon": ("delta",),
        "epsilon_zcdp": ("delta",),
        "epsilon_area": ("area", "delta"),
        "rho": (),
        "mu": (),
    }
    assert {name: v.dims for name, v in g.data_vars.items()} == dims
    assert list(g["area"].values) == AREA
    np.testing.assert_allclose(g["rdp"], g["rho"] * g["order"])
    np.testing.assert_allclose(g["mu"] ** 2 / 2, g["rho"])


def test_propagation_factors_and_matrix_agree(model, sensitivity):
    release = PrivateRelease(model, sensitivity)
    g, M = release.guarantee, release.propagation()
    own = np.diag(g["propagation_own"])
    np.testing.assert_allclose(
        own + g["propagation_left"].values @ g["propagation_right"].values.T, M
    )
    # Intercept only: rows of the propagation matrix add up to one.
    np.testing.assert_allclose(M.sum("area_bis"), 1.0, rtol=1e-12)


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
def test_draw_attaches_one_draw_and_the_guarantee(model, sensitivity, mechanism):
    release = PrivateRelease(model, sensitivity, mechanism=mechanism)
    idata = release.draw()
    group = read_group(idata, GROUP)
    assert group["theta"].dims == group["theta_smoothed"].dims == ("chain", "draw", "area")
    assert group["theta"].shape == (1, 1, 5)
    for name in release.guarantee:
        xr.testing.assert_identical(group[name], release.guarantee[name])
    record = read_record(group.attrs)
    decimals = record["publishing_decimals"]
    np.testing.assert_array_equal(group["theta"], group["theta"].round(decimals))
    smallest = float(group["posterior_sd"].min())
    assert smallest / 1000 < 10.0**-decimals <= smallest / 100
    assert set(group.attrs) == {
        "privacy",
        "created_at",
        "creation_library",
        "creation_library_version",
    }


def test_draws_are_near_the_posterior_and_differ(model, sensitivity, direct):
    release = PrivateRelease(model, sensitivity)
    theta = read_group(release.draw(draws=400), GROUP)["theta"].values[0]
    simulated = release.simulate(4000, random_seed=1).values[0]
    sd = release.guarantee["posterior_sd"].values
    # Two draws are equal in an area, on a grid of a hundredth of sd, in 0.3 % of pairs; in all five
    # areas, for some of 80,000 pairs, in 2e-8 of runs.
    assert len(np.unique(theta, axis=0)) == 400
    # The difference has a standard error of 0.0525 sd: 7.5 of them, in one of five areas, 4e-13.
    assert (np.abs(theta.mean(0) - simulated.mean(0)) < 6 * sd * (1 / 20 + 1 / 63)).all()


def test_simulated_draws_follow_the_seed_and_say_that_they_are_not_private(model, sensitivity):
    release = PrivateRelease(model, sensitivity)
    a, b = (release.simulate(5, random_seed=3) for _ in range(2))
    xr.testing.assert_identical(a, b)
    assert "not a private release" in a.attrs["note"]
    assert release.released is None


def test_smoothed_draw_has_the_error_it_claims(direct, sensitivity):
    """Truth from the model, data from the truth, draw from the posterior: the errors agree."""
    rng = np.random.default_rng(12)
    D, A, m = direct["variance"].values, 0.05**2, 5
    post = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity)
    from pymc_dp.mechanisms.law import smooth_independent, smooth_joint

    n = 20_000
    theta = 0.2 + 0.05 * rng.normal(size=(n, m))
    y = theta + np.sqrt(D) * rng.normal(size=(n, m))
    p = post.specification.law.posterior
    chol = np.linalg.cholesky(p.covariance())
    for smooth, noise in (
        (smooth_joint, rng.normal(size=(n, m)) @ chol.T),
        (smooth_independent, rng.normal(size=(n, m)) * np.sqrt(p.variance)),
    ):
        mean, sd = smooth(p, p.mean(y) + noise)
        error = mean - theta
        # 4 standard errors of a mean and of a standard deviation from 20,000 values; the flat
        # prior of beta makes the statement hold for any beta.
        assert (np.abs(error.mean(0)) < 4 * sd / np.sqrt(n)).all()
        assert (np.abs(error.std(0) / sd - 1) < 4 / np.sqrt(2 * n)).all()
    assert A > 0


@pytest.mark.parametrize(
    ("assumptions", "kind", "components"),
    [
        (None, "conditional", ("plug-in", "plug-in")),
        ({"sigma_u": "x"}, "conditional", ("fixed", "plug-in")),
        ({"sampling_variance": "x"}, "conditional", ("plug-in", "fixed")),
        (BOTH, "formal", ("fixed", "fixed")),
    ],
)
def test_a_claim_is_formal_only_with_declared_sources_for_both_variances(
    model, sensitivity, assumptions, kind, components
):
    release = PrivateRelease(model, sensitivity, assumptions=assumptions)
    g = release.guarantee
    record = read_record(g.attrs)
    assert record["claim"] == release.claim == kind
    assert record["variance_components"] == {
        "sigma_u": components[0],
        "sampling_variance": components[1],
    }
    for name in ("rho", "mu", "epsilon", "epsilon_zcdp", "epsilon_area", "rdp", "rho_respondent"):
        assert g[name].attrs["claim"].startswith(kind)
    assert kind in repr(release) and kind in release._repr_html_()
    if kind == "conditional":
        assert "treating the variance components as fixed" in repr(release)


def test_record_says_relation_unit_bounds_and_versions_and_holds_no_data(
    model, sensitivity, direct
):
    record = read_record(PrivateRelease(model, sensitivity, assumptions=BOTH).guarantee.attrs)
    assert record["unit"] == "household" and record["bounds"] == [0.0, 1.0]
    assert "replaced" in record["neighbours"] and "weights" in record["neighbours"]
    assert record["assumptions"] == BOTH and record["mechanism"] == "joint"
    assert record["versions"]["pymc_dp"] == pdp.__version__
    text = json.dumps(record)
    assert "seed" not in text
    assert not any(str(v) in text for v in direct["estimate"].values)


@pytest.mark.parametrize(
    ("assumptions", "message"),
    [
        ({"weight": "x"}, "unknown assumptions 'weight'"),
        ({"weights": " "}, "'weights' needs its source"),
        ({"sigma_u": 1}, "'sigma_u' needs its source"),
    ],
)
def test_unusable_assumptions_are_refused(model, sensitivity, assumptions, message):
    with pytest.raises(ValueError, match=message):
        PrivateRelease(model, sensitivity, assumptions=assumptions)


def test_sensitivities_are_joined_by_label(model, sensitivity):
    shuffled = sensitivity.isel(area=[3, 1, 4, 0, 2])
    a, b = (PrivateRelease(model, s).guarantee for s in (sensitivity, shuffled))
    xr.testing.assert_identical(a, b)
    series = PrivateRelease(model, sensitivity.to_series()).guarantee
    np.testing.assert_array_equal(series["sensitivity"], a["sensitivity"])
    array = PrivateRelease(model, sensitivity.values).guarantee
    np.testing.assert_array_equal(array["sensitivity"], a["sensitivity"])


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_unusable_sensitivities_name_the_area(model, sensitivity, bad):
    broken = sensitivity.copy()
    broken[2] = bad
    with pytest.raises(ValueError, match=r"not in 1 areas: south"):
        PrivateRelease(model, broken)


def test_missing_duplicate_or_misshapen_sensitivities_are_refused(model, sensitivity):
    with pytest.raises(ValueError, match=r"no sensitivity for 1 areas: north"):
        PrivateRelease(model, sensitivity.isel(area=slice(1, None)))
    twice = pd.concat([sensitivity.to_series(), sensitivity.to_series().iloc[:1]])
    with pytest.raises(ValueError, match=r"more than once: north"):
        PrivateRelease(model, twice)
    with pytest.raises(ValueError, match=r"shape \(4,\) for 5 areas"):
        PrivateRelease(model, np.ones(4))
    with pytest.raises(ValueError, match=r"'area' with its labels"):
        PrivateRelease(model, xr.DataArray(np.ones(5), dims="place"))
    with pytest.raises(ValueError, match=r"mechanism"):
        PrivateRelease(model, sensitivity, mechanism="both")
    with pytest.raises(ValueError, match=r"no variable 'phi'"):
        PrivateRelease(model, sensitivity, target="phi")


def test_estimates_outside_the_declared_range_are_counted_not_shown(model, sensitivity):
    narrow = sensitivity.assign_attrs(bounds=[0.9, 1.0])
    with pytest.raises(ValueError, match=r"^5 observed values lie outside the declared range$"):
        PrivateRelease(model, narrow)


def test_a_free_variance_component_needs_fixed_or_idata(direct, sensitivity):
    free = fay_herriot(direct)
    with pytest.raises(pdp.NotLinearGaussianError, match=r"fixed=\{'sigma_u': value\}.*idata"):
        PrivateRelease(free, sensitivity)
    held = PrivateRelease(free, sensitivity, fixed={"sigma_u": 0.05}).guarantee
    want = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity).guarantee
    np.testing.assert_allclose(held["rho_respondent"], want["rho_respondent"], rtol=1e-9)


def fitted(chains, **stats):
    idata = new_container()
    idata["posterior"] = xr.Dataset({"sigma_u": (("chain", "draw"), np.asarray(chains))})
    if stats:
        idata["sample_stats"] = xr.Dataset(
            {name: (("chain", "draw"), np.asarray(values)) for name, values in stats.items()}
        )
    return idata


def converged(mean=0.05):
    """Two chains of 500 independent draws whose mean is exactly the one asked for."""
    draws = np.random.default_rng(1).uniform(0.5, 1.5, size=(2, 500))
    return draws * mean / draws.mean()


def test_with_a_fit_sigma_u_is_plugged_in_at_its_posterior_mean(direct, sensitivity):
    idata = fitted(converged())
    release = PrivateRelease(fay_herriot(direct), sensitivity, idata=idata)
    want = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity).guarantee
    np.testing.assert_allclose(release.guarantee["rho"], want["rho"], rtol=1e-9)
    record = read_record(release.guarantee.attrs)
    assert record["variance_components"]["sigma_u"] == "plug-in"
    assert record["plugged_in"]["sigma_u"]["ess"] > 400
    assert release.draw() is idata and set(groups(idata)) == {"posterior", GROUP}


def test_sigma_u_estimated_from_the_same_data_cannot_be_declared_public(direct, sensitivity):
    with pytest.raises(ValueError, match=r"cannot be declared public"):
        PrivateRelease(
            fay_herriot(direct), sensitivity, idata=fitted(converged()), assumptions=BOTH
        )
    with pytest.raises(ValueError, match=r"posterior of idata lacks sigma_u"):
        idata = new_container()
        idata["posterior"] = xr.Dataset({"other": (("chain", "draw"), [[1.0]])})
        PrivateRelease(fay_herriot(direct), sensitivity, idata=idata)


def test_beside_a_fit_an_own_model_has_no_public_sampling_variances():
    """What is plugged in here is the error's standard deviation: declared public, it was not."""
    with pm.Model(coords={"area": AREA[:3]}) as model:
        theta = pm.Normal("theta", 0.0, 0.1, dims="area")
        sigma_e = pm.HalfNormal("sigma_e", 0.1)
        values = pm.Data("values", np.linspace(0.1, 0.37, 8))
        pm.Normal("y", theta[np.arange(8) % 3], sigma_e, observed=values)
    idata = new_container()
    idata["posterior"] = xr.Dataset({"sigma_e": (("chain", "draw"), converged())})
    with pytest.raises(ValueError, match=r"sigma_e held at posterior means .* cannot be declared"):
        PrivateRelease(
            model, 0.01, idata=idata, assumptions={"sampling_variance": "design table 7"}
        )
    record = read_record(PrivateRelease(model, 0.01, idata=idata).guarantee.attrs)
    assert set(record["plugged_in"]) == {"sigma_e"}
    assert set(record["variance_components"].values()) == {"plug-in"}
    # With a public constant in its place the source may be named, as before.
    held = {"fixed": {"sigma_e": 0.05}, "assumptions": BOTH}
    record = read_record(PrivateRelease(model, 0.01, **held).guarantee.attrs)
    assert record["claim"] == "formal"


@pytest.mark.parametrize("form", ["centred", "non-centred", "neighbours"])
def test_a_spread_of_effects_is_no_sampling_variance(form):
    """Plugged in under whatever name, it leaves the public sampling variances what they are."""
    with pm.Model(coords={"area": AREA[:3]}) as model:
        spread = pm.HalfNormal("spread", 0.1)
        if form == "centred":
            theta = pm.Normal("theta", 0.2, spread, dims="area")
        elif form == "non-centred":
            z = pm.Normal("z", dims="area")
            theta = pm.Deterministic("theta", 0.2 + spread * z, dims="area")
        else:
            W = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
            theta = pm.CAR("theta", np.full(3, 0.2), W, 0.5, spread**-2, dims="area")
        pm.Normal("y", theta, 0.05, observed=pm.Data("values", [0.1, 0.31, 0.22]), dims="area")
    idata = new_container()
    idata["posterior"] = xr.Dataset({"spread": (("chain", "draw"), converged())})
    declared = {"sampling_variance": "design table 7"}
    record = read_record(
        PrivateRelease(model, 0.01, idata=idata, assumptions=declared).guarantee.attrs
    )
    assert record["variance_components"] == {"sigma_u": "plug-in", "sampling_variance": "fixed"}
    assert record["claim"] == "conditional"


def test_beside_a_fit_a_fay_herriot_model_may_have_public_sampling_variances(direct, sensitivity):
    """There it is known which component was plugged in."""
    declared = {"sampling_variance": "design table 7"}
    release = PrivateRelease(
        fay_herriot(direct), sensitivity, idata=fitted(converged()), assumptions=declared
    )
    kinds = read_record(release.guarantee.attrs)["variance_components"]
    assert kinds == {"sigma_u": "plug-in", "sampling_variance": "fixed"}


def test_a_container_with_a_release_is_refused_before_any_draw(model, sensitivity):
    idata = PrivateRelease(model, sensitivity).draw()
    kept = read_group(idata, GROUP)["theta"].values.copy()
    second = PrivateRelease(model, sensitivity)
    with pytest.raises(ValueError, match=r"never overwritten"):
        second.draw(idata)
    assert second.released is None
    np.testing.assert_array_equal(read_group(idata, GROUP)["theta"], kept)
    with pytest.raises(TypeError, match=r"InferenceData or DataTree, not dict"):
        second.draw({})


def test_a_second_draw_without_a_ledger_is_refused_and_several_at_once_add_up(model, sensitivity):
    release = PrivateRelease(model, sensitivity)
    one = float(release.guarantee["rho"])
    group = read_group(release.draw(draws=3), GROUP)
    assert group["theta"].shape == (1, 3, 5)
    assert float(group["rho"]) == pytest.approx(3 * one, rel=1e-12)
    np.testing.assert_allclose(
        group["rho_area"], 3 * PrivateRelease(model, sensitivity).guarantee["rho_area"]
    )
    # What is shown after drawing is the price of what was drawn.
    assert float(release.guarantee["rho"]) == float(group["rho"])
    assert f"3 draws together: rho {round_up(float(group['rho']))}" in repr(release)
    assert read_record(group.attrs)["draws"] == 3
    with pytest.raises(ValueError, match=r"has been drawn"):
        release.draw()
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=r"positive integer"):
            PrivateRelease(model, sensitivity).draw(draws=bad)


def test_two_threads_cannot_draw_twice(model, sensitivity):
    release = PrivateRelease(model, sensitivity)
    outcomes = []

    def attempt():
        try:
            release.draw()
            outcomes.append("drawn")
        except ValueError:
            outcomes.append("refused")

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(outcomes) == ["drawn"] + ["refused"] * 7


def test_the_ledger_is_charged_before_the_noise_and_a_refusal_draws_nothing(
    model, sensitivity, tmp_path
):
    release = PrivateRelease(model, sensitivity, assumptions=BOTH)
    rho = float(release.guarantee["rho"])
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", 2.5 * rho, create=True)
    release.draw(ledger=ledger)
    release.draw(ledger=ledger)
    assert ledger.spent == pytest.approx(2 * rho)
    with pytest.raises(pdp.BudgetExceeded):
        release.draw(ledger=ledger)
    fresh = PrivateRelease(model, sensitivity, assumptions=BOTH)
    with pytest.raises(pdp.BudgetExceeded):
        fresh.draw(ledger=ledger)
    assert fresh.released is None
    conditional = PrivateRelease(model, sensitivity)
    with pytest.raises(ValueError, match=r"conditional"):
        conditional.draw(ledger=ledger)


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
def test_a_draw_is_charged_by_area_where_the_ledger_has_cells(
    model, sensitivity, tmp_path, mechanism
):
    release = PrivateRelease(model, sensitivity, mechanism=mechanism, assumptions=BOTH)
    cells = pd.DataFrame({"region": AREA})
    ledger = pdp.PrivacyLedger(tmp_path / "l", 100.0, create=True, cells=cells)
    group = read_group(release.draw(ledger=ledger, cells="region", draws=2), GROUP)
    name = "rho_respondent" if mechanism == "joint" else "rho_independent"
    prices = group[name].to_series()
    charged = ledger.spent_by("region")[AREA]
    assert np.allclose(charged, prices, rtol=1e-12, atol=0) and (charged >= prices).all()
    assert ledger.spent == prices.max() and prices.min() < prices.max()
    for wrong, words in (({"cells": "area"}, "named 'area'"), ({"ledger": None}, "give the led")):
        with pytest.raises(ValueError, match=words):
            release.draw(**({"ledger": ledger, "cells": "region"} | wrong))
    assert len(ledger.to_dataframe()) == 1


@pytest.mark.parametrize("hidden", ["\u200b", "\x1b", "\u202e"])
def test_a_text_of_the_record_holds_nothing_that_cannot_be_seen(model, sensitivity, hidden):
    with pytest.raises(ValueError, match="source of assumption 'sigma_u' holds characters"):
        PrivateRelease(model, sensitivity, assumptions=BOTH | {"sigma_u": f"the{hidden} report"})
    unit = sensitivity.assign_attrs(unit=f"house{hidden}hold")
    with pytest.raises(ValueError, match="the record's unit holds characters"):
        _ = PrivateRelease(model, unit).guarantee
    lines = PrivateRelease(model, sensitivity, assumptions=BOTH | {"sigma_u": " the\n report "})
    assert read_record(lines.guarantee.attrs)["assumptions"]["sigma_u"] == "the report"


def test_nothing_of_the_release_is_lost_when_the_tree_is_cut(model, sensitivity):
    release = PrivateRelease(model, sensitivity)
    idata = release.draw()
    kept = release.released
    idata[GROUP]["theta"].values[:] = 0
    xr.testing.assert_identical(release.released, kept)


def test_three_small_areas_price_is_the_largest_not_the_sum():  # A17
    D, s = np.array([0.04, 0.01, 0.09]), np.array([0.5, 0.2, 0.6])
    direct = xr.Dataset(
        {"estimate": ("area", [0.5, 0.5, 0.5]), "variance": ("area", D)},
        coords={"area": list("abc")},
    )
    g = PrivateRelease(fay_herriot(direct, sigma_u=0.1), s).guarantee
    np.testing.assert_allclose(g["rho_unshrunk"], [3.125, 2, 2], rtol=1e-12)
    assert float(g["rho"]) == float(g["rho_respondent"].max()) == float(g["rho_area"].max())
    assert float(g["rho"]) < 3.125
    assert "one unit's outcomes" in read_record(g.attrs)["neighbours"]


def test_group_survives_netcdf_and_zarr(model, sensitivity, tmp_path):
    idata = PrivateRelease(model, sensitivity, assumptions=BOTH).draw()
    want = read_group(idata, GROUP)
    idata.to_netcdf(tmp_path / "release.nc")
    tree = idata if isinstance(idata, xr.DataTree) else idata.to_datatree()
    tree.to_zarr(tmp_path / "release.zarr")
    for path in ("release.nc", "release.zarr"):
        with xr.open_datatree(
            tmp_path / path, engine="zarr" if "zarr" in path else "h5netcdf"
        ) as back:
            got = back[GROUP].to_dataset().load()
        for name in want.variables:
            np.testing.assert_array_equal(got[name].astype(want[name].dtype), want[name])
        assert read_record(got.attrs) == read_record(want.attrs)


def test_arviz_summary_reads_the_released_draws(model, sensitivity):
    import arviz as az

    idata = PrivateRelease(model, sensitivity).draw(draws=8)
    table = az.summary(idata, group=GROUP, var_names=["theta"], kind="stats")
    assert len(table) == 5


@pytest.mark.parametrize(
    ("chains", "stats", "message"),
    [
        (np.add(converged(), [[0.0], [0.1]]), {}, "sigma_u .*rhat"),
        (np.repeat(converged()[:, :20], 25, axis=1), {}, "sigma_u .*ess"),
        (np.full((2, 500), 0.05), {}, "sigma_u .*rhat nan"),
        (converged(), {"diverging": np.arange(1000).reshape(2, 500) < 6}, "6 divergences in 1000"),
    ],
    ids=["chains apart", "chains slow", "chains stuck", "divergences"],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_fit_that_has_not_converged_cannot_be_plugged_in(
    direct, sensitivity, chains, stats, message
):  # A10
    with pytest.raises(ValueError, match=rf"has not converged .*{message}"):
        PrivateRelease(fay_herriot(direct), sensitivity, idata=fitted(chains, **stats))


def test_a_handful_of_divergences_and_a_single_exact_chain_are_accepted(direct, sensitivity):
    few = {"diverging": np.arange(1000).reshape(2, 500) < 5}
    PrivateRelease(fay_herriot(direct), sensitivity, idata=fitted(converged(), **few))
    one = fitted(converged().reshape(1, -1))
    record = read_record(
        PrivateRelease(fay_herriot(direct), sensitivity, idata=one).guarantee.attrs
    )
    assert set(record["plugged_in"]["sigma_u"]) == {"ess"}


def test_fit_from_nuts_flows_into_a_plug_in_release(direct, sensitivity):
    free = fay_herriot(direct, sigma_u=pm.Gamma.dist(5, 100))
    idata = pm.sample(
        600,
        tune=500,
        chains=2,
        cores=1,
        model=free,
        progressbar=False,
        random_seed=1,
    )
    released = PrivateRelease(free, sensitivity, idata=idata).draw()
    assert released is idata and {"posterior", GROUP} <= set(groups(idata))


def test_a_release_is_not_copied_and_its_claim_cannot_be_set(model, sensitivity):
    release = PrivateRelease(model, sensitivity)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="could draw again at no stated price"):
            copied(release)
    for name in ("claim", "mechanism"):
        with pytest.raises(AttributeError):
            setattr(release, name, "formal")


def test_a_ledger_refuses_a_draw_after_one_that_it_does_not_hold(model, sensitivity, tmp_path):
    ledger = PrivacyLedger(tmp_path / "l", rho=1e6, conditional=True, create=True)
    release = PrivateRelease(model, sensitivity)
    release.draw()
    with pytest.raises(ValueError, match="drawn without a ledger"):
        release.draw(ledger=ledger)
    assert ledger.spent == 0
    other = PrivateRelease(model, sensitivity)
    one = float(other.guarantee["rho"])
    for draws in (1, 2):
        other.draw(ledger=ledger, draws=draws)
    assert float(other.guarantee["rho"]) == pytest.approx(3 * one, rel=1e-12)
    assert "drawn 3 times" in repr(other)
    assert ledger.spent == pytest.approx(3 * one, rel=1e-12)
