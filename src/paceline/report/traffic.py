"""What the ranks sent, beside what the formulas say."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from paceline.report._rows import Row
from paceline.report._series import Series, series_of
from paceline.report._theory import Theory, theory_of
from paceline.report._words import label
from paceline.report.document import Axis, Block, Column, Curve, Lines, Section, Table, Value
from paceline.report.scaling import curve_of, ranks_axis

TABLE = (
    "Of all ranks together, by the batches of the run (a batch: --batch samples, or with --batch-per-rank what all ranks "
    "compute together). Counted: what was handed to MPI in messages; a call of MPI's own collectives is one message of "
    "its array. What goes through shared memory, factors of small batches' gradients too, is no message. Theory: n "
    "parameters, p ranks; weights that are averaged go with one number more."
)
FIGURE = "All ranks together; the band is the spread over seeds. Without markers: what the formula says."


def traffic(rows: Sequence[Row], number: int) -> Section | None:
    """The section of one problem; None where there never was anybody to send to."""
    several = [row for row in rows if row.ranks > 1]
    if not several:
        return None
    theories = {row: theory_of(row.members[0]) for row in several}
    blocks: list[Block] = []
    if figure := _figure(several, theories, number):
        blocks.append(figure)
    blocks.append(_table(several, theories, number))
    return Section(title="Messages", blocks=tuple(blocks))


def a_batch(row: Row, what: str) -> list[float]:
    """Of each run: bytes_sent or messages_sent by its batches."""
    return [run.summary.get(what, 0) / (run.summary.get("steps") or 1) for run in row.members]


def _figure(rows: Sequence[Row], theories: dict[Row, Theory], number: int) -> Lines | None:
    curves: list[Curve] = []
    for one in series_of(rows):
        if len(one.rows) > 1 and any(row.bytes_sent for row in one.rows):
            spans = [a_batch(row, "bytes_sent") for row in one.rows]
            curves.append(curve_of(one, [(fmean(span), min(span), max(span)) for span in spans]))
            curves += _expected(one, theories)
    if not curves:
        return None
    return Lines(
        name=f"bytes-{number}",
        title="Bytes sent a batch against ranks",
        caption=FIGURE,
        x=ranks_axis([int(x) for curve in curves for x in curve.x]),
        y=Axis(label="bytes a batch", log=all(y for curve in curves for y in curve.y)),
        curves=tuple(curves),
    )


def _expected(one: Series, theories: dict[Row, Theory]) -> list[Curve]:
    known = [(row, told.bytes) for row in one.rows if (told := theories[row]).bytes is not None]
    if len(known) < 2:
        return []
    return [
        Curve(
            label=f"{one.label}: theory",
            strategy=one.strategy,
            x=tuple(float(row.ranks) for row, _ in known),
            y=tuple((sent or 0) / (row.members[0].summary.get("steps") or 1) for row, sent in known),
            origin="theory",
            variant=one.variant,
        )
    ]


def _table(rows: Sequence[Row], theories: dict[Row, Theory], number: int) -> Table:
    return Table(
        name=f"messages-{number}",
        title="A batch: counted, and by the formulas",
        columns=(
            Column(name="row"),
            Column(name="bytes a batch", kind="number"),
            Column(name="theory (bytes)", kind="number"),
            Column(name="messages a batch", kind="number"),
            Column(name="theory (messages)", kind="number"),
            Column(name="formula, numbers of all ranks"),
        ),
        rows=tuple(_line(row, theories[row]) for row in rows),
        caption=TABLE,
    )


def _line(row: Row, told: Theory) -> tuple[Value, ...]:
    steps = row.members[0].summary.get("steps") or 1
    return (
        label(row),
        fmean(a_batch(row, "bytes_sent")),
        None if told.bytes is None else told.bytes / steps,
        fmean(a_batch(row, "messages_sent")),
        None if told.messages is None else told.messages / steps,
        told.words,
    )
