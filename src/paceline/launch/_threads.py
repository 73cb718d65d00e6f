"""How many cores this process may use, and how many threads each rank gets of them.

Threads are divided, not multiplied: p ranks that each start a BLAS pool as wide as the machine are the
commonest reason why more ranks are slower.
"""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.launch._world import by_node

# What OpenMP, OpenBLAS, MKL, BLIS, numexpr and Accelerate read when they are loaded.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def usable_cores() -> int:
    """The cores that this process may really use: its affinity, its container's share, its Slurm job's.

    >>> usable_cores() >= 1
    True
    """
    return granted(len(os.sched_getaffinity(0)))


def allocated_cores() -> int:
    """The cores that a job started here has: those of this machine, or of all nodes of the Slurm allocation around it.

    >>> allocated_cores() >= usable_cores()
    True
    """
    said = os.environ.get("SLURM_JOB_CPUS_PER_NODE") if "SLURM_JOB_ID" in os.environ else None
    cores = by_node(said) if said else []
    return sum(cores) if len(cores) > 1 else usable_cores()


def granted(cores: int) -> int:
    """What is left of `cores` by the limits that are set for the whole node."""
    return max(1, min(cores, *_granted()))


def _granted() -> list[int]:
    """The limits on cores that are set for the whole node, whatever single cores a process is bound to."""
    share = cpu_quota()
    limits = [sys.maxsize] if share is None else [math.ceil(share)]
    if "SLURM_JOB_ID" in os.environ:
        said = os.environ.get("SLURM_CPUS_ON_NODE") or os.environ.get("SLURM_JOB_CPUS_PER_NODE") or ""
        if count := re.match(r"\d+", said):
            limits.append(int(count[0]))
    return limits


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The cores' worth of time that the control groups (v1 or v2) grant; None where they set no limit."""
    shares = []
    for folder in cgroup_folders("cpu", root):
        try:
            if (both := folder / "cpu.max").exists():
                quota, period = both.read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """The folders whose limits hold for this process, innermost first, up to the root of what can be seen."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controllers and controller)
        path = top / inside.strip("/")
        folders += [path, *(above for above in path.parents if above == top or top in above.parents)]
    return folders


def threads_per_rank(ranks_here: int, given: int | None = None) -> int:
    """The threads of each of `ranks_here` ranks on this machine: an equal share of the cores, unless given.

    >>> threads_per_rank(10_000), threads_per_rank(2, given=3)
    (1, 3)
    """
    if given is not None:
        if given < 1:
            raise UsageError(f"threads must be at least 1; got {given}")
        return given
    return max(1, usable_cores() // ranks_here)


def threads_of_rank(comm: Any, given: int | None = None) -> int:
    """This rank's threads, exactly: a core that k ranks of the node are bound to counts 1/k.

    Every rank of `comm` calls it.

    >>> threads_of_rank(None, given=2)
    2
    """
    if comm is None or given is not None:
        return threads_per_rank(1, given)
    import numpy as np

    from paceline.comm._shared import split_node

    node = split_node(comm)
    ranks_here = node.Get_size()
    mine = sorted(os.sched_getaffinity(0))
    lasts = np.empty(ranks_here, np.int64)
    node.Allgather(np.array([mine[-1]]), lasts)
    used = np.zeros(int(lasts.max()) + 1, np.int64)
    used[mine] = 1
    users = np.empty_like(used)
    node.Allreduce(used, users)  # by how many ranks each core is used
    node.Free()
    share = int((1 / users[mine]).sum() + 1e-9)
    return max(1, min(share, *(limit // int(ranks_here) for limit in _granted())))


def thread_variables(threads: int) -> dict[str, str]:
    """The environment that holds a process's thread pools to `threads`, if set before it starts.

    >>> thread_variables(2)["OPENBLAS_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(VARIABLES, str(threads))


def set_thread_variables(ranks_here: int, given: int | None = None) -> None:
    """Before NumPy is imported: the variables that hold this process's pools to its share of the cores."""
    os.environ.update(thread_variables(threads_per_rank(ranks_here, given)))


def apply_threads(threads: int) -> None:
    """Holds this process's pools to `threads`, also where NumPy or torch have been imported already.

    >>> apply_threads(1)
    """
    os.environ.update(thread_variables(threads))
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
