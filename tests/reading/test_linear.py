"""Releases of many linear-Gaussian models against textbook conditioning in dense NumPy."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
import xarray as xr
from factories.linear_models import blocks, condition, condition_jointly, priced_as, same

from pymc_dp import NotLinearGaussianError, PrivateRelease, fay_herriot, read_public, write_public
from pymc_dp import containers as io
from pymc_dp.audit import audit_one_release
from pymc_dp.mechanisms.linear import LinearLaw
from pymc_dp.posterior.fay_herriot import fay_herriot_posterior
from pymc_dp.reading.linear import read_linear
from pymc_dp.reading.read import LinearReading, read_model
from pymc_dp.reading.symbolic import symbolic_model

M = 12
RNG = np.random.default_rng(20)
AREA = [f"area {i}" for i in range(M)]
X = np.column_stack([np.ones(M), RNG.normal(size=M)])
D = 10.0 ** RNG.uniform(-3, -1, M)
Y = np.round(RNG.uniform(0.1, 0.9, M), 6)
S = RNG.uniform(0.01, 0.05, M)
EYE = np.eye(M)
# A ring with chords: connected, no islands.
W = np.zeros((M, M))
for _i in range(M):
    for _j in {(_i + 1) % M, (_i + 5) % M}:
        W[_i, _j] = W[_j, _i] = 1.0
LAPLACIAN = np.diag(W.sum(axis=0)) - W
SIMULATED = 4000


def bounded(values, dims=None, coords=None, bounds=(0.0, 1.0)):
    """Sensitivities with a declared range, which makes the allowance for rounding tiny."""
    return xr.DataArray(values, dims=dims, coords=coords, attrs={"bounds": bounds})


def areas(values=S, bounds=(0.0, 1.0)):
    return bounded(values, ["area"], {"area": AREA[: len(values)]}, bounds)


def direct(values=None):
    return pm.Data("direct", Y if values is None else values)


def flat_mean():
    return X @ pm.Flat("beta", shape=2)


def check(model, want, y, changes, sensitivity, folder, *, target="theta", observed=None):
    """Every figure, the simulated moments, the draw and the file of a release."""
    options = {"target": target, "observed": observed}
    release = PrivateRelease(model, sensitivity, **options)
    guarantee = release.guarantee
    same(guarantee["posterior_sd"].values, want.sd)
    by_area = "rho_respondent" in guarantee
    suffix = "" if by_area else "_record"
    joint, independent = want.joint(changes), want.independent(changes)
    index = getattr(release._parts.read, "index", None)
    names = ("rho_respondent" if by_area else "rho_record", "rho_independent", "rho_unshrunk")
    figures = [guarantee[n if n in guarantee else n + suffix].values for n in names]
    propagation = release.propagation().values
    if by_area and isinstance(release._parts.read, LinearReading):
        elsewhere = np.setdiff1d(np.arange(propagation.shape[0]), index)
        assert all((values[elsewhere] == 0).all() for values in (*figures, propagation.T))
        figures = [values[index] for values in figures]
        propagation = propagation[:, index]
    same(propagation, want.propagation)
    for got, exact in zip(figures, (joint, independent, want.unshrunk(changes)), strict=True):
        priced_as(got, exact)
    priced_as(guarantee["rho_area_ideal"].values, want.area_ideal(changes))
    priced_as(float(guarantee["rho"]), joint.max())
    centre, sd = want.mean(y), want.sd
    moments_are(release, centre, want.covariance)
    drawn = io.read_group(release.draw(), "private_release")
    # A standard normal passes 8 once in 10^15 draws; the publishing grid is far finer than sd.
    assert (np.abs(drawn["theta"].values[0, 0] - centre) <= 8 * sd).all()
    assert not any(drawn[name].isnull().any() for name in drawn.data_vars)
    path = folder / "release.nc"
    write_public(drawn, path, conditional=True)
    public = io.read_group(read_public(path), "private_release")
    np.testing.assert_array_equal(public["theta"], drawn["theta"])
    return release


def moments_are(release, centre, C):
    """Mean and covariance of simulated draws, to six and a half of their standard errors."""
    simulated = release.simulate(SIMULATED, random_seed=1).values[0]
    sd = np.sqrt(np.diag(C))
    assert (np.abs(simulated.mean(axis=0) - centre) <= 6.5 * sd / np.sqrt(SIMULATED)).all()
    error = np.sqrt((np.outer(sd, sd) ** 2 + C**2) / SIMULATED)
    assert (np.abs(np.cov(simulated.T, ddof=0).reshape(C.shape) - C) <= 6.5 * error).all()


# --- Fay-Herriot through the general way, on published data --------------------------------------


def milk(data):
    d = pd.read_csv(data / "fh_milk.csv")
    group = (d["MajorArea"].to_numpy()[:, None] == np.arange(1, 5)).astype(float)
    return d["yi"].to_numpy(), d["SD"].to_numpy() ** 2, group, 0.14


def grapes(data):
    d = pd.read_csv(data / "fh_grapes.csv")
    design = np.column_stack([np.ones(len(d)), d["area"], d["workdays"]])
    return d["grapehect"].to_numpy(), d["var"].to_numpy(), design, 8.0


def king_county(data):
    d = pd.read_csv(data / "brfss_king_county_area_table.csv")
    d = d[(d["domain"] == "hra") & (d["outcome"] == "smoker")]
    return d["hajek"].to_numpy(), d["var_lin"].to_numpy(), np.ones((len(d), 1)), 0.04


def provinces(data):
    d = pd.read_csv(data / "sae_incomedata_area_table.csv")
    return d["hajek"].to_numpy(), d["var_lin"].to_numpy(), np.ones((len(d), 1)), 0.07


@pytest.mark.parametrize("survey", [milk, grapes, king_county, provinces])
@pytest.mark.parametrize("form", ["centered", "noncentered", "auto"])
def test_the_general_way_agrees_with_the_closed_form_of_fay_herriot(shared, survey, form):
    y, variance, design, sigma_u = survey(shared / "data")
    area = [f"a{i}" for i in range(y.size)]
    table = xr.Dataset(
        {"estimate": ("area", y), "variance": ("area", variance)}, coords={"area": area}
    )
    columns = [f"x{k}" for k in range(design.shape[1])]
    built = fay_herriot(
        table,
        "~ 0 + " + " + ".join(columns),
        pd.DataFrame(design, index=area, columns=columns),
        sigma_u=sigma_u,
        parametrization=form,
    )
    symbolic = symbolic_model(built, "theta")
    law = LinearLaw(read_linear(symbolic))
    want = fay_herriot_posterior(sigma_u**2, 1 / variance, design)
    # 1e-10, as for the factored way: derivatives, not differences, and one Cholesky factor.
    same(np.sqrt(law.variance), np.sqrt(want.variance), rtol=1e-10)
    same(law.propagation(), want.propagation(), rtol=1e-10)
    same(law.mean(symbolic.values), want.mean(y), rtol=1e-10)


def test_more_coefficients_than_the_factored_way_takes(tmp_path):
    m, p = 100, 70
    rng = np.random.default_rng(2)
    design = rng.normal(size=(m, p))
    variance, y = rng.uniform(0.01, 0.1, m), rng.uniform(0, 1, m).round(6)
    with pm.Model(coords={"area": range(m)}) as model:
        theta = pm.Normal("theta", design @ pm.Flat("beta", shape=p), 0.2, dims="area")
        pm.Normal("y", theta, np.sqrt(variance), observed=direct(y), dims="area")
    assert isinstance(read_model(model), LinearReading)
    post = fay_herriot_posterior(0.04, 1 / variance, design)
    P = blocks(np.zeros((p, p)), np.eye(m) / 0.04)
    T = np.column_stack([design, np.eye(m)])
    want = condition(P, T, np.diag(variance), T)
    same(want.propagation, post.propagation())
    label = {"area": [str(i) for i in range(m)]}
    s = rng.uniform(0.01, 0.05, m)
    release = check(model, want, y, np.diag(s), bounded(s, ["area"], label), tmp_path)
    assert release.guarantee["theta_smoothed_sd"].dims == ("area",)


def observe(theta, values=None, scale=None):
    """Direct estimates of every area."""
    scale = np.sqrt(D) if scale is None else scale
    return pm.Normal("y", theta, scale, observed=direct(values), dims="area")


def with_areas():
    return pm.Model(coords={"area": AREA})


def test_normal_prior_of_the_coefficients(tmp_path):
    with with_areas() as model:
        beta = pm.Normal("beta", [0.3, -0.1], [0.5, 0.2], shape=2)
        pm.Normal("own", 0.0, 0.1, shape=(2, M // 2))
        own = model["own"].ravel()
        observe(pm.Deterministic("theta", X @ beta + own, dims="area"))
    T = np.column_stack([X, EYE])
    V = blocks(np.diag([0.25, 0.04]), 0.01 * EYE)
    mean = np.concatenate([[0.3, -0.1], np.zeros(M)])
    want = condition_jointly(V, T, np.diag(D), T, prior_mean=mean)
    check(model, want, Y, np.diag(S), areas(), tmp_path)


def test_nested_region_effects(tmp_path):
    m, regions, divisions = 140, 70, 7
    rng = np.random.default_rng(3)
    region, division = np.arange(m) // 2, np.arange(regions) // 10
    variance, y = rng.uniform(0.001, 0.02, m), rng.uniform(0, 1, m).round(6)
    names = [f"r{i}" for i in range(m)]
    with pm.Model(coords={"area": names}) as model:
        level = pm.Normal("level", 0.5, 1.0)
        wide = pm.Normal("division", 0.0, 0.2, shape=divisions)
        within = pm.Normal("region", wide[division], 0.1, shape=regions)
        theta = pm.Normal("theta", level + within[region], 0.05, dims="area")
        pm.Normal("y", theta, np.sqrt(variance), observed=direct(y), dims="area")
    to_region, to_division = np.eye(regions)[region], np.eye(divisions)[division]
    V = (
        np.ones((m, m))
        + 0.04 * to_region @ to_division @ to_division.T @ to_region.T
        + 0.01 * to_region @ to_region.T
        + 0.0025 * np.eye(m)
    )
    one = np.eye(m)
    want = condition_jointly(V, one, np.diag(variance), one, prior_mean=np.full(m, 0.5))
    s = np.full(m, 0.02)
    check(model, want, y, np.diag(s), bounded(s, ["area"], {"area": names}), tmp_path)


# --- spatial effects -----------------------------------------------------------------------------


def icar():
    sigma, spread = 0.1, 0.01
    phi = pm.ICAR("phi", W=W, sigma=sigma, zero_sum_stdev=spread)
    observe(pm.Deterministic("theta", flat_mean() + phi, dims="area"))
    P = LAPLACIAN / sigma**2 + np.ones((M, M)) / (spread * M) ** 2
    return blocks(np.zeros((2, 2)), P), np.column_stack([X, EYE])


def car(matrix):
    phi = pm.CAR("phi", np.zeros(M), matrix, 0.9, 50.0)
    observe(pm.Deterministic("theta", flat_mean() + phi, dims="area"))
    P = 50.0 * (np.diag(W.sum(axis=0)) - 0.9 * W)
    return blocks(np.zeros((2, 2)), P), np.column_stack([X, EYE])


def car_dense():
    return car(W)


def car_sparse():
    return car(sp.csc_matrix(W))


def car_target_itself():
    theta = pm.CAR("theta", flat_mean(), W, 0.5, 40.0, dims="area")
    observe(theta)
    P = 40.0 * (np.diag(W.sum(axis=0)) - 0.5 * W)
    # Latents beta and theta; theta is centred on X beta.
    A = np.column_stack([-X, EYE])
    return A.T @ P @ A, np.column_stack([np.zeros((M, 2)), EYE])


def bym2():
    rho, scale, sigma = 0.7, 1.3, 0.15
    phi, own = pm.ICAR("phi", W=W, zero_sum_stdev=0.01), pm.Normal("own", shape=M)
    mixed = np.sqrt(rho / scale) * phi + np.sqrt(1 - rho) * own
    observe(pm.Deterministic("theta", flat_mean() + sigma * mixed, dims="area"))
    P = blocks(np.zeros((2, 2)), LAPLACIAN + np.ones((M, M)) / (0.01 * M) ** 2, EYE)
    return P, np.column_stack([X, sigma * np.sqrt(rho / scale) * EYE, sigma * np.sqrt(0.3) * EYE])


def sar():
    A = EYE - 0.4 * W / W.sum(axis=1, keepdims=True)
    theta = pm.MvNormal("theta", flat_mean(), tau=A.T @ A / 0.02, dims="area")
    observe(theta)
    B = np.column_stack([-X, EYE])
    return B.T @ (A.T @ A / 0.02) @ B, np.column_stack([np.zeros((M, 2)), EYE])


def benchmarked():
    share = np.arange(1.0, M + 1) / np.arange(1.0, M + 1).sum()
    theta = pm.Normal("theta", flat_mean(), 0.1, dims="area")
    observe(theta)
    pm.Potential("benchmark", -0.5 * ((share * theta).sum() - 0.45) ** 2 / 0.01**2)
    A = np.column_stack([-X, EYE])
    pull = np.concatenate([np.zeros(2), share])
    P = A.T @ A / 0.01 + np.outer(pull, pull) / 0.01**2
    # The benchmark is one more public observation of the latents: precision times its mean.
    mean = np.linalg.pinv(P) @ (pull * 0.45 / 0.01**2)
    return P, np.column_stack([np.zeros((M, 2)), EYE]), mean


def gaussian_process():
    """Areas on a line, a squared exponential kernel, and PyMC's jitter of a millionth."""
    at = np.linspace(0.0, 3.0, M)
    process = pm.gp.Latent(cov_func=0.09 * pm.gp.cov.ExpQuad(1, ls=0.5))
    f = process.prior("f", X=at[:, None])
    observe(pm.Deterministic("theta", flat_mean() + f, dims="area"))
    V = 0.09 * np.exp(-0.5 * np.subtract.outer(at, at) ** 2 / 0.25) + 1e-6 * EYE
    L = np.linalg.cholesky(V)
    return blocks(np.zeros((2, 2)), EYE), np.column_stack([X, L])


