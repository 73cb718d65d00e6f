"""Cores are counted as they are granted, and divided among the ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.errors import UsageError
from paceline.launch import allocated_cores, apply_threads, threads_per_rank, usable_cores
from paceline.launch import resources as _threads
from paceline.launch.library import mpiexec
from paceline.launch.resources import VARIABLES, cpu_quota
from tests.ranks import on_ranks


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        ({"proc/self/cgroup": "0::/pod/a", "sys/fs/cgroup/pod/cpu.max": "100000 100000",
          "sys/fs/cgroup/pod/a/cpu.max": "max 100000"}, 1.0),
        ({"proc/self/cgroup": "0::/not/seen/here", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n1:name=systemd:/",
          "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "300000",
          "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
          "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ({"proc/self/cgroup": "2:memory:/a", "sys/fs/cgroup/memory/a/cpu.max": "1000 100000"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_containers_share_is_read(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(tree(tmp_path, files)) == quota


def test_the_smallest_grant_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(_threads, "cpu_quota", lambda: None)
    assert usable_cores() == 16
    monkeypatch.setattr(_threads, "cpu_quota", lambda: 5.5)
    assert usable_cores() == 6
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert usable_cores() == 6  # not in a Slurm job: a variable left over
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert usable_cores() == 4
    monkeypatch.delenv("SLURM_CPUS_ON_NODE")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "3(x2)")
    assert (usable_cores(), allocated_cores()) == (3, 6)
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "3")
    assert (usable_cores(), allocated_cores()) == (3, 3)
    monkeypatch.setattr(_threads, "cpu_quota", lambda: 0.1)
    assert usable_cores() == 1


def test_cores_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "usable_cores", lambda: 16)
    assert [threads_per_rank(p) for p in (1, 3, 4, 16, 17)] == [16, 5, 4, 1, 1]
    assert threads_per_rank(16, given=8) == 8
    with pytest.raises(UsageError, match="at least 1; got 0"):
        threads_per_rank(4, given=0)


def test_pools_that_exist_already_are_held_too() -> None:
    child = (
        "import json, os, numpy, threadpoolctl; from paceline.launch import apply_threads\n"
        "pools = lambda: [p['num_threads'] for p in threadpoolctl.threadpool_info()]\n"
        "threadpoolctl.threadpool_limits(3); before = pools(); apply_threads(2)\n"
        "print(json.dumps([before, pools(), os.environ['MKL_NUM_THREADS']]))"
    )
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, check=True, env=environment
    )
    before, after, variable = json.loads(done.stdout)
    assert set(before) == {3}
    assert set(after) == {2}
    assert variable == "2"


def test_torch_is_held_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=held.append))
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    apply_threads(1)
    assert held == [1]


def test_a_bound_ranks_share_is_exact() -> None:
    """Rank r of 3 pretends to be bound: 0 to cores 0-3 alone, 1 and 2 together to cores 4-7."""
    assert on_ranks("tests.launch.cases:bound_shares", 3) == [[4, 2], [2, 1], [2, 1]]


@pytest.mark.parametrize(
    ("ranks", "threads", "own", "policy"),
    [(2, 2, None, "PASSIVE"), (1, 2, None, None), (2, 1, None, None), (2, 2, "ACTIVE", "ACTIVE")],
)
def test_threads_of_several_ranks_sleep_while_they_wait(
    monkeypatch: pytest.MonkeyPatch, ranks: int, threads: int, own: str | None, policy: str | None
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    _, variables = mpiexec(ranks, ["true"], threads)
    assert variables.get("OMP_WAIT_POLICY") == policy
