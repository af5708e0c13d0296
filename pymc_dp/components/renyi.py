r"""Renyi divergences of one posterior draw between neighbours, sigma_u integrated out.

A record of area j moves only ``y_j``, so the log likelihood ratio of two neighbouring posteriors is
a line in ``theta_j``: each is a tilt of the other. The Renyi divergence of P from its tilt by
``exp(-t theta_j)`` is :math:`K((\alpha - 1) t) / (\alpha - 1) + K(-t)`, K the cumulant generating
function of ``theta_j`` under P, and t the change of ``y_j`` over ``D_j``. Given sigma_u,
``theta_j`` is Gaussian, so K is a one-dimensional integral. A change of ``y_j`` itself reweights
sigma_u by such a factor, so no second data set is ever fitted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_dp._typing import Array
from pymc_dp.models.gls import GlsFit
from pymc_dp.posterior.quadrature import (
    EPSILON,
    NODES,
    OUTSIDE,
    WEIGHTS,
    Rule,
    halve,
    integrate,
    refine,
)

# P against its neighbour: where P's data lie, in sensitivities from y, and the sign of the step
# from the neighbour to P.
PAIRS = {
    "y against y-s": (0, 1),
    "y-s against y": (-1, -1),
    "y against y+s": (0, -1),
    "y+s against y": (1, 1),
}
TOLERANCE = 1e-9  # estimated error of a panel, relative to the integral
BLOCK = 1000  # areas times orders worked on together, each with some hundred nodes
FAR = 60.0  # a node this many nats below the top counts nothing


class Records(NamedTuple):
    """What a record can move: areas with a sample and a positive sensitivity, n of them.

    ``residual`` is the direct estimate less the rule's centre.
    """

    residual: Array  # (n,)
    variance: Array  # (n,)
    design: Array  # (n, p)
    sensitivity: Array  # (n,)

    def __repr__(self) -> str:
        """Size only: direct estimates never appear in a repr."""
        return f"Records({len(self.residual)} areas)"


class Laws(NamedTuple):
    """``theta_j`` given sigma_u at the nodes, for B areas, as moves from a reference node.

    Moves are formed from factors, not as differences of moments: tilts multiply them by up to
    ``(256 s / D)^2``, and sampling variances can be many orders apart.
    """

    log_density: Array  # (P, 16), posterior of log sigma_u
    rounding: float  # error of log_density by rounding
    half_width: Array  # (P,)
    mean: Array  # (B, P * 16), conditional mean less that at the reference
    variance: Array  # (B, P * 16), the same for the conditional variance
    reference_variance: Array  # (B,)
    tilt: Array  # (B,), s_j / D_j

    def __repr__(self) -> str:
        """Sizes only."""
        return f"Laws({len(self.tilt)} areas, {len(self.half_width)} panels)"

    def panels(self, chosen: slice) -> Laws:
        """Keep a run of panels."""
        nodes = slice(chosen.start * NODES, chosen.stop * NODES)
        return self._replace(
            log_density=self.log_density[chosen],
            half_width=self.half_width[chosen],
            mean=self.mean[:, nodes],
            variance=self.variance[:, nodes],
        )


class Divergences(NamedTuple):
    """Divergences (B, orders, pairs), and by panel the worst error and the largest share."""

    values: Array
    error: Array
    mass: Array


def renyi_divergences(rule: Rule[GlsFit], records: Records, order: Array) -> tuple[Array, Array]:
    """Divergences between neighbours that differ by the whole sensitivity.

    Parameters
    ----------
    rule : Rule
        Is refined where a tilted integrand needs it.
    records : Records
    order : ndarray of shape (n, U)
        Renyi orders above 1, for each area.

    Returns
    -------
    values : ndarray of shape (n, U, 4)
        One for each entry of `PAIRS`.
    error : ndarray of shape (n,)
        Largest relative change of the values at the lowest, a middle and the highest order when
        every panel is halved.
    """
    n, columns = order.shape
    values = np.empty((n, columns, len(PAIRS)))
    # Areas whose tilts reach equally far need the same panels.
    by_reach = np.argsort(records.sensitivity * order.max(axis=1), kind="stable")
    blocks = np.array_split(by_reach, max(1, -(-n * columns // BLOCK))) if n else []
    for block in blocks:
        some = Records(*(v[block] for v in records))
        while True:
            found = _divergences(rule, some, order[block])
            finer = refine(rule, found.error, found.mass, TOLERANCE)
            if finer is rule:
                break
            rule = finer
        values[block] = found.values

    finest = halve(rule)
    error = np.empty(n)
    ranks = np.argsort(order, axis=1)[:, [0, columns // 2, -1]]
    for block in blocks:
        some = Records(*(v[block] for v in records))
        check = np.take_along_axis(order[block], ranks[block], axis=1)
        again = _divergences(finest, some, check).values
        before = np.take_along_axis(values[block], ranks[block][:, :, None], axis=1)
        error[block] = np.abs(before / again - 1).max(axis=(1, 2))
    return values, error


def _divergences(rule: Rule[GlsFit], records: Records, order: Array) -> Divergences:
    """On the panels that matter, or on all of them if those turn out not to suffice."""
    laws = _laws(rule, records)
    panels = laws.half_width.size
    for chosen in (_near(laws, order.max(axis=1)), slice(0, panels)):
        values, error, mass = _all_pairs(laws.panels(chosen), order)
        inner_ends = np.array([chosen.start > 0, chosen.stop < panels])
        if (mass[[0, -1]][inner_ends] <= 100 * OUTSIDE).all():
            break
    full_error, full_mass = np.zeros(panels), np.zeros(panels)
    full_error[chosen], full_mass[chosen] = error, mass
    return Divergences(values, full_error, full_mass)


def _laws(rule: Rule[GlsFit], records: Records) -> Laws:
    r, D, X, s = records
    reference = int(np.argmax(rule.log_density))
    A = rule.sigma.ravel() ** 2
    shrinkage = D[:, None] / (A + D[:, None])  # 1 - gamma, (B, Q)
    at = shrinkage[:, [reference]]
    beta = rule.fit.coefficient - rule.fit.coefficient[reference]
    remainder = r - X @ rule.fit.coefficient[reference]
    from_beta = shrinkage**2 * ((X @ rule.fit.root) ** 2).sum(axis=2).T
    # gamma less gamma at the reference; D times it is the move of the area part gamma D.
    move = shrinkage * at * (A - A[reference]) / D[:, None]
    return Laws(
        log_density=rule.log_density,
        rounding=rule.rounding,
        half_width=rule.half_width,
        mean=move * remainder[:, None] + shrinkage * (X @ beta.T),
        variance=move * D[:, None] + from_beta - from_beta[:, [reference]],
        reference_variance=A[reference] * at[:, 0] + from_beta[:, reference],
        tilt=s / D,
    )


def _near(laws: Laws, reach: Array) -> slice:
    """Find the panels where some integrand is not negligible, from a sparse set of tilts."""
    steps = 4.0 ** -np.arange(16)
    tilts = (laws.tilt * reach)[:, None] * np.concatenate([-steps, [0.0], steps])
    height = _exponents(laws, laws.log_density.ravel(), laws.mean, tilts)
    height -= height.max(axis=-1, keepdims=True)
    by_panel = height.reshape(-1, laws.half_width.size, NODES).max(axis=(0, 2))
    counts = np.flatnonzero(by_panel > -FAR)
    # One more at each end, to see that nothing is there.
    return slice(max(int(counts[0]) - 1, 0), min(int(counts[-1]) + 2, by_panel.size))


def _all_pairs(laws: Laws, order: Array) -> Divergences:
    values, errors, masses = [], [], []
    for place, sign in PAIRS.values():
        steps = sign * np.append(order - 1, np.full((order.shape[0], 1), -1.0), axis=1)
        K, error, mass = _cumulants(laws, place, laws.tilt[:, None] * steps)
        values.append(K[:, :-1] / (order - 1) + K[:, -1:])
        errors.append(error)
        masses.append(mass)
    return Divergences(np.stack(values, axis=-1), np.max(errors, axis=0), np.max(masses, axis=0))


def _cumulants(laws: Laws, place: int, u: Array) -> tuple[Array, Array, Array]:
    """``log E exp(u (theta_j - E theta_j))`` with ``y_j`` moved by `place` sensitivities; (B, U).

    Also the worst error and largest share of each panel.
    """
    moved = place * laws.tilt[:, None]
    log_density = laws.log_density.ravel() + moved * laws.mean + moved**2 / 2 * laws.variance
    log_density -= log_density.max(axis=-1, keepdims=True)
    log_weight = log_density + np.log(np.outer(laws.half_width, WEIGHTS)).ravel()
    log_total = np.log(np.exp(log_weight).sum(axis=-1, keepdims=True))
    log_weight -= log_total
    weight = np.exp(log_weight)
    mean = laws.mean + moved * laws.variance
    mean -= (weight * mean).sum(axis=-1, keepdims=True)

    exponent = _exponents(laws, log_density, mean, u)
    # What the terms of an exponent lose by rounding where the integrand is largest.
    b, top = np.arange(len(u))[:, None], exponent.argmax(axis=-1)
    rounding = laws.rounding + EPSILON * (
        np.abs(log_density[b, top])
        + np.abs(u * mean[b, top])
        + u**2 / 2 * np.abs(laws.variance[b, top])
    )
    by_panel = exponent.reshape(*u.shape, laws.half_width.size, NODES)
    sums = integrate(by_panel, laws.half_width, rounding)
    within = u**2 / 2 * laws.reference_variance[:, None]
    K = within + sums.log_total - log_total
    b, k = np.nonzero(np.abs(K) < 1e-4)
    if b.size:
        between = _near_zero(log_weight[b], mean[b], laws.variance[b], u[b, k][:, None])
        K[b, k] = within[b, k] + between
    return K, sums.error.max(axis=(0, 1)), sums.mass.max(axis=(0, 1))


def _near_zero(log_weight: Array, mean: Array, variance: Array, u: Array) -> Array:
    """``log E exp(x)`` with ``x = u mean + u^2 variance / 2``, all of shape (rows, Q).

    For where the logarithm of a sum near 1 has lost its digits. The means average to zero, so
    what exceeds 1 is of second order: ``E x`` is known, and ``exp(x) - 1 - x`` is summed as a
    series where x is small.
    """
    weight = np.exp(log_weight)
    x = u * mean + u**2 / 2 * variance
    small = np.clip(x, -1.0, 1.0)
    series = np.ones_like(x)
    for n in range(18, 2, -1):
        series = 1 + small / n * series
    beyond = np.where(
        np.abs(x) < 1,
        weight * small**2 / 2 * series,
        np.exp(log_weight + x) - weight * (1 + x),
    )
    excess = beyond + u**2 / 2 * weight * variance
    return np.asarray(np.log1p(excess.sum(axis=-1)))


def _exponents(laws: Laws, log_density: Array, mean: Array, u: Array) -> Array:
    """Logarithms of the tilted integrands; (B, U, Q)."""
    left = np.stack([np.ones_like(u), u, u**2 / 2], axis=-1)
    rows = np.broadcast_arrays(log_density, mean, laws.variance)
    return np.asarray(left @ np.stack(rows, axis=1))
