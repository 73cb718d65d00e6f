"""What a diagnosis does not say: what noise looks like, what nobody can type here, what was tried and is no better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.diagnosis import diagnose
from paceline.diagnosis.case import cases_of
from paceline.diagnosis.rules.small_computing import batch_without
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

RING = "sync:allreduce=ring"
SERVER = "parameter-server"


def test_a_last_batch_that_is_small_and_slow_flattens_no_line(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch": 24, "epochs": 3, "compute": False}
    runs = simulate_runs(tmp_path, SERIAL, (RING, 2), **settings)
    true = batch_without(case_of(runs))
    assert true is not None
    real = case_of(as_real(runs))
    assert real.at.timing.by_count.keys() == {12}
    assert batch_without(real) == pytest.approx(true, rel=0.1)
    found = cause(only(runs), "small computing")
    assert found is not None
    assert (
        "; a batch of about 132 would bring this below 20 % (by gradients of 12 and 24 samples);"
        in found.words
    )
    # As much as leaves 8 steps of an epoch of 1437.
    assert found.advice.startswith(
        "--batch 179 (more computing per exchange; fewer updates: check --lr, or --epochs 23 for as many)"
    )


def test_one_size_that_was_timed_is_a_bound_and_equal_times_are_none(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch": 32, "epochs": 3, "compute": False}
    runs = simulate_runs(tmp_path / "one", ("weight-average", 2), **settings)
    true = batch_without(case_of(runs))
    assert true is not None
    case = case_of(as_real(runs))
    least = batch_without(case)
    assert case.computing.basis == "proportion"
    assert least is not None
    assert least < true
    found = cause(only(runs), "small computing")
    assert found is not None
    assert (
        f"; a batch of about {least:,} would bring this below 20 % at best (only one size was timed"
        in found.words
    )
    alike = as_real(
        simulate_runs(tmp_path / "alike", SERIAL, (RING, 2), **settings), seconds={16: 70 * US, 32: 80 * US}
    )
    found = cause(only(alike), "small computing")
    assert found is not None
    equal = "of 16 and 32 samples took about equally long, so the batch that would bring this below 20 % is unknown"
    assert equal in found.words
    assert "--batch 128 (" in found.advice


def test_small_pieces_that_hardly_differ_are_on_the_line_of_large_ones_that_do(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, (RING, 16), batch=64, epochs=3, compute=False)
    found = cause(only(as_real(runs, cores=16, seconds={4: 116 * US, 64: 236 * US})), "small computing")
    assert found is not None
    assert "about equally long" not in found.words  # a sample is 2 us of either
    assert "(by gradients of 4 and 64 samples)" in found.words


def test_costs_of_simulated_runs_tell_what_real_ones_do_not(tmp_path: Path) -> None:
    runs = simulate_runs(
        tmp_path, SERIAL, (RING, 2), (RING, 2, {"network": "10gbe"}), batch=32, compute=False
    )
    for run in runs:
        run.config["simulated"]["costs"]["processor"] = run.environment["processor"]
    true = {case.simulated: batch_without(case) for case in cases_of(runs)}["1gbe, time only"]
    as_real([run for run in runs if run.simulated["network"] == "1gbe"], seconds={16: 180 * US, 32: 180 * US})
    real = cases_of(runs)[0]
    assert not real.simulated
    assert real.computing.basis == "given"
    assert batch_without(real) == pytest.approx(true, rel=0.1)
    found = cause(diagnose(runs)[0], "small computing")
    assert found is not None
    assert "(by the costs given to the simulated runs)" in found.words


def test_nobody_who_lost_accuracy_by_averaging_averages_more_rarely(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 4, "lr": 1.0, "batch": 16}
    runs = simulate_runs(
        tmp_path, SERIAL, ("local-sgd:every=4", 4), ("weight-average", 4), (RING, 4), **settings
    )
    found = diagnose(runs)
    assert any(cause(each, "averaging") for each in found)
    assert any(cause(each, "small computing") for each in found)
    advice = [each.advice for one in found for each in one.causes]
    assert not any(f"every={number}" in each for each in advice for number in (2, 5, 10, 20, 50)), advice


def test_a_run_keeps_ten_averages(tmp_path: Path) -> None:
    short = cause(
        only(simulate_runs(tmp_path / "short", SERIAL, (RING, 4), compute=False)), "small computing"
    )
    assert short is not None
    assert "local-sgd" not in short.advice  # 23 batches for 4 ranks
    longer = cause(
        only(simulate_runs(tmp_path / "long", SERIAL, (RING, 4), compute=False, epochs=10)), "small computing"
    )
    assert longer is not None
    assert "local-sgd:every=5 (" in longer.advice  # 57 steps of each


def test_ranks_that_are_advised_have_cores_and_were_not_slower(tmp_path: Path) -> None:
    runs = as_real(simulate_runs(tmp_path, SERIAL, (SERVER, 2), (SERVER, 3), **TIME_ALONE))
    for run in runs:
        run.summary["train_seconds"] = {1: 1.0, 2: 3.0, 3: 0.9}[run.config["ranks"]]
    found = only(runs)
    assert found.summary.startswith(
        "parameter-server is never faster than serial with a core for each rank; efficiency is below 50 % from 2 ranks on"
    )
    for each in found.causes:
        assert not each.advice.startswith("-n "), each
        assert "or -n " not in each.advice
    alone = only([run for run in runs if run.config["ranks"] != 3])
    idle, few = cause(alone, "ranks without work"), cause(alone, "too few runs")
    assert idle is not None
    assert few is not None
    assert idle.words.endswith("1 worker is at best as fast as serial")
    assert idle.advice == "--strategy sync (every rank computes)"
    assert few.advice == "--on sim -n 4 --network 10gbe (to see what more nodes would do)"
    assert "is never faster than serial" in alone.summary


def test_rows_with_enough_cores_decide_where_scaling_stops(tmp_path: Path) -> None:
    runs = as_real(simulate_runs(tmp_path, SERIAL, (RING, 2), (RING, 4), **TIME_ALONE))
    for run in runs:
        run.summary["train_seconds"] = {1: 1.0, 2: 0.7, 4: 1.5}[run.config["ranks"]]
    found = only(runs)
    assert found.ranks == 2
    assert "still gets faster at 2 ranks (1.43x); efficiency stays above 50 %" in found.summary
    assert "4 ranks" not in found.summary
    few = cause(found, "too few runs")
    assert few is not None
    assert few.words == "only one rank count tried has enough cores (2), so the scaling limit is unknown"
    # If every row has more ranks than cores, they are all there is.
    crowded = only([run for run in runs if run.config["ranks"] != 2])
    assert crowded.ranks == 4
    assert cause(crowded, "oversubscribed cores") is not None
    # The same without a serial run.
    assert only([run for run in runs if run.config["ranks"] > 1]).ranks == 2


def test_more_ranks_with_as_many_masters_are_typed_and_not_advised_where_they_are_slower(
    tmp_path: Path,
) -> None:
    two = f"{SERVER}:masters=2"
    runs = simulate_runs(tmp_path / "few", SERIAL, (two, 4), network="10gbe", compute=False)
    few = cause(only(runs), "ranks without work")
    assert few is not None
    assert f"-n 6 --strategy {two} (more workers for the same masters)" in few.advice
    check_advice(case_of(runs).at.runs[0], few.advice)
    runs = simulate_runs(tmp_path / "few", (two, 6), network="10gbe", compute=False)
    for run in runs:
        run.summary["train_seconds"] = {1: 1.0, 4: 0.4, 6: 2.0}[run.config["ranks"]]
    more = cause(only(runs), "ranks without work")
    assert more is not None
    assert "-n 6" not in more.advice


def test_shared_memory_is_not_advised_across_nodes(tmp_path: Path) -> None:
    runs = simulate_runs(
        tmp_path, SERIAL, ("sync:allreduce=shared-memory", 8), given={"cores": 2}, **LOOPBACK
    )
    found = cause(only(runs), "oversubscribed cores")
    assert found is not None
    assert "--network 10gbe --strategy sync:allreduce=hierarchical" in found.advice
    check_advice(case_of(runs).at.runs[0], found.advice)


def test_real_ranks_on_several_nodes(tmp_path: Path) -> None:
    """The cores of each node count, and theory says nothing about an unknown network."""
    runs = as_real(simulate_runs(tmp_path, SERIAL, ("sync:allreduce=ring", 8), **LOOPBACK), cores=2)
    assert cause(only(runs), "oversubscribed cores") is not None
    for run in runs:
        ranks = run.config["ranks"]
        run.environment["nodes"] = {
            "ranks": [rank // 2 for rank in range(ranks)],
            "cores": [2] * -(-ranks // 2),
        }
    found = only(runs)
    assert cause(found, "oversubscribed cores") is None
    assert case_of(runs).at.place.cheapest("ring", 10_000, "float32") is None
    assert all("in theory" not in each.words and "shared-memory" not in each.advice for each in found.causes)


def test_parts_of_all_seeds(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, *[("psgd", 4, {"seed": seed}) for seed in (0, 1)],
                epochs=4, lr=1.0, batch=16, **LOOPBACK)  # fmt: skip
    for run in runs:
        if run.config["ranks"] == 4:
            seed = run.config["seed"]
            run.summary["test_accuracy"] = 0.2 + 0.1 * seed
            for part in run.summary["findings"]["parts"]:
                part["test_accuracy"] = 0.2 + 0.1 * seed
    found = cause(only(runs), "averaging")
    assert found is not None
    assert "on their own the ranks reach 20.0 % to 30.0 %; test accuracy is 25.0 %" in found.words
