"""The law of a release from any linear-Gaussian model: ``theta* | y ~ N(M y + c, N)``.

The counterpart of :mod:`pymc_dp.mechanisms.fay_herriot` for models without the arrow's
factors. Where the target is small enough, ``Sigma`` and ``M`` are dense matrices of the target;
else only their diagonals and the factor of the latents' precision are ever held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Never

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
import xarray as xr

from pymc_dp import privacy
from pymc_dp._checks import declared_bounds
from pymc_dp._typing import Array
from pymc_dp.mechanisms.lattice import SPACING, publishing_decimals
from pymc_dp.mechanisms.linear_draw import (
    BLOCK,
    NORM_SLACK,
    LatentPlan,
    LinearPlan,
    TargetPlan,
    price,
)
from pymc_dp.mechanisms.protocol import (
    Charge,
    Draw,
    Request,
    Target,
    Variables,
    floating_draws,
    lattice_draws,
)
from pymc_dp.mechanisms.sensitivity import Changes, public_bound, read_changes
from pymc_dp.posterior.sparse import BLOCK as COLUMNS
from pymc_dp.posterior.sparse import Factor, factorise
from pymc_dp.reading.linear import LinearGaussian
from pymc_dp.reading.read import LinearReading
from pymc_dp.reading.symbolic import NotLinearGaussianError
from pymc_dp.record.claims import Mechanism, Method
from pymc_dp.record.figures import DELTAS, ORDERS, joint_figures, worded

# Entries of a dense matrix of the target's size by the latents' or the data's: half a gigabyte.
MOST_ENTRIES = 6e7
# Eigenvalues of the target's correlation matrix below this times the largest count as zero.
RANK = 1e-11


@dataclass(frozen=True)
class LinearLaw:
    """Distribution of a release given the data.

    Attributes
    ----------
    linear : LinearGaussian
    mechanism : {"joint", "independent"}
    index : ndarray of int of shape (k,), optional
        The entry of the target that each observation is a direct estimate of.
    """

    linear: LinearGaussian = field(repr=False)
    mechanism: Mechanism = "joint"
    index: np.ndarray | None = field(default=None, repr=False)

    @property
    def coordinates(self) -> str:
        """Where the noise of a draw is whitened: "target" or "latent"."""
        m, n = self.linear.target.shape
        small = float(m) * max(m, n, self.linear.cross.shape[1]) <= MOST_ENTRIES
        return "target" if small else "latent"

    def plan(self, bound: float, mechanism: Mechanism | None = None) -> LinearPlan:
        """Plan of the safe draw, for observations of at most `bound` in absolute value.

        By default with the law's own mechanism.

        Raises
        ------
        NotLinearGaussianError
            If the target is too large for dense matrices and uses the data openly or wants
            independent noise; or uses the data openly in directions without noise, which no
            finite price covers.
        """
        chosen = mechanism or self.mechanism
        if (bound, chosen) not in self._plans:
            self._plans[bound, chosen] = self._made(bound, chosen)
        return self._plans[bound, chosen]

    @cached_property
    def _plans(self) -> dict[tuple[float, Mechanism], LinearPlan]:
        """Plans made so far: their norms and rounding take a while, and do not change."""
        return {}

    def _made(self, bound: float, mechanism: Mechanism) -> LinearPlan:
        if self.coordinates == "latent":
            self._refuse_without_matrices()
            linear = self.linear
            return LatentPlan(
                self.precision_factor, linear.cross, linear.target, self.constant, bound
            )
        roots = self._joint if mechanism == "joint" else self._independent
        return TargetPlan(*roots, self.constant, bound)

    @cached_property
    def precision_factor(self) -> Factor:
        """Factor of the latents' posterior precision."""
        return factorise(self.linear.precision)

    @cached_property
    def constant(self) -> Array:
        """Posterior mean of the target at ``y = 0``; (m,)."""
        linear = self.linear
        return np.asarray(linear.target @ self.precision_factor.solve(linear.shift)) + (
            linear.constant
        )

    def mean(self, y: Array) -> Array:
        """Posterior mean of the target; (m,)."""
        pull = self.precision_factor.solve(self.linear.cross @ y)
        return np.asarray(self.linear.target @ pull + self.linear.openly @ y + self.constant)

    @cached_property
    def variance(self) -> Array:
        """Variance of the release around its mean, the diagonal of ``Sigma``; (m,)."""
        if self.coordinates == "target":
            return np.asarray(np.diag(self._matrices[0]))
        return self.precision_factor.quadratic(self.linear.target.T.tocsc())

    def propagation(self) -> Array:
        """Dense ``M``: how far the mean of an entry moves per unit of an observation; (m, k)."""
        return self._matrices[1]

    def covariance(self) -> Array:
        """Dense ``Sigma``; (m, m)."""
        return self._matrices[0]

    @cached_property
    def _matrices(self) -> tuple[Array, Array]:
        linear, factor = self.linear, self.precision_factor
        if self.coordinates == "latent":
            raise NotLinearGaussianError(
                f"the target has {linear.target.shape[0]} entries and the model "
                f"{linear.target.shape[1]} latents: too many for dense matrices"
            )
        m, n = linear.target.shape
        solved = np.empty((n, m))
        for start in range(0, m, COLUMNS):
            block = linear.target[start : start + COLUMNS].T.toarray()
            solved[:, start : start + COLUMNS] = factor.solve(block)
        covariance = linear.target @ solved
        propagation = (linear.cross.T @ solved).T + linear.openly.toarray()
        return (covariance + covariance.T) / 2, np.asarray(propagation)

    @cached_property
    def _sd(self) -> Array:
        variance = self.variance
        if not (variance > 0).all():
            raise NotLinearGaussianError(
                f"{(variance <= 0).sum()} entries of the target have no posterior variance: no "
                "noise would protect anybody"
            )
        return np.sqrt(variance)

    @cached_property
    def _independent(self) -> tuple[Array, Array]:
        """``L`` and ``S`` of independent noise."""
        return np.diag(self._sd), self._matrices[1] / self._sd[:, None]

    @cached_property
    def _joint(self) -> tuple[Array, Array]:
        """``L`` and ``S`` of a joint draw."""
        covariance, propagation = self._matrices
        sd = self._sd
        correlation = covariance / np.outer(sd, sd)
        scaled = propagation / sd[:, None]
        try:
            root = sl.cholesky(correlation, lower=True)
            regular = (root.diagonal() ** 2 > RANK * len(root)).all()
        except sl.LinAlgError:
            regular = False
        if regular:
            return sd[:, None] * root, sl.solve_triangular(root, scaled, lower=True)
        value, vector = sl.eigh(correlation)
        keep = value > RANK * value[-1]
        vector, spread = vector[:, keep], np.sqrt(value[keep])
        within = vector.T @ scaled
        outside = np.abs(scaled - vector @ within).max(axis=0)
        open_columns = outside > 1e-6 * np.abs(scaled).max()
        if self.linear.openly.nnz and open_columns.any():
            raise NotLinearGaussianError(
                f"the target uses {open_columns.sum()} observations openly in directions without "
                "posterior noise: no finite price covers that"
            )
        return sd[:, None] * (vector * spread), within / spread[:, None]

    def _refuse_without_matrices(self) -> None:
        size = self.linear.target.shape[0]
        if self.linear.openly.nnz:
            raise NotLinearGaussianError(
                f"the target of {size} entries uses the data openly, which takes dense matrices "
                "of its size to price: too many entries"
            )
        if self.mechanism == "independent":
            raise NotLinearGaussianError(
                f"noise independent by area takes a dense propagation matrix, which {size} "
                "entries are too many for: use mechanism='joint'"
            )

    def smoothed(self, release: Array) -> tuple[Array, Array] | None:
        """Mean and standard deviation of theta given the release, or None.

        For a plain joint draw the chain theta -> y -> theta* is reversible, so theta given
        theta* has the law of theta* given theta: ``N(M E[y | theta*] + c, Sigma + M R M')``. It
        takes observations that are direct estimates, and dense matrices.
        """
        if self.mechanism != "joint" or self.index is None or self.coordinates == "latent":
            return None
        if self.linear.openly.nnz:
            return None
        variance = 1.0 / self.linear.data_precision.diagonal()
        M = self.propagation()
        shift = variance * self.linear.data_shift - self.linear.constant[self.index]
        mean = (release[..., self.index] + shift) @ M.T + self.constant
        return mean, np.sqrt(self.variance + (M**2) @ variance)

    def unshrunk(self, changes: sp.csc_array) -> Array:
        """Price without the model, ``d' R^-1 d / 2`` with signs at worst; (columns,)."""
        weight = abs(self.linear.data_precision)
        return np.ravel((weight @ changes).multiply(changes).sum(axis=0)) / 2


