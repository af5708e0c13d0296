"""Probing, factors, prices and draws of large models, each against dense or exact arithmetic."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
import xarray as xr
from factories.linear_models import condition, priced_as, same
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.traversal import ancestors

from pymc_dp import PrivateRelease
from pymc_dp import containers as io
from pymc_dp.mechanisms import linear as linear_law
from pymc_dp.mechanisms.lattice import SPACING, UNIT
from pymc_dp.mechanisms.linear import LinearLaw
from pymc_dp.mechanisms.linear_draw import LatentPlan, TargetPlan, largest_norm
from pymc_dp.mechanisms.sensitivity import read_changes
from pymc_dp.posterior import sparse as precision_factor
from pymc_dp.posterior.sparse import DenseFactor, SparseFactor, exact_forward, factorise
from pymc_dp.reading.derivatives import without_constants
from pymc_dp.reading.linear import read_linear, recover
from pymc_dp.reading.symbolic import NotLinearGaussianError, symbolic_model

M = 14
RNG = np.random.default_rng(41)
AREA = [f"area {i}" for i in range(M)]
X = np.column_stack([np.ones(M), RNG.normal(size=M)])
D = 10.0 ** RNG.uniform(-3, -1, M)
Y = RNG.uniform(0.1, 0.9, M).round(6)
S = RNG.uniform(0.01, 0.05, M)
RING = np.roll(np.eye(M), 1, axis=0) + np.roll(np.eye(M), -1, axis=0)
PRIOR = 60.0 * (2 * np.eye(M) - 0.8 * RING)
SIMULATED = 4000

# --- a product, and the matrix behind it ---


class Counted:
    """A matrix known by its products only."""

    def __init__(self, matrix):
        self.matrix, self.products = sp.csr_array(matrix), 0

    def __call__(self, vector):
        self.products += 1
        return self.matrix @ vector


@st.composite
def structured(draw):
    """A symmetric block over more rows, with dense and empty columns and a dense block."""
    n, extra = draw(st.integers(1, 40)), draw(st.integers(0, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]))
    block = rng.normal(size=(n, n)) * (rng.uniform(size=(n, n)) < share)
    block = np.triu(block) + np.triu(block, 1).T
    dense = np.zeros(n, dtype=bool)
    dense[: draw(st.integers(0, min(3, n)))] = True
    rng.shuffle(dense)
    block[:, dense] = rng.normal(size=(n, dense.sum()))
    block[dense, :] = block[:, dense].T
    block[np.ix_(dense, dense)] = np.diag(rng.normal(size=dense.sum()))
    if draw(st.booleans()) and n > 8:
        some = rng.choice(n, n // 2, replace=False)
        block[np.ix_(some, some)] = 1.0 + np.eye(some.size)
    target = rng.normal(size=(extra, n)) * (rng.uniform(size=(extra, n)) < share)
    declared = dense if draw(st.booleans()) else np.zeros(n, dtype=bool)
    return np.vstack([block, target]), declared


@settings(max_examples=150, deadline=None)
@given(structured())
def test_a_matrix_is_recovered_entry_for_entry(case):
    matrix, alone = case
    product = Counted(matrix)
    found = recover(product, matrix.shape, alone)
    # Each entry is read with weight one, beside zeros: not even rounding is added.
    np.testing.assert_array_equal(found.toarray(), matrix)
    # Dense columns one at a time, twice the columns over all halvings, at the very worst.
    assert product.products <= 3 * matrix.shape[1] + 2


def test_entries_of_any_size_are_recovered():
    rng = np.random.default_rng(1)
    matrix = sp.random_array((60, 60), density=0.05, rng=rng).toarray()
    matrix *= 10.0 ** rng.uniform(-150, 150, matrix.shape)
    matrix += matrix.T
    found = recover(Counted(matrix), matrix.shape, np.zeros(60, dtype=bool))
    np.testing.assert_array_equal(found.toarray(), matrix)


@pytest.mark.parametrize("n", [500, 4000])
def test_banded_matrices_take_products_as_the_logarithm_of_their_size(n):
    band = sp.diags_array([np.ones(n - abs(k)) * (3 + abs(k)) for k in range(-2, 3)],
                          offsets=list(range(-2, 3))).tocsr()  # fmt: skip
    columns = sp.csr_array(np.ones((n, 3)))
    matrix = sp.block_array([[band, columns], [columns.T, sp.eye_array(3)]]).tocsr()
    alone = np.arange(n + 3) >= n
    product = Counted(matrix)
    found = recover(product, matrix.shape, alone)
    assert abs(found - matrix).max() == 0
    # Three dense columns, then a handful of colours at each of log2(n) halvings.
    assert product.products <= 3 + 8 * math.ceil(math.log2(n))


# --- factors of a precision ---


def precision(rng, n, border, density):
    """A sparse precision with some dense columns, and which these are."""
    pattern = sp.random_array((n, n), density=density, rng=rng)
    low = sp.tril(pattern, k=-1).toarray() + np.diag(10.0 ** rng.uniform(-1, 1, n))
    matrix = low @ low.T
    ends = rng.choice(n, border, replace=False)
    link = rng.normal(size=(n, border)) * 0.01
    matrix[:, ends] += link
    matrix[ends, :] += link.T
    matrix[ends, ends] += 5.0
    # Symmetric and dominated by its diagonal from below: definite whatever was drawn.
    return matrix + np.eye(n) * max(0.0, 1e-3 - np.linalg.eigvalsh(matrix)[0]), ends


@st.composite
def precisions(draw):
    """Sparse and positive definite, with up to four dense columns that are bordered."""
    n, border = draw(st.integers(80, 140)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrix, ends = precision(rng, n, border, draw(st.floats(0.0, 0.02)))
    columns = sp.random_array((n, 30), density=0.03, rng=rng).toarray()
    columns[:, 0] = 0.0
    columns[:, 1] = rng.normal(size=n)
    columns[:, 2] = 0.0
    columns[ends, 2] = 1.0
    return matrix, sp.csc_array(columns), rng.normal(size=n)


@settings(max_examples=25, deadline=None)
@given(precisions())
def test_the_sparse_factor_does_what_the_dense_one_does(case):
    matrix, columns, vector = case
    sparse, dense = (
        precision_factor._sparse(sp.csc_array(matrix)),
        precision_factor._dense(sp.csc_array(matrix)),
    )
    assert isinstance(sparse, SparseFactor)
    assert isinstance(dense, DenseFactor)
    inverse = np.linalg.inv(matrix)
    # Condition numbers reach 10^5 or so, of rounding errors 10^-16 by a few hundred terms.
    for factor in (sparse, dense):
        for rhs in (vector, columns.toarray()):
            same(factor.solve(rhs), inverse @ rhs, rtol=1e-8)
        same(factor.quadratic(columns), ((inverse @ columns) * columns.toarray()).sum(0), 1e-8)
        spread = np.column_stack([factor.unwhiten(e) for e in np.eye(len(matrix))])
        same(spread @ spread.T, inverse, rtol=1e-8)
        triangle, latent = factor.triangle
        assert abs(sp.triu(triangle, 1)).nnz == 0
        same((triangle @ triangle.T).toarray(), matrix[np.ix_(latent, latent)], rtol=1e-10)
        same(np.array(factor.trace), np.array([np.trace(matrix), np.trace(inverse)]), rtol=1e-8)
        white = exact_forward(factor, columns, np.arange(30.0))
        form = columns @ np.arange(30.0)
        same(white @ white, form @ inverse @ form, rtol=1e-8)


def test_dense_columns_are_bordered_and_effects_that_only_they_identify_are_solved():
    n = 120
    matrix = np.diag(np.full(n, 2.0))
    matrix[0, :] = matrix[:, 0] = 0.1
    matrix[0, 0] = 5.0
    factor = precision_factor._sparse(sp.csc_array(matrix))
    assert isinstance(factor, SparseFactor)
    assert factor.border.tolist() == [0]
    assert factor.below.nnz == 0
    # Without its dense column the rest is singular; with it, it is not.
    loose = np.diag(np.r_[9.0, 0.0, np.full(n - 2, 2.0)]) + 0.0
    loose[0, :] = loose[:, 0] = 0.1
    loose[0, 0], loose[1, 1], loose[1, 2], loose[2, 1] = 9.0, 1.0, 1.0, 1.0
    loose[2, 2] = 1.0 + 1e-3
    same(precision_factor._sparse(sp.csc_array(loose)).solve(np.ones(n)),
         np.linalg.solve(loose, np.ones(n)), rtol=1e-8)  # fmt: skip


@pytest.mark.parametrize("n", [20, 700])
@pytest.mark.parametrize("low", [0.0, -1e-9, -1.0, 1e-17])
def test_a_precision_that_is_not_positive_definite_is_refused(n, low):
    path = sp.diags_array([np.full(n - 1, -1.0), np.full(n, 2.0), np.full(n - 1, -1.0)],
                          offsets=[-1, 0, 1]).tolil()  # fmt: skip
    path[0, 0] = path[n - 1, n - 1] = 1.0  # a path's Laplacian: levels are free
    matrix = (path + low * sp.eye_array(n)).tocsc()
    with pytest.raises(ValueError, match="improper posterior: the precision of the latents"):
        factorise(matrix)
    assert factorise((matrix + 1e-3 * sp.eye_array(n)).tocsc()) if abs(low) < 1e-3 else True


@pytest.mark.parametrize("n", [30, 600])
def test_what_rounding_leaves_of_a_singular_precision_is_no_precision(n):
    """Collinear columns: about half of these have a last pivot that rounding made positive."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        design = rng.normal(size=(n, 2))
        columns = np.column_stack([design, design @ rng.normal(size=2)])
        precision = sp.block_array(
            [[sp.eye_array(n) * 2.0, columns], [columns.T, columns.T @ columns / 2.0]]
        )
        with pytest.raises(ValueError, match="improper posterior"):
            factorise(precision.tocsc())


