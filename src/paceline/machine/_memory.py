"""The ranks' side of a calibration, memory: passes over it and MPI's own collectives, by all ranks of a node at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm import channel, mpi_of
from paceline.comm.shared import CACHE_LINE, SharedMemory

Array = NDArray[Any]
Rounds = Callable[[int], tuple[list[float], ...]]
ELSEWHERE = 1 << 20  # bytes that a gradient touches, about, between two exchanges


def rows(comm: Any, nbytes: int) -> tuple[Rounds, Callable[[], None]]:
    """What an exchange in shared memory does with `nbytes` a rank: seconds of copying them in, and of summing a slice.

    Every rank writes its row, all wait, and each sums its columns of all rows, which the others have just written.
    Also returns what gives the memory back. Collective.
    """
    p, rank = comm.Get_size(), comm.Get_rank()
    shared = SharedMemory(comm, p * nbytes)
    every = shared.memory.reshape(p, nbytes).view(np.float32)
    mine = np.zeros(nbytes // 4, np.float32)
    width = max(nbytes // 4 // p, CACHE_LINE // 4) // 16 * 16
    columns = every[:, rank * width : (rank + 1) * width]
    total = np.empty(columns.shape[1], np.float32)
    add = channel(comm).operation(np.add, np.dtype(np.float32), nbytes)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float], ...]:
        copied, summed = [], []
        for _ in range(count):
            mine.fill(1)
            start = clock()
            np.copyto(every[rank], mine)
            copied.append(clock() - start)
            shared.fence()
            start = clock()
            if total.size:
                add.over(columns, total)
            summed.append(clock() - start)
            shared.fence()
        return copied, summed

    return rounds, shared.free


def row_bytes(amount: int, p: int) -> int:
    """How long a row is whose p-th part, of p rows, is `amount` bytes: whole cache lines for everybody."""
    return max(CACHE_LINE * p, amount // (CACHE_LINE * p) * CACHE_LINE * p)


def barriers(comm: Any) -> Rounds:
    """MPI's barrier, and that of shared memory."""
    shared = SharedMemory(comm, CACHE_LINE)
    clock = time.perf_counter

    def laps(call: Callable[[], None], count: int) -> list[float]:
        found, last = [], clock()
        for _ in range(count):
            call()
            now = clock()
            found.append(now - last)
            last = now
        return found

    def rounds(count: int) -> tuple[list[float], ...]:
        return laps(comm.Barrier, count), laps(shared.fence, count)

    return rounds


def allreduce(comm: Any, nbytes: int) -> Rounds:
    """MPI's own sum over all ranks, in place, of numbers that each has just written; and some other work later."""
    values, elsewhere = np.zeros(max(nbytes // 4, 1), np.float32), np.zeros(ELSEWHERE // 4, np.float32)
    in_place, add = mpi_of(comm).IN_PLACE, mpi_of(comm).SUM
    clock = time.perf_counter

    def once() -> float:
        comm.Barrier()
        start = clock()
        comm.Allreduce(in_place, values, add)
        return clock() - start

    def rounds(count: int) -> tuple[list[float], ...]:
        warm, cold = [], []
        for _ in range(count):
            values.fill(1)
            warm.append(once())
            values.fill(1)
            elsewhere.fill(1)
            cold.append(once())
        return warm, cold

    return rounds
