"""A piece of paper measured in points from its top left corner: text, axes and keys are put on it where a layout says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.report._measure import FONT, LINE, width_of, wrap
from paceline.report.palette import FAINT, GREY, INK

# From here down a drawing is for a phone: labels above bars, keys below each other.
NARROW = 500
KEY = 30.0  # the width of what a legend shows beside its words


@dataclass(frozen=True)
class Hit:
    """A place of a drawing that says something to who points at it: its middle, or its top left corner with a size."""

    x: float
    y: float
    words: str
    width: float = 0.0
    height: float = 0.0


@dataclass
class Sheet:
    """A part of a matplotlib figure, or all of it."""

    parent: Any
    left: float
    top: float
    width: float
    hits: list[Hit] = field(default_factory=list)

    @property
    def _whole(self) -> tuple[float, float]:
        wide, high = self.parent.get_size_inches()
        return 72 * wide, 72 * high

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Bare axes with their upper left corner there."""
        wide, high = self._whole
        bottom = high - self.top - top - height
        axes = self.parent.add_axes(((self.left + left) / wide, bottom / high, width / wide, height / high))
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        axes.tick_params(colors=GREY, labelcolor=INK, length=3, pad=3)
        axes.set_axisbelow(True)
        return axes

    def text(self, x: float, y: float, words: str, size: float, **look: Any) -> None:
        """One line whose middle is at the height y."""
        wide, high = self._whole
        options = {"color": INK, "ha": "left", "va": "center_baseline", "family": FONT, **look}
        self.parent.text((self.left + x) / wide, 1 - (self.top + y) / high, words, fontsize=size, **options)

    def lines(self, x: float, top: float, lines: Sequence[str], size: float, **look: Any) -> float:
        """Lines below each other; returns where the next thing begins."""
        for number, line in enumerate(lines):
            self.text(x, top + (number + 0.5) * LINE * size, line, size, **look)
        return top + len(lines) * LINE * size

    def point(self, x: float, y: float) -> tuple[float, float]:
        """A place of this sheet in the parent's own measure, inches from the lower left corner."""
        _, high = self._whole
        return (self.left + x) / 72, (high - self.top - y) / 72

    def line(self, xs: Sequence[float], ys: Sequence[float], **look: Any) -> None:
        """A line, or markers, on the sheet itself."""
        from matplotlib.lines import Line2D

        ends = [self.point(x, y) for x, y in zip(xs, ys, strict=True)]
        line = Line2D(
            [x for x, _ in ends], [y for _, y in ends], transform=self.parent.dpi_scale_trans, **look
        )
        self.parent.add_artist(line)

    def box(self, left: float, top: float, width: float, height: float, **look: Any) -> None:
        """A filled rectangle on the sheet itself."""
        from matplotlib.patches import Rectangle

        corner = self.point(left, top + height)
        self.parent.add_artist(
            Rectangle(corner, width / 72, height / 72, transform=self.parent.dpi_scale_trans, **look)
        )

    def hit(self, axes: Any, x: float, y: float, words: str) -> None:
        """Say something at a value of the axes."""
        _, high = self._whole
        wide, tall = axes.transData.transform((x, y)) * 72 / self.parent.dpi
        self.hits.append(Hit(float(wide), float(high - tall), words))

    def hit_box(self, left: float, top: float, width: float, height: float, words: str) -> None:
        """Say something in a rectangle of the sheet."""
        self.hits.append(Hit(self.left + left, self.top + top, words, width, height))


class Drawing(Protocol):
    """A figure laid out for a width; how high it will be is known before it is drawn."""

    height: float

    def draw(self, sheet: Sheet) -> None:
        """Put it onto a sheet."""


@dataclass(frozen=True)
class Entry:
    """What a legend says of one thing, and how it shows it, between two x at one height."""

    words: str
    show: Callable[[Sheet, float, float, float], None]


class Legend:
    """Entries in as many columns as there is room for."""

    def __init__(self, entries: Sequence[Entry], width: float, size: float) -> None:
        self.size = size
        room = width - KEY - 8
        self._entries = [(entry, wrap(entry.words, size, room)) for entry in entries]
        widths = [KEY + 22 + max(width_of(line, size) for line in lines) for _, lines in self._entries]
        # As many columns as fit, each as wide as what is in it.
        self._columns: list[float] = []
        for count in range(len(entries), 0, -1):
            self._columns = [max(widths[k::count]) for k in range(count)]
            if sum(self._columns) <= width + 22:
                break
        count = max(len(self._columns), 1)
        self._rows = [self._entries[k : k + count] for k in range(0, len(entries), count)]
        self._heights = [max(len(lines) for _, lines in row) * LINE * size + 3 for row in self._rows]
        self.height = sum(self._heights)

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        """Put it there."""
        for row, height in zip(self._rows, self._heights, strict=True):
            for number, (entry, lines) in enumerate(row):
                x = left + sum(self._columns[:number])
                entry.show(sheet, x, x + KEY - 6, top + LINE * self.size / 2)
                sheet.lines(x + KEY, top, lines, self.size)
            top += height


def grid(axes: Any, which: str) -> None:
    """Faint lines across."""
    axes.grid(axis=which, color=FAINT, linewidth=0.7)
