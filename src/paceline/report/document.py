"""A report before it is written in any format: sections of text, tables and figures, each with its own data.

The modules that fill a report make these; the modules that write one (HTML, Markdown, PDF, CSV) read nothing else. So all
formats say the same, and the data of a figure can be compared with the records that it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline import text
from paceline.figures import Axis, Bars, Figure, Histogram, Lines, Points

Value = str | int | float | None
Kind = Literal["text", "count", "seconds", "times", "percent", "megabytes", "number"]

SPELLINGS: dict[str, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "seconds": text.seconds,
    "times": text.times,
    "percent": text.percent,
    "megabytes": text.megabytes,
    "number": lambda value: f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}",
}
# The sign of a row's mark, for readers who cannot see its colour.
SIGNS = {
    "best": "★", "diverged": "↯", "failed": "✗", "learned nothing": "∅", "learned less": "▼",
    "missed the target": "▽", "stopped early": "◇", "oversubscribed": "○",
    "simulated": "≈", "published": "†",
}  # fmt: skip
# Rows with these marks are no success, whatever their time: a word beside their name says so, and speedups are struck out.
NO_SUCCESS = (
    *("diverged", "failed", "learned nothing", "learned less", "missed the target", "stopped early"),
    "oversubscribed",
)
# More notes than these are folded.
GLANCE = 4


class Spread(float):
    """A mean with the lowest and the highest value over the runs behind it.

    >>> Column(name="time (s)", kind="seconds").spell(Spread(1.5, 1.0, 2.0))
    '1.50 (1.00 to 2.00)'
    >>> Spread(1.5, 1.0, 2.0) == 1.5
    True
    """

    def __new__(cls, value: float, low: float, high: float) -> Spread:
        """Create one; it is equal to its mean."""
        made = super().__new__(cls, value)
        made.low, made.high = low, high
        return made

    low: float
    high: float


def is_speedup(words: str) -> bool:
    """Return True for the text of a speedup, which a row that is no success strikes out; False for words in its place.

    >>> is_speedup("22.0x"), is_speedup("4 of 5 diverged")
    (True, False)
    """
    return re.match(r"[\d.,]+x", words) is not None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table's column: its heading, and the kind of its values, which decides how they are spelled."""

    name: str
    """With its unit: "time (s)"."""
    kind: Kind = "text"
    unseen: bool = False
    """True if pages leave it out, because the caption says what is in it; CSV has it."""

    def spell(self, value: Value) -> str:
        """Format a value for readers; text in a column of numbers stays as it is.

        >>> Column(name="test accuracy", kind="percent").spell(0.9134), Column(name="s", kind="times").spell("diverged")
        ('91.34 %', 'diverged')
        >>> Column(name="ranks", kind="count").spell(None)
        ''
        """
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        if self.kind not in SPELLINGS:
            return str(value)
        spell = SPELLINGS[self.kind]
        ends = (
            [spell(end).rstrip(" %x") for end in (value.low, value.high)] if isinstance(value, Spread) else []
        )
        return spell(value) + (f" ({ends[0]} to {ends[1]})" if len(set(ends)) > 1 else "")

    @property
    def raw_name(self) -> str:
        """The heading over values as they are, whose unit may be different.

        >>> [Column(name=n, kind=k).raw_name for n, k in (("MB sent", "megabytes"), ("accuracy (%)", "percent"))]
        ['bytes sent', 'accuracy (fraction)']
        """
        if self.kind == "megabytes":
            return re.sub(r"\bMB\b", "bytes", self.name)
        if self.kind == "percent":
            return re.sub(r"\s*(\(%\)|\bin %|%)$", "", self.name) + " (fraction)"
        return self.name


