"""Audits: attack a release on made-up data, and see whether its claim survives.

A claim bounds how well anybody can tell two neighbouring data sets apart. An audit tells them apart
as well as it can, through the noise that a draw goes through, and turns its success into a lower
bound on mu and epsilon. A bound above the claim refutes the claim; one close below it says that
there is little slack.

An audit draws thousands of times, which no budget covers. So it never reads the direct estimates
that a release holds, leaves the release as it was, and returns counts turned into figures, no draw.
The noise does not depend on the data: made-up data audit the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp import privacy
from pymc_dp.audit.bounds import (
    one_release_epsilon,
    one_release_mu,
    two_sample_epsilon,
    two_sample_mu,
)
from pymc_dp.audit.samplers import (
    Sampler,
    at_least,
    audited,
    drawn,
    error_allowed,
    made_up,
    place_of,
    positive,
    probability,
    projected,
    published_values,
)
from pymc_dp.mechanisms.lattice import SPACING
from pymc_dp.release.release import PrivateRelease


@dataclass(frozen=True)
class Audit:
    """What was claimed, and what an attack showed.

    Attributes
    ----------
    attack : str
        What was attacked, in words.
    claim : str
        Kind of claim, as the release words it: a conditional claim is audited with the variance
        components held, as it says, and stays conditional.
    draws : int
        Releases drawn, of all data sets together.
    confidence : float
        Probability, at least, that neither `mu_lower` nor `epsilon_lower_any` exceeds the truth.
    delta : float
    mu, epsilon : float
        The claim: the Gaussian-DP parameter, and epsilon at `delta`.
    mu_lower : float
        Lower bound on mu.
    epsilon_lower : float
        What `mu_lower` means for a Gaussian release: its epsilon at `delta`.
    epsilon_lower_any : float
        Lower bound on epsilon at `delta` of a release of any shape: it assumes less and shows less.
    """

    attack: str
    claim: str
    draws: int
    confidence: float
    delta: float
    mu: float
    epsilon: float
    mu_lower: float
    epsilon_lower: float
    epsilon_lower_any: float

    @property
    def passed(self) -> bool:
        """Whether the claim survived: neither lower bound exceeds it."""
        return self.mu_lower <= self.mu and self.epsilon_lower_any <= self.epsilon

    @property
    def reached(self) -> float:
        """Share of the claimed mu that the attack showed."""
        return self.mu_lower / self.mu


def audit_pair(
    release: PrivateRelease,
    area: str | None = None,
    *,
    published: str | None = None,
    rho: float | None = None,
    estimate: Any = None,
    sampler: Sampler | None = None,
    draws: int = 10_000,
    delta: float = 1e-6,
    confidence: float = 0.95,
) -> Audit:
    r"""Attack many releases of two data sets that differ in one record.

    Parameters
    ----------
    release : PrivateRelease
        Drawn or not; it stays as it is, and its direct estimates are not read.
    area : str, optional
        Whose direct estimate is moved, by its sensitivity; by default the area with the highest
        price, or the one published.
    published : str, optional
        Attack the value of this area alone; by default the values of all.
    rho : float, optional
        The claim to test (zCDP); by default what the release states for a record of the area, or
        for publishing the one area alone.
    estimate : DataArray or array of shape (m,), optional
        Made-up direct estimates to audit on; by default all are 0.
    sampler : callable, optional
        What to audit: direct estimates (m,) and a number of draws in, draws (draws, m) out. By
        default the release's own path, rounded as it is published.
    draws : int
        Releases of each data set.
    delta, confidence : float

    Returns
    -------
    Audit

    Raises
    ------
    ValueError
        If an area is unknown, the changed one has no sample, or an argument is out of range.

    Notes
    -----
    The attack is the best there is: it looks at the log likelihood ratio, which for a posterior
    draw is linear in the area's own value, with independent noise in the values of all areas.
    With n draws of each data set `mu_lower` falls short of the truth by some :math:`10/\sqrt n`,
    and no mu above :math:`2\,\Phi^{-1}(1 - 7/n)` can be shown, about 6 with 10,000. Formulas are
    in ``pymc_dp.audit.bounds``.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> from pymc_dp.audit import audit_pair
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3, 0.2]), "variance": ("area", [0.001, 0.002, 0.003])},
    ...     coords={"area": ["north", "south", "east"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.05)
    >>> audit = audit_pair(release, draws=1_000, confidence=1 - 1e-9)
    >>> audit.passed, audit.reached > 0.1
    (True, True)
    """
    mechanism = audited(release)
    j = place_of(mechanism, published if area is None else area)
    y = made_up(mechanism, estimate)
    # Towards zero, so that an estimate within the declared range stays within it.
    sign = -1.0 if y[j] > 0 else 1.0
    neighbour = y.copy()
    neighbour[j] += sign * mechanism.sensitivity[j]

    if published is None:
        direction, stated = mechanism.direction(j), mechanism.price()[j]
    else:
        i = place_of(mechanism, published, with_record=False)
        direction = np.zeros_like(y)
        direction[i] = np.sign(mechanism.shift(j)[i])
        stated = release.guarantee["rho_area"].values[i]

    n = at_least("draws", draws, 100)
    delta, error = probability(delta), error_allowed(confidence)
    claimed = positive("rho", stated if rho is None else rho)
    sample = published_values(mechanism) if sampler is None else sampler
    null, alternative = (projected(sample, data, n, sign * direction) for data in (y, neighbour))
    return _audit(
        release,
        f"{published or 'all areas'} published, a record of {mechanism.area[j]} changed",
        claimed,
        mu_lower=two_sample_mu(null, alternative, error / 2),
        epsilon_lower_any=two_sample_epsilon(null, alternative, delta, error / 2),
        draws=2 * n,
        delta=delta,
        confidence=confidence,
    )


def audit_one_release(
    release: PrivateRelease,
    *,
    mu: float | None = None,
    estimate: Any = None,
    sampler: Sampler | None = None,
    guesses: int | None = None,
    delta: float = 1e-6,
    confidence: float = 0.95,
) -> Audit:
    """Attack one release with every area as a canary.

    A fair coin for each area decides whether its made-up direct estimate is moved up or down; the
    attack guesses coins from one draw.

    Parameters
    ----------
    release : PrivateRelease
        Drawn or not; it stays as it is, and its direct estimates are not read.
    mu : float, optional
        The claim to test. Every area is moved by what costs so much, its sensitivity times `mu`
        over the mu that the release states for it: all areas test one claim. By default the
        release's mu; the attack shows most of it between 0.5 and 3.
    estimate : DataArray or array of shape (m,), optional
        Made-up direct estimates to audit on; by default all are 0.
    sampler : callable, optional
        What to audit, as for :func:`audit_pair`; called for one draw.
    guesses : int, optional
        How many areas to guess, those with the clearest values: a number fixed beforehand. By
        default a quarter of the areas.
    delta, confidence : float

    Returns
    -------
    Audit

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    The bound on mu is that of Mahloujifar, Melis and Chaudhuri (2025), the bound on epsilon that of
    Steinke, Nasr and Jagielski (2023); see ``pymc_dp.audit.bounds``. Neither assumes that the
    values of different areas are independent. Of a mu between 0.5 and 3, more than half shows with
    2,000 areas, less than half with 200 and a quarter with 50.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1] * 200), "variance": ("area", [0.001] * 200)},
    ...     coords={"area": [f"area {i}" for i in range(200)]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.03)
    >>> audit = audit_one_release(release, mu=2)
    >>> audit.passed, audit.draws
    (True, 1)
    """
    target = positive("mu", float(release.guarantee["mu"]) if mu is None else mu)
    mechanism = audited(release)
    canaries = np.flatnonzero(mechanism.sensitivity > 0)
    stated = np.asarray(privacy.mu(mechanism.price()[canaries]))
    step = np.zeros(mechanism.area.size)
    step[canaries] = mechanism.sensitivity[canaries] * target / stated
    # Near the best number for mu between 0.5 and 3 and any number of areas above a hundred.
    default = max(canaries.size // 4, 1)
    count = at_least("guesses", default if guesses is None else guesses, 1)
    if count > canaries.size:
        raise ValueError("guesses must be at most the number of areas with a sample")
    delta, error = probability(delta), error_allowed(confidence)
    centre = made_up(mechanism, estimate)

    # Coins of the audit itself; they protect nobody.
    coin = np.random.default_rng().choice([-1.0, 1.0], size=centre.size)
    sample = published_values(mechanism) if sampler is None else sampler
    theta = drawn(sample, centre + coin * step / 2, 1)[0]
    score = mechanism.residual(theta, centre)[canaries]
    clearest = np.argsort(-np.abs(score), kind="stable")[:count]
    correct = int((np.sign(score) == coin[canaries])[clearest].sum())
    return _audit(
        release,
        f"{canaries.size} areas as canaries, {count} guessed",
        target**2 / 2,
        mu_lower=one_release_mu(canaries.size, count, correct, error / 2),
        epsilon_lower_any=one_release_epsilon(canaries.size, count, correct, delta, error / 2),
        draws=1,
        delta=delta,
        confidence=confidence,
    )


def _audit(release: PrivateRelease, attack: str, rho: float, **figures: Any) -> Audit:
    """Put the claim beside what the attack showed."""
    delta, mu_lower = figures["delta"], figures["mu_lower"]
    moved = audited(release).plan.moved
    claimed = privacy.lattice_epsilon(rho, delta, spacing=SPACING, coordinates=moved)
    return Audit(
        attack=attack,
        claim=str(release.guarantee["rho"].attrs["claim"]),
        mu=float(privacy.mu(rho)),
        epsilon=float(claimed),
        epsilon_lower=float(privacy.epsilon(mu_lower**2 / 2, delta)),
        **figures,
    )
