"""Direct estimates from survey records: Hajek estimate, sampling variance, sensitivity by area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from pymc_dp import survey_sums
from pymc_dp.checks import name_some
from pymc_dp.survey_checks import (
    Bounds,
    Roles,
    check_bounds,
    check_columns,
    check_counts,
    check_labels,
    check_missing,
    check_roles,
    check_spanning,
    check_totals,
    check_variance,
)
from pymc_dp.survey_sums import Frame, Table

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame
    from numpy.typing import NDArray


def hajek(
    data: IntoFrame,
    *,
    outcome: str,
    weight: str,
    area: str | Sequence[str],
    bounds: Sequence[float] = (0, 1),
    unit: str | Sequence[str] | None = None,
    variance: Literal["linearized", "kish"] = "linearized",
    rate: float | None = None,
    design_factor: float = 1.0,
    missing: Literal["fail", "drop"] = "fail",
) -> xr.Dataset:
    r"""Estimate every area from its survey records, with sampling variance and sensitivity.

    Parameters
    ----------
    data : dataframe
        One row a record: pandas, Polars, PyArrow, or what else narwhals reads.
    outcome : str
        Column of the confidential outcome: numbers or booleans within `bounds`.
    weight : str
        Column of the survey weight: public, finite, not negative. A record of weight 0 (such as a
        non-respondent) takes no part and is not counted in `n` or `n_units`.
    area : str or sequence of str
        Column of the area, or several that name it together ("state" and "puma"): their values as
        text, joined by one space. Text is kept exactly as given.
    bounds : pair of float, default (0, 1)
        Lowest and highest value that an outcome can take, in its own units: public, never read off
        the data. An outcome outside is an error; nothing is clipped.
    unit : str or sequence of str, optional
        Column that numbers what is protected, such as a household, all of whose outcomes may change
        at once; several columns where numbers start again in every area. Default: each record.
    variance : {"linearized", "kish"}
        "linearized": the with-replacement design variance over units, computed from the outcomes.
        "kish": P (1 - P) / n_eff times `design_factor`, from the weights and public numbers alone.
    rate : float, optional
        P of "kish": a public rate, not computed from the same file.
    design_factor : float, default 1
        Public factor of "kish", for outcomes that are alike within households or clusters.
    missing : {"fail", "drop"}
        Records without an outcome or a weight are refused, or left out and counted. Who answered is
        taken to be public.

    Returns
    -------
    xarray.Dataset
        On dimension `area`, sorted by label: `estimate` and `sensitivity` (units of the outcome),
        `variance` (their square), `n` records and `n_units` units of positive weight,
        `sum_weights`, `max_weight` (largest weight of a record; with `unit` the largest summed
        weight of a unit), `n_eff` (Kish's effective number of records) and `n_dropped`. Several
        area columns stay as coordinates, as text (under `<name>_level` where the result has its own
        variable of that name). Attributes keep bounds, unit, variance method,
        grid and counts. An area whose weights are all 0 has no sample: its estimate and variance
        are missing, its sensitivity is 0, and the attributes count and name such areas.

    Raises
    ------
    ValueError
        Columns that are absent or of the wrong kind; weights that are missing, negative or
        infinite; outcomes that are missing or outside the bounds; areas that are blank or share a
        label; units that are missing or lie in several areas; no records; bounds without a range;
        options that do not belong together. The message names columns, areas and counts and never
        shows an outcome.

    Notes
    -----
    With :math:`\hat y = \sum w y / \sum w` [1]_ and
    :math:`z_u = \sum_{k \in u} w_k (y_k - \hat y) / \sum w` for the n units of an area, the
    linearised variance is :math:`n / (n - 1) \sum_u z_u^2` [2]_. It is missing for a single unit
    and exactly 0 where all outcomes (or the means of all units) agree, and stays so: no model can
    use such an area as it is.

    New outcomes of one unit move the estimate by at most
    :math:`s = (hi - lo) \max_u w_u / \sum w`. The estimate is rounded to a public grid (attribute
    `outcome_grid`, about :math:`10^{-12} (hi - lo)`), and the sensitivity is s raised by the grid
    and by a proven bound on rounding errors, so that it also holds for the numbers as computed.
    For bounds (0, 1) this adds :math:`10^{-12} + 6 \cdot 10^{-16} n`, less than a millionth of s
    below 40,000 records an area.

    References
    ----------
    .. [1] J. Hajek (1971). Comment on "An essay on the logical foundations of survey sampling".
       Foundations of Statistical Inference. Holt, Rinehart and Winston.
    .. [2] C.-E. Sarndal, B. Swensson, J. Wretman (1992). Model Assisted Survey Sampling. Springer.

    Examples
    --------
    >>> import pandas as pd
    >>> records = pd.DataFrame(
    ...     {
    ...         "county": ["A", "A", "A", "B", "B"],
    ...         "weight": [20, 30, 50, 40, 40],
    ...         "smoker": [1, 0, 1, 0, 1],
    ...     }
    ... )
    >>> direct = hajek(records, outcome="smoker", weight="weight", area="county")
    >>> direct[["estimate", "sensitivity"]].to_dataframe().round(6)
          estimate  sensitivity
    area
    A          0.7          0.5
    B          0.5          0.5
    """
    import narwhals as nw

    limits = check_bounds(bounds)
    roles = check_roles(outcome, weight, area, unit)
    method = check_variance(variance, rate, design_factor, limits)
    check_missing(missing)
    frame = nw.from_native(data)
    check_columns(frame.collect_schema(), roles)
    if survey_sums.is_empty(frame):
        raise ValueError("the data hold no records")

    records = survey_sums.read_records(frame, roles, limits)
    units = survey_sums.total_units(records, roles)
    areas = survey_sums.total_areas(units, roles)
    levels, table = survey_sums.collect(areas, roles)
    labels = check_labels(levels, table["rows"], roles.area)
    check_counts(table, labels, roles, limits, missing)
    check_totals(table["weight"], labels)
    check_spanning(survey_sums.count_spanning(units, roles), roles)

    n_eff = _ratio(table["weight"] ** 2, table["squared_weight"])
    if rate is None:
        sampling_variance = _linearized_variance(table, units, areas, roles, limits)
    else:
        sampling_variance = _ratio(design_factor * rate * (1 - rate), n_eff)
    variables = {
        "estimate": _estimate(table, limits),
        "variance": sampling_variance,
        "sensitivity": _sensitivity(table, limits),
        "n": table["n"],
        "n_units": table["n_units"],
        "sum_weights": table["weight"],
        "max_weight": table["max_weight"],
        "n_eff": np.nan_to_num(n_eff),
        "n_dropped": table["dropped"],
    }
    coordinates = {"area": labels}
    if len(roles.area) > 1:
        for name, level in zip(roles.area, levels, strict=True):
            free = name if name not in {"area", *variables} else f"{name}_level"
            coordinates[free] = np.asarray(level, dtype=str)
    direct = xr.Dataset(
        {name: ("area", values) for name, values in variables.items()},
        {name: ("area", values) for name, values in coordinates.items()},
        _attributes(table, labels, limits, roles) | method,
    )
    # A sensitivity means nothing without its unit and range: they go with it into a release.
    direct["sensitivity"].attrs = {key: direct.attrs[key] for key in ("bounds", "unit")}
    return direct


def _ratio(numerator: Any, denominator: NDArray[Any]) -> NDArray[np.float64]:
    """Divide by area; missing where the denominator is 0 or missing: there is no sample."""
    return numerator / np.where(denominator > 0, denominator, np.nan)


def _estimate(table: Table, bounds: Bounds) -> NDArray[np.float64]:
    """Hajek estimate sum(w y) / sum(w), rounded to the public grid."""
    mean = bounds.middle + _ratio(table["weighted_outcome"], table["weight"])
    return np.rint(mean / bounds.grid) * bounds.grid


def _sensitivity(table: Table, bounds: Bounds) -> NDArray[np.float64]:
    """Bound the change of the computed estimate when the outcomes of one unit are replaced.

    In exact arithmetic it is s = R max_u(w_u) / sum(w), R = high - low. The rest makes it hold for
    the numbers as computed, sums in any order. With u = 2**-53, g_k = k u / (1 - k u), n records
    and L the largest absolute outcome, deviations from the middle are at most R / 2 + u L, and
    k roundings change a product or a sum by a factor of at most 1 + g_k (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, chapters 3 and 4):

    - deviation, product and n - 1 additions, as many additions of weights, a quotient: each of the
      two estimates is off by at most g_(2n+1) (R / 2 + u L), and u L more when the middle is added;
    - width, product, quotient and two sums: the computed s is off by at most g_(2n+1) R, as s <= R;
    - the grid moves each of the two estimates by at most half its spacing.

    To first order this is grid + u ((4n + 2) R + 2 L); u ((n + 18) R + 2 L) is left for the terms
    of higher order and for the additions below.
    """
    n, u = table["n"], 2.0**-53
    exact = _ratio(bounds.width * table["max_weight"], table["weight"])
    rounding = bounds.grid + u * (5 * (n + 4) * bounds.width + 4 * bounds.largest)
    return np.where(n > 0, exact + rounding, 0.0)


def _linearized_variance(
    table: Table, units: Frame, areas: Frame, roles: Roles, bounds: Bounds
) -> NDArray[np.float64]:
    """With-replacement variance n / (n - 1) sum_u z_u^2, z_u = sum_k w_k (y_k - yhat) / sum(w)."""
    n, varies = table["n_units"], table["varies"] > 0
    mean = _ratio(table["weighted_outcome"], table["weight"])
    large = table["outcome_outcome"] + mean**2 * table["weight_weight"]
    squares = large - 2 * mean * table["weight_outcome"]
    # A difference below a hundredth of its terms has lost two or more of their sixteen digits.
    if np.any(varies & (squares < 0.01 * large)):
        second_pass = survey_sums.squared_deviations(units, areas, roles)
        squares = survey_sums.collect(second_pass, roles)[1]["square"]
    # Outcomes, or households, that all agree have no variance, whatever rounding leaves of it.
    rounding = (4 * (table["n"] + 4) * 2.0**-53 * bounds.width) ** 2 * table["weight_weight"]
    squares = np.where(varies & (squares > rounding), squares, 0.0)
    return _ratio(n * squares, n - 1) / table["weight"] ** 2


def _attributes(
    table: Table, labels: NDArray[np.str_], bounds: Bounds, roles: Roles
) -> dict[str, Any]:
    """Record what was asked and what was left out, in types that every file format keeps."""
    without_weight, empty = int(table["missing_weight"].sum()), labels[table["n"] == 0]
    attributes = {
        "bounds": [bounds.low, bounds.high],
        "unit": roles.unit_name,
        "neighbours": f"one {roles.unit_name} replaced: its outcomes take any values within the "
        "bounds; weights, areas and who answered are public",
        "outcome_grid": bounds.grid,
        "n_rows": int(table["rows"].sum()),
        "n_missing_weight_dropped": without_weight,
        "n_missing_outcome_dropped": int(table["dropped"].sum()) - without_weight,
        "n_areas_without_sample": len(empty),
    }
    return attributes | ({"areas_without_sample": name_some(empty)} if len(empty) else {})
