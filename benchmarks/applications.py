"""Measured figures that the docs show: ``python benchmarks/applications.py DATA``.

DATA is a folder with the persons of the American Community Survey 2024
(``acs_pums_2024_persons_part*.csv.gz``: ``puma``, ``hh``, ``w``, ``povpip``, ``src``), a table of
its PUMAs (``acs_pums_2024_puma_table.csv.gz``, see ``acs_budget.py``) and the telephone survey of
King County (``brfss_king_county_2009_2013.csv.gz``: ``hra``, ``w``, ``smoker``). What is written,
by default to ``docs/_applications``, is about privacy: totals, quantiles over areas, counts of
areas. Area by area there is only what follows from weights. Of what was computed from the answers
of one area, only the epsilon of one area of King County is written; no estimate is.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import acs_budget
import acs_formal_total
import king_bound
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from matplotlib import pyplot as plt
from PIL import Image

import pymc_dp as pdp
from pymc_dp._checks import round_up

RATE_POVERTY, SIGMA_POVERTY = 0.12, 0.06
# Poverty is shared in a household. A stand-in, as it was seen in this file; so is sigma_u.
DESIGN_FACTOR = 2.5
RATE_SMOKING, SIGMA_SMOKING = 0.18, 0.04
BLUE, ORANGE, GREEN, VERMILLION, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"
QUANTILES = (0, 0.05, 0.5, 0.95, 1)
INFINITE_BY = (2, 4, 8, 16, 32)


def read_acs(folder: Path) -> pd.DataFrame:
    """Persons in the poverty universe, with their household."""
    files = sorted(folder.glob("acs_pums_2024_persons_part*.csv.gz"))
    if not files:
        raise SystemExit(f"no acs_pums_2024_persons_part*.csv.gz in {folder}")
    types = {"puma": "str", "hh": "int32", "w": "float64", "povpip": "float64", "src": "int8"}
    persons = pd.concat([pd.read_csv(file, usecols=list(types), dtype=types) for file in files])
    persons = persons.dropna(subset=["povpip"])
    return persons.assign(
        poor=(persons["povpip"] < 100).astype(float),
        household=persons["puma"] + "-" + persons["hh"].astype("str"),
    )


def released(direct: xr.Dataset, sigma_u: float) -> pdp.PrivateRelease:
    model = pdp.fay_herriot(direct, sigma_u=sigma_u)
    return pdp.PrivateRelease(model, direct["sensitivity"])


def describe(direct: xr.Dataset, guarantee: xr.Dataset) -> dict[str, Any]:
    """One setting: the whole release, and quantiles over its areas."""
    own = guarantee["rho_respondent"]
    saved = own / guarantee["rho_unshrunk"]
    drivers = pdp.guarantee_drivers(direct, guarantee)
    return {
        "areas": own.size,
        "unit": direct.attrs["unit"],
        "rho": guarantee["rho"].item(),
        "rho_independent": guarantee["rho_independent"].max().item(),
        "rho_unshrunk": guarantee["rho_unshrunk"].max().item(),
        "rho_areas": quantiles(own),
        "independent_over_joint": quantiles(guarantee["rho_independent"] / own),
        "shrunk_over_unshrunk": quantiles(saved),
        "epsilon": by_delta(guarantee["epsilon"]),
        "epsilon_median_area": by_delta(guarantee["epsilon_area"].median("area")),
        "drivers": drivers["share"].to_series().to_dict(),
        "rank_correlation_with_n": float(
            drivers["rank_correlation"].sel(driver="sample size").item()
        ),
        "rank_correlation_with_inequality": float(
            drivers["rank_correlation"].sel(driver="weight inequality").item()
        ),
    }


def quantiles(values: xr.DataArray) -> dict[str, float]:
    return {f"{q:g}": float(np.quantile(values, q)) for q in QUANTILES}


def by_delta(values: xr.DataArray) -> dict[str, float]:
    return {f"{d:g}": float(v) for d, v in zip(values["delta"].values, values.values, strict=True)}


def proviso(found: xr.Dataset, delta: float) -> dict[str, Any]:
    """Counts and quantiles of what check_proviso says; no area's own figure."""
    at = found.sel(delta=delta)
    return {
        "areas": found.sizes["area"],
        "records_tried": found.attrs["records"],
        "delta": delta,
        "infinite_by": {str(k): int((found["order_infinite"] <= k).sum()) for k in INFINITE_BY},
        "printed_too_low": int((at["epsilon_exact"] > at["epsilon_conditional"] * 1.000001).sum()),
        "epsilon_printed": quantiles(at["epsilon_conditional"]),
        "epsilon_exact": quantiles(at["epsilon_exact"]),
        "exact_where_most_is_printed": float(
            at["epsilon_exact"][at["epsilon_conditional"].argmax("area")]
        ),
    }


