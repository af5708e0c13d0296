"""Leave out variables that have no part in target or data, once what they scaled is held.

A hyperprior of a scale that is held constant, say. Where no factor joins a group of variables to
the rest, the joint density is a product, and a proper group integrates to a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pymc as pm
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.reading.degree import polynomial_degree
from pymc_dp.reading.symbolic import SymbolicModel

# Distributions that integrate to one come from here; a user's own density may not.
PROPER = {
    "pytensor.tensor.random.basic",
    "pymc.distributions.continuous",
    "pymc.distributions.multivariate",
}
IMPROPER = {"Flat", "HalfFlat", "ICAR", "CAR"}


def without_strangers(model: pm.Model, symbolic: SymbolicModel) -> SymbolicModel:
    """The model without groups of free variables that are apart from target and data.

    Groups whose density is a quadratic stay: they are no obstacle. So do groups with a potential
    or an improper prior, of which nothing says that they integrate to a constant.
    """
    variables = [*symbolic.latents.values(), symbolic.data]
    high = [
        name
        for name, found in zip(
            symbolic.factors,
            polynomial_degree(list(symbolic.factors.values()), variables),
            strict=True,
        )
        if found > 2
    ]
    groups = _groups(symbolic) if high else []
    apart: set[str] = set()
    for latents, factors in groups:
        if not factors.isdisjoint(high) and all(_is_proper(model, name) for name in factors):
            apart |= latents
    if not apart:
        return symbolic
    # A group of proper priors has one factor a variable, of the same name.
    return replace(
        symbolic,
        terms=_without(symbolic.terms, apart),
        factors=_without(symbolic.factors, apart),
        latents=_without(symbolic.latents, apart),
    )


def _groups(symbolic: SymbolicModel) -> list[tuple[set[str], set[str]]]:
    """Names of latents, and of factors, that are joined to each other but not to target or data."""
    inputs = {v: name for name, v in symbolic.latents.items()}
    joined: list[tuple[set[str], set[str]]] = []
    kept = {inputs[v] for v in ancestors([symbolic.target]) if v in inputs}
    for name, factor in symbolic.factors.items():
        parts = set(ancestors([factor]))
        members = {inputs[v] for v in parts if v in inputs}
        if symbolic.data in parts:
            kept |= members
        factors = {name}
        apart = []
        for other, others in joined:
            if other.isdisjoint(members):
                apart.append((other, others))
            else:
                members, factors = members | other, factors | others
        joined = [*apart, (members, factors)]
    return [group for group in joined if group[0] and group[0].isdisjoint(kept)]


def _is_proper(model: pm.Model, name: str) -> bool:
    """Whether a factor is the prior of a free variable, and integrates to one."""
    if name not in {v.name for v in model.free_RVs}:
        return False
    op: Any = model[name].owner.op
    op = getattr(op, "core_op", op)
    kind = type(op)
    known = isinstance(op, RandomVariable | SymbolicRandomVariable) and kind.__module__ in PROPER
    return known and kind.__name__.removesuffix("RV") not in IMPROPER


def _without(named: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name not in names}
