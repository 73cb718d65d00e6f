"""The answer to "what should I use here?", in one sentence, and how sure it is.

The target is a value of a metric that rows should reach, such as an accuracy. The answer is the row that reached it first
with every run. Where runs of two rows overlap in time, the difference is within the noise, and the answer says so.
Simulated rows answer only if there is nothing else to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from paceline.compare.metric import ACCURACY, Goal, Metric
from paceline.compare.rows import Row, choose_metric, guessing, label
from paceline.compare.verdict import (
    guesses,
    implausible,
    optimizers,
    quality,
    real,
    reference,
    simulated,
    standing,
)
from paceline.record import Run
from paceline.record.environment import shared_cores
from paceline.text import count, join, time_span

# At most this many rows are named.
NAMED = 2
# In a search, a simpler candidate is as fast if it takes at most so many times as long.
AS_FAST = 1.05
# The beginning of the answer if no run reached the target.
UNREACHED = "Nothing reached the target of"


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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to use, in words."""

    sentence: str
    sure: str = ""
    """How sure that is: the runs behind it, and whether their times overlap with those of others."""
    row: Row | None = None
    """The row to use; None if none can be recommended."""


def answer(rows: Sequence[Row], target: Target | None) -> Answer:
    """Say which row of one problem to use; `target`: what it should reach, if there is anything to reach."""
    tried, foretold = real(rows), simulated(rows)
    compared = [row for row in tried if not row.serial and not row.alone]
    if foretold and not compared and any(not row.serial for row in foretold):
        found = _answer(foretold, target)
        return replace(found, sentence=f"Simulated: {found.sentence[:1].lower()}{found.sentence[1:]}")
    return _answer(tried or foretold, target)


def _answer(rows: Sequence[Row], target: Target | None) -> Answer:
    whole = [row for row in rows if not row.diverged]
    if not whole:
        every = all(len(row.diverged) == row.runs for row in rows)
        only = "the only run diverged" if rows[0].runs == len(rows) == 1 else "every run diverged"
        return Answer(
            sentence=f"Nothing can be recommended: {only if every else 'every row has runs that diverged'}."
        )
    if all(row.guessed for row in whole):
        return Answer(sentence=f"{guesses(whole[0]).capitalize()}.")
    several = [row for row in rows if not row.alone] or list(rows)
    if len(rows) > 1 and all(row.alone for row in rows):
        return Answer(
            sentence="Nothing was tried on more than one rank, where every strategy computes the same."
        )
    if all(row.timed_only for row in whole):
        return _fastest(several)
    if target is None:
        return _describe([row for row in several if not row.diverged and not row.guessed] or whole)
    when = [found for row in several if (found := reached(row, target)).all and not row.guessed]
    if not when:
        return _unreached(several, target)
    if not target.asked:  # then it is only a measure of being as good as serial
        when = [found for found in when if standing(found.row, rows) != "learned less"] or when
    return _first(sorted(when, key=lambda found: (_mean(found), found.row.train_seconds)), several, target)


def _fastest(rows: Sequence[Row]) -> Answer:
    """Answer with the time of rows whose quality is unknown."""
    row = min((row for row in rows if row.timed_only), key=lambda row: row.train_seconds)
    gain = (
        f", {row.speedup:.2f} times as fast as serial" if row.speedup is not None and not row.serial else ""
    )
    return Answer(
        sentence=f"{name(row)} takes the least time, {time_span(row.train_seconds)}{gain}; what it learns is unknown, "
        "since only time was simulated.",
        row=row,
    )


def _describe(rows: Sequence[Row]) -> Answer:
    """Answer where there is no target: only one row, or nothing known about quality."""
    row = min(rows, key=lambda row: row.train_seconds)
    got = f" and ended at {quality(row)}" if quality(row) else ""
    if len(rows) == 1:
        return Answer(
            sentence=f"{name(row)} trained for {time_span(row.train_seconds)}{got}; there is nothing to compare it with.",
            row=row,
        )
    return Answer(
        sentence=f"{name(row)} is the fastest: it trained for {time_span(row.train_seconds)}{got}; there is no target.",
        sure=_runs(row.runs),
        row=row,
    )


def _unreached(rows: Sequence[Row], target: Target) -> Answer:
    found = [reached(row, target) for row in rows if not row.diverged]
    partly = [one for one in found if one.seconds]
    if partly:
        most = max(partly, key=lambda one: len(one.seconds) / one.row.runs)
        return Answer(
            sentence=f"Nothing reached {target.short} with every run; closest was {name(most.row)}, with "
            f"{len(most.seconds)} of its {count(most.row.runs, 'run')}."
        )
    metric = target.metric
    known = [one for one in found if one.best is not None]
    nearest = min(known, key=lambda one: metric.key(one.best or 0.0), default=None)
    came = ""
    if nearest is not None:
        came = (
            f"; closest was {name(nearest.row)}, at {metric.spell(nearest.best or 0.0)} after its best epoch"
        )
    return Answer(sentence=f"{UNREACHED} {target.short}{came}.")


