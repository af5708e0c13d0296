r"""From one Gaussian price to every figure that people quote.

Everything starts from ``rho``, the zCDP price of a Gaussian release: neighbouring data sets give
Gaussians of equal covariance whose means lie :math:`\mu = \sqrt{2\rho}` standard deviations apart.

All functions take scalars or arrays (whatever :func:`numpy.asarray` reads as numbers), broadcast
as NumPy does, and return a ``float`` for scalars, else an array. Nothing has a unit; epsilon is in
natural logarithms.

**Rounding.** ``epsilon``, ``epsilon_zcdp``, ``lattice_epsilon``, ``delta`` and ``advantage`` are
rounded up: never below the exact value for the inputs as given. Missing, negative or otherwise
impossible inputs raise ``ValueError``; they never turn into "no loss".

**Why there is no pure epsilon.** If one record moves a direct estimate from :math:`y'` to
:math:`y`, the log likelihood ratio of the released :math:`\theta` is
:math:`(y - y')\,\theta / D` plus a constant: a line in :math:`\theta`, without bound, and a
Gaussian draw may fall anywhere. So no finite epsilon holds with delta 0:

>>> epsilon(0.5, 0.0)
inf
>>> delta(0.5, 700.0) > 0
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfc, erfcx, ndtri

from pymc_dp.checks import name_some

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
Figure = float | Array
"""A float when every argument was a scalar, else an array of the broadcast shape."""

_Mills = Callable[[Array], Array]
_Parts = Callable[[Array, Array, _Mills], tuple[Array, Array]]

_BLOCK = 16_384  # elements worked on at a time: the temporaries stay in the processor's cache
_UNPROTECTED = 1e300  # a rho above it counts as infinite, before squares overflow
_MARGIN = 3e-15  # a computed log probability L errs by at most half of _MARGIN * (10 + |L|)
_ROUNDING = 1e-15  # above the relative rounding error of the few operations it is used for
_LATTICE_SLACK = 0.0202  # total variation of one coordinate over the squared spacing ...
_COARSEST = 0.125  # ... which is an upper bound up to this spacing


def rdp(rho: npt.ArrayLike, order: npt.ArrayLike) -> Figure:
    r"""Renyi divergence :math:`\alpha\rho` between the releases of two neighbouring data sets.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0; infinity means no protection.
    order : array_like
        Renyi order alpha, above 1, infinity allowed.

    Returns
    -------
    float or ndarray
        ``order * rho``; 0 where rho is 0, at every order.

    Raises
    ------
    ValueError
        If an argument is empty or not numeric, a rho NaN or negative, an order NaN or not above 1.

    Notes
    -----
    Exact for Gaussians of equal covariance (Bun and Steinke 2016, Lemma 2.4; Mironov 2017).

    Examples
    --------
    >>> rdp(0.5, [2, 4])
    array([1., 2.])
    """
    loss = _loss(rho)
    orders = _numbers("order", order, "above 1", lambda a: a > 1)
    # Identical distributions diverge at no order: 0 * inf is 0 here.
    with np.errstate(over="ignore"):
        return _figure(np.where(loss > 0, orders, 1.0) * loss)


def mu(rho: npt.ArrayLike) -> Figure:
    r"""Distance :math:`\mu = \sqrt{2\rho}` of the neighbouring means in standard deviations.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0.

    Returns
    -------
    float or ndarray
        The parameter of Gaussian differential privacy.

    Raises
    ------
    ValueError
        If rho is empty, not numeric, negative or NaN.

    Notes
    -----
    Dong, Roth and Su (2022). It belongs to the Gaussian form: zCDP alone does not imply it.

    Examples
    --------
    >>> mu(0.5)
    1.0
    """
    return _figure(_mu(_loss(rho)))


def advantage(rho: npt.ArrayLike) -> Figure:
    r"""Largest advantage of an attacker who must tell two neighbouring data sets apart.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0.

    Returns
    -------
    float or ndarray
        :math:`2\Phi(\mu/2) - 1`, the total variation distance: true positive rate less false
        positive rate of the best test, from 0 (no better than a guess) to 1.

    Raises
    ------
    ValueError
        If rho is empty, not numeric, negative or NaN.

    Examples
    --------
    >>> round(advantage(0.5), 4)
    0.3829
    """
    return _figure(np.minimum(erf(np.sqrt(_loss(rho)) / 2) * (1 + _ROUNDING), 1.0))


def epsilon(rho: npt.ArrayLike, delta: npt.ArrayLike) -> Figure:
    r"""Exact epsilon of a Gaussian release at a given delta.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0.
    delta : array_like
        Probability between 0 and 1.

    Returns
    -------
    float or ndarray
        The smallest epsilon for which the release is (epsilon, delta) differentially private,
        rounded up by less than ``1e-12 * (epsilon + mu)``; 0 where delta is at least the attacker's
        :func:`advantage` (up to that rounding), infinite for delta 0 or an infinite rho. A rho
        above 1e300 counts as infinite.

    Raises
    ------
    ValueError
        If an argument is empty or not numeric, a rho NaN or negative, a delta NaN or outside
        [0, 1].

    Notes
    -----
    The root of
    :math:`\delta = \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu)`
    (Balle and Wang 2018, Theorem 8). With :math:`x = \epsilon/\mu - \mu/2` and Mills' ratio
    :math:`r(x) = \Phi(-x)/\varphi(x)` the right side is
    :math:`\varphi(x)\,[r(x) - r(x + \mu)]`, which neither overflows nor loses digits. For delta
    above one half the complement :math:`\varphi(x)\,[r(-x) + r(x + \mu)]` takes its place. The
    logarithm of either is concave in x, so the search cannot go astray.

    Examples
    --------
    >>> round(epsilon(0.5, 1e-6), 6)
    4.886554
    """
    return _figure(_blockwise(_epsilon_block, _loss(rho), _probability(delta)))


def delta(rho: npt.ArrayLike, epsilon: npt.ArrayLike) -> Figure:
    r"""Exact delta of a Gaussian release at a given epsilon.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0.
    epsilon : array_like
        At least 0, infinity allowed.

    Returns
    -------
    float or ndarray
        :math:`\Phi(\mu/2 - \epsilon/\mu) - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu)`, rounded up
        by less than a relative 1e-11 and never above 1. It is 0 only for rho 0 or an infinite
        epsilon: a value too small for a double becomes the smallest positive double.

    Raises
    ------
    ValueError
        If an argument is empty or not numeric, or has negative or NaN entries.

    Notes
    -----
    Balle and Wang (2018), Theorem 8, evaluated as described under :func:`epsilon`. For every d that
    is a normal double, ``delta(rho, epsilon(rho, d)) <= d``.

    Examples
    --------
    >>> round(delta(0.5, 1.0), 8)
    0.12693674
    """
    bound = _numbers("epsilon", epsilon, "at least 0", lambda e: e >= 0)
    return _figure(_blockwise(_delta_block, _loss(rho), bound))


def epsilon_zcdp(rho: npt.ArrayLike, delta: npt.ArrayLike) -> Figure:
    r"""Epsilon that follows from rho-zCDP alone, at a given delta.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0.
    delta : array_like
        Probability between 0 and 1.

    Returns
    -------
    float or ndarray
        The best value over all real orders, rounded up by a relative 1e-14 of the terms it is the
        sum of, and 0 where it is negative. Infinite for delta 0 or an infinite rho; a rho above
        1e300 counts as infinite.

    Raises
    ------
    ValueError
        If an argument is empty or not numeric, a rho NaN or negative, a delta NaN or outside
        [0, 1].

    Notes
    -----
    Canonne, Kamath and Steinke (2020), Proposition 12:

    .. math:: \min_{\alpha > 1}\; \alpha\rho + \frac{\log(1/(\alpha\delta))}{\alpha - 1}
              + \log(1 - 1/\alpha).

    The best order solves :math:`\rho(\alpha - 1)^2 = \log(1/(\alpha\delta))`; any other order gives
    a valid bound too. Never below :func:`epsilon`; it holds for every mechanism of this zCDP price.

    Examples
    --------
    >>> round(epsilon_zcdp(0.5, 1e-6), 6)
    5.221534
    """
    return _figure(_blockwise(_zcdp_block, _loss(rho), _probability(delta)))


def lattice_epsilon(
    rho: npt.ArrayLike, delta: npt.ArrayLike, *, spacing: npt.ArrayLike, coordinates: npt.ArrayLike
) -> Figure:
    r"""Epsilon of a release whose Gaussian noise lives on a lattice.

    Parameters
    ----------
    rho : array_like
        zCDP price, at least 0.
    delta : array_like
        Probability between 0 and 1.
    spacing : array_like
        Distance h of neighbouring lattice points in standard deviations of the noise.
    coordinates : array_like
        Number of noise coordinates that the changed record moves, at least 1.

    Returns
    -------
    float or ndarray
        The smaller of the exact Gaussian epsilon, the lattice being paid for in delta, and
        :func:`epsilon_zcdp`, which holds on the lattice as it is. Always an upper bound.

    Raises
    ------
    ValueError
        If an argument is empty, not numeric or out of range: rho and delta as for :func:`epsilon`,
        spacing positive and finite, coordinates finite and at least 1.

    Notes
    -----
    A discrete Gaussian of spacing h differs from a Gaussian rounded to the lattice (which is
    post-processing) by a total variation of about :math:`h^2 \varphi(1)/12`, at most
    :math:`0.0202\,h^2` while h is at most 1/8, in each coordinate (Canonne, Kamath and Steinke 2020
    for the discrete Gaussian). So the exact curve holds with delta enlarged by
    :math:`(1 + e^\epsilon)` times the coordinates times that. On a coarser lattice the zCDP figure
    stands alone.

    Examples
    --------
    >>> round(lattice_epsilon(0.5, 1e-6, spacing=2.0**-40, coordinates=3), 6)
    4.886554
    """
    step = _numbers("spacing", spacing, "positive and finite", lambda h: (h > 0) & (h < np.inf))
    count = _numbers(
        "coordinates", coordinates, "finite and at least 1", lambda c: (c >= 1) & (c < np.inf)
    )
    with np.errstate(over="ignore", under="ignore"):
        variation = np.where(step <= _COARSEST, _LATTICE_SLACK * count * step**2, np.inf)
    return _figure(_blockwise(_lattice_block, _loss(rho), _probability(delta), variation))


def _mills(x: Array) -> Array:
    """Mills' ratio Phi(-x) / phi(x)."""
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


