"""What makes some areas dear: an exact decomposition of their prices, and the view by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._checks import name_some, text_labels
from pymc_dp.record.claims import read_record
from pymc_dp.record.figures import record_price

DRIVERS = (
    "sample size",
    "weight inequality",
    "outcome variance",
    "design effect",
    "shrinkage",
)
QUANTILES = (0.5, 0.9, 0.99, 1.0)


def guarantee_drivers(direct: xr.Dataset, guarantee: xr.Dataset) -> xr.Dataset:
    r"""Decompose the logarithm of every area's price into what it comes from.

    Parameters
    ----------
    direct : xr.Dataset
        ``n`` and ``n_eff`` on ``area``, as :func:`hajek` or :func:`weight_table` return them;
        nothing else is read, no estimate.
    guarantee : xr.Dataset
        :attr:`PrivateRelease.guarantee` or what :func:`plan` returned.

    Returns
    -------
    xr.Dataset
        ``term`` (``driver``, ``area``): parts of ``log_rho`` (``area``), which they add up to
        with the constant ``constant``; ``share`` (``driver``): covariance of the part with
        ``log_rho`` over the variance of ``log_rho``, adding up to 1 (missing if all prices are
        equal); ``rank_correlation`` (``driver``) of the price with ``n``, with the weight
        inequality and so on. Areas without a sample have no price and are left out.

    Raises
    ------
    ValueError
        If ``n`` or ``n_eff`` is missing or not positive in an area with a price, or `direct`
        names another unit than the guarantee.

    Notes
    -----
    With :math:`c_j = n_j s_j / (hi - lo)`, the largest weight over the mean weight, the identity
    :math:`\log\rho = 2\log(ns) - 2\log n - 2\log D + \log\Sigma_{jj} - \log 2` is regrouped by
    :math:`D = V / n_{eff}`:

    - sample size :math:`-\log n`, weight inequality :math:`2\log c`,
    - outcome variance :math:`-\log V` (with :func:`hajek`'s ``kish`` variance a constant),
    - design effect of the weights :math:`-\log(n / n_{eff})`,
    - shrinkage :math:`\log(\Sigma_{jj} / D)`, never positive for a plain joint draw.

    ``D`` is what the release believes in, so tempering shows under outcome variance. For
    other than plain joint draws, shrinkage is whatever the price is below that of no model.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import plan
    >>> areas = xr.Dataset(
    ...     {
    ...         "variance": ("area", [0.002, 0.001, 0.001]),
    ...         "sensitivity": ("area", [0.05, 0.02, 0.01]),
    ...         "n": ("area", [100, 200, 200]),
    ...         "n_eff": ("area", [50.0, 100.0, 150.0]),
    ...     },
    ...     coords={"area": ["north", "south", "west"]},
    ... )
    >>> round(float(guarantee_drivers(areas, plan(areas, sigma_u=0.05))["share"].sum()), 9)
    1.0
    """
    record = read_record(guarantee.attrs)
    _check_unit(direct.attrs.get("unit", record["unit"]), record)
    sampled = guarantee["sensitivity"].values > 0
    area = guarantee["area"].values[sampled]
    rho = record_price(guarantee, record).values[sampled]
    s, unshrunk = (guarantee[k].values[sampled] for k in ("sensitivity", "rho_unshrunk"))
    n, n_eff = (_by_label(direct, name, area) for name in ("n", "n_eff"))
    low, high = record["bounds"] or (0.0, 1.0)
    draws = record["draws"]
    D = draws * s**2 / (2 * unshrunk)
    quantity = np.stack([n, n * s / (high - low), D * n_eff, n / n_eff, rho / unshrunk])
    power = np.array([-1.0, 2.0, -1.0, -1.0, 1.0])
    term = power[:, None] * np.log(quantity)
    log_rho = np.log(rho)
    spread = log_rho - log_rho.mean()
    variance = spread @ spread
    share = np.full(len(DRIVERS), np.nan)
    if variance > 1e-18 * log_rho.size:
        share = term @ spread / variance
    return xr.Dataset(
        {
            "term": (("driver", "area"), term),
            "log_rho": ("area", log_rho),
            "share": ("driver", share),
            "rank_correlation": ("driver", [_rank_correlation(q, rho) for q in quantity]),
            "constant": ((), 2 * np.log(high - low) - np.log(2) + np.log(draws)),
        },
        coords={"driver": list(DRIVERS), "area": area},
        attrs={"claim": record["claim_words"], "unit": record["unit"]},
    )


def record_guarantee(
    data: Any,
    guarantee: xr.Dataset,
    *,
    weight: str,
    area: str | Sequence[str],
    unit: str | Sequence[str] | None = None,
    quantile: Sequence[float] = QUANTILES,
) -> xr.Dataset:
    """The price for each respondent, or each unit, from its weight.

    The price scales with the square of the weight, so most people are protected far better than
    the worst case says. **The guarantee of a release is the worst case**; the average is
    printed beside it, never in place of it.

    Parameters
    ----------
    data : dataframe
        One row a respondent; only the columns of weights, areas and units are read.
    guarantee : xr.Dataset
        :attr:`PrivateRelease.guarantee` or what :func:`plan` returned.
    weight, area, unit
        As for :func:`hajek`, with the same `unit` as the guarantee's sensitivities.
    quantile : sequence of float
        Between 0 and 1.

    Returns
    -------
    xr.Dataset
        ``rho`` (``record``), with the coordinate ``record_area``; by area ``worst_case`` (the
        area's price), ``average`` (mean over its records) and ``rho_quantile`` (``area``,
        ``quantile``). Records are in the order of the data; units in order of appearance. Records
        of weight 0 cost nothing.

    Raises
    ------
    ValueError
        If weights are missing, infinite or negative, areas are not in the guarantee, or the
        records are not those of the guarantee: of another unit, or with a larger share of an
        area's weight than its sensitivity allows, which takes the outcome's declared range; or
        units have records in several areas.

    Examples
    --------
    >>> import pandas as pd
    >>> from pymc_dp import plan, weight_table
    >>> people = pd.DataFrame({"county": list("AAABBB"), "weight": [1, 1, 2, 1, 1, 1]})
    >>> names = {"weight": "weight", "area": "county"}
    >>> guarantee = plan(weight_table(people, rate=0.2, **names), sigma_u=0.1)
    >>> ratio = record_guarantee(people, guarantee, **names)["rho"] / guarantee["rho"].item()
    >>> ratio.values[:3].round(3)
    array([0.25, 0.25, 1.  ])
    """
    import narwhals as nw

    areas, units = ([k] if isinstance(k, str) else list(k or ()) for k in (area, unit))
    record = read_record(guarantee.attrs)
    _check_unit(" ".join(units) or "record", record)
    frame = nw.from_native(data, eager_only=True)
    w = pd.Series(frame.get_column(weight).to_numpy().astype(float))
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        raise ValueError(f"{bad.sum()} weights are missing, infinite or negative")
    label = pd.Series([" ".join(map(str, row)) for row in frame.select(areas).iter_rows()])
    unknown = sorted(set(label) - set(text_labels(guarantee["area"].values)))
    if unknown:
        raise ValueError(f"{len(unknown)} areas are not in the guarantee: {name_some(unknown)}")
    if units:
        who = pd.Series(list(frame.select(units).iter_rows()))
        total = w.groupby([label, who], sort=False).sum()
        _check_spanning(total)
        label, w = pd.Series(total.index.get_level_values(0)), total.reset_index(drop=True)

    _check_shares(w, label, guarantee, record["bounds"])
    price = record_price(guarantee, record).to_series()
    price.index = pd.Index(text_labels(price.index))
    # The unit with the largest weight of an area has the area's price.
    share = w / w.groupby(label).transform("max").where(lambda largest: largest > 0, np.inf)
    rho = share**2 * label.map(price)
    grouped = rho[w > 0].groupby(label[w > 0])
    table = grouped.quantile(np.asarray(quantile, dtype=float)).unstack().reindex(price.index)
    result = xr.Dataset(
        {
            "rho": ("record", rho.to_numpy()),
            "worst_case": ("area", price.to_numpy()),
            "average": ("area", grouped.mean().reindex(price.index).to_numpy()),
            "rho_quantile": (("area", "quantile"), table.to_numpy()),
        },
        coords={
            "record_area": ("record", label.to_numpy(dtype=str)),
            "area": price.index.to_numpy(dtype=str),
            "quantile": list(quantile),
        },
        attrs={"claim": record["claim_words"], "unit": record["unit"]},
    )
    result["average"].attrs["note"] = "an average; the guarantee is the worst case"
    return result


def _check_unit(unit: str, record: Mapping[str, Any]) -> None:
    if unit != record["unit"]:
        raise ValueError(f"the guarantee protects the unit {record['unit']!r}, not {unit!r}")


def _check_spanning(total: pd.Series) -> None:
    """Refuse units in several areas: they pay for the sum of what they move, not for one area."""
    areas = total[total > 0].groupby(level=1).size()
    if (areas > 1).any():
        raise ValueError(
            f"{(areas > 1).sum()} units have records in several areas: what such a unit pays does "
            "not follow from its weight in one of them; the price of the release covers it"
        )


def _check_shares(
    w: pd.Series, label: pd.Series, guarantee: xr.Dataset, bounds: Sequence[float] | None
) -> None:
    """Refuse weights whose largest share of an area moves it by more than the guarantee covers."""
    if bounds is None:
        raise ValueError(
            "the guarantee declares no range of the outcome, so nothing tells that these are its "
            "records: declare it in sensitivity.attrs['outcome_bounds']"
        )
    if "sensitivity" not in guarantee:
        raise ValueError("the guarantee has no sensitivity by area")
    grouped = w.groupby(label)
    share = (grouped.max() / grouped.sum()).fillna(0.0)  # weights of 0 alone move nothing
    allowed = guarantee["sensitivity"].to_series()
    allowed.index = pd.Index(text_labels(allowed.index))
    moved = share * (bounds[1] - bounds[0])
    above = moved > allowed.reindex(share.index) * (1 + 1e-9)
    if above.any():
        raise ValueError(
            f"in {above.sum()} areas the heaviest unit has more of the weight than the guarantee's "
            f"sensitivity allows, so these are not its records: {name_some(share.index[above])}"
        )


def _by_label(direct: xr.Dataset, name: str, area: np.ndarray) -> np.ndarray:
    if name not in direct:
        raise ValueError(f"direct needs the variable {name!r}")
    series = pd.Series(
        direct[name].values.astype(float), index=pd.Index(text_labels(direct["area"].values))
    )
    values = series.reindex(area).to_numpy()
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise ValueError(
            f"{name} is missing or not positive in {bad.sum()} areas: {name_some(area[bad])}"
        )
    return np.asarray(values)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    # Ranks of quantities that are constant up to rounding would be ranks of rounding errors.
    a, b = (pd.Series([float(f"{v:.9g}") for v in values]).rank() for values in (x, y))
    if a.nunique() < 2 or b.nunique() < 2:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
