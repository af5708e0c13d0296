"""Conversions of a price: zCDP to Renyi orders, Gaussian DP, epsilon at delta, an attack's gain.

See :mod:`pymc_dp.privacy.convert` for how figures are rounded and why there is no pure epsilon.
"""

from pymc_dp.privacy.convert import (
    advantage,
    delta,
    epsilon,
    epsilon_zcdp,
    lattice_epsilon,
    mu,
    rdp,
)

__all__ = ["advantage", "delta", "epsilon", "epsilon_zcdp", "lattice_epsilon", "mu", "rdp"]