FIELDS = [gaussian_process, icar, car_dense, car_sparse, car_target_itself, bym2, sar, benchmarked]


# ICAR's soft sum to zero is 10^4 stiffer than the rest: its dense inverse loses digits, not ours.
@pytest.mark.parametrize("build", FIELDS, ids=lambda f: f.__name__)
def test_effects_across_areas(build, tmp_path):
    with with_areas() as model:
        P, T, *mean = build()
    want = condition(P, T, np.diag(D), T, prior_mean=mean[0] if mean else None)
    check(model, want, Y, np.diag(S), areas(), tmp_path)


def test_noise_independent_by_area(tmp_path):
    with with_areas() as model:
        P, T = car_dense()
    want = condition(P, T, np.diag(D), T)
    release = PrivateRelease(model, areas(), mechanism="independent")
    guarantee = release.guarantee
    changes = np.diag(S)
    same(guarantee["posterior_sd"].values, want.sd)
    # What a record of an area pays under either mechanism, and what is paid for this release.
    priced_as(guarantee["rho_respondent"].values, want.joint(changes))
    priced_as(guarantee["rho_independent"].values, want.independent(changes))
    priced_as(float(guarantee["rho"]), want.independent(changes).max())
    priced_as(guarantee["rho_area"].values, want.area_ideal(changes))
    assert "theta_smoothed_sd" not in guarantee
    moments_are(release, want.mean(Y), np.diag(want.sd**2))
    drawn = io.read_group(release.draw(), "private_release")
    assert (np.abs(drawn["theta"].values[0, 0] - want.mean(Y)) <= 8 * want.sd).all()
    write_public(drawn, tmp_path / "release.nc", conditional=True)


