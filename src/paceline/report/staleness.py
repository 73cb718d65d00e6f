"""The age of gradients when they were applied: a histogram for each row that recorded it, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.rows import Row, label
from paceline.compare.staleness import Bar, Staleness, staleness_of
from paceline.figures import Axis, Histogram
from paceline.report.document import Block, Column, Section, Table, Text, Value
from paceline.report.series import choose_rows
from paceline.text import ranges

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
    blocks.append(_table(known, number))
    if pieces := _pieces(known, number):
        blocks.append(pieces)
    return Section(title="Staleness", blocks=tuple(blocks))


def _histogram(row: Row, found: Staleness, name: str) -> Histogram:
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


def share_of(found: Staleness, bar: Bar) -> float:
    """Return the share of one run's updates that fall into a bar.

    >>> share_of(Staleness({0: 3, 2: 1}), Bar(1, 4, 0.0))
    0.25
    """
    within = sum(
        count for tau, count in found.counts.items() if bar.first <= tau and (tau <= bar.last or bar.tail)
    )
    return within / found.updates


def _spell_bar(bar: Bar) -> str:
    if bar.tail:
        return f"≥ {bar.first}"
    return str(bar.first) if bar.first == bar.last else f"{bar.first}-{bar.last}"


def _table(known: Sequence[tuple[Row, Staleness]], number: int) -> Table:
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


def _pieces(known: Sequence[tuple[Row, Staleness]], number: int) -> Table | None:
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