def acs(persons: pd.DataFrame, out: Path) -> dict[str, Any]:
    survey = {"outcome": "poor", "weight": "w", "area": "puma"}
    kish = {"variance": "kish", "rate": RATE_POVERTY}
    shared = kish | {"design_factor": DESIGN_FACTOR}
    directs = {
        "persons": pdp.hajek(persons, **survey, **kish),
        "households": pdp.hajek(persons, **survey, **kish, unit="household"),
        "households, design factor": pdp.hajek(persons, **survey, **shared, unit="household"),
        "households, variances from answers": pdp.hajek(persons, **survey, unit="household"),
    }
    guarantees = {
        name: released(direct, SIGMA_POVERTY).guarantee for name, direct in directs.items()
    }
    main = "households, design factor"
    direct, guarantee = directs[main], guarantees[main]
    record: dict[str, Any] = {
        "persons": len(persons),
        "rate": RATE_POVERTY,
        "sigma_u": SIGMA_POVERTY,
        "design_factor": DESIGN_FACTOR,
        "settings": {n: describe(directs[n], g) for n, g in guarantees.items()},
    }

    published = ~persons["puma"].str[:2].isin(["06", "48"])
    others = pdp.hajek(persons[published], **survey, **shared, unit="household")
    record["without California and Texas"] = describe(
        others, released(others, SIGMA_POVERTY).guarantee
    )

    record["sigma_u"] = {}
    for sigma_u in (0.06, 0.03, 0.015, 0.0075):
        found = describe(direct, released(direct, sigma_u).guarantee)
        kept = ("rho", "rho_independent", "rho_unshrunk", "shrunk_over_unshrunk")
        record["sigma_u"][f"{sigma_u:g}"] = {key: found[key] for key in kept}

    record["budgets"] = []
    for rho in (1.0, 0.5, 0.1):
        advice = pdp.recommend(released(direct, SIGMA_POVERTY), rho=rho)
        table = advice.table
        record["budgets"].append(
            {
                "rho": rho,
                "tempered": int(table.loc["tempered draw", "areas_touched"]),
                "draw": float(table.loc["draw", "rmse_smoothed"]),
                "tempered draw": float(table.loc["tempered draw", "rmse_smoothed"]),
                "noisy direct estimates": float(
                    table.loc["noisy direct estimates", "rmse_smoothed"]
                ),
                "best": advice.best,
            }
        )
    report = released(direct, SIGMA_POVERTY).calibrate(rho=1.0).report["rmse"]
    record["error_of_posterior_mean"] = float(report.sel(estimator="posterior mean (not private)"))

    found = pdp.check_proviso(
        persons,
        **survey,
        unit="household",
        sigma_u=SIGMA_POVERTY,
        order=[2, 8],
        delta=[1e-6],
        reestimate=False,
    )
    record["proviso"] = proviso(found, 1e-6)

    ordered_prices({n: guarantees[n] for n in list(guarantees)[:3]}, out / "acs-prices.png")
    pdp.plot_guarantee(guarantee, direct["n"])
    save(out / "acs-who-pays.png")
    epsilon_bands(guarantee, out / "acs-epsilon.png")
    return record


