"""The answer to "what should I use here?", in one sentence, and how sure it is.

The target is a value of a metric that rows should reach, such as an accuracy. The answer is the row that reached it first
with every run. Where its difference from another row is within the noise (`paceline.compare.noise`), the answer says so.
Simulated rows answer only if there is nothing else to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from paceline.compare.metric import ACCURACY, Goal, Metric, read_last
from paceline.compare.noise import Timing, is_as_fast, simplest, with_noise
from paceline.compare.rows import Row, choose_metric, is_guessing, label, simulated_on
from paceline.compare.verdict import (
    describe_failure,
    describe_guessing,
    is_implausible,
    is_superlinear,
    optimizers,
    quality,
    reference,
    select_real,
    select_simulated,
)
from paceline.record import Run
from paceline.record.environment import cores_were_shared
from paceline.text import count, join, ratio, time_span

# The origin of a target that a study has.
OF_STUDY = "the study's"
# At most this many rows are named.
NAMED = 2
# The beginning of the answer if no run reached the target; and if more runs are to come.
UNREACHED = ("Nothing reached the target of", "Nothing has yet reached the target of")


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

    @property
    def phrase(self) -> str:
        """The target and where it comes from, as part of a sentence."""
        return f"the study's target of {self.short}" if self.words == OF_STUDY else f"the target of {self}"


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
        and not (metric == ACCURACY and is_guessing(metric.relax(best), row.chance))
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
        value=metric.relax(best),
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
        return None, OF_STUDY
    if len(set(own)) == 1:
        return own[0], OF_STUDY
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


def find_target_times(row: Row, target: Target) -> Reached:
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
class Recommendation:
    """What to use, in words."""

    sentence: str
    sure: str = ""
    """How sure that is: the runs behind it, and how they compare with those of others."""
    row: Row | None = None
    """The row to use; None if none can be recommended."""


def answer(rows: Sequence[Row], target: Target | None, *, going_on: bool = False) -> Recommendation:
    """Say which row of one problem to use; `target`: what it should reach, if there is anything to reach.

    `going_on`: more runs are to come.
    """
    tried, foretold = select_real(rows), select_simulated(rows)
    compared = [row for row in tried if not row.serial and not row.alone]
    if foretold and not compared and (not tried or any(not row.serial for row in foretold)):
        found = _answer(foretold, target, going_on=going_on)
        return replace(
            found, sentence=f"{simulated_on(foretold[0])}: {found.sentence[:1].lower()}{found.sentence[1:]}"
        )
    return _answer(tried or foretold, target, going_on=going_on)


def _answer(rows: Sequence[Row], target: Target | None, *, going_on: bool) -> Recommendation:
    whole = [row for row in rows if not row.diverged]
    if not whole:
        every = all(len(row.diverged) == row.runs for row in rows)
        only = "the only run diverged" if rows[0].runs == len(rows) == 1 else "every run diverged"
        return Recommendation(
            sentence=f"Nothing can be recommended: {only if every else 'every row has runs that diverged'}."
        )
    if all(row.guessed for row in whole) and (target is None or whole[0].setting is None):
        return Recommendation(sentence=f"{describe_guessing(whole[0]).capitalize()}.")
    several = [row for row in rows if not row.alone] or list(rows)
    if len(rows) > 1 and all(row.alone for row in rows):
        return Recommendation(
            sentence="Nothing was tried on more than one rank, where every strategy computes the same."
        )
    if all(row.timed_only for row in whole):
        return _fastest(several)
    if target is None:
        return _describe([row for row in several if not row.diverged and not row.guessed] or whole)
    when = [found for row in several if (found := find_target_times(row, target)).all and not row.guessed]
    if not when:
        return _describe_unreached(several, target, going_on=going_on)
    reached = len(when)
    if not target.asked:  # then it is only a measure of being as good as serial
        when = [found for found in when if describe_failure(found.row, rows) != "learned less"] or when
    when.sort(key=lambda found: (_mean(found), found.row.train_seconds))
    return _first(when, several, target, others=reached > len(when))


def _fastest(rows: Sequence[Row]) -> Recommendation:
    """Answer with the time of rows whose quality is unknown."""
    row = min((row for row in rows if row.timed_only), key=lambda row: row.train_seconds)
    gain = (
        f", {ratio(row.speedup)} times as fast as serial"
        if row.speedup is not None and not row.serial
        else ""
    )
    return Recommendation(
        sentence=f"{name(row)} takes the least time, {time_span(row.train_seconds)}{gain}; what it learns is unknown, "
        "since only time was simulated.",
        row=row,
    )


def _describe(rows: Sequence[Row]) -> Recommendation:
    """Answer where there is no target: only one row, or nothing known about quality."""
    row = min(rows, key=lambda row: row.train_seconds)
    got = f" and ended at {quality(row)}" if quality(row) else ""
    if len(rows) == 1:
        return Recommendation(
            sentence=f"{name(row)} trained for {time_span(row.train_seconds)}{got}; there is nothing to compare it with.",
            row=row,
        )
    return Recommendation(
        sentence=f"{name(row)} is the fastest: it trained for {time_span(row.train_seconds)}{got}; there is no target.",
        sure=_runs(row.runs),
        row=row,
    )


def _describe_unreached(rows: Sequence[Row], target: Target, *, going_on: bool) -> Recommendation:
    found = [find_target_times(row, target) for row in rows if not row.diverged]
    partly = [one for one in found if one.seconds]
    if partly:
        most = max(partly, key=lambda one: len(one.seconds) / one.row.runs)
        has = "has yet " if going_on else ""
        return Recommendation(
            sentence=f"Nothing {has}reached {target.short} with every run; closest was {name(most.row)}, with "
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
    return Recommendation(sentence=f"{UNREACHED[going_on]} {target.short}{came}.")


def _first(when: Sequence[Reached], rows: Sequence[Row], target: Target, *, others: bool) -> Recommendation:
    """Answer with the row that reached the target first or, if serial is as fast, with that.

    `others`: some more reached it, but learned less in the end.
    """
    times = with_noise({one.row: Timing(seconds=one.seconds) for one in when})
    fastest = when[0].row
    alike = [one for one in when if one is when[0] or is_as_fast(times[fastest], times[one.row])]
    serial = next((one for one in when if one.row.serial), None)
    chosen = fastest
    if fastest.setting is not None:  # candidates of a search: as the search itself chooses
        chosen = simplest(times, fastest, lambda row: row.effort)
    elif alone := [
        one.row for one in alike if one.row.serial
    ]:  # the simplest, with as few threads as are as fast
        chosen = simplest({row: times[row] for row in alone}, alone[0], lambda row: row.effort)
    first = next(one for one in when if one.row is chosen)
    row = first.row
    # What was tried on more ranks is of more interest than another serial row.
    beaten = [one for one in when if one is not first]
    other = next((one for one in beaten if not (row.serial and one.row.serial)), next(iter(beaten), None))
    stay = row.strategy == "serial" and len(rows) > 1 and row.setting is None
    begin = f"{'Stay with' if stay else 'Use'} {name(row)}: it reaches {target.short}"
    is_first = other is not None and first is when[0]
    sentence = f"{begin} {'first, ' if is_first else ''}after {time_span(_mean(first))}"
    beside = [one for one in alike if one is not first]
    noise = ""
    if beside:
        known = times[row].times_as_fast(times[beside[0].row]) is not None
        size = "within the noise" if known else "too small to count with one run each"
        noise = f"; the difference from {_names([one.row for one in beside])} is {size}"
    if row.serial:
        if beside:
            sentence += noise
        elif other is not None:
            among = "" if other is beaten[0] else "on several ranks, "
            worse = ", but it learns less" if describe_failure(other.row, rows) == "learned less" else ""
            sentence += f"; {among}closest is {name(other.row)}, after {time_span(_mean(other))}{worse}"
        elif all(one.serial for one in rows):
            sentence += "; nothing was tried on more than one rank"
        else:
            sentence += f"; nothing else {'learned as much' if others else 'reached it with every run'}"
    else:
        sentence += _against_serial(first, serial, rows, target) + noise
    sentence += _say_learns_less(row, rows) or _say_falls_back(row, target)
    sure = [_other_programs(first, next(iter(beside), other))]
    if len(rows) > 1:
        sure.insert(0, _compare_runs(first, beside, other, times))
    if beaten and all(one.serial for one in rows):
        sure.append("There is no complete run on more than one rank.")
    if row.setting is None or row.optimizer:  # in a search, only its own matters
        sure.append(_optimizer(row, rows))
    return Recommendation(sentence=f"{sentence}.", sure=" ".join(filter(None, sure)), row=row)


def _against_serial(first: Reached, serial: Reached | None, rows: Sequence[Row], target: Target) -> str:
    """Compare the time to the target with serial's."""
    if serial is None:
        there = any(row.serial for row in rows)
        return "; serial never reached it" if there else "; there is no serial run to compare it with"
    took = f"{name(serial.row)} ({time_span(_mean(serial))})"
    if _mean(first) <= 0:
        return f"; {took} is slower"
    wrong = f", which is implausible: more than {count(first.row.ranks, 'rank')} can give"
    gain = _mean(serial) / _mean(first)
    spelled = ratio(gain)
    spelled = spelled.rstrip("0").rstrip(".") if "." in spelled else spelled
    why = wrong if is_implausible(first.row, rows) else ""
    if not why and is_superlinear(gain, first.row.ranks * first.row.threads):
        needed = [_epochs(one, target) for one in (first, serial)]
        epochs = f"{needed[0]:.2g} {'epoch' if needed[0] == 1 else 'epochs'}"
        why = f", in {epochs} instead of {needed[1]:.2g}" if needed[0] < needed[1] else ""
    return f", {spelled} times as fast as {took}{why}"


