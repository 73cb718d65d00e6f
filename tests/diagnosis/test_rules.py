"""Every rule on a case that is made to provoke it, and on one that differs in just that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.diagnosis.rules import RULES
from tests.diagnosis.checks import check_advice
from tests.diagnosis.runs import (
    LOOPBACK,
    SERIAL,
    TIME_ALONE,
    US,
    as_real,
    case_of,
    cause,
    only,
    simulate_runs,
)
from tests.diagnosis.steering import contradictions, gone_astray, less_learned

RING = "sync:allreduce=ring"
SERVER = "parameter-server"
PER_RANK: dict[str, Any] = {"batch": None, "batch_per_rank": 4}


def both(*runs: tuple[Any, ...], **settings: Any) -> tuple[tuple[tuple[Any, ...], ...], dict[str, Any]]:
    return (runs if runs[0][0] == "serial" else (SERIAL, *runs)), settings


# For each rule: what provokes it, what does not, and what it says of the first.
CASES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "small computing": (
        both((RING, 4)),
        both((RING, 4), batch=1024),
        ("at 4 ranks a step computes for 176 us and exchanges for 423 us (70 % of the step); a batch of 672 "
         "would bring this below 20 %",),
    ),
    "stragglers": (
        both(("sync", 4), slow="3:4x", **LOOPBACK),
        both(("sync", 4), slow="3:1.1x", **LOOPBACK),
        ("at 4 ranks rank 3 takes 4.0 times as long per sample as the others (45 us against 11.3 us)", "55 %"),
    ),
    "uneven pieces": (
        both((RING, 4), batch=6, given={"each": 100 * US}, **LOOPBACK),
        both((RING, 4), batch=8, given={"each": 100 * US}, **LOOPBACK),
        ("a batch of 6 gives the 4 computing ranks 1 to 2 samples", "1.33 times the mean"),
    ),
    "master queue": (
        both((SERVER, 2), (SERVER, 9), batch=16, given={"serve": 100 * US}, **TIME_ALONE),
        both((SERVER, 2), (SERVER, 9), batch=16, given={"serve": 5 * US}, **TIME_ALONE),
        ("1 master serves 8 workers: a worker computes for 180 us and waits 1.52 ms for its answer (84 % of its step; "
         "with 1 worker 110 us); the master is busy 98 % of the time",),
    ),
    "ranks without work": (
        both((f"{SERVER}:masters=2", 4), **TIME_ALONE),
        both((f"{SERVER}:masters=2", 9), **TIME_ALONE),
        ("2 of 4 ranks hold parameters and compute nothing: 2 workers are at best 2 times as fast",),
    ),
    "oversubscribed cores": (
        both(("sync", 8), given={"cores": 2}, **LOOPBACK),
        both(("sync", 8), given={"cores": 8}, **LOOPBACK),
        ("8 ranks share 2 cores (4.0 per core)",),
    ),
    "staleness": (
        both((f"{SERVER}:rule=plain", 9), epochs=4, lr=1.0, **LOOPBACK),
        both((f"{SERVER}:rule=plain", 2), epochs=4, lr=1.0, **LOOPBACK),
        ("at 9 ranks gradients are 6.", "updates old on average (at most 8); test accuracy is 10.0 %, serial's 60.0 %"),
    ),
    "divergence": (
        both((f"{SERVER}:rule=plain", 9), epochs=4, lr=20.0, batch=16, **LOOPBACK),
        both((f"{SERVER}:rule=plain", 9), epochs=4, lr=0.2, batch=16, **LOOPBACK),
        ("at 9 ranks training diverged with --lr 20: the loss stays at",),
    ),
    "averaging": (
        both(("psgd", 8), epochs=4, lr=1.0, batch=16, **LOOPBACK),
        both(("psgd", 1), epochs=4, lr=1.0, batch=16, **LOOPBACK),
        ("8 ranks train separately on 179 samples each and are averaged once, at the end; each takes 48 steps, "
         "serial takes 360; on their own the ranks reach",),
    ),
    "large batch": (
        both(("sync", 8), epochs=4, lr=1.0, batch=None, batch_per_rank=16, **LOOPBACK),
        both(("sync", 8), epochs=4, lr=1.0, batch=16, **LOOPBACK),
        ("at 8 ranks a batch has 128 samples (16 per rank)", "1/8 of the steps", "test accuracy is"),
    ),
    "grown batch": (
        both(("main-worker", 2), given={"fixed": 100 * US, "each": US}, **PER_RANK, **LOOPBACK),
        both(("main-worker", 2), ("main-worker", 3), given={"fixed": 0.0, "each": 99 * US}, **PER_RANK, **LOOPBACK),
        ("at 2 ranks a batch has 8 samples, serial's has 4: a gradient of 8 takes 108 us, one of 4 takes 104 us",
         "one process with a batch of 8 would already be about 1.93x as fast", "are not due to the ranks alone"),
    ),
    "slower computing": (
        both(("sync", 16), given={"slower": 2.0, "each": 20 * US}, **LOOPBACK),
        both(("sync", 16), given={"slower": 1.0, "each": 20 * US}, **LOOPBACK),
        ("at 16 ranks a gradient of 4 samples takes 19",
         "instead of 98.1 us in a serial run (1.99x as long) although there are 32 cores"),
    ),
    "serial part": (
        both((RING, 4), network="infiniband", given={"update": 0.2 * US}),
        both((RING, 4), network="infiniband", given={"update": 0.002 * US}),
        ("the update takes 452 us (serial: 452 us)", "467 us of a step (72 %)",
         "no number of ranks is more than 2.35x as fast as serial (Amdahl)"),
    ),
    "baseline with many threads": (
        both(("serial", 1, {"threads": 2}), ("sync", 4), **LOOPBACK),
        both(("serial", 1, {"threads": 1}), ("sync", 4), **LOOPBACK),
        ("the serial baseline uses 2 threads, each of the 4 ranks uses 1",),
    ),
    "threads are faster": (
        both(SERIAL, ("serial", 1, {"threads": 8}), (RING, 4), batch=32),
        both(SERIAL, ("serial", 1, {"threads": 8}), (RING, 4), batch=1024),
        ("one process with 8 threads is 1.", "x as fast as 4 ranks of 1 thread"),
    ),
    "scales well": (
        both(("sync", 4), ("sync", 8), network="infiniband", given={"each": 100 * US}),
        both(("sync", 4), ("sync", 8), network="1gbe", given={"each": 10 * US}),
        ("8 ranks are 7.49x as fast as serial: 94 % efficiency",),
    ),
    "too few runs": (
        both((RING, 4)),
        both((RING, 2), (RING, 4)),
        ("only one rank count was tried (4), so the scaling limit is unknown",),
    ),
    "evaluation": (
        both(("sync", 4), epochs=2, given={"evaluate": 100 * US}, **LOOPBACK),
        both(("sync", 4), epochs=2, given={"evaluate": 1 * US}, **LOOPBACK),
        ("evaluating after each of 2 epochs takes 13.5 ms in all, 156 % of the 8.69 ms of training; times and speedups "
         "leave it out",),
    ),
}  # fmt: skip


def test_every_rule_is_provoked() -> None:
    # Those two below: simulated links are all equal, and simulated ranks are never faster than ranks can be.
    assert {*CASES, "slow link", "implausible speedup"} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("links", "slow"),
    [
        (
            [1e8, 1.1e8, 1e7, 0.9e8],
            "at 8 ranks the link of host h2 carries 10 MB per second, those of the others 100 MB",
        ),
        ([1e8, 1e7, 1e7, 1e8, 1e8], "the links of hosts h1 and h2 carry 10 MB and 10 MB per second"),
        ([1e8, 1.1e8, 0.5e8, 0.9e8], None),
        ([1e8, 1e7], None),  # whose is it?
    ],
)
def test_slow_link(tmp_path: Path, links: list[float], slow: str | None) -> None:
    """The rule on runs that differ in their links alone; real hosts are in tests/launch/test_hosts.py."""
    runs = as_real(simulate_runs(tmp_path, SERIAL, (RING, 8)))
    for run in runs:
        nodes = range(len(links)) if run.config["ranks"] > 1 else range(1)
        run.environment["nodes"] = {
            "ranks": [rank * len(nodes) // run.config["ranks"] for rank in range(run.config["ranks"])],
            "cores": [8 for _ in nodes],
            "hosts": [f"h{node}" for node in nodes],
            "links": [links[node] for node in nodes],
        }
    case, found = case_of(runs), cause(only(runs), "slow link")
    if slow is None:
        assert found is None
        return
    assert found is not None
    assert slow in found.words
    assert found.share is not None
    assert 0.5 < found.share < case.at.timing.share("exchange", "wait")
    assert "h2" not in found.advice
    assert found.advice.startswith("-n ")
    check_advice(case.at.runs[0], found.advice)


def test_a_slow_link_that_costs_nothing_is_not_named(tmp_path: Path) -> None:
    """A step that computes long enough hides it."""
    runs = as_real(simulate_runs(tmp_path, SERIAL, (RING, 8), given={"each": 0.1}), cores=8)
    for run in runs:
        ranks = run.config["ranks"]
        run.environment["nodes"] = {
            "ranks": [min(rank, 2) for rank in range(ranks)], "cores": [8] * min(3, ranks),
            "hosts": ["h0", "h1", "h2"][:ranks], "links": [1e8, 1e8, 1e6][:ranks],
        }  # fmt: skip
    assert cause(only(runs), "slow link") is None


@pytest.mark.parametrize("rule", list(CASES))
def test_provoked_and_silent(rule: str, tmp_path: Path) -> None:
    (runs, settings), (other, silently), said = CASES[rule]
    runs_made = simulate_runs(tmp_path / "provoked", *runs, **settings)
    found = only(runs_made)
    named = cause(found, rule)
    assert named is not None, found
    for words in said:
        assert words in named.words
    assert named.share is None or 0 < named.share <= 1
    for altered in (None, less_learned, gone_astray):  # what fires together then
        if altered is not None:
            altered(runs_made)
        case, found = case_of(runs_made), only(runs_made)
        assert not contradictions(case, found)
        for each in found.causes:
            check_advice(case.at.runs[0], each.advice)
    silent = only(simulate_runs(tmp_path / "silent", *other, **silently))
    assert cause(silent, rule) is None, silent


def test_the_main_of_main_worker_is_a_queue(tmp_path: Path) -> None:
    found = only(simulate_runs(tmp_path, SERIAL, ("main-worker", 3), ("main-worker", 9)))
    named = cause(found, "master queue")
    assert named is not None
    assert "4 messages with all parameters pass through one rank" in named.words
    assert named.advice.startswith("--strategy sync ")
    near = only(simulate_runs(tmp_path / "near", SERIAL, ("main-worker", 3), **LOOPBACK))
    assert cause(near, "master queue") is None


def test_unevenness_by_chance_names_no_rank_as_slow(tmp_path: Path) -> None:
    found = cause(
        only(simulate_runs(tmp_path, SERIAL, ("sync", 4), jitter=0.3, epochs=20, **TIME_ALONE)), "stragglers"
    )
    assert found is not None
    assert "varies from step to step: the slowest rank of a step takes 2" in found.words
    assert "local-sgd:every=10" in found.advice
    assert (
        cause(
            only(simulate_runs(tmp_path / "even", SERIAL, ("sync", 4), jitter=0.02, **LOOPBACK)), "stragglers"
        )
        is None
    )


def test_computing_that_does_not_shrink_is_a_serial_part(tmp_path: Path) -> None:
    fixed = {"fixed": 500 * US, "each": 5 * US}
    found = cause(
        only(simulate_runs(tmp_path, SERIAL, ("sync", 8), network="infiniband", given=fixed)), "serial part"
    )
    assert found is not None
    assert (
        "a piece of 8 samples computes for 539 us (1/8 of the serial batch's 812 us would be 102 us)"
        in found.words
    )
    assert found.share is not None
    assert found.share == pytest.approx((539 - 102) / 587, abs=0.01)


def test_hogwild_is_stale_too(tmp_path: Path) -> None:
    found = cause(
        only(simulate_runs(tmp_path, SERIAL, ("hogwild", 8), epochs=4, lr=1.0, **LOOPBACK)), "staleness"
    )
    assert found is not None
    assert found.of_accuracy
    assert "--lr 0.5" in found.advice