def test_zero_sum_effects_of_regions(tmp_path):
    region = np.arange(M) % 4
    with with_areas() as model:
        effect = pm.ZeroSumNormal("effect", 0.3, shape=4)
        own = pm.Normal("own", 0.0, 0.05, dims="area")
        mean = pm.Normal("level", 0.4, 0.5)
        observe(pm.Deterministic("theta", mean + effect[region] + own, dims="area"))
    sums = np.eye(4)[region]
    V = 0.25 + 0.09 * sums @ (np.eye(4) - 0.25) @ sums.T + 0.0025 * EYE
    want = condition_jointly(V, EYE, np.diag(D), EYE, prior_mean=np.full(M, 0.4))
    check(model, want, Y, np.diag(S), areas(), tmp_path)


# --- areas by years, several outcomes, units -----------------------------------------------------

YEARS = 5


def table(rng, m=6):
    return rng.uniform(0.001, 0.02, (m, YEARS)), rng.uniform(0, 1, (m, YEARS)).round(6)


def walk(first, step, slope):
    """Covariance of one series: ``x_0 ~ N(0, first^2)``, ``x_t = slope x_(t-1) + step e_t``."""
    move = np.eye(YEARS) - slope * np.eye(YEARS, k=-1)
    inverse = np.linalg.inv(move)
    return inverse @ np.diag([first**2, *[step**2] * (YEARS - 1)]) @ inverse.T


