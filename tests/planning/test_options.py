"""Which way is most accurate at a budget, and the frontier."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import xarray as xr

from pymc_dp.planning.options import frontier, recommend
from pymc_dp.planning.plans import planned_release
from pymc_dp.plots.planning import plot_frontier
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior

matplotlib.use("Agg")


def areas(m=40, seed=1, equal=False):
    rng = np.random.default_rng(seed)
    D = np.full(m, 1e-3) if equal else rng.uniform(2e-4, 2e-3, m)
    s = np.full(m, 0.02) if equal else np.exp(rng.normal(-4.5, 0.5, m))
    return xr.Dataset(
        {"variance": ("area", D), "sensitivity": ("area", s)},
        coords={"area": [f"a{k:02d}" for k in range(m)]},
    )


def test_noisy_direct_estimates_win_where_the_dearest_area_sets_the_price():
    table = areas()
    release = planned_release(table, sigma_u=0.06)
    rho = 0.9 * float(release.guarantee["rho"])
    answer = recommend(release, rho=rho)
    assert answer.best == "noisy direct estimates"
    # By hand: the posterior under enlarged sampling variances.
    noisy = table["variance"].values + table["sensitivity"].values ** 2 / (2 * rho)
    want = fay_herriot_posterior(0.06**2, 1 / noisy, np.ones((40, 1))).variance
    got = answer.table.loc["noisy direct estimates"]
    assert got["rmse_smoothed"] == pytest.approx(np.sqrt(want.mean()), rel=1e-9)
    assert got["rmse"] == pytest.approx(np.sqrt(noisy.mean()), rel=1e-9)
    assert not answer.table.loc["draw", "fits"] and answer.table.loc["tempered draw", "fits"]
    gain = 1 - got["rmse_smoothed"] / answer.table.loc["tempered draw", "rmse_smoothed"]
    assert f"{100 * gain:.2g}% less" in answer.sentence
    assert "the draw as it is would cost" in answer.sentence
    assert answer.sentence in str(answer) and "<table" in answer._repr_html_()


def test_the_draw_wins_under_strong_pooling_with_equal_weights():
    release = planned_release(areas(equal=True), sigma_u=0.01)
    rho = 1.01 * float(release.guarantee["rho"])
    answer = recommend(release, rho=rho)
    assert answer.best == "draw" and "tempered draw" not in answer.table.index
    assert answer.sentence.startswith(f"At rho {rho:.4g}, the draw, smoothed, is the most")
    assert recommend(release, rho=rho / 10).best == "tempered draw"


def test_equal_accuracy_is_called_equal():
    """Hardly any pooling and equal areas: noise of the same size either way."""
    release = planned_release(areas(equal=True), sigma_u=1.0)
    answer = recommend(release, rho=float(release.guarantee["rho"]))
    assert answer.best == "draw" and "equally accurate" in answer.sentence


def test_the_best_way_has_the_smallest_error_of_those_that_fit():
    release = planned_release(areas(seed=3), sigma_u=0.03)
    for epsilon in (0.2, 1.0, 5.0):
        answer = recommend(release, epsilon=epsilon, delta=1e-6)
        assert answer.sentence.startswith(f"At epsilon {epsilon:g}, delta 1e-06 (rho ")
        fits = answer.table[answer.table["fits"]]
        best = fits["rmse_smoothed"].min()
        assert fits.loc[answer.best, "rmse_smoothed"] <= best * 1.0051


def test_frontier_agrees_with_calibration_and_improves_with_the_budget():
    release, other = planned_release(areas(), sigma_u=0.06), planned_release(areas(), sigma_u=0.05)
    targets = [0.2, 0.02, 1.0]
    curves = frontier(release, targets, trimmed={"other": other})
    assert list(curves["rho"].values) == sorted(targets)
    assert list(curves["way"].values) == [
        "temper",
        "noise",
        "scale",
        "noisy direct estimates",
        "other",
    ]
    for method in ("temper", "noise", "scale"):
        report = release.calibrate(0.02, method=method).report
        got = curves["rmse"].sel(way=method, rho=0.02).item()
        assert got == report["rmse"].sel(estimator="smoothed draw").item()
    assert (np.diff(curves["rmse"], axis=1) <= 1e-15).all()
    want = other.calibrate(0.02).report["rmse"].sel(estimator="smoothed draw").item()
    assert curves["rmse"].sel(way="other", rho=0.02).item() == want
    assert curves["rho_now"].item() == release.guarantee["rho"].item()
    assert frontier(release).sizes["rho"] == 25


def test_frontier_picture_marks_the_chosen_point_and_says_its_claim():
    curves = frontier(planned_release(areas(), sigma_u=0.06), np.geomspace(0.01, 1, 5))
    ax = plot_frontier(curves, rho=0.1)
    *lines, now, chosen = ax.get_lines()
    assert len(lines) == 4
    for line, way in zip(lines, curves["way"].values, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), curves["rmse"].sel(way=way))
    assert float(now.get_xdata()[0]) == curves["rho_now"].item()
    x, y = float(chosen.get_xdata()[0]), float(chosen.get_ydata()[0])
    assert x == 0.1 and y == pytest.approx(curves["rmse"].sel(way="temper", rho=0.1).item())
    assert "conditional" in ax.get_title(loc="left")
    assert ax.get_xscale() == ax.get_yscale() == "log"
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "chosen: temper, rho 0.1" in words
    matplotlib.pyplot.close("all")


def test_unusable_frontiers_are_refused():
    curves = frontier(planned_release(areas(), sigma_u=0.06), [0.1, 0.2])
    with pytest.raises(ValueError, match="not a result of frontier"):
        plot_frontier(areas())
    with pytest.raises(ValueError, match="no way 'clip'"):
        plot_frontier(curves, way="clip")
    with pytest.raises(ValueError, match="outside the grid"):
        plot_frontier(curves, rho=3.0)
    many = curves.isel(way=[0, 1, 2, 3, 0, 1, 2, 3]).assign_coords(way=list("abcdefgh"))
    with pytest.raises(ValueError, match="at most 7 ways"):
        plot_frontier(many)
    matplotlib.pyplot.close("all")
