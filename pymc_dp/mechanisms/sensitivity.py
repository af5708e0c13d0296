"""What one protected unit can move: the largest changes of the observed values, by kind of record.

A column a kind of record: the entries that it can move, and how far each at most, with any sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import xarray as xr

from pymc_dp._checks import name_some, text_labels
from pymc_dp._typing import Array


@dataclass(frozen=True)
class Changes:
    """Largest changes of ``k`` observed values by ``r`` kinds of record.

    Attributes
    ----------
    matrix : csc_array of shape (k, r)
        Not negative; a column for each kind of record.
    label : ndarray of str of shape (r,)
    area : ndarray of int of shape (r,), optional
        The area of each kind of record, where each moves the one direct estimate of its area.
    """

    matrix: sp.csc_array = field(repr=False)
    label: np.ndarray
    area: np.ndarray | None = None


# Variables that direct estimates have and that are no sensitivities.
OTHERS = {
    "estimate", "variance", "n", "n_units", "sum_weights", "max_weight", "n_eff", "noise_variance",
}  # fmt: skip


def checked_name(given: Any) -> Any:
    """Refuse another variable of the direct estimates that is given as their sensitivity.

    A table with one column is that column.
    """
    if isinstance(given, pd.DataFrame) and given.shape[1] == 1:
        given = given.iloc[:, 0]
    name = getattr(given, "name", None)
    if isinstance(name, str) and name in OTHERS:
        raise ValueError(
            f"the sensitivity given is the variable {name!r}: give direct['sensitivity'], the most "
            "that one protected unit can move each direct estimate"
        )
    return given


def moves_several(given: Any) -> bool:
    """Whether sensitivities are, or may be, a change matrix."""
    return sp.issparse(given) or getattr(given, "ndim", 0) >= 2


def read_changes(
    given: Any,
    *,
    record: np.ndarray,
    shape: tuple[int, ...],
    dims: tuple[str, ...],
    coords: Mapping[str, np.ndarray],
    index: np.ndarray | None,
    area: np.ndarray,
) -> Changes:
    """Bring sensitivities into the order of the observed values.

    Parameters
    ----------
    given : DataArray, Series, array, sparse array or float
        One number for each observed value (a number alone, the shape of the observed variable,
        or labelled), each of which another kind of record moves; or a change matrix: one more
        dimension than the observed variable, the last one for kinds of record, or a sparse array
        of shape (k, r).
    record : ndarray of str of shape (k,)
        Labels of the observed values.
    shape, dims, coords
        Of the observed variable; without ``dims`` where PyMC knows none.
    index : ndarray of int of shape (k,), optional
        The area that each observed value is a direct estimate of.
    area : ndarray of str of shape (m,)

    Raises
    ------
    ValueError
        If labels are missing or the shape fits neither, or changes are negative, not finite or
        all zero; the message names observed values and their number.
    """
    k = record.size
    if isinstance(given, pd.DataFrame):
        given = _labelled_frame(given, dims)
    if sp.issparse(given):
        return _matrix(sp.csc_array(given, dtype=float), k, None)
    if isinstance(given, pd.Series):
        single = given.index.nlevels == 1  # several levels have to carry the names of the dims
        given = (given.rename_axis(_series_dim(dims)) if single else given).to_xarray()
    if isinstance(given, xr.DataArray):
        if index is not None and given.dims == ("area",) and dims != ("area",):
            place = _places(given, "area", area[index])
            return _one_each(given.values.astype(float)[place], record, index, area)
        return _labelled(given, record, dims, coords, index, area)
    values = np.asarray(given, dtype=float)
    if values.ndim == len(shape) + 1 and values.shape[:-1] == shape:
        return _matrix(sp.csc_array(values.reshape(k, -1)), k, None)
    if values.shape not in ((), shape, (k,)):
        raise ValueError(
            f"sensitivity has shape {values.shape} for observed values of shape {shape}: give one "
            "number for each, or one more dimension for kinds of record"
        )
    return _one_each(np.broadcast_to(values.reshape(-1) if values.ndim else values, k), record,
                     index, area)  # fmt: skip


def _labelled_frame(given: pd.DataFrame, dims: tuple[str, ...]) -> xr.DataArray:
    """A change matrix whose rows are joined by their labels."""
    if len(dims) != 1:
        raise ValueError(
            f"sensitivity is a DataFrame for observed values on dims {dims or 'without names'}: "
            "give a DataArray with these dims, and one more for kinds of record"
        )
    again = given.columns[given.columns.duplicated()]
    if len(again):
        raise ValueError(f"sensitivity has columns more than once: {name_some(again)}")
    return xr.DataArray(
        given.to_numpy(dtype=float),
        dims=(*dims, "kind of record"),
        coords={dims[0]: text_labels(given.index), "kind of record": text_labels(given.columns)},
    )


def _series_dim(dims: tuple[str, ...]) -> str:
    return dims[0] if len(dims) == 1 else "area"


def _labelled(
    given: xr.DataArray,
    record: np.ndarray,
    dims: tuple[str, ...],
    coords: Mapping[str, np.ndarray],
    index: np.ndarray | None,
    area: np.ndarray,
) -> Changes:
    extra = [d for d in given.dims if d not in dims]
    if not dims or set(dims) - set(given.dims) or len(extra) > 1:
        raise ValueError(
            f"sensitivity has dims {given.dims}, the observed variable {dims or 'none'}: give "
            "the same, with one more for kinds of record if a record moves several values"
        )
    for dim in dims:
        given = given.isel({dim: _places(given, dim, coords[dim])})
    given = given.transpose(*dims, *extra)
    if not extra:
        return _one_each(given.values.astype(float).ravel(), record, index, area)
    kinds = given.coords[extra[0]].values if extra[0] in given.coords else None
    flat = given.values.astype(float).reshape(record.size, -1)
    return _matrix(sp.csc_array(flat), record.size, kinds)


def _places(given: xr.DataArray, dim: str, wanted: np.ndarray) -> np.ndarray:
    """Where the wanted labels are along a dim."""
    if dim not in given.coords:
        raise ValueError(f"sensitivity has no labels on {dim!r}")
    labels = pd.Index(text_labels(given.indexes[dim]))
    again = labels[labels.duplicated()]
    if len(again):
        raise ValueError(f"sensitivity has labels more than once: {name_some(again)}")
    place = labels.get_indexer(pd.Index(wanted.astype(str)))
    if (place < 0).any():
        absent = wanted[place < 0]
        raise ValueError(f"no sensitivity for {absent.size} of {dim!r}: {name_some(absent)}")
    return np.asarray(place)


def _one_each(
    values: Array, record: np.ndarray, index: np.ndarray | None, area: np.ndarray
) -> Changes:
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        names = record if index is None else area[index]
        raise ValueError(
            f"sensitivity must be positive and finite; it is not for {bad.sum()} observed values: "
            f"{name_some(names[bad])}"
        )
    matrix = sp.diags_array(np.asarray(values, dtype=float)).tocsc()
    return Changes(matrix, record if index is None else area[index], index)


def _matrix(matrix: sp.csc_array, k: int, kinds: np.ndarray | None) -> Changes:
    matrix = sp.csc_array(matrix)
    matrix.sum_duplicates()
    r = matrix.shape[1]
    label = np.asarray(
        [str(i) for i in range(r)] if kinds is None else text_labels(kinds), dtype=str
    )
    if matrix.shape[0] != k:
        raise ValueError(f"the change matrix has {matrix.shape[0]} rows for {k} observed values")
    bad = ~(np.isfinite(matrix.data) & (matrix.data >= 0))
    if bad.any():
        raise ValueError(f"{bad.sum()} entries of the change matrix are negative or not finite")
    matrix.eliminate_zeros()
    empty = np.flatnonzero(np.diff(matrix.indptr) == 0)
    if empty.size or not r:
        raise ValueError(
            f"{empty.size} kinds of record move nothing: {name_some(label[empty])}"
            if r
            else "the change matrix has no kinds of record"
        )
    untouched = np.flatnonzero(np.diff(matrix.tocsr().indptr) == 0)
    if untouched.size:
        raise ValueError(
            f"no kind of record moves {untouched.size} of the {k} observed values: every one "
            "comes from somebody"
        )
    return Changes(matrix, label)


# Without a declared range, direct estimates may lie this many largest standard errors from 0.
RANGE_WITHOUT_BOUNDS = 2.0**20


def joined_sensitivity(given: Any, area: np.ndarray, sampled: np.ndarray) -> Array:
    """Sensitivities in the model's order; zero where there is no sample, hence no record."""
    if isinstance(given, xr.DataArray | pd.Series):
        if isinstance(given, xr.DataArray):
            if given.dims != ("area",) or "area" not in given.coords:
                raise ValueError("sensitivity needs the one dim 'area' with its labels")
            given = given.to_series()
        index = pd.Index(text_labels(given.index), dtype=object)
        series = pd.Series(given.to_numpy(dtype=float), index=index)
        again = series.index[series.index.duplicated()]
        if len(again):
            raise ValueError(f"sensitivity has areas more than once: {name_some(again)}")
        wanted = pd.Index(area[sampled], dtype=object)
        absent = wanted[~wanted.isin(series.index)]
        if len(absent):
            raise ValueError(f"no sensitivity for {len(absent)} areas: {name_some(absent)}")
        values = series.reindex(area).to_numpy(dtype=float)
    else:
        values = np.asarray(given, dtype=float)
        if values.shape not in ((), area.shape):
            raise ValueError(f"sensitivity has shape {values.shape} for {area.size} areas")
        values = np.broadcast_to(values, area.shape)
    bad = sampled & ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise ValueError(
            f"sensitivity must be positive and finite; it is not in {bad.sum()} areas: "
            f"{name_some(area[bad])}"
        )
    return np.where(sampled, values, 0.0)


def public_bound(bounds: Any, precision: Array, estimate: Array) -> float:
    """A public bound of the absolute direct estimates: it decides what rounding can cost."""
    if bounds is not None:
        lo, hi = (float(b) for b in bounds)
        # Estimates are rounded to a grid, so they may pass the range by less than its width.
        outside = (estimate < lo - 1e-9 * (hi - lo)) | (estimate > hi + 1e-9 * (hi - lo))
        if outside.any():
            raise ValueError(f"{outside.sum()} observed values lie outside the declared range")
        return max(abs(lo), abs(hi)) * (1 + 1e-9)
    largest_sd = 1 / math.sqrt(precision[precision > 0].min())
    bound = RANGE_WITHOUT_BOUNDS * largest_sd
    if (np.abs(estimate) > bound).any():
        raise ValueError(
            "observed values are very large against their sampling variances: declare the "
            "outcome's range in sensitivity.attrs['outcome_bounds']"
        )
    return bound
