"""The figures of a statement: the guarantee, attacks, and prices area by area."""

from __future__ import annotations

from html import escape

import numpy as np

from pymc_dp import privacy
from pymc_dp._checks import round_up
from pymc_dp.publish.facts import Facts, true_positive_rate
from pymc_dp.publish.parts import folded, paragraph, table, text
from pymc_dp.publish.pictures import attack_picture, price_picture, rdp_picture
from pymc_dp.publish.words import called, power

RATES = (0.01, 0.05)  # false positive rates of attacks
SHORT = 60  # a table of so many areas need not be opened


def guarantee(facts: Facts) -> list[str]:
    """Tell the price of the whole release: HTML."""
    public, claim = facts.public, facts.claim
    value = f"value ({claim})"
    parts = [
        table(
            f"Price of {facts.draws}, of all areas: {escape(facts.words)}",
            ("figure", value, "meaning"),
            [
                ("rho", round_up(facts.rho), "zero-concentrated differential privacy (zCDP)"),
                ("mu", round_up(public["mu"].item()), "Gaussian differential privacy"),
            ],
        ),
        table(
            f"Epsilon of {facts.draws}, of all areas: {escape(facts.words)}",
            ("delta", f"epsilon, exact ({claim})", f"epsilon, from zCDP ({claim})"),
            [
                (power(delta), round_up(exact), round_up(zcdp))
                for delta, exact, zcdp in zip(
                    public["delta"].values,
                    public["epsilon"].values,
                    public["epsilon_zcdp"].values,
                    strict=True,
                )
            ],
            kind="short",
        ),
        paragraph(
            "No result is more than e<sup>epsilon</sup> times likelier under one data set than "
            "under its neighbour, up to a probability of delta. An epsilon means nothing without "
            "its delta and its unit. Pure epsilon: "
            f"{text(facts.record.get('pure_epsilon', 'not recorded'))}."
        ),
    ]
    if facts.drawable:
        order, bound = public["order"].values, public["rdp"].values
        description = (
            f"A line rising from {round_up(bound[0])} nats at order {order[0]:g} to "
            f"{round_up(bound[-1])} nats at order {order[-1]:g}: order times rho. {facts.words}."
        )
        picture = rdp_picture(
            order, bound, title="Rényi divergence bound by order", description=description
        )
        caption = (
            f"Rényi differential privacy of {facts.draws}: at each order, the order times rho. "
            f"Claim: {escape(facts.words)}."
        )
        parts.append(_figure(picture, caption))
    return parts


def attack(facts: Facts) -> list[str]:
    """Tell what an attacker can reach: HTML."""
    unit, mu = text(facts.record.get("unit", "record")), facts.public["mu"].item()
    advantage = float(privacy.advantage(facts.rho))
    most = true_positive_rate(mu, np.array(RATES))
    parts = [
        paragraph(
            f"Give an attacker everything but the answers of one {unit}, and two candidates for "
            "those; the attacker uses the release to say which it is. The false positive rate is "
            "how often the second is named when it is the first, the true positive rate how often "
            f"when it is. The advantage, their largest difference, is at most "
            f"{round_up(advantage)} ({facts.claim}); it is 0 for a guess and 1 for certainty. With "
            f"both candidates equally likely beforehand, the attacker is right with a probability "
            f"of at most {round_up((1 + advantage) / 2)} ({facts.claim})."
        ),
        table(
            f"What an attack can reach: {escape(facts.words)}",
            ("false positive rate", f"true positive rate, at most ({facts.claim})", "a guess"),
            [
                (f"{100 * a:g} %", f"{round_up(100 * b)} %", f"{100 * a:g} %")
                for a, b in zip(RATES, most, strict=True)
            ],
            kind="short",
        ),
    ]
    if facts.drawable:
        reached = " and ".join(
            f"{round_up(100 * b)} % at {100 * a:g} %" for a, b in zip(RATES, most, strict=True)
        )
        description = (
            f"A curve above the diagonal of a guess; it passes {reached} of false positives. "
            f"{facts.words}."
        )
        picture = attack_picture(
            mu, title="True positive rate by false positive rate", description=description
        )
        caption = (
            f"No attack on {facts.draws} lies above the curve, whatever the area of the {unit}. "
            f"Claim: {escape(facts.words)}."
        )
        parts.append(_figure(picture, caption))
    return parts


def areas(facts: Facts) -> list[str]:
    """Tell the price of each area, if it may be published: HTML."""
    price, claim = facts.prices, facts.claim
    if price is None:
        missing = facts.record["left_out"].get("rho_respondent")
        why = (
            f": nobody declares {called(missing)} public, and figures by area would give them away"
            if missing
            else ""
        )
        return [
            paragraph(
                f"Figures of single areas are not published{why}. The figures above hold for "
                "every area."
            )
        ]
    dearest = np.argsort(-price.to_numpy(), kind="stable")
    price = price.iloc[dearest]
    unit, at = text(facts.record.get("unit", "record")), facts.delta
    alone = facts.public["epsilon_area"].sel(delta=at).values[dearest]
    advantage = np.asarray(privacy.advantage(price.to_numpy()))
    epsilon = f"epsilon at delta {power(at)}, area alone ({claim})"
    header = ("area", f"rho ({claim})", f"advantage ({claim})", epsilon)
    rows = [
        (text(name), round_up(rho), round_up(a), round_up(e))
        for name, rho, a, e in zip(price.index, price, advantage, alone, strict=True)
    ]
    paid = price[price > 0]
    free = price.size - paid.size
    parts = [
        paragraph(
            f"The release of all areas costs a {unit} of each area what stands under rho, and "
            "gives an attacker on it at most the advantage beside it. The last column is for "
            "publishing that area and nothing else, for the dearest unit of any area."
            + (
                f" Areas with price 0, {free} of them, have no sample, or no answer moves them."
                if free
                else ""
            )
        ),
    ]
    if facts.drawable and paid.size > 1:
        middle = round_up(np.quantile(paid, 0.5, method="higher"))
        description = (
            f"{paid.size} dots in falling order from rho {round_up(paid.iloc[0])} to "
            f"{round_up(paid.iloc[-1])}; half of them are at most {middle}. {facts.words}."
        )
        picture = price_picture(
            paid.to_numpy(), facts.rho, title="Price of each area", description=description
        )
        caption = (
            f"Price of {facts.draws} for a {unit} of each of {paid.size:,} areas, dearest first. "
            f"It is at most {middle} in half of the areas; dearest is {text(paid.index[0])}, "
            f"cheapest {text(paid.index[-1])} (rho {round_up(paid.iloc[-1])}). Claim: "
            f"{escape(facts.words)}."
        )
        parts.append(_figure(picture, caption))
    caption = f"Prices by area, dearest first: {escape(facts.words)}"
    short = price.size <= SHORT
    parts.append(
        folded(
            f"Table of all {facts.areas} areas",
            "Table of all areas",
            table(caption, header, rows),
            unfolded=short,
        )
    )
    if not short:
        parts.append('<p class="quiet screen">Open the table to have it printed.</p>')
    return parts


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
