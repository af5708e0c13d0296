r"""The posterior of sigma_u as an adaptive quadrature rule.

Gauss-Legendre panels in ``x = log sigma_u``: there a density that is finite at ``sigma_u = 0``
falls off like ``exp(x)``, so a likelihood with its maximum at 0 needs no special care, and scales
many orders apart are equally well resolved. Panels are halved until each is smooth enough, and
added at the ends until nothing is left outside. Densities are kept as logarithms throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytensor.tensor as pt
import xarray as xr
from numpy.polynomial import legendre

from pymc_dp import containers
from pymc_dp._typing import Array
from pymc_dp._version import __version__
from pymc_dp.models.gls import GlsFit, Sample, sample_of
from pymc_dp.models.inputs import AreaData, area_data
from pymc_dp.models.prior import LIMIT, SigmaPrior, sigma_prior

NODES = 16
POINTS, WEIGHTS = legendre.leggauss(NODES)
# Projection of values at the nodes on Legendre polynomials 0 to 15, over [-1, 1].
PROJECTION = WEIGHTS[:, None] * legendre.legvander(POINTS, NODES - 1) * (np.arange(NODES) + 0.5)
WIDEST = 4.0  # of a panel, in log sigma_u
NARROWEST = 1e-9
MOST_PANELS = 3000
EPSILON = np.finfo(float).eps
NOISE = 30.0  # coefficients of pure rounding error, relative to its size
TOLERANCE = 1e-11  # estimated error of a panel, relative to the whole integral
OUTSIDE = 1e-15  # share of the last panel at which no further one is added


@dataclass(frozen=True, repr=False)
class SigmaPosterior:
    """The posterior density of ``x = log sigma_u`` on P panels of 16 nodes.

    Attributes
    ----------
    sample : Sample
        The areas with a sample, direct estimates less ``X @ centre``.
    centre : ndarray of shape (p,)
        Coefficients taken out, so that differences between nodes keep their digits.
    prior : SigmaPrior
    left, right : ndarray of shape (P,)
        Panels, in order and without gaps.
    log_density : ndarray of shape (P, 16)
        Prior times likelihood at the nodes, not normalised.
    fit : GlsFit
        Generalised least squares at the P * 16 nodes; its coefficients are relative to `centre`.
    """

    sample: Sample
    centre: Array
    prior: SigmaPrior
    left: Array
    right: Array
    log_density: Array
    fit: GlsFit

    @cached_property
    def sigma(self) -> Array:
        """The nodes in sigma_u; (P, 16)."""
        return np.asarray(np.exp(_nodes(self.left, self.right)))

    @cached_property
    def half_width(self) -> Array:
        """Half the widths of the panels; (P,)."""
        return np.asarray((self.right - self.left) / 2)

    @cached_property
    def probability(self) -> Array:
        """Posterior probabilities of the nodes, which add up to 1; (P, 16)."""
        values = np.exp(self.log_density - self.log_density.max())
        weight = values * WEIGHTS * self.half_width[:, None]
        return np.asarray(weight / weight.sum())

    @cached_property
    def rounding(self) -> float:
        """Rounding error of the log density, from the terms of the likelihood at its top."""
        terms = self.fit.log_determinant, self.fit.log_information, self.fit.residual
        return float(EPSILON * sum(np.abs(v[self.log_density.argmax()]) for v in terms))

    def expectation(self, values: Array) -> Array:
        """Posterior expectation of a function with `values` of shape (P * 16, ...) at the nodes."""
        return np.tensordot(self.probability.ravel(), values, axes=1)

    def quantile(self, probability: Array) -> Array:
        """Quantiles of sigma_u, by inverting the integral of the interpolated density."""
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


def posterior_of_sigma_u(data: AreaData, prior: SigmaPrior) -> SigmaPosterior:
    """Posterior of sigma_u, coefficients integrated out under their flat prior.

    Raises
    ------
    ValueError
        If it is improper, which only an improper prior can bring about.
    """
    sample = sample_of(data)
    centre = sample.fit(np.array([np.median(sample.D)])).coefficient[0]
    residual = sample.y - sample.X @ centre
    sample = Sample(residual, sample.D, sample.X)
    # A first range, from far below the smallest sampling variance to the spread of the data.
    low = min(np.log(sample.D.min()) / 2 - 16, prior.inside)
    high = max(np.log(sample.D.max() + (residual**2).max()) / 2 + 2, prior.inside)
    low, high = np.clip([low, high], max(prior.lower, -LIMIT), min(prior.upper, LIMIT))
    edges = np.linspace(low, high, 1 + max(1, int(np.ceil((high - low) / WIDEST))))
    rule = _evaluate(sample, centre, prior, edges[:-1], edges[1:])
    while True:
        sums = _integral(rule)
        finer = refine(rule, sums.error, sums.mass, TOLERANCE)
        if finer is rule:  # then see whether halving the panels changes what it should not
            change = np.abs(sums.mass - _integral(halve(rule)).mass.reshape(-1, 2).sum(axis=1))
            finer = refine(rule, change - NOISE * rule.rounding, np.zeros_like(change), TOLERANCE)
        if finer is rule:
            break
        rule = finer
    open_end = [prior.lower < rule.left[0], prior.upper > rule.right[-1]]
    if not np.isfinite(sums.log_total) or (sums.mass[[0, -1]][open_end] > 1e-9).any():
        raise ValueError(
            "the posterior of sigma_u is improper, or has weight at values too small or too "
            "large to compute with: choose another prior"
        )
    return rule


def refine(rule: SigmaPosterior, error: Array, mass: Array, tolerance: float) -> SigmaPosterior:
    """Halve the panels whose `error` is too large, and add panels at ends that have `mass`.

    Parameters
    ----------
    rule : SigmaPosterior
    error, mass : ndarray of shape (P,)
        Largest over the integrands of interest.
    tolerance : float

    Returns
    -------
    SigmaPosterior
        `rule` itself where nothing is to be done, or can be.
    """
    coarse = ~(error <= tolerance) & (rule.half_width > NARROWEST)
    if rule.left.size + coarse.sum() > MOST_PANELS:
        return rule
    middle = (rule.left + rule.right)[coarse] / 2
    left, right = [rule.left[coarse], middle], [middle, rule.right[coarse]]
    lowest, highest = max(rule.prior.lower, -LIMIT), min(rule.prior.upper, LIMIT)
    if mass[0] > OUTSIDE and rule.left[0] > lowest:
        left.append(np.array([max(rule.left[0] - WIDEST, lowest)]))
        right.append(rule.left[:1])
    if mass[-1] > OUTSIDE and rule.right[-1] < highest:
        left.append(rule.right[-1:])
        right.append(np.array([min(rule.right[-1] + WIDEST, highest)]))
    new_left, new_right = np.concatenate(left), np.concatenate(right)
    if not new_left.size:
        return rule
    new = _evaluate(rule.sample, rule.centre, rule.prior, new_left, new_right)
    return _join(rule, ~coarse, new)


def halve(rule: SigmaPosterior) -> SigmaPosterior:
    """Halve every panel, to see what that changes."""
    middle = (rule.left + rule.right) / 2
    left, right = np.append(rule.left, middle), np.append(middle, rule.right)
    new = _evaluate(rule.sample, rule.centre, rule.prior, left, right)
    return _join(rule, np.zeros(rule.left.size, dtype=bool), new)


def _integral(rule: SigmaPosterior) -> PanelSums:
    return integrate(rule.log_density.copy(), rule.half_width, np.array(rule.rounding))


def _nodes(left: Array, right: Array) -> Array:
    middle, half = (left + right) / 2, (right - left) / 2
    return np.asarray(middle[:, None] + half[:, None] * POINTS)


def _evaluate(
    sample: Sample, centre: Array, prior: SigmaPrior, left: Array, right: Array
) -> SigmaPosterior:
    x = _nodes(left, right)
    fit = sample.fit(np.exp(2 * x).ravel())
    likelihood = fit.log_restricted_likelihood(sample.y.size).reshape(x.shape)
    log_density = likelihood + prior.log_density(x)
    return SigmaPosterior(sample, centre, prior, left, right, log_density, fit)


def _join(rule: SigmaPosterior, keep: np.ndarray, new: SigmaPosterior) -> SigmaPosterior:
    """Kept and new panels in one rule, in order."""
    left = np.append(rule.left[keep], new.left)
    order = np.argsort(left)

    def join(old: Array, added: Array) -> Array:
        """One panel's nodes are a row."""
        by_panel = [v.reshape(-1, NODES, *v.shape[1:]) for v in (old, added)]
        both = np.concatenate([by_panel[0][keep], by_panel[1]])[order]
        return both.reshape(-1, *both.shape[2:])

    return SigmaPosterior(
        rule.sample,
        rule.centre,
        rule.prior,
        left[order],
        np.append(rule.right[keep], new.right)[order],
        join(rule.log_density.ravel(), new.log_density.ravel()).reshape(-1, NODES),
        GlsFit(*(join(old, added) for old, added in zip(rule.fit, new.fit, strict=True))),
    )


