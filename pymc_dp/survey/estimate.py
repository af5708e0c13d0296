"""Direct estimates from survey records: Hajek estimate, sampling variance, sensitivity by area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from pymc_dp._checks import AREAS_PER_UNIT, FROM_ANSWERS, name_some
from pymc_dp.record.origin import public_mark
from pymc_dp.survey.columns import (
    Bounds,
    Sample,
    check_columns,
    describe_sample,
    suggest_unit,
)
from pymc_dp.survey.frames import Table, lazily, texts
from pymc_dp.survey.linearized import Singleton
from pymc_dp.survey.sums import Sums, ratio, sum_records
from pymc_dp.survey.variance import Method, Options, Variance, choose_method

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame
    from numpy.typing import ArrayLike, NDArray


def hajek(
    data: IntoFrame,
    *,
    outcome: str,
    weight: str,
    area: str | Sequence[str],
    bounds: Sequence[float] = (0, 1),
    unit: str | Sequence[str] | None = None,
    strata: str | Sequence[str] | None = None,
    cluster: str | Sequence[str] | None = None,
    replicate_weights: str | Sequence[str] | None = None,
    variance: Variance = "linearized",
    rate: float | None = None,
    design_factor: float = 1.0,
    singleton: Singleton = "fail",
    fpc: str | None = None,
    replicate_scale: ArrayLike | None = None,
    replicate_center: Literal["estimate", "mean"] = "estimate",
    fay_rho: float | None = None,
    universe: str | None = None,
    spanning: Literal["fail", "bound"] = "fail",
    missing: Literal["fail", "drop"] = "fail",
) -> xr.Dataset:
    r"""Estimate every area from its survey records, with sampling variance and sensitivity.

    Parameters
    ----------
    data : dataframe
        One row a record: pandas, Polars, PyArrow, a DuckDB relation, Dask, PySpark, or what else
        narwhals reads. A lazy frame stays lazy: only rows of areas (with a design, of areas within
        strata) are fetched.
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
        at once; several columns where numbers start again in every area. Default: each record; a
        pandas frame whose ``attrs["unit"]`` names another unit, as that of
        ``datasets.read_acs_pums`` does, gives a UserWarning then.
    strata, cluster : str or sequence of str, optional
        Columns of the sampling design, for "linearized": areas are then domains of the whole
        sample, to which its clusters without the area add zeros. Clusters are nested in strata
        (their numbers may start again). Without `cluster`, units (or records) are what was sampled;
        a constant column as `strata` makes the whole sample one design.
    replicate_weights : str or sequence of str, optional
        Columns of the replicate weights, which may be negative; or their prefix, "PWGTP": that text
        and a number, nothing else, the numbers consecutive.
    variance : str, default "linearized"
        "linearized": the with-replacement design variance, computed from the outcomes.
        "kish": P (1 - P) / n_eff times `design_factor`, from the weights and public numbers alone.
        With replicate weights, "sdr" (successive differences, as in the American Community
        Survey), "brr" (balanced half-samples), "fay", "jk1", "jkn" (jackknifes) or "bootstrap".
    rate : float, optional
        P of "kish": a public rate, not computed from the same file.
    design_factor : float, default 1
        Public factor of "kish", for outcomes that are alike within households or clusters.
    singleton : {"fail", "remove", "adjust", "average", "certainty"}
        A stratum with a single sampled cluster is refused; or adds nothing ("remove",
        "certainty"), or the square of its deviation from the area's mean ("adjust"), or counts as
        the average of the area's other strata: R's ``survey.lonely.psu``.
    fpc : str, optional
        Finite population correction, for "linearized" and samples without replacement: column of
        the number of clusters (without `cluster`, of units) in the population of the record's
        stratum; without strata and clusters, of its area. The sensitivity stays what it is.
    replicate_scale : float or sequence of float, optional
        The factor of every squared difference, or one for each replicate; "jkn" needs it. Default,
        with R replicates: 4 / R for "sdr", 1 / R for "brr" and "bootstrap", (R - 1) / R for "jk1",
        1 / (R (1 - `fay_rho`)^2) for "fay".
    replicate_center : {"estimate", "mean"}
        Differences are taken from the full-sample estimate, or from the mean of the replicates.
    fay_rho : float, optional
        Fay's coefficient, at least 0 and below 1.
    universe : str, optional
        Column that says which records belong to the universe (booleans, or 0 and 1). Those outside
        take no part, whatever their outcome, and are counted; their clusters stay in the design.
    spanning : {"fail", "bound"}
        Units with records in several areas are refused; or every area's sensitivity is raised so
        that the joint guarantee covers them (see Notes).
    missing : {"fail", "drop"}
        Records without an outcome or a weight are refused, or left out and counted. Who answered is
        taken to be public.

    Returns
    -------
    xarray.Dataset
        On dimension `area`, sorted by label: `estimate` and `sensitivity` (units of the outcome),
        `variance` (their square), `n` records and `n_units` units of positive weight,
        `sum_weights`, `max_weight` (largest weight of a record; with `unit` the largest summed
        weight of a unit), `n_eff` (Kish's effective number of records), `n_dropped`, and with
        `universe` also `n_outside_universe`. Several area columns stay as coordinates, as text
        (under `<name>_level` where the result has its own variable of that name). Attributes keep
        bounds, unit, variance method, grid and counts. Variances computed from the answers (all
        methods but "kish") carry the attribute ``computed_from="answers"``: a source declared for
        them is refused later. An area whose weights are all 0 has no
        sample: its estimate and variance are missing, its sensitivity is 0, and the attributes
        count and name such areas.

    Raises
    ------
    ValueError
        Columns that are absent or of the wrong kind; weights that are missing, negative or
        infinite; outcomes that are missing or outside the bounds; areas that are blank or share a
        label; units, strata or clusters that are missing; units in several areas; strata with a
        single cluster; populations that are missing or smaller than their sample; replicate weights
        that are missing or infinite; no records; bounds without
        a range; options that do not belong together. The message names columns, areas and counts
        and never shows an outcome.

    Notes
    -----
    With :math:`\hat y = \sum w y / \sum w` [1]_ and
    :math:`z_u = \sum_{k \in u} w_k (y_k - \hat y) / \sum w` for the n units of an area, the
    linearised variance is :math:`n / (n - 1) \sum_u z_u^2` [2]_; with a design it is the sum over
    strata of :math:`n_h / (n_h - 1) \sum_c (z_c - \bar z_h)^2` over their :math:`n_h` clusters,
    those without any record of the area included. With `fpc`, each term (of a stratum, or the
    area's) is multiplied by :math:`1 - n_h / N_h` [2]_, and a stratum that is in the sample
    entirely adds nothing. The variance is missing for a single unit and exactly 0 where all
    outcomes (or the means of all units) agree, and stays so: no model can use such an area as it
    is. With replicates it is :math:`\sum_r c_r (\hat y_r - \hat y)^2` [3]_,
    missing where the weights of a replicate do not add up to more than 0.

    New outcomes of one unit move the estimate by at most
    :math:`s = (hi - lo) \max_u w_u / \sum w`. The estimate is rounded to a public grid (attribute
    `outcome_grid`, about :math:`10^{-12} (hi - lo)`), and the sensitivity is s raised by the grid
    and by a proven bound on rounding errors, so that it also holds for the numbers as computed.
    For bounds (0, 1) this adds :math:`10^{-12} + 6 \cdot 10^{-16} n`, less than a millionth of s
    below 40,000 records an area.

    A unit in k areas moves k estimates. Its effect on a posterior draw is the sum of k effects, so
    its price is at most that of the largest of them made k times as large:
    ``spanning="bound"`` takes :math:`\max_u k_u w_u` in place of :math:`\max_u w_u`, and the
    largest price of an area is then an upper bound for every unit. A single area's price says less.

    References
    ----------
    .. [1] J. Hajek (1971). Comment on "An essay on the logical foundations of survey sampling".
       Foundations of Statistical Inference. Holt, Rinehart and Winston.
    .. [2] C.-E. Sarndal, B. Swensson, J. Wretman (1992). Model Assisted Survey Sampling. Springer.
    .. [3] K. M. Wolter (2007). Introduction to Variance Estimation. Springer.

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
    sample = describe_sample(
        outcome=outcome,
        weight=weight,
        bounds=bounds,
        area=area,
        unit=unit,
        strata=strata,
        cluster=cluster,
        universe=universe,
        fpc=fpc,
        spanning=spanning,
        missing=missing,
    )
    options = Options(
        rate=rate,
        design_factor=design_factor,
        singleton=singleton,
        replicate_weights=replicate_weights,
        replicate_scale=replicate_scale,
        replicate_center=replicate_center,
        fay_rho=fay_rho,
    )
    suggest_unit(data, sample)
    frame = lazily(data)
    schema = frame.collect_schema()
    check_columns(schema, sample)
    method = choose_method(variance, sample, schema, options)
    sums = sum_records(frame, sample, method.columns)
    sampling_variance, found = method.compute(sums)
    return _label(sums, sample, method, sampling_variance, found)


def _label(
    sums: Sums,
    sample: Sample,
    method: Method,
    variance: NDArray[np.float64],
    found: dict[str, Any],
) -> xr.Dataset:
    """Put the areas' names and the record of what was asked to the numbers."""
    table, limits = sums.table, sample.bounds
    n = table["n"].astype(np.int64)
    variables = {
        "estimate": grid_estimate(sums.mean, limits),
        "variance": variance,
        "sensitivity": computed_sensitivity(table, sums.reach, limits, sums.unit_areas),
        "n": n,
        "n_units": table["n_units"].astype(np.int64) if "n_units" in table else n,
        "sum_weights": table["weight"],
        "max_weight": table["max_weight"],
        "n_eff": np.nan_to_num(sums.n_eff),
        "n_dropped": sums.counts["dropped"].astype(np.int64),
    }
    if sample.universe is not None:
        variables["n_outside_universe"] = sums.counts["outside_universe"].astype(np.int64)
    coordinates = {"area": sums.labels}
    if len(sample.area) > 1:
        for name, level in zip(sample.area, sums.levels, strict=True):
            free = name if name not in {"area", *variables} else f"{name}_level"
            coordinates[free] = np.asarray(texts(level), dtype=str)
    direct = xr.Dataset(
        {name: ("area", values) for name, values in variables.items()},
        {name: ("area", values) for name, values in coordinates.items()},
        _record(sums, sample) | dict(method.record) | sums.spanning | found,
    )
    direct["variance"].attrs = (
        dict(FROM_ANSWERS) if method.from_answers else public_mark(direct["variance"].values)
    )
    # A sensitivity means nothing without its unit and range: they go with it into a release.
    direct["sensitivity"].attrs = {
        "outcome_bounds": [limits.low, limits.high],
        "unit": sample.unit_name,
    }
    if sums.spanning:
        # Raised for units in several areas: right for what is linear in y, and only for that.
        direct["sensitivity"].attrs[AREAS_PER_UNIT] = sums.spanning["max_areas_of_a_unit"]
    return direct


def _record(sums: Sums, sample: Sample) -> dict[str, Any]:
    """Record what was asked and what was left out, in types that every file format keeps."""
    counts, bounds = sums.counts, sample.bounds
    without_weight, empty = int(counts["missing_weight"].sum()), sums.labels[sums.table["n"] == 0]
    record = {
        "bounds": [bounds.low, bounds.high],
        "unit": sample.unit_name,
        "neighbours": f"one {sample.unit_name} replaced: its outcomes take any values within the "
        "bounds; weights, areas and who answered are public",
        "outcome_grid": bounds.grid,
        "n_rows": int(counts["rows"].sum()),
        "n_missing_weight_dropped": without_weight,
        "n_missing_outcome_dropped": int(counts["dropped"].sum()) - without_weight,
        "n_areas_without_sample": len(empty),
    }
    return record | ({"areas_without_sample": name_some(empty)} if len(empty) else {})


def grid_estimate(mean: NDArray[np.float64], bounds: Bounds) -> NDArray[np.float64]:
    """Hajek estimate sum(w y) / sum(w), rounded to the public grid."""
    return np.rint((bounds.middle + mean) / bounds.grid) * bounds.grid


def computed_sensitivity(
    table: Table,
    largest: NDArray[np.float64],
    bounds: Bounds,
    unit_areas: NDArray[np.float64],
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

    A unit in k areas moves k computed estimates, so all this counts k times. A plan of noise
    counts the rounding of a single product with y, 2 u L in units of y: 3 u L more for each area.
    """
    n, u = table["n"], 2.0**-53
    exact = ratio(bounds.width * largest, table["weight"])
    rounding = bounds.grid + u * (5 * (n + 4) * bounds.width + 4 * bounds.largest)
    several = np.where(unit_areas > 1, unit_areas * 3 * u * bounds.largest, 0.0)
    return np.where(n > 0, exact + unit_areas * rounding + several, 0.0)
