"""`paceline tune`: what it refuses, and one search with real runs that is interrupted and goes on."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.commands import tune
from paceline.compare.answer import Target, first_time
from paceline.compare.metric import ACCURACY, Goal
from paceline.config import Config, Program
from paceline.data import load
from paceline.errors import UsageError
from paceline.record import Run, find_runs
from paceline.record.environment import describe_other_programs
from paceline.study.cells import Cell
from paceline.study.folder import Folder, ends_with_checkpoint
from paceline.study.run import Trains
from paceline.training.job import Job
from paceline.tune import running
from paceline.tune.forecast import Forecast
from paceline.tune.running import RunProgress, Runs
from paceline.tune.search import Observed, Point
from paceline.tune.space import Candidate, Choices, make_space

TINY = [
    "--data",
    "digits",
    "--model",
    "mlp:16",
    "--batch",
    "64",
    "--lr",
    "2",
    "--strategy",
    "serial",
    "--threads",
    "1",
]
PROGRAM = """
import paceline
raise SystemExit(7)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "98%", "--budget", "soon"], "budget must be a time of at least 1 s"),
        (["--target", "98%", "--budget", "0s"], "budget must be a time of at least 1 s"),
        (["--target", "98"], "a target accuracy must be above 0 and at most 1; got 98"),
        (["--target", "nonsense"], "a target must be a metric and a value"),
        (["--target", "f1>=0.5"], "a target must be an accuracy or a loss"),
        (["--target", "98%", "--data", "nothing"], "nothing"),
        (["--target", "98%", "--strategy", "nothing"], "unknown strategy 'nothing'"),
        (["--target", "98%", "--network", "10gbe"], "give --for P with it"),
        (["--target", "98%", "--for", "0"], "for must be a number of cores"),
        (["--target", "98%", "--for", "4", "--network", "nothing"], "nothing"),
        (["--target", "98%", "--for", "4", "-n", "8"], "ranks must be from 1 to 4"),
        (["--target", "98%", "-n", "0"], "ranks must be from 1 to "),
        (
            ["--target", "98%", "-n", "1,9999"],
            "the cores of this machine (--for P simulates another one); got 9999",
        ),
        (
            ["--target", "98%", "--threads", "1,4000"],
            "the cores of this machine (--for P simulates another one); got 4000",
        ),
        (["--target", "98%", "--runs", ""], "argument --runs: must be a name; got an empty one"),
        (["--target", "98%", "-n", "1,two"], "must be whole numbers such as 1,2,4; got '1,two'"),
        (
            ["--target", "98%", "--strategy", "serial,,sync"],
            "must be strategies such as serial,sync; got 'serial,,sync'",
        ),
        (["--target", "98%", "--batch", "64,0"], "batch must be"),
        (["--target", "98%", "--lr", "0.1,-1"], "lr must be"),
        (["--target", "98%", "--strategy", "serial,nothing"], "unknown strategy 'nothing'"),
        (["--target", "loss<=-1"], "a target loss must be above 0"),
        (["--target", "98%", "--batch", "8,16", "own.py"], "write {batch} in the program's arguments"),
        (["--target", "98%", "own.py", "--batch", "{batch}"], "{batch} needs the values to choose from"),
        (["--target", "98%", "own.py", "--seed", "{sed}"], "unknown placeholder {sed}"),
        (["--target", "98%", "plain.py"], "plain.py does not use paceline.session"),
        (["--target", "98%", "--epochs", "0"], "epochs must be at least 1 for a search; got 0"),
        (["--target", "98%", "--batch-per-rank", "4"], "unrecognized arguments"),
        (["--target", "98%", "--strategy", "psgd", "-n", "1", "--batch", "100000"], "100000"),
        (["--target", "98%", "absent.py"], "absent.py"),
        (["--target", "98%", "--data", "mnist", "own.py"], "a program has its own data"),
        ([], "give a target: --target 98%"),
        (["own.py", "--target", "98%"], "give a target before the program: paceline tune --target … own.py"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_is_started(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(PROGRAM)
    (tmp_path / "plain.py").write_text("import json\nprint(json.dumps([]))\n")
    data = [] if "--data" in words or ".py" in "".join(words) else ["--data", "digits"]
    try:
        status = main(["tune", *data, *words])
    except SystemExit as ended:  # of argparse
        status = int(str(ended.code))
    told = capsys.readouterr()
    assert status == 2
    assert said in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.py", "plain.py"]


def test_searches_for_other_machines_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for where in ([], ["--for", "4"], ["--for", "4", "--network", "10gbe:ranks-per-node=2"]):
        words = ["tune", "--data", "iris", "--model", "mlp:8", "--target", "90%", *where]
        parsed = argparse.ArgumentParser()
        tune.add_arguments(parsed)
        folders.append(tune.prepare(parsed.parse_args(words[1:]))[0].path.name)
    assert folders == [
        "tune-iris-mlp-8", "tune-iris-mlp-8-for-4", "tune-iris-mlp-8-for-4-10gbe-ranks-per-node-2",
    ]  # fmt: skip


def test_the_space_has_one_process_with_all_threads_and_ranks_with_threads() -> None:
    space = make_space(Config(data="digits"), cores=16, samples=1437, rate=0.1)
    layouts = {candidate.layout for candidate in space.candidates}
    assert [candidate.layout for candidate in space.candidates[:2]] == [("serial", 1, 1), ("serial", 1, 16)]
    assert ("sync", 4, 4) in layouts
    assert ("sync", 16, 1) in layouts
    assert max(ranks * threads for _, ranks, threads in layouts) == 16
    assert "local-sgd:every=40" in {strategy for strategy, _, _ in layouts}
    assert "parameter-server:bound=4" in {strategy for strategy, _, _ in layouts}
    rates = {one.lr for one in space.candidates if one.layout == ("sync", 16, 1) and one.batch == 256}
    assert rates == {0.4, 0.2}


def test_one_core_leaves_batches_and_learning_rates() -> None:
    space = make_space(Config(data="digits"), cores=1, samples=1437, rate=0.1)
    assert {candidate.layout for candidate in space.candidates} == {("serial", 1, 1)}
    assert {candidate.batch for candidate in space.candidates} == {16, 64, 256}


def test_what_is_given_is_not_searched() -> None:
    choices = Choices(strategies=("sync",), ranks=(2,), threads=(1,), batches=(32,), rates=(0.5,))
    space = make_space(Config(data="digits"), cores=4, samples=1437, rate=0.5, choices=choices)
    assert space.candidates == (Candidate(strategy="sync", ranks=2, threads=1, batch=32, lr=0.5),)


def test_lists_restrict_the_search_and_ranks_never_share_cores() -> None:
    choices = Choices(strategies=("serial", "sync"), ranks=(1, 2, 4), threads=(1, 2), batches=(32, 64))
    space = make_space(Config(data="digits"), cores=4, samples=1437, rate=0.1, choices=choices)
    assert {one.layout for one in space.candidates} == {
        ("serial", 1, 1), ("serial", 1, 2), ("sync", 2, 1), ("sync", 2, 2), ("sync", 4, 1),
    }  # fmt: skip
    assert {one.batch for one in space.candidates} == {32, 64}


def test_a_programs_batch_is_searched_where_its_arguments_have_a_placeholder(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PROGRAM)
    program = Program(file=str(tmp_path / "own.py"), arguments=("--batch={batch}", "--seed", "{seed}"))
    choices = Choices(strategies=("serial",), threads=(1,), batches=(8, 16))
    space = make_space(Config(), cores=2, samples=0, rate=0.1, choices=choices, program=program)
    assert [one.batch for one in space.candidates] == [8, 16]
    cell = space.cell(space.candidates[1], epochs=1, seed=3)
    assert cell.program is not None
    assert cell.program.words(3)[1:] == ["--batch=16", "--seed", "3"]


def test_a_longer_run_that_goes_on_from_a_shorter_one_equals_one_from_the_start(tmp_path: Path) -> None:
    settings = [
        "--data=digits",
        "--model=mlp:16",
        "--strategy=serial",
        "--threads=1",
        "--quiet",
        "--update=momentum",
    ]
    train = ["train", *settings, f"--runs={tmp_path}"]
    assert main([*train, "--epochs=2", "--name=short", "--checkpoint-every=3m"]) == 0
    short = Run(tmp_path / "short")
    assert ends_with_checkpoint(short)
    config = Config(data="digits", model="mlp:16", strategy="serial", threads=1, update="momentum", epochs=3)
    cell, folder = Cell(config=config, ranks=1), Folder(tmp_path)
    folder.extend(short, cell)
    name = folder.begin(cell)
    assert main(["resume", str(tmp_path / name), "--quiet"]) == 0
    assert main([*train, "--epochs=3", "--name=whole"]) == 0
    longer, whole = folder.find_run(cell, name), Run(tmp_path / "whole")
    assert longer is not None
    assert not ends_with_checkpoint(whole)
    assert longer.model["x"].tobytes() == whole.model["x"].tobytes()
    assert len(longer.steps["step"]) == len(whole.steps["step"])
    kept = "validation_accuracy", "validation_loss", "loss"
    assert [[epoch[name] for name in kept] for epoch in longer.epochs] == [
        [epoch[name] for name in kept] for epoch in whole.epochs
    ]


@pytest.mark.mpi
def test_measuring_the_work_ends_after_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    base = Config(data="digits", model="mlp:16")
    data = load(base.data)
    model = Job(config=base, data=data, runs=None).build(data)
    forecast = Forecast(base=base, data=data, model=model, batch=64)
    with pytest.raises(UsageError, match="the work costs could not be measured: it took more than 0 s"):
        forecast.prepare(limit=0.01)


@pytest.mark.mpi
def test_a_value_belongs_to_the_epoch_of_the_record_that_has_it(tmp_path: Path) -> None:
    """Of psgd, only the average at the end is evaluated."""
    settings = ["--data=digits", "--model=mlp:16", "--strategy=psgd", "--lr=0.1", "--threads=1", "-n", "2"]
    assert main(["train", *settings, "--epochs=4", f"--runs={tmp_path}", "--quiet"]) == 0
    [run] = find_runs([tmp_path])
    choices = Choices(strategies=("psgd",), ranks=(2,), threads=(1,), batches=(64,), rates=(0.1,))
    space = make_space(
        Config(data="digits", model="mlp:16"), cores=2, samples=1437, rate=0.1, choices=choices
    )
    start = Trains(runs=tmp_path, lock=-1, modules=tmp_path)
    runs = Runs(folder=Folder(tmp_path), space=space, metric=ACCURACY, samples=1437, start=start)
    assert runs.open({}) == 1
    found = runs.find(space.candidates[0], epochs=1, seed=0)
    assert isinstance(found, Observed)
    last = run.epochs[-1]
    assert found.points == (Point(4, last["train_seconds"], last["validation_accuracy"]),)


def test_a_run_is_disturbed_if_its_record_says_so(tmp_path: Path) -> None:
    settings = ["--data=iris", "--model=mlp:8", "--strategy=serial", "--lr=0.1", "--batch=16", "--threads=1"]
    assert main(["train", *settings, "--epochs=1", f"--runs={tmp_path}", "--name=one", "--quiet"]) == 0
    choices = Choices(strategies=("serial",), threads=(1,), batches=(16,), rates=(0.1,))
    space = make_space(Config(data="iris", model="mlp:8"), cores=1, samples=120, rate=0.1, choices=choices)
    start = Trains(runs=tmp_path, lock=-1, modules=tmp_path)
    for remarks in ([], describe_other_programs(3.0, 10.0)):
        file = tmp_path / "one" / "summary.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "remarks": remarks}))
        runs = Runs(folder=Folder(tmp_path), space=space, metric=ACCURACY, samples=120, start=start)
        assert runs.open({}) == 1
        found = runs.find(space.candidates[0], epochs=1, seed=0)
        assert isinstance(found, Observed)
        assert found.disturbed == bool(remarks)


def test_a_target_that_a_program_does_not_record_is_refused_with_those_that_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(HANGING)  # on two ranks
    words = ["--target", "perplexity<=3", "--budget", "60s", "--strategy", "serial", "--threads", "1"]
    assert main(["tune", *words, "--quiet", "own.py"]) == 2
    assert "own.py records accuracy, but not perplexity: choose another target" in capsys.readouterr().err


def test_compression_is_tried_between_nodes_only() -> None:
    one, many = (
        make_space(Config(data="digits"), cores=4, samples=1437, rate=0.1, nodes=nodes) for nodes in (1, 4)
    )
    assert not any("compress" in candidate.strategy for candidate in one.candidates)
    assert any("compress" in candidate.strategy for candidate in many.candidates)


def test_a_search_counts_the_records_of_all_candidates_that_it_continues_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of other learning rates than it begins with, and of repetitions."""
    monkeypatch.chdir(tmp_path)
    problem = ["--data=digits", "--model=mlp:16", "--batch=64", "--threads=1", "--strategy=serial"]
    for rate, seed in ((2, 0), (4, 0), (4, 1), (3, 0)):  # 3 is none that a search tries
        settings = [f"--lr={rate}", f"--seed={seed}", "--epochs=2", "--runs=runs/tune-digits-mlp-16"]
        assert main(["train", *problem, *settings]) == 0
    assert main(["tune", *problem, "--target=10%", "--budget=1s"]) == 0
    assert "continuing from 3 runs in " in capsys.readouterr().err


def test_an_interrupted_search_answers_and_goes_on_and_its_command_reproduces_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["tune", *TINY, "--target"]
    search = subprocess.Popen(
        [sys.executable, "-m", "paceline", *words, "100%", "--budget", "20m"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert search.stderr is not None
    next(line for line in search.stderr if "seed 0: " in line)
    search.send_signal(signal.SIGINT)
    out, _ = search.communicate(timeout=300)
    assert search.returncode == 130
    *_, found, _, _, command = out.splitlines()
    assert found.startswith(
        "nothing reached accuracy >= 100.00 % (interrupted); the nearest was serial with 1 thread"
    )
    assert command.startswith("paceline train --data=digits --model=mlp:16 ")
    before = len(find_runs([tmp_path / "runs/tune-digits-mlp-16"]))
    assert before >= 1

    assert main([*words, "60%", "--budget", "1s"]) == 0  # enough for what is recorded
    told = capsys.readouterr()
    assert f"continuing from {before} run" in told.err
    *_, found, sure, second, command = told.out.splitlines()
    assert found.startswith("fastest to accuracy >= 60.00 %: serial with 1 thread, batch 64, lr 2, after ")
    assert sure.startswith("how sure: ")
    assert second.startswith("second best: ")

    def interrupt(runs: Runs) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runs, "drop_checkpoints", interrupt)
    assert (
        main([*words, "60%", "--budget", "1s", "--quiet"]) == 130
    )  # at its very end: the answer comes all the same
    assert capsys.readouterr().out.splitlines()[-1] == command

    assert main([*shlex.split(command)[1:], "--runs", "again", "--quiet"]) == 0
    [run] = find_runs([tmp_path / "again"])
    goal = Goal.parse("60%")
    reached = first_time(run, Target(metric=goal.metric, value=goal.value, words=""))
    assert reached == run.epochs[-1]["train_seconds"]  # at the end of its last epoch, not before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_interrupted_before_its_first_run_answers_from_the_records(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sent: signal.Signals,
) -> None:
    """As long as it prepares, nothing is raised: an import may swallow an exception."""
    monkeypatch.chdir(tmp_path)
    prepare = tune.prepare

    def prepare_for_long(*given: Any) -> Any:
        os.kill(os.getpid(), sent)
        return prepare(*given)

    monkeypatch.setattr(tune, "prepare", prepare_for_long)
    words = ["tune", *TINY, "--target", "10%", "--budget", "20m"]
    assert main(words) == 128 + sent
    *_, found, sure, _, command = capsys.readouterr().out.splitlines()
    assert found == "no run got to the end of an epoch (interrupted)"
    assert sure.endswith("the search was interrupted, and the same command continues it")
    assert command.startswith("paceline train --data=digits --model=mlp:16 ")

    assert main([*shlex.split(command)[1:], "--runs=runs/tune-digits-mlp-16", "--quiet"]) == 0
    assert main(words) == 128 + sent
    *_, found, _, _, command = capsys.readouterr().out.splitlines()
    assert found.startswith("fastest to accuracy >= 10.00 %: serial with 1 thread, batch 64, lr 2, after ")
    assert command.startswith("paceline train --data=digits --model=mlp:16 ")


def test_a_second_interrupt_ends_the_preparations_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def prepare(*given: Any) -> Any:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(tune, "prepare", prepare)
    assert main(["tune", *TINY, "--target", "10%"]) == 130
    assert capsys.readouterr() == ("", "paceline tune: interrupted before the first run\n")


HANGING = """
import time
import numpy as np
import torch
import paceline

x = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 4)).astype("f"))
y = (x[:, 0] > 0).long()
model = torch.nn.Linear(4, 2)
with paceline.session() as ranks:
    model, optimizer = ranks.attach(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for epoch in ranks.epochs(3):
        if ranks.size == 2 and epoch == 1:
            time.sleep(1000)
        for inputs, labels in ranks.share((x, y), batch=16):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        ranks.validate(accuracy=0.3 * (epoch + 1))
"""


@pytest.mark.mpi
def test_a_program_that_hangs_does_not_use_up_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first run, on two ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "LEAST", 20.0)
    monkeypatch.setattr(running, "SHARE", 0.0)
    (tmp_path / "own.py").write_text(HANGING)
    words = ["tune", "--target", "90%", "--budget", "70s", "--strategy", "serial,sync", "--threads", "1"]
    assert main([*words, "own.py"]) == 0
    told = capsys.readouterr()
    assert re.search(r"sync .*: stopped after \d+ s: no progress for \d+ s, it seems to hang\n", told.err), (
        told.err
    )
    assert "left out: 1 candidate stopped for lack of progress: sync on 2 ranks" in told.out
    assert "fastest to accuracy >= 90.00 %: serial" in told.out
    assert not list((tmp_path / "runs").glob("*/failed/*"))  # another time it may not hang


def test_a_run_that_hangs_until_the_budget_is_spent_shows_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(HANGING.replace("ranks.size == 2 and epoch == 1", "True"))
    words = ["--target", "90%", "--budget", "5s", "--strategy", "serial", "--threads", "1", "own.py"]
    assert main(["tune", *words]) == 0
    told = capsys.readouterr()
    stopped = r"stopped after \d+ s: out of time, with no sign of progress\n"
    assert re.search(f"serial with 1 thread, seed 0: {stopped}", told.err), told.err
    assert re.search(
        rf"no run got to the end of an epoch \(the budget is spent\); serial with 1 thread was {stopped}",
        told.out,
    )
    assert (
        "left out: 1 candidate stopped with no sign of progress, for lack of time: serial with 1 thread\n"
        in told.out
    )
    assert "not tried" not in told.out


def test_a_run_that_runs_out_of_time_is_idle_if_it_has_made_no_step_for_a_while(tmp_path: Path) -> None:
    now = 0.0
    progress = RunProgress(budget=600.0, clock=lambda: now)
    progress.begin(tmp_path)
    now = 7.0
    assert progress.describe_idle() == ", with no sign of progress"
    (tmp_path / "epochs.jsonl").write_text("x")
    assert not progress.stuck()
    now = 15.0
    assert progress.describe_idle() == ""
    now = 27.0
    assert progress.describe_idle() == ", with no sign of progress in the last 20 s"


def test_a_schedule_that_depends_on_the_length_fixes_the_epochs_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["tune", *TINY, "--schedule", "cosine", "--epochs", "2", "--target", "100%", "--budget", "39s"]
    assert main(words) == 0
    told = capsys.readouterr()
    first = told.err.splitlines()[0]
    assert first.endswith(
        "all runs have 2 epochs (--epochs), because the schedule cosine depends on the length of a run"
    )
    assert "try more epochs (--epochs; these runs had 2) or an easier target" in told.out


def test_a_run_hangs_if_it_takes_far_longer_than_others(tmp_path: Path) -> None:
    """The start of a program takes longer than an epoch."""
    now = 0.0
    progress = RunProgress(budget=600.0, clock=lambda: now)
    progress.begin(tmp_path)
    for moment in (30.0, 32.0, 34.0):
        now = moment
        assert not progress.stuck()
        (tmp_path / "epochs.jsonl").write_text("x" * int(now))
        assert not progress.stuck()
    progress.end()
    progress.begin(tmp_path / "other")
    now += 99.0
    assert not progress.stuck()
    now += 2.0
    assert progress.stuck()
    assert progress.why == "no progress for 101 s (at most 30 s in other runs), it seems to hang"
    progress.begin(tmp_path / "next")
    now += 30.0
    steps = tmp_path / "next" / "steps"
    steps.mkdir(parents=True)
    (steps / "rank-0.rows").write_text("steps count as well")
    assert not progress.stuck()
    now += 15.0
    assert not progress.stuck()
    now += 2.0
    assert progress.stuck()
    assert progress.why == "no progress for 17 s (at most 2 s in other runs), it seems to hang"