def test_norms_from_the_selected_inverse_are_those_of_direct_solves():
    """A grid with two coefficients, where the pattern of most columns is on the factor's."""
    side, p = 30, 2
    n = side * side
    line = sp.diags_array([np.ones(side - 1), np.ones(side - 1)], offsets=[-1, 1])
    grid = sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line)
    field = 5.0 * (sp.diags_array(grid.sum(axis=1)) - 0.95 * grid)
    rng = np.random.default_rng(2)
    design = np.column_stack([np.ones(n), rng.normal(size=n)])
    H = sp.csc_array(sp.block_array([[sp.eye_array(n), sp.csc_array(design)]]))
    weight = sp.diags_array(10.0 ** rng.uniform(0, 3, n))
    prior = sp.block_diag([field, sp.csc_array((p, p))])
    Q = sp.csc_array(prior + H.T @ weight @ H)
    factor = factorise(Q)
    assert isinstance(factor, SparseFactor)
    assert factor.border.size == p
    cross = sp.csc_array(H.T @ weight)
    targets = sp.csc_array(np.eye(n + p)[:, :40]) + sp.csc_array(np.eye(n + p, k=-1)[:, :40])
    for columns in (cross, targets.tocsc()):
        dense = columns.toarray()
        want = (np.linalg.solve(Q.toarray(), dense) * dense).sum(axis=0)
        np.testing.assert_allclose(factor.quadratic(columns), want, rtol=1e-9)


