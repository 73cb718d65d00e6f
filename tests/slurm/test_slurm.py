"""Under a real Slurm: a private cluster of two virtual nodes on this machine.

The same tests in both environments: the MPICH wheel is started by srun, the Open MPI wheel refuses it in one sentence
and is started by mpiexec; `paceline train -n` inside an allocation works with both.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.slurm.cluster import cluster

from paceline.launch import find
from tests.ranks import ROOT

STARTS_RANKS = True
pytestmark = pytest.mark.requires("slurm")
SMALL = ("--data", "iris", "--model", "mlp:8", "--epochs", "1", "--batch", "10", "--json", "--quiet")
TRAIN = (sys.executable, "-m", "paceline", "train", *SMALL)
UNTIDY = (sys.executable, str(ROOT / "tests/slurm/untidy.py"), "train", *SMALL)
KIND = find().kind
REFUSAL = "paceline train: srun cannot start Open MPI"


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster(nodes=2, cpus=4) as environment:
        yield {**environment, "PYTHON": sys.executable}


def submit(slurm: dict[str, str], folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=slurm, cwd=folder, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL
    )


def run_batch(slurm: dict[str, str], folder: Path, *words: str) -> int:
    """Submit a job, wait for its end and return its exit status (`sbatch --wait` looks only every ten seconds)."""
    sent = submit(slurm, folder, "sbatch", "-Q", "--parsable", *words)
    assert sent.returncode == 0, sent.stderr
    late = time.monotonic() + 280
    while True:
        shown = submit(slurm, folder, "scontrol", "show", "job", sent.stdout.strip()).stdout
        told = dict(re.findall(r"(\w+)=(\S+)", shown))
        if told["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            code, _, number = told["ExitCode"].partition(":")
            return int(code) or int(number)
        assert time.monotonic() < late, shown
        time.sleep(0.1)


def own_lines(text: str) -> list[str]:
    """What the job said, without srun's own remarks."""
    return [line for line in text.splitlines() if not line.startswith(("srun: ", "slurmstepd: "))]


def one_run(folder: Path, out: str, ranks: int) -> dict[str, Any]:
    """The result of the one run that a job made, on all its ranks."""
    result: dict[str, Any] = json.loads(out)
    assert result["ranks"] == ranks
    assert len(list((folder / "runs").iterdir())) == 1
    return result


