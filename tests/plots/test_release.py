"""Pictures: what the artists show is what the release says, and nothing else."""

from __future__ import annotations

import inspect
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import pymc_dp
from pymc_dp import containers as io
from pymc_dp.models.builder import fay_herriot
from pymc_dp.plots import release as plots
from pymc_dp.plots.release import plot_guarantee, plot_rdp, plot_release
from pymc_dp.record.claims import CONDITIONAL
from pymc_dp.release.release import PrivateRelease
from pymc_dp.survey.estimate import hajek

PUBLIC = {"sigma_u": "earlier survey", "sampling_variance": "public rate"}
FEW = [
    "north",
    r"$\frac$ road",
    "south",
    "east",
    "west",
    "an area with a very long name indeed, as some have",
]


def make(m: int, *, unsampled: int = 0, moved: float = 0.0, **options: Any) -> PrivateRelease:
    """A release of m areas, the last few of them without sample."""
    rng = np.random.default_rng(11)
    variance = rng.uniform(0.5e-3, 4e-3, m)
    estimate = 0.2 + 0.1 * rng.uniform(size=m) + moved * rng.uniform(size=m)
    largest = rng.uniform(0.01, 0.1, m)
    for values in (variance, estimate, largest):
        values[m - unsampled :] = np.nan
    area = FEW if m == len(FEW) else [f"area {i:03d}" for i in range(m)]
    direct = xr.Dataset(
        {"estimate": ("area", estimate), "variance": ("area", variance)}, coords={"area": area}
    )
    attrs = {"bounds": (0, 1), "unit": options.pop("unit", "record")}
    sensitivity = xr.DataArray(largest, dims="area", coords={"area": area}, attrs=attrs)
    return PrivateRelease(fay_herriot(direct, sigma_u=0.04), sensitivity, **options)


def counts(release: PrivateRelease) -> pd.Series:
    area = release.guarantee["area"].values
    return pd.Series(np.random.default_rng(3).integers(50, 900, area.size), index=area)


@pytest.fixture(autouse=True)
def no_figure_left():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def few() -> PrivateRelease:
    release = make(6, unsampled=1)
    release.draw()
    return release


@pytest.fixture(scope="module")
def many() -> PrivateRelease:
    release = make(90, assumptions=PUBLIC)
    release.draw()
    return release


@pytest.fixture(scope="module")
def threefold() -> PrivateRelease:
    release = make(6, assumptions=PUBLIC, mechanism="independent", unit="household")
    release.draw(draws=3)
    return release


def free_axes(columns: int = 1) -> Any:
    """Axes that pyplot knows nothing of."""
    return FigureCanvasAgg(Figure(dpi=60)).figure.subplots(1, columns)


def line(ax: Axes, **properties: Any) -> Line2D:
    found = [
        x for x in ax.lines if all(getattr(x, f"get_{k}")() == v for k, v in properties.items())
    ]
    assert len(found) == 1
    return found[0]


def outline(band: PolyCollection) -> np.ndarray:
    [path] = band.get_paths()
    return path.vertices


def words(ax: Axes) -> list[str]:
    legends = [x for x in ax.get_children() if isinstance(x, matplotlib.legend.Legend)]
    return [t.get_text() for legend in legends for t in legend.get_texts()]


def pixels(axes: Any) -> np.ndarray:
    figure = np.ravel(axes)[0].get_figure(root=True)
    figure.canvas.draw()
    return np.array(figure.canvas.buffer_rgba())


# The curves.


def test_rdp_curve_of_the_release_is_the_order_times_rho(few) -> None:
    g = few.guarantee
    thick = max(plot_rdp(g).lines, key=Line2D.get_linewidth)
    np.testing.assert_array_equal(thick.get_xdata(), g["order"])
    # The package rounds rdp up by an ulp or so.
    np.testing.assert_allclose(thick.get_ydata(), g["order"] * float(g["rho"]), rtol=1e-12)


def test_rdp_curve_of_each_area_is_the_order_times_its_own_price(few) -> None:
    g = few.guarantee
    ax = plot_rdp(g)
    curves = sorted(x.get_ydata().tolist() for x in ax.lines if x.get_color() == plots.SKY)
    expected = np.sort(g["rho_area"].values)[:, None] * g["order"].values
    np.testing.assert_allclose(curves, expected, rtol=1e-15)
    assert len(curves) == 6 and "each of 6" in words(ax)
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_area_without_price_has_no_curve_on_the_logarithmic_axis(few) -> None:
    g = few.guarantee
    g["rho_area"][0] = 0.0
    ax = plot_rdp(g)
    assert "each of 5" in words(ax)
    assert all((x.get_ydata() > 0).all() for x in ax.lines)


