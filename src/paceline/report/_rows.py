"""What a report says of each group of runs that differ in their seeds alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paceline.record import Run

KINDS = ("compute", "exchange", "wait", "update")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Runs of one strategy on one number of ranks, on one problem: means over the seeds."""

    problem: str
    strategy: str
    ranks: int
    threads: int
    cores: int
    seeds: int
    accuracy: float | None
    accuracy_range: tuple[float, float] | None
    train_seconds: float
    seconds_range: tuple[float, float]
    samples_per_second: float | None
    speedup: float | None
    """Against the serial runs of the same problem; None where there are none."""
    split: dict[str, float]
    """Seconds by kind, mean over ranks and seeds."""
    bytes_sent: float

    @property
    def oversubscribed(self) -> bool:
        """More ranks than cores: the times say nothing about scaling."""
        return self.ranks > self.cores


def problem_of(run: Run) -> str:
    """What the run's time and accuracy may be compared with: everything but strategy, ranks, seed and threads."""
    c = run.config
    batch = f"batch {c['batch']}" if c["batch_per_rank"] is None else f"batch {c['batch_per_rank']} a rank"
    length = f"{c['epochs']} epochs" + ("" if c["draws"] is None else f" of {c['draws']} batches")
    extra = "" if c["schedule"] == "constant" else f", {c['schedule']}"
    return f"{c['data']}, {c['model']}, {batch}, {length}, {c['update']} lr {c['lr']:g}{extra}"


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """One row for every problem, strategy and number of ranks, serial first."""
    groups: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        groups[problem_of(run), run.config["strategy"], run.config["ranks"]].append(run)
    baseline = {
        problem: fmean(run.summary["train_seconds"] for run in members)
        for (problem, strategy, _), members in groups.items()
        if strategy == "serial"
    }
    keys = sorted(groups, key=lambda key: (key[0], key[1] != "serial", key[1], key[2]))
    return [_row(key, groups[key], baseline.get(key[0])) for key in keys]


def _row(key: tuple[str, str, int], members: list[Run], serial: float | None) -> Row:
    problem, strategy, ranks = key
    summaries: list[dict[str, Any]] = [run.summary for run in members]
    seconds = [s["train_seconds"] for s in summaries]
    accuracies = [s["test_accuracy"] for s in summaries if s["test_accuracy"] is not None]
    rates = [s["samples_per_second"] for s in summaries if s["samples_per_second"] is not None]
    return Row(
        problem=problem,
        strategy=strategy,
        ranks=ranks,
        threads=summaries[0]["threads"],
        cores=members[0].environment["cores"],
        seeds=len({run.config["seed"] for run in members}),
        accuracy=fmean(accuracies) if accuracies else None,
        accuracy_range=(min(accuracies), max(accuracies)) if accuracies else None,
        train_seconds=fmean(seconds),
        seconds_range=(min(seconds), max(seconds)),
        samples_per_second=fmean(rates) if rates else None,
        speedup=serial / fmean(seconds) if serial is not None and fmean(seconds) > 0 else None,
        split={kind: fmean(s["seconds"][kind] for s in summaries) for kind in KINDS},
        bytes_sent=fmean(s["bytes_sent"] for s in summaries),
    )
