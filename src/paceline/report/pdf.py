"""A report as a PDF of A4 pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from paceline.report import pictures
from paceline.report._measure import LINE, wrap
from paceline.report._pdf_table import TableLayout
from paceline.report._sheet import Sheet
from paceline.report.document import Block, Document, Section, Table, Text
from paceline.report.palette import GREY, INK, strategies_of

# Points. What is between the margins is wide enough for figures as they are on a desk.
WIDTH, HEIGHT = 595.276, 841.89
LEFT, TOP, BOTTOM = 45.0, 48.0, 52.0
ROOM = WIDTH - 2 * LEFT
SIZE = 9.5
HEADINGS = {1: 19.0, 2: 14.0, 3: 11.5, 4: 10.0}
ACCENT, TINT = "#0b5a8c", "#eef5fa"


def pdf_bytes(document: Document) -> bytes:
    """The whole file.

    >>> pdf_bytes(Document(title="report", summary=(Text(lines=("fast",)),), sections=()))[:5]
    b'%PDF-'
    """
    with pictures.settings(document.title):
        return _Pages(document).written()


class _Pages:
    """Things put below each other, on as many pages as they take."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.among = strategies_of(document)
        self.pages: list[Any] = []
        self.turn()
        self.heading(document.title, 1)
        for text in document.summary:
            self.text(text)
        self.sections(document.sections, 2)

    def written(self) -> bytes:
        """All pages, each with its number and what it belongs to."""
        from matplotlib.backends.backend_pdf import PdfPages

        file = io.BytesIO()
        # No date and no version, so that the same report is the same file.
        about = {"Title": self.document.title, "CreationDate": None, "Producer": None, "Creator": "paceline"}
        with PdfPages(file, metadata=about) as pdf:
            for number, page in enumerate(self.pages, 1):
                sheet = Sheet(page, LEFT, 0, ROOM)
                title = wrap(self.document.title, 7.5, ROOM - 80)[0]
                sheet.text(0, HEIGHT - 28, title, 7.5, color=GREY)
                sheet.text(ROOM, HEIGHT - 28, f"{number} of {len(self.pages)}", 7.5, color=GREY, ha="right")
                pdf.savefig(page)
        return file.getvalue()

    def turn(self) -> None:
        """Begin a page."""
        self.pages.append(pictures.blank(WIDTH, HEIGHT))
        self.sheet = Sheet(self.pages[-1], LEFT, 0, ROOM)
        self.y = TOP

    def need(self, height: float) -> None:
        """Go to the next page where so much does not fit on this one."""
        if self.y + height > HEIGHT - BOTTOM and self.y > TOP:
            self.turn()

    def heading(self, title: str, level: int, with_it: float = 90.0) -> None:
        """A heading, never at the foot of a page."""
        size = HEADINGS[min(level, 4)]
        lines = wrap(title, size, ROOM, bold=True)
        space = {1: 0.0, 2: 22.0, 3: 14.0}.get(level, 8.0)
        self.need(space + len(lines) * LINE * size + with_it)
        if self.y > TOP:
            self.y += space
            if level == 2:
                self.sheet.line([0, ROOM], [self.y - 7, self.y - 7], color=INK, linewidth=1.2)
        self.y = self.sheet.lines(0, self.y, lines, size, weight="bold") + 3

    def sections(self, sections: Sequence[Section], level: int) -> None:
        """Sections and those in them."""
        for section in sections:
            self.heading(section.title, level, self.first(section))
            if section.note:
                self.text(Text(lines=(section.note,), kind="note"))
            for block in section.blocks:
                self.block(block)
            self.sections(section.sections, level + 1)

    def first(self, section: Section) -> float:
        """How much of a section must be on the page of its heading: to its first figure, or a few lines."""
        note = 14.0 if section.note else 0.0
        if not section.blocks:
            return note + (40 + self.first(section.sections[0]) if section.sections else 0.0)
        block = section.blocks[0]
        if isinstance(block, Text | Table):
            return note + 70
        return note + pictures.drawing_of(block, ROOM, self.among, size=8.5, titled=True).height + 40

    def block(self, block: Block) -> None:
        """Text, a table or a figure."""
        if isinstance(block, Text):
            self.text(block)
        elif isinstance(block, Table):
            self.table(block)
        else:
            drawing = pictures.drawing_of(block, ROOM, self.among, size=8.5, titled=True)
            caption = wrap(block.caption, 8.5, ROOM) if block.caption else []
            self.need(drawing.height + 2 * LINE * 8.5 + 12)
            self.y += 8
            drawing.draw(Sheet(self.pages[-1], LEFT, self.y, ROOM))
            self.y += drawing.height + 2
            self.lines(caption, 8.5, color=GREY)
            self.y += 8

    def text(self, text: Text) -> None:
        """Paragraphs, items, notes; a verdict on a tint with a bar beside it."""
        note, verdict, item = (text.kind == kind for kind in ("note", "verdict", "list"))
        size = 8.5 if note else SIZE
        indent = 10.0 if verdict or item else 0.0
        for number, words in enumerate((text.title, *text.lines) if text.title else text.lines):
            bold = number == 0 and bool(text.title)
            lines = wrap(words, size, ROOM - 2 * indent, bold=bold)
            high = len(lines) * LINE * size
            if verdict and self.y + high + 12 > HEIGHT - BOTTOM:
                self.turn()
            if verdict:
                self.sheet.box(0, self.y, ROOM, high + 8, facecolor=TINT, linewidth=0)
                self.sheet.box(0, self.y, 3, high + 8, facecolor=ACCENT, linewidth=0)
                self.y += 4
            if item:
                self.need(LINE * size)
                self.sheet.text(2, self.y + LINE * size / 2, "•", size)
            weight = "bold" if bold else "normal"
            self.lines(lines, size, left=indent, color=GREY if note else INK, weight=weight)
            self.y += 4
        self.y += 3

    def lines(self, lines: Sequence[str], size: float, *, left: float = 0.0, **look: Any) -> None:
        """Lines of text, over as many pages as they take."""
        for line in lines:
            self.need(LINE * size)
            self.y = self.sheet.lines(left, self.y, [line], size, **look)

    def table(self, table: Table) -> None:
        """A table, its headings again on every page that it takes."""
        layout = TableLayout(table, ROOM)
        if table.title:
            self.heading(table.title, 4, with_it=layout.head + 30)
        self.need(layout.head + sum(layout.heights[:2]))
        self.y = layout.draw_head(self.sheet, self.y)
        for row, height in enumerate(layout.heights):
            if self.y + height > HEIGHT - BOTTOM and self.y > TOP + layout.head:
                self.turn()
                self.y = layout.draw_head(self.sheet, self.y)
            self.y = layout.draw_row(self.sheet, self.y, row)
        self.y += 4
        if layout.key:
            self.lines(wrap(layout.key, 8, ROOM), 8, color=GREY)
        if table.caption:
            self.lines(wrap(table.caption, 8.5, ROOM), 8.5, color=GREY)
        self.y += 8
