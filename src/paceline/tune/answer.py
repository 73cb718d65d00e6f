"""The answer of a search: the fastest candidate, how sure that is, the second best, and the command to copy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.compare.noise import AS_FAST, WITHIN, Timing, differ, simplest
from paceline.study.run import command
from paceline.text import count, join, ratio, table
from paceline.text import seconds as spell_seconds
from paceline.tune.search import HANGS, MOST_EPOCHS, SPENT, TOO_SLOW, UNSEEN, Point, Search, Trial
from paceline.tune.space import Candidate

MOST_ROWS, MOST_REASONS = 15, 6
RUN_FOLDER = re.compile(r"\S*\b\d{8}-\d{6}-[^\s/:]+")
INTERRUPTED = "the search was interrupted, and the same command continues it"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a search has found."""

    chosen: Candidate
    epochs: int
    timing: Timing | None
    """When it reached the target; None: it did not."""
    found: str
    """The result in a sentence."""
    sure: str
    """How sure it is, in a sentence."""
    second: str
    """What would be second best, in a sentence."""
    command: str
    """The command to copy."""


def conclude(search: Search) -> Answer:
    """Return the answer of a search, also of one that was interrupted or has found nothing."""
    found, best = search.times(), search.best()
    if best is None:
        return _without_target(search)
    chosen, rival, sure = _choose(search, best, found)
    others = sorted((one for one in found if one != chosen), key=lambda one: found[one].key)
    second = "second best: nothing else reached the target"
    if others:
        second = f"second best: {others[0]}, after {found[others[0]]}"
    missed, (seed, epochs) = found[chosen].missed, search.choose_repetition(chosen)
    but = f", but not in {missed} of {count(missed + len(found[chosen].seconds), 'run')}" if missed else ""
    return Answer(
        chosen=chosen,
        epochs=epochs,
        timing=found[chosen],
        found=f"fastest to {search.goal}: {chosen}, after {found[chosen]} of {_say_simulated(search)}training{but}"
        + _optimizer(search, chosen),
        sure=f"{sure}{_say_disturbed(search, chosen, rival)}",
        second=second,
        command=spell_command(search, chosen, epochs, seed),
    )


def _choose(
    search: Search, best: Candidate, found: dict[Candidate, Timing]
) -> tuple[Candidate, Candidate | None, str]:
    """Return the answer, the candidate that it is compared with, if any, and how sure the answer is.

    The answer is the fastest or, if the difference is small and within the noise, a simpler one.
    """
    alike = [one for one in found if one != best and not differ(found[best], found[one])]
    chosen, why = simplest(found, best, lambda one: one.effort), _why_not_sure(search)
    if chosen != best:
        sure = f"how sure: {best} takes {found[best]}, but {WITHIN}: the simpler one is given{why}"
        return chosen, best, sure
    if len(found) == 1:
        return best, None, f"how sure: {_say_only_one(search)}{why}"
    if not alike:
        nearest = min((one for one in found if one != best), key=lambda one: found[one].key)
        interval = found[best].times_as_fast(found[nearest])
        untried = _say_untried(search, "but")
        if interval is None or found[best].missed != found[nearest].missed:
            return best, nearest, f"how sure: others did not reach the target with every seed{untried}{why}"
        low, high = map(ratio, interval)
        sure = (
            f"how sure: {low} to {high} times as fast as the second best, with 95 % confidence{untried}{why}"
        )
        return best, nearest, sure
    rival = min(alike, key=lambda one: found[one].key)
    runs = [len(found[one].seconds) + found[one].missed for one in (best, rival)]
    faster = found[rival].mean / found[best].mean
    if faster < 1:  # then it is the less reliable one
        missed = f"did not reach the target in {found[rival].missed} of {count(runs[1], 'run')}"
        sure = f"how sure: not certain: {rival} takes {100 * (1 - faster):.0f} % less time on average, but {missed}{why}"
        return best, rival, sure
    once = WITHIN
    speed = f"{ratio(faster)} times as fast as" if faster > AS_FAST else "slightly faster than"
    if 1 in runs:
        who = "each" if runs == [1, 1] else "the answer" if runs[0] == 1 else "the latter"
        once = f"{who} was run only once"
    more = f"; the same is true of {count(len(alike) - 1, 'other')}" if len(alike) > 1 else ""
    return best, rival, f"how sure: not certain: {speed} {rival} on average, but {once}{more}{why}"


