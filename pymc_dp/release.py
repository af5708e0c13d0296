"""The release: a model and its sensitivities in, one private posterior draw and its claim out."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from pymc_dp import io
from pymc_dp.checks import name_some, round_up, text_labels
from pymc_dp.convergence import check_convergence
from pymc_dp.guarantee import PLANS, SMOOTH, Mechanism, guarantee_dataset
from pymc_dp.noise import EXPONENT, noisy_statistics
from pymc_dp.posterior import Array, GaussianPosterior
from pymc_dp.recognition import hold, read_model, variance_components
from pymc_dp.record import (
    build_record,
    check_assumptions,
    claim_kind,
    claim_words,
    to_json,
)
from pymc_dp.record import variance_components as component_kinds

if TYPE_CHECKING:
    from pymc_dp.ledger import PrivacyLedger

# Without a declared range, direct estimates may lie this many largest standard errors from 0.
RANGE_WITHOUT_BOUNDS = 2.0**20


class PrivateRelease:
    """One private posterior draw of a Fay-Herriot model, and the guarantee it comes with.

    Nothing is drawn until :meth:`draw`; the guarantee is there before.

    Parameters
    ----------
    model : pm.Model
        A model that is Gaussian in its latents and data once every variance component is held,
        such as :func:`fay_herriot` returns. It is read with proof, or refused.
    sensitivity : DataArray, Series, array or float
        ``s_j``: the most that one protected unit can move the direct estimate of area j, in the
        outcome's unit. Labelled values are joined by label; an array is taken in the model's
        order; a number holds for every area. The attributes ``bounds`` and ``unit`` that
        :func:`hajek` leaves on it go into the record.
    idata : InferenceData or DataTree, optional
        A fit. Free variance components are held at their posterior means (plug-in) if it has
        converged, and :meth:`draw` attaches the release to it.
    fixed : dict, optional
        ``{name: value}``: free variables to hold at constants.
    target : str
        The variable to release.
    mechanism : {"joint", "independent"}
        A draw from the joint posterior, or the posterior mean plus independent noise of the
        posterior variance (dearer, by the squared posterior correlations).
    assumptions : dict, optional
        ``{what: source in words}``: who declares what public; keys ``weights``,
        ``sampling_variance``, ``sigma_u``, ``covariates``, ``universe``. The claim is formal
        when ``sampling_variance`` and ``sigma_u`` both have a source, else conditional.

    Raises
    ------
    NotLinearGaussianError
        If the model is not proven linear-Gaussian; the message names the obstacle.
    ValueError
        If sensitivities, assumptions or values to hold are unusable, or the fit has not
        converged; the message names areas and variables.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
    >>> round(float(release.guarantee["rho"]), 6)
    0.014286
    """

    def __init__(
        self,
        model: pm.Model,
        sensitivity: xr.DataArray | pd.Series | Array | float,
        *,
        idata: Any = None,
        fixed: Mapping[str, float] | None = None,
        target: str = "theta",
        mechanism: Mechanism = "joint",
        assumptions: Mapping[str, str] | None = None,
    ) -> None:
        if mechanism not in PLANS:
            raise ValueError(f"mechanism must be 'joint' or 'independent', not {mechanism!r}")
        declared = check_assumptions(assumptions)
        if idata is not None:
            io.check_container(idata)
        held, plugged_in = _hold(pm.modelcontext(model), dict(fixed or {}), idata)
        components = component_kinds(declared, plug_in=bool(plugged_in))
        reading = read_model(held, target)

        self.mechanism: Mechanism = mechanism
        self.claim = claim_kind(components)
        self._posterior = reading.posterior
        self._area = reading.area
        sampled = reading.posterior.precision > 0
        self._sensitivity = _sensitivity(sensitivity, reading.area, sampled)
        bounds = getattr(sensitivity, "attrs", {}).get("bounds")
        self._y = np.where(sampled, reading.estimate, 0.0)
        self._bound = _bound(bounds, reading.posterior, reading.estimate[sampled])
        self._idata = idata
        self._lock = threading.Lock()
        self._released: xr.Dataset | None = None
        self._decimals = _decimals(reading.posterior)
        self._facts: dict[str, Any] = {
            "claim": self.claim,
            "claim_words": claim_words(self.claim),
            "mechanism": mechanism,
            "target": target,
            "variance_components": components,
            "plugged_in": plugged_in,
            "unit": str(getattr(sensitivity, "attrs", {}).get("unit", "record")),
            "bounds": None if bounds is None else [float(b) for b in bounds],
            "assumptions": declared,
            "lattice_exponent": EXPONENT,
            "publishing_decimals": self._decimals,
        }
        self._guarantee = self._describe(draws=1)

    @property
    def guarantee(self) -> xr.Dataset:
        """What one draw will cost: everything in the ``private_release`` group but the draw."""
        return self._guarantee.copy(deep=True)

    @property
    def released(self) -> xr.Dataset | None:
        """The authoritative copy of the released group; None before a draw."""
        return None if self._released is None else self._released.copy(deep=True)

    def propagation(self) -> xr.DataArray:
        """Dense propagation matrix: how far the mean of ``area`` moves per unit of ``area_bis``.

        Returns
        -------
        xr.DataArray of shape (m, m)
        """
        return xr.DataArray(
            self._posterior.propagation(),
            dims=("area", "area_bis"),
            coords={"area": self._area, "area_bis": self._area},
            name="propagation",
        )

    def draw(
        self, idata: Any = None, *, ledger: PrivacyLedger | None = None, draws: int = 1
    ) -> Any:
        """Draw from the posterior, safely, and attach the ``private_release`` group.

        The noise comes from the operating system through OpenDP and has no seed. The price is
        charged to the ledger before the noise is drawn. Without a ledger an object draws once:
        ask for all `draws` together.

        Parameters
        ----------
        idata : InferenceData or DataTree, optional
            Where to attach; by default the one given before, else a new one.
        ledger : PrivacyLedger, optional
        draws : int
            Number of draws, each at the full price.

        Returns
        -------
        InferenceData or DataTree
            As it came, with the group attached.

        Raises
        ------
        ValueError
            If the container already has a release, ``draws`` is not a positive integer, or this
            object has drawn before without a ledger.
        BudgetExceeded
            If the ledger's budget does not cover the price.
        """
        if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
            raise ValueError("draws must be a positive integer")
        container = idata if idata is not None else self._idata
        container = io.new_container() if container is None else io.check_container(container)
        group = self._describe(draws=int(draws))
        rho = float(group["rho"])
        with self._lock:
            if ledger is None and self._released is not None:
                raise ValueError(
                    "this release has been drawn; a second draw costs its price again: declare "
                    "the number with draws=, or charge each to a ledger"
                )
            if ledger is not None:
                ledger.charge(
                    rho, label=self._label(), claim=self.claim, record=self._record(draws)
                )
            theta = self._noisy_draws(int(draws), rho)
            smoothed, _ = SMOOTH[self.mechanism](self._posterior, theta)
            dims = ("chain", "draw", "area")
            group["theta"] = (dims, theta[None])
            group["theta_smoothed"] = (dims, smoothed.round(self._decimals)[None])
            group = group.assign_coords(chain=[0], draw=np.arange(draws))
            group["theta"].attrs["long_name"] = "released posterior draw"
            group["theta_smoothed"].attrs["long_name"] = "released draw smoothed once more"
            self._released = group.assign_attrs(
                created_at=datetime.now(UTC).isoformat(timespec="seconds")
            )
        return io.attach(container, self._released.copy(deep=True))

    def simulate(
        self, draws: int = 1000, random_seed: int | np.random.Generator | None = None
    ) -> xr.DataArray:
        """Ordinary floating-point draws, for studies of the model: never a private release.

        Parameters
        ----------
        draws : int
        random_seed : int or Generator, optional

        Returns
        -------
        xr.DataArray
            ``theta`` with dims (``chain``, ``draw``, ``area``).
        """
        rng = np.random.default_rng(random_seed)
        plan = PLANS[self.mechanism](self._posterior, self._bound)
        centre = plan.statistic(self._y)
        theta = np.stack([plan.publish(centre + rng.normal(size=plan.size)) for _ in range(draws)])
        return xr.DataArray(
            theta[None],
            dims=("chain", "draw", "area"),
            coords={"chain": [0], "draw": np.arange(draws), "area": self._area},
            name="theta",
            attrs={"note": "simulated with a pseudo-random generator: not a private release"},
        )

    def _noisy_draws(self, draws: int, rho: float) -> Array:
        plan = PLANS[self.mechanism](self._posterior, self._bound)
        distance = math.sqrt(2 * rho / draws)
        noisy = noisy_statistics(plan, self._y, distance, rho / draws, draws)
        return np.stack([plan.publish(w) for w in noisy]).round(self._decimals)

    def _describe(self, *, draws: int) -> xr.Dataset:
        data = guarantee_dataset(
            self._posterior,
            self._sensitivity,
            self._area,
            bound=self._bound,
            mechanism=self.mechanism,
            claim=self._facts["claim_words"],
            draws=draws,
        )
        return data.assign_attrs(
            privacy=to_json(self._record(draws)),
            creation_library="pymc_dp",
            creation_library_version=self._record(draws)["versions"]["pymc_dp"],
        )

    def _record(self, draws: int) -> dict[str, Any]:
        return build_record(draws=int(draws), **self._facts)

    def _label(self) -> str:
        return f"{self._facts['target']} of {self._area.size} areas"

    def __repr__(self) -> str:
        """Claim and price; never an estimate."""
        rho = float(self._guarantee["rho"])
        eps = float(self._guarantee["epsilon"].sel(delta=1e-6))
        state = "drawn" if self._released is not None else "not drawn yet"
        return (
            f"PrivateRelease({self._label()}, {self.mechanism}, {state})\n"
            f"  one draw: rho {round_up(rho)}, epsilon {round_up(eps)} at delta 1e-06\n"
            f"  claim: {self._facts['claim_words']}\n"
            f"  unit: {self._facts['unit']}"
        )

    def _repr_html_(self) -> str:
        from pymc_dp.html import release_html

        return release_html(self._guarantee, self._record(1), drawn=self._released is not None)


def _hold(
    model: pm.Model, fixed: dict[str, float], idata: Any
) -> tuple[pm.Model, dict[str, dict[str, float]]]:
    """Hold variance components: those in ``fixed``, and with a fit the rest at their means.

    Returns the model and the diagnostics of what was plugged in.
    """
    held = hold(model, fixed)
    if idata is None or "posterior" not in io.groups(idata):
        return held, {}
    free = variance_components(held)
    if not free:
        return held, {}
    posterior = io.read_group(idata, "posterior")
    missing = [name for name in free if name not in posterior]
    if missing:
        raise ValueError(f"the posterior of idata lacks {name_some(missing)}")
    diagnostics = check_convergence(idata, free)
    means = {name: posterior[name].mean(("chain", "draw")).values for name in free}
    return hold(held, means), diagnostics


def _sensitivity(given: Any, area: np.ndarray, sampled: np.ndarray) -> Array:
    """Sensitivities in the model's order; zero where there is no sample, hence no record."""
    if isinstance(given, xr.DataArray | pd.Series):
        if isinstance(given, xr.DataArray):
            if given.dims != ("area",) or "area" not in given.coords:
                raise ValueError("sensitivity needs the one dim 'area' with its labels")
            given = given.to_series()
        index = pd.Index(text_labels(given.index), dtype=object)
        series = pd.Series(given.to_numpy(dtype=float), index=index)
        again = series.index[series.index.duplicated()]
        if len(again):
            raise ValueError(f"sensitivity has areas more than once: {name_some(again)}")
        absent = [a for a in area[sampled] if a not in series.index]
        if absent:
            raise ValueError(f"no sensitivity for {len(absent)} areas: {name_some(absent)}")
        values = series.reindex(area).to_numpy(dtype=float)
    else:
        values = np.asarray(given, dtype=float)
        if values.shape not in ((), area.shape):
            raise ValueError(f"sensitivity has shape {values.shape} for {area.size} areas")
        values = np.broadcast_to(values, area.shape)
    bad = sampled & ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise ValueError(
            f"sensitivity must be positive and finite; it is not in {bad.sum()} areas: "
            f"{name_some(area[bad])}"
        )
    return np.where(sampled, values, 0.0)


