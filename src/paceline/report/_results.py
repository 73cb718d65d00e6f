"""The table of one problem: its rows, and the cells that failed."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.rows import Row
from paceline.compare.verdict import best, divergence, quality, real, simulated
from paceline.compare.words import mark
from paceline.report.document import Column, Table, Value
from paceline.study.context import Failed

# What matters most comes first: it is what a narrow screen shows.
COLUMNS = (
    Column(name="strategy"),
    Column(name="ranks", kind="count"),
    Column(name="time (s)", kind="seconds"),
    Column(name="speedup", kind="times"),
    Column(name="test accuracy", kind="percent"),
    Column(name="samples/s", kind="count"),
    Column(name="MB sent", kind="megabytes"),
    Column(name="threads", kind="count"),
    Column(name="runs", kind="count"),
    Column(name="seeds", kind="count"),
)
NOTE = (
    "Means over the runs of a row. Tinted: the fastest row that learned something, did not diverge and whose accuracy is "
    "within a point of the best serial row's (of the best row's, where there is no serial one). time: of training, without "
    "evaluation. samples/s: the samples of all runs of a row by the seconds of all of them, which is no mean. "
    "speedup: against the fastest serial row. MB sent: by all ranks together. threads: of each rank."
)
ALONE = (
    "One rank of any strategy computes what serial does: such a row is never tinted, its speedup is noise."
)
OVER = "* more ranks than cores: not a measure of scaling."
SIMULATED = (
    "Simulated: nobody waited for these seconds; they are what the strategy's own code would take on that network, by a "
    "model of what messages and computing cost. Accuracies are of gradients that were really computed. Speedups are "
    "against a simulated serial row where there is one."
)


def results(rows: Sequence[Row], failed: Sequence[Failed], number: int) -> Table:
    """A line each row, then a line each failed cell."""
    fastest = [best(some) for some in (real(rows), simulated(rows)) if len(some) > 1]
    caption = NOTE if number == 1 else ""
    caption = " ".join(
        filter(None, [
            caption,
            ALONE if any(row.alone for row in rows) else "",
            OVER if any(row.oversubscribed for row in rows) else "",
            SIMULATED if simulated(rows) else "",
        ])
    )  # fmt: skip
    return Table(
        name=f"results-{number}",
        title="",
        columns=COLUMNS,
        rows=(*map(cells, rows), *map(_failed, failed)),
        caption=caption,
        marks=(*(_mark(row, fastest) for row in rows), *("failed" for _ in failed)),
    )


def cells(row: Row) -> tuple[Value, ...]:
    """A row's values, in the order of COLUMNS."""
    return (
        row.strategy + mark(row),
        f"{row.ranks} *" if row.oversubscribed else row.ranks,
        row.train_seconds,
        divergence(row) or row.speedup,
        row.accuracy if row.accuracy is not None else quality(row) or None,
        row.samples_per_second,
        row.bytes_sent,
        row.threads,
        row.runs,
        row.seeds,
    )


def _failed(cell: Failed) -> tuple[Value, ...]:
    told = cell.settings
    ranks = told.get("ranks")
    words = " (simulated)" if told.get("simulated") else ""
    known = (f"{told.get('strategy', '')}{words}", ranks if isinstance(ranks, int) else None, None, "failed")
    return (*known, *(None for _ in COLUMNS[len(known) :]))


def _mark(row: Row, fastest: Sequence[Row | None]) -> str:
    if row.diverged:
        return "diverged"
    return "best" if row in fastest else "simulated" if row.simulated else ""