# --- what rounding can add ---


def exactly(triangle, latent, columns, y):
    """``R^-1 K y`` in rational numbers, from the very floats that are stored."""
    R, K = triangle.toarray(), columns.toarray()[latent]
    x = []
    for i in range(len(R)):
        total = sum(
            (Fraction(float(k)) * Fraction(float(v)) for k, v in zip(K[i], y, strict=True)),
            Fraction(0),
        )
        total -= sum((Fraction(float(R[i, j])) * x[j] for j in range(i)), Fraction(0))
        x.append(total / Fraction(float(R[i, i])))
    return x


def distance(got, want):
    return math.sqrt(sum((Fraction(float(g)) - w) ** 2 for g, w in zip(got, want, strict=True)))


@st.composite
def badly_conditioned(draw):
    n, k = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    power = draw(st.floats(0.0, 6.0))
    low = np.tril(rng.normal(size=(n, n))) + np.eye(n)
    scale = 10.0 ** rng.uniform(-power, power, n)
    near = 10.0 ** -draw(st.floats(0.0, 11.0))
    matrix = scale[:, None] * (low @ low.T + np.ones((n, n)) / near) * scale
    columns = rng.normal(size=(n, k)) * scale[:, None] * (rng.uniform(size=(n, k)) < 0.8)
    return matrix, sp.csc_array(columns), rng.uniform(-1, 1, k)


