"""The prior of sigma_u as a function of numbers, for any scalar PyMC distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import support_point
from pymc.logprob.abstract import MeasurableOp
from pymc.printing import str_for_dist
from pytensor.graph import ancestors
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.random.basic import NormalRV

from pymc_dp._typing import Array
from pymc_dp.posterior.quadrature import LIMIT


@dataclass(frozen=True)
class SigmaPrior:
    """Log density of sigma_u on the scale of ``log sigma_u``.

    Attributes
    ----------
    words : str
        Such as "HalfNormal(0, 0.1)".
    log_density : callable
        ``log_density(x)`` is the log prior density of ``x = log sigma_u``, Jacobian included.
    lower, upper : float
        Support of ``x``, taken to be an interval; infinite where there is no edge.
    inside : float
        A value of ``x`` with positive density.
    """

    words: str
    log_density: Callable[[Array], Array]
    lower: float
    upper: float
    inside: float


def sigma_prior(prior: pt.TensorVariable | None, bounds: tuple[float, float] | None) -> SigmaPrior:
    """Read a prior of sigma_u.

    Parameters
    ----------
    prior : PyMC distribution without a name, or None
        ``pm.HalfNormal.dist(0.1)``. None is HalfNormal with a scale of a quarter of the
        outcome's declared range, as in :func:`fay_herriot`.
    bounds : tuple of float or None
        The declared range.

    Raises
    ------
    ValueError
        No prior and no declared range; not a continuous scalar distribution with constant
        parameters; weight on negative values.
    """
    return positive_prior(pm.HalfNormal.dist(default_scale(bounds)) if prior is None else prior)


def positive_prior(prior: pt.TensorVariable, name: str = "sigma_u") -> SigmaPrior:
    """Read a prior of a positive number, called `name` in messages."""
    if not is_distribution(prior) or prior.type.ndim:
        raise ValueError(
            f"the prior of {name} must be a scalar PyMC distribution without a name, such as "
            "pm.HalfNormal.dist(0.1)"
        )
    if prior.type.dtype not in ("float32", "float64"):
        raise ValueError(f"the prior of {name} must be continuous")
    one, many = pt.dscalar(), pt.dvector()
    graph = pm.logp(prior, one, warn_rvs=False)
    _refuse_random(graph, name)
    # Stabilised: tails must not underflow.
    mode = pytensor.compile.mode.Mode(linker="py", optimizer="stabilize")
    density = pytensor.function([many], vectorize_graph(graph, {one: many}), mode=mode)
    if not np.isneginf(density(np.array([-1e-12]))).all():
        raise ValueError(f"the prior of {name} must give no weight to negative values")

    def log_density(x: Array) -> Array:
        values = np.asarray(density(np.exp(np.ravel(x))), dtype=float).reshape(np.shape(x)) + x
        if np.isnan(values).any() or np.isposinf(values).any():
            raise ValueError(f"the prior density of {name} is not a number at some values")
        return np.asarray(values)

    point = float(pytensor.function([], support_point(prior), mode=mode)())
    return _with_support(str_for_dist(prior), log_density, point)


def normal_prior(prior: pt.TensorVariable, size: int) -> tuple[Array, Array]:
    """Means and standard deviations of a normal prior of `size` coefficients.

    Raises
    ------
    ValueError
        If it is no normal distribution with constant parameters, or of another size.
    """
    if not (is_distribution(prior) and isinstance(prior.owner.op, NormalRV)):
        raise ValueError("beta_prior must be a PyMC normal distribution: pm.Normal.dist(0, 1)")
    if prior.type.ndim and prior.type.shape != (size,):
        raise ValueError(f"beta_prior must be a scalar or have one entry a column ({size})")
    parameters = list(prior.owner.op.dist_params(prior.owner))
    for parameter in parameters:
        _refuse_random(parameter, "the coefficients")
    mode = pytensor.compile.mode.Mode(linker="py", optimizer=None)
    found = pytensor.function([], parameters, mode=mode)()
    mean, sd = (np.broadcast_to(np.asarray(v, dtype=float), (size,)).copy() for v in found)
    if not (np.isfinite(mean).all() and np.isfinite(sd).all() and (sd > 0).all()):
        raise ValueError("beta_prior needs finite means and positive standard deviations")
    return mean, sd


def is_distribution(variable: object) -> bool:
    """Whether it is a PyMC distribution."""
    owner = getattr(variable, "owner", None)
    return owner is not None and isinstance(owner.op, MeasurableOp)


def _refuse_random(graph: pt.TensorVariable, name: str) -> None:
    operations = (v.owner.op for v in ancestors([graph]) if v.owner is not None)
    if any(isinstance(op, MeasurableOp) for op in operations):
        raise ValueError(f"the prior of {name} must have constant parameters, not random ones")


def default_scale(bounds: tuple[float, float] | None) -> float:
    """Scale of the default half-normal prior, a quarter of the declared range.

    Raises
    ------
    ValueError
        If no range is declared.
    """
    if bounds is None:
        raise ValueError(
            "sigma_u needs a prior: the direct estimates do not say the outcome's declared range "
            "(attribute 'bounds'), and no default is computed from data"
        )
    return (bounds[1] - bounds[0]) / 4


def _with_support(words: str, log_density: Callable[[Array], Array], point: float) -> SigmaPrior:
    """Find the interval of positive density, its edges by bisection to the last digit."""
    x = np.linspace(-LIMIT, LIMIT, 601)
    if point > 0:
        x = np.sort(np.append(x, np.log(point)))
    positive = np.flatnonzero(np.isfinite(log_density(x)))
    if not positive.size:
        raise ValueError("no value of sigma_u with positive prior density was found")
    first, last = positive[0], positive[-1]

    def edge(inside: float, outside: float) -> float:
        for _ in range(64):
            middle = (inside + outside) / 2
            if np.isfinite(log_density(np.array([middle])))[0]:
                inside = middle
            else:
                outside = middle
        return inside

    lower = -np.inf if first == 0 else edge(x[first], x[first - 1])
    upper = np.inf if last == x.size - 1 else edge(x[last], x[last + 1])
    middle = positive[np.argmax(log_density(x[positive]))]
    return SigmaPrior(words, log_density, float(lower), float(upper), float(x[middle]))
