"""alpha, beta and gamma of this machine: ping-pong between neighbours and local sums, all ranks at once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIZES = (8, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20)
SECONDS = 0.05  # for each size


def measure_machine(comm: Any) -> dict[str, float]:
    """Seconds a message, a byte sent, a byte combined; collective. With an odd rank out, it only computes."""
    r, p = comm.Get_rank(), comm.Get_size()
    partner = r ^ 1
    passes, sums = [], []
    for size in SIZES:
        comm.Barrier()
        passes.append(_ping_pong(comm, size, partner) if partner < p else np.nan)
        comm.Barrier()
        sums.append(_local_sum(size))
    both = np.array([passes, sums])
    every = np.empty((p, *both.shape))
    comm.Allgather(both, every)
    times = np.nanmedian(every, axis=0)
    alpha, beta = fit_line(SIZES, times[0])
    _, gamma = fit_line(SIZES, times[1])
    return {"alpha": alpha, "beta": beta, "gamma": gamma}


def fit_line(sizes: tuple[int, ...], seconds: Array) -> tuple[float, float]:
    """a, b of T = a + b * size with the least relative error, neither below 0.

    >>> a, b = fit_line((0, 10, 20), np.array([1.0, 2.0, 3.0]))
    >>> round(a, 6), round(b, 6)
    (1.0, 0.1)
    """
    x = np.array(sizes, float)
    matrix = np.stack([np.ones_like(x), x], axis=1) / seconds[:, None]
    (a, b), *_ = np.linalg.lstsq(matrix, np.ones_like(x))
    if a < 0:
        a, b = 0.0, float((x / seconds).sum() / ((x / seconds) ** 2).sum())
    return float(a), max(float(b), 0.0)


def _ping_pong(comm: Any, size: int, partner: int) -> float:
    """Half the median time of a message there and back."""
    here, there = np.zeros(size, np.uint8), np.empty(size, np.uint8)
    first = comm.Get_rank() < partner
    trial = np.median([_there_and_back(comm, here, there, partner, first) for _ in range(5)])
    repeats = np.array([np.clip(SECONDS / max(trial, 1e-7), 5, 2000)], int)  # the first one says how many
    (comm.Isend(repeats, partner) if first else comm.Irecv(repeats, partner)).Wait()
    trips = [_there_and_back(comm, here, there, partner, first) for _ in range(repeats[0])]
    return float(np.median(trips)) / 2


def _there_and_back(comm: Any, here: Array, there: Array, partner: int, first: bool) -> float:
    start = time.perf_counter()
    for sends in (first, not first):
        (comm.Isend(here, partner) if sends else comm.Irecv(there, partner)).Wait()
    return time.perf_counter() - start


def _local_sum(size: int) -> float:
    a, b = np.ones(max(1, size // 4), np.float32), np.ones(max(1, size // 4), np.float32)
    seconds: list[float] = []
    until = time.perf_counter() + SECONDS / 4
    while not seconds or time.perf_counter() < until:
        start = time.perf_counter()
        np.add(a, b, out=b)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
