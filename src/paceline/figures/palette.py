"""The one palette: a colour and a marker for each strategy, each collective and each kind of time.

The colours are those of Okabe and Ito, and further ones of Tol, which colour-blind readers can distinguish. A strategy
declares its own colour and marker. Variants of one strategy share its colour in shades, and differ in marker and dash. The
origin of a curve (measured, simulated, fitted …) shows without colour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from zlib import crc32

from paceline import names
from paceline.errors import UsageError
from paceline.figures.description import Bars, Figure, Lines, Origin, Points

Dash = tuple[float, ...]

INK, GREY, FAINT, PAPER = "#222222", "#6b6b6b", "#dddddd", "#ffffff"
# Inks on a fill of another colour, which stay as they are on a dark page.
ON_LIGHT, ON_DARK = "#010101", "#fefefe"
# Kinds of time, each with an ink that can be read on it.
KINDS = {
    "compute": ("#009E73", ON_LIGHT),
    "exchange": ("#D55E00", ON_LIGHT),
    "wait": ("#E69F00", ON_LIGHT),
    "update": ("#0072B2", ON_DARK),
    "evaluation": ("#bbbbbb", ON_LIGHT),
}
# The same on a dark page.
DARK = {
    INK: "#e8e8e8", GREY: "#a8adb3", FAINT: "#3a3f45", PAPER: "#16191d", "#000000": "#f5f5f5",
    ON_LIGHT: ON_LIGHT, ON_DARK: ON_DARK,
}  # fmt: skip
# Lines and marks can be seen if their contrast with the page is at least this.
CONTRAST = 3.0
COLLECTIVES = {
    "naive": ("#999999", "X"),
    "ring": ("#0072B2", "o"),
    "recursive-doubling": ("#E69F00", "^"),
    "rabenseifner": ("#009E73", "v"),
    "shared-memory": ("#D55E00", "s"),
    "hierarchical": ("#CC79A7", "D"),
    "native": ("#000000", "P"),
    "auto": ("#56B4E9", "*"),
}
# For names without a look of their own; which one a name gets depends on the name alone.
OTHERS = (("#117733", "h"), ("#AA4499", "d"), ("#661100", "H"), ("#6699CC", "*"), ("#44AA99", "8"))
MARKERS = ("o", "s", "D", "^", "v", "<", ">", "h", "d", "p", "H", "*", "8", "X", "P")
# Similar to a solid line, so that none is mistaken for a curve that was not measured.
DASHES: tuple[Dash, ...] = ((), (9, 1.2), (9, 1.2, 2, 1.2), (5, 1), (9, 1, 1.2, 1, 1.2, 1))
# For each variant: the grey value mixed into its colour, and its part.
SHADES = ((0, 0.0), (255, 0.35), (0, 0.38), (255, 0.48), (0, 0.6))


@dataclass(frozen=True, kw_only=True)
class Style:
    """The look of one strategy: a colour, a marker as matplotlib spells it, and a dash pattern (empty: a solid line)."""

    colour: str
    marker: str
    dash: Dash
    variant: int
    """The number of this variant of a strategy; variant 0 has the strategy's own colour."""


@dataclass(frozen=True, kw_only=True)
class OriginStyle:
    """The look of an origin."""

    dash: Dash | None
    """Replaces the strategy's dash pattern, unless it is None."""
    marked: bool
    """True if points have a marker."""
    half: bool
    """True if markers are half filled."""
    width: float


ORIGINS: dict[Origin, OriginStyle] = {
    "measured": OriginStyle(dash=None, marked=True, half=False, width=1.8),
    "simulated": OriginStyle(dash=(4, 2.5), marked=True, half=True, width=1.5),
    "fit": OriginStyle(dash=(1.2, 1.8), marked=False, half=False, width=1.4),
    "ideal": OriginStyle(dash=(6, 4), marked=False, half=False, width=1.0),
    "theory": OriginStyle(dash=(7, 2, 1.2, 2), marked=False, half=False, width=1.3),
    "published": OriginStyle(dash=(1.2, 3.5), marked=True, half=False, width=1.0),
}
# Markers of published points cannot be filled, so they are not mistaken for measured ones.
PUBLISHED = ("x", "+", "1", "2", "3", "4")


def style_of(strategy: str, among: Sequence[str] = ()) -> Style:
    """Return the look of a strategy; `among` has all names of the document, in any order.

    >>> among = ["sync:allreduce=ring", "sync:allreduce=native"]
    >>> style_of("sync:allreduce=native", among).colour == style_of("sync").colour
    True
    >>> ring, native = (style_of(name, among) for name in among)
    >>> ring.colour != native.colour, ring.marker != native.marker, ring.dash != native.dash
    (True, True, True)
    """
    known = sorted({*among, strategy})
    colour, _ = _look(strategy)
    markers = {_look(name)[1] for name in known}
    spare = [marker for marker in MARKERS if marker not in markers] or list(MARKERS)
    given, used = {}, 0
    seen: dict[str, int] = {}
    for name in known:
        variant = seen.setdefault(base_name(name), 0)
        seen[base_name(name)] += 1
        given[name] = (variant, _look(name)[1] if variant == 0 else spare[used % len(spare)])
        used += variant > 0
    variant, marker = given[strategy]
    grey, part = SHADES[variant % len(SHADES)]
    dash = DASHES[variant % len(DASHES)]
    return Style(colour=_mix(colour, grey, part), marker=marker, dash=dash, variant=variant)


