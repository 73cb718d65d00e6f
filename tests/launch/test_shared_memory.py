"""Too little shared memory, as in a container: refused, or done without, in one line that names --shm-size."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.collectives import _nodes as nodes
from paceline.collectives import allreduce, make_exchange
from paceline.errors import AgreedError, UsageError
from paceline.launch import resources
from paceline.models.mlp import MLP
from paceline.vmpi import run

MOUNTED = 'mount -t tmpfs -o size="$0" tmpfs /dev/shm && "$@"; status=$?; ls /dev/shm; exit $status'


@cache
def can_mount() -> str:
    """Return why this process cannot mount a file system of its own, or ""."""
    if os.geteuid() != 0:
        return "only root can mount another /dev/shm"
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNTED, "1m", "true"], capture_output=True, text=True
    )
    return "" if tried.returncode == 0 else f"no other /dev/shm can be mounted here: {tried.stderr.strip()}"


def train(size: str, folder: Path, *words: str, status: int) -> tuple[list[str], list[str]]:
    """Train with a /dev/shm of this size; return the lines on stderr, and the lines on stdout with what is left there."""
    if why := can_mount():
        pytest.skip(why)
    command = [sys.executable, "-m", "paceline", "train", "--quiet", "--epochs=1", *words]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNTED, size, *command],
        cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == status, done.stderr + done.stdout
    return done.stderr.splitlines(), done.stdout.splitlines()


LARGE = ("--data=digits", "--model=mlp:1000,1000", "--draws=2", "--batch=1000", "-n=2")  # 12.9 MB on 2 ranks


def test_mpi_without_room_for_its_segments(tmp_path: Path) -> None:
    err, out = train("1m", tmp_path, "--data=iris", "-n=2", status=0)
    assert len(err) == 1
    assert "2 ranks need 18.2 MB of shared memory" in err[0]
    assert "docker run --shm-size=64m" in err[0]
    assert out[-1].startswith("run: ")  # and nothing is left


def test_auto_takes_another_exchange(tmp_path: Path) -> None:
    err, out = train("19m", tmp_path, *LARGE, "--model=mlp:1500,1500", status=0)
    assert len(err) == 1
    assert "--shm-size=" in err[0]
    assert err[0].endswith("gradients are exchanged by ring")
    assert out[-1].startswith("run: ")


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("sync:allreduce=shared-memory", r"an exchange by shared-memory needs .*, or choose ring"),
        ("hogwild", "one x for all ranks of a node needs"),
        ("hogwild:backend=torch", "one x for all ranks of a node needs"),
    ],
)
def test_what_needs_it_is_refused(tmp_path: Path, strategy: str, said: str) -> None:
    err, out = train("19m", tmp_path, *LARGE, "--model=mlp:2500,2500", f"--strategy={strategy}", status=2)
    assert len(err) == 1
    assert "--shm-size=" in err[0]
    assert re.search(said, err[0]), err
    assert out == []  # nothing is left in /dev/shm
    assert list((tmp_path / "runs").glob("*")) == []


# ---- without mounting anything


def test_place_of_a_job(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resources, "shared_memory", lambda folder="": (64 << 20, 3 << 20))
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert resources.place_for_job("mpich", 1) == Path("/dev/shm")
    with pytest.raises(
        UsageError, match=r"4 ranks need 5\.55 MB .* 3\.15 MB free: enlarge it \(docker run --shm-size=64m"
    ):
        resources.place_for_job("mpich", 4)
    assert not caplog.records
    assert resources.place_for_job("openmpi", 2) != Path("/dev/shm")
    assert "--shm-size" in caplog.text


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node in two has little shared memory."""
    monkeypatch.setattr(nodes, "free_room", lambda comm: 1000 if comm.Get_size() == 3 else 1 << 30)


NETWORK = "10gbe:ranks-per-node=3"  # 5 ranks: nodes of 3 and 2


@pytest.mark.usefixtures("little")
def test_one_node_without_room_is_known_to_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    def body(comm: Any) -> tuple[str, float]:
        total = np.full(40_000, comm.Get_rank(), np.float64)
        allreduce(total, total, comm)
        with pytest.raises(
            AgreedError, match=r"hierarchical needs 16\.8 MB of shared memory.*--shm-size=64m\), or choose"
        ):
            allreduce(total, total, comm, algorithm="hierarchical")
        with pytest.raises(AgreedError, match="an exchange by hierarchical needs"):
            make_exchange("hierarchical", MLP([20, 50, 3]), comm)
        with make_exchange("auto", MLP([20, 50, 3]), comm) as exchange:
            return type(exchange).__name__, float(total[0])

    caplog.set_level(logging.WARNING)
    assert run(body, ranks=5, network=NETWORK).values == [("Replicated", 10.0)] * 5
    assert sorted(record.getMessage().rpartition("; ")[2] for record in caplog.records) == [
        "gradients are exchanged by ring",
        "sums are made by ring",
    ]
