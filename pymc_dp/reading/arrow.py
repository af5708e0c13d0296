"""Read an arrow-shaped linear-Gaussian model: one effect an area, and a few dense columns.

Centred, non-centred and marginal forms of Fay-Herriot all have latents ``omega`` (one an area)
and ``beta`` (the rest), with

    omega | beta ~ N(nu + N beta, 1 / kappa),   beta ~ N with precision P0 (flat allowed),
    theta = T0 + T_omega omega + T_beta beta + B y,

and either ``y ~ N(theta, D)`` (then ``B = 0``) or ``y ~ N(f0 + F beta, A + D)``. Each number is
read from its own term of the log density, so that nothing is a difference of large numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_dp._typing import Array
from pymc_dp.posterior.fay_herriot import GaussianPosterior, fay_herriot_posterior
from pymc_dp.reading.derivatives import slopes, specialised
from pymc_dp.reading.interpret import interpreted

if TYPE_CHECKING:
    from pymc_dp.reading.symbolic import SymbolicModel

# Hessian-vector products carry rounding of a few units in the last place of their largest
# term; a structural difference shows at order one.
TOLERANCE = 1e-9
# With more dense columns (spatial or yearly effects beside the areas') the arrow saves nothing.
MOST_COLUMNS = 64
# From so many areas on, evaluating constant parts once saves more than it takes to set up.
LARGE = 1_000


@dataclass(frozen=True)
class Slopes:
    """Derivatives along one direction: of each term's gradient, and of the target."""

    lik_omega: Array
    lik_beta: Array
    lik_y: Array
    own_omega: Array
    own_beta: Array
    rest_omega: Array
    rest_beta: Array
    theta: Array


Product = Callable[..., Slopes]
Direction = tuple[Array, Array, Array]  # in omega, beta and y


@dataclass(frozen=True)
class Arrow:
    """The numbers of an arrow-shaped model, in the notation of the module."""

    kappa: Array
    N: Array
    T_omega: Array
    T_beta: Array
    B: Array  # one entry an area, zero where theta does not use y openly
    tau: Array  # minus the second derivative of the likelihood in y, one an observation
    F: Array  # derivative of E[y | latents] in beta
    P0: Array
    index: np.ndarray  # the area of each observation

    @property
    def marginal(self) -> bool:
        """Whether theta uses y openly, beside the latents."""
        return bool(self.B.any())

    def product(self, omega: Array, beta: Array, y: Array, sign: float = -1.0) -> Slopes:
        """What a direction must give; with ``sign=+1`` and absolute values, its magnitude."""
        theta = self.T_omega * omega + self.T_beta @ beta
        residual = (self.F @ beta if self.marginal else theta[self.index]) + sign * y
        pull = self.tau * residual
        spread = np.zeros_like(omega)
        if not self.marginal:
            np.add.at(spread, self.index, self.T_omega[self.index] * pull)
        rows = self.F if self.marginal else self.T_beta[self.index]
        own = self.kappa * (omega + sign * (self.N @ beta))
        moved = np.zeros_like(theta)
        moved[self.index] = self.B[self.index] * y
        return Slopes(
            lik_omega=sign * spread,
            lik_beta=sign * (rows.T @ pull),
            lik_y=pull,
            own_omega=sign * own,
            own_beta=self.N.T @ own,
            rest_omega=np.zeros_like(omega),
            rest_beta=sign * (self.P0 @ beta),
            theta=theta + moved,
        )


def read_arrow(symbolic: SymbolicModel) -> tuple[GaussianPosterior, np.ndarray] | None:
    """The posterior and the area of each observation, or None if the model has another shape."""
    if symbolic.target.type.ndim != 1 or symbolic.data.type.ndim != 1:
        return None
    for block in _blocks(symbolic):
        found = _read_block(symbolic, block)
        if found is not None:
            return found
    return None


def _blocks(symbolic: SymbolicModel) -> list[str]:
    """Names of latents that could be the area effects."""
    if symbolic.target_name in symbolic.latents:
        return [symbolic.target_name]
    vectors = {k: v.type.shape[0] for k, v in symbolic.latents.items() if v.type.ndim == 1}
    large = [k for k, size in vectors.items() if size >= symbolic.values.size]
    return sorted(large, key=lambda k: -vectors[k])