def random_walk(mean):
    start = pm.Normal.dist(0.0, 0.3)
    pm.GaussianRandomWalk("f", sigma=0.1, init_dist=start, shape=(6, YEARS))
    return mean, walk(0.3, 0.1, 1.0)


def autoregression(mean):
    start = pm.Normal.dist(0.0, 0.2, shape=(6, 1))
    pm.AR("f", rho=[0.6], sigma=0.1, init_dist=start, shape=(6, YEARS))
    return mean, walk(0.2, 0.1, 0.6)


@pytest.mark.parametrize("series", [random_walk, autoregression], ids=lambda f: f.__name__)
def test_series_over_years(series, tmp_path):
    m = 6
    variance, y = table(np.random.default_rng(5), m)
    names, years = AREA[:m], [str(2010 + t) for t in range(YEARS)]
    with pm.Model(coords={"area": names, "year": years}) as model:
        level = pm.Normal("level", 0.5, 0.4, dims="area")
        _, V = series(level)
        theta = pm.Deterministic("theta", level[:, None] + model["f"], dims=("area", "year"))
        pm.Normal("y", theta, np.sqrt(variance), observed=direct(y), dims=("area", "year"))
    one = np.eye(m * YEARS)
    prior = np.kron(np.eye(m), V + 0.16)
    want = condition_jointly(
        prior, one, np.diag(variance.ravel()), one, prior_mean=np.full(m * YEARS, 0.5)
    )
    s = np.linspace(0.01, 0.05, m * YEARS).reshape(m, YEARS)
    given = bounded(s, ["area", "year"], {"area": names, "year": years})
    # Labels in another order, dims too.
    given = given[::-1, ::-1].transpose("year", "area")
    release = check(model, want, y, np.diag(s.ravel()), given, tmp_path)
    assert list(release.guarantee["area"].values[:2]) == ["area 0 2010", "area 0 2011"]


