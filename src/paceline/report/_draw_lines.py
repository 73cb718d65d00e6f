"""Curves over one pair of axes, drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paceline.report import _ticks
from paceline.report._measure import LINE, width_of, wrap
from paceline.report._sheet import NARROW, Entry, Legend, Sheet, grid
from paceline.report.document import Curve, Lines, Origin
from paceline.report.palette import GREY, INK, ORIGINS, PUBLISHED, Style, origins_of, style_of, variant_of

# A curve of more points has markers at some places only, to tell it from others, and its spread as a band.
FEW = 16
# A curve of more points says its values at so many places; the table has all.
HITS = 120
# So far above the curves, or above its own start, a line that they are held against is drawn.
BEYOND = 1.5
OURS: tuple[Origin, ...] = ("measured", "simulated", "published")


class LinesDrawing:
    """A `Lines`, laid out for a width."""

    def __init__(
        self, figure: Lines, width: float, size: float, among: Sequence[str], *, titled: bool
    ) -> None:
        self.figure, self.width, self.size = figure, width, size
        looks = {curve.strategy: style_of(curve.strategy, among) for curve in figure.curves}
        self.styles = {
            (curve.strategy, curve.variant): variant_of(
                looks[curve.strategy], curve.strategy, among, curve.variant
            )
            for curve in figure.curves
        }
        narrow = width < NARROW
        self.title = wrap(figure.title, size + 1, width, bold=True) if titled else []
        self.above = wrap(figure.y.label, size, width)
        self.plot_height = 230.0 if narrow else min(0.42 * width, 330.0)
        self.legend = Legend(self._entries(), width, size)
        self.top = len(self.title) * LINE * (size + 1) + (4 if titled else 0)
        self.below = 2.9 * LINE * size
        self.height = (
            self.top
            + len(self.above) * LINE * size
            + 8
            + self.plot_height
            + self.below
            + self.legend.height
            + 4
        )

    def draw(self, sheet: Sheet) -> None:
        """Put it onto a sheet."""
        figure, size = self.figure, self.size
        sheet.lines(0, 0, self.title, size + 1, weight="bold")
        start = sheet.lines(0, self.top, self.above, size, color=GREY) + 8
        xs, ys = _values(figure)
        left_end, right_end = _ticks.limits(figure.x, xs, margin=0.04)
        low, high = _ticks.limits(figure.y, ys, margin=0.06)
        y_places = _ticks.ticks(figure.y, low, high, ys, int(self.plot_height // (2.6 * size)))
        y_words = _ticks.spelled(figure.y, y_places)
        left = max((width_of(words, size) for words in y_words), default=0.0) + 8
        width = self.width - left - 8
        places = _ticks.along(figure.x, left_end, right_end, xs, width, size)
        width -= max(0.0, _ticks.overhang(figure.x, left_end, right_end, places, width, size) - 8)
        axes = sheet.axes(left, start, width, self.plot_height)
        for axis, scale in ((figure.x, axes.set_xscale), (figure.y, axes.set_yscale)):
            scale("log" if axis.log else "linear")
        axes.set_xlim(left_end, right_end)
        axes.set_ylim(low, high)
        axes.set_yticks(y_places, y_words, fontsize=size)
        axes.set_yticks([], minor=True)
        axes.set_xticks(places, _ticks.spelled(figure.x, places), fontsize=size)
        axes.set_xticks([], minor=True)
        grid(axes, "both")
        for curve in figure.curves:
            self._curve(sheet, axes, curve, (left_end, right_end), (low, high))
        if figure.level is not None:
            axes.axhline(figure.level[0], color=INK, linewidth=1, dashes=(2, 2), zorder=1.5)
        label = wrap(figure.x.label, size, self.width)[0]
        place = min(max(left + width / 2 - width_of(label, size) / 2, 0), self.width - width_of(label, size))
        sheet.text(place, start + self.plot_height + 2.05 * LINE * size, label, size, color=GREY)
        self.legend.draw(sheet, 0, start + self.plot_height + self.below)

    def _entries(self) -> list[Entry]:
        found = [Entry(curve.label, self._key(curve)) for curve in self.figure.curves]
        curves = self.figure.curves
        kinds = [kind for kind in origins_of(curve.origin for curve in curves) if kind in OURS]
        untold = [c for c in curves if c.origin in OURS[1:] and c.origin not in c.label.lower()]
        if len(kinds) > 1 and untold:
            found += [Entry(kind, _origin_key(kind)) for kind in kinds]
        if any(any(curve.hollow or ()) for curve in curves):
            found.append(Entry("hollow: more ranks than cores", _hollow_key))
        if self.figure.level is not None:
            found.append(Entry(self.figure.level[1], _level_key))
        return found

    def _key(self, curve: Curve) -> Any:
        style = self.styles[curve.strategy, curve.variant]
        look = _marker_look(curve.origin, style)
        if curve.hollow and all(curve.hollow):
            look |= {"markerfacecolor": "white", "fillstyle": "full"}

        def show(sheet: Sheet, left: float, right: float, y: float) -> None:
            if curve.joined:
                sheet.line([left, right], [y, y], **_line_look(curve.origin, style))
            if ORIGINS[curve.origin].marked:
                sheet.line([(left + right) / 2], [y], **look)

        return show

    def _curve(
        self,
        sheet: Sheet,
        axes: Any,
        curve: Curve,
        across: tuple[float, float],
        up: tuple[float, float],
    ) -> None:
        style, origin = self.styles[curve.strategy, curve.variant], ORIGINS[curve.origin]
        xs = [_usable(x, self.figure.x.log) for x in curve.x]
        ys = [_usable(y, self.figure.y.log) for y in curve.y]
        if curve.joined:
            axes.plot(xs, ys, **_line_look(curve.origin, style))
        inside = [
            k
            for k, (x, y) in enumerate(zip(xs, ys, strict=True))
            if across[0] <= x <= across[1] and up[0] <= y <= up[1]
        ]
        if curve.low is not None and curve.high is not None:
            _spread(axes, curve, xs, style, up)
        if origin.marked:
            shown = inside if len(inside) <= FEW else inside[:: -(-len(inside) // 8)]
            hollow = curve.hollow or (False,) * len(xs)
            for empty in (False, True):
                some = [k for k in shown if hollow[k] == empty]
                look = _marker_look(curve.origin, style)
                look |= {"markerfacecolor": "white", "fillstyle": "full"} if empty else {}
                if some:
                    axes.plot([xs[k] for k in some], [ys[k] for k in some], clip_on=False, **look)
        for k in inside[:: max(1, -(-len(inside) // HITS))]:
            sheet.hit(axes, xs[k], ys[k], self._words(curve, k))

    def _words(self, curve: Curve, k: int) -> str:
        """What a point says."""
        x, y = _ticks.as_value(self.figure.x), _ticks.as_value(self.figure.y)
        value = curve.y[k]
        words = f"{curve.label}\n{_ticks.unit_free(self.figure.x)}: {x(curve.x[k])}"
        words += "" if value is None else f"\n{_ticks.unit_free(self.figure.y)}: {y(value)}"
        low = None if curve.low is None else curve.low[k]
        high = None if curve.high is None else curve.high[k]
        if low is not None and high is not None and low != high:
            words += f" ({y(low)} to {y(high)})"
        if curve.hollow is not None and curve.hollow[k]:
            words += "\nmore ranks than cores"
        if curve.notes is not None and curve.notes[k]:
            words += f"\n{curve.notes[k]}"
        return words


def _values(figure: Lines) -> tuple[list[float], list[float]]:
    """Every x, and every y with its spread: what the axes must hold."""
    xs = [x for curve in figure.curves for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    ys = [y for curve in figure.curves for y in curve.y]
    # A line that others are held against does not make the axis much longer than they need, but is seen.
    ours = [y for curve in figure.curves if curve.origin != "ideal" for y in curve.y]
    ideal = [y for curve in figure.curves if curve.origin == "ideal" for y in curve.y if y is not None]
    highest = max((y for y in ours if y is not None), default=None)
    if highest is not None and not figure.y.log:
        ys = ours + ([min(max(ideal), BEYOND * max(highest, min(ideal)))] if ideal else [])
    spreads = [*(c.low or () for c in figure.curves), *(c.high or () for c in figure.curves)]
    ys += [y for spread in spreads for y in spread]
    ys += [figure.level[0]] if figure.level is not None else []
    return xs, [y for y in ys if y is not None]


def _usable(value: float | None, log: bool) -> float:
    """A value that can be drawn, or a gap."""
    return math.nan if value is None or not math.isfinite(value) or (log and value <= 0) else float(value)


def _spread(axes: Any, curve: Curve, xs: list[float], style: Style, up: tuple[float, float]) -> None:
    """From the least to the most over seeds: a band along a line, whiskers where points are few."""
    colour = GREY if curve.origin == "ideal" else style.colour
    lows = [math.nan if low is None else max(low, up[0]) for low in curve.low or ()]
    highs = [math.nan if high is None else min(high, up[1]) for high in curve.high or ()]
    if curve.joined:
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.15, linewidth=0, zorder=1.2)
    for x, low, high in zip(xs, lows, highs, strict=True):
        if len(xs) <= FEW and low < high:
            axes.plot([x, x], [low, high], color=colour, linewidth=1.1, marker="_", markersize=6, zorder=2)


def _line_look(origin: Origin, style: Style) -> dict[str, Any]:
    look = ORIGINS[origin]
    dash = style.dash if look.dash is None else look.dash
    colour = GREY if origin == "ideal" else style.colour
    line: dict[str, Any] = {
        "color": colour,
        "linewidth": look.width,
        "zorder": 2.5,
        "solid_capstyle": "round",
    }
    return line | ({"dashes": dash} if dash else {"linestyle": "-"})


def _marker_look(origin: Origin, style: Style) -> dict[str, Any]:
    look: dict[str, Any] = {
        "linestyle": "none", "marker": style.marker, "markersize": 6.5, "color": style.colour,
        "markeredgecolor": style.colour, "markeredgewidth": 1.3, "zorder": 3,
    }  # fmt: skip
    if origin == "published":
        return look | {
            "marker": PUBLISHED[style.variant % len(PUBLISHED)],
            "markersize": 8,
            "markeredgewidth": 1.8,
        }
    if ORIGINS[origin].half:
        return look | {"fillstyle": "bottom", "markerfacecoloralt": "white"}
    return look


def _origin_key(origin: Origin) -> Any:
    style = Style(colour=GREY, marker="o", dash=(), variant=0)

    def show(sheet: Sheet, left: float, right: float, y: float) -> None:
        sheet.line([left, right], [y, y], **_line_look(origin, style))
        sheet.line([(left + right) / 2], [y], **_marker_look(origin, style))

    return show


def _hollow_key(sheet: Sheet, left: float, right: float, y: float) -> None:
    style = Style(colour=GREY, marker="o", dash=(), variant=0)
    sheet.line([(left + right) / 2], [y], **(_marker_look("measured", style) | {"markerfacecolor": "white"}))


def _level_key(sheet: Sheet, left: float, right: float, y: float) -> None:
    sheet.line([left, right], [y, y], color=INK, linewidth=1, dashes=(2, 2))
