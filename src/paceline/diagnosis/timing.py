"""The parts of a step's time, for one strategy on one number of ranks, from the step logs of all ranks.

    compute    the gradient of the rank's own samples
    exchange   messages and sums, as long as they take when no rank is late
    wait       for ranks that are later, in an exchange that all take part in
    answer     for a master, until its new parameters have arrived
    update     the step itself

Means over the ranks that compute, and over their steps, so that the parts add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.compare.laws import fit_line
from paceline.record import Run

if TYPE_CHECKING:
    from paceline.vmpi import Curves

# ---- the seconds of a gradient by its samples: a fixed part, and one for each sample
#
# The last batch of an epoch is smaller and takes far longer than the others on a real machine: caches and memory are laid
# out for another size. So only sizes that occur often in a log count.

# Numbers of samples must differ by this factor for a line through them to mean anything.
APART = 1.5
# A size counts if it has this many steps, and this part of the steps of the most frequent size.
STEPS = 10
OFTEN = 0.1
# A line through given costs is fitted at these multiples of the samples of a step.
TIMES = (1, 4, 16, 64)
# The basis of a line: timed gradients, the given costs of a simulation, or a single size.
Basis = Literal["timed", "given", "proportion"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds of a gradient: fixed + each * samples.

    >>> Line(fixed=20e-6, each=10e-6).samples_for(0.001)
    98
    """

    fixed: float
    each: float
    basis: Basis = "timed"
    """If only one size is known, the time is taken to be in proportion to the samples: it grows no faster than that."""
    rise: float = field(default=0.0, repr=False)
    """The difference in time between the largest and the smallest size, as a fraction of the former."""

    def seconds(self, samples: float) -> float:
        """Return the seconds of a gradient of this many samples."""
        return self.fixed + self.each * samples

    def samples_for(self, seconds: float) -> int:
        """Return the number of samples that take this long to compute; at least one."""
        return max(1, int(np.ceil(round((seconds - self.fixed) / self.each, 6)))) if self.each > 0 else 1

    def through(self, samples: float, seconds: float) -> Line:
        """Return the line scaled to pass through this number of samples and seconds."""
        here = self.seconds(samples)
        if here <= 0 or seconds <= 0:
            return self
        return replace(self, fixed=self.fixed * seconds / here, each=self.each * seconds / here)


def line_of(known: Iterable[Mapping[int, float]]) -> Line | None:
    """Fit a line to the seconds of gradients by their samples; every number of samples counts equally.

    >>> line_of([{64: 660e-6}, {16: 180e-6, 7: 90e-6}])
    Line(fixed=2e-05, each=1e-05, basis='timed')
    >>> line_of([{64: 660e-6}, {60: 620e-6}]) is None
    True
    """
    points: dict[int, list[float]] = {}
    for table in known:
        for samples, seconds in table.items():
            if seconds > 0:
                points.setdefault(samples, []).append(seconds)
    if not points or max(points) < APART * min(points):
        return None
    sizes = tuple(sorted(points))
    fixed, each = fit_line(sizes, np.array([np.mean(points[size]) for size in sizes]))
    line = Line(fixed=float(f"{fixed:.6g}"), each=float(f"{each:.6g}"))
    longest = line.seconds(sizes[-1])
    return replace(line, rise=1 - line.seconds(sizes[0]) / longest if longest > 0 else 0.0)


def keep_frequent(seconds: Mapping[int, float], steps: Mapping[int, int]) -> dict[int, float]:
    """Keep the seconds of gradients of frequent sizes, which are reliable.

    >>> keep_frequent({29: 451e-6, 32: 71e-6}, {29: 3, 32: 132})
    {32: 7.1e-05}
    >>> keep_frequent({10: 88e-6, 11: 90e-6}, {10: 138, 11: 264})
    {10: 8.8e-05, 11: 9e-05}
    """
    if not seconds:
        return {}
    most = max(seconds, key=lambda size: steps.get(size, 0))
    enough = max(STEPS, OFTEN * steps.get(most, 0))
    kept = {size: took for size, took in seconds.items() if size == most or steps.get(size, 0) >= enough}
    # A smaller size that is slower does not show the cost of its samples.
    return {size: took for size, took in kept.items() if size >= most or took <= kept[most]}


