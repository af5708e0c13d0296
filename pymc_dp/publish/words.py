"""Words that the statement of a release is written in, and numbers as it writes them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pymc_dp.publish.parts import text

# What each input is called, what it is, and what follows if it is not as declared.
INPUTS = {
    "weights": (
        "the weights",
        "Survey weights",
        "If they were adjusted with the outcome, an answer moves every estimate and no figure "
        "here holds.",
    ),
    "sampling_variance": (
        "the sampling variances",
        "Sampling variances of the direct estimates",
        "If they were computed from the same answers, the true loss can be far larger.",
    ),
    "sigma_u": (
        "sigma_u",
        "Standard deviation between areas",
        "If it was estimated from the same answers, the true loss can be far larger.",
    ),
    "covariates": (
        "the covariates",
        "Covariates and formula of the model",
        "A formula chosen by how well it fits the answers is itself a result of them.",
    ),
    "universe": (
        "the universe",
        "Who was asked, who answered, and in which area",
        "Sample sizes, and areas without a sample, tell who took part.",
    ),
}
VOIDS = (
    "Direct estimates, posterior means, residuals or a fit's posterior draws from the same records "
    "are published without noise or passed on: in another table, earlier or later.",
    "The records themselves become known.",
    "Another draw is made from the same records and not added to the price, even one that was "
    "thrown away. Prices (rho) add up.",
    "Which areas, outcomes or covariates to publish was decided by looking at the answers. "
    "Leaving an area out because its variance is zero says that its answers agree.",
    "A rate, a sampling variance or sigma_u that was declared public comes from the same file.",
    "Weights were adjusted with the outcome, or with anything as confidential.",
    "The declared range is what answers were, not what they can be.",
)


def called(names: Iterable[str]) -> str:
    """Name inputs in a sentence."""
    known = [INPUTS[name][0] if name in INPUTS else text(name) for name in names]
    return " and ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))


def power(delta: float) -> str:
    """Write a small probability.

    Examples
    --------
    >>> power(1e-06)
    '1e-6'
    """
    return np.format_float_scientific(delta, trim="-", exp_digits=1)
