"""From the sums of each area to its estimate, sensitivity and linearised variance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp import survey_designs, survey_sums
from pymc_dp.checks import name_some
from pymc_dp.survey_checks import Bounds, Roles
from pymc_dp.survey_frames import Frame, Table
from pymc_dp.survey_methods import Method
from pymc_dp.survey_population import remaining_shares

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ratio(numerator: Any, denominator: NDArray[Any]) -> NDArray[np.float64]:
    """Divide by area; missing where the denominator is 0 or missing: there is no sample."""
    return numerator / np.where(denominator > 0, denominator, np.nan)


def grid_estimate(mean: NDArray[np.float64], bounds: Bounds) -> NDArray[np.float64]:
    """Hajek estimate sum(w y) / sum(w), rounded to the public grid."""
    return np.rint((bounds.middle + mean) / bounds.grid) * bounds.grid


def computed_sensitivity(
    table: Table, largest: NDArray[np.float64], bounds: Bounds
) -> NDArray[np.float64]:
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
    exact = ratio(bounds.width * largest, table["weight"])
    rounding = bounds.grid + u * (5 * (n + 4) * bounds.width + 4 * bounds.largest)
    return np.where(n > 0, exact + rounding, 0.0)


def linearized_variance(
    table: Table,
    mean: NDArray[np.float64],
    records: Frame,
    units: Frame,
    areas: Frame,
    levels: list[list[Any]],
    roles: Roles,
    bounds: Bounds,
) -> NDArray[np.float64]:
    """Variance f n / (n - 1) sum_u z_u^2 of each area, z_u = sum_k w_k (y_k - yhat) / sum(w).

    f is 1, or with a population of N units 1 - n / N.
    """
    n = table.get("n_units", table["n"])
    large = table["outcome_outcome"] + mean**2 * table["weight_weight"]
    squares = large - 2 * mean * table["weight_outcome"]
    # A difference below a hundredth of its terms has lost two or more of their sixteen digits.
    if np.any(varies(table) & (squares < 0.01 * large)):
        squares = survey_sums.squared_deviations(units, areas, roles)["square"]
    squares = clean_squares(squares, table["weight_weight"], table, bounds)
    variance = ratio(n * squares, n - 1) / table["weight"] ** 2
    if roles.fpc is None:
        return variance
    sampled = {k: c for k, c in zip(zip(*levels, strict=True), n, strict=True) if c > 0}
    left = remaining_shares(records, survey_sums.area_keys(roles), "n", sampled, roles)
    f = np.array([left.get(key, np.nan) for key in zip(*levels, strict=True)])
    # Of a single unit nothing is known, unless it is all there is.
    return np.where(f == 0, 0.0, f * variance)


def varies(table: Table) -> NDArray[np.bool_]:
    """Whether the outcomes of an area differ at all."""
    return table["highest"] > table["lowest"]


def clean_squares(
    squares: NDArray[np.float64], weights: NDArray[np.float64], table: Table, bounds: Bounds
) -> NDArray[np.float64]:
    """Outcomes or households that all agree have no variance, whatever rounding leaves of it."""
    rounding = (4 * (table["n"] + 4) * 2.0**-53 * bounds.width) ** 2 * weights
    return np.where(varies(table) & ~(squares <= rounding), squares, 0.0)


def design_variance(
    table: Table,
    mean: NDArray[np.float64],
    records: Frame,
    areas: Frame,
    levels: list[list[Any]],
    roles: Roles,
    bounds: Bounds,
    method: Method,
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """Variance of the areas as domains of the whole design, and what the design consists of."""
    clusters = survey_designs.count_clusters(records, roles)
    remaining = survey_designs.shares_left(records, clusters, roles)
    counts = {
        "n_strata": len(clusters),
        "n_clusters": int(sum(clusters.values())),
        "n_singleton_strata": survey_designs.check_singletons(
            clusters, remaining, roles, method.singleton
        ),
    }
    squares, weights = survey_designs.design_squares(
        records, areas, levels, mean, clusters, remaining, roles, method.singleton
    )
    squares = clean_squares(squares, weights, table, bounds)
    return ratio(squares, table["weight"] ** 2), counts


def attributes(
    table: Table, counts: Table, labels: NDArray[np.str_], bounds: Bounds, roles: Roles
) -> dict[str, Any]:
    """Record what was asked and what was left out, in types that every file format keeps."""
    without_weight, empty = int(counts["missing_weight"].sum()), labels[table["n"] == 0]
    record = {
        "bounds": [bounds.low, bounds.high],
        "unit": roles.unit_name,
        "neighbours": f"one {roles.unit_name} replaced: its outcomes take any values within the "
        "bounds; weights, areas and who answered are public",
        "outcome_grid": bounds.grid,
        "n_rows": int(counts["rows"].sum()),
        "n_missing_weight_dropped": without_weight,
        "n_missing_outcome_dropped": int(counts["dropped"].sum()) - without_weight,
        "n_areas_without_sample": len(empty),
    }
    return record | ({"areas_without_sample": name_some(empty)} if len(empty) else {})
