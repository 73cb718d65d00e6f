"""The value of a metric that rows should reach, such as an accuracy, and when each row reached it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from paceline.compare.metric import ACCURACY, Goal, Metric
from paceline.compare.rows import Row, choose_metric, guessing
from paceline.record import Run


@dataclass(frozen=True, kw_only=True)
class Target:
    """A value of a metric on the validation samples, and a description of its origin."""

    metric: Metric
    value: float
    words: str
    asked: bool = False
    """True if a user or a study asked for it."""

    def __str__(self) -> str:
        return f"{self.short}, {self.words}"

    @property
    def short(self) -> str:
        """The value, with the name of the metric unless it is an accuracy."""
        spelled = self.metric.spell(self.value)
        return spelled if self.metric == ACCURACY else f"{self.metric.name} {spelled}"


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The times at which the runs of a row reached the target."""

    row: Row
    seconds: tuple[float, ...]
    """Of the runs that reached it."""
    best: float | None
    """The best value of any of the row's runs at the end of any epoch; None if unknown."""

    @property
    def all(self) -> bool:
        """True if every run reached it and none diverged."""
        return len(self.seconds) == self.row.runs and not self.row.diverged

    @property
    def mean(self) -> float | None:
        """Mean seconds of the runs that reached it."""
        return fmean(self.seconds) if self.seconds else None


def target_of(rows: Sequence[Row], given: Goal | None, words: str = "as asked for") -> Target | None:
    """Return the target given, or a value a little worse than what serial reached with every seed; without serial, any row.

    That is an accuracy one point lower, or a value of another metric that is a tenth worse. An accuracy no better than
    guessing is not a target: None if nothing else is known.
    """
    if given is not None:
        return Target(metric=given.metric, value=given.value, words=words, asked=True)
    metric = rows[0].metric if rows else choose_metric(rows)
    known = {
        row: best
        for row in rows
        if not row.diverged
        and (best := _best(row, metric)) is not None
        and not row.guessed
        and not (metric == ACCURACY and guessing(metric.relaxed(best), row.chance))
    }
    serial = [best for row, best in known.items() if row.strategy == "serial"]
    best = metric.best(serial or known.values())
    if best is None:
        return None
    tried = any(row.strategy == "serial" for row in rows)
    want = f"since no serial run {'learned anything' if tried else 'was made'}"
    whose = f"the best serial {metric.name}" if serial else f"the best {metric.name} of all, {want},"
    seeds = any(row.runs > 1 for row in known if not serial or row.strategy == "serial")
    of_seeds = ", with its worst seed" if seeds else ""
    how = "one point below" if metric.percent else "within a tenth of"
    return Target(
        metric=metric,
        value=metric.relaxed(best),
        words=f"{how} {whose} on the validation samples{of_seeds}",
    )


def target_in(rows: Sequence[Row], targets: Mapping[Path, Goal | None]) -> tuple[Goal | None, str]:
    """Return the target of the studies that the runs of a problem belong to, and whose it is; None if none has one.

    `targets` has the target of each study's folder. If those of the runs do not agree, it is the one that is hardest to
    reach, of those for the metric of the first.
    """
    homes = {run.folder.resolve().parent for row in rows for run in row.members}
    own = [target for folder, target in targets.items() if target is not None and folder.resolve() in homes]
    if not own:
        return None, "the study's"
    if len(set(own)) == 1:
        return own[0], "the study's"
    metric = own[0].metric
    alike = {goal.value for goal in own if goal.metric == metric}
    spelled = (
        ", ".join(dict.fromkeys(map(metric.spell, sorted(alike))))
        if len(alike) > 1
        else ", ".join(map(str, own))
    )
    hardest = "highest" if metric.higher else "lowest"
    return Goal(
        metric, metric.best(alike) or 0.0
    ), f"the {hardest} of its studies' targets, which differ ({spelled})"


def reached(row: Row, target: Target) -> Reached:
    """Return when each run of a row reached the target: at the end of the first epoch with a value that is as good."""
    found = [first_time(run, target) for run in row.members]
    values = [value for run in row.members for _, value in target.metric.points(run)]
    return Reached(
        row=row,
        seconds=tuple(seconds for seconds in found if seconds is not None),
        best=target.metric.best(values),
    )


def first_time(run: Run, target: Target) -> float | None:
    """Return the seconds of training until the end of the first epoch that reached the target; None: never."""
    metric = target.metric
    return next(
        (seconds for seconds, value in metric.points(run) if metric.reaches(value, target.value)), None
    )


def _best(row: Row, metric: Metric) -> float | None:
    """Return the best value that every one of its runs reached."""
    best = [metric.best(value for _, value in metric.points(run)) for run in row.members]
    known = [value for value in best if value is not None]
    return metric.worst(known) if known and len(known) == len(best) else None
