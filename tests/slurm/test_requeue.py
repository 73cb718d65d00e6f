"""Jobs of `paceline slurm` that are stopped or lose a node are requeued and go on: on a private cluster of three nodes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tools.slurm.cluster import cluster

from paceline.record import Run

STARTS_RANKS = True
pytestmark = [pytest.mark.requires("slurm"), pytest.mark.once]
PACELINE = (sys.executable, "-m", "paceline")
TRAIN = ("train", "--data", "iris", "--model", "slow:net", "--strategy", "sync:allreduce=ring", "--batch", "12",
         "--epochs", "8", "--checkpoint-every", "5 steps", "--quiet")  # fmt: skip
SLOW = Path(__file__).parent.parent / "launch" / "slow.py"


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster(nodes=3, cpus=2) as environment:
        yield environment


def ask(slurm: dict[str, str], folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, env=slurm, cwd=folder, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(slurm: dict[str, str], folder: Path, what: str, true: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    late = time.monotonic() + 280
    while not true():
        if time.monotonic() > late:
            said = [path.read_text() for path in folder.glob("*.out")]
            raise AssertionError("\n".join([f"not {what}", ask(slurm, folder, "squeue"), *said]))
        time.sleep(0.1)


def submitted(slurm: dict[str, str], folder: Path, *options: str) -> str:
    """Submit a slow training; return the number of the job when it has saved checkpoints."""
    shutil.copy(SLOW, folder)
    said = ask(slurm, folder, *PACELINE, "slurm", "--time", "30", *options, "--submit", "--", *TRAIN)
    job = re.findall(r"Submitted batch job (\d+)", said)[0]
    saves(slurm, folder, job)
    return job


def saves(slurm: dict[str, str], folder: Path, job: str) -> None:
    """Wait until a job trains: it has saved a checkpoint since this call."""
    run = folder / "runs" / f"paceline-{job}"
    before = saved(run)
    until(slurm, folder, "saved", lambda: saved(run) > before + 1)  # the one before the last is complete


def saved(run: Path) -> int:
    """Return the number of the last checkpoint of which there is anything."""
    return max((int(path.stem) for path in (run / "checkpoints").glob("rank-*/[0-9]*.npz")), default=0)


def restarts(slurm: dict[str, str], folder: Path, job: str) -> int:
    return int(re.findall(r"Restarts=(\d+)", ask(slurm, folder, "scontrol", "show", "job", job))[0])


def ends(slurm: dict[str, str], folder: Path, job: str) -> Run:
    """Wait for the job's end; return its run."""
    (folder / "fast").touch()
    until(slurm, folder, "over", lambda: (folder / "runs" / f"paceline-{job}" / "summary.json").exists())
    until(slurm, folder, "gone", lambda: job not in ask(slurm, folder, "squeue", "-h", "-o", "%i").split())
    assert "COMPLETED" in ask(slurm, folder, "scontrol", "show", "job", job)
    return Run(folder / "runs" / f"paceline-{job}")


def lose(slurm: dict[str, str], folder: Path, node: str) -> None:
    """Take a node away, with whatever runs there, and keep it away."""
    for state in ("drain", "down"):
        ask(slurm, folder, "scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")


def test_a_job_goes_on_after_a_signal_and_after_lost_nodes(slurm: dict[str, str], tmp_path: Path) -> None:
    """Three nodes: first a signal, then a lost node (there is another one), then one more (the job goes on with one)."""
    job = submitted(slurm, tmp_path, "--nodes", "1-2", "--ranks-per-node", "2")
    ask(slurm, tmp_path, "scancel", "--batch", "--signal=USR1", job)
    until(slurm, tmp_path, "requeued", lambda: restarts(slurm, tmp_path, job) == 1)
    saves(slurm, tmp_path, job)
    lose(slurm, tmp_path, "n2")
    until(slurm, tmp_path, "requeued again", lambda: restarts(slurm, tmp_path, job) == 2)
    saves(slurm, tmp_path, job)
    run = tmp_path / "runs" / f"paceline-{job}"
    assert hosts(run) == ["n1", "n3"]
    lose(slurm, tmp_path, "n3")
    until(slurm, tmp_path, "requeued for the last time", lambda: restarts(slurm, tmp_path, job) == 3)
    saves(slurm, tmp_path, job)
    assert hosts(run) == ["n1"]
    found = ends(slurm, tmp_path, job)
    assert found.summary["ranks"] == 2  # 4 at first
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.name]

    alone = [*PACELINE, *TRAIN, "-n", "2", "--runs", "undisturbed", "--name", "run"]
    done = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    there = Run(tmp_path / "undisturbed" / "run")
    np.testing.assert_allclose(
        parameters(found), parameters(there), rtol=1e-3, atol=1e-5
    )  # other sums, the same steps
    assert [epoch["epoch"] for epoch in found.epochs] == [epoch["epoch"] for epoch in there.epochs]


def hosts(run: Path) -> list[str]:
    found: list[str] = json.loads((run / "environment.json").read_text())["nodes"]["hosts"]
    return found


def parameters(run: Run) -> np.ndarray:
    with np.load(run.folder / "model.npz") as found:
        return np.asarray(found["x"])
