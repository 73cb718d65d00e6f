"""`paceline tune`: what it refuses, and one search with real runs that is interrupted and goes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.compare.metric import Goal
from paceline.compare.target import Target, first_time
from paceline.config import Config
from paceline.record import find_runs
from paceline.tune.space import Candidate, make_space

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
        (["--target", "98%", "-n", "0"], "ranks must be at least 1"),
        (
            ["--target", "98%", "-n", "9999"],
            "the cores of this machine, unless one is simulated with --for P; got 9999",
        ),
        (["--target", "98%", "--epochs", "0"], "epochs must be at least 1 for a search; got 0"),
        (["--target", "98%", "--batch-per-rank", "4"], "unrecognized arguments"),
        (["--target", "98%", "--strategy", "psgd", "-n", "1", "--batch", "100000"], "100000"),
        (["--target", "98%", "absent.py"], "absent.py"),
        (["--target", "98%", "--data", "mnist", "own.py"], "a program has its own data"),
        ([], "--target"),
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
    config = Config(data="digits", batch=32, lr=0.5, strategy="sync", threads=1)
    given = {"batch", "lr", "strategy", "threads"}
    space = make_space(config, cores=4, samples=1437, rate=0.5, given=given, ranks=2)
    assert space.candidates == (Candidate(strategy="sync", ranks=2, threads=1, batch=32, lr=0.5),)


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
        "nothing reached accuracy >= 100.00 % (interrupted); nearest came serial with 1 thread"
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

    assert main([*shlex.split(command)[1:], "--runs", "again", "--quiet"]) == 0
    [run] = find_runs([tmp_path / "again"])
    goal = Goal.parse("60%")
    reached = first_time(run, Target(metric=goal.metric, value=goal.value, words=""))
    assert reached == run.epochs[-1]["train_seconds"]  # at the end of its last epoch, not before
