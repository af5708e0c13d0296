"""Audits: claims survive the best attack, and false ones do not.

The noise comes from the operating system and cannot be seeded, so every test that draws has its
chance of a false alarm in a comment. Where a bound must stay below the claim, the audit's own
confidence is 1 - 1e-8: it exceeds a true claim with a probability of at most 1e-8, and by far less
in fact, as each of two error rates has its share. Where it must exceed something, the normal
approximation of its distribution, from 400 audits of seeded Gaussian scores, says how often it does
not: six standard errors are 1e-9.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.optimize import linprog
from scipy.stats import binom, binomtest, multivariate_normal, norm

import pymc_dp as pdp
from pymc_dp.audit import audit_one_release, audit_pair, lattice_test
from pymc_dp.audit.bounds import (
    clopper_pearson_upper,
    one_release_epsilon,
    one_release_mu,
    two_sample_epsilon,
    two_sample_mu,
)
from pymc_dp.audit.lattice import last_digit
from pymc_dp.audit.samplers import lattice_values, published_values
from pymc_dp.mechanisms import fay_herriot

MECHANISMS = ["joint", "independent"]
SURE = 1 - 1e-8
AREA = ["north", "east", "south", "west", "middle"]
VARIANCE = np.array([2e-4, 4e-4, 8e-4, 1.2e-3, 2e-3])


def release(mechanism="joint", variance=VARIANCE, sensitivity=None, **more):
    """A small release: the price of a record is about mu = 2 in every area."""
    m = len(variance)
    area = AREA if m == 5 else [f"a{i}" for i in range(m)]
    estimate = np.where(np.isnan(variance), np.nan, 0.2 + 0.1 * np.cos(np.arange(m)))
    direct = xr.Dataset(
        {"estimate": ("area", estimate), "variance": ("area", variance)}, coords={"area": area}
    )
    s = 2.2 * np.sqrt(variance) if sensitivity is None else sensitivity
    model = pdp.fay_herriot(direct, sigma_u=0.05)
    return pdp.PrivateRelease(model, s, mechanism=mechanism, **more)


def remembered(sample):
    """Give the same draws for the same data: one set of draws answers several questions."""
    memory = {}

    def recall(y, draws):
        key = (y.tobytes(), draws)
        if key not in memory:
            memory[key] = sample(y, draws)
        return memory[key]

    return recall


@pytest.fixture(scope="module")
def releases():
    """One release of either kind, and what it publishes."""
    both = {mechanism: release(mechanism) for mechanism in MECHANISMS}
    return {
        name: (got, remembered(published_values(got.specification))) for name, got in both.items()
    }


@pytest.fixture
def joint(releases):
    return releases["joint"]


@pytest.fixture(params=MECHANISMS)
def either(releases, request):
    return releases[request.param]


def with_noise_scaled(target, sample, factor):
    """What a release publishes, with its noise scaled about the posterior mean."""

    def scaled(y, draws):
        mean = target.specification.law.posterior.mean(y)
        return mean + factor * (sample(y, draws) - mean)

    return scaled


# --- many releases of two neighbouring data sets ---------------------------------------------


# mu = 2 gives mu_lower of 1.65 +- 0.044: it misses 65 %, 1.3, by 8 standard errors.
def test_many_releases_show_most_of_the_claim_and_no_more(either):
    target, sample = either
    got = audit_pair(target, sampler=sample, draws=4_000, confidence=SURE)
    g = target.guarantee
    assert got.mu == pytest.approx(math.sqrt(2 * float(g["rho"])), rel=1e-12)
    assert 1.8 < got.mu < 2.4
    assert got.passed
    assert 0.65 <= got.reached <= 1
    assert 0 < got.epsilon_lower_any < got.epsilon_lower < got.epsilon
    assert got.epsilon == pytest.approx(float(g["epsilon"].sel(delta=1e-6)))
    assert got.claim == g["rho"].attrs["claim"]


# As above, and mu = 1.8 by calibration: 1.50 +- 0.038 against 1.17, 8 standard errors. The digits
# give nothing away, so that their bound would have to reach 1 from below 0.
@pytest.mark.parametrize(
    ("mechanism", "method"), [("joint", "temper"), ("joint", "noise"), ("independent", "scale")]
)
def test_calibrated_releases_survive_with_most_of_their_claim(releases, mechanism, method):
    target = releases[mechanism][0].calibrate(rho=1.8**2 / 2, method=method)
    got = audit_pair(target, draws=5_000, confidence=SURE)
    assert got.mu == pytest.approx(1.8, rel=1e-6)
    assert got.passed and got.reached >= 0.65
    assert lattice_test(target, draws=200).passed


@pytest.mark.parametrize("method", [None, "temper", "noise", "scale"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_attack_looks_along_the_log_likelihood_ratio(mechanism, method):
    target = release(mechanism)
    if method is not None:
        target = target.calibrate(rho=0.5, method=method)
    law = target.specification.law
    M = law.posterior.propagation()
    covariance = law.inflation * law.posterior.covariance() + law.extra * np.eye(5)
    if mechanism == "independent":
        covariance = np.diag(np.diag(covariance))
    for j in range(5):
        want = np.linalg.solve(covariance, M[:, j])
        got = target.specification.direction(j)
        np.testing.assert_allclose(got / got[j], want / want[j], atol=1e-9)
        # As much as the price says: mu^2 = s^2 M_j' N^-1 M_j.
        name = "rho_respondent" if mechanism == "joint" else "rho_independent"
        rho = target.specification.sensitivity[j] ** 2 * M[:, j] @ want / 2
        # The price includes rounding, for estimates up to 2^20 standard errors from 0.
        assert float(target.guarantee[name][j]) == pytest.approx(rho, rel=1e-7)


# As above: mu is 1.73 in the middle, the bound 1.39 +- 0.044 against 1.04, 8 standard errors.
@pytest.mark.parametrize("area", ["north", "middle"])
def test_an_area_published_alone_shows_what_its_record_pays_in_the_whole(joint, area):
    target, sample = joint
    got = audit_pair(target, published=area, sampler=sample, draws=4_000, confidence=SURE)
    rho = float(target.guarantee["rho_area"][AREA.index(area)])
    assert got.mu == pytest.approx(math.sqrt(2 * rho), rel=1e-12)
    assert got.passed and got.reached >= 0.6


# The claim is 1.27. The same draws are asked twice: at 1 - 1e-8 the bound stays below the claim, at
# 0.95 it reaches 70 %: 1.17 +- 0.036 against 0.89, 7.5 standard errors.
def test_king_county_smoking_survives_with_seventy_percent_at_95_percent_confidence(shared):
    t = pd.read_csv(shared / "data" / "brfss_king_county_area_table.csv")
    t = t[(t.domain == "hra") & (t.outcome == "smoker")]
    direct = xr.Dataset(
        {"estimate": ("area", t.hajek), "variance": ("area", 0.136 * 0.864 / t.n_eff)},
        coords={"area": t.area.to_numpy()},
    )
    sensitivity = xr.DataArray(t.max_share.to_numpy(), direct.coords, ["area"])
    target = pdp.PrivateRelease(pdp.fay_herriot(direct, sigma_u=0.04), sensitivity)
    sample = remembered(published_values(target.specification))
    strict, usual = (
        audit_pair(target, sampler=sample, draws=4_500, confidence=c) for c in (SURE, 0.95)
    )
    assert "Vashon Island" in strict.attack
    assert strict.passed
    assert usual.reached >= 0.7


# The true mu is 4, against a claim of 2: a bound of 3.4 +- 0.07, 11 standard errors above 2.6.
def test_half_the_standard_deviation_is_caught(either):
    half = with_noise_scaled(*either, 0.5)
    got = audit_pair(either[0], sampler=half, draws=4_000, confidence=SURE)
    assert not got.passed
    assert got.mu_lower > 1.3 * got.mu


# True mu of 1.73 and 2.14, bounds of 1.40 and 1.78 (+- 0.044), against claims below 0.9.
def test_a_claim_from_another_areas_variance_is_caught(joint):
    target, sample = joint
    post, s = target.specification.law.posterior, target.specification.sensitivity

    def audit(area, **claim):
        return audit_pair(target, area, sampler=sample, draws=4_000, confidence=SURE, **claim)

    north, middle = AREA.index("north"), AREA.index("middle")
    true = s**2 * post.variance / (2 * VARIANCE**2)
    honest = audit("middle")
    assert honest.mu == pytest.approx(math.sqrt(2 * true[middle]), rel=1e-9)
    assert honest.passed
    # The posterior variance of an area with less of it.
    less = audit("middle", rho=true[middle] * post.variance[north] / post.variance[middle])
    assert less.mu < honest.mu / 2 and not less.passed
    # Everything of an area with a noisier direct estimate.
    noisier = audit("north", rho=s[north] ** 2 * true[middle] / s[middle] ** 2)
    assert audit("north").passed and not noisier.passed


# The release claims 1.73 for variances that the sampler gives to other areas: mu is 6 in truth, and
# its bound 3.6 +- 0.1.
def test_a_sampler_with_the_variances_of_areas_exchanged_is_caught(joint):
    target, _ = joint
    exchanged = release(
        variance=VARIANCE[[4, 1, 2, 3, 0]], sensitivity=target.specification.sensitivity
    )
    sample = published_values(exchanged.specification)
    got = audit_pair(target, "middle", sampler=sample, draws=1_000, confidence=SURE)
    assert not got.passed


# Seeded: exact Gaussian scores, no release. At 95 % at most one bound in 20 may be wrong; the two
# error rates are bounded one by one, so that far fewer are.
@pytest.mark.parametrize(("mu", "shown"), [(0.5, 0), (2.0, 2.0), (4.0, 4.0)])
def test_bounds_from_two_samples_hold_as_often_as_they_say(mu, shown):
    rng = np.random.default_rng(11)
    repeats, n, delta = 100, 1_000, 1e-3
    epsilon = float(pdp.epsilon(mu**2 / 2, delta))
    samples = [(rng.normal(size=n), rng.normal(mu, 1, n)) for _ in range(repeats)]
    mus = np.array([two_sample_mu(*s, 0.05) for s in samples])
    epsilons = np.array([two_sample_epsilon(*s, delta, 0.05) for s in samples])
    assert (mus > mu).mean() <= 0.05
    assert (epsilons > epsilon).mean() <= 0.05
    assert np.median(mus) > mu - max(1, mu / 2) * 10 / math.sqrt(n)
    assert np.median(epsilons) >= shown
    loose = np.array([two_sample_mu(*s, 0.999) for s in samples])
    assert (loose > mu).mean() > 0.2  # the bound is not low for another reason than confidence


def test_clopper_pearson_bounds_are_those_of_scipys_exact_interval():
    for count, trials, error in [(0, 50, 0.05), (3, 50, 1e-6), (49, 50, 0.01), (50, 50, 0.05)]:
        test = binomtest(count, trials, alternative="less")
        want = test.proportion_ci(1 - error, method="exact").high
        got = clopper_pearson_upper(np.array([count]), trials, error)
        assert got[0] == pytest.approx(want, rel=1e-9)


# --- one release, areas as canaries ------------------------------------------------------------


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "error", "delta", "mu", "epsilon"),
    # From jax-privacy 2.0.0 (Apache-2.0): 1 / sigma of `_epsilon_one_run_fdp`'s epsilon at delta,
    # and `_epsilon_one_run`, whose delta term is a little smaller than ours.
    [
        (2000, 500, 400, 0.05, 1e-6, 0.475192, 1.198510),
        (2000, 500, 450, 0.025, 1e-5, 0.686154, 1.899938),
        (2000, 2000, 1500, 0.05, 1e-6, 0.460930, 1.012719),
        (200, 50, 46, 0.05, 1e-6, 0.666440, 1.558810),
        (200, 50, 50, 1e-3, 1e-6, 0.675257, 1.903155),
        (48, 12, 12, 0.05, 1e-6, 0.571277, 1.260135),
        (48, 48, 40, 0.01, 1e-4, 0.372655, 0.708130),
        (1000, 100, 60, 0.05, 1e-6, 0.015267, 0.051680),
        (500, 100, 95, 1e-6, 1e-5, 0.333013, 0.0),
    ],
)
def test_one_release_bounds_equal_those_of_jax_privacy(
    canaries, guesses, correct, error, delta, mu, epsilon
):
    assert one_release_mu(canaries, guesses, correct, error) == pytest.approx(mu, abs=2e-6)
    got = one_release_epsilon(canaries, guesses, correct, delta, error)
    assert epsilon * (1 - 2e-3) - 1e-9 <= got <= epsilon + 1e-6


def most_probable(mu, canaries, guesses, correct):
    """Largest chance of so many right guesses that mu-GDP allows, by a linear program.

    The curve is replaced by its tangents, from above: the program allows a little more.
    """
    right = np.arange(guesses + 1) / canaries
    wrong = right[::-1]
    rows, limits = [], []
    points = norm.cdf(np.linspace(-6, 4, 400))
    for i in range(1, guesses + 1):
        A = np.where(np.arange(guesses + 1) >= i, right, 0.0)
        B = np.where(np.arange(guesses + 1) >= i - 1, wrong, 0.0)
        for x in points:
            z = norm.ppf(x)
            slope = math.exp(-((z + mu) ** 2 - z**2) / 2)
            rows.append(A - slope * B)
            limits.append(norm.cdf(z + mu) - slope * x)
    goal = -(np.arange(guesses + 1) >= correct).astype(float)
    found = linprog(
        goal, A_ub=rows, b_ub=limits, A_eq=[np.ones(guesses + 1)], b_eq=[1.0], method="highs"
    )
    return -found.fun


# The tangents are 400 to a curve: 1e-3 of a probability.
@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(8, 8, 7), (20, 6, 6), (30, 15, 13)])
def test_mu_of_one_release_is_the_least_that_allows_the_count(canaries, guesses, correct):
    error = 0.05
    mu = one_release_mu(canaries, guesses, correct, error)
    assert mu > 0.05
    assert most_probable(mu, canaries, guesses, correct) == pytest.approx(error, rel=5e-3)


def test_a_gaussian_mechanism_passes_the_bounds_of_one_release_as_often_as_they_say():
    """Guess every one of m independent coins, each released with unit noise: a binomial count."""
    m, error, delta = 100, 0.05, 1e-6
    counts = np.arange(m + 1)
    mus = np.array([one_release_mu(m, m, c, error) for c in counts])
    epsilons = np.array([one_release_epsilon(m, m, c, delta, error) for c in counts])
    assert (np.diff(mus) >= 0).all() and (np.diff(epsilons) >= 0).all()
    assert mus[-1] > 1 and epsilons[-1] > 3
    for mu in (0.3, 1.0, 2.5):
        chance = binom.pmf(counts, m, norm.cdf(mu / 2))
        assert chance[mus > mu].sum() <= error
        assert chance[epsilons > float(pdp.epsilon(mu**2 / 2, delta))].sum() <= error


# With an exact Gaussian, 1,500 guesses of 6,000 areas and mu = 1: 1,447 right ones refute mu = 1.
# A true claim, where about 1,281 are right, sees so many with probability 9e-46; half the standard
# deviation (about 1,478, from 40 audits) fewer with 1e-8 (binomial). Six standard errors below its
# mean count the bound is still 0.44.
def test_one_release_stays_below_the_claim_and_half_the_deviation_is_caught():
    """Records pay mu = 1 in one half of the areas and less than that in the other."""
    variance = np.linspace(2e-4, 2e-3, 6_000)
    target = release(variance=variance, sensitivity=np.sqrt(variance) * np.tile([1.0, 0.5], 3_000))
    sample = published_values(target.specification)
    got = audit_one_release(target, mu=1.0)
    assert got.draws == 1 and got.attack == "6000 areas as canaries, 1500 guessed"
    assert got.passed
    assert got.mu_lower > 0.4
    caught = audit_one_release(target, mu=1.0, sampler=with_noise_scaled(target, sample, 0.5))
    assert not caught.passed


# --- the lattice ---------------------------------------------------------------------------------


def test_values_of_neighbours_lie_on_one_public_lattice_before_they_are_mapped(either):
    got = lattice_test(either[0], draws=1_000)
    assert got.spacing == 2.0**-50
    assert got.off_lattice == (0, 0)
    assert got.passed


def float_noise_before_the_map(target, rng):
    plan = target.specification.plan
    return lambda y, n: plan.statistic(y) + rng.normal(size=(n, plan.size))


def float_draw(target, rng):
    root = np.linalg.cholesky(target.specification.law.posterior.covariance())
    return lambda y, n: (
        target.specification.law.posterior.mean(y) + rng.normal(size=(n, y.size)) @ root.T
    )


def numpy_draw(target, rng):
    covariance = target.specification.law.posterior.covariance()
    return lambda y, n: rng.multivariate_normal(
        target.specification.law.posterior.mean(y), covariance, size=n
    )


def scipy_draw(target, rng):
    covariance = target.specification.law.posterior.covariance()
    return lambda y, n: multivariate_normal(
        target.specification.law.posterior.mean(y), covariance
    ).rvs(n, rng)


# Seeded. Each has the right mean and covariance; audit_pair finds nothing wrong with it.
@pytest.mark.parametrize("flawed", [float_noise_before_the_map, float_draw, numpy_draw, scipy_draw])
def test_noise_added_in_floats_is_caught_by_the_lattice_test(joint, flawed):
    sampler = flawed(joint[0], np.random.default_rng(5))
    got = lattice_test(joint[0], sampler=sampler, draws=10_000, confidence=SURE)
    assert not got.passed
    assert min(got.off_lattice) > 0
    # The digits alone tell the data sets apart better than the claim allows any attack to.
    assert got.mu_lower > 1.2 * got.mu


def test_an_honest_law_in_floats_is_not_refuted_by_its_values(joint):
    sampler = float_draw(joint[0], np.random.default_rng(5))
    assert audit_pair(joint[0], sampler=sampler, draws=4_000, confidence=SURE).passed


def test_lattice_noise_about_an_unrounded_centre_is_caught(joint):
    """The support is then a lattice moved by the data: nothing could give more away."""
    target, _ = joint
    plan = target.specification.plan
    noise = lattice_values(target.specification)

    def unrounded(y, draws):
        return plan.statistic(y) + noise(np.zeros_like(y), draws)

    got = lattice_test(target, sampler=unrounded, draws=500)
    assert got.off_lattice[0] == 0 and got.off_lattice[1] > 0
    assert not got.passed


def test_last_digits_are_those_of_the_exact_fraction():
    values = np.array([1.0, 0.75, -3.0, 0.1, 6.0, 2.0**-60, 1e300, 5e-324])
    for value, digit in zip(values, last_digit(values), strict=True):
        numerator, denominator = float(value).as_integer_ratio()
        want = math.log2(numerator & -numerator) - math.log2(denominator)
        assert digit == want
    assert last_digit(np.zeros(1))[0] > 1000


def test_what_is_published_is_on_the_public_grid_for_both_data_sets(either):
    target, sample = either
    decimals = target.specification.decimals
    for data in (np.zeros(5), 0.3 * target.specification.sensitivity):
        theta = sample(data, 50)
        assert np.array_equal(theta, theta.round(decimals))


# --- what an audit leaves alone ---------------------------------------------------------------


def test_an_audit_neither_reads_the_estimates_nor_draws_the_release():
    target = release()
    before = target._parts
    target._parts = replace(before, y=np.full(5, np.nan))  # whoever reads them fails
    audits = [
        audit_pair(target, draws=100),
        audit_one_release(target),
        lattice_test(target, draws=100),
    ]
    assert np.isnan(target._parts.y).all()
    assert target.released is None
    target._parts = before
    target.draw()
    once = target.released
    audit_pair(target, draws=100)
    xr.testing.assert_identical(target.released, once)
    for audit in audits:
        facts = dataclasses.asdict(audit)
        assert all(isinstance(v, str | int | float | tuple) for v in facts.values())


def test_an_audit_runs_the_code_of_the_draw_itself(monkeypatch):
    target, calls = release(), []
    honest = fay_herriot.lattice_draws

    def noiseless(plan, y, rho, draws, charge):
        calls.append(draws)
        centre = plan.statistic(y)
        return centre + 1e-3 * (honest(plan, y, rho, draws, charge) - centre)

    monkeypatch.setattr(fay_herriot, "lattice_draws", noiseless)
    assert not audit_pair(target, draws=300, confidence=SURE).passed
    assert calls == [300, 300]


def test_an_audit_takes_no_ledger_and_charges_none(tmp_path):
    ledger = pdp.PrivacyLedger(
        tmp_path / "programme.ledger", rho=100.0, conditional=True, create=True
    )
    target = release()
    target.draw(ledger=ledger)
    spent = ledger.spent
    audit_pair(target, draws=100)
    assert ledger.spent == spent


def test_made_up_estimates_are_joined_by_label_and_moved_inward(joint):
    seen = []

    def sampler(y, draws):
        seen.append(y)
        return np.zeros((draws, 5))

    estimate = xr.DataArray(
        [0.5, 0.1, 0.2, -0.3, 0.4], {"area": ["middle", *AREA[:4]]}, dims="area"
    )
    audit_pair(joint[0], "middle", estimate=estimate, sampler=sampler, draws=100)
    first, second = seen
    np.testing.assert_array_equal(first, [0.1, 0.2, -0.3, 0.4, 0.5])
    s = joint[0].specification.sensitivity
    np.testing.assert_allclose(second - first, [0, 0, 0, 0, -s[4]], atol=1e-15)
    audit_pair(joint[0], "south", estimate=first, sampler=sampler, draws=100)
    np.testing.assert_allclose(seen[3] - seen[2], [0, 0, s[2], 0, 0], atol=1e-15)


def test_an_area_without_sample_takes_no_part():
    target = release(variance=np.array([2e-4, 4e-4, np.nan, 1.2e-3, 2e-3]), sensitivity=0.03)
    with pytest.raises(ValueError, match="'south' has no sample"):
        audit_pair(target, "south")
    got = audit_pair(target, "north", published="south", draws=100)
    assert "south published, a record of north" in got.attack
    assert "4 areas as canaries" in audit_one_release(target).attack


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"area": "nowhere"}, "no area 'nowhere'"),
        ({"published": "nowhere"}, "no area 'nowhere'"),
        ({"draws": 99}, "draws must be an integer of at least 100"),
        ({"draws": 1e4}, "draws must be an integer"),
        ({"delta": 0.0}, "delta must lie between 0 and 1"),
        ({"delta": math.nan}, "delta must lie between 0 and 1"),
        ({"confidence": 0.3}, "confidence must be"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"rho": math.nan}, "rho must be positive"),
        ({"rho": 0.0}, "rho must be positive"),
        ({"estimate": np.zeros(4)}, r"estimate has shape \(4,\) for 5 areas"),
        ({"estimate": [0, 0, math.nan, 0, 0]}, "not finite in 1 areas: south"),
        ({"sampler": lambda y, n: np.zeros((n, 4))}, r"shape \(200, 4\) for 200 draws of 5"),
        ({"sampler": lambda y, n: np.full((n, 5), np.nan)}, "not finite"),
    ],
)
def test_arguments_out_of_range_are_refused(joint, arguments, message):
    with pytest.raises(ValueError, match=message):
        audit_pair(joint[0], **{"draws": 200, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"guesses": 6}, "guesses must be at most"),
        ({"guesses": 0}, "guesses must be an integer"),
        ({"mu": math.inf}, "mu must be positive"),
        ({"mu": math.nan}, "mu must be positive"),
        ({"confidence": math.nan}, "confidence must be"),
    ],
)
def test_arguments_of_the_audit_of_one_release_are_refused(joint, arguments, message):
    with pytest.raises(ValueError, match=message):
        audit_one_release(joint[0], **arguments)


def test_an_estimate_that_lacks_an_area_is_refused_by_name(joint):
    estimate = xr.DataArray(np.zeros(4), {"area": AREA[:4]}, dims="area")
    with pytest.raises(ValueError, match="in 1 areas: middle"):
        audit_pair(joint[0], estimate=estimate, draws=100)
