"""A report as a PDF of A4 pages: text, tables and figures below each other, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from paceline.figures import Figure, settings
from paceline.figures.drawing import BREAKS, LINE, blank_page, draw_on, draw_page, text_width, wrap
from paceline.figures.palette import FAINT, GREY, INK, names_in
from paceline.report.document import NO_SUCCESS, SIGNS, Block, Document, Section, Table, Text, is_speedup

# Points.
WIDTH, HEIGHT = 595.276, 841.89
LEFT, TOP, BOTTOM = 45.0, 48.0, 52.0
ROOM = WIDTH - 2 * LEFT
SIZE, SMALL = 9.5, 8.5
HEADINGS = {1: 19.0, 2: 14.0, 3: 11.5, 4: 10.0}
ACCENT, TINT = "#0b5a8c", "#eef5fa"
TINTS = {
    "best": "#e5f3ec", "diverged": "#fbeee6", "failed": "#fbeee6", "simulated": "#f2f2f7",
    "published": "#f6f3e6",
}  # fmt: skip
# A table's letters become smaller until no word is broken and no cell has more lines than this.
SIZES, LINES, GAP = (8.5, 8.0, 7.5, 7.0, 6.5, 6.0, 5.5), 9, 9.0
WHOLE = 100.0  # words wider than this may be broken


def pdf_bytes(document: Document) -> bytes:
    """Return the whole file.

    >>> pdf_bytes(Document(title="report", summary=(Text(lines=("fast",)),), sections=()))[:5]
    b'%PDF-'
    """
    with settings(document.title):
        return Pages(document).write()


class Pages:
    """Puts things below each other, on as many pages as they take."""

    def __init__(self, document: Document) -> None:
        self.title = document.title
        self.among = names_in(document.figures())
        self.pages: list[Any] = []
        self.heights: dict[str, float] = {}
        self.turn()
        self.heading(document.title, 1)
        for text in document.questions:
            self.text(text)
        self.alone = len(document.problems) == 1
        for section in document.problems:
            if section.opening is not None:
                title = "" if self.alone else section.title
                parts = section.opening.blocks() if self.alone else ()
                lines = tuple(filter(None, (section.opening.sentence, section.opening.sure)))
                answer = Text(lines=lines, kind="verdict", title=title)
                for block in parts or (answer,):
                    self.block(block)
        for text in document.findings:
            self.text(text)
        self.sections(document.sections, 2)

    def write(self) -> bytes:
        """Return the pages as one file, each with its number."""
        from matplotlib.backends.backend_pdf import PdfPages

        file = io.BytesIO()
        metadata = {"Title": self.title, "CreationDate": None, "Producer": None, "Creator": None}
        with PdfPages(file, metadata=metadata) as pdf:
            for number, page in enumerate(self.pages, 1):
                self.page = page
                self.put(0, HEIGHT - 28, wrap(self.title, 7.5, ROOM - 80)[0], 7.5, color=GREY)
                self.put(ROOM, HEIGHT - 28, f"{number} of {len(self.pages)}", 7.5, color=GREY, ha="right")
                if page.subfigs:
                    page.set_layout_engine("constrained", w_pad=2 / 72, h_pad=2 / 72)
                    page.get_layout_engine().execute(page)
                    page.set_layout_engine(None)  # matplotlib lays out and draws a page that has one twice
                pdf.savefig(page)
        return file.getvalue()

    # ---- places

    def turn(self) -> None:
        """Begin a page."""
        self.page = blank_page(WIDTH, HEIGHT)
        self.pages.append(self.page)
        self.y = TOP

    def need(self, height: float) -> None:
        """Begin a page if this height does not fit on the current one."""
        if self.y + height > HEIGHT - BOTTOM and self.y > TOP:
            self.turn()

    def put(self, x: float, y: float, words: str, size: float, **look: Any) -> None:
        """Write a line at a place of the page, in points from its left margin and its top."""
        options = {"color": INK, "va": "baseline", **look}
        self.page.text((LEFT + x) / WIDTH, 1 - y / HEIGHT, words, fontsize=size, **options)

    def lines(self, lines: Sequence[str], size: float, *, left: float = 0.0, **look: Any) -> None:
        """Write lines of text, over as many pages as they take."""
        for line in lines:
            self.need(LINE * size)
            self.put(left, self.y + 0.95 * size, line, size, **look)
            self.y += LINE * size

    def box(self, top: float, height: float, colour: str, width: float = ROOM) -> None:
        """Fill a rectangle from the left margin."""
        from matplotlib.patches import Rectangle

        corner = (LEFT / WIDTH, 1 - (top + height) / HEIGHT)
        self.page.add_artist(
            Rectangle(corner, width / WIDTH, height / HEIGHT, facecolor=colour, linewidth=0, zorder=0)
        )

    def rule(self, colour: str, width: float) -> None:
        """Draw a line across the page."""
        self.box(self.y - width / 2, width, colour)

    # ---- blocks

    def sections(self, sections: Sequence[Section], level: int) -> None:
        """Write sections and those in them."""
        for section in sections:
            self.heading(section.title, level, self.height_of_start(section))
            if section.note:
                self.text(Text(lines=(section.note,), kind="note"))
            opening = () if section.opening is None or self.alone else section.opening.blocks()
            for block in (*opening, *section.blocks):
                self.block(block)
            self.sections(section.sections, level + 1)

    def height_of_start(self, section: Section) -> float:
        """Return the height that must follow a heading on its page: a first figure, or a few lines."""
        note = 14.0 if section.note else 0.0
        if not section.blocks:
            return note + (40 + self.height_of_start(section.sections[0]) if section.sections else 0.0)
        block = section.blocks[0]
        return note + (70 if isinstance(block, Text | Table) else self.height_of(block) + 40)

    def heading(self, title: str, level: int, following: float = 90.0) -> None:
        """Write a heading, never at the foot of a page."""
        size = HEADINGS[min(level, 4)]
        lines = wrap(title, size, ROOM, bold=True)
        space = {1: 0.0, 2: 22.0, 3: 14.0}.get(level, 8.0)
        self.need(space + len(lines) * LINE * size + following)
        if self.y > TOP:
            self.y += space - 7
            if level == 2:
                self.rule(INK, 1.2)
            self.y += 7
        self.lines(lines, size, weight="bold")
        self.y += 3

    def block(self, block: Block) -> None:
        """Write text, a table or a figure."""
        if isinstance(block, Text):
            self.text(block)
        elif isinstance(block, Table):
            self.table(block)
        else:
            self.figure(block)

    def text(self, text: Text) -> None:
        """Write paragraphs, items or notes; a verdict on a tint with a bar beside it."""
        note, item = (text.kind == kind for kind in ("note", "list"))
        verdict = text.kind in ("verdict", "command")
        size = SMALL if note else SIZE
        indent = 10.0 if verdict or item else 0.0
        for number, words in enumerate((text.title, *text.lines) if text.title else text.lines):
            bold = number == 0 and bool(text.title)
            lines = wrap(words, size, ROOM - 2 * indent, bold=bold)
            height = len(lines) * LINE * size
            if verdict:
                self.need(height + 12)
                self.box(self.y, height + 8, TINT)
                self.box(self.y, height + 8, ACCENT, 3)
                self.y += 4
            if item:
                self.need(LINE * size)
                self.put(2, self.y + 0.95 * size, "•", size)
            self.lines(
                lines, size, left=indent, color=GREY if note else INK, weight="bold" if bold else "normal"
            )
            self.y += 4
        self.y += 3

    def height_of(self, figure: Figure) -> float:
        """Return the height of a figure in points."""
        if figure.name not in self.heights:
            page, _ = draw_page([[figure]], ROOM, among=self.among, size=SMALL, title=figure.title)
            self.heights[figure.name] = 72 * float(page.get_figheight())
        return self.heights[figure.name]

    def figure(self, figure: Figure) -> None:
        """Draw a figure, and write its caption below it."""
        height = self.height_of(figure)
        self.need(height + 2 * LINE * SMALL + 12)
        self.y += 8
        spaces = self.page.add_gridspec(
            3, 3, width_ratios=[LEFT, ROOM, LEFT], height_ratios=[self.y, height, HEIGHT - self.y - height]
        )
        place = self.page.add_subfigure(spaces[1, 1])
        draw_on(place, [[figure]], ROOM, among=self.among, size=SMALL, title=figure.title)
        self.y += height + 2
        self.lines(wrap(figure.caption, SMALL, ROOM) if figure.caption else [], SMALL, color=GREY)
        self.y += 8

    def table(self, table: Table) -> None:
        """Write a table, with its headings again on every page that it takes."""
        table = table.drop_unseen()
        layout = TableLayout(table, ROOM)
        if table.title:
            self.heading(table.title, 4, following=layout.head + 30)
        self.need(layout.head + sum(layout.heights[:2]))
        self.table_head(layout)
        for number, height in enumerate(layout.heights):
            if self.y + height > HEIGHT - BOTTOM and self.y > TOP + layout.head:
                self.turn()
                self.table_head(layout)
            mark = table.mark(number)
            if mark in TINTS:
                self.box(self.y, height, TINTS[mark])
            ink = "#7a330d" if mark in ("diverged", "failed") else GREY if mark in NO_SUCCESS else INK
            self.cells(layout, layout.cells[number], color=ink)
            self.y += height
            self.rule(FAINT, 0.5)
        self.y += 4
        marks = "   ".join(f"{SIGNS[mark]} {mark}" for mark in table.used_marks())
        self.lines(wrap(marks, 8, ROOM) if marks else [], 8, color=GREY)
        self.lines(wrap(table.caption, SMALL, ROOM) if table.caption else [], SMALL, color=GREY)
        self.y += 8

    def table_head(self, layout: TableLayout) -> None:
        """Write a table's headings."""
        self.cells(layout, layout.names, foot=True, weight="bold")
        self.y += layout.head
        self.rule(GREY, 0.8)

    def cells(self, layout: TableLayout, cells: list[list[str]], *, foot: bool = False, **look: Any) -> None:
        """Write the cells of one row; `foot`: all end at the same height."""
        most, left, size = max(map(len, cells), default=0), GAP / 2, layout.size
        for lines, width, right in zip(cells, layout.widths, layout.right, strict=True):
            start = self.y + 2 + (most - len(lines)) * LINE * size * foot
            for number, line in enumerate(lines):
                place = {"ha": "right"} if right else {}
                y = start + number * LINE * size + 0.95 * size
                self.put(left + width if right else left, y, line, size, **look, **place)
            left += width + GAP


