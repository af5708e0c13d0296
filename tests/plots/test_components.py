"""The picture of fixed against estimated variance components shows the numbers it is given."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import pymc_dp as pdp


@pytest.fixture(scope="module")
def comparison() -> xr.Dataset:
    direct = xr.Dataset(
        {
            "estimate": ("area", [0.1, 0.3, 0.2, 0.25]),
            "variance": ("area", [0.01, 0.02, 0.004, 0.01]),
            "sensitivity": ("area", [0.05, 0.02, 0.03, 0.04]),
        },
        coords={"area": ["north", "east", "south", "west"]},
        attrs={"bounds": [0.0, 1.0]},
    )
    return pdp.compare_variance_components(direct, sigma_u=0.05, order=[1.5, 2, 8, 32])


def test_curves_are_the_divergences_of_the_area_where_estimating_costs_most(comparison):
    left, right = pdp.plot_variance_components(comparison)
    worst = comparison["area"].values[int(comparison["ratio"].max("order").values.argmax())]
    assert worst in left.get_title(loc="left")
    assert "treating the variance components as fixed" in left.get_title(loc="left")
    names = ("rdp_fixed", "rdp_plug_in", "rdp_estimated")
    for line, name in zip(left.lines, names, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), comparison[name].sel(area=worst))
    median = comparison["ratio"].median("area")
    np.testing.assert_allclose(right.lines[0].get_ydata(), median)
    plt.close(left.figure)


def test_axes_in_axes_out_and_an_area_of_choice(comparison):
    figure, axes = plt.subplots(1, 2)
    before = plt.get_fignums()
    left, right = pdp.plot_variance_components(comparison, area="south", axes=axes)
    assert left is axes[0] and right is axes[1] and plt.get_fignums() == before
    assert "south" in left.get_title(loc="left")
    plt.close(figure)


def test_something_else_is_refused(comparison):
    with pytest.raises(ValueError, match="not a result of compare_variance_components"):
        pdp.plot_variance_components(comparison[["ratio"]])
    with pytest.raises(ValueError, match="no area 'nowhere'"):
        pdp.plot_variance_components(comparison, area="nowhere")
