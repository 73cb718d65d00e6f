"""A report as one self-contained HTML page: no network requests, no fonts, no scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from paceline.figures import PHONE, WIDE, Figure, inline_svg
from paceline.figures.palette import names_in
from paceline.report.document import SIGNS, Block, Document, Section, Table, Text, data_of


def html_page(document: Document) -> str:
    """Return the whole page.

    >>> page = html_page(Document(title="a & b", summary=(Text(lines=("fast",), kind="verdict"),), sections=()))
    >>> "<h1>a &amp; b</h1>" in page, '<div class="verdict"><p>fast</p></div>' in page
    (True, True)
    """
    among = names_in(document.figures())
    parts = [f"<h1>{breakable(document.title)}</h1>", *(_text(text) for text in document.summary)]
    parts += [_contents(document.sections), *_sections(document.sections, among, 2, "s")]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(document.title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body><main>\n'
        + "\n".join(filter(None, parts))
        + "\n</main></body></html>\n"
    )


# A piece of a formula: a number, a letter or an operator, perhaps in brackets.
PIECE = r"\(*(?:\d+(?:[.,]\d+)*|log2\(p\)|[pnsSH]|[-+/=x])\)*"
FORMULA = rf"(?<![\w.,-]){PIECE}(?:\s{PIECE})+(?!\w)"
# A formula, or the name of an option.
UNBROKEN = re.compile(rf"({FORMULA}|(?<!\S)--?[a-z][a-z-]*)")


def breakable(text: str) -> str:
    """Return text as HTML with good places for line breaks: never inside an option's name, a formula or a quantity.

    >>> breakable("try --batch 32 or sync:allreduce=ring")
    'try <span class="o">--batch</span> 32 or sync:<wbr>allreduce=<wbr>ring'
    >>> breakable("15 x (p - 1) (2 n + 1): at every batch")
    '<span class="o">15\xa0x (p - 1) (2 n + 1)</span>: at every batch'
    """
    text = re.sub(r"(?<=\d) (?=(?:%|s|ms|us|MB|x)(?!\w))", "\u00a0", text)
    # After the punctuation of a long option, but not between thousands.
    broken = re.sub(r"(?!(?<=\d),\d{3}(?!\d))([:=,])(?=\S)", r"\1<wbr>", escape(text, quote=False))
    return UNBROKEN.sub(r'<span class="o">\1</span>', broken)


def _contents(sections: Sequence[Section]) -> str:
    """Return links to the sections, and to those in them."""
    if len(sections) + sum(len(section.sections) for section in sections) < 2:
        return ""
    items = ""
    for number, section in enumerate(sections, 1):
        inner = "".join(
            f'<li><a href="#s{number}-{k}">{breakable(one.title)}</a></li>'
            for k, one in enumerate(section.sections, 1)
        )
        items += f'<li><a href="#s{number}">{breakable(section.title)}</a>{f"<ul>{inner}</ul>" if inner else ""}</li>'
    return f'<nav aria-label="contents"><strong>On this page</strong><ul>{items}</ul></nav>'


def _sections(sections: Sequence[Section], among: Sequence[str], level: int, place: str) -> list[str]:
    parts = []
    for number, section in enumerate(sections, 1):
        name = f"{place}{number}"
        heading = f"h{min(level, 4)}"
        parts.append(f'<{heading} id="{name}">{breakable(section.title)}</{heading}>')
        if section.note:
            parts.append(f'<p class="note">{breakable(section.note)}</p>')
        parts += [_block(block, among) for block in section.blocks]
        parts += _sections(section.sections, among, level + 1, f"{name}-")
    return parts


def _block(block: Block, among: Sequence[str]) -> str:
    if isinstance(block, Text):
        return _text(block)
    return _table(block) if isinstance(block, Table) else _figure(block, among)


def _text(text: Text) -> str:
    if text.folded:
        inside = _text(replace(text, folded=False, title=""))
        return f"<details><summary>{breakable(text.title)}</summary>{inside}</details>"
    if text.kind == "list":
        return "<ul>" + "".join(f"<li>{breakable(line)}</li>" for line in text.lines) + "</ul>"
    note = ' class="note"' if text.kind == "note" else ""
    lines = f"<p><strong>{breakable(text.title)}</strong></p>" if text.title else ""
    lines += "".join(f"<p{note}>{breakable(line)}</p>" for line in text.lines)
    return f'<div class="verdict">{lines}</div>' if text.kind == "verdict" else lines


def _figure(figure: Figure, among: Sequence[str]) -> str:
    drawings = "".join(
        inline_svg(figure, among, width=width, css=css, prefix=f"{_anchor(figure.name)}-{css}")
        for css, width in (("wide", WIDE), ("phone", PHONE))
    )
    caption = f"<figcaption>{breakable(figure.caption)}</figcaption>" if figure.caption else ""
    data = data_of(figure)
    return (
        f'<figure id="{_anchor(figure.name)}"><p class="title">{breakable(figure.title)}</p>{drawings}{caption}'
        f"<details><summary>Values of this figure ({len(data.rows)})</summary>{_rows(data, figure.title)}</details>"
        "</figure>"
    )


def _table(table: Table) -> str:
    shown = _rows(table, table.title or table.name)
    marks = "".join(f"<span>{SIGNS[mark]} {mark}</span>" for mark in table.used_marks())
    below = f'<p class="key">{marks}</p>' if marks else ""
    below += f'<p class="note">{breakable(table.caption)}</p>' if table.caption else ""
    if table.folded:
        name = breakable(table.title or table.name)
        return f'<details id="{_anchor(table.name)}"><summary>{name}</summary>{shown}{below}</details>'
    title = f'<p class="title">{breakable(table.title)}</p>' if table.title else ""
    return f'<div id="{_anchor(table.name)}">{title}{shown}{below}</div>'


def _rows(table: Table, label: str) -> str:
    """Return the table in a box of its own, which scrolls if there is no room; the page never does."""
    table = table.seen()
    css = ["t" if column.kind == "text" else "n" for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{breakable(column.name)}</th>'
        for kind, column in zip(css, table.columns, strict=True)
    )
    marked = bool(table.used_marks())
    body = ""
    for number, row in enumerate(table.cells()):
        mark = table.mark(number)
        sign = f'<span class="mark" title="{mark}">{SIGNS.get(mark, "")}</span>' if marked else ""
        cells = "".join(
            f'<td class="{kind}">{sign if k == 0 else ""}{_cell(words, kind)}</td>'
            for k, (kind, words) in enumerate(zip(css, row, strict=True))
        )
        body += f"<tr{f' class={mark}' if mark else ''}>{cells}</tr>"
    # With a tabindex the box can be scrolled from the keyboard.
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(words: str, kind: str) -> str:
    """Return the content of a cell; numbers are never broken."""
    return breakable(words) if kind == "t" else breakable(words).replace("<wbr>", "")


def _anchor(name: str) -> str:
    """Return a name that can be linked to; names of sections begin with s and a number.

    >>> _anchor("speedup 1/é")
    'f-speedup-1--'
    """
    return "f-" + re.sub(r"[^A-Za-z0-9-]", "-", name)


STYLE = """
:root { --ink: #1a1a1a; --soft: #555; --rule: #ddd; --accent: #0b5a8c }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 60rem; margin: 0 auto;
  padding: 1.5rem 1rem 4rem; color: var(--ink); background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 0.3rem; padding-top: 1rem; border-top: 2px solid var(--ink) }
