"""The kinds of sampling variance, in one table: what each needs, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pymc_dp._checks import positive_number
from pymc_dp.survey.columns import Sample
from pymc_dp.survey.linearized import Singleton, linearized_columns, linearized_variance
from pymc_dp.survey.replicates import Replicates, check_scale, replicate_columns, replicate_variance
from pymc_dp.survey.sums import Sums, ratio

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Variance = str  # a name in METHODS, at the end of this file
Computed = tuple["NDArray[np.float64]", dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """The arguments of `hajek` that belong to some kinds of variance and not to others."""

    rate: float | None = None
    design_factor: float = 1.0
    singleton: str = "fail"
    replicate_weights: str | Sequence[str] | None = None
    replicate_scale: ArrayLike | None = None
    replicate_center: str = "estimate"
    fay_rho: float | None = None


@dataclass(frozen=True)
class Method:
    """A kind of variance with all that it needs, ready to compute.

    Attributes
    ----------
    compute : variances by area, and what the result records of how they came about
    record : what the result records of the method
    columns : what has to stand beside the records in their frames
    from_answers : whether it depends on the outcomes
    """

    compute: Callable[[Sums], Computed]
    record: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)
    from_answers: bool = True


@dataclass(frozen=True)
class Kind:
    """An entry of the table: the arguments it takes, and the method that they make."""

    takes: tuple[str, ...]
    prepare: Callable[[str, Sample, Any, Options], Method]


def choose_method(variance: str, sample: Sample, schema: Any, options: Options) -> Method:
    """Accept a method that exists, with what it needs and nothing that belongs to another."""
    if variance not in METHODS:
        replicated = ", ".join(map(repr, _that_take("replicate_weights")))
        raise ValueError(
            f"variance must be 'linearized' or 'kish', or with replicate_weights one of "
            f"{replicated}; got {variance!r}"
        )
    takes = METHODS[variance].takes
    for names, what in TOGETHER.items():
        if names[0] not in takes and any(_is_given(name, sample, options) for name in names):
            owners = ", ".join(map(repr, _that_take(names[0])))
            raise ValueError(f"{what} to variance={owners}")
    if options.singleton not in get_args(Singleton):
        rules = ", ".join(map(repr, get_args(Singleton)))
        raise ValueError(f"singleton must be one of {rules}, got {options.singleton!r}")
    if options.singleton != "fail" and not sample.has_design:
        raise ValueError("singleton belongs to strata and cluster")
    method = METHODS[variance].prepare(variance, sample, schema, options)
    return replace(method, record={"variance_method": variance, **method.record})


def _that_take(argument: str) -> list[str]:
    return [name for name, kind in METHODS.items() if argument in kind.takes]


def _is_given(name: str, sample: Sample, options: Options) -> bool:
    """Whether an argument is there and not what it is by default."""
    owner = options if hasattr(options, name) else sample
    value, default = getattr(owner, name), getattr(type(owner), name)
    return value is not None if default is None else bool(np.any(value != default))


def _linearized(name: str, sample: Sample, schema: Any, options: Options) -> Method:
    """Linearised: with a design from the whole sample, otherwise from each area."""
    record: dict[str, Any] = {}
    if sample.has_design:
        names = {"strata": sample.strata, "cluster": sample.cluster}
        record |= {role: " ".join(columns) for role, columns in names.items() if columns}
        record["singleton"] = options.singleton
    if sample.fpc is not None:
        record["fpc"] = sample.fpc
    compute = partial(linearized_variance, sample, options.singleton)
    return Method(compute, record, linearized_columns(sample))


def _kish(name: str, sample: Sample, schema: Any, options: Options) -> Method:
    """From weights and public numbers: f P (1 - P) / n_eff."""
    if (sample.bounds.low, sample.bounds.high) != (0, 1):
        raise ValueError("variance='kish' is P (1 - P) / n_eff and needs bounds (0, 1)")
    if options.rate is None or not 0 < options.rate < 1:
        raise ValueError("variance='kish' needs a public rate between 0 and 1, both excluded")
    rate, factor = float(options.rate), positive_number("design_factor", options.design_factor)

    def compute(sums: Sums) -> Computed:
        return ratio(factor * rate * (1 - rate), sums.n_eff), {}

    return Method(compute, {"rate": rate, "design_factor": factor}, from_answers=False)


def _replicated(factor: Callable[..., float] | None, *takes: str) -> Kind:
    """From replicate weights: `factor` of each squared difference, of their number R.

    A method that takes `fay_rho` needs it, and its factor is one of R and of that.
    """

    def prepare(name: str, sample: Sample, schema: Any, options: Options) -> Method:
        rho, scale = options.fay_rho, options.replicate_scale
        if options.replicate_weights is None:
            raise ValueError(f"variance={name!r} needs replicate_weights: a prefix or columns")
        if ("fay_rho" in takes) != (rho is not None):
            owners = ", ".join(map(repr, _that_take("fay_rho")))
            raise ValueError(f"fay_rho and variance={owners} belong together")
        if rho is not None and not 0 <= rho < 1:
            raise ValueError("fay_rho must be at least 0 and below 1")
        center = options.replicate_center
        if center not in ("estimate", "mean"):
            raise ValueError(f"replicate_center must be 'estimate' or 'mean', got {center!r}")
        columns = replicate_columns(schema, options.replicate_weights)
        if scale is None:
            if factor is None:
                raise ValueError(
                    f"variance={name!r} needs replicate_scale: one number for each replicate"
                )
            scale = factor(len(columns)) if rho is None else factor(len(columns), rho)
        replicates = Replicates(columns, check_scale(scale, len(columns)), center)
        scales = replicates.scale
        same = bool((scales == scales[0]).all())
        record = {
            "n_replicates": len(columns),
            "replicate_center": center,
            "replicate_scale": float(scales[0]) if same else scales.tolist(),
        }
        if rho is not None:
            record["fay_rho"] = rho
        return Method(partial(replicate_variance, sample, replicates), record)

    return Kind(("replicate_weights", "replicate_scale", "replicate_center", *takes), prepare)


# Arguments that go together, and how a refusal speaks of them.
TOGETHER = {
    ("rate", "design_factor"): "rate and design_factor belong",
    ("strata", "cluster"): "strata and cluster belong",
    ("fpc",): "fpc belongs",
    ("replicate_weights", "replicate_scale", "replicate_center", "fay_rho"): (
        "replicate weights and what goes with them belong"
    ),
}
# A new method of replicate weights is one line here: the factor of its squared differences.
METHODS = {
    "linearized": Kind(("strata", "cluster", "fpc", "singleton"), _linearized),
    "kish": Kind(("rate", "design_factor"), _kish),
    "sdr": _replicated(lambda R: 4.0 / R),
    "brr": _replicated(lambda R: 1.0 / R),
    "fay": _replicated(lambda R, rho: 1 / (1.0 - rho) ** 2 / R, "fay_rho"),
    "jk1": _replicated(lambda R: (R - 1.0) / R),
    "jkn": _replicated(None),  # one factor for each replicate, to be given
    "bootstrap": _replicated(lambda R: 1.0 / R),
}
