"""The HTML of a release: what it says, that it is well formed, and what it never says."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp._checks import round_up
from pymc_dp.models.builder import fay_herriot
from pymc_dp.publish.notebook import release_html
from pymc_dp.record.claims import ASSUMPTIONS, CONDITIONAL, NEIGHBOURS, read_record
from pymc_dp.release.release import PrivateRelease

SCRIPT = "<script>alert('x')</script> & \"sons\""
AREAS = ["north", SCRIPT, "south", "east", "no sample"]
ESTIMATE = np.array([0.21743, 0.31872, 0.15391, 0.27134, np.nan])
SENSITIVITY = np.array([0.02, 0.09, 0.03, 0.025, np.nan])
PUBLIC = {"sigma_u": "<i>earlier survey</i>", "sampling_variance": "public rate & weights"}
TAGS = {"div", "style", "p", "strong", "table", "caption", "thead", "tbody", "tr", "th", "td"}


def make(
    estimate: np.ndarray = ESTIMATE,
    mechanism: Any = "joint",
    unit: str = "record",
    **assumptions: str,
) -> PrivateRelease:
    direct = xr.Dataset(
        {
            "estimate": ("area", estimate),
            "variance": ("area", [0.001, 0.004, 0.002, 0.0015, np.nan]),
        },
        coords={"area": AREAS},
    )
    sensitivity = xr.DataArray(
        SENSITIVITY, dims="area", coords={"area": AREAS}, attrs={"bounds": (0, 1), "unit": unit}
    )
    model = fay_herriot(direct, sigma_u=0.04)
    return PrivateRelease(model, sensitivity, mechanism=mechanism, assumptions=assumptions)


@pytest.fixture(scope="module")
def conditional() -> PrivateRelease:
    return make(sigma_u="earlier survey")


@pytest.fixture(scope="module")
def formal() -> PrivateRelease:
    return make(unit="<b>household</b>", **PUBLIC)


class Page(HTMLParser):
    """Tables and text of a fragment; fails where a tag is left open or closed out of turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[dict[str, Any]] = []
        self.text = ""
        self.note = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append({"caption": "", "rows": []})
        elif tag == "tr":
            self.tables[-1]["rows"].append([])
        elif tag in ("th", "td"):
            self.tables[-1]["rows"][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        data = re.sub(r"\s+", " ", data)  # as a browser shows it
        self.text += data
        if "caption" in self.open:
            self.tables[-1]["caption"] += data
        elif self.open[-1] in ("th", "td"):
            self.tables[-1]["rows"][-1][-1] += data
        elif any(attrs.get("role") == "note" for _, attrs in self.tags) and not self.tables:
            self.note += data

    def table(self, start: str) -> dict[str, list[str]]:
        """Rows of the table whose caption starts so, by their first cell."""
        [found] = [t for t in self.tables if t["caption"].startswith(start)]
        return {first: rest for first, *rest in found["rows"]}


def page(release: PrivateRelease) -> Page:
    return Page(release._repr_html_())


def test_fragment_is_well_formed_self_contained_and_accessible(conditional, formal) -> None:
    for release in (conditional, formal):
        parsed = page(release)
        assert {tag for tag, _ in parsed.tags} <= TAGS
        names = {name for _, attrs in parsed.tags for name in attrs}
        assert names <= {"class", "role", "aria-label", "scope"}
        assert all(attrs["scope"] in ("row", "col") for tag, attrs in parsed.tags if tag == "th")
        assert all(table["caption"] for table in parsed.tables)
        assert parsed.tags[0][1]["aria-label"] == "Private release: theta of 5 areas"
    style = release._repr_html_().split("</style>")[0]
    assert "url(" not in style and "@import" not in style


def test_text_from_outside_is_escaped(formal) -> None:
    raw = formal._repr_html_()
    assert "<script" not in raw and "<b>" not in raw and "<i>" not in raw
    parsed = page(formal)
    assert parsed.table("Price")["rho, worst area"][1] == f"for a <b>household</b> of {SCRIPT}"
    assert parsed.table("What is")["Protected unit"] == ["<b>household</b>"]
    assert parsed.table("Declared public")["sigma_u"] == [PUBLIC["sigma_u"]]


def test_record_with_markup_in_every_text_is_escaped(conditional) -> None:
    def poison(value: Any) -> Any:
        return f"<u>{value}</u>" if isinstance(value, str) else value

    guarantee = conditional.guarantee
    record = {k: poison(v) for k, v in read_record(guarantee.attrs).items()}
    record["variance_components"] = {"<u>s</u>": "<u>how</u>"}
    record["assumptions"] = {"<u>what</u>": "<u>source</u>"}
    record["mechanism"] = "joint"
    parsed = Page(release_html(guarantee, record, drawn=False))
    assert "u" not in {tag for tag, _ in parsed.tags}
    assert "<u>s</u> is <u>how</u>" in parsed.note
    assert parsed.table("Declared public")["<u>what</u>"] == ["<u>source</u>"]


def test_conditional_claim_stands_in_words_at_every_figure(conditional) -> None:
    parsed = page(conditional)
    assert f"Claim: {CONDITIONAL}" in parsed.note
    assert "sampling_variance is not declared public: plug-in" in parsed.note
    assert "sigma_u is declared public" in parsed.note
    assert parsed.table("Price")["Figure"][0] == "Value (conditional)"
    assert [head.endswith("(conditional)") for head in parsed.table("Epsilon")["delta"]] == [
        True
    ] * 2
    figures = [t["caption"] for t in parsed.tables if t["caption"].startswith(("Price", "Epsilon"))]
    assert len(figures) == 2 and all(caption.endswith(CONDITIONAL) for caption in figures)


def test_conditional_claim_is_marked_by_a_sign_and_a_frame_and_the_formal_one_is_not(
    conditional, formal
) -> None:
    assert "\N{WARNING SIGN}" in page(conditional).note
    assert "\N{WARNING SIGN}" not in page(formal).note
    rule = "pymc-dp-conditional{border-style:dashed"
    assert rule in conditional._repr_html_()
    classes = [attrs.get("class") or "" for _, attrs in page(conditional).tags]
    assert sum("pymc-dp-conditional" in c for c in classes) == 1
    assert not any("pymc-dp-conditional" in (a.get("class") or "") for _, a in page(formal).tags)


def test_formal_claim_says_nothing_of_conditions(formal) -> None:
    parsed = page(formal)
    assert "Claim: formal" in parsed.note
    assert "conditional" not in parsed.text
    assert parsed.table("Price")["Figure"][0] == "Value (formal)"


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
def test_figures_are_those_of_the_guarantee_rounded_up(mechanism) -> None:
    release = make(mechanism=mechanism, **PUBLIC)
    g, parsed = release.guarantee, page(release)
    price = g["rho_respondent" if mechanism == "joint" else "rho_independent"].values
    sampled = price[:4]
    prices = parsed.table("Price")
    assert prices["rho, worst area"][1] == f"for a record of {AREAS[int(price.argmax())]}"
    assert "half of the 4 sampled areas" in prices["rho, median area"][1]
    pairs = [
        (prices["rho"][0], float(g["rho"])),
        (prices["mu"][0], float(g["mu"])),
        (prices["rho, worst area"][0], sampled.max()),
        (prices["rho, median area"][0], float(np.median(sampled))),
    ]
    epsilons = parsed.table("Epsilon")
    assert [float(delta) for delta in list(epsilons)[1:]] == list(g["delta"].values)
    for (exact, zcdp), a, b in zip(
        list(epsilons.values())[1:], g["epsilon"].values, g["epsilon_zcdp"].values, strict=True
    ):
        pairs += [(exact, a), (zcdp, b)]
    # Four digits, rounded up: never below, and above by less than one in the fourth.
    for shown, value in pairs:
        assert value <= float(shown) <= value * (1 + 1e-3)
    assert parsed.table("What is")["Mechanism"][0].startswith(mechanism)


def test_terms_of_the_claim_are_all_there(conditional) -> None:
    parsed = page(conditional)
    terms = parsed.table("What is")
    assert terms["Neighbouring data sets"] == [NEIGHBOURS]
    assert terms["Protected unit"] == ["record"]
    assert terms["Areas"] == ["5"]
    assert terms["Outcome's declared range"] == ["0 to 1"]
    assert terms["Pure epsilon"][0].startswith("none")
    sources = parsed.table("Declared public")
    assert list(sources)[1:] == list(ASSUMPTIONS)
    assert sources["sigma_u"] == ["earlier survey"]
    assert sources["weights"] == ["not declared"]


def test_range_that_nobody_declared_is_called_so() -> None:
    direct = xr.Dataset(
        {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
        coords={"area": ["a", "b"]},
    )
    release = PrivateRelease(fay_herriot(direct, sigma_u=0.05), 0.02)
    assert page(release).table("What is")["Outcome's declared range"] == ["not declared"]


def test_several_draws_are_priced_together(conditional) -> None:
    guarantee = conditional.guarantee
    record = read_record(guarantee.attrs) | {"draws": 3}
    parsed = Page(release_html(guarantee, record, drawn=True))
    assert "3 draws together" in parsed.tables[1]["caption"]
    assert "one draw" not in parsed.tables[1]["caption"] + parsed.tables[2]["caption"]


def test_html_does_not_depend_on_the_direct_estimates(conditional) -> None:
    moved = make(estimate=ESTIMATE[::-1][[1, 2, 3, 4, 0]] * 0.7, sigma_u="earlier survey")
    assert moved._repr_html_() == conditional._repr_html_()


def test_draw_changes_nothing_but_the_state() -> None:
    release = make(sigma_u="earlier survey")
    before = release._repr_html_()
    assert page(release).table("What is")["State"] == ["not drawn yet"]
    release.draw()
    assert page(release).table("What is")["State"] == ["drawn"]
    assert release._repr_html_() == before.replace("<td>not drawn yet</td>", "<td>drawn</td>")


@given(st.floats(min_value=1e-300, max_value=1e300))
@settings(max_examples=200, deadline=None)
def test_rounding_is_upward_within_four_digits(value: float) -> None:
    shown = Decimal(round_up(value))
    assert Decimal(value) <= shown <= Decimal(value) * Decimal("1.001")
    assert len(shown.normalize().as_tuple().digits) <= 4


def test_infinite_price_and_no_price_keep_their_meaning() -> None:
    assert float(round_up(math.inf)) == math.inf
    assert float(round_up(0.0)) == 0.0
