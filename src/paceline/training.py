"""One rank's part of a run: build what was asked for, train, record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm._agree import agreed, same, shared_text
from paceline.comm._processes import Processes
from paceline.comm.recording import Recorded
from paceline.data import Batches, Dataset
from paceline.errors import UsageError
from paceline.evaluation import Epoch
from paceline.job import Job, Train, batch_of, made
from paceline.launch import threads_of_rank
from paceline.models import Model
from paceline.pools import held_to
from paceline.progress import Progress
from paceline.record import Record, Run, new_folder
from paceline.record._environment import environment
from paceline.schedules import scaled_rate
from paceline.stopwatch import KINDS
from paceline.strategies import Strategy
from paceline.worker import COLUMNS, Worker

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What came out of a run; `summary()` is what `--json` prints.

    >>> from paceline import fit
    >>> fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=None, quiet=True)
    >>> fitted.parameters, len(fitted.history), fitted.summary()["global_batch"]
    (67, 2, 10)
    """

    run: Path | None
    """The run's folder, or None where none was asked for."""
    strategy: str
    ranks: int
    seed: int
    epochs: int
    steps: int
    test_accuracy: float | None
    test_loss: float | None
    validation_accuracy: float | None
    loss: float | None
    """Mean training loss of the last epoch."""
    train_seconds: float
    """Evaluation left out."""
    samples_per_second: float | None
    seconds: dict[str, float]
    """By kind, mean over the ranks; `wait` is what an exchange took longer than on the rank that came to it last."""
    bytes_sent: int
    messages_sent: int
    data: str
    model_name: str
    parameters: int
    global_batch: int
    threads: int
    diverged: str | None
    """What went wrong, in words, where training diverged and was stopped."""
    findings: dict[str, Any]
    """What the strategy found out: staleness, each rank's convergence …"""
    remarks: tuple[str, ...]
    """The same in sentences."""
    history: tuple[Epoch, ...] = field(repr=False)
    model: Model = field(repr=False)
    """The trained model, in this process."""

    def summary(self) -> dict[str, Any]:
        """The results as JSON values."""
        values = {k: v for k, v in vars(self).items() if k not in ("history", "model")}
        return {**values, "run": None if self.run is None else str(self.run), "remarks": list(self.remarks)}


def train(job: Job, comm: Any, *, progress: Callable[[int, int, int], Progress] | None = None) -> Fitted:
    """Run `job` on the ranks of `comm` (None: this process alone); every rank calls it, every rank gets the results."""
    same(comm, {**asdict(job.config), "strategy": job.name(), "record": job.runs is not None})
    threads = threads_of_rank(comm, job.config.threads)
    with held_to(threads):
        return _train(job, comm, threads, progress)


def _train(job: Job, comm: Any, threads: int, progress: Callable[[int, int, int], Progress] | None) -> Fitted:
    ranks = 1 if comm is None else comm.Get_size()
    rank = 0 if comm is None else comm.Get_rank()
    config = job.config
    data, strategy, model = agreed(comm, lambda: _prepare(job, comm, ranks))
    same(comm, {"parameters": model.x.size, "type": model.x.dtype.name, "training samples": len(data.train)})
    folder = _folder(job, comm, rank, ranks)
    record = Record(folder) if folder is not None and rank == 0 else None
    rate = config.lr if config.lr is not None else float(getattr(model, "default_rate", 0.1))
    batch = batch_of(config, strategy, ranks)
    batches = Batches(
        data.train,
        batch=batch,
        seed=config.seed,
        dtype=model.x.dtype,
        rank=rank,
        ranks=ranks,
        draws=config.draws,
    )
    steps = config.epochs * batches.steps_per_epoch
    samples = config.epochs * batches.samples_per_epoch
    shown = progress(config.epochs, steps, samples) if progress and rank == 0 else None
    if folder is not None:
        described = {
            **asdict(config),
            "lr": rate,
            "strategy": job.name(),
            "ranks": ranks,
            "objects": job.objects,
            "shape": data.shape,
            "label_shape": data.label_shape,
            "classes": data.classes,
            "class_names": data.class_names,
            "samples": len(data.train),
        }

        def start() -> None:
            if record is not None:
                record.start(described, environment(threads=threads, comm=comm))

        agreed(comm, start)

    def on_epoch(epoch: Epoch) -> None:
        if record is not None:
            record.epoch(epoch)
        if shown is not None:
            shown.epoch(epoch)

    counted = None if comm is None else Recorded(comm)
    me = Worker(
        comm=counted,
        model=model,
        data=data,
        batches=batches,
        update=made("updates", config.update),
        schedule=made("schedules", config.schedule),
        rate=scaled_rate(rate, config.lr_scaling, ranks),
        epochs=config.epochs,
        on_divergence=config.on_divergence,
        replay=None if config.replay is None else Run(config.replay),
        on_step=shown.step if shown is not None else None,
        on_epoch=on_epoch if rank == 0 else None,
    )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the guard says it in words
        (strategy.train if isinstance(strategy, Strategy) else strategy)(me)
    _remark(me)
    traffic = (0, 0) if counted is None else (counted.counts.bytes, counted.counts.messages)
    test_loss, test_accuracy = me.test()
    in_step = getattr(strategy, "in_step", True)
    seconds, totals, logs = _collect(me, traffic, in_step=in_step)
    samples, bytes_sent, messages_sent = map(int, totals)
    busy = float(seconds[:, [kind != "evaluation" for kind in KINDS]].sum(axis=1).max())
    last = me.history[-1] if me.history else None
    fitted = Fitted(
        run=folder,
        strategy=job.name(),
        ranks=ranks,
        seed=config.seed,
        epochs=config.epochs,
        steps=steps,
        test_accuracy=test_accuracy,
        test_loss=test_loss,
        validation_accuracy=last.validation_accuracy if last else None,
        loss=last.loss if last else None,
        train_seconds=busy,
        samples_per_second=samples / busy if samples else None,
        seconds=dict(zip(KINDS, map(float, seconds.mean(axis=0)), strict=True)),
        bytes_sent=bytes_sent,
        messages_sent=messages_sent,
        data=data.name,
        model_name=config.model,
        parameters=model.x.size,
        global_batch=batch,
        threads=threads,
        diverged=me.diverged,
        findings=me.findings,
        remarks=tuple(me.remarks),
        history=tuple(me.history),
        model=model,
    )
    if record is not None:
        by_rank = [dict(zip(KINDS, map(float, row), strict=True)) for row in seconds]
        record.finish(model, logs, {**fitted.summary(), "seconds_by_rank": by_rank}, me.tables)
    if shown is not None:
        shown.close()
    me.close()
    return fitted