def _epsilon_block(loss: Array, probability: Array) -> Array:
    mu, upper = _mu(loss), probability > 0.5
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
    unbounded = positive & ((probability == 0) | (loss > _UNPROTECTED))
    result = np.where(unbounded, np.inf, 0.0)

    def solve(at: Indices, parts: _Parts, sign: float) -> None:
        shift = mu[at]
        if parts is _close_difference:
            start = np.sqrt(middle[at] ** 2 + np.pi / 2) - np.sqrt(np.pi / 2) - shift / 2
        else:
            start = np.maximum(-ndtri(probability[at]), -shift / 2)
        x = _root(parts, sign, start, shift, target[at])
        result[at] = shift * (x + shift / 2) * (1 + _ROUNDING)

    _by_form(positive & ~unbounded, upper, mu, middle, solve)
    return result


def _delta_block(loss: Array, bound: Array) -> Array:
    result = np.where((loss == 0) | (bound == np.inf), 0.0, 1.0)
    mu = _mu(loss)
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


def _zcdp_block(loss: Array, probability: Array) -> Array:
    unbounded = (loss > 0) & (probability < 1) & ((probability == 0) | (loss > _UNPROTECTED))
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
    error = 2 * _ROUNDING * (first + (surprise + np.log1p(s)) / s + third)
    result[at] = np.maximum(first + second - third + error, 0.0)
    return result


