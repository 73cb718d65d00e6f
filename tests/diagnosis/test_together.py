"""Causes that fire together do not advise against each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.diagnosis import Cause
from paceline.record import Run
from tests.diagnosis.checks import check_advice
from tests.diagnosis.runs import LOOPBACK, SERIAL, TIME_ALONE, US, case_of, cause, only, simulate_runs
from tests.diagnosis.steering import contradictions, gone_astray, less_learned, steers

SERVER = "parameter-server"
SERVE = {"serve": 100 * US}
TOGETHER: dict[str, tuple[list[tuple[str, int]], dict[str, Any], Any, set[str]]] = {
    # What fires together: its runs, its settings, what is altered in them, and the rules.
    "a queue, and workers that learn less": (
        [(f"{SERVER}:masters=2", 5), (f"{SERVER}:masters=2", 9)],
        {"batch": 16, "given": SERVE, **LOOPBACK},
        less_learned,
        {"staleness", "master queue"},
    ),
    "masters without work, and more workers that diverge": (
        [(f"{SERVER}:masters=2,rule=plain", 4), (f"{SERVER}:masters=2,rule=plain", 8)],
        {"compute": False},
        gone_astray,
        {"divergence", "small computing", "ranks without work"},
    ),
    "masters without work, and workers that slow each other down": (
        [(f"{SERVER}:masters=4,placement=even", 8), (f"{SERVER}:masters=4,placement=even", 16)],
        {"given": {"slower": 2.0, "each": 50 * US}, "epochs": 4, **TIME_ALONE},
        None,
        {"slower computing", "ranks without work"},
    ),
    "averages that learn less, and much exchange": (
        [("weight-average", 4)],
        {"epochs": 4},
        less_learned,
        {"averaging", "small computing"},
    ),
    "averages that learn less, and chance": (
        [("local-sgd:every=2", 4)],
        {"epochs": 20, "jitter": 0.5, **LOOPBACK},
        less_learned,
        {"averaging", "stragglers"},
    ),
    "averages that learn less, and others that diverge": (
        [("weight-average", 2), ("weight-average", 4), ("weight-average", 8)],
        {"epochs": 4},
        lambda runs: (less_learned(runs), gone_astray(runs)),
        {"divergence", "averaging"},
    ),
    "a batch that is too large, and too small for its exchange": (
        [("sync:allreduce=ring", 8)],
        {"epochs": 4, "batch": None, "batch_per_rank": 4},
        less_learned,
        {"large batch", "small computing"},
    ),
    "a batch that is too large, and divides badly": (
        [("main-worker", 4)],
        {"epochs": 4, "batch": None, "batch_per_rank": 1, "given": {"each": 1000 * US}, **LOOPBACK},
        less_learned,
        {"large batch", "uneven pieces", "ranks without work"},
    ),
    "a batch that is too large, and others that diverge": (
        [("sync:allreduce=ring", 4), ("sync:allreduce=ring", 8)],
        {"epochs": 4, "batch": None, "batch_per_rank": 4},
        lambda runs: (less_learned(runs), gone_astray(runs)),
        {"divergence", "large batch", "small computing"},
    ),
    "one number of ranks, that are too slow": (
        [("sync", 16)],
        {"given": {"slower": 4.0, "each": 20 * US}, **LOOPBACK},
        None,
        {"slower computing", "too few runs"},
    ),
}


@pytest.mark.parametrize("name", list(TOGETHER))
def test_causes_that_fire_together_agree(name: str, tmp_path: Path) -> None:
    ran, settings, altered, rules = TOGETHER[name]
    runs = simulate_runs(tmp_path, SERIAL, *ran, **settings)
    change: Callable[[list[Run]], object] = altered or (lambda runs: None)
    change(runs)
    case, found = case_of(runs), only(runs)
    assert rules <= {each.rule for each in found.causes}
    assert contradictions(case, found) == []
    for each in found.causes:
        check_advice(case.at.runs[0], each.advice)


def test_masters_that_are_the_queue_are_not_without_work(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch": 16, **TIME_ALONE}
    ranks = (f"{SERVER}:masters=2,placement=even", 8)
    idle = only(simulate_runs(tmp_path / "idle", SERIAL, ranks, given={"serve": 1 * US}, **settings))
    assert cause(idle, "master queue") is None
    without = cause(idle, "ranks without work")
    assert without is not None
    assert "masters=2" not in without.advice.partition(", or ")[0]  # fewer
    queue = only(simulate_runs(tmp_path / "queue", SERIAL, ranks, given=SERVE, **settings))
    busy = cause(queue, "master queue")
    assert busy is not None
    assert "masters=4,placement=even" in busy.advice  # more
    assert cause(queue, "ranks without work") is None


def test_what_steers_both_ways_is_found(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, (f"{SERVER}:masters=2", 8), **TIME_ALONE)
    case = case_of(runs)

    def steered(advice: str) -> dict[str, set[int]]:
        return steers(case, Cause(rule="", share=None, words="", advice=advice, ranks=8))

    assert steered(f"--strategy {SERVER}:masters=4") == {"masters": {1}, "workers": {-1}}
    assert steered(f"-n 10 --strategy {SERVER}:masters=2 (why), or --batch 32 (why)") == {
        "ranks": {1}, "workers": {1}, "batch": {-1}, "steps": {1},
    }  # fmt: skip
    assert steered("--lr-scaling linear, or --strategy local-sgd:every=5") == {
        "rate": {1}, "steps between averages": {1},
    }  # fmt: skip
    assert steered("--epochs 2 (why)") == {"steps": {1}}
    assert steered("--on sim -n 16 --network 10gbe, or -n 1 --strategy serial") == {}