@settings(max_examples=150, deadline=None)
@given(badly_conditioned(), st.booleans())
def test_a_draw_of_latents_errs_by_less_than_it_pays_for(case, sparse):
    matrix, columns, y = case
    Q = sp.csc_array((matrix + matrix.T) / 2)
    try:
        factor = precision_factor._dense(Q)
        if sparse and len(matrix) > 1:  # the same numbers in the sparse one's clothes
            R = factor.root
            factor = SparseFactor(
                np.arange(len(R) - 1), np.array([len(R) - 1]),
                sp.csc_array(np.tril(R[:-1, :-1], -1)), R.diagonal()[:-1].copy(),
                R[-1:, :-1].T.copy(), R[-1:, -1:].copy(),
                sp.csc_array(R[:-1, :-1] @ R[:-1, :-1].T),
            )  # fmt: skip
    except ValueError:  # numerically not definite: refused, nothing to draw
        return
    n, bound = len(matrix), 1.0
    plan = LatentPlan(factor, columns, sp.csr_array((1, n)), np.zeros(1), bound)
    want = exactly(*factor.triangle, columns, y)
    error = distance(plan.statistic(y), want)
    # Half of it each: it is meant for the distance between two statistics.
    assert error <= (plan.slack - SPACING * math.sqrt(n)) / 2
    # With double-double the error is that of a final rounding, however badly conditioned.
    size = math.sqrt(sum(float(w) ** 2 for w in want))
    assert error <= 3 * UNIT * size + 1e-300


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.floats(0, 8), st.integers(0, 2**32 - 1))
def test_a_draw_of_the_target_errs_by_less_than_it_pays_for(r, k, power, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(r, k)) * 10.0 ** rng.uniform(-power, power, (r, k))
    y = rng.uniform(-1, 1, k)
    plan = TargetPlan(np.eye(r), matrix, np.zeros(r), 1.0)
    want = [
        sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, y, strict=True)),
            Fraction(0))
        for row in matrix
    ]  # fmt: skip
    error = distance(plan.statistic(y), want)
    assert error <= (plan.slack - SPACING * math.sqrt(r)) / 2


# --- signs ---


@pytest.mark.parametrize("entries", [0, 1, 40])
def test_the_operator_norm_is_right_to_a_factor_of_two_for_any_matrix(entries):
    """ARPACK refuses a matrix without entries."""
    rng = np.random.default_rng(entries)
    cross = np.zeros((6, 8))
    cross.flat[rng.choice(48, entries, replace=False)] = rng.normal(size=entries)
    factor = factorise(sp.csc_array(np.eye(6)))
    plan = LatentPlan(factor, sp.csc_array(cross), sp.csr_array((1, 6)), np.zeros(1), 1.0)
    norm = np.linalg.norm(cross, 2)
    assert norm / 2 <= plan._operator_norm() <= 2 * norm
    assert SPACING < plan.slack < np.inf


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_the_worst_signs_are_the_worst_corner(rows, entries, seed):
    columns = np.random.default_rng(seed).normal(size=(rows, entries))
    corners = itertools.product([1.0, -1.0], repeat=entries)
    want = max(np.linalg.norm(columns @ np.array(c)) for c in corners)
    assert largest_norm(columns) == pytest.approx(want, rel=1e-12)
    inside = np.random.default_rng(seed).uniform(-1, 1, (entries, 50))
    assert (np.linalg.norm(columns @ inside, axis=0) <= want * (1 + 1e-12)).all()


def test_more_entries_than_can_be_tried_are_bounded_by_their_sum():
    rng = np.random.default_rng(3)
    S = rng.normal(size=(6, 25))
    plan = TargetPlan(np.eye(6), S, np.zeros(6), 1.0)
    most = rng.uniform(0.1, 1.0, (25, 3)) * (np.arange(25)[:, None] < [25, 11, 10])
    got = plan.distance(sp.csc_array(most))
    signs = rng.choice([-1.0, 1.0], size=(20_000, 25))
    for j in range(3):
        tried = np.linalg.norm((signs * most[:, j]) @ S.T, axis=1).max()
        assert tried <= got[j] * (1 + 1e-12)
    norm = np.sqrt((S**2).sum(axis=0))
    np.testing.assert_allclose(got[:2], norm @ most[:, :2], rtol=1e-12)
    assert got[2] < norm @ most[:, 2]  # ten entries are tried, each sign


# --- change matrices and sensitivities ---

K = 6
WHERE = {
    "record": np.array([f"{a} {t}" for a in "abc" for t in "12"]),
    "shape": (3, 2),
    "dims": ("area", "year"),
    "coords": {"area": np.array(list("abc")), "year": np.array(["1", "2"])},
    "index": None,
    "area": np.array(list("abc")),
}
FULL = np.arange(1.0, K + 1).reshape(3, 2)