def king_county(folder: Path, out: Path) -> dict[str, Any]:
    path = folder / "brfss_king_county_2009_2013.csv.gz"
    everybody = pd.read_csv(path, usecols=["hra", "w", "smoker"])
    records = everybody.dropna()
    survey = {"outcome": "smoker", "weight": "w", "area": "hra"}
    directs = {
        "public variances": pdp.hajek(records, **survey, variance="kish", rate=RATE_SMOKING),
        "variances from answers": pdp.hajek(records, **survey),
    }
    guarantees = {
        name: released(direct, SIGMA_SMOKING).guarantee for name, direct in directs.items()
    }
    found = pdp.check_proviso(records, **survey, sigma_u=SIGMA_SMOKING, delta=[1e-5])
    repaired = pdp.check_proviso(
        records,
        **survey,
        sigma_u=SIGMA_SMOKING,
        delta=[1e-5],
        reestimate=False,
        variance="kish",
        rate=RATE_SMOKING,
    )
    # One question at a time: with public sampling variances, only sigma_u is learned.
    costs = pdp.compare_variance_components(
        directs["public variances"],
        sigma_u=SIGMA_SMOKING,
        prior=pm.HalfNormal.dist(0.1),
        order=2.0 ** np.arange(1, 9),
    )
    public = guarantees["public variances"]
    king_dots(public, directs["public variances"]["n"], out / "king-prices.png")
    epsilon_bands(public, out / "king-epsilon.png")
    ax = pdp.plot_proviso(found)
    for words in list(ax.texts):  # names the worst area, whose variance its price would tell
        words.remove()
    save(out / "king-proviso.png")
    pdp.plot_variance_components(costs)
    save(out / "king-components.png")
    return {
        "respondents": len(records),
        "left out": len(everybody) - len(records),
        "rate": RATE_SMOKING,
        "sigma_u": SIGMA_SMOKING,
        "settings": {n: describe(directs[n], g) for n, g in guarantees.items()},
        "proviso": proviso(found, 1e-5),
        "proviso, public variances": proviso(repaired, 1e-5),
        "components": {
            str(int(order)): {
                "fixed": float(costs["rdp_fixed"].sel(order=order).max()),
                "estimated": float(costs["rdp_estimated"].sel(order=order).max()),
                "median ratio": float(costs["ratio"].sel(order=order).median()),
                "largest ratio": float(costs["ratio"].sel(order=order).max()),
            }
            for order in costs["order"].values
        },
    }