def _read_block(symbolic: SymbolicModel, block: str) -> tuple[GaussianPosterior, np.ndarray] | None:
    m = symbolic.latents[block].type.shape[0]
    n = symbolic.values.size
    p = sum(int(np.prod(v.type.shape)) for k, v in symbolic.latents.items() if k != block)
    if p > MOST_COLUMNS:
        return None
    with pytensor.config.change_flags(traceback__limit=0):  # no stack trace a node: time saved
        product, gradient, at_zero = _functions(symbolic, block)
    zero_omega, zero_beta, zero_y = np.zeros(m), np.zeros(p), np.zeros(n)
    if at_zero.theta.size != m or p == 0 or n > m:
        return None

    columns = [product(zero_omega, e, zero_y) for e in np.eye(p)]
    ones = product(np.ones(m), zero_beta, zero_y)
    unit_y = product(zero_omega, zero_beta, np.ones(n))
    kappa = -ones.own_omega
    tau = -unit_y.lik_y
    if not ((kappa > 0) & np.isfinite(kappa)).all() or not ((tau > 0) & np.isfinite(tau)).all():
        return None
    stack = {f.name: np.column_stack([getattr(c, f.name) for c in columns]) for f in fields(Slopes)}
    for index in _indices(symbolic.positions, product, ones, unit_y, m, n):
        arrow = Arrow(
            kappa=kappa,
            N=stack["own_omega"] / kappa[:, None],
            T_omega=ones.theta,
            T_beta=stack["theta"],
            B=unit_y.theta,
            tau=tau,
            F=stack["lik_y"] / tau[:, None],
            P0=-(stack["rest_beta"] + stack["rest_beta"].T) / 2,
            index=index,
        )
        if _agrees(arrow, product, gradient, at_zero):
            posterior = _posterior(arrow, at_zero)
            return None if posterior is None else (posterior, index)
    return None


def _indices(
    labelled: np.ndarray | None, product: Product, ones: Slopes, unit_y: Slopes, m: int, n: int
) -> list[np.ndarray]:
    """Candidates for the area of each observation; which one is right is checked afterwards."""
    candidates = [] if labelled is None else [labelled]
    if n == m:
        candidates.append(np.arange(m))
    p = ones.lik_beta.size
    position = np.arange(1.0, m + 1)
    if unit_y.theta.any():  # theta uses y openly: follow it from y to theta
        counted = product(np.zeros(m), np.zeros(p), np.arange(1.0, n + 1)).theta
        seen = np.flatnonzero(unit_y.theta)
        order = np.rint(counted[seen] / unit_y.theta[seen]).astype(int) - 1
        if np.array_equal(np.sort(order), np.arange(n)):
            candidates.append(seen[np.argsort(order)])
    elif (ones.lik_y != 0).all():  # y looks at one area effect each: count them
        counted = product(position, np.zeros(p), np.zeros(n)).lik_y
        index = np.rint(counted / ones.lik_y).astype(int) - 1
        if ((index >= 0) & (index < m)).all() and np.unique(index).size == n:
            candidates.append(index)
    return candidates


def _agrees(arrow: Arrow, product: Product, gradient: Product, at_zero: Slopes) -> bool:
    """Random directions at random points far out: products, gradients and target as read."""
    rng = np.random.default_rng(20_240_229)  # checks a structure; has no part in any release
    m, p, n = arrow.kappa.size, arrow.P0.shape[0], arrow.tau.size

    def same(got: Slopes, arguments: Direction, base: Slopes | None) -> bool:
        want = arrow.product(*arguments)
        omega, beta, y = map(np.abs, arguments)
        size = _absolute(arrow).product(omega, beta, y, sign=1.0)
        for f in fields(Slopes):
            g, w, s = (getattr(v, f.name) for v in (got, want, size))
            b = 0.0 if base is None else getattr(base, f.name)
            if not (np.abs(g - w - b) <= TOLERANCE * (s + np.abs(b))).all():
                return False
        return True

    for scale in (1.0, 1e3):
        direction, point = (
            (f * rng.normal(size=(m,)), f * rng.normal(size=(p,)), f * rng.normal(size=(n,)))
            for f in (1.0, scale)
        )
        if not same(product(*direction, at=point), direction, None):
            return False
        if not same(gradient(*point), point, at_zero):
            return False
    return _constants_agree(arrow, at_zero)


def _absolute(arrow: Arrow) -> Arrow:
    values = {f.name: np.abs(getattr(arrow, f.name)) for f in fields(Arrow)}
    return Arrow(**values)


def _constants_agree(arrow: Arrow, at_zero: Slopes) -> bool:
    """The constant parts: E[y] at the origin is theta there, and no term hides another."""
    nu = at_zero.own_omega  # kappa * nu
    checks = [
        (at_zero.own_beta, -arrow.N.T @ nu, np.abs(arrow.N.T) @ np.abs(nu)),
        (at_zero.rest_omega, 0.0 * nu, 0.0 * nu),
    ]
    if arrow.marginal:
        checks.append((at_zero.lik_omega, 0.0 * nu, 0.0 * nu))
    else:
        centre = at_zero.theta[arrow.index]
        checks.append((at_zero.lik_y, arrow.tau * centre, arrow.tau * np.abs(centre)))
    return all((np.abs(g - w) <= TOLERANCE * s).all() for g, w, s in checks)


