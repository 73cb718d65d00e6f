"""Which way an advice steers each setting, so that two of one diagnosis can be held against each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf
from typing import Any

from paceline.diagnosis import Cause, Diagnosis
from paceline.diagnosis.advice import present_batch, settings_in
from paceline.diagnosis.case import Case
from paceline.record import Run
from paceline.training.job import find_built_in


def contradictions(case: Case, found: Diagnosis) -> list[str]:
    """Pairs of causes of which one says more of something and the other less of it."""
    said = [(cause, steers(case, cause)) for cause in found.causes]
    return [
        f"{one.rule} ({one.advice}) and {other.rule} ({other.advice}): {name}"
        for (one, ways), (other, others) in combinations(said, 2)
        for name in ways.keys() & others.keys()
        if {-1, 1} <= ways[name] | others[name]
    ]


def steers(case: Case, cause: Cause) -> dict[str, set[int]]:
    """To each setting 1 where more of it is advised, -1 where less.

    What is simulated on more nodes, and serial runs, are to be looked at; they steer nothing.
    """
    there = replace(case, looked_at=cause.ranks)
    now = _settings(there, {})
    ways: dict[str, set[int]] = {}
    for part in cause.advice.split(", or "):
        given = settings_in(part)
        if "network" in given or given.get("strategy") == "serial" or part.startswith("paceline trace"):
            continue
        then = _settings(there, given)
        for name in now.keys() & then.keys():
            if now[name] != then[name]:
                ways.setdefault(name, set()).add(1 if then[name] > now[name] else -1)
    return ways


def _settings(case: Case, given: dict[str, str]) -> dict[str, float]:
    """What ranks, batches, rates and averages would be with these settings, as far as they can be compared."""
    options: Any = find_built_in(given.get("strategy", case.strategy))
    name = given.get("strategy", case.strategy).partition(":")[0]
    ranks, rate = int(given.get("n", case.at.ranks)), case.config.get("lr") or 1.0
    own = given.get("batch-per-rank")
    batch = float(given.get("batch", present_batch(case) if own is None else int(own) * ranks))
    passes = float(given.get("epochs", case.config.get("epochs") or 1))
    found: dict[str, float] = {
        "ranks": ranks,
        "batch": batch,
        "rate": float(given.get("lr", 2 * rate if "lr-scaling" in given else rate)),
        "steps between averages": inf if name == "psgd" else float(getattr(options, "every", None) or 1),
    }
    if "draws" not in given:  # which are as many as before
        found["steps"] = passes / (1.0 if case.config.get("draws") else batch)
    if name == "parameter-server":
        found |= {"masters": options.masters, "workers": ranks - options.masters}
    return found


def less_learned(runs: list[Run]) -> None:
    """As if ranks had learned nothing."""
    for run in runs:
        if run.config["strategy"] != "serial":
            run.summary["test_accuracy"] = 0.0


def gone_astray(runs: list[Run]) -> None:
    """As if on most ranks it had diverged."""
    most = max(run.config["ranks"] for run in runs)
    for run in runs:
        if run.config["ranks"] == most > 1:
            run.summary["diverged"] = "the loss ran away"
