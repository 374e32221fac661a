"""The little HTML that a page is made of. Whatever comes from data goes through `text`."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

NONE = "\N{EN DASH}"  # where there is no number
TURNING = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)}


def clean(value: Any) -> str:
    """A text on one line that can be written: no control characters, no lone surrogates, nothing that turns text."""
    found = " ".join(str(value).split())
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if c in TURNING or unicodedata.category(c) in ("Cc", "Cs", "Cn") else c
        for c in found
    )


def text(value: Any) -> str:
    """A value from data, safe in HTML, between tags and in attributes."""
    return html.escape(clean(value), quote=True)


def short(value: Any, longest: int = 18) -> str:
    """A name as it fits beside a plot."""
    found = clean(value)
    return found if len(found) <= longest else found[: longest - 1] + "…"


def number(key: str, value: float | int | None, form: str, unit: str = "") -> str:
    """A number as it is read, with the whole value and what it is for machines."""
    if value is None:
        return NONE
    return f'<data class="{text(key)}" value="{value!r}">{value:{form}}{unit}</data>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = (), name: str = "") -> str:
    """Rows of HTML cells, which may end early; the first column names the row, those at `words` are text."""
    kinds = [" class=w" if place in words else " class=n" for place in range(len(head))]
    tops = "".join(f'<th scope="col"{kind if place else ""}>{head[place]}</th>' for place, kind in enumerate(kinds))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds[1:], row[1:], strict=False))
        + "</tr>\n"
        for row in rows
    )
    known = f' id="{name}"' if name else ""
    return f'<div class="wide"><table{known}><thead><tr>{tops}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def figure(title: str, drawing: str | None, note: str = "", wide: bool = False) -> str:
    """A plot under the sentence that it shows; without a plot the sentence stays."""
    below = f"<figcaption>{note}</figcaption>" if note else ""
    return f"<figure{' class=full' if wide else ''}><h3>{title}</h3>{drawing or ''}{below}</figure>"


def folded(title: str, body: str) -> str:
    """Something to be opened by whoever wants it; open in print."""
    return f"<details><summary>{title}</summary>{body}</details>"


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page."""
    return f'<section id="{name}"><h2>{title}</h2>\n' + "\n".join(part for part in parts if part) + "\n</section>"


def page(title: str, *sections: str) -> str:
    """The whole file. It may load nothing and run nothing, and says so to the browser."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


STYLE = """
:root { --paper: #ffffff; --ink: #1a1a1a; --soft: #595959; --line: #d9d9d9; --tint: #f4f6f8;
  --blue: #0072B2; --orange: #D55E00; --green: #00795a; --grey: #767676; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #ececec; --soft: #b0b4b9; --line: #3b3f45;
  --tint: #1f2327; --blue: #56B4E9; --orange: #E69F00; --green: #2fc49a; --grey: #9a9fa6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem;
  border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
h3 { font-size: 1rem; line-height: 1.35; margin: 0 0 .4rem; }
p { max-width: 46rem; margin: .4rem 0; } .warn { border-left: 4px solid var(--orange); padding-left: .7rem; }
dl.key { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl.key div { background: var(--tint); padding: .6rem .8rem; border-radius: .4rem; }
dl.key dt { color: var(--soft); font-size: .85rem; } dl.key dd { margin: 0; font-size: 1.25rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.6rem 2rem;
  margin: 1rem 0; align-items: start; }
figure { margin: 0; min-width: 0; } figure.full { grid-column: 1 / -1; }
figure svg { display: block; width: 100%; height: auto; max-width: 38rem; } figure.full { overflow-x: auto; }
figure.full svg { max-width: 64rem; min-width: 34rem; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: .3rem; max-width: 46rem; }
.wide { overflow-x: auto; margin: .8rem 0; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; vertical-align: top; font-weight: normal; }
td, th { overflow-wrap: normal; } tbody th { overflow-wrap: anywhere; min-width: 5rem; max-width: 16rem; }
td.w { max-width: 36rem; }
th.n, td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th { color: var(--soft); border-bottom: 1px solid var(--line); vertical-align: bottom; }
thead th.n { white-space: normal; } tbody tr + tr > * { border-top: 1px solid var(--tint); }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--soft); }
@media print { body { font-size: 11px; } main { max-width: none; padding: 0; } figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; } details::details-content { content-visibility: visible; display: block; }
  :root { --paper: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb; --tint: #f4f4f4;
  --blue: #0072B2; --orange: #D55E00; --green: #00795a; --grey: #767676; } }
"""
