"""What agencies publish beside estimates, from draws of theta given a release, at no price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp import containers
from pymc_dp._checks import name_some, text_labels
from pymc_dp._typing import Array

Method = Literal["ratio", "difference", "loss"]
BLOCK = 4_000_000  # numbers worked on at a time


def ranks(post: Any, *, k: int | None = None, level: float = 0.9) -> xr.Dataset:
    """Rank areas, the largest first, and say how uncertain ranks are.

    Parameters
    ----------
    post : InferenceData, DataTree or Dataset
        Draws of ``theta`` with dims ``chain``, ``draw``, ``area``, as
        :func:`~pymc_dp.release_posterior` or ``pm.sample`` return them.
    k : int, optional
        Also give the probability of being among the k largest.
    level : float
        Probability of the intervals.

    Returns
    -------
    xr.Dataset
        On ``area``: ``rank``, the mean over draws (1 is the largest), ``rank_lower`` and
        ``rank_upper``, quantiles, and with `k` ``probability_top``.

    Raises
    ------
    ValueError
        If draws are missing or infinite, k is not from 1 to the number of areas, or `level` is
        no probability.

    Examples
    --------
    >>> import xarray as xr
    >>> draws = [[[0.1, 0.3, 0.2], [0.1, 0.2, 0.3]]]
    >>> post = xr.Dataset(
    ...     {"theta": (("chain", "draw", "area"), draws)}, coords={"area": ["a", "b", "c"]}
    ... )
    >>> ranks(post, k=1)["probability_top"].values
    array([0. , 0.5, 0.5])
    """
    theta, area = _draws(post)
    lower, upper = _tails(level)
    n, m = theta.shape
    if k is not None and (isinstance(k, bool) or not 1 <= k <= m or int(k) != k):
        raise ValueError(f"k must be a whole number from 1 to the number of areas, {m}")
    rank = np.empty((n, m), dtype=np.int32)
    for i in range(n):
        rank[i, np.argsort(-theta[i], kind="stable")] = np.arange(1, m + 1, dtype=np.int32)
    quantiles = _by_block(
        rank, lambda some: np.quantile(some, [lower, upper], axis=0, method="inverted_cdf")
    )
    found = {
        "rank": ("area", rank.mean(axis=0)),
        "rank_lower": ("area", quantiles[0]),
        "rank_upper": ("area", quantiles[1]),
    }
    if k is not None:
        found["probability_top"] = ("area", (rank <= k).mean(axis=0))
    return xr.Dataset(found, coords={"area": area}, attrs={"level": level})


def exceedance(post: Any, value: float | Sequence[float]) -> xr.DataArray:
    """Probability that an area's mean exceeds a value.

    Parameters
    ----------
    post : InferenceData, DataTree or Dataset
        As for :func:`ranks`.
    value : float or sequence of float
        In the unit of the outcome; fixed beforehand, or public.

    Returns
    -------
    xr.DataArray
        On ``area``; with several values also on ``value``.

    Raises
    ------
    ValueError
        If draws or values are missing or infinite.

    Examples
    --------
    >>> import xarray as xr
    >>> post = xr.Dataset(
    ...     {"theta": (("chain", "draw", "area"), [[[0.1, 0.3], [0.2, 0.3]]])},
    ...     coords={"area": ["a", "b"]},
    ... )
    >>> exceedance(post, 0.15).values
    array([0.5, 1. ])
    """
    theta, area = _draws(post)
    values = np.atleast_1d(np.asarray(value, dtype=float))
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError("value must be a finite number, or several")
    found = np.array([(theta > v).mean(axis=0) for v in values])
    both = xr.DataArray(
        found, coords={"value": values, "area": area}, dims=("value", "area"), name="exceedance"
    )
    return both.isel(value=0, drop=True) if np.ndim(value) == 0 else both


def contrasts(post: Any, groups: Any, *, weights: Any = None, level: float = 0.9) -> xr.Dataset:
    """Means of groups of areas, and differences and ratios between any two of them.

    Parameters
    ----------
    post : InferenceData, DataTree or Dataset
        As for :func:`ranks`.
    groups : Series or mapping
        Group by area label. Areas that it lacks are left out; ``{a: a for a in areas}`` compares
        areas.
    weights : Series, DataArray or mapping, optional
        Weight by area label, such as population counts; equal by default.
    level : float
        Probability of the intervals.

    Returns
    -------
    xr.Dataset
        On ``group``: ``mean``, ``sd``, ``lower``, ``upper``. On ``group`` and ``group_bis``:
        ``difference`` (the first less the second), its ``difference_sd``, ``difference_lower``,
        ``difference_upper``, the ``probability`` that it is positive, and median and quantiles of
        the ``ratio``, NaN where a draw of either is not positive.

    Raises
    ------
    ValueError
        If draws or weights are unusable, or `groups` names areas that are not there.

    Examples
    --------
    >>> import xarray as xr
    >>> post = xr.Dataset(
    ...     {"theta": (("chain", "draw", "area"), [[[0.1, 0.3, 0.5], [0.3, 0.5, 0.5]]])},
    ...     coords={"area": ["a", "b", "c"]},
    ... )
    >>> found = contrasts(post, {"a": "west", "b": "west", "c": "east"})
    >>> round(found["difference"].sel(group="east", group_bis="west").item(), 6)
    0.2
    """
    theta, area = _draws(post)
    lower, upper = _tails(level)
    named = pd.Series(groups)
    named.index = pd.Index(text_labels(named.index), dtype=object)
    named = named.dropna()
    place = {a: i for i, a in enumerate(area)}
    unknown = [a for a in named.index if a not in place]
    if unknown:
        raise ValueError(f"groups name {len(unknown)} areas without draws: {name_some(unknown)}")
    if named.empty:
        raise ValueError("groups name no area")
    weight = np.ones(len(area)) if weights is None else _weights(weights, area)
    code, labels = pd.factorize(named.to_numpy(), sort=True)
    names = text_labels(labels)
    sums = np.zeros((len(area), len(names)))
    rows = [place[a] for a in named.index]
    sums[rows, code] = weight[rows]
    total = sums.sum(axis=0)
    if not (total > 0).all():
        empty = np.array(names, dtype=object)[~(total > 0)]
        raise ValueError(f"groups without weight: {name_some(empty)}")
    mean = theta @ (sums / total)  # (draws, groups)
    quantiles = np.quantile(mean, [lower, upper], axis=0)
    found: dict[str, Any] = {
        "mean": ("group", mean.mean(axis=0)),
        "sd": ("group", mean.std(axis=0)),
        "lower": ("group", quantiles[0]),
        "upper": ("group", quantiles[1]),
    }
    positive = (mean > 0).all(axis=0)
    pairs: dict[str, list[Array]] = {name: [] for name in _PAIRED}
    for g in range(len(names)):
        difference = mean[:, [g]] - mean
        ratio = mean[:, [g]] / np.where(positive & positive[g], mean, np.nan)
        pairs["difference"].append(difference.mean(axis=0))
        pairs["difference_sd"].append(difference.std(axis=0))
        pairs["probability"].append((difference > 0).mean(axis=0))
        for name, values, level_of in (
            ("difference_lower", difference, lower),
            ("difference_upper", difference, upper),
            ("ratio", ratio, 0.5),
            ("ratio_lower", ratio, lower),
            ("ratio_upper", ratio, upper),
        ):
            pairs[name].append(np.quantile(values, level_of, axis=0))
    found |= {name: (("group", "group_bis"), np.array(rows)) for name, rows in pairs.items()}
    return xr.Dataset(found, coords={"group": names, "group_bis": names}, attrs={"level": level})


_PAIRED = (
    "difference",
    "difference_sd",
    "difference_lower",
    "difference_upper",
    "probability",
    "ratio",
    "ratio_lower",
    "ratio_upper",
)


def benchmark(post: Any, total: float, weights: Any, *, method: Method = "ratio") -> xr.Dataset:
    r"""Move estimates so that their weighted sum is a public total.

    Parameters
    ----------
    post : InferenceData, DataTree or Dataset
        As for :func:`ranks`.
    total : float
        What ``sum w theta`` has to be: a number that is public anyhow. One computed from the same
        answers is another release, and has a price.
    weights : Series, DataArray or mapping
        ``w`` by area label, such as population counts (then `total` is a count) or their shares
        (then it is a mean).
    method : {"ratio", "difference", "loss"}
        Multiply all estimates by one factor; add one number to all; or add ``w v / sum(w^2 v)``
        times what is missing, v the posterior variance, which moves uncertain areas more.

    Returns
    -------
    xr.Dataset
        On ``area``: ``estimate`` (posterior mean), ``benchmarked``, ``adjustment``, and ``rmse``,
        the root of the posterior expected squared error of the benchmarked estimate.

    Raises
    ------
    ValueError
        If draws, weights, total or method are unusable.

    Notes
    -----
    All three minimise a posterior expected squared error under the constraint, with weights of
    the loss in proportion to ``w / estimate``, ``w``, and ``1 / v`` (Datta, Ghosh, Steorts and
    Maples 2011).

    Examples
    --------
    >>> import xarray as xr
    >>> post = xr.Dataset(
    ...     {"theta": (("chain", "draw", "area"), [[[0.1, 0.3], [0.1, 0.3]]])},
    ...     coords={"area": ["a", "b"]},
    ... )
    >>> benchmark(post, 0.3, {"a": 0.5, "b": 0.5})["benchmarked"].values.round(3)
    array([0.15, 0.45])
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be 'ratio', 'difference' or 'loss', not {method!r}")
    mean, sd, area = _moments(post)
    w = _weights(weights, area)
    if not np.isfinite(total):
        raise ValueError("total must be a finite number")
    before = float(w @ mean)
    missing = float(total) - before
    if method == "ratio":
        if not before * float(total) > 0:
            raise ValueError(
                "a ratio needs a total and a sum of estimates of the same sign, neither zero: take "
                "method='difference'"
            )
        adjustment = mean * (missing / before)
    elif method == "difference":
        adjustment = np.full(mean.size, missing / w.sum())
    else:
        pull = w * sd**2
        if not w @ pull > 0:
            raise ValueError("method='loss' needs posterior variances above zero")
        adjustment = pull * (missing / (w @ pull))
    return xr.Dataset(
        {
            "estimate": ("area", mean),
            "benchmarked": ("area", mean + adjustment),
            "adjustment": ("area", adjustment),
            "rmse": ("area", np.hypot(sd, adjustment)),
        },
        coords={"area": area},
        attrs={"method": method, "total": float(total), "sum_before": before},
    )


