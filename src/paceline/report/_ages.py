"""How old gradients were when they were applied: a histogram for each row that knows, and a table of the pieces."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.rows import Row
from paceline.compare.staleness import Bar, Staleness, staleness_of
from paceline.compare.words import label, ranges
from paceline.report._series import chosen
from paceline.report.document import Axis, Block, Column, Columns, Section, Table, Text, Value

# So many histograms at most; the table has all rows.
HISTOGRAMS = 6
WHAT = (
    "How many updates others had made to the parameters between when they were sent for a gradient to be computed and when "
    "that gradient was applied (tau): the share of all updates for each number."
)
GAP = "mean gap: the root mean square distance that the parameters had moved meanwhile."


def ages(rows: Sequence[Row], number: int) -> Section | None:
    """The section of one problem; None where nobody knows."""
    known = [(row, row.staleness) for row in rows if row.staleness is not None]
    if not known:
        return None
    shown, which = chosen([row for row, _ in known], HISTOGRAMS)
    blocks: list[Block] = [Text(kind="note", lines=(f"{WHAT} {which}".rstrip(),))]
    for place, row in enumerate(shown, 1):
        if row.staleness is not None:
            blocks.append(_histogram(row, row.staleness, f"staleness-{number}-{place}"))
    blocks.append(_table(known, number))
    if pieces := _pieces(known, number):
        blocks.append(pieces)
    return Section(title="Staleness", blocks=tuple(blocks))


def _histogram(row: Row, found: Staleness, name: str) -> Columns:
    bars = found.bars()
    low = high = None
    each = [one for run in row.members if (one := staleness_of([run.summary])) is not None]
    if len(each) > 1:
        shares = [[share_of(one, bar) for one in each] for bar in bars]
        low, high = tuple(map(min, shares)), tuple(map(max, shares))
    tail = "; the last column is all that is above" if bars[-1].tail else ""
    spread = "; the lines are the spread over the runs" if low is not None else ""
    return Columns(
        name=name,
        title=f"Staleness of {label(row)}",
        caption=f"Mean {found.mean:.1f}, largest {found.largest:,}; {found.updates:,} updates{tail}{spread}.",
        x=Axis(label="updates old (tau)"),
        y=Axis(label="share of the updates (%)", percent=True, bounds=(0.0, None)),
        strategy=row.strategy,
        labels=tuple(_spelled(bar) for bar in bars),
        heights=tuple(bar.share for bar in bars),
        low=low,
        high=high,
        tail=bars[-1].tail,
    )


def share_of(found: Staleness, bar: Bar) -> float:
    """Of one run's updates, those in a bar.

    >>> share_of(Staleness({0: 3, 2: 1}), Bar(1, 4, 0.0))
    0.25
    """
    within = sum(
        count for tau, count in found.counts.items() if bar.first <= tau and (tau <= bar.last or bar.tail)
    )
    return within / found.updates


def _spelled(bar: Bar) -> str:
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
