"""A report as one page that needs nothing else: no network, no fonts, no scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from paceline.compare import words as _words
from paceline.report import pictures
from paceline.report._data import table_of
from paceline.report._html_style import STYLE
from paceline.report._spelling import MARKS, mark_of, marks_in, spelled
from paceline.report._svg import inline
from paceline.report.document import Block, Document, Figure, Section, Table, Text
from paceline.report.palette import strategies_of


def html_page(document: Document) -> str:
    """The whole page.

    >>> page = html_page(Document(title="a & b", summary=(Text(lines=("fast",), kind="verdict"),), sections=()))
    >>> "<h1>a &amp; b</h1>" in page, '<div class="verdict"><p>fast</p></div>' in page
    (True, True)
    """
    among = strategies_of(document)
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


# A piece of a formula: a number, a letter, an operator; brackets around it.
PIECE = r"\(*(?:\d+(?:[.,]\d+)*|log2\(p\)|[pnsSH]|[-+/=x])\)*"
FORMULA = rf"(?<![\w.,-]){PIECE}(?:\s{PIECE})+(?!\w)"
# That, or the name of an option.
WHOLE = re.compile(rf"({FORMULA}|(?<!\S)--?[a-z][a-z-]*)")


def breakable(text: str) -> str:
    """As HTML that may be broken where a reader does not mind; never inside the name of an option or a formula.

    >>> breakable("try --batch 32 or sync:allreduce=ring")
    'try <span class="o">--batch</span> 32 or sync:<wbr>allreduce=<wbr>ring'
    >>> breakable("15 x (p - 1) (2 n + 1): at every batch")
    '<span class="o">15\xa0x (p - 1) (2 n + 1)</span>: at every batch'
    """
    return WHOLE.sub(r'<span class="o">\1</span>', _words.breakable(text))


def _contents(sections: Sequence[Section]) -> str:
    """Where everything is: the sections, and those in them."""
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
    drawings = ""
    label = f"{figure.title}. {figure.caption}".strip()
    for css, width in (("wide", pictures.WIDE), ("phone", pictures.PHONE)):
        drawn, hits = pictures.svg(figure, among, width=width, titled=False)
        drawings += inline(drawn, f"{_anchor(figure.name)}-{css}", hits, label, css)
    caption = f"<figcaption>{breakable(figure.caption)}</figcaption>" if figure.caption else ""
    data = table_of(figure)
    return (
        f'<figure id="{_anchor(figure.name)}"><p class="title">{breakable(figure.title)}</p>{drawings}{caption}'
        f"<details><summary>Values of this figure ({len(data.rows)})</summary>{_rows(data, figure.title)}</details>"
        "</figure>"
    )


def _table(table: Table) -> str:
    shown = _rows(table, table.title or table.name)
    marks = "".join(f"<span>{MARKS[mark]} {mark}</span>" for mark in marks_in(table))
    below = f'<p class="key">{marks}</p>' if marks else ""
    below += f'<p class="note">{breakable(table.caption)}</p>' if table.caption else ""
    if table.folded:
        name = breakable(table.title or table.name)
        return f'<details id="{_anchor(table.name)}"><summary>{name}</summary>{shown}{below}</details>'
    title = f'<p class="title">{breakable(table.title)}</p>' if table.title else ""
    return f'<div id="{_anchor(table.name)}">{title}{shown}{below}</div>'


def _rows(table: Table, label: str) -> str:
    """The table in a box of its own, which is what scrolls where there is no room: the page never does."""
    table = table.seen()
    css = ["t" if column.kind == "text" else "n" for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{breakable(column.name)}</th>'
        for kind, column in zip(css, table.columns, strict=True)
    )
    marked = bool(marks_in(table))
    body = ""
    for number, row in enumerate(table.rows):
        mark = mark_of(table, number)
        sign = f'<span class="mark" title="{mark}">{MARKS.get(mark, "")}</span>' if marked else ""
        cells = "".join(
            f'<td class="{kind}">{sign if k == 0 else ""}{_cell(spelled(value, column), kind)}</td>'
            for k, (kind, value, column) in enumerate(zip(css, row, table.columns, strict=True))
        )
        body += f"<tr{f' class={mark}' if mark else ''}>{cells}</tr>"
    # Whoever has no mouse can still scroll what has the focus.
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(words: str, kind: str) -> str:
    """What is in a cell; numbers are not broken, whatever is in them."""
    return breakable(words) if kind == "t" else breakable(words).replace("<wbr>", "")


def _anchor(name: str) -> str:
    """A name that can be linked to; sections' names begin with s and a number.

    >>> _anchor("speedup 1/é")
    'f-speedup-1--'
    """
    return "f-" + re.sub(r"[^A-Za-z0-9-]", "-", name)
