"""Fay-Herriot problems of every kind, as arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pymc_dp.posterior.fay_herriot import GaussianPosterior, fay_herriot_posterior


@st.composite
def problems(draw, *, positive_a: bool = False):
    """A Fay-Herriot problem: m, p, D over decades, A possibly zero, unsampled areas, priors."""
    p = draw(st.integers(1, 3))
    m = draw(st.integers(p + 3, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = np.column_stack([np.ones(m), rng.normal(size=(m, p - 1))])
    D = 10.0 ** rng.uniform(-3, 1, m)
    A = draw(st.sampled_from([1e-3, 0.1, 2.0] if positive_a else [0.0, 1e-3, 0.1, 2.0]))
    precision = 1 / D
    if draw(st.booleans()):
        precision[rng.choice(m, 2, replace=False)] = 0.0
    proper = draw(st.booleans())
    prior = rng.normal(size=(p, p)) if proper else np.zeros((p, p))
    return {
        "A": np.full(m, A),
        "precision": precision,
        "X": X,
        "P0": prior @ prior.T,
        "b0": rng.normal(size=p) if proper else np.zeros(p),
        "offset": rng.normal(size=m) if draw(st.booleans()) else np.zeros(m),
        "y": rng.normal(size=m),
    }


def build(q: dict) -> GaussianPosterior:
    return fay_herriot_posterior(
        q["A"],
        q["precision"],
        q["X"],
        prior_precision=q["P0"],
        prior_shift=q["P0"] @ q["b0"],
        offset=q["offset"],
    )
