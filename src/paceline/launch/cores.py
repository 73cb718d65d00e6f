"""A core of its own for every rank, where enough of them are idle.

Ranks that wait burn a core, so a scheduler that puts two of them on one halves the speed of all, and moves them too late:
16 ranks on 16 cores took 1,346 us a step unbound and 843 us bound. But a job that binds its ranks to cores on which
somebody else computes is worse off than one that does not. So cores are reserved: a job takes those that no other job of
paceline's holds, and only if the machine has as many to spare.
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

VARIABLE = "PACELINE_CORES"  # usable cores of the machine, and those of the job: "16:0,1,2,3"


@contextmanager
def reserved(count: int) -> Iterator[list[int] | None]:
    """`count` idle cores, held until the end of the block; None where there are not that many.

    >>> with reserved(1_000_000) as cores:
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


def variables(cores: list[int] | None) -> dict[str, str]:
    """What a job's ranks are told.

    >>> variables(None)
    {}
    """
    return {} if cores is None else {VARIABLE: f"{usable_cores()}:{','.join(map(str, cores))}"}


def take_cores() -> None:
    """In a rank, before its threads start: stay on the cores that are this rank's, if some were reserved."""
    here = world()
    if here is None or VARIABLE not in os.environ:
        return
    cores = [int(core) for core in os.environ[VARIABLE].partition(":")[2].split(",")]
    share = len(cores) // here.local_size
    mine = cores[here.local_rank * share : (here.local_rank + 1) * share]
    if mine:
        os.sched_setaffinity(0, mine)


def machine_cores() -> int:
    """The usable cores of this machine, also in a rank that is bound to some of them.

    >>> machine_cores() >= usable_cores()
    True
    """
    told = os.environ.get(VARIABLE)
    return int(told.partition(":")[0]) if told else granted(len(allowed_cores()))


def allowed_cores() -> set[int]:
    """The cores that the scheduler may use for this process or, in a rank, for its launcher, which binds ranks to some."""
    if (launcher := launcher_process()) is not None:
        with suppress(OSError):
            return os.sched_getaffinity(launcher)
    return os.sched_getaffinity(0)


def others_running(samples: int = 5, apart: float = 0.002) -> int:
    """How many threads of the machine are running now, this one left out: the fewest of several looks."""
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
    """0 for the first hardware thread of its core, 1 for the second: two ranks on one core come last."""
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
    """Take the name of one core, if nobody has it: a name in Linux's own table of sockets.

    No file stands for it, so none is left, and none of another's can be put in its place; it goes with the process.
    """
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0paceline-core-{core}")
    except OSError:
        name.close()
        return False
    held.enter_context(name)
    return True
