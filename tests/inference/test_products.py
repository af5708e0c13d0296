"""What is published beside estimates: small tables against plain loops over draws."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories.releases import as_group, information

from pymc_dp import containers, release_posterior
from pymc_dp.inference import benchmark, contrasts, exceedance, ranks, reliability

AREA = list("abcde")
THETA = (
    np.random.default_rng(1).normal([0.1, 0.2, 0.25, 0.3, 0.3], 0.05, size=(2, 300, 5)).clip(0.01)
)
FLAT = THETA.reshape(-1, 5)
POST = xr.Dataset({"theta": (("chain", "draw", "area"), THETA)}, coords={"area": AREA})
WEIGHTS = pd.Series({"e": 50.0, "d": 10.0, "c": 20.0, "b": 5.0, "a": 0.0})
W = WEIGHTS[AREA].to_numpy()


def test_the_container_does_not_matter():
    container = containers.new_container()
    container["posterior"] = POST
    shuffled = POST.transpose("area", "draw", "chain")
    for post in (container, shuffled):
        np.testing.assert_allclose(exceedance(post, 0.2), exceedance(POST, 0.2))
    if isinstance(container, xr.DataTree):
        np.testing.assert_allclose(exceedance(container["posterior"], 0.2), exceedance(POST, 0.2))


def test_ranks_count_the_areas_that_are_larger():
    found = ranks(POST, k=2, level=0.8)
    want = 1 + (FLAT[:, None, :] > FLAT[:, :, None]).sum(axis=2)
    np.testing.assert_allclose(found["rank"], want.mean(axis=0))
    assert float(found["rank"].sum()) == pytest.approx(15)
    for name, level in (("rank_lower", 0.1), ("rank_upper", 0.9)):
        quantile = np.sort(want, axis=0)[int(np.ceil(level * 600)) - 1]
        np.testing.assert_array_equal(found[name], quantile)
    np.testing.assert_allclose(found["probability_top"], (want <= 2).mean(axis=0))
    assert float(found["probability_top"].sum()) == pytest.approx(2)
    assert "probability_top" not in ranks(POST)


def test_exceedance_is_a_share_of_draws():
    found = exceedance(POST, [0.2, 0.25])
    assert found.dims == ("value", "area")
    np.testing.assert_allclose(found, [(FLAT > v).mean(axis=0) for v in (0.2, 0.25)])
    assert exceedance(POST, 0.2).dims == ("area",)


def test_contrasts_of_groups():
    groups = pd.Series({"a": "south", "c": "south", "d": "north", "e": "north"})
    found = contrasts(POST, groups, weights=WEIGHTS, level=0.8)
    north = FLAT[:, 3:] @ W[3:] / W[3:].sum()
    south = FLAT[:, 2]  # a has weight 0
    assert list(found["group"].values) == ["north", "south"]
    np.testing.assert_allclose(found["mean"], [north.mean(), south.mean()])
    np.testing.assert_allclose(found["sd"], [north.std(), south.std()])
    np.testing.assert_allclose(found["lower"], np.quantile([north, south], 0.1, axis=1))
    cell = found.sel(group="north", group_bis="south")
    for name, values in {
        "difference": (north - south).mean(),
        "difference_sd": (north - south).std(),
        "difference_upper": np.quantile(north - south, 0.9),
        "probability": (north > south).mean(),
        "ratio": np.median(north / south),
        "ratio_lower": np.quantile(north / south, 0.1),
    }.items():
        assert float(cell[name]) == pytest.approx(values)
    back = found.sel(group="south", group_bis="north")
    assert float(back["difference"]) == pytest.approx(-float(cell["difference"]))
    assert (found["difference"].sel(group="north", group_bis="north") == 0).all()


def test_a_ratio_needs_positive_draws():
    found = contrasts(POST - 0.2, {a: a for a in AREA})
    assert np.isnan(found["ratio"]).all() and np.isfinite(found["difference"]).all()


@pytest.mark.parametrize("method", ["ratio", "difference", "loss"])
def test_benchmarked_estimates_add_up_and_lose_least(method):
    total = 0.3 * W.sum()
    found = benchmark(POST, total, WEIGHTS, method=method)
    mean, variance = FLAT.mean(axis=0), FLAT.var(axis=0)
    assert float(W @ found["benchmarked"].values) == pytest.approx(total, rel=1e-12)
    np.testing.assert_allclose(found["estimate"], mean)
    adjustment = found["adjustment"].values
    np.testing.assert_allclose(
        found["rmse"] ** 2, ((FLAT - mean - adjustment) ** 2).mean(axis=0), rtol=1e-12
    )
    # No other way of adding up has a smaller expected loss, with the weights that belong to it.
    phi = {"ratio": W / mean, "difference": W, "loss": 1 / variance}[method]
    moved = np.flatnonzero(phi)
    rng = np.random.default_rng(2)
    least = phi @ adjustment**2
    for _ in range(20):
        other = np.zeros(5)
        other[moved] = rng.normal(size=moved.size)
        other -= W * (W @ other) / (W @ W)
        assert phi @ (adjustment + 0.01 * other) ** 2 > least * (1 - 1e-9)


def test_reliability_classes():
    post = xr.Dataset(
        {"theta": (("chain", "draw", "area"), [[[1.0, 1.0, 1.0, -1.0], [1.3, 1.5, 3.0, -1.3]]])},
        coords={"area": list("abcd")},
    )
    found = reliability(post)
    np.testing.assert_allclose(found["cv"], [0.15 / 1.15, 0.25 / 1.25, 1 / 2, 0.15 / 1.15])
    assert found["reliability"].values.tolist() == [1, 2, 3, 1]
    assert reliability(post, classes=[0.2]).reliability.values.tolist() == [1, 1, 2, 1]


def test_exact_moments_are_used_where_they_are():
    rng = np.random.default_rng(3)
    D = np.full(5, 0.002)
    K, h = information("joint", 0.001, D, np.ones((5, 1)), rng.normal(0.3, 0.05, 5), rng)
    post = release_posterior(as_group(K, h, AREA, D), draws=3, random_seed=1)
    summary = containers.read_group(post, "posterior_summary")
    cv = summary["theta_sd"].values / summary["theta_mean"].values
    np.testing.assert_allclose(reliability(post)["cv"], cv)
    found = benchmark(post, 0.3, {a: 0.2 for a in AREA})
    np.testing.assert_allclose(found["estimate"], summary["theta_mean"])


BROKEN = POST.copy(deep=True)
BROKEN["theta"].values[0, 3, 2] = np.nan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ranks(BROKEN), "1 draws of theta are missing"),
        (lambda: ranks(POST.drop_vars("theta")), "no draws 'theta'"),
        (lambda: ranks(POST, k=0), "from 1 to the number of areas, 5"),
        (lambda: ranks(POST, k=True), "from 1 to"),
        (lambda: ranks(POST, level=1.0), "level must be between"),
        (lambda: exceedance(POST, np.nan), "finite"),
        (lambda: contrasts(POST, {"z": "north"}), "1 areas without draws: z"),
        (lambda: contrasts(POST, {}), "name no area"),
        (lambda: contrasts(POST, {"a": "x"}, weights=WEIGHTS), "groups without weight: x"),
        (lambda: benchmark(POST, 1.0, WEIGHTS.drop("c")), "in 1 areas: c"),
        (lambda: benchmark(POST, 1.0, -WEIGHTS), "negative or infinite in 4 areas"),
        (lambda: benchmark(POST, 1.0, 0 * WEIGHTS), "every weight is zero"),
        (lambda: benchmark(POST, 1.0, W), "must have area labels"),
        (lambda: benchmark(POST, np.inf, WEIGHTS), "finite"),
        (lambda: benchmark(POST, -1.0, WEIGHTS), "same sign"),
        (lambda: benchmark(POST, 1.0, WEIGHTS, method="best"), "method must be"),
        (lambda: reliability(POST, classes=[0.3, 0.2]), "increasing"),
    ],
)
def test_unusable_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_holds_no_draws_is_refused():
    with pytest.raises(TypeError, match="not dict"):
        ranks({"theta": 1})
