"""What to try after a run: one command, and why.

A faster run of the same problem that learned as much is the best advice. Times of a run that shared its cores with other
programs give none. Otherwise, ranks get what their diagnosis advises, unless one process would be faster: it takes at most

    p (compute + update)        for a step of p ranks, each of which computes and updates for so long

For one process, theory says whether ranks would help: with the times of this run, the step of p ranks takes

    compute(b / p) + update / p + exchange(p)        exchange: in shared memory, by the collective's formula
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.compare.rows import Row, is_serial, problem_of, rows_of
from paceline.compare.verdict import best
from paceline.config import Config
from paceline.diagnosis.advice import present_batch, settings_in
from paceline.diagnosis.case import WIDTH, Case, cases_of, place_at, place_of
from paceline.diagnosis.rules import RULES
from paceline.diagnosis.summary import NO_RULE, sum_up
from paceline.diagnosis.timing import line_of, timing_of
from paceline.errors import UsageError
from paceline.names import as_arguments
from paceline.record import Run
from paceline.record.environment import shared_cores
from paceline.simulate.options import NAMES, Options
from paceline.strategies import Strategy
from paceline.text import count, share
from paceline.training.job import built_in

# At most so many of the latest runs beside a run are looked at, and so many of its problem are compared.
LOOKED_AT, COMPARED = 200, 30
# The factor by which a batch grows at most from one run to the next.
MOST_GROWTH = 4
# Anything less is not worth trying.
GAIN = 1.1
# The part of an exchange that is not messages and sums: calls, and waiting for each other.
OVERHEAD = 5e-5
NOTHING = "nothing"
# The settings that are numbers; all others are texts.
KINDS: dict[str, type] = {
    **dict.fromkeys(("batch", "batch_per_rank", "epochs", "threads", "draws", "seed", "reproducible"), int),
    **dict.fromkeys(("lr", "clip"), float),
}


def next_step(run: Run) -> str:
    """Return the command to try after a complete run and, in brackets, why; or why there is nothing to try."""
    alike = [*_beside(run), run]
    row = next(row for row in rows_of(alike) if any(one.folder == run.folder for one in row.members))
    if (better := _faster(row, alike)) is not None:
        member = better.members[0]
        how = "simulated" if better.simulated else "measured"
        gain = row.train_seconds / better.train_seconds
        said = f"{gain:.2g} times as fast, {how}" if not row.diverged else f"did not diverge, {how}"
        return _typed(member, {}, said)
    if row.serial and row.diverged:
        return _typed(run, {"lr": f"{run.config['lr'] / 2:g}"}, "it diverged: half the learning rate")
    if row.guessed and not row.diverged:
        return _learn_something(run)
    usable = not (row.diverged or row.oversubscribed)
    if usable and run.simulated is None and (found := _one_computes(run, alike)):
        return found
    if usable and shared_cores(run.summary.get("remarks") or ()):
        return (
            f"{NOTHING} yet: other programs were running, so its times say little; run it again without them"
        )
    if row.serial or (row.alone and getattr(built_in(row.strategy), "equals_serial", False)):
        return _after_serial(run, alike)
    return (usable and _one_process(run, alike)) or _advised(run, alike)


def _beside(run: Run) -> list[Run]:
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


def _faster(row: Row, alike: Sequence[Run]) -> Row | None:
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


def _learn_something(run: Run) -> str:
    """Return the model's own learning rate as advice for a run that learned nothing, or more epochs if it had that."""
    rate = (run.config.get("asked") or {}).get("lr")
    if rate is None:
        return _typed(
            run, {"epochs": str(MOST_GROWTH * run.config["epochs"])}, "it learned nothing: more epochs"
        )
    return _typed(run, {"lr": ""}, f"it learned nothing with a learning rate of {rate:g}: the usual one")


def _one_computes(run: Run, alike: Sequence[Run]) -> str:
    """Return one process as advice if only one of the ranks of a run computes; otherwise nothing."""
    strategy, ranks = built_in(str(run.config["strategy"])), int(run.config["ranks"])
    if _knows_serial(alike) or strategy is None or ranks < 2 or strategy.workers(ranks) > 1:
        return ""
    changes = {"strategy": _serial_like(strategy, run.config), "threads": str(run.summary["threads"])}
    why = f"of {ranks} ranks only one computes; one process takes the same steps without messages"
    return _typed(run, changes, why)