def _remark(me: Worker) -> None:
    """What is to be told of any strategy's run."""
    if me.divergences:
        count = len(me.divergences)
        me.findings["divergences"] = me.divergences
        times = "once" if count == 1 else f"{count} times"
        me.remarks.append(f"training diverged {times}, the last time: {me.divergences[-1]}")
    if me.replay is not None:
        me.remarks.append(f"a replay of {me.replay.folder}")


def _prepare(job: Job, comm: Any, ranks: int) -> tuple[Dataset, Strategy | Train, Model]:
    if job.launcher() == "torch" and ranks > 1 and not isinstance(comm, Processes):
        raise UsageError(
            f"{job.name()} starts its processes itself and cannot use the {ranks} ranks of an MPI job: "
            f"leave out mpiexec or srun, and say how many (-n {ranks}, or ranks={ranks} of fit)"
        )
    data, strategy = job.check(ranks)
    model = job.build(data)
    if isinstance(strategy, Strategy):
        strategy.check_model(ranks, model)
    return data, strategy, model


def _folder(job: Job, comm: Any, rank: int, ranks: int) -> Path | None:
    """The run's folder, made by rank 0."""
    if job.runs is None:
        return None
    runs = job.runs
    made = agreed(comm, lambda: new_folder(runs, job.name(), ranks, job.config.seed) if rank == 0 else None)
    return Path(shared_text(comm, str(made)))


def _collect(me: Worker, traffic: tuple[int, int], *, in_step: bool) -> tuple[Array, Array, list[Array]]:
    """Seconds by rank and kind; samples, bytes and messages in all; and, on rank 0, every rank's log."""
    rows = np.array(me.log).reshape(-1, len(COLUMNS))
    logs = me.control.gather(rows)
    seconds = np.concatenate(
        me.control.gather(np.array([[me.watch.seconds[kind] for kind in KINDS]])) or [np.empty((0, 5))]
    )
    totals = me.control.total(np.array([rows[:, COLUMNS.index("count")].sum(), *traffic]))
    if me.rank == 0:
        waited = waiting(logs) if in_step else np.zeros(me.size)
        seconds[:, KINDS.index("exchange")] -= waited
        seconds[:, KINDS.index("wait")] += waited
    else:
        seconds = np.empty((me.size, len(KINDS)))
    return me.control.from_first(seconds), totals, logs


def waiting(logs: list[Array]) -> Array:
    """Seconds that each rank waited for others in the exchanges of the steps that all ranks took together.

    Nobody leaves an exchange before the last rank has come to it, so the rank that spent least in it came last and
    waited for no one; what the others spent more than it, they waited.

    >>> step = lambda seconds: np.array([[0, 0, 0, 1, 0, seconds, 0]])
    >>> waiting([step(3.0), step(1.0)]).tolist()
    [2.0, 0.0]
    """
    if len({len(log) for log in logs}) != 1 or len(logs) == 1:
        return np.zeros(len(logs))
    spent = np.stack([log[:, COLUMNS.index("exchange")] for log in logs])
    return (spent - spent.min(axis=0)).sum(axis=1)  # type: ignore[no-any-return]
