"""The cost of messages and sums on this machine, measured on all ranks at once, since they share its memory.

In the ping-pong, neighbours send to each other at the same time, as the ranks of a collective do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import CostModel, cost, recursive_doubling
from paceline.compare.laws import fit_line

Array = NDArray[Any]

SIZES = tuple(8 << k for k in range(0, 22, 3))  # 8 bytes to 16 MiB
SECONDS = 0.05  # for each size


def measure_machine(comm: Any) -> CostModel:
    """Measure alpha, beta, gamma and the cost of a call; collective. With an odd rank count, the last only computes."""
    p = comm.Get_size()
    passes, sums = [], []
    for size in SIZES:
        passes.append(_both_ways(comm, size))
        sums.append(_median_of(comm, _sum(size)))
    both = np.array([passes, sums])
    every = np.empty((p, *both.shape))
    comm.Allgather(both, every)
    times = np.nanmedian(every, axis=0)
    alpha, beta = fit_line(SIZES, times[0])
    _, gamma = fit_line(SIZES, times[1])
    machine = CostModel(alpha=alpha, beta=beta, gamma=gamma)

    one, total = np.ones(1, np.float32), np.ones(1, np.float32)
    call = np.array([_median_of(comm, lambda: recursive_doubling.allreduce(one, total, comm), together=True)])
    comm.Bcast(call)
    messages = machine.seconds(cost("recursive-doubling", n=1, p=p), itemsize=4)
    return CostModel(call=max(0.0, float(call[0]) - messages), alpha=alpha, beta=beta, gamma=gamma)


def _both_ways(comm: Any, size: int) -> float:
    partner = comm.Get_rank() ^ 1
    here, there = np.zeros(size, np.uint8), np.zeros(size, np.uint8)

    def exchange() -> None:
        if partner < comm.Get_size():
            receiving, sending = comm.Irecv(there, partner), comm.Isend(here, partner)
            receiving.Wait()
            sending.Wait()

    seconds = _median_of(comm, exchange)
    return seconds if partner < comm.Get_size() else np.nan


def _sum(size: int) -> Callable[[], None]:
    a, b, c = (np.ones(size // 4, np.float32) for _ in range(3))

    def add() -> None:
        np.add(a, b, out=c)

    return add


def _median_of(comm: Any, work: Callable[[], None], *, together: bool = False) -> float:
    """Return the median seconds of `work`, repeated on all ranks at once; after a barrier if `together`."""
    trial = [_seconds(comm, work, together) for _ in range(5)]
    repeats = np.array([np.clip(SECONDS / max(float(np.median(trial)), 1e-7), 5, 2000)], int)
    comm.Bcast(repeats)
    comm.Barrier()
    return float(np.median([_seconds(comm, work, together) for _ in range(repeats[0])]))


def _seconds(comm: Any, work: Callable[[], None], together: bool) -> float:
    if together:
        comm.Barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
