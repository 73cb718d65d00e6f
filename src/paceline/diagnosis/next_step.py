"""What to try after a run: one command, and why.

A faster run of the same problem that learned as much is the best advice. Times of a run that shared its cores with other
programs give none. Otherwise, ranks get what their diagnosis advises, unless one process would be faster: it takes at most

    p (compute + update)        for a step of p ranks, each of which computes and updates for so long

For one process, theory says whether ranks would help: with the times of this run, the step of p ranks takes

    compute(b / p) + update / p + exchange(p)        exchange: in shared memory, by the collective's formula

One process with the rule of a parameter server has another optimizer than the run's update, and so do the ranks that are
advised. Wherever the optimizer would change all the same, the reason says so.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.compare.noise import Timing, differ, is_within_noise, with_noise
from paceline.compare.rows import Row, describe_simulation, is_serial, problem_of, rows_of, ways_of
from paceline.compare.verdict import best, describe_failure
from paceline.config import Config
from paceline.diagnosis.advice import present_batch, settings_in, stays_reproducible
from paceline.diagnosis.case import WIDTH, Case, cases_of, place_at, place_of
from paceline.diagnosis.rules import RULES
from paceline.diagnosis.summary import NO_RULE, sum_up
from paceline.diagnosis.timing import line_of, timing_of
from paceline.errors import UsageError
from paceline.models import find_default_rate, knows_default_rate
from paceline.names import as_arguments, parse
from paceline.record import Run
from paceline.record.environment import cores_were_shared
from paceline.simulate.options import NAMES, Options
from paceline.strategies import Strategy
from paceline.text import count, share
from paceline.training.job import build_component, find_built_in
from paceline.updates import choose_rate

# At most so many of the latest runs beside a run are looked at, and so many of its problem are compared.
LOOKED_AT, COMPARED = 200, 30
# The factor by which a batch grows at most from one run to the next.
MOST_GROWTH = 4
# Anything less is not worth trying.
GAIN = 1.1
# The part of an exchange that is not messages and sums: calls, and waiting for each other.
OVERHEAD = 5e-5
NOTHING = "nothing"
STAY = "stay with one process"
# The settings that are numbers; all others are texts.
KINDS: dict[str, type] = {
    **dict.fromkeys(("batch", "batch_per_rank", "epochs", "threads", "draws", "seed", "reproducible"), int),
    **dict.fromkeys(("lr", "clip"), float),
}


def next_step(run: Run) -> str:
    """Return the command to try after a complete run and, as a comment, why; or why there is nothing to try."""
    alike = [*_find_runs_beside(run), run]
    rows = rows_of(alike)
    row = _row_of(run, rows)
    if (better := _find_faster(row, alike)) is not None:
        member = better.members[0]
        how = "simulated" if better.simulated else "measured"
        gain = row.train_seconds / better.train_seconds
        said = f"did not diverge, {how}"
        if not row.diverged:
            said = f"{gain:.2g} times as fast, {how}{_describe_doubt(better, row, rows)}"
        return _spell_command(member, {}, said + _other_optimizer(run.config, member.config))
    serial = is_serial(
        str(run.config["strategy"])
    )  # row.serial is False with --reproducible and --on-divergence
    if serial and row.diverged:
        return _spell_command(run, {"lr": f"{run.config['lr'] / 2:g}"}, "it diverged: half the learning rate")
    if row.guessed and not row.diverged:
        return _learn_something(run)
    usable = not (row.diverged or row.oversubscribed)
    if usable and run.simulated is None and (found := _one_computes(run, alike)):
        return found
    if usable and cores_were_shared(run.summary.get("remarks") or ()):
        return (
            f"{NOTHING} yet: other programs were running, so its times say little; run it again without them"
        )
    if serial or (row.alone and getattr(find_built_in(row.strategy), "equals_serial", False)):
        return _after_serial(run, alike)
    return (usable and _one_process(run, alike)) or _follow_diagnosis(run, alike)


def _row_of(run: Run, rows: Sequence[Row]) -> Row:
    return next(row for row in rows if any(member.folder == run.folder for member in row.members))


def _find_runs_beside(run: Run) -> list[Run]:
    """Return the latest complete runs of the same problem in the folder that holds a run."""
    folders = [path.parent for path in run.folder.parent.glob("*/summary.json") if path.parent != run.folder]
    found: list[Run] = []
    problem = problem_of(run)
    for folder in sorted(folders, key=lambda path: path.name, reverse=True)[:LOOKED_AT]:
        try:
            other = Run(folder)
            if other.config["model"] == run.config["model"] and problem_of(other) == problem:
                found.append(other)
        except (UsageError, OSError):  # damaged, or removed meanwhile: reports say so
            continue
        if len(found) == COMPARED:
            break
    return found


def _find_faster(row: Row, alike: Sequence[Run]) -> Row | None:
    """Return the fastest row like this one, real or simulated, that learned as much, if it is clearly faster."""
    kind = row.simulated
    found = best(
        [one for one in rows_of(alike) if one.simulated == kind or (kind and one.simulated and one.serial)]
    )
    if found is None or found.oversubscribed or found.members[0].config.get("replay"):
        return None
    same = found.members[0].folder in {one.folder for one in row.members}
    slower = row.train_seconds >= GAIN * found.train_seconds or bool(row.diverged)
    return found if slower and not same else None


def _describe_doubt(better: Row, row: Row, rows: Sequence[Row]) -> str:
    """Say why the difference between the measured times of two rows may be chance; empty if it is not."""
    if better.simulated:
        return ""
    times = with_noise({one: Timing(seconds=one.seconds) for one in {*rows, better, row}})
    if is_within_noise(times[better], times[row]):
        return ", but within the noise: more seeds could tell"
    return "" if differ(times[better], times[row]) else " with one run each: it may be chance"


def _learn_something(run: Run) -> str:
    """Return the model's own learning rate as advice for a run that learned nothing, or more epochs if it had that."""
    rate = (run.config.get("asked") or {}).get("lr")
    if not run.config["epochs"]:
        return f"{NOTHING} yet: it was not trained"
    if rate is None or rate == _find_usual_rate(run.config):
        return _spell_command(
            run, {"epochs": str(MOST_GROWTH * run.config["epochs"])}, "it learned nothing: more epochs"
        )
    return _spell_command(
        run, {"lr": ""}, f"it learned nothing with a learning rate of {rate:g}: the usual one"
    )