def reliability(post: Any, *, classes: Sequence[float] = (0.165, 0.333)) -> xr.Dataset:
    """Coefficients of variation, and the class of reliability that they fall into.

    Parameters
    ----------
    post : InferenceData, DataTree or Dataset
        As for :func:`ranks`.
    classes : sequence of float
        Upper limits of the classes but the last. The default is the practice of Statistics
        Canada: to be used freely, with caution, not at all.

    Returns
    -------
    xr.Dataset
        On ``area``: ``cv``, posterior standard deviation over the absolute posterior mean, and
        ``reliability``, 1 for the best class.

    Raises
    ------
    ValueError
        If draws are unusable, or the limits are not positive and increasing.

    Examples
    --------
    >>> import xarray as xr
    >>> post = xr.Dataset(
    ...     {"theta": (("chain", "draw", "area"), [[[0.2, 0.1], [0.22, 0.3]]])},
    ...     coords={"area": ["a", "b"]},
    ... )
    >>> reliability(post)["reliability"].values
    array([1, 3])
    """
    limits = np.asarray(classes, dtype=float)
    if limits.ndim != 1 or not (
        np.isfinite(limits).all() and (np.diff(limits, prepend=0) > 0).all()
    ):
        raise ValueError("classes must be positive and increasing")
    mean, sd, area = _moments(post)
    with np.errstate(divide="ignore"):
        cv = np.where(sd > 0, sd / np.abs(mean), 0.0)
    return xr.Dataset(
        {
            "cv": ("area", cv),
            "reliability": ("area", np.searchsorted(limits, cv, side="left") + 1),
        },
        coords={"area": area},
        attrs={"classes": limits},
    )


