"""Pictures of a release: its curves, its draws, and its prices by area.

They show prices and what has been released, never a direct estimate, and every one of them says
its kind of claim. Colours are those of Okabe and Ito, which the colour-blind can distinguish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp._checks import name_some, round_up, text_labels
from pymc_dp.plots.data import opened_release
from pymc_dp.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    claim_title,
    legend,
    log_axis,
    new_axes,
    plain,
)
from pymc_dp.record.figures import draws_in_words, record_price, released_name

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from pymc_dp.plots.style import Key

NAMED = ((GREEN, "--"), (PURPLE, "-."), (ORANGE, (0, (5, 1))), ("0.5", ":"))
LINES = 60  # more curves than this are a blur: quantiles instead
# Words, quantile left out on either side, opacity.
BANDS = (("all areas", 0.0, 0.25), ("90% of them", 0.05, 0.5), ("half of them", 0.25, 0.9))
LEGEND = 50.0  # points that a legend of three lines takes


def plot_rdp(data: Any, *, ax: Axes | None = None, areas: Iterable[str] | None = None) -> Axes:
    r"""Plot the Renyi divergence by order: the whole release, and each area published alone.

    Parameters
    ----------
    data : PrivateRelease, InferenceData, DataTree or Dataset
        A release, drawn or not; what :meth:`PrivateRelease.draw` or :func:`read_public` returned;
        its group ``private_release``; or :attr:`PrivateRelease.guarantee`.
    ax : matplotlib Axes, optional
        By default on a new figure.
    areas : iterable of str, optional
        Up to four areas whose curves are drawn separately, with their names.

    Returns
    -------
    matplotlib Axes
        Orders without unit, divergences in nats, both axes logarithmic.

    Raises
    ------
    ValueError
        If the data is no release, or `areas` are unknown or too many.

    Notes
    -----
    The curves are :math:`D_\alpha = \alpha\rho` (Bun and Steinke 2016), with ``rho_area`` for an
    area published alone. Beyond 60 areas the picture shows quantiles over areas.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
    >>> axes = plot_rdp(release, areas=["south"])
    >>> axes.get_ylabel()
    'Rényi divergence bound (nats)'
    """
    data, record = opened_release(data)
    price = data["rho_area"].to_series()
    named = _named(areas, price.index)
    order = data["order"].values
    ax = new_axes(1, (6.5, 5))[0] if ax is None else ax

    alone = _curves(ax, order, price[price > 0])  # zero has no place on a logarithmic axis
    [curve] = ax.plot(order, data["rdp"].values, color=VERMILLION, linewidth=3.5)
    key: Key = [(f"whole release, all {price.size} areas", curve)]
    for name, (color, style) in zip(named, NAMED, strict=False):
        [curve] = ax.plot(order, order * price[name], color=color, linestyle=style, linewidth=1.8)
        key.append((f"{plain(name)} alone", curve))

    log_axis(ax, "x", base=2)
    log_axis(ax, "y")
    ax.set_xlim(order[0], order[-1])
    ax.set_xlabel(r"order $\alpha$")
    ax.set_ylabel("Rényi divergence bound (nats)")
    rho = round_up(data["rho"].item())
    claim_title(
        ax, rf"RDP of {draws_in_words(record)}: $\rho$ = {rho}, unit: {record['unit']}", record
    )
    kept = legend(ax, alone, loc="lower right", title="each area published alone")
    legend(ax, key, loc="upper left")
    ax.add_artist(kept)
    return ax


def plot_release(
    data: Any, *, ax: Axes | None = None, prob: float = 0.9, max_areas: int = 80
) -> Axes:
    r"""Plot released draws, and the same draws smoothed once more with their intervals.

    Parameters
    ----------
    data : PrivateRelease, InferenceData, DataTree or Dataset
        A release that has been drawn; what :meth:`PrivateRelease.draw` or :func:`read_public`
        returned; or its group ``private_release``.
    ax : matplotlib Axes, optional
        By default on a new figure, as high as its areas need.
    prob : float
        Probability of the central intervals.
    max_areas : int
        With more areas than this the intervals become a ribbon and the areas lose their labels.

    Returns
    -------
    matplotlib Axes
        Areas from bottom to top by smoothed value, at 0, 1, ...; values in the outcome's unit.

    Raises
    ------
    ValueError
        If the data is no release or has no draw, or `prob` is not between 0 and 1.

    Notes
    -----
    The interval is ``theta_smoothed`` plus and minus :math:`z` times ``theta_smoothed_sd``, from
    :math:`\theta \mid \theta^*`: under the model, public quantities alone give it. Several
    draws of an area stand next to each other.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
    >>> axes = plot_release(release.draw(), prob=0.95)
    >>> sorted(label.get_text() for label in axes.get_yticklabels())
    ['north', 'south']
    """
    from scipy.special import ndtri

    data, record = opened_release(data)
    name = released_name(record)
    if name not in data:
        raise ValueError("nothing drawn here: call draw() first")
    if "theta_smoothed" not in data:
        raise ValueError(
            "this release has no smoothed draw to take intervals from (the model's observed values "
            "are not direct estimates of single areas, or its file leaves the smoothed draw out); "
            "az.plot_forest shows the draw"
        )
    if not 0 < prob < 1:
        raise ValueError("prob must lie between 0 and 1")
    theta, smoothed = (
        data[drawn].stack(sample=("chain", "draw")).transpose("sample", "area").values
        for drawn in (name, "theta_smoothed")
    )
    rank = np.argsort(smoothed.mean(axis=0), kind="stable")
    half = ndtri((1 + prob) / 2) * data["theta_smoothed_sd"].values[rank]
    draws, m = theta.shape
    ribbon = m > max_areas
    if ax is None:
        ax = new_axes(1, (7, 6 if ribbon else 1.7 + 0.17 * max(m, 6)))[0]

    place = np.arange(m)
    dodge = np.zeros(draws) if ribbon else np.linspace(-0.35, 0.35, draws + 2)[1:-1]
    size = 1 / np.sqrt(draws)
    for point, centre, shift in zip(theta[:, rank], smoothed[:, rank], dodge, strict=True):
        low, high, y = centre - half, centre + half, place + shift
        interval: Artist
        if ribbon:
            interval = ax.fill_betweenx(y, low, high, step="mid", fc=SKY, alpha=0.45, lw=0)
            middle = ax.plot(centre, y, color=BLUE, linewidth=1.5)
            dots = ax.plot(
                point, y, "o", color=VERMILLION, ms=3.5 if m <= 500 else 1.8, mew=0, alpha=0.7
            )
        else:
            interval = ax.hlines(y, low, high, color=SKY, linewidth=2 * size)
            middle = ax.plot(centre, y, "o", color=BLUE, ms=4.5 * size, mew=0)
            dots = ax.plot(point, y, "D", color=VERMILLION, mfc="none", ms=4 * size, mew=0.9)
    for end in record["bounds"] or ():  # noise can push draws outside the range
        if ax.get_xlim()[0] < end < ax.get_xlim()[1]:
            ax.axvline(end, color="0.5", linewidth=0.8, linestyle=":")

    height = 72 * ax.bbox.height / ax.get_figure(root=True).dpi  # type: ignore[union-attr]
    room = m * LEGEND / max(height - LEGEND, LEGEND)
    ax.set_ylim(-0.8 - room, m - 0.2)
    noisy = name == "noisy_direct"
    ax.set_xlabel(f"{'noisy ' if noisy else ''}{record['target']} (unit of the outcome)")
    if ribbon:
        ax.set_yticks([])
        ax.set_ylabel("areas, ordered by smoothed value")
    else:
        font = float(np.clip(0.75 * height / (m + room), 3.0, 9.0))
        ax.set_yticks(place, [plain(a) for a in data["area"].values[rank]], fontsize=font)
        ax.grid(axis="y", linewidth=0.4, alpha=0.5)
        ax.set_axisbelow(True)
    drawn = "One released draw" if draws == 1 else f"{draws} released draws"
    claim_title(ax, f"{drawn} of {m} areas, unit: {record['unit']}", record)
    words = (
        f"{100 * prob:.3g}% interval given the draw",
        "released draw, smoothed",
        "noisy direct estimate" if noisy else "released draw",
    )
    key = zip(words, (interval, *middle, *dots), strict=True)
    legend(ax, key, loc="lower right", markerscale=2 if ribbon else 1)
    return ax


def plot_guarantee(
    data: Any,
    n: xr.Dataset | xr.DataArray | pd.Series,
    *,
    axes: Sequence[Axes] | None = None,
) -> Sequence[Axes]:
    """Plot the price in each area against its sample size and against unequal weights.

    Parameters
    ----------
    data : PrivateRelease, InferenceData, DataTree or Dataset
        A release, drawn or not; what :meth:`PrivateRelease.draw` or :func:`read_public` returned;
        its group ``private_release``; or :attr:`PrivateRelease.guarantee`.
    n : DataArray, Series or Dataset
        Sample size of each area, joined by label: ``direct["n"]``, or the data set itself.
    axes : two matplotlib Axes, optional
        By default next to each other on a new figure.

    Returns
    -------
    two matplotlib Axes
        As given, or a new pair. Areas without a sample have no price and are left out.

    Raises
    ------
    ValueError
        If the data is no release, ``n`` lacks areas or has one twice or not positive, or there
        are not two axes.

    Notes
    -----
    The price is that of the whole release for one protected unit of the area. The largest weight
    over the mean weight is ``n`` times the sensitivity over the outcome's range, as the
    sensitivity of a Hajek estimate is the range times the largest share of the weights.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), sensitivity=0.02)
    >>> n = xr.DataArray([150, 60], coords=direct.coords)
    >>> by_size, by_weights = plot_guarantee(release, n)
    >>> by_size.get_xlabel()
    'sample size n'
    """
    data, record = opened_release(data)
    if "sensitivity" not in data:
        raise ValueError(
            "this release has no prices by area and sensitivity to set against sample sizes"
        )
    sampled = (data["sensitivity"] > 0).values
    rho = record_price(data, record).to_series()[sampled]
    size = _counts(n, rho.index)
    axes = new_axes(2, (10, 4.5)) if axes is None else axes
    if len(axes) != 2:
        raise ValueError(f"axes must be two, not {len(axes)}")

    unit, bounds = record["unit"], record["bounds"]
    whole, worst = data["rho"].item(), str(rho.idxmax())
    largest = "largest weight" if unit == "record" else f"largest weight of a {unit}"
    low, high = bounds or (0.0, 1.0)
    inequality = size * data["sensitivity"].to_series()[sampled] / (high - low)
    ratio = f"{largest} / mean weight" if bounds else "n times sensitivity (unit of the outcome)"
    panels = (
        ("Sample size", "sample size n", size),
        ("Unequal weights", ratio, inequality),
    )
    crowd = min(1.0, max(0.35, 60 / rho.size))
    for ax, (name, label, x) in zip(axes, panels, strict=True):
        ax.axhline(whole, color=VERMILLION, linewidth=2)
        ax.plot(x, rho, "o", color=BLUE, ms=5 if rho.size <= 200 else 3, mew=0, alpha=crowd)
        ax.plot(x[worst], rho[worst], "D", color=VERMILLION, mfc="none", ms=9, mew=1.5)
        ax.annotate(
            rf"whole release: $\rho$ = {round_up(whole)}" f"\nas in {plain(worst)} (diamond)",
            (0.02, whole),
            xycoords=("axes fraction", "data"),
            xytext=(0, 8),
            textcoords="offset points",
            fontsize="small",
        )
        log_axis(ax, "x", ratio=x.max() / x.min())
        log_axis(ax, "y", ratio=rho.max() / rho.min())
        ax.set_ylim(rho.min() / 1.4, whole * max(1.6, (rho.max() / rho.min()) ** 0.18))
        ax.set_xlabel(label)
        claim_title(ax, f"{name}: {_rank_correlation(x, rho)}", record)
    axes[0].set_ylabel(rf"price $\rho$ (zCDP) for one {unit} of the area")
    return axes


def _curves(ax: Axes, order: np.ndarray, price: pd.Series) -> Key:
    """Draw the areas' curves, or bands of them where they are many."""
    if price.size <= LINES:
        curves = np.multiply.outer(order, price.to_numpy())
        lines = ax.plot(order, curves, color=SKY, linewidth=0.8, alpha=0.8)
        return [(f"each of {price.size}", line) for line in lines[:1]]
    key: Key = []
    for words, tail, alpha in BANDS:
        low, high = np.quantile(price, [tail, 1 - tail])
        band = ax.fill_between(order, order * low, order * high, fc=SKY, alpha=alpha, lw=0)
        key.append((words, band))
    [median] = ax.plot(order, order * price.median(), color=BLUE, linewidth=1.2)
    return [*key, ("median area", median)]


