"""What "treating the variance components as fixed" leaves out, record by record."""

from __future__ import annotations

import math

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from pymc_dp import privacy
from pymc_dp.components.estimates import estimate_sigma_u
from pymc_dp.components.proviso import check_proviso
from pymc_dp.plots.components import plot_proviso
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.privacy.gaussian_pair import exact_epsilon, infinite_from, renyi_divergence
from pymc_dp.survey.estimate import hajek

matplotlib.use("Agg")

COLUMNS = {"outcome": "y", "weight": "w", "area": "area"}


@pytest.fixture(scope="module")
def king_county(shared):
    records = pd.read_csv(shared / "data" / "brfss_king_county_2009_2013.csv.gz")
    return records[records["smoker"].notna() & records["hra"].notna()]


@pytest.fixture(scope="module")
def king_county_found(king_county):
    return check_proviso(
        king_county,
        outcome="smoker",
        weight="w",
        area="hra",
        sigma_u=0.04,
        order=[2.0, 4.0, 8.0, 16.0],
        delta=[1e-6, 1e-5],
    )


@pytest.fixture(scope="module")
def survey() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    n = np.array([12, 15, 9, 20, 14])
    area = np.repeat(list("abcde"), n)
    rate = np.repeat([0.3, 0.5, 0.4, 0.35, 0.6], n)
    return pd.DataFrame(
        {
            "area": area,
            "household": np.concatenate([np.arange(k) // 2 for k in n]),
            "w": rng.integers(10, 90, n.sum()).astype(float),
            "y": (rng.uniform(size=n.sum()) < rate).astype(int),
        }
    ).sample(frac=1, random_state=1)


# Two Gaussians of different variance


def divergence_by_quadrature(shift, before, after, order):
    """Larger of the two directions, from densities on the scale of the narrower."""
    p, q = stats.norm(shift, math.sqrt(after)), stats.norm(0, math.sqrt(before))
    values = []
    for a, b in ((p, q), (q, p)):
        if order * b.var() + (1 - order) * a.var() <= 0:
            return math.inf

        def exponent(x, a=a, b=b):
            return order * a.logpdf(x) + (1 - order) * b.logpdf(x)

        # The integrand is a Gaussian: its centre and width from second differences.
        curve = order / a.var() + (1 - order) / b.var()
        centre = (order * a.mean() / a.var() + (1 - order) * b.mean() / b.var()) / curve
        reach = 12 / math.sqrt(curve)
        top = exponent(centre)
        total, _ = integrate.quad(
            lambda x, e=exponent, t=top: math.exp(e(x) - t), centre - reach, centre + reach
        )
        values.append((math.log(total) + top) / (order - 1))
    return max(values)


VARIANCES = st.floats(0.05, 20.0)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 4), VARIANCES, VARIANCES, st.floats(1.05, 12))
def test_divergence_of_two_gaussians_agrees_with_quadrature(shift, before, after, order):
    got = float(renyi_divergence(shift, before, after, order))
    want = divergence_by_quadrature(shift, before, after, order)
    # Near the order of divergence the integrand is very wide: quadrature is good to about 1e-9.
    assert got == pytest.approx(want, rel=1e-7, abs=1e-10) or (math.isinf(got) == math.isinf(want))


def test_divergence_is_infinite_from_its_order_on_and_finite_below():
    before, after = 1.0, 1.25
    limit = float(infinite_from(before, after))
    assert limit == pytest.approx(5.0)
    values = renyi_divergence(0.3, before, after, np.array([4.999, 5.0, 5.001, 40.0]))
    assert np.isfinite(values[0]) and np.isinf(values[1:]).all()
    assert np.isinf(infinite_from(2.0, 2.0))
    assert infinite_from(before, after) == infinite_from(after, before)


def test_gaussians_of_equal_variance_give_the_usual_figures():
    shift, variance = np.array([0.1, 1.0, 3.0]), np.array([0.2, 1.0, 4.0])
    rho = shift**2 / (2 * variance)
    np.testing.assert_allclose(
        renyi_divergence(shift, variance, variance, 7.0), 7 * rho, rtol=1e-13
    )
    for delta in (1e-10, 1e-5, 0.01):
        got = exact_epsilon(shift, variance, variance, delta)
        want = privacy.epsilon(rho, delta)
        # The bracket ends at a relative 1e-9.
        np.testing.assert_allclose(got, want, rtol=2e-9)
        assert (got >= np.asarray(want) * (1 - 1e-11)).all()


