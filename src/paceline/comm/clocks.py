"""One time for all ranks: what each rank's clock said when the run began on rank 0's."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# Messages there and back between rank 0 and one rank of every other machine; the quickest of them tells.
TRIES = 8
ID, READING = 16, np.dtype(np.float64)


def machine() -> str:
    """What all processes that read the same clock have in common: the machine since it was last started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return platform.node()


def common_start(comm: Any, clock: Callable[[], float], where: Callable[[], str] = machine) -> float:
    """The reading of this rank's `clock` at the moment that all ranks count from: now, on rank 0. Collective.

    Processes of one machine read one clock. That of another machine is compared with rank 0's by messages between the
    two: what is found is wrong by half of the quickest message's way there and back, at most.

    >>> common_start(None, lambda: 2.5)
    2.5
    """
    now = clock()
    if comm is None or comm.Get_size() == 1:
        return now
    mine = np.frombuffer(
        hashlib.blake2b(where().encode(), digest_size=ID).digest() + np.float64(now).tobytes(), np.uint8
    )
    rows = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, rows)
    start = float(rows[0, ID:].copy().view(READING)[0])
    machines = [row[:ID].tobytes() for row in rows]
    first = {name: machines.index(name) for name in machines}  # the first rank of every machine
    if len(first) == 1:
        return start
    ahead = np.zeros(len(first))
    own = comm.Dup()
    for number, leader in enumerate(first.values()):
        if leader > 0 and own.Get_rank() == 0:
            ahead[number] = _compare(own, leader, clock)
        elif leader == own.Get_rank() > 0:
            _answer(own, clock)
    own.Bcast(ahead, root=0)
    own.Free()
    return start + float(ahead[list(first).index(machines[comm.Get_rank()])])


def _compare(comm: Any, other: int, clock: Callable[[], float]) -> float:
    """How far the clock of another rank is ahead of this one's."""
    reading, found = np.zeros(1), []
    for _ in range(TRIES):
        sent = clock()
        comm.Send(reading, dest=other)
        comm.Recv(reading, source=other)
        back = clock()
        found.append((back - sent, float(reading[0]) - (sent + back) / 2))
    return min(found)[1]


def _answer(comm: Any, clock: Callable[[], float]) -> None:
    reading = np.zeros(1)
    for _ in range(TRIES):
        comm.Recv(reading, source=0)
        reading[0] = clock()
        comm.Send(reading, dest=0)