def _bound(bounds: Any, posterior: GaussianPosterior, estimate: Array) -> float:
    """A public bound of the absolute direct estimates: it decides what rounding can cost."""
    if bounds is not None:
        lo, hi = (float(b) for b in bounds)
        # Estimates are rounded to a grid, so they may pass the range by less than its width.
        outside = (estimate < lo - 1e-9 * (hi - lo)) | (estimate > hi + 1e-9 * (hi - lo))
        if outside.any():
            raise ValueError(f"{outside.sum()} direct estimates lie outside the declared range")
        return max(abs(lo), abs(hi)) * (1 + 1e-9)
    largest_sd = 1 / math.sqrt(posterior.precision[posterior.precision > 0].min())
    bound = RANGE_WITHOUT_BOUNDS * largest_sd
    if (np.abs(estimate) > bound).any():
        raise ValueError(
            "direct estimates are very large against their sampling variances: declare the "
            "outcome's range in sensitivity.attrs['bounds']"
        )
    return bound


def _decimals(posterior: GaussianPosterior) -> int:
    """Decimals of the public publishing grid: a hundredth of the smallest posterior sd."""
    positive = posterior.variance[posterior.variance > 0]
    if not positive.size:
        raise ValueError("every posterior variance is zero: there is no noise to protect anybody")
    return -math.floor(math.log10(math.sqrt(float(positive.min())) / 100))
