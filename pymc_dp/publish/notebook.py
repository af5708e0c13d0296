"""What a notebook shows of a release: its claim and its prices, as HTML.

Prices and the record only. Text from outside is escaped, and every price says its kind of claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp._checks import round_up
from pymc_dp.record.claims import ASSUMPTIONS, mechanism_words
from pymc_dp.record.figures import draws_in_words, record_price

# Greys that are visible on white and on black; everything else is the notebook's own colour.
STYLE = """
.pymc-dp{color:inherit;background:transparent;max-width:46em;line-height:1.4;overflow-x:auto}
.pymc-dp p{margin:.4em 0}
.pymc-dp .pymc-dp-title{font-size:1.1em;font-weight:bold}
.pymc-dp .pymc-dp-claim{border:1px solid rgba(128,128,128,.7);border-left-width:.5em;
padding:.3em .7em}
.pymc-dp .pymc-dp-conditional{border-style:dashed;border-left-style:double;border-width:2px;
border-left-width:.6em}
.pymc-dp table{color:inherit;border-collapse:collapse;table-layout:auto;margin:.8em 0;
width:100%}
.pymc-dp caption{caption-side:top;text-align:left;font-weight:bold;color:inherit;padding:.2em 0}
.pymc-dp tr,.pymc-dp tbody tr:nth-child(odd),.pymc-dp tbody tr:nth-child(even),
.pymc-dp tbody tr:hover{background:transparent;color:inherit}
.pymc-dp th,.pymc-dp td{text-align:left;vertical-align:top;padding:.25em .7em .25em 0;
border:0;border-bottom:1px solid rgba(128,128,128,.35);white-space:normal;
overflow-wrap:break-word;font-variant-numeric:tabular-nums}
.pymc-dp th{font-weight:600}
.pymc-dp tbody th{width:13em}
""".replace("\n", "")


def release_html(guarantee: xr.Dataset, record: Mapping[str, Any], *, drawn: bool) -> str:
    """Tell the claim and the prices of a release, for a notebook.

    Parameters
    ----------
    guarantee : xr.Dataset
        As :attr:`PrivateRelease.guarantee`.
    record : dict
        Its record, as :func:`pymc_dp.record.claims.read_record` returns it.
    drawn : bool
        Whether the release has been drawn.

    Returns
    -------
    str
        A fragment of HTML that needs nothing else. Numbers are rounded up, to four digits.
    """
    areas = guarantee.sizes["area"]
    title = f"Private release: {record['target']} of {areas} areas"
    parts = [
        f"<style>{STYLE}</style>",
        f'<p class="pymc-dp-title">{escape(title)}</p>',
        _claim(record),
        _terms(record, areas, drawn=drawn),
        _prices(guarantee, record),
        _epsilons(guarantee, record),
        _assumptions(record),
        "<p>Figures are rounded up to four digits.</p>",
    ]
    # A dollar sign in a label is no mathematics to typeset.
    classes = "pymc-dp tex2jax_ignore mathjax_ignore"
    return (
        f'<div class="{classes}" role="region" aria-label="{escape(title)}">{"".join(parts)}</div>'
    )


def _claim(record: Mapping[str, Any]) -> str:
    """Tell the kind of claim by words and by the form of the frame, not by a colour."""
    if record["claim"] == "formal":
        kind, mark = "formal", ""
        text = "the variance components are public constants, by the sources below."
    else:
        kind, mark = "conditional", "&#9888;&#xFE0E; "
        meaning = {"fixed": "declared public", "plug-in": "not declared public: plug-in"}
        taken = [
            f"{name} is {meaning.get(how, how)}"
            for name, how in sorted(record["variance_components"].items())
        ]
        text = (
            "every figure below holds only as if the variance components were public constants "
            f"({'; '.join(taken)}). The true loss can be far larger."
        )
    return (
        f'<p class="pymc-dp-claim pymc-dp-{kind}" role="note">{mark}'
        f"<strong>Claim: {escape(record['claim_words'])}</strong>: {escape(text)}</p>"
    )


def _terms(record: Mapping[str, Any], areas: int, *, drawn: bool) -> str:
    rows = [
        ("State", "drawn" if drawn else "not drawn yet"),
        ("Areas", str(areas)),
        ("Protected unit", record["unit"]),
        ("Neighbouring data sets", record["neighbours"]),
        ("Mechanism", mechanism_words(record)),
        ("Outcome's declared range", _range(record["bounds"])),
        ("Pure epsilon", record["pure_epsilon"]),
    ]
    return _table("What is released, and what protected", None, rows)


def _prices(guarantee: xr.Dataset, record: Mapping[str, Any]) -> str:
    price = record_price(guarantee, record).to_series()
    price = price[price > 0]  # without sample there is no record to protect
    unit = record["unit"]
    if price.index.name == "record":
        largest, worst = "records", f"for record {price.idxmax()}"
        middle = f"half of the {price.size} kinds of record pay no more"
    else:
        largest, worst = "areas", f"for a {unit} of {price.idxmax()}"
        middle = f"in half of the {price.size} areas with a sample, a {unit} pays no more"
    rows = [
        ("rho", guarantee["rho"], f"zCDP of the whole release: the largest over the {largest}"),
        ("mu", guarantee["mu"], "Gaussian differential privacy, sqrt(2 rho)"),
        (f"rho, worst {largest[:-1]}", price.max(), worst),
        (f"rho, median {largest[:-1]}", price.median(), middle),
    ]
    return _table(
        f"Price of {draws_in_words(record)}: {record['claim_words']}",
        ("Figure", f"Value ({record['claim']})", "Meaning"),
        [(name, round_up(float(value)), meaning) for name, value, meaning in rows],
    )


def _epsilons(guarantee: xr.Dataset, record: Mapping[str, Any]) -> str:
    claim = record["claim"]
    exact, zcdp = guarantee["epsilon"], guarantee["epsilon_zcdp"]
    return _table(
        f"Epsilon of {draws_in_words(record)} at delta: {record['claim_words']}",
        ("delta", f"epsilon, exact Gaussian ({claim})", f"epsilon, from zCDP alone ({claim})"),
        [
            (np.format_float_scientific(delta, trim="-"), round_up(float(a)), round_up(float(b)))
            for delta, a, b in zip(
                guarantee["delta"].values, exact.values, zcdp.values, strict=True
            )
        ],
    )


def _assumptions(record: Mapping[str, Any]) -> str:
    declared = record["assumptions"]
    names = [*ASSUMPTIONS, *(name for name in sorted(declared) if name not in ASSUMPTIONS)]
    return _table(
        "Declared public, and by which source",
        ("What", "Source"),
        [(name, declared.get(name, "not declared")) for name in names],
    )


def _range(bounds: list[float] | None) -> str:
    return "not declared" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}"


def _table(caption: str, header: tuple[str, ...] | None, rows: Iterable[tuple[str, ...]]) -> str:
    """Make a table whose first column heads the rows."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header or ())
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption>"
        + (f"<thead><tr>{head}</tr></thead>" if head else "")
        + f"<tbody>{body}</tbody></table>"
    )