class TableLayout:
    """A table laid out for a width: the widths of columns, and cells broken into lines where there is no room."""

    def __init__(self, table: Table, width: float) -> None:
        self.right = [column.kind != "text" for column in table.columns]
        names, cells = [column.name for column in table.columns], table.cells()
        for number, row in enumerate(cells):
            mark = table.mark(number)
            if table.used_marks() and row:
                row[0] = f"{SIGNS.get(mark, ' ')} {row[0]}"
            if mark in NO_SUCCESS and row:
                row[0] += f" ({mark})"
                for k, column in enumerate(table.columns):
                    row[k] = f"({row[k]})" if column.kind == "times" and is_speedup(row[k]) else row[k]
        for self.size in SIZES:
            self.widths, whole = self._columns(names, cells, width - GAP * len(names))
            self.names = self._broken(names, bold=True)
            self.cells = [self._broken(row) for row in cells]
            if whole and all(len(lines) <= LINES for row in (self.names, *self.cells) for lines in row):
                break
        self.head = self._height(self.names) + 5
        self.heights = [self._height(row) + 4 for row in self.cells]

    def _columns(self, names: list[str], cells: list[list[str]], room: float) -> tuple[list[float], bool]:
        """Return the widths of columns, and True if no word is broken; columns of text give way if there is no room."""
        widths, least = [], []
        for k, name in enumerate(names):
            inside = max((text_width(row[k], self.size) for row in cells), default=0.0) + 1
            word = max((text_width(word, self.size, bold=True) for word in name.split()), default=0.0) + 1
            widths.append(max(inside, min(text_width(name, self.size, bold=True) + 1, max(word, 60.0))))
            pieces = {piece.strip() for row in cells for piece in BREAKS.split(row[k])}
            longest = max((text_width(piece, self.size) for piece in pieces), default=0.0) + 1
            least.append(widths[-1] if self.right[k] else min(widths[-1], max(word, min(longest, WHOLE))))
        if sum(widths) <= room:
            return widths, True
        # Wide columns give most: each keeps a part of the room by the root of its width.
        over = sum(least)
        if over >= room:
            return [one * room / over for one in least], False
        share = [(one - small) ** 0.5 for one, small in zip(widths, least, strict=True)]
        room -= over
        return [small + room * part / sum(share) for small, part in zip(least, share, strict=True)], True

    def _broken(self, row: list[str], *, bold: bool = False) -> list[list[str]]:
        return [
            wrap(cell, self.size, max(width, 4.0), bold=bold)
            for cell, width in zip(row, self.widths, strict=True)
        ]

    def _height(self, cells: list[list[str]]) -> float:
        return max((len(lines) for lines in cells), default=1) * LINE * self.size
