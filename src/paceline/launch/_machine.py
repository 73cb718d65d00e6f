"""What this machine grants: cores, memory, processes, shared memory. Reads files, starts nothing."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from paceline.launch._threads import cgroup_folders

# Files that the MPI libraries put into /dev/shm; with no process behind them they are remains of killed jobs.
SEGMENTS = ("mpich_", "sm_segment.", "vader_segment.", "osc_sm.", "osc_rdma.", "ucx_shm_posix_")


def physical_cores(allowed: Iterable[int], root: Path = Path("/")) -> int | None:
    """How many different cores the logical processors `allowed` are; None where the kernel does not say."""
    cores = set()
    for processor in allowed:
        folder = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        try:
            cores.add(((folder / "physical_package_id").read_text(), (folder / "core_id").read_text()))
        except OSError:
            return None
    return len(cores)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control groups allow, if less than the machine has; None where they set no limit."""
    limits = _numbers("memory", ("memory.max", "memory.limit_in_bytes"), root)
    return min((limit for limit in limits if limit < memory_total(root)), default=None)


def memory_total(root: Path = Path("/")) -> int:
    """Bytes of memory in this machine."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemTotal:")))


def processes_left(root: Path = Path("/")) -> int | None:
    """How many processes and threads may still be started; None where nothing limits them."""
    rooms = []
    for folder in cgroup_folders("pids", root):
        limit = _read(folder / "pids.max")
        used = _read(folder / "pids.current")
        if limit is not None and used is not None:
            rooms.append(limit - used)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # it does not hold for root
        rooms.append(soft - _own_threads(root))
    return min(rooms, default=None)


def shared_memory(folder: str = "/dev/shm") -> tuple[int, int] | None:
    """Size of the shared-memory file system and what is free of it, in bytes; None if there is none."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return None
    return told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail


def remains(folder: Path = Path("/dev/shm"), root: Path = Path("/"), age: float = 60) -> list[str]:
    """Segments of this user's, older than `age` seconds, that no process that can be seen has mapped."""
    old = time.time() - age
    found = [entry for entry in _listed(folder) if entry.name.startswith(SEGMENTS) and _mine(entry, old)]
    used = "\n".join(_text(maps) for maps in root.glob("proc/[0-9]*/maps")) if found else ""
    return sorted(entry.name for entry in found if str(entry) not in used)


def _numbers(controller: str, names: tuple[str, ...], root: Path) -> list[int]:
    found = (_read(folder / name) for folder in cgroup_folders(controller, root) for name in names)
    return [number for number in found if number is not None]


def _read(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _mine(path: Path, before: float = math.inf) -> bool:
    try:
        told = path.stat()
    except OSError:
        return False
    return told.st_uid == os.geteuid() and told.st_mtime < before


def _own_threads(root: Path) -> int:
    """Threads of this user's processes."""
    return sum(len(_listed(folder / "task")) for folder in root.glob("proc/[0-9]*") if _mine(folder))