def _posterior(arrow: Arrow, at_zero: Slopes) -> GaussianPosterior | None:
    """Translate to ``theta = o + X beta + u``, ``u ~ N(0, A)``, ``y ~ N(theta, D)``."""
    A = arrow.T_omega**2 / arrow.kappa
    X = arrow.T_beta + arrow.T_omega[:, None] * arrow.N
    o = at_zero.theta + arrow.T_omega * at_zero.own_omega / arrow.kappa
    precision = np.zeros_like(A)
    precision[arrow.index] = arrow.tau
    if arrow.marginal:
        i = arrow.index
        gamma, total, spread = arrow.B[i], 1 / arrow.tau, A[i]
        if not ((gamma >= 0) & (gamma <= 1)).all() or arrow.N.any():
            return None
        # theta's own noise has variance gamma D = gamma (1 - gamma) (A + D): divide, never
        # subtract, to keep the digits of 1 - gamma.
        shrinkage = np.divide(spread, gamma * total, out=np.ones_like(gamma), where=gamma > 0)
        f0 = at_zero.lik_y / arrow.tau
        consistent = [
            (gamma + shrinkage, np.ones_like(gamma), 1.0),
            (X[i], shrinkage[:, None] * arrow.F, np.abs(arrow.F)),
            (o[i], shrinkage * f0, np.abs(f0) + np.abs(o[i])),
            (spread * (gamma == 0), 0.0 * gamma, 0.0 * gamma),
        ]
        if not all((np.abs(g - w) <= TOLERANCE * s).all() for g, w, s in consistent):
            return None
        A[i], X[i], o[i] = gamma * total, arrow.F, f0
        precision[i] = 1 / (shrinkage * total)
    return fay_herriot_posterior(
        A,
        precision,
        X,
        prior_precision=arrow.P0,
        prior_shift=at_zero.rest_beta,
        offset=o,
    )


def _functions(symbolic: SymbolicModel, block: str) -> tuple[Product, Product, Slopes]:
    """Products (along a direction) and gradients of the three terms and the target; at zero too."""
    omega = symbolic.latents[block]
    others = [v for k, v in symbolic.latents.items() if k != block]
    y = symbolic.data
    variables = [omega, *others, y]
    likelihood = symbolic.factors[symbolic.observed]
    own = symbolic.factors[block]
    rest = sum(
        (f for k, f in symbolic.factors.items() if k not in (block, symbolic.observed)),
        start=pt.as_tensor(np.float64(0.0)),
    )
    along = slopes([likelihood, own, rest], symbolic.target, variables)

    m = omega.type.shape[0]
    outputs, values = along.products, [*along.gradients, symbolic.target]
    if m >= LARGE:
        outputs, values = specialised(outputs, {}, along.inputs), specialised(values, {}, variables)
    gradient_fn = interpreted(variables, values)
    product_at_fn = interpreted(along.inputs, outputs)

    shapes = [v.type.shape for v in others]
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])

    def split(w: Array, b: Array, u: Array) -> list[Array]:
        parts = np.split(b, cuts[:-1]) if len(shapes) else []
        return [w, *(q.reshape(s) for q, s in zip(parts, shapes, strict=True)), u]

    def pack(out: list[Any]) -> Slopes:
        k = len(variables)
        blocks = [[np.asarray(v, dtype=float) for v in out[i * k : (i + 1) * k]] for i in range(3)]
        flat = [
            (b[0], np.concatenate([np.ravel(v) for v in b[1:-1]] or [np.zeros(0)]), b[-1])
            for b in blocks
        ]
        (lw, lb, ly), (ow, ob, _), (rw, rb, _) = flat
        return Slopes(lw, lb, ly, ow, ob, rw, rb, np.asarray(out[-1], dtype=float))

    origin = split(np.zeros(m), np.zeros(cuts[-1] if len(cuts) else 0), np.zeros(y.type.shape[0]))
    at_zero = pack(gradient_fn(*origin))
    nothing = np.zeros(at_zero.theta.size)
    product_fn: Any = None
    if m >= LARGE:
        at_origin = dict(zip([*variables, along.weight], [*origin, nothing], strict=True))
        product_fn = interpreted(along.direction, specialised(outputs, at_origin, along.direction))

    def product(w: Array, b: Array, u: Array, at: Any = None) -> Slopes:
        if at is None and product_fn is not None:
            return pack(product_fn(*split(w, b, u)))
        point = origin if at is None else split(*at)
        return pack(product_at_fn(*point, *split(w, b, u), nothing))

    def gradient(w: Array, b: Array, u: Array) -> Slopes:
        return pack(gradient_fn(*split(w, b, u)))

    return product, gradient, at_zero
