"""A report as Markdown; its figures are files beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from paceline.report._spelling import MARKS, mark_of, marks_in, spelled
from paceline.report.document import Block, Document, Figure, Section, Table, Text


def markdown_page(document: Document, figures: str) -> str:
    """The whole page; figures are linked to as NAME.svg in the folder `figures`.

    >>> text = Text(lines=("sync is 2 * as fast",), kind="verdict")
    >>> print(markdown_page(Document(title="report", summary=(text,), sections=()), "f"), end="")
    # report
    <BLANKLINE>
    > sync is 2 \\* as fast
    """
    parts = [f"# {plain(document.title)}", *(_text(text) for text in document.summary)]
    parts += _sections(document.sections, figures, 2)
    return "\n\n".join(filter(None, parts)) + "\n"


def plain(text: str) -> str:
    """Text that Markdown leaves as it is.

    >>> print(plain("a|b <c> 8 * [d] e_f `g`"))
    a\\|b \\<c\\> 8 \\* \\[d\\] e\\_f \\`g\\`
    """
    escaped = re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\s*)([#+-]|\d+[.)])(?=\s)", r"\1\\\2", escaped)


def _sections(sections: Sequence[Section], figures: str, level: int) -> list[str]:
    parts = []
    for section in sections:
        parts.append(f"{'#' * min(level, 6)} {plain(section.title)}")
        parts.append(plain(section.note))
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
    lines = [f"**{plain(text.title)}**"] if text.title else []
    lines += [plain(line) for line in text.lines]
    if text.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if text.kind == "verdict":
        return "\n>\n".join(f"> {line}" for line in lines)
    return "\n\n".join(lines)


def _figure(figure: Figure, figures: str) -> str:
    picture = f"![{plain(figure.title)}]({quote(f'{figures}/{figure.name}.svg', errors='surrogateescape')})"
    return "\n\n".join(filter(None, (f"**{plain(figure.title)}**", picture, plain(figure.caption))))


def _table(table: Table) -> str:
    table = table.seen()
    heads = [plain(column.name) for column in table.columns]
    rules = ["---" if column.kind == "text" else "--:" for column in table.columns]
    lines = [heads, rules]
    for number, row in enumerate(table.rows):
        cells = [plain(spelled(value, column)) for value, column in zip(row, table.columns, strict=True)]
        if sign := MARKS.get(mark_of(table, number)):
            cells[0] = f"{sign} {cells[0]}"
        lines.append(cells)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    marks = ", ".join(f"{MARKS[mark]} {mark}" for mark in marks_in(table))
    below = [marks, plain(table.caption)]
    if table.folded:
        return _folded(table.title or table.name, "\n\n".join(filter(None, (rows, *below))))
    title = f"**{plain(table.title)}**" if table.title else ""
    return "\n\n".join(filter(None, (title, rows, *below)))


def _folded(title: str, inside: str) -> str:
    words = plain(title).replace("\\", "").replace("<", "&lt;")
    return f"<details><summary>{words}</summary>\n\n{inside}\n\n</details>"