def test_nearly_equal_variances_have_nearly_the_usual_epsilon():
    rho = 0.7**2 / 2
    for excess in (1e-15, 1e-12, -1e-9, 1e-7):
        got = float(exact_epsilon(0.7, 1.0, 1 + excess, 1e-6))
        assert got == pytest.approx(privacy.epsilon(rho, 1e-6), rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 3), VARIANCES, VARIANCES, st.sampled_from([1e-8, 1e-5, 1e-3, 0.05]))
def test_epsilon_is_where_the_hockey_stick_integral_meets_delta(shift, before, after, delta):
    epsilon = float(exact_epsilon(shift, before, after, delta))

    def hockey_stick(epsilon):
        """Larger of both ways, on a grid of a ten-thousandth of the wider sd."""
        wide = math.sqrt(max(before, after))
        x = np.linspace(-9 * wide, shift + 9 * wide, 200_001)
        log_p = stats.norm.logpdf(x, shift, math.sqrt(after))
        log_q = stats.norm.logpdf(x, 0, math.sqrt(before))
        ways = []
        for a, b in ((log_p, log_q), (log_q, log_p)):
            gap = np.where(a > epsilon + b, np.exp(a) - np.exp(np.minimum(epsilon + b, a)), 0.0)
            ways.append(np.trapezoid(gap, x))
        return max(ways)

    # The integrand has kinks, so a grid of step h errs by about h^2.
    if epsilon > 0:
        assert hockey_stick(epsilon) == pytest.approx(delta, rel=2e-3)
    else:
        assert hockey_stick(0.0) <= delta * (1 + 2e-3)


def test_ends_of_delta_and_of_the_variances():
    assert float(exact_epsilon(0.0, 1.0, 1.0, 0.0)) == 0
    assert float(exact_epsilon(0.1, 1.0, 1.0, 0.0)) == math.inf
    assert float(exact_epsilon(0.1, 1.0, 2.0, 1.0)) == 0
    assert float(exact_epsilon(0.1, 1.0, 0.0, 0.5)) == math.inf
    assert float(renyi_divergence(0.1, 1.0, 0.0, 2.0)) == math.inf
    assert float(renyi_divergence(0.0, 0.0, 0.0, 2.0)) == 0
    # A millionfold variance: far beyond any other figure, and still a number.
    assert 1e5 < float(exact_epsilon(0.0, 1.0, 1e6, 1e-3)) < math.inf


# The joint draw


def test_joint_divergence_equals_that_of_the_changed_area_alone():
    """Dense algebra over all areas: they differ through one direct estimate and its variance."""
    rng = np.random.default_rng(5)
    m = 7
    X = np.column_stack([np.ones(m), rng.normal(size=m)])
    D, y = rng.uniform(0.5, 3, m), rng.normal(size=m)
    j, order = 2, 1.7
    D2, y2 = D.copy(), y.copy()
    D2[j], y2[j] = 1.3 * D[j], y[j] + 0.4
    before, after = (fay_herriot_posterior(0.8, 1 / v, X) for v in (D, D2))
    d = after.mean(y2) - before.mean(y)
    S0, S1 = before.covariance(), after.covariance()

    def dense(d, S0, S1):
        mixed = order * S0 + (1 - order) * S1
        assert np.linalg.eigvalsh(mixed).min() > 0
        logs = [np.linalg.slogdet(v)[1] for v in (mixed, S0, S1)]
        log_ratio = logs[0] - order * logs[1] - (1 - order) * logs[2]
        return order / 2 * d @ np.linalg.solve(mixed, d) - log_ratio / (2 * (order - 1))

    joint = max(dense(d, S0, S1), dense(d, S1, S0))
    alone = float(renyi_divergence(d[j], before.variance[j], after.variance[j], order))
    assert alone == pytest.approx(joint, rel=1e-9)
    elsewhere = float(renyi_divergence(d[0], before.variance[0], after.variance[0], order))
    assert elsewhere < 0.9 * joint


# The check


