"""Where an axis has its ticks, and how they are spelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paceline.bench.question import spell
from paceline.report._measure import width_of
from paceline.report.document import Axis

# Powers of two up to here are likely ranks or batch sizes.
SMALL = 2**22


def limits(axis: Axis, values: Sequence[float], *, margin: float = 0.05) -> tuple[float, float]:
    """From where to where an axis goes: its bounds, or else what there is and a little room.

    >>> limits(Axis(label="a", bounds=(0, None)), [1, 9], margin=0.1)
    (0.0, 9.9)
    """
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    bounds = tuple(v if v is not None and (v > 0 or not axis.log) else None for v in axis.bounds)
    usable += [v for v in bounds if v is not None]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if axis.log:
        if low == high:
            low, high = low / 1.5, high * 1.5
        room = (high / low) ** margin
        found = (low / room, high * room)
    else:
        if low == high:
            low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if low else (0.0, 1.0)
        room = (high - low) * margin
        near_nothing = 0 <= low < 0.15 * high
        found = (0.0 if near_nothing else low - room, high + room)
        if axis.percent:
            found = (found[0], min(found[1], 1 + room / 2) if high <= 1 else found[1])
    first = float(bounds[0]) if bounds[0] is not None else float(found[0])
    last = float(bounds[1]) if bounds[1] is not None else float(found[1])
    return (first, last) if first < last else (float(found[0]), float(found[1]))


def ticks(axis: Axis, low: float, high: float, values: Sequence[float], most: int) -> list[float]:
    """At most about `most` places between the limits, round ones; the axis' own where it names some.

    >>> ticks(Axis(label="ranks", log=True), 0.9, 9, [1, 2, 4, 8], 6)
    [1, 2, 4, 8]
    >>> ticks(Axis(label="s", log=True), 0.04, 3, [0.05, 0.3, 2.1], 6)
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    >>> ticks(Axis(label="s"), 0, 10, [3.5], 6)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    most = max(most, 2)
    if axis.ticks is not None:
        return thinned([t for t in axis.ticks if low <= t <= high], most)
    if not axis.log:
        return _linear(low, high, most)
    if _doubling(values) or "speedup" in axis.label.lower():
        first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
        every = -(-(last - first + 1) // most)
        # From the start: 1 is serial, which must be there.
        return [2**k if k >= 0 else 2.0**k for k in range(first, last + 1, max(every, 1))]
    return _logarithmic(low, high, most)


def spelled(axis: Axis, places: Sequence[float]) -> list[str]:
    """The ticks in words.

    >>> spelled(Axis(label="a", percent=True), [0.9, 0.95]), spelled(Axis(label="s"), [0, 0.5, 20000])
    (['90 %', '95 %'], ['0', '0.5', '20,000'])
    >>> spelled(Axis(label="size", sizes=True), [8, 8 << 20])
    ['8 B', '8 MiB']
    """
    if axis.percent:
        return [f"{_plain(round(100 * place, 6))} %" for place in places]
    if axis.sizes:
        return [spell(round(place)) for place in places]
    return [_plain(place) for place in places]


def as_value(axis: Axis) -> Callable[[float], str]:
    """How a value of an axis is told to who points at it.

    >>> as_value(Axis(label="a", percent=True))(0.91234), as_value(Axis(label="s"))(0.0123456)
    ('91.23 %', '0.01235')
    """
    if axis.sizes:
        return lambda value: spell(round(value))
    return lambda value: f"{100 * value:.2f} %" if axis.percent else exact(value)


def unit_free(axis: Axis) -> str:
    """An axis' label without the unit that its values are told with.

    >>> unit_free(Axis(label="test accuracy (%)", percent=True)), unit_free(Axis(label="time (s)"))
    ('test accuracy', 'time (s)')
    """
    return axis.label.removesuffix("(%)").removesuffix("in %").rstrip() if axis.percent else axis.label


def exact(value: float) -> str:
    """Four figures, whole numbers whole.

    >>> [exact(value) for value in (12345, 3.0, 0.0512345, 1234.567)]
    ['12,345', '3', '0.05123', '1,235']
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def thinned(places: Sequence[float], most: int) -> list[float]:
    """Every second, third … of them, from the first on."""
    return list(places)[:: max(1, -(-len(places) // most))]


def fraction(axis: Axis, low: float, high: float, value: float) -> float:
    """Where a value is along an axis from `low` to `high`.

    >>> fraction(Axis(label="a"), 0, 4, 1), fraction(Axis(label="a", log=True), 1, 16, 4)
    (0.25, 0.5)
    """
    if axis.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def along(
    axis: Axis, low: float, high: float, values: Sequence[float], width: float, size: float
) -> list[float]:
    """Ticks of a lying axis whose words do not touch each other."""
    kept: list[float] = []
    end = -math.inf
    places = ticks(axis, low, high, values, max(2, int(width // (4.2 * size))))
    for place, words in zip(places, spelled(axis, places), strict=True):
        middle, half = fraction(axis, low, high, place) * width, width_of(words, size) / 2
        if middle - half >= end:
            kept.append(place)
            end = middle + half + 0.6 * size
    return kept


def overhang(
    axis: Axis, low: float, high: float, places: Sequence[float], width: float, size: float
) -> float:
    """How far the words of the last tick reach beyond the axis."""
    if not places:
        return 0.0
    (words,) = spelled(axis, places[-1:])
    return fraction(axis, low, high, places[-1]) * width + width_of(words, size) / 2 - width


def _plain(value: float) -> str:
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e10:
        return f"{value:,.10g}"
    return f"{value:.3g}"


def _linear(low: float, high: float, most: int) -> list[float]:
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in (1, 2, 2.5, 5, 10, 20) if span / (s * power) < most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _logarithmic(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{s}e{k}") for k in range(first, last + 1) for s in steps]
        inside = [place for place in found if low <= place <= high]
        if len(inside) <= most and (len(inside) >= 3 or steps == (1,)):
            return inside if len(inside) >= 2 else _linear(low, high, most)
    decades = [float(f"1e{k}") for k in range(first, last + 1) if low <= 10.0**k <= high]
    return thinned(decades, most) if len(decades) >= 2 else _linear(low, high, most)


def _doubling(values: Sequence[float]) -> bool:
    """Whether the values are small whole numbers from 1 on, as ranks are."""
    return bool(values) and all(1 <= v <= SMALL and v == int(v) for v in values)
