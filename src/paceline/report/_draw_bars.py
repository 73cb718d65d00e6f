"""Lying bars, or dots where bars would begin above nothing, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.report import _ticks
from paceline.report._measure import LINE, width_of, wrap
from paceline.report._sheet import NARROW, Entry, Legend, Sheet, grid
from paceline.report.document import Bar, Bars
from paceline.report.palette import GREY, INK, kind_colour, style_of

THICK = 15.0
HATCH = "////"
# A part of a bar has its share written in it where there is room for it.
ROOM = 30.0
PALE = 0.4


class BarsDrawing:
    """A `Bars`, laid out for a width: labels to the left of their bars, on a phone above them."""

    def __init__(
        self, figure: Bars, width: float, size: float, among: Sequence[str], *, titled: bool
    ) -> None:
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
            entries.append(Entry(f"{'half' if self.dots else 'hatched'}: simulated", self._simulated))
        if any(bar.hollow for bar in figure.bars):
            entries.append(
                Entry(f"{'hollow' if self.dots else 'pale'}: more ranks than cores", self._crowded)
            )
        if figure.level is not None:
            entries.append(Entry(figure.level[1], _level_key))
        self.legend = Legend(entries, width if self.narrow else width - self.left, size)
        self.top = len(self.title) * LINE * (size + 1) + (4 if titled else 0)
        self.height = self.top + self.legend.height + 4 + sum(self.heights) + 4 + 2.9 * LINE * size

    @property
    def dots(self) -> bool:
        """Whether the axis begins above nothing, where a bar's length would mislead: then its end alone is drawn."""
        return self.figure.dots or (not self.stacked and (self.figure.x.bounds[0] or 0) > 0)

    def _row(self, lines: list[str]) -> float:
        text = len(lines) * LINE * self.size
        return text + THICK + 7 if self.narrow else max(text, THICK) + 6

    def _key(self, kind: str) -> Any:
        def show(sheet: Sheet, left: float, right: float, y: float) -> None:
            sheet.box(right - 14, y - 5, 12, 10, facecolor=kind_colour(kind)[0], linewidth=0)

        return show

    def _simulated(self, sheet: Sheet, left: float, right: float, y: float) -> None:
        if self.dots:
            sheet.line([right - 8], [y], **_dot(GREY, simulated=True, hollow=False))
        else:
            sheet.box(right - 14, y - 5, 12, 10, facecolor=GREY, edgecolor="white", hatch=HATCH, linewidth=0)

    def _crowded(self, sheet: Sheet, left: float, right: float, y: float) -> None:
        if self.dots:
            sheet.line([right - 8], [y], **_dot(GREY, simulated=False, hollow=True))
        else:
            sheet.box(
                right - 14, y - 5, 12, 10, facecolor=(0.42, 0.42, 0.42, PALE), edgecolor=GREY, linewidth=0.8
            )

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
        ends += [figure.level[0]] if figure.level is not None else []
        low, high = _ticks.limits(figure.x, [*starts, *ends], margin=0.0)
        low = low if self.dots or figure.x.log else min(low, 0.0)
        axes = sheet.axes(self.left, start, self.plot, tall)
        axes.set_xscale("log" if figure.x.log and not self.stacked else "linear")
        axes.set_xlim(low, high)
        axes.set_ylim(tall, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(not self.dots and not self.narrow)
        self._x_ticks(sheet, axes, low, high, start + tall)
        if figure.level is not None:
            axes.axvline(figure.level[0], color=INK, linewidth=1, dashes=(2, 2), zorder=3.5)
        at = 0.0
        for bar, lines, height in zip(figure.bars, self.labels, self.heights, strict=True):
            text = len(lines) * LINE * size
            middle = at + text + THICK / 2 + 1 if self.narrow else at + height / 2
            above = start + at if self.narrow else start + middle - text / 2
            behind = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}} if self.narrow else {}
            sheet.lines(0, above, lines, size, **behind)
            self._bar(sheet, axes, bar, middle, start, low, high)
            at += height

    def _x_ticks(self, sheet: Sheet, axes: Any, low: float, high: float, below: float) -> None:
        axis, size = self.figure.x, self.size
        axis = replace(axis, log=axis.log and not self.stacked)
        places = _ticks.along(axis, low, high, (), self.plot, size)
        axes.set_xticks(places, _ticks.spelled(axis, places), fontsize=size)
        axes.set_xticks([], minor=True)
        grid(axes, "x")
        label = wrap(axis.label, size, self.width)[0]
        place = min(self.left, self.width - width_of(label, size))
        sheet.text(place, below + 2.05 * LINE * size, label, size, color=GREY)

    def _bar(
        self, sheet: Sheet, axes: Any, bar: Bar, y: float, start: float, low: float, high: float
    ) -> None:
        def across(value: float) -> float:
            """Where a value is on the sheet."""
            place = axes.transAxes.inverted().transform(axes.transData.transform((value, y)))[0]
            return self.left + float(place) * self.plot

        whole, top = sum(bar.parts), start + y - THICK / 2
        end = min(max(whole, low), high)
        told = _ticks.as_value(self.figure.x)
        spread = bar.low is not None and bar.high is not None and bar.low < bar.high
        said = f" ({'in all ' * self.stacked}{told(bar.low or 0)} to {told(bar.high or 0)})" if spread else ""
        if bar.hollow:
            said += "\nmore ranks than cores"
        name = _ticks.unit_free(self.figure.x)
        colour = style_of(bar.strategy, self.among).colour
        if self.dots:
            look = _dot(colour, simulated=bar.simulated, hollow=bar.hollow)
            look |= (
                {} if low <= whole <= high else {"marker": "<" if whole < low else ">", "fillstyle": "full"}
            )
            axes.plot([end], [y], clip_on=False, zorder=4, **look)
            sheet.hit_box(across(end) - 8, top, 16, THICK, f"{bar.label}\n{name}: {told(whole)}{said}")
        else:
            self._parts(axes, bar, y, colour, high - low)
            at = 0.0
            for kind, part in zip(self.figure.kinds, bar.parts, strict=True):
                words = f"{bar.label}\n{kind if self.stacked else name}: {told(part)}{said}"
                left = across(max(at, low))
                sheet.hit_box(left, top, max(across(at + part) - left, 2), THICK, words)
                at += part
        if spread and (bar.high or 0) > low:
            ends = [max(bar.low or 0, low), min(bar.high or 0, high)]
            axes.plot(
                ends, [y, y], color=INK, linewidth=1.2, marker="|", markersize=7, zorder=3, clip_on=False
            )
            end = max(end, ends[1])
        # A line may stand where a dot's words would be: they are in a column of their own.
        sheet.text(
            self.left + self.plot + 12 if self.dots else across(end) + 7, start + y, bar.words, self.size
        )

    def _parts(self, axes: Any, bar: Bar, y: float, colour: str, span: float) -> None:
        """The parts of a bar after each other, their shares written in those that are wide enough."""
        whole, at = sum(bar.parts), 0.0
        for kind, part in zip(self.figure.kinds, bar.parts, strict=True):
            fill, ink = kind_colour(kind) if self.stacked else (colour, "#ffffff")
            look: dict[str, Any] = {"facecolor": fill, "linewidth": 0}
            if bar.simulated:
                look |= {"hatch": HATCH, "edgecolor": "#ffffff99"}
            elif bar.hollow:
                look |= {"facecolor": (fill, PALE), "edgecolor": fill, "linewidth": 0.8}
            axes.barh(y, part, left=at, height=THICK, **look)
            if self.stacked and whole and part / span * self.plot >= ROOM:
                behind = {"facecolor": fill, "edgecolor": "none", "pad": 1.0} if bar.simulated else None
                axes.text(
                    at + part / 2, y, f"{100 * part / whole:.0f} %", fontsize=self.size - 2, ha="center",
                    va="center_baseline", color=INK if bar.hollow else ink, bbox=behind,
                )  # fmt: skip
            at += part


def _dot(colour: str, *, simulated: bool, hollow: bool) -> dict[str, Any]:
    """As curves have it: hollow for what is not to be trusted, half for what was simulated."""
    look: dict[str, Any] = {
        "linestyle": "none", "marker": "o", "markersize": 8, "color": colour, "markeredgecolor": colour,
        "markeredgewidth": 1.5,
    }  # fmt: skip
    if hollow:
        return look | {"markerfacecolor": "white"}
    return look | ({"fillstyle": "bottom", "markerfacecoloralt": "white"} if simulated else {})


def _level_key(sheet: Sheet, left: float, right: float, y: float) -> None:
    sheet.line([right - 8, right - 8], [y - 6, y + 6], color=INK, linewidth=1, dashes=(2, 2))