def by_hand(records, sigma_u, changes, **options):
    """Shift and variances of the changed area, each change made in the data by itself."""
    direct = hajek(records, **COLUMNS, **options)
    pairs = {a: [] for a in direct["area"].values}
    for area, rows, value in changes:
        changed = records.copy()
        changed.loc[rows, "y"] = value
        new = hajek(changed, **COLUMNS, **options)
        laws = []
        for d, sigma in ((direct, sigma_u[0]), (new, sigma_u[1](new))):
            m = d.sizes["area"]
            post = fay_herriot_posterior(sigma**2, 1 / d["variance"].values, np.ones((m, 1)))
            laws.append((post.mean(d["estimate"].values), post.variance))
        j = list(direct["area"].values).index(area)
        pairs[area].append((laws[1][0][j] - laws[0][0][j], laws[0][1][j], laws[1][1][j]))
    return pairs


def heaviest_flips(records, k):
    for area, rows in records.groupby("area"):
        for row in rows["w"].sort_values(ascending=False, kind="stable").index[:k]:
            yield area, [row], 1 - records.loc[row, "y"]


def assert_figures(found, pairs, suffix="exact"):
    end = "" if suffix == "exact" else f"_{suffix}"
    for area, tried in pairs.items():
        here = found.sel(area=area)
        for order in found["order"].values:
            want = max(float(renyi_divergence(*pair, order)) for pair in tried)
            assert float(here[f"rdp_{suffix}"].sel(order=order)) == pytest.approx(want, rel=1e-10)
        for delta in found["delta"].values:
            want = max(float(exact_epsilon(*pair, delta)) for pair in tried)
            got = float(here[f"epsilon_{suffix}"].sel(delta=delta))
            assert got == pytest.approx(want, rel=1e-8)
        want = min(float(infinite_from(*pair[1:])) for pair in tried)
        assert float(here[f"order_infinite{end}"]) == pytest.approx(want, rel=1e-9)


def test_heaviest_records_are_flipped_one_at_a_time(survey):
    found = check_proviso(
        survey, **COLUMNS, sigma_u=0.1, order=[1.5, 4], delta=[1e-5], records=3, reestimate=False
    )
    pairs = by_hand(survey, (0.1, lambda new: 0.1), heaviest_flips(survey, 3))
    assert all(len(tried) == 3 for tried in pairs.values())
    assert_figures(found, pairs)


def test_with_sigma_u_estimated_before_and_after(survey):
    found = check_proviso(survey, **COLUMNS, sigma_u=0.1, order=[1.5, 4], delta=[1e-5], records=2)
    reml = estimate_sigma_u(hajek(survey, **COLUMNS))
    assert found.attrs["sigma_u_reml"] == pytest.approx(reml)
    pairs = by_hand(survey, (reml, estimate_sigma_u), heaviest_flips(survey, 2))
    assert_figures(found, pairs, "reestimated")
    assert (found["sigma_u_reestimated"] != reml).any()
    assert "lower bound for the whole vector" in found["rdp_reestimated"].attrs["claim"]


def test_all_outcomes_of_a_household_change_together_to_either_end(survey):
    unit = ["area", "household"]
    found = check_proviso(
        survey,
        **COLUMNS,
        unit=unit,
        sigma_u=0.1,
        order=[1.5, 4],
        delta=[1e-5],
        records=1,
        reestimate=False,
    )

    def changes():
        for area, rows in survey.groupby("area"):
            heaviest = rows.groupby("household")["w"].sum().idxmax()
            members = rows.index[rows["household"] == heaviest]
            yield from ((area, members, value) for value in (0, 1))

    assert_figures(found, by_hand(survey, (0.1, lambda new: 0.1), changes(), unit=unit))


def test_outcomes_inside_the_range_go_to_both_ends(survey):
    rng = np.random.default_rng(0)
    hours = survey.assign(y=rng.uniform(1, 9, len(survey)))
    found = check_proviso(
        hours,
        **COLUMNS,
        bounds=(0, 10),
        sigma_u=1.0,
        order=[1.5],
        delta=[1e-5],
        records=1,
        reestimate=False,
    )

    def changes():
        for area, rows in hours.groupby("area"):
            yield from ((area, [rows["w"].idxmax()], end) for end in (0.0, 10.0))

    assert_figures(found, by_hand(hours, (1.0, lambda new: 1.0), changes(), bounds=(0, 10)))


