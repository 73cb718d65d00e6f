"""The course's commands under a real Slurm of one node: `srun --mpi=pmi2` starts MPICH; with Open MPI it is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.slurm.cluster import cluster

from paceline.launch import find
from tests.course.programs import COURSE

STARTS_RANKS = True
pytestmark = pytest.mark.requires("slurm")
KIND = find().kind


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster(nodes=1, cpus=4) as environment:
        yield environment


def test_srun(slurm: dict[str, str], tmp_path: Path) -> None:
    words = "async 2 --images 100 --batches 5 --epochs 1"
    done = subprocess.run(
        ["srun", "-n", "4", "--mpi=pmi2", sys.executable, str(COURSE / "main.py"), *words.split()],
        env=slurm, cwd=tmp_path, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if KIND == "mpich":
        assert done.returncode == 0, done.stderr
        assert "% of the test images" in done.stdout
        return
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("main.py")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"main.py: srun cannot start {find().title}: 4 ranks would be 4 jobs of 1; ")
    assert done.stdout == ""