def _dataset(post: Any, group: str = "posterior") -> xr.Dataset:
    if isinstance(post, xr.Dataset):
        return post
    if isinstance(post, xr.DataTree) and "theta" in post:
        return post.to_dataset()
    if not hasattr(post, "groups"):
        raise TypeError(
            "post must hold draws of theta: InferenceData, DataTree or Dataset, not "
            f"{type(post).__name__}"
        )
    return containers.read_group(post, group)


def _draws(post: Any) -> tuple[Array, list[str]]:
    """Draws of theta (draws, m) and the labels."""
    data = _dataset(post)
    if "theta" not in data or set(data["theta"].dims) != {"chain", "draw", "area"}:
        raise ValueError("post has no draws 'theta' with dims chain, draw and area")
    theta = data["theta"].transpose("chain", "draw", "area")
    values = np.asarray(theta.values, dtype=float).reshape(-1, theta.sizes["area"])
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} draws of theta are missing or infinite")
    return values, text_labels(theta["area"].values.tolist())


def _moments(post: Any) -> tuple[Array, Array, list[str]]:
    """Posterior mean and sd of theta: exact where the container has them, else of the draws."""
    kept = containers.groups(post) if hasattr(post, "groups") else []
    if "posterior_summary" in kept:
        summary = containers.read_group(post, "posterior_summary")
        area = text_labels(summary["area"].values.tolist())
        return summary["theta_mean"].values, summary["theta_sd"].values, area
    theta, area = _draws(post)
    return theta.mean(axis=0), theta.std(axis=0), area


def _weights(weights: Any, area: list[str]) -> Array:
    """Nonnegative weights in the order of the areas."""
    if isinstance(weights, xr.DataArray):
        weights = weights.to_series()
    if not isinstance(weights, pd.Series | Mapping):
        raise ValueError("weights must have area labels: a Series, DataArray or dict")
    given = pd.Series(weights)
    given.index = pd.Index(text_labels(given.index), dtype=object)
    if given.index.has_duplicates:
        again = given.index[given.index.duplicated()].unique()
        raise ValueError(f"weights have areas more than once: {name_some(again)}")
    values = given.reindex(area).to_numpy(dtype=float)
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        names = name_some(np.array(area, dtype=object)[bad])
        raise ValueError(f"weights missing, negative or infinite in {bad.sum()} areas: {names}")
    if not values.any():
        raise ValueError("every weight is zero")
    return values


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError("level must be between 0 and 1")
    return (1 - level) / 2, (1 + level) / 2


def _by_block(values: np.ndarray, function: Any) -> np.ndarray:
    """Apply a function of columns to some columns at a time."""
    step = max(1, BLOCK // len(values))
    parts = [function(values[:, i : i + step]) for i in range(0, values.shape[1], step)]
    return np.concatenate(parts, axis=-1)