def test_the_design_of_the_survey_is_kept(survey):
    strata = survey.assign(stratum=np.where(survey["household"] % 3 == 0, "s", "t"))
    options = {"sigma_u": 0.1, "order": [1.5], "delta": [1e-5], "records": 2, "reestimate": False}
    found = check_proviso(strata, **COLUMNS, strata="stratum", **options)
    pairs = by_hand(strata, (0.1, lambda new: 0.1), heaviest_flips(strata, 2), strata="stratum")
    assert_figures(found, pairs)
    assert (found["rdp_exact"] != check_proviso(strata, **COLUMNS, **options)["rdp_exact"]).any()


def test_public_sampling_variances_leave_nothing_out(survey):
    found = check_proviso(
        survey,
        **COLUMNS,
        sigma_u=0.1,
        variance="kish",
        rate=0.4,
        order=[2, 256],
        delta=[1e-8, 1e-5],
        reestimate=False,
    )
    # The sensitivity is raised by the public grid of the estimates, a relative 1e-11 here.
    np.testing.assert_allclose(found["rdp_exact"], found["rdp_conditional"], rtol=1e-9)
    np.testing.assert_allclose(found["epsilon_exact"], found["epsilon_conditional"], rtol=1e-8)
    assert np.isinf(found["order_infinite"]).all()


def test_king_county_smoking_is_infinite_by_order_8_in_43_of_48_areas(king_county_found):
    found = king_county_found
    assert int((found["order_infinite"] <= 8).sum()) == 43
    assert int(np.isinf(found["rdp_exact"].sel(order=8)).sum()) == 43
    assert np.isfinite(found["rdp_conditional"]).all()


def test_issaquah_has_epsilon_30_where_9_is_printed(king_county_found):
    here = king_county_found.sel(area="Issaquah", delta=1e-5)
    assert float(here["epsilon_conditional"]) == pytest.approx(9.1775, abs=1e-4)
    assert float(here["epsilon_exact"]) == pytest.approx(29.8246, abs=1e-4)


def test_results_say_what_they_are(king_county_found):
    found = king_county_found
    for name in found.data_vars:
        assert found[name].attrs["long_name"]
    for name in ("rdp_conditional", "epsilon_plug_in"):
        assert found[name].attrs["claim"].startswith("conditional")
    for name in ("rdp_exact", "epsilon_reestimated", "order_infinite"):
        assert "no guarantee" in found[name].attrs["claim"]
    assert "not itself private" in found.attrs["privacy"]


@pytest.mark.parametrize("engine", ["polars", "lazy polars", "pyarrow", "boolean"])
def test_every_kind_of_frame_gives_the_same(survey, engine):
    options = {**COLUMNS, "sigma_u": 0.1, "order": [1.5], "delta": [1e-5], "reestimate": False}
    want = check_proviso(survey, **options)
    frames = {
        "polars": lambda: pl.from_pandas(survey),
        "lazy polars": lambda: pl.from_pandas(survey).lazy(),
        "pyarrow": lambda: pl.from_pandas(survey).to_arrow(),
        "boolean": lambda: survey.assign(y=survey["y"] == 1),
    }
    got = check_proviso(frames[engine](), **options)
    np.testing.assert_allclose(got["rdp_exact"], want["rdp_exact"], rtol=1e-9)
    assert list(got["area"].values) == list(want["area"].values)


def test_records_without_outcome_or_weight_take_no_part(survey):
    more = pd.DataFrame(
        {
            "area": list("abc"),
            "household": [90, 91, 92],
            "w": [500.0, np.nan, 0.0],
            "y": [np.nan, 1.0, 0.0],
        }
    )
    options = {**COLUMNS, "sigma_u": 0.1, "order": [1.5], "delta": [1e-5], "reestimate": False}
    got = check_proviso(pd.concat([survey, more]), missing="drop", **options)
    want = check_proviso(survey, **options)
    np.testing.assert_allclose(got["rdp_exact"], want["rdp_exact"], rtol=1e-9)


def test_records_outside_the_universe_take_no_part(survey):
    more = pd.DataFrame({"area": list("abc"), "household": 90, "w": 500.0, "y": 1, "inside": 0})
    both = pd.concat([survey.assign(inside=1), more], ignore_index=True)
    options = {**COLUMNS, "sigma_u": 0.1, "order": [1.5], "delta": [1e-5], "reestimate": False}
    got = check_proviso(both, universe="inside", **options)
    want = check_proviso(survey, **options)
    np.testing.assert_allclose(got["rdp_exact"], want["rdp_exact"], rtol=1e-9)