def test_one_person_in_every_year_is_a_change_matrix():
    m = 4
    variance, y = table(np.random.default_rng(6), m)
    with pm.Model() as model:
        theta = pm.GaussianRandomWalk(
            "theta", sigma=0.1, init_dist=pm.Normal.dist(0.5, 0.3), shape=(m, YEARS)
        )
        pm.Normal("y", theta, np.sqrt(variance), observed=direct(y))
    one = np.eye(m * YEARS)
    want = condition_jointly(
        np.kron(np.eye(m), walk(0.3, 0.1, 1.0)),
        one,
        np.diag(variance.ravel()),
        one,
        prior_mean=np.full(m * YEARS, 0.5),
    )
    changes = np.kron(np.eye(m), np.linspace(0.01, 0.03, YEARS)[:, None])
    given = bounded(changes.reshape(m, YEARS, m), ["a", "b", "kind"])
    with pytest.raises(ValueError, match="the observed variable none"):
        PrivateRelease(model, given)
    plain = PrivateRelease(model, given.values).guarantee["rho_record"].values
    # Without a declared range rounding is allowed for generously: dearer, by under a thousandth.
    assert (plain >= want.joint(changes)).all()
    np.testing.assert_allclose(plain, want.joint(changes), rtol=1e-3)


def test_two_outcomes_of_an_area(tmp_path):
    m = 7
    rng = np.random.default_rng(7)
    names, outcomes = AREA[:m], ["poor", "ill"]
    V = np.array([[0.02, 0.012], [0.012, 0.03]])
    design = np.column_stack([np.ones(m), rng.normal(size=m)])
    scale = rng.uniform(0.03, 0.2, (m, 2))
    share = rng.uniform(-0.6, 0.6, m)
    C = np.array(
        [[[a * a, r * a * b], [r * a * b, b * b]] for (a, b), r in zip(scale, share, strict=True)]
    )
    y = rng.uniform(0, 1, (m, 2)).round(6)
    with pm.Model(coords={"area": names, "outcome": outcomes}) as model:
        beta = pm.Flat("beta", shape=(2, 2))
        theta = pm.MvNormal("theta", design @ beta, cov=V, dims=("area", "outcome"))
        pm.MvNormal("y", theta, cov=C, observed=direct(y), dims=("area", "outcome"))
    one = np.eye(2 * m)
    A = np.column_stack([-np.kron(design, np.eye(2)), one])
    P = A.T @ np.kron(np.eye(m), np.linalg.inv(V)) @ A
    T = np.column_stack([np.zeros((2 * m, 4)), one])
    want = condition(P, T, blocks(*C), T)
    # A person answers both questions, in one area.
    each = rng.uniform(0.01, 0.05, (m, 2))
    changes = np.zeros((2 * m, m))
    for i in range(m):
        changes[2 * i : 2 * i + 2, i] = each[i]
    people = [f"a person of {name}" for name in names]
    given = bounded(
        changes.reshape(m, 2, m),
        ["area", "outcome", "person"],
        {"area": names, "outcome": outcomes, "person": people},
    )
    release = check(model, want, y, changes, given, tmp_path)
    assert list(release.guarantee["record"].values) == people


def test_masked_observations_have_no_record():
    missing = np.isin(np.arange(M), [2, 7])
    with with_areas() as model:
        theta = pm.CAR("theta", np.full(M, 0.5), W, 0.8, 40.0, dims="area")
        with pytest.warns(UserWarning, match="imputed"):
            pm.Normal(
                "y",
                theta,
                np.sqrt(D),
                observed=np.where(missing, np.nan, Y),
                dims="area",
            )
    V = np.linalg.inv(40.0 * (np.diag(W.sum(axis=0)) - 0.8 * W))
    H = EYE[~missing]
    want = condition_jointly(V, H, np.diag(D[~missing]), EYE, prior_mean=np.full(M, 0.5))
    s = S[~missing]
    with pytest.warns(UserWarning, match="compile cache"):
        release = PrivateRelease(model, areas())
    guarantee = release.guarantee
    same(guarantee["posterior_sd"].values, want.sd)
    same(release.propagation().values[:, ~missing], want.propagation)
    priced_as(guarantee["rho_respondent"].values[~missing], want.joint(np.diag(s)))
    assert (guarantee["rho_respondent"].values[missing] == 0).all()
    assert (guarantee["sensitivity"].values[missing] == 0).all()
    assert np.isfinite(io.read_group(release.draw(), "private_release")["theta"]).all()


def test_several_observations_of_an_area():
    """Two surveys of some areas, none of others: observations are no direct estimates."""
    place = np.array([0, 0, 1, 2, 3, 3, 5, 6, 7, 8, 8, 8])
    with with_areas() as model:
        theta = pm.Normal("theta", flat_mean(), 0.1, dims="area")
        pm.Normal("y", theta[place], np.sqrt(D), observed=direct())
    A = np.column_stack([-X, EYE])
    T = np.column_stack([np.zeros((M, 2)), EYE])
    want = condition(A.T @ A / 0.01, T[place], np.diag(D), T)
    given = bounded(S, ["observation"])
    with pytest.raises(ValueError, match="sensitivity has dims"):
        PrivateRelease(model, given)
    release = PrivateRelease(model, S)
    assert release.propagation().dims == ("area", "record")
    same(release.propagation().values, want.propagation)
    got = release.guarantee["rho_record"].values
    assert (got >= want.joint(np.diag(S))).all()
    np.testing.assert_allclose(got, want.joint(np.diag(S)), rtol=1e-3)  # no declared range
    assert "theta_smoothed_sd" not in release.guarantee