def labelled(values, **coords):
    names = {"area": list("abc"), "year": [1, 2]} | coords
    dims = ["area", "year", "kind"][: np.ndim(values)]
    return xr.DataArray(values, dims=dims, coords={d: v for d, v in names.items() if d in dims})


def test_one_number_for_each_observed_value():
    for given_ in (FULL, FULL.ravel(), labelled(FULL), labelled(FULL)[::-1, ::-1].T):
        changes = read_changes(given_, **WHERE)
        np.testing.assert_array_equal(changes.matrix.toarray(), np.diag(FULL.ravel()))
        assert changes.label.tolist() == WHERE["record"].tolist()
        assert changes.area is None
    np.testing.assert_array_equal(read_changes(0.5, **WHERE).matrix.toarray(), 0.5 * np.eye(K))


def test_a_column_for_each_kind_of_record():
    most = np.zeros((3, 2, 4))
    most[0, :, 0], most[1, 0, 1], most[1, 1, 2], most[2, :, 3] = 1.0, 2.0, 3.0, 4.0
    kinds = ["both years of a", "b once", "b twice", "c"]
    flat = most.reshape(K, 4)
    for given_ in (most, sp.csr_matrix(flat), sp.coo_array(flat), labelled(most),
                   labelled(most, kind=kinds)[::-1].transpose("kind", "year", "area")):  # fmt: skip
        changes = read_changes(given_, **WHERE)
        np.testing.assert_array_equal(changes.matrix.toarray(), flat)
        assert changes.label.tolist() in ([*"0123"], kinds)


def test_a_series_is_joined_by_label():
    one = {
        **WHERE,
        "record": np.array(list("abc")),
        "shape": (3,),
        "dims": ("area",),
        "coords": {"area": np.array(list("abc"))},
        "index": np.array([2, 0, 1]),
    }
    series = pd.Series([3.0, 1.0, 2.0], index=list("cab"))
    changes = read_changes(series, **one)
    np.testing.assert_array_equal(changes.matrix.toarray(), np.diag([1.0, 2.0, 3.0]))
    assert changes.label.tolist() == ["c", "a", "b"]
    assert changes.area.tolist() == [2, 0, 1]
    # Without labels of the data, by the area that each observation is a direct estimate of.
    unlabelled = {**one, "dims": (), "coords": {}}
    by_area = read_changes(series, **unlabelled)
    np.testing.assert_array_equal(by_area.matrix.toarray(), np.diag([3.0, 1.0, 2.0]))


def changed(values, *at, to):
    out = np.array(values, dtype=float)
    out[at] = to
    return out


MOST = np.einsum("ij,kl->ijkl", FULL, np.ones((1, 2)))[:, :, 0]
BAD = {
    "missing labels": (labelled(FULL, area=list("abd")), "no sensitivity for 1 of 'area': c"),
    "labels twice": (labelled(FULL, area=list("abb")), "labels more than once: b"),
    "no labels": (labelled(FULL).drop_vars("year"), "no labels on 'year'"),
    "a missing dim": (labelled(FULL)[:, 0], r"dims \('area',\), the observed variable"),
    "two more dims": (
        labelled(MOST).expand_dims("more"),
        r"with one more for kinds of record",
    ),
    "negative": (changed(FULL, 1, 0, to=-1), "not for 1 observed values: b 1"),
    "zero": (changed(FULL, slice(None), 1, to=0), "not for 3 observed values: a 2, b 2, c 2"),
    "NaN": (changed(FULL, 2, 1, to=np.nan), "not for 1 observed values: c 2"),
    "infinite": (np.inf, "not for 6 observed values"),
    "wrong shape": (np.ones(5), r"shape \(5,\) for observed values of shape \(3, 2\)"),
    "wrong rows": (sp.eye_array(5), "has 5 rows for 6 observed values"),
    "negative change": (changed(MOST, 0, 0, 0, to=-1), "1 entries of the change matrix are neg"),
    "NaN change": (changed(MOST, 0, slice(None), 0, to=np.nan), "2 entries of the change matrix"),
    "an empty column": (
        labelled(changed(MOST, slice(None), slice(None), 1, to=0), kind=["man", "child"]),
        "1 kinds of record move nothing: child",
    ),
    "no column": (np.ones((3, 2, 0)), "has no kinds of record"),
    "untouched": (changed(MOST, slice(0, 2), 0, to=0), "moves 2 of the 6 observed values"),
}


