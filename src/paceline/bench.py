"""The allreduce benchmark: every collective at every size, on real ranks, beside its formula and the model.

For each: the 10th, 50th and 90th percentile of the time (a call lasts until its last rank is done); the bandwidths that
nccl-tests defines, algbw = size / time and busbw = algbw * 2(p-1)/p; messages and bytes that each rank sent, beside the
formula; the time by the alpha-beta-gamma model; and whether the sums are correct. The model's parameters are measured
on all ranks at once, since they share the machine's memory: neighbours send to each other at the same time, as the ranks
of a collective do.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import launch, names
from paceline.collectives import CostModel, Nodes, allreduce, cost, has_cost, recursive_doubling
from paceline.comm import Recorded, mpi_of
from paceline.compare.laws import fit_line
from paceline.errors import UsageError, unknown
from paceline.record.environment import environment, nodes_of
from paceline.text import size as size_text

Array = NDArray[Any]

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
LARGEST = 1 << 40
STEP = 4  # the factor between the sizes of a range
SIZES = tuple(8 << k for k in range(0, 22, 3))  # 8 bytes to 16 MiB: those that the model is fitted to
SECONDS = 0.05  # for each size


@dataclass(frozen=True, kw_only=True)
class Question:
    """The measurement to make: which collectives, on how many ranks, with how many bytes, how often."""

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    dtype: str
    repeats: int
    seconds: float

    def __post_init__(self) -> None:
        try:
            kind = np.dtype(self.dtype)
        except (TypeError, ValueError, SyntaxError):
            raise UsageError(f"dtype must be a NumPy number type; got {self.dtype!r}") from None
        if kind.kind not in "iufc" or kind.shape:
            raise UsageError(f"dtype must be a NumPy number type; got {self.dtype!r}")
        for ranks in self.ranks:
            if ranks < 2:
                raise UsageError(f"an allreduce needs at least 2 ranks; got {ranks}")
        for name in self.algorithms:
            if name not in names.names("collectives"):
                raise unknown("collective", name, names.names("collectives"))
        for size in self.sizes:
            if size < 1 or size % kind.itemsize:
                raise UsageError(
                    f"sizes must be multiples of {self.dtype}'s {kind.itemsize} bytes; got {size}"
                )
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1; got {self.repeats}")
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise UsageError(f"seconds must be positive and finite; got {self.seconds:g}")


def read_ranks(text: str) -> tuple[int, ...]:
    """Read rank counts, in the order given.

    >>> read_ranks("2,4,8")
    (2, 4, 8)
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise UsageError(f"-n takes rank counts such as 2,4,8; got {text!r}")
    return tuple(dict.fromkeys(int(word) for word in words))


def read_sizes(text: str) -> tuple[int, ...]:
    """Read sizes in bytes: a list, or a range in which each is four times the one before.

    >>> read_sizes("1KiB..64KiB,437544")
    (1024, 4096, 16384, 65536, 437544)
    """
    sizes: set[int] = set()
    for word in text.split(","):
        first, dots, last = word.partition("..")
        low = _read_bytes(first, text)
        high = _read_bytes(last, text) if dots else low
        if low < 1 or high < low:
            raise UsageError(f"sizes must rise from at least 1 byte; got {word!r}")
        while low <= high:
            sizes.add(low)
            low *= STEP
    return tuple(sorted(sizes))


