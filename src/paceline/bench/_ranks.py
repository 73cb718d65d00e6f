"""The ranks' side of the allreduce benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.fit import measure_machine
from paceline.collectives import allreduce
from paceline.comm import Recorded, mpi_of

Array = NDArray[Any]


def measure(
    comm: Any, *, sizes: list[int], algorithms: list[str], dtype: str, repeats: int, seconds: float
) -> dict[str, Any]:
    """Every algorithm at every size: seconds of each call, what each rank sent, whether the sums are right.

    A call's time is that of its slowest rank. The algorithms take turns, so that a noisy moment falls on all.
    """
    machine = measure_machine(comm)
    cells: list[dict[str, Any]] = []
    for size in sizes:
        cells += _measure_size(comm, size // np.dtype(dtype).itemsize, algorithms, dtype, repeats, seconds)
    library = " ".join(
        mpi_of(comm).Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split()
    )
    return {"machine": asdict(machine), "mpi": library, "cells": cells}


def _measure_size(
    comm: Any, n: int, algorithms: list[str], dtype: str, repeats: int, seconds: float
) -> list[dict[str, Any]]:
    send = (np.arange(n) % 3 + comm.Get_rank()).astype(dtype)
    recv = np.empty_like(send)
    calls = {name: _call(name, send, recv) for name in algorithms}
    cells, times = {}, {}
    for name, call in calls.items():
        seen = Recorded(comm)
        recv[...] = 0
        (first,) = _slowest(comm, [_timed(comm, call, seen)])
        cells[name] = {
            "size": send.nbytes,
            "algorithm": name,
            "sent": comm.gather([seen.counts.messages, seen.counts.bytes]),
            "right": all(comm.allgather(_is_sum(recv, comm.Get_size()))),
        }
        times[name] = _slowest(
            comm, [_timed(comm, call) for _ in range(3 if first < seconds else 1)]
        ).tolist()
    wanted = {name: min(repeats, int(seconds / min(first))) for name, first in times.items()}
    for turn in range(max(wanted.values())):
        for name, call in calls.items():
            if turn >= 3 and turn < wanted[name]:
                times[name].append(_timed(comm, call))
    for name, cell in cells.items():
        cell["seconds"] = _slowest(comm, times[name]).tolist()
    return list(cells.values())


def _call(name: str, send: Array, recv: Array) -> Callable[[Any], None]:
    return lambda comm: allreduce(send, recv, comm, algorithm=name)


def _timed(comm: Any, call: Callable[[Any], None], seen: Any = None) -> float:
    """Seconds of one call on `comm`, or on `seen`, its counting double."""
    comm.Barrier()
    start = time.perf_counter()
    call(comm if seen is None else seen)
    return time.perf_counter() - start


def _slowest(comm: Any, seconds: list[float]) -> Array:
    longest = np.array(seconds)
    comm.Allreduce(mpi_of(comm).IN_PLACE, longest, mpi_of(comm).MAX)
    return longest


def _is_sum(recv: Array, p: int) -> bool:
    whole = p * (np.arange(recv.size) % 3) + p * (p - 1) // 2
    return bool(np.array_equal(recv, whole.astype(recv.dtype)))
