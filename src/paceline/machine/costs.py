"""The costs of one job's work on this machine, measured by ranks started for that purpose, and cached.

The ranks measure work without communication, which all of them do at the same time (`measure`). A worker's loop is timed
by the laps of its own stopwatch, which include fetching samples and all Python code of a step. A synchronous strategy's
steps are timed together, because memory then comes from other ranks' caches. A short real run of a parameter server
measures the strategy's own kinds of work: `rule`, an update with a stale gradient and the copy for its worker, `serve`,
handling a gradient, `lead`, what only master 0 does for it, and `prepare`, a worker's own code between its calls. MPI's
own calls belong to the network, not to the job.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import Factored, factors_pay, make_exchange
from paceline.comm import Recorded, mpi_of
from paceline.data import Batch, Batches, Keeps, Subset, chunks
from paceline.errors import UsageError
from paceline.launch import keep_memory, limit_threads
from paceline.launch.resources import CORES_VARIABLE
from paceline.machine.profile import FORMAT, Costs
from paceline.record import STEP_COLUMNS
from paceline.strategies import Strategy
from paceline.strategies.parameter_server import Inbox, ParameterServer, place
from paceline.training.job import Components, Job, build_component
from paceline.vmpi.compute import Curves, interpolate, make_monotonic
from paceline.worker import Steps, Worker

Array = NDArray[Any]
Points = list[list[float]]
log = logging.getLogger(__name__)
ALONE = "alone"
SECONDS = 2.0  # for each kind of loop, with each number of ranks
NEAR = 1e-5  # seconds of work whose variation is taken as one
SWEEPS = 3
WARM = 2
RATE = 1e-12  # so small that the parameters never change noticeably
COUNT, COMPUTE, UPDATE = (STEP_COLUMNS.index(name) for name in ("count", "compute", "update"))
FIRST = 6  # steps after which the ranks agree on the number of further steps
FACTORED = ("auto", "shared-memory")
"""The collectives that exchange factors where that is faster."""


def measure_costs(
    job: Job,
    ranks: Sequence[int] | None = None,
    *,
    seconds: float = SECONDS,
    alone: Costs | None = None,
    own: bool = True,
    limit: float | None = None,
) -> Costs:
    """Measure the costs of the job's work, with each number of processes working at the same time.

    `ranks`: by default 1, 2, 4 … up to the cores. Threads are the job's, one per rank unless it says otherwise.
    `alone`: known costs of the work that a rank does on its own, with the same numbers of ranks.
    `own`: measure the strategy's own kinds of work too, and not just what a rank does with any strategy.
    `limit`: seconds after which a measurement with one number of ranks is ended, and a RanksFailedError raised.
    """
    from paceline.launch import machine_cores

    if own and job.launcher() == "torch":
        raise UsageError(f"{job.name()} starts its processes itself, so its costs cannot be measured")
    job, _ = _prepare_job(job)
    answers = {}
    for count in numbers(ranks, machine_cores()):
        known = None if alone is None else _points(alone, count)
        if known is not None and count == 1:
            answers[count] = {"alone": known, "more": {}, "bound": True}
        else:
            log.info("measuring %s on %d processes", _model_name(job), count)
            answers[count] = _answer(job, count, seconds, known, own, limit)
    costs = make_costs(job, answers, own=own)
    return costs if alone is None else replace(costs, spread=alone.spread, spreads=alone.spreads)


def measure_work(
    comm: Any, *, job: Job, seconds: float, known: dict[str, Any] | None = None, own: bool = True
) -> dict[str, Any]:
    """Measure the costs of the job's work on the ranks of an MPI communicator; return JSON values. Collective.

    `known`: what another answer says that each rank does on its own. `own`: as for `measure_costs`.
    """
    data = job.load()
    return measure(
        comm, job=job, data=data, seconds=seconds, threads=job.config.threads or 1, known=known, own=own
    )


def make_costs(
    job: Job, answers: dict[int, dict[str, Any]], *, own: bool = True, cores: int | None = None
) -> Costs:
    """Make the costs of a job from the answers of `measure_work`, by the number of ranks.

    `cores`: of the machine that was measured, if not this one.
    """
    from paceline.launch import machine_cores
    from paceline.record.environment import command_without_paths, processor

    cores = cores or machine_cores()
    job, parameters = _prepare_job(job)
    tables: dict[str, dict[int, list[list[float]]]] = {}
    spreads: dict[int, list[list[float]]] = {}
    seconds: dict[int, list[list[float]]] = {}
    bound = True
    for count, answer in answers.items():
        bound &= answer["bound"] or count > cores
        alone = dict(answer["alone"])
        if known := [[amount, sigma] for amount, sigma in alone.pop("spread", ()) if sigma == sigma]:
            spreads[count] = known
        seconds[count] = alone["gradient"]
        for kind, points in merge_tables(alone, answer["more"]).items():
            fair = min(1.0, cores / count)  # more ranks than cores take turns, which would distort the costs
            tables.setdefault(kind, {})[count] = [[amount, fair * taken] for amount, taken in points]
    if not bound:
        log.warning(
            "other programs were running, so the measured costs may be too high: `--recalibrate` measures them again"
        )
    return Costs(
        processor=processor(),
        cores=cores,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        command=command_without_paths(),
        about=f"{_model_name(job)}, {parameters} parameters, on {job.data.name}; {job.name() if own else 'any strategy'}",
        work={kind: Curves.of(by_ranks) for kind, by_ranks in tables.items()},
        spread=float(median(sigma for known in spreads.values() for _, sigma in known)) if spreads else 0.0,
        spreads=Curves.of({count: _key_by_seconds(known, seconds[count]) for count, known in spreads.items()})
        if spreads
        else None,
    )


def _key_by_seconds(spreads: list[list[float]], gradient: list[list[float]]) -> list[list[float]]:
    """Return the variation by the seconds of the work instead of its samples.

    >>> _key_by_seconds([[1, 0.25], [2, 0.75], [4, 0.125]], [[1, 0.5], [2, 0.500001], [4, 0.75], [8, 1.0]])
    [[0.5, 0.5], [0.75, 0.125]]
    """
    taken = {amount: seconds for amount, seconds in gradient if seconds == seconds}
    points = sorted((taken[amount], max(sigma, 0.0)) for amount, sigma in spreads if amount in taken)
    found: list[tuple[float, list[float]]] = []
    for seconds, sigma in points:
        if found and seconds - found[-1][0] < NEAR:
            found[-1][1].append(sigma)
        else:
            found.append((seconds, [sigma]))
    return [[seconds, fmean(some)] for seconds, some in found]


def costs_of(
    job: Job,
    ranks: Sequence[int] | None = None,
    *,
    again: bool = False,
    seconds: float = SECONDS,
    limit: float | None = None,
) -> Costs:
    """Return the costs of the job's work here: as measured before, or now. `again`: always measure now.

    `seconds` and `limit`: as for `measure_costs`.

    Costs are cached in the user's cache folder, for the same model, data, batch, update, strategy and processor. The work
    that a rank does on its own is the same for all strategies and is measured only once.
    """
    from paceline.data import cache_folders

    job, parameters = _prepare_job(job)

    def find_or_measure(family: str, alone: Costs | None) -> Costs:
        """Return the costs in the cache, or else measure them now and keep them."""
        name = f"costs-{_key(job, parameters, ranks, family)}.json"
        if not again:
            for folder in cache_folders():
                with suppress(UsageError):
                    return Costs.load(folder / name)
        costs = measure_costs(job, ranks, seconds=seconds, alone=alone, own=family != ALONE, limit=limit)
        _keep(costs, name)
        return costs

    family, alone = _family(job), None
    if family != ALONE and job.launcher() != "torch":
        alone = find_or_measure(ALONE, None)
    return find_or_measure(family, alone)


def _keep(costs: Costs, name: str) -> None:
    """Save costs in the first cache folder that can be written."""
    from paceline.data import cache_folders

    for folder in cache_folders():
        with suppress(OSError, UsageError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            costs.save(folder / name)
            return
    log.warning("the measurements cannot be stored; set PACELINE_CACHE to a writable folder")


def merge_tables(alone: dict[str, Any], more: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Merge two tables by rising amounts, lowering points raised by noise; values measured together have priority.

    Memory that other ranks have just read takes longer to update, by a factor that is measured for one amount.

    >>> merge_tables({"update": [[2, 1.0], [8, 3.0]], "gradient": [[1, 1.0]]}, {"update": [[8, 6.0]], "part": []})
    {'update': [[2.0, 2.0], [8.0, 6.0]], 'gradient': [[1.0, 1.0]]}
    """
    found = {}
    for kind in {**alone, **more}:
        own, together = _drop_unknown(alone.get(kind, [])), _drop_unknown(more.get(kind, []))
        if kind == "update" and own and len(together) == 1:
            [[amount, seconds]] = together
            factor = seconds / interpolate(tuple((a, b) for a, b in own), amount)
            own = [[other, factor * taken] for other, taken in own]
        points = [*together, *own] if kind != "gradient" or not together else together
        if points:
            first = {point[0]: point for point in reversed(points)}
            found[kind] = make_monotonic([first[amount] for amount in sorted(first)])
    return found


