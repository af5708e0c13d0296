"""Design problems: what information on direct estimates is worth, in arrays and by definition."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pymc_dp.posterior.least_error import DesignProblem


@st.composite
def design_problems(draw):
    """Any prior, A = 0 among several values, areas without sample, unequal importance."""
    p = draw(st.integers(1, 3))
    m = draw(st.integers(p + 2, 10))
    seed = draw(st.integers(0, 2**32 - 1))
    unsampled, flat = draw(st.booleans()), draw(st.booleans())
    zero = draw(st.booleans())
    return design_problem(np.random.default_rng(seed), m, p, unsampled, flat, zero)


def design_problem(rng, m, p, unsampled=False, flat=True, zero=False, values=3) -> DesignProblem:
    X = np.column_stack([np.ones(m), rng.normal(size=(m, p - 1))])
    D, limit = 10 ** rng.uniform(-1, 1, m), 10 ** rng.uniform(-1.5, 1.5, m)
    if unsampled:
        D[:2], limit[:2] = 0.0, 0.0
    prior = np.zeros((p, p)) if flat else np.diag(rng.uniform(0.1, 2, p))
    importance, weight = rng.uniform(0.2, 1.5, m), rng.uniform(0.2, 1, values)
    importance, weight = importance / importance.sum(), weight / weight.sum()
    A = 10 ** rng.uniform(-1.5, 1, values)
    A[0] *= not zero
    return DesignProblem(D, limit, X, prior, importance, A, weight)


def some_rows(problem: DesignProblem, q: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """``own`` and ``shared`` of any K with the diagonal at its limit."""
    rows = rng.normal(size=(problem.limit.size, q + 1))
    rows *= np.sqrt(problem.limit / (rows**2).sum(axis=1))[:, None]
    return np.abs(rows[:, 0]), rows[:, 1:]


def dense_errors(problem: DesignProblem, K: np.ndarray) -> np.ndarray:
    """Posterior variances of theta given ``h ~ N(K y, K)``, by value of A and area; (n, m).

    As a regression of theta = X beta + u on h: the coefficients by generalised least squares.
    """
    return np.array([_at(problem, K, A)[0] for A in problem.between_variance])


def dense_slope(problem: DesignProblem, K: np.ndarray) -> np.ndarray:
    """``Q``: minus the derivative of the average error with respect to K; (m, m)."""
    N = [_at(problem, K, A)[1] for A in problem.between_variance]
    return sum(
        w * n.T @ (problem.importance[:, None] * n) for w, n in zip(problem.weight, N, strict=True)
    )


def _at(problem, K, A):
    """Posterior variances, and the derivative N of the mean of theta with respect to h."""
    m, X = problem.limit.size, problem.basis
    # K (I + D K)^-1 = F of the noise that h has beside K theta; theta | beta, F, then beta.
    F = K @ np.linalg.inv(np.eye(m) + problem.variance[:, None] * K)
    shrink = np.linalg.inv(np.eye(m) + A * F)
    spread = A * shrink  # Cov(theta | beta, h)
    info = X.T @ F @ shrink @ X + problem.prior_precision
    left = shrink @ X @ np.linalg.inv(info)
    variance = spread + left @ (shrink @ X).T
    seen = np.linalg.inv(np.eye(m) + K * problem.variance)  # h to F theta-hat
    return np.diag(variance), variance @ seen
