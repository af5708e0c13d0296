"""What the statement of a release says, section by section, from what may be published of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from html import escape

import numpy as np

from pymc_dp import privacy
from pymc_dp._checks import round_up
from pymc_dp.publish.facts import Facts
from pymc_dp.publish.figures import areas, attack, guarantee
from pymc_dp.publish.parts import bullets, paragraph, section, table, terms, text
from pymc_dp.publish.words import INPUTS, VOIDS, called, power
from pymc_dp.record.claims import ASSUMPTIONS, mechanism_words

Z = {90: 1.645, 95: 1.960}  # quantiles of intervals, by their percentage


def heading(facts: Facts) -> str:
    """Name the page: plain text."""
    kind = "Planned release: privacy statement" if facts.planned else "Privacy statement"
    return f"{kind} for {facts.record.get('target', 'theta')} of {facts.areas} areas"


def claim_box(facts: Facts) -> str:
    """Tell the kind of claim by words and by the form of the frame, not by a colour."""
    if facts.claim == "formal":
        mark, kind = "", "claim"
        meaning = (
            "The figures on this page are mathematical bounds, given the assumptions listed below. "
            "The variance components are public constants, by the sources named there."
        )
    else:
        mark, kind = "&#9888;&#xFE0E; ", "claim conditional"
        plugged = [
            k for k, v in sorted(facts.record["variance_components"].items()) if v != "fixed"
        ]
        meaning = (
            "The figures on this page hold only as if the variance components were public "
            f"constants. That is not declared of {text(' and '.join(plugged))}: if they were "
            "learned from the same answers, the true loss can be far larger than the figures. They "
            "are then no bounds."
        )
    return (
        f'<div class="{kind}" role="note">'
        f"<p>{mark}<strong>Claim: {escape(facts.words)}</strong></p><p>{meaning}</p></div>"
    )


def sections(facts: Facts) -> Iterator[str]:
    """Yield the sections of the page, as HTML."""
    yield section("short", "In short", _short(facts))
    yield section("release", "The release", [_release(facts)])
    yield section("protected", "What is protected", _protected(facts))
    yield section("guarantee", "The guarantee", guarantee(facts))
    yield section("attack", "In terms of an attack", attack(facts))
    yield section("areas", "Area by area", areas(facts))
    yield section("assumptions", "Assumptions, and who declares them", _assumptions(facts))
    yield section("void", "What voids the guarantee", [bullets(VOIDS)])
    yield section("readers", "What a reader of the public file may compute", _readers(facts))
    yield section("withheld", "What is not published", _withheld(facts))


def footer() -> str:
    """Say how to read the numbers: HTML."""
    return (
        "Prices, epsilons and rates of attacks are rounded up to four digits. This page holds no "
        "direct estimate, no posterior mean and no released value, and loads nothing."
    )


def _short(facts: Facts) -> list[str]:
    many, unit = facts.record["draws"], text(facts.record.get("unit", "record"))
    drawn = "one draw" if many == 1 else f"{many} draws"
    state = "would be" if facts.planned else "was" if many == 1 else "were"
    at, advantage = facts.delta, round_up(float(privacy.advantage(facts.rho)))
    epsilon = round_up(facts.public["epsilon"].sel(delta=at).item())
    return [
        bullets(
            [
                f"For each of {facts.areas} areas, {drawn} {state} released: a model's estimate "
                "plus random noise. The size of the noise bounds what the release reveals of the "
                f"answers of one {unit}.",
                f"The price is rho = {round_up(facts.rho)} (zero-concentrated differential "
                f"privacy), or epsilon = {epsilon} at delta = {power(at)}. "
                f"Claim: {escape(facts.words)}.",
                f"An attacker who knows everything but the answers of one {unit} has an advantage "
                f"of at most {advantage} over a guess, on a scale from 0 to 1. Claim: "
                f"{escape(facts.words)}.",
                "This rests on assumptions, listed below, that the software records and cannot "
                "check.",
            ]
        )
    ]


def _release(facts: Facts) -> str:
    record, attrs = facts.record, facts.public.attrs
    versions = record.get("versions", {})
    by = f"{attrs['creation_library']} {attrs['creation_library_version']}"
    others = ", ".join(f"{k} {v}" for k, v in sorted(versions.items()) if k != "pymc_dp")
    bounds = record.get("bounds")
    rows = [
        ("State", "planned: nothing has been drawn" if facts.planned else "drawn"),
        ("Released", f"{text(record.get('target', 'theta'))}, one value for each area and draw"),
        ("Areas", facts.areas),
        ("Draws", str(record["draws"])),
        *([] if facts.planned else [("Drawn", f"{text(attrs['created_at'])} (UTC)")]),
        ("By", text(by) + (f" with {text(others)}" if others else "")),
        ("Mechanism", escape(mechanism_words(record))),
        ("Calibrated", _calibration(facts)),
        ("Declared range of the outcome", "not declared" if bounds is None else _range(bounds)),
        ("Decimals released", str(record.get("publishing_decimals", "not recorded"))),
    ]
    return terms(rows)


def _calibration(facts: Facts) -> str:
    found = facts.record.get("calibration")
    if not found:
        return "no"
    target = ", ".join(f"{name} {value:g}" for name, value in found["target"].items())
    each = " for one draw" if facts.record["draws"] > 1 else ""
    words = f"to {target}{each}, by the method {found['method']}"
    if "areas_touched" in found:
        words += f"; {found['areas_touched']} areas touched"
    return text(words)


def _protected(facts: Facts) -> list[str]:
    record = facts.record
    rows = [
        ("Unit", text(record.get("unit", "record"))),
        ("Neighbouring data sets", text(record.get("neighbours", "not recorded"))),
        (
            "Against",
            "anybody who sees the release, whatever else they know or compute, now or later",
        ),
        ("Not protected", "what holds for an area as a whole, and that a unit took part"),
        (
            "Several units",
            "k units of one area with tied answers: up to k<sup>2</sup> times the price of one",
        ),
    ]
    return [terms(rows)]


def _assumptions(facts: Facts) -> list[str]:
    declared, plain = facts.record["assumptions"], facts.record.get("intercept_only") is True
    rows = []
    for name in ASSUMPTIONS:
        source = text(declared[name]) if name in declared else "<strong>not declared</strong>"
        if name == "covariates" and name not in declared and plain:
            source = "none needed: the model has an intercept only"
        _, what, otherwise = INPUTS[name]
        note = f'<br><span class="note">{otherwise}</span>'
        rows.append((f"{what} (<code>{name}</code>){note}", source))
    return [
        paragraph(
            "Each input counts as public by the source named here. The claim is formal if the "
            "sampling variances and sigma_u both have a source, else conditional. The software "
            "records sources and cannot check them."
        ),
        table("Declared public, and by which source", ("what", "source"), rows, kind="sources"),
    ]


def _readers(facts: Facts) -> list[str]:
    public, several = facts.public, facts.record["draws"] > 1
    parts = [
        paragraph(
            "Whatever is computed from the public file and other public facts costs no more "
            "privacy: rankings, maps, sums, models. Intervals hold under the model and its "
            "sigma_u; they are no part of the privacy claim."
        )
    ]
    items = []
    times = " or ".join(f"{z:.3f} ({level} %)" for level, z in Z.items())
    if "theta_smoothed_sd" in public:
        half = Z[90] * public["theta_smoothed_sd"].values
        items.append(
            "<strong>Intervals from the smoothed draw:</strong> <code>theta_smoothed</code> plus "
            f"and minus z times <code>theta_smoothed_sd</code>, with z = {times}. Half of the 90 % "
            f"interval, in the outcome's unit: median {np.median(half):.3g}, from {half.min():.3g} "
            f"to {half.max():.3g}."
        )
        items.append(
            "Errors of different areas are correlated: an interval of a sum or difference of areas "
            "does not follow from their standard deviations alone."
        )
    if "posterior_sd" in public and "calibration" not in facts.record:
        items.append(
            "<strong>Intervals from the draw itself:</strong> the truth and the draw are as two "
            "draws from one posterior, whose difference has the variance 2 Sigma. So "
            "<code>theta</code> plus and minus z times the square root of 2 times "
            "<code>posterior_sd</code>. They are no narrower than the smoothed ones."
        )
    if several and items:
        items.append("Each draw has its own interval; none of these is for an average of draws.")
    if not items:
        missing = facts.record["left_out"].get("theta_smoothed_sd")
        why = f", as nobody declares {called(missing)} public" if missing else ""
        items.append(
            f"No interval: the file has no standard deviation{why}. The draw alone does not show "
            "how far off it may be."
        )
    items.append(
        "Noise knows no range: values outside the outcome's range may be moved to its ends."
    )
    items.append(
        "Direct estimates and posterior means cannot be computed from the file: to try is an "
        "attack as above."
    )
    return [*parts, bullets(items)]


def _withheld(facts: Facts) -> list[str]:
    parts = [
        paragraph(
            "Never published: records, direct estimates, posterior means, residuals, draws not "
            "paid for, and the state of the random number generator, which has no seed."
        )
    ]
    by_inputs = defaultdict(list)
    for name, inputs in facts.record["left_out"].items():
        by_inputs[tuple(inputs)].append(name)
    if by_inputs:
        rows = [
            (called(inputs), ", ".join(f"<code>{escape(name)}</code>" for name in sorted(names)))
            for inputs, names in sorted(by_inputs.items(), key=lambda pair: len(pair[0]))
        ]
        parts.append(
            table("Left out for want of a source", ("nobody declares public", "left out"), rows)
        )
    if facts.record["withheld"]:
        parts.append(
            paragraph(
                "Kept back from the record, as nothing says that they may be published: "
                + ", ".join(text(key) for key in facts.record["withheld"])
                + "."
            )
        )
    return parts


def _range(bounds: list[float]) -> str:
    return f"{bounds[0]:g} to {bounds[1]:g}"
