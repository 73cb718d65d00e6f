"""Diagnoses of records as they come: old ones, diverged ones, of several seeds, of somebody's own strategy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.compare.metric import ACCURACY
from paceline.compare.theory import theory_of
from paceline.diagnosis import Cause, diagnose
from paceline.diagnosis.case import cases_of
from paceline.diagnosis.timing import PARTS
from paceline.record import Run, find_runs
from paceline.training.job import find_built_in
from tests.diagnosis.runs import LOOPBACK, SERIAL, case_of, cause, only, parse_advice, simulate_runs

RING = "sync:allreduce=ring"


def test_parts_are_the_log_of_every_step(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, (RING, 4), jitter=0.3)
    run = next(run for run in runs if run.config["strategy"] == RING)
    timing = case_of(runs).at.timing
    of_rank = {
        name: run.steps[name].astype(float).reshape(4, -1) for name in ("compute", "exchange", "update")
    }
    assert timing.compute == pytest.approx(of_rank["compute"].mean())
    assert timing.exchange == pytest.approx(of_rank["exchange"].min(axis=0).mean())
    assert timing.exchange + timing.wait == pytest.approx(of_rank["exchange"].mean())
    assert timing.total == pytest.approx(sum(of_rank[name].mean() for name in of_rank))
    assert sum(timing.share(part) for part in PARTS) == pytest.approx(1)


def test_speedups_are_those_of_the_report(tmp_path: Path) -> None:
    from paceline.compare.rows import rows_of

    runs = simulate_runs(tmp_path, SERIAL, (RING, 2), (RING, 4), ("psgd", 4), seed=3)
    told = {(row.strategy, row.ranks): row.speedup for row in rows_of(runs)}
    for case in cases_of(runs):
        for scale in case.scales:
            assert case.speedup(scale) == pytest.approx(told[case.way, scale.ranks])
    best = max(
        (case.speedup(scale) or 0, scale.ranks) for case in cases_of(runs)[1:] for scale in case.scales
    )
    assert f"{best[1]} ranks ({best[0]:.2f}x)" in diagnose(runs)[1].summary


def make_old(run: Run) -> None:
    """Remove from a record what those of earlier versions do not have."""
    summary = json.loads((run.folder / "summary.json").read_text())
    for name in ("seconds_by_rank", "findings", "remarks", "diverged", "steps"):
        summary.pop(name)
    (run.folder / "summary.json").write_text(json.dumps(summary))
    with np.load(run.folder / "steps.npz") as arrays:
        kept = {name: arrays[name] for name in arrays if name not in ("wait", "start")}
    np.savez(run.folder / "steps.npz", **kept)
    config = json.loads((run.folder / "config.json").read_text())
    config.pop("samples")
    (run.folder / "config.json").write_text(json.dumps(config))


def test_old_records(tmp_path: Path) -> None:
    for strategy in (RING, "parameter-server", "main-worker", "psgd", "hogwild"):
        folder = tmp_path / strategy.partition(":")[0]
        runs = simulate_runs(folder, SERIAL, (strategy, 4), **LOOPBACK)
        for run in runs:
            make_old(run)
        before = diagnose(find_runs([folder / "runs"]))
        for run in runs:  # no rank could write its steps
            with np.load(run.folder / "steps.npz") as arrays:
                np.savez(run.folder / "empty.npz", **{name: arrays[name][:0] for name in arrays})
            (run.folder / "empty.npz").replace(run.folder / "steps.npz")
        after = diagnose(find_runs([folder / "runs"]))
        assert len(before) == len(after) == 1
        for found in (*before, *after):
            assert found.causes
            assert found.summary


def test_all_diverged_some_diverged_and_no_serial(tmp_path: Path) -> None:
    plain = "parameter-server:rule=plain"
    wild = simulate_runs(tmp_path / "wild", SERIAL, (plain, 9), epochs=4, lr=20.0, batch=16, **LOOPBACK)
    found = only(wild)
    assert found.summary == (
        f"simulated on loopback: {plain} diverged at the only rank count tried (9 ranks)"
    )
    assert found.causes[0].rule == "divergence"
    both = simulate_runs(tmp_path / "wild", (plain, 2), epochs=4, lr=20.0, batch=16, **LOOPBACK)
    assert [scale.ranks for scale in case_of(both).scales] == [2, 9]
    assert cause(only(both), "divergence") is not None
    alone = only(simulate_runs(tmp_path / "alone", (RING, 2), (RING, 4)))
    assert "is never faster than on 2 ranks" in alone.summary
    few = cause(alone, "too few runs")
    assert few is not None
    assert few.advice == "-n 1 --strategy serial"
    assert diagnose(simulate_runs(tmp_path / "serial", SERIAL)) == []
    assert diagnose([]) == []


def test_real_and_simulated_runs_are_diagnosed_apart(tmp_path: Path) -> None:
    runs = simulate_runs(
        tmp_path, SERIAL, (RING, 4), (RING, 4, {"network": "infiniband"}), (RING, 4, {"compute": False})
    )
    found = diagnose(runs)
    assert [each.simulated for each in found] == ["1gbe", "1gbe, time only", "infiniband"]
    for each in found:
        assert each.summary.startswith(f"simulated on {each.simulated}: {RING} ")
    assert cause(found[1], "small computing") is not None  # time only: but nothing is known of accuracy
    assert not any(each.of_accuracy for each in found[1].causes)


def test_what_matters_most_comes_first() -> None:
    less = Cause(rule="a", share=0.2, words="", advice="")
    point = Cause(rule="b", share=0.05, words="", advice="", of_accuracy=True)
    assert sorted([less, point], key=lambda each: -each.lost) == [point, less]
    assert Cause(rule="c", share=None, words="", advice="").lost == 0


def test_seeds_must_agree_that_less_was_learned(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 4, "lr": 1.0, "batch": 16, **LOOPBACK}
    seeds = [("psgd", 8, {"seed": seed}) for seed in (0, 1)]
    runs = simulate_runs(tmp_path, SERIAL, *seeds, **settings)
    case = case_of(runs)
    assert case.worse is not None
    assert "(mean of 2 seeds)" in case.worse.words
    accuracies = [run.summary["test_accuracy"] for run in case.at.runs]
    assert case.at.means(ACCURACY, "test") == (
        pytest.approx(np.mean(accuracies)),
        pytest.approx(np.std(accuracies, ddof=1) / 2**0.5),
    )
    for run, accuracy in zip(case.at.runs, (0.2, 1.0), strict=True):  # a mean that says nothing
        run.summary["test_accuracy"] = accuracy
    assert case_of(runs).worse is None


def test_somebodys_own_strategy_is_not_imported(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, ("sync", 4))
    for run in runs:
        if run.config["ranks"] == 4:
            run.config["strategy"] = "nowhere_to_be_found:Mine"
    found = only(runs)
    assert found.strategy == "nowhere_to_be_found:Mine"
    assert cause(found, "small computing") is not None


@pytest.mark.parametrize(
    ("strategy", "own"),
    [
        ("elastic:every=4", "tests.diagnosis.own_strategies:Springs:every=4"),
        ("weight-average", "tests.diagnosis.own_strategies:Means"),
        ("psgd", "tests.diagnosis.own_strategies:Once"),
        ("parameter-server:rule=plain", "tests.diagnosis.own_strategies:Server:rule=plain"),
        ("main-worker", "tests.diagnosis.own_strategies:Middle"),
    ],
)
def test_a_users_own_strategy_is_diagnosed_as_its_built_in_twin(
    strategy: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it declares is in the record; its module is not imported again to read it."""
    settings: dict[str, Any] = {"epochs": 4, "lr": 1.0, "batch": 16, **LOOPBACK}
    twin = only(simulate_runs(tmp_path / "built-in", SERIAL, (strategy, 4), (strategy, 8), **settings))
    runs = simulate_runs(tmp_path / "own", SERIAL, (own, 4), (own, 8), **settings)
    monkeypatch.setitem(sys.modules, "tests.diagnosis.own_strategies", None)  # importing it fails
    mine = only(runs)
    assert [(each.rule, each.ranks, each.words) for each in mine.causes] == [
        (each.rule, each.ranks, each.words) for each in twin.causes
    ]
    assert "unexplained" not in [each.rule for each in mine.causes]
    base, own_base = strategy.partition(":")[0], ":".join(own.split(":")[:2])

    def meant(advice: str) -> list[dict[str, Any]]:
        """The settings of an advice, with the strategy and all its options instead of its spelling."""
        given: list[dict[str, Any]] = [*parse_advice(advice.replace(own_base, base))]
        known = [one | {"strategy": find_built_in(one.get("strategy", strategy))} for one in given]
        return [one for place, one in enumerate(known) if one not in known[:place]]

    assert [meant(each.advice) for each in mine.causes] == [meant(each.advice) for each in twin.causes]


def test_what_a_users_own_strategy_should_send_is_recorded(tmp_path: Path) -> None:
    own = "tests.diagnosis.own_strategies:Means:allreduce=ring"
    for name in ("weight-average:allreduce=ring", own):
        simulate_runs(tmp_path, (name, 4), **LOOPBACK)
    theirs, mine = (
        theory_of(run)
        for run in sorted(find_runs([tmp_path / "runs"]), key=lambda run: run.config["strategy"] == own)
    )
    assert mine == theirs
    assert mine.bytes == next(iter(find_runs([tmp_path / "runs"]))).summary["bytes_sent"]