def _say_only_one(search: Search) -> str:
    """Say why there is nothing to compare the only candidate with that reached the target."""
    if any(trial.untried for trial in search.trials.values()):
        return f"not certain: no other has reached the target yet{_say_untried(search, 'and')}"
    if len(search.trials) == 1:
        return "it was the only candidate"
    return "no other candidate reached the target in the time that it had"


def _without_target(search: Search) -> Answer:
    """Return the answer of a search in which nothing reached the target."""
    nearest = search.nearest()
    if nearest is None:
        chosen = search.favourite()
        failed = next((trial for trial in search.trials.values() if trial.failed), None)
        found = f"no run got to the end of an epoch ({search.over})"
        sure = f"how sure: not at all: the command below has not been tried; {_advise(search)}"
        stopped = next((trial for trial in search.trials.values() if trial.stopped), None)
        if failed is not None:
            chosen, found = failed.candidate, f"no run succeeded: {failed.failed}"
            sure = "how sure: not at all: the command below is the one that failed"
        elif stopped is not None:
            chosen, found = stopped.candidate, f"{found}; {stopped.candidate} was {stopped.stopped}"
            sure = f"how sure: not at all: the command below is the one that was stopped; {_advise(search)}"
        epochs = search.space.base.epochs
        return Answer(
            chosen=chosen, epochs=epochs, timing=None,
            found=found,
            sure=sure,
            second="second best: unknown",
            command=spell_command(search, chosen, epochs),
        )  # fmt: skip
    metric, trial = search.goal.metric, search.trials[nearest]
    point, number = _nearest_point(search, trial)
    epochs = point.epoch if search.space.grows else search.most_epochs
    ranked = [one for one in _by_value(search) if one != nearest]
    second = "second best: nothing else was run"
    if ranked:
        other, _ = _nearest_point(search, search.trials[ranked[0]])
        second = f"second best: {ranked[0]}, with {metric.describe(other.value, 'validation')}"
    return Answer(
        chosen=nearest, epochs=epochs, timing=None,
        found=f"nothing reached {search.goal} ({search.over}); the nearest was {nearest}, with "
        f"{metric.describe(point.value, 'validation')} after {spell_seconds(point.seconds)} s of "
        f"{_say_simulated(search)}training",
        sure=f"how sure: not at all; {_advise(search)}{_say_disturbed(search, nearest)}",
        second=second,
        command=spell_command(search, nearest, epochs, search.seed(number)),
    )  # fmt: skip


def _advise(search: Search) -> str:
    """Say what may lead to the target, if nothing has reached it."""
    if search.interrupted:
        return INTERRUPTED
    ways = ["a longer budget"] if search.over == SPENT else []
    if search.space.program is not None:
        ways += [] if ways else ["more epochs of the program"]
    elif not search.space.grows or (not ways and search.most_epochs < MOST_EPOCHS):
        ways.append(f"more epochs (--epochs; these runs had {search.most_epochs})")
    return f"try {join([*ways, 'an easier target'], 'or')}"


def _optimizer(search: Search, chosen: Candidate) -> str:
    """Say that the chosen candidate does not make its steps by the run's update."""
    update = search.space.base.update
    return f"; it uses the rule {chosen.optimizer} instead of {update}" if chosen.optimizer else ""


def _nearest_point(search: Search, trial: Trial) -> tuple[Point, int]:
    """Return the best value that a candidate reached, and the number of the seed."""
    return min(trial.points, key=lambda each: search.goal.metric.key(each[0].value))


def _by_value(search: Search) -> list[Candidate]:
    """Return the candidates that were run, by the best value that they reached."""
    tried = [one for one, trial in search.trials.items() if trial.points]
    return sorted(
        tried, key=lambda one: search.goal.metric.key(_nearest_point(search, search.trials[one])[0].value)
    )


def _why_not_sure(search: Search) -> str:
    return f"; {INTERRUPTED}" if search.interrupted else ""


def _say_disturbed(search: Search, chosen: Candidate, rival: Candidate | None = None) -> str:
    """Say that other programs slowed down runs of the answer, or of the candidate that it is compared with."""
    mine, others = (
        one is not None and any(run.disturbed for run in search.trials[one].runs.values())
        for one in (chosen, rival)
    )
    if not mine and not others:
        return ""
    whose = "both" if mine and others else "the answer" if mine else rival
    return f"; other programs slowed down runs of {whose}: measure again without them"


