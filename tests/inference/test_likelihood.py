"""The likelihood of a release in a PyMC model, and the release as noisy direct estimates."""

from __future__ import annotations

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from factories.releases import MECHANISMS, as_group, information
from scipy import stats

from pymc_dp import containers, noisy_direct, private_direct, release_posterior, released_likelihood
from pymc_dp.inference.information import INSIDE, read_information

AREA = list("abcdefg")
X = np.column_stack([np.ones(7), [0.0, 1.0, 2.0, 4.0, 1.5, -1.0, 3.0]])
D = np.array([0.001, 0.004, 0.002, 0.008, 0.0015, np.nan, 0.03])
TOLD = np.flatnonzero(~np.isnan(D))
# Interpreted: compiling each would take seconds.
MODE = pytensor.compile.mode.Mode(linker="py", optimizer=None)


def a_group(mechanism, A0=0.0004, draws=1, **record):
    rng = np.random.default_rng(11)
    y = 0.2 + 0.02 * X[:, 1] + rng.normal(0, 0.05, 7)
    made = [information(mechanism, A0, D, X, y, np.random.default_rng(k)) for k in range(draws)]
    return as_group(made[0][0], [h for _, h in made], AREA, D, **record)


def log_density(group, labels, theta, **kwargs):
    """Value and gradient of the likelihood at theta, given in the order of the labels."""
    with pm.Model(coords={"area": labels}) as model:
        means = pm.Flat("theta", dims="area")
        released = released_likelihood("released", means, group, **kwargs)
    point = model.rvs_to_values[means]
    value = model.logp(released, jacobian=False, sum=True)
    found = pytensor.function([point], [value, pytensor.grad(value, point)], mode=MODE)
    return found(theta)


# K of noise independent by area has entries over four decades: eight digits are left of a dense
# covariance.
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_density_and_gradient_equal_the_dense_normal_density(mechanism):
    group = a_group(mechanism)
    release = read_information(group)
    K, h = release.K.dense()[np.ix_(TOLD, TOLD)], release.h[TOLD]
    V = K + (K * D[TOLD]) @ K
    V = (V + V.T) / 2
    theta = np.random.default_rng(3).normal(0.2, 0.1, 7)
    law = stats.multivariate_normal(K @ theta[TOLD], V)
    against = stats.multivariate_normal(np.zeros(6), K)
    value, gradient = log_density(group, AREA, theta)
    assert value == pytest.approx(law.logpdf(h) - against.logpdf(h), rel=1e-8)
    want = np.zeros(7)
    want[TOLD] = K @ np.linalg.solve(V, h - K @ theta[TOLD])
    np.testing.assert_allclose(gradient, want, rtol=1e-7, atol=1e-7)


def test_areas_are_joined_by_label():
    group = a_group("joint")
    theta = np.random.default_rng(3).normal(0.2, 0.1, 7)
    want, gradient = log_density(group, AREA, theta)
    order = [3, 6, 0, 5, 1, 2, 4]
    labels = [*(AREA[i] for i in order), "elsewhere"]
    value, moved = log_density(group, labels, np.append(theta[order], 9.0))
    assert value == pytest.approx(want, rel=1e-12)
    np.testing.assert_allclose(moved, np.append(gradient[order], 0.0), rtol=1e-10, atol=1e-12)
    # The area without sample need not be there.
    sampled = [a for a in AREA if a != "f"]
    value, _ = log_density(group, sampled, theta[TOLD])
    assert value == pytest.approx(want, rel=1e-12)


def test_sampling_variances_given_replace_those_of_the_release():
    group = a_group("joint")
    theta = np.full(7, 0.2)
    double = dict(zip(AREA, 2 * D, strict=True))
    got = log_density(group, AREA, theta, sampling_variance=double)
    want = log_density(group.assign(sampling_variance=("area", 2 * D)), AREA, theta)
    assert got[0] == want[0] != log_density(group, AREA, theta)[0]


def fay_herriot_on(group):
    with pm.Model(coords={"area": AREA}) as model:
        sigma = pm.HalfNormal("sigma_u", 0.1)
        beta = pm.Flat("beta", shape=2)
        z = pm.Normal("z", dims="area")
        theta = pm.Deterministic("theta", pt.as_tensor(X) @ beta + sigma * z, dims="area")
        released_likelihood("released", theta, group)
    return model


