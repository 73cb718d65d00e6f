"""How things look, the same in every figure of every format: a colour for each strategy, marks for what it is not alone.

Colours are those of Okabe and Ito, and further ones of Tol, which colour-blind readers can tell apart. Variants of one
strategy share its colour in shades, and differ in marker and dash. How a curve came about is told without colour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from paceline.report.document import Bars, Columns, Document, Lines, Origin

Dash = tuple[float, ...]

# Each strategy's colour and marker. Names that no table knows get one of OTHERS, always the same.
STRATEGIES = {
    "serial": ("#000000", "o"),
    "sync": ("#0072B2", "s"),
    "parameter-server": ("#D55E00", "^"),
    "psgd": ("#009E73", "D"),
    "hogwild": ("#CC79A7", "v"),
    "local-sgd": ("#E69F00", "P"),
    "weight-average": ("#56B4E9", "X"),
    "main-worker": ("#882255", "<"),
    "elastic": ("#999933", ">"),
    "gossip": ("#332288", "p"),
    # Collectives, as `paceline bench` draws them.
    "naive": ("#999999", "X"),
    "ring": ("#0072B2", "o"),
    "recursive-doubling": ("#E69F00", "^"),
    "rabenseifner": ("#009E73", "v"),
    "shared-memory": ("#D55E00", "s"),
    "hierarchical": ("#CC79A7", "D"),
    "native": ("#000000", "P"),
    "auto": ("#56B4E9", "*"),
}
OTHERS = (("#117733", "h"), ("#AA4499", "d"), ("#661100", "H"), ("#6699CC", "*"), ("#44AA99", "8"))
MARKERS = ("o", "s", "D", "^", "v", "<", ">", "h", "d", "p", "H", "*", "8", "X", "P")
# Near enough to a whole line not to be taken for a curve that was not measured.
DASHES: tuple[Dash, ...] = ((), (9, 1.2), (9, 1.2, 2, 1.2), (5, 1), (9, 1, 1.2, 1, 1.2, 1))
# What is mixed into a variant's colour, and how much of it.
SHADES = ((0, 0.0), (255, 0.35), (0, 0.38), (255, 0.48), (0, 0.6))

# Kinds of time, each with the ink that can be read on it.
KINDS = {
    "compute": ("#009E73", "#000000"),
    "exchange": ("#D55E00", "#000000"),
    "wait": ("#E69F00", "#000000"),
    "update": ("#0072B2", "#ffffff"),
}
INK, GREY, FAINT = "#222222", "#6b6b6b", "#dddddd"


@dataclass(frozen=True, kw_only=True)
class Style:
    """How one strategy looks: a colour, a marker in matplotlib's spelling, and a dash (none: a whole line)."""

    colour: str
    marker: str
    dash: Dash
    variant: int
    """Which of the variants of one strategy it is; the first has the strategy's own colour."""


@dataclass(frozen=True, kw_only=True)
class OriginStyle:
    """How the origin of a curve is told without colour."""

    dash: Dash | None
    """In the place of the strategy's own; None: the strategy's."""
    marked: bool
    """Whether points have a marker."""
    half: bool
    """Whether markers are half filled."""
    width: float


ORIGINS: dict[Origin, OriginStyle] = {
    "measured": OriginStyle(dash=None, marked=True, half=False, width=1.8),
    "simulated": OriginStyle(dash=(4, 2.5), marked=True, half=True, width=1.5),
    "fit": OriginStyle(dash=(1.2, 1.8), marked=False, half=False, width=1.4),
    "ideal": OriginStyle(dash=(6, 4), marked=False, half=False, width=1.0),
    "theory": OriginStyle(dash=(7, 2, 1.2, 2), marked=False, half=False, width=1.3),
    "published": OriginStyle(dash=(1.2, 3.5), marked=True, half=False, width=1.0),
}
# Markers of published points cannot be filled, so they are never taken for ours.
PUBLISHED = ("x", "+", "1", "2", "3", "4")


