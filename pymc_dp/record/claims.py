"""The record of a release: what is claimed, under which assumptions, said by whom.

One JSON object, kept as one text attribute because netCDF has no None, bool or dict. Its keys
are only ever added to, so that later versions read earlier records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from pymc_dp._checks import name_some, plain_text
from pymc_dp._version import __version__

ASSUMPTIONS = (
    "weights", "sampling_variance", "sigma_u", "covariates", "beta_prior", "universe",
)  # fmt: skip
SCHEMA_VERSION = 1
Claim = Literal["formal", "conditional"]
Mechanism = Literal["joint", "independent", "noisy-direct"]
Bound = Literal["log-concave"]  # of the price, where the posterior is not Gaussian
Method = Literal["temper", "noise", "scale"]  # of meeting a budget
# Each mechanism in words: whoever adds one adds its line, and every page and table says it.
MECHANISMS: dict[str, str] = {
    "joint": "one draw from the joint posterior of all areas",
    "independent": "posterior mean plus noise independent by area",
    "noisy-direct": "direct estimates with noise, which is no posterior draw",
}
# What a claim may rest on beside variance components, in words.
PUBLIC_INPUTS = {"covariates": "the covariates", "beta_prior": "the prior of the coefficients"}
CONDITIONAL = "conditional (treating the variance components as fixed)"
NEIGHBOURS = (
    "one unit's outcomes are replaced by any other values in the declared range; weights, area "
    "membership, the universe and who answered remain unchanged"
)


def check_assumptions(
    assumptions: Mapping[str, str] | None,
    *,
    from_answers: bool = False,
    sigma_u_from_answers: bool = False,
) -> dict[str, str]:
    """Who declares what public; unknown keys and empty sources are refused.

    So is a source for sampling variances or for a sigma_u that came from the answers.

    Raises
    ------
    ValueError
        Naming the key.
    """
    given = dict(assumptions or {})
    unknown = [key for key in given if key not in ASSUMPTIONS]
    if unknown:
        raise ValueError(
            f"unknown assumptions {', '.join(map(repr, unknown))}; "
            f"known are {', '.join(ASSUMPTIONS)}"
        )
    for key, source in given.items():
        if not isinstance(source, str) or not source.strip():
            raise ValueError(f"assumption {key!r} needs its source in words")
        given[key] = plain_text(source, f"the source of assumption {key!r}")
    if from_answers and "sampling_variance" in given:
        raise ValueError(
            "the sampling variances were computed from the answers, so they cannot be declared "
            "public: take hajek(variance='kish') with a public rate, or leave 'sampling_variance' "
            "out of the assumptions, which makes the claim conditional (if the answers were those "
            "of another survey, direct['variance'].drop_attrs() takes the mark away)"
        )
    if sigma_u_from_answers and "sigma_u" in given:
        raise ValueError(
            "sigma_u was estimated from the answers (estimate_sigma_u), so it cannot be declared "
            "public: take a value from elsewhere or private_sigma_u, or leave 'sigma_u' out of the "
            "assumptions, which makes the claim conditional (if the answers were those of another "
            "survey, float(value) takes the mark away)"
        )
    return given


def variance_components(
    assumptions: Mapping[str, str],
    *,
    plug_in: bool,
    rests_on: Collection[str] = ("sigma_u", "sampling_variance"),
) -> dict[str, str]:
    """Kind of each variance component that a claim rests on: ``fixed`` needs a declared source.

    Raises
    ------
    ValueError
        If sigma_u is declared public although it was estimated from the same data.
    """
    if plug_in and "sigma_u" in assumptions:
        raise ValueError(
            "sigma_u is held at its posterior mean under idata, so it is estimated from the same "
            "data and cannot be declared public"
        )
    return {name: "fixed" if name in assumptions else "plug-in" for name in rests_on}


def check_plugged_in(assumptions: Mapping[str, str], in_likelihood: Collection[str]) -> None:
    """Refuse public sampling variances that a component plugged in is part of.

    Raises
    ------
    ValueError
        Naming what was plugged in.
    """
    if in_likelihood and "sampling_variance" in assumptions:
        raise ValueError(
            f"{name_some(in_likelihood)} held at posterior means under idata is part of the "
            "sampling variances of this model, which then cannot be declared public: hold it "
            "with fixed=..., or leave 'sampling_variance' out of the assumptions"
        )


def claim_kind(components: Mapping[str, str]) -> Claim:
    """``formal`` when every variance component is fixed, else ``conditional``."""
    return "formal" if set(components.values()) == {"fixed"} else "conditional"


def claim_of(components: Mapping[str, str], undeclared: Collection[str]) -> tuple[Claim, str]:
    """Kind and words of a claim that rests on variance components and on more that is public.

    Examples
    --------
    >>> claim_of({"sigma_u": "fixed"}, ["covariates"])
    ('conditional', 'conditional (treating the covariates as public)')
    """
    kind = claim_kind(components)
    if kind == "conditional" or not undeclared:
        return kind, claim_words(kind)
    names = " and ".join(PUBLIC_INPUTS.get(name, name) for name in undeclared)
    return "conditional", f"conditional (treating {names} as public)"


def claim_words(kind: Claim) -> str:
    """The words that stand beside every figure."""
    return kind if kind == "formal" else CONDITIONAL


def mechanism_words(record: Mapping[str, Any]) -> str:
    """Name the mechanism of a record and say what it releases.

    A name that this version does not know, as a later one may write it, stands alone.

    Examples
    --------
    >>> mechanism_words({"mechanism": "independent"})
    'independent: posterior mean plus noise independent by area'
    >>> mechanism_words({"mechanism": "of tomorrow"})
    'of tomorrow'
    """
    name = str(record.get("mechanism", "not recorded"))
    return f"{name}: {MECHANISMS[name]}" if name in MECHANISMS else name


def build_record(**facts: Any) -> dict[str, Any]:
    """The record of one release, from the facts of the release and the versions in use.

    Raises
    ------
    ValueError
        If a text, such as the name of the unit, holds characters that cannot be seen.
    """
    texts = {
        name: plain_text(fact, f"the record's {name}")
        for name, fact in facts.items()
        if isinstance(fact, str) and fact
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "neighbours": NEIGHBOURS,
        "pure_epsilon": "none, because the likelihood ratio of a Gaussian draw is unbounded",
        "versions": {"pymc_dp": __version__}
        | {name: _version(name) for name in ("pymc", "opendp", "numpy")},
        **facts,
        **texts,
    }


def to_json(record: Mapping[str, Any]) -> str:
    """Canonical JSON text of a record; refuses NaN and infinity."""
    return json.dumps(record, sort_keys=True, allow_nan=False, ensure_ascii=False)


def read_record(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a release from the attributes of its group.

    Raises
    ------
    ValueError
        If there is none, or it comes from a later schema.
    """
    if "privacy" not in attrs:
        raise ValueError("no attribute 'privacy': this is not a release of pymc_dp")
    record: dict[str, Any] = json.loads(attrs["privacy"])
    if record.get("schema_version", 0) > SCHEMA_VERSION:
        raise ValueError(
            f"the record has schema {record['schema_version']}, later than {SCHEMA_VERSION}: "
            "update pymc_dp"
        )
    return record


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
