"""The command line, as a user types it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from paceline import names as registry
from paceline.cli import COMMANDS, Parser, main
from paceline.commands.list import GIVEN, KINDS, _option_docs, entries
from paceline.launch import machine_cores, mpiexec
from paceline.record import Run

ROOT = Path(__file__).parent.parent
SMALL = ("--data", "iris", "--model", "mlp:8", "--epochs", "2", "--batch", "10")
KEYS = {
    "run", "strategy", "ranks", "seed", "epochs", "steps", "test_accuracy", "validation_accuracy", "loss",
    "train_seconds", "samples_per_second", "seconds", "bytes_sent",
}  # fmt: skip


def paceline(*words: str, cwd: Path, time_limit: float = 280) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "paceline", *words], cwd=cwd, env=environment, timeout=time_limit,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_train_predict_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    strategies = []
    for how in ("--strategy serial", "--strategy sync", "-n 3 --strategy sync:allreduce=ring"):
        trained = paceline("train", *SMALL, *how.split(), "--json", cwd=tmp_path)
        assert trained.returncode == 0, trained.stderr
        result = json.loads(trained.stdout)
        assert result.keys() >= KEYS
        assert (result["ranks"], result["epochs"], result["steps"]) == (3 if "-n" in how else 1, 2, 24)
        assert set(result["seconds"]) == {"compute", "exchange", "wait", "update", "evaluation"}
        assert "epoch 2/2" in trained.stderr
        strategies.append(result["strategy"])

        run = Run(tmp_path / result["run"])
        assert run.summary["test_accuracy"] == result["test_accuracy"]
        assert [epoch["epoch"] for epoch in run.epochs] == [0, 1]
        assert len(run.steps["step"]) == 24 * result["ranks"]
        assert run.steps["count"].sum() == 240
        assert run.environment["threads_per_rank"] >= 1

        assert main(["predict", result["run"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(result["test_accuracy"])

    lines = paceline("predict", result["run"], cwd=tmp_path).stdout.split()
    assert len(lines) == 15
    assert set(lines) <= {"setosa", "versicolor", "virginica"}
    assert main(["predict", result["run"], "--out", "p.npz"]) == 0
    assert np.load(tmp_path / "p.npz")["scores"].shape == (15, 3)

    capsys.readouterr()
    assert main(["report", "runs", "-o", "page.html"]) == 0
    said = capsys.readouterr().out
    assert len(set(strategies)) == 3
    assert all(strategy in said for strategy in strategies)
    page = (tmp_path / "page.html").read_text()
    assert "Where the time went" in page
    assert "http" not in page  # one file, that needs no other


@pytest.mark.mpi
def test_quiet_says_nothing_but_the_result(tmp_path: Path) -> None:
    done = paceline("train", *SMALL, "-n", "2", "--quiet", cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith("sync on 2 ranks")


@pytest.mark.mpi
def test_under_mpiexec_its_ranks_are_used(tmp_path: Path) -> None:
    command, environment = mpiexec(
        2, [sys.executable, "-m", "paceline", "train", *SMALL, "--json", "--quiet"]
    )
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1


BAD = [
    (("train", "--data", "mnits"), "mnits"),
    (("train", "--data", "no/such/file.npz"), "no/such/file.npz"),
    (("train", "--data", "~nobody-of-that-name/x.npz"), "~nobody-of-that-name/x.npz"),
    (("train", "--model", "mpl:3"), "unknown model"),
    (("train", "--model", "mlp:x"), "must be a whole number; got 'x'"),
    (("train", "--strategy", "snyc"), "unknown strategy 'snyc'; choose one of"),
    (("train", "--strategy", "sync:allreduce=rng", "-n", "2"), "unknown collective 'rng'; choose one of"),
    (("train", "--strategy", "tests.failing:not_a_function"), "is not a class or a function"),
    (("train", "--strategy", "serial", "-n", "2"), "serial is one process; the job has 2 ranks"),
    (("train", "--update", "sdg"), "unknown update 'sdg'"),
    (("train", "--hosts", "a;b"), "hosts must look like a:8,b:8"),
    (("train", "--data", "iris", "--hosts", "a:2", "-n", "3"), "3 ranks do not fit on the hosts, which take 2"),
    (("train", "--hosts", "a:2", "--on", "sim"), "simulated ranks are all in this process; leave out --hosts"),
    (("train", "--schedule", "cosin"), "unknown schedule 'cosin'"),
    (("train", "--epochs", "-1"), "epochs must be"),
    (("train", "--epochs", "one"), "invalid int value: 'one'"),
    (("train", "-n", "0"), "ranks must be at least 1; got 0"),
    (("train", "--data", "iris", "--batch", "1000", "-n", "2"), "120"),
    (("train", "--epocs", "3"), "unrecognized arguments: --epocs 3; did you mean --epochs?"),
    (("train", "--target", "90%"), "--target 90%; `paceline train --help` lists what it takes"),
    (("train", "--threads", "4000", "--data", "mnits"), "unknown data set 'mnits'"),
    (("train", "--threads", "4000", "--strategy", "serial", "-n", "2"), "serial is one process; the job has 2 ranks"),
    (("predict", "runs/mine", "--out", "p.csv"), "--out takes the name of an .npz file; got p.csv"),
    (("train", "--data", "iris", "--runs", "/proc/nowhere", "-n", "2"), "cannot write runs to /proc/nowhere"),
    (("train", "--data", "iris", "--runs", "/proc/nowhere", "--strategy", "serial"), "cannot write runs to /proc/nowhere"),
    (("predict", "nothing"), "no such run: nothing"),
    (("predict", "."), "is not a run"),
    (("report", "nothing"), "no such run or folder of runs: nothing"),
    (("report", "."), "no complete runs"),
    (("bench", "allreduce", "-n", "0"), "0"),
    (("bench", "allreduce", "-n", ""), "-n takes rank counts such as 2,4,8; got ''"),
    (("resume", "/etc/passwd"), "no such run: /etc/passwd"),
    *((words, "must be a name; got an empty one") for words in (
        ("watch", ""), ("resume", ""), ("predict", ""), ("trace", ""), ("study", ""), ("export", "", "--to", "mlflow"),
    )),
    (("tune", "--data", "iris", "--target", "190%"), "must be above 0% and at most 100%; got 190%"),
    (("bench", "allreduce", "--algorithms", "rng"), "rng"),
    (("train", "--on-div", "halve"), "unrecognized arguments: --on-div halve; did you mean --on-divergence?"),
    (("tune", "--target", "90%", "--on", "sim"), "paceline tune: unrecognized arguments: --on"),
    (("bench", "allreduce", "--bytes", "4"), "arguments: --bytes 4; `paceline bench allreduce --help` lists"),
    (("--verbose", "train"), "paceline: unrecognized arguments: --verbose"),
    (("tune", "--data", "iris", "--target", "-5%"), "paceline tune: a target accuracy must be"),
    (("tune", "--data", "iris", "--target", "90%", "--budget", "-3s"), "paceline tune: budget must be a time"),
    (("train", "--lr", "-.5"), "paceline train: lr must be a number above 0; got -0.5"),
    (("train", "--checkpoint-every", "-3s"), "paceline train: checkpoint-every must be a time"),
    (("tarin",), "invalid choice: 'tarin'"),
    ((), "required"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), BAD, ids=[" ".join(words) or "nothing" for words, _ in BAD])
def test_bad_input_gets_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status: object = main(list(words))
    except SystemExit as leaving:
        status = leaving.code
    out, err = capfd.readouterr()
    assert status == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_bad_input_of_a_process(tmp_path: Path) -> None:
    """What `main` returns is the status, and one line is all that is said, in a process of its own."""
    for words, said in (BAD[0], BAD[-1]):
        done = paceline(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert said in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
def test_ranks_that_refuse_say_so_once(tmp_path: Path) -> None:
    words = ("train", "--data", "iris", "--model", "tests.failing:no_model", "-n", "3", "--quiet")
    done = paceline(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("paceline train: a model must be")


@pytest.mark.mpi
def test_a_failing_rank_ends_all_and_is_named(tmp_path: Path) -> None:
    done = paceline("train", *SMALL, "--strategy", "tests.failing:raises", "-n", "3", "--quiet", cwd=tmp_path)
    assert done.returncode not in (0, 2)
    assert "rank 1" in done.stderr
    assert "RuntimeError: this rank has had enough" in done.stderr


@pytest.mark.mpi
def test_rank_0_is_not_confused_by_n_inside_a_job(tmp_path: Path) -> None:
    command, environment = mpiexec(2, [sys.executable, "-m", "paceline", "train", *SMALL, "-n", "3"])
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    assert "-n 3 is not allowed inside a job of 2 ranks: leave it out" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_is_documented(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "usage: paceline" in said
    assert f"examples:\n  paceline {command}" in said
    assert f"paceline {command}" in (ROOT / "README.md").read_text()


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    outer = Parser(prog=f"paceline {command}")
    importlib.import_module(COMMANDS[command][0]).add_arguments(outer)
    for parser in parsers(outer):
        assert "examples:" in (parser.epilog or ""), parser.prog
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, f"{parser.prog}: {action.dest}"


def test_more_threads_than_cores_get_a_warning(tmp_path: Path) -> None:
    cores = machine_cores()
    for threads, ranks in ((cores + 1, "1"), (max(cores, 2), "2")):
        said = f"paceline: {'2 ranks of ' if ranks == '2' else ''}{threads} threads on {cores} core"
        for given in ("--threads", str(threads)), ():
            done = paceline("train", *SMALL, "-n", ranks, "--quiet", *given, cwd=tmp_path)
            assert done.returncode == 0
            assert done.stderr.startswith(said) == bool(given), done.stderr


def test_a_warning_is_not_repeated(tmp_path: Path) -> None:
    program = (
        "import logging, sys\nfrom paceline import cli\nfrom paceline.commands import list as command\n"
        "def main(parsed):\n    for words in 'aab': logging.getLogger('paceline').warning(words)\n    return 0\n"
        "command.main = main\nsys.exit(cli.main(['list']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "paceline: a\npaceline: b\n")


def test_list_names_everything(tmp_path: Path) -> None:
    done = paceline("list", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found.keys() == registry.OFFERS.keys() == GIVEN.keys()
    assert {thing["name"] for thing in found["collectives"]} >= {"naive", "ring", "shared-memory", "auto"}
    assert {thing["name"] for thing in found["rules"]} >= {"plain", "adaptive", "gap-aware"}
    assert all(thing["about"] for kind in found.values() for thing in kind), found
    [hogwild] = (thing for thing in found["strategies"] if thing["name"] == "hogwild")
    every, backend = hogwild["options"]
    assert (every["name"], every["type"], every["default"]) == ("every", "whole number", "16")
    assert every["about"] == "Steps of a rank between averages of the nodes"
    assert (backend["type"], backend["default"]) == ("mpi | torch", "mpi")

    listed = paceline("list", "rules", cwd=tmp_path).stdout
    assert listed.startswith("rules (parameter-server:rule=)\n")
    assert re.search(
        r"^  clip +Limit the norm of the mean gradient to .*\n +norm: number = 0.125 +\S", listed, re.M
    )


def test_list_reads_what_is_said_of_a_field_of_yours() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine:
        """One."""

        quiet: bool = False
        loud: bool = True
        """How it
        sounds."""

    class Louder(Mine):
        """Two."""

    assert _option_docs(Mine) == _option_docs(Louder) == {"loud": "How it sounds"}
    assert _option_docs(type("Made", (), {})) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_list_says_what_every_option_is(kind: str) -> None:
    for entry in entries(kind):
        for option in entry["options"]:
            assert option["about"], f"{entry['name']}: {option['name']}"


INTERRUPTED = """
import runpy, signal, sys
count = 0
def interrupt(event, arguments):
    global count
    if event == "import" and "paceline" in sys.modules:
        count += 1
        if count == {at}:
            signal.raise_signal(signal.SIGINT)
sys.addaudithook(interrupt)
sys.argv = ["paceline", *{words}]
try:
    runpy.run_module("paceline", run_name="__main__")
finally:
    if count < {at}:
        print("ended at import", count, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (2, ["list"]),
        (20, ["list"]),
        (60, ["train", "--epochs=0"]),
        (150, ["report", "none"]),
        (250, ["study", "s"]),
        (300, ["tune", "--target=90%"]),
    ],
)
def test_ctrl_c_during_the_start_ends_without_a_word(tmp_path: Path, at: int, words: list[str]) -> None:
    """At the first import of paceline's own and at later ones, before and after the command begins to work."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(at=at, words=words)], cwd=tmp_path, capture_output=True,
        text=True, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    assert done.returncode == 130, done.stderr


INTERRUPTED_TEXT = """
import sys
from paceline import __main__, cli

def command(on_start):
    on_start()
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 143

cli.main = command
sys.exit(__main__.main())
"""


def test_an_interrupt_that_was_handled_does_not_change_the_exit_status(tmp_path: Path) -> None:
    """Even one inside exec of a text, after which `python -m` would end itself with SIGINT."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_TEXT)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, timeout=280,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (143, "")
