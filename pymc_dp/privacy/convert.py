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

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import numpy.typing as npt

from pymc_dp._checks import name_some
from pymc_dp.privacy._curve import (
    COARSEST,
    LATTICE_SLACK,
    ROUNDING,
    UNPROTECTED,
    Array,
    Mask,
    delta_block,
    epsilon_block,
    gaussian_mu,
    lattice_block,
    zcdp_block,
)

Figure = float | Array


"""A float when every argument was a scalar, else an array of the broadcast shape."""
_BLOCK = 16_384  # elements worked on at a time: the temporaries stay in the processor's cache


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
    return _figure(gaussian_mu(_loss(rho)))


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
    from scipy.special import erf  # a fifth of a second at import, on PyMC 6

    return _figure(np.minimum(erf(np.sqrt(_loss(rho)) / 2) * (1 + ROUNDING), 1.0))


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
    return _figure(_blockwise(epsilon_block, _loss(rho), _probability(delta)))


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
    return _figure(_blockwise(delta_block, _loss(rho), bound))


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
    return _figure(_blockwise(zcdp_block, _loss(rho), _probability(delta)))


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
        variation = np.where(step <= COARSEST, LATTICE_SLACK * count * step**2, np.inf)
    return _figure(_blockwise(_lattice_block, _loss(rho), _probability(delta), variation))


def _lattice_block(loss: Array, probability: Array, variation: Array) -> Array:
    """Epsilon of a lattice draw; where the slack is nothing beside delta, by one search.

    There the exact curve, at the delta that is left, lies below what follows from zCDP. To see
    that the slack is nothing, a rough bound of epsilon will do: that of Bun and Steinke (2016).
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        rough = loss + 2 * np.sqrt(-loss * np.log(probability))
        spent = (1 + np.exp(rough)) * variation * (1 + 10 * ROUNDING)
        fine = (spent < 1e-12 * probability) & (probability <= 0.5) & (loss <= UNPROTECTED)
    if not fine.all():
        return lattice_block(loss, probability, variation)
    return epsilon_block(loss, np.nextafter(probability - spent, 0))


def _blockwise(function: Callable[..., Array], *arrays: Array) -> Array:
    """Broadcast the arrays and apply the function to a cache-sized block of elements at a time.

    Cores share the blocks: NumPy and SciPy let go of the interpreter while they compute. Blocks
    are the same on any number of cores, and so are the results.
    """
    result = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)))
    use: list[list[Literal["readonly", "writeonly"]]] = [["readonly"] for _ in arrays]

    def work(first: int, last: int) -> None:
        with np.nditer(
            [*arrays, result],
            flags=["external_loop", "buffered", "ranged"],
            op_flags=[*use, ["writeonly"]],
            order="C",
            buffersize=_BLOCK,
        ) as blocks:
            blocks.iterrange = first, last  # type: ignore[misc]  # read-only in NumPy's stubs only
            for *inputs, output in blocks:
                output[...] = function(*inputs)

    starts = range(0, result.size, _BLOCK)
    if len(starts) < 2:
        work(0, result.size)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda first: work(first, min(first + _BLOCK, result.size)), starts))
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