def test_observations_in_another_order_are_joined_by_area(tmp_path):
    order = np.array([7, 3, 0, 11, 5, 9])
    with with_areas() as model:
        theta = pm.CAR("theta", np.full(M, 0.5), W, 0.8, 40.0, dims="area")
        pm.Normal("y", theta[order], np.sqrt(D[order]), observed=direct(Y[order]))
    V = np.linalg.inv(40.0 * (np.diag(W.sum(axis=0)) - 0.8 * W))
    want = condition_jointly(V, EYE[order], np.diag(D[order]), EYE, prior_mean=np.full(M, 0.5))
    release = check(model, want, Y[order], np.diag(S[order]), areas()[::-1], tmp_path)
    assert list(release._parts.read.direct) == list(order)


def test_battese_harter_fuller(shared, tmp_path):
    """Unit outcomes; a segment moves its own value only, and several counties' means."""
    data = shared / "data"
    units, counties = (
        pd.read_csv(data / f"cornsoybean_{name}.csv") for name in ("segments", "county_means")
    )
    county = units["County"].to_numpy() - 1
    sigma_v, sigma_e, scale = 12.0, 12.5, 100.0
    y = units["CornHec"].to_numpy()
    design = np.column_stack(
        [np.ones(len(y)), units["CornPix"] / scale, units["SoyBeansPix"] / scale]
    )
    means = np.column_stack(
        [
            np.ones(12),
            counties["MeanCornPixPerSeg"] / scale,
            counties["MeanSoyBeansPixPerSeg"] / scale,
        ]
    )
    names = counties["CountyName"].to_list()
    with pm.Model(coords={"county": names, "segment": range(len(y))}) as model:
        beta = pm.Flat("beta", shape=3)
        v = pm.Normal("v", 0.0, sigma_v, dims="county")
        pm.Normal("y", design @ beta + v[county], sigma_e, observed=direct(y), dims="segment")
        pm.Deterministic("theta", means @ beta + v, dims="county")
    H = np.column_stack([design, np.eye(12)[county]])
    P = blocks(np.zeros((3, 3)), np.eye(12) / sigma_v**2)
    R = sigma_e**2 * np.eye(len(y))
    want = condition(P, H, R, np.column_stack([means, np.eye(12)]))
    s = np.full(len(y), 10.0)
    given = bounded(
        s, ["segment"], {"segment": [str(i) for i in range(len(y))]}, bounds=(0.0, 250.0)
    )
    release = check(model, want, y, np.diag(s), given, tmp_path)
    assert release.guarantee["rho_record"].sizes == {"record": 37}
    assert list(release.guarantee["area"].values) == names


# --- targets that are functions of the areas, and more than one observed variable ----------------

