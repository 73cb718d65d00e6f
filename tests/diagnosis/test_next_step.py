"""What `paceline train` says in its last line: the command to try next, and why."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import fit
from paceline.cli import main
from paceline.diagnosis import Cause, diagnose, next_step
from paceline.diagnosis.advice import settings_in
from paceline.record import Run, find_runs
from paceline.record.environment import describe_other_programs
from tests.diagnosis.runs import LOOPBACK, SERIAL, TIME_ALONE, US, as_real, simulate_runs

IRIS: dict[str, Any] = {
    "data": "iris",
    "model": "mlp:8",
    "epochs": 1,
    "batch": 30,
    "quiet": True,
    "threads": 1,
}


def run_of(runs: list[Run], strategy: str) -> Run:
    return next(run for run in runs if run.config["strategy"] == strategy)


def serial(folder: Path, *, cores: int, **given: float) -> Run:
    """A serial run as if it had been real, on this many cores."""
    [run] = as_real(simulate_runs(folder, SERIAL, given=given, **TIME_ALONE), cores=cores)
    run.config["asked"] = {"on": "mpi", "lr": run.config["lr"]}
    return run


def test_ranks_that_would_help_are_predicted(tmp_path: Path) -> None:
    said = next_step(serial(tmp_path, cores=4, each=100 * US))
    found = re.fullmatch(r"(paceline train .*)  # (about|at most) (\S+) times as fast, predicted", said)
    assert found is not None, said
    assert "-n 4" in found[1]
    assert "--strategy=sync" in found[1]
    assert 1.5 < float(found[3]) <= 4


def test_steps_that_are_too_short_for_ranks(tmp_path: Path) -> None:
    said = next_step(serial(tmp_path, cores=4, each=0.1 * US))
    assert re.fullmatch(
        r"stay with one process: sync on \d ranks is predicted to run at 0\.\d+ times its speed", said
    ), said


@pytest.mark.parametrize("settings", [{"on_divergence": "halve"}, {"reproducible": 2}])
def test_one_process_with_a_way_of_its_own(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = serial(tmp_path, cores=4, each=100 * US)
    run.config |= settings
    words = shlex.split(next_step(run), comments=True)
    assert "--strategy=sync" in words
    assert words[words.index("-n") + 1] == ("2" if "reproducible" in settings else "4")  # which divides it
    run.config["reproducible"] = 1
    assert next_step(run).startswith("stay with one process")


def test_reproducible_ranks_are_not_advised_what_train_refuses(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, ("sync", 4), given={"each": 0.1 * US}, network="1gbe", reproducible=4)
    [found] = diagnose(runs)
    plain = [re.sub(r" \([^()]*\)", "", cause.advice) for cause in found.causes]  # without the reasons
    advice = [settings_in(one) for each in plain for one in re.split(r", (?:or|and) ", each)]
    assert {"batch": "128"} in advice
    assert all("n" not in one or 4 % int(one["n"]) == 0 for one in advice)
    assert all(one.get("strategy", "sync").partition(":")[0] in ("sync", "serial") for one in advice)


def test_two_runs_on_as_many_ranks_with_other_threads(tmp_path: Path) -> None:
    ways = [("sync", 4), ("sync", 4, {"threads": 2})]
    runs = as_real(
        simulate_runs(tmp_path, *ways, given={"each": 100 * US}, network="1gbe", compute=False), cores=2
    )
    for run in runs:
        (run.folder / "config.json").write_text(json.dumps(run.config))
        (run.folder / "environment.json").write_text(json.dumps(run.environment))
    assert ["more ranks than cores" in next_step(run) for run in runs] == [True, True]


def test_one_core(tmp_path: Path) -> None:
    assert next_step(serial(tmp_path, cores=1)).startswith("nothing here: ranks need more than one core")


def test_threads_that_use_all_cores(tmp_path: Path) -> None:
    run = serial(tmp_path, cores=2)
    run.summary["threads"] = 2
    said = next_step(run)
    assert "--threads=1" in said
    assert "-n 2" in said
    assert "predicted" not in said


def with_rule(folder: Path, *, cores: int, **given: float) -> Run:
    """A run of one process with the rule of a parameter server as if it had been real, on this many cores."""
    return ranks_alone(folder, "serial:rule=adaptive", 1, cores=cores, given=given, **LOOPBACK)


def test_ranks_after_one_process_with_a_rule_have_its_optimizer(tmp_path: Path) -> None:
    said = next_step(with_rule(tmp_path, cores=4, each=100 * US))
    assert "--strategy=parameter-server:rule=adaptive " in said
    assert " -n 4 " in said
    assert said.endswith("  # at most 3 times as fast: a master and 3 workers with the same rule")


def test_two_cores_are_too_few_for_ranks_with_a_rule(tmp_path: Path) -> None:
    said = next_step(with_rule(tmp_path, cores=2, each=100 * US))
    assert said.startswith(
        "nothing on 2 cores: the rule adaptive needs a master and at least 2 workers to be faster"
    )
    assert said.endswith("other strategies use another optimizer, sgd")


def test_a_master_that_would_be_busy_all_the_time_is_not_advised(tmp_path: Path) -> None:
    said = next_step(with_rule(tmp_path, cores=4, fixed=0.1 * US, each=0.1 * US, update=1e-6))
    assert re.fullmatch(
        r"stay with one process: a master would make every update, which takes \d+ % .*", said
    ), said


def test_a_faster_run_with_another_optimizer(tmp_path: Path) -> None:
    runs = simulate_runs(
        tmp_path, ("serial:rule=adaptive", 1), ("sync", 4), given={"each": 100 * US}, **LOOPBACK
    )
    for run in runs:
        run.summary["test_accuracy"] = 0.9
        (run.folder / "summary.json").write_text(json.dumps(run.summary))
    said = next_step(run_of(runs, "serial:rule=adaptive"))
    assert re.search(r"fast, simulated; the optimizer changes: sgd instead of the rule adaptive$", said), said


def test_what_was_measured_to_be_faster(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, ("sync", 4), given={"each": 100 * US}, **LOOPBACK)
    said = next_step(run_of(runs, "serial"))
    found = re.fullmatch(r"paceline train .*-n 4 .*  # (\S+) times as fast, simulated", said)
    assert found is not None, said
    times = {run.config["strategy"]: run.summary["train_seconds"] for run in runs}
    assert float(found[1]) == pytest.approx(times["serial"] / times["sync"], rel=0.1)


def test_ranks_get_what_their_diagnosis_advises(tmp_path: Path) -> None:
    runs = simulate_runs(
        tmp_path, SERIAL, ("sync", 4, {"slow": "2:4x"}), given={"each": 100 * US}, **LOOPBACK
    )
    run = run_of(runs, "sync")
    [found] = diagnose(runs)
    advised = [
        settings_in(part) for cause in found.causes for part in re.split(", (?:or|and) ", cause.advice)
    ]
    said = next_step(run)
    words = shlex.split(said, comments=True)
    assert {f"--strategy={one['strategy']}" for one in advised if "strategy" in one} & set(words), (
        said,
        advised,
    )
    assert "--slow=2:4x" in words


@pytest.mark.parametrize(
    ("advice", "word"),
    [
        ("--seed 1 (one seed proves little), or --lr 0.1", "--seed=1"),
        ("-n 1 --strategy serial --seed 2 (run it with nothing else running)", "--seed=2"),
        ("--batch 60 (more computing), or --lr 0.1", "--batch=60"),
        ("--batch-per-rank 15", "--batch-per-rank=15"),
        ("--clip 1.5", "--clip=1.5"),
        ("--draws 8", "--draws=8"),
        ("--schedule warmup", "--schedule=warmup"),
    ],
)
@pytest.mark.parametrize("per_rank", [False, True])
def test_every_kind_of_advice_becomes_a_command(
    advice: str, word: str, per_rank: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = Cause(rule="a rule", share=None, words="a reason", advice=advice)
    monkeypatch.setattr(
        sys.modules["paceline.diagnosis.next_step"], "sum_up", lambda case: SimpleNamespace(causes=[cause])
    )
    [run] = simulate_runs(tmp_path, ("sync", 2), **LOOPBACK)
    if per_rank:
        run.config.update(batch=None, batch_per_rank=10)
    words = shlex.split(next_step(run), comments=True)
    assert word in words
    assert sum(one.startswith("--batch") for one in words) == 1


def ranks_alone(folder: Path, strategy: str, ranks: int, *, cores: int, **settings: Any) -> Run:
    """A run on ranks as if it had been real, on this many cores, with no other beside it."""
    [run] = as_real(simulate_runs(folder, (strategy, ranks), **settings), cores=cores)
    run.config["asked"] = {"on": "mpi", "lr": run.config["lr"]}
    return run


def test_times_that_other_programs_spoilt_give_no_advice(tmp_path: Path) -> None:
    run = serial(tmp_path, cores=4, each=100 * US)
    run.summary["remarks"] = describe_other_programs(3.0, 10.0)
    assert next_step(run).startswith("nothing yet: other programs were running")


def test_one_process_is_advised_where_ranks_mostly_exchange(tmp_path: Path) -> None:
    slow = {"given": {"each": 1 * US}, "network": "1gbe", "compute": False}
    run = ranks_alone(tmp_path, "sync", 4, cores=4, **slow)
    said = next_step(run)
    found = re.fullmatch(
        r"(paceline train .*)  # one process would be at least (\S+) times as fast, predicted: the ranks .*",
        said,
    )
    assert found is not None, said
    assert "--strategy=serial" in found[1]
    assert "-n" not in shlex.split(found[1])
    [alone] = simulate_runs(tmp_path / "alone", SERIAL, **slow)
    assert run.summary["train_seconds"] / alone.summary["train_seconds"] >= float(found[2])


def test_a_server_with_one_worker_is_not_advised(tmp_path: Path) -> None:
    run = ranks_alone(tmp_path, "parameter-server", 3, cores=2, given={"each": 100 * US}, **LOOPBACK)
    said = next_step(run)
    assert "--strategy=serial:rule=adaptive" in said
    assert "there are more ranks than cores" in said
    run = ranks_alone(tmp_path / "two", "parameter-server", 2, cores=2, given={"each": 100 * US}, **LOOPBACK)
    said = next_step(run)
    assert "--strategy=serial:rule=adaptive" in said
    assert "of 2 ranks only one computes" in said


def test_a_batch_grows_in_steps_and_the_learning_rate_with_it(tmp_path: Path) -> None:
    run = ranks_alone(
        tmp_path, "sync", 2, cores=2, given={"each": 2 * US}, network="10gbe", compute=False, batch=16, lr=0.5
    )
    words = shlex.split(next_step(run), comments=True)
    assert {"--batch=64", "--lr=1.0"} <= set(words)  # four times the samples, twice the rate


def test_a_serial_run_that_no_ranks_have_beaten(tmp_path: Path) -> None:
    runs = simulate_runs(
        tmp_path, SERIAL, ("sync", 4), given={"each": 0.1 * US}, network="1gbe", compute=False
    )
    said = next_step(run_of(runs, "serial"))
    found = re.fullmatch(r"stay with one process: the run on 4 ranks ran at (\S+) times its speed", said)
    assert found is not None, said
    other = run_of(runs, "sync")
    other.summary["train_seconds"] = 0.2 * run_of(runs, "serial").summary["train_seconds"]
    other.summary["diverged"] = "the loss became NaN at step 3"
    (other.folder / "summary.json").write_text(json.dumps(other.summary))
    assert next_step(run_of(runs, "serial")) == "stay with one process: the run on 4 ranks diverged"


def test_a_faster_run_that_may_be_chance_is_called_so(tmp_path: Path) -> None:
    ways = [SERIAL, ("sync", 2), ("serial", 1, {"seed": 1}), ("sync", 2, {"seed": 1})]
    runs = as_real(simulate_runs(tmp_path, *ways, **TIME_ALONE))

    def after(*seconds: float) -> str:
        for run, took in zip(runs, seconds, strict=True):
            run.summary["train_seconds"] = took
            (run.folder / "summary.json").write_text(json.dumps(run.summary))
            (run.folder / "config.json").write_text(json.dumps(run.config))
            (run.folder / "environment.json").write_text(json.dumps(run.environment))
        return next_step(runs[0])

    assert after(1.5, 1.0, 1.6, 1.1).endswith(" times as fast, measured")
    assert after(1.1, 1.0, 1.9, 1.6).endswith(
        " times as fast, measured, but within the noise: more seeds could tell"
    )
    for run in runs[2:]:
        (run.folder / "summary.json").unlink()
    del runs[2:]
    assert after(1.2, 1.0).endswith("  # 1.2 times as fast, measured with one run each: it may be chance")


def test_a_serial_run_that_diverged(tmp_path: Path) -> None:
    fit(strategy="serial", lr=2.0, runs=tmp_path, **IRIS)
    [run] = find_runs([tmp_path])
    run.summary["diverged"] = "the loss became NaN at step 3"
    assert "--lr=1.0" in next_step(run)


def test_a_run_that_learned_nothing(tmp_path: Path) -> None:
    fit(strategy="serial", lr=1e-6, runs=tmp_path, **IRIS)
    [run] = find_runs([tmp_path])
    run.summary["test_accuracy"] = 1 / 3
    said = next_step(run)
    assert said.endswith("  # it learned nothing with a learning rate of 1e-06: the usual one")
    assert "--lr" not in said
    run.config["asked"]["lr"] = 2.0  # the usual one of this network
    assert "--epochs=4" in next_step(run)
    run.config["asked"]["lr"] = None
    assert "--epochs=4" in next_step(run)
    run.config["epochs"] = 0
    assert next_step(run) == "nothing yet: it was not trained"


def test_sync_on_one_rank_is_one_process(tmp_path: Path) -> None:
    [run] = as_real(simulate_runs(tmp_path, ("sync", 1), given={"each": 100 * US}, **TIME_ALONE), cores=4)
    run.config["asked"] = {"on": "mpi", "lr": run.config["lr"]}
    said = next_step(run)
    assert "--strategy=sync -n 4" in said
    assert said.endswith("times as fast, predicted")


def test_the_last_line_of_train(
    tmp_path: Path, machine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/broken").mkdir(parents=True)
    (tmp_path / "runs/broken/summary.json").write_text("{")
    words = ["train", "--data", "iris", "--model", "mlp:8", "--epochs", "30", "--on", "sim", "-n", "1"]
    words += ["--machine", machine]
    assert main([*words, "--strategy", "serial"]) == 0
    *_, run, last = capsys.readouterr().out.splitlines()
    assert run.startswith("run: ")
    command = last.removeprefix("next: ")
    assert command.endswith("  # to see what ranks gain on this network")
    assert main([*shlex.split(command, comments=True)[1:], "--quiet"]) == 0  # it can be typed
    assert "next: " not in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert "next: " not in capsys.readouterr().out
