"""The ranks' side of measuring a job: a synchronous step, in which memory comes from other ranks' caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.collectives._exchange import make_exchange
from paceline.collectives._factored import Factored, pays
from paceline.comm import mpi
from paceline.data import Batches
from paceline.job import Parts
from paceline.sim._calibrate_work import COMPUTE, UPDATE, Loop, Points, doubling, mean

FACTORED = ("auto", "shared-memory")
"""The collectives that stand for an exchange of factors, where that pays."""

FIRST = 6  # steps after which the ranks agree on how many more


def together(parts: Parts, comm: Any, piece: int, seconds: float, name: str) -> dict[str, Points]:
    """gradient and update as the ranks of `comm` have them that exchange by this collective; collective.

    What others have read or written since is in their caches, and comes from there. With `shared-memory` also factors and
    part. `piece`: samples of one rank, at most.
    """
    ranks = comm.Get_size()
    sizes = [ranks * size for size in doubling(piece) if ranks * size <= len(parts.data.train)]
    factored = [size for size in sizes if name in FACTORED and pays(parts.model, size, ranks)]
    each = seconds / max(1, len(sizes) + len(factored))
    found: dict[str, Points] = {"gradient": [], "update": [], "factors": [], "part": []}
    if not sizes:
        return found
    with make_exchange(name, parts.model, comm) as exchange:
        updates = []
        for size in sizes:
            loop = _loop(parts, comm, size)
            _steps(comm, loop, exchange, exchange.reduce, each)
            found["gradient"].append([size // ranks, mean(comm, loop.column(COMPUTE))])
            updates.append(loop.column(UPDATE))
        updated = mean(comm, np.array([float(exchange.part.stop - exchange.part.start)]))  # some have less
        found["update"].append([max(1.0, updated), mean(comm, np.concatenate(updates))])
    for size in factored:
        assert pays(parts.model, size, ranks)
        with Factored(parts.model, comm, size) as factors:
            loop, reduce = _loop(parts, comm, size), _Parts(factors)
            _steps(comm, loop, factors, reduce, each)
            found["factors"].append([size // ranks, mean(comm, loop.column(COMPUTE))])
            found["part"].append([size * parts.model.x.size / ranks, mean(comm, np.array(reduce.taken[2:]))])
    return found


class _Parts:
    """What a `Factored` exchange does to reduce, its own work timed apart from the waiting."""

    def __init__(self, exchange: Factored) -> None:
        self._exchange = exchange
        self.taken: list[float] = []

    def __call__(self) -> Any:
        self._exchange._shared.fence()
        start = time.perf_counter()
        g = self._exchange._sum()
        self.taken.append(time.perf_counter() - start)
        return g


def _loop(parts: Parts, comm: Any, size: int) -> Loop:
    rank, ranks = comm.Get_rank(), comm.Get_size()
    batches = Batches(parts.data.train, batch=size, dtype=parts.model.x.dtype, rank=rank, ranks=ranks)
    return Loop(parts, batches, rank=rank, size=ranks)


def _steps(comm: Any, loop: Loop, exchange: Any, reduce: Callable[[], Any], seconds: float) -> None:
    """As many steps of all ranks together as there is time for."""
    me, start, wanted = loop.me, time.perf_counter(), FIRST
    me.watch.restart()
    for done, batch in enumerate(loop.batches, start=1):
        me.gradient(batch)
        g = reduce()
        me.watch.lap("exchange")
        me.step(g, batch.total, exchange.part)
        exchange.publish()
        me.watch.lap("exchange")
        if done == FIRST:
            one = np.array([(time.perf_counter() - start) / done])
            comm.Allreduce(mpi().IN_PLACE, one, mpi().MAX)
            wanted = FIRST + int(min(2000, seconds / one[0]))
            me.watch.restart()
        if done >= wanted:
            break