def _one_process(run: Run, alike: Sequence[Run]) -> str:
    """Return one process as advice if it would take the same steps faster than the ranks of a run; otherwise nothing."""
    strategy, ranks = built_in(str(run.config["strategy"])), int(run.config["ranks"])
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
    return _typed(run, {"strategy": "serial", "threads": str(run.summary["threads"])}, why)


def _knows_serial(alike: Sequence[Run]) -> bool:
    return any(is_serial(str(one.config["strategy"])) for one in alike)


def _serial_like(strategy: Strategy, config: Mapping[str, Any]) -> str:
    """Return one process that makes its steps by the same rule as a strategy."""
    rule = strategy.for_update(str(config["update"])).optimizer()
    return f"serial:rule={rule}" if rule else "serial"


def _advised(run: Run, alike: Sequence[Run]) -> str:
    """Return the first advice of the diagnosis of a run's strategy."""
    cases = cases_of(alike)
    case = next(case for case in cases if any(run in scale.runs for scale in case.scales))
    found = sum_up(case)
    for cause in found.causes:
        advice = re.split(r", (?:or|and) (?=-)", cause.advice)[0]
        if not (settings := settings_in(advice)):
            continue
        settings |= _instead(case, settings)
        short = cause.short or next((rule.short for rule in RULES if rule.name == cause.rule), NO_RULE)
        said = cause.words if cause.share is None else short
        if ", and -" in cause.advice:  # the first reason belongs to the first advice
            said = said.partition("; ")[0]
        aside = re.search(r"\(([^()]*)", advice)
        why = f"{said}; {aside[1]}" if aside else said
        return _typed(case.at.runs[-1], settings, why)
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
    strategy = built_in(settings.get("strategy", str(case.config["strategy"])))
    ranks = int(settings.get("n", case.at.ranks))
    if strategy is not None and "n" in settings and ranks > 1 and strategy.workers(ranks) < 2:
        found |= {"strategy": _serial_like(strategy, case.config), "threads": "1"}
    return found


def _after_serial(run: Run, alike: Sequence[Run]) -> str:
    """Return the number of ranks that would be fastest in theory, or why one process is the best choice."""
    threads, cores = int(run.summary["threads"]), place_of(run).cores
    others = [
        one for one in alike if not is_serial(str(one.config["strategy"])) and int(one.config["ranks"]) > 1
    ]
    if others:
        if len(others) == 1:
            return f"{NOTHING}: the run on {count(int(others[0].config['ranks']), 'rank')} was not faster, or learned less"
        return f"{NOTHING}: none of {len(others)} runs on ranks was faster and learned as much"
    if run.simulated is not None:
        return _typed(run, {"strategy": "sync", "n": "4"}, "to see what ranks gain on this network")
    if cores == 1:
        return (
            f"{NOTHING} here: ranks need more than one core; --on sim -n 16 --network 10gbe shows more nodes"
        )
    most = (cores or 1) // threads
    if most < 2:
        changes = {"strategy": "sync", "n": str(cores), "threads": "1"}
        return _typed(
            run, changes, "the same cores as ranks instead of threads; what is faster must be measured"
        )
    numbers = sorted({*(1 << power for power in range(1, most.bit_length())), most} - {1})
    gains = [(*found, number) for number in numbers if (found := _gain(run, number)) is not None]
    if not gains:
        return f"{NOTHING} on ranks: a batch of {run.summary['global_batch']} cannot be divided"
    gain, known, ranks = max(gains)
    if gain < GAIN:
        return f"{NOTHING} on ranks: sync on {ranks} would be {gain:.2g} times as fast, predicted"
    bound = "about" if known else "at most"
    return _typed(run, {"strategy": "sync", "n": str(ranks)}, f"{bound} {gain:.2g} times as fast, predicted")


def _gain(run: Run, ranks: int) -> tuple[float, bool] | None:
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


def _typed(run: Run, changes: dict[str, str], why: str) -> str:
    """Return the command of a run with other settings (empty: the default), and why it is worth trying in brackets."""
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
    return f"{shlex.join(words)} ({why})"
