"""What a report says of each group of runs that differ in nothing but their seeds and when they ran."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paceline.record import Run
from paceline.report._staleness import Staleness, staleness_of
from paceline.report._ways import workers

KINDS = ("compute", "exchange", "wait", "update")
TIME_ALONE = "time alone"


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """What the times and accuracies of two runs must have in common to be compared."""

    title: str
    """The data and the model."""
    details: str
    """All other settings, and the processor."""

    def __str__(self) -> str:
        return f"{self.title}, {self.details}"


Key = tuple[Problem, str, str, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """Runs of one strategy on one number of ranks and threads, on one problem: means over the runs."""

    problem: Problem
    strategy: str
    ranks: int
    threads: int
    simulated: str
    """What was simulated, in words: the network, what made ranks slow; nothing where the ranks were real."""
    cores: int
    runs: int
    seeds: int
    accuracy: float | None
    accuracy_range: tuple[float, float] | None
    loss: float | None
    """On the test samples; None where it is unknown or no number any more."""
    train_seconds: float
    seconds_range: tuple[float, float]
    samples_per_second: float | None
    """Samples of all runs together by the seconds of all."""
    speedup: float | None
    """Against the fastest serial row of the same problem; None where there is none, or where a run diverged."""
    split: dict[str, float]
    """Seconds by kind, mean over ranks and runs."""
    bytes_sent: float
    diverged: tuple[str, ...]
    """Of each run that diverged and was stopped: why."""
    remarks: tuple[str, ...]
    """What its runs have to say, each kind of sentence once."""
    staleness: Staleness | None
    members: tuple[Run, ...]
    """The runs themselves."""

    @property
    def workers(self) -> int:
        """How many of its ranks compute gradients: masters and main ranks do not."""
        return workers(str(self.members[0].config["strategy"]), self.ranks)

    @property
    def oversubscribed(self) -> bool:
        """More ranks than cores: the times say nothing about scaling. Simulated ranks have their cores."""
        return self.ranks > self.cores and not self.simulated

    @property
    def timed_only(self) -> bool:
        """Whether time alone was simulated: nobody knows how good the model would be."""
        return self.simulated.endswith(TIME_ALONE)


def problem_of(run: Run) -> Problem:
    """What the run may be compared with: everything but strategy, ranks, threads and seed."""
    c, s = run.config, run.summary
    data = (
        s["data"] if c["data"].startswith("builtins:") else c["data"]
    )  # arrays have no spelling of their own
    samples = "" if c.get("samples") is None else f"{_count(c['samples'], 'training sample')}, "
    whole = c["batch"] or s["global_batch"]
    batch = f"batch {whole}" if c["batch_per_rank"] is None else f"batch {c['batch_per_rank']} a rank"
    length = _count(c["epochs"], "epoch")
    length += "" if c["draws"] is None else f" of {_count(c['draws'], 'random batch', 'es')}"
    extra = "" if c["lr_scaling"] == "none" else f" scaled by {c['lr_scaling']}"
    extra += "" if c["schedule"] == "constant" else f", {c['schedule']}"
    return Problem(
        title=f"{data}, {c['model']}",
        details=f"{samples}{_count(s['parameters'], 'parameter')} ({c['dtype']}), {batch}, {length}, "
        f"{c['update']} lr {c['lr']:g}{extra}, on {run.environment['processor']}",
    )


def way_of(run: Run) -> str:
    """The strategy, and what else makes its figures others: a replay goes at the pace of its run's order."""
    how = "replay" if run.config.get("replay") else ""
    diverging = run.config.get("on_divergence", "stop")
    how = " ".join(filter(None, (how, "" if diverging == "stop" else f"on-divergence {diverging}")))
    return str(run.config["strategy"]) + (f" ({how})" if how else "")