def _find_usual_rate(config: Mapping[str, Any]) -> float | None:
    """Return the learning rate of a run for which none is given; None if only the model itself knows it."""
    model, update = str(config["model"]), str(config["update"])
    if not knows_default_rate(model) or "update" in (config.get("objects") or ()):
        return None
    rate = find_default_rate(parse("models", model), config["classes"] or 0)
    return choose_rate(build_component("updates", update), rate)


def _one_computes(run: Run, alike: Sequence[Run]) -> str:
    """Return one process as advice if only one of the ranks of a run computes; otherwise nothing."""
    strategy, ranks = find_built_in(str(run.config["strategy"])), int(run.config["ranks"])
    if _knows_serial(alike) or strategy is None or ranks < 2 or strategy.workers(ranks) > 1:
        return ""
    changes = {"strategy": _serial_like(strategy, run.config), "threads": str(run.summary["threads"])}
    why = f"of {ranks} ranks only one computes; one process takes the same steps without messages"
    return _spell_command(run, changes, why)


def _one_process(run: Run, alike: Sequence[Run]) -> str:
    """Return one process as advice if it would take the same steps faster than the ranks of a run; otherwise nothing."""
    strategy, ranks = find_built_in(str(run.config["strategy"])), int(run.config["ranks"])
    if _knows_serial(alike) or strategy is None or ranks < 2 or not strategy.equals_serial:
        return ""
    timing = timing_of([run], together=True, served=False)
    alone = ranks * (timing.compute + timing.update)
    if alone <= 0 or run.simulated is not None or timing.total < GAIN * alone:
        return ""
    why = (
        f"one process would be at least {timing.total / alone:.2g} times as fast, predicted: the ranks compute for "
        f"{share(timing.share('compute', 'update'))} of the time"
    )
    return _spell_command(run, {"strategy": "serial", "threads": str(run.summary["threads"])}, why)


def _knows_serial(alike: Sequence[Run]) -> bool:
    return any(is_serial(str(one.config["strategy"])) for one in alike)


def _serial_like(strategy: Strategy, config: Mapping[str, Any]) -> str:
    """Return one process that makes its steps by the same rule as a strategy."""
    rule = strategy.for_update(str(config["update"])).optimizer()
    return f"serial:rule={rule}" if rule else "serial"


def _follow_diagnosis(run: Run, alike: Sequence[Run]) -> str:
    """Return the command of the first advice in the diagnosis of a run's strategy, or what it found if it has none."""
    key = (describe_simulation(run), ways_of(alike)[alike.index(run)])
    case = next(case for case in cases_of(alike) if (case.simulated, case.way) == key)
    found = sum_up(case)
    for cause in found.causes:
        advice = re.split(r", (?:or|and) (?=-)", cause.advice)[0]
        settings = settings_in(advice)
        if not settings or not stays_reproducible(run.config, settings):
            continue
        settings |= _instead(case, settings)
        short = cause.short or next((rule.short for rule in RULES if rule.name == cause.rule), NO_RULE)
        said = cause.words if cause.share is None else short
        if ", and -" in cause.advice:  # the first reason belongs to the first advice
            said = said.partition("; ")[0]
        aside = re.search(r"\(([^()]*)", advice)
        why = f"{said}; {aside[1]}" if aside else said
        return _spell_command(case.at.runs[-1], settings, why)
    return f"{NOTHING}: {found.summary}"


