"""Noise on the direct estimates: its law, its price, its record, and what follows from it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from factories.chance import assert_gaussian

import pymc_dp.mechanisms.direct as module
from pymc_dp import BudgetExceeded, PrivacyLedger, fay_herriot
from pymc_dp.components.posterior import sample_posterior
from pymc_dp.mechanisms import lattice
from pymc_dp.mechanisms.direct import DirectPlan, private_direct
from pymc_dp.mechanisms.lattice import SPACING, price
from pymc_dp.record.claims import read_record

AREA = ["north", "east", "south", "west"]
DECLARED = {"sampling_variance": "weights and the national rate"}


@pytest.fixture
def direct():
    return xr.Dataset(
        {
            "estimate": ("area", [0.123, 0.234, np.nan, 0.345]),
            "variance": ("area", [1e-3, 2e-3, np.nan, 4e-4]),
            "sensitivity": ("area", [0.01, 0.05, 0.0, 0.02]),
        },
        coords={"area": AREA},
        attrs={"bounds": [0.0, 1.0], "unit": "household"},
    )


def test_noise_has_the_stated_mean_and_variance_in_every_area(direct):
    n, rho = 300, 0.5
    noisy = np.array([private_direct(direct, rho=rho)["estimate"].values for _ in range(n)])
    got = private_direct(direct, rho=rho)
    error = (noisy - direct["estimate"].values)[:, [0, 1, 3]]
    want = np.array([0.01, 0.05, 0.02]) ** 2 / (2 * rho)
    assert_gaussian(error, np.zeros(3), np.diag(want))  # a false alarm in 1e-8 of runs
    # The public grid adds at most (1/100)^2 / 12 of the smallest noise variance.
    np.testing.assert_allclose(got["noise_variance"].values[[0, 1, 3]], want, rtol=1e-5)
    np.testing.assert_allclose(
        got["variance"], direct["variance"] + got["noise_variance"], rtol=1e-15
    )


@pytest.mark.parametrize("rho", [1e-6, 0.1, 0.5, 20.0])
def test_every_record_pays_at_most_the_price_and_nearly_all_of_it(rho):
    s = np.array([0.01, 0.0, 1e-5, 0.3])
    plan = module.plan_within(s, 1.0, rho)
    paid = price(plan.norm, s, plan.slack)
    assert paid.max() <= rho and paid[1] == 0
    # What rounding costs beside: about 1e-15 standard deviations, 1e-11 where s is 1e-5.
    assert (paid[s > 0] > rho * (1 - 1e-7)).all()
    np.testing.assert_allclose((s / plan.multiple) ** 2, s**2 / (2 * rho), rtol=1e-7)


def test_noisy_statistics_of_direct_estimates_lie_on_the_public_lattice(monkeypatch, direct):
    seen = []
    plain = module.lattice_draws
    monkeypatch.setattr(
        module, "lattice_draws", lambda *a: seen.append((a, plain(*a))) or seen[-1][1]
    )
    result = private_direct(direct, rho=0.5)
    [(arguments, noisy)] = seen
    assert isinstance(arguments[0], DirectPlan)
    np.testing.assert_array_equal(noisy / SPACING, np.rint(noisy / SPACING))
    assert result.attrs["rho"] == arguments[2] <= 0.5
    decimals = read_record(result.attrs)["publishing_decimals"]
    published = result["estimate"].values[[0, 1, 3]]
    np.testing.assert_array_equal(published, published.round(decimals))
    smallest = 0.01  # s / sqrt(2 rho)
    assert smallest / 1000 < 10.0**-decimals <= smallest / 100


def test_result_holds_no_estimate_and_says_that_what_follows_is_free(direct):
    result = private_direct(direct, rho=0.5, assumptions=DECLARED)
    assert set(result.data_vars) == {"estimate", "variance", "noise_variance"}
    record = read_record(result.attrs)
    assert "post-processing" in record["post_processing"]
    assert record["claim"] == "formal" and record["unit"] == "household"
    assert record["mechanism"] == "noisy-direct" and record["assumptions"] == DECLARED
    assert np.isnan(result["estimate"][2]) and np.isnan(result["variance"][2])
    # One noisy value may meet the estimate on the publishing grid, by chance 0.004 where the noise
    # is smallest; all three do so in 7e-9 of runs.
    assert not result["estimate"].equals(direct["estimate"])
    assert not any(str(v) in str(result.attrs) for v in (0.123, 0.234, 0.345))


def test_claim_is_conditional_without_a_source_of_the_sampling_variances(direct):
    record = read_record(private_direct(direct, rho=0.5).attrs)
    assert record["claim"] == "conditional"
    assert "treating the variance components as fixed" in record["claim_words"]


def test_ledger_is_charged_before_the_noise_and_a_refusal_draws_nothing(
    monkeypatch, direct, tmp_path
):
    ledger = PrivacyLedger(tmp_path / "programme.ledger", 0.7, create=True)
    private_direct(direct, rho=0.5, ledger=ledger, assumptions=DECLARED)
    assert ledger.spent == pytest.approx(0.5, rel=1e-9) and ledger.spent <= 0.5

    class Failing:
        def map(self, distance):
            return distance**2 / 2

        def __call__(self, value):
            raise AssertionError("noise was drawn")

    monkeypatch.setattr(lattice, "_gaussian", lambda size: Failing())
    with pytest.raises(BudgetExceeded):
        private_direct(direct, rho=0.5, ledger=ledger, assumptions=DECLARED)
    with pytest.raises(ValueError, match="conditional"):
        private_direct(direct, rho=0.1, ledger=ledger)
    with pytest.raises(AssertionError, match="noise was drawn"):
        private_direct(direct, rho=0.1, ledger=ledger, assumptions=DECLARED)
    assert ledger.spent == pytest.approx(0.6, rel=1e-9)  # paid before the noise


def test_result_goes_into_a_model_with_sigma_u_estimated(direct):
    noisy = private_direct(direct, rho=0.5)
    prior = pm.HalfNormal.dist(0.1)
    model = fay_herriot(noisy, sigma_u=prior)
    assert "sigma_u" in [v.name for v in model.free_RVs]
    idata = sample_posterior(noisy, prior=prior, draws=50, random_seed=1)
    assert idata.posterior["theta"].sizes["area"] == 4
    given = model["sampling_variance"].get_value()
    np.testing.assert_array_equal(given, noisy["variance"].values[[0, 1, 3]])


@pytest.mark.parametrize("rho", [0.0, -1.0, np.nan, np.inf, True, np.True_])
def test_unusable_prices_are_refused(direct, rho):
    with pytest.raises(ValueError, match="rho must be"):
        private_direct(direct, rho=rho)


@pytest.mark.parametrize("rho", [1e-9, 1e-12, 1e-18, 1e-26])
def test_tiny_prices_are_drawn_as_claimed(direct, rho):
    """Where the lattice is no longer far below the price, its cost is counted once, not twice."""
    paid = private_direct(direct, rho=rho).attrs["rho"]
    assert rho * (1 - 1e-3) < paid <= rho  # to the last digits that so small a distance has


def test_unusable_inputs_name_areas_and_show_no_estimate(direct, tmp_path):
    with pytest.raises(ValueError, match="'sensitivity'"):
        private_direct(direct.drop_vars("sensitivity"), rho=0.5)
    bad = direct.copy(deep=True)
    bad["sensitivity"][1] = 0.0
    with pytest.raises(ValueError, match=r"not in 1 areas: east"):
        private_direct(bad, rho=0.5)
    bad = direct.copy(deep=True)
    bad["estimate"][0] = 1.5
    with pytest.raises(ValueError, match=r"^1 observed values lie outside the declared range$"):
        private_direct(bad, rho=0.5)
    ledger = PrivacyLedger(tmp_path / "budget.ledger", 1.0, conditional=True, create=True)
    with pytest.raises(ValueError, match="on the lattice"):
        private_direct(direct, rho=1e-32, ledger=ledger)
    assert ledger.spent == 0
    with pytest.raises(ValueError, match="unknown assumptions"):
        private_direct(direct, rho=0.5, assumptions={"rate": "x"})