def _drop_unknown(points: Any) -> list[list[float]]:
    """Return the points that have a value, by rising amounts."""
    return sorted([float(amount), taken] for amount, taken in points if taken == taken)


def _points(alone: Costs, ranks: int) -> dict[str, Any]:
    """Return the known points for this many ranks, as they would measure them: more ranks than cores took turns."""
    turns = max(1.0, ranks / alone.cores)
    every = {kind: curves.tables[ranks] for kind, curves in alone.work.items()}
    return {kind: [[amount, turns * taken] for amount, taken in table] for kind, table in every.items()}


def _answer(
    job: Job, ranks: int, seconds: float, known: dict[str, Any] | None, own: bool, limit: float | None
) -> dict[str, Any]:
    """Start ranks that measure the job, and return their measurements."""
    from paceline.launch import call

    threads = job.config.threads or 1
    bare = replace(job, data=None)
    arguments = {"job": bare, "seconds": seconds, "threads": threads, "known": known, "own": own}
    found: dict[str, Any] = call(
        measure,
        arguments,
        ranks=ranks,
        shared={"data": job.data},
        threads=threads,
        one_node=True,
        time_limit=limit,
    )
    return found


def _prepare_job(job: Job) -> tuple[Job, int]:
    """Return the job with its data loaded and a given model prepared, and the number of parameters."""
    data = job.load()
    model = job.build(data)
    return replace(job, data=data, model=None if job.model is None else model, runs=None), model.x.size