def _instead(case: Case, settings: Mapping[str, str]) -> dict[str, str]:
    """Return what to change in advised settings, so that one step further is one in the right direction.

    A batch grows by MOST_GROWTH at most, and the learning rate with its square root. If only one rank would compute, as
    with a server on 2 ranks, one process does.
    """
    found: dict[str, str] = {}
    now = present_batch(case)
    if "batch" in settings and int(settings["batch"]) > now:
        batch = min(int(settings["batch"]), MOST_GROWTH * now)
        found["batch"] = str(batch)
        if rate := case.config.get("lr"):
            found["lr"] = f"{rate * math.sqrt(batch / now):.3g}"
    strategy = find_built_in(settings.get("strategy", str(case.config["strategy"])))
    ranks = int(settings.get("n", case.at.ranks))
    if strategy is not None and "n" in settings and ranks > 1 and strategy.workers(ranks) < 2:
        found |= {"strategy": _serial_like(strategy, case.config), "threads": "1"}
    return found


def _after_serial(run: Run, alike: Sequence[Run]) -> str:
    """Return the number of ranks that would be fastest in theory, or why one process is the best choice."""
    threads, cores = int(run.summary["threads"]), place_of(run).cores
    rule = _rule(run.config)
    others = [
        one
        for one in alike
        if not is_serial(str(one.config["strategy"]))
        and int(one.config["ranks"]) > 1
        and _rule(one.config) == rule
    ]
    if others:
        if len(others) == 1:
            return f"{STAY}: {_describe_slower(others[0], run, alike)}"
        return f"{STAY}: none of {len(others)} runs on ranks was clearly faster and learned as much"
    pieces = run.config.get(
        "reproducible"
    )  # ranks must divide it, and only sync can be reproducible on ranks
    if pieces and (rule or pieces == 1):
        return f"{STAY}: with --reproducible {pieces} there is nothing like it on ranks"
    if run.simulated is not None:
        changes = {"strategy": _server(rule) if rule else "sync", "n": str(min(4, pieces or 4))}
        return _spell_command(run, changes, "to see what ranks gain on this network")
    if cores == 1:
        return (
            f"{NOTHING} here: ranks need more than one core; --on sim -n 16 --network 10gbe shows more nodes"
        )
    if rule:
        return _after_rule(run, rule, cores or 1)
    most = (cores or 1) // threads
    if most < 2:
        changes = {"strategy": "sync", "n": str(_most_ranks(cores or 1, pieces)), "threads": "1"}
        return _spell_command(
            run, changes, "the same cores as ranks instead of threads; what is faster must be measured"
        )
    most = _most_ranks(most, pieces)
    numbers = sorted({*(1 << power for power in range(1, most.bit_length())), most} - {1})
    gains = [(*found, number) for number in numbers if (found := _predict_gain(run, number)) is not None]
    if not gains:
        return f"{STAY}: a batch of {run.summary['global_batch']} cannot be divided"
    gain, known, ranks = max(gains)
    if gain < GAIN:
        much = _spell_gain(gain)
        verb = "run" if much.startswith("at") else "be"
        return f"{STAY}: sync on {count(ranks, 'rank')} is predicted to {verb} {much}"
    bound = "about" if known else "at most"
    return _spell_command(
        run, {"strategy": "sync", "n": str(ranks)}, f"{bound} {gain:.2g} times as fast, predicted"
    )


def _most_ranks(cores: int, pieces: int | None) -> int:
    """Return the most ranks for this many cores; their number divides `pieces`, a power of two, if it is given.

    >>> _most_ranks(6, None), _most_ranks(6, 8), _most_ranks(6, 2)
    (6, 4, 2)
    """
    return cores if pieces is None else min(pieces, 1 << (cores.bit_length() - 1))


def _describe_slower(other: Run, run: Run, alike: Sequence[Run]) -> str:
    """Say why a run on ranks is no better than one on one process."""
    rows = rows_of(alike)
    ours, theirs = _row_of(run, rows), _row_of(other, rows)
    what = f"the run on {count(int(other.config['ranks']), 'rank')}"
    wrong = describe_failure(theirs, rows)
    if wrong:
        return f"{what} {'had more ranks than cores' if wrong == 'oversubscribed' else wrong}"
    gain = _spell_gain(ours.train_seconds / theirs.train_seconds)
    return f"{what} {'ran' if gain.startswith('at') else 'was'} {gain}"


