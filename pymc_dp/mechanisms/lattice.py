"""The safe draw: lattice Gaussian noise before a public linear map.

A posterior draw is ``theta* = L (S y + noise) + c`` with public ``L`` and ``S``, ``L S = M`` and
``L L' = Sigma``. So ``S y`` is rounded to a public lattice, discrete Gaussian noise on that
lattice is added by OpenDP from the operating system's randomness, and everything after is
post-processing: floating-point error there cannot hurt privacy. Noise added to an unrounded
posterior mean would give the mean away through the support of the draw.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from pymc_dp._typing import Array

_CONTRIB = threading.Lock()
_BLOCK = 1_024  # fewest lattice values, a hundredth of a second, worth a thread of their own


def price(norm: Array, sensitivity: Array, slack: Array) -> Array:
    """Price in zCDP of a change of at most ``sensitivity`` in one direct estimate.

    Parameters
    ----------
    norm : ndarray of shape (m,)
        Norm of the statistic's column, in standard deviations per unit of ``y_j``.
    sensitivity : ndarray of shape (m,)
        ``s_j``; zero where no record exists, which then costs nothing.
    slack : ndarray of shape (m,)
        Distance that rounding can add.
    """
    distance = (1 + NORM_SLACK) * norm * sensitivity + slack
    return np.where(sensitivity > 0, distance**2 / 2, 0.0)


def noisy_statistics(
    plan: Plan,
    y: Array,
    distance: float,
    claimed: float,
    draws: int,
    charge: Callable[[], None] | None = None,
) -> Array:
    """``S y`` rounded to the lattice, plus discrete Gaussian noise, once a draw.

    The one door to OpenDP: whatever gets lattice noise passes its checks.

    Parameters
    ----------
    plan : Plan
    y : ndarray of shape (m,)
        Direct estimates, zero where there is no sample.
    distance : float
        Largest distance between the statistics of neighbouring data sets on the lattice, rounding
        to it included.
    claimed : float
        The zCDP price of one draw that the caller states; OpenDP's own map must not exceed it.
    draws : int
    charge : callable, optional
        Charges a ledger; called once, when nothing but the noise is left to do.

    Returns
    -------
    ndarray of shape (draws, plan.size)

    Raises
    ------
    ValueError
        If the statistic is not finite.
    RuntimeError
        If OpenDP prices the noise above the claim.

    Notes
    -----
    The noise of a coordinate is independent of all others, so cores may share the coordinates:
    blocks of a vector have the law of the vector. The price is that of the vector.
    """
    statistic = plan.statistic(y)
    if statistic.shape != (plan.size,) or not np.isfinite(statistic).all():
        raise ValueError("the statistic to be released is not finite")  # OpenDP would accept it
    # OpenDP adds by itself what rounding to the lattice costs, and rounds up in the last places.
    unrounded = max(distance - SPACING * math.sqrt(plan.size), 0.0)
    if _gaussian(plan.size).map(unrounded) > claimed * (1 + 1e-9):
        raise RuntimeError("OpenDP prices this release above the claim; nothing was drawn")
    if charge is not None:
        charge()

    def draw(block: Array) -> Array:
        measurement = _gaussian(block.size)
        return np.array([measurement(block) for _ in range(draws)], dtype=float)

    count = min(os.cpu_count() or 1, 1 + draws * plan.size // _BLOCK, plan.size)
    with ThreadPoolExecutor(count) as pool:
        noisy = np.concatenate(list(pool.map(draw, np.array_split(statistic, count))), axis=1)
    if noisy.shape != (draws, plan.size):
        raise RuntimeError("OpenDP returned another number of values; nothing was drawn")
    return noisy


def _gaussian(size: int) -> Any:
    """OpenDP's discrete Gaussian of unit scale on the lattice, for vectors of a size."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance

    with _contrib():
        return make_gaussian(
            vector_domain(atom_domain(T=float, nan=False), size=size),
            l2_distance(T=float),
            scale=1.0,
            k=EXPONENT,
        )


@contextmanager
def _contrib() -> Iterator[None]:
    """OpenDP's switch for constructors not yet fully vetted, left as the user had it."""
    from opendp.mod import GLOBAL_FEATURES, disable_features, enable_features

    with _CONTRIB:
        switch = "contrib" not in GLOBAL_FEATURES
        if switch:
            enable_features("contrib")
        try:
            yield
        finally:
            if switch:
                disable_features("contrib")


# Spacing 2^-50 standard deviations: rounding then costs about 1e-13 in sqrt(2 rho).
EXPONENT = -50
SPACING = 2.0**EXPONENT
UNIT = 2.0**-53  # relative error of one floating-point operation
# Column norms of S are sums of up to a few million non-negative terms, added pairwise.
NORM_SLACK = 1e-12


class Plan(Protocol):
    """What a safe draw needs to know."""

    @property
    def size(self) -> int:
        """Number of lattice coordinates."""

    @property
    def moved(self) -> int:
        """Coordinates that one record can move."""

    def statistic(self, y: Array) -> Array:
        """``S y``, or another public function of ``y``; (size,)."""

    def publish(self, noisy: Array) -> Array:
        """``L noisy + c``; (m,)."""


def publishing_decimals(variance: Array) -> int:
    """Decimals of the public publishing grid: a hundredth of the smallest sd of the release."""
    positive = variance[variance > 0]
    if not positive.size:
        raise ValueError("every posterior variance is zero: there is no noise to protect anybody")
    return -math.floor(math.log10(math.sqrt(float(positive.min())) / 100))