@pytest.mark.parametrize("train", [TRAIN, UNTIDY], ids=["tidy", "untidy"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_srun(slurm: dict[str, str], tmp_path: Path, nodes: int, train: tuple[str, ...]) -> None:
    done = submit(slurm, tmp_path, "srun", "-n", "4", "-N", str(nodes), "--mpi=pmi2", *train)
    if KIND == "mpich":
        assert done.returncode == 0, done.stderr
        one_run(tmp_path, done.stdout, 4)
        return
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = own_lines(done.stderr)
    assert line.startswith(
        f"{REFUSAL} {find().version}: 4 ranks would be 4 jobs of 1; use `salloc -n 4 mpiexec …`"
    )
    assert "paceline[mpich]" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_mpiexec_in_an_allocation(slurm: dict[str, str], tmp_path: Path, nodes: int) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    options = ("--bind-to", "none") if KIND == "openmpi" else ()
    done = submit(
        slurm | root, tmp_path,
        "salloc", "-Q", "-n", "4", "-N", str(nodes), str(find().mpiexec), *options, *TRAIN,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one_run(tmp_path, done.stdout, 4)


@pytest.mark.parametrize("nodes", [1, 2])
def test_train_starts_the_ranks_of_an_allocation(slurm: dict[str, str], tmp_path: Path, nodes: int) -> None:
    done = submit(slurm, tmp_path, "salloc", "-Q", "-n", "4", "-N", str(nodes), *TRAIN, "-n", "4")
    assert done.returncode == 0, done.stderr
    one_run(tmp_path, done.stdout, 4)
    told = json.loads(next((tmp_path / "runs").iterdir()).joinpath("environment.json").read_text())
    assert told["threads_per_rank"] == 1
    assert set(told["nodes"]["ranks"]) == set(range(nodes))
    assert (len(told["nodes"]["ranks"]), len(told["nodes"]["cores"])) == (4, nodes)


def batch(slurm: dict[str, str], folder: Path, script: str, *options: str) -> tuple[int, str]:
    """Submits an example, waits for it, and returns its exit status and its output."""
    path = str(ROOT / "examples/slurm" / script)
    status = run_batch(slurm, folder, "-o", "job.out", *options, path, *SMALL)
    return status, (folder / "job.out").read_text()


def test_the_batch_script_that_works_with_every_mpi(slurm: dict[str, str], tmp_path: Path) -> None:
    status, out = batch(slurm, tmp_path, "train.sbatch", "-N", "2")
    assert status == 0, out
    one_run(tmp_path, out, 4)


def test_the_batch_script_with_srun(slurm: dict[str, str], tmp_path: Path) -> None:
    status, out = batch(slurm, tmp_path, "srun.sbatch", "-N", "2", "-n", "3")
    if KIND == "mpich":
        assert status == 0, out
        one_run(tmp_path, out, 3)
        return
    assert status == 2
    [line] = own_lines(out)
    assert line.startswith(REFUSAL)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_made_script_is_accepted_and_runs(slurm: dict[str, str], tmp_path: Path, nodes: int) -> None:
    words = [
        sys.executable,
        "-m",
        "paceline",
        "slurm",
        "--nodes",
        str(nodes),
        "--ranks-per-node",
        "2",
        "--time",
        "10",
    ]
    made = submit(slurm, tmp_path, *words, "--", "train", *SMALL)
    assert made.returncode == 0, made.stderr
    (tmp_path / "job.sh").write_text(made.stdout)
    tried = submit(slurm, tmp_path, "sbatch", "--test-only", "job.sh")
    assert tried.returncode == 0, tried.stderr
    status = run_batch(slurm, tmp_path, "job.sh")
    [out] = [path.read_text() for path in tmp_path.glob("paceline-*.out")]
    assert status == 0, out
    result = one_run(tmp_path, out, 2 * nodes)
    assert re.fullmatch(r"runs/paceline-\d+", result["run"])
    environment = json.loads((tmp_path / result["run"] / "environment.json").read_text())
    assert environment["nodes"]["hosts"] == ["n1", "n2"][:nodes]


def test_a_submitted_command_that_is_no_training(slurm: dict[str, str], tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "paceline",
        "slurm",
        "--sbatch=--wait",
        "--submit",
        "--",
        "list",
        "updates",
    ]
    done = submit(slurm, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    [out] = [path.read_text() for path in tmp_path.glob("paceline-*.out")]
    assert "momentum" in out


def test_a_shell_in_an_allocation_is_no_rank(slurm: dict[str, str], tmp_path: Path) -> None:
    """With 4 tasks promised, a plain command is still one process."""
    alone = (*TRAIN, "--strategy", "serial")
    done = submit(slurm, tmp_path, "salloc", "-Q", "-n", "4", *alone)
    assert done.returncode == 0, done.stderr
    one_run(tmp_path, done.stdout, 1)


def test_srun_without_the_right_protocol_is_refused(slurm: dict[str, str], tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, "srun", "-n", "2", "--mpi=none", *TRAIN)
    assert done.returncode == 2
    [line] = own_lines(done.stderr)
    assert line.startswith(
        f"paceline train: srun cannot start {find().title}: 2 ranks would be 2 jobs of 1; use `s"
    )


def test_the_doctor_knows_what_srun_offers(slurm: dict[str, str], tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, sys.executable, "-m", "paceline", "doctor", "--seconds", "0.1", "--json")
    told = json.loads(done.stdout)
    assert "pmi2" in told["facts"]["srun_types"]
    [finding] = [f for f in told["findings"] if f["topic"] == "Slurm"]
    assert finding["verdict"] == ("ok" if KIND == "mpich" else "note")


FIT = """
import json
import numpy as np
from paceline import fit
from paceline.launch import call
random = np.random.default_rng(0)
data = random.normal(size=(4000, 16)).astype(np.float32), random.integers(0, 3, 4000)
fitted = fit("mlp:8", data, ranks=4, epochs=1, batch=40, quiet=True)
def names(comm):
    import os
    return sorted(set(comm.allgather(os.environ.get("SLURMD_NODENAME", "this"))))
print(json.dumps([fitted.ranks, fitted.steps, float(abs(fitted.model.x).sum()), call(names, {}, ranks=4)]))
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_fit_sends_its_data_to_all_nodes(slurm: dict[str, str], tmp_path: Path, nodes: int) -> None:
    """The arrays are too large for one message of a pipe, and are in no file that other nodes could not see."""
    (tmp_path / "fit.py").write_text(FIT)
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\nexec {sys.executable} fit.py\n")
    status = run_batch(slurm, tmp_path, "-o", "job.out", "-N", str(nodes), "-n", "4", "job.sh")
    out = (tmp_path / "job.out").read_text()
    assert status == 0, out
    ranks, steps, size, names = json.loads(out.splitlines()[-1])
    assert (ranks, steps) == (4, 80)
    assert size > 0
    assert len(names) == nodes


def test_a_call_can_stay_on_this_node(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "stay.py").write_text(
        "from paceline.launch import call\n"
        "def size(comm):\n    return comm.Get_size()\n"
        "print(call(size, {}, ranks=4, one_node=True))\n"
    )
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\nexec {sys.executable} stay.py\n")
    status = run_batch(slurm, tmp_path, "-o", "job.out", "-N", "2", "-n", "4", "job.sh")
    assert status == 0, (tmp_path / "job.out").read_text()
    assert (tmp_path / "job.out").read_text() == "4\n"
    done = submit(slurm, tmp_path, "salloc", "-Q", "-N", "2", "-n", "4", sys.executable, "stay.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "this process is not on a node of its Slurm allocation; start it there, with sbatch or srun --pty"
    )
