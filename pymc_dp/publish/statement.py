"""The statement of a release: one page of HTML for a review board or a publication's annex.

It is built from the part of the group that may be published, and shows no value of the draw: two
data sets that differ in outcomes alone have the same page, but for the time of the draw.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp import containers, privacy
from pymc_dp._files import check_new, new_file
from pymc_dp._typing import Array
from pymc_dp.publish.allow_list import public_part, with_zeros
from pymc_dp.publish.pictures import attack_picture, price_picture, rdp_picture
from pymc_dp.publish.rendering import render
from pymc_dp.record.claims import ASSUMPTIONS, mechanism_words, read_record
from pymc_dp.record.figures import DRAWN_NAMES, record_price, released_name

DELTA = 1e-6  # where one epsilon has to stand for all
RATES = (0.01, 0.05)  # false positive rates of attacks
SHORT = 60  # a table of so many areas need not be opened
Z = {90: 1.645, 95: 1.960}  # quantiles of intervals, by their percentage
# Far above the error of the computed rates, and above what the lattice of the noise (of spacing
# 2^-50 standard deviations) adds to them for a billion areas.
MARGIN = 1e-12


def write_statement(idata: Any, path: str | os.PathLike[str], *, conditional: bool = False) -> None:
    r"""Write a page that says what a release is, how private it is, and on whose word.

    Parameters
    ----------
    idata : PrivateRelease, InferenceData, DataTree or Dataset
        A release, what :meth:`PrivateRelease.draw` or :func:`read_public` returned, or its group.
        Before a draw the page says "planned".
    path : path
        A new file (``.html``) in an existing folder.
    conditional : bool
        Write also a claim that treats the variance components as fixed. The word "conditional"
        then stands at every figure of the page.

    Raises
    ------
    TypeError
        If `idata` is none of these.
    ValueError
        If the claim is conditional and this was not asked for; if the group is no whole release
        or has missing values; if the path does not end in ``.html``.
    FileExistsError
        If the target exists, be it a file, a folder or a dangling link.
    OSError
        If the target cannot be written; nothing is left under its name.

    Notes
    -----
    The page needs no network, no script and no other file. It withholds what
    :func:`write_public` withholds (figures of single areas without a source of ``weights``, say)
    and has a list of it; released values are in the public file only. Prices, epsilons and rates
    of attacks are rounded up to four digits.

    With :math:`\mu = \sqrt{2\rho}` an attack with false positive rate :math:`\alpha` has a true
    positive rate of at most :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` (Dong, Roth and Su 2022).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> from pymc_dp import write_statement
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> public = {"sampling_variance": "2010 census", "sigma_u": "2010 census"}
    >>> model = fay_herriot(direct, sigma_u=0.05)
    >>> release = PrivateRelease(model, sensitivity=0.02, assumptions=public)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_statement(release.draw(), f"{folder}/statement.html")
    ...     text = Path(f"{folder}/statement.html").read_text(encoding="utf-8")
    >>> "Claim: formal" in text, "<script" in text
    (True, False)
    """
    target = _new_page(path)
    content = statement_html(idata, conditional=conditional).encode("utf-8")
    with new_file(target) as hidden:
        hidden.write_bytes(content)


def statement_html(idata: Any, *, conditional: bool = False) -> str:
    """Tell the statement of a release as a whole document; see :func:`write_statement`.

    Parameters
    ----------
    idata : PrivateRelease, InferenceData, DataTree or Dataset
    conditional : bool

    Returns
    -------
    str
    """
    group = containers.release_group(idata)
    planned = "created_at" not in group.attrs and not DRAWN_NAMES.keys() & set(group)
    public = public_part(with_zeros(group) if planned else group, conditional=conditional)
    # Zeros or the draw: neither belongs on the page, so that no figure of it can.
    public = public.drop_vars(DRAWN_NAMES, errors="ignore")
    return render("statement.html.j2", **_names(public, planned=planned))


def _new_page(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"the path must end in .html, not {target.suffix!r}")
    check_new(target)
    return target


def _names(public: xr.Dataset, *, planned: bool) -> dict[str, Any]:
    """Names that the template knows, from what may be published of a release without its draw."""
    record = read_record(public.attrs)
    attrs = public.attrs
    versions = sorted(record.get("versions", {}).items())
    parts = sorted(record["variance_components"].items())
    return {
        "planned": planned,
        "claim": record["claim"],
        "claim_words": record["claim_words"],
        "plugged_in": [name for name, kind in parts if kind != "fixed"]
        + list(record.get("undeclared", [])),
        "target": record.get("target", "theta"),
        "released": released_name(record),
        "unit": record.get("unit", "record"),
        "areas": public.sizes["area"],
        "draws": record["draws"],
        "drawn_at": attrs["created_at"],
        "library": f"{attrs['creation_library']} {attrs['creation_library_version']}",
        "other_versions": [f"{name} {number}" for name, number in versions if name != "pymc_dp"],
        "mechanism": mechanism_words(record),
        "calibration": record.get("calibration"),
        "bounds": record.get("bounds"),
        "decimals": record.get("publishing_decimals", "not recorded"),
        "neighbours": record.get("neighbours", "not recorded"),
        "pure_epsilon": record.get("pure_epsilon", "not recorded"),
        "assumptions": ASSUMPTIONS,
        "declared": record["assumptions"],
        "undeclared": record.get("undeclared", []),
        "origin": sorted(record.get("origin", {}).items()),
        "intercept_only": record.get("intercept_only") is True,
        "withheld": record["withheld"],
        "left_out": _left_out(record["left_out"]),
        "price_needs": record["left_out"].get("rho_respondent"),
        "sd_needs": record["left_out"].get("theta_smoothed_sd"),
        **_guarantee(public),
        **_attack(public),
        "by_area": _by_area(public, record),
        **_intervals(public, calibrated="calibration" in record),
    }


def _guarantee(public: xr.Dataset) -> dict[str, Any]:
    """Price of the whole release."""
    delta, epsilon = public["delta"].values, public["epsilon"].values
    columns = zip(delta, epsilon, public["epsilon_zcdp"].values, strict=True)
    at = _nearest(delta)
    order, bound = public["order"].values, public["rdp"].values
    rdp = {
        "first": {"order": order[0], "bound": bound[0]},
        "last": {"order": order[-1], "bound": bound[-1]},
        "picture": rdp_picture(order, bound) if _drawable(public) else None,
    }
    return {
        "rho": public["rho"].item(),
        "mu": public["mu"].item(),
        "delta": delta[at],
        "epsilon": epsilon[at],
        "epsilons": [{"delta": d, "exact": exact, "zcdp": zcdp} for d, exact, zcdp in columns],
        "rdp": rdp,
    }


def _attack(public: xr.Dataset) -> dict[str, Any]:
    """What an attacker can reach."""
    advantage, mu = float(privacy.advantage(public["rho"].item())), public["mu"].item()
    pairs = zip(RATES, true_positive_rate(mu, np.array(RATES)), strict=True)
    return {
        "advantage": advantage,
        "right": (1 + advantage) / 2,
        "attacks": [{"wrong": wrong, "right": right} for wrong, right in pairs],
        "attack_picture": attack_picture(mu) if _drawable(public) else None,
    }


def _by_area(public: xr.Dataset, record: dict[str, Any]) -> dict[str, Any] | None:
    """Price of the whole release for a unit of each area; None if it may not be published."""
    try:
        price = record_price(public, record).to_series()
    except KeyError:
        return None
    order = np.argsort(-price.to_numpy(), kind="stable")
    price = price.iloc[order]
    alone = public["epsilon_area"].isel(delta=_nearest(public["delta"].values)).values[order]
    advantage = np.asarray(privacy.advantage(price.to_numpy()))
    rows = [
        {"area": area, "rho": rho, "advantage": a, "epsilon": epsilon}
        for area, rho, a, epsilon in zip(price.index, price, advantage, alone, strict=True)
    ]
    paid = price[price > 0]
    found = {
        "rows": rows,
        "short": price.size <= SHORT,
        "paid": paid.size,
        "free": price.size - paid.size,
        "picture": None,
    }
    if _drawable(public) and paid.size > 1:
        found |= {
            "picture": price_picture(paid.to_numpy(), public["rho"].item()),
            "most": rows[0],
            "middle": np.quantile(paid, 0.5, method="higher"),
            "least": rows[paid.size - 1],
        }
    return found


def _intervals(public: xr.Dataset, *, calibrated: bool) -> dict[str, Any]:
    """What intervals a reader may compute, and how wide they are."""
    found: dict[str, Any] = {f"z{level}": f"{z:.3f}" for level, z in Z.items()}
    found |= {
        "half_width": None,
        # A calibrated release is no draw from the posterior of the data.
        "two_sigma": "posterior_sd" in public and not calibrated,
        "direct_intervals": {"noise_variance", "sampling_variance"} <= set(public),
    }
    if "theta_smoothed_sd" in public:
        half = Z[90] * public["theta_smoothed_sd"].values
        found["half_width"] = {"median": np.median(half), "least": half.min(), "most": half.max()}
    return found


def _left_out(left_out: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Variables that are not published, by the inputs that nobody declares public."""
    by_inputs = defaultdict(list)
    for name, inputs in left_out.items():
        by_inputs[tuple(inputs)].append(name)
    pairs = sorted(by_inputs.items(), key=lambda pair: len(pair[0]))
    return [{"needs": inputs, "names": sorted(names)} for inputs, names in pairs]


def _nearest(delta: Array) -> int:
    """Place of the delta that is nearest to one in a million."""
    return int(np.abs(np.log(delta / DELTA)).argmin())


def _drawable(public: xr.Dataset) -> bool:
    """Whether the price has a place in a picture."""
    return 0 < public["rho"].item() < np.inf


def true_positive_rate(mu: float, false_positive_rate: Array | float) -> Array:
    r"""Bound of an attack's true positive rate, rounded up.

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter.
    false_positive_rate : ndarray or float
        Between 0 and 1.

    Returns
    -------
    ndarray

    Notes
    -----
    :math:`\Phi(\Phi^{-1}(\alpha) + \mu)`, the trade-off curve of two Gaussians (Dong, Roth and
    Su 2022, equation 6).

    Examples
    --------
    >>> true_positive_rate(1.0, 0.05).round(4).item()
    0.2595
    """
    from scipy.special import ndtr, ndtri  # a fifth of a second at import, on PyMC 6

    exact = ndtr(ndtri(np.asarray(false_positive_rate)) + mu)
    return np.asarray(np.minimum(exact * (1 + MARGIN), 1.0))
