"""Histograms, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.report import _ticks
from paceline.report._measure import LINE, width_of, wrap
from paceline.report._sheet import NARROW, Sheet, grid
from paceline.report.document import Columns
from paceline.report.palette import GREY, INK, style_of

# A histogram of so few columns has the height written above each.
FEW = 12


class ColumnsDrawing:
    """A `Columns`, laid out for a width."""

    def __init__(
        self, figure: Columns, width: float, size: float, among: Sequence[str], *, titled: bool
    ) -> None:
        self.figure, self.width, self.size = figure, width, size
        self.colour = style_of(figure.strategy, among).colour
        self.title = wrap(figure.title, size + 1, width, bold=True) if titled else []
        self.above = wrap(figure.y.label, size, width)
        self.plot_height = 130.0 if width < NARROW else 150.0
        self.top = len(self.title) * LINE * (size + 1) + (4 if titled else 0)
        self.height = self.top + len(self.above) * LINE * size + 14 + self.plot_height + 2.9 * LINE * size

    def draw(self, sheet: Sheet) -> None:
        """Put it onto a sheet."""
        figure, size = self.figure, self.size
        sheet.lines(0, 0, self.title, size + 1, weight="bold")
        start = sheet.lines(0, self.top, self.above, size, color=GREY) + 14
        low, high = _ticks.limits(figure.y, [0.0, *figure.heights, *(figure.high or ())], margin=0.0)
        places = _ticks.ticks(figure.y, low, high, figure.heights, int(self.plot_height // (2.6 * size)))
        words = _ticks.spelled(figure.y, places)
        left = max((width_of(word, size) for word in words), default=0.0) + 8
        # Few columns are not made as wide as there is room.
        width = min(self.width - left - 4, max(len(figure.labels), 1) * 64.0)
        overhang = width_of(figure.labels[-1] if figure.labels else "", size) / 2
        width -= max(0.0, overhang - 0.6 * width / (len(figure.labels) + 0.2))
        axes = sheet.axes(left, start, width, self.plot_height)
        axes.set_xlim(-0.6, len(figure.labels) - 0.4)
        axes.set_yscale("log" if figure.y.log else "linear")
        axes.set_ylim(low, high)
        axes.set_yticks(places, words, fontsize=size)
        axes.set_yticks([], minor=True)
        grid(axes, "y")
        columns = axes.bar(
            range(len(figure.labels)), figure.heights, width=0.82, color=self.colour, linewidth=0
        )
        if figure.tail and len(columns):
            columns[-1].set_facecolor("#aaaaaa")
        self._spread(axes)
        one = width / (len(figure.labels) + 0.2)
        told = _ticks.as_value(figure.y)
        self._labels(axes, one)
        for number, (label, height) in enumerate(zip(figure.labels, figure.heights, strict=True)):
            said = f"{100 * height:.1f} %" if figure.y.percent else _ticks.exact(height)
            middle = left + (number + 0.6) * one
            top = height if figure.high is None else max(height, figure.high[number])
            above = start + self.plot_height * (1 - (top - low) / (high - low))
            if len(figure.labels) <= FEW and width_of(said, size - 2) < one + 4:
                sheet.text(middle, above - 7, said, size - 2, ha="center")
            sheet.hit_box(
                middle - one / 2, start, one, self.plot_height,
                f"{figure.x.label}: {label}\n{_ticks.unit_free(figure.y)}: {told(height)}{self._told_spread(number)}",
            )  # fmt: skip
        sheet.text(left, start + self.plot_height + 2.05 * LINE * size, figure.x.label, size, color=GREY)

    def _spread(self, axes: Any) -> None:
        """From the least to the most over seeds."""
        figure = self.figure
        for k, (low, high) in enumerate(zip(figure.low or (), figure.high or (), strict=True)):
            if low < high:
                axes.plot(
                    [k, k], [low, high], color=INK, linewidth=1.1, marker="_", markersize=6, clip_on=False
                )

    def _told_spread(self, k: int) -> str:
        low = None if self.figure.low is None else self.figure.low[k]
        high = None if self.figure.high is None else self.figure.high[k]
        if low is None or high is None or low == high:
            return ""
        told = _ticks.as_value(self.figure.y)
        return f" ({told(low)} to {told(high)})"

    def _labels(self, axes: Any, one: float) -> None:
        """As many labels as there is room for, the last always."""
        labels, size = self.figure.labels, self.size
        widest = max((width_of(label, size) for label in labels), default=0.0) + 6
        every = max(1, int(-(-widest // one)))
        last = len(labels) - 1
        places = [k for k in range(0, len(labels), every) if k == last or last - k >= every]
        places += [last] if labels and last not in places else []
        axes.set_xticks(places, [labels[k] for k in places], fontsize=size)
