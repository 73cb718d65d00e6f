"""What a diagnosis says hangs together: each sentence is of what was found, and its halves are of one matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.record import Run
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

RING = "sync:allreduce=ring"
PER_RANK = {"batch": None, "batch_per_rank": 4}


# ---- averaging: what is lost to the parts, and what to their average


def make_average_case(folder: Path, average: float, parts: list[float], serial: float) -> list[Run]:
    runs = simulate_runs(folder, SERIAL, ("psgd", 4), epochs=4, batch=16, **LOOPBACK)
    for run in runs:
        run.summary["test_accuracy"] = average if run.config["ranks"] == 4 else serial
        for part, reached in zip((run.summary.get("findings") or {}).get("parts") or (), parts, strict=False):
            part["test_accuracy"] = reached
    return runs


def test_an_average_that_is_worse_than_each_of_its_parts(tmp_path: Path) -> None:
    """As measured: 20 passes over pictures of digits."""
    found = only(make_average_case(tmp_path, 0.9759, [0.9843, 0.9859, 0.9879, 0.985], 0.991))
    named = cause(found, "averaging")
    assert named is not None
    assert (
        "on their own the ranks reach 98.4 % to 98.8 %, all better than their average: averaging costs 1.0 points, the "
        "smaller parts of the data cost 0.5; test accuracy is 97.6 %, serial's 99.1 % (one seed)"
    ) in named.words
    assert (
        "the average of the ranks' models is worse than each of them (1.5 points of accuracy" in found.summary
    )
    assert "too little data" not in found.summary
    assert named.advice.startswith("--strategy local-sgd:every=")
    assert "--epochs" not in named.advice  # parts that train longer are no nearer to each other


@pytest.mark.parametrize(
    ("average", "parts"),
    [
        (0.95, [0.94, 0.95, 0.96, 0.96]),  # worse than some alone
        (0.92, [0.93, 0.94, 0.94, 0.95]),  # than all; but that they are parts costs more
    ],
)
def test_parts_that_are_too_small(tmp_path: Path, average: float, parts: list[float]) -> None:
    found = only(make_average_case(tmp_path, average, parts, 0.991))
    named = cause(found, "averaging")
    assert named is not None
    assert "ranks train on too little data each" in found.summary
    assert ("averaging costs 2.0 points, the smaller parts of the data cost 5.1" in named.words) == (
        average < 0.93
    )
    assert "--epochs 16" in named.advice


# ---- stragglers: who it is


@pytest.mark.parametrize(("ranks", "part", "mostly"), [(4, 0.5, True), (4, 0.7, True), (4, 0.35, False), (6, 0.45, True),
                                                       (2, 0.6, False)])  # fmt: skip
def test_a_rank_that_is_the_slowest_in_most_steps_is_named_first(
    tmp_path: Path, ranks: int, part: float, mostly: bool
) -> None:
    runs = simulate_runs(tmp_path, SERIAL, ("sync", ranks), epochs=10, **TIME_ALONE)
    for run in runs:
        if run.config["ranks"] == 1:
            continue
        rank, compute, exchange = (run.steps[name].copy() for name in ("rank", "compute", "exchange"))
        steps = int((rank == 0).sum())
        slow = np.where(np.arange(steps) < round(part * steps), 1, np.arange(steps) * 7 % ranks)
        slow[round(part * steps) :][slow[round(part * steps) :] == 1] = 0
        for one in range(ranks):
            mine = rank == one
            compute[mine] = np.where(slow == one, 150 * US, 100 * US)
            exchange[mine] = np.where(slow == one, 10 * US, 60 * US)
        run.steps.update(compute=compute, exchange=exchange)
    timing = case_of(runs).at.timing
    assert timing.often == (1, pytest.approx(part, abs=0.01))
    found = cause(only(runs), "stragglers")
    assert found is not None
    first = f"at {ranks} ranks rank 1 is the slowest in {100 * part:.0f} % of the steps, and computing"
    assert found.words.startswith(first) == mostly
    assert ("the slowest rank changes, most often it is rank 1" in found.words) == (not mostly)


# ---- the summary: a reason is given for what it is the reason of


def timed(folder: Path, efficiency: dict[int, float]) -> list[Run]:
    runs = simulate_runs(folder, SERIAL, *((RING, ranks) for ranks in efficiency), compute=False)
    for run in runs:
        ranks = run.config["ranks"]
        run.summary["train_seconds"] = 1.0 if ranks == 1 else 1 / (ranks * efficiency[ranks])
    return runs


@pytest.mark.parametrize(
    ("efficiency", "said"),
    [
        ({2: 0.7, 4: 0.7}, "still gets faster at 4 ranks (2.80x); efficiency stays above 50 %. What it loses: a step "),
        ({2: 0.7, 4: 0.9}, "still gets faster at 4 ranks (3.60x); efficiency stays above 50 %: it scales well"),
        ({2: 0.7, 4: 0.2}, "gets no faster beyond 2 ranks (1.40x); efficiency is below 50 % from 4 ranks on: a step "),
        ({4: 0.8, 5: 0.6}, "gets no faster beyond 4 ranks (3.20x): a step computes too little for what it exchanges ("),
    ],
)  # fmt: skip
def test_what_is_above_half_is_not_explained_by_what_is_lost(
    tmp_path: Path, efficiency: dict[int, float], said: str
) -> None:
    found = only(timed(tmp_path, efficiency))
    assert said in found.summary
    if efficiency.get(5):
        assert found.summary.endswith("; efficiency stays above 50 %")


@pytest.mark.parametrize(("efficiency", "rule"), [(1.25, "implausible speedup"), (1.05, "scales well")])
def test_more_than_ranks_can_give_does_not_scale_well(tmp_path: Path, efficiency: float, rule: str) -> None:
    runs = as_real(timed(tmp_path, {2: efficiency}))
    found = only(runs)
    (first,) = (one for one in found.causes if one.rule in ("implausible speedup", "scales well"))
    assert first is found.causes[0]
    assert first.rule == rule
    if rule == "implausible speedup":
        assert first.words.startswith(
            "2 ranks are 2.50x as fast as serial on one run each: more than 2 ranks can give"
        )
        assert first.advice == "-n 1 --strategy serial --seed 1 (run it with nothing else running)"


# ---- a batch that grows with the ranks


def test_speed_of_a_larger_batch_is_not_that_of_the_ranks(tmp_path: Path) -> None:
    """One worker that computes all of a batch of 8 is faster than serial with 4: its samples take no longer."""
    given = {"fixed": 100 * US, "each": US}
    found = only(simulate_runs(tmp_path, SERIAL, ("main-worker", 2), given=given, **PER_RANK, **LOOPBACK))
    assert "1.71x" in found.summary
    assert "part of the speedup comes from the larger batch, not from the ranks" in found.summary
    assert cause(found, "scales well") is None
    named = cause(found, "grown batch")
    assert named is not None
    assert named.advice == "-n 1 --strategy serial --batch 8 (one process with the same batch)"
    same = only(
        simulate_runs(
            tmp_path / "same",
            SERIAL,
            ("main-worker", 2),
            ("main-worker", 4),
            given=given,
            batch=8,
            **LOOPBACK,
        )
    )
    assert cause(same, "grown batch") is None  # the same batch


def test_what_no_gradient_tells_of_a_larger_batch_is_not_said(tmp_path: Path) -> None:
    """Ranks whose pieces are as large as the serial batch do not tell what a larger one takes."""
    given = {"fixed": 100 * US, "each": US}
    found = only(
        simulate_runs(tmp_path, SERIAL, ("sync", 2), ("sync", 4), given=given, **PER_RANK, **LOOPBACK)
    )
    assert cause(found, "grown batch") is None
