"""How the values of a table are spelled for readers, and how they are not for programs."""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.compare.words import megabytes, percent, seconds, times
from paceline.report.document import Column, Table, Value

KINDS: dict[str, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "seconds": seconds,
    "times": times,
    "percent": percent,
    "megabytes": megabytes,
    "number": lambda value: f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}",
}
# A row's mark, for those who cannot see its colour, and what it says.
MARKS = {"best": "★", "diverged": "↯", "failed": "✗", "simulated": "≈", "published": "†"}


def spelled(value: Value, column: Column) -> str:
    """A value as readers see it; text in a column of numbers stays as it is.

    >>> spelled(0.9134, Column(name="test accuracy", kind="percent")), spelled("diverged", Column(name="s", kind="times"))
    ('91.34 %', 'diverged')
    >>> spelled(None, Column(name="ranks", kind="count"))
    ''
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return KINDS[column.kind](value) if column.kind in KINDS else str(value)


def raw_name(column: Column) -> str:
    """The heading over unspelled values, whose unit may be another.

    >>> [raw_name(Column(name=n, kind=k)) for n, k in (("MB sent", "megabytes"), ("accuracy (%)", "percent"))]
    ['bytes sent', 'accuracy (fraction)']
    """
    if column.kind == "megabytes":
        return re.sub(r"\bMB\b", "bytes", column.name)
    if column.kind == "percent":
        return re.sub(r"\s*(\(%\)|\bin %|%)$", "", column.name) + " (fraction)"
    return column.name


def marks_in(table: Table) -> list[str]:
    """The marks that a table has, in a fixed order."""
    return [mark for mark in MARKS if mark in table.marks]


def mark_of(table: Table, row: int) -> str:
    """A row's mark, or nothing."""
    return table.marks[row] if row < len(table.marks) else ""