def _read_bytes(word: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", word)
    if match is None or match[2].upper() not in UNITS:
        raise UsageError(f"sizes must look like 1KiB..64MiB or 4096,437544,16MiB; got {text!r}")
    size = float(match[1]) * UNITS[match[2].upper()]
    if size > LARGEST:
        raise UsageError(f"sizes must be at most {size_text(LARGEST)}; got {word.strip()!r}")
    if size != int(size):
        raise UsageError(f"sizes must be whole bytes; got {word.strip()!r}")
    return int(size)


# ---- the measurement


def run(question: Question, hosts: Sequence[launch.Host] = ()) -> dict[str, Any]:
    """Start the ranks, once for each rank count; return the measurements, with the theory beside them."""
    jobs = [_job(question, ranks, hosts) for ranks in question.ranks]
    return {"benchmark": "allreduce", **asdict(question), "environment": environment(threads=1), "jobs": jobs}


def _job(question: Question, ranks: int, hosts: Sequence[launch.Host]) -> dict[str, Any]:
    arguments = {k: v for k, v in asdict(question).items() if k != "ranks"}
    largest = max(question.sizes)
    launch.check_memory(
        2 * ranks * largest, f"{ranks} ranks need {{}} of memory for {size_text(largest)} each"
    )
    try:
        job = launch.call(measure, arguments, ranks=ranks, threads=1, hosts=hosts)
    except launch.RanksFailedError as failed:
        raise SystemExit(failed.status) from None
    here = Counter(job["nodes"]["ranks"])
    cores = sum(job["nodes"]["cores"])
    crowded = any(here[node] > count for node, count in enumerate(job["nodes"]["cores"]))
    layout = Nodes(tuple(job["nodes"]["ranks"]))
    itemsize = np.dtype(question.dtype).itemsize
    cells = [_with_theory(cell, layout, itemsize, job["machine"]) for cell in job["cells"]]
    return {"ranks": ranks, "cores": cores, "oversubscribed": crowded, **job, "cells": cells}


def _with_theory(
    cell: dict[str, Any], layout: Nodes, itemsize: int, machine: dict[str, float]
) -> dict[str, Any]:
    """Return a measured cell with its statistics, bandwidths, formula and model."""
    low, median, high = np.percentile(cell["seconds"], [10, 50, 90]).tolist()
    n, name, p = cell["size"] // itemsize, cell["algorithm"], len(layout.of)
    formula = model = None
    if has_cost(name):
        costs = [cost(name, n=n, p=p, r=r, itemsize=itemsize, nodes=layout) for r in range(p)]
        formula = [[each.messages, itemsize * each.sent] for each in costs]
        model = max(CostModel(**machine).seconds(each, itemsize) for each in costs)
    return {
        **cell,
        "median": median,
        "p10": low,
        "p90": high,
        "algbw": cell["size"] / median,
        "busbw": cell["size"] / median * 2 * (p - 1) / p,
        "formula": formula,
        "as_formula": None if formula is None else formula == cell["sent"],
        "model": model,
    }


# ---- on each rank


def measure(
    comm: Any, *, sizes: list[int], algorithms: list[str], dtype: str, repeats: int, seconds: float
) -> dict[str, Any]:
    """Measure every algorithm at every size: seconds of each call, what each rank sent, whether the sums are right.

    A call takes as long as its slowest rank. The algorithms take turns, so that a noisy moment affects all of them.
    """
    machine = measure_machine(comm)
    cells: list[dict[str, Any]] = []
    for size in sizes:
        cells += _measure_size(comm, size // np.dtype(dtype).itemsize, algorithms, dtype, repeats, seconds)
    library = " ".join(
        mpi_of(comm).Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split()
    )
    return {"machine": asdict(machine), "mpi": library, "nodes": nodes_of(comm), "cells": cells}


def _measure_size(
    comm: Any, n: int, algorithms: list[str], dtype: str, repeats: int, seconds: float
) -> list[dict[str, Any]]:
    send = (np.arange(n) % 3 + comm.Get_rank()).astype(dtype)
    recv = np.empty_like(send)
    calls = {name: partial(allreduce, send, recv, algorithm=name) for name in algorithms}
    cells, times = {}, {}
    for name, call in calls.items():
        seen = Recorded(comm)
        recv[...] = 0
        (first,) = _find_slowest(comm, [_time_call(comm, call, seen)])
        cells[name] = {
            "size": send.nbytes,
            "algorithm": name,
            "sent": comm.gather([seen.counts.messages, seen.counts.bytes]),
            "right": all(comm.allgather(_is_sum(recv, comm.Get_size()))),
        }
        times[name] = _find_slowest(
            comm, [_time_call(comm, call) for _ in range(3 if first < seconds else 1)]
        ).tolist()
    wanted = {name: min(repeats, seconds / max(min(first), 1e-9)) for name, first in times.items()}
    for turn in range(math.ceil(max(wanted.values()))):
        for name, call in calls.items():
            if turn >= 3 and turn < wanted[name]:
                times[name].append(_time_call(comm, call))
    for name, cell in cells.items():
        cell["seconds"] = _find_slowest(comm, times[name]).tolist()
    return list(cells.values())


def _time_call(comm: Any, call: Callable[[Any], None], seen: Any = None) -> float:
    """Return the seconds of one call on `comm`, or on `seen`, which counts its messages."""
    comm.Barrier()
    start = time.perf_counter()
    call(comm if seen is None else seen)
    return time.perf_counter() - start


def _find_slowest(comm: Any, seconds: list[float]) -> Array:
    longest = np.array(seconds)
    comm.Allreduce(mpi_of(comm).IN_PLACE, longest, mpi_of(comm).MAX)
    return longest


def _is_sum(recv: Array, p: int) -> bool:
    whole = p * (np.arange(recv.size) % 3) + p * (p - 1) // 2
    return bool(np.array_equal(recv, whole.astype(recv.dtype)))


def measure_machine(comm: Any) -> CostModel:
    """Measure alpha, beta, gamma and the cost of a call; collective. With an odd rank count, the last only computes."""
    p = comm.Get_size()
    passes, sums = [], []
    for size in SIZES:
        passes.append(_measure_both_ways(comm, size))
        sums.append(_median_of(comm, _prepare_sum(size)))
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


def _measure_both_ways(comm: Any, size: int) -> float:
    partner = comm.Get_rank() ^ 1
    here, there = np.zeros(size, np.uint8), np.zeros(size, np.uint8)

    def exchange() -> None:
        if partner < comm.Get_size():
            receiving, sending = comm.Irecv(there, partner), comm.Isend(here, partner)
            receiving.Wait()
            sending.Wait()

    seconds = _median_of(comm, exchange)
    return seconds if partner < comm.Get_size() else np.nan


def _prepare_sum(size: int) -> Callable[[], None]:
    a, b, c = (np.ones(size // 4, np.float32) for _ in range(3))

    def add() -> None:
        np.add(a, b, out=c)

    return add


def _median_of(comm: Any, work: Callable[[], None], *, together: bool = False) -> float:
    """Return the median seconds of `work`, repeated on all ranks at once; after a barrier if `together`."""
    trial = [_measure_seconds(comm, work, together) for _ in range(5)]
    repeats = np.array([np.clip(SECONDS / max(float(np.median(trial)), 1e-7), 5, 2000)], int)
    comm.Bcast(repeats)
    comm.Barrier()
    return float(np.median([_measure_seconds(comm, work, together) for _ in range(repeats[0])]))


def _measure_seconds(comm: Any, work: Callable[[], None], together: bool) -> float:
    if together:
        comm.Barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