def _named(areas: Iterable[str] | None, known: pd.Index) -> list[str]:
    names = [areas] if isinstance(areas, str) else [] if areas is None else list(areas)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown areas: {name_some(unknown)}")
    if len(names) > len(NAMED):
        raise ValueError(f"at most {len(NAMED)} areas can be distinguished, not {len(names)}")
    return names


def _counts(n: xr.Dataset | xr.DataArray | pd.Series, area: pd.Index) -> pd.Series:
    """Sample sizes of the areas, joined by label."""
    if isinstance(n, xr.Dataset):
        n = n["n"]
    series = n.to_series() if isinstance(n, xr.DataArray) else n
    series = pd.Series(series.to_numpy(dtype=float), index=text_labels(series.index))
    again = series.index[series.index.duplicated()].unique()
    if len(again):
        raise ValueError(f"n has areas more than once: {name_some(again)}")
    size = series.reindex(area)
    bad = size.index[~(np.isfinite(size) & (size > 0))]
    if len(bad):
        raise ValueError(f"n is missing or not positive in {len(bad)} areas: {name_some(bad)}")
    return size


def _rank_correlation(x: pd.Series, y: pd.Series) -> str:
    a, b = x.rank(), y.rank()
    if a.nunique() < 2 or b.nunique() < 2:
        return "no rank correlation, as all are equal"
    return f"rank correlation {np.corrcoef(a, b)[0, 1]:.2f}"
