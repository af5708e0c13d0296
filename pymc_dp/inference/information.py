"""What a release says of the direct estimates, read from wherever the release is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp import containers
from pymc_dp._checks import declared_bounds, from_answers, name_some, text_labels
from pymc_dp._typing import Array
from pymc_dp.containers.formats import open_group
from pymc_dp.posterior.information import InformationMatrix, direct_information
from pymc_dp.record.claims import read_record

PUBLIC = "post-processing of the release, which costs nothing more"
DECLARED = f"{PUBLIC}, if the sampling variances given are public"
INSIDE = (
    "no post-processing: the sampling variances were not declared public. Publishing this would be "
    "another release, without a price"
)


@dataclass(frozen=True, repr=False)
class Information:
    """``h | y ~ N(K y, K)``: all that one or several releases say of the direct estimates y.

    Attributes
    ----------
    area : tuple of str
        Labels of the m areas.
    K : InformationMatrix
    h : ndarray of shape (m,)
    sampling_variance : ndarray of shape (m,), optional
        ``D`` of the direct estimates as the release gives it, 0 where there is no sample.
    public : bool
        Whether that ``D`` was declared public.
    bounds : tuple of float, optional
        The outcome's declared range.
    facts : dict
        What the release is, for the record of what is concluded from it.
    """

    area: tuple[str, ...]
    K: InformationMatrix
    h: Array
    sampling_variance: Array | None = None
    public: bool = False
    bounds: tuple[float, float] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Sizes only."""
        return f"Information({len(self.area)} areas, {self.K.shared.shape[1]} shared factors)"

    @property
    def own(self) -> Array:
        """Diagonal part of K; (m,)."""
        return self.K.own

    @property
    def shared(self) -> Array:
        """Factor of the rest of K; (m, r)."""
        return self.K.shared

    @property
    def informed(self) -> np.ndarray:
        """Which areas the release says something of; (m,)."""
        return np.asarray(self.K.diagonal > 0)


def read_information(release: Any) -> Information:
    """Read a release, or add several up.

    Parameters
    ----------
    release : PrivateRelease, InferenceData, DataTree, Dataset, path, Information, or a list
        A release after its draw, what ``draw()`` returned, its group, a public file (``.nc`` or
        ``.zarr``), or what :func:`private_direct` returned. A list is of releases about the same
        direct estimates, with independent noise: their K and h add up, areas are joined by
        label.

    Returns
    -------
    Information

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If it was not drawn, keeps no information, holds unusable numbers, or if several cannot
        be about the same direct estimates.

    Notes
    -----
    That two releases are about the same data is taken on trust, but for what can be seen: equal
    ranges, units and sampling variances. n draws in one group are n releases.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import private_direct
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3]),
    ...         "variance": ("area", [0.001, 0.002]),
    ...         "sensitivity": ("area", [0.02, 0.04]),
    ...     },
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"bounds": [0, 1]},
    ... )
    >>> read_information(private_direct(direct, rho=0.5))
    Information(2 areas, 0 shared factors)
    """
    if isinstance(release, list | tuple):
        if not release:
            raise ValueError("a list of releases needs at least one")
        return reduce(_together, map(read_information, release))
    if isinstance(release, Information):
        return release
    if isinstance(release, str | os.PathLike):
        return _from_group(open_group(Path(release), containers.GROUP))
    if hasattr(release, "released") and hasattr(release, "guarantee"):
        if release.released is None:
            raise ValueError("nothing was released yet: draw() first")
        return _from_group(release.released)
    group = containers.release_group(release)
    return _from_direct(group) if "estimate" in group else _from_group(group)


def sampling_variances(information: Information, given: Any) -> tuple[Array, str]:
    """``D`` in the order of a release, 0 where it says nothing, and what that makes of results.

    Parameters
    ----------
    information : Information
    given : DataArray, Series or mapping by area label, or None
        None takes those that the release itself gives.

    Returns
    -------
    variance : ndarray of shape (m,)
    words : str
        Whether what is concluded with them is post-processing.

    Raises
    ------
    ValueError
        If there are none, or they are unusable in some areas.
    """
    area = information.area
    if given is None:
        if information.sampling_variance is None:
            raise ValueError(
                "the release gives no sampling variances (they were not declared public): pass "
                "sampling_variance=, by area label"
            )
        variance = information.sampling_variance
        words = PUBLIC if information.public else INSIDE
    else:
        variance = _labelled(given, area)
        marked = from_answers(getattr(given, "attrs", {}))
        words = INSIDE if marked else DECLARED
    informed = information.informed
    bad = informed & ~(np.isfinite(variance) & (variance > 0))
    _refuse(area, bad, "sampling variances missing, infinite, zero or negative")
    return np.where(informed, variance, 0.0), words


