"""The figures of a release: their orders and deltas, names, and what a whole price converts to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp import privacy
from pymc_dp._typing import Array

ORDERS = np.concatenate(
    [[1.01, 1.1, 1.25, 1.5, 1.75], np.arange(2.0, 33.0), [48, 64, 96, 128, 256]]
)
DELTAS = np.array([1e-10, 1e-8, 1e-6, 1e-5, 1e-4])
LONG_NAMES = {
    "posterior_sd": "posterior standard deviation of theta",
    "theta_smoothed_sd": "standard deviation of theta given the released draw",
    "sensitivity": "largest change of the direct estimate by one protected unit",
    "rho_respondent": "zCDP price of a joint draw for a protected unit of the area",
    "rho_beta": "part of that price that all areas' digits carry (coefficients)",
    "rho_area": "zCDP price of publishing this area alone, worst unit of any area",
    "rho_area_ideal": "the same for an ideal Gaussian, without the digits of a lattice draw",
    "rho_independent": "zCDP price of noise independent by area, for a unit of the area",
    "rho_unshrunk": "zCDP price without shrinkage, sensitivity^2 / (2 D)",
    "propagation_own": "gamma, the diagonal part of the propagation matrix",
    "propagation_left": "left factor of the propagation matrix",
    "propagation_right": "right factor of the propagation matrix",
    "noise_variance": "variance of the noise on the direct estimate",
    "sampling_variance": "sampling variance of the direct estimate",
    "information_own": "diagonal part of K, the precision with which a draw shows the estimates",
    "information_shared": "shared factor of K",
    "information_sign": "sign of each column of the shared factor",
    "rdp": "Renyi divergence bound of the whole release",
    "epsilon": "epsilon of the whole release at delta, exact Gaussian",
    "epsilon_zcdp": "epsilon of the whole release at delta, from zCDP alone",
    "epsilon_area": "epsilon at delta of publishing one area alone",
    "rho": "zCDP price of the whole release",
    "mu": "Gaussian-DP parameter of the whole release",
}
# What a draw adds.
DRAWN_NAMES = {
    "theta": "released posterior draw",
    "noisy_direct": "direct estimate with noise",
    "theta_smoothed": "released draw smoothed once more",
    "information_h": "all that the draw says of the direct estimates: N(K y, K)",
}
# The variable that is the release, where it is no posterior draw.
RELEASED = {"noisy-direct": "noisy_direct"}
# Where kinds of record are not one an area: in models of units, of years, of several outcomes.
RECORD_NAMES = {
    "rho_record": "zCDP price of the release for a record of this kind",
    "rho_independent_record": "the same with noise independent by area",
    "rho_unshrunk_record": "the same without shrinkage",
}


def worded(data: xr.Dataset, claim: str) -> xr.Dataset:
    """The data set with a long name for each variable, and the claim beside every figure."""
    for name in map(str, data.data_vars):
        data[name].attrs["long_name"] = (LONG_NAMES | RECORD_NAMES)[name]
        if name.startswith(("rho", "rdp", "epsilon", "mu")):
            data[name].attrs["claim"] = claim
    return data


def record_price(group: xr.Dataset, record: Mapping[str, Any]) -> xr.DataArray:
    """Price (zCDP) of the whole release for a record, under its mechanism.

    By area; by kind of record in a model whose records are not one an area.
    """
    independent = record["mechanism"] == "independent"
    name = "rho_independent" if independent else "rho_respondent"
    if name in group:
        return group[name]
    return group["rho_independent_record" if independent else "rho_record"]


def released_name(record: Mapping[str, Any]) -> str:
    """Name of the variable that a draw of this mechanism adds whatever else it adds."""
    return RELEASED.get(record.get("mechanism", ""), "theta")


def zero_draw(guarantee: xr.Dataset, record: Mapping[str, Any]) -> dict[str, Any]:
    """Zeros in the place of what a draw will add to a guarantee."""
    names = [released_name(record)]
    names += ["theta_smoothed"] if "theta_smoothed_sd" in guarantee else []
    names += ["information_h"] if "information_own" in guarantee else []
    zeros = np.zeros((1, int(record["draws"]), guarantee.sizes["area"]))
    return {name: (("chain", "draw", "area"), zeros) for name in dict.fromkeys(names)}


def draws_in_words(record: Mapping[str, Any]) -> str:
    """Say what the prices are prices of."""
    draws = record["draws"]
    return "one draw" if draws == 1 else f"{draws} draws together"


def joint_figures(
    rho: float, alone: Array, epsilon: Callable[..., Any]
) -> dict[str, tuple[Any, Any]]:
    """The whole release's price and what it converts to, and epsilon of each area alone.

    Parameters
    ----------
    rho : float
    alone : ndarray of shape (m,)
        Price of publishing one area alone.
    epsilon : callable
        From prices and deltas to epsilon.
    """
    return {
        "rdp": ("order", privacy.rdp(rho, ORDERS)),
        "epsilon": ("delta", epsilon(rho, DELTAS)),
        "epsilon_zcdp": ("delta", privacy.epsilon_zcdp(rho, DELTAS)),
        "epsilon_area": (("area", "delta"), epsilon(alone[:, None], DELTAS)),
        "rho": ((), rho),
        "mu": ((), privacy.mu(rho)),
    }