def _lattice_block(loss: Array, probability: Array, variation: Array) -> Array:
    result = _zcdp_block(loss, probability)

    def tighten(at: Indices, bound: Array) -> Array:
        """Pay for the slack at a bound; what that leaves of delta gives epsilon, valid if lower."""
        with np.errstate(over="ignore"):
            spent = (1 + np.exp(bound)) * variation[at] * (1 + 10 * _ROUNDING)
        left = np.nextafter(np.maximum(probability[at] - spent, 0), 0)
        exact = _epsilon_block(loss[at], left)
        result[at] = np.where(exact <= bound, np.minimum(exact, result[at]), result[at])
        return spent

    spent = tighten(np.arange(loss.size), result)
    seen = np.flatnonzero(spent > 1e-12 * probability)
    tighten(seen, _epsilon_block(loss[seen], probability[seen] / 2))
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


def _mu(loss: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.sqrt(2 * loss)


def _blockwise(function: Callable[..., Array], *arrays: Array) -> Array:
    """Broadcast the arrays and apply the function to a cache-sized block of elements at a time."""
    result = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)))
    use: list[list[Literal["readonly", "writeonly"]]] = [["readonly"] for _ in arrays]
    with np.nditer(
        [*arrays, result],
        flags=["external_loop", "buffered"],
        op_flags=[*use, ["writeonly"]],
        order="C",
        buffersize=_BLOCK,
    ) as blocks:
        for *inputs, output in blocks:
            output[...] = function(*inputs)
    return result


def _loss(rho: npt.ArrayLike) -> Array:
    return _numbers("rho", rho, "at least 0", lambda r: r >= 0)


def _probability(delta: npt.ArrayLike) -> Array:
    return _numbers("delta", delta, "between 0 and 1", lambda d: (d >= 0) & (d <= 1))


def _numbers(name: str, value: npt.ArrayLike, rule: str, allowed: Callable[[Array], Mask]) -> Array:
    """Read an argument as floats, each of them allowed; NaN satisfies no rule."""
    given = np.asarray(value)
    if given.size == 0:
        raise ValueError(f"{name} is empty")
    if given.dtype.kind not in "iuf" or np.ma.is_masked(value):
        raise ValueError(f"{name} must be numbers without gaps, got {given.dtype}")
    numbers = given.astype(np.float64)
    bad = np.flatnonzero(~allowed(numbers))
    if bad.size:
        count = f"{bad.size} of {numbers.size} entries" if numbers.ndim else "it"
        where = f" (positions {name_some(bad)})" if numbers.ndim else ""
        verb = "is" if count == "it" or bad.size == 1 else "are"
        raise ValueError(f"{name} must be {rule}, {count} {verb} not{where}")
    return numbers


def _figure(values: Array) -> Figure:
    return float(values) if values.ndim == 0 else values
