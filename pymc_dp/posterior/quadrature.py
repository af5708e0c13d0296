r"""Adaptive quadrature of positive functions of the logarithm of a scale.

Gauss-Legendre panels in ``x = log sigma``: there a density that is finite at ``sigma = 0``
falls off like ``exp(x)``, so a likelihood with its maximum at 0 needs no special care, and scales
many orders apart are equally well resolved. Panels are halved until each is smooth enough, and
added at the ends until nothing is left outside. Densities are kept as logarithms throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.polynomial import legendre

from pymc_dp._typing import Array

NODES = 16
POINTS, WEIGHTS = legendre.leggauss(NODES)
# Projection of values at the nodes on Legendre polynomials 0 to 15, over [-1, 1].
PROJECTION = WEIGHTS[:, None] * legendre.legvander(POINTS, NODES - 1) * (np.arange(NODES) + 0.5)
WIDEST = 4.0  # of a panel, in log sigma
NARROWEST = 1e-9
MOST_PANELS = 3000
LIMIT = 300.0  # |log sigma| looked at: beyond it, variances overflow
EPSILON = np.finfo(float).eps
NOISE = 30.0  # coefficients of pure rounding error, relative to its size
TOLERANCE = 1e-11  # estimated error of a panel, relative to the whole integral
OUTSIDE = 1e-15  # share of the last panel at which no further one is added

Fit = TypeVar("Fit", bound=tuple[Array, ...])


class Evaluation(NamedTuple, Generic[Fit]):
    """A function at n nodes: its logarithm, the size of the terms in it, and what came with it.

    Every array of ``fit`` has leading axis n.
    """

    log_density: Array
    size: Array
    fit: Fit


@dataclass(frozen=True, repr=False)
class Rule(Generic[Fit]):
    """A density of ``x`` on P panels of 16 nodes.

    Attributes
    ----------
    evaluate : callable
        From nodes ``x`` of shape (n,) to an `Evaluation`.
    support : tuple of float
        Ends of the interval of positive density, infinite where there is none.
    left, right : ndarray of shape (P,)
        Panels, in order and without gaps.
    log_density, size : ndarray of shape (P, 16)
        At the nodes, not normalised.
    fit : tuple of ndarray
        At the P * 16 nodes.
    """

    evaluate: Callable[[Array], Evaluation[Fit]]
    support: tuple[float, float]
    left: Array
    right: Array
    log_density: Array
    size: Array
    fit: Fit

    @cached_property
    def sigma(self) -> Array:
        """The nodes in sigma; (P, 16)."""
        return np.asarray(np.exp(nodes(self.left, self.right)))

    @cached_property
    def half_width(self) -> Array:
        """Half the widths of the panels; (P,)."""
        return np.asarray((self.right - self.left) / 2)

    @cached_property
    def probability(self) -> Array:
        """Probabilities of the nodes, which add up to 1; (P, 16)."""
        values = np.exp(self.log_density - self.log_density.max())
        weight = values * WEIGHTS * self.half_width[:, None]
        return np.asarray(weight / weight.sum())

    @cached_property
    def rounding(self) -> float:
        """Rounding error of the log density, from its terms at its top."""
        return float(EPSILON * self.size.ravel()[self.log_density.argmax()])

    @cached_property
    def log_total(self) -> float:
        """Logarithm of the integral."""
        return float(_integral(self).log_total)

    def expectation(self, values: Array) -> Array:
        """Expectation of a function with `values` of shape (P * 16, ...) at the nodes."""
        return np.tensordot(self.probability.ravel(), values, axes=1)

    def quantile(self, probability: Array) -> Array:
        """Quantiles of sigma, by inverting the integral of the interpolated density."""
        scale = np.exp(self.log_density - self.log_density.max()) * self.half_width[:, None]
        within = legendre.legint(scale @ PROJECTION, axis=1, lbnd=-1)  # (P, 17)
        mass = legendre.legval(1.0, within.T)
        after = np.cumsum(mass)
        target = np.asarray(probability) * after[-1]
        panel = np.minimum(np.searchsorted(after, target), mass.size - 1)
        rest = target - np.append(0.0, after)[panel]
        low, high = np.full(rest.shape, -1.0), np.full(rest.shape, 1.0)
        for _ in range(54):  # to the last digit
            middle = (low + high) / 2
            below = legendre.legval(middle, within[panel].T, tensor=False) < rest
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(
            np.exp(self.left[panel] + (1 + (low + high) / 2) * self.half_width[panel])
        )


class PanelSums(NamedTuple):
    """Integrals of functions of log sigma_u: logarithm of the whole, and by panel.

    ``mass`` are the panels' shares and ``error`` their estimated errors, relative to the whole.
    """

    log_total: Array
    mass: Array
    error: Array


def integrate(log_function: Array, half_width: Array, rounding: Array) -> PanelSums:
    """Integrate positive functions given by their logarithms at the nodes.

    Parameters
    ----------
    log_function : ndarray of shape (..., P, 16)
        Overwritten.
    half_width : ndarray of shape (P,)
    rounding : ndarray of shape (...)
        Size of the rounding errors in the logarithms: finer panels do not help against those.

    Notes
    -----
    A Gauss rule of n nodes is exact up to degree 2n - 1, so what it misses in a panel are the
    Legendre coefficients from degree 32 on. They are extrapolated from those at the nodes: the
    last, times the square of the fall from the middle to the last: right for smooth functions,
    whose coefficients fall geometrically, and large for jumps. A weak kink can go unseen.
    """
    top = log_function.max(axis=(-2, -1))
    log_function -= np.where(np.isneginf(top), 0.0, top)[..., None, None]
    np.exp(log_function, out=log_function)
    first, *others = np.moveaxis(log_function @ PROJECTION[:, [0, 7, 8, 14, 15]], -1, 0)
    middle, last = (np.abs(others[i]) + np.abs(others[i + 1]) for i in (0, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.where(last < middle, last / middle, 1.0)
        # Where next to nothing is, nothing can be wrong.
        missed = np.where(first > 1e-200, last / first * fall**2, 0.0)
        integral = 2 * first * half_width
        total = integral.sum(axis=-1)
        mass = integral / total[..., None]
        error = mass * (missed - NOISE * rounding[..., None])
        return PanelSums(top + np.log(total), mass, error)


def start(
    evaluate: Callable[[Array], Evaluation[Fit]],
    low: float,
    high: float,
    support: tuple[float, float],
) -> Rule[Fit]:
    """Cover a first range with panels of at most the widest size."""
    edges = np.linspace(low, high, 1 + max(1, int(np.ceil((high - low) / WIDEST))))
    return Rule(evaluate, support, edges[:-1], edges[1:], *_at(evaluate, edges[:-1], edges[1:]))


def adapt(rule: Rule[Fit], tolerance: float | None = None, *, check: bool = True) -> Rule[Fit]:
    """Refine until every panel is smooth, nothing is outside, and halving changes nothing.

    That last check, which doubles the work, can be left out.

    Raises
    ------
    ValueError
        If the integral is not finite, or has weight beyond what can be computed with.
    """
    goal = TOLERANCE if tolerance is None else tolerance
    while True:
        sums = _integral(rule)
        finer = refine(rule, sums.error, sums.mass, goal)
        if (
            finer is rule and check
        ):  # then see whether halving the panels changes what it should not
            change = np.abs(sums.mass - _integral(halve(rule)).mass.reshape(-1, 2).sum(axis=1))
            finer = refine(rule, change - NOISE * rule.rounding, np.zeros_like(change), goal)
        if finer is rule:
            break
        rule = finer
    open_end = [rule.support[0] < rule.left[0], rule.support[1] > rule.right[-1]]
    if not np.isfinite(sums.log_total) or (sums.mass[[0, -1]][open_end] > 1e-9).any():
        raise ValueError(
            "the posterior of sigma_u is improper, or has weight at values too small or too "
            "large to compute with: choose another prior"
        )
    return rule


def refine(rule: Rule[Fit], error: Array, mass: Array, tolerance: float) -> Rule[Fit]:
    """Halve the panels whose `error` is too large, and add panels at ends that have `mass`.

    Parameters
    ----------
    rule : Rule
    error, mass : ndarray of shape (P,)
        Largest over the integrands of interest.
    tolerance : float

    Returns
    -------
    Rule
        `rule` itself where nothing is to be done, or can be.
    """
    coarse = ~(error <= tolerance) & (rule.half_width > NARROWEST)
    if rule.left.size + coarse.sum() > MOST_PANELS:
        return rule
    middle = (rule.left + rule.right)[coarse] / 2
    left, right = [rule.left[coarse], middle], [middle, rule.right[coarse]]
    lowest, highest = max(rule.support[0], -LIMIT), min(rule.support[1], LIMIT)
    if mass[0] > OUTSIDE and rule.left[0] > lowest:
        left.append(np.array([max(rule.left[0] - WIDEST, lowest)]))
        right.append(rule.left[:1])
    if mass[-1] > OUTSIDE and rule.right[-1] < highest:
        left.append(rule.right[-1:])
        right.append(np.array([min(rule.right[-1] + WIDEST, highest)]))
    new_left, new_right = np.concatenate(left), np.concatenate(right)
    return _join(rule, ~coarse, new_left, new_right) if new_left.size else rule


def halve(rule: Rule[Fit]) -> Rule[Fit]:
    """Halve every panel, to see what that changes."""
    middle = (rule.left + rule.right) / 2
    left, right = np.append(rule.left, middle), np.append(middle, rule.right)
    return _join(rule, np.zeros(rule.left.size, dtype=bool), left, right)


def nodes(left: Array, right: Array) -> Array:
    """Nodes of panels; (P, 16)."""
    middle, half = (left + right) / 2, (right - left) / 2
    return np.asarray(middle[:, None] + half[:, None] * POINTS)


def _integral(rule: Rule[Fit]) -> PanelSums:
    return integrate(rule.log_density.copy(), rule.half_width, np.array(rule.rounding))


def _at(
    evaluate: Callable[[Array], Evaluation[Fit]], left: Array, right: Array
) -> tuple[Array, Array, Fit]:
    """Values on panels: logarithm and size of shape (P, 16), and the fit."""
    x = nodes(left, right)
    found = evaluate(x.ravel())
    return found.log_density.reshape(x.shape), found.size.reshape(x.shape), found.fit


def _join(rule: Rule[Fit], keep: np.ndarray, new_left: Array, new_right: Array) -> Rule[Fit]:
    """Kept and new panels in one rule, in order."""
    log_density, size, fit = _at(rule.evaluate, new_left, new_right)
    left = np.append(rule.left[keep], new_left)
    order = np.argsort(left)

    def join(old: Array, added: Array) -> Array:
        """One panel's nodes are a row."""
        by_panel = [v.reshape(len(v) // NODES, NODES, *v.shape[1:]) for v in (old, added)]
        both = np.concatenate([by_panel[0][keep], by_panel[1]])[order]
        return both.reshape(len(both) * NODES, *both.shape[2:])

    make: Any = type(rule.fit)
    return replace(
        rule,
        left=left[order],
        right=np.append(rule.right[keep], new_right)[order],
        log_density=join(rule.log_density.ravel(), log_density.ravel()).reshape(-1, NODES),
        size=join(rule.size.ravel(), size.ravel()).reshape(-1, NODES),
        fit=make(*(join(old, added) for old, added in zip(rule.fit, fit, strict=True))),
    )