def fit_given_costs(costs: Curves, samples: float, ranks: int) -> Line | None:
    """Fit a line to the costs of a gradient that a simulation was given, from a step's samples on."""
    sizes = [max(1, round(samples)) * factor for factor in TIMES]
    line = line_of([{size: costs.at(size, ranks) for size in sizes}])
    return None if line is None else replace(line, basis="given")


Array = NDArray[Any]
PARTS = ("compute", "exchange", "wait", "answer", "update")
# The kinds of a rank's work in training, without evaluation.
WORKING = ("compute", "exchange", "update")


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """The seconds of a step of a rank that computes.

    >>> round(StepTiming(compute=3e-4, exchange=1e-4).share("exchange"), 6)
    0.25
    """

    compute: float
    exchange: float = 0.0
    wait: float = 0.0
    answer: float = 0.0
    update: float = 0.0
    steps: float = 0.0
    """Steps of one rank in one run."""
    samples: float = 0.0
    """Samples in a step of one rank, if it has any."""
    workers: int = 1
    """Ranks that compute."""
    by_rank: Mapping[int, float] = field(default_factory=dict)
    """Median seconds per sample of each rank that computes."""
    at_least: Mapping[int, float] = field(default_factory=dict)
    """The lower quartile of the same: a rank whose quartile is above another's median is not slower by chance."""
    batches: Mapping[int, int] = field(default_factory=dict)
    """Steps of each of them."""
    by_count: Mapping[int, float] = field(default_factory=dict)
    """Median seconds of a gradient by its samples, for sizes that occur often."""
    slowest: float = 0.0
    """Mean seconds of the rank that computes longest in a step, if all take their steps together."""
    often: tuple[int, float] | None = None
    """The rank that most often computes longest, and in what fraction of the steps."""
    uneven: float = 1.0
    """The samples of the rank that has most in a step, as a multiple of the mean."""
    busy: float | None = None
    """The fraction of time that the busiest rank without gradients works; None if all ranks compute."""

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return float(sum(getattr(self, part) for part in PARTS))

    @property
    def middle(self) -> float:
        """Median seconds per sample of the median rank, which slow ranks do not change."""
        ordered = sorted(self.by_rank.values())
        return ordered[(len(ordered) - 1) // 2] if ordered else self.compute / (self.samples or 1.0)

    def share(self, *parts: str) -> float:
        """Return the part of a step that goes to these; 0 if nothing is known."""
        return float(sum(getattr(self, part) for part in parts)) / self.total if self.total > 0 else 0.0


def timing_of(runs: Sequence[Run], *, together: bool, served: bool) -> StepTiming:
    """Read the logs of runs that differ only in their seeds.

    `together`: all ranks that compute take part in the same exchanges; `served`: they wait for masters' answers.
    """
    logs = [log for run in runs if (log := _log(run)) is not None]
    if not logs:
        return _from_summaries(runs)
    names = ("rank", "count", "compute", "exchange", "update", "wait")
    columns = {name: np.concatenate([log[name] for log in logs]) for name in names}
    workers = np.unique(columns["rank"]).tolist()
    rows = {rank: columns["rank"] == rank for rank in workers}
    had = columns["count"] > 0
    by_rank, at_least, by_count = _quantiles(columns, rows, had)
    batches = {rank: int(mine.sum()) for rank, mine in rows.items()}
    parts: dict[str, Any] = {name: float(columns[name].mean()) for name in ("compute", "exchange", "update")}
    found: dict[str, Any] = {}
    if together and len(set(batches.values())) == 1 and len(workers) > 1:
        grid = {name: np.stack([columns[name][rows[rank]] for rank in workers]) for name in names[1:]}
        spent = grid["exchange"] + grid["wait"]  # the last rank to arrive does not wait
        parts["exchange"] = float(spent.min(axis=0).mean())
        parts["wait"] = float(spent.mean()) - parts["exchange"]
        last = grid["compute"].argmax(axis=0)
        often = np.bincount(last, minlength=len(workers))
        found["slowest"] = float(grid["compute"].max(axis=0).mean())
        found["often"] = (workers[int(often.argmax())], float(often.max() / often.sum()))
        found["uneven"] = float(grid["count"].max(axis=0).sum() / grid["count"].mean(axis=0).sum())
    else:
        waited = _measure_waiting(runs, batches)
        if waited:
            parts["answer"] = min(waited) if served else 0.0
            parts["wait"] = float(np.mean(waited)) - parts["answer"]
    return StepTiming(
        **parts,
        **found,
        steps=float(np.mean(list(batches.values()))) / len(logs),
        samples=float(columns["count"][had].mean()) if had.any() else 0.0,
        workers=len(workers),
        by_rank=by_rank,
        at_least=at_least,
        batches=batches,
        by_count=by_count,
        busy=_busy(runs, workers),
    )


def _log(run: Run) -> dict[str, Array] | None:
    """Return the columns of a run's steps; None if there are none."""
    steps = run.steps
    if not len(steps["rank"]):
        return None
    return {
        name: steps[name].astype(int if name in ("rank", "count") else float)
        for name in ("rank", "count", "compute", "exchange", "update", "wait")
    }


def _from_summaries(runs: Sequence[Run]) -> StepTiming:
    """Return the means over all ranks, which remain if no rank's steps are known."""
    steps = max(1.0, float(np.mean([run.summary.get("steps") or 1 for run in runs])))
    seconds: dict[str, Any] = {
        kind: float(np.mean([run.summary["seconds"].get(kind) or 0.0 for run in runs])) / steps
        for kind in ("compute", "exchange", "wait", "update")
    }
    return StepTiming(**seconds, steps=steps, workers=int(runs[0].config["ranks"]))


def _quantiles(
    columns: Mapping[str, Array], rows: Mapping[int, Array], had: Array
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """Return each rank's median and lower quartile of seconds per sample, and a gradient's median by its samples."""
    seconds, count = columns["compute"], columns["count"]
    by_rank, at_least = {}, {}
    for rank, mine in rows.items():
        which = mine & had
        if which.any():
            each = seconds[which] / count[which]
            by_rank[rank], at_least[rank] = float(np.median(each)), float(np.quantile(each, 0.25))
    sizes, steps = np.unique(count[had], return_counts=True)
    by_count = {int(size): float(np.median(seconds[count == size])) for size in sizes}
    return by_rank, at_least, keep_frequent(by_count, dict(zip(sizes.tolist(), steps.tolist(), strict=True)))


def _by_rank(run: Run) -> list[dict[str, float]]:
    """Return the seconds of each rank by kind; empty for old records."""
    found: list[dict[str, float]] = run.summary.get("seconds_by_rank") or []
    return found


def _measure_waiting(runs: Sequence[Run], batches: Mapping[int, int]) -> list[float]:
    """Return the seconds per step that each rank that computes waited."""
    known = [_by_rank(run) for run in runs]
    return [
        sum((of_run[rank].get("wait") or 0.0) for of_run in known if rank < len(of_run)) / steps
        for rank, steps in batches.items()
        if steps and any(rank < len(of_run) for of_run in known)
    ]


def _busy(runs: Sequence[Run], workers: Sequence[int]) -> float | None:
    """Return the part of its time that the busiest rank works, of those that compute no gradients."""
    shares = []
    for run in runs:
        for rank, seconds in enumerate(_by_rank(run)):
            working = sum(seconds.get(kind) or 0.0 for kind in WORKING)
            whole = working + (seconds.get("wait") or 0.0)
            if rank not in workers and whole > 0:
                shares.append(working / whole)
    return max(shares, default=None)