@dataclass(frozen=True)
class LinearDraw:
    """The mechanisms ``joint`` and ``independent`` of any linear-Gaussian model.

    Attributes
    ----------
    law : LinearLaw
    changes : Changes
        What each kind of record can move.
    bound : float
        Public bound of the absolute observed values.
    reading : LinearReading
    """

    law: LinearLaw
    changes: Changes = field(repr=False)
    bound: float
    reading: LinearReading = field(repr=False)
    once = None
    also_public = ()
    rests_on = ("sigma_u", "sampling_variance")

    @property
    def name(self) -> Mechanism:
        """``joint`` or ``independent``."""
        return self.law.mechanism

    @property
    def area(self) -> np.ndarray:
        """Labels of the target."""
        return self.reading.area

    @property
    def noun(self) -> str:
        """Areas, where observed values are those of areas; else entries."""
        by_area = self.reading.index is not None and len(self.reading.dims) <= 1
        return "areas" if by_area else "entries"

    @property
    def facts(self) -> dict[str, Any]:
        """Where the noise of a draw is whitened."""
        return {"intercept_only": False, "coordinates": self.law.coordinates}

    @property
    def decimals(self) -> int:
        """Decimals of the public grid on which a draw is published."""
        return publishing_decimals(self.law.variance)

    @property
    def plan(self) -> LinearPlan:
        """Plan of the safe draw."""
        return self.law.plan(self.bound)

    @property
    def sampling_variance(self) -> Array | None:
        """``D`` where every observed value is a direct estimate, NaN where there is none."""
        index, weight = self.reading.direct, self.law.linear.data_precision
        if index is None or (weight - sp.diags_array(weight.diagonal())).nnz:
            return None
        D = np.full(self.area.size, np.nan)
        D[index] = 1 / weight.diagonal()
        return D

    def price(self) -> Array:
        """Price of one draw for each kind of record."""
        return price(self.plan, self.changes.matrix)

    def guarantee(self, *, claim: str, draws: int = 1) -> xr.Dataset:
        """See :func:`linear_dataset`."""
        return linear_dataset(
            self.law, self.changes, self.area, bound=self.bound, claim=claim, draws=draws
        )

    def drawing(self, y: Array, draws: int, container: Any) -> Draw:
        """Draws of the target on the publishing grid, smoothed once more where that is known."""
        rho, decimals = float(self.price().max()), self.decimals

        def make(charge: Charge) -> Variables:
            noisy = lattice_draws(self.plan, y, rho, draws, charge)
            theta = np.stack([self.plan.publish(w) for w in noisy]).round(decimals)
            made: Variables = {"theta": (("area",), theta)}
            if (smoothed := self.law.smoothed(theta)) is not None:
                made["theta_smoothed"] = (("area",), smoothed[0].round(decimals))
            return made

        return make

    def simulate(self, y: Array, draws: int, rng: np.random.Generator) -> Array:
        """Ordinary floating-point draws; (draws, m)."""
        return floating_draws(self.plan, y, draws, rng)

    def propagation(self) -> xr.DataArray:
        """Dense ``M`` on ``area`` and ``area_bis``, or ``record`` where they are no areas."""
        values, read = self.law.propagation(), self.reading
        if read.index is None:
            dims, labels = ("area", "record"), read.record
        else:
            own = np.zeros((self.area.size, self.area.size))
            own[:, read.index] = values
            dims, labels, values = ("area", "area_bis"), self.area, own
        return xr.DataArray(
            values, dims=dims, coords={"area": self.area, dims[1]: labels}, name="propagation"
        )

    def calibrated(self, target: Target, method: Method) -> Never:
        """Refused: no method knows these models."""
        target.asked()
        raise ValueError(
            "calibrate takes Fay-Herriot models; for this one, raise the sampling variances that "
            "the model believes in, or its fixed variance components, until the guarantee meets "
            "the target"
        )