h3 { font-size: 1.12rem; margin: 2.2rem 0 0.5rem }
h4 { font-size: 1rem; margin: 1.4rem 0 0.3rem }
a { color: var(--accent) }
p { margin: 0.5rem 0; max-width: 46rem } ul { margin: 0.5rem 0; padding-left: 1.2rem; max-width: 46rem }
.note { color: var(--soft); font-size: 0.9rem } .o { white-space: nowrap }
.verdict { border-left: 4px solid var(--accent); background: #eef5fa; padding: 0.6rem 0.9rem; margin: 0.7rem 0 }
.verdict p { margin: 0.25rem 0 }
nav { margin: 1.5rem 0; font-size: 0.95rem } nav ul { list-style: none; padding: 0; margin: 0.2rem 0; max-width: none }
nav > ul > li { margin: 0.35rem 0 } nav ul ul { display: flex; flex-wrap: wrap; gap: 0 1.1rem; padding-left: 1rem }
nav strong { font-size: 0.85rem; color: var(--soft); font-weight: 600 }
figure { margin: 1.6rem 0 2rem }
figure > svg { display: block; max-width: 100%; height: auto }
figure > svg.phone { display: none }
figure text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important }
.hit { fill: transparent; stroke: none; pointer-events: all } .hit:hover { stroke: #1a1a1a; stroke-width: 1.5 }
figcaption { color: var(--soft); font-size: 0.9rem; max-width: 46rem; margin-top: 0.3rem }
.title { font-weight: 600; margin: 0 0 0.5rem }
.box { overflow-x: auto; max-width: 100%; -webkit-overflow-scrolling: touch }
.box:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
table { border-collapse: collapse; font-size: 0.88rem; line-height: 1.4; overflow-wrap: normal;
  font-variant-numeric: tabular-nums }
th, td { padding: 0.28rem 0.6rem; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top }
th { vertical-align: bottom; border-bottom-color: #888; font-weight: 600 }
.n { text-align: right; white-space: nowrap }
th.n { white-space: normal }
td.t { max-width: 24rem; overflow-wrap: break-word }
th:first-child, td:first-child { padding-left: 0.4rem }
.mark { display: inline-block; width: 1.1em }
tr.best { background: #e5f3ec } tr.best td:first-child { font-weight: 600 }
tr.diverged, tr.failed { background: #fbeee6; color: #7a330d }
tr.simulated { background: #f2f2f7 } tr.simulated td:first-child { font-style: italic }
tr.published { background: #f6f3e6 } tr.published td:first-child { font-style: italic }
.key { color: var(--soft); font-size: 0.85rem; margin: 0.35rem 0 } .key span { margin-right: 1.1rem; white-space: nowrap }
details { margin: 0.5rem 0 1rem } summary { cursor: pointer; color: var(--accent); font-size: 0.88rem; padding: 0.2rem 0 }
details .box { max-height: 26rem; overflow-y: auto; margin-top: 0.3rem }
@media (max-width: 56rem) {
  h1 { font-size: 1.45rem } h2 { font-size: 1.2rem }
  th, td { padding: 0.25rem 0.4rem } td.t:first-child { min-width: 8rem; max-width: 11rem }
  td.t { max-width: 15rem } table { width: max-content }
  figure > svg.wide { display: none } figure > svg.phone { display: block; width: 100%; max-width: 30rem } }
@media print {
  body { font-size: 11pt; max-width: none; padding: 0 } nav { display: none } h2, h3, .title { break-after: avoid }
  figure, tr { break-inside: avoid } .box, details .box { overflow: visible; max-height: none }
  figure > svg.wide { display: block } figure > svg.phone { display: none }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
"""
