"""The release: a model and its sensitivities in, one private posterior draw and its claim out."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Never

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from pymc_dp import containers
from pymc_dp._checks import check_ledger, round_up
from pymc_dp._typing import Array
from pymc_dp.mechanisms.protocol import ReleaseMechanism, Request, Target
from pymc_dp.record.claims import Bound, Claim, Mechanism, Method, build_record, to_json
from pymc_dp.record.figures import DRAWN_NAMES, LONG_NAMES, record_price
from pymc_dp.record.origin import DECLARED, unchecked
from pymc_dp.release.assemble import Ingredients, calibrated, gather
from pymc_dp.release.provenance import refuse_changed

if TYPE_CHECKING:
    from pymc_dp.ledger.ledger import PrivacyLedger


class PrivateRelease:
    """One private posterior draw of a linear-Gaussian model, and the guarantee it comes with.

    Nothing is drawn until :meth:`draw`; the guarantee is there before.

    Parameters
    ----------
    model : pm.Model
        A model that is Gaussian in its latents and data once every variance component is held,
        such as :func:`fay_herriot` returns. It is read with proof, or refused.
    sensitivity : DataArray, Series, DataFrame, array or float, optional
        ``s_j``: the most that one protected unit can move the direct estimate of area j, in the
        outcome's unit; by default what :func:`hajek` left with the direct estimates of the model,
        and never below it for the same unit. Labelled values are joined by label; an array is
        taken in the model's order; a number holds for every area. The attributes
        ``outcome_bounds`` and ``unit`` that :func:`hajek` leaves on it go into the record. In a
        model whose observed values are not one an area, the same for each observed value; where
        one unit moves several of them, a change matrix: one more dimension, a column for each kind
        of unit with the most that it can move each value, of either sign (or a sparse array of
        that shape).
    idata : InferenceData or DataTree, optional
        A fit. Free variance components are held at their posterior means (plug-in) if it has
        converged, and :meth:`draw` attaches the release to it.
    fixed : dict, optional
        ``{name: value}``: free variables to hold at constants.
    target : str
        The variable to release.
    mechanism : {"joint", "independent", "noisy-direct"}
        A draw from the joint posterior; or the posterior mean plus independent noise of the
        posterior variance (costlier, by the squared posterior correlations); or noise on the
        direct estimates of a Fay-Herriot model, made for a budget, which is no posterior draw.
        Its variance components may be free: the noise takes none.
    rho : float, optional
        zCDP budget of one draw: as :meth:`calibrate` meets it by tempering, or what noise on
        direct estimates is made for, which needs one. Give this, or `epsilon` and `delta`.
    epsilon, delta : float, optional
        The budget as epsilon at delta.
    assumptions : dict, optional
        ``{what: source in words}``: who declares what public; keys ``weights``,
        ``sampling_variance``, ``sigma_u``, ``covariates``, ``universe``. The claim is formal
        when ``sampling_variance`` and ``sigma_u`` both have a source, else conditional. A source
        for variances that :func:`hajek` computed from the answers is refused. In a model of your
        own, ``sigma_u`` stands for every variance component held fixed; a source for
        ``sampling_variance`` is refused too where one that is plugged in is part of it.
    observed : str, optional
        The confidential observed variable, where the model has several; the others are public.
    bound : {"log-concave"}, optional
        For a Gaussian likelihood of direct estimates with any log-concave prior (Laplace effects,
        say): the bound ``s_j^2 / (2 D_j)`` in place of an exact price. The draw is then one of
        `idata`'s, taken as an exact draw from the posterior, which the record says. The fit must
        keep its data, as ``pm.sample`` does, and is good for one draw.

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
        model: pm.Model | Ingredients,
        sensitivity: xr.DataArray | pd.Series | Array | float | None = None,
        *,
        idata: Any = None,
        fixed: Mapping[str, float] | None = None,
        target: str = "theta",
        mechanism: Mechanism = "joint",
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        assumptions: Mapping[str, str] | None = None,
        observed: str | None = None,
        bound: Bound | None = None,
    ) -> None:
        parts = (
            model
            if isinstance(model, Ingredients)
            else gather(
                model,
                sensitivity,
                idata=idata,
                fixed=fixed,
                request=Request(target, Target(rho, epsilon, delta)),
                mechanism=mechanism,
                assumptions=assumptions,
                observed=observed,
                bound=bound,
            )
        )
        self._parts = parts
        self._facts: dict[str, Any] = {
            **parts.facts,
            "publishing_decimals": parts.mechanism.decimals,
        }
        self._lock = threading.Lock()
        self._released: xr.Dataset | None = None
        self._drawn = 0
        self._charged = True
        self._guarantee = self._describe(draws=1)

    @property
    def guarantee(self) -> xr.Dataset:
        """What one draw will cost, or what all draws made so far cost together.

        Everything in the ``private_release`` group but the draw.
        """
        return self._guarantee.copy(deep=True)

    @property
    def released(self) -> xr.Dataset | None:
        """The authoritative copy of the released group; None before a draw."""
        return None if self._released is None else self._released.copy(deep=True)

    @property
    def mechanism(self) -> Mechanism:
        """Name of the mechanism."""
        return self._parts.mechanism.name

    @property
    def claim(self) -> Claim:
        """``formal``, or ``conditional`` (treating the variance components as fixed)."""
        claim: Claim = self._facts["claim"]
        return claim

    @property
    def specification(self) -> ReleaseMechanism:
        """The mechanism with its public quantities, which audits attack; it holds no answers."""
        return self._parts.mechanism

    @property
    def report(self) -> xr.Dataset | None:
        """What the calibration costs in accuracy; None for a release that has none.

        On ``area``: ``touched``, ``sampling_variance_factor``; ``mse`` (``estimator``, ``area``)
        and ``rmse`` (``estimator``): expected squared errors under the model, of this release,
        of the release before calibration, and of noise on the direct estimates at the same rho.
        """
        report = self._parts.report
        return None if report is None else report.copy(deep=True)

    def calibrate(
        self,
        rho: float | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        method: Method = "temper",
    ) -> PrivateRelease:
        """A new release that meets a target, with its own guarantee and a :attr:`report`.

        Only public quantities decide (weights, sampling variances, covariates, sigma_u), so
        calibrating costs no privacy. The release before is left as it is.

        Parameters
        ----------
        rho : float, optional
            zCDP price that one draw may cost. Give this, or `epsilon` and `delta`.
        epsilon, delta : float, optional
            The target as epsilon at delta.
        method : {"temper", "noise", "scale"}
            "temper" raises the sampling variances that the model believes in, for the areas
            above the target alone, until each meets it: the model trusts those direct estimates
            less. "noise" adds the least independent noise of one variance to every area. "scale"
            inflates the posterior covariance.

        Returns
        -------
        PrivateRelease
            Its stated rho is at most the target. The smoothed draw conditions on what was done,
            with the sampling variances of the data.

        Raises
        ------
        ValueError
            If the target is not given in one of the two ways or is out of range, the method is
            unknown, or this release has been drawn already: the draw would have to be paid for
            as well.

        Examples
        --------
        >>> import xarray as xr
        >>> from pymc_dp import PrivateRelease, fay_herriot
        >>> direct = xr.Dataset(
        ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
        ...     coords={"area": ["north", "south"]},
        ... )
        >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
        >>> cheaper = release.calibrate(rho=0.01)
        >>> round(float(cheaper.guarantee["rho"]), 9)
        0.01
        >>> cheaper.report["touched"].values
        array([ True, False])
        """
        if self._released is not None:
            raise ValueError(
                "this release has been drawn, and what was drawn costs its price: make a new "
                "PrivateRelease to calibrate"
            )
        return PrivateRelease(calibrated(self._parts, Target(rho, epsilon, delta), method))

    def propagation(self) -> xr.DataArray:
        """Dense propagation matrix: how far the mean of ``area`` moves per unit observed.

        Returns
        -------
        xr.DataArray of shape (m, m)
            On (``area``, ``area_bis``): the mean of ``area`` per unit of the direct estimate of
            ``area_bis``. On (``area``, ``record``), of shape (m, k), where the observed values
            are not one an area.
        """
        return self._parts.mechanism.propagation()

    def draw(
        self,
        idata: Any = None,
        *,
        ledger: PrivacyLedger | None = None,
        cells: str | None = None,
        draws: int = 1,
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
        cells : str, optional
            Column of the ledger's cells whose labels are the areas of this release: each area's
            people are charged their own price. Without it everybody is charged the largest.
        draws : int
            Number of draws, each at the full price.

        Returns
        -------
        InferenceData or DataTree
            As it came, with the group attached.

        Raises
        ------
        ValueError
            If the container already has a release, ``draws`` is not a positive integer, the areas
            are not the ledger's cells, this is a plan, or this object has drawn before without a
            ledger, or under a bound at all.
        TypeError
            If the ledger is something else, such as its path.
        BudgetExceeded
            If the ledger's budget does not cover the price.
        """
        check_ledger(ledger)
        if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
            raise ValueError("draws must be a positive integer")
        if cells is not None and ledger is None:
            raise ValueError("cells names a column of a ledger: give the ledger too")
        if self._parts.planned:
            raise ValueError(
                "this is a plan, which holds no outcomes: a draw would be about nobody. Make a "
                "PrivateRelease of the model with its direct estimates, and draw from that"
            )
        mechanism = self._parts.mechanism
        if draws > 1 and mechanism.once:
            raise ValueError(f"{mechanism.once}: draws=1")
        container = idata if idata is not None else self._parts.idata
        container = (
            containers.new_container()
            if container is None
            else containers.check_container(container)
        )
        refuse_changed(self._parts.constants)
        group = self._describe(draws=int(draws))
        # What cannot be drawn is refused before it is paid for.
        make = mechanism.drawing(self._parts.y, int(draws), container)
        with self._lock:
            self._check_again(ledger is not None)
            record, prices = self._record(draws), None
            if cells is not None:
                prices = record_price(group, record).to_series().rename_axis(cells)

            def charge() -> None:
                if ledger is not None:
                    ledger.charge(
                        float(group["rho"]),
                        label=self._parts.label,
                        cells=prices,
                        claim=self.claim,
                        record=record,
                    )
                # From here on there may be noise that somebody has seen.
                self._charged, self._drawn = ledger is not None, self._drawn + int(draws)

            for name, (dims, values) in make(charge).items():
                group[name] = (("chain", "draw", *dims), values[None])
                group[name].attrs["long_name"] = DRAWN_NAMES[name]
            group = group.assign_coords(chain=[0], draw=np.arange(draws))
            self._released = group.assign_attrs(
                created_at=datetime.now(UTC).isoformat(timespec="seconds")
            )
            self._guarantee = self._describe(draws=self._drawn)
        return containers.attach(container, self._released.copy(deep=True))

    def _check_again(self, charged: bool) -> None:
        """Refuse a further draw that nobody accounts for."""
        if not self._drawn:
            return
        if self._parts.mechanism.once:
            raise ValueError(
                "this release has been drawn, and two draws of one fit are not independent, so "
                "that their prices do not add up: make a new fit and a new PrivateRelease"
            )
        if not charged:
            raise ValueError(
                "this release has been drawn; a second draw costs its price again: declare "
                "the number with draws=, or charge each to a ledger"
            )
        if not self._charged:
            raise ValueError(
                "this release has been drawn without a ledger, so that the ledger would not hold "
                "what both draws cost together: charge the first with ledger.charge, and make a "
                "new PrivateRelease for the second"
            )

    def statement(self, path: str | os.PathLike[str], *, conditional: bool = False) -> None:
        """Write a page for a review board or an annex: what is released, how private, who says so.

        Parameters
        ----------
        path : path
            A new file (``.html``) in an existing folder.
        conditional : bool
            Write also a claim that treats the variance components as fixed.

        Raises
        ------
        ValueError
            If the claim is conditional and this was not asked for, or the path is no ``.html``.
        FileExistsError
            If the target exists.

        Notes
        -----
        Before a draw the page says "planned". It withholds what :func:`write_public` withholds,
        and shows no released value; see :func:`write_statement`.
        """
        from pymc_dp.publish.statement import write_statement

        group = self._guarantee if self._released is None else self._released
        write_statement(group, path, conditional=conditional)

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
        mechanism = self._parts.mechanism
        theta = mechanism.simulate(self._parts.y, draws, np.random.default_rng(random_seed))
        return xr.DataArray(
            theta[None],
            dims=("chain", "draw", "area"),
            coords={"chain": [0], "draw": np.arange(draws), "area": mechanism.area},
            name="theta",
            attrs={"note": "simulated with a pseudo-random generator: not a private release"},
        )

    def _describe(self, *, draws: int) -> xr.Dataset:
        mechanism = self._parts.mechanism
        data = mechanism.guarantee(claim=self._facts["claim_words"], draws=draws)
        if "sampling_variance" in self._facts["assumptions"]:
            if (variance := mechanism.sampling_variance) is not None:
                data["sampling_variance"] = ("area", variance)
                data["sampling_variance"].attrs["long_name"] = LONG_NAMES["sampling_variance"]
        return data.assign_attrs(
            privacy=to_json(self._record(draws)),
            creation_library="pymc_dp",
            creation_library_version=self._record(draws)["versions"]["pymc_dp"],
        )

    def _record(self, draws: int) -> dict[str, Any]:
        return build_record(draws=int(draws), **self._facts)

    def __repr__(self) -> str:
        """Claim and price, of what was drawn or of one draw; never an estimate."""
        rho = float(self._guarantee["rho"])
        eps = float(self._guarantee["epsilon"].sel(delta=1e-6))
        state, priced = "not drawn yet", "one draw"
        if self._drawn:
            state = "drawn" if self._drawn == 1 else f"drawn {self._drawn} times"
            priced = "one draw" if self._drawn == 1 else f"{self._drawn} draws together"
        return (
            f"PrivateRelease({self._parts.label}, {self.mechanism}, {state})\n"
            f"  {priced}: rho {round_up(rho)}, epsilon {round_up(eps)} at delta 1e-06\n"
            f"  claim: {self._facts['claim_words']}\n"
            f"{self._unchecked()}"
            f"  unit: {self._facts['unit']}"
        )

    def _unchecked(self) -> str:
        """A line about public values that nobody but the user vouches for."""
        names = unchecked(self._facts["origin"])
        return f"  {DECLARED}: {', '.join(names)}\n" if names else ""

    def _repr_html_(self) -> str:
        from pymc_dp.publish.notebook import release_html

        drawn = self._drawn > 0
        return release_html(self._guarantee, self._record(max(self._drawn, 1)), drawn=drawn)

    def __reduce_ex__(self, protocol: Any) -> Never:
        """Refuse copies and pickles, each of which could draw without the other's knowledge."""
        raise TypeError(
            "a PrivateRelease is not copied: a copy could draw again at no stated price. "
            "`released` and `guarantee` hold what may be kept"
        )
