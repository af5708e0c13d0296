"""What the statement of a release is made from: what may be published of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._typing import Array
from pymc_dp.record.claims import read_record
from pymc_dp.record.figures import draws_in_words

# Far above the error of the computed rates, and above what the lattice of the noise (of spacing
# 2^-50 standard deviations) adds to them for a billion areas.
MARGIN = 1e-12
DELTA = 1e-6  # where one epsilon has to stand for all


@dataclass(frozen=True)
class Facts:
    """A release as its statement sees it.

    Attributes
    ----------
    public : xr.Dataset
        As :func:`pymc_dp.publish.allow_list.public_part` gives it, without the draw.
    planned : bool
        Whether nothing has been drawn.
    """

    public: xr.Dataset
    planned: bool

    @cached_property
    def record(self) -> dict[str, Any]:
        """Record of what may be published."""
        return read_record(self.public.attrs)

    @property
    def claim(self) -> str:
        """Kind of claim: one word."""
        return str(self.record["claim"])

    @property
    def words(self) -> str:
        """Words that stand beside every figure."""
        return str(self.record["claim_words"])

    @property
    def areas(self) -> str:
        """Number of areas, as text."""
        return f"{self.public.sizes['area']:,}"

    @property
    def draws(self) -> str:
        """Say what the prices are prices of."""
        return draws_in_words(self.record)

    @property
    def rho(self) -> float:
        """Price (zCDP) of the whole release."""
        return self.public["rho"].item()

    @cached_property
    def delta(self) -> float:
        """Delta of the record that is nearest to one in a million."""
        known = self.public["delta"].values
        return float(known[np.abs(np.log(known / DELTA)).argmin()])

    @property
    def drawable(self) -> bool:
        """Whether the price has a place in a picture."""
        return 0 < self.rho < np.inf

    @cached_property
    def prices(self) -> pd.Series | None:
        """Price of the whole release for a unit of each area; None if it may not be published."""
        names = {"joint": "rho_respondent", "independent": "rho_independent"}
        name = names.get(self.record.get("mechanism", ""))
        return self.public[name].to_series() if name in self.public else None


def true_positive_rate(mu: float, false_positive_rate: Array | float) -> Array:
    r"""Bound of an attack's true positive rate, rounded up.

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter.
    false_positive_rate : ndarray or float
        Between 0 and 1.

    Returns
    -------
    ndarray

    Notes
    -----
    :math:`\Phi(\Phi^{-1}(\alpha) + \mu)`, the trade-off curve of two Gaussians (Dong, Roth and
    Su 2022, equation 6).

    Examples
    --------
    >>> true_positive_rate(1.0, 0.05).round(4).item()
    0.2595
    """
    from scipy.special import ndtr, ndtri  # a fifth of a second at import, on PyMC 6

    exact = ndtr(ndtri(np.asarray(false_positive_rate)) + mu)
    return np.asarray(np.minimum(exact * (1 + MARGIN), 1.0))
