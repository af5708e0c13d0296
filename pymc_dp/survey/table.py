"""Start from area-level estimates that were computed elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp.survey.columns import Bounds, check_bounds, check_labels
from pymc_dp.survey.estimate import grid_estimate
from pymc_dp.survey.frames import is_missing, on_driver, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhals.typing import IntoFrame
    from numpy.typing import NDArray


def direct_from_table(
    data: IntoFrame,
    *,
    area: str | Sequence[str] | None = None,
    estimate: str,
    variance: str | None = None,
    standard_error: str | None = None,
    sensitivity: str | None = None,
    max_share: str | None = None,
    bounds: Sequence[float] = (0, 1),
    unit: str = "record",
) -> xr.Dataset:
    """Take direct estimates, variances and sensitivities from a table with one row an area.

    Parameters
    ----------
    data : dataframe
        One row an area, in whatever narwhals reads.
    area : str or sequence of str, optional
        Column of the area's label, or several, joined by one space. Default: the index of a pandas
        frame.
    estimate : str
        Column of the direct estimate, in units of the outcome and within `bounds`.
    variance, standard_error : str
        Column of the sampling variance, or of its square root: exactly one of the two.
    sensitivity, max_share : str
        Column of the most that an estimate moves when the outcomes of one unit are replaced, in
        units of the outcome; or of the largest share that a unit has in the weights of its area,
        which is multiplied by the width of `bounds`: exactly one of the two.
    bounds : pair of float, default (0, 1)
        Lowest and highest value that an outcome can take, in its own units: public.
    unit : str, default "record"
        What one row of the protected records stands for: the word goes into every statement.

    Returns
    -------
    xarray.Dataset
        On dimension `area`, sorted by label: `estimate`, `variance` and `sensitivity`, as
        :func:`hajek` returns them. Estimates are rounded to the public grid (attribute
        `outcome_grid`) and sensitivities raised by it. An area whose estimate and variance are both
        missing has no sample, and its sensitivity is 0.

    Raises
    ------
    ValueError
        Columns that are absent or hold no numbers; both or neither of two alternatives; labels that
        are blank or occur twice; estimates outside the bounds or without a variance, or variances
        without an estimate; variances that are not positive; sensitivities that are missing,
        negative, or larger than the width of the bounds. The message names areas and counts and
        never shows an estimate.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame(
    ...     {"p": [0.12, 0.31], "se": [0.02, 0.05], "share": [0.01, 0.04]}, index=["A", "B"]
    ... )
    >>> direct = direct_from_table(table, estimate="p", standard_error="se", max_share="share")
    >>> direct["variance"].round(6).values.tolist(), direct["sensitivity"].round(6).values.tolist()
    ([0.0004, 0.0025], [0.01, 0.04])
    """
    limits = check_bounds(bounds)
    spread = _one_of(variance=variance, standard_error=standard_error)
    change = _one_of(sensitivity=sensitivity, max_share=max_share)
    columns = {"estimate": estimate, "variance": spread, "sensitivity": change}
    labels, levels, names, numbers = _read(data, area, columns)
    order = np.argsort(labels)
    labels, numbers = labels[order], {name: values[order] for name, values in numbers.items()}
    if standard_error is not None:
        numbers["variance"] = _squares_of(numbers["variance"])
    if max_share is not None:
        numbers["sensitivity"] = numbers["sensitivity"] * limits.width
    sampled = ~(np.isnan(numbers["estimate"]) & np.isnan(numbers["variance"]))
    _check_numbers(numbers, sampled, labels, columns, limits)

    variables = {
        "estimate": grid_estimate(numbers["estimate"] - limits.middle, limits),
        "variance": numbers["variance"],
        "sensitivity": np.where(sampled, numbers["sensitivity"] + 2 * limits.grid, 0.0),
    }
    coordinates = {"area": labels}
    if len(names) > 1:
        for name, level in zip(names, levels, strict=True):
            free = name if name not in {"area", *variables} else f"{name}_level"
            coordinates[free] = np.asarray(texts(level), dtype=str)[order]
    neighbours = f"one {unit} replaced, as whoever made the table declares"
    direct = xr.Dataset(
        {name: ("area", values) for name, values in variables.items()},
        {name: ("area", values) for name, values in coordinates.items()},
        {
            "bounds": [limits.low, limits.high],
            "unit": unit,
            "neighbours": neighbours,
            "outcome_grid": limits.grid,
            "variance_method": "given",
            "n_areas_without_sample": int((~sampled).sum()),
        },
    )
    direct["sensitivity"].attrs = {"outcome_bounds": [limits.low, limits.high], "unit": unit}
    return direct


def _one_of(**given: str | None) -> str:
    """The one alternative that is given."""
    columns = [column for column in given.values() if column is not None]
    if len(columns) != 1:
        raise ValueError(f"give exactly one of {' and '.join(given)}")
    return columns[0]


def _squares_of(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squares of standard errors; a negative one stays negative, to be refused."""
    return np.sign(errors) * errors**2


