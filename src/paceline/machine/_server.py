"""The ranks' side of measuring a job: masters and workers of a parameter server, really at work, for a short time.

What is measured is what the strategy declares as its own kinds of work: `rule`, an update with a stale gradient and the
copy that its worker is shown, and `serve`, handling a gradient. MPI's own calls belong to the network, not to the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm import Recorded, mpi_of
from paceline.data import Batches, Subset
from paceline.machine._work import COMPUTE, RATE, Points, mean, median
from paceline.record import STEP_COLUMNS
from paceline.strategies.parameter_server import Inbox, ParameterServer, place
from paceline.training.job import Parts
from paceline.worker import Worker

Array = NDArray[Any]


class Measured(Worker):
    """A real worker that notes how long its strategy's own kinds of work take."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.performed: dict[str, list[tuple[int, float]]] = {}
        """By kind, for every vector function performed: its elements and its seconds."""
        self.handled: list[float] = []
        """Seconds of every call of a handler, without the vector functions and MPI calls in it."""
        self._inside = 0.0

    def perform(
        self, kind: str, amount: float, function: Callable[..., object], x: Array, *arguments: Any
    ) -> None:
        start = time.perf_counter()
        function(x, *arguments)
        taken = time.perf_counter() - start
        self._inside += taken
        self.performed.setdefault(kind, []).append((x.size, taken))

    def overhead(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> None:
            seconds, self._inside = self.watch.seconds, 0.0
            messages, start = seconds["exchange"] + seconds["wait"], time.perf_counter()
            function(*arguments)
            taken = time.perf_counter() - start
            messages = seconds["exchange"] + seconds["wait"] - messages
            self.handled.append(taken - messages - self._inside)

        return measured


def serving(
    parts: Parts, comm: Any, strategy: ParameterServer, batch: int, seconds: float, gradient: Points
) -> dict[str, Points]:
    """Measure gradient, rule and serve, as masters and workers on the ranks of `comm` have them; collective.

    `gradient`: what was measured of ranks that compute alone.
    """
    ranks, layers = comm.Get_size(), parts.model.layers
    masters = min(strategy.masters, ranks // 2)
    alone = float(gradient[-1][1])  # of a whole batch
    rule: dict[int, list[float]] = {}
    serve, computed = [], []
    for placement in ("layers", "even"):
        count = min(masters, len(layers)) if placement == "layers" else masters
        server = replace(strategy, masters=count, placement=placement, bound=None, backup=0)
        me = _run(parts, comm, server, batch, seconds / 2, alone)
        if comm.Get_rank() < count:
            pieces = place(layers, count, server.placement)
            mine = sum(piece.master == comm.Get_rank() for piece in pieces)
            updates, shown = (_later(me.performed.get(kind, [])) for kind in ("rule", "show"))
            for (size, updating), (_, showing) in zip(updates, shown, strict=False):
                rule.setdefault(size, []).append(updating + showing)
            waiting = _waiting(comm, requests=(ranks - count) * max(mine, 1))
            serve.append(_middle(_later(me.handled)) + waiting)
        else:
            rows = np.array(me.log).reshape(-1, len(STEP_COLUMNS))
            computed += rows[max(2, len(rows) // 4) :, COMPUTE].tolist()
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
) -> Measured:
    """Make a short run."""
    ranks = comm.Get_size()
    workers = ranks - server.masters
    draws = np.array([np.clip(workers * seconds / (3 * alone), 12 * workers, 4000)], np.int64)
    comm.Bcast(draws)
    few = Subset(parts.data.train, np.arange(1))
    batches = Batches(
        parts.data.train, batch=batch, dtype=parts.model.x.dtype, rank=comm.Get_rank(), ranks=ranks,
        draws=int(draws[0]),
    )  # fmt: skip
    me = Measured(
        comm=Recorded(comm), model=parts.model, data=replace(parts.data, validation=few), batches=batches,
        update=parts.update, schedule=parts.schedule, rate=RATE, epochs=1, on_divergence="ignore", in_step=False,
    )  # fmt: skip
    server.train(me)
    return me


def _later(values: list[Any]) -> list[Any]:
    """Return all but the first quarter: memory is not yet where it will be."""
    return values[len(values) // 4 :]


def _middle(laps: list[float]) -> float:
    """Return the mean without the shortest and longest: a gradient's first piece takes longer than the others."""
    if not laps:
        return 0.0
    low, high = np.percentile(laps, [2, 95])
    return float(np.mean([lap for lap in laps if low <= lap <= high]))


def _waiting(comm: Any, requests: int) -> float:
    """Return the seconds of looking through this many receives when one has come: a small message to this rank itself."""
    comm = mpi_of(comm).COMM_SELF
    inbox = Inbox()
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


def _gathered(comm: Any, rule: dict[int, list[float]]) -> Points:
    """Return the means of all masters, by elements, on every rank. With some rules every fourth update is longer."""
    every = comm.allgather({size: _most(taken) for size, taken in rule.items()})
    sizes = sorted({size for some in every for size in some})
    return [[size, float(np.mean([some[size] for some in every if size in some]))] for size in sizes]


def _most(laps: list[float]) -> float:
    """Return the mean without the longest hundredth."""
    return float(np.mean(np.sort(laps)[: max(1, len(laps) - len(laps) // 100)]))