def variant_of(style: Style, strategy: str, among: Sequence[str], variant: int) -> Style:
    """Return the look of one of several curves of a strategy in one figure, such as those of other ranks.

    >>> first = style_of("sync")
    >>> second = variant_of(first, "sync", ["sync", "serial"], 1)
    >>> [getattr(first, name) == getattr(second, name) for name in ("colour", "marker", "dash")]
    [False, False, False]
    >>> variant_of(first, "sync", ["sync", "serial"], 0) == first
    True

    Nor does it look like another variant of the strategy.

    >>> others = ["serial", "serial:rule=adaptive"]
    >>> threads = variant_of(style_of("serial", others), "serial", others, 1)
    >>> adaptive = style_of("serial:rule=adaptive", others)
    >>> [getattr(threads, name) == getattr(adaptive, name) for name in ("colour", "marker", "dash")]
    [False, False, False]
    """
    if not variant:
        return style
    known = sorted({*among, strategy})
    taken = {style_of(name, known).marker for name in known}
    spare = [marker for marker in MARKERS if marker not in taken] or list(MARKERS)
    alike = sum(base_name(name) == base_name(strategy) for name in known)
    number = variant * alike + style.variant
    grey, part = SHADES[number % len(SHADES)]
    return replace(
        style,
        colour=_mix(_look(strategy)[0], grey, part),
        marker=spare[(3 * known.index(strategy) + variant - 1) % len(spare)],
        dash=DASHES[number % len(DASHES)],
    )


def kind_colour(kind: str) -> tuple[str, str]:
    """Return the colour of a kind of time and the ink that can be read on it; other names have a colour as well.

    >>> kind_colour("compute")
    ('#009E73', '#010101')
    """
    return KINDS.get(kind) or (style_of(kind).colour, ON_DARK)


def on_dark(colour: str) -> str:
    """Return the colour to use on a dark page: the same if it can be seen there, or else a lighter one.

    >>> on_dark("#332288"), on_dark("#E69F00"), on_dark("#ffffff")
    ('#7064ac', '#E69F00', '#16191d')
    """
    if colour in DARK:
        return DARK[colour]
    part = 0.0
    while contrast(found := _mix(colour, 255, part), DARK[PAPER]) < CONTRAST:
        part += 0.05
    return found


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours by WCAG, from 1 to 21.

    >>> round(contrast("#000000", "#ffffff"))
    21
    """
    high, low = sorted(map(_luminance, (first, second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def names_in(figures: Iterable[Figure]) -> tuple[str, ...]:
    """Return every name that has a colour in the figures, sorted, as `style_of` takes them."""
    found: set[str] = set()
    for figure in figures:
        if isinstance(figure, Lines):
            found |= {curve.strategy for curve in figure.curves}
        elif isinstance(figure, Bars):
            found |= {bar.strategy for bar in figure.bars}
        elif isinstance(figure, Points):
            found |= {point.strategy for point in figure.points}
        else:
            found.add(figure.strategy)
    return tuple(sorted(found))


def base_name(strategy: str) -> str:
    """Remove the options and remarks from a strategy's name; a class of the user's keeps its module.

    >>> [base_name(name) for name in ("sync:allreduce=ring", "serial (replay)", "my_module:Own:rate=2", "sync, 4 ranks")]
    ['sync', 'serial', 'my_module:Own', 'sync']
    """
    found = re.match(r"([^\s:,(]+)(?::[^\s:,=(]+(?=:|$|\s))?", strategy)
    if found is None:
        return strategy
    return found[1] if _find_declared(found[1]) else found[0]


@cache
def _find_declared(name: str) -> tuple[str, str] | None:
    """Return the colour and marker that a strategy or collective of this package has, or None."""
    if name in COLLECTIVES:
        return COLLECTIVES[name]
    if not names.has("strategies", name):
        return None
    try:
        strategy = names.find("strategies", name)
    except (ImportError, AttributeError, UsageError):  # of another package, which is broken
        return None
    colour, marker = _other(name)
    return getattr(strategy, "colour", "") or colour, getattr(strategy, "marker", "") or marker


def _look(strategy: str) -> tuple[str, str]:
    name = base_name(strategy)
    return _find_declared(name) or _other(name)


def _other(name: str) -> tuple[str, str]:
    return OTHERS[crc32(name.encode(errors="surrogateescape")) % len(OTHERS)]


def _mix(colour: str, grey: int, part: float) -> str:
    """Mix a grey value into a colour.

    >>> _mix("#0072B2", 255, 0.5)
    '#80b8d8'
    """
    if not part:
        return colour
    values = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    if grey == 0 and sum(values) < 200:  # nothing is darker than black
        grey, part = 255, 0.96 - part
    return "#" + "".join(f"{round(value * (1 - part) + grey * part):02x}" for value in values)
