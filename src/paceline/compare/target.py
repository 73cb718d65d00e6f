"""The target accuracy, and when each row reached it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from paceline.compare.rows import Row, guessing
from paceline.record import Run
from paceline.text import percent

# The default distance of the target below the best serial accuracy.
POINT = 0.01
# Accuracies that differ by less are equal.
EQUAL = 1e-9


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target accuracy on the validation samples, and a description of its origin."""

    accuracy: float
    words: str

    def __str__(self) -> str:
        return f"{percent(self.accuracy)}, {self.words}"


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The times at which the runs of a row reached the target."""

    row: Row
    seconds: tuple[float, ...]
    """Of the runs that reached it."""
    best: float | None
    """The highest accuracy of any of the row's runs at the end of any epoch; None if unknown."""

    @property
    def all(self) -> bool:
        """True if every run reached it and none diverged."""
        return len(self.seconds) == self.row.runs and not self.row.diverged

    @property
    def mean(self) -> float | None:
        """Mean seconds of the runs that reached it."""
        return fmean(self.seconds) if self.seconds else None


def target_of(rows: Sequence[Row], given: float | None, words: str = "as asked for") -> Target | None:
    """Return the target given, or one point below what serial reached with every seed; without serial, what any row did.

    An accuracy no better than guessing is not a target: None if nothing else is known.
    """
    if given is not None:
        return Target(accuracy=given, words=words)
    known = {
        row: best
        for row in rows
        if not row.diverged
        and (best := _best(row)) is not None
        and not row.guessed
        and not guessing(best - POINT, row.chance)
    }
    serial = [best for row, best in known.items() if row.strategy == "serial"]
    if not known:
        return None
    tried = any(row.strategy == "serial" for row in rows)
    want = f"since no serial run {'learned anything' if tried else 'was made'}"
    whose = "the best serial accuracy" if serial else f"the best accuracy of all, {want},"
    seeds = any(row.runs > 1 for row in known if not serial or row.strategy == "serial")
    of_seeds = ", with its worst seed" if seeds else ""
    return Target(
        accuracy=max(serial or known.values()) - POINT,
        words=f"one point below {whose} on the validation samples{of_seeds}",
    )


def target_in(rows: Sequence[Row], targets: Mapping[Path, float | None]) -> tuple[float | None, str]:
    """Return the target of the studies that the runs of a problem belong to, and whose it is; None if none has one.

    `targets` has the target of each study's folder. If those of the runs do not agree, it is the highest.
    """
    homes = {run.folder.resolve().parent for row in rows for run in row.members}
    own = {target for folder, target in targets.items() if target is not None and folder.resolve() in homes}
    if not own:
        return None, "the study's"
    if len(own) == 1:
        return own.pop(), "the study's"
    spelled = ", ".join(map(percent, sorted(own)))
    return max(own), f"the highest of its studies' targets, which differ ({spelled})"


def reached(row: Row, target: Target) -> Reached:
    """Return when each run of a row reached the target: at the end of the first epoch with at least that accuracy."""
    found = [first_time(run, target.accuracy) for run in row.members]
    highest = [accuracy for run in row.members for _, accuracy in known_points(run)]
    return Reached(
        row=row,
        seconds=tuple(seconds for seconds in found if seconds is not None),
        best=max(highest, default=None),
    )


def first_time(run: Run, accuracy: float) -> float | None:
    """Return the seconds of training until the end of the first epoch with at least this accuracy; None: never."""
    return next((seconds for seconds, value in known_points(run) if value >= accuracy - EQUAL), None)


def known_points(run: Run) -> list[tuple[float, float]]:
    """Return seconds and validation accuracy at the ends of epochs; without validation samples, the final test."""
    points = [
        (epoch["train_seconds"], epoch["validation_accuracy"])
        for epoch in run.epochs
        if epoch["validation_accuracy"] is not None
    ]
    if not points and run.summary["test_accuracy"] is not None:
        points = [(run.summary["train_seconds"], run.summary["test_accuracy"])]
    return points


def _best(row: Row) -> float | None:
    """Return the highest accuracy that every one of its runs reached."""
    highest = [max((value for _, value in known_points(run)), default=None) for run in row.members]
    known = [value for value in highest if value is not None]
    return min(known) if known and len(known) == len(highest) else None
