"""Area-level inputs: direct estimates and covariates, joined by label and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._checks import declared_bounds, name_some, text_labels
from pymc_dp._typing import Array
from pymc_dp.record.origin import ANSWERS, origin_of


@dataclass(frozen=True)
class AreaData:
    """Checked inputs of an area-level model.

    Attributes
    ----------
    area : tuple of str
        Labels, the ``m`` rows of everything else.
    covariate : tuple of str
        Names of the ``p`` columns of `design`.
    estimate, variance : ndarray of shape (m,)
        Direct estimates and sampling variances; NaN in both where there is no sample.
    design : ndarray of shape (m, p)
    bounds : tuple of float or None
        Declared range of the outcome, if the direct estimates carry it.
    origin : str
        Where the sampling variances come from, as :mod:`pymc_dp.record.origin` words it.
    sensitivity : DataArray or None
        The sensitivities that the direct estimates came with.
    """

    area: tuple[str, ...]
    covariate: tuple[str, ...]
    estimate: Array
    variance: Array
    design: Array
    bounds: tuple[float, float] | None
    origin: str
    sensitivity: xr.DataArray | None

    @property
    def from_answers(self) -> bool:
        """Whether the sampling variances say that they were computed from the answers."""
        return self.origin == ANSWERS

    @property
    def sampled(self) -> np.ndarray:
        """Positions of the areas that have a direct estimate."""
        return np.flatnonzero(~np.isnan(self.variance))

    def __repr__(self) -> str:
        """Sizes only: direct estimates never appear in a repr."""
        return (
            f"AreaData({len(self.area)} areas, {len(self.sampled)} with sample, "
            f"covariates {list(self.covariate)})"
        )


def area_data(
    direct: xr.Dataset,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
    *,
    flat: bool = True,
) -> AreaData:
    """Join direct estimates with covariates by label, and check both.

    Parameters
    ----------
    direct : xr.Dataset
        ``estimate`` and ``variance`` on dim ``area``; both missing where there is no sample.
    formula : str
        Right-hand side of the linear predictor.
    covariates : DataFrame, optional
        Indexed by area label (several levels are joined by a space). Areas that only it has
        become areas without sample.
    flat : bool
        Whether the coefficients have a flat prior, so that the design must have full rank.

    Raises
    ------
    ValueError
        Missing variables, duplicate or unmatched labels, estimates or variances that are
        missing, infinite, zero or negative, covariates that are missing, infinite or collinear:
        the message names the areas and columns.
    """
    area, estimate, variance, bounds = _direct(direct)
    labels, names, design = design_matrix(area, formula, covariates)
    y = np.full(len(labels), np.nan)
    D = np.full(len(labels), np.nan)
    y[: len(area)], D[: len(area)] = estimate, variance
    if flat:
        check_rank(design[~np.isnan(D)], names)
    origin = origin_of(direct["variance"].values, direct["variance"].attrs)
    return AreaData(labels, names, y, D, design, bounds, origin, _sensitivity(direct))


def _sensitivity(direct: xr.Dataset) -> xr.DataArray | None:
    """Sensitivities that come with direct estimates, with what the data set says of them."""
    if "sensitivity" not in direct or direct["sensitivity"].dims != ("area",):
        return None
    said = {
        key: direct.attrs[key]
        for key in ("bounds", "outcome_bounds", "unit")
        if key in direct.attrs
    }
    values = direct["sensitivity"]
    return values.drop_vars([name for name in values.coords if name != "area"]).assign_attrs(
        said | values.attrs
    )


def design_matrix(
    area: list[str], formula: str, covariates: pd.DataFrame | None
) -> tuple[tuple[str, ...], tuple[str, ...], Array]:
    """Labels, names of the columns, and the design: the given areas first, in their order."""
    table = _table(area, covariates)
    names, design = _design(formula, table)
    return tuple(table.index), names, design


def _direct(direct: xr.Dataset) -> tuple[list[str], Array, Array, tuple[float, float] | None]:
    missing = [v for v in ("estimate", "variance") if v not in direct]
    if missing or "area" not in direct.coords:
        raise ValueError(
            f"direct needs the variables 'estimate' and 'variance' with labels on dim 'area'; "
            f"missing: {', '.join(missing) or 'area labels'}"
        )
    area = [str(a) for a in direct["area"].values]
    _check_unique(area, "direct")
    y, D = (np.asarray(direct[v].values, dtype=float) for v in ("estimate", "variance"))
    without = np.isnan(y) & np.isnan(D)
    problems = {
        "zero": D == 0,
        "missing": np.isnan(D) & ~without,
        "negative": D < 0,
        "not finite or too small to invert": ~np.isfinite(_inverse(D)) & (D > 0),
    }
    _refuse("sampling variance", problems, area)
    bad_estimate = {"missing": np.isnan(y) & ~without, "not finite": np.isinf(y)}
    _refuse("direct estimate", bad_estimate, area)
    if without.all():
        raise ValueError("no area has a direct estimate")
    bounds = declared_bounds({**direct["estimate"].attrs, **direct.attrs})
    return area, y, D, None if bounds is None else (bounds[0], bounds[1])


def _inverse(D: Array) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.where(np.isinf(D), np.inf, 1.0 / D))


def _table(area: list[str], covariates: pd.DataFrame | None) -> pd.DataFrame:
    """Covariates in the order of the direct estimates, areas without sample after them."""
    if covariates is None:
        return pd.DataFrame(index=pd.Index(area, dtype=object))
    labels = text_labels(covariates.index)
    _check_unique(labels, "covariates")
    known = set(labels)
    unmatched = [a for a in area if a not in known]
    if unmatched:
        noun = "area" if len(unmatched) == 1 else "areas"
        raise ValueError(f"no covariates for {noun} {name_some(unmatched)}")
    have = set(area)
    order = area + [a for a in labels if a not in have]
    return covariates.set_axis(pd.Index(labels, dtype=object), axis=0).loc[order]


def _design(formula: str, table: pd.DataFrame) -> tuple[tuple[str, ...], Array]:
    import formulaic

    parsed = formulaic.Formula(formula)
    if hasattr(parsed, "lhs"):
        raise ValueError("the formula describes the covariates only: write '~ x', not 'y ~ x'")
    used = [c for c in table.columns if c in parsed.required_variables]
    absent = sorted(parsed.required_variables - set(used))
    if absent:
        raise ValueError(f"the formula needs columns that covariates lack: {name_some(absent)}")
    for column in used:
        values = table[column]
        bad = values.isna().to_numpy()
        if pd.api.types.is_numeric_dtype(values):
            bad = bad | ~np.isfinite(values.to_numpy(dtype=float, na_value=np.nan))
        if bad.any():
            raise ValueError(
                f"covariate {column!r} is missing or infinite in {bad.sum()} areas: "
                f"{name_some(table.index[bad])}"
            )
    # An empty context: a formula sees the columns of the table and nothing of our code.
    matrix = parsed.get_model_matrix(table, na_action="raise", context={})
    design = np.asarray(matrix, dtype=float).reshape(len(table), -1)
    names = tuple(map(str, matrix.columns))
    if not names:
        raise ValueError("the formula has no term: write '~ 1' for an intercept alone")
    bad_column = ~np.isfinite(design).all(axis=0)
    if bad_column.any():
        raise ValueError(f"terms not finite: {name_some(np.array(names)[bad_column])}")
    return names, design


def check_rank(design: Array, names: tuple[str, ...]) -> None:
    """Full column rank over the areas with a sample; names the columns that add up."""
    size = np.sqrt((design**2).sum(axis=0))
    scaled = design / np.where(size > 0, size, 1.0)
    # Right singular vectors for every column, and never an m x m matrix for many areas.
    wide = design.shape[0] < design.shape[1]
    _, singular, vectors = np.linalg.svd(scaled, full_matrices=wide)
    rank = int((singular > max(design.shape) * np.finfo(float).eps * 10).sum())
    if rank == design.shape[1]:
        return
    null = np.abs(vectors[rank:]).max(axis=0)
    involved = np.array(names)[null > 1e-8]
    raise ValueError(
        f"covariates are collinear over the {design.shape[0]} areas with a sample: rank {rank} "
        f"for {design.shape[1]} columns; columns involved: {name_some(involved)}"
    )


def _check_unique(labels: Iterable[str], table: str) -> None:
    index = pd.Index(list(labels), dtype=object)
    blank = index.str.strip() == ""
    if blank.any():
        raise ValueError(f"{table}: {blank.sum()} area labels are blank")
    again = index[index.duplicated()].unique()
    if len(again):
        raise ValueError(f"{table}: {len(again)} areas appear more than once: {name_some(again)}")


def _refuse(what: str, problems: dict[str, np.ndarray], area: list[str]) -> None:
    """One error that lists every kind of problem with its areas."""
    labels = np.array(area, dtype=object)
    found = [f"{kind}: {name_some(labels[bad])}" for kind, bad in problems.items() if bad.any()]
    if found:
        count = int(sum(bad.sum() for bad in problems.values()))
        raise ValueError(f"{what} unusable in {count} areas ({'; '.join(found)})")


def direct_sensitivity(direct: xr.Dataset, data: AreaData) -> Array:
    """``s_j`` in the order of the data, 0 where there is no sample."""
    if "sensitivity" not in direct:
        raise ValueError(
            "direct needs the variable 'sensitivity' on dim 'area': the most that one protected "
            "unit can move a direct estimate"
        )
    values = direct["sensitivity"]
    by_label = dict(zip(map(str, direct["area"].values), values.values, strict=True))
    sensitivity = np.array([float(by_label.get(a, 0.0)) for a in data.area])
    sensitivity[np.isnan(data.variance)] = 0.0
    bad = ~(np.isfinite(sensitivity) & (sensitivity >= 0))
    if bad.any():
        areas = name_some(np.array(data.area, dtype=object)[bad])
        raise ValueError(f"sensitivity missing, negative or infinite in {bad.sum()} areas: {areas}")
    return sensitivity