REGION = np.eye(3)[np.arange(M) // 4].T / 4
DIFFERENCE = EYE[1:] - EYE[:-1]
WITH_MEAN = np.vstack([EYE, np.full((1, M), 1 / M)])


@pytest.mark.parametrize(
    "weights", [REGION, DIFFERENCE, WITH_MEAN], ids=["regions", "differences", "areas and mean"]
)
def test_linear_targets(weights, tmp_path):
    with with_areas() as model:
        own = pm.Normal("own", flat_mean(), 0.1, dims="area")
        observe(own)
        pm.Deterministic("theta", pt.as_tensor(weights) @ own)
    A = np.column_stack([-X, EYE])
    T = np.column_stack([np.zeros((M, 2)), EYE])
    want = condition(A.T @ A / 0.01, T, np.diag(D), weights @ T)
    given = areas()
    check(model, want, Y, np.diag(S), given, tmp_path)


def test_data_that_the_target_is_predicted_from():
    """The data stand above the target in the model: nothing is a direct estimate of anything."""
    with with_areas() as model:
        level = pm.Normal("level", 0.5, 0.2)
        y = pm.Normal("y", level, np.sqrt(D + 0.01), observed=direct(), dims="area")
        pm.Normal("theta", 0.5 * y + 0.2, 0.1, dims="area")
    release = PrivateRelease(model, areas())
    assert release._parts.read.direct is None
    guarantee = release.guarantee
    same(guarantee["posterior_sd"].values, np.full(M, 0.1))
    same(release.propagation().values, 0.5 * EYE)
    priced_as(guarantee["rho_respondent"].values, (0.5 * S / 0.1) ** 2 / 2)
    moments_are(release, 0.5 * Y + 0.2, 0.01 * EYE)
    assert "theta_smoothed_sd" not in guarantee


def test_the_other_observed_variable_is_public(tmp_path):
    census = np.random.default_rng(8).uniform(0, 1, M)
    with with_areas() as model:
        theta = pm.CAR("theta", np.full(M, 0.5), W, 0.7, 30.0, dims="area")
        observe(theta)
        pm.Normal("census", theta - 0.02, 0.1, observed=pm.Data("counted", census), dims="area")
    V = np.linalg.inv(30.0 * (np.diag(W.sum(axis=0)) - 0.7 * W))
    # Condition on the public variable first: what is left is the prior of the release.
    first = condition_jointly(V, EYE, 0.01 * EYE, EYE, prior_mean=np.full(M, 0.5))
    want = condition_jointly(
        first.covariance, EYE, np.diag(D), EYE, prior_mean=first.mean(census + 0.02)
    )
    release = check(model, want, Y, np.diag(S), areas(), tmp_path, observed="y")
    assert release._facts["observed"] == "y"


def test_what_only_fay_herriot_models_offer_is_refused():
    with with_areas() as model:
        observe(pm.CAR("theta", np.full(M, 0.5), W, 0.7, 30.0, dims="area"))
    release = PrivateRelease(model, areas())
    with pytest.raises(ValueError, match="calibrate takes Fay-Herriot models"):
        release.calibrate(rho=0.01)
    with pytest.raises(ValueError, match="audits take Fay-Herriot models"):
        audit_one_release(release)


# --- published data ------------------------------------------------------------------------------


def test_grapes_with_their_neighbours(shared, tmp_path):
    """A simultaneous autoregression over the 274 municipalities' proximity matrix."""
    data = shared / "data"
    d = pd.read_csv(data / "fh_grapes.csv")
    near = pd.read_csv(data / "fh_grapes_proximity_sparse.csv.gz")
    m = len(d)
    proximity = np.zeros((m, m))
    proximity[near["i"] - 1, near["j"] - 1] = near["w"]
    design = np.column_stack([np.ones(m), d["area"] / 100, d["workdays"] / 100])
    y, variance = d["grapehect"].to_numpy(), d["var"].to_numpy()
    A = np.eye(m) - 0.6 * proximity
    tau = A.T @ A / 70.0
    names = [str(i) for i in range(m)]
    with pm.Model(coords={"area": names}) as model:
        beta = pm.Flat("beta", shape=3)
        v = pm.MvNormal("v", np.zeros(m), tau=tau, dims="area")
        theta = pm.Deterministic("theta", design @ beta + v, dims="area")
        pm.Normal("y", theta, np.sqrt(variance), observed=direct(y), dims="area")
    T = np.column_stack([design, np.eye(m)])
    want = condition(blocks(np.zeros((3, 3)), tau), T, np.diag(variance), T)
    s = np.linspace(0.5, 3.0, m)
    given = bounded(s, ["area"], {"area": names}, bounds=(0.0, 400.0))
    check(model, want, y, np.diag(s), given, tmp_path)


def test_areas_over_time(shared, tmp_path):
    """Area effects and an autoregression within each area, as in the Rao-Yu model."""
    d = pd.read_csv(shared / "data" / "fh_spacetime.csv")
    m, T = d["Area"].nunique(), 3
    y, variance = (d[c].to_numpy().reshape(m, T) for c in ("Y", "Var"))
    design = np.column_stack([np.ones(m * T), d["X1"], d["X2"]])
    slope, spread_area, spread_time = 0.5, 0.05, 0.04
    stationary = spread_time / np.sqrt(1 - slope**2)
    names, times = [str(a) for a in d["Area"].unique()], ["1", "2", "3"]
    with pm.Model(coords={"area": names, "time": times}) as model:
        beta = pm.Flat("beta", shape=3)
        u = pm.Normal("u", 0.0, spread_area, dims="area")
        start = pm.Normal.dist(0.0, stationary, shape=(m, 1))
        e = pm.AR("e", rho=[slope], sigma=spread_time, init_dist=start, dims=("area", "time"))
        fit = (design @ beta).reshape((m, T))
        theta = pm.Deterministic("theta", fit + u[:, None] + e, dims=("area", "time"))
        pm.Normal("y", theta, np.sqrt(variance), observed=direct(y), dims=("area", "time"))
    lag = np.abs(np.subtract.outer(range(T), range(T)))
    V = stationary**2 * slope**lag
    P = blocks(np.zeros((3, 3)), np.eye(m) / spread_area**2, np.kron(np.eye(m), np.linalg.inv(V)))
    H = np.column_stack([design, np.kron(np.eye(m), np.ones((T, 1))), np.eye(m * T)])
    want = condition(P, H, np.diag(variance.ravel()), H)
    # The same people every year: a person of an area moves all its years.
    changes = np.kron(np.eye(m), np.full((T, 1), 0.01))
    given = bounded(
        changes.reshape(m, T, m),
        ["area", "time", "panel"],
        {"area": names, "time": times, "panel": names},
    )
    check(model, want, y, changes, given, tmp_path)


# --- smoothing once more -------------------------------------------------------------------------


def smoothing_case(place):
    """Direct estimates that are known to be a twentieth too large, of areas about a half."""
    with with_areas() as model:
        field = pm.CAR("field", np.zeros(M), W, 0.8, 40.0)
        theta = pm.Deterministic("theta", field + 0.5, dims="area")
        pm.Normal("y", theta[place] + 0.05, np.sqrt(D[place]), observed=direct(Y[place]))
    V = np.linalg.inv(40.0 * (np.diag(W.sum(axis=0)) - 0.8 * W))
    prior_mean = np.full(M, 0.5)
    post = condition_jointly(V, EYE[place], np.diag(D[place]), EYE, prior_mean=prior_mean)
    bias = post.propagation @ np.full(place.size, 0.05)
    return PrivateRelease(model, areas()), V, replace(post, constant=post.constant - bias)


@pytest.mark.parametrize("place", [np.arange(M), np.array([7, 3, 0, 11, 5, 9])], ids=["all", "six"])
def test_theta_given_the_release_is_what_conditioning_says(place):
    release, V, post = smoothing_case(place)
    # Covariance of (theta, theta*): theta* = Mean of theta given y, plus posterior noise.
    G = post.propagation
    spread = G @ (V[np.ix_(place, place)] + np.diag(D[place])) @ G.T + post.covariance
    cross = V[:, place] @ G.T
    back = np.linalg.solve(spread, cross.T).T
    sd = np.sqrt(np.diag(V - back @ cross.T))
    same(release.guarantee["theta_smoothed_sd"].values, sd)
    one = release.guarantee
    drawn = io.read_group(release.draw(draws=3), "private_release")
    for name in ("rho", "rho_respondent", "rho_independent", "rho_unshrunk", "rho_area_ideal"):
        np.testing.assert_allclose(drawn[name], 3 * one[name], rtol=1e-12)
    theta, smoothed = drawn["theta"].values[0], drawn["theta_smoothed"].values[0]
    want = 0.5 + (theta - 0.5) @ back.T
    # Both are published on a grid at most a hundredth of the smallest posterior sd.
    np.testing.assert_allclose(smoothed, want, atol=0.51 * 10.0**-release.specification.decimals)


def test_theta_given_the_release_by_simulation():
    place = np.array([7, 3, 0, 11, 5, 9])
    release, V, post = smoothing_case(place)
    n = 40_000
    rng = np.random.default_rng(9)
    theta = 0.5 + rng.normal(size=(n, M)) @ np.linalg.cholesky(V).T
    y = theta[:, place] + 0.05 + np.sqrt(D[place]) * rng.normal(size=(n, place.size))
    noise = rng.normal(size=(n, M)) @ np.linalg.cholesky(post.covariance).T
    mean, sd = release.specification.law.smoothed(y @ post.propagation.T + post.constant + noise)
    z = (theta - mean) / sd
    # Standard normal: five standard errors of a mean and of a variance.
    assert (np.abs(z.mean(axis=0)) < 5 / np.sqrt(n)).all()
    assert (np.abs(z.var(axis=0) - 1) < 5 * np.sqrt(2 / n)).all()


def test_a_person_in_several_areas_is_priced_by_a_change_matrix_in_a_fay_herriot_model() -> None:
    """Design 2.3: the largest over signs of d' D^-1 Sigma D^-1 d / 2, more than the areas' sum."""
    rng = np.random.default_rng(77)
    m = 6
    D, y = rng.uniform(0.5, 2.0, m), rng.normal(size=m)
    with pm.Model(coords={"area": range(m)}) as model:
        theta = pm.Normal("theta", pm.Flat("beta"), 0.7, dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", y), dims="area")
    moves = np.zeros((m, 2))
    moves[:3, 0], moves[3:, 1] = [0.1, 0.2, 0.15], [0.1, 0.1, 0.3]
    matrix = xr.DataArray(
        moves, dims=("area", "record"), coords={"area": range(m)}, attrs={"bounds": (-9.0, 9.0)}
    )
    got = PrivateRelease(model, matrix).guarantee["rho_record"].values
    post = fay_herriot_posterior(0.49, 1 / D, np.ones((m, 1)))
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=m)))
    for r in range(2):
        d = signs * moves[:, r] / D
        want = np.einsum("si,ij,sj->s", d, post.covariance(), d).max() / 2
        np.testing.assert_allclose(got[r], want, rtol=1e-8)
        apart = moves[:, r] ** 2 * post.variance / D**2 / 2
        assert got[r] > apart.sum()


def test_a_copy_of_the_data_within_a_larger_constant_is_refused() -> None:
    rng = np.random.default_rng(78)
    m = 6
    D, y = rng.uniform(0.5, 2.0, m), rng.normal(size=m)
    big = np.concatenate([y[::-1], np.zeros(4)])
    with pm.Model(coords={"area": range(m)}) as model:
        mean = pm.Flat("beta") + 0.3 * pt.as_tensor(big)[:m]
        theta = pm.Normal("theta", mean, 0.7, dims="area")
        pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", y), dims="area")
    with pytest.raises(NotLinearGaussianError, match="follows the observed"):
        PrivateRelease(model, 0.1)