def _labelled(given: Any, area: tuple[str, ...]) -> Array:
    """Values by area label, NaN where there is none."""
    if isinstance(given, xr.DataArray):
        if given.dims != ("area",) or "area" not in given.coords:
            raise ValueError("sampling_variance needs one dim, 'area', with labels")
        labels, values = given["area"].values.tolist(), given.values
    elif isinstance(given, pd.Series | Mapping):
        series = pd.Series(given)
        labels, values = series.index.tolist(), series.to_numpy()
    else:
        raise ValueError(
            "sampling_variance must have area labels: a DataArray, a Series or a dict, not "
            f"{type(given).__name__}"
        )
    names = pd.Index(text_labels(labels))
    again = names[names.duplicated()].unique()
    if len(again):
        raise ValueError(f"sampling_variance has areas more than once: {name_some(again)}")
    by_label = pd.Series(np.asarray(values, dtype=float), index=names)
    return by_label.reindex(list(area)).to_numpy()


def _from_group(group: xr.Dataset) -> Information:
    """The group of a release, in memory or from a file."""
    record = read_record(group.attrs)
    if "information_own" in group and "information_h" in group:
        K, h = _kept(group)
    elif "noisy_direct" in group and "noise_variance" in group:
        K = direct_information(np.asarray(group["noise_variance"].values, dtype=float))
        y = group["noisy_direct"].transpose(..., "area").values
        h = np.where(K.own > 0, K.own * y, 0.0)
    else:
        raise ValueError(
            "the release keeps no information_own and information_h: it was not drawn, is no "
            "release of estimates by area, or something that it was made from was not declared "
            "public"
        )
    draws = int(np.prod(h.shape[:-1], dtype=int))
    D = None
    if "sampling_variance" in group:
        D = np.nan_to_num(np.asarray(group["sampling_variance"].values, dtype=float))
    information = Information(
        area=tuple(map(str, group["area"].values)),
        K=K.scaled(draws) if draws > 1 else K,
        h=np.asarray(h.reshape(draws, -1).sum(axis=0), dtype=float),
        sampling_variance=D,
        public=D is not None,
        bounds=_range(record.get("bounds")),
        facts=_facts(record) | _working(group, D),
    )
    return _checked(information)


def _kept(group: xr.Dataset) -> tuple[InformationMatrix, Array]:
    """K of one draw and the statistics, (..., m), as a group keeps them."""
    own = np.asarray(group["information_own"].values, dtype=float)
    shared = np.empty((own.size, 0))
    if "information_shared" in group:
        shared = np.asarray(group["information_shared"].transpose("area", ...).values, dtype=float)
    sign = np.ones(shared.shape[1])
    if "information_sign" in group:
        sign = np.asarray(group["information_sign"].values, dtype=float)
    h = group["information_h"].transpose(..., "area").values
    return InformationMatrix(own, shared, sign), h