def _say_untried(search: Search, joined_by: str) -> str:
    number = sum(trial.untried for trial in search.trials.values())
    return f", {joined_by} {count(number, 'candidate')} could not be tried to the end" if number else ""


def _say_simulated(search: Search) -> str:
    return "" if search.space.options is None else "simulated "


def spell_command(search: Search, candidate: Candidate, epochs: int, seed: int | None = None) -> str:
    """Return the command line that repeats the run of a candidate, on the machine that was searched for.

    `seed`: that of the run; by default that of the first run.
    """
    cell = search.space.cell(candidate, epochs=epochs, seed=search.seed(0) if seed is None else seed)
    words = command(replace(cell, options=None), Path("runs"), "name", always=("strategy", "epochs"))
    at = words.index("--runs=runs")
    tail = [
        word for word in words[at : at + 4] if word in ("--runs=runs", "--name=name", "--quiet", "--json")
    ]
    return shlex.join(["paceline", *words[:at], *words[at + len(tail) :]])


# ---- what was tried


def results(search: Search) -> str:
    """Return a table of the candidates that were run, the fastest first."""
    found = search.times()
    tried = [one for one, trial in search.trials.items() if trial.runs]
    by_value = {one: place for place, one in enumerate(_by_value(search))}
    tried.sort(
        key=lambda one: (one not in found, found[one].key if one in found else (), by_value.get(one, 0))
    )
    rows = [_row(search, one, found.get(one)) for one in tried[:MOST_ROWS]]
    headings = ("", "s to target", "epochs", "s per epoch", f"best {search.goal.metric.name}", "runs")
    more = [f"and {len(tried) - MOST_ROWS} more"] if len(tried) > MOST_ROWS else []
    return "\n".join([table(rows, headings), *more]) if rows else ""


def _row(search: Search, one: Candidate, timing: Timing | None) -> Sequence[str]:
    trial = search.trials[one]
    value = _nearest_point(search, trial)[0].value if trial.points else None
    each = search.epoch_seconds(one)
    took = trial.failed or "-"
    if timing is not None:
        took = spell_seconds(timing.mean)
        took += f" ({timing.missed} missed it)" if timing.missed else ""
    return (
        str(one),
        took,
        str(search.epochs_needed(one)),
        "" if each is None else spell_seconds(each),
        "" if value is None else search.goal.metric.spell(value),
        str(len(trial.runs)),
    )


def list_left_out(search: Search) -> list[str]:
    """Say in a few lines what was not run, and why."""
    reasons: dict[str, list[Candidate]] = {}
    lack = "because the search was interrupted" if search.interrupted else "for lack of time"
    for one, trial in search.trials.items():
        if trial.runs:
            continue
        if trial.failed:
            # Without the names of runs, those that failed for the same reason are in one line.
            said = RUN_FOLDER.sub("its folder", trial.failed)
            why = said if said.startswith(TOO_SLOW) else f"that failed ({said})"
            if HANGS in trial.failed:
                why = "stopped for lack of progress"
            reasons.setdefault(why, []).append(one)
        elif trial.left_out:
            simulated = "simulator" in trial.left_out
            kind = "too slow to win, as simulated" if simulated else "too slow to win, as measured"
            kind = (
                "that cannot win, because others learn as much from a sample and are faster"
                if "learns no more" in trial.left_out
                else kind
            )
            reasons.setdefault(kind, []).append(one)
        elif trial.cut is not None:
            reasons.setdefault(f"stopped before the target, {lack}", []).append(one)
        elif trial.stopped:
            seen = f"with {UNSEEN}" if UNSEEN in trial.stopped else "before the end of an epoch"
            reasons.setdefault(f"stopped {seen}, {lack}", []).append(one)
        else:
            reasons.setdefault(f"not tried, {lack}", []).append(one)
    lines = [
        f"{count(len(those), 'candidate')} {why}: {those[0]}{' and others' if len(those) > 1 else ''}"
        for why, those in reasons.items()
    ]
    refused: dict[str, list[str]] = {}
    for name, why in search.space.refused.items():
        refused.setdefault(why, []).append(name)
    lines += [f"{those[0]}{' and others' if len(those) > 1 else ''}: {why}" for why, those in refused.items()]
    return [
        *lines[:MOST_REASONS],
        *([f"and {len(lines) - MOST_REASONS} more"] if len(lines) > MOST_REASONS else []),
    ]