def _read(
    data: Any, area: str | Sequence[str] | None, columns: dict[str, str]
) -> tuple[NDArray[np.str_], list[list[Any]], list[str], dict[str, NDArray[np.float64]]]:
    """Labels, their levels, the names of the levels, and the numbers; in the order of the table."""
    import narwhals as nw
    import pandas as pd

    if area is None:
        if not isinstance(data, pd.DataFrame):
            raise ValueError("area: say which column holds the area's label")
        labels = pd.Index(data.index)
        names = [f"level_{k}" for k in range(labels.nlevels)]
        levels = [labels.get_level_values(k).tolist() for k in range(labels.nlevels)]
        frame: Any = nw.from_native(data)
    else:
        frame = on_driver(nw.from_native(data))
        names = [area] if isinstance(area, str) else list(area)
    wanted = [*columns.values(), *(names if area is not None else [])]
    if absent := [repr(name) for name in dict.fromkeys(wanted) if name not in frame.columns]:
        raise ValueError(f"the data have no column {name_some(absent)}")
    if area is not None:
        levels = [frame.get_column(name).to_list() for name in names]
    numbers = {}
    for meaning, name in columns.items():
        if not frame.schema[name].is_numeric():
            raise ValueError(f"column {name!r} holds {frame.schema[name]}, not numbers")
        series = frame.select(nw.col(name).cast(nw.Float64).alias(name))
        missing = series.select(is_missing(nw.col(name)).fill_null(True)).get_column(name)
        values = np.array(series.get_column(name).to_numpy(), dtype=float)
        values[np.array(missing.to_list(), dtype=bool)] = np.nan
        numbers[meaning] = values
    if not levels[0]:
        raise ValueError("the table holds no areas")
    text = [texts([None if v is None or v != v else v for v in level]) for level in levels]
    return check_labels(text, np.ones(len(levels[0])), names), text, names, numbers


def _check_numbers(
    numbers: dict[str, NDArray[np.float64]],
    sampled: NDArray[np.bool_],
    labels: NDArray[np.str_],
    columns: dict[str, str],
    bounds: Bounds,
) -> None:
    """Refuse what cannot be an estimate, a variance or a sensitivity, by area, never by value."""
    estimate, variance, change = (numbers[n] for n in ("estimate", "variance", "sensitivity"))
    inside = (estimate >= bounds.low) & (estimate <= bounds.high)
    wide = bounds.width * (1 + 1e-9)
    faults = [
        (np.isnan(estimate), "estimate", "without an estimate but with a variance"),
        (~np.isnan(estimate) & ~inside, "estimate", "outside the bounds"),
        (~np.isfinite(variance), "variance", "missing or infinite"),
        (variance <= 0, "variance", "zero or negative"),
        (~(change > 0), "sensitivity", "missing, zero or negative"),
        (change > wide, "sensitivity", "larger than the bounds allow"),
    ]
    found = [
        f"column {columns[name]!r}: {what} in {(bad & sampled).sum()} areas, "
        f"{name_some(labels[bad & sampled])}"
        for bad, name, what in faults
        if np.any(bad & sampled)
    ]
    if not sampled.any():
        raise ValueError("the table holds no area with an estimate")
    if found:
        raise ValueError("; ".join(found))
