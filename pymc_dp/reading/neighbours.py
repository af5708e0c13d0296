"""Refuse neighbour matrices of ``pm.CAR`` and ``pm.ICAR`` that are no neighbourhood."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import scipy.sparse as sp
from pymc.distributions.multivariate import CARRV, ICARRV

from pymc_dp._checks import name_some, text_labels
from pymc_dp.reading.symbolic import held_value

FORMATS = {"DenseFromSparse", "SparseFromDense"}
POSITION = {CARRV: 1, ICARRV: 0}  # of the matrix among the distribution's parameters


def check_neighbours(model: pm.Model) -> None:
    """Refuse a neighbour matrix of ``pm.CAR`` or ``pm.ICAR`` that is no neighbourhood.

    Raises
    ------
    ValueError
        If the matrix is asymmetric, has entries that are negative or not finite, a diagonal, or
        an area without neighbours; the message names areas and their number.
    """
    for rv in model.basic_RVs:
        op: Any = rv.owner.op
        for kind, position in POSITION.items():
            if isinstance(op, kind):
                matrix = op.dist_params(rv.owner)[position]
                _check(rv.name, _value(matrix), _labels(model, rv.name))


def _value(matrix: Any) -> sp.csr_array:
    """The matrix as a sparse array, looking through a change of format."""
    while matrix.owner is not None and type(matrix.owner.op).__name__ in FORMATS:
        matrix = matrix.owner.inputs[0]
    if matrix.owner is not None:
        matrix = matrix.eval()
    else:
        matrix = held_value(matrix)
    return sp.csr_array(matrix, dtype=float)


def _labels(model: pm.Model, name: str) -> list[str] | None:
    dims = model.named_vars_to_dims.get(name, ())
    coords = model.coords.get(dims[-1]) if dims else None
    return None if coords is None else text_labels(coords)


def _check(name: str, W: sp.csr_array, labels: list[str] | None) -> None:
    areas = np.asarray(labels if labels is not None else [str(i) for i in range(W.shape[0])])
    where = f"the neighbour matrix of {name!r}"
    if not (np.isfinite(W.data) & (W.data >= 0)).all():
        raise ValueError(f"{where} has entries that are negative or not finite")
    unequal = abs(W - W.T).tocoo()
    one_sided = np.unique(unequal.row[unequal.data > 1e-12 * max(W.data, default=0.0)])
    if one_sided.size:
        raise ValueError(
            f"{where} is not symmetric: {one_sided.size} areas differ from their neighbours' "
            f"view: {name_some(areas[one_sided])}"
        )
    own = np.flatnonzero(W.diagonal())
    if own.size:
        raise ValueError(f"{where} makes {own.size} areas their own neighbour: "
                         f"{name_some(areas[own])}")  # fmt: skip
    island = np.flatnonzero(W.sum(axis=1) == 0)
    if island.size:
        raise ValueError(
            f"{where} leaves {island.size} areas without neighbours: {name_some(areas[island])}; "
            "join them to their nearest area, or model them outside the spatial effect"
        )
