"""The curve between epsilon and delta of a Gaussian release, solved for arrays.

With ``x = epsilon / mu - mu / 2`` and Mills' ratio ``r``, the exact curve of a Gaussian release is
``delta = phi(x) (r(x) - r(x + mu))`` (Balle and Wang 2018, Theorem 8, rewritten so that nothing
overflows). Here are its roots and values, and those of the conversion from zCDP; the checks, the
rounding promises and the words are in :mod:`pymc_dp.privacy`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
_Mills = Callable[[Array], Array]
_Parts = Callable[[Array, Array, _Mills], tuple[Array, Array]]
UNPROTECTED = 1e300  # a rho above it counts as infinite, before squares overflow
_MARGIN = 3e-15  # a computed log probability L errs by at most half of _MARGIN * (10 + |L|)
ROUNDING = 1e-15  # above the relative rounding error of the few operations it is used for
LATTICE_SLACK = 0.0202  # total variation of one coordinate over the squared spacing ...
COARSEST = 0.125  # ... which is an upper bound up to this spacing


def _mills(x: Array) -> Array:
    """Mills' ratio Phi(-x) / phi(x)."""
    from scipy.special import erfcx

    return np.sqrt(np.pi / 2) * erfcx(x * np.sqrt(0.5))


def _mills_rough(x: Array) -> Array:
    """Mills' ratio within 0.4 % for x > -0.7 at a tenth of the time: for first iterations only."""
    square = x * x
    c = (8 / np.pi + 2.3545 * x + 0.76774 * square) / (1 + 0.57333 * x + 0.191937 * square)
    return 2 / (x + np.sqrt(square + c))


def _difference(x: Array, mu: Array, mills: _Mills) -> tuple[Array, Array]:
    """r(x) - r(x + mu), and r(x + mu): delta over phi(x)."""
    right = mills(x + mu)
    return mills(x) - right, right


def _close_difference(x: Array, mu: Array, mills: _Mills) -> tuple[Array, Array]:
    """Both for small mu, without cancellation: Taylor series about the middle, r' = x r - 1."""
    middle, half = x + mu / 2, mu / 2
    before = mills(middle)
    derivative = middle * before - 1
    weight, even, odd = half, before, half * derivative
    for n in range(1, 11):
        before, derivative = derivative, middle * derivative + n * before
        weight = weight * half / (n + 1)
        if n % 2:
            even = even + weight * derivative
        else:
            odd = odd + weight * derivative
    return -2 * odd, even + odd


def _sum(x: Array, mu: Array, mills: _Mills) -> tuple[Array, Array]:
    """r(-x) + r(x + mu), and r(x + mu): 1 - delta over phi(x)."""
    right = mills(x + mu)
    return mills(-x) + right, right


def _log_density(x: Array) -> Array:
    return -x * x / 2 - np.log(2 * np.pi) / 2


def _root(parts: _Parts, sign: float, x: Array, mu: Array, target: Array) -> Array:
    """Solve log(phi(x) * parts(x)) = target, whose left side is concave, by Halley's iteration."""
    lowest = -mu / 2  # epsilon = 0
    for mills in 3 * [_mills_rough] + 50 * [_mills]:
        part, right = parts(x, mu, mills)
        miss = _log_density(x) + np.log(part) - target
        slope = sign * mu * right / part
        # Second over first derivative; 1 / r(y) - y lies between 0 and 1, and cancels for large y.
        bend = -x - np.clip(1 / right - (x + mu), 0, 1) - slope
        step = miss / slope
        x = np.maximum(x - step / np.maximum(1 - step * bend / 2, 0.5), lowest)
        # Cubic convergence: the step just made leaves about the cube of the miss.
        if mills is _mills and np.max(np.abs(miss)) < 1e-6:
            return x
    raise ArithmeticError("the search for epsilon did not converge")  # excluded by concavity


def epsilon_block(loss: Array, probability: Array) -> Array:
    """Exact epsilon at each delta, rounded up; zero where delta covers the whole distance."""
    from scipy.special import erf, erfc, ndtri

    mu, upper = gaussian_mu(loss), probability > 0.5
    # The logarithm of delta, or of 1 - delta where that is the smaller, and its value at epsilon 0.
    with np.errstate(divide="ignore"):
        target = np.log(np.where(upper, 1 - probability, probability))
        at_zero = np.log(np.where(upper, erfc(np.sqrt(loss) / 2), erf(np.sqrt(loss) / 2)))
    # One margin for the error made here, two for delta(), whose value at the result stays below.
    toward_safety = np.where(upper, 3 * _MARGIN, -3 * _MARGIN)
    target = target * (1 - toward_safety) + 10 * toward_safety
    positive = np.where(upper, target > at_zero, target < at_zero)
    with np.errstate(invalid="ignore"):  # rho 0 with delta 0, not searched
        middle = np.sqrt(2 * np.maximum(at_zero - target, 0))  # a rough epsilon / mu, for small mu
    unbounded = positive & ((probability == 0) | (loss > UNPROTECTED))
    result = np.where(unbounded, np.inf, 0.0)

    def solve(at: Indices, parts: _Parts, sign: float) -> None:
        shift = mu[at]
        if parts is _close_difference:
            start = np.sqrt(middle[at] ** 2 + np.pi / 2) - np.sqrt(np.pi / 2) - shift / 2
        else:
            start = np.maximum(-ndtri(probability[at]), -shift / 2)
        x = _root(parts, sign, start, shift, target[at])
        result[at] = shift * (x + shift / 2) * (1 + ROUNDING)

    _by_form(positive & ~unbounded, upper, mu, middle, solve)
    return result


