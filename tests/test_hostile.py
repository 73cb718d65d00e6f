"""Hostile values for every option of every command: one line and status 2, or a run that could start; no traceback."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import random
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.simulate.training
import paceline.training.rank
from paceline import bench, cli, launch, names
from paceline.files import replace_file
from paceline.vmpi import run

# What programs trip over: nothing, signs, separators, numbers of every size, paths of every kind, other alphabets.
VALUES = (
    *(
        "",
        "-",
        "--",
        ":",
        ":x",
        "x:",
        "::",
        ":::",
        "a:b:c",
        "=",
        "x=y",
        "=,",
        ",",
        ",,",
        "0",
        "-1",
        "1",
        "2",
        "0.5",
    ),
    *(
        "1e308",
        "1e-320",
        "nan",
        "inf",
        "-inf",
        "1_000",
        "1e5",
        "2147483648",
        "4294967296",
        "9223372036854775808",
    ),
    *(
        "99999999999999999999",
        "-99999999999999999999",
        "9" * 5000,
        "0x10",
        "٣",
        "½",
        " 1",
        "true",
        "none",
        "null",
    ),
    *(
        ".",
        "a" * 300,
        "a/" * 3000,
        "~",
        "~nobody/x",
        "*",
        "[",
        "(?",
    ),
    *("%s", "%", "{}", "{0}", "\udcff", "é", "\n", "a\nb", "\t", "\x1b[2J", "\u2028", "os:getcwd", "math:pi"),
    *("builtins:print", "builtins:dict", "builtins:object", "json:loads", "math:sqrt", "numpy:zeros", "..:x"),
    *(
        ".a:b",
        "a..b:c",
        "os:",
        "os:.",
        "os::x",
        "typing:Any",
        "abc:ABC",
        "paceline:fit",
        "paceline.strategies:Strategy",
    ),
    *(
        "1..",
        "..1",
        "1..2..3",
        "1..99999999999999999999",
        "5..1",
        "1,2,99999999999999999999",
        "1KiB..",
        "1QB",
    ),
    *(
        "1e400",
        "1x1",
        "99999x99999x99999",
        "-1x2",
        "3:4x",
        "3:x",
        "99999999999999999999:2x",
        "0:1e308x",
        "0:nanx",
    ),
    *("folder", "faults.txt", "empty.json", "study.toml", "damaged.npz"),
)
KINDS = {
    "data": "data",
    "model": "models",
    "strategy": "strategies",
    "update": "updates",
    "schedule": "schedules",
}
# Arguments with which each command has something to do.
START = {
    "train": ["--data", "iris", "--model", "mlp:4", "--quiet"],
    "simulate scaling": ["--data", "iris", "--model", "mlp:4"],
    "simulate run": ["program.py", "-n", "2"],
    "study": ["study.toml"],
    "export": ["folder", "--to", "tensorboard", "--out", "out"],
}
# Commands that measure this machine, or whose argument is nothing but a folder of records.
LEFT_OUT = ("doctor", "simulate calibrate")


class Started(BaseException):
    """Raised instead of starting ranks or computing: everything has been accepted."""


def _start(*_: object, **__: object) -> None:
    raise Started


def commands() -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Yield the words and the parser of every command, and of every command of a command."""
    for name, (module, _) in cli.COMMANDS.items():
        parser = cli.Parser(prog=name)
        importlib.import_module(module).add_arguments(parser)
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        found = (
            [([name, word], inner) for word, inner in below[0].choices.items()]
            if below
            else [([name], parser)]
        )
        yield from (pair for pair in found if " ".join(pair[0]) not in LEFT_OUT)


def spelled(kind: str, draw: random.Random) -> str:
    """Return a registered name with hostile options."""
    name = draw.choice([name for name in names.names(kind) if name != "cnn"])
    options = [*names.options_of(names.find(kind, name), kind), *draw.sample(VALUES, 1)]
    words = [
        f"{draw.choice(options).replace('_', '-')}={draw.choice(VALUES)}" for _ in range(draw.randint(0, 2))
    ]
    return f"{name}:{','.join(words + draw.sample(VALUES, draw.randint(0, 1)))}"


def command_lines(count: int, seed: int) -> Iterator[list[str]]:
    """Yield command lines with one to three hostile values each."""
    draw = random.Random(seed)
    known = list(commands())
    weights = [len(parser._actions) for _, parser in known]
    for words, parser in draw.choices(known, weights, k=count):
        line = [*words, *START.get(" ".join(words), START.get(words[0], []))]
        if words == ["train"]:
            line += draw.choice([["-n", "2"], ["--strategy", "serial"], ["--on", "sim", "-n", "2"]])
        actions = [action for action in parser._actions if action.dest != "help"]
        for action in draw.sample(actions, min(len(actions), draw.randint(1, 3))):
            kind = KINDS.get(action.dest) if draw.random() < 0.7 else None
            value = draw.choice(VALUES) if kind is None else spelled(kind, draw)
            if not action.option_strings:
                line.insert(len(words), value)
            elif action.nargs == 0:
                line.append(action.option_strings[-1])
            elif (option := action.option_strings[-1]).startswith("--"):
                line.append(f"{option}={value}")
            else:
                line += [option, value]
        yield line