def style_of(strategy: str, among: Sequence[str]) -> Style:
    """The look of a strategy; `among` are all that the document has, in any order.

    >>> names = ["sync:allreduce=ring", "sync:allreduce=native", "psgd"]
    >>> style_of("sync:allreduce=native", names).colour == STRATEGIES["sync"][0]
    True
    >>> ring, native = (style_of(name, names) for name in names[:2])
    >>> ring.colour != native.colour, ring.marker != native.marker, ring.dash != native.dash
    (True, True, True)
    >>> style_of("psgd", names) == style_of("psgd", ["psgd"])
    True
    """
    known = sorted({*among, strategy})
    colour, _ = _own(strategy)
    markers = {_own(name)[1] for name in known}
    spare = [marker for marker in MARKERS if marker not in markers] or list(MARKERS)
    given, used = {}, 0
    seen: dict[str, int] = {}
    for name in known:
        variant = seen.setdefault(base(name), 0)
        seen[base(name)] += 1
        given[name] = (variant, _own(name)[1] if variant == 0 else spare[used % len(spare)])
        used += variant > 0
    variant, marker = given[strategy]
    white, part = SHADES[variant % len(SHADES)]
    return Style(
        colour=_mixed(colour, white, part),
        marker=marker,
        dash=DASHES[variant % len(DASHES)],
        variant=variant,
    )


def variant_of(style: Style, strategy: str, among: Sequence[str], variant: int) -> Style:
    """The look of one of several curves of a strategy in one figure (of other ranks, say): the first has the strategy's.

    >>> first = style_of("sync", ["sync", "psgd"])
    >>> second = variant_of(first, "sync", ["sync", "psgd"], 1)
    >>> [getattr(first, name) == getattr(second, name) for name in ("colour", "marker", "dash")]
    [False, False, False]
    >>> variant_of(first, "sync", ["sync", "psgd"], 0) == first
    True
    """
    if not variant:
        return style
    known = sorted({*among, strategy})
    taken = {style_of(name, known).marker for name in known}
    spare = [marker for marker in MARKERS if marker not in taken] or list(MARKERS)
    white, part = SHADES[variant % len(SHADES)]
    return replace(
        style,
        colour=_mixed(style.colour, white, part),
        marker=spare[(3 * known.index(strategy) + variant - 1) % len(spare)],
        dash=DASHES[(style.variant + variant) % len(DASHES)],
    )


def base(strategy: str) -> str:
    """A strategy without its options and what else is said of it; somebody's own keeps its module.

    >>> [base(name) for name in ("sync:allreduce=ring", "psgd (replay)", "my_module:Own:rate=2", "sync, 4 ranks")]
    ['sync', 'psgd', 'my_module:Own', 'sync']
    """
    found = re.match(r"([^\s:,(]+)(?::[^\s:,=(]+(?=:|$|\s))?", strategy)
    if found is None:
        return strategy
    return found[1] if found[1] in STRATEGIES else found[0]


def kind_colour(kind: str) -> tuple[str, str]:
    """The colour of a kind of time and the ink on it; other kinds of anything have a colour of their own.

    >>> kind_colour("compute")
    ('#009E73', '#000000')
    """
    return KINDS.get(kind) or (style_of(kind, ()).colour, "#ffffff")


def strategies_of(document: Document) -> tuple[str, ...]:
    """Every name that has a colour in the document, sorted: what `style_of` takes."""
    found: set[str] = set()
    for block in document.blocks():
        if isinstance(block, Lines):
            found |= {curve.strategy for curve in block.curves}
        elif isinstance(block, Bars):
            found |= {bar.strategy for bar in block.bars}
        elif isinstance(block, Columns):
            found.add(block.strategy)
    return tuple(sorted(found))


def origins_of(curves: Iterable[Origin]) -> tuple[Origin, ...]:
    """Those origins that occur, in the order in which they are told."""
    present = set(curves)
    return tuple(origin for origin in ORIGINS if origin in present)


def _own(strategy: str) -> tuple[str, str]:
    name = base(strategy)
    return STRATEGIES.get(name) or OTHERS[crc32(name.encode(errors="surrogateescape")) % len(OTHERS)]


def _mixed(colour: str, other: int, part: float) -> str:
    """
    >>> _mixed("#0072B2", 255, 0.5)
    '#80b8d8'
    """
    if not part:
        return colour
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    lighter = 255 if sum(parts) < 200 else other  # nothing is darker than black
    mixed = (round(value * (1 - part) + lighter * part) for value in parts)
    return "#" + "".join(f"{value:02x}" for value in mixed)