def linear_draw(
    reading: LinearReading, sensitivity: Any, name: Mechanism, request: Request
) -> tuple[LinearDraw, Array]:
    """The mechanism for a linear-Gaussian model that has been read, and its observed values."""
    request.refuse_options(name)
    bounds = declared_bounds(getattr(sensitivity, "attrs", {}))
    changes = read_changes(
        sensitivity,
        record=reading.record,
        shape=reading.shape,
        dims=reading.dims,
        coords=reading.coords,
        index=reading.index,
        area=reading.area,
    )
    weight = reading.linear.data_precision.diagonal()
    mechanism = LinearDraw(
        law=LinearLaw(reading.linear, name, index=reading.direct),
        changes=changes,
        bound=public_bound(bounds, weight, reading.observed),
        reading=reading,
    )
    return mechanism, reading.observed


BY_AREA = {"rho": "rho_respondent", "independent": "rho_independent", "unshrunk": "rho_unshrunk"}
BY_RECORD = {
    "rho": "rho_record",
    "independent": "rho_independent_record",
    "unshrunk": "rho_unshrunk_record",
}


def linear_dataset(
    law: LinearLaw,
    changes: Changes,
    area: np.ndarray,
    *,
    bound: float,
    claim: str,
    draws: int = 1,
) -> xr.Dataset:
    """The guarantee of a release as a labelled data set; every figure says its kind of claim.

    Parameters
    ----------
    law : LinearLaw
    changes : Changes
    area : ndarray of str of shape (m,)
    bound : float
    claim : str
        Words that go with every figure.
    draws : int
        Number of draws released together; rho adds.

    Returns
    -------
    xr.Dataset
        On ``area``, ``order`` and ``delta``, and on ``record`` where kinds of record are not one
        an area.

    Notes
    -----
    Design 2.3, last point. What the digits of a single area of a joint draw show is bounded by
    the whole: the noise of all areas enters them.
    """
    plan = law.plan(bound)
    paid = price(plan, changes.matrix)
    rho = draws * float(paid.max())
    by_record = {"rho": paid, "unshrunk": law.unshrunk(changes.matrix)}
    # What is left of a posterior mean that rounds to a constant: terms that cancel.
    if paid.max() <= 1e-24 * by_record["unshrunk"].max():
        raise ValueError(
            "the target does not depend on the observed values: its draw says nothing of the "
            "answers, and has no price; name with target= a variable that the data inform"
        )
    if changes.area is not None and law.mechanism == "independent":
        # By area, as in Fay-Herriot models, a joint draw's price stands beside what is paid.
        by_record["rho"] = price(law.plan(bound, "joint"), changes.matrix)
    lattice = {"spacing": SPACING, "coordinates": draws * plan.moved}
    by_area = {"posterior_sd": np.sqrt(law.variance)}
    smoothed = law.smoothed(np.zeros(area.size))
    if smoothed is not None:
        by_area["theta_smoothed_sd"] = smoothed[1]
    if law.coordinates == "target":
        ideal = _largest_by_area(law, changes)
        independent = law.plan(bound, "independent")
        by_record["independent"] = price(independent, changes.matrix)
        shown = (np.sqrt(2 * ideal) * (1 + NORM_SLACK) + independent.slack) ** 2 / 2
        alone = shown if law.mechanism == "independent" else np.full(area.size, rho / draws)
        by_area |= {"rho_area": draws * alone, "rho_area_ideal": draws * ideal}
    else:
        by_area["rho_area"] = np.full(area.size, rho)
    data = xr.Dataset(
        {name: ("area", values) for name, values in by_area.items()}
        | _of_records(by_record, changes, area, draws)
        | joint_figures(rho, by_area["rho_area"], partial(privacy.lattice_epsilon, **lattice)),
        coords={"area": area, "order": ORDERS, "delta": DELTAS},
    )
    return worded(data, claim)


def _of_records(
    prices: dict[str, Array], changes: Changes, area: np.ndarray, draws: int
) -> dict[str, tuple[str, Array]]:
    """Prices by area where each area has its kind of record, else by record."""
    if changes.area is None:
        label = {"record": ("record", changes.label)}
        return label | {
            BY_RECORD[key]: ("record", draws * values) for key, values in prices.items()
        }
    figures = {BY_AREA[key]: draws * values for key, values in prices.items()}
    out: dict[str, tuple[str, Array]] = {}
    for name, values in {"sensitivity": changes.matrix.data, **figures}.items():
        spread = np.zeros(area.size)
        spread[changes.area] = values
        out[name] = ("area", spread)
    return out


def _largest_by_area(law: LinearLaw, changes: Changes) -> Array:
    """``max_r |M_i| d_r`` squared over ``2 Sigma_ii`` for each area i, signs at worst; (m,)."""
    moved = np.zeros(law.variance.size)
    M = np.abs(law.propagation())
    for start in range(0, changes.label.size, BLOCK):
        part = changes.matrix[:, start : start + BLOCK]
        moved = np.maximum(moved, (part.T @ M.T).max(axis=0))
    return np.asarray(moved**2 / (2 * law.variance))