def test_many_areas_become_nested_bands_of_quantiles(many) -> None:
    g = many.guarantee
    ax = plot_rdp(g)
    bands = [x for x in ax.collections if isinstance(x, PolyCollection)]
    order, price = g["order"].values, g["rho_area"].values
    for band, tail in zip(bands, [0, 0.05, 0.25], strict=True):
        corners = outline(band)
        for alpha in order:
            at = np.unique(corners[corners[:, 0] == alpha, 1])
            expected = alpha * np.quantile(price, [tail, 1 - tail])
            np.testing.assert_allclose([at.min(), at.max()], expected, rtol=1e-14)
    np.testing.assert_allclose(
        line(ax, color=plots.BLUE).get_ydata(), order * np.median(price), rtol=1e-14
    )
    assert len(ax.lines) == 2
    assert {"all areas", "90% of them", "half of them", "median area"} <= set(words(ax))


def test_named_areas_are_drawn_apart_over_lines_and_over_bands(few, many) -> None:
    for release in (few, many):
        g = release.guarantee
        names = [str(a) for a in g["area"].values[[2, 0]]]
        ax = plot_rdp(g, areas=names)
        for name, (color, style) in zip(names, plots.NAMED, strict=False):
            curve = line(ax, color=color)
            expected = g["order"] * g["rho_area"].sel(area=name).item()
            np.testing.assert_allclose(curve.get_ydata(), expected, rtol=1e-15)
            assert curve.get_linestyle() == style
            assert f"{name} alone" in words(ax)


def test_one_name_alone_may_be_given_as_text(few) -> None:
    assert "south alone" in words(plot_rdp(few.guarantee, areas="south"))


def test_unknown_or_too_many_named_areas_are_refused(few, many) -> None:
    with pytest.raises(ValueError, match=r"unknown areas: nowhere$"):
        plot_rdp(few.guarantee, areas=["south", "nowhere"])
    with pytest.raises(ValueError, match="at most 4 areas can be distinguished, not 5"):
        plot_rdp(many.guarantee, areas=many.guarantee["area"].values[:5])


# The release.


def ranked(group: xr.Dataset) -> xr.Dataset:
    mean = group["theta_smoothed"].mean(("chain", "draw")).values
    return group.isel(area=np.argsort(mean, kind="stable"))


def test_areas_stand_from_bottom_to_top_by_smoothed_value(few) -> None:
    ax = plot_release(few.released)
    expected = [str(a) for a in ranked(few.released)["area"].values]
    labels = [t.get_text().replace(r"\$", "$") for t in ax.get_yticklabels()]
    assert list(ax.get_yticks()) == list(range(6))
    for label, area in zip(labels, expected, strict=True):
        assert label == area or (len(label) == 32 and area.startswith(label[:-1]))
    assert ax.get_ylim()[0] < 0 and ax.get_ylim()[1] > 5


@pytest.mark.parametrize("prob", [0.5, 0.9, 0.999])
def test_interval_is_the_smoothed_draw_plus_and_minus_z_standard_deviations(few, prob) -> None:
    ax = plot_release(few.released, prob=prob)
    g = ranked(few.released)
    [intervals] = [x for x in ax.collections if isinstance(x, LineCollection)]
    centre, sd = g["theta_smoothed"].values[0, 0], g["theta_smoothed_sd"].values
    expected = scipy.stats.norm.interval(prob, centre, sd)
    for place, segment in enumerate(intervals.get_segments()):
        np.testing.assert_allclose(segment[:, 0], [e[place] for e in expected], rtol=1e-12)
        np.testing.assert_array_equal(segment[:, 1], [place, place])
    assert len(intervals.get_segments()) == 6
    assert f"{100 * prob:g}% interval given the draw" in words(ax)


def test_points_are_the_released_draw_and_its_smoothing(few) -> None:
    ax = plot_release(few.released)
    g = ranked(few.released)
    for color, name in ((plots.VERMILLION, "theta"), (plots.BLUE, "theta_smoothed")):
        points = line(ax, color=color)
        np.testing.assert_array_equal(points.get_xdata(), g[name].values[0, 0])
        np.testing.assert_array_equal(points.get_ydata(), np.arange(6))


