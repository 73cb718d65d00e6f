"""A report as Markdown; its figures are files in a folder beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from paceline.figures import Figure
from paceline.report.document import SIGNS, Block, Document, Section, Table, Text


def markdown_page(document: Document, figures: str) -> str:
    """Return the whole page; it links to figures as NAME.svg in the folder `figures`.

    >>> text = Text(lines=("sync is 2 * as fast",), kind="verdict")
    >>> print(markdown_page(Document(title="report", summary=(text,), sections=()), "f"), end="")
    # report
    <BLANKLINE>
    > sync is 2 \\* as fast
    """
    parts = [f"# {escape(document.title)}", *(_text(text) for text in document.summary)]
    parts += _sections(document.sections, figures, 2)
    return "\n\n".join(filter(None, parts)) + "\n"


def escape(text: str) -> str:
    """Escape text so that Markdown shows it unchanged.

    >>> print(escape("a|b <c> 8 * [d] e_f `g`"))
    a\\|b \\<c\\> 8 \\* \\[d\\] e\\_f \\`g\\`
    """
    escaped = re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\s*)([#+-]|\d+[.)])(?=\s)", r"\1\\\2", escaped)


def _sections(sections: Sequence[Section], figures: str, level: int) -> list[str]:
    parts = []
    for section in sections:
        parts.append(f"{'#' * min(level, 6)} {escape(section.title)}")
        parts.append(escape(section.note))
        parts += [_block(block, figures) for block in section.blocks]
        parts += _sections(section.sections, figures, level + 1)
    return parts


def _block(block: Block, figures: str) -> str:
    if isinstance(block, Text):
        return _text(block)
    return _table(block) if isinstance(block, Table) else _figure(block, figures)


def _text(text: Text) -> str:
    if text.folded:
        return _folded(text.title, _text(replace(text, folded=False, title="")))
    lines = [f"**{escape(text.title)}**"] if text.title else []
    lines += [escape(line) for line in text.lines]
    if text.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if text.kind == "verdict":
        return "\n>\n".join(f"> {line}" for line in lines)
    return "\n\n".join(lines)


def _figure(figure: Figure, figures: str) -> str:
    picture = f"![{escape(figure.title)}]({quote(f'{figures}/{figure.name}.svg', errors='surrogateescape')})"
    return "\n\n".join(filter(None, (f"**{escape(figure.title)}**", picture, escape(figure.caption))))


def _table(table: Table) -> str:
    table = table.seen()
    heads = [escape(column.name) for column in table.columns]
    rules = ["---" if column.kind == "text" else "--:" for column in table.columns]
    lines = [heads, rules]
    for number, row in enumerate(table.cells()):
        cells = [escape(cell) for cell in row]
        if sign := SIGNS.get(table.mark(number)):
            cells[0] = f"{sign} {cells[0]}"
        lines.append(cells)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    marks = ", ".join(f"{SIGNS[mark]} {mark}" for mark in table.used_marks())
    below = [marks, escape(table.caption)]
    if table.folded:
        return _folded(table.title or table.name, "\n\n".join(filter(None, (rows, *below))))
    title = f"**{escape(table.title)}**" if table.title else ""
    return "\n\n".join(filter(None, (title, rows, *below)))


def _folded(title: str, inside: str) -> str:
    words = escape(title).replace("\\", "").replace("<", "&lt;")
    return f"<details><summary>{words}</summary>\n\n{inside}\n\n</details>"
