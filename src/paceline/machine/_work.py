"""The ranks' side of measuring a job: its own work, done by every rank alone, by all of them at once.

What is timed is the loop of a worker with the laps of its own stopwatch, so that fetching samples and all the Python of
a step are in it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import Factored, factors_pay, make_exchange
from paceline.comm import mpi_of
from paceline.data import Batch, Batches, chunks
from paceline.record import STEP_COLUMNS
from paceline.training.job import Parts
from paceline.worker import Steps

Array = NDArray[Any]
Points = list[list[float]]
SWEEPS = 3
WARM = 2
RATE = 1e-12  # so small that parameters stay as they are, however long it goes on
COUNT, COMPUTE, UPDATE = (STEP_COLUMNS.index(name) for name in ("count", "compute", "update"))


def alone(parts: Parts, comm: Any, batch: int, seconds: float) -> dict[str, Points]:
    """gradient, update and evaluate, with every rank of `comm` at it on its own; collective."""
    loops = {size: _loop(parts, comm, size) for size in doubling(batch)}
    laps = _together(comm, [loop.run for loop in loops.values()], 0.7 * seconds)
    gradient = [[size, mean(comm, loop.column(COMPUTE))] for size, loop in loops.items()]
    uneven = [[size, spread(comm, loop.column(COMPUTE))] for size, loop in loops.items()]
    whole = mean(comm, np.concatenate([loop.column(UPDATE) for loop in loops.values()]))
    smaller = [int(n) for n in parts.model.x.size / 4.0 ** np.arange(1, 6) if n >= 16]
    steps = next(iter(loops.values())).me
    update = {n: _updates(steps, n) for n in reversed(smaller)}
    evaluate = {n: _evaluations(parts, n) for n in _sizes_to_evaluate(parts)}
    laps = _together(comm, [*update.values(), *evaluate.values()], 0.3 * seconds)
    found = [median(comm, np.array(some)) for some in laps]
    return {
        "gradient": gradient,
        "spread": uneven,
        "update": [*map(list, zip(update, found, strict=False)), [parts.model.x.size, whole]],
        "evaluate": [list(both) for both in zip(evaluate, found[len(update) :], strict=True)],
    }


def doubling(most: int) -> list[int]:
    """1, 2, 4 … and `most`.

    >>> doubling(10)
    [1, 2, 4, 8, 10]
    """
    return sorted({*(1 << k for k in range(most.bit_length())), most})


def median(comm: Any, laps: Array) -> float:
    """Return the median over the ranks of their medians; collective."""
    every = np.empty(comm.Get_size())
    comm.Allgather(np.array([np.median(laps) if len(laps) else np.nan]), every)
    return float(np.nanmedian(every)) if np.isfinite(every).any() else float("nan")


def mean(comm: Any, laps: Array) -> float:
    """Return the mean over all ranks without the longest hundredth, because a run's seconds are sums; collective."""
    every = np.empty(comm.Get_size())
    kept = np.sort(laps)[: max(1, len(laps) - len(laps) // 100)]
    comm.Allgather(np.array([kept.mean() if len(kept) else np.nan]), every)
    return float(np.nanmean(every)) if np.isfinite(every).any() else float("nan")


def spread(comm: Any, laps: Array) -> float:
    """Return how uneven laps are between ranks, step by step: the sigma of log-normal ones whose last is as late.

    A step that all take together takes as long as its last rank, on average exp(sigma m) times the middle one, where m is
    the largest of as many normal numbers. Collective; NaN where there are too few.
    """
    ranks = comm.Get_size()
    steps = np.array([len(laps)])
    comm.Allreduce(mpi_of(comm).IN_PLACE, steps, mpi_of(comm).MIN)
    if ranks == 1 or steps[0] < 8:
        return float("nan")
    rows = np.empty((ranks, int(steps[0])))
    comm.Allgather(np.ascontiguousarray(laps[: steps[0]], float), rows)
    last, middle = rows.max(axis=0), rows.mean(axis=0)
    kept = np.argsort(last)[: len(last) - len(last) // 50]
    lateness = float(last[kept].mean() / middle[kept].mean())
    largest = float(np.random.default_rng(0).standard_normal((4096, ranks)).max(axis=1).mean())
    return math.log(lateness) / largest


class Loop:
    """A worker's loop over batches of one size, which can be continued."""

    def __init__(self, parts: Parts, batches: Batches, rank: int, size: int) -> None:
        self.me = Steps(
            rank=rank, size=size, model=parts.model, batches=batches, update=parts.update, schedule=parts.schedule,
            rate=RATE, epochs=1,
        )  # fmt: skip
        self.batches: Iterator[Batch] = itertools.chain.from_iterable(map(self.me.batches, itertools.count()))
        self._most = -(-batches.batch // size)

    def run(self, until: float) -> None:
        """Take steps until this time, at least two."""
        me = self.me
        me.watch.restart()
        for done, batch in enumerate(self.batches):
            me.gradient(batch)
            me.step(me.model.g, batch.total)
            if done >= 1 and time.perf_counter() > until:
                break

    def column(self, number: int) -> Array:
        """Return the laps of one kind, of whole pieces, without the first: memory is not yet where it will be."""
        rows = np.array(self.me.log).reshape(-1, len(STEP_COLUMNS))
        rows = rows[max(WARM, len(rows) // 4) :]
        found: Array = rows[rows[:, COUNT] >= self._most - 1][:, number]
        return found


def _loop(parts: Parts, comm: Any, size: int) -> Loop:
    batches = Batches(parts.data.train, batch=size, seed=comm.Get_rank(), dtype=parts.model.x.dtype)
    return Loop(parts, batches, rank=0, size=1)


def _together(comm: Any, works: Sequence[Callable[[float], Any]], seconds: float) -> list[list[float]]:
    """Run each work until a given time, all ranks the same one at a time, in turns; return what they return."""
    found: list[list[float]] = [[] for _ in works]
    each = seconds / SWEEPS / max(len(works), 1)
    slow = [False] * len(works)
    for _ in range(SWEEPS):
        for place, work in enumerate(works):
            if slow[place]:
                continue
            comm.Barrier()
            start = time.perf_counter()
            found[place] += work(start + each) or ()
            late = np.array([time.perf_counter() - start > max(4 * each, 0.5)])
            comm.Allreduce(mpi_of(comm).IN_PLACE, late, mpi_of(comm).LOR)
            slow[place] = bool(late[0])  # once is enough of what takes so long
    return found


def _updates(me: Steps, elements: int) -> Callable[[float], list[float]]:
    part = slice(0, elements)

    def work(until: float) -> list[float]:
        g, found = me.model.g[part], []
        me.watch.restart()
        for done in itertools.count():
            me.step(g, 1, part)
            found.append(me.watch.lap("update"))
            if done >= 1 and time.perf_counter() > until:
                return found[WARM:] or found
        raise AssertionError

    return work


def _evaluations(parts: Parts, samples: int) -> Callable[[float], list[float]]:
    split = _to_evaluate(parts)

    def work(until: float) -> list[float]:
        found: list[float] = []
        while True:  # passes over the split, as an evaluation is one, each with memory of its own
            last = time.perf_counter()
            for inputs, labels in chunks(split, size=samples, dtype=parts.model.x.dtype):
                if len(labels) < samples:
                    break
                parts.model.evaluate(inputs, labels)
                now = time.perf_counter()
                found.append(now - last)
                last = now
                if len(found) > 2 and now > until:
                    return found[1:]

    return work


def _to_evaluate(parts: Parts) -> Any:
    data = parts.data
    return next(split for split in (data.validation, data.test, data.train) if len(split))


def _sizes_to_evaluate(parts: Parts) -> list[int]:
    most = min(1000, len(_to_evaluate(parts)))
    return sorted({n for n in (1, 10, 100) if n < most} | {most})


# ---- The ranks' side of measuring a job: a synchronous step, in which memory comes from other ranks' caches.

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
    factored = [size for size in sizes if name in FACTORED and factors_pay(parts.model, size, ranks)]
    each = seconds / max(1, len(sizes) + len(factored))
    found: dict[str, Points] = {"gradient": [], "update": [], "factors": [], "part": []}
    if not sizes:
        return found
    with make_exchange(name, parts.model, comm) as exchange:
        updates = []
        for size in sizes:
            loop = _sync_loop(parts, comm, size)
            _steps(comm, loop, exchange, exchange.reduce, each)
            found["gradient"].append([size // ranks, mean(comm, loop.column(COMPUTE))])
            updates.append(loop.column(UPDATE))
        updated = mean(comm, np.array([float(exchange.part.stop - exchange.part.start)]))  # some have less
        found["update"].append([max(1.0, updated), mean(comm, np.concatenate(updates))])
    for size in factored:
        assert factors_pay(parts.model, size, ranks)
        with Factored(parts.model, comm, size) as factors:
            loop, reduce = _sync_loop(parts, comm, size), _Parts(factors)
            _steps(comm, loop, factors, reduce, each)
            found["factors"].append([size // ranks, mean(comm, loop.column(COMPUTE))])
            found["part"].append([size * parts.model.x.size / ranks, mean(comm, np.array(reduce.taken[2:]))])
    return found


class _Parts:
    """The `reduce` of a `Factored` exchange, its own work timed apart from the waiting."""

    def __init__(self, exchange: Factored) -> None:
        self._exchange = exchange
        self.taken: list[float] = []

    def __call__(self) -> Any:
        self._exchange._shared.fence()
        start = time.perf_counter()
        g = self._exchange._sum()
        self.taken.append(time.perf_counter() - start)
        return g


def _sync_loop(parts: Parts, comm: Any, size: int) -> Loop:
    rank, ranks = comm.Get_rank(), comm.Get_size()
    batches = Batches(parts.data.train, batch=size, dtype=parts.model.x.dtype, rank=rank, ranks=ranks)
    return Loop(parts, batches, rank=rank, size=ranks)


def _steps(comm: Any, loop: Loop, exchange: Any, reduce: Callable[[], Any], seconds: float) -> None:
    """Take as many steps of all ranks together as there is time for."""
    me, start, wanted = loop.me, time.perf_counter(), FIRST
    me.watch.restart()
    for done, batch in enumerate(loop.batches, start=1):
        me.gradient(batch)
        with me.watch.during("exchange"):
            g = reduce()
        me.step(g, batch.total, exchange.part)
        with me.watch.during("exchange"):
            exchange.publish()
        if done == FIRST:
            one = np.array([(time.perf_counter() - start) / done])
            comm.Allreduce(mpi_of(comm).IN_PLACE, one, mpi_of(comm).MAX)
            wanted = FIRST + int(min(2000, seconds / one[0]))
            me.watch.restart()
        if done >= wanted:
            break