def test_several_draws_stand_beside_each_other_within_their_area(threefold) -> None:
    ax = plot_release(threefold.released)
    g = ranked(threefold.released)
    assert ax.get_title(loc="left").startswith("3 released draws of 6 areas")
    for color, name in ((plots.VERMILLION, "theta"), (plots.BLUE, "theta_smoothed")):
        drawn = [x for x in ax.lines if x.get_color() == color]
        np.testing.assert_array_equal([x.get_xdata() for x in drawn], g[name].values[0])
        heights = np.array([x.get_ydata() for x in drawn])
        shift = heights - np.arange(6)
        assert (np.abs(shift) < 0.5).all() and len(np.unique(shift.round(6))) == 3
    assert len([x for x in ax.collections if isinstance(x, LineCollection)]) == 3
    assert len(words(ax)) == 3


def test_beyond_max_areas_intervals_become_a_ribbon_without_labels(many) -> None:
    ax = plot_release(many.released)
    g = ranked(many.released)
    assert list(ax.get_yticks()) == [] and ax.get_ylabel().startswith("areas, ordered")
    assert not [x for x in ax.collections if isinstance(x, LineCollection)]
    [ribbon] = [x for x in ax.collections if isinstance(x, PolyCollection)]
    corners = outline(ribbon)
    low, high = scipy.stats.norm.interval(
        0.9, g["theta_smoothed"].values[0, 0], g["theta_smoothed_sd"].values
    )
    for place in range(1, 89):  # steps: both ends reach half an area up and down
        near = corners[np.abs(corners[:, 1] - place) <= 0.5, 0]
        for end in (low[place], high[place]):
            assert np.abs(near - end).min() < 1e-12
    # No corner is anything but an end of an interval.
    ends = np.concatenate([low, high])
    assert np.abs(corners[:, :1] - ends).min(axis=1).max() < 1e-12
    points = line(ax, color=plots.VERMILLION)
    np.testing.assert_array_equal(points.get_xdata(), g["theta"].values[0, 0])


def test_max_areas_decides_between_rows_and_ribbon(few, many) -> None:
    assert list(plot_release(few.released, max_areas=5).get_yticks()) == []
    rows = plot_release(many.released, max_areas=90)
    assert len(rows.get_yticklabels()) == 90
    assert 3 <= rows.get_yticklabels()[0].get_fontsize() <= 9


def test_range_of_the_outcome_is_marked_only_where_draws_pass_it(few) -> None:
    def marks(group: xr.Dataset) -> list[float]:
        return [x.get_xdata()[0] for x in plot_release(group).lines if x.get_color() == "0.5"]

    group = few.released
    assert marks(group) == []
    group["theta"] = group["theta"] - 0.5
    assert marks(group) == [0.0]


def test_noisy_direct_estimates_are_pictured_and_called_so() -> None:
    release = make(6, unsampled=1, assumptions=PUBLIC, mechanism="noisy-direct", rho=0.5)
    with pytest.raises(ValueError, match=r"call draw\(\) first"):
        plot_release(release)
    release.draw()
    assert release.released is not None
    ax = plot_release(release, ax=free_axes())
    rank = np.argsort(release.released["theta_smoothed"].values.squeeze(), kind="stable")
    shown = line(ax, marker="D").get_xdata()
    np.testing.assert_array_equal(shown, release.released["noisy_direct"].values.squeeze()[rank])
    assert np.isnan(shown).sum() == 1  # without a sample there is nothing to add noise to
    assert "noisy direct estimate" in words(ax)
    assert ax.get_xlabel() == "noisy direct estimates (unit of the outcome)"


def test_release_without_a_draw_is_refused(few) -> None:
    with pytest.raises(ValueError, match=r"nothing drawn here: call draw\(\) first"):
        plot_release(few.guarantee)


@pytest.mark.parametrize("prob", [0.0, 1.0, -0.1, 90, np.nan])
def test_probability_outside_zero_and_one_is_refused(few, prob) -> None:
    with pytest.raises(ValueError, match="prob must lie between 0 and 1"):
        plot_release(few.released, prob=prob)


