"""What a report says of each group of runs that differ in nothing but their seeds and when they ran."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from paceline.compare.staleness import Staleness, staleness_of
from paceline.compare.theory import facts_of
from paceline.record import Run
from paceline.record.environment import node_of
from paceline.strategies import Facts

# ---- What the times and accuracies of runs must have in common to be compared, and how it is called.


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """What the times and accuracies of two runs must have in common to be compared."""

    title: str
    """The data and the model."""
    details: str
    """All other settings, and the processor."""
    settings: tuple[str, ...] = ()
    """Each of them in words, always in the same order: what tells two problems of one title apart."""

    def __str__(self) -> str:
        return f"{self.title}, {self.details}"


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
    parameters, rate, where = (
        _count(s["parameters"], "parameter"),
        f"lr {c['lr']:g}",
        run.environment["processor"],
    )
    scaled = "lr not scaled" if c["lr_scaling"] == "none" else f"lr scaled by {c['lr_scaling']}"
    return Problem(
        title=f"{data}, {c['model']}",
        details=f"{samples}{parameters} ({c['dtype']}), {batch}, {length}, {c['update']} {rate}{extra}, on {where}",
        settings=(
            samples.removesuffix(", "), parameters, c["dtype"], batch, length, c["update"], rate, scaled, c["schedule"],
            f"on {where}", ", ".join(f"{part} code {_code(run)[part][:8]}" for part in PARTS if part in _code(run)),
        ),
    )  # fmt: skip


def titles_of(problems: Iterable[Problem]) -> dict[Problem, str]:
    """The title of each problem; where several have one, with the settings in which those differ.

    >>> slow, fast = (Problem(title="iris, mlp:8", details="", settings=("batch 8", rate)) for rate in ("lr 1", "lr 9"))
    >>> list(titles_of([slow, fast]).values()), list(titles_of([slow]).values())
    (['iris, mlp:8, lr 1', 'iris, mlp:8, lr 9'], ['iris, mlp:8'])
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in dict.fromkeys(problems):
        groups[problem.title].append(problem)
    found = {}
    for title, alike in groups.items():
        for problem in alike:
            others = zip(problem.settings, *(one.settings for one in alike), strict=True)
            found[problem] = ", ".join([title, *(own for own, *all_ in others if own and len(set(all_)) > 1)])
    return found


def _count(number: int, name: str, plural: str = "s") -> str:
    """
    >>> _count(1, "epoch"), _count(50_000, "sample")
    ('1 epoch', '50,000 samples')
    """
    return f"{number:,} {name}{'' if number == 1 else plural}"


# By how much more than guessing an accuracy must be to tell of something learned, and by which part of it at most: test
# samples are few, and not of all classes equally many.
LUCK, PART = 0.02, 0.25
KINDS = ("compute", "exchange", "wait", "update")
# Parts of a problem that may be the user's own code.
PARTS = ("data", "model", "update", "schedule")
TIME_ALONE = "time alone"


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
    cores: int | None
    """Of a node; None: of a simulated one, which has enough."""
    on_node: int
    """How many of the ranks share a node: all real ones."""
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

    @cached_property
    def facts(self) -> Facts:
        """What is known about its strategy."""
        return facts_of(self.members[0])

    @property
    def workers(self) -> int:
        """How many of its ranks compute gradients."""
        return self.facts.workers

    @property
    def alone(self) -> bool:
        """One rank of a strategy that is for several: it computes what serial does, so no difference tells anything."""
        return self.ranks == 1 and self.strategy != "serial"

    @property
    def batch(self) -> int:
        """Samples of one gradient: what ranks that share a batch compute together, or each of the others by itself."""
        return int(self.members[0].summary["global_batch"])

    @property
    def whole(self) -> tuple[Run, ...]:
        """The runs that were not stopped, or all where there are none."""
        return tuple(run for run in self.members if not run.summary.get("diverged")) or self.members

    @property
    def oversubscribed(self) -> bool:
        """More ranks than cores on a node, a real or a simulated one: the times say nothing about scaling."""
        return self.cores is not None and self.on_node > self.cores

    @property
    def chance(self) -> float | None:
        """The accuracy of who guesses one class of all; None where there are no classes."""
        classes = self.members[0].config["classes"]
        return 1 / classes if classes else None

    @property
    def guessed(self) -> bool:
        """Whether no run diverged and yet nothing was learned: the accuracy on the test samples is that of guessing."""
        return self.accuracy is not None and not self.diverged and guessing(self.accuracy, self.chance)

    @property
    def timed_only(self) -> bool:
        """Whether time alone was simulated: nobody knows how good the model would be."""
        return self.simulated.endswith(TIME_ALONE)


def guessing(accuracy: float, chance: float | None) -> bool:
    """Whether an accuracy is not more than that of guessing.

    >>> guessing(0.11, 0.1), guessing(0.13, 0.1), guessing(0.013, 0.01), guessing(0.5, None)
    (True, False, False, False)
    """
    return chance is not None and accuracy < chance + min(LUCK, PART * chance)


def ways_of(runs: Sequence[Run]) -> list[str]:
    """Spell how each run was made: its strategy, and its code if runs of one strategy have different code."""
    codes: dict[str, set[str | None]] = defaultdict(set)
    for run in runs:
        codes[way_of(run)].add(_code(run).get("strategy"))
    return [
        way if len(codes[way]) == 1 else f"{way} (code {(_code(run).get('strategy') or 'unknown')[:8]})"
        for run in runs
        for way in (way_of(run),)
    ]


def _code(run: Run) -> dict[str, str]:
    """Return the digests of the user's own code; old records have none."""
    return run.config.get("code") or {}


def way_of(run: Run) -> str:
    """Spell the strategy and what else changes its figures: a replay goes at the pace of its run's order."""
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
    for run, way in zip(runs, ways_of(runs), strict=True):
        key = (problem_of(run), simulated_as(run), way, run.config["ranks"], run.summary["threads"])
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
    nodes = [node_of(run) for run in members]
    cores = [count for _, count in nodes]
    diverged = tuple(s["diverged"] for s in summaries if s.get("diverged"))
    samples = sum((s["samples_per_second"] or 0) * s["train_seconds"] for s in summaries)
    return Row(
        problem=problem,
        strategy=strategy,
        ranks=ranks,
        threads=threads,
        simulated=simulated,
        cores=None if None in cores else max(count for count in cores if count is not None),
        on_node=max(on_node for on_node, _ in nodes),
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
