"""Lying bars and histograms, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.report import _ticks
from paceline.report._measure import LINE, width_of, wrap
from paceline.report._sheet import NARROW, Entry, Legend, Sheet, grid
from paceline.report.document import Bar, Bars, Columns
from paceline.report.palette import GREY, INK, kind_colour, style_of

THICK = 15.0
HATCH = "////"
# A part of a bar has its share written in it where there is room for it.
ROOM = 30.0
# A histogram of so few bars has the height written above each.
FEW = 12


class BarsDrawing:
    """A `Bars`, laid out for a width: labels to the left of their bars, on a phone above them."""

    def __init__(self, figure: Bars, width: float, size: float, among: Sequence[str], *, titled: bool) -> None:
        self.figure, self.width, self.size = figure, width, size
        self.among, self.narrow = among, width < NARROW
        self.title = wrap(figure.title, size + 1, width, bold=True) if titled else []
        self.stacked = len(figure.kinds) > 1
        widest = max((width_of(bar.label, size) for bar in figure.bars), default=0.0)
        self.left = (16.0 if self.dots else 4.0) if self.narrow else min(widest, 0.36 * width) + 10
        self.right = max([6.0, *(width_of(bar.words, size) + 14 for bar in figure.bars)])
        self.plot = max(self.width - self.left - self.right, 60.0)
        room = width if self.narrow else self.left - 10
        self.labels = [wrap(bar.label, size, room) for bar in figure.bars]
        self.heights = [self._row(lines) for lines in self.labels]
        entries = [Entry(kind, self._key(kind)) for kind in figure.kinds] if self.stacked else []
        if any(bar.simulated for bar in figure.bars):
            entries.append(Entry("hatched: simulated" if not self.dots else "ring: simulated", self._hatched))
        self.legend = Legend(entries, width if self.narrow else width - self.left, size)
        self.top = len(self.title) * LINE * (size + 1) + (4 if titled else 0)
        self.height = self.top + self.legend.height + 4 + sum(self.heights) + 4 + 2.9 * LINE * size

    @property
    def dots(self) -> bool:
        """Whether the axis begins above nothing, where a bar's length would mislead: then its end alone is drawn."""
        return not self.stacked and (self.figure.x.bounds[0] or 0) > 0

    def _row(self, lines: list[str]) -> float:
        text = len(lines) * LINE * self.size
        return text + THICK + 7 if self.narrow else max(text, THICK) + 6

    def _key(self, kind: str) -> Any:
        def show(sheet: Sheet, left: float, right: float, y: float) -> None:
            sheet.box(right - 14, y - 5, 12, 10, facecolor=kind_colour(kind)[0], linewidth=0)

        return show

    def _hatched(self, sheet: Sheet, left: float, right: float, y: float) -> None:
        if self.dots:
            look = {"linestyle": "none", "marker": "o", "color": GREY, "markerfacecolor": "white"}
            sheet.line([right - 8], [y], markersize=7, **look)
        else:
            sheet.box(right - 14, y - 5, 12, 10, facecolor=GREY, edgecolor="white", hatch=HATCH, linewidth=0)

    def draw(self, sheet: Sheet) -> None:
        """Put it onto a sheet."""
        figure, size = self.figure, self.size
        sheet.lines(0, 0, self.title, size + 1, weight="bold")
        self.legend.draw(sheet, 0 if self.narrow else self.left, self.top)
        start = self.top + self.legend.height + 4
        tall = sum(self.heights) + 4
        ends = [max(sum(bar.parts), bar.high or 0.0) for bar in figure.bars]
        starts = [] if self.dots else [0.0]
        starts += [bar.low for bar in figure.bars if bar.low is not None]
        low, high = _ticks.limits(figure.x, [*starts, *ends], margin=0.0)
        low = low if self.dots or figure.x.log else min(low, 0.0)
        axes = sheet.axes(self.left, start, self.plot, tall)
        axes.set_xscale("log" if figure.x.log and not self.stacked else "linear")
        axes.set_xlim(low, high)
        axes.set_ylim(tall, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(not self.dots and not self.narrow)
        self._x_ticks(sheet, axes, low, high, start + tall)
        at = 0.0
        for bar, lines, height in zip(figure.bars, self.labels, self.heights, strict=True):
            text = len(lines) * LINE * size
            middle = at + text + THICK / 2 + 1 if self.narrow else at + height / 2
            above = start + at if self.narrow else start + middle - text / 2
            sheet.lines(0, above, lines, size)
            self._bar(sheet, axes, bar, middle, start, low, high)
            at += height

    def _x_ticks(self, sheet: Sheet, axes: Any, low: float, high: float, below: float) -> None:
        axis, size = self.figure.x, self.size
        places = _ticks.ticks(axis, low, high, (), max(2, int(self.plot // (5 * size))))
        places = _ticks.fitting(axis, places, lambda place: (place - low) / (high - low) * self.plot, size)
        axes.set_xticks(places, _ticks.spelled(axis, places), fontsize=size)
        axes.set_xticks([], minor=True)
        grid(axes, "x")
        label = wrap(axis.label, size, self.width)[0]
        place = min(self.left, self.width - width_of(label, size))
        sheet.text(place, below + 2.05 * LINE * size, label, size, color=GREY)

    def _bar(self, sheet: Sheet, axes: Any, bar: Bar, y: float, start: float, low: float, high: float) -> None:
        colour = style_of(bar.strategy, self.among).colour
        whole, at = sum(bar.parts), 0.0
        if self.dots:
            at = min(max(whole, low), high)
            face = "white" if bar.simulated else colour
            look = {"markersize": 8, "color": colour, "markerfacecolor": face, "markeredgewidth": 1.6}
            off = {} if low <= whole <= high else {"marker": "<" if whole < low else ">"}
            axes.plot([at], [y], clip_on=False, zorder=4, **({"marker": "o"} | look | off))
        for kind, part in zip(self.figure.kinds, bar.parts, strict=True):
            if self.dots:
                break
            fill, ink = kind_colour(kind) if self.stacked else (colour, "#ffffff")
            hatch = {"hatch": HATCH, "edgecolor": "#ffffff99"} if bar.simulated else {}
            axes.barh(y, part, left=at, height=THICK, color=fill, linewidth=0, **hatch)
            wide = part / (high - low) * self.plot
            if self.stacked and wide >= ROOM and whole:
                words = f"{100 * part / whole:.0f} %"
                behind = {"facecolor": fill, "edgecolor": "none", "pad": 1.0} if bar.simulated else None
                axes.text(
                    at + part / 2, y, words, fontsize=self.size - 2, color=ink, ha="center",
                    va="center_baseline", bbox=behind,
                )  # fmt: skip
            left, right = (self.left + (x - low) / (high - low) * self.plot for x in (at, at + part))
            told = _ticks.as_value(self.figure.x)(part)
            sheet.hit_box(
                left, start + y - THICK / 2, max(right - left, 2), THICK,
                f"{bar.label}\n{kind if self.stacked else self.figure.x.label}: {told}{self._spread(bar)}",
            )  # fmt: skip
            at += part
        end = at
        if bar.low is not None and bar.high is not None and bar.low < bar.high:
            axes.plot([max(bar.low, low), bar.high], [y, y], color=INK, linewidth=1.2, marker="|", markersize=7, zorder=3)
            end = max(end, bar.high)
        where = self.left + (end - low) / (high - low) * self.plot
        if self.dots:
            spot = self.left + (at - low) / (high - low) * self.plot
            told = _ticks.as_value(self.figure.x)(whole)
            words = f"{bar.label}\n{self.figure.x.label}: {told}{self._spread(bar)}"
            sheet.hit_box(spot - 8, start + y - THICK / 2, 16, THICK, words)
        sheet.text(where + (11 if self.dots else 7), start + y, bar.words, self.size)

    def _spread(self, bar: Bar) -> str:
        if bar.low is None or bar.high is None or bar.low == bar.high:
            return ""
        told = _ticks.as_value(self.figure.x)
        return f" ({'all: ' if self.stacked else ''}{told(bar.low)} to {told(bar.high)})"


class ColumnsDrawing:
    """A `Columns`, laid out for a width."""

    def __init__(self, figure: Columns, width: float, size: float, among: Sequence[str], *, titled: bool) -> None:
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
        low, high = _ticks.limits(figure.y, [0.0, *figure.heights], margin=0.0)
        places = _ticks.ticks(figure.y, low, high, figure.heights, int(self.plot_height // (2.6 * size)))
        words = _ticks.spelled(figure.y, places)
        left = max((width_of(word, size) for word in words), default=0.0) + 8
        # Few columns are not made as wide as there is room.
        width = min(self.width - left - 4, len(figure.labels) * 64.0)
        overhang = width_of(figure.labels[-1] if figure.labels else "", size) / 2
        width -= max(0.0, overhang - 0.6 * width / (len(figure.labels) + 0.2))
        axes = sheet.axes(left, start, width, self.plot_height)
        axes.set_xlim(-0.6, len(figure.labels) - 0.4)
        axes.set_yscale("log" if figure.y.log else "linear")
        axes.set_ylim(low, high)
        axes.set_yticks(places, words, fontsize=size)
        axes.set_yticks([], minor=True)
        grid(axes, "y")
        axes.bar(range(len(figure.labels)), figure.heights, width=0.82, color=self.colour, linewidth=0)
        one = width / (len(figure.labels) + 0.2)
        told = _ticks.as_value(figure.y)
        self._labels(axes, one)
        for number, (label, height) in enumerate(zip(figure.labels, figure.heights, strict=True)):
            said = f"{100 * height:.1f} %" if figure.y.percent else _ticks.exact(height)
            middle = left + (number + 0.6) * one
            above = start + self.plot_height * (1 - (height - low) / (high - low) if high > low else 1)
            if len(figure.labels) <= FEW and width_of(said, size - 2) < one + 4:
                sheet.text(middle, above - 7, said, size - 2, ha="center")
            sheet.hit_box(
                middle - one / 2, start, one, self.plot_height,
                f"{figure.x.label}: {label}\n{figure.y.label}: {told(height)}",
            )  # fmt: skip
        sheet.text(left, start + self.plot_height + 2.05 * LINE * size, figure.x.label, size, color=GREY)

    def _labels(self, axes: Any, one: float) -> None:
        """As many labels as there is room for, the last always."""
        labels, size = self.figure.labels, self.size
        widest = max((width_of(label, size) for label in labels), default=0.0) + 6
        every = max(1, int(-(-widest // one)))
        last = len(labels) - 1
        places = [k for k in range(0, len(labels), every) if k == last or last - k >= every]
        places += [last] if labels and last not in places else []
        axes.set_xticks(places, [labels[k] for k in places], fontsize=size)
