"""The ranks' side of measuring a job: masters and workers of a parameter server, really at it, for a short time.

A master's laps are: waiting, what it does before an update, the update, and what it does after, which has the copy for
the worker in it. MPI's own calls are the network's, not the job's, and are taken off.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm import Recorded, mpi_of
from paceline.comm.clocks import Stopwatch
from paceline.data import Batches, Subset
from paceline.machine._pingpong import calls
from paceline.machine._work import COMPUTE, RATE, Points, mean, median
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.parameter_server._master import Inbox
from paceline.strategies.parameter_server._placement import place
from paceline.training.job import Parts
from paceline.worker import Worker
from paceline.worker.steps import COLUMNS

Array = NDArray[Any]


class Laps(Stopwatch):
    """A stopwatch that remembers every lap."""

    __slots__ = ("laps",)

    def __init__(self) -> None:
        super().__init__(time.perf_counter)
        self.laps: list[tuple[str, float]] = []

    def lap(self, kind: str) -> float:
        elapsed = super().lap(kind)
        self.laps.append((kind, elapsed))
        return elapsed


def serving(
    parts: Parts, comm: Any, strategy: ParameterServer, batch: int, seconds: float, gradient: Points
) -> dict[str, Points]:
    """gradient, rule and serve, as masters and workers on the ranks of `comm` have them; collective.

    `gradient`: what was measured of ranks that compute alone.
    """
    ranks, layers = comm.Get_size(), parts.model.layers
    masters = min(strategy.masters, ranks // 2)
    alone = float(gradient[-1][1])  # of a whole batch
    post, send = _calls(comm)
    rule: dict[int, list[float]] = {}
    serve, computed = [], []
    for placement in ("layers", "even"):
        count = min(masters, len(layers)) if placement == "layers" else masters
        server = replace(strategy, masters=count, placement=placement, bound=None, backup=0)
        pieces = place(layers, count, server.placement)
        me, sizes = _run(parts, comm, server, batch, seconds / 2, alone)
        if comm.Get_rank() < count:
            mine = sum(piece.master == comm.Get_rank() for piece in pieces)
            workers = ranks - count
            before, update, after = (_later(laps) for laps in _events(me.watch))
            sizes = _later(sizes)
            shown = {size: _show(size, workers, parts.model.x.dtype) for size in set(sizes)}
            for size, seconds_of in zip(sizes, update, strict=False):
                rule.setdefault(size, []).append(seconds_of + shown[size])
            per_gradient = post + (send if comm.Get_rank() == 0 else 0)
            others = (
                post + send + per_gradient / max(mine, 1) + np.mean([shown[size] for size in sizes] or [0])
            )
            waiting = _waiting(me, workers * max(mine, 1))
            serve.append(_middle(before) + _middle(after) - others + waiting)
        else:
            rows = np.array(me.log).reshape(-1, len(COLUMNS))
            rows = rows[max(2, len(rows) // 4) :]
            computed += (rows[:, COMPUTE] - len(pieces) * send).tolist()
        me.close()
    slower = mean(comm, np.array(computed)) / alone
    factor = float(np.clip(slower, 0.8, 3.0)) if np.isfinite(slower) else 1.0
    return {
        "gradient": [[samples, factor * taken] for samples, taken in gradient],
        "rule": _gathered(comm, rule),
        "serve": [[1, max(median(comm, np.array(serve)), 1e-6)]],
    }


def _run(
    parts: Parts, comm: Any, server: ParameterServer, batch: int, seconds: float, alone: float
) -> tuple[Worker, list[int]]:
    """A short run; and, on a master, the elements of each update that it made."""
    ranks = comm.Get_size()
    workers = ranks - server.masters
    draws = np.array([np.clip(workers * seconds / (3 * alone), 12 * workers, 4000)], np.int64)
    comm.Bcast(draws)
    few = Subset(parts.data.train, np.arange(1))
    batches = Batches(
        parts.data.train, batch=batch, dtype=parts.model.x.dtype, rank=comm.Get_rank(), ranks=ranks,
        draws=int(draws[0]),
    )  # fmt: skip
    sizes: list[int] = []

    def charge(kind: str, amount: float) -> None:
        if kind == "rule":
            sizes.append(int(amount))

    me = Worker(
        comm=Recorded(comm), model=parts.model, data=replace(parts.data, validation=few), batches=batches,
        update=parts.update, schedule=parts.schedule, rate=RATE, epochs=1, on_divergence="ignore", charge=charge,
    )  # fmt: skip
    me.watch = Laps()
    server.train(me)
    return me, sizes


def _events(watch: Any) -> tuple[list[float], list[float], list[float]]:
    """Of each update: seconds before it, of it, after it."""
    laps = watch.laps
    found = [
        (
            laps[i - 1][1],
            laps[i][1],
            laps[i + 1][1] if i + 1 < len(laps) and laps[i + 1][0] == "exchange" else 0.0,
        )
        for i in range(1, len(laps))
        if laps[i][0] == "update"
    ]
    before, update, after = (list(some) for some in zip(*found, strict=True)) if found else ([], [], [])
    return before, update, after


def _later(values: list[Any]) -> list[Any]:
    """All but the first quarter: memory is not yet where it will be."""
    return values[len(values) // 4 :]


def _middle(laps: list[float]) -> float:
    """The mean without the shortest and longest of them: some events are a gradient's first, and take longer."""
    if not laps:
        return 0.0
    low, high = np.percentile(laps, [2, 95])
    return float(np.mean([lap for lap in laps if low <= lap <= high]))