# Who pays.


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
def test_points_are_the_price_of_the_mechanism_against_n_and_against_weights(mechanism) -> None:
    release = make(9, unsampled=2, mechanism=mechanism)
    g, n = release.guarantee, counts(release)
    left, right = plot_guarantee(g, n)
    price = g["rho_respondent" if mechanism == "joint" else "rho_independent"].values[:7]
    x = n.to_numpy()[:7]
    for ax, expected in ((left, x), (right, x * g["sensitivity"].values[:7])):
        points = line(ax, color=plots.BLUE)
        np.testing.assert_allclose(points.get_xdata(), expected, rtol=1e-14)
        np.testing.assert_array_equal(points.get_ydata(), price)
        assert ax.get_xscale() == ax.get_yscale() == "log"
        diamond = line(ax, marker="D")
        worst = price.argmax()
        np.testing.assert_allclose(diamond.get_xdata(), [expected[worst]], rtol=1e-14)
        assert list(diamond.get_ydata()) == [price[worst]]
        assert f"as in {g['area'].values[worst]} " in ax.texts[0].get_text()
        [whole] = {x.get_ydata()[0] for x in ax.lines if x.get_linewidth() == 2}
        assert whole == float(g["rho"])
    assert left.get_ylim() == right.get_ylim()
    assert left.get_ylim()[0] < price.min() and left.get_ylim()[1] > price.max()


def test_weight_inequality_is_the_largest_weight_over_the_mean_weight_of_real_records(
    shared,
) -> None:
    path = shared / "data" / "brfss_king_county_2009_2013.csv.gz"
    records = pd.read_csv(path).dropna(subset=["smoker", "hra"])
    direct = hajek(records, outcome="smoker", weight="w", area="hra")
    declared = {name: direct.attrs[name] for name in ("bounds", "unit")}
    sensitivity = direct["sensitivity"].assign_attrs(declared)
    release = PrivateRelease(fay_herriot(direct, sigma_u=0.04), sensitivity)
    _, right = plot_guarantee(release.guarantee, direct)
    weights = records.groupby("hra")["w"]
    expected = (weights.max() / weights.mean()).loc[direct["area"].values]
    # The grid that estimates are rounded to raises the sensitivity a little.
    np.testing.assert_allclose(line(right, color=plots.BLUE).get_xdata(), expected, rtol=1e-6)
    assert right.get_xlabel() == "largest weight / mean weight"


def test_without_a_declared_range_the_axis_says_what_it_shows() -> None:
    direct = xr.Dataset(
        {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
        coords={"area": ["a", "b"]},
    )
    release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), 0.02)
    _, right = plot_guarantee(release.guarantee, pd.Series([10, 20], index=["a", "b"]))
    assert right.get_xlabel() == "n times sensitivity (unit of the outcome)"
    np.testing.assert_allclose(line(right, color=plots.BLUE).get_xdata(), [0.2, 0.4], rtol=1e-14)


