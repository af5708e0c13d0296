"""The statement of a release: true to the record, silent on the data, readable by everybody."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pymc_dp.publish.allow_list
from pymc_dp import PrivateRelease, advantage, fay_herriot
from pymc_dp import containers as io
from pymc_dp._checks import round_up
from pymc_dp.plots.style import BLUE, VERMILLION
from pymc_dp.publish.public_file import read_public, write_public
from pymc_dp.publish.statement import statement_html, true_positive_rate, write_statement
from pymc_dp.reading.read import read_model
from pymc_dp.record.claims import CONDITIONAL, NEIGHBOURS, read_record, to_json
from pymc_dp.record.figures import RECORD_NAMES

# Those of a Fay-Herriot model; other models have figures by record.
OTHERS = {*RECORD_NAMES, "noisy_direct", "noise_variance", "sampling_variance"}
VARIABLES = {k: v for k, v in pymc_dp.publish.allow_list.VARIABLES.items() if k not in OTHERS}

M = 9
RNG = np.random.default_rng(20240607)
VARIANCE = RNG.uniform(5e-4, 5e-3, M)
COVARIATE = RNG.normal(size=M)
SENSITIVITY = RNG.uniform(0.01, 0.05, M)
# Full mantissas: no such number arises by chance.
ESTIMATE, OTHER = RNG.uniform(0.1, 0.4, (2, M))
AREA = [f"area {i}" for i in range(M - 4)]
SCRIPT = "<script>alert('x')</script> & \"sons\""
AREA += [SCRIPT, "Zürich, Ñuble, 東京", "\u202eמרכז", "x' onmouseover='y"]
DECLARED = {
    "weights": "design weights <b>of</b> 2019",
    "sampling_variance": "public rate & weights",
    "sigma_u": 'the "earlier" survey, https://statistics.example/a?b=1&c=2',
    "covariates": "tax register",
    "universe": "everybody <i>asked</i>",
}
SOME = {key: DECLARED[key] for key in ("sampling_variance", "sigma_u", "covariates")}
VOID = {"meta", "br"}
KINDS = ("formal", "formal, some", "undeclared", "independent", "calibrated", "twice", "planned")


def _model(estimate: np.ndarray) -> Any:
    values = {"estimate": estimate.copy(), "variance": VARIANCE.copy()}
    values["estimate"][3] = values["variance"][3] = np.nan  # an area without sample
    direct = xr.Dataset({k: ("area", v) for k, v in values.items()}, coords={"area": AREA})
    direct.attrs["bounds"] = [0.0, 1.0]
    return fay_herriot(direct, "~ x", pd.DataFrame({"x": COVARIATE}, index=AREA), sigma_u=0.05)


def release_of(
    assumptions: dict[str, str] | None, estimate: np.ndarray = ESTIMATE, **options: Any
) -> PrivateRelease:
    attrs = {"bounds": [0.0, 1.0], "unit": "household"}
    s = xr.DataArray(SENSITIVITY, dims="area", coords={"area": AREA}, attrs=attrs)
    return PrivateRelease(_model(estimate), s, assumptions=assumptions, **options)


def group_of(kind: str, estimate: np.ndarray = ESTIMATE) -> xr.Dataset:
    declared = {"formal, some": SOME, "undeclared": None}.get(kind, DECLARED)
    mechanism = "independent" if kind == "independent" else "joint"
    release = release_of(declared, estimate, mechanism=mechanism)
    if kind == "calibrated":
        release = release.calibrate(rho=0.01)
    if kind == "planned":
        return release.guarantee
    release.draw(draws=2 if kind == "twice" else 1)
    assert release.released is not None
    return release.released


@pytest.fixture(scope="module")
def groups() -> dict[str, xr.Dataset]:
    return {kind: group_of(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def pages(groups) -> dict[str, str]:
    return {k: statement_html(g, conditional=k == "undeclared") for k, g in groups.items()}


class Page(HTMLParser):
    """Reads a document, and fails where a tag is left open, or closed out of turn."""

    def __init__(self, raw: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.tables: list[dict[str, Any]] = []
        self.terms: list[list[str]] = []
        self.captions: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.said: dict[str, str] = {}  # text of each element with an id
        self.ids: list[str | None] = []
        self.text = self.note = self.title = ""
        assert raw.startswith("<!DOCTYPE html>\n")
        self.feed(raw)
        self.close()
        assert not self.open and not self.rawdata

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.tags.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        self.ids.append(dict(attrs).get("id"))
        if tag == "table":
            self.tables.append({"caption": "", "head": [], "rows": []})
        elif tag == "tr" and "tbody" in self.open:
            self.tables[-1]["rows"].append([])
        elif tag in ("th", "td"):
            row = self.tables[-1]["rows"][-1] if "tbody" in self.open else self.tables[-1]["head"]
            row.append("")
        elif tag in ("dt", "dd"):
            self.terms.append([""]) if tag == "dt" else self.terms[-1].append("")
        elif tag == "figcaption":
            self.captions.append("")
        elif re.fullmatch("h[1-6]", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open  # a slash closes nothing else in HTML
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.ids.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        data = re.sub(r"\s+", " ", data)  # as a browser shows it
        for name in filter(None, self.ids):
            self.said[name] = self.said.get(name, "") + data
        if "svg" in self.open:
            return
        if "head" in self.open:
            self.title += data
            return
        self.text += data
        if "header" in self.open:
            self.note += data
        if "figcaption" in self.open:
            self.captions[-1] += data
        elif "caption" in self.open:
            self.tables[-1]["caption"] += data
        elif {"th", "td"} & set(self.open):
            part = self.tables[-1]["rows"][-1] if "tbody" in self.open else self.tables[-1]["head"]
            part[-1] += data
        elif {"dt", "dd"} & set(self.open):
            self.terms[-1][-1] += data
        elif self.open and re.fullmatch("h[1-6]", self.open[-1]):
            level, words = self.headings[-1]
            self.headings[-1] = level, words + data

    def table(self, start: str) -> dict[str, list[str]]:
        """Rows of the table whose caption starts so, by their first cell."""
        [found] = [t for t in self.tables if t["caption"].startswith(start)]
        return {first: rest for first, *rest in found["rows"]}

    def section(self, name: str) -> str:
        """Text from a heading to the next."""
        names = [words for level, words in self.headings if level == 2]
        _, _, after = self.text.partition(name)
        following = names[names.index(name) + 1 :][:1]
        return after.partition(following[0])[0] if following else after


def masked(raw: str, group: xr.Dataset) -> str:
    return raw.replace(group.attrs.get("created_at", "never"), "?")


# The document -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_well_formed_accessible_and_loads_nothing(pages, kind) -> None:
    raw = pages[kind]
    parsed = Page(raw)
    tags = parsed.tags
    assert dict(tags)["html"] == {"lang": "en"}
    assert not {"script", "img", "link", "iframe", "object", "a", "base"} & {t for t, _ in tags}
    names = {name for _, attrs in tags for name in attrs}
    assert not [n for n in names if n.startswith("on") or n in ("src", "srcset", "action", "data")]
    references = [v for _, attrs in tags for k, v in attrs.items() if k.endswith("href")]
    assert all(v.startswith("#") for v in references)
    urls = re.findall(r"url\(([^)]*)\)", raw)
    assert all(url.startswith("#") for url in urls)
    # Addresses that sources mention are words: nowhere but in text.
    assert "http" not in "".join(f"{v}" for t, a in tags for v in a.values() if t != "meta")
    style = raw.split("<style>")[1].split("</style>")[0]
    assert "@import" not in style and "http" not in style
    policy = [a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]

    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = [v[1:] for v in references] + [url[1:] for url in urls]
    labels = [name for _, a in tags for name in (a.get("aria-labelledby") or "").split()]
    assert set(used) | set(labels) <= set(ids)
    assert all(parsed.said[name].strip() for name in labels)
    levels = [level for level, _ in parsed.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all(attrs["scope"] in ("row", "col") for tag, attrs in tags if tag == "th")
    for table in parsed.tables:
        assert table["caption"] and table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["head"])}
    pictures = [attrs for tag, attrs in tags if tag == "svg"]
    assert len(pictures) >= 2
    assert all(a["role"] == "img" and len(a["aria-labelledby"].split()) == 2 for a in pictures)
    for scrolling in [a for _, a in tags if a.get("class") == "scroll"]:
        assert scrolling["tabindex"] == "0" and scrolling["aria-label"]


def test_colours_have_contrast_on_light_and_on_dark(pages) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    def contrast(one: str, two: str) -> float:
        low, high = sorted([luminance(one), luminance(two)])
        return (high + 0.05) / (low + 0.05)

    assert round(contrast("#000000", "#ffffff"), 6) == 21
    grounds = re.findall(r":root\{color-scheme:(\w+);(.*?)\}", pages["formal"])
    assert [name for name, _ in grounds] == ["light", "dark"]
    for _, rules in grounds:
        colours = dict(rule.removeprefix("--").split(":") for rule in rules.split(";"))
        for ground in ("paper", "panel"):
            # WCAG 2.2: 4.5 for text (1.4.3), 3 for lines and dots (1.4.11).
            assert all(
                contrast(colours[t], colours[ground]) > 4.5 for t in ("ink", "quiet", "link")
            )
        assert all(contrast(c, colours["paper"]) > 3 for c in (BLUE, VERMILLION, colours["line"]))


def test_text_from_outside_is_escaped(pages) -> None:
    raw, parsed = pages["formal"], Page(pages["formal"])
    assert not re.search("<script|<b>|<i>", raw)
    assert set(parsed.table("Prices by area")) == set(AREA)
    sources = [row[0] for row in parsed.table("Declared public").values()]
    wanted = [*DECLARED.values()]
    assert sources == [*wanted[:4], "none needed", *wanted[4:]]
    # Right-to-left labels turn nothing around them.
    assert raw.count("<bdi>\u202e") == raw.count("\u202e")


def test_record_with_markup_in_every_text_is_escaped(groups) -> None:
    def poison(value: Any) -> Any:
        if isinstance(value, str):
            return f"<u>'\"&amp;{value}</u>"
        if isinstance(value, dict):
            return {k: poison(v) for k, v in value.items()}
        return value

    group = groups["calibrated"]
    record = read_record(group.attrs)
    ours = ("claim", "claim_words", "variance_components", "mechanism")
    record = {k: v if k in ours else poison(v) for k, v in record.items()}
    record["<u>new</u>"] = 1
    attrs = {k: poison(v) for k, v in group.attrs.items()} | {"privacy": to_json(record)}
    raw = statement_html(group.assign_attrs(attrs))
    assert "<u>" not in raw and "&lt;u&gt;new&lt;/u&gt;" in raw
    assert "<u>'\"&amp;household</u>" in Page(raw).text


def test_page_of_a_release_is_that_of_its_group_drawn_or_not() -> None:
    release = release_of(DECLARED)
    assert statement_html(release) == statement_html(release.guarantee)
    release.draw()
    assert statement_html(release) == statement_html(release.released)


# What it must not say -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_page_does_not_depend_on_the_direct_estimates(groups, pages, kind) -> None:
    other = group_of(kind, OTHER)
    page = statement_html(other, conditional=kind == "undeclared")
    assert masked(page, other) == masked(pages[kind], groups[kind])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "planned"])
def test_page_of_a_release_is_that_of_its_public_file(groups, pages, kind, tmp_path) -> None:
    """So it shows nothing that the public file withholds."""
    conditional = kind == "undeclared"
    write_public(groups[kind], tmp_path / "a.nc", conditional=conditional)
    container = read_public(tmp_path / "a.nc")
    assert statement_html(container, conditional=conditional) == pages[kind]
    assert statement_html(container["private_release"], conditional=conditional) == pages[kind]


def traces(*values: Any, least: int) -> set[str]:
    """Numbers as shares and as percentages, written with `least` significant digits and more."""
    numbers = [abs(v) for v in np.concatenate([np.ravel(v) for v in values]) if np.isfinite(v)]
    return {
        text
        for v in numbers
        for digits in range(least, 13)
        for text in (f"{v:.{digits}f}", f"{100 * v:.{digits - 2}f}")
        if len(text.replace(".", "").lstrip("0")) >= least
    }


@pytest.mark.parametrize("kind", KINDS)
def test_no_estimate_posterior_mean_or_released_value_is_on_the_page(groups, pages, kind) -> None:
    group = groups[kind]
    mean = read_model(_model(ESTIMATE)).posterior.mean(ESTIMATE)
    drawn = [group[n].values for n in ("theta", "theta_smoothed") if n in group]
    raw = pages[kind]
    told = re.findall("(?s)<desc[^>]*>(.*?)</desc>", raw)
    assert len(told) >= 2
    text = re.sub("<[^>]*>", " ", re.sub("(?s)<svg.*?</svg>|<style.*?</style>", " ", raw))
    # Text has four digits, and coordinates of pictures six places: no longer one arises by chance.
    for least, words in ((5, f"{text} {told}"), (9, raw)):
        looks = traces(ESTIMATE, mean, *drawn, least=least)
        assert not {look for look in looks if look in words}
        assert {
            look for look in looks if look in f"{words} {ESTIMATE[0]:.10f}"
        }  # it would be found


def test_figures_that_would_give_inputs_away_are_left_out(groups, pages) -> None:
    group, page = groups["undeclared"], pages["undeclared"]
    tokens = set(re.findall(r"\d[\d.e+-]*\d", Page(page).text))
    whole = {round_up(v) for n in ("rho", "mu", "epsilon", "rdp") for v in group[n].values.ravel()}
    for name, (dims, inputs) in VARIABLES.items():
        if "area" in dims and inputs:
            shown = {round_up(v) for v in np.abs(group[name].values).ravel() if v > 0}
            assert not (shown - whole) & tokens, name
    parsed = Page(page)
    assert not [t for t in parsed.tables if t["caption"].startswith("Prices by area")]
    rows = parsed.table("Omitted, because")
    named = {n for [cell] in rows.values() for n in cell.split(", ")}
    assert named == {name for name, (_, inputs) in VARIABLES.items() if inputs}
    assert "No interval" in parsed.section("What a reader of the public file may compute")


def test_page_does_not_change_with_undeclared_inputs_beyond_the_joint_figures(monkeypatch) -> None:
    """Permuted areas have the same joint price; nothing else of the inputs shows."""
    first = group_of("undeclared")
    order = np.array([8, 7, 6, 3, 4, 5, 2, 1, 0])  # the area without sample stays
    for name, values in {"VARIANCE": VARIANCE, "SENSITIVITY": SENSITIVITY}.items():
        monkeypatch.setitem(globals(), name, values[order])
    monkeypatch.setitem(globals(), "COVARIATE", COVARIATE[order])
    second = group_of("undeclared")
    assert not np.allclose(first["posterior_sd"], second["posterior_sd"])
    pages = [masked(statement_html(g, conditional=True), g) for g in (first, second)]
    assert pages[0] == pages[1]


# What it must say ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_those_of_the_record_rounded_up(groups, pages, kind) -> None:
    group, parsed = groups[kind], Page(pages[kind])
    price = parsed.table("Price of")
    pairs = [(price[name][0], group[name].item()) for name in ("rho", "mu")]
    epsilons = parsed.table("Epsilon of")
    assert [float(delta) for delta in epsilons] == list(group["delta"].values)
    for shown, exact, zcdp in zip(
        epsilons.values(), group["epsilon"].values, group["epsilon_zcdp"].values, strict=True
    ):
        pairs += [(shown[0], exact), (shown[1], zcdp)]
    if kind not in ("undeclared", "formal, some"):
        name = "rho_independent" if kind == "independent" else "rho_respondent"
        rows = parsed.table("Prices by area")
        assert set(rows) == set(AREA)
        shown_prices = [float(row[0]) for row in rows.values()]
        assert shown_prices == sorted(shown_prices, reverse=True)
        for area, (rho, chance, alone) in rows.items():
            at = group.sel(area=area)
            pairs += [(rho, at[name].item()), (chance, advantage(at[name].item()))]
            pairs += [(alone, at["epsilon_area"].sel(delta=1e-6).item())]
    # Four digits, rounded up: never below, and above by less than one in the fourth.
    for shown, value in pairs:
        assert value <= float(shown) <= value * (1 + 1e-3)
    short = parsed.section("In short")
    assert f"rho = {round_up(group['rho'].item())} " in short
    assert f"epsilon = {round_up(group['epsilon'].sel(delta=1e-6).item())} at delta = 1e-6" in short


@pytest.mark.parametrize("kind", KINDS)
def test_attack_figures_are_the_gaussian_trade_off_rounded_up(groups, pages, kind) -> None:
    rho, parsed = groups[kind]["rho"].item(), Page(pages[kind])
    rows = parsed.table("What an attack can reach")
    assert list(rows) == ["1 %", "5 %"]
    with mpmath.workdps(30):
        mu = mpmath.sqrt(2 * mpmath.mpf(rho))
        best = 2 * mpmath.ncdf(mu / 2) - 1
        for rate, (shown, guess) in rows.items():
            wrong = mpmath.mpf(rate[:-2]) / 100
            quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * wrong - 1)
            most = 100 * mpmath.ncdf(quantile + mu)
            assert most <= mpmath.mpf(shown[:-2]) <= most * (1 + mpmath.mpf("1e-3"))
            assert guess == rate
    [shown] = re.findall(r"between the two rates: at most ([\d.]+) ", parsed.text)
    assert best <= float(shown) <= best * (1 + 1e-3)
    [right] = re.findall(r"right with a probability of at most ([\d.]+) ", parsed.text)
    assert (1 + best) / 2 <= float(right) <= (1 + best) / 2 * (1 + 2e-3)


def test_largest_gap_of_the_trade_off_is_the_advantage() -> None:
    wrong = np.linspace(0, 1, 200_001)
    for mu in (0.01, 0.5, 1.5, 4.0):
        gap = true_positive_rate(mu, wrong) - wrong
        # The best rate lies within half a step of the grid, where the gap is flat to second order.
        assert gap.max() == pytest.approx(advantage(mu**2 / 2), rel=1e-6)
    assert true_positive_rate(0.0, 0.3) == pytest.approx(0.3, rel=1e-11)
    assert true_positive_rate(math.inf, 0.01) == 1
    assert true_positive_rate(40.0, 0.5) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_claim_stands_in_words_beside_every_figure(groups, pages, kind) -> None:
    parsed, record = Page(pages[kind]), read_record(groups[kind].attrs)
    words, claim = record["claim_words"], record["claim"]
    assert (words == CONDITIONAL) == (kind == "undeclared")
    assert f"Claim: {words}" in parsed.note
    starts = ("Price of", "Epsilon of", "What an attack", "Prices by area")
    figures = [t for t in parsed.tables if t["caption"].startswith(starts)]
    assert len(figures) >= 3
    for table in figures:
        assert table["caption"].endswith(words)
        numeric = [h for h in table["head"][1:] if h not in ("meaning", "a guess")]
        assert numeric and all(h.endswith(f"({claim})") for h in numeric)
    assert all(caption.endswith(f"Claim: {words}.") for caption in parsed.captions)
    descriptions = [text for name, text in parsed.said.items() if name.endswith("-description")]
    assert len(descriptions) == len(parsed.captions)
    assert all(text.endswith(f"{words}.") for text in descriptions)
    assert parsed.section("In short").count(f"Claim: {words}") == 2
    assert ("\N{WARNING SIGN}" in parsed.note) == (claim == "conditional")
    if claim == "formal":
        assert CONDITIONAL not in parsed.text and "(conditional)" not in parsed.text
    else:
        assert "(formal)" not in parsed.text and "sampling_variance and sigma_u" in parsed.note


def test_terms_of_the_claim_are_all_there(groups, pages) -> None:
    terms = dict(Page(pages["formal"]).terms)
    group = groups["formal"]
    versions = read_record(group.attrs)["versions"]
    assert terms["Neighbouring data sets"] == NEIGHBOURS
    assert (terms["Unit"], terms["Areas"], terms["Draws"]) == ("household", str(M), "1")
    assert terms["Drawn"] == group.attrs["created_at"] + " (UTC)"
    assert terms["Software"].startswith(f"pymc_dp {versions['pymc_dp']} with ")
    assert f"opendp {versions['opendp']}" in terms["Software"]
    assert terms["Declared range of the outcome"] == "0 to 1"
    assert terms["Mechanism"].startswith("joint") and terms["Calibrated"] == "no"
    calibrated = dict(Page(pages["calibrated"]).terms)["Calibrated"]
    assert calibrated.startswith("to rho 0.01 by the method temper; ")
    undeclared = [row[0] for row in Page(pages["undeclared"]).table("Declared public").values()]
    assert undeclared == ["not declared"] * 4 + ["none needed", "not declared"]
    twice = Page(pages["twice"])
    assert dict(twice.terms)["Draws"] == "2" and "2 draws were released" in twice.text
    for text in ("variance is zero", "Another draw", "same file"):
        assert text in twice.section("What voids the guarantee")


def test_plan_says_that_nothing_has_been_drawn(pages) -> None:
    parsed = Page(pages["planned"])
    assert parsed.title.strip().startswith("Planned")
    terms = dict(parsed.terms)
    assert terms["State"] == "planned: nothing has been drawn" and "Drawn" not in terms
    assert "one draw would be released" in parsed.text
    assert "Planned" not in pages["formal"] and "would be released" not in pages["formal"]


def test_page_of_noisy_direct_estimates_speaks_of_them_and_of_no_posterior() -> None:
    release = release_of(DECLARED, mechanism="noisy-direct", rho=0.1)
    planned = Page(statement_html(release))
    assert planned.title.strip().startswith("Planned")
    release.draw()
    assert release.released is not None
    raw = statement_html(release)
    parsed = Page(raw)
    terms = dict(parsed.terms)
    assert terms["Mechanism"].startswith("noisy-direct: direct estimates")
    assert "released: the direct estimate plus random noise" in parsed.section("In short")
    rows = parsed.table("Prices by area")
    price = release.released["rho_respondent"]
    assert set(rows) == set(AREA)
    for area, (rho, *_) in rows.items():
        value = price.sel(area=area).item()
        assert value <= float(rho) <= value * (1 + 1e-3)
    said = parsed.section("What a reader of the public file may compute")
    assert "noisy_direct plus or minus z" in said and "2 Sigma" not in said
    shown = traces(release.released["noisy_direct"].values, least=5)
    assert not {look for look in shown if look in parsed.text}


@pytest.mark.parametrize("kind", ["formal", "independent", "calibrated"])
def test_readers_learn_the_intervals_that_they_may_compute(groups, pages, kind) -> None:
    said = Page(pages[kind]).section("What a reader of the public file may compute")
    half = 1.6448536 * groups[kind]["theta_smoothed_sd"].values
    shown = re.search(r"median ([\d.e-]+), from ([\d.e-]+) to ([\d.e-]+)\.", said)
    assert shown is not None
    found = [float(v) for v in shown.groups()]
    # Three digits, and a quantile of four.
    assert found == pytest.approx([np.median(half), half.min(), half.max()], rel=6e-3)
    # A calibrated release is no draw from the posterior of the data: then 2 Sigma is wrong.
    assert ("2 Sigma" in said) == (kind != "calibrated")


def test_two_sigma_is_what_the_draw_misses_the_truth_by(groups) -> None:
    """The rule that readers are given, simulated: 90 % of intervals hold the truth."""
    rng, trials = np.random.default_rng(4), 20_000
    posterior = read_model(_model(ESTIMATE)).posterior
    sd = groups["formal"]["posterior_sd"].values
    theta = 0.2 + 0.03 * COVARIATE + 0.05 * rng.normal(size=(trials, M))
    y = np.where(
        posterior.precision > 0, theta + np.sqrt(VARIANCE) * rng.normal(size=theta.shape), 0
    )
    draw = posterior.mean(y) + sd * rng.normal(size=theta.shape)  # each area by itself
    covered = np.mean(np.abs(draw - theta) <= 1.6448536 * np.sqrt(2) * sd, axis=0)
    # Five standard errors of a share of 0.9 in 20,000: 0.0106.
    assert covered == pytest.approx(np.full(M, 0.9), abs=0.0107)


# Many areas ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> xr.Dataset:
    m = 2462
    rng = np.random.default_rng(1)
    labels = [f"{i:07d} county & city" for i in range(m)]
    direct = xr.Dataset(
        {
            "estimate": ("area", rng.uniform(0, 0.3, m)),
            "variance": ("area", rng.uniform(1e-4, 1e-3, m)),
        },
        coords={"area": labels},
        attrs={"bounds": [0.0, 1.0]},
    )
    s = xr.DataArray(rng.uniform(0.003, 0.02, m), dims="area", coords={"area": labels})
    release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), s, assumptions=DECLARED)
    release.draw()
    assert release.released is not None
    return release.released


def test_page_of_many_areas_is_light_and_its_table_folded(many, pages) -> None:
    raw = statement_html(many)
    parsed = Page(raw)
    assert len(parsed.table("Prices by area")) == 2462
    # A page that a board can mail: measured 0.6 MB.
    assert len(raw.encode()) < 1_000_000
    assert [a for t, a in parsed.tags if t == "details"] == [{}]
    assert [a for t, a in Page(pages["formal"]).tags if t == "details"] == [{"open": None}]


# Writing ------------------------------------------------------------------------------------


def test_page_is_written_whole_under_its_name_alone(groups, pages, tmp_path) -> None:
    target = tmp_path / "statement.html"
    container = io.attach(io.new_container(), groups["formal"].copy(deep=True))
    write_statement(container, target)
    assert target.read_bytes().decode("utf-8") == pages["formal"]
    assert os.listdir(tmp_path) == ["statement.html"]


def test_nothing_is_overwritten_and_no_odd_path_taken(groups, tmp_path) -> None:
    group = groups["formal"]
    (tmp_path / "file.html").write_text("kept")
    (tmp_path / "folder.html").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "link.html")
    before = sorted(os.listdir(tmp_path))
    for name in ("file.html", "folder.html", "link.html"):
        with pytest.raises(FileExistsError):
            write_statement(group, tmp_path / name)
    with pytest.raises(FileNotFoundError):
        write_statement(group, tmp_path / "none" / "a.html")
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write_statement(group, tmp_path / "a.pdf")
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file.html").read_text() == "kept"


def test_conditional_claim_is_written_only_when_asked_for(groups, tmp_path) -> None:
    release = release_of({"sigma_u": "x"})
    for group in (groups["undeclared"], release.guarantee):
        with pytest.raises(ValueError, match="conditional=True"):
            write_statement(group, tmp_path / "a.html")
    assert not os.listdir(tmp_path)
    write_statement(groups["undeclared"], tmp_path / "a.html", conditional=True)


def test_missing_numbers_are_refused(groups, tmp_path) -> None:
    formal = groups["formal"]
    names = [str(name) for name in formal.data_vars]
    assert len(names) >= 15
    for name in names:
        group = formal.copy(deep=True)
        group[name] = group[name].copy(data=np.full(group[name].shape, np.nan))
        with pytest.raises(ValueError, match=f"^{name} has .* missing"):
            write_statement(group, tmp_path / "a.html")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("planned", [False, True])
def test_release_without_figures_by_area_has_a_page_without_them(groups, planned) -> None:
    """As where kinds of record are not one an area, and nothing can be smoothed."""
    group = groups["planned" if planned else "formal"]
    absent = ["rho_respondent", "rho_independent", "theta_smoothed", "theta_smoothed_sd"]
    if not planned:
        absent = absent[:2]
    parsed = Page(statement_html(group.drop_vars(absent, errors="ignore")))
    assert not [t for t in parsed.tables if t["caption"].startswith("Prices by area")]
    assert "Figures for single areas are not published." in parsed.section("Area by area")
    said = parsed.section("What a reader of the public file may compute")
    assert ("theta_smoothed_sd" in said) == (not planned) and "2 Sigma" in said


def test_what_is_no_release_is_refused(groups, tmp_path) -> None:
    formal = groups["formal"]
    with pytest.raises(ValueError, match="lacks theta"):
        write_statement(formal.drop_vars("theta"), tmp_path / "a.html")
    with pytest.raises(ValueError, match="no part of a release"):
        write_statement(formal.assign(y=("area", ESTIMATE)), tmp_path / "a.html")
    with pytest.raises(ValueError, match="lacks rho"):
        write_statement(groups["planned"].drop_vars("rho"), tmp_path / "a.html")
    with pytest.raises(ValueError, match="its variance components make it"):
        record = read_record(groups["undeclared"].attrs) | {"claim": "formal"}
        forged = groups["undeclared"].assign_attrs(privacy=json.dumps(record))
        write_statement(forged, tmp_path / "a.html", conditional=True)
    with pytest.raises(TypeError, match="not DataFrame"):
        write_statement(pd.DataFrame(), tmp_path / "a.html")
    assert not os.listdir(tmp_path)


def test_price_without_bound_or_of_nothing_has_no_picture() -> None:
    direct = xr.Dataset(
        {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
        coords={"area": ["a", "b"]},
    )
    release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), 0.02, assumptions=DECLARED)
    for rho, shown in ((np.inf, "Infinity"), (0.0, "0")):
        group = release.guarantee
        for name in [n for n in group if group[n].attrs.get("claim")]:
            group[name].values[...] = rho
        parsed = Page(statement_html(group))
        assert float(parsed.table("Price of")["rho"][0]) == float(shown)
        assert "svg" not in {tag for tag, _ in parsed.tags}


# In a browser -------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Measures itself: how wide it is against the window, whether the style took hold, what loaded.
PROBE = """<script>addEventListener("load", () => {
const root = document.documentElement, style = getComputedStyle(document.body)
document.title = JSON.stringify({wide: root.scrollWidth, window: innerWidth,
margin: style.paddingLeft, loaded: performance.getEntriesByType("resource").length,
focus: [...document.querySelectorAll("*")].filter(e => e.tabIndex >= 0).length})
})</script></body>"""


@pytest.mark.parametrize("kind, width", [("formal", 1000), ("formal", 380), ("undeclared", 380)])
def test_browser_shows_the_page_without_sideways_scrolling(pages, tmp_path, kind, width) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium here to show the page in")
    # The probe alone needs scripts; the page itself allows none.
    page = pages[kind].replace(
        "default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'"
    )
    (tmp_path / "a.html").write_text(page.replace("</body>", PROBE), encoding="utf-8")
    # A window on a screen has a least width; a frame has not.
    frame = f'<iframe src="a.html" style="width:{width}px;height:600px;border:0"></iframe>'
    copy = """<script>setInterval(() => {
    document.title = document.querySelector("iframe").contentDocument.title}, 20)</script>"""
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><title>wait</title>{frame}{copy}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    [title] = re.findall("<title>(.*?)</title>", done.stdout)
    measured = json.loads(title.replace("&quot;", '"'))
    assert measured["window"] == width
    assert measured["wide"] <= width
    assert measured["margin"] == ("16px" if width > 480 else "12.8px")
    assert measured["loaded"] == 0
    # By keyboard: the fold and its table, which is long enough to scroll.
    assert measured["focus"] == (2 if kind == "formal" else 0)