def test_the_data_are_left_as_they_were(survey):
    before = survey.copy(deep=True)
    check_proviso(survey, **COLUMNS, sigma_u=0.1, reestimate=False)
    pd.testing.assert_frame_equal(survey, before)


def test_covariates_and_areas_without_sample(survey):
    x = pd.DataFrame({"x": [0.5, 0.1, 0.4, 0.2, 0.3, 0.9]}, index=[*"edcba", "none"])
    found = check_proviso(
        survey, **COLUMNS, sigma_u=0.1, formula="~ x", covariates=x, order=[2], delta=[1e-5]
    )
    assert float(found["rdp_exact"].sel(area="none").max()) == 0
    assert float(found["rdp_conditional"].sel(area="none").max()) == 0
    assert (found["rdp_exact"].drop_sel(area="none") > 0).all()


def test_a_change_that_leaves_no_variance_is_told_apart_for_certain():
    records = pd.DataFrame(
        {
            "area": ["a"] * 4 + ["b"] * 4 + ["c"] * 4,
            "w": [9.0, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 9],
            "y": [1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1],
        }
    )
    found = check_proviso(records, **COLUMNS, sigma_u=0.1, order=[2], delta=[1e-5], records=1)
    assert np.isinf(found["epsilon_exact"].sel(area="a")).all()
    assert np.isinf(found["rdp_reestimated"].sel(area="a")).all()
    assert float(found["order_infinite"].sel(area="a")) == 1
    assert np.isfinite(found["epsilon_exact"].sel(area="b")).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma_u": math.nan}, "sigma_u"),
        ({"sigma_u": -0.1}, "sigma_u"),
        ({"records": 0}, "records"),
        ({"records": True}, "records"),
        ({"order": [1.0]}, "order"),
        ({"delta": [2.0]}, "delta"),
        ({"rate": 0.5}, "rate"),
    ],
)
def test_unusable_options_are_refused(survey, options, message):
    with pytest.raises(ValueError, match=message):
        check_proviso(survey, **COLUMNS, **({"sigma_u": 0.1} | options))


def test_an_area_without_variance_is_refused_by_name(survey):
    with pytest.raises(ValueError, match="zero: b"):
        check_proviso(
            survey.assign(y=survey["y"].where(survey["area"] != "b", 0)), **COLUMNS, sigma_u=0.1
        )


# The picture


def test_picture_shows_every_area_and_the_claim(king_county_found):
    figure, ax = plt.subplots()
    got = plot_proviso(king_county_found, ax=ax, delta=1e-5)
    assert got is ax
    title = ax.get_title(loc="left")
    assert "infinite at order 8 in 43 of 48 areas" in title and "conditional" in title
    exact = next(line for line in ax.lines if line.get_marker() == "o")
    here = king_county_found.sel(delta=1e-5)
    np.testing.assert_allclose(exact.get_xdata(), here["epsilon_conditional"])
    np.testing.assert_allclose(exact.get_ydata(), here["epsilon_exact"])
    worst = str(here["area"].values[here["epsilon_exact"].values.argmax()])
    assert any(worst in text.get_text() for text in ax.texts)
    figure.canvas.draw()
    plt.close(figure)


def test_picture_puts_infinite_epsilons_at_the_edge():
    records = pd.DataFrame(
        {
            "area": ["a"] * 4 + ["b"] * 4 + ["c"] * 4,
            "w": [9.0, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 9],
            "y": [1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1],
        }
    )
    found = check_proviso(records, **COLUMNS, sigma_u=0.1, delta=[1e-5], records=1)
    ax = plot_proviso(found)
    triangles = [line for line in ax.lines if line.get_marker() == "^"]
    assert sum(len(line.get_xdata()) for line in triangles) == 2  # fixed and re-estimated
    ax.figure.canvas.draw()
    plt.close(ax.figure)


def test_picture_refuses_other_data(king_county_found):
    with pytest.raises(ValueError, match="delta"):
        plot_proviso(king_county_found, delta=0.5)
    with pytest.raises(ValueError, match="epsilon_exact"):
        plot_proviso(king_county_found.drop_vars("epsilon_exact"))
