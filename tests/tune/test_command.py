"""`paceline tune`: what it refuses, and one search with real runs that is interrupted and goes on."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.commands import tune
from paceline.compare.answer import Target, first_time
from paceline.compare.metric import Goal
from paceline.config import Config, Program
from paceline.record import Run, find_runs
from paceline.study.cells import Cell
from paceline.study.folder import Folder, ends_with_checkpoint
from paceline.tune.running import Runs
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
        (["--target", "98%", "-n", "1,two"], "must be whole numbers such as 1,2,4; got '1,two'"),
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
    assert not (tmp_path / "runs").exists()


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
    longer, whole = folder.ended(cell, name), Run(tmp_path / "whole")
    assert longer is not None
    assert not ends_with_checkpoint(whole)
    assert longer.model["x"].tobytes() == whole.model["x"].tobytes()
    assert len(longer.steps["step"]) == len(whole.steps["step"])
    kept = "validation_accuracy", "validation_loss", "loss"
    assert [[epoch[name] for name in kept] for epoch in longer.epochs] == [
        [epoch[name] for name in kept] for epoch in whole.epochs
    ]


def test_compression_is_tried_between_nodes_only() -> None:
    one, many = (
        make_space(Config(data="digits"), cores=4, samples=1437, rate=0.1, nodes=nodes) for nodes in (1, 4)
    )
    assert not any("compress" in candidate.strategy for candidate in one.candidates)
    assert any("compress" in candidate.strategy for candidate in many.candidates)


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
    assert f"going on from {before} run" in told.err
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