@pytest.mark.parametrize("name", BAD)
def test_unusable_changes_are_refused_by_name_and_number(name):
    given_, reason = BAD[name]
    with pytest.raises(ValueError, match=reason):
        read_changes(given_, **WHERE)


# --- large models: noise whitened in the latents' coordinates ---


def small_model(body):
    with pm.Model(coords={"area": AREA}) as model:
        beta = pm.Flat("beta", shape=2)
        field = pm.CAR("field", np.zeros(M), RING, 0.8, 60.0, dims="area")
        theta = body(X @ beta + field)
        if theta is not None:
            pm.Normal("y", theta, np.sqrt(D), observed=pm.Data("direct", Y), dims="area")
    return model


def own(mean):
    return pm.Deterministic("theta", mean, dims="area")


def regions(mean):
    pm.Deterministic("theta", pt.as_tensor(np.kron(np.eye(2), np.ones((1, M // 2)))) @ mean)
    return mean


DESIGN = np.column_stack([X, np.eye(M)])
Q = np.zeros((M + 2, M + 2))
Q[2:, 2:] = PRIOR
Q += DESIGN.T @ np.diag(1 / D) @ DESIGN
PULL = DESIGN.T @ np.diag(1 / D)
WEIGHTS = {own: np.eye(M), regions: np.kron(np.eye(2), np.ones((1, M // 2)))}


def bounded(values, *dims, **coords):
    return xr.DataArray(values, dims=dims, coords=coords, attrs={"bounds": (0.0, 1.0)})


@pytest.fixture
def large(monkeypatch):
    """Every model counts as too large for dense matrices of the target."""
    monkeypatch.setattr(linear_law, "MOST_ENTRIES", 0)


@pytest.mark.parametrize("body", [own, regions], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sparse", [False, True])
def test_latent_noise_is_priced_and_drawn_as_such(body, sparse, large, monkeypatch):
    if sparse:
        monkeypatch.setattr(precision_factor, "DENSE_SIZE", 0)
        monkeypatch.setattr(precision_factor, "DENSE_SHARE", 2.0)
        monkeypatch.setattr(precision_factor, "BORDER", 99.0)  # two of sixteen are too many
    release = PrivateRelease(small_model(body), bounded(S, "area", area=AREA))
    assert isinstance(
        release.specification.law.precision_factor, SparseFactor if sparse else DenseFactor
    )
    guarantee = release.guarantee
    # Regions are not what the observations are direct estimates of: a price by record.
    rho = guarantee["rho_respondent" if body is own else "rho_record"].values
    want = S**2 * np.diag(PULL.T @ np.linalg.inv(Q) @ PULL) / 2
    priced_as(rho, want)
    T = WEIGHTS[body] @ DESIGN
    prior = np.zeros((M + 2, M + 2))
    prior[2:, 2:] = PRIOR
    exact = condition(prior, DESIGN, np.diag(D), T)
    # Never below the price of the target alone; the same where the target tells all that y does.
    alone = exact.joint(np.diag(S))
    assert (rho >= alone * (1 - 1e-9)).all()
    assert (body is own) == np.allclose(rho, alone, rtol=1e-7)
    np.testing.assert_array_equal(guarantee["rho_area"], float(guarantee["rho"]))
    assert not {"rho_independent", "rho_independent_record", "rho_area_ideal"} & set(guarantee)
    same(guarantee["posterior_sd"].values, exact.sd)
    record = json.loads(guarantee.attrs["privacy"])
    assert record["coordinates"] == "latent"

    simulated = release.simulate(SIMULATED, random_seed=2).values[0]
    sd, C = exact.sd, exact.covariance
    # Six and a half standard errors of a mean and of a covariance of normal draws.
    assert (np.abs(simulated.mean(axis=0) - exact.mean(Y)) <= 6.5 * sd / np.sqrt(SIMULATED)).all()
    error = np.sqrt((np.outer(sd, sd) ** 2 + C**2) / SIMULATED)
    assert (np.abs(np.cov(simulated.T, ddof=0) - C) <= 6.5 * error).all()
    drawn = io.read_group(release.draw(), "private_release")
    # Beyond 8 standard deviations in 1e-15 of draws.
    assert (np.abs(drawn["theta"].values[0, 0] - exact.mean(Y)) <= 8 * sd).all()
    assert "theta_smoothed" not in drawn
    with pytest.raises(NotLinearGaussianError, match=r"too many for dense matrices"):
        release.propagation()


def test_a_record_of_several_values_pays_their_sum_in_latents(large):
    most = np.kron(np.eye(M // 2), np.array([[0.01], [0.03]]))
    release = PrivateRelease(small_model(own), bounded(most, "area", "person", area=AREA))
    norm = np.sqrt(np.diag(PULL.T @ np.linalg.inv(Q) @ PULL))
    rho = release.guarantee["rho_record"].values
    priced_as(rho, (norm @ most) ** 2 / 2)
    prior = np.zeros((M + 2, M + 2))
    prior[2:, 2:] = PRIOR
    assert (rho >= condition(prior, DESIGN, np.diag(D), DESIGN).joint(most)).all()


def test_latent_noise_cannot_be_independent_by_area(large):
    with pytest.raises(NotLinearGaussianError, match="use mechanism='joint'"):
        PrivateRelease(small_model(own), S, mechanism="independent")


def test_latent_noise_cannot_cover_what_the_target_says_of_the_data_openly(large):
    def open_target(mean):
        y = pm.Normal("y", mean, np.sqrt(D), observed=pm.Data("direct", Y), dims="area")
        pm.Deterministic("theta", 0.5 * y + 0.5 * mean)

    with pytest.raises(NotLinearGaussianError, match="14 entries uses the data openly"):
        PrivateRelease(small_model(open_target), S)


def test_the_price_in_latents_would_understate_an_open_target():
    """Why an open target takes its own coordinates: its data are not behind the latents' noise."""

    def open_target(mean):
        y = pm.Normal("y", mean, np.sqrt(D), observed=pm.Data("direct", Y), dims="area")
        pm.Deterministic("theta", y + 0.01 * mean)

    law = LinearLaw(read_linear(symbolic_model(small_model(open_target), "theta")))
    priced = law.plan(1.0).distance(sp.csc_array(np.diag(S)))
    latents = S * np.sqrt(np.diag(PULL.T @ np.linalg.inv(Q) @ PULL))
    assert (priced > 10 * latents).all()


def test_the_log_determinant_of_a_neighbour_matrix_is_never_looked_at():
    """It takes the eigenvalues of a dense matrix; with dims PyMC asks it for its own shape."""
    with pm.Model(coords={"area": AREA}) as model:
        theta = pm.CAR("theta", np.zeros(M), sp.csc_matrix(RING), 0.8, 60.0, dims="area")
        pm.Normal("y", theta, 1.0, observed=pm.Data("direct", Y))
    symbolic = symbolic_model(model, "theta")

    def operations(expression):
        return {type(v.owner.op).__name__ for v in ancestors([expression]) if v.owner} | {
            type(getattr(v.owner.op, "core_op", None)).__name__
            for v in ancestors([expression])
            if v.owner
        }

    whole = operations(symbolic.factors["theta"])
    assert any("Eig" in name for name in whole)
    variables = [*symbolic.latents.values(), symbolic.data]
    kept = operations(without_constants(symbolic.factors["theta"], variables))
    assert not any("Eig" in name or "Log" in name for name in kept)


@pytest.mark.parametrize("seed", [2235, 2355, 2374, 2434])
def test_the_selected_inverse_is_right_where_the_factor_leaves_out_zeros(seed: int) -> None:
    """SuperLU drops entries that happen to be zero; the recursion for the inverse needs them."""
    rng = np.random.default_rng(seed)
    n, border = int(rng.integers(80, 141)), int(rng.integers(0, 5))
    density = rng.choice([0.0, rng.uniform(0, 0.02), 0.02, 0.015, 0.01])
    matrix, _ = precision(rng, n, border, density)
    factor = precision_factor._sparse(sp.csc_array(matrix))
    inverse = np.linalg.inv(matrix)
    unit = sp.eye_array(n).tocsc()
    # Condition numbers reach 10^5 or so, of rounding errors 10^-16 by a few hundred terms.
    np.testing.assert_allclose(factor.quadratic(unit), np.diag(inverse), rtol=1e-8)
    np.testing.assert_allclose(factor.trace[1], np.trace(inverse), rtol=1e-8)
