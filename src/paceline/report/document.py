"""What a report is before it is written in any format: sections of text, tables and figures, each with its own data.

Whoever fills a report makes these; whoever writes one (HTML, Markdown, PDF, pictures, CSV) reads nothing else. So all
formats say the same, and the data of a figure can be held against the records it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Value = str | int | float | None
# How a curve came about; a reader must be able to tell them apart without colour.
Origin = Literal["measured", "simulated", "fit", "ideal", "theory", "published"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points of one thing, by rising x; None in `y` is a gap.

    >>> curve = Curve(label="sync", strategy="sync", x=(1, 2), y=(1.0, 1.8), low=(1.0, 1.7), high=(1.0, 1.9))
    >>> curve.origin, curve.joined
    ('measured', True)
    """

    label: str
    """As the legend has it."""
    strategy: str
    """Whose colour it has: a strategy in its full spelling, or any other name that keeps its colour."""
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    """With `high`: the spread over seeds, the least and the most."""
    high: tuple[float | None, ...] | None = None
    origin: Origin = "measured"
    joined: bool = True
    """Whether a line goes through the points."""
    variant: int = 0
    """Which of several curves of one strategy and origin in a figure: told apart by marker, dash and shade."""
    hollow: tuple[bool, ...] | None = None
    """Points to mark as not to be trusted: more ranks than cores."""
    notes: tuple[str, ...] | None = None
    """To each point what hovering says besides its values."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A labelled axis; `label` has the unit in it: "training time (s)"."""

    label: str
    log: bool = False
    """Logarithmic, to the base of 2 where the values are ranks."""
    ticks: tuple[float, ...] | None = None
    percent: bool = False
    """Values are fractions, shown as per cent."""
    sizes: bool = False
    """Values are bytes, shown as KiB, MiB …"""
    bounds: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over one pair of axes."""

    name: str
    """Unique in the document, fit for a file name: "speedup-1"."""
    title: str
    caption: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    level: tuple[float, str] | None = None
    """A horizontal line with its words: the target accuracy."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: its parts follow each other; `low` and `high` are the spread of their sum over seeds."""

    label: str
    strategy: str
    parts: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    words: str = ""
    """Written at its end."""
    simulated: bool = False
    hollow: bool = False
    """Not to be trusted: more ranks than cores."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Lying bars, one below the other, of one part each (in their strategy's colour) or of several (`kinds`)."""

    name: str
    title: str
    caption: str
    x: Axis
    kinds: tuple[str, ...]
    """What the parts are; one name where a bar has one part."""
    bars: tuple[Bar, ...]
    dots: bool = False
    """A dot at the value in the place of a bar, the spread beside it: for accuracies, whose axis (`x.bounds`) does not
    begin at 0. Bars have one part each; a value below the axis is drawn as an arrow at its start, its `words` say it."""
    level: tuple[float, str] | None = None
    """A standing line with its words: the target, what serial came to."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A histogram: standing bars over whole numbers, the last perhaps for all that is above."""

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
    """Whether the last column stands for all that is above the others: to be told apart from them."""


Figure = Lines | Bars | Columns


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table's column: its heading, and how its values are spelled."""

    name: str
    """With its unit: "time (s)"."""
    kind: Literal["text", "count", "seconds", "times", "percent", "megabytes", "number"] = "text"
    unseen: bool = False
    """Whether pages do without it, since the caption says what is in it; CSV has it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Values as they are; how they are spelled is their column's matter. CSV has them unspelled."""

    name: str
    """Unique in the document, fit for a file name."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    caption: str = ""
    marks: tuple[str, ...] = ()
    """To each row one of "", "best", "diverged", "failed", "simulated", "published"; () for none."""
    folded: bool = False
    """Whether a page shows it only when asked for: the values of a figure, pieces of a master."""

    def seen(self) -> Table:
        """The same with those columns alone that pages have."""
        rows = (zip(row, self.columns, strict=True) for row in self.rows)
        return replace(
            self,
            columns=tuple(column for column in self.columns if not column.unseen),
            rows=tuple(tuple(value for value, column in row if not column.unseen) for row in rows),
        )


@dataclass(frozen=True, kw_only=True)
class Text:
    """Paragraphs of plain text, or the items of a list."""

    lines: tuple[str, ...]
    kind: Literal["paragraphs", "list", "note", "verdict"] = "paragraphs"
    title: str = ""
    """What they are about, where no heading says it."""
    folded: bool = False
    """Whether a page shows them only when asked for, in the place of which it has the title."""


# So many notes are read at a glance.
GLANCE = 4


def foldable(lines: Sequence[str], title: str) -> Text:
    """Notes, folded under a title where there are many.

    >>> foldable(["a"], "Notes").folded, foldable(["a"] * 5, "Notes").title
    (False, 'Notes')
    """
    many = len(lines) > GLANCE
    return Text(lines=tuple(lines), kind="note", title=title if many else "", folded=many)


Block = Text | Table | Figure


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
    note: str = ""
    """Below the heading: all other settings of a problem."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report.

    >>> table = Table(name="t", title="", columns=(Column(name="ranks", kind="count"),), rows=((2,),))
    >>> page = Document(title="report", summary=(), sections=(Section(title="a", blocks=(table,)),))
    >>> [block.name for block in page.blocks() if isinstance(block, Table)]
    ['t']
    """

    title: str
    summary: tuple[Text, ...]
    sections: tuple[Section, ...]

    def blocks(self) -> Iterator[Block]:
        """Every block, in order."""
        yield from self.summary
        for section in self.sections:
            yield from _inside(section)


def _inside(section: Section) -> Iterator[Block]:
    yield from section.blocks
    for inner in section.sections:
        yield from _inside(inner)
