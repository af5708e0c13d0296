"""Where values came from: marks that are tied to the values they speak of.

A mark is an attribute, and attributes get lost, or stay on values that have changed. So a mark in
favour of values, that they hold no answers, comes with a digest of them and counts for these alone;
a mark against them, that they were computed from the answers, counts wherever it is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp._checks import from_answers
from pymc_dp._typing import Array

ANSWERS = "computed from the answers"
HAJEK = "computed by hajek from weights and a public rate"
HAJEK_SENSITIVITY = "computed by hajek from the weights"
DECLARED = "declared by the user, not checked"
UNDECLARED = "not declared"


@dataclass(frozen=True)
class Origin:
    """What a model's constant is, and a digest of the values that this was said of."""

    words: str
    digest: str

    def of(self, values: Any) -> str:
        """The words where the values are still the same, or hold answers; else unknown."""
        if self.words == ANSWERS or self.digest == digest(values):
            return self.words
        return DECLARED


class FromAnswers(float):
    """A number that was computed from the answers, as :func:`estimate_sigma_u` returns it.

    Examples
    --------
    >>> FromAnswers(0.5), isinstance(FromAnswers(0.5) + 0, FromAnswers)
    (0.5, False)
    """

    __slots__ = ()
    __repr__ = float.__repr__


def digest(values: Any) -> str:
    """SHA-256 of numbers; missing ones are all alike.

    Examples
    --------
    >>> digest([0.1, 0.2]) == digest(np.array([0.1, 0.2])), digest([0.2, 0.1]) == digest([0.1, 0.2])
    (True, False)
    """
    numbers = np.atleast_1d(np.array(values, dtype="<f8")) + 0.0  # no negative zeros
    numbers[np.isnan(numbers)] = np.nan
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def public_mark(values: Array) -> dict[str, str]:
    """Attributes of sampling variances that :func:`hajek` computed from public numbers alone."""
    return {"computed_from": "weights and a public rate", "origin_digest": digest(values)}


def origin_of(values: Array, attrs: Mapping[str, Any]) -> str:
    """What the attributes of a variable say of its values, as far as they still speak of them.

    Examples
    --------
    >>> values = np.array([0.1, 0.2])
    >>> origin_of(values, public_mark(values))
    'computed by hajek from weights and a public rate'
    >>> origin_of(2 * values, public_mark(values))
    'declared by the user, not checked'
    """
    if from_answers(attrs):
        return ANSWERS
    marked = attrs.get("origin_digest") if "computed_from" in attrs else None
    return HAJEK if marked is not None and marked == digest(values) else DECLARED


def unchecked(origins: Mapping[str, str]) -> list[str]:
    """Names of what the user declares and nobody has checked.

    Examples
    --------
    >>> unchecked({"sigma_u": DECLARED, "sensitivity": HAJEK_SENSITIVITY})
    ['sigma_u']
    """
    return [name for name, words in origins.items() if words.startswith(DECLARED)]
