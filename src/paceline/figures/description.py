"""Descriptions of figures before they are drawn: points, curves, bars or a histogram, with all values and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline import text

Origin = Literal["measured", "simulated", "fit", "ideal", "theory", "published"]
"""The origin of a curve's points; figures show it without colour."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points of one thing, by rising x; None in `y` is a gap.

    >>> curve = Curve(label="sync", strategy="sync", x=(1, 2), y=(1.0, 1.8), low=(1.0, 1.7), high=(1.0, 1.9))
    >>> curve.origin, curve.joined
    ('measured', True)
    """

    label: str
    """The name in the legend."""
    strategy: str
    """The name that decides the colour: a strategy with its options, a collective, or any other name."""
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    """With `high`: the spread over seeds, from the lowest value to the highest."""
    high: tuple[float | None, ...] | None = None
    origin: Origin = "measured"
    joined: bool = True
    """True if a line connects the points."""
    variant: int = 0
    """A number that distinguishes several curves of one strategy and origin by marker, dash and shade."""
    oversubscribed: tuple[bool, ...] | None = None
    """For each point, True if there were more ranks than cores."""
    less: tuple[bool, ...] | None = None
    """For each point, True if less was learned there than by serial: it is crossed out."""
    notes: tuple[str, ...] | None = None
    """For each point, words shown besides its values when a reader points at it."""
    captions: tuple[str, ...] | None = None
    """For each point, words written below it."""
    stops: int | None = None
    """The number of a point after which the curve gains nothing more: a bar crosses the curve there."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis; its label includes the unit: "training time (s)"."""

    label: str
    log: bool = False
    base: Literal[2, 10] = 10
    """The base of a logarithmic axis: 2 for ranks and speedups."""
    ticks: tuple[float, ...] | None = None
    """The places of the ticks; those without room for their label are left out."""
    percent: bool = False
    """True if the values are fractions, shown as percentages."""
    sizes: bool = False
    """True if the values are bytes, shown as KiB, MiB …"""
    seconds: bool = False
    """True if the values are seconds, shown as ms, s, min or h."""
    bounds: tuple[float | None, float | None] = (None, None)

    @property
    def name(self) -> str:
        """The label without a unit that the values are spelled with.

        >>> Axis(label="test accuracy (%)", percent=True).name, Axis(label="time (s)").name
        ('test accuracy', 'time (s)')
        """
        return self.label.removesuffix("(%)").removesuffix("in %").rstrip() if self.percent else self.label

    def spell(self, value: float) -> str:
        """Format a value for a reader who points at it.

        >>> Axis(label="a", percent=True).spell(0.91234), Axis(label="s").spell(0.0123456)
        ('91.23 %', '0.01235')
        """
        if self.sizes:
            return text.size(round(value))
        if self.seconds:
            return text.time_span(value)
        return text.percent(value) if self.percent else text.number(value)

    def spell_tick(self, value: float) -> str:
        """Format the value of a tick.

        >>> [Axis(label="a", percent=True).spell_tick(0.925), Axis(label="s").spell_tick(20000)]
        ['92.5 %', '20,000']
        >>> Axis(label="speedup", log=True, base=2).spell_tick(1 / 64)
        '0.0156'
        >>> Axis(label="size", sizes=True).spell_tick(8 << 20)
        '8 MiB'
        """
        if self.sizes:
            return text.size(round(value))
        if self.seconds:
            return text.time_span(value)
        shown = round(100 * value, 6) if self.percent else value
        if self.log and self.base == 2 and shown < 1:
            return f"{shown:.3g}"
        plain = shown == 0 or 1e-4 <= abs(shown) < 1e12
        return (f"{shown:,.12g}" if plain else f"{shown:.3g}") + (" %" if self.percent else "")


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over one pair of axes."""

    name: str
    """Unique in a document and usable as a file name: "speedup-1"."""
    title: str
    caption: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    level: tuple[float, str] | None = None
    """A horizontal line and what it means, such as the target accuracy."""
    band: tuple[float, float] | None = None
    """A shaded range of y, such as a point below the serial accuracy."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of one or more parts; `low` and `high` are the spread of their sum over seeds."""

    label: str
    strategy: str
    parts: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    words: str = ""
    """Written at its end."""
    simulated: bool = False
    oversubscribed: bool = False
    """True if there were more ranks than cores."""
    less: bool = False
    """True if less was learned than by serial, or nothing; `words` say so."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars, each of one part (in its strategy's colour) or of several (`kinds`)."""

    name: str
    title: str
    caption: str
    x: Axis
    kinds: tuple[str, ...]
    """The names of the parts; one name if a bar has one part."""
    bars: tuple[Bar, ...]
    dots: bool = False
    """True to draw a dot at the value instead of a bar: for accuracies, whose axis (`x.bounds`) does not begin at 0. A
    value outside the axis is drawn as an arrow at its edge; the bar's `words` have the value."""
    level: tuple[float, str] | None = None
    """A vertical line and what it means."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A labelled point; `x_range` and `y_range` are the spread over seeds."""

    label: str
    strategy: str
    x: float | None
    """None: it has no place on the axis, and is drawn in a column of its own to the right."""
    y: float
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    short: tuple[str, str] | None = None
    """Its label in two parts for a figure of very many points: what the legend says of all points with its look, such as
    the strategy, and what is beside the point itself, such as the number of ranks."""
    flag: str = ""
    """Why it is no success, such as "learned less"; it is crossed out, and the words are part of its label."""
    simulated: bool = False
    oversubscribed: bool = False
    chosen: bool = False
    """True for the answer; it has a ring."""
    stopped: bool = False
    """True if it was stopped on the way, so that its place says little: it is small, hollow and has no label."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """Labelled points over one pair of axes, and the front of those that no other point beats in both."""

    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    """Its bounds are those of the drawing: a point outside is an arrow at its edge, labelled with its value."""
    points: tuple[Point, ...]
    front: tuple[int, ...] = ()
    """The numbers of the points on the front, by rising x."""
    descending: bool = False
    """True if lower values of y are better: they are at the top."""
    outside: str = ""
    """What it means to have no x, such as "not reached"."""
    level: tuple[float, str] | None = None
    """A value of y to be reached, and its meaning."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Columns over whole numbers."""

    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    strategy: str
    labels: tuple[str, ...]
    heights: tuple[float, ...]
    low: tuple[float, ...] | None = None
    """With `high`: the spread over seeds."""
    high: tuple[float, ...] | None = None
    tail: bool = False
    """True if the last column stands for every larger number; it is grey."""


Figure = Lines | Bars | Histogram | Points
