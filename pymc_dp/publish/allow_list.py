"""What of a release may be published: an allow-list, and the inputs each entry gives away."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._checks import name_some
from pymc_dp.record.claims import check_assumptions, claim_of, read_record, to_json
from pymc_dp.record.figures import DRAWN_NAMES, LONG_NAMES, RECORD_NAMES, released_name, zero_draw

FILE_SCHEMA = 1
ATTRS = ("privacy", "created_at", "creation_library", "creation_library_version")
COORDS = (
    "chain", "draw", "area", "area_bis", "factor", "information_factor", "order", "delta",
)  # fmt: skip
NEEDED = ("claim", "claim_words", "variance_components", "assumptions", "draws")
# Keys of the record that may be published. Others are kept back: diagnostics of a fit, say, are
# computed from the data. All of `publishing_decimals` can be read off the digits of the draw.
RECORD_KEYS = (
    *NEEDED,
    "schema_version",
    "neighbours",
    "pure_epsilon",
    "versions",
    "mechanism",
    "target",
    "unit",
    "bounds",
    "lattice_exponent",
    "publishing_decimals",
    "intercept_only",
    "calibration",
    "bound",
    "coordinates",
    "observed",
    "post_processing",
    "undeclared",
    "origin",
    "protects",
)
_DRAW, _AREA = ("chain", "draw", "area"), ("area",)
# A reader who has the posterior's spread, its propagation, or a draw beside its smoothed form can
# solve for what these were computed from; with weights, the same goes for prices.
_POSTERIOR = ("sampling_variance", "sigma_u", "covariates")
_PRICE = ("weights", *_POSTERIOR)
# Dims of each variable, and the inputs it is computed from: it is published if every one of these
# is declared public. The draw and the joint figure (one number and its conversions) always are.
# `universe` says whose answers there are; nothing is computed from it. Calibration computes a
# release from its prices: then every number of a single area but the sensitivity needs all inputs.
# Labels of records may be those of respondents: what is listed by them never is published.
VARIABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "theta": (_DRAW, ()),
    "theta_smoothed": (_DRAW, _POSTERIOR),
    "theta_smoothed_sd": (_AREA, _POSTERIOR),
    "posterior_sd": (_AREA, _POSTERIOR),
    "propagation_own": (_AREA, ("sampling_variance", "sigma_u")),
    "propagation_left": (("area", "factor"), _POSTERIOR),
    "propagation_right": (("area_bis", "factor"), _POSTERIOR),
    "sensitivity": (_AREA, ("weights",)),
    "rho_respondent": (_AREA, _PRICE),
    "rho_beta": (_AREA, _PRICE),
    "rho_area": (_AREA, _PRICE),
    "rho_area_ideal": (_AREA, _PRICE),
    "rho_independent": (_AREA, _PRICE),
    "rho_unshrunk": (_AREA, ("weights", "sampling_variance")),
    **dict.fromkeys(RECORD_NAMES, (("record",), ("records",))),
    "epsilon_area": (("area", "delta"), _PRICE),
    "noisy_direct": (_DRAW, ()),
    "noise_variance": (_AREA, ("weights",)),
    "sampling_variance": (_AREA, ("sampling_variance",)),
    "information_own": (_AREA, ("sampling_variance", "sigma_u")),
    "information_shared": (("area", "information_factor"), _POSTERIOR),
    "information_sign": (("information_factor",), _POSTERIOR),
    "information_h": (_DRAW, _POSTERIOR),
    "rdp": (("order",), ()),
    "epsilon": (("delta",), ()),
    "epsilon_zcdp": (("delta",), ()),
    "rho": ((), ()),
    "mu": ((), ()),
}
ALWAYS = tuple(
    name for name, (_, inputs) in VARIABLES.items() if not inputs and name not in DRAWN_NAMES
)
# Missing where there is no sample.
_SAMPLED = ("noisy_direct", "noise_variance", "sampling_variance")
_LONG_NAMES = LONG_NAMES | RECORD_NAMES | DRAWN_NAMES


def public_part(group: xr.Dataset, *, conditional: bool) -> xr.Dataset:
    """Make a new data set of what may be published of a release.

    Parameters
    ----------
    group : xr.Dataset
        The ``private_release`` group after a draw.
    conditional : bool
        Whether a conditional claim may be published.

    Returns
    -------
    xr.Dataset
        Its record has more keys: ``file_schema``, ``declaration``, ``left_out`` (each variable
        that is not published, with the inputs that nobody declares public) and ``withheld``
        (keys of the record that are not published).

    Raises
    ------
    ValueError
        If the claim is conditional and this was not asked for, or the group is not one whole
        release, or holds more than one.
    """
    record = read_record(group.attrs)
    absent = [key for key in NEEDED if key not in record]
    if absent:
        raise ValueError(f"the record lacks {name_some(absent)}")
    words = _claim(record, conditional=conditional)
    declared = check_assumptions(record["assumptions"])
    _check_names(group, released_name(record))
    _check_variables(group, words)
    _check_coords(group, record["draws"])

    # A design of ones has no covariates to declare.
    known = {*declared, *(["covariates"] if record.get("intercept_only") is True else [])}
    left_out = _left_out(known, calibrated="calibration" in record)
    # A file that is read and written again still says what it never held.
    there = {*group.data_vars, *record.get("left_out", {})}
    left_out = {name: inputs for name, inputs in left_out.items() if name in there}
    names = [name for name in VARIABLES if name in group and name not in left_out]
    public = xr.Dataset({name: (VARIABLES[name][0], group[name].values.copy()) for name in names})
    coords = _coords(group)
    public = public.assign_coords({dim: coords[dim] for dim in COORDS if dim in public.dims})
    for name in names:
        claim = {"claim": words} if _is_figure(name) else {}
        public[name].attrs = {"long_name": _LONG_NAMES[name], **claim}
    facts = {name: str(group.attrs[name]) for name in ATTRS}
    told, withheld = _told(record, known)
    facts["privacy"] = to_json(
        {
            **told,
            "file_schema": FILE_SCHEMA,
            "declaration": _declaration(declared),
            "left_out": left_out,
            "withheld": withheld,
        }
    )
    return public.assign_attrs(facts)


def with_zeros(guarantee: xr.Dataset) -> xr.Dataset:
    """Put zeros in the place of a draw, as what may be published is decided for whole releases."""
    record = read_record(guarantee.attrs)
    return (
        guarantee.assign_coords(chain=[0], draw=np.arange(int(record["draws"])))
        .assign(zero_draw(guarantee, record))
        .assign_attrs(created_at="")
    )


def _left_out(known: Set[str], *, calibrated: bool) -> dict[str, list[str]]:
    """Variables that may not be published, each with the inputs that nobody declares public."""
    undeclared = {}
    for name, (_, inputs) in VARIABLES.items():
        if calibrated and inputs and name != "sensitivity":
            inputs = _PRICE
        undeclared[name] = [i for i in inputs if i not in known]
    return {name: inputs for name, inputs in undeclared.items() if inputs}


def _told(record: Mapping[str, Any], known: Set[str]) -> tuple[dict[str, Any], list[str]]:
    """What may be published of the record, and names of what may not, now or earlier."""
    ours = ("file_schema", "declaration", "left_out", "withheld")
    told = {key: record[key] for key in RECORD_KEYS if key in record}
    withheld = {key for key in record if key not in (*RECORD_KEYS, *ours)}
    if "calibration" in told and not known >= set(_PRICE):
        # What was asked for is nobody's secret; what it took is computed from the prices.
        calibration = told["calibration"]
        told["calibration"] = {key: calibration[key] for key in ("method", "target")}
        withheld |= {f"calibration.{key}" for key in calibration.keys() - told["calibration"]}
    return told, sorted(withheld.union(record.get("withheld", [])))


def _claim(record: Mapping[str, Any], *, conditional: bool) -> str:
    """Words that stand beside every figure, if this claim may be published."""
    kind, words = claim_of(record["variance_components"], record.get("undeclared", ()))
    if (record["claim"], record["claim_words"]) != (kind, words):
        raise ValueError(
            f"the record claims {record['claim_words']!r}, but its variance components make it "
            f"{words!r}"
        )
    if kind != "formal" and not conditional:
        absent = [name for name, how in record["variance_components"].items() if how != "fixed"]
        absent += record.get("undeclared", ())
        raise ValueError(
            f"the claim is {words}. It would be formal if assumptions declared a public source "
            f"of {' and '.join(map(repr, absent))}; what comes from the same data moves with one "
            "changed record, and the true loss can then be much larger than the figures. Pass "
            "conditional=True to write it with that word beside every figure"
        )
    return words


def _without_sample(group: xr.Dataset, name: str) -> np.ndarray:
    """Where a variable is rightly missing; what nobody can tell is what a whole file has."""
    if name not in _SAMPLED:
        return np.zeros((), dtype=bool)
    if "sensitivity" in group:
        return np.asarray(group["sensitivity"].values == 0)
    return np.asarray(~np.isnan(group[name].values).all())


_ALWAYS_COORDS = ("area", "order", "delta")


def _check_names(group: xr.Dataset, released: str) -> None:
    known = {*VARIABLES, *COORDS, "record"}  # labels of records stay here
    unknown = [name for name in group.variables if name not in known]
    if unknown:
        raise ValueError(f"the group holds {name_some(unknown)}, which is no part of a release")
    missing = [name for name in (released, *ALWAYS, *_ALWAYS_COORDS) if name not in group]
    missing += [name for name in ATTRS if name not in group.attrs]
    if missing:
        hint = ": call draw() first" if released in missing else ""
        raise ValueError(f"the group lacks {name_some(missing)}{hint}")


def _check_variables(group: xr.Dataset, words: str) -> None:
    for name, (dims, _) in VARIABLES.items():
        if name not in group:
            continue
        variable = group[name]
        if variable.dims != dims or variable.dtype != np.float64:
            raise ValueError(f"{name} is not as the release made it: float64 on dims {dims}")
        values = variable.values
        infinite = _is_figure(name)  # a price may be infinite, and never missing
        bad = np.isnan(values) & ~_without_sample(group, name)
        bad |= False if infinite else np.isinf(values)
        if bad.any():
            raise ValueError(f"{name} has {bad.sum()} missing or infinite values")
        if _is_figure(name) and variable.attrs.get("claim") != words:
            raise ValueError(f"{name} does not carry the words of its claim, {words!r}")


def _check_coords(group: xr.Dataset, draws: int) -> None:
    for name in ("order", "delta"):
        values = group[name].values
        if values.dtype != np.float64 or not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"{name} must be positive numbers")
    chains, found = group.sizes["chain"], group.sizes["draw"]
    if (chains, found) != (1, draws):
        raise ValueError(
            f"the group has {found} draws in {chains} chains, its record says {draws} in 1: a "
            "selection on a container cuts the release too; use release.released"
        )
    labels = [str(label) for label in group["area"].values]
    odd = [ascii(label) for label in labels if not _is_text(label)]
    if odd:
        raise ValueError(f"{len(odd)} area labels cannot be kept as text: {name_some(odd)}")


def _is_text(label: str) -> bool:
    """Whether files can keep it: no zero character (it ends a text), no half of a pair."""
    return "\0" not in label and not any("\ud800" <= c <= "\udfff" for c in label)


_COUNTED = ("chain", "draw", "factor", "information_factor")


def _coords(group: xr.Dataset) -> dict[str, Any]:
    """Coordinates made anew, so that a counter carries nothing but its count."""
    labels = np.asarray([str(label) for label in group["area"].values], dtype=str)
    return {
        **{name: np.arange(group.sizes.get(name, 0)) for name in _COUNTED},
        **{name: labels for name in ("area", "area_bis")},
        **{name: group[name].values.copy() for name in ("order", "delta")},
    }


def _is_figure(name: str) -> bool:
    """Whether a variable says how private the release is, so that its claim stands beside it."""
    return name.startswith(("rho", "rdp", "epsilon", "mu"))


def _declaration(declared: Mapping[str, str]) -> str:
    if not declared:
        return "nobody declares any input public"
    return "declared public, by the sources in 'assumptions': " + ", ".join(sorted(declared))
