"""Prices of a release, from a posterior and sensitivities: how private it is, for whom.

Every formula takes the posterior in factors, ``M = diag(gamma) + left right'``, and costs
``O(m p^2)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import xarray as xr

from pymc_dp import privacy
from pymc_dp._typing import Array
from pymc_dp.mechanisms.fay_herriot_draw import IndependentPlan, JointPlan, WidenedPlan
from pymc_dp.mechanisms.lattice import SPACING, price
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.posterior.fay_herriot import GaussianPosterior
from pymc_dp.record.claims import Mechanism as Mechanism
from pymc_dp.record.figures import DELTAS, ORDERS, joint_figures, worded


@dataclass(frozen=True)
class Prices:
    """zCDP prices, one an area; see the table of names in :mod:`pymc_dp.record.figures`."""

    respondent: Array
    beta: Array
    area: Array
    area_ideal: Array
    independent: Array
    unshrunk: Array

    def joint(self, mechanism: Mechanism) -> float:
        """Price of the whole release: the largest over respondents."""
        by_area = self.respondent if mechanism == "joint" else self.independent
        return float(by_area.max())


def prices(
    posterior: GaussianPosterior, sensitivity: Array, bound: float, mechanism: Mechanism = "joint"
) -> Prices:
    r"""Price one posterior draw.

    Parameters
    ----------
    posterior : GaussianPosterior
    sensitivity : ndarray of shape (m,)
        ``s_j``, zero where there is no sample.
    bound : float
        Public bound of the absolute direct estimates, for the rounding error of the draw.
    mechanism : {"joint", "independent"}
        Decides ``area``: the digits of a joint draw show the shared noise as well.

    Returns
    -------
    Prices

    Notes
    -----
    A record of area j moves only ``y_j``, so the likelihood ratio of the whole vector depends
    on ``theta_j`` alone, and releasing every area costs
    :math:`s_j^2 \Sigma_{jj} / (2 D_j^2)`, exactly what releasing area j costs. With
    independent noise the price is :math:`\sum_i M_{ij}^2 s_j^2 / (2\Sigma_{ii})`. Prices of
    what is drawn include the rounding of the lattice draw.
    """
    return law_prices(ReleaseLaw(posterior, mechanism), sensitivity, bound)


def law_prices(law: ReleaseLaw, sensitivity: Array, bound: float) -> Prices:
    """Price a release of any law; see :func:`prices`.

    Parameters
    ----------
    law : ReleaseLaw
    sensitivity : ndarray of shape (m,)
    bound : float

    Returns
    -------
    Prices
        ``respondent`` and ``beta`` of the joint mechanism, ``independent`` of the other one,
        both with the noise of `law`.
    """
    posterior = law.posterior
    joint = replace(law, mechanism="joint").plan(bound)
    independent = replace(law, mechanism="independent").plan(bound)
    assert isinstance(joint, JointPlan | WidenedPlan) and isinstance(independent, IndependentPlan)
    respondent = price(joint.norm, sensitivity, joint.slack)
    beta = price(joint.shared_norm, sensitivity, joint.slack)
    ideal = _largest_by_area(posterior, sensitivity, independent.scale)
    if law.mechanism == "independent":
        area = (np.sqrt(2 * ideal) * (1 + 1e-12) + independent.slack) ** 2 / 2
    elif isinstance(joint, WidenedPlan):
        area = np.maximum(respondent, _shown_by_digits(joint, sensitivity, respondent.max()))
    else:
        area = np.maximum(respondent, _largest_other(beta))
    return Prices(
        respondent=respondent,
        beta=beta,
        area=area,
        area_ideal=ideal,
        independent=price(independent.norm, sensitivity, independent.slack),
        unshrunk=sensitivity**2 * posterior.precision / 2,
    )


def _shown_by_digits(plan: WidenedPlan, sensitivity: Array, most: float) -> Array:
    """Bound of what the digits of area i show of a record elsewhere, with widened noise.

    They show the area's own noisy statistic, which every record moves a little, and the shared
    ones: a bound by Cauchy-Schwarz, and never more than the whole release (`most`).
    """
    own = (plan.rows**2).sum(axis=1) * ((plan.crossed**2).sum(axis=1) * sensitivity**2).max()
    shared = (plan.shared_norm * sensitivity).max()
    distance = (1 + 1e-9) * np.hypot(np.sqrt(own), shared) + plan.slack
    return np.asarray(np.minimum(distance**2 / 2, most))


def _largest_other(values: Array) -> Array:
    """For each entry, the largest of the others."""
    if values.size == 1:
        return np.zeros(1)
    second, first = np.partition(values, -2)[-2:]
    out = np.full_like(values, first)
    out[np.argmax(values)] = second
    return out


def _largest_by_area(posterior: GaussianPosterior, sensitivity: Array, scale: Array) -> Array:
    """``max_j M_ij^2 s_j^2 / (2 Sigma_ii)`` for each area i.

    Columns are taken by decreasing norm of ``right_j s_j`` and rows drop out once
    Cauchy-Schwarz says that no later column can exceed their best: exact, and nearly linear
    in m because an area's own record dominates.
    """
    left, column = posterior.left, posterior.right * sensitivity[:, None]
    best = posterior.gamma * sensitivity + (left * column).sum(axis=1)
    row_norm, column_norm = (np.sqrt((v**2).sum(axis=1)) for v in (left, column))
    order = np.argsort(-column_norm)
    step = 256
    for start in range(0, order.size, step):
        chunk = order[start : start + step]
        active = np.flatnonzero(row_norm * column_norm[chunk[0]] > best)
        if not active.size:
            break
        for rows in np.array_split(active, -(-active.size // 8192)):
            found = np.abs(left[rows] @ column[chunk].T).max(axis=1)
            best[rows] = np.maximum(best[rows], found)
    return np.asarray((scale * best) ** 2 / 2)


def law_dataset(
    law: ReleaseLaw,
    sensitivity: Array,
    area: np.ndarray,
    *,
    bound: float,
    claim: str,
    draws: int = 1,
) -> xr.Dataset:
    """The guarantee of a release as a labelled data set; every figure says its kind of claim.

    Parameters
    ----------
    law : ReleaseLaw
    sensitivity : ndarray of shape (m,)
    area : ndarray of str of shape (m,)
    bound : float
    claim : str
        Words that go with every figure.
    draws : int
        Number of draws released together; rho adds.

    Returns
    -------
    xr.Dataset
        On ``area``, ``order`` and ``delta``, as the page on the group's schema lists.
    """
    posterior = law.posterior
    p = law_prices(law, sensitivity, bound)
    rho = draws * p.joint(law.mechanism)
    # A draw's k coordinates each err by the lattice's distance from a Gaussian.
    lattice = {"spacing": SPACING, "coordinates": draws * law.plan(bound).moved}
    _, smoothed_sd = law.smoothed(np.zeros(area.size))
    by_area = {
        "posterior_sd": np.sqrt(law.variance),
        "theta_smoothed_sd": smoothed_sd,
        "sensitivity": sensitivity,
        "rho_respondent": draws * p.respondent,
        "rho_beta": draws * p.beta,
        "rho_area": draws * p.area,
        "rho_area_ideal": draws * p.area_ideal,
        "rho_independent": draws * p.independent,
        "rho_unshrunk": draws * p.unshrunk,
        "propagation_own": posterior.gamma,
    }
    data = xr.Dataset(
        {name: ("area", values) for name, values in by_area.items()}
        | {
            "propagation_left": (("area", "factor"), posterior.left),
            "propagation_right": (("area_bis", "factor"), posterior.right),
        }
        | joint_figures(rho, by_area["rho_area"], partial(privacy.lattice_epsilon, **lattice)),
        coords={
            "area": area,
            "area_bis": area,
            "factor": np.arange(posterior.left.shape[1]),
            "order": ORDERS,
            "delta": DELTAS,
        },
    )
    return worded(data, claim)