@dataclass(frozen=True, kw_only=True)
class Table:
    """Values as they are; their column spells them for pages, and CSV has them as they are."""

    name: str
    """Unique in the document and usable as a file name."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    caption: str = ""
    marks: tuple[str, ...] = ()
    """For each row "" or one of `SIGNS`; () for none."""
    folded: bool = False
    """True if a page shows it only on request, such as the values of a figure."""

    def drop_unseen(self) -> Table:
        """Return the table with only those columns that pages show."""
        rows = (zip(row, self.columns, strict=True) for row in self.rows)
        return replace(
            self,
            columns=tuple(column for column in self.columns if not column.unseen),
            rows=tuple(tuple(value for value, column in row if not column.unseen) for row in rows),
        )

    def cells(self) -> list[list[str]]:
        """Return every value as readers see it, row by row."""
        return [
            [column.spell(value) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def mark(self, row: int) -> str:
        """Return the mark of a row, or an empty string."""
        return self.marks[row] if row < len(self.marks) else ""

    def used_marks(self) -> list[str]:
        """Return the marks that the table has, in a fixed order."""
        return [mark for mark in SIGNS if mark in self.marks]


@dataclass(frozen=True, kw_only=True)
class Text:
    """Paragraphs of plain text, or the items of a list."""

    lines: tuple[str, ...]
    kind: Literal["paragraphs", "list", "note", "verdict", "command", "question"] = "paragraphs"
    title: str = ""
    """The subject, if no heading names it."""
    folded: bool = False
    """True if a page shows only the title until a reader asks for the rest."""


def foldable(lines: Sequence[str], title: str) -> Text:
    """Return notes, folded under a title if there are many.

    >>> foldable(["a"], "Notes").folded, foldable(["a"] * 5, "Notes").title
    (False, 'Notes')
    """
    many = len(lines) > GLANCE
    return Text(lines=tuple(lines), kind="note", title=title if many else "", folded=many)


Block = Text | Table | Figure


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a reader sees first of a problem: the answer in one sentence, the command to copy, and one figure."""

    sentence: str
    sure: str = ""
    """How sure it is."""
    command: str = ""
    """A line for a shell; empty if there is none to recommend."""
    figure: Figure | None = None
    notices: tuple[str, ...] = ()
    """What makes the times or the comparison doubtful."""

    def blocks(self) -> Iterator[Block]:
        """Yield its parts for formats without a layout of their own for it."""
        yield Text(lines=(self.sentence,), kind="verdict")
        if self.sure:
            yield Text(lines=(self.sure,), kind="note")
        if self.command:
            yield Text(lines=(self.command,), kind="command")
        if self.figure is not None:
            yield self.figure
        if self.notices:
            yield foldable(self.notices, f"Caveats ({len(self.notices)})")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
    note: str = ""
    """Below the heading: all other settings of a problem."""
    opening: Opening | None = None
    """Of a problem."""
    folded: bool = False
    """True if a page shows only the heading until a reader asks for the rest."""

    def every_block(self) -> Iterator[Block]:
        """Yield its blocks and those of the sections in it, in order."""
        if self.opening is not None and self.opening.figure is not None:
            yield self.opening.figure
        yield from self.blocks
        for section in self.sections:
            yield from section.every_block()


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
        """Yield every block, in order."""
        yield from self.summary
        for section in self.sections:
            yield from section.every_block()

    @property
    def questions(self) -> list[Text]:
        """The questions of studies, which come before the answer."""
        return [text for text in self.summary if text.kind == "question"]

    @property
    def findings(self) -> list[Text]:
        """The rest of the summary, which comes after the answer."""
        return [text for text in self.summary if text.kind != "question"]

    @property
    def problems(self) -> list[Section]:
        """The sections that have an answer."""
        return [section for section in self.sections if section.opening is not None]

    def figures(self) -> list[Figure]:
        """Return every figure, in order."""
        return [block for block in self.blocks() if not isinstance(block, Text | Table)]


# ---- the data of a figure


def data_of(figure: Figure) -> Table:
    """Return the data of a figure as a table: one row for each point, bar or column.

    >>> from paceline.figures import Curve
    >>> curve = Curve(label="sync", strategy="sync", x=(1, 2), y=(1.0, 1.8))
    >>> lines = Lines(name="s", title="", caption="", x=Axis(label="ranks"), y=Axis(label="speedup"), curves=(curve,))
    >>> [column.name for column in data_of(lines).columns], data_of(lines).rows
    (['curve', 'ranks', 'speedup'], (('sync', 1, 1.0), ('sync', 2, 1.8)))
    """
    if isinstance(figure, Lines):
        columns, rows = _data_of_lines(figure)
    elif isinstance(figure, Bars):
        columns, rows = _data_of_bars(figure)
    elif isinstance(figure, Points):
        columns, rows = _data_of_points(figure)
    else:
        columns, rows = _data_of_histogram(figure)
    used = [k for k in range(len(columns)) if any(row[k] not in (None, "") for row in rows) or k < 2]
    return Table(
        name=figure.name,
        title=figure.title,
        columns=tuple(columns[k] for k in used),
        rows=tuple(tuple(row[k] for k in used) for row in rows),
        folded=True,
    )


