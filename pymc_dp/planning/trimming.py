"""Trimming weights by a public rule: what it does to accuracy and price, never to outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp.planning.plans import plan
from pymc_dp.survey.weights import weight_table


def trim_weights(
    data: Any,
    *,
    weight: str,
    area: str | Sequence[str],
    rate: float,
    max_ratio: float | None = None,
    cap: float | None = None,
    unit: str | Sequence[str] | None = None,
    design_factor: float = 1.0,
    sigma_u: float | None = None,
    formula: str = "~ 1",
    covariates: pd.DataFrame | None = None,
) -> tuple[Any, xr.Dataset]:
    """Cut the largest weights of every area, and say what changes.

    Only the columns of weights, areas and units are looked at: a rule chosen by what it does to
    the estimates would itself give outcomes away.

    Parameters
    ----------
    data : dataframe
        One row a respondent: pandas, Polars or PyArrow.
    weight, area, unit
        As for :func:`hajek`.
    rate, design_factor
        Public rate and variance factor, as for :func:`weight_table`.
    max_ratio : float, optional
        Cut weights at this many times the area's mean weight before trimming (over positive
        weights); at least 1. Give this or `cap`.
    cap : float, optional
        Cut weights at this value everywhere.
    sigma_u : float, optional
        Of the model that will be released; without it the price is that of no shrinkage.
    formula, covariates
        Of that model, as for :func:`plan`; with `sigma_u` only. Default: an intercept.

    Returns
    -------
    trimmed : dataframe
        A copy of the same kind with the weights cut; the weights of an area are not raised
        again to their sum, which no weighted mean would notice.
    report : xr.Dataset
        On (``stage``, ``area``), stage "before" and "after": ``sensitivity``, ``variance``,
        ``n_eff``, ``max_weight``, ``sum_weights`` and ``rho``, the ``rho_respondent`` of
        :func:`plan`; on ``area``: ``n_trimmed``.

    Raises
    ------
    ValueError
        If the rule is not one of the two, or out of range; a formula or covariates without
        `sigma_u`; or as :func:`weight_table` and :func:`plan` do.

    Notes
    -----
    Trimming lowers the variance and the price and may bias the estimates, where those with
    large weights differ from the others: the report cannot say by how much, as it sees no
    outcome. Potter (1990), A study of procedures to identify and trim extreme sampling weights.

    Examples
    --------
    >>> import pandas as pd
    >>> people = pd.DataFrame({"county": list("AAAA"), "weight": [10.0, 10, 10, 50]})
    >>> trimmed, report = trim_weights(
    ...     people, weight="weight", area="county", rate=0.2, max_ratio=2
    ... )
    >>> trimmed["weight"].tolist()
    [10.0, 10.0, 10.0, 40.0]
    """
    import narwhals as nw

    if (max_ratio is None) == (cap is None):
        raise ValueError("give the rule as max_ratio or as cap")
    given, least = (cap, 0.0) if max_ratio is None else (max_ratio, 1.0)
    if given is None or not (math.isfinite(given) and given >= least and given > 0):
        raise ValueError("max_ratio must be at least 1 and cap positive, both finite")
    if sigma_u is None and (formula != "~ 1" or covariates is not None):
        raise ValueError("formula and covariates price a model, which needs sigma_u too")
    options: dict[str, Any] = {
        "weight": weight,
        "area": area,
        "unit": unit,
        "rate": rate,
        "design_factor": design_factor,
    }
    before = weight_table(data, **options)  # refuses unusable weights and areas

    frame = nw.from_native(data, eager_only=True)
    keys = [area] if isinstance(area, str) else list(area)
    labels = [" ".join(map(str, row)) for row in frame.select(keys).iter_rows()]
    w = frame.get_column(weight).to_numpy().astype(float)
    code = np.searchsorted(before["area"].values, np.array(labels, dtype=str))
    if max_ratio is None:
        limit = np.full(w.size, float(given))
    else:
        mean = before["sum_weights"].values / np.maximum(before["n"].values, 1)
        limit = given * mean[code]
    cut = np.minimum(w, limit)
    column = nw.new_series(weight, cut, nw.Float64, backend=frame.implementation)
    if frame.implementation.is_pandas_like():
        native = frame.to_native().copy()
        native[weight] = cut
    else:
        native = frame.with_columns(column.alias(weight)).to_native()
    after = weight_table(native, **options)
    names = ["sensitivity", "variance", "n_eff", "max_weight", "sum_weights"]
    stages = [
        stage[names].assign(rho=("area", _price(stage, sigma_u, formula, covariates)))
        for stage in (before, after)
    ]
    return native, _report(stages, np.bincount(code[w > limit], minlength=before.area.size))


def _report(stages: list[xr.Dataset], trimmed: np.ndarray) -> xr.Dataset:
    report = xr.concat(
        stages, xr.DataArray(["before", "after"], dims="stage", name="stage"), data_vars="all"
    )
    report["n_trimmed"] = ("area", trimmed)
    return report.assign_attrs(
        trimmed_records=int(trimmed.sum()),
        areas_trimmed=name_some(report["area"].values[trimmed > 0]),
    )


def _price(
    table: xr.Dataset, sigma_u: float | None, formula: str, covariates: pd.DataFrame | None
) -> np.ndarray:
    if sigma_u is not None:
        planned = plan(table, formula, covariates, sigma_u=sigma_u)
        return np.asarray(planned["rho_respondent"].values)
    return np.asarray(table["sensitivity"].values ** 2 / (2 * table["variance"].values))
