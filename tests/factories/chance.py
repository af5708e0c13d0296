"""Tolerances of tests whose noise has no seed, from the exact law of what they compare.

OpenDP's noise comes from the operating system. A test that draws asserts either what noise cannot
break, or says how often chance breaks it: below 1e-7 each.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import chi2, norm

from pymc_dp.mechanisms import lattice

CHANCE = 1e-8  # of a false alarm in one call of `assert_gaussian`
GRID = 1e-3  # relative, for publishing grids of at most a hundredth of a standard deviation


def assert_gaussian(values, mean, covariance) -> None:
    """Rows (n, k) are independent draws from a normal law of known mean and covariance.

    Means are normal, and so are all (z_i +- z_j): sums of n of their squares are chi-squared. The
    quantiles share CHANCE among the 2 k + k (k - 1) comparisons (union bound).
    """
    values, C = np.asarray(values, dtype=float), np.atleast_2d(covariance)
    (n, k), sd = values.shape, np.sqrt(np.diag(C))
    each = CHANCE / (2 * k + k * (k - 1)) / 2
    z = (values - mean) / sd
    R = C / np.outer(sd, sd)
    assert (np.abs(z.mean(axis=0)) <= norm.isf(each) / math.sqrt(n) + GRID).all()
    low, high = chi2.ppf(each, n) * (1 - GRID), chi2.isf(each, n) * (1 + GRID)
    squares = (z**2).sum(axis=0)
    assert ((low <= squares) & (squares <= high)).all()
    products, (i, j) = z.T @ z, np.triu_indices(k, 1)
    for sign in (1, -1):
        both = squares[i] + squares[j] + sign * 2 * products[i, j]
        spread = 2 * (1 + sign * R[i, j])
        assert ((low * spread <= both + 1e-9) & (both <= high * spread + 1e-9)).all()


def seed_noise(monkeypatch, seed: int) -> None:
    """Lattice noise of a seeded generator in place of OpenDP's, which still prices it.

    For tests that search what was drawn for traces: they then pass or fail for good.
    """
    rng, plain = np.random.default_rng(seed), lattice._gaussian

    class Seeded:
        def __init__(self, size):
            self.map = plain(size).map

        def __call__(self, values):
            noise = np.rint(rng.normal(size=len(values)) / lattice.SPACING) * lattice.SPACING
            return np.rint(np.asarray(values) / lattice.SPACING) * lattice.SPACING + noise

    monkeypatch.setattr(lattice, "_gaussian", Seeded)
