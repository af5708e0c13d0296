r"""How far two Gaussians of different variance are apart: Renyi divergence and exact epsilon.

This is what two neighbouring posteriors of one area mean are once a record moves its sampling
variance as well. Where the variances agree, it is the one-number story of
:mod:`pymc_dp.privacy`; where they do not, the Renyi divergence is infinite from some order on.
"""

from __future__ import annotations

import numpy as np

from pymc_dp._typing import Array

ROUNDING = 1e-9  # relative width at which the search for epsilon stops; the upper end is returned
LARGEST = 1e300  # an epsilon above it counts as infinite


def renyi_divergence(shift: Array, before: Array, after: Array, order: Array) -> Array:
    r"""Renyi divergence between two Gaussians, the larger of the two directions.

    Parameters
    ----------
    shift : ndarray
        Difference of the means.
    before, after : ndarray
        The two variances, zero allowed.
    order : ndarray
        Renyi orders above 1.

    Returns
    -------
    ndarray
        Of the broadcast shape. Infinite where the mixed variance is not positive, and where just
        one variance is zero; zero for equal Gaussians.

    Notes
    -----
    For :math:`P = N(d, V_1)` and :math:`Q = N(0, V_0)`, with the mixed variance
    :math:`V_\alpha = \alpha V_0 + (1 - \alpha) V_1`,

    .. math:: D_\alpha(P \| Q) = \frac{\alpha d^2}{2 V_\alpha}
              - \frac12 \log\frac{V_1}{V_0}
              - \frac{1}{2(\alpha - 1)} \log\frac{V_\alpha}{V_0},

    and infinite where :math:`V_\alpha \le 0` (Gil, Alajaji and Linder 2013, table 2): from order
    :math:`V_1 / (V_1 - V_0)` on, if the first variance is the larger.
    """
    d, V, W, a = np.broadcast_arrays(shift, before, after, order)
    return np.asarray(np.maximum(_one_direction(d, V, W, a), _one_direction(d, W, V, a)))


def _one_direction(d: Array, reference: Array, variance: Array, order: Array) -> Array:
    """``D_alpha`` of ``N(d, variance)`` from ``N(0, reference)``."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = (variance - reference) / reference
        mixed = 1 - (order - 1) * excess
        logs = -np.log1p(excess) / 2 - np.log(mixed) / (2 * (order - 1))
        value = order * d**2 / (2 * reference * mixed) + logs
    finite = (reference > 0) & (variance > 0) & (mixed > 0)
    return np.where(_same(d, reference, variance), 0.0, np.where(finite, value, np.inf))


def infinite_from(before: Array, after: Array) -> Array:
    """Order from which the Renyi divergence is infinite: the larger variance over the difference.

    Infinite where the variances agree: there is no such order.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.maximum(before, after) / np.abs(after - before)
    return np.where(before == after, np.inf, order)


def exact_epsilon(shift: Array, before: Array, after: Array, delta: Array) -> Array:
    r"""Smallest epsilon for which the two Gaussians are (epsilon, delta) apart, both ways.

    Parameters
    ----------
    shift, before, after : ndarray
        As for :func:`renyi_divergence`.
    delta : ndarray
        Probabilities between 0 and 1.

    Returns
    -------
    ndarray
        Of the broadcast shape, rounded up by at most a relative 1e-9. Infinite for delta 0 (unless
        the Gaussians are equal) and where just one variance is zero.

    Notes
    -----
    The log likelihood ratio is a quadratic in the released value, so it exceeds epsilon outside an
    interval (of the wider Gaussian) or inside one (of the narrower), and
    :math:`\delta(\epsilon) = P(\text{region}) - e^\epsilon Q(\text{region})` needs the normal
    distribution function only. It falls in epsilon; the root is found by bisection.
    """
    d, V, W, target = (v.astype(float) for v in np.broadcast_arrays(shift, before, after, delta))
    same = _same(d, V, W)
    result = np.where(same | (target >= 1), 0.0, np.inf)
    at = ~same & (V > 0) & (W > 0) & (target > 0) & (target < 1)
    if at.any():
        result[at] = _root(d[at], V[at], W[at], target[at])
    return result


def _root(d: Array, V: Array, W: Array, target: Array) -> Array:
    """Bisect for epsilon, all pairs at once; the upper end of the last bracket."""
    goal = np.log(target)

    def too_small(epsilon: Array) -> np.ndarray:
        ways = (_log_delta(d, V, W, epsilon), _log_delta(d, W, V, epsilon))
        return ~(np.maximum(*ways) <= goal)  # what is no number stays too small: no false comfort

    low, high = np.zeros_like(d), np.ones_like(d)
    searched = too_small(low)
    while (short := searched & (high < LARGEST) & too_small(high)).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while (searched & (high - low > ROUNDING * high)).any():
        middle = (low + high) / 2
        short = too_small(middle)
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(searched, np.where(high < LARGEST, high, np.inf), 0.0)


def _log_delta(d: Array, reference: Array, variance: Array, epsilon: Array) -> Array:
    r"""Log of ``P(l > epsilon) - exp(epsilon) Q(l > epsilon)``, P the Gaussian with `variance`.

    In standard deviations of Q, ``P = N(k, r)`` and ``l > epsilon`` where
    ``(r - 1) z^2 + 2 k z > k^2 + 2 r c``, ``c = epsilon + log(r) / 2``. The root near 0 is finite
    as r goes to 1, the far one runs away; neither is formed as a difference of close numbers.
    """
    from scipy.special import log_ndtr

    k = np.abs(d) / np.sqrt(reference)
    excess = (variance - reference) / reference
    r = 1 + excess
    root = np.sqrt(r)
    c = epsilon + np.log1p(excess) / 2
    square = r * (k**2 + 2 * excess * c)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spread = k + np.sqrt(np.maximum(square, 0.0))
        near, far = (k**2 + 2 * r * c) / spread, -spread / excess
        inner, outer = (near - k) / root, (far - k) / root
        # The wider Gaussian is the likelier one beyond both roots, the narrower between them.
        above = _log_difference(log_ndtr(-inner), epsilon + log_ndtr(-near))
        below = _log_difference(log_ndtr(outer), epsilon + log_ndtr(far))
        wide = np.logaddexp(above, np.where(excess > 0, below, -np.inf))
        narrow = _log_difference(_log_interval(inner, outer), epsilon + _log_interval(near, far))
    return np.where(excess >= 0, wide, np.where(square > 0, narrow, -np.inf))


def _log_interval(low: Array, high: Array) -> Array:
    """Log of the standard normal probability between two points, the tail on the left."""
    from scipy.special import log_ndtr

    right = low + high > 0
    a, b = np.where(right, -high, low), np.where(right, -low, high)
    return np.asarray(_log_difference(log_ndtr(b), log_ndtr(a)))


def _log_difference(larger: Array, smaller: Array) -> Array:
    """``log(exp(larger) - exp(smaller))``; minus infinity where rounding leaves nothing."""
    nothing = ~(smaller < larger)
    gap = np.where(nothing, -1.0, smaller - larger)
    return np.where(nothing, -np.inf, larger + np.log(-np.expm1(gap)))


def _same(d: Array, before: Array, after: Array) -> np.ndarray:
    return (d == 0) & (before == after)