def simulated_as(run: Run) -> str:
    """What was simulated, in words; nothing of a real run.

    What computing was measured to cost is not among them: like a real run's seconds it differs from time to time.
    """
    told = run.simulated
    if told is None:
        return ""
    words = [str(told["network"])]
    words += [f"slow {told['slow']}"] if told.get("slow") else []
    measured = (told.get("costs") or {}).get("spread")
    words += [f"jitter {told['jitter']:g}"] if told.get("jitter") not in (None, 0, measured) else []
    words += ["faults"] if told.get("faults") else []
    words += ["rendezvous"] if told.get("rendezvous") else []
    words += [] if told.get("compute", True) else [TIME_ALONE]
    return ", ".join(words)


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """One row for every problem, strategy and number of ranks and threads, serial first, simulated ones last.

    Problems come in the order in which they were first run.
    """
    groups: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        key = (problem_of(run), simulated_as(run), way_of(run), run.config["ranks"], run.summary["threads"])
        groups[key].append(run)
    serial: dict[tuple[Problem, bool], float] = {}
    for (problem, simulated, strategy, _, _), members in groups.items():
        if strategy == "serial" and not any(run.summary.get("diverged") for run in members):
            seconds = fmean(run.summary["train_seconds"] for run in members)
            place = (problem, bool(simulated))
            serial[place] = min(seconds, serial.get(place, seconds))
    first = {problem: place for place, problem in enumerate(dict.fromkeys(key[0] for key in groups))}
    keys = sorted(groups, key=lambda key: (first[key[0]], key[1], key[2] != "serial", *key[2:]))
    return [_row(key, groups[key], _baseline(serial, key)) for key in keys]


def _baseline(serial: dict[tuple[Problem, bool], float], key: Key) -> float | None:
    """The seconds of the serial row to compare with: a simulated one for what is simulated, or else the real one."""
    real = serial.get((key[0], False))
    return serial.get((key[0], True), real) if key[1] else real


def _row(key: Key, members: list[Run], serial: float | None) -> Row:
    problem, simulated, strategy, ranks, threads = key
    summaries: list[dict[str, Any]] = [run.summary for run in members]
    seconds = [s["train_seconds"] for s in summaries]
    accuracies = [s["test_accuracy"] for s in summaries if s["test_accuracy"] is not None]
    losses = [s.get("test_loss") for s in summaries]
    known = [loss for loss in losses if loss is not None]
    diverged = tuple(s["diverged"] for s in summaries if s.get("diverged"))
    samples = sum((s["samples_per_second"] or 0) * s["train_seconds"] for s in summaries)
    return Row(
        problem=problem,
        strategy=strategy,
        ranks=ranks,
        threads=threads,
        simulated=simulated,
        cores=max(run.environment["cores"] for run in members),
        runs=len(members),
        seeds=len({run.config["seed"] for run in members}),
        accuracy=fmean(accuracies) if accuracies else None,
        accuracy_range=(min(accuracies), max(accuracies)) if accuracies else None,
        loss=fmean(known) if known and len(known) == len(losses) else None,
        train_seconds=fmean(seconds),
        seconds_range=(min(seconds), max(seconds)),
        samples_per_second=samples / sum(seconds) if samples else None,
        speedup=serial / fmean(seconds)
        if serial is not None and not diverged and fmean(seconds) > 0
        else None,
        split={kind: fmean(s["seconds"][kind] for s in summaries) for kind in KINDS},
        bytes_sent=fmean(s["bytes_sent"] for s in summaries),
        diverged=diverged,
        remarks=_kinds(remark for s in summaries for remark in s.get("remarks") or ()),
        staleness=staleness_of(summaries),
        members=tuple(members),
    )


def _kinds(remarks: Iterable[str]) -> tuple[str, ...]:
    """The first of all remarks that differ in nothing but their figures.

    >>> _kinds(["3 of 4 converged", "all alike", "4 of 4 converged", "all alike"])
    ('3 of 4 converged', 'all alike')
    """
    first: dict[str, str] = {}
    for remark in remarks:
        first.setdefault(re.sub(r"\d[\d.,]*", "#", remark), remark)
    return tuple(first.values())


def _count(number: int, name: str, plural: str = "s") -> str:
    """
    >>> _count(1, "epoch"), _count(50_000, "sample")
    ('1 epoch', '50,000 samples')
    """
    return f"{number:,} {name}{'' if number == 1 else plural}"
