"""The resources available to this process: cores, threads, memory, processes, shared memory.

Threads are divided, not multiplied: p ranks that each start a BLAS pool as wide as the machine are the most common reason
why more ranks are slower.

Every rank gets a core for itself if enough cores are idle. A waiting rank keeps its core busy, so a scheduler that puts
two ranks on one core halves the speed of all of them, and moves them too late: 16 ranks on 16 cores took 1,346 us per
step unbound and 843 us bound. But ranks bound to cores that another program is using are worse off than unbound ones.
So cores are reserved: a job takes cores that no other job of paceline holds, and only if the machine has that many to
spare.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import re
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.launch.world import launcher_process, parse_node_numbers, world
from paceline.text import amount

log = logging.getLogger(__name__)
# Variables that OpenMP, OpenBLAS, MKL, BLIS, numexpr and Accelerate read when they are loaded.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
WAIT_POLICY = "OMP_WAIT_POLICY"


def usable_cores() -> int:
    """Return the number of cores that this process may really use: its affinity, limited by its container and Slurm job.

    >>> usable_cores() >= 1
    True
    """
    return reduce_to_limits(len(os.sched_getaffinity(0)))


def allocated_cores() -> int:
    """Return the number of cores of a job started here: of this machine, or of all nodes of the Slurm allocation.

    >>> allocated_cores() >= usable_cores()
    True
    """
    listed = os.environ.get("SLURM_JOB_CPUS_PER_NODE") if "SLURM_JOB_ID" in os.environ else None
    cores = parse_node_numbers(listed) if listed else []
    return sum(cores) if len(cores) > 1 else usable_cores()


def reduce_to_limits(cores: int) -> int:
    """Return `cores` reduced to the limits that are set for the whole node."""
    return max(1, min(cores, *_list_core_limits()))


def _list_core_limits() -> list[int]:
    """Return the limits on cores that are set for the whole node, apart from the binding of single processes."""
    share = cpu_quota()
    limits = [sys.maxsize] if share is None else [math.ceil(share)]
    if "SLURM_JOB_ID" in os.environ:
        listed = os.environ.get("SLURM_CPUS_ON_NODE") or os.environ.get("SLURM_JOB_CPUS_PER_NODE") or ""
        if count := re.match(r"\d+", listed):
            limits.append(int(count[0]))
    return limits


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU time that the control groups (v1 or v2) grant, in cores, or None if they set no limit."""
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
    """Return the folders of the control groups that limit this process, innermost first."""
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
    """Return the threads of each of `ranks_here` ranks on this machine: an equal share of the cores, unless given.

    >>> threads_per_rank(10_000), threads_per_rank(2, given=3)
    (1, 3)
    """
    if given is not None:
        if given < 1:
            raise UsageError(f"threads must be at least 1; got {given}")
        return given
    return max(1, usable_cores() // ranks_here)


def threads_of_rank(comm: Any, given: int | None = None) -> int:
    """Return this rank's number of threads: a core that k ranks of the node are bound to counts 1/k. Collective.

    >>> threads_of_rank(None, given=2)
    2
    """
    if comm is None or given is not None:
        return threads_per_rank(1, given)
    import numpy as np

    from paceline.comm.shared import split_node

    node = split_node(comm)
    ranks_here = node.Get_size()
    mine = sorted(os.sched_getaffinity(0))
    lasts = np.empty(ranks_here, np.int64)
    node.Allgather(np.array([mine[-1]]), lasts)
    used = np.zeros(int(lasts.max()) + 1, np.int64)
    used[mine] = 1
    users = np.empty_like(used)
    node.Allreduce(used, users)  # the number of ranks that use each core
    node.Free()
    share = int((1 / users[mine]).sum() + 1e-9)
    return max(1, min(share, *(limit // int(ranks_here) for limit in _list_core_limits())))


def thread_variables(threads: int, ranks_here: int = 1) -> dict[str, str]:
    """Return the environment that limits the thread pools of each of `ranks_here` processes; set it before they start.

    Threads of several ranks sleep while they wait for work, unless OMP_WAIT_POLICY is set: threads that wait busily keep
    cores from those of other ranks. The GPT of examples/lm on 16 cores took 13.3 s to its target with busy and 3.5 s
    with sleeping threads on 4 ranks of 4 threads, 5.8 and 2.3 s on 8 ranks of 2. A single process is faster with busy ones.

    >>> thread_variables(2)["OPENBLAS_NUM_THREADS"]
    '2'
    """
    variables = dict.fromkeys(VARIABLES, str(threads))
    if ranks_here > 1 and threads > 1 and WAIT_POLICY not in os.environ:
        variables[WAIT_POLICY] = "PASSIVE"
    return variables


def set_thread_variables(ranks_here: int, given: int | None = None) -> None:
    """Set the variables that limit this process's pools to its share of the cores; call it before NumPy is imported."""
    os.environ.update(thread_variables(threads_per_rank(ranks_here, given), ranks_here))


def apply_threads(threads: int) -> None:
    """Limit this process's thread pools to `threads`, even if NumPy or torch have already been imported.

    >>> apply_threads(1)
    """
    os.environ.update(thread_variables(threads))
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


# What a process keeps of the memory that it frees, and the largest block that it keeps, in bytes.
KEPT, LARGEST_KEPT = 256 << 20, 32 << 20
# mallopt's numbers of these, and variables with which a user sets them.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Let this process keep memory that it frees, up to 256 MiB, instead of returning it to the system at once.

    A training step allocates and frees the same megabytes every time, and glibc returns them and gets them again page by
    page. A ResNet of 2.4 million parameters, 8 images, one thread: 5,300 page faults and 94 ms of a core a step,
    afterwards none and 77 ms, with the same memory in use. Returns False if nothing was set: with another C library,
    or if the environment has settings of the user's own.
    """
    if any(name in os.environ for name in OWN_SETTINGS):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(MMAP_THRESHOLD, LARGEST_KEPT)) and bool(set_option(TRIM_THRESHOLD, KEPT))


# Files that the MPI libraries create in /dev/shm; those that no process uses were left by killed jobs.
SEGMENTS = ("mpich_", "sm_segment.", "vader_segment.", "osc_sm.", "osc_rdma.", "ucx_shm_posix_")


def physical_cores(allowed: Iterable[int], root: Path = Path("/")) -> int | None:
    """Return how many physical cores the logical processors `allowed` are, or None if the kernel does not say."""
    cores = set()
    for processor in allowed:
        folder = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        try:
            cores.add(((folder / "physical_package_id").read_text(), (folder / "core_id").read_text()))
        except OSError:
            return None
    return len(cores)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes that the control groups allow, or None if they set no limit below the machine's memory."""
    limits = _numbers("memory", ("memory.max", "memory.limit_in_bytes"), root)
    return min((limit for limit in limits if limit < memory_total(root)), default=None)


def memory_total(root: Path = Path("/")) -> int:
    """Return the bytes of memory in this machine."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemTotal:")))


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes of memory that processes started now can use: what is free, within the control groups' limits.

    >>> 0 < memory_available() <= memory_total()
    True
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = {line.partition(":")[0]: 1024 * int(line.split()[1]) for line in lines if "kB" in line}
    rooms = [found.get("MemAvailable", found["MemTotal"])]
    for folder in cgroup_folders("memory", root):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _read(folder / limit), _read(folder / used)
            if most is not None and now is not None:
                cached = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat"), re.M)
                rooms.append(most - now + (int(cached[1]) if cached else 0))  # a file's pages can be dropped
    return max(0, min(rooms))


def check_memory(need: int, what: str, root: Path = Path("/")) -> None:
    """Raise a UsageError if `need` bytes are more than this machine has left; `what` says what they are for.

    >>> check_memory(10**18, "a network of 10^17 parameters needs {} of memory")
    Traceback (most recent call last):
    paceline.errors.UsageError: a network of 10^17 parameters needs 1 EB of memory; ... available
    """
    if need > (there := memory_available(root)):
        raise UsageError(f"{what.format(amount(need))}; {amount(there)} are available")


# Private memory of a rank that has imported NumPy, mpi4py and paceline and started MPI, before it trains.
LEAST_MEMORY = 25 << 20


def check_ranks(ranks: int, nodes: int = 1, root: Path = Path("/")) -> None:
    """Raise a UsageError if this machine, one of `nodes` that share the ranks, cannot hold so many processes.

    >>> check_ranks(10**20)
    Traceback (most recent call last):
    paceline.errors.UsageError: 100000000000000000000 ranks are too many for this machine: at most ... processes ...
    """
    here = -(-ranks // nodes)
    left = processes_left(root)
    limits = [limit for limit in (left, _read(root / "proc/sys/kernel/pid_max")) if limit is not None]
    if limits and here > min(limits):
        raise UsageError(
            f"{ranks} ranks are too many for this machine: at most {min(limits)} processes can be started"
        )
    each = f"{amount(LEAST_MEMORY)} each before they train"
    check_memory(here * LEAST_MEMORY, f"{ranks} ranks need {{}} of memory, {each}", root)


def processes_left(root: Path = Path("/")) -> int | None:
    """Return how many more processes and threads may be started, or None if there is no limit."""
    rooms = []
    for folder in cgroup_folders("pids", root):
        limit = _read(folder / "pids.max")
        used = _read(folder / "pids.current")
        if limit is not None and used is not None:
            rooms.append(limit - used)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # it does not apply to root
        rooms.append(soft - _own_threads(root))
    return min(rooms, default=None)


def shared_memory(folder: str = "/dev/shm") -> tuple[int, int] | None:
    """Return the size of the shared-memory file system and its free space in bytes, or None if there is none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


# Free bytes of /dev/shm without which ranks do not start well: for all of them, and for each. Open MPI 5.0.11 gives up a
# rank's segment if less than 16 MiB are free, although it fills only 0.1 MB; MPICH 5.0.2 ends with a bus error.
SEGMENTS_NEED = {
    "openmpi": (17 << 20, 200 << 10),
    "mpich": (1 << 20, 1100 << 10),
    "torch": (1 << 20, 16 << 10),
}


def place_for_job(kind: str, ranks: int, folder: str = "/dev/shm") -> Path:
    """Return where a job of a kind of MPI ("torch": without) keeps its segments: /dev/shm, or the temporary folder.

    MPICH's are always in /dev/shm: if they do not fit, raise a UsageError.
    """
    common, each = SEGMENTS_NEED.get(kind, (0, 0))
    need, found = common + ranks * each, shared_memory(folder)
    spare = Path(tempfile.gettempdir())
    if found is None or not os.access(folder, os.W_OK | os.X_OK):
        return spare
    if found[1] >= need:
        return Path(folder)
    short = f"{ranks} ranks need {amount(need)} of shared memory to start, and {folder} has {amount(found[1])} free"
    more = f"docker run --shm-size={max(64, 1 << (2 * need >> 20).bit_length())}m"
    if kind == "mpich":
        raise UsageError(f"{short}: enlarge it ({more})")
    log.warning("%s: they use %s, which may be slower; enlarge it (%s)", short, spare, more)
    return spare


def leftover_segments(folder: Path = Path("/dev/shm"), root: Path = Path("/")) -> list[str]:
    """Return this user's segments older than a minute that no visible process has mapped."""
    old = time.time() - 60
    found = [
        entry for entry in _list_folder(folder) if entry.name.startswith(SEGMENTS) and _is_mine(entry, old)
    ]
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


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_mine(path: Path, before: float = math.inf) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and found.st_mtime < before


def _own_threads(root: Path) -> int:
    """Return the number of threads of this user's processes."""
    return sum(len(_list_folder(folder / "task")) for folder in root.glob("proc/[0-9]*") if _is_mine(folder))


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to `threads` threads inside the block; restore what they used before.

    >>> with limit_threads(1):
    ...     pass
    """
    from threadpoolctl import threadpool_limits

    variables = {name: os.environ.get(name) for name in VARIABLES}
    torch = sys.modules.get("torch")
    torch_before = usable_cores() if torch is None else torch.get_num_threads()
    os.environ.update(thread_variables(threads))
    with threadpool_limits(threads):  # keeps the widths of before: torch shares a pool that it knows
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if (torch := sys.modules.get("torch")) is not None:
                torch.set_num_threads(torch_before)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


# ---- a core for every rank, if enough cores are idle

# The number of usable cores of the machine, and the cores of the job: "16:0,1,2,3".
CORES_VARIABLE = "PACELINE_CORES"


@contextmanager
def reserve_cores(count: int) -> Iterator[list[int] | None]:
    """Reserve `count` idle cores until the end of the block; yield them, or None if there are not that many.

    >>> with reserve_cores(1_000_000) as cores:
    ...     print(cores)
    None
    """
    allowed = sorted(os.sched_getaffinity(0), key=lambda core: (_place_among_siblings(core), core))
    with ExitStack() as held:
        free: list[int] = []
        if count <= usable_cores() and count_other_threads() + count <= len(allowed):
            for core in allowed:
                if len(free) < count and _lock(core, held):
                    free.append(core)
        if len(free) < count:
            held.close()
            yield None
        else:
            yield sorted(free)


def core_variables(cores: list[int] | None) -> dict[str, str]:
    """Return the environment variable that tells a job's ranks their cores.

    >>> core_variables(None)
    {}
    """
    return {} if cores is None else {CORES_VARIABLE: f"{usable_cores()}:{','.join(map(str, cores))}"}


def take_cores() -> None:
    """Bind this rank with all of its threads to its reserved cores, if there are any."""
    here = world()
    if here is None or CORES_VARIABLE not in os.environ:
        return
    cores = [int(core) for core in os.environ[CORES_VARIABLE].partition(":")[2].split(",")]
    share = len(cores) // here.local_size
    mine = cores[here.local_rank * share : (here.local_rank + 1) * share]
    if mine:
        for thread in Path("/proc/self/task").iterdir():  # a program may have started some before
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), mine)


def machine_cores() -> int:
    """Return the number of usable cores of this machine, also in a rank that is bound to some of them.

    >>> machine_cores() >= usable_cores()
    True
    """
    given = os.environ.get(CORES_VARIABLE)
    return int(given.partition(":")[0]) if given else reduce_to_limits(len(allowed_cores()))


def allowed_cores() -> set[int]:
    """Return the cores that this process may run on or, in a rank that its launcher has bound, those of the launcher."""
    if (launcher := launcher_process()) is not None:
        with suppress(OSError):
            return os.sched_getaffinity(launcher)
    return os.sched_getaffinity(0)


def count_other_threads(samples: int = 5, apart: float = 0.002) -> int:
    """Return how many other threads are running on the machine now: the least of several samples."""
    fewest = 1 << 30
    for look in range(samples):
        if look:
            time.sleep(apart)
        try:
            running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        except (OSError, ValueError, IndexError):
            return 0
        fewest = min(fewest, running - 1)
    return max(fewest, 0)


def _place_among_siblings(core: int) -> int:
    """Return 0 for the first hardware thread of a core, 1 for the second: second threads are used last."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return 0
    siblings: list[int] = []
    for word in text.strip().split(","):
        first, _, last = word.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return sorted(siblings).index(core) if core in siblings else 0


def _lock(core: int, held: ExitStack) -> bool:
    """Lock a core by a name in Linux's abstract socket namespace; return False if it is not free.

    The name disappears with the process, and there is no file that could be left behind or replaced.
    """
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0paceline-core-{core}")
    except OSError:
        name.close()
        return False
    held.enter_context(name)
    return True