def ordered_prices(guarantees: dict[str, xr.Dataset], path: Path) -> None:
    """Areas ordered by price: a dot each with the model, a line without it."""
    _, ax = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    colors = (GREEN, ORANGE, BLUE)
    for (name, guarantee), color in zip(guarantees.items(), colors, strict=True):
        rank = np.arange(1, guarantee.sizes["area"] + 1)
        own = np.sort(guarantee["rho_respondent"])
        ax.plot(rank, np.sort(guarantee["rho_unshrunk"]), color="0.35", lw=0.9, ls="--")
        ax.plot(rank, own, ".", color=color, ms=3, mew=0)
        ax.plot(rank[-1], own[-1], "D", mfc="none", color=color, ms=8, mew=1.5)
        ax.annotate(
            rf"{name}: whole release $\rho$ = {round_up(own[-1])}",
            (rank[-1] // 2, own[rank[-1] // 2]),
            (0, -22),
            textcoords="offset points",
            ha="center",
            color=color,
            fontsize="small",
        )
    ax.plot([], [], "--", color="0.35", lw=0.9, label="without shrinkage, ordered by itself")
    ax.plot([], [], "D", mfc="none", color="0.35", ms=8, label="dearest area = whole release")
    ax.set(yscale="log", xlabel="areas, ordered by their price", ylabel=r"price $\rho$ (zCDP)")
    ax.yaxis.set_major_formatter("{x:g}")
    title(ax, "What one draw costs one unit of each area", guarantee)
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    save(path)


def king_dots(guarantee: xr.Dataset, n: xr.DataArray, path: Path) -> None:
    """An ordered dot plot of prices that follow from weights alone."""
    rank = np.argsort(guarantee["rho_respondent"].values)
    _, ax = plt.subplots(figsize=(7, 8), layout="constrained")
    place = np.arange(rank.size)
    marks = (
        ("rho_unshrunk", "without shrinkage", "D", "0.45"),
        ("rho_independent", "independent noise", "|", VERMILLION),
        ("rho_respondent", "joint draw", "o", BLUE),
    )
    for name, words, mark, color in marks:
        fill = {"mfc": "none"} if mark == "D" else {}
        size = {"D": 4, "|": 9, "o": 5}[mark]
        ax.plot(
            guarantee[name].values[rank], place, mark, color=color, ms=size, label=words, **fill
        )
    labels = [f"{a}  ({k})" for a, k in zip(guarantee["area"].values, n.values, strict=True)]
    ax.set_yticks(place, [labels[i] for i in rank], fontsize=7)
    ax.set(xscale="log", ylim=(-1, rank.size), xlabel=r"price $\rho$ (zCDP) of a respondent")
    ax.xaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.grid(axis="y", lw=0.4, alpha=0.5)
    title(ax, f"King County, {rank.size} areas (sample size): what one draw costs", guarantee)
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    save(path)


def epsilon_bands(guarantee: xr.Dataset, path: Path) -> None:
    """Epsilon at several deltas: the whole release, and quantiles over areas published alone."""
    delta, area = guarantee["delta"].values, guarantee["epsilon_area"]
    _, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
    bands = (("all areas", 0.0, 0.25), ("90% of them", 0.05, 0.5), ("half of them", 0.25, 0.9))
    for words, tail, alpha in bands:
        low, high = area.quantile([tail, 1 - tail], "area").values
        ax.fill_between(delta, low, high, fc=SKY, alpha=alpha, lw=0, label=f"alone: {words}")
    ax.plot(delta, area.median("area"), "o-", color=BLUE, lw=1.2, ms=4, label="alone: median area")
    whole = guarantee["epsilon"]
    ax.plot(delta, whole, "D-", color=VERMILLION, lw=2, ms=5, label="whole release")
    for d, e in zip(delta, whole.values, strict=True):
        shown = round_up(e)
        ax.annotate(
            shown, (d, e), (0, 7), textcoords="offset points", ha="center", fontsize="small"
        )
    ax.set(xscale="log", xticks=delta, ylim=(0, 1.35 * whole.max().item()))
    ax.set(xlabel=r"$\delta$", ylabel=r"$\epsilon$")
    ax.xaxis.set_minor_locator(plt.NullLocator())
    title(ax, rf"$\epsilon$ of one draw, {area.sizes['area']:,} areas", guarantee)
    ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper right")
    save(path)


def title(ax: plt.Axes, words: str, guarantee: xr.Dataset) -> None:
    """The words and, as in every picture of the package, the kind of claim."""
    claim = guarantee["rho"].attrs["claim"]
    ax.set_title(f"{words}\nclaim: {claim}", loc="left", fontsize="medium")


def save(path: Path) -> None:
    """Write the picture with a palette of 128 colours: a third of the size, to the eye the same."""
    with io.BytesIO() as buffer:
        plt.gcf().savefig(buffer, dpi=100)
        Image.open(buffer).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
            path, optimize=True
        )
    plt.close("all")


def rounded(value: Any) -> Any:
    """Six digits, and rounding errors to zero: what differs by platform is nobody's figure."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        if abs(value) < 1e-12:
            return 0.0
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


# What the pages of the docs show, part by part.
PARTS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "king_county": king_county,
    "king_bound": lambda folder, out: king_bound.figures(folder),
    "acs": lambda folder, out: acs(read_acs(folder), out),
    "acs_budget": lambda folder, out: acs_budget.figures(folder),
    "acs_formal_total": lambda folder, out: acs_formal_total.figures(folder),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the survey files")
    default = Path(__file__).parents[1] / "docs" / "_applications"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="the other parts stay"
    )
    options = parser.parse_args()
    plt.switch_backend("agg")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "figures.json"
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in options.only:
        figures[name] = rounded(PARTS[name](options.data, options.out))
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: done")


if __name__ == "__main__":
    main()
