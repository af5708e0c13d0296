r"""From the success of an attack to a lower bound on mu or epsilon, with confidence.

Two settings: many releases from each of two data sets, and one release with many canaries. Nothing
here knows what a release is.

Clopper-Pearson intervals and the searches are SciPy's. The two one-release bounds are written out:
of the maintained auditing libraries jax-privacy has them (version 2.0, `jax_privacy.auditing`),
but it cannot be installed without jax, jaxlib, optax, chex and pydantic. The tests hold both
bounds against values that it gave.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymc_dp._roots import safe_root
from pymc_dp._typing import Array

CANDIDATES = 1001  # thresholds that an attack chooses from: quantiles of its scores
# It chooses by bounds that are hardly ever wrong: the best of many usual ones would be a lucky one.
CHOOSING = 1e-6


def two_sample_mu(null: Array, alternative: Array, error: float) -> float:
    r"""Lower bound on mu from the scores of an attack on two data sets.

    Parameters
    ----------
    null, alternative : ndarray of shape (n,)
        Scores of independent releases from either data set; a high one speaks for the second.
    error : float
        Probability, at most, that the bound exceeds the truth.

    Returns
    -------
    float
        At least 0.

    Notes
    -----
    For error rates of one threshold, :math:`\mu \ge \Phi^{-1}(1 - FPR) - \Phi^{-1}(FNR)` (Dong,
    Roth and Su 2022). A third of the scores chooses the threshold, the others bound its error
    rates from above, each with half of `error`.
    """
    from scipy.special import ndtri

    def figure(false_positive: Array, false_negative: Array) -> Array:
        return np.asarray(-ndtri(false_positive) - ndtri(false_negative))

    return _best_threshold(null, alternative, figure, error)


def two_sample_epsilon(null: Array, alternative: Array, delta: float, error: float) -> float:
    r"""Lower bound on epsilon at `delta`, for a release of any shape.

    Parameters
    ----------
    null, alternative : ndarray of shape (n,)
        Scores, as for :func:`two_sample_mu`.
    delta : float
    error : float

    Returns
    -------
    float
        At least 0.

    Notes
    -----
    The definition, for the event that the score exceeds a threshold and for its complement:
    :math:`\epsilon \ge \log((1 - FNR - \delta) / FPR)` and the same with both rates exchanged.
    """

    def figure(false_positive: Array, false_negative: Array) -> Array:
        ratio = (1 - false_negative - delta) / false_positive
        reverse = (1 - false_positive - delta) / false_negative
        return np.log(np.maximum(np.maximum(ratio, reverse), 1.0))

    return _best_threshold(null, alternative, figure, error)


def _best_threshold(
    null: Array, alternative: Array, figure: Callable[[Array, Array], Array], error: float
) -> float:
    """Choose a threshold on a third of the scores; give its figure on the others."""
    third = null.size // 3
    seen = np.concatenate([null[:third], alternative[:third]])
    levels = np.linspace(0.0, 1.0, CANDIDATES)
    thresholds = np.unique(np.quantile(seen, levels, method="inverted_cdf"))

    def figures(part: slice, threshold: Array, error: float) -> Array:
        first, second = np.sort(null[part]), np.sort(alternative[part])
        above = (first.size - np.searchsorted(first, threshold, side="right")).astype(float)
        below = np.searchsorted(second, threshold, side="right").astype(float)
        return figure(
            clopper_pearson_upper(above, first.size, error / 2),
            clopper_pearson_upper(below, second.size, error / 2),
        )

    best = np.argmax(figures(slice(third), thresholds, min(error, CHOOSING)))
    chosen = figures(slice(third, None), thresholds[best : best + 1], error)
    return max(float(chosen[0]), 0.0)


def clopper_pearson_upper(count: Array, trials: int, error: float) -> Array:
    """Upper bound of a probability after `count` of `trials`, wrong with probability `error`."""
    from scipy.stats import beta

    inside = np.minimum(count, trials - 1)
    return np.where(count < trials, beta.ppf(1 - error, inside + 1, trials - inside), 1.0)


def one_release_mu(canaries: int, guesses: int, correct: int, error: float) -> float:
    r"""Lower bound on mu from the coins guessed in one release.

    Parameters
    ----------
    canaries : int
        Independent fair coins that went into the release.
    guesses : int
        How many were guessed, a number fixed beforehand; which ones may depend on the release.
    correct : int
        How many guesses were right.
    error : float
        Probability, at most, that the bound exceeds the truth.

    Returns
    -------
    float
        The largest mu that the count refutes; 0 if none.

    Notes
    -----
    Mahloujifar, Melis and Chaudhuri (2025), Auditing f-Differential Privacy in One Run, for the
    Gaussian trade-off curve. Let :math:`p_l` be the probability of l right guesses among g from
    m coins. Turning one coin over makes a right guess wrong, so for every i

    .. math:: \frac1m \sum_{l \ge i} l\, p_l \le
              \Phi\Big(\mu + \Phi^{-1}\Big(\frac1m \sum_{l \ge i - 1} (g - l)\, p_l\Big)\Big).

    The least total probability that these leave room for, when c or more are right with
    probability `error`, is found by going down from c; above 1, mu is refuted.
    """
    from scipy.special import ndtr, ndtri

    def excess(mu: float) -> float:
        right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
        for i in range(correct - 1, -1, -1):
            needed = max(wrong, float(ndtr(ndtri(right) - mu)))
            if needed == wrong:
                break  # and so it stays for every smaller i
            right, wrong = right + i / (guesses - i) * (needed - wrong), needed
            if right >= 1:
                break  # no probability is left: refuted
        return right + wrong - guesses / canaries

    return _largest_refuted(excess)


def one_release_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, error: float
) -> float:
    r"""Lower bound on epsilon at `delta` from the coins guessed in one release of any shape.

    Parameters
    ----------
    canaries, guesses, correct : int
        As for :func:`one_release_mu`.
    delta : float
    error : float

    Returns
    -------
    float
        The largest epsilon that the count refutes; 0 if none.

    Notes
    -----
    Steinke, Nasr and Jagielski (2023): with B binomial, g trials of probability
    :math:`e^\epsilon / (1 + e^\epsilon)`, c or more are right with probability at most
    :math:`P(B \ge c) + 2 m \delta \max_i P(c > B \ge c - i) / i`. Here the last probability is
    replaced by the larger :math:`P(B \ge c - i)`, so that the whole grows with epsilon.
    """
    from scipy.special import expit
    from scipy.stats import binom

    steps = np.arange(1, correct + 1)

    def excess(epsilon: float) -> float:
        chance = expit(epsilon)
        tail = float(binom.sf(correct - 1, guesses, chance))
        near = binom.sf(correct - 1 - steps, guesses, chance) / steps
        return error - tail - 2 * canaries * delta * float(near.max(initial=0.0))

    return _largest_refuted(excess)


def _largest_refuted(excess: Callable[[float], float]) -> float:
    """Where a decreasing function, positive for what is refuted, turns negative."""
    if excess(0.0) <= 0:
        return 0.0
    lower, upper = 0.0, 1.0
    while excess(upper) > 0:
        lower, upper = upper, 2 * upper
    return safe_root(lambda x: -excess(x), lower, upper)