def outcome(line: list[str]) -> str:
    """Run a command line; return "" if it ended as it should, or what was wrong."""
    err = io.StringIO()
    runs = set(Path("runs").glob("*"))
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", RuntimeWarning)
        try:
            status: object = cli.main(line)
        except Started:
            return ""
        except SystemExit as leaving:
            status = leaving.code
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    if status == 2 and len(err.getvalue().strip("\n").split("\n")) != 1:
        return f"not one line: {err.getvalue()!r}"
    if status == 2 and set(Path("runs").glob("*")) != runs:
        return "a refused run left a folder"
    return "" if status in (0, 1, 2) else f"status {status}"


@pytest.fixture
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "inside" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside" / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    for module, name in (
        *((launch, name) for name in ("run", "call", "communicator")),
        (paceline.training.rank, "Worker"),
        (paceline.simulate.training, "costs_of"),
    ):
        monkeypatch.setattr(module, name, _start)
    Path("folder").mkdir()
    Path("faults.txt").write_text("fail_at(rank=7, step=1)\n")
    Path("empty.json").write_text("{}")
    Path("study.toml").write_text("[settings]\ndata = 'iris'\n")
    Path("damaged.npz").write_bytes(b"PK\3\4 and no more")
    Path("program.py").write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
    path, variables = list(sys.path), dict(os.environ)
    yield
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(variables)


@pytest.mark.parametrize("seed", range(2))
def test_hostile_values_end_in_one_line(nothing_starts: None, seed: int) -> None:
    wrong = {" ".join(line): found for line in command_lines(100, seed) if (found := outcome(line))}
    assert not wrong


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train --strategy=:x -n 2", "unknown strategy ':x'"),
        ("train --threads 99999999999999999999 -n 2", "threads must be at most 4,096"),
        ("train -n 99999999999999999999", "ranks are too many for this machine"),
        ("train -n 20000", "20000 ranks need 524 GB of memory"),
        ("train --model mlp:100000,100000 -n 2 --update momentum", r"has 10,000,900,003 parameters and needs .* 2 ranks"),
        ("train --model mlp:1000000,100000 --strategy serial", "needs .* GB of memory .*; .* are available"),
        ("train --strategy serial --data synthetic:features=99999x99999x99999", "synthetic: 10000 samples .* need"),
        ("train --name " + 300 * "a", "must have at most 200 bytes; got 300"),
        ("train --on sim -n 2 --faults faults.txt", "there is no rank 7"),
        ("train --on sim -n 99999999999999999999", "at most 1,048,576 ranks can be simulated"),
        ("bench allreduce --dtype 1_000", "dtype must be a NumPy number type"),
        ("bench allreduce -n 2 --sizes 1000GB", "2 ranks need 4 TB of memory"),
        ("simulate run program.py -n 99999999999999999999", "at most 1,048,576 ranks"),
    ],
)  # fmt: skip
def test_refusals(nothing_starts: None, capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    words = line.split()
    given = [] if "--data" in words or words[0] != "train" else ["--data", "iris"]
    assert cli.main([*words, *given]) == 2
    err = capsys.readouterr().err
    assert re.search(said, err), err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_two_dashes_are_a_value_after_an_equals_sign() -> None:
    parser = cli.Parser()
    parser.add_argument("--name")
    parser.add_argument("words", nargs="*")
    assert vars(parser.parse_args(["--name=--", "--", "-x"])) == {"name": "--", "words": ["-x"]}


def test_bench_with_endless_seconds_makes_all_repeats() -> None:
    def body(comm: Any) -> int:
        (cell,) = bench._measure_size(comm, 256, ["ring"], "float32", repeats=5, seconds=1e308)
        return len(cell["seconds"])

    assert run(body, ranks=2).values == [5, 5]


def test_links_to_themselves_are_refused(
    nothing_starts: None, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("loop", "folder/loop"):
        Path(name).symlink_to("loop")
    for line, said in (
        ("report folder", "there are no complete runs to report on"),
        (
            "export folder --to mlflow --out new",
            "there is no run in folder that is complete or has a checkpoint",
        ),
        ("report loop", "no such run or folder of runs: loop"),
        ("predict loop", "no such run: loop"),
        ("resume loop", f"no such run: {Path.cwd() / 'loop'}"),
        ("slurm -- resume loop", f"no such run: {Path.cwd() / 'loop'}"),
    ):
        assert cli.main(line.split()) == 2, line
        assert capsys.readouterr().err == f"paceline {line.split()[0]}: {said}\n"
    assert {record.getMessage() for record in caplog.records} == {"left out: no such run: folder/loop"}


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """A device such as /dev/null would become a file for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="it is a named pipe"), replace_file(pipe):
        pass
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
