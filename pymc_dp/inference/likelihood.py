"""The likelihood of a release in any PyMC model, and the release as direct estimates with noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.shape_utils import rv_size_is_none

from pymc_dp._checks import FROM_ANSWERS, name_some, text_labels
from pymc_dp._typing import Array
from pymc_dp.inference.information import (
    INSIDE,
    PUBLIC,
    Information,
    read_information,
    sampling_variances,
)
from pymc_dp.posterior.information import InformationMatrix


def released_likelihood(
    name: str, theta: pt.TensorVariable, release: Any, *, sampling_variance: Any = None
) -> pt.TensorVariable:
    r"""Add the exact likelihood of a release to the PyMC model in context.

    Any model of the area means can so be fitted to a release, spatial or on another scale; it
    costs nothing more. Releases of other years, with other respondents, are a term each; several
    releases of the same direct estimates are one term: pass them as a list.

    Parameters
    ----------
    name : str
        Name of the observed variable: the statistic ``h`` of the release, by area.
    theta : TensorVariable of shape (m,)
        Area means of the model. With a dim of the model, areas are joined by label, and areas of
        which the release says nothing may be more or fewer; without, they are taken to be in the
        order of the release.
    release : PrivateRelease, InferenceData, DataTree, Dataset, path, or a list of these
        As for :func:`release_posterior`.
    sampling_variance : DataArray, Series or dict, optional
        ``D`` by area label; by default those that the release gives.

    Returns
    -------
    TensorVariable
        The observed variable; posterior predictive draws of it are releases of new surveys.

    Raises
    ------
    ValueError
        If the release or the sampling variances are unusable, or `theta` lacks areas.
    TypeError
        Outside a model context.

    Notes
    -----
    ``h | theta ~ N(K theta, K + K D K)``; the log density is against that of ``N(0, K)``, so it is
    also defined where K is singular: :math:`\lambda'\theta - \theta'\Lambda\theta / 2 +
    h'D\lambda / 2 - \log\det(I + K D) / 2`, with the symbols of :func:`release_posterior`. Its
    gradient takes time of the order of m times the number of shared factors.

    Examples
    --------
    >>> import pymc as pm
    >>> import xarray as xr
    >>> from pymc_dp import private_direct, released_likelihood
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3, 0.2]),
    ...         "variance": ("area", [0.001, 0.002, 0.001]),
    ...         "sensitivity": ("area", [0.02, 0.04, 0.02]),
    ...     },
    ...     coords={"area": ["north", "south", "west"]},
    ...     attrs={"bounds": [0, 1]},
    ... )
    >>> noisy = private_direct(direct, rho=0.5)
    >>> with pm.Model(coords={"area": ["west", "north", "south"]}) as model:
    ...     logit = pm.Normal("logit", 0, 2, dims="area")
    ...     theta = pm.Deterministic("theta", pm.math.invlogit(logit), dims="area")
    ...     released = released_likelihood("released", theta, noisy)
    >>> [variable.name for variable in model.observed_RVs]
    ['released']
    """
    model = pm.modelcontext(None)
    information = read_information(release)
    D, _ = sampling_variances(information, sampling_variance)
    rows, taken, dim = _joined(model, theta, information)
    K, h, D = information.K.rows(rows), information.h[rows], D[rows]
    if dim is None:
        dim = f"{name}_area"
        model.add_coord(dim, np.array(information.area, dtype=object)[rows].tolist())
    logp, dist = _law(K, D)
    return pm.CustomDist(
        name,
        theta if taken is None else theta[taken],
        dist=dist,
        logp=logp,
        signature="(m)->(m)",
        observed=h,
        dims=dim,
    )


def _law(K: InformationMatrix, D: Array) -> tuple[Any, Any]:
    """Log density of h against N(0, K), and its distribution, as functions of theta."""
    absorbed = K.absorb(D)
    own, shared = absorbed.precision.own, absorbed.precision.shared
    sign = absorbed.precision.sign
    rows, inner = absorbed.rows, np.linalg.inv(absorbed.inner)
    constant = -absorbed.log_determinant / 2
    sd = np.sqrt(D)
    root, above, below, turn = K.noise_factors

    def logp(value: pt.TensorVariable, theta: pt.TensorVariable) -> pt.TensorVariable:
        across = ((value * (D / absorbed.growth)) @ K.shared) @ inner
        told = value / absorbed.growth - across @ rows.T
        quadratic = (own * theta**2).sum(axis=-1) + (sign * (theta @ shared) ** 2).sum(axis=-1)
        return (told * (theta + D * value / 2)).sum(axis=-1) - quadratic / 2 + constant

    def dist(theta: pt.TensorVariable, size: pt.TensorVariable) -> pt.TensorVariable:
        shape = theta.shape if rv_size_is_none(size) else (*size, D.size)
        y = pm.Normal.dist(theta, sd, size=shape)
        z = pm.Normal.dist(0.0, 1.0, size=shape)
        more = pm.Normal.dist(0.0, 1.0, size=(*shape[:-1], above.shape[1]))
        told = K.own * y + ((y @ K.shared) * K.sign) @ K.shared.T
        return told + root * z + more @ above.T - (z @ turn) @ below.T

    return logp, dist


def _joined(
    model: pm.Model, theta: pt.TensorVariable, information: Information
) -> tuple[np.ndarray, np.ndarray | None, str | None]:
    """Rows of the release that count, entries of theta that go with them, and their dim.

    The entries are None where they are all, in order; the dim is None where it is no dim of the
    model.
    """
    if theta.type.ndim != 1:
        raise ValueError(f"theta must be a vector of area means, not of {theta.type.ndim} dims")
    everything = np.arange(len(information.area))
    dims = model.named_vars_to_dims.get(theta.name)
    if dims is None or model.coords.get(dims[0]) is None:
        known = theta.type.shape[0]
        if known is not None and known != everything.size:
            raise ValueError(
                f"theta has {known} entries, the release {everything.size} areas: give theta a dim "
                "whose coordinates are area labels"
            )
        return everything, None, None
    place = {label: i for i, label in enumerate(text_labels(model.coords[dims[0]]))}
    absent = [a for a, told in zip(information.area, information.informed, strict=True)
              if told and a not in place]  # fmt: skip
    if absent:
        raise ValueError(
            f"theta lacks {len(absent)} areas of the release: {name_some(absent)} (labels of its "
            f"dim {dims[0]!r} are joined with those of the release)"
        )
    rows = np.array([i for i in everything if information.area[i] in place])
    taken = np.array([place[information.area[i]] for i in rows])
    if np.array_equal(taken, np.arange(len(place))):
        return rows, None, str(dims[0])
    return rows, taken, None


def noisy_direct(release: Any, *, sampling_variance: Any = None) -> xr.Dataset:
    r"""Read a release as direct estimates with noise, ``K^-1 h``, where that exists.

    Parameters
    ----------
    release : PrivateRelease, InferenceData, DataTree, Dataset, path, or a list of these
        As for :func:`release_posterior`.
    sampling_variance : DataArray, Series or dict, optional
        ``D`` by area label; by default those that the release gives, if it does.

    Returns
    -------
    xr.Dataset
        ``estimate`` (``area``), ``y + N(0, K^-1)``; ``noise_variance``, the diagonal of ``K^-1``;
        its factors, ``K^-1 = diag(noise_own) + noise_shared diag(noise_sign) noise_shared'``
        (``area``, ``factor``); and ``variance``, sampling plus noise variance, where the sampling
        variances are known. NaN in areas of which the release says nothing.

    Raises
    ------
    ValueError
        If K is not invertible over the areas of which the release says something: a release at a
        working sigma_u of 0, or one that gives up single areas. :func:`release_posterior` takes
        these too.

    Notes
    -----
    A table for other software: ``noisy_direct(release)[["estimate", "variance"]].to_dataframe()``
    is what ``eblupFH(estimate ~ 1, vardir = variance)`` of R's sae takes. It knows no correlation
    of errors: where ``noise_shared`` is not empty, :func:`release_posterior` is exact and that is
    not.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import noisy_direct, private_direct
    >>> direct = xr.Dataset(
    ...     {
    ...         "estimate": ("area", [0.1, 0.3]),
    ...         "variance": ("area", [0.001, 0.002]),
    ...         "sensitivity": ("area", [0.02, 0.04]),
    ...     },
    ...     coords={"area": ["north", "south"]},
    ...     attrs={"bounds": [0, 1]},
    ... )
    >>> noisy = noisy_direct(private_direct(direct, rho=0.5))
    >>> noisy["noise_variance"].values.round(6)
    array([0.0004, 0.0016])
    """
    information = read_information(release)
    inverse, told = inverted(information), information.informed
    noise = np.where(told, inverse.diagonal, np.nan)
    found = xr.Dataset(
        {
            "estimate": ("area", np.where(told, inverse.times(information.h), np.nan)),
            "noise_variance": ("area", noise),
            "noise_own": ("area", np.where(told, inverse.own, np.nan)),
            "noise_shared": (("area", "factor"), inverse.shared),
            "noise_sign": ("factor", inverse.sign),
        },
        coords={"area": list(information.area)},
        attrs={"post_processing": PUBLIC},
    )
    if information.bounds is not None:
        found.attrs["bounds"] = list(information.bounds)
    if sampling_variance is not None or information.sampling_variance is not None:
        D, words = sampling_variances(information, sampling_variance)
        found["variance"] = "area", D + noise
        found["variance"].attrs = dict(FROM_ANSWERS) if words == INSIDE else {}
        found.attrs["post_processing"] = words
    return found


def inverted(information: Information) -> InformationMatrix:
    """``K^-1`` over the areas of which a release says something, 0 elsewhere.

    Raises
    ------
    ValueError
        If there is none.
    """
    K, told = information.K, information.informed
    given_up = told & ~(K.own > 0)
    if given_up.any():
        raise ValueError(
            f"in {given_up.sum()} areas the release says nothing but what it says of all "
            f"together: {name_some(np.array(information.area, dtype=object)[given_up])}; there are "
            "no direct estimates with noise, but release_posterior takes it"
        )
    own = np.divide(1.0, K.own, out=np.zeros_like(K.own), where=told)
    rows = own[:, None] * K.shared
    value, vector = np.linalg.eigh(np.diag(K.sign) + K.shared.T @ rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared = rows @ (vector / np.sqrt(np.abs(value)))
    inverse = InformationMatrix(own, shared, -np.sign(value))
    if not (inverse.diagonal[told] > 0).all():
        raise ValueError("the information of the release is too near to singular to invert")
    return inverse
