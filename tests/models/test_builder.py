"""The model builder: joining, refusing, and right posteriors where plain forms fail."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import (
    PrivateRelease,
    fay_herriot,
    hajek,
    plan,
    pool,
    private_direct,
    private_sigma_u,
)
from pymc_dp.containers import read_group
from pymc_dp.reading.read import read_model


def table(area, estimate, variance, **attrs):
    return xr.Dataset(
        {
            "estimate": ("area", np.array(estimate, float)),
            "variance": ("area", np.array(variance, float)),
        },
        coords={"area": list(area)},
        attrs=attrs,
    )


FIVE = table("abcde", [0.12, 0.20, 0.17, 0.31, 0.26], [0.0010, 0.0040, 0.0020, 0.0080, 0.0015])
SHUFFLED = pd.DataFrame({"x": [0.5, 0.1, 0.4, 0.2, 0.3]}, index=list("daecb"))


def test_unusable_sampling_variances_are_listed_in_one_error():  # A08
    direct = table(
        "abcdef",
        [0.21, 0.35, 0.00, 0.28, 0.31, 0.25],
        [0.0040, 0.0025, 0, np.nan, -0.0010, 0.0030],
    )
    x = pd.DataFrame({"x": [1.0, 1.4, 0.9, 1.1, 1.2, 1.0]}, index=list("abcdef"))
    with pytest.raises(ValueError) as error:
        fay_herriot(direct, "~ x", x, sigma_u=0.1)
    message = str(error.value)
    assert "zero: c" in message and "missing: d" in message and "negative: e" in message
    assert "3 areas" in message and not any(v in message for v in ("0.21", "0.28", "0.31"))


@pytest.mark.parametrize("bad", [np.inf, 1e-320])
def test_infinite_and_uninvertible_variances_are_refused(bad):
    with pytest.raises(ValueError, match=r"not finite or too small to invert: b"):
        fay_herriot(table("ab", [0.1, 0.2], [0.01, bad]), sigma_u=0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_estimate_missing_beside_a_variance_is_refused(bad):
    with pytest.raises(ValueError, match=r"direct estimate unusable in 1 areas .*: b"):
        fay_herriot(table("ab", [0.1, bad], [0.01, 0.02]), sigma_u=0.1)


def test_covariates_are_joined_by_label_not_by_position():  # A09
    reading = read_model(fay_herriot(FIVE, "~ x", SHUFFLED, sigma_u=0.004**0.5))
    mean, sd = reading.posterior.mean(reading.estimate), np.sqrt(reading.posterior.variance)
    want = [0.1198377425, 0.2060917108, 0.1685620223, 0.3067854203, 0.2596402116]
    want_sd = [0.03058512278, 0.0484249269, 0.03898476466, 0.06995757512, 0.03572380825]
    np.testing.assert_allclose(mean, want, rtol=1e-8)
    np.testing.assert_allclose(sd, want_sd, rtol=1e-8)


def test_duplicate_and_unmatched_areas_are_named():  # A09
    with pytest.raises(ValueError, match=r"covariates: 1 areas appear more than once: a"):
        fay_herriot(FIVE, "~ x", pd.concat([SHUFFLED, SHUFFLED.loc[["a"]]]), sigma_u=0.1)
    with pytest.raises(ValueError, match=r"direct: 1 areas appear more than once: a"):
        fay_herriot(table("aab", [0.1] * 3, [0.1] * 3), sigma_u=0.1)
    with pytest.raises(ValueError, match=r"no covariates for area c$"):
        fay_herriot(FIVE, "~ x", SHUFFLED.drop("c"), sigma_u=0.1)


def test_integer_labels_do_not_match_zero_padded_text():  # A01
    direct = table(["100", "101"], [0.1, 0.2], [0.01, 0.02])
    with pytest.raises(ValueError, match=r"no covariates for areas 100, 101"):
        fay_herriot(
            direct, "~ x", pd.DataFrame({"x": [1.0, 2]}, index=["00100", "00101"]), sigma_u=1
        )
    integers = pd.DataFrame({"x": [1.0, 2.5]}, index=[101, 100])
    built = fay_herriot(direct, "~ 0 + x", integers, sigma_u=1.0)
    np.testing.assert_array_equal(built["X"].get_value().ravel(), [2.5, 1.0])


def test_several_area_levels_join_by_a_space():
    index = pd.MultiIndex.from_tuples([("04", "00101"), ("04", "00100")])
    direct = table(["04 00100", "04 00101"], [0.1, 0.2], [0.01, 0.02])
    built = fay_herriot(direct, "~ 0 + x", pd.DataFrame({"x": [1.0, 2]}, index=index), sigma_u=1.0)
    np.testing.assert_array_equal(built["X"].get_value().ravel(), [2.0, 1.0])


def with_unsampled(sigma_u):
    covariates = pd.concat([SHUFFLED, pd.DataFrame({"x": [0.6]}, index=["f"])])
    return fay_herriot(FIVE, "~ x", covariates, sigma_u=sigma_u)


def test_an_area_without_sample_has_synthetic_mean_and_full_variance():  # A11
    built = with_unsampled(0.004**0.5)
    reading = read_model(built)
    assert list(reading.area) == list("abcdef")
    mean, sd = reading.posterior.mean(reading.estimate), np.sqrt(reading.posterior.variance)
    assert mean[5] == pytest.approx(0.351675485, rel=1e-8)
    assert sd[5] == pytest.approx(0.1137620277, rel=1e-8)
    alone = read_model(fay_herriot(FIVE, "~ x", SHUFFLED, sigma_u=0.004**0.5))
    np.testing.assert_allclose(mean[:5], alone.posterior.mean(alone.estimate), rtol=1e-12)
    assert np.isnan(reading.estimate[5]) and built["direct"].get_value().size == 5


def test_price_of_a_release_with_an_area_without_sample():  # A11
    s = pd.Series(0.05, index=list("abcde"))
    release = PrivateRelease(with_unsampled(0.004**0.5), s)
    g = release.guarantee
    assert float(g["rho_respondent"].sel(area="d")) == pytest.approx(0.09558715461, rel=1e-8)
    ideal = g["rho_area_ideal"].sel(area="f")
    M = release.propagation()
    one = (
        float(M.sel(area="f", area_bis="d")) ** 2
        * 0.05**2
        / 2
        / float(g["posterior_sd"].sel(area="f")) ** 2
    )
    assert one == pytest.approx(0.02943322984, rel=1e-8)
    assert float(ideal) >= one
    assert float(g["rho_unshrunk"].sel(area="d")) == pytest.approx(0.15625, rel=1e-12)
    assert float(g["rho_respondent"].sel(area="f")) == 0.0
    without = PrivateRelease(fay_herriot(FIVE, "~ x", SHUFFLED, sigma_u=0.004**0.5), s).guarantee
    np.testing.assert_allclose(without["rho"], g["rho"], rtol=1e-9)


def test_collinear_covariates_are_named():  # A12
    direct = table("abcd", [0.1, 0.2, 0.4, 0.5], [0.01] * 4)
    x = pd.DataFrame({"urban": [1.0, 1, 0, 0], "rural": [0, 0, 1.0, 1]}, index=list("abcd"))
    with pytest.raises(ValueError, match=r"rank 2 for 3 columns.*Intercept, urban, rural"):
        fay_herriot(direct, "~ urban + rural", x, sigma_u=0.1)
    x["one"] = 1.0
    with pytest.raises(ValueError, match=r"rank 1 for 2 columns.*Intercept, one"):
        fay_herriot(direct, "~ one", x, sigma_u=0.1)
    x = pd.DataFrame(
        np.random.default_rng(1).normal(size=(4, 5)), index=list("abcd"), columns=list("pqrst")
    )
    with pytest.raises(ValueError, match=r"rank 4 for 6 columns"):
        fay_herriot(direct, "~ p + q + r + s + t", x, sigma_u=0.1)
    x["p"] = np.nan
    with pytest.raises(ValueError, match=r"covariate 'p' is missing or infinite in 4 areas: a, b"):
        fay_herriot(direct, "~ p", x, sigma_u=0.1)
    with pytest.raises(ValueError, match=r"needs columns that covariates lack: zzz"):
        fay_herriot(direct, "~ zzz", x, sigma_u=0.1)
    proper = fay_herriot(
        direct,
        "~ urban + rural",
        pd.DataFrame({"urban": [1.0, 1, 0, 0], "rural": [0, 0, 1.0, 1]}, index=list("abcd")),
        sigma_u=0.1,
        beta_prior=pm.Normal.dist(0, 1),
    )
    assert np.isfinite(read_model(proper).posterior.variance).all()


def test_checking_the_rank_of_many_areas_takes_no_square_matrix():
    import tracemalloc

    from pymc_dp.models.inputs import check_rank

    design = np.column_stack([np.ones(20_000), np.arange(20_000.0)])
    tracemalloc.start()
    check_rank(design, ("one", "x"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * design.nbytes  # a square matrix would take 10,000 times as much


def test_categories_and_transforms_in_the_formula():
    x = pd.DataFrame({"g": list("uvuvw"), "x": [1.0, 2, 4, 3, 9]}, index=list("abcde"))
    built = fay_herriot(FIVE, "~ C(g) + np.log(x)", x, sigma_u=0.1)
    assert list(built.coords["covariate"]) == ["Intercept", "C(g)[T.v]", "C(g)[T.w]", "np.log(x)"]


def test_a_formula_cannot_see_the_code_that_reads_it():
    with pytest.raises(Exception, match=r"table"):
        fay_herriot(FIVE, "~ x + len(table)", SHUFFLED, sigma_u=0.1)


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf, "0.1", pm.Normal.dist(0, 1)])
def test_unusable_sigma_u_is_refused(bad):
    with pytest.raises(ValueError, match=r"sigma_u"):
        fay_herriot(FIVE, sigma_u=bad)


def test_default_prior_needs_the_declared_range_and_never_the_data():
    with pytest.raises(ValueError, match=r"no default is computed"):
        fay_herriot(FIVE)
    built = fay_herriot(FIVE.assign_attrs(bounds=[0.0, 30.0]))
    scale = built["sigma_u"].owner.inputs[-1]
    assert float(scale.data.item() if hasattr(scale, "data") else scale.eval()) == 7.5


def test_one_prior_object_serves_several_models():
    prior = pm.HalfNormal.dist(0.1)
    first, second = (fay_herriot(FIVE, sigma_u=prior) for _ in range(2))
    assert first["sigma_u"] is not second["sigma_u"]


def test_a_normal_prior_gives_a_readable_graph_and_prior_predictive():
    pytest.importorskip("graphviz")
    built = fay_herriot(FIVE, "~ x", SHUFFLED, sigma_u=0.1, beta_prior=pm.Normal.dist(0, 1))
    source = pm.model_to_graphviz(built).source
    for edge in ("beta -> y", "X -> y", "z -> theta", "y -> theta", "sampling_variance -> y"):
        assert edge in source
    prior = pm.sample_prior_predictive(400, model=built, random_seed=1)
    theta = read_group(prior, "prior")["theta"]
    beta = read_group(prior, "prior")["beta"]
    X = xr.DataArray(built["X"].get_value(), dims=("area", "covariate"))
    effect = theta - xr.dot(X, beta, dim="covariate")
    # 2,000 effects of sd 0.1: 4 standard errors of their sd are 0.0064.
    assert float(effect.std()) == pytest.approx(0.1, abs=0.0064)


def quadrature(direct, log_prior, grid):
    """E and sd of sigma_u, beta and theta by a plain sum over sigma_u (intercept only)."""
    y, D = direct["estimate"].values, direct["variance"].values
    V = grid[:, None] ** 2 + D
    w = 1 / V
    beta = (w * y).sum(1) / w.sum(1)
    r = y - beta[:, None]
    logp = log_prior(grid) - (np.log(V).sum(1) + np.log(w.sum(1)) + (w * r**2).sum(1)) / 2
    weight = np.exp(logp - logp.max())  # midpoint rule on an even grid
    weight /= weight.sum()
    gamma = grid[:, None] ** 2 / V
    mean = gamma * y + (1 - gamma) * beta[:, None]
    var = gamma * D + (1 - gamma) ** 2 / w.sum(1)[:, None]
    centre = weight @ mean
    return weight @ grid, centre, np.sqrt(weight @ (var + mean**2) - centre**2)


NEARLY_EQUAL = table("abcdefgh", [0.30, 0.31, 0.29, 0.305, 0.295, 0.30, 0.31, 0.29], [0.0025] * 8)
_D = 10.0 ** np.linspace(-10, 0, 11)
APART = table(
    "abcdefghijk", 0.3 + 0.1 * np.cos(np.arange(11)) + np.sqrt(_D) * np.sin(np.arange(11)), _D
)


@pytest.mark.parametrize("direct", [NEARLY_EQUAL, APART], ids=["nearly equal", "ten orders apart"])
def test_auto_samples_right_posteriors_where_plain_forms_fail(direct):
    built = fay_herriot(direct, sigma_u=pm.HalfNormal.dist(0.1))
    idata = pm.sample(
        1500,
        tune=1000,
        chains=2,
        cores=1,
        model=built,
        random_seed=20,
        target_accept=0.9,
        progressbar=False,
        compute_convergence_checks=False,
    )
    import arviz as az

    posterior = read_group(idata, "posterior")
    grid = (np.arange(40_000) + 0.5) / 40_000
    sigma, mean, sd = quadrature(direct, lambda s: -(s**2) / 0.02, grid)
    assert int(read_group(idata, "sample_stats")["diverging"].sum()) <= 3
    # 4 Monte Carlo standard errors, from the effective number of draws.
    ess = az.ess(posterior[["sigma_u", "theta"]])
    spread = posterior[["sigma_u", "theta"]].std(("chain", "draw")) / np.sqrt(
        ess.to_dataset() if hasattr(ess, "to_dataset") else ess
    )
    got = posterior[["sigma_u", "theta"]].mean(("chain", "draw"))
    assert abs(float(got["sigma_u"]) - sigma) < 4 * float(spread["sigma_u"])
    assert (np.abs(got["theta"].values - mean) < 4 * spread["theta"].values).all()
    ess_sd = az.ess(posterior[["theta"]], method="sd")["theta"].values
    got_sd = posterior["theta"].std(("chain", "draw")).values
    assert (np.abs(got_sd - sd) < 4 * sd / np.sqrt(2 * ess_sd)).all()


def test_quadrature_of_this_file_gives_the_values_of_the_nearly_equal_case():  # A10
    grid = (np.arange(100_000) + 0.5) / 100_000
    sigma, mean, sd = quadrature(NEARLY_EQUAL, lambda s: -(s**2) / 0.02, grid)
    assert sigma == pytest.approx(0.01813969765, rel=1e-7)
    np.testing.assert_allclose(mean[:4], [0.3, 0.3013714531, 0.2986285469, 0.3006857265], rtol=1e-8)
    assert sd[0] == pytest.approx(0.02474884566, rel=1e-7)


DECLARED = {"sigma_u": "2010 census", "sampling_variance": "2010 census"}


class TestVariancesFromTheAnswers:
    """What hajek computed from answers is no public number, whatever is declared about it."""

    def direct(self, **method):
        rng = np.random.default_rng(7)
        records = pd.DataFrame(
            {
                "area": np.repeat(["north", "south", "west"], 40),
                "weight": rng.uniform(10, 30, 120),
                "smoker": rng.integers(0, 2, 120),
            }
        )
        return hajek(records, outcome="smoker", weight="weight", area="area", **method)

    def test_a_declared_source_is_refused(self):
        direct = self.direct()
        model = fay_herriot(direct, sigma_u=0.1)
        message = "sampling variances were computed from the answers"
        with pytest.raises(ValueError, match=message):
            PrivateRelease(model, direct["sensitivity"], assumptions=DECLARED)
        with pytest.raises(ValueError, match=message):
            plan(direct, sigma_u=0.1, variance_factor=1.5, assumptions=DECLARED)
        groups = {"north": "a", "south": "a", "west": "b"}
        with pytest.raises(ValueError, match=message):
            plan(pool(direct, groups), sigma_u=0.1, assumptions=DECLARED)
        public = {"sampling_variance": "2010 census"}
        with pytest.raises(ValueError, match=message):
            private_direct(direct, rho=0.5, assumptions=public)
        with pytest.raises(ValueError, match=message):
            private_sigma_u(direct, rho=0.5, assumptions=public)

    def test_noise_on_the_estimates_does_not_make_the_variances_public(self):
        noisy = private_direct(self.direct(), rho=0.5)
        model = fay_herriot(noisy, sigma_u=0.1)
        with pytest.raises(ValueError, match="computed from the answers"):
            PrivateRelease(model, 0.1, assumptions=DECLARED)

    def test_without_a_source_the_claim_is_conditional(self):
        direct = self.direct()
        release = PrivateRelease(
            fay_herriot(direct, sigma_u=0.1),
            direct["sensitivity"],
            assumptions={"sigma_u": "2010 census"},
        )
        assert release.claim == "conditional"

    @pytest.mark.parametrize("way", ["kish", "replaced", "declared to be of another survey"])
    def test_public_variances_may_be_declared(self, way):
        direct = self.direct(**({"variance": "kish", "rate": 0.4} if way == "kish" else {}))
        if way == "replaced":
            direct = direct.assign(variance=("area", [0.01, 0.02, 0.01]))
        if way.startswith("declared"):
            direct = direct.assign(variance=direct["variance"].drop_attrs())
        release = PrivateRelease(
            fay_herriot(direct, sigma_u=0.1), direct["sensitivity"], assumptions=DECLARED
        )
        assert release.claim == "formal"
