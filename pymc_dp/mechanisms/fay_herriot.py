"""A draw from a Fay-Herriot posterior, jointly or with noise independent by area: its prices.

Every formula takes the posterior in factors, ``M = diag(gamma) + left right'``, and costs
``O(m p^2)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp import privacy
from pymc_dp._checks import declared_bounds
from pymc_dp._typing import Array
from pymc_dp.mechanisms.calibration import (
    calibrate_law,
    calibrated_coordinates,
    calibration_report,
    rho_of_epsilon,
)
from pymc_dp.mechanisms.fay_herriot_draw import IndependentPlan, JointPlan, WidenedPlan
from pymc_dp.mechanisms.lattice import SPACING, price, publishing_decimals
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.mechanisms.protocol import (
    Charge,
    Draw,
    Request,
    Target,
    Variables,
    floating_draws,
    lattice_draws,
    with_information,
)
from pymc_dp.mechanisms.sensitivity import joined_sensitivity, public_bound
from pymc_dp.posterior.fay_herriot import GaussianPosterior
from pymc_dp.posterior.information import (
    InformationMatrix,
    independent_information,
    widened_information,
)
from pymc_dp.reading.read import Reading
from pymc_dp.record.claims import Mechanism, Method
from pymc_dp.record.figures import DELTAS, ORDERS, joint_figures, worded


@dataclass(frozen=True)
class AreaDraw:
    """The mechanisms ``joint`` and ``independent`` of a Fay-Herriot model.

    Attributes
    ----------
    law : ReleaseLaw
    modelled : ReleaseLaw
        The law before any calibration.
    area : ndarray of str of shape (m,)
    sensitivity : ndarray of shape (m,)
        ``s_j``, zero where there is no sample.
    bound : float
        Public bound of the absolute direct estimates.
    """

    law: ReleaseLaw
    modelled: ReleaseLaw = field(repr=False)
    area: np.ndarray = field(repr=False)
    sensitivity: Array = field(repr=False)
    bound: float
    noun = "areas"
    once = None
    rests_on = ("sigma_u", "sampling_variance")

    @property
    def name(self) -> Mechanism:
        """``joint`` or ``independent``."""
        return self.law.mechanism

    @property
    def also_public(self) -> tuple[str, ...]:
        """Covariates where there are any, the coefficients' prior where it is not flat."""
        return design_inputs(self.law.posterior)

    @property
    def facts(self) -> dict[str, Any]:
        """Whether the design is a column of ones, so that there are no covariates to declare."""
        return {"intercept_only": intercept_only(self.law.posterior)}

    @property
    def decimals(self) -> int:
        """Decimals of the public grid on which a draw is published."""
        return publishing_decimals(self.law.variance)

    @cached_property
    def plan(self) -> JointPlan | WidenedPlan | IndependentPlan:
        """Plan of the safe draw."""
        return self.law.plan(self.bound)

    def price(self) -> Array:
        """Price of one draw of all areas for a record of each; (m,)."""
        return price(self.plan.norm, self.sensitivity, self.plan.slack)

    def guarantee(self, *, claim: str, draws: int = 1) -> xr.Dataset:
        """See :func:`law_dataset`."""
        data = law_dataset(
            self.law, self.sensitivity, self.area, bound=self.bound, claim=claim, draws=draws
        )
        return with_information(data, self.information)

    @property
    def sampling_variance(self) -> Array:
        """``D`` of the data, NaN where there is no sample; (m,)."""
        D = self.law.sampling_variance
        return np.where(D > 0, D, np.nan)

    @cached_property
    def information(self) -> InformationMatrix:
        """``K``: how precisely a draw says what the direct estimates are."""
        law = self.law
        if law.mechanism == "independent":
            return independent_information(law.posterior, law.inflation, law.extra)
        return widened_information(law.posterior, law.inflation, law.extra)

    def drawing(self, y: Array, draws: int, container: Any) -> Draw:
        """Draws of theta on the publishing grid, smoothed once more; ``h`` is not rounded."""
        rho, decimals = float(self.price().max()), self.decimals

        def make(charge: Charge) -> Variables:
            noisy = lattice_draws(self.plan, y, rho, draws, charge)
            theta = np.stack([self.plan.publish(w) for w in noisy]).round(decimals)
            smoothed = self.law.smoothed(theta)[0].round(decimals)
            h = np.stack([self.plan.sufficient(w) for w in noisy])
            return {
                "theta": (("area",), theta),
                "theta_smoothed": (("area",), smoothed),
                "information_h": (("area",), h),
            }

        return make

    def simulate(self, y: Array, draws: int, rng: np.random.Generator) -> Array:
        """Ordinary floating-point draws; (draws, m)."""
        return floating_draws(self.plan, y, draws, rng)

    def propagation(self) -> xr.DataArray:
        """Dense ``M`` on ``area`` and ``area_bis``."""
        return xr.DataArray(
            self.law.propagation(),
            dims=("area", "area_bis"),
            coords={"area": self.area, "area_bis": self.area},
            name="propagation",
        )

    def calibrated(
        self, target: Target, method: Method
    ) -> tuple[AreaDraw, xr.Dataset, dict[str, float]]:
        """The mechanism with the least change of its law that meets the target."""
        asked, before = target.asked(), self.modelled
        if "rho" not in asked:
            moved = calibrated_coordinates(before, method, self.bound)
            asked["rho"] = rho_of_epsilon(asked["epsilon"], asked["delta"], moved)
        after = calibrate_law(before, self.sensitivity, self.bound, asked["rho"], method)
        report = calibration_report(
            before, after, self.sensitivity, self.area, target=asked["rho"], method=method
        )
        return replace(self, law=after), report, asked

    def shift(self, j: int) -> Array:
        """Column of M: how far the mean of each area moves per unit of ``y_j``; (m,)."""
        posterior = self.law.posterior
        column = posterior.left @ posterior.right[j]
        column[j] += posterior.gamma[j]
        return np.asarray(column)

    def direction(self, j: int) -> Array:
        """``N^-1 M e_j``: a record of area j shows most along it; (m,).

        The log likelihood ratio is linear in the release along it. ``N`` is the covariance of the
        noise. For a posterior draw, ``M = N D^-1``: only the area's own value counts. With
        independent noise added to a draw, Woodbury's formula.
        """
        law, column = self.law, self.shift(j)
        if law.mechanism == "independent":
            variance = law.variance
            return np.divide(column, variance, out=np.zeros_like(column), where=variance > 0)
        if law.extra == 0:
            return np.where(np.arange(column.size) == j, 1.0, 0.0)
        left, own = law.posterior.left, law.posterior.area_variance + law.extra
        rows = left / own[:, None]
        shared = np.linalg.solve(np.eye(left.shape[1]) + left.T @ rows, rows.T @ column)
        return np.asarray(column / own - rows @ shared)

    def residual(self, theta: Array, y: Array) -> Array:
        """A release less its mean given the data, in standard deviations; (m,)."""
        sd = np.sqrt(self.law.variance)
        away = theta - self.law.posterior.mean(y)
        return np.divide(away, sd, out=np.zeros_like(sd), where=sd > 0)