def _first(when: Sequence[Reached], rows: Sequence[Row], target: Target) -> Answer:
    """Answer with the row that reached the target first, or, within the noise, with the simplest."""
    alike = [one for one in when if one is when[0] or overlap(when[0], one)]
    serial = next((one for one in when if one.row.serial), None)
    # Of rows whose differences are within the noise, one process is the simplest. Searches give it only if it is as fast.
    simple = (one for one in alike if one.row.setting is None or _mean(one) <= AS_FAST * _mean(when[0]))
    first = next((one for one in simple if one.row.serial), when[0])
    row = first.row
    # What was tried on more ranks is of more interest than another serial row.
    beaten = [one for one in when if one is not first]
    other = next((one for one in beaten if not (row.serial and one.row.serial)), next(iter(beaten), None))
    stay = row.serial and len(rows) > 1 and row.setting is None
    begin = f"{'Stay with' if stay else 'Use'} {name(row)}: it reaches {target.short}"
    is_first = other is not None and first is when[0]
    sentence = f"{begin} {'first, ' if is_first else ''}after {time_span(_mean(first))}"
    beside = [one.row for one in alike if one is not first]
    noise = f"; the difference from {_names(beside)} is within the noise" if beside else ""
    if row.serial:
        if noise:
            sentence += noise
        elif other is not None:
            among = "" if other is beaten[0] else "on several ranks, "
            sentence += f"; {among}closest is {name(other.row)}, after {time_span(_mean(other))}"
        elif all(one.serial for one in rows):
            sentence += "; nothing was tried on more than one rank"
        else:
            sentence += "; nothing else reached it with every run"
    else:
        sentence += _against_serial(first, serial, rows) + noise
    sentence += _learned(row, rows) + _optimizer(row, rows)
    rival = next((one for one in alike if one is not first), other)
    return Answer(sentence=f"{sentence}.", sure=_sure(first, rival, alike), row=row)


def _against_serial(first: Reached, serial: Reached | None, rows: Sequence[Row]) -> str:
    """Compare the time to the target with serial's."""
    if serial is None:
        there = any(row.serial for row in rows)
        return "; serial never reached it" if there else "; there is no serial run to compare it with"
    took = f"{name(serial.row)} ({time_span(_mean(serial))})"
    if _mean(first) <= 0:
        return f"; {took} is slower"
    wrong = f", which is implausible: more than {count(first.row.ranks, 'rank')} can give"
    gain = f"{_mean(serial) / _mean(first):.2f}".rstrip("0").rstrip(".")
    return f", {gain} times as fast as {took}{wrong if implausible(first.row, rows) else ''}"


def _learned(row: Row, rows: Sequence[Row]) -> str:
    """Say that a row ends worse than serial, although it reached the target."""
    than = reference(rows, row.optimizer)
    if standing(row, rows) != "learned less" or than is None or than is row:
        return ""
    return f"; but it learns less: it ends at {quality(row)}, {name(than)} at {quality(than)}"


def _optimizer(row: Row, rows: Sequence[Row]) -> str:
    """Say whose optimizer differs, if there are several."""
    kinds = optimizers(rows)
    if len(kinds) <= 1:
        return ""
    update = rows[0].members[0].config["update"]
    if row.optimizer:
        return f"; its optimizer differs: steps are made by the rule {row.optimizer}, not by {update}"
    others = list(dict.fromkeys(one.strategy for one in rows if one.optimizer))
    words = f"{len(others)} strategies" if len(others) > NAMED else join(others)
    return f"; the optimizer of {words} differs"


def _sure(first: Reached, other: Reached | None, alike: Sequence[Reached]) -> str:
    """Say how many runs are behind an answer, whether their times overlap, and whether other programs slowed them down."""
    rows = [one.row for one in (first, other) if one is not None and shared_cores(one.row.remarks)]
    named = "; ".join(map(name, rows))
    slowed = f"Other programs slowed down {named}: measure again without them." if rows else ""
    return " ".join(filter(None, (_spread(first, other, alike), slowed)))


def _spread(first: Reached, other: Reached | None, alike: Sequence[Reached]) -> str:
    """Say how many runs are behind an answer, and whether their times overlap; `other`: the one to compare it with."""
    if other is None:
        return _runs(first.row.runs)
    if first.row.runs == other.row.runs == 1:
        return _runs(1)
    spread = f"{name(first.row)}: {_span(first)}; {name(other.row)}: {_span(other)}"
    if len(alike) > 1:
        return f"Their times overlap: {spread}. More seeds could tell them apart."
    if min(first.row.runs, other.row.runs) == 1:
        return f"One run is not enough to know the spread: {spread}."
    return f"The times of its runs and of the next best do not overlap: {spread}."


def _runs(runs: int) -> str:
    return (
        ""
        if runs > 1
        else "One run each: how much of the difference is chance is unknown; more seeds would tell."
    )


def _span(found: Reached) -> str:
    low, high = time_span(min(found.seconds)), time_span(max(found.seconds))
    return f"{count(len(found.seconds), 'run')}, {low if low == high else f'{low} to {high}'}"


def overlap(one: Reached, other: Reached) -> bool:
    """Return True if two rows reached the target at times that overlap; of single runs that is unknown."""
    if max(len(one.seconds), len(other.seconds)) < 2:
        return False
    return min(one.seconds) <= max(other.seconds) and min(other.seconds) <= max(one.seconds)


def name(row: Row) -> str:
    """Describe a row in a sentence."""
    return label(row).replace(" *", " (more ranks than cores)", 1) if row.oversubscribed else label(row)


def _names(rows: Sequence[Row]) -> str:
    """Name one row, or count several and name some of them."""
    named = [name(row) for row in rows]
    if len(named) == 1:
        return named[0]
    more = "; …" if len(named) > NAMED else ""
    return f"{len(named)} others ({'; '.join(named[:NAMED])}{more})"


def _mean(found: Reached) -> float:
    return found.mean or 0.0