def _epochs(found: Reached, target: Target) -> float:
    """Return after how many epochs the runs of a row reached the target, on average."""
    metric = target.metric
    values = ([value for _, value in metric.points(run)] for run in found.row.members)
    return fmean(
        next(n for n, value in enumerate(some, 1) if metric.reaches(value, target.value)) for some in values
    )


def _say_learns_less(row: Row, rows: Sequence[Row]) -> str:
    """Say that a row ends worse than serial, although it reached the target."""
    than = reference(rows, row.optimizer)
    if describe_failure(row, rows) != "learned less" or than is None or than is row:
        return ""
    who = name(row) if row.serial else "it"
    return f"; but {who} learns less: it ends at {quality(row)}, {name(than)} at {quality(than)}"


def _say_falls_back(row: Row, target: Target) -> str:
    """Say that a row is clearly worse at its end than the target that it reached."""
    metric = target.metric
    ends = [value for run in row.members if (value := read_last(run, metric.name)) is not None]
    worst = metric.worst(ends)
    if worst is None or row.grows or metric.reaches(worst, metric.relax(target.value)):
        return ""
    who, end = name(row) if row.serial else "it", "a run ends" if row.runs > 1 else "it ends"
    return f"; but {who} does not stay there: {end} at {metric.spell(worst)}"