def numbers(ranks: Sequence[int] | None, cores: int) -> list[int]:
    """Return the numbers of ranks to measure with.

    >>> numbers(None, cores=8), numbers([4, 1], cores=8)
    ([1, 2, 4, 8], [1, 4])
    """
    if ranks is None:
        return [1 << k for k in range(max(2, cores).bit_length())]
    if not ranks or any(count < 1 for count in ranks):
        raise UsageError(f"ranks to measure with must be at least 1; got {list(ranks)}")
    return sorted(set(ranks))


def _key(job: Job, parameters: int, ranks: Sequence[int] | None, family: str) -> str:
    """Return a key that changes whenever the costs may change."""
    from paceline import __version__
    from paceline.launch import machine_cores
    from paceline.record.environment import processor

    config, data, model = job.config, job.data, job.model
    own = _own_update(job)
    kind = None if model is None else _kind(model)
    shapes = None if model is None else [(part.start, part.stop) for part in model.layers]
    facts = {
        "format": FORMAT,
        "model": config.model if kind is None else [kind.__module__, kind.__qualname__, shapes],
        "parameters": parameters,
        "data": [data.shape, data.label_shape, data.classes, len(data.train), type(data.train).__name__],
        "dtype": config.dtype,
        "batch": config.own_batch(),
        "update": [config.update, config.clip, own, job.optimizer and job.code().get("update")],
        "strategy": family,
        "threads": config.threads or 1,
        "ranks": None if ranks is None else sorted(ranks),
        "machine": [processor(), machine_cores()],
        "versions": [__version__, np.__version__],
    }
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()[:16]


def _own_update(job: Job) -> str | None:
    """Describe the update that the strategy uses instead of the run's; None if it uses the run's."""
    strategy = job.build_strategy()
    if not isinstance(strategy, Strategy):
        return None
    given = build_component("updates", job.config.update)
    own = strategy.own_update(given, 1.0)
    return None if own is given else str(own)


def _model_name(job: Job) -> str:
    return job.config.model if job.model is None else _kind(job.model).__name__


def _kind(model: Any) -> type:
    """Return the class of a model, or of the module that it wraps."""
    return type(getattr(model, "module", model))