def _data_of_lines(figure: Lines) -> tuple[list[Column], list[tuple[Value, ...]]]:
    x, y = _kind(figure.x), _kind(figure.y)
    across = figure.x.label + " (bytes)" * figure.x.sizes
    columns = [
        Column(name="curve"), Column(name=across, kind=x), Column(name=figure.y.label, kind=y),
        Column(name="lowest", kind=y), Column(name="highest", kind=y), Column(name="origin"), Column(name="note"),
    ]  # fmt: skip
    several = len({curve.origin for curve in figure.curves}) > 1
    rows: list[tuple[Value, ...]] = []
    for curve in figure.curves:
        for k, at in enumerate(curve.x):
            crowded = curve.oversubscribed is not None and curve.oversubscribed[k]
            less = curve.less is not None and curve.less[k]
            rows.append(
                (
                    curve.label,
                    at,
                    curve.y[k],
                    None if curve.low is None else curve.low[k],
                    None if curve.high is None else curve.high[k],
                    curve.origin if several else "",
                    _note(crowded, "" if curve.notes is None else curve.notes[k], less=less),
                )
            )
    return columns, rows


def _data_of_bars(figure: Bars) -> tuple[list[Column], list[tuple[Value, ...]]]:
    kind = _kind(figure.x)
    _, bracket, unit = figure.x.label.rpartition(" (")
    names = [f"{name} ({unit}" if bracket else name for name in figure.kinds]
    names = names if len(names) > 1 else [figure.x.label]
    columns = [
        Column(name="bar"), *(Column(name=name, kind=kind) for name in names), Column(name="lowest", kind=kind),
        Column(name="highest", kind=kind), Column(name="origin"), Column(name="note"),
    ]  # fmt: skip
    rows: list[tuple[Value, ...]] = [
        (
            *(bar.label, *bar.parts, bar.low, bar.high, "simulated" if bar.simulated else ""),
            "; ".join(filter(None, (bar.words, _note(bar.oversubscribed)))),
        )
        for bar in figure.bars
    ]
    return columns, rows


def _data_of_points(figure: Points) -> tuple[list[Column], list[tuple[Value, ...]]]:
    x, y = _kind(figure.x), _kind(figure.y)
    across = f"{figure.x.label} (s)" if figure.x.seconds else figure.x.label
    columns = [
        Column(name="row"), Column(name=across, kind=x), Column(name=figure.y.label, kind=y), Column(name="front"),
        Column(name="origin"), Column(name="note"),
    ]  # fmt: skip
    rows: list[tuple[Value, ...]] = [
        (
            point.label,
            _spread(point.x, point.x_range),
            _spread(point.y, point.y_range),
            "yes" if k in figure.front else "",
            "simulated" if point.simulated else "",
            "; ".join(
                filter(
                    None,
                    (
                        figure.outside if point.x is None else "",
                        point.flag,
                        "stopped early" if point.stopped else "",
                        _note(point.oversubscribed),
                    ),
                )
            ),
        )
        for k, point in enumerate(figure.points)
    ]
    return columns, rows


def _spread(value: float | None, ends: tuple[float, float] | None) -> float | None:
    return value if value is None or ends is None else Spread(value, *ends)


def _data_of_histogram(figure: Histogram) -> tuple[list[Column], list[tuple[Value, ...]]]:
    kind = _kind(figure.y)
    columns = [
        Column(name=figure.x.label), Column(name=figure.y.label, kind=kind), Column(name="lowest", kind=kind),
        Column(name="highest", kind=kind),
    ]  # fmt: skip
    none = (None,) * len(figure.labels)
    return columns, list(
        zip(figure.labels, figure.heights, figure.low or none, figure.high or none, strict=True)
    )


def _kind(axis: Axis) -> Kind:
    return "percent" if axis.percent else "seconds" if axis.seconds else "number"


def _note(crowded: bool, words: str = "", *, less: bool = False) -> str:
    worse = "learned less than serial" if less and "diverged" not in words else ""
    said = ("more ranks than cores" if crowded else "", worse, words)
    return "; ".join(filter(None, said))
