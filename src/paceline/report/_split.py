"""Where the time of each row went."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.rows import KINDS, Row
from paceline.compare.verdict import divergence
from paceline.compare.words import label, seconds, times
from paceline.report.document import Axis, Bar, Bars

SPLIT = (
    "Seconds of training, mean over ranks and runs. compute: making batches and their gradients; exchange: messages and "
    "copies; wait: for ranks that came later; update: changing the parameters. At the end of a bar: the training time, "
    "which is the slowest rank's, and the speedup. The line is the spread over the runs."
)


def time_split(rows: Sequence[Row], number: int) -> Bars:
    """A bar each row, of what its ranks did."""
    return Bars(
        name=f"time-split-{number}",
        title="Compute, exchange, wait and update",
        caption=SPLIT,
        x=Axis(label="seconds a rank"),
        kinds=KINDS,
        bars=tuple(_bar(row) for row in rows),
    )


def _bar(row: Row) -> Bar:
    sums = [sum(run.summary["seconds"][kind] for kind in KINDS) for run in row.members]
    bought = divergence(row) or ("" if row.speedup is None else times(row.speedup))
    return Bar(
        label=label(row),
        strategy=row.strategy,
        parts=tuple(row.split[kind] for kind in KINDS),
        low=min(sums) if len(sums) > 1 else None,
        high=max(sums) if len(sums) > 1 else None,
        words=f"{seconds(row.train_seconds)} s  {bought}".rstrip(),
        simulated=bool(row.simulated),
        hollow=row.oversubscribed,
    )