def sample_posterior(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    prior: pt.TensorVariable | None = None,
    draws: int = 1000,
    random_seed: int | np.random.Generator | None = None,
) -> Any:
    """Draw from the posterior of the Fay-Herriot model, exactly and independently.

    The model is that of :func:`fay_herriot` with flat coefficients. sigma_u is drawn by
    inverting its distribution function, computed by quadrature; then the coefficients and the
    area means from their normal distributions. No warm-up, no divergences, no autocorrelation.

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate`` and ``variance`` on dim ``area``; both missing where there is no sample.
    formula, covariates
        As for :func:`fay_herriot`.
    prior : PyMC distribution, optional
        Prior of sigma_u, any continuous scalar distribution without a name, such as
        ``pm.HalfNormal.dist(0.1)``. By default HalfNormal with a scale of a quarter of the
        outcome's declared range.
    draws : int
    random_seed : int or Generator, optional

    Returns
    -------
    InferenceData (PyMC 5) or DataTree (PyMC 6)
        Group ``posterior`` with dims ``chain`` (1) and ``draw``: ``sigma_u``, ``beta``
        (``covariate``), ``theta`` (``area``); group ``observed_data`` with ``y``, as
        ``pm.sample`` leaves them. There are no sampler statistics to report.

    Raises
    ------
    ValueError
        If the inputs or the prior are unusable, the posterior is improper, or `draws` is not a
        positive whole number.

    Notes
    -----
    The draws are for study, and come with no privacy guarantee: sigma_u is learned from the same
    data (see :func:`compare_variance_components`). The distribution function of sigma_u is
    accurate to better than 1e-7.

    Examples
    --------
    >>> import pymc as pm
    >>> import xarray as xr
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> idata = sample_posterior(direct, prior=pm.HalfNormal.dist(0.1), draws=50, random_seed=1)
    >>> idata.posterior["theta"].shape
    (1, 50, 2)
    """
    data = area_data(direct, formula, covariates)
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError("draws must be a positive whole number")
    rng = np.random.default_rng(random_seed)
    rule = posterior_of_sigma_u(data, sigma_prior(prior, data.bounds))
    sigma = rule.quantile(rng.uniform(size=draws))
    fit = rule.sample.fit(sigma**2)
    normal = rng.standard_normal((draws, len(data.covariate), 1))
    beta = rule.centre + fit.coefficient + (fit.root @ normal)[:, :, 0]
    theta = _draw_areas(data, sigma, beta, rng)
    attrs = _attributes()
    posterior = xr.Dataset(
        {
            "beta": (("chain", "draw", "covariate"), beta[None]),
            "sigma_u": (("chain", "draw"), sigma[None]),
            "theta": (("chain", "draw", "area"), theta[None]),
        },
        coords={
            "chain": [0],
            "draw": np.arange(draws),
            "covariate": list(data.covariate),
            "area": list(data.area),
        },
        attrs=attrs,
    )
    everywhere = len(data.sampled) == len(data.area)
    dim = "area" if everywhere else "sampled_area"
    observed = xr.Dataset(
        {"y": (dim, data.estimate[data.sampled])},
        coords={dim: [data.area[i] for i in data.sampled]},
        attrs=attrs,
    )
    idata = containers.new_container()
    idata["posterior"], idata["observed_data"] = posterior, observed
    return idata


def _attributes() -> dict[str, str]:

    return {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "creation_library": "pymc_dp",
        "creation_library_version": __version__,
        "inference_library": "pymc_dp",
        "inference_library_version": __version__,
        "sampler": "exact and independent, sigma_u by quadrature",
        "privacy": "no claim: sigma_u is estimated from the same data",
    }


def _draw_areas(data: AreaData, sigma: Array, beta: Array, rng: np.random.Generator) -> Array:
    """``theta`` given sigma_u, beta and the direct estimates, independent by area; (draws, m).

    With ``1 / D = 0`` where there is no sample, one formula serves all areas.
    """
    precision = np.where(np.isnan(data.variance), 0.0, 1 / data.variance)
    y = np.nan_to_num(data.estimate)
    A = (sigma**2)[:, None]
    shrinkage = 1 / (1 + A * precision)
    centre = shrinkage * (beta @ data.design.T + A * (precision * y))
    noise = rng.standard_normal(centre.shape)
    return np.asarray(centre + sigma[:, None] * np.sqrt(shrinkage) * noise)
