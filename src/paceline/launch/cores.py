"""A core for every rank, if enough cores are idle.

A waiting rank keeps its core busy, so a scheduler that puts two ranks on one core halves the speed of all of them, and
moves them too late: 16 ranks on 16 cores took 1,346 us per step unbound and 843 us bound. But ranks bound to cores that
another program is using are worse off than unbound ones. So cores are reserved: a job takes cores that no other job of
paceline holds, and only if the machine has that many to spare.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from paceline.launch.resources import granted, usable_cores
from paceline.launch.world import launcher_process, world

VARIABLE = (
    "PACELINE_CORES"  # the number of usable cores of the machine, and the cores of the job: "16:0,1,2,3"
)


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
        if count <= usable_cores() and others_running() + count <= len(allowed):
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
    return {} if cores is None else {VARIABLE: f"{usable_cores()}:{','.join(map(str, cores))}"}


def take_cores() -> None:
    """Bind this rank to its reserved cores, if there are any; call it before threads are started."""
    here = world()
    if here is None or VARIABLE not in os.environ:
        return
    cores = [int(core) for core in os.environ[VARIABLE].partition(":")[2].split(",")]
    share = len(cores) // here.local_size
    mine = cores[here.local_rank * share : (here.local_rank + 1) * share]
    if mine:
        os.sched_setaffinity(0, mine)


def machine_cores() -> int:
    """Return the number of usable cores of this machine, also in a rank that is bound to some of them.

    >>> machine_cores() >= usable_cores()
    True
    """
    given = os.environ.get(VARIABLE)
    return int(given.partition(":")[0]) if given else granted(len(allowed_cores()))


def allowed_cores() -> set[int]:
    """Return the cores that this process may run on or, in a rank that its launcher has bound, those of the launcher."""
    if (launcher := launcher_process()) is not None:
        with suppress(OSError):
            return os.sched_getaffinity(launcher)
    return os.sched_getaffinity(0)


def others_running(samples: int = 5, apart: float = 0.002) -> int:
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
    """Lock a core, if it is free, by a name in Linux's abstract socket namespace.

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
