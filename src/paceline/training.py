"""One rank's part of a run: build what was asked for, train, record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from paceline.collecting import Collected, collect
from paceline.comm._agree import same
from paceline.comm._events import Events, gathered, limit_for
from paceline.comm._tracing import Tracer
from paceline.comm.recording import Recorded
from paceline.data import Batches, Dataset
from paceline.evaluation import Epoch
from paceline.fitted import Fitted
from paceline.job import Job, batch_of
from paceline.launch import threads_of_rank
from paceline.places import Place, Process
from paceline.pools import held_to
from paceline.progress import Progress
from paceline.record import Record, Run
from paceline.schedules import scaled_rate
from paceline.stopwatch import KINDS
from paceline.strategies import Strategy
from paceline.worker import Worker

__all__ = ["Fitted", "Job", "train", "train_at"]

Show = Callable[[int, int, int], Progress]


def train(job: Job, comm: Any, *, progress: Show | None = None) -> Fitted:
    """Run `job` on the ranks of `comm` (None: this process alone); every rank calls it, every rank gets the results."""
    same(
        comm,
        {**asdict(job.config), "strategy": job.name(), "record": job.runs is not None, "trace": job.trace},
    )
    threads = threads_of_rank(comm, job.config.threads)
    with held_to(threads):
        return train_at(Process(comm, threads), job, progress)


def train_at(place: Place, job: Job, progress: Show | None) -> Fitted:
    """One rank's part of `job`, wherever that rank is. Collective; every rank gets the results."""
    comm, config = place.comm, job.config
    rank, ranks = (0, 1) if comm is None else (comm.Get_rank(), comm.Get_size())
    data, strategy, model, update, schedule = place.prepare(job)
    folder = place.folder(job)
    record = Record(folder) if folder is not None and rank == 0 else None
    rate = config.lr if config.lr is not None else float(getattr(model, "default_rate", 0.1))
    batches = Batches(
        data.train,
        batch=batch_of(config, strategy, ranks),
        seed=config.seed,
        dtype=model.x.dtype,
        rank=rank,
        ranks=ranks,
        draws=config.draws,
        hollow=place.hollow,
    )
    steps, samples = (config.epochs * n for n in (batches.steps_per_epoch, batches.samples_per_epoch))
    shown = progress(config.epochs, steps, samples) if progress and rank == 0 else None

    def start() -> None:
        if record is not None:
            record.start(_described(job, place, data, ranks, rate), place.environment())

    def on_epoch(epoch: Epoch) -> None:
        if record is not None:
            record.epoch(epoch)
        if shown is not None:
            shown.epoch(epoch)

    if folder is not None:
        place.agreed(start)
    origin = place.origin()
    events = Events(place.clock, limit_for(ranks)) if job.trace else None
    tracer = None if events is None else Tracer(events, comm)
    counted = None if comm is None else Recorded(comm, tracer=tracer)
    me = Worker(
        comm=counted,
        model=model,
        data=data,
        batches=batches,
        update=update,
        schedule=schedule,
        rate=scaled_rate(rate, config.lr_scaling, ranks),
        epochs=config.epochs,
        on_divergence=config.on_divergence,
        replay=None if config.replay is None else Run(config.replay),
        on_step=shown.step if shown is not None else None,
        on_epoch=on_epoch if rank == 0 else None,
        clock=place.clock,
        charge=place.charge,
        hollow=place.hollow,
        origin=origin,
        events=events,
    )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the guard says it in words
        (strategy.train if isinstance(strategy, Strategy) else strategy)(me)
    _remark(me)
    traffic = (0, 0) if counted is None else (counted.counts.bytes, counted.counts.messages)
    tested = me.test()
    found = collect(me, traffic, in_step=getattr(strategy, "in_step", True))
    if events is not None:
        _keep(me, events)
    fitted = Fitted(
        run=folder,
        strategy=job.name(),
        ranks=ranks,
        simulated=place.simulated,
        seed=config.seed,
        epochs=config.epochs,
        steps=steps,
        global_batch=batches.batch,
        data=data.name,
        model_name=config.model,
        parameters=model.x.size,
        threads=place.threads,
        model=model,
        **_outcome(me, found, *tested),
    )
    if record is not None:
        by_rank = [dict(zip(KINDS, map(float, row), strict=True)) for row in found.by_rank]
        trained = None if place.hollow else model
        record.finish(trained, found.logs, {**fitted.summary(), "seconds_by_rank": by_rank}, me.tables)
    if shown is not None:
        shown.close()
    me.close()
    return fitted


def _described(job: Job, place: Place, data: Dataset, ranks: int, rate: float) -> dict[str, Any]:
    """What the record says was asked for."""
    return {
        **asdict(job.config),
        "lr": rate,
        "strategy": job.name(),
        "ranks": ranks,
        "asked": {"lr": job.config.lr, **place.asked()},
        "objects": job.objects,
        "shape": data.shape,
        "label_shape": data.label_shape,
        "classes": data.classes,
        "class_names": data.class_names,
        "samples": len(data.train),
        **place.described(),
    }


def _outcome(
    me: Worker, found: Collected, test_loss: float | None, test_accuracy: float | None
) -> dict[str, Any]:
    """What came out, by the names that `Fitted` has for it."""
    last = me.history[-1] if me.history else None
    return {
        "test_accuracy": test_accuracy,
        "test_loss": test_loss,
        "validation_accuracy": last.validation_accuracy if last else None,
        "loss": last.loss if last else None,
        "train_seconds": found.busy,
        "samples_per_second": found.samples / found.busy if found.samples and found.busy else None,
        "seconds": found.seconds,
        "bytes_sent": found.bytes_sent,
        "messages_sent": found.messages_sent,
        "diverged": me.diverged,
        "findings": me.findings,
        "remarks": tuple(me.remarks),
        "history": tuple(me.history),
    }


def _keep(me: Worker, events: Events) -> None:
    """Every rank's events into rank 0's tables. Collective."""
    table = gathered(events, me.origin, me.control)
    if me.rank == 0:
        me.tables["trace"] = table
        cut = int((table["lost"] > 0).sum())
        if cut:
            kept = limit_for(me.size)
            me.remarks.append(
                f"the trace holds the first {kept:,} events of each rank; {cut} of {me.size} had more"
            )


def _remark(me: Worker) -> None:
    """What is to be told of any strategy's run."""
    if me.divergences:
        count = len(me.divergences)
        me.findings["divergences"] = me.divergences
        times = "once" if count == 1 else f"{count} times"
        me.remarks.append(f"training diverged {times}, the last time: {me.divergences[-1]}")
    if me.replay is not None:
        me.remarks.append(f"a replay of {me.replay.folder}")
