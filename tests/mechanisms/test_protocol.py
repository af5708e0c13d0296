"""What every mechanism says of itself: its information is its price, its draws are N(K y, K)."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_dp import PrivateRelease, fay_herriot
from pymc_dp.containers import read_group

AREA = ["north", "east", "south", "west", "centre", "isle"]
SOURCES = {name: "a public source" for name in ("sampling_variance", "sigma_u", "covariates")}


def direct(unsampled: bool = False) -> xr.Dataset:
    estimate = np.array([0.12, 0.2, 0.17, 0.31, 0.26, 0.22])
    variance = np.array([0.001, 0.004, 0.002, 0.008, 0.0015, 0.003])
    if unsampled:
        estimate[4] = variance[4] = np.nan
    return xr.Dataset(
        {
            "estimate": ("area", estimate),
            "variance": ("area", variance),
            "sensitivity": (
                "area",
                np.array([0.02, 0.05, 0.03, 0.08, 0.02, 0.04]),
                {"outcome_bounds": (0.0, 1.0)},
            ),
        },
        coords={"area": AREA},
        attrs={"outcome_bounds": (0.0, 1.0)},
    )


def release(mechanism: str, method: str | None, *, unsampled: bool = False) -> PrivateRelease:
    data = direct(unsampled)
    given = {"rho": 0.1} if mechanism == "noisy-direct" else {}
    made = PrivateRelease(
        fay_herriot(data, sigma_u=0.05),
        data["sensitivity"],
        mechanism=mechanism,
        assumptions=SOURCES,
        **given,
    )
    return made if method is None else made.calibrate(rho=0.05, method=method)


WAYS = [
    ("joint", None),
    ("joint", "temper"),
    ("joint", "noise"),
    ("joint", "scale"),
    ("independent", None),
    ("independent", "temper"),
    ("independent", "noise"),
    ("noisy-direct", None),
]


def information(group: xr.Dataset) -> np.ndarray:
    shared = group["information_shared"].values
    return (
        np.diag(group["information_own"].values)
        + (shared * group["information_sign"].values) @ shared.T
    )


@pytest.mark.parametrize("unsampled", [False, True])
@pytest.mark.parametrize(("mechanism", "method"), WAYS)
def test_the_diagonal_of_the_information_is_the_price(mechanism, method, unsampled):
    made = release(mechanism, method, unsampled=unsampled)
    price = made.specification.price()
    s = made.specification.sensitivity
    K = information(made.guarantee)
    # Prices include the rounding of the lattice, about 1e-13 in sqrt(2 rho).
    np.testing.assert_allclose(s**2 * np.diag(K) / 2, price, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("unsampled", [False, True])
@pytest.mark.parametrize(("mechanism", "method"), WAYS)
def test_the_statistic_of_a_draw_is_its_plan_transposed(mechanism, method, unsampled):
    """``S'S = K``, so that h = S'(S y + noise) has mean K y and covariance K."""
    made = release(mechanism, method, unsampled=unsampled)
    plan = made.specification.plan
    unit = np.eye(6)
    S = np.stack([plan.statistic(row) for row in unit], axis=1)
    if mechanism == "noisy-direct":
        np.testing.assert_allclose(S, np.diag(plan.norm))
    else:
        transposed = np.stack([plan.sufficient(row) for row in np.eye(plan.size)], axis=1)
        np.testing.assert_allclose(transposed, S.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(S.T @ S, information(made.guarantee), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("mechanism", "method"), WAYS)
def test_a_draw_carries_what_inference_needs(mechanism, method):
    made = release(mechanism, method, unsampled=True)
    group = read_group(made.draw(draws=2), "private_release")
    assert group["information_h"].dims == ("chain", "draw", "area")
    assert group["information_h"].shape == (1, 2, 6)
    # Nothing is known of an area without sample, and nothing is said.
    assert (group["information_h"].values[..., 4] == 0).all()
    assert np.isnan(group["sampling_variance"].values[4])
    if mechanism == "noisy-direct":
        assert np.isnan(group["noisy_direct"].values[..., 4]).all()
        precision = group["information_own"].values
        shown = group["information_h"].values / np.where(precision > 0, precision, 1)
        grid = 10.0**-made.specification.decimals
        np.testing.assert_allclose(
            group["noisy_direct"].values[..., :4], shown[..., :4], atol=0.51 * grid
        )


def test_noise_on_direct_estimates_needs_no_component_of_the_effects():
    data = direct()
    sources = {"sampling_variance": "a public rate"}
    for parametrization in ("auto", "centered", "noncentered"):
        model = fay_herriot(data, parametrization=parametrization)  # sigma_u is free
        made = PrivateRelease(
            model,
            data["sensitivity"],
            mechanism="noisy-direct",
            epsilon=2.0,
            delta=1e-6,
            assumptions=sources,
        )
        assert made.claim == "formal"
        assert float(made.guarantee["epsilon"].sel(delta=1e-6)) <= 2.0
        assert float(made.guarantee["epsilon"].sel(delta=1e-6)) == pytest.approx(2.0, rel=1e-6)
        assert "theta_smoothed_sd" not in made.guarantee
    assert (
        PrivateRelease(
            fay_herriot(data), data["sensitivity"], mechanism="noisy-direct", rho=0.1
        ).claim
        == "conditional"
    )


def test_noise_on_direct_estimates_is_smoothed_as_conditioning_says():
    data = direct(unsampled=True)
    made = release("noisy-direct", None, unsampled=True)
    group = read_group(made.draw(), "private_release")
    seen = [0, 1, 2, 3, 5]
    V = 0.05**2 * np.eye(6) + 1e8  # a flat coefficient, nearly
    total = V[np.ix_(seen, seen)] + np.diag(
        data["variance"].values[seen] + group["noise_variance"].values[seen]
    )
    back = np.linalg.solve(total, V[seen]).T
    mean = back @ group["noisy_direct"].values[0, 0, seen]
    grid = 10.0**-made.specification.decimals
    # The nearly flat prior costs about 1e-5, the grid half a unit.
    np.testing.assert_allclose(group["theta_smoothed"].values[0, 0], mean, atol=0.51 * grid + 2e-5)
    sd = np.sqrt(np.diag(V - back @ V[seen]))
    np.testing.assert_allclose(group["theta_smoothed_sd"], sd, rtol=1e-3)


def test_a_budget_given_at_once_is_met_as_calibrate_meets_it():
    data = direct()
    model = fay_herriot(data, sigma_u=0.05)
    at_once = PrivateRelease(model, data["sensitivity"], rho=0.05)
    after = PrivateRelease(model, data["sensitivity"]).calibrate(rho=0.05)
    xr.testing.assert_identical(at_once.guarantee, after.guarantee)
    with pytest.raises(ValueError, match="give the target as rho"):
        PrivateRelease(model, data["sensitivity"], rho=0.05, epsilon=1.0)
    with pytest.raises(ValueError, match="give the target as rho"):
        PrivateRelease(model, data["sensitivity"], mechanism="noisy-direct")


def test_unknown_mechanisms_are_refused_and_the_known_ones_named():
    data = direct()
    with pytest.raises(ValueError, match="'joint' or 'independent' or 'noisy-direct'"):
        PrivateRelease(fay_herriot(data, sigma_u=0.05), data["sensitivity"], mechanism="laplace")
