"""examples/lm: one program for one process, for DDP and for any strategy, which differ in a few lines."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from paceline import Run
from paceline.cli import main
from paceline.study.file import mistakes, read
from paceline.text import count

pytest.importorskip("torch")

STARTS_RANKS = True
pytestmark = pytest.mark.once
FOLDER = Path(__file__).parent.parent / "examples" / "lm"
# Every batch holds all windows, so that their order does not matter: all programs must learn the same.
SMALL = ["--windows", "16", "--batch", "16", "--epochs", "2"]


def changed_lines(before: str, after: str) -> int:
    """Return the number of lines that have to be written, or to be removed, whichever is more."""
    texts = [(FOLDER / name).read_text().splitlines() for name in (before, after)]
    marks = [line[0] for line in difflib.ndiff(*texts)]
    return max(marks.count("+"), marks.count("-"))


def perplexities_of_serial(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"epoch \d: perplexity ([\d.]+)", text)]


@pytest.fixture(scope="module")
def serial() -> list[float]:
    """What serial.py prints after each epoch."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patches, contextlib.redirect_stdout(said):
        patches.setattr(sys, "argv", ["serial.py", *SMALL])
        patches.syspath_prepend(FOLDER)
        runpy.run_path(str(FOLDER / "serial.py"), run_name="__main__")
    return perplexities_of_serial(said.getvalue())


def test_the_page_says_what_the_kept_records_say() -> None:
    page = (FOLDER / "README.md").read_text()
    found = {}
    for line in (FOLDER / "results/lm/runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        asked, perplexity = run["config"], run["epochs"][-1]["metrics"]["perplexity"]
        alone = f"one process, {count(asked['threads'], 'thread')}"
        name = alone if asked["ranks"] == 1 else f"`{asked['strategy']}`, {asked['ranks']} ranks"
        found[name] = (f"{run['summary']['train_seconds']:.1f}", f"{perplexity:.2f}")
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert {name: (seconds, perplexity) for name, seconds, perplexity in rows} == found


def test_six_lines_make_it_parallel() -> None:
    assert 0 < changed_lines("serial.py", "parallel.py") <= 6
    assert changed_lines("serial.py", "parallel.py") <= changed_lines("serial.py", "ddp.py")


def test_one_process_learns(serial: list[float]) -> None:
    assert len(serial) == 2
    assert 75 > serial[0] > serial[1]


def test_ddp_learns_the_same(serial: list[float], tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(FOLDER / "ddp.py")]
    done = subprocess.run(
        [sys.executable, *words, *SMALL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert perplexities_of_serial(done.stdout) == pytest.approx(serial, abs=0.02)


def test_ranks_learn_the_same(serial: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with patch.dict(os.environ):
        words = ["run", "--on", "sim", "-n", "2", "--name", "lm", str(FOLDER / "parallel.py"), *SMALL]
        assert main(words) == 0
    run = Run(tmp_path / "runs" / "lm")
    assert run.config["ranks"] == 2
    assert [epoch["metrics"]["perplexity"] for epoch in run.epochs] == pytest.approx(serial, abs=0.02)


def test_the_study_has_a_baseline_and_every_strategy_on_all_ranks() -> None:
    cells = read(FOLDER / "lm.toml").cells("mpi")
    assert mistakes(cells) == []
    assert {cell.config.strategy for cell in cells} == {
        "serial", "sync", "local-sgd:every=16", "elastic", "gossip",
    }  # fmt: skip
    assert all(cell.ranks > 1 for cell in cells if not cell.serial)
    assert {cell.program for cell in cells} == {cells[0].program}
