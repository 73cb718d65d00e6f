"""The answer of a search: the fastest candidate, how sure that is, the second best, and the command to copy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.compare.answer import AS_FAST
from paceline.study.run import command
from paceline.text import count, table
from paceline.text import seconds as spell_seconds
from paceline.tune.search import TOO_SLOW, Search, Timing, Trial, parted
from paceline.tune.space import Candidate

MOST_ROWS, MOST_REASONS = 15, 6


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
    chosen, sure = _choose(search, best, found)
    others = sorted((one for one in found if one != chosen), key=lambda one: found[one].key)
    second = "second best: nothing else reached the target"
    if others:
        second = f"second best: {others[0]}, after {found[others[0]]}"
    missed = found[chosen].missed
    but = f", but not in {missed} of {count(missed + len(found[chosen].seconds), 'run')}" if missed else ""
    return Answer(
        chosen=chosen,
        epochs=search.epochs_needed(chosen),
        timing=found[chosen],
        found=f"fastest to {search.goal}: {chosen}, after {found[chosen]} of {_simulated(search)}training{but}"
        + _optimizer(search, chosen),
        sure=sure,
        second=second,
        command=spell_command(search, chosen, search.epochs_needed(chosen)),
    )


def _choose(search: Search, best: Candidate, found: dict[Candidate, Timing]) -> tuple[Candidate, str]:
    """Return the fastest or, if the difference is small and within the noise, a simpler one; and how sure it is."""
    alike = [one for one in found if one != best and not parted(found[best], found[one])]
    near = [
        one
        for one in alike
        if found[one].mean <= AS_FAST * found[best].mean
        and found[one].missed == 0
        and len(found[one].seconds) > 1
    ]
    simplest = min([best, *near], key=lambda one: (one.effort, found[one].mean))
    why = _why_not_sure(search)
    if simplest != best:
        return (
            simplest,
            f"how sure: {best} takes {found[best]}, but the difference is within the noise: the simpler one is given{why}",
        )
    rivals = sorted((one for one in alike), key=lambda one: found[one].mean)
    if not rivals:
        if len(found) == 1:
            if any(trial.untried for trial in search.trials.values()):
                return (
                    best,
                    f"how sure: not certain: no other has reached the target yet{_untried(search)}{why}",
                )
            return best, f"how sure: no other candidate reached the target in the time that it had{why}"
        nearest = min((one for one in found if one != best), key=lambda one: found[one].key)
        ratio = found[best].times_as_fast(found[nearest])
        if ratio is None or found[best].missed != found[nearest].missed:
            return best, f"how sure: others did not reach the target with every seed{why}"
        low, high = ratio
        return (
            best,
            f"how sure: {low:.2f} to {high:.2f} times as fast as the second best, with 95 % confidence{why}",
        )
    runs = [len(found[one].seconds) + found[one].missed for one in (best, rivals[0])]
    faster = found[rivals[0]].mean / found[best].mean
    once = "the difference is within the noise"
    speed = f"{faster:.2f} times as fast as" if faster > AS_FAST else "slightly faster than"
    if 1 in runs:
        once = (
            "each was run once" if runs == [1, 1] else f"{'it' if runs[0] == 1 else 'the other'} was run once"
        )
    more = f"; the same is true of {count(len(rivals) - 1, 'other')}" if len(rivals) > 1 else ""
    return best, (f"how sure: not certain: {speed} {rivals[0]} on average, but {once}{more}{why}")


def _without_target(search: Search) -> Answer:
    """Return the answer of a search in which nothing reached the target."""
    nearest = search.nearest()
    if nearest is None:
        chosen = search.space.candidates[min(1, len(search.space.candidates) - 1)]
        failed = next((trial for trial in search.trials.values() if trial.failed), None)
        found = f"no run got to the end of an epoch ({search.over})"
        sure = "how sure: not at all: the command below has not been tried; a longer budget would tell"
        if failed is not None:
            chosen, found = failed.candidate, f"no run succeeded: {failed.failed}"
            sure = "how sure: not at all: the command below is the one that failed"
        epochs = search.space.base.epochs
        return Answer(
            chosen=chosen, epochs=epochs, timing=None,
            found=found,
            sure=sure,
            second="second best: unknown",
            command=spell_command(search, chosen, epochs),
        )  # fmt: skip
    metric, trial = search.goal.metric, search.trials[nearest]
    value, at = _nearest_point(search, trial)
    runs = [*trial.runs.values(), *([] if trial.cut is None else [trial.cut])]
    epochs = max(run.epochs for run in runs)
    ranked = [one for one in _by_value(search) if one != nearest]
    second = "second best: nothing else was run"
    if ranked:
        other, _ = _nearest_point(search, search.trials[ranked[0]])
        second = f"second best: {ranked[0]}, with {metric.describe(other, 'validation')}"
    return Answer(
        chosen=nearest, epochs=epochs, timing=None,
        found=f"nothing reached {search.goal} ({search.over}); the nearest was {nearest}, with "
        f"{metric.describe(value, 'validation')} after {spell_seconds(at)} s of {_simulated(search)}training",
        sure="how sure: not at all; a longer budget or an easier target would tell",
        second=second,
        command=spell_command(search, nearest, epochs),
    )  # fmt: skip


def _optimizer(search: Search, chosen: Candidate) -> str:
    """Say that the chosen candidate does not make its steps by the run's update."""
    update = search.space.base.update
    return f"; its steps are made by the rule {chosen.optimizer}, not by {update}" if chosen.optimizer else ""


def _nearest_point(search: Search, trial: Trial) -> tuple[float, float]:
    """Return the best value that a candidate reached, and after how many seconds."""
    key = search.goal.metric.key
    at, value = min(trial.points, key=lambda point: key(point[1]))
    return value, at


def _by_value(search: Search) -> list[Candidate]:
    """Return the candidates that were run, by the best value that they reached."""
    tried = [one for one, trial in search.trials.items() if trial.points]
    return sorted(
        tried, key=lambda one: search.goal.metric.key(_nearest_point(search, search.trials[one])[0])
    )


def _why_not_sure(search: Search) -> str:
    return "; the search was interrupted" if search.interrupted else ""


def _untried(search: Search) -> str:
    number = sum(trial.untried for trial in search.trials.values())
    return f", and {count(number, 'candidate')} could not be tried to the end" if number else ""


def _simulated(search: Search) -> str:
    return "" if search.space.options is None else "simulated "


def spell_command(search: Search, candidate: Candidate, epochs: int) -> str:
    """Return the command line that repeats the run of a candidate, on the machine that was searched for."""
    cell = search.space.cell(candidate, epochs=epochs, seed=search.space.base.seed)
    words = command(replace(cell, options=None), Path("runs"), "name")
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
    value = _nearest_point(search, trial)[0] if trial.points else None
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


def left_out(search: Search) -> list[str]:
    """Say in a few lines what was not run, and why."""
    reasons: dict[str, list[Candidate]] = {}
    lack = "because the search was interrupted" if search.interrupted else "for lack of time"
    for one, trial in search.trials.items():
        if trial.runs:
            continue
        if trial.failed:
            slow = trial.failed.startswith(TOO_SLOW)
            reasons.setdefault(trial.failed if slow else f"that failed ({trial.failed})", []).append(one)
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
            reasons.setdefault(f"ended before the target, {lack}", []).append(one)
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
