"""Ranks that stop, hang or wait for each other are noticed, named and, if that is wanted, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from paceline import fit, load_model
from tests.launch.started import lives
from tests.ranks import ROOT, on_ranks

STARTS_RANKS = True


class Run:
    """`paceline train` with a strategy of `stalling`, and what it prints on stderr, as it comes."""

    def __init__(self, folder: Path, strategy: str, *options: str, ranks: int = 2) -> None:
        self.folder, self.number = folder, folder / "number"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        variables = {"PYTHONPATH": str(ROOT), "FROZEN": str(self.number), "TMPDIR": str(self.temporary)}
        command = [
            "train",
            "--data",
            "iris",
            "--model",
            "mlp:8",
            "--strategy",
            f"tests.stalls.stalling:{strategy}",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *command, "-n", str(ranks), "--epochs", "2", "--batch", "10",
             "--runs", str(folder / "runs"), "--quiet", *options],
            env={**os.environ, **variables}, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + 280
        while not any(words in line for line in [*self.lines]):
            assert time.monotonic() < until, "".join(self.lines)
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """The exit status, and everything that was printed."""
        status = self.process.wait(280)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status, "".join(self.lines)

    def left(self) -> list[str]:
        """The stopped process and the files that are still there, some seconds after the end."""
        until = time.monotonic() + 280
        while True:
            numbers = [self.number.read_text()] if self.number.exists() else []
            left = [f"process {number}" for number in numbers if lives(int(number))]
            left += [
                path.name
                for path in self.temporary.iterdir()
                if not path.name.startswith("hydra_hwloc_xmlfile")
            ]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def starter(strategy: str, *options: str, ranks: int = 2) -> Run:
        runs.append(Run(tmp_path, strategy, *options, ranks=ranks))
        return runs[-1]

    yield starter
    for run in runs:
        if run.number.exists() and lives(int(run.number.read_text())):
            os.kill(int(run.number.read_text()), signal.SIGKILL)
        run.process.kill()
        run.end()


def test_ranks_that_wait_for_each_other(start: Callable[..., Run]) -> None:
    run = start("deadlock", "--stall-timeout", "3s", "--on-stall", "abort")
    status, said = run.end()
    assert status == 75
    assert "no rank makes progress: all 2 have waited for each other" in said
    for rank, other in ((0, 1), (1, 0)):
        line = next(line for line in said.splitlines() if line.startswith(f"  rank {rank}: "))
        assert "step 10, tests/stalls/stalling.py:" in line
        assert line.endswith(f"in Recv, which waits for rank {other}")
    assert run.left() == []


def test_a_stopped_rank_0_is_named_by_another_and_ended(start: Callable[..., Run]) -> None:
    run = start("freeze:rank=0", "--stall-timeout", "3s", "--on-stall", "abort", ranks=3)
    status, said = run.end()
    assert status == 75
    assert f"rank 0 (process {run.number.read_text()} on " in said
    assert "its process is stopped" in said
    assert said.count("no sign of life") == 1
    assert "step 10" in next(
        line for line in said.splitlines() if "rank 1: " in line or "ranks 1-2: " in line
    )
    assert "the run ends with status 75 (--on-stall abort)" in said
    assert run.left() == []


@pytest.mark.once
def test_a_rank_that_goes_on_is_only_remarked(start: Callable[..., Run]) -> None:
    run = start("freeze:rank=1", "--stall-timeout", "3s")
    run.wait_for("rank 1 (process ")
    os.kill(int(run.number.read_text()), signal.SIGCONT)
    status, said = run.end()
    assert status == 0
    assert said.count("no sign of life") == 1
    summary = json.loads(next((run.folder / "runs").glob("*/summary.json")).read_text())
    (remark,) = [remark for remark in summary["remarks"] if "progress" in remark]
    assert remark.startswith("rank 1 made no progress for ")
    assert "rank 1 goes on again after " in said


@pytest.mark.once
def test_a_checkpoint_saved_without_the_stopped_rank_continues_bit_for_bit(
    start: Callable[..., Run], machine: str
) -> None:
    run = start("Frozen", "--stall-timeout", "3s", "--on-stall", "checkpoint-abort")
    status, said = run.end()
    assert status == 75
    folder = next((run.folder / "runs").iterdir())
    assert f"a checkpoint has been saved; continue with: paceline resume {folder}" in said
    assert "step 10, paceline/strategies/sync.py:" in said
    assert json.loads((folder / "stopped.json").read_text())["stalled_ranks"] == "1"
    resume = [sys.executable, "-m", "paceline", "resume", str(folder), "--trust", "--quiet"]
    subprocess.run(resume, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, check=True, timeout=280)
    given = {"epochs": 2, "batch": 10, "machine": machine, "runs": None, "quiet": True}
    undisturbed = fit("mlp:8", "iris", ranks=2, on="sim", **given)
    assert np.array_equal(load_model(folder, trust=True).x, undisturbed.model.x)


@pytest.mark.once
def test_processes_without_mpi_are_watched(start: Callable[..., Run]) -> None:
    run = start("Hanging", "--stall-timeout", "3s", "--on-stall", "abort")
    status, said = run.end()
    assert status == 75
    assert "rank 1 (process " in said
    assert "has made no progress" in said
    assert "time.sleep(1e6)" in said
    assert run.left() == []


def test_a_request_to_stop_reaches_all_ranks() -> None:
    assert on_ranks("tests.stalls.stalling:relay", 3, asked=1) == [[signal.SIGUSR1, []]] * 3
