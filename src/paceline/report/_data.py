"""The data of a figure as a table: what its folded table shows, and what its CSV file holds."""

from __future__ import annotations

from typing import Literal

from paceline.report.document import Axis, Bar, Bars, Column, Columns, Figure, Lines, Table, Value

Kind = Literal["text", "percent", "number"]


def table_of(figure: Figure) -> Table:
    """Every point, bar or column of a figure, one a row, with nothing that the figure does not have.

    >>> from paceline.report.document import Curve
    >>> curve = Curve(label="sync", strategy="sync", x=(1, 2), y=(1.0, 1.8))
    >>> lines = Lines(name="s", title="", caption="", x=Axis(label="ranks"), y=Axis(label="speedup"), curves=(curve,))
    >>> [column.name for column in table_of(lines).columns], table_of(lines).rows
    (['curve', 'ranks', 'speedup'], (('sync', 1, 1.0), ('sync', 2, 1.8)))
    """
    columns, rows = (
        _lines(figure)
        if isinstance(figure, Lines)
        else _bars(figure)
        if isinstance(figure, Bars)
        else _columns(figure)
    )
    used = [k for k in range(len(columns)) if any(row[k] not in (None, "") for row in rows) or k < 2]
    return Table(
        name=figure.name,
        title=figure.title,
        columns=tuple(columns[k] for k in used),
        rows=tuple(tuple(row[k] for k in used) for row in rows),
        folded=True,
    )


def _lines(figure: Lines) -> tuple[list[Column], list[tuple[Value, ...]]]:
    x, y = _kind(figure.x), _kind(figure.y)
    across = figure.x.label + " (bytes)" * figure.x.sizes
    columns = [
        Column(name="curve"), Column(name=across, kind=x), Column(name=figure.y.label, kind=y),
        Column(name="least", kind=y), Column(name="most", kind=y), Column(name="origin"), Column(name="note"),
    ]  # fmt: skip
    several = len({curve.origin for curve in figure.curves}) > 1
    rows: list[tuple[Value, ...]] = []
    for curve in figure.curves:
        for k, at in enumerate(curve.x):
            crowded = "more ranks than cores" if curve.hollow is not None and curve.hollow[k] else ""
            said = curve.notes[k] if curve.notes is not None else ""
            rows.append(
                (
                    curve.label,
                    at,
                    curve.y[k],
                    None if curve.low is None else curve.low[k],
                    None if curve.high is None else curve.high[k],
                    curve.origin if several else "",
                    "; ".join(filter(None, (crowded, said))),
                )
            )
    return columns, rows


def _bars(figure: Bars) -> tuple[list[Column], list[tuple[Value, ...]]]:
    kind = _kind(figure.x)
    names = figure.kinds if len(figure.kinds) > 1 else (figure.x.label,)
    columns = [
        Column(name="bar"), *(Column(name=_with_unit(name, figure), kind=kind) for name in names),
        Column(name="least", kind=kind), Column(name="most", kind=kind), Column(name="origin"), Column(name="note"),
    ]  # fmt: skip
    rows: list[tuple[Value, ...]] = [
        (bar.label, *bar.parts, bar.low, bar.high, "simulated" if bar.simulated else "", _notes(bar))
        for bar in figure.bars
    ]
    return columns, rows


def _notes(bar: Bar) -> str:
    crowded = "more ranks than cores" if bar.hollow else ""
    return "; ".join(filter(None, (bar.words, crowded)))


def _with_unit(name: str, figure: Bars) -> str:
    """A kind's name with the unit of the axis."""
    _, bracket, unit = figure.x.label.rpartition(" (")
    return name if name == figure.x.label or not bracket else f"{name} ({unit}"


def _columns(figure: Columns) -> tuple[list[Column], list[tuple[Value, ...]]]:
    kind = _kind(figure.y)
    columns = [
        Column(name=figure.x.label), Column(name=figure.y.label, kind=kind), Column(name="least", kind=kind),
        Column(name="most", kind=kind),
    ]  # fmt: skip
    nothing = (None,) * len(figure.labels)
    low, high = figure.low or nothing, figure.high or nothing
    return columns, list(zip(figure.labels, figure.heights, low, high, strict=True))


def _kind(axis: Axis) -> Kind:
    return "percent" if axis.percent else "number"