# Means within 6 Monte Carlo standard errors, seeded.
def test_nuts_agrees_with_the_exact_posterior():
    group = a_group("independent", draws=2)
    table = pd.DataFrame({"x": X[:, 1]}, index=AREA)
    exact = release_posterior(group, "~ x", table, prior=pm.HalfNormal.dist(0.1), draws=1)
    summary = containers.read_group(exact, "posterior_summary")
    with fay_herriot_on(group):
        fit = pm.sample(
            2000,
            tune=1000,
            chains=2,
            cores=1,
            target_accept=0.95,
            random_seed=7,
            progressbar=False,
            compute_convergence_checks=False,
        )
        predicted = pm.sample_posterior_predictive(fit, progressbar=False, random_seed=1)
    posterior = containers.read_group(fit, "posterior")
    ess = containers.as_dataset(az.ess(posterior[["theta", "sigma_u"]]))
    for name in ("theta", "sigma_u"):
        sd = summary[f"{name}_sd"]
        error = np.abs(posterior[name].mean(("chain", "draw")) - summary[f"{name}_mean"])
        assert (error < 6 * sd / np.sqrt(ess[name])).all()
        ratio = posterior[name].std(("chain", "draw")) / sd
        assert (np.abs(ratio - 1) < 8 / np.sqrt(ess[name])).all()
    # A release of a new survey: its mean is K theta.
    replicated = containers.read_group(predicted, "posterior_predictive")["released"]
    assert replicated.dims == ("chain", "draw", "area")
    release = read_information(group)
    centre = release.K.times(posterior["theta"].values.reshape(-1, 7))
    left = replicated.values.reshape(-1, 7) - centre
    K = release.K.dense()
    law = K + (K * np.nan_to_num(D)) @ K
    error = np.sqrt(np.diag(law) / len(left))
    assert (np.abs(left.mean(axis=0)) <= 6 * error).all()
    ratio = left[:, TOLD].var(axis=0) / np.diag(law)[TOLD]
    assert (np.abs(ratio - 1) < 6 * np.sqrt(2 / len(left))).all()


@pytest.mark.parametrize("labels", [AREA[:3], ["A", *AREA[1:]]])
def test_areas_of_the_release_that_theta_lacks_are_refused(labels):
    with pytest.raises(ValueError, match=r"theta lacks .* areas of the release"):
        log_density(a_group("joint"), labels, np.zeros(len(labels)))


def test_without_labels_the_number_of_areas_must_agree():
    with pm.Model() as model:
        released_likelihood("released", pm.Normal("theta", shape=7), a_group("joint"))
        with pytest.raises(ValueError, match="5 entries, the release 7 areas"):
            released_likelihood("again", pm.Normal("five", shape=5), a_group("joint"))
        with pytest.raises(ValueError, match="vector of area means"):
            released_likelihood("again", pm.Normal("one"), a_group("joint"))
    assert list(model.coords["released_area"]) == AREA
    with pytest.raises(TypeError):
        released_likelihood("released", pt.vector(), a_group("joint"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noisy_direct_estimates_are_the_inverse(mechanism):
    release = read_information(a_group(mechanism, draws=2))
    found = noisy_direct(a_group(mechanism, draws=2))
    covariance = np.linalg.inv(release.K.dense()[np.ix_(TOLD, TOLD)])
    shared = found["noise_shared"].values[TOLD]
    got = (
        np.diag(found["noise_own"].values[TOLD]) + (shared * found["noise_sign"].values) @ shared.T
    )
    size = np.abs(covariance).max()
    np.testing.assert_allclose(got, covariance, atol=1e-9 * size)
    np.testing.assert_allclose(found["noise_variance"][TOLD], np.diag(covariance), rtol=1e-7)
    estimate = covariance @ release.h[TOLD]
    np.testing.assert_allclose(found["estimate"][TOLD], estimate, rtol=1e-7, atol=1e-9)
    total = D[TOLD] + np.diag(covariance)
    np.testing.assert_allclose(found["variance"][TOLD], total, rtol=1e-7)
    assert np.isnan(found["estimate"][5]) and np.isnan(found["noise_variance"][5])


def test_noisy_direct_returns_what_private_direct_made():
    direct = a_group("direct")[["sampling_variance"]].rename(sampling_variance="variance")
    direct = direct.drop_attrs().assign(
        estimate=("area", np.where(np.isnan(D), np.nan, 0.2)),
        sensitivity=("area", np.where(np.isnan(D), 0.0, 0.02)),
    )
    direct.attrs["bounds"] = [0, 1]
    noisy = private_direct(direct, rho=0.1)
    found = noisy_direct(noisy)
    for name in ("estimate", "noise_variance", "variance"):
        np.testing.assert_allclose(found[name], noisy[name], rtol=1e-10)
    assert found.attrs["post_processing"] == INSIDE
    table = found[["estimate", "variance"]].to_dataframe()
    assert list(table.index) == AREA


def test_a_release_of_coefficients_alone_has_no_noisy_direct_estimates():
    with pytest.raises(ValueError, match=r"in 6 areas .* release_posterior takes it"):
        noisy_direct(a_group("joint", A0=0.0))
