"""The messages that the ranks sent, beside what the formulas predict."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from paceline.compare.rows import Row, label
from paceline.compare.theory import epoch_samples, epochs_of, theory_of
from paceline.figures import Axis, Curve, Lines
from paceline.report.document import Block, Column, Section, Table, Value
from paceline.report.series import Series, curve_of, ranks_axis, series_of
from paceline.strategies import Traffic

MB = 1e6  # bytes have too many figures for an axis
EPOCH = (
    "All ranks together, for as many samples as one process computes in an epoch{}: the same amount of work for all "
    "strategies, with --batch and with --batch-per-rank."
)
TABLE = (
    " Counted: messages handed to MPI; a call of one of MPI's own collectives counts as one message of its array. Data "
    "passed through shared memory, such as the factors of small batches' gradients, is not counted. Formula: how often, "
    "times the numbers that all ranks send each time; n parameters, p ranks; a turn is one batch on each rank; averaged "
    "weights are sent with one more number. Runs that were stopped count only if all runs of the row were."
)
FIGURE = (
    " For MPI's own collectives: the arrays handed to them. The band is the spread over seeds. Without markers: the "
    "formula's prediction."
)


def traffic(rows: Sequence[Row], number: int) -> Section | None:
    """Return the section of one problem; None if every run had one rank."""
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


def per_epoch(row: Row, what: str) -> list[float]:
    """Return bytes_sent or messages_sent of each run, for the samples of an epoch of one process."""
    return [run.summary.get(what, 0) / epochs_of(run) for run in row.whole]


def _theory(row: Row) -> Traffic:
    """Return what those runs should have sent in such an epoch, as a mean over them."""
    runs = row.whole
    expected = [theory_of(run) for run in runs]
    known = list(zip(expected, map(epochs_of, runs), strict=True))
    sent = [one.bytes / epochs for one, epochs in known if one.bytes is not None]
    messages = [one.messages / epochs for one, epochs in known if one.messages is not None]
    return Traffic(
        bytes=fmean(sent) if len(sent) == len(runs) else None,
        messages=fmean(messages) if len(messages) == len(runs) else None,
        words=expected[0].words,
    )


def _figure(rows: Sequence[Row], theories: dict[Row, Traffic], number: int, unit: str) -> Lines | None:
    curves: list[Curve] = []
    for one in series_of(rows):
        if len(one.rows) > 1 and any(row.bytes_sent for row in one.rows):
            spans = [[sent / MB for sent in per_epoch(row, "bytes_sent")] for row in one.rows]
            curves.append(curve_of(one, [(fmean(span), min(span), max(span)) for span in spans]))
            curves += _expected(one, theories)
    if not curves:
        return None
    return Lines(
        name=f"bytes-{number}",
        title="MB sent per epoch against ranks",
        caption=unit + FIGURE,
        x=ranks_axis([int(x) for curve in curves for x in curve.x]),
        y=Axis(label="MB per epoch", log=all(y for curve in curves for y in curve.y)),
        curves=tuple(curves),
    )


def _expected(one: Series, theories: dict[Row, Traffic]) -> list[Curve]:
    known = [(row, sent) for row in one.rows if (sent := theories[row].bytes) is not None]
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
        title="Per epoch: counted and predicted",
        columns=(
            Column(name="row"),
            Column(name="bytes per epoch", kind="number"),
            Column(name="theory (bytes)", kind="number"),
            Column(name="messages per epoch", kind="number"),
            Column(name="theory (messages)", kind="number"),
            Column(name="formula, numbers sent by all ranks"),
        ),
        rows=tuple(_line(row, theories[row]) for row in rows),
        caption=unit + TABLE,
    )


def _line(row: Row, expected: Traffic) -> tuple[Value, ...]:
    return (
        label(row),
        fmean(per_epoch(row, "bytes_sent")),
        expected.bytes,
        fmean(per_epoch(row, "messages_sent")),
        expected.messages,
        expected.words,
    )