def _show(size: int, workers: int, dtype: Any) -> float:
    """Seconds of a copy for one worker after the other."""
    x, rows = np.ones(size, dtype), np.ones((workers, size), dtype)
    taken = []
    for turn in range(max(8, 2 * workers)):
        start = time.perf_counter()
        np.copyto(rows[turn % workers], x)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def _waiting(me: Worker, requests: int) -> float:
    """Seconds that looking through so many receives takes, when one of them has come: a small message of its own."""
    comm = mpi_of(me.comm).COMM_SELF
    inbox = Inbox(Stopwatch(time.perf_counter))
    room, one, taken = np.zeros((requests, 1)), np.ones(1), []
    for tag in range(requests):
        inbox.expect(("gradient", tag, 0), comm.Irecv(room[tag], 0, tag=tag))
    for turn in range(requests + 100):
        tag = turn % requests
        comm.Send(one, 0, tag=tag)
        start = time.perf_counter()
        inbox.arrived(wait=True)
        taken.append(time.perf_counter() - start)
        inbox.expect(("gradient", tag, 0), comm.Irecv(room[tag], 0, tag=tag))
    for tag in range(requests):
        comm.Send(one, 0, tag=tag)
        inbox.take("gradient", tag)
    return float(np.median(taken))


def _calls(comm: Any) -> tuple[float, float]:
    """Seconds to post a receive, and to send a small message; collective."""
    if comm.Get_size() % 2:
        return 1e-6, 1e-6
    posting, sending = calls(comm, 8)(200)
    return median(comm, np.array(posting)), median(comm, np.array(sending))


def _gathered(comm: Any, rule: dict[int, list[float]]) -> Points:
    """The means of all masters, by elements; the same on every rank. Of some rules every fourth update is longer."""
    every = comm.allgather({size: _most(taken) for size, taken in rule.items()})
    sizes = sorted({size for some in every for size in some})
    return [[size, float(np.mean([some[size] for some in every if size in some]))] for size in sizes]


def _most(laps: list[float]) -> float:
    """The mean, the longest hundredth left out."""
    return float(np.mean(np.sort(laps)[: max(1, len(laps) - len(laps) // 100)]))