def intercept_only(posterior: GaussianPosterior) -> bool:
    """Whether the linear predictor is one intercept."""
    constant = posterior.basis.shape[1] == 1 and np.ptp(posterior.basis) == 0
    return bool(constant and not posterior.offset.any())


def design_inputs(posterior: GaussianPosterior) -> tuple[str, ...]:
    """What of the linear predictor was somebody's choice."""
    covariates = () if intercept_only(posterior) else ("covariates",)
    return covariates + (("beta_prior",) if posterior.prior_precision.any() else ())


def area_draw(
    reading: Reading, sensitivity: Any, name: Mechanism, request: Request
) -> tuple[AreaDraw, Array]:
    """The mechanism for a Fay-Herriot model that has been read, and its direct estimates."""
    request.refuse_options(name)
    precision = reading.posterior.precision
    sampled = precision > 0
    bounds = declared_bounds(getattr(sensitivity, "attrs", {}))
    law = ReleaseLaw(reading.posterior, name)
    mechanism = AreaDraw(
        law=law,
        modelled=law,
        area=reading.area,
        sensitivity=joined_sensitivity(sensitivity, reading.area, sampled),
        bound=public_bound(bounds, precision, reading.estimate[sampled]),
    )
    return mechanism, np.where(sampled, reading.estimate, 0.0)


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
        # Norms are rounded: a row drops out only with something to spare.
        active = np.flatnonzero(row_norm * column_norm[chunk[0]] * (1 + 1e-12) > best)
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