def delta_block(loss: Array, bound: Array) -> Array:
    """Exact delta at each epsilon, rounded up, and at least the smallest double."""
    result = np.where((loss == 0) | (bound == np.inf), 0.0, 1.0)
    mu = gaussian_mu(loss)
    result[mu == np.inf] = 1.0
    searched = (mu > 0) & (mu < np.inf) & (bound < np.inf)
    x = np.full_like(mu, np.nan)
    # Beyond 60 the tail is far below the smallest double.
    x[searched] = np.minimum((bound[searched] - loss[searched]) / mu[searched], 60.0)

    def evaluate(at: Indices, parts: _Parts, sign: float) -> None:
        part, _ = parts(x[at], mu[at], _mills)
        value = _log_density(x[at]) + np.log(part)
        value = value - sign * _MARGIN * (10 - value)
        mass = np.exp(value)
        if sign > 0:
            near = 1 - mass
            mass = np.where(1 - near > mass, np.nextafter(near, 1), near)  # 1 - mass, rounded up
        result[at] = mass

    with np.errstate(under="ignore"):
        _by_form(searched, x < -0.5, mu, x + mu / 2, evaluate)
    coarse = searched & (result < np.finfo(float).tiny)
    result[coarse] = np.nextafter(result[coarse], 1.0)
    return result


def zcdp_block(loss: Array, probability: Array) -> Array:
    """Epsilon from zCDP alone, at the best real order, rounded up."""
    unbounded = (loss > 0) & (probability < 1) & ((probability == 0) | (loss > UNPROTECTED))
    result = np.where(unbounded, np.inf, 0.0)
    at = np.flatnonzero((loss > 0) & (probability < 1) & ~unbounded)
    rho, surprise = loss[at], -np.log(probability[at])
    root = np.sqrt(rho)
    # order - 1 = s solves rho s^2 + log(1 + s) = log(1 / delta), convex in log s: Newton's iterates
    # descend from a value above it.
    with np.errstate(over="ignore"):
        s = np.minimum(np.sqrt(surprise) / root, np.expm1(surprise))
        for _ in range(6):
            quadratic, logarithm = (root * s) ** 2, np.log1p(s)
            s = s * np.exp((surprise - quadratic - logarithm) / (2 * quadratic + s / (1 + s)))
    first, second, third = (1 + s) * rho, (surprise - np.log1p(s)) / s, np.log1p(1 / s)
    error = 2 * ROUNDING * (first + (surprise + np.log1p(s)) / s + third)
    result[at] = np.maximum(first + second - third + error, 0.0)
    return result


def lattice_block(loss: Array, probability: Array, variation: Array) -> Array:
    """Epsilon of a lattice draw: the exact curve with its slack in delta, or zCDP if lower."""
    result = zcdp_block(loss, probability)

    def tighten(at: Indices, bound: Array) -> Array:
        """Pay for the slack at a bound; what that leaves of delta gives epsilon, valid if lower."""
        with np.errstate(over="ignore"):
            spent = (1 + np.exp(bound)) * variation[at] * (1 + 10 * ROUNDING)
        left = np.nextafter(np.maximum(probability[at] - spent, 0), 0)
        exact = epsilon_block(loss[at], left)
        result[at] = np.where(exact <= bound, np.minimum(exact, result[at]), result[at])
        return spent

    spent = tighten(np.arange(loss.size), result)
    seen = np.flatnonzero(spent > 1e-12 * probability)
    tighten(seen, epsilon_block(loss[seen], probability[seen] / 2))
    for _ in range(6):
        before = result[seen]
        tighten(seen, before)
        seen = seen[result[seen] < before * (1 - 1e-9)]
    return result


def _by_form(
    searched: Mask,
    upper: Mask,
    mu: Array,
    middle: Array,
    apply: Callable[[Indices, _Parts, float], None],
) -> None:
    """Hand each element to the form of delta (or 1 - delta) that keeps its digits."""
    at = np.flatnonzero(searched)
    # Digits lost: (1 + middle) / mu by the difference, middle^2 e^(mu middle / 2) by the series.
    close = mu[at] * (5 + middle[at]) < 1
    for chosen, parts, sign in (
        (upper[at], _sum, 1.0),
        (~upper[at] & close, _close_difference, -1.0),
        (~upper[at] & ~close, _difference, -1.0),
    ):
        if chosen.any():
            apply(at[chosen], parts, sign)


def gaussian_mu(loss: Array) -> Array:
    """The Gaussian-DP parameter ``sqrt(2 rho)``."""
    with np.errstate(over="ignore"):
        return np.sqrt(2 * loss)
