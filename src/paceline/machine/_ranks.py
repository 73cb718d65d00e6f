"""The ranks' side of a calibration."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.comm import mpi_of
from paceline.launch.cores import VARIABLE
from paceline.machine import _memory as memory
from paceline.machine import _pingpong as pingpong

Rounds = Callable[[int], tuple[list[float], ...]]
SWEEPS = 3  # a noisy moment falls on all, not on one
WARM = 3  # rounds of a sweep in which memory is not yet where it will be


def measure(comm: Any, *, sizes: list[int], seconds: float) -> dict[str, Any]:
    """Everything that is measured with this number of ranks, in `seconds` or so: medians over rounds and ranks."""
    p = comm.Get_size()
    limit = pingpong.eager_limit(comm)
    lengths = sorted({*sizes, limit, limit + 1, 2 * limit})
    cells: dict[str, Rounds] = {"barrier": memory.barriers(comm)}
    to_free: list[Callable[[], None]] = []
    for n in lengths:
        cells[f"exchange {n}"] = pingpong.exchange(comm, n)
        cells[f"combining {n}"] = pingpong.combining(comm, n)
        cells[f"calls {n}"] = pingpong.calls(comm, n)
        cells[f"taking {n}"] = pingpong.taking(comm, n)
        if p == 2:
            cells[f"alone {n}"] = pingpong.taking(comm, n, alone=True)
    for n in sizes:
        cells[f"allreduce {n}"] = memory.allreduce(comm, n)
    amounts = {n: memory.row_bytes(n, p) for n in sizes if n >= 64 * p}
    for n, length in amounts.items():
        cells[f"rows {n}"], free = memory.rows(comm, length)
        to_free.append(free)
    found = _medians(comm, cells, seconds)
    for free in to_free:
        free()

    def table(name: str, place: int = 0, at: dict[int, int] | None = None) -> list[list[float]]:
        points = [(n, found[f"{name} {n}"][place]) for n in lengths if f"{name} {n}" in found]
        points = [(n, value) for n, value in points if np.isfinite(value)]
        return [[n if at is None else at[n], value] for n, value in points]

    library = " ".join(
        mpi_of(comm).Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split()
    )
    return {
        "ranks": p,
        "mpi": library,
        "bound": VARIABLE in os.environ,
        "eager_limit": limit,
        "poll": float(np.median(pingpong.polling(comm, 200))),
        "exchange": table("exchange"),
        "combine": table("combining"),
        "recombine": table("exchange", 1),
        "post": table("calls"),
        "send": table("calls", 1),
        "take": table("taking"),
        "alone": table("alone"),
        "allreduce": table("allreduce"),
        "cold": [
            [n, max(0.0, later - soon)]
            for (n, soon), (_, later) in zip(table("allreduce"), table("allreduce", 1), strict=True)
        ],
        "copy": table("rows", 0, amounts),
        "sum": table("rows", 1, amounts),
        "barrier": found["barrier"][0],
        "fence": found["barrier"][1],
    }


def _medians(comm: Any, cells: dict[str, Rounds], seconds: float) -> dict[str, list[float]]:
    """The medians of what each cell measures, the cells taking turns, each for as long as any other."""
    counts = {}
    for name, rounds in cells.items():
        rounds(WARM)
        comm.Barrier()
        start = time.perf_counter()
        rounds(WARM)
        one = np.array([(time.perf_counter() - start) / WARM])
        comm.Allreduce(mpi_of(comm).IN_PLACE, one, mpi_of(comm).MAX)
        counts[name] = int(np.clip(seconds / SWEEPS / len(cells) / one[0], 2, 2000)) + WARM
    laps: dict[str, list[list[float]]] = {name: [] for name in cells}
    for _ in range(SWEEPS):
        for name, rounds in cells.items():
            comm.Barrier()
            for place, some in enumerate(rounds(counts[name])):
                if len(laps[name]) <= place:
                    laps[name].append([])
                laps[name][place] += some[WARM:]
    found = {}
    for name, all_laps in laps.items():
        mine = np.array([_median(some) for some in all_laps])
        every = np.empty((comm.Get_size(), mine.size))
        comm.Allgather(mine, every)
        found[name] = [_median(column) for column in every.T]
    return found


def _median(values: Any) -> float:
    """Of those that are numbers: laps that went wrong are none."""
    known = np.asarray(values)[np.isfinite(values)] if len(values) else np.empty(0)
    return float(np.median(known)) if known.size else float("nan")
