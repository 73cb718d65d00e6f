"""What the ranks sent, beside what the formulas say."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from paceline.compare.rows import Row
from paceline.compare.theory import epoch_samples, epochs_of, theory_of
from paceline.compare.words import label
from paceline.report._series import Series, series_of
from paceline.report.document import Axis, Block, Column, Curve, Lines, Section, Table, Value
from paceline.report.scaling import curve_of, ranks_axis
from paceline.strategies import Traffic

# Bytes have too many figures for an axis.
MB = 1e6
# What all rows are of.
EPOCH = (
    "Of all ranks together, for as many samples as one process computes in an epoch{}, whichever ranks compute them: the "
    "same for all strategies, with --batch and with --batch-per-rank."
)
TABLE = (
    " Counted: what was handed to MPI in messages; a call of MPI's own collectives is one message of its array. What goes "
    "through shared memory, factors of small batches' gradients too, is no message. Formula: how often, x the numbers that "
    "all ranks send then; n parameters, p ranks; a turn is a batch on each rank; weights that are averaged go with one "
    "number more. Of runs that were stopped only where all were."
)
FIGURE = (
    " Of MPI's own collectives: what was handed to them. The band is the spread over seeds. Without markers: what the "
    "formula says."
)


def traffic(rows: Sequence[Row], number: int) -> Section | None:
    """The section of one problem; None where there never was anybody to send to."""
    several = [row for row in rows if row.ranks > 1]
    if not several:
        return None
    theories = {row: _theory(row) for row in several}
    samples = epoch_samples(several[0].members[0])
    unit = EPOCH.format("" if samples is None else f" ({samples:,})")
    blocks: list[Block] = []
    if figure := _figure(several, theories, number, unit):
        blocks.append(figure)
    blocks.append(_table(several, theories, number, unit))
    return Section(title="Messages", blocks=tuple(blocks))


def an_epoch(row: Row, what: str) -> list[float]:
    """Of each run: bytes_sent or messages_sent for the samples of an epoch of one process."""
    return [run.summary.get(what, 0) / epochs_of(run) for run in row.whole]


def _theory(row: Row) -> Traffic:
    """What those runs should have sent in such an epoch: their mean, as that of what they sent."""
    runs = row.whole
    told = [theory_of(run) for run in runs]
    known = list(zip(told, map(epochs_of, runs), strict=True))
    sent = [one.bytes / epochs for one, epochs in known if one.bytes is not None]
    messages = [one.messages / epochs for one, epochs in known if one.messages is not None]
    return Traffic(
        bytes=fmean(sent) if len(sent) == len(runs) else None,
        messages=fmean(messages) if len(messages) == len(runs) else None,
        words=told[0].words,
    )


def _figure(rows: Sequence[Row], theories: dict[Row, Traffic], number: int, unit: str) -> Lines | None:
    curves: list[Curve] = []
    for one in series_of(rows):
        if len(one.rows) > 1 and any(row.bytes_sent for row in one.rows):
            spans = [[sent / MB for sent in an_epoch(row, "bytes_sent")] for row in one.rows]
            curves.append(curve_of(one, [(fmean(span), min(span), max(span)) for span in spans]))
            curves += _expected(one, theories)
    if not curves:
        return None
    return Lines(
        name=f"bytes-{number}",
        title="MB sent an epoch against ranks",
        caption=unit + FIGURE,
        x=ranks_axis([int(x) for curve in curves for x in curve.x]),
        y=Axis(label="MB an epoch", log=all(y for curve in curves for y in curve.y)),
        curves=tuple(curves),
    )


def _expected(one: Series, theories: dict[Row, Traffic]) -> list[Curve]:
    known = [(row, told.bytes) for row in one.rows if (told := theories[row]).bytes is not None]
    if len(known) < 2:
        return []
    return [
        Curve(
            label=f"{one.label}: theory",
            strategy=one.strategy,
            x=tuple(float(row.ranks) for row, _ in known),
            y=tuple(sent / MB for _, sent in known),
            origin="theory",
            variant=one.variant,
        )
    ]


def _table(rows: Sequence[Row], theories: dict[Row, Traffic], number: int, unit: str) -> Table:
    return Table(
        name=f"messages-{number}",
        title="An epoch: counted, and by the formulas",
        columns=(
            Column(name="row"),
            Column(name="bytes an epoch", kind="number"),
            Column(name="theory (bytes)", kind="number"),
            Column(name="messages an epoch", kind="number"),
            Column(name="theory (messages)", kind="number"),
            Column(name="formula, numbers of all ranks"),
        ),
        rows=tuple(_line(row, theories[row]) for row in rows),
        caption=unit + TABLE,
    )


def _line(row: Row, told: Traffic) -> tuple[Value, ...]:
    return (
        label(row),
        fmean(an_epoch(row, "bytes_sent")),
        told.bytes,
        fmean(an_epoch(row, "messages_sent")),
        told.messages,
        told.words,
    )
