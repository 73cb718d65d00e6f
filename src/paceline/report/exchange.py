"""The traffic between ranks, compared with the formulas, and the age of gradients when they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from paceline.compare.rows import Row, label
from paceline.compare.staleness import RowStaleness, StalenessBar, staleness_of
from paceline.compare.theory import epoch_samples, epochs_of, theory_of
from paceline.figures import Axis, Curve, Histogram, Lines
from paceline.report.document import Block, Column, Section, Table, Text, Value
from paceline.report.series import Series, choose_rows, curve_of, ranks_axis, series_of
from paceline.strategies import Traffic
from paceline.text import ranges

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
    if figure := _figure(several, rows, theories, number, unit):
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


def _figure(
    several: Sequence[Row], rows: Sequence[Row], theories: dict[Row, Traffic], number: int, unit: str
) -> Lines | None:
    curves: list[Curve] = []
    for one in series_of(several):
        if len(one.rows) > 1 and any(row.bytes_sent for row in one.rows):
            spans = [[sent / MB for sent in per_epoch(row, "bytes_sent")] for row in one.rows]
            curves.append(curve_of(one, [(fmean(span), min(span), max(span)) for span in spans], rows))
            curves += _make_theory_curves(one, theories)
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


def _make_theory_curves(one: Series, theories: dict[Row, Traffic]) -> list[Curve]:
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


# ---- staleness


# At most this many histograms; the table has all rows.
HISTOGRAMS = 6
WHAT = (
    "Staleness (tau) is the number of updates that other workers made to the parameters while a gradient was computed. The "
    "columns show the share of all updates for each number."
)
GAP = "mean gap: the root mean square distance that the parameters moved in the meantime."


def staleness(rows: Sequence[Row], number: int) -> Section | None:
    """Return the section of one problem; None if no run recorded it."""
    known = [(row, row.staleness) for row in rows if row.staleness is not None]
    if not known:
        return None
    shown, which = choose_rows([row for row, _ in known], HISTOGRAMS)
    blocks: list[Block] = [Text(kind="note", lines=(f"{WHAT} {which}".rstrip(),))]
    for place, row in enumerate(shown, 1):
        if row.staleness is not None:
            blocks.append(_histogram(row, row.staleness, f"staleness-{number}-{place}"))
    blocks.append(_staleness_table(known, number))
    if pieces := _pieces(known, number):
        blocks.append(pieces)
    return Section(title="Staleness", blocks=tuple(blocks))


def _histogram(row: Row, found: RowStaleness, name: str) -> Histogram:
    bars = found.bars()
    low = high = None
    each = [one for run in row.members if (one := staleness_of([run.summary])) is not None]
    if len(each) > 1:
        shares = [[share_of(one, bar) for one in each] for bar in bars]
        low, high = tuple(map(min, shares)), tuple(map(max, shares))
    tail = "; the last column is everything above" if bars[-1].tail else ""
    spread = "; the lines are the spread over the runs" if low is not None else ""
    return Histogram(
        name=name,
        title=f"Staleness of {label(row)}",
        caption=f"Mean {found.mean:.1f}, largest {found.largest:,}; {found.updates:,} updates{tail}{spread}.",
        x=Axis(label="staleness (updates)"),
        y=Axis(label="share of updates (%)", percent=True, bounds=(0.0, None)),
        strategy=row.strategy,
        labels=tuple(_spell_bar(bar) for bar in bars),
        heights=tuple(bar.share for bar in bars),
        low=low,
        high=high,
        tail=bars[-1].tail,
    )


def share_of(found: RowStaleness, bar: StalenessBar) -> float:
    """Return the share of one run's updates that fall into a bar.

    >>> share_of(RowStaleness({0: 3, 2: 1}), StalenessBar(1, 4, 0.0))
    0.25
    """
    within = sum(
        count for tau, count in found.counts.items() if bar.first <= tau and (tau <= bar.last or bar.tail)
    )
    return within / found.updates


def _spell_bar(bar: StalenessBar) -> str:
    if bar.tail:
        return f"≥ {bar.first}"
    return str(bar.first) if bar.first == bar.last else f"{bar.first}-{bar.last}"


def _staleness_table(known: Sequence[tuple[Row, RowStaleness]], number: int) -> Table:
    return Table(
        name=f"staleness-{number}",
        title="All rows",
        columns=(
            Column(name="row"),
            Column(name="workers", kind="count"),
            Column(name="mean tau", kind="number"),
            Column(name="largest tau", kind="count"),
            Column(name="updates", kind="count"),
            Column(name="gradients dropped", kind="count"),
        ),
        rows=tuple(
            (label(row), row.workers, found.mean, found.largest, found.updates, found.dropped)
            for row, found in known
        ),
    )


def _pieces(known: Sequence[tuple[Row, RowStaleness]], number: int) -> Table | None:
    lines: list[tuple[Value, ...]] = [
        (label(row), one.master, ranges(one.layers), one.parameters, one.mean, one.largest, one.mean_gap)
        for row, found in known
        for one in found.pieces
    ]
    if not lines:
        return None
    return Table(
        name=f"pieces-{number}",
        title="Staleness by master and layer",
        columns=(
            Column(name="row"),
            Column(name="master", kind="count"),
            Column(name="layers"),
            Column(name="parameters", kind="count"),
            Column(name="mean tau", kind="number"),
            Column(name="largest tau", kind="count"),
            Column(name="mean gap", kind="number"),
        ),
        rows=tuple(lines),
        caption=GAP,
        folded=True,
    )
