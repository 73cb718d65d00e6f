"""The ranks' side of the allreduce benchmark: `python -m paceline.bench._ranks QUESTION ANSWER`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench._fit import measure_machine
from paceline.collectives import allreduce
from paceline.comm import Recorded, mpi

Array = NDArray[Any]


def measure(
    comm: Any, *, sizes: list[int], algorithms: list[str], dtype: str, repeats: int, seconds: float
) -> dict[str, Any]:
    """Every algorithm at every size: seconds of each call, what each rank sent, whether the sums are right.

    A call's time is that of its slowest rank. The algorithms take turns, so that a noisy moment falls on all.
    """
    machine = measure_machine(comm)
    cells = []
    for size in sizes:
        n = size // np.dtype(dtype).itemsize
        send = (np.arange(n) % 3 + comm.Get_rank()).astype(dtype)
        recv = np.empty_like(send)
        calls = {name: _call(name, send, recv) for name in algorithms}
        right, traffic, repeat = {}, {}, {}
        for name, call in calls.items():
            seen = Recorded(comm)
            call(seen)
            traffic[name] = [seen.counts.messages, seen.counts.bytes]
            right[name] = _is_sum(recv, comm.Get_size())
            recv[...] = 0
            trial = _slowest(comm, [_timed(comm, call) for _ in range(3)]).min()
            repeat[name] = max(1, min(repeats, int(seconds / trial)))
        times: dict[str, list[float]] = {name: [] for name in algorithms}
        for turn in range(max(repeat.values())):
            for name in algorithms:
                if turn < repeat[name]:
                    times[name].append(_timed(comm, calls[name]))
        for name in algorithms:
            cells.append(
                {
                    "size": size,
                    "algorithm": name,
                    "seconds": _slowest(comm, times[name]).tolist(),
                    "sent": comm.gather(traffic[name]),
                    "right": all(comm.allgather(right[name])),
                }
            )
    library = " ".join(mpi().Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split())
    return {"machine": asdict(machine), "mpi": library, "cells": cells}


def _call(name: str, send: Array, recv: Array) -> Callable[[Any], None]:
    return lambda comm: allreduce(send, recv, comm, algorithm=name)


def _timed(comm: Any, call: Callable[[Any], None]) -> float:
    comm.Barrier()
    start = time.perf_counter()
    call(comm)
    return time.perf_counter() - start


def _slowest(comm: Any, seconds: list[float]) -> Array:
    longest = np.array(seconds)
    comm.Allreduce(mpi().IN_PLACE, longest, mpi().MAX)
    return longest


def _is_sum(recv: Array, p: int) -> bool:
    whole = p * (np.arange(recv.size) % 3) + p * (p - 1) // 2
    return bool(np.array_equal(recv, whole.astype(recv.dtype)))


def main() -> None:
    """Measure what the first argument asks, on all ranks; rank 0 writes the file of the second."""
    from paceline.launch import abort_on_error

    comm = mpi().COMM_WORLD
    with abort_on_error(comm):
        answer = measure(comm, **json.loads(sys.argv[1]))
        if comm.Get_rank() == 0:
            Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
