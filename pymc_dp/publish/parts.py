"""Parts that the statement of a release is made of: the document, its style, tables, text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# Whatever the page is asked to load, from wherever: the browser refuses.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Light unless the reader's screen asks for dark; on paper always light.
LIGHT = {
    "ink": "#1b1d21",
    "quiet": "#50555c",
    "paper": "#ffffff",
    "panel": "#f3f4f6",
    "line": "#8a9099",
    "link": "#0b5394",
}
DARK = {
    "ink": "#e8eaed",
    "quiet": "#b4bac2",
    "paper": "#15171a",
    "panel": "#22252a",
    "line": "#7d848d",
    "link": "#8ec5ff",
}
STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:48rem;color:var(--ink);
background:var(--paper);font:100%/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",
sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem}
h2{font-size:1.2rem;line-height:1.3;margin:2.2rem 0 .6rem;padding-top:.6rem;
border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p,ul,ol{margin:.6rem 0}
li{margin:.3rem 0}
.quiet,.note,figcaption,footer{color:var(--quiet)}
.note{font-weight:400;font-size:.9rem}
.claim{margin:1rem 0;padding:.7rem 1rem;background:var(--panel);border:1px solid var(--line);
border-left:.5rem solid var(--ink)}
.conditional{border:2px dashed var(--ink);border-left:.6rem double var(--ink)}
table{border-collapse:collapse;width:100%;margin:1rem 0;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.2rem 0 .4rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .8rem .35rem 0;
border-bottom:1px solid var(--line)}
thead th{vertical-align:bottom;border-bottom-width:2px}
th{font-weight:600}
dl{display:grid;grid-template-columns:13rem 1fr;margin:1rem 0}
dt,dd{margin:0;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line)}
dt{font-weight:600}
sup{line-height:0}
.sources tbody th{width:55%}
.sources td,dd,bdi,code{overflow-wrap:anywhere}
.short tbody th,.short td{white-space:nowrap}
figure{margin:1.2rem 0}
svg{display:block;width:100%;max-width:34rem;height:auto;color:var(--ink)}
figcaption{font-size:.9rem;max-width:34rem}
summary{cursor:pointer;font-weight:600;padding:.4rem 0;color:var(--link)}
summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.scroll{max-height:32rem;overflow:auto;border-bottom:1px solid var(--line)}
.scroll table{margin:0}
.scroll thead th{position:sticky;top:0;background:var(--paper)}
footer{margin-top:2.5rem;padding-top:.6rem;border-top:1px solid var(--line);font-size:.9rem}
@media (max-width:30rem){
body{padding:1rem .8rem 2rem}
h1{font-size:1.35rem}
dl{display:block}
dt{border:0;padding-bottom:0}
dd{padding-top:0}
table{font-size:.875rem}
th,td{padding-right:.5rem}
}
@media print{
@page{margin:18mm 16mm}
html{font-size:10pt}
body{max-width:none;padding:0}
h2,h3,caption,summary{break-after:avoid}
tr,dt,dd,figure,.claim,li{break-inside:avoid}
svg{max-width:12cm}
.scroll{max-height:none;overflow:visible;border:0}
.scroll table{font-size:.8rem;line-height:1.25}
.scroll th,.scroll td{padding:.1rem .6rem .1rem 0}
.scroll thead th{position:static}
.screen{display:none}
}
"""


def text(words: object) -> str:
    """Escape text from outside, and keep the direction of its script to itself."""
    return f"<bdi>{escape(str(words))}</bdi>"


def paragraph(words: str, kind: str = "") -> str:
    """Make a paragraph of HTML."""
    return f'<p class="{kind}">{words}</p>' if kind else f"<p>{words}</p>"


def bullets(items: Iterable[str]) -> str:
    """Make a list of items of HTML."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def section(name: str, title: str, parts: Iterable[str]) -> str:
    """Make a section that assistive technology names by its heading."""
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>{"".join(parts)}</section>'
    )


def terms(rows: Iterable[tuple[str, str]]) -> str:
    """Make a list of terms, each with what there is to say of it."""
    return "<dl>" + "".join(f"<dt>{term}</dt><dd>{words}</dd>\n" for term, words in rows) + "</dl>"


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "wide"
) -> str:
    """Make a table of HTML whose first column heads the rows."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td>{cell}</td>" for cell in rest)
        + "</tr>\n"
        for first, *rest in rows
    )
    return (
        f'<table class="{kind}"><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    )


def folded(summary: str, label: str, content: str, *, unfolded: bool) -> str:
    """Make a part that opens on demand, and scrolls by keyboard where it is long."""
    return (
        f"<details{' open' if unfolded else ''}><summary>{summary}</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"{content}</div></details>"
    )


def page(title: str, lead: Iterable[str], sections: Iterable[str], footer: str) -> str:
    """Make a whole document; the title is plain text, all else HTML."""
    light, dark = (";".join(f"--{k}:{v}" for k, v in c.items()) for c in (LIGHT, DARK))
    colours = (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{colours}{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{"".join(lead)}
</header>
<main>
{"".join(part + chr(10) for part in sections)}</main>
<footer>{footer}</footer>
</body>
</html>
"""