def _working(group: xr.Dataset, D: Array | None) -> dict[str, float]:
    """The working sigma_u, from the weights of direct estimates where the draw is as modelled."""
    if D is None or "propagation_own" not in group:
        return {}
    gamma = np.asarray(group["propagation_own"].values, dtype=float)
    told = (D > 0) & (gamma < 1)
    if not told.any():
        return {}
    A = gamma[told] * D[told] / (1 - gamma[told])
    return {"sigma_u": float(np.sqrt(np.median(A)))} if np.ptp(A) <= 1e-6 * A.max() else {}


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record goes with what is concluded from the release."""
    return {name: record[name] for name in ("mechanism", "unit", "claim_words") if name in record}


def _from_direct(noisy: xr.Dataset) -> Information:
    """Direct estimates with noise."""
    record = read_record(noisy.attrs)
    noise = np.asarray(noisy["noise_variance"].values, dtype=float)
    y = np.asarray(noisy["estimate"].values, dtype=float)
    K = direct_information(noise)
    total = np.asarray(noisy["variance"].values, dtype=float)
    kinds = record.get("variance_components", {})
    information = Information(
        area=tuple(map(str, noisy["area"].values)),
        K=K,
        h=np.where(np.isnan(noise), 0.0, K.own * y),
        sampling_variance=np.nan_to_num(total - noise),
        public=kinds.get("sampling_variance") == "fixed",
        bounds=_range(declared_bounds({**noisy["estimate"].attrs, **noisy.attrs})),
        facts=_facts(record),
    )
    return _checked(information)


def _range(bounds: Any) -> tuple[float, float] | None:
    return None if bounds is None else (float(bounds[0]), float(bounds[1]))


def _checked(information: Information) -> Information:
    """Refuse labels and numbers that no release has."""
    area, K, h = information.area, information.K, information.h
    names = pd.Index(area)
    if names.has_duplicates:
        again = names[names.duplicated()].unique()
        raise ValueError(f"the release has areas more than once: {name_some(again)}")
    unusable = ~(np.isfinite(K.own) & (K.own >= 0) & np.isfinite(K.shared).all(axis=1))
    _refuse(area, unusable | ~np.isfinite(h), "information of the release missing or infinite")
    if not np.isin(K.sign, (-1.0, 1.0)).all():
        raise ValueError("information_sign must be 1 or -1")
    _refuse(area, K.diagonal < 0, "information of the release negative")
    _refuse(area, (K.diagonal == 0) & (h != 0), "a statistic without information")
    if not information.informed.any():
        raise ValueError("the release says nothing of any area")
    return information


def _refuse(area: tuple[str, ...], bad: np.ndarray, what: str) -> None:
    if bad.any():
        names = name_some(np.array(area, dtype=object)[bad])
        raise ValueError(f"{what} in {bad.sum()} areas: {names}")


def _together(first: Information, second: Information) -> Information:
    """Two releases of the same direct estimates with independent noise."""
    for what, a, b in (
        ("declared ranges", first.bounds, second.bounds),
        ("protected units", first.facts.get("unit"), second.facts.get("unit")),
    ):
        if a is not None and b is not None and a != b:
            raise ValueError(f"releases of the same direct estimates cannot have two {what}")
    have = set(first.area)
    area = first.area + tuple(a for a in second.area if a not in have)
    place = {label: i for i, label in enumerate(area)}
    rows = [np.array([place[label] for label in one.area]) for one in (first, second)]

    def spread(values: Array, at: np.ndarray) -> Array:
        out = np.zeros((len(area), *values.shape[1:]))
        out[at] = values
        return out

    (own, other), (shared, more), (h, g) = (
        [spread(v, at) for v, at in zip(pair, rows, strict=True)]
        for pair in (
            (first.own, second.own),
            (first.shared, second.shared),
            (first.h, second.h),
        )
    )
    if np.array_equal(h, g):
        raise ValueError(
            "the same release twice: its noise is one and the same, and it says nothing new"
        )
    D, public = _common_variance(first, second, area, rows)
    return Information(
        area=area,
        K=InformationMatrix(
            own + other,
            np.hstack([shared, more]),
            np.concatenate([first.K.sign, second.K.sign]),
        ),
        h=h + g,
        sampling_variance=D,
        public=public,
        bounds=first.bounds or second.bounds,
        facts=_both(first.facts, second.facts),
    )


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of two releases: said once where they agree, one after the other else."""
    found = {}
    for name in ("mechanism", "unit", "claim_words"):
        told = [facts[name] for facts in (first, second) if name in facts]
        if told:
            found[name] = " and ".join(dict.fromkeys(told))
    return found


def _common_variance(
    first: Information, second: Information, area: tuple[str, ...], rows: list[np.ndarray]
) -> tuple[Array | None, bool]:
    """``D`` of those that give it, public ones first, and whether all of it is public."""
    found, public = np.zeros(len(area)), True
    both = [(one, at) for one, at in zip((first, second), rows, strict=True)]
    given = [pair for pair in both if pair[0].sampling_variance is not None]
    for one, at in sorted(given, key=lambda pair: not pair[0].public):
        D = np.zeros(len(area))
        D[at] = one.sampling_variance
        # Differences of variances that came back from a sum lose some digits.
        differ = (found > 0) & (D > 0) & (np.abs(found - D) > 1e-6 * D)
        _refuse(area, differ, "two releases with different sampling variances, so of different y,")
        new = (found == 0) & (D > 0)
        public &= one.public or not new.any()
        found = np.where(new, D, found)
    return (found, public) if given else (None, False)