def test_title_of_each_panel_gives_the_rank_correlation(many) -> None:
    g = many.guarantee
    n = (counts(many) // 100 + 1) * 100  # with ties
    left, right = plot_guarantee(g, n)
    rho = g["rho_respondent"].values
    for ax, x in ((left, n), (right, n * g["sensitivity"].values)):
        expected = scipy.stats.spearmanr(x, rho).statistic
        assert f"rank correlation {expected:.2f}\n" in ax.get_title(loc="left")


def test_equal_sample_sizes_have_no_rank_correlation(few) -> None:
    left, _ = plot_guarantee(few.guarantee, counts(few) * 0 + 100)
    assert "no rank correlation, as all are equal" in left.get_title(loc="left")


def test_sample_sizes_are_joined_by_label(few) -> None:
    n = counts(few)
    array = xr.DataArray(n.to_numpy(), dims="area", coords={"area": n.index.to_numpy(dtype=str)})
    expected = line(plot_guarantee(few.guarantee, n)[0], color=plots.BLUE).get_xdata()
    spare = pd.concat([n, pd.Series({"elsewhere": 3})])
    for same in (n[::-1], spare, array, array[::-1], xr.Dataset({"n": array})):
        found = line(plot_guarantee(few.guarantee, same)[0], color=plots.BLUE).get_xdata()
        np.testing.assert_array_equal(found, expected)


def test_labels_of_several_columns_are_joined_by_a_space() -> None:
    release = make(4)
    area = [a.split() for a in release.guarantee["area"].values]
    n = pd.Series([10, 20, 30, 40], index=pd.MultiIndex.from_tuples(map(tuple, area)))
    left, _ = plot_guarantee(release.guarantee, n)
    np.testing.assert_array_equal(line(left, color=plots.BLUE).get_xdata(), n)


def test_unusable_sample_sizes_are_refused_by_name(few) -> None:
    g, n = few.guarantee, counts(few).astype(float)
    for value in (0.0, -3.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"missing or not positive in 2 areas: north, south$"):
            plot_guarantee(g, n.where(~n.index.isin(["north", "south"]), value))
    with pytest.raises(ValueError, match=r"missing or not positive in 1 areas: east$"):
        plot_guarantee(g, n.drop("east"))
    with pytest.raises(ValueError, match=r"n has areas more than once: west$"):
        plot_guarantee(g, pd.concat([n, n[["west"]]]))


def test_area_without_sample_needs_no_sample_size(few) -> None:
    n = counts(few).drop(FEW[-1])
    assert len(line(plot_guarantee(few.guarantee, n)[0], color=plots.BLUE).get_xdata()) == 5


# What holds for every picture.


def pictures(release: PrivateRelease, **given: Any) -> dict[str, list[Axes]]:
    """Every picture of a release; `given` holds their axes by its name."""
    n, pair = counts(release), given.get("plot_guarantee")
    return {
        "plot_rdp": [plot_rdp(release.guarantee, ax=given.get("plot_rdp"))],
        "plot_release": [plot_release(release.released, ax=given.get("plot_release"))],
        "plot_guarantee": list(plot_guarantee(release.guarantee, n, axes=pair)),
    }


def test_these_are_all_pictures_that_there_are(few) -> None:
    public = {
        name
        for name, f in inspect.getmembers(plots, inspect.isfunction)
        if f.__module__ == plots.__name__ and not name.startswith("_")
    }
    assert set(pictures(few)) == public


def test_title_of_every_panel_carries_the_kind_of_claim(few, many, threefold) -> None:
    for release, claim in ((few, CONDITIONAL), (many, "formal"), (threefold, "formal")):
        for panels in pictures(release).values():
            for ax in panels:
                title = ax.get_title(loc="left")
                assert " ".join(title.split("\n")[1:]) == f"claim: {claim}"


def test_axes_have_labels_with_units(few, threefold) -> None:
    for release, unit in ((few, "record"), (threefold, "household")):
        drawn = pictures(release)
        [rdp], [draw], [left, right] = drawn.values()
        assert rdp.get_xlabel() == r"order $\alpha$" and rdp.get_ylabel().endswith("(nats)")
        assert rdp.get_title(loc="left").split("\n")[0].endswith(f"unit: {unit}")
        assert draw.get_xlabel() == "theta (unit of the outcome)"
        assert left.get_ylabel() == rf"price $\rho$ (zCDP) for one {unit} of the area"
        assert left.get_xlabel() == "sample size n"
        of_unit = "" if unit == "record" else " of a household"
        assert right.get_xlabel() == f"largest weight{of_unit} / mean weight"


def test_given_axes_come_back_and_pyplot_makes_no_figure(few, many) -> None:
    for release in (few, many):
        rdp, draw, two = free_axes(), free_axes(), free_axes(2)
        drawn = pictures(release, plot_rdp=rdp, plot_release=draw, plot_guarantee=two)
        assert list(drawn.values()) == [[rdp], [draw], list(two)]
        assert plot_guarantee(release.guarantee, counts(release), axes=two) is two
    assert plt.get_fignums() == []


def test_new_figures_have_constrained_layout_and_one_is_made_for_each_picture(few) -> None:
    drawn = pictures(few)
    assert len(plt.get_fignums()) == 3
    for panels in drawn.values():
        assert panels[0].figure.get_layout_engine().adjust_compatible is False
        assert type(panels[0].figure.get_layout_engine()).__name__ == "ConstrainedLayoutEngine"
        assert list(panels[0].figure.axes) == panels


def test_settings_of_matplotlib_stay_as_they_were(few) -> None:
    before = dict(matplotlib.rcParams)
    pictures(few)
    assert dict(matplotlib.rcParams) == before


def test_other_than_two_axes_are_refused(few) -> None:
    for axes in ([free_axes()], free_axes(3)):
        with pytest.raises(ValueError, match=f"axes must be two, not {len(axes)}"):
            plot_guarantee(few.guarantee, counts(few), axes=axes)


def test_every_picture_draws_without_a_warning_and_fits_its_text(few, many, threefold) -> None:
    # Warnings are errors here; the labels hold dollar signs and a very long name.
    for release in (few, many, threefold):
        for panels in pictures(release).values():
            image = pixels(panels)
            border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
            assert (border == 255).all()  # no text is cut off at the edge
            assert np.unique(image.view(np.uint32)).size > 10


def test_pictures_before_a_draw_do_not_depend_on_the_direct_estimates() -> None:
    same = []
    for moved in (0.0, 0.4):
        g = make(8, moved=moved).guarantee
        n = pd.Series(np.arange(100, 900, 100), index=g["area"].values)
        pair = plot_guarantee(g, n, axes=free_axes(2))
        same.append([pixels(plot_rdp(g, ax=free_axes())), pixels(pair)])
    for before, after in zip(*same, strict=True):
        np.testing.assert_array_equal(before, after)


def test_release_data_set_container_and_group_give_the_same_picture() -> None:
    release = make(6)
    container = release.draw()
    n = counts(release)
    tree = xr.DataTree.from_dict({io.GROUP: release.released})
    given = (release.released, release, container, container[io.GROUP], tree, tree[io.GROUP])
    for draw in (
        lambda data: plot_rdp(data, ax=free_axes()),
        lambda data: plot_release(data, ax=free_axes()),
        lambda data: plot_guarantee(data, n, axes=free_axes(2)),
    ):
        first, *others = (pixels(draw(data)) for data in given)
        for other in others:
            np.testing.assert_array_equal(other, first)


def test_release_before_a_draw_is_pictured_by_its_guarantee() -> None:
    release = make(6)
    for plot in (
        lambda data: plot_rdp(data, ax=free_axes()),
        lambda data: plot_guarantee(data, counts(release), axes=free_axes(2)),
    ):
        np.testing.assert_array_equal(pixels(plot(release)), pixels(plot(release.guarantee)))
    with pytest.raises(ValueError, match=r"call draw\(\) first"):
        plot_release(release)


def test_all_pictures_call_what_they_are_given_by_the_same_name() -> None:
    drawing = [name for name in pymc_dp.__all__ if name.startswith("plot_")]
    first = {
        name: next(iter(inspect.signature(getattr(pymc_dp, name)).parameters)) for name in drawing
    }
    assert len(drawing) >= 7 and set(first.values()) == {"data"}


def test_what_is_no_release_is_refused(few) -> None:
    n = counts(few)
    for plot in (plot_rdp, plot_release, lambda data: plot_guarantee(data, n)):
        with pytest.raises(TypeError, match=r"not a release: .*, not Series"):
            plot(n)
        with pytest.raises(ValueError, match="not a release"):
            plot(xr.Dataset({"theta": ("area", [0.1])}))
        with pytest.raises(ValueError, match="no group 'private_release'"):
            plot(io.new_container())


# At size.


def test_pictures_of_2462_areas_stay_readable(shared) -> None:
    table = pd.read_csv(
        shared / "data" / "acs_pums_2024_puma_table.csv.gz", dtype={"puma": str}
    ).set_index("puma")
    area = table.index.to_numpy(dtype=str)
    kish = 0.12 * 0.88 * table["sum_w2"] / table["sum_w"] ** 2
    direct = xr.Dataset(
        {"estimate": ("area", table["p_hat"]), "variance": ("area", kish)}, coords={"area": area}
    )
    sensitivity = xr.DataArray(
        table["max_share"].to_numpy(), dims="area", coords={"area": area}, attrs={"bounds": (0, 1)}
    )
    release = PrivateRelease(fay_herriot(direct, sigma_u=0.06), sensitivity, assumptions=PUBLIC)
    container = release.draw()
    rdp, draw = plot_rdp(container), plot_release(container)
    left, right = plot_guarantee(container, table["n"])
    assert len(rdp.lines) + len(rdp.collections) == 5
    assert len(draw.lines) + len(draw.collections) <= 5 and draw.get_yticklabels() == []
    points = line(left, color=plots.BLUE)
    assert len(points.get_xdata()) == 2462
    assert points.get_alpha() < 0.5 and points.get_markersize() <= 3
    ratio = table["max_w"] / (table["sum_w"] / table["n"])
    # The table keeps eight digits of max_share.
    np.testing.assert_allclose(line(right, color=plots.BLUE).get_xdata(), ratio, rtol=1e-6)
    assert f"{scipy.stats.spearmanr(ratio, points.get_ydata()).statistic:.2f}" in right.get_title(
        loc="left"
    )
    for ax in (rdp, draw, left):
        pixels(ax)
