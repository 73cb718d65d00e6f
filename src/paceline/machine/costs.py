"""The costs of one job's work on this machine, measured by ranks started for that purpose, and cached."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from paceline.errors import UsageError
from paceline.machine.profile import FORMAT, Costs
from paceline.strategies import Strategy
from paceline.training.job import Job, build_component
from paceline.vmpi.compute import Curves, interpolate, make_monotonic

log = logging.getLogger(__name__)
ALONE = "alone"
SECONDS = 2.0  # for each kind of loop, with each number of ranks


def measure_costs(
    job: Job,
    ranks: Sequence[int] | None = None,
    *,
    seconds: float = SECONDS,
    alone: Costs | None = None,
    own: bool = True,
) -> Costs:
    """Measure the costs of the job's work, with each number of processes working at the same time.

    `ranks`: by default 1, 2, 4 … up to the cores. Threads are the job's, one per rank unless it says otherwise.
    `alone`: known costs of the work that a rank does on its own, with the same numbers of ranks.
    `own`: measure the strategy's own kinds of work too, and not just what a rank does with any strategy.
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
            answers[count] = _answer(job, count, seconds, known, own)
    costs = make_costs(job, answers, own=own)
    return costs if alone is None else replace(costs, spread=alone.spread, spreads=alone.spreads)


def measure_work(
    comm: Any, *, job: Job, seconds: float, known: dict[str, Any] | None = None, own: bool = True
) -> dict[str, Any]:
    """Measure the costs of the job's work on the ranks of an MPI communicator; return JSON values. Collective.

    `known`: what another answer says that each rank does on its own. `own`: as for `measure_costs`.
    """
    from paceline.machine._job import measure

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
            "other programs were running, so that work may seem to cost too much: "
            "`paceline simulate scaling --recalibrate` measures it again"
        )
    return Costs(
        processor=processor(),
        cores=cores,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        command=command_without_paths(),
        about=f"{_model_name(job)}, {parameters} parameters, on {job.data.name}; {job.name() if own else 'any strategy'}",
        work={kind: Curves.of(by_ranks) for kind, by_ranks in tables.items()},
        spread=float(median(sigma for known in spreads.values() for _, sigma in known)) if spreads else 0.0,
        spreads=Curves.of({count: _by_seconds(known, seconds[count]) for count, known in spreads.items()})
        if spreads
        else None,
    )


NEAR = 1e-5  # seconds of work whose variation is taken as one


def _by_seconds(spreads: list[list[float]], gradient: list[list[float]]) -> list[list[float]]:
    """Return the variation by the seconds of the work instead of its samples.

    >>> _by_seconds([[1, 0.25], [2, 0.75], [4, 0.125]], [[1, 0.5], [2, 0.500001], [4, 0.75], [8, 1.0]])
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
    job: Job, ranks: Sequence[int] | None = None, *, again: bool = False, seconds: float = SECONDS
) -> Costs:
    """Return the costs of the job's work here: as measured before, or now. `again`: always measure now.

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
        costs = measure_costs(job, ranks, seconds=seconds, alone=alone, own=family != ALONE)
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
        own, together = _known(alone.get(kind, [])), _known(more.get(kind, []))
        if kind == "update" and own and len(together) == 1:
            [[amount, seconds]] = together
            factor = seconds / interpolate(tuple((a, b) for a, b in own), amount)
            own = [[other, factor * taken] for other, taken in own]
        points = [*together, *own] if kind != "gradient" or not together else together
        if points:
            first = {point[0]: point for point in reversed(points)}
            found[kind] = make_monotonic([first[amount] for amount in sorted(first)])
    return found


def _known(points: Any) -> list[list[float]]:
    """Return the points that have a value, by rising amounts."""
    return sorted([float(amount), taken] for amount, taken in points if taken == taken)


def _points(alone: Costs, ranks: int) -> dict[str, Any]:
    """Return the known points for this many ranks, as they would measure them: more ranks than cores took turns."""
    turns = max(1.0, ranks / alone.cores)
    every = {kind: curves.tables[ranks] for kind, curves in alone.work.items()}
    return {kind: [[amount, turns * taken] for amount, taken in table] for kind, table in every.items()}


def _answer(job: Job, ranks: int, seconds: float, known: dict[str, Any] | None, own: bool) -> dict[str, Any]:
    """Start ranks that measure the job, and return their measurements."""
    from paceline.launch import call
    from paceline.machine._job import measure

    threads = job.config.threads or 1
    bare = replace(job, data=None)
    arguments = {"job": bare, "seconds": seconds, "threads": threads, "known": known, "own": own}
    found: dict[str, Any] = call(
        measure, arguments, ranks=ranks, shared={"data": job.data}, threads=threads, one_node=True
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
    from importlib.metadata import version

    import numpy as np

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
        "versions": [version("paceline"), np.__version__],
    }
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()[:16]


def _own_update(job: Job) -> str | None:
    """Describe the update that the strategy uses instead of the run's; None if it uses the run's."""
    strategy = job.chosen()
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
    strategy = job.chosen()
    if not isinstance(strategy, Strategy):
        return ALONE
    return strategy.for_update(job.config.update).measured_work() or ALONE
