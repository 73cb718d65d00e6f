"""A table on paper: widths of columns, rows that are broken where there is no room."""

from __future__ import annotations

from paceline.report._measure import LINE, PLACES, width_of, wrap
from paceline.report._sheet import Sheet
from paceline.report._spelling import MARKS, mark_of, marks_in, spelled
from paceline.report.document import Table
from paceline.report.palette import FAINT, GREY, INK

SIZES = (8.5, 8.0, 7.5, 7.0, 6.5, 6.0, 5.5)
GAP = 9.0
# Letters are made smaller before a cell has more lines than these.
LINES = 9
# Words are broken only where they are wider.
WHOLE = 100.0
TINTS = {
    "best": "#e5f3ec",
    "diverged": "#fbeee6",
    "failed": "#fbeee6",
    "simulated": "#f2f2f7",
    "published": "#f6f3e6",
}


class TableLayout:
    """A table laid out for a width: how high its head and each of its rows are is known before they are drawn."""

    def __init__(self, table: Table, width: float) -> None:
        self.table = table = table.seen()
        self.width = width
        self.key = "   ".join(f"{MARKS[mark]} {mark}" for mark in marks_in(table))
        self._right = [column.kind != "text" for column in table.columns]
        cells = [[spelled(v, c) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
        for number, row in enumerate(cells):
            if self.key and row:
                row[0] = f"{MARKS.get(mark_of(table, number), ' ')} {row[0]}"
        names = [column.name for column in table.columns]
        for self.size in SIZES:
            self._widths = self._columns(names, cells)
            self._names = self._broken(names, bold=True)
            self._cells = [self._broken(row) for row in cells]
            fits = sum(self._widths) + GAP * len(self._widths) <= width + 0.01
            if fits and all(len(lines) <= LINES for row in self._cells for lines in row):
                break
        if not fits:
            scale = (width - GAP * len(self._widths)) / sum(self._widths)
            self._widths = [one * scale for one in self._widths]
            self._names = self._broken(names, bold=True)
            self._cells = [self._broken(row) for row in cells]
        self.head = self._high(self._names) + 5
        self.heights = [self._high(row) + 4 for row in self._cells]

    def draw_head(self, sheet: Sheet, top: float) -> float:
        """The headings; returns where the rows begin."""
        self._draw(sheet, top + 2, self._names, foot=True, weight="bold")
        sheet.line([0, self.width], [top + self.head, top + self.head], color=GREY, linewidth=0.8)
        return top + self.head

    def draw_row(self, sheet: Sheet, top: float, row: int) -> float:
        """One row; returns where the next begins."""
        mark, height = mark_of(self.table, row), self.heights[row]
        if mark in TINTS:
            sheet.box(0, top, self.width, height, facecolor=TINTS[mark], linewidth=0, zorder=0)
        ink = "#7a330d" if mark in ("diverged", "failed") else INK
        self._draw(sheet, top + 2, self._cells[row], color=ink)
        sheet.line([0, self.width], [top + height, top + height], color=FAINT, linewidth=0.5)
        return top + height

    def _draw(
        self, sheet: Sheet, top: float, cells: list[list[str]], *, foot: bool = False, **look: str
    ) -> None:
        high = max((len(lines) for lines in cells), default=0)
        left = GAP / 2
        for lines, width, right in zip(cells, self._widths, self._right, strict=True):
            start = top + (high - len(lines)) * LINE * self.size * foot
            place = {"ha": "right"} if right else {}
            sheet.lines(left + width if right else left, start, lines, self.size, **look, **place)
            left += width + GAP

    def _columns(self, names: list[str], cells: list[list[str]]) -> list[float]:
        """As wide as their contents; where that is too much, columns of text share the room by the roots of theirs."""
        widths, least = [], []
        for k, name in enumerate(names):
            inside = max((width_of(row[k], self.size) for row in cells), default=0.0) + 1
            word = max((width_of(word, self.size, bold=True) for word in name.split()), default=0.0) + 1
            whole = width_of(name, self.size, bold=True) + 1
            widths.append(max(inside, min(whole, max(word, 60.0))))
            pieces = {piece.strip() for row in cells for piece in PLACES.split(row[k])}
            longest = max((width_of(piece, self.size) for piece in pieces), default=0.0) + 1
            least.append(widths[-1] if self._right[k] else min(widths[-1], max(word, min(longest, WHOLE))))
        room = self.width - GAP * len(widths)
        if sum(widths) <= room:
            return widths
        low, high = 0.0, max(widths)
        for _ in range(40):  # the factor at which they fill the room
            factor = (low + high) / 2
            shared = [
                min(max(factor * one**0.5, small), one) for one, small in zip(widths, least, strict=True)
            ]
            low, high = (low, factor) if sum(shared) > room else (factor, high)
        return [min(max(low * one**0.5, small), one) for one, small in zip(widths, least, strict=True)]

    def _broken(self, row: list[str], *, bold: bool = False) -> list[list[str]]:
        return [
            wrap(cell, self.size, max(width, 4.0), bold=bold)
            for cell, width in zip(row, self._widths, strict=True)
        ]

    def _high(self, cells: list[list[str]]) -> float:
        return max((len(lines) for lines in cells), default=1) * LINE * self.size
