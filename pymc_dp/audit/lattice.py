"""The digits of noisy values: whether they lie on the public lattice, what they give away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_dp import privacy
from pymc_dp._typing import Array
from pymc_dp.audit.bounds import two_sample_mu
from pymc_dp.audit.samplers import (
    Sampler,
    at_least,
    audited,
    drawn,
    error_allowed,
    lattice_values,
    place_of,
)
from pymc_dp.mechanisms.lattice import SPACING
from pymc_dp.release.release import PrivateRelease


@dataclass(frozen=True)
class LatticeTest:
    """Whether noisy values lie on the public lattice, and what their last digits give away.

    Attributes
    ----------
    area : str
        Whose record is changed.
    draws : int
        Draws on each of the two data sets.
    spacing : float
        Spacing of the lattice, in standard deviations of the noise.
    off_lattice : tuple of two int
        Draws with a value off the lattice, on either data set.
    confidence : float
        Probability, at least, that `mu_lower` does not exceed the truth.
    mu : float
        The claim for the two data sets, in Gaussian differential privacy.
    mu_lower : float
        Lower bound on mu from the last binary digits of the area's values alone.
    """

    area: str
    draws: int
    spacing: float
    off_lattice: tuple[int, int]
    confidence: float
    mu: float
    mu_lower: float

    @property
    def passed(self) -> bool:
        """Whether every value is on the lattice, and the digits show no more than is claimed."""
        return not any(self.off_lattice) and self.mu_lower <= self.mu


def lattice_test(
    release: PrivateRelease,
    area: str | None = None,
    *,
    sampler: Sampler | None = None,
    draws: int = 2_000,
    confidence: float = 0.95,
) -> LatticeTest:
    """Look at the digits of noisy values before they are mapped to posterior draws.

    Noise added in floating point leaves traces of the data in the last digits, whatever its size:
    the sum is rounded to the grid of the larger term, and other data have another grid. On a
    lattice that is the same for all data sets nothing of the kind is left.

    Parameters
    ----------
    release : PrivateRelease
        Drawn or not; it stays as it is, and its direct estimates are not read.
    area : str, optional
        Whose direct estimate is changed; by default the area with the highest price.
    sampler : callable, optional
        What to test: direct estimates (m,) and a number of draws in, noisy values (draws, k) out,
        the first m of them area by area. By default the lattice values of the release.
    draws : int
        From each of the two data sets.
    confidence : float
        Of `mu_lower`.

    Returns
    -------
    LatticeTest

    Raises
    ------
    ValueError
        If the area is unknown or has no sample, or an argument is out of range.

    Notes
    -----
    The attacks are those of Mironov (2012) and Haney, Desfontaines, Hartman, Shrestha and Hay
    (2022, Precision-based attacks and interval refining). The data sets are all zeros, where
    floats show all their digits, and the same with one direct estimate moved by its sensitivity,
    or by less where that is more than one standard deviation of the noise: floats of 4 or more
    are so coarse that each of them is on the lattice.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
    >>> test = lattice_test(release, draws=500)
    >>> test.passed, test.off_lattice
    (True, (0, 0))
    """
    mechanism = audited(release)
    j = place_of(mechanism, area)
    claimed = float(privacy.mu(mechanism.price()[j]))
    part = min(1.0, 1.0 / claimed)
    zeros = np.zeros(mechanism.area.size)
    moved = zeros.copy()
    moved[j] = part * mechanism.sensitivity[j]
    count = at_least("draws", draws, 100)
    error = error_allowed(confidence)
    sample = lattice_values(mechanism) if sampler is None else sampler
    at_zero, at_moved = (drawn(sample, y, count, wider=True) for y in (zeros, moved))
    return LatticeTest(
        area=str(mechanism.area[j]),
        draws=count,
        spacing=SPACING,
        off_lattice=(_off_lattice(at_zero), _off_lattice(at_moved)),
        confidence=confidence,
        mu=part * claimed,
        # The larger the number that noise is added to, the coarser the grid of the sum.
        mu_lower=two_sample_mu(last_digit(at_zero[:, j]), last_digit(at_moved[:, j]), error),
    )


def last_digit(values: Array) -> Array:
    """Exponent of two of the last binary digit that is not 0; above all others for 0."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    _, place = np.frexp((whole & -whole).astype(float))
    return np.where(values == 0, 1100.0, exponent - 54.0 + place)


def _off_lattice(values: Array) -> int:
    steps = values / SPACING  # exact: the spacing is a power of two
    return int((steps != np.rint(steps)).any(axis=1).sum())