def _optimizer(row: Row, rows: Sequence[Row]) -> str:
    """Say whose optimizer differs, if there are several."""
    kinds = optimizers(rows)
    if len(kinds) <= 1:
        return ""
    update = rows[0].members[0].config["update"]
    if row.optimizer:
        return f"It uses the rule {row.optimizer} instead of {update}."
    others = list(dict.fromkeys(one.strategy for one in rows if one.optimizer))
    words = f"{len(others)} strategies" if len(others) > NAMED else join(others)
    return f"The optimizer of {words} differs."


def _other_programs(*found: Reached | None) -> str:
    """Say which rows other programs slowed down."""
    rows = [one.row for one in found if one is not None and cores_were_shared(one.row.remarks)]
    named = "; ".join(map(name, rows))
    return f"Other programs slowed down {named}: measure again without them." if rows else ""


def _compare_runs(
    first: Reached, alike: Sequence[Reached], other: Reached | None, times: Mapping[Row, Timing]
) -> str:
    """Compare the runs behind an answer with those that are as fast within the noise, or else with `other`."""
    than = alike[0] if alike else other
    if than is None:
        return _runs(first.row.runs)
    interval = times[first.row].times_as_fast(times[than.row])
    if interval is None:
        return "Run more seeds." if alike else _runs(1)
    spread = f"{name(first.row)}: {_span(first)}; {name(than.row)}: {_span(than)}"
    if alike:
        more = f"; and {count(len(alike) - 1, 'other')}" if len(alike) > 1 else ""
        return f"Not certain: {spread}{more}. More seeds could tell."
    low, high = map(ratio, interval)
    return f"{low} to {high} times as fast as {name(than.row)}, with 95 % confidence ({spread})."


def _runs(runs: int) -> str:
    return "" if runs > 1 else "One run each, so the difference may be chance: run more seeds."


def _span(found: Reached) -> str:
    low, high = time_span(min(found.seconds)), time_span(max(found.seconds))
    return f"{count(len(found.seconds), 'run')}, {low if low == high else f'{low} to {high}'}"


def name(row: Row) -> str:
    """Describe a row in a sentence."""
    return label(row).replace(" *", " (more ranks than cores)", 1) if row.oversubscribed else label(row)


def _names(rows: Sequence[Row]) -> str:
    """Name one row, and count several or, since their names are long, candidates of a search."""
    return name(rows[0]) if len(rows) == 1 and rows[0].setting is None else count(len(rows), "other")


def _mean(found: Reached) -> float:
    return found.mean or 0.0