def _spell_gain(gain: float) -> str:
    """Describe a speed relative to one process that is not worth it.

    >>> _spell_gain(1.06), _spell_gain(1.001), _spell_gain(0.84)
    ('only 1.1 times as fast', 'no faster', 'at 0.84 times its speed')
    """
    spelled = f"{gain:.2g}"
    if gain < 1 and spelled != "1":
        return f"at {spelled} times its speed"
    return "no faster" if spelled == "1" else f"only {spelled} times as fast"


def _after_rule(run: Run, rule: str, cores: int) -> str:
    """Return a parameter server with the same rule as advice after one process with a rule, if it could be faster.

    Its workers divide the gradients, and its master makes every update.
    """
    workers = cores - 1
    if workers < 2:
        return (
            f"{NOTHING} on {cores} cores: the rule {rule} needs a master and at least 2 workers to be faster; other "
            f"strategies use another optimizer, {run.config['update']}"
        )
    timing = timing_of([run], together=True, served=False)
    alone = timing.compute + timing.update
    gain = min(workers, alone / timing.update) if timing.update > 0 else workers
    if gain < GAIN:
        return f"{STAY}: a master would make every update, which takes {share(1 / gain)} of the time already"
    changes = {"strategy": _server(rule), "n": str(cores), "threads": "1"}
    why = f"at most {gain:.2g} times as fast: a master and {workers} workers with the same rule"
    return _spell_command(run, changes, why)


def _server(rule: str) -> str:
    return f"parameter-server:rule={rule}"


def _rule(config: Mapping[str, Any]) -> str:
    """Return the rule that makes the steps of a run, if that is an optimizer other than its update; otherwise empty."""
    strategy = find_built_in(str(config["strategy"]))
    return "" if strategy is None else strategy.for_update(str(config["update"])).optimizer()


def _other_optimizer(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Say that the optimizer changes from one run to another; empty if it stays."""
    rules = [_rule(config) for config in (before, after)]
    if rules[0] == rules[1]:
        return ""
    old, new = (
        f"the rule {rule}" if rule else str(config["update"])
        for rule, config in zip(rules, (before, after), strict=True)
    )
    return f"; the optimizer changes: {new} instead of {old}"


def _predict_gain(run: Run, ranks: int) -> tuple[float, bool] | None:
    """Return the predicted speedup of sync, and True if it is known how long fewer samples take; None: unknown."""
    timing = timing_of([run], together=True, served=False)
    samples = int(run.summary["global_batch"])
    alone = timing.compute + timing.update
    exchange = place_at(run, ranks).theory(
        "shared-memory", int(run.summary["parameters"]), WIDTH.get(run.config["dtype"], 4), in_place=True
    )
    if samples < ranks or alone <= 0 or exchange is None:
        return None
    line = line_of([timing.by_count])
    less = timing.compute / ranks
    if line is not None:
        less = max(less, timing.compute * line.seconds(samples / ranks) / line.seconds(samples))
    return alone / (less + timing.update / ranks + exchange + OVERHEAD), line is not None


def _spell_command(run: Run, changes: dict[str, str], why: str) -> str:
    """Return the command of a run with other settings (empty: the default), and why it is worth trying as a comment."""
    names = {setting.name for setting in fields(Config)} - {"replay"}
    values: dict[str, Any] = {name: run.config[name] for name in names if name in run.config}
    values["lr"] = (run.config.get("asked") or {}).get("lr", values.get("lr"))
    given = {name.replace("-", "_"): value for name, value in changes.items()}
    if "batch" in given:  # one replaces the other
        values |= {"batch_per_rank": None, "lr_scaling": "none"}
    elif "batch_per_rank" in given:
        values["batch"] = None
    values |= {
        name: KINDS.get(name, str)(value) if value else None for name, value in given.items() if name in names
    }
    config = Config(**values)
    settings = as_arguments(config)
    chosen = f"--strategy={config.strategy}"
    words = ["paceline", "train", *settings, *([] if chosen in settings else [chosen])]
    words += [] if is_serial(config.strategy) else ["-n", given.get("n", str(run.config["ranks"]))]
    asked = run.config.get("asked") or {}
    if given.get("on", asked.get("on")) == "sim":
        options = {name: asked[name] for name in NAMES if asked.get(name) is not None}
        options |= {name: value for name, value in given.items() if name in NAMES}
        words += ["--on=sim", *as_arguments(Options(**options))]
    if run.folder.parent != Path("runs"):
        words.append(f"--runs={run.folder.parent}")
    why += _other_optimizer(run.config, {"strategy": config.strategy, "update": config.update})
    return f"{shlex.join(words)}  # {why}"
