"""What it costs that sigma_u is estimated: Renyi divergences between neighbouring posteriors."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import privacy
from pymc_dp.components import renyi
from pymc_dp.components.comparison import compare_variance_components
from pymc_dp.components.estimates import estimate_sigma_u
from pymc_dp.components.posterior import posterior_of_sigma_u
from pymc_dp.models.inputs import area_data
from pymc_dp.models.prior import sigma_prior
from pymc_dp.posterior import quadrature
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior


def as_direct(estimate, variance, sensitivity, area=None) -> xr.Dataset:
    area = np.arange(len(estimate)).astype(str) if area is None else np.asarray(area, dtype=str)
    columns = {"estimate": estimate, "variance": variance, "sensitivity": sensitivity}
    return xr.Dataset(
        {name: ("area", np.asarray(v, float)) for name, v in columns.items()},
        coords={"area": area},
    )


@pytest.fixture(scope="module")
def king_county(shared):
    table = pd.read_csv(shared / "data" / "brfss_king_county_area_table.csv")
    table = table[(table["domain"] == "hra") & (table["outcome"] == "smoker")]
    return as_direct(table.hajek, table.var_lin, table.max_share, table.area)


@pytest.fixture(scope="module")
def reference(shared):
    cases = json.loads((shared / "reference" / "fay_herriot.json").read_text())["cases"]
    return cases[0]


@pytest.fixture
def small() -> xr.Dataset:
    return as_direct(
        [0.12, 0.20, 0.17, 0.31, 0.26],
        [0.0010, 0.0040, 0.0020, 0.0080, 0.0015],
        [0.03, 0.05, 0.04, 0.08, 0.03],
        list("abcde"),
    )


def test_estimated_divergences_agree_with_the_reference(king_county, reference):
    rows = reference["estimated, sigma_u ~ HalfNormal(0.1)"]
    orders = [float(o) for o in next(iter(rows.values()))]
    found = compare_variance_components(
        king_county, sigma_u=0.04, prior=pm.HalfNormal.dist(0.1), order=orders
    )
    for area, by_order in rows.items():
        for order, row in by_order.items():
            here = found.sel(area=area, order=float(order))
            want = {name: float(value) for name, value in row.items()}
            largest = want.pop("largest")
            # Fifteen digits are given.
            assert float(here["rdp_estimated"]) == pytest.approx(largest, rel=1e-12)
            for pair, value in want.items():
                assert float(here["rdp_pairs"].sel(pair=pair)) == pytest.approx(value, rel=1e-12)
    assert float(found["quadrature_error"].max()) < 1e-12


def test_fixed_and_plug_in_are_the_gaussian_price_at_their_sigma_u(king_county, reference):
    found = compare_variance_components(
        king_county, sigma_u=0.04, prior=pm.HalfNormal.dist(0.1), order=[2.0, 8.0]
    )
    for area, row in reference["show"].items():
        rho = float(row["rho_respondent"])
        here = found.sel(area=area)
        np.testing.assert_allclose(here["rdp_fixed"], [2 * rho, 8 * rho], rtol=1e-12)
        np.testing.assert_allclose(
            here["epsilon_fixed"], privacy.epsilon(rho, found["delta"].values), rtol=1e-9
        )
    reml = estimate_sigma_u(king_county)
    assert found.attrs["sigma_u_reml"] == pytest.approx(reml, rel=1e-12)
    default = compare_variance_components(king_county, prior=pm.HalfNormal.dist(0.1), order=[2.0])
    np.testing.assert_allclose(
        found["rdp_plug_in"].sel(order=[2.0]), default["rdp_fixed"], rtol=1e-12
    )
    assert default.attrs["sigma_u_fixed_source"] == "REML, from the same data"
    assert found.attrs["sigma_u_fixed_source"] == "given"


COVARIATES = pd.DataFrame(
    {"x": [0.5, 0.1, 0.4, 0.2, 0.3, 0.6]}, index=["d", "a", "e", "c", "b", "f"]
)


def marginal(direct, formula, prior, label, grid):
    """Log density of one theta on a grid: Gaussians mixed over a posterior fitted afresh."""
    data = area_data(direct, formula, COVARIATES if "x" in formula else None)
    rule = posterior_of_sigma_u(data, sigma_prior(prior(), None)).rule
    precision = np.where(np.isnan(data.variance), 0.0, 1 / data.variance)
    at = [fay_herriot_posterior(s**2, precision, data.design) for s in rule.sigma.ravel()]
    j = data.area.index(label)
    mean = np.array([q.mean(np.nan_to_num(data.estimate))[j] for q in at])
    variance = np.array([q.variance[j] for q in at])
    with np.errstate(divide="ignore"):
        log_weight = np.log(rule.probability.ravel() / np.sqrt(2 * np.pi * variance))
    exponent = log_weight - (grid[:, None] - mean) ** 2 / (2 * variance)
    return np.logaddexp.reduce(exponent, axis=1)


@pytest.mark.parametrize("formula", ["~ 1", "~ x"])
@pytest.mark.parametrize(
    "prior", [lambda: pm.HalfNormal.dist(0.1), lambda: pm.HalfCauchy.dist(0.05)]
)
def test_divergences_equal_direct_integration_between_two_fits(small, formula, prior):
    orders = np.array([1.01, 2.0, 7.5])
    covariates = COVARIATES if "x" in formula else None
    found = compare_variance_components(small, formula, covariates, prior=prior(), order=orders)
    # A grid that covers theta under the order-7.5 tilt as well; the trapezoid rule converges
    # exponentially for such densities.
    grid = np.linspace(-4.0, 5.0, 9001)
    for label in ("a", "d"):
        step = small["sensitivity"].sel(area=label)
        log_density = {}
        for name, k in {"y": 0, "y-s": -1, "y+s": 1}.items():
            moved = small.copy(deep=True)
            moved["estimate"].loc[label] += k * step
            log_density[name] = marginal(moved, formula, prior, label, grid)
        for pair in found["pair"].values:
            first, second = pair.split(" against ")
            for order in orders:
                exponent = order * log_density[first] + (1 - order) * log_density[second]
                top = exponent.max()
                integral = np.log(np.exp(exponent - top).sum() * (grid[1] - grid[0])) + top
                want = integral / (order - 1)
                value = float(found["rdp_pairs"].sel(area=label, order=order, pair=pair))
                # At order 1.01 the integral itself is 1 + 0.01 D: two digits are lost.
                assert value == pytest.approx(want, rel=1e-9 if order > 1.5 else 1e-7)


def mpmath_divergences(y, D, s, j, orders, scale):
    """All four divergences from marginal likelihoods, intercept only, HalfNormal(scale).

    With m(e) the marginal density of the data with y_j + e: (order - 1) D(P' + d || P') =
    log m(e + order d) - order log m(e + d) + (order - 1) log m(e) + order (order - 1) d^2 / 2 D_j.
    """
    mpmath = pytest.importorskip("mpmath")
    mp = mpmath.mp.clone()
    mp.dps = 45
    y, D, s = ([mp.mpf(float(v)) for v in values] for values in (y, D, s))
    step = mp.mpf(1) / 64
    nodes = []  # log of everything but y_j's part, and the quadratic form in e
    for k in range(-40 * 64, 6 * 64):
        x = k * step
        A = mp.exp(2 * x)
        w = [1 / (A + d) for d in D]
        W, Wy = mp.fsum(w), mp.fdot(w, y)
        Wyy = mp.fsum(a * b * b for a, b in zip(w, y, strict=True))
        constant = mp.fsum(mp.log(a) for a in w) / 2 - mp.log(W) / 2 + x
        constant -= A / (2 * mp.mpf(scale) ** 2) + (Wyy - Wy**2 / W) / 2
        slope = w[j] * y[j] - Wy * w[j] / W
        curvature = w[j] - w[j] ** 2 / W
        nodes.append((constant, slope, curvature))

    def log_m(e):
        heights = [c - e * b - e * e * a / 2 for c, b, a in nodes]
        top = max(heights)
        return top + mp.log(mp.fsum(mp.exp(h - top) for h in heights if h > top - 120))

    result = {}
    for name, (e, d) in {
        "y against y-s": (-s[j], s[j]),
        "y-s against y": (mp.mpf(0), -s[j]),
        "y against y+s": (s[j], -s[j]),
        "y+s against y": (mp.mpf(0), s[j]),
    }.items():
        for order in orders:
            a = mp.mpf(order)
            total = log_m(e + a * d) - a * log_m(e + d) + (a - 1) * log_m(e)
            total += a * (a - 1) * d**2 / (2 * D[j])
            result[name, order] = float(total / (a - 1))
    return result


def test_variances_twelve_orders_apart_and_order_256_keep_their_digits():
    # The step of 1/64 resolves the narrowest tilted integrand, sd about 0.03 in log sigma_u.
    rng = np.random.default_rng(3)
    m = 9
    D = 10.0 ** np.linspace(-10, 2, m)
    y = 0.4 * rng.normal(size=m) + np.sqrt(D) * rng.normal(size=m)
    s = np.full(m, 0.1)
    orders = [1.5, 256.0]
    found = compare_variance_components(
        as_direct(y, D, s), prior=pm.HalfNormal.dist(1.0), order=orders
    )
    for j in (0, 5, 8):
        for (pair, order), want in mpmath_divergences(y, D, s, j, orders, 1.0).items():
            value = float(found["rdp_pairs"].sel(order=order, pair=pair)[j])
            assert value == pytest.approx(want, rel=1e-9)
    assert float(found["quadrature_error"].max()) < 1e-9


def test_areas_that_hardly_differ_and_a_likelihood_that_peaks_at_zero():
    y = np.array([0.30, 0.31, 0.29, 0.305, 0.295, 0.30, 0.31, 0.29])
    D, s = np.full(8, 0.0025), np.full(8, 0.05)
    orders = [1.5, 8.0, 256.0]
    found = compare_variance_components(
        as_direct(y, D, s), prior=pm.HalfNormal.dist(0.1), order=orders
    )
    assert found.attrs["sigma_u_reml"] == 0.0
    for (pair, order), want in mpmath_divergences(y, D, s, 1, orders, 0.1).items():
        value = float(found["rdp_pairs"].sel(order=order, pair=pair)[1])
        assert value == pytest.approx(want, rel=1e-9)
    # sigma_u as given in the published case, ten digits.
    assert float(found["sigma_u_mean"]) == pytest.approx(0.01813969765, rel=1e-9)


def test_a_prior_that_knows_sigma_u_costs_what_a_fixed_sigma_u_costs(small):
    found = compare_variance_components(
        small, sigma_u=0.05, prior=pm.Uniform.dist(0.05 - 1e-7, 0.05 + 1e-7), order=[1.1, 2, 64]
    )
    # sigma_u still has a relative width of 2e-6.
    np.testing.assert_allclose(found["ratio"], 1.0, rtol=1e-5)
    # The same conversion of the same line, from 51 orders instead of all: within 0.3 % above.
    by_curve = found["epsilon_estimated"] / found["epsilon_fixed_zcdp"]
    assert float(by_curve.min()) > 1 - 1e-5
    assert float(by_curve.max()) < 1.003


def test_divergences_grow_with_the_order_and_with_the_change(small):
    prior = pm.HalfNormal.dist(0.1)
    orders = [1.00000001, 1.01, 1.5, 2, 8, 64, 256]
    found = compare_variance_components(small, prior=prior, order=orders)
    assert (found["rdp_pairs"].diff("order") > 0).all()
    weaker = small.assign(sensitivity=0.9 * small["sensitivity"])
    less = compare_variance_components(weaker, prior=prior, order=orders)
    assert (less["rdp_pairs"] < found["rdp_pairs"]).all()
    assert np.isfinite(found["rdp_pairs"]).all()


def test_epsilon_is_the_best_conversion_of_the_estimated_curve(small):
    orders = 1 + np.geomspace(0.02, 300, 400)
    prior = pm.HalfNormal.dist(0.1)
    fine = compare_variance_components(small, prior=prior, order=orders)
    coarse = compare_variance_components(small, prior=prior, order=[2.0])
    rdp = fine["rdp_estimated"].values[:, :, None]
    a = orders[:, None]
    delta = fine["delta"].values
    converted = rdp + np.log1p(-1 / a) - (np.log(delta) + np.log(a)) / (a - 1)
    np.testing.assert_allclose(coarse["epsilon_estimated"], converted.min(axis=1), rtol=3e-3)
    assert (fine["epsilon_estimated"] > fine["epsilon_fixed"]).all()


def test_boundaries_of_delta(small):
    found = compare_variance_components(
        small, prior=pm.HalfNormal.dist(0.1), order=[2], delta=[0, 1e-6, 1]
    )
    epsilon = found["epsilon_estimated"].values
    assert np.isposinf(epsilon[:, 0]).all()
    assert (epsilon[:, 1] > 0).all()
    assert (epsilon[:, 2] == 0).all()


def test_area_without_sample_and_area_nobody_can_move_cost_nothing(small):
    still = small.copy(deep=True)
    still["sensitivity"].loc["c"] = 0.0
    found = compare_variance_components(
        still, "~ x", COVARIATES, prior=pm.HalfNormal.dist(0.1), order=[2, 8]
    )
    for label in ("c", "f"):
        assert (found["rdp_estimated"].sel(area=label) == 0).all()
        assert (found["rdp_fixed"].sel(area=label) == 0).all()
        assert (found["epsilon_estimated"].sel(area=label) == 0).all()
    # f has no direct estimate: the others cost the same without it.
    without = compare_variance_components(
        still, "~ x", COVARIATES.drop("f"), prior=pm.HalfNormal.dist(0.1), order=[2, 8]
    )
    np.testing.assert_allclose(
        found["rdp_pairs"].sel(area=list("abcde")), without["rdp_pairs"], rtol=1e-12
    )


def test_every_figure_says_what_it_is_worth(small):
    found = compare_variance_components(small, prior=pm.HalfNormal.dist(0.1), order=[2])
    for name, variable in found.data_vars.items():
        assert variable.attrs["long_name"]
        if name.startswith(("rdp", "epsilon", "ratio")):
            learned = name in ("rdp_estimated", "rdp_pairs", "ratio", "epsilon_estimated")
            words = "no formal guarantee" if learned else "conditional"
            assert words in variable.attrs["claim"]
    assert found.attrs["sigma_u_prior"] == "HalfNormal(0, 0.1)"


def test_reported_error_sees_a_rule_that_is_too_coarse(small, monkeypatch):
    prior = pm.HalfNormal.dist(0.1)
    good = compare_variance_components(small, prior=prior, order=[2, 256])
    monkeypatch.setattr(quadrature, "TOLERANCE", np.inf)
    monkeypatch.setattr(renyi, "TOLERANCE", np.inf)
    coarse = compare_variance_components(small, prior=prior, order=[2, 256])
    true_error = np.abs(coarse["rdp_pairs"] / good["rdp_pairs"] - 1).max(["order", "pair"])
    assert float(true_error.max()) > 1e-7
    assert (coarse["quadrature_error"] > 0.5 * true_error).all()
    assert float(good["quadrature_error"].max()) < 1e-12


def test_reprs_of_intermediate_results_show_sizes_and_no_estimates(small):
    data = area_data(small)
    found = posterior_of_sigma_u(data, sigma_prior(pm.HalfNormal.dist(0.1), None))
    rule = found.rule
    records = renyi.Records(data.estimate, data.variance, data.design, small["sensitivity"].values)
    laws = renyi._laws(rule, records)
    assert repr(records) == "Records(5 areas)"
    assert repr(laws).startswith("Laws(5 areas")
    assert repr(rule.fit) == f"GlsFit({rule.left.size * 16}, 1)"
    assert "array" not in repr(rule) + repr(found) + repr(found.sample)


def test_unusable_inputs_are_refused(small):
    prior = pm.HalfNormal.dist(0.1)
    with pytest.raises(ValueError, match="needs the variable 'sensitivity'"):
        compare_variance_components(small.drop_vars("sensitivity"), prior=prior)
    broken = small.copy(deep=True)
    broken["sensitivity"].values[[1, 3]] = np.nan, -0.1
    with pytest.raises(ValueError, match="in 2 areas: b, d"):
        compare_variance_components(broken, prior=prior)
    for order in ([1, 2], [0.5], [np.nan], [np.inf], []):
        with pytest.raises(ValueError, match="order"):
            compare_variance_components(small, prior=prior, order=order)
    for delta in ([-0.1], [2.0], [np.nan], []):
        with pytest.raises(ValueError, match="delta"):
            compare_variance_components(small, prior=prior, delta=delta)
    for sigma_u in (-0.1, np.nan, np.inf, "0.1", pm.HalfNormal.dist(1)):
        with pytest.raises(ValueError, match="sigma_u"):
            compare_variance_components(small, sigma_u=sigma_u, prior=prior)


def test_all_areas_of_a_country_and_64_orders_at_once(shared):
    table = pd.read_csv(shared / "data" / "acs_pums_2024_puma_table.csv.gz", dtype={"puma": str})
    variance = 0.12 * 0.88 * table.sum_w2 / table.sum_w**2
    direct = as_direct(table.p_hat, variance, table.max_share, table.puma)
    found = compare_variance_components(
        direct, prior=pm.HalfNormal.dist(0.25), order=np.arange(2, 66)
    )
    assert dict(found.sizes)["area"] == 2462
    assert float(found["quadrature_error"].max()) < 1e-10
    assert (found["rdp_pairs"].diff("order") > 0).all()
    # With 2,462 areas one record hardly moves sigma_u: estimated and plug-in are close. The gap
    # between the posterior mean of Sigma_jj and its value at REML is a few parts in 10,000.
    low = found["rdp_estimated"].sel(order=2) / found["rdp_plug_in"].sel(order=2)
    assert abs(float(low.median()) - 1) < 1e-3
    assert float(found["ratio"].sel(order=65).max()) < 1.05