def _family(job: Job) -> str:
    """Return a name for all strategies whose work is the same."""
    strategy = job.build_strategy()
    if not isinstance(strategy, Strategy):
        return ALONE
    return strategy.for_update(job.config.update).measured_work() or ALONE


# ---- on the ranks


def measure(
    comm: Any,
    *,
    job: Job,
    data: Any,
    seconds: float,
    threads: int,
    known: dict[str, Any] | None = None,
    own: bool = True,
) -> dict[str, Any]:
    """Measure seconds by kind and amount of the job's work, with all ranks of `comm` doing it; collective.

    `alone`: measure the work that each rank does on its own, unless `known`; `more`: the strategy's own kinds of work.
    """
    job, config = replace(job, data=data), job.config
    data = job.load()
    strategy: Any = job.build_strategy()
    keep_memory()
    with limit_threads(threads):
        model, schedule = job.build(data), build_component("schedules", config.schedule)
        update = job.build_update(model)
        if isinstance(strategy, Strategy):
            update = strategy.own_update(update, RATE)
        parts = Components(data, strategy, model, update, schedule)
        batch = min(config.own_batch(), len(data.train))
        found = known or measure_alone(parts, comm, batch, seconds)
        more = {}
        if own and comm.Get_size() > 1:
            if getattr(strategy, "masters_option", ""):
                more = measure_serving(parts, comm, strategy, batch, seconds, found["gradient"])
            elif getattr(strategy, "in_place", False):
                piece = config.batch_per_rank or max(1, batch // comm.Get_size())
                more = measure_together(parts, comm, piece, seconds, strategy.allreduce)
    return {"alone": found, "more": more, "bound": CORES_VARIABLE in os.environ}


def measure_alone(parts: Components, comm: Any, batch: int, seconds: float) -> dict[str, Points]:
    """Measure gradient, update and evaluate, with every rank of `comm` working on its own; collective."""
    loops = {size: _loop(parts, comm, size) for size in list_doublings(batch)}
    laps = _run_in_turns(comm, [loop.run for loop in loops.values()], 0.7 * seconds)
    gradient = [[size, mean_over_ranks(comm, loop.column(COMPUTE))] for size, loop in loops.items()]
    uneven = [[size, spread_over_ranks(comm, loop.column(COMPUTE))] for size, loop in loops.items()]
    whole = mean_over_ranks(comm, np.concatenate([loop.column(UPDATE) for loop in loops.values()]))
    smaller = [int(n) for n in parts.model.x.size / 4.0 ** np.arange(1, 6) if n >= 16]
    steps = next(iter(loops.values())).me
    update = {n: _updates(steps, n) for n in reversed(smaller)}
    evaluate = {n: _evaluations(parts, n) for n in _choose_sizes(parts)}
    laps = _run_in_turns(comm, [*update.values(), *evaluate.values()], 0.3 * seconds)
    found = [median_over_ranks(comm, np.array(some)) for some in laps]
    return {
        "gradient": gradient,
        "spread": uneven,
        "update": [*map(list, zip(update, found, strict=False)), [parts.model.x.size, whole]],
        "evaluate": [list(both) for both in zip(evaluate, found[len(update) :], strict=True)],
    }


def list_doublings(most: int) -> list[int]:
    """Return 1, 2, 4 … and `most`.

    >>> list_doublings(10)
    [1, 2, 4, 8, 10]
    """
    return sorted({*(1 << k for k in range(most.bit_length())), most})


def median_over_ranks(comm: Any, laps: Array) -> float:
    """Return the median over the ranks of their medians; collective."""
    every = np.empty(comm.Get_size())
    comm.Allgather(np.array([np.median(laps) if len(laps) else np.nan]), every)
    return float(np.nanmedian(every)) if np.isfinite(every).any() else float("nan")


def mean_over_ranks(comm: Any, laps: Array) -> float:
    """Return the mean over all ranks without the longest hundredth, because a run's seconds are sums; collective."""
    every = np.empty(comm.Get_size())
    comm.Allgather(np.array([_mean_without_longest(laps) if len(laps) else np.nan]), every)
    return float(np.nanmean(every)) if np.isfinite(every).any() else float("nan")


def spread_over_ranks(comm: Any, laps: Array) -> float:
    """Return the variation of laps between ranks: the sigma of log-normal laps whose slowest rank is as late.

    A common step takes as long as its slowest rank: on average exp(sigma m) times the median, where m is the expected
    maximum of as many normal numbers. Collective; NaN if there are too few.
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

    def __init__(self, parts: Components, batches: Batches, rank: int, size: int) -> None:
        self.me = Steps(
            rank=rank, size=size, model=parts.model, batches=batches, update=parts.update, schedule=parts.schedule,
            rate=RATE, epochs=1,
        )  # fmt: skip
        self.batches: Iterator[Batch] = itertools.chain.from_iterable(map(self.me.batches, itertools.count()))
        self._most = -(-batches.batch // size)

    def run(self, until: float) -> None:
        """Take steps until this time, but at least two."""
        me = self.me
        me.watch.restart()
        for done, batch in enumerate(self.batches):
            me.gradient(batch)
            me.step(me.model.g, batch.total)
            if done >= 1 and time.perf_counter() > until:
                break

    def column(self, number: int) -> Array:
        """Return the laps of one kind, for complete pieces, without the first, in which caches are still cold.

        Of steps so long that there are few, the last is kept.
        """
        rows = self.me.log.read()
        rows = rows[min(max(WARM, len(rows) // 4), len(rows) - 1) :]
        found: Array = rows[rows[:, COUNT] >= self._most - 1][:, number]
        return found


def _loop(parts: Components, comm: Any, size: int) -> Loop:
    batches = Batches(parts.data.train, batch=size, seed=comm.Get_rank(), dtype=parts.model.x.dtype,
                      keeps=_find_keeps(parts))  # fmt: skip
    return Loop(parts, batches, rank=0, size=1)


def _run_in_turns(comm: Any, works: Sequence[Callable[[float], Any]], seconds: float) -> list[list[float]]:
    """Run each function until a given time, in turns and on all ranks at once; return their results."""
    found: list[list[float]] = [[] for _ in works]
    each = seconds / SWEEPS / max(len(works), 1)
    slow = [False] * len(works)
    for _ in range(SWEEPS):
        for turn, work in enumerate(works):
            if slow[turn]:
                continue
            comm.Barrier()
            start = time.perf_counter()
            found[turn] += work(start + each) or ()
            late = np.array([time.perf_counter() - start > max(4 * each, 0.5)])
            comm.Allreduce(mpi_of(comm).IN_PLACE, late, mpi_of(comm).LOR)
            slow[turn] = bool(late[0])  # one run is enough if it takes this long
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


def _evaluations(parts: Components, samples: int) -> Callable[[float], list[float]]:
    split = _choose_split(parts)

    def work(until: float) -> list[float]:
        found: list[float] = []
        while True:  # passes over the split, like an evaluation, each with its own memory
            last = time.perf_counter()
            for inputs, labels in chunks(
                split, size=samples, dtype=parts.model.x.dtype, keeps=_find_keeps(parts)
            ):
                if len(labels) < samples:
                    break
                parts.model.evaluate(inputs, labels)
                now = time.perf_counter()
                found.append(now - last)
                last = now
                if len(found) > 2 and now > until:
                    return found[1:]

    return work


def _find_keeps(parts: Components) -> Keeps | None:
    return getattr(parts.model, "keeps", None)


def _choose_split(parts: Components) -> Any:
    data = parts.data
    return next(split for split in (data.validation, data.test, data.train) if len(split))


def _choose_sizes(parts: Components) -> list[int]:
    most = min(1000, len(_choose_split(parts)))
    return sorted({n for n in (1, 10, 100) if n < most} | {most})


def measure_together(
    parts: Components, comm: Any, piece: int, seconds: float, name: str
) -> dict[str, Points]:
    """Measure gradient and update on the ranks of `comm`, which exchange with this collective; collective.

    Memory that other ranks have read or written comes from their caches. With `shared-memory`, also measure factors and
    part. `piece`: the most samples of one rank.
    """
    ranks = comm.Get_size()
    sizes = [ranks * size for size in list_doublings(piece) if ranks * size <= len(parts.data.train)]
    factored = [size for size in sizes if name in FACTORED and factors_pay(parts.model, size, ranks)]
    each = seconds / max(1, len(sizes) + len(factored))
    found: dict[str, Points] = {"gradient": [], "update": [], "factors": [], "part": []}
    if not sizes:
        return found
    with make_exchange(name, parts.model, comm) as exchange:
        updates = []
        for size in sizes:
            loop = _sync_loop(parts, comm, size)
            _take_steps(comm, loop, exchange, exchange.reduce, each)
            found["gradient"].append([size // ranks, mean_over_ranks(comm, loop.column(COMPUTE))])
            updates.append(loop.column(UPDATE))
        part = exchange.part
    for size in factored:
        assert factors_pay(parts.model, size, ranks)  # for the type of the model
        with Factored(parts.model, comm, size) as factors:
            loop, reduce = _sync_loop(parts, comm, size), _Parts(factors)
            _take_steps(comm, loop, factors, reduce, each)
            found["factors"].append([size // ranks, mean_over_ranks(comm, loop.column(COMPUTE))])
            found["part"].append(
                [size * parts.model.x.size / ranks, mean_over_ranks(comm, np.array(reduce.taken[2:]))]
            )
            if size == sizes[-1]:  # what the job does
                part, updates = factors.part, [loop.column(UPDATE)]
    updated = mean_over_ranks(comm, np.array([float(part.stop - part.start)]))  # some have less
    found["update"].append([max(1.0, updated), mean_over_ranks(comm, np.concatenate(updates))])
    return found


class _Parts:
    """The `reduce` of a `Factored` exchange, with its work timed separately from the waiting."""

    def __init__(self, exchange: Factored) -> None:
        self._exchange = exchange
        self.taken: list[float] = []

    def __call__(self) -> Any:
        self._exchange._shared.fence()
        start = time.perf_counter()
        g = self._exchange._sum()
        self.taken.append(time.perf_counter() - start)
        return g


def _sync_loop(parts: Components, comm: Any, size: int) -> Loop:
    rank, ranks = comm.Get_rank(), comm.Get_size()
    batches = Batches(parts.data.train, batch=size, dtype=parts.model.x.dtype, rank=rank, ranks=ranks,
                      keeps=_find_keeps(parts))  # fmt: skip
    return Loop(parts, batches, rank=rank, size=ranks)


def _take_steps(comm: Any, loop: Loop, exchange: Any, reduce: Callable[[], Any], seconds: float) -> None:
    """Take as many common steps as time allows."""
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


class MeasuringWorker(Worker):
    """A real worker that measures its strategy's own kinds of work."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.performed: dict[str, list[tuple[int, float]]] = {}
        """For each kind, the elements and the seconds of every vector function performed."""
        self.handled: dict[str, list[float]] = {"serve": [], "lead": []}
        """Seconds of every call of a master's functions, without what is measured by itself in it, and without MPI."""
        self._inside = 0.0  # seconds of what is measured by itself in the current call

    def perform(
        self, kind: str, amount: float, function: Callable[..., object], x: Array, *arguments: Any
    ) -> None:
        start = time.perf_counter()
        function(x, *arguments)
        taken = time.perf_counter() - start
        self._inside += taken
        self.performed.setdefault(kind, []).append((x.size, taken))

    def overhead(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if kind not in self.handled:
            return function  # of a worker, whose whole step is measured

        def measure_call(*arguments: Any) -> None:
            seconds, outside, self._inside = self.watch.seconds, self._inside, 0.0
            messages, start = seconds["exchange"] + seconds["wait"], time.perf_counter()
            function(*arguments)
            taken = time.perf_counter() - start
            own = taken - (seconds["exchange"] + seconds["wait"] - messages) - self._inside
            self.handled[kind].append(own)
            self._inside += outside + own

        return measure_call


def measure_serving(
    parts: Components, comm: Any, strategy: ParameterServer, batch: int, seconds: float, gradient: Points
) -> dict[str, Points]:
    """Measure gradient, rule, serve, lead and prepare with masters and workers on the ranks of `comm`; collective.

    `gradient`: the measurements of ranks that compute alone.
    """
    ranks, layers = comm.Get_size(), parts.model.layers
    masters = min(strategy.masters, ranks // 2)
    alone = float(gradient[-1][1])  # of a whole batch
    rule: dict[int, list[float]] = {}
    serve, lead, computed, prepared = [], [], [], []
    for placement in ("layers", "even"):
        count = min(masters, len(layers)) if placement == "layers" else masters
        server = replace(strategy, masters=count, placement=placement, bound=None, backup=0)
        me = _run(parts, comm, server, batch, seconds / 2, alone)
        if comm.Get_rank() < count:
            pieces = place(layers, count, server.placement)
            mine = sum(piece.master == comm.Get_rank() for piece in pieces)
            updates, shown = (_drop_first_quarter(me.performed.get(kind, [])) for kind in ("rule", "show"))
            for (size, updating), (_, showing) in zip(updates, shown, strict=False):
                rule.setdefault(size, []).append(updating + showing)
            waiting = _measure_waiting(comm, requests=(ranks - count) * max(mine, 1))
            serve.append(_trimmed_mean(_drop_first_quarter(me.handled["serve"])) + waiting)
            if comm.Get_rank() == 0:
                lead.append(_trimmed_mean(_drop_first_quarter(me.handled["lead"])))
        else:
            rows = me.log.read()
            computed += rows[max(2, len(rows) // 4) :, COMPUTE].tolist()
            prepared += rows[max(2, len(rows) // 4) :, UPDATE].tolist()
        me.close()
    slower = mean_over_ranks(comm, np.array(computed)) / alone
    factor = float(np.clip(slower, 0.8, 3.0)) if np.isfinite(slower) else 1.0
    return {
        "gradient": [[samples, factor * taken] for samples, taken in gradient],
        "rule": _gather_means(comm, rule),
        "serve": [[1, max(median_over_ranks(comm, np.array(serve)), 1e-6)]],
        "lead": [[1, max(median_over_ranks(comm, np.array(lead)), 1e-6)]],
        "prepare": [[1, max(mean_over_ranks(comm, np.array(prepared)), 1e-6)]],
    }


def _run(
    parts: Components, comm: Any, server: ParameterServer, batch: int, seconds: float, alone: float
) -> MeasuringWorker:
    """Make a short run."""
    ranks = comm.Get_size()
    workers = ranks - server.masters
    draws = np.array([np.clip(workers * seconds / (3 * alone), 12 * workers, 4000)], np.int64)
    comm.Bcast(draws)
    few = Subset(parts.data.train, np.arange(1))
    batches = Batches(
        parts.data.train, batch=batch, dtype=parts.model.x.dtype, rank=comm.Get_rank(), ranks=ranks,
        draws=int(draws[0]), keeps=_find_keeps(parts),
    )  # fmt: skip
    me = MeasuringWorker(
        comm=Recorded(comm), model=parts.model, data=replace(parts.data, validation=few), batches=batches,
        update=parts.update, schedule=parts.schedule, rate=RATE, epochs=1, on_divergence="ignore", in_step=False,
    )  # fmt: skip
    server.train(me)
    return me


def _drop_first_quarter(values: list[Any]) -> list[Any]:
    """Return all but the first quarter, in which caches are still cold."""
    return values[len(values) // 4 :]


def _trimmed_mean(laps: list[float]) -> float:
    """Return the mean without the shortest and longest, because a gradient's first piece takes longer than the others."""
    if not laps:
        return 0.0
    low, high = np.percentile(laps, [2, 95])
    return float(np.mean([lap for lap in laps if low <= lap <= high]))


def _measure_waiting(comm: Any, requests: int) -> float:
    """Return the seconds to find a completed receive among this many, with a small message from this rank to itself."""
    comm = mpi_of(comm).COMM_SELF
    inbox = Inbox()
    room, one, taken = np.zeros((requests, 1)), np.ones(1), []
    for tag in range(requests):
        inbox.expect(("gradient", tag, 0), comm.Irecv(room[tag], 0, tag=tag))
    for turn in range(requests + 100):
        tag = turn % requests
        comm.Send(one, 0, tag=tag)
        start = time.perf_counter()
        inbox.collect(wait=True)
        taken.append(time.perf_counter() - start)
        inbox.expect(("gradient", tag, 0), comm.Irecv(room[tag], 0, tag=tag))
    for tag in range(requests):
        comm.Send(one, 0, tag=tag)
        inbox.take("gradient", tag)
    return float(np.median(taken))


def _gather_means(comm: Any, rule: dict[int, list[float]]) -> Points:
    """Return the means of all masters, by elements, on every rank. With some rules every fourth update takes longer."""
    every = comm.allgather({size: _mean_without_longest(taken) for size, taken in rule.items()})
    sizes = sorted({size for some in every for size in some})
    return [[size, float(np.mean([some[size] for some in every if size in some]))] for size in sizes]


def _mean_without_longest(laps: Array | list[float]) -> float:
    """Return the mean without the longest hundredth."""
    return float(np.mean(np.sort(laps)[: max(1, len(laps) - len(laps) // 100)]))
