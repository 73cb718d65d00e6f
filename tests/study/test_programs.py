"""Studies of programs with their own training loops."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.compare.rows import rows_of
from paceline.record import find_runs, script_digest
from paceline.report.contents import command_of
from paceline.study.cells import find_varying, read_request, spell_cell
from paceline.study.file import BadStudyError, mistakes, read
from paceline.study.run import command
from tests.study.studies import records, run_study, write

pytestmark = pytest.mark.once

pytest.importorskip("torch")

STARTS_RANKS = True
PROGRAM = """
import sys
from pathlib import Path
import torch
import paceline
from parts.net import build

Path("ran").touch()
torch.manual_seed(int(sys.argv[2]))
x = torch.randn(48, 3)
y = (x.sum(1) > 0).long()
net = build()
with paceline.session() as ranks:
    net, optimizer = ranks.attach(net, torch.optim.SGD(net.parameters(), lr=float(sys.argv[4])))
    for epoch in ranks.epochs(1):
        for inputs, labels in ranks.share((x, y), batch=12):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        ranks.validate(perplexity=lambda: torch.nn.functional.cross_entropy(net(x), y).exp())
"""
NET = "import torch\n\n\ndef build():\n    return torch.nn.Linear(3, 2)\n"
STUDY = """
target = "perplexity<=9"
all_threads = false
[settings]
program = "own.py"
arguments = ["--seed", "{seed}", "--lr", 0.1]
threads = 1
[[matrix]]
strategy = "sync"
ranks = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program and its module, which is the working directory."""
    (tmp_path / "own.py").write_text(PROGRAM)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").touch()
    (tmp_path / "parts/net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_cells_and_their_commands(folder: Path) -> None:
    path = write(folder, STUDY.replace("threads = 1", "seed = [0, 3]"))
    cells = read(path).cells("mpi")
    assert [str(cell) for cell in cells] == [
        "serial, seed 0", "sync on 2 ranks, seed 0", "serial, seed 3", "sync on 2 ranks, seed 3",
    ]  # fmt: skip
    assert command(cells[0], Path("r"), "a") == [
        "run", "--strategy=serial", "--seed=0", "--threads=1", "--runs=r", "--name=a", "--quiet", "own.py",
        "--seed", "{seed}", "--lr", "0.1",
    ]  # fmt: skip
    assert command(cells[3], Path("r"), "a")[:5] == ["run", "--strategy=sync", "--seed=3", "-n", "2"]
    assert len({cell.key for cell in cells}) == 4
    assert mistakes(cells) == []
    assert not (folder / "ran").exists()


def test_arguments_are_words_a_text_or_an_axis(folder: Path) -> None:
    text = STUDY.replace('["--seed", "{seed}", "--lr", 0.1]', "GIVEN")
    for given in ("\"--seed 1 --name 'a b'\"", '["--seed", 1, "--name", "a b"]'):
        [*_, cell] = read(write(folder, text.replace("GIVEN", given))).cells("mpi")
        assert cell.program is not None
        assert cell.program.arguments == ("--seed", "1", "--name", "a b")
    cells = read(write(folder, text.replace("GIVEN", '[["--lr", 1], ["--lr", 2], []]'))).cells("sim")
    assert sorted(spell_cell(cell, find_varying(cells)) for cell in cells if not cell.serial) == [
        f"sync on 2 ranks simulated on loopback, seed 0; {words}"
        for words in ("--lr 1", "--lr 2", "no arguments")
    ]
    assert sum(cell.serial for cell in cells) == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"own.py"', '"other.py"', "part 1: there is no program other.py, neither here nor in "),
        ('"own.py"', "3", "[settings]: program must be a file; got 3"),
        ("threads = 1", "batch = 4", "part 1: a program has its own batch: leave it out"),
        ('program = "own.py"', "", "part 1: arguments are for a program: give program = …"),
        (
            '["--seed", "{seed}", "--lr", 0.1]',
            "true",
            "[settings]: arguments must be a string, a list of words",
        ),
        (
            '["--seed", "{seed}", "--lr", 0.1]',
            "[[1], true]",
            "[settings]: arguments must be a string, a list of",
        ),
        ('"{seed}"', '"{sed}"', "part 1: unknown placeholder {sed} in the arguments of "),
        ('["--seed", "{seed}", "--lr", 0.1]', '"\'"', "[settings]: arguments: no closing quotation: '"),
    ],
)
def test_mistakes_in_the_file(folder: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(BadStudyError) as bad:
        read(write(folder, STUDY.replace(old, new)))
    assert any(line.startswith(said) for line in bad.value.lines), bad.value.lines
    assert not any("is an empty list" in line for line in bad.value.lines)


@pytest.mark.parametrize(
    ("program", "old", "new", "said"),
    [
        ("def", "", "", "own.py, line 1: invalid syntax"),
        (PROGRAM, '"sync"', '"hogwild:backend=torch"', "starts its own processes"),
        (PROGRAM, '"sync"', '"parameter-server:masters=2"', "2 masters need at least 3 ranks"),
        (PROGRAM, "[[matrix]]", "[simulation]\ncompute = false\n[[matrix]]", "leave out compute=false"),
    ],
)
def test_cells_that_cannot_run(
    folder: Path, program: str, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.py").write_text(program)
    path = write(folder, STUDY.replace(old, new) if old else STUDY)
    assert main(["study", str(path), "--on", "sim"]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "ran").exists()


def test_a_dry_run_runs_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, STUDY.replace('"sync"', '["sync", "local-sgd:every=2"]'))
    assert main(["study", str(path), "--dry-run"]) == 0
    assert "3 cells: 0 done, 0 failed, 3 missing" in capsys.readouterr().out
    assert not (folder / "ran").exists()


def test_the_digest_of_a_program(folder: Path) -> None:
    file = folder / "own.py"
    before = script_digest(file)
    (folder / "unrelated.py").write_text("a = 1")
    assert script_digest(file) == before
    for changed in (folder / "parts/net.py", folder / "parts/__init__.py", file):
        changed.write_text(changed.read_text() + "# edited\n")
        assert script_digest(file) != before
        before = script_digest(file)
    assert not (folder / "ran").exists()


def test_a_study_on_real_and_simulated_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, STUDY)
    done = run_study(path, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stderr
    assert "the study's target of perplexity 9" in done.stdout
    runs = folder / "runs/s"
    assert records(runs) == {cell.key: 1 for cell in read(path).cells("mpi")}
    [serial, sync] = rows_of(find_runs([runs]))
    assert (serial.strategy, sync.strategy, sync.metric.name) == ("serial", "sync", "perplexity")
    assert sync.speedup is not None
    assert sync.score == pytest.approx(serial.score)

    # What was run by hand counts, too: here on simulated ranks, in this process.
    [_, cell] = read(path).cells("sim")
    words = command(cell, runs, "by-hand")
    before = dict(os.environ)
    try:
        assert main(words) == 0
    finally:
        os.environ.clear()
        os.environ.update(before)
    by_hand = next(run for run in find_runs([runs]) if run.folder.name == "by-hand")
    assert read_request(by_hand.config) == cell.key
    assert main(["study", str(path), "--on", "sim", "--dry-run"]) == 0
    assert "2 cells: 1 done, 0 failed, 1 missing" in capsys.readouterr().out

    # A run that ends at a target is another one, of another problem.
    assert cell.program is not None
    until = replace(cell, program=replace(cell.program, until="perplexity<=9"))
    try:
        assert main(command(until, runs, "until")) == 0
    finally:
        os.environ.clear()
        os.environ.update(before)
    ended = next(run for run in find_runs([runs]) if run.folder.name == "until")
    assert read_request(ended.config) == until.key != cell.key
    assert shlex.split(command_of(ended))[:6] == ["paceline", "run", "-n", "2", "--strategy", "sync"]
    assert "--until 'perplexity<=9'" in command_of(ended)
    assert len({row.problem for row in rows_of([ended, by_hand])}) == 2

    # An edited module makes every cell another one.
    (folder / "parts/net.py").write_text(NET + "# edited\n")
    assert main(["study", str(path), "--dry-run"]) == 0
    assert "2 cells: 0 done, 0 failed, 2 missing" in capsys.readouterr().out


def test_a_program_without_a_session_is_refused_unless_a_module_beside_it_has_one(folder: Path) -> None:
    path = write(folder, STUDY)
    (folder / "own.py").write_text("import loop\nloop.main()\n")
    (folder / "loop.py").write_text("def main():\n    pass\n")
    assert any("does not use paceline.session" in line for line in mistakes(read(path).cells("mpi")))
    (folder / "loop.py").write_text("import paceline\ndef main():\n    paceline.session()\n")
    assert mistakes(read(path).cells("mpi")) == []


def test_a_program_that_fails_after_training_is_a_failure(folder: Path) -> None:
    """Also if it has recorded its run by then; the other cells are run."""
    failing = PROGRAM + "if ranks.size == 2:\n    sys.exit('no disk for the plot')\n"
    (folder / "own.py").write_text(failing)
    done = run_study(write(folder, STUDY), cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "sync on 2 ranks, seed 0: failed: no disk for the plot (exit status 1)" in done.stderr
    assert [run.config["ranks"] for run in find_runs([folder / "runs/s"])] == [1]
