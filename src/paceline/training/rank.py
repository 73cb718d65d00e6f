"""One rank's part of a run: build its objects, train, record; and the results of a run (`Fitted`)."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import Nodes
from paceline.comm.clocks import KINDS, common_start
from paceline.comm.control import Control, agree, broadcast_text, check_same
from paceline.comm.recording import Recorded
from paceline.comm.torch_processes import TorchProcesses
from paceline.comm.tracing import Events, Tracer, event_limit, gather_events
from paceline.data import Batches, Dataset, fields_of, has_several
from paceline.errors import AgreedError, StoppedError, UsageError
from paceline.launch import (
    StopRequests,
    announce_run,
    keep_memory,
    limit_threads,
    note_survivors,
    threads_of_rank,
)
from paceline.models import Model, flat_buffers
from paceline.record import STEP_COLUMNS, Epoch, Record, RowLog, Run, Spool, Table, gather_rows, release
from paceline.record.checkpoint import Saver, find_latest
from paceline.record.environment import (
    describe_other_programs,
    environment,
    layout,
    nodes_of,
    seconds_without_core,
)
from paceline.record.rows import earlier_ranks
from paceline.record.writing import steps_table
from paceline.schedules import scaled_rate
from paceline.strategies import Facts, Load, Strategy
from paceline.training.job import Components, Job, Train, batch_of, find_built_in
from paceline.training.progress import Progress
from paceline.training.resuming import (
    SurvivedDeath,
    changes_for_record,
    check_fits,
    describe_stop,
    finish,
    kind_of_batches,
    load_states,
    protect,
    train_surviving,
)
from paceline.training.watchdog import Watchdog, watch_ranks
from paceline.updates import choose_rate, describe_update
from paceline.vectors import Meter
from paceline.worker import Resumption, Worker


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The results of a run; `summary()` is what `--json` prints.

    >>> from paceline import fit
    >>> fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=None, quiet=True)
    >>> fitted.parameters, len(fitted.history), fitted.summary()["global_batch"]
    (67, 2, 10)
    """

    run: Path | None
    """The run's folder, or None if no record was requested."""
    strategy: str
    ranks: int
    simulated: bool
    """True if the ranks were simulated: then all seconds are virtual."""
    seed: int
    epochs: int
    steps: int
    test_accuracy: float | None
    test_loss: float | None
    validation_accuracy: float | None
    loss: float | None
    """Mean training loss of the last epoch."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The user's own metrics on the validation samples, at the end of the last epoch."""
    test_metrics: dict[str, float] = field(default_factory=dict)
    """The user's own metrics on the test samples."""
    train_seconds: float
    """Without evaluation."""
    samples_per_second: float | None
    seconds: dict[str, float]
    """By kind, mean over the ranks; `wait` is the excess over the last rank to arrive at each exchange."""
    bytes_sent: int
    messages_sent: int
    data: str
    model_name: str
    parameters: int
    global_batch: int
    threads: int
    diverged: str | None
    """A description of the problem, if training diverged and was stopped."""
    findings: dict[str, Any]
    """The strategy's findings, such as staleness or the convergence of each rank."""
    remarks: tuple[str, ...]
    """The same in sentences."""
    unsaved: str | None = None
    """Why the run could not be saved anywhere; None if it was, or if no record was requested."""
    history: tuple[Epoch, ...] = field(repr=False)
    """The results of each epoch; beyond 10,000 epochs, of every second one of the earlier (`epochs.jsonl` has all)."""
    model: Model = field(repr=False)
    """The trained model, in this process."""

    def summary(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        values = {k: v for k, v in vars(self).items() if k not in ("history", "model")}
        return {**values, "run": None if self.run is None else str(self.run), "remarks": list(self.remarks)}


__all__ = ["Fitted", "Job", "train", "train_at"]


# ---- totals over all ranks: seconds, samples and messages

Array = NDArray[Any]
TRAINING = [kind != "evaluation" for kind in KINDS]


@dataclass(frozen=True)
class Collected:
    """Sums and means over all ranks, known on every rank; figures of each rank, known on rank 0 only."""

    seconds: dict[str, float]
    """By kind, mean over the ranks."""
    busy: float
    """Training seconds of the busiest rank."""
    samples: int
    bytes_sent: int
    messages_sent: int
    without_core: float
    """Seconds that all ranks together were ready to run while other processes had their core; 0 if unknown."""
    by_rank: Array
    """Seconds, one row per rank and one column per kind; no rows except on rank 0."""

    @classmethod
    def of(cls, summary: Array, by_rank: Array) -> Collected:
        """Make it of the numbers that `sum_up` returns."""
        *means, busy, samples, bytes_sent, messages_sent, lost = summary.tolist()
        return cls(
            dict(zip(KINDS, means, strict=True)), busy, int(samples), int(bytes_sent), int(messages_sent), lost, by_rank
        )  # fmt: skip


def collect(me: Worker, traffic: tuple[int, int], *, in_step: bool, without_core: float = 0.0) -> Collected:
    """Compute the totals of the run. Collective; only rank 0 receives arrays with an entry per rank."""
    log, control, seconds = me.log, me.control, me.watch.seconds
    log.check()
    samples = log.totals()["count"]
    if me.rank == 0 and log.path is not None:  # those of ranks that are gone count too
        column = STEP_COLUMNS.index("count")
        for earlier in earlier_ranks(log.path.parents[1], "steps", STEP_COLUMNS, me.size):
            samples += sum(part[:, column].sum() for part in earlier.chunks())
    sums = (samples, *traffic, without_core)
    every = control.gather_alike(
        np.array([*(seconds[kind] for kind in KINDS), *sums, len(log), *log.first_span])
    )
    by_rank, rows = every[:, : len(KINDS)], 0
    if in_step and me.size > 1:
        spans = every[:, len(KINDS) + len(sums) :]
        plan = np.array([common_rows(spans) if me.rank == 0 else 0])
        rows = int(control.broadcast(plan)[0])
    waited = measure_waiting(log, control, rows)
    summary = np.empty(len(KINDS) + 1 + len(sums))
    if me.rank == 0:
        by_rank, summary = sum_up(every[:, : len(KINDS) + len(sums)], waited)
    return Collected.of(control.broadcast(summary), by_rank)


def sum_up(every: Array, waited: Array) -> tuple[Array, Array]:
    """Return the seconds of each rank by kind, and the numbers of which `Collected.of` is made.

    `every`: for each rank its seconds by kind, and what is summed over the ranks; `waited`: for how much of its exchanges
    it waited for others.
    """
    by_rank = every[:, : len(KINDS)].copy()
    # A run resumed on other ranks has the mean of the earlier seconds, but the steps of each.
    waited = np.minimum(waited, by_rank[:, KINDS.index("exchange")])
    by_rank[:, KINDS.index("exchange")] -= waited
    by_rank[:, KINDS.index("wait")] += waited
    busy = by_rank[:, TRAINING].sum(axis=1).max()
    return by_rank, np.array([*by_rank.mean(axis=0), busy, *every[:, len(KINDS) :].sum(axis=0)])


# Numbers of all ranks together in memory at once.
AT_ONCE = 1 << 20


def common_rows(spans: Array) -> int:
    """Return how many rows of the ranks' logs are of the same steps; 0 if that is not known.

    `spans`: for each rank, the rows of its log and the first span of them that were kept.

    >>> common_rows(np.array([[9, 0, 1, 9], [9, 0, 1, 7]])), common_rows(np.array([[9, 0, 1, 9], [9, 0, 2, 5]]))
    (7, 0)
    """
    return 0 if (spans[:, :3] != spans[0, :3]).any() else int(spans[:, 3].min())


def measure_waiting(log: RowLog, control: Control, rows: int) -> Array:
    """Return, on rank 0, the seconds that each rank waited for others in the exchanges of common steps. Collective.

    Other ranks get an empty array. `rows`: the rows of all logs, from the first one on, that are of common steps.

    No rank leaves an exchange before the last one has arrived, so the rank that spent the least time in it arrived last
    and did not wait; the excess of the others over it is their waiting time. If not every step was kept, those that were,
    the same on all ranks, stand for the others.

    >>> measure_waiting(RowLog(STEP_COLUMNS), Control(None), 0).tolist()
    [0.0]
    """
    column = STEP_COLUMNS.index("exchange")

    def gather(start: int, stop: int) -> Array:
        return control.gather_alike(log.read(start, stop)[:, column])

    return add_waits(control.size, len(log), rows, gather)[: None if control.rank == 0 else 0]


def gather_steps(me: Worker, folder: Path) -> Table:
    """Return the steps of all ranks on rank 0, and none elsewhere. Collective."""
    return steps_table(gather_rows(me.log, me.control, folder, "steps"))


def add_waits(ranks: int, steps: int, rows: int, gather: Callable[[int, int], Array]) -> Array:
    """Return the seconds that each of `ranks` ranks waited in `steps` steps, of which the first `rows` are known.

    `gather(start, stop)`: the seconds of exchanges in some of them, one row per rank, or no rows if another rank has them.
    """
    waited, each = np.zeros(ranks), max(1, AT_ONCE // ranks)
    for start in range(0, rows, each):
        spent = gather(start, min(start + each, rows))
        if len(spent):
            waited += sum_excess(spent)
    return waited * (steps / rows if rows else 1)


def sum_excess(spent: Array) -> Array:
    """Return the sum, over the columns of a matrix, of the excess of each row over the smallest.

    >>> sum_excess(np.array([[3.0, 1.0], [1.0, 1.5]])).tolist()
    [2.0, 0.5]
    """
    return (spent - spent.min(axis=0)).sum(axis=1)  # type: ignore[no-any-return]


# ---- the environment of a rank: a process of its own, or a simulated rank in this process

Made = TypeVar("Made")


class RankEnvironment(ABC):
    """The environment in which a rank runs."""

    simulated: ClassVar[bool]
    resumption: Resumption | None = None
    """The state with which this rank goes on after another has died."""
    run: Path | None = None
    """The run's folder, once it is known."""
    part: tuple[int, int] | None = None
    """The part of the data that this rank has, if not that of its place among the ranks: its number, and of how many."""
    worker: Worker | None = None
    """The worker, once training has begun."""

    def __init__(
        self,
        comm: Any,
        threads: int,
        clock: Callable[[], float],
        *,
        time_only: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """`time_only`: nothing is computed; `meter`: charges the operations of a simulated rank's vectors."""
        self.comm = comm
        """An mpi4py communicator, or one with the same interface; None for a single process without MPI."""
        self.rank: int = 0 if comm is None else comm.Get_rank()
        self.ranks: int = 1 if comm is None else comm.Get_size()
        self.threads = threads
        """Threads of each rank."""
        self.clock = clock
        self.time_only = time_only
        self.meter = meter
        self.deaths: list[SurvivedDeath] = []
        """The deaths of ranks so far."""

    @property
    def has_cores(self) -> bool:
        """True if every thread of every rank has a core, so that ranks do not wait for each other's; False if unknown."""
        return False

    @abstractmethod
    def origin(self) -> float:
        """Return the reading of this rank's clock at the common time zero of all ranks. Collective."""

    @abstractmethod
    def prepare(self, job: Job) -> Components:
        """Build the objects that this rank trains with."""

    @abstractmethod
    def folder(self, job: Job) -> Path | None:
        """Return the run's folder if one is wanted: the same for every rank."""

    @abstractmethod
    def agree(self, work: Callable[[], Made]) -> Made:
        """Call a function that may raise a UsageError; if it does on one rank, raise it on all."""

    @abstractmethod
    def checkpoint(self, run: Path, *, whole: bool) -> list[int] | None:
        """Return the numbers of the parts of the latest complete checkpoint, the same on every rank; see `find_latest`."""

    def follow(self, me: Worker, strategy: Strategy | Train, folder: Path | None) -> None:
        """Begin to watch the progress of this rank."""
        self.worker = me

    @abstractmethod
    def describe_request(self) -> dict[str, Any]:
        """Return where the run was requested to run, with the given settings of that place."""

    def describe(self) -> dict[str, Any]:
        """Return the entries of the record's configuration about this place."""
        return {}

    @abstractmethod
    def without(self, comm: Any, dead: Collection[int]) -> RankEnvironment:
        """Return the environment of this rank on the communicator of the survivors of some ranks."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Return the record's description of the machine."""

    def accept_signals(self, me: Worker) -> AbstractContextManager[None]:
        """Return a block in which signals ask this rank's worker to stop."""
        return nullcontext()

    def collect(
        self, me: Worker, traffic: tuple[int, int], *, in_step: bool, without_core: float
    ) -> Collected:
        """Compute the totals of the run: see `collect`. Collective."""
        return collect(me, traffic, in_step=in_step, without_core=without_core)

    def gather_steps(self, me: Worker, folder: Path) -> Table:
        """Return the steps of all ranks on rank 0, for the record in this folder. Collective."""
        return gather_steps(me, folder)


class RealRank(RankEnvironment):
    """A rank in its own process: it prepares everything itself, and all ranks check that they agree."""

    simulated = False

    def __init__(
        self,
        comm: Any,
        threads: int,
        watchdog: Watchdog | None = None,
        requests: StopRequests | None = None,
    ) -> None:
        super().__init__(comm, threads, time.perf_counter)
        self._watchdog = watchdog
        self._requests = requests
        self._nodes: dict[str, list[Any]] | None = None  # set together with the folder

    def origin(self) -> float:
        return common_start(self.comm, self.clock)

    def prepare(self, job: Job) -> Components:
        made = self.agree(lambda: self._prepare(job))
        x = made.model.x
        check_same(
            self.comm,
            {"parameters": x.size, "type": x.dtype.name, "training samples": len(made.data.train)},
        )
        return made

    def _prepare(self, job: Job) -> Components:
        n = self.ranks
        if job.launcher() == "torch" and n > 1 and not isinstance(self.comm, TorchProcesses):
            raise UsageError(
                f"{job.name()} starts its processes itself and cannot use the {n} ranks of an MPI job: "
                f"run it without mpiexec or srun, and give their number (-n {n}, or ranks={n} of fit)"
            )
        return job.prepare(n)

    def folder(self, job: Job) -> Path | None:
        if job.runs is None:
            return None
        made = self.agree(lambda: job.new_folder(self.ranks) if self.rank == 0 else None)
        if made is not None:
            announce_run(made)
        self._nodes = nodes_of(self.comm)
        return Path(broadcast_text(self.comm, str(made)))

    def agree(self, work: Callable[[], Made]) -> Made:
        return agree(self.comm, work)

    def checkpoint(self, run: Path, *, whole: bool) -> list[int] | None:
        latest = find_latest(run, whole=whole) if self.rank == 0 else None
        found: list[int] | None = json.loads(broadcast_text(self.comm, json.dumps(latest)))
        return found

    def follow(self, me: Worker, strategy: Strategy | Train, folder: Path | None) -> None:
        super().follow(me, strategy, folder)
        if self._watchdog is not None:
            self._watchdog.follow(me, strategy, folder)

    def describe_request(self) -> dict[str, Any]:
        return {"on": "mpi"}

    def accept_signals(self, me: Worker) -> AbstractContextManager[None]:
        if self._requests is None:
            return super().accept_signals(me)
        return self._requests.pass_to(None if me.keeper is None else partial(setattr, me, "stop_asked"))

    def without(self, comm: Any, dead: Collection[int]) -> RealRank:
        if self._watchdog is not None:
            self._watchdog.forget(dead)
        note_survivors(comm)
        return RealRank(comm, self.threads, self._watchdog, self._requests)

    def environment(self) -> dict[str, Any]:
        return {**environment(threads=self.threads, comm=self.comm), "nodes": self._nodes}

    @property
    def has_cores(self) -> bool:
        nodes = self._nodes or {"ranks": [], "cores": [0]}
        here = Counter(nodes["ranks"])
        return all(0 < self.threads * here[node] <= cores for node, cores in enumerate(nodes["cores"]))


Show = Callable[[int, int, int], Progress]


def train(
    job: Job, comm: Any, *, progress: Show | None = None, requests: StopRequests | None = None
) -> Fitted:
    """Run `job` on the ranks of `comm` (None: only this process). Collective; every rank gets the results.

    `requests`: the block of this process in which signals ask for a stop; None: they do what they always do.
    """
    check_same(
        comm,
        {**asdict(job.config), "strategy": job.name(), "record": job.runs is not None, "trace": job.trace},
    )
    threads = threads_of_rank(comm, job.config.threads)
    keep_memory()
    with limit_threads(threads), watch_ranks(comm, job.safety) as watchdog:
        place = RealRank(comm, threads, watchdog, requests)
        try:
            if comm is None or not job.safety.tolerate_failures:
                return train_at(place, job, progress)
            return train_surviving(place, job, lambda place, job: train_at(place, job, progress))
        finally:
            if place.run is not None:
                release(place.run)


def train_at(place: RankEnvironment, job: Job, progress: Show | None) -> Fitted:
    """Run one rank's part of `job`, wherever that rank is. Collective; every rank gets the results."""
    components = place.prepare(job)
    folder = place.run = place.folder(job)
    record = Record(folder) if folder is not None and place.rank == 0 else None
    rate = _choose_rate(job, components)
    batches = _make_batches(place, job, components)
    epochs = job.config.epochs
    work = (epochs, epochs * batches.steps_per_epoch, epochs * batches.samples_per_epoch)
    shown = progress(*work) if progress and place.rank == 0 else None
    resumption = place.resumption
    if resumption is None and job.resume is not None:
        resumption = load_states(place, job.resume, kind_of_batches(components.strategy))
        place.agree(partial(check_fits, job.resume, resumption, components.model, components.data))
    if folder is not None:
        place.agree(partial(_begin_record, record, job, place, components, rate, resumption))
    me = _make_worker(place, job, components, batches, rate, record, shown)
    saver = protect(me, job, place, components.strategy, folder)
    if resumption is not None:
        me.resume(resumption, kind_of_batches(components.strategy))
    place.follow(me, components.strategy, folder)
    if place.deaths and place.rank == 0 and not place.simulated:
        me.findings["failures"][-1]["seconds"] = time.time() - place.deaths[-1].noticed
    found, tested = _train_and_test(place, job, me, components.strategy, record, shown, saver)
    if me.events is not None:
        _gather_trace(me, me.events)
    table = None
    if folder is not None:
        table = place.gather_steps(me, folder)
        if table.missing:
            me.remarks.append(
                f"steps.npz lacks {table.missing:,} steps, which could not be written during the run"
            )
    fitted = Fitted(
        run=folder,
        strategy=job.name(),
        simulated=place.simulated,
        global_batch=batches.batch,
        model_name=job.config.model,
        threads=place.threads,
        **_outcome(me, found, *tested),
    )
    if record is not None and table is not None:
        summary = {**fitted.summary(), **_summarize(me, found, saver)}
        summary.update(_expected_traffic(record, job, components.strategy, summary))
        record.finish(None if place.time_only else me.model, summary, {"steps": table, **me.tables})
    fitted = _set_folder(me, fitted, record)
    if saver is not None:
        finish(me, saver, job)
    if shown is not None:
        shown.close()
    me.close()
    return fitted


def _choose_rate(job: Job, components: Components) -> float:
    """Return the learning rate of one rank: the one asked for, or one that suits the update and the model."""
    if job.optimizer is not None:
        return 1.0  # a factor on the learning rates of its groups
    if job.config.lr is not None:
        return job.config.lr
    return choose_rate(components.update, float(getattr(components.model, "default_rate", 0.1)))


def _make_batches(place: RankEnvironment, job: Job, components: Components) -> Batches:
    config, model = job.config, components.model
    rank, ranks = (place.rank, place.ranks) if place.part is None else place.part
    return Batches(
        components.data.train,
        batch=batch_of(config, components.strategy, place.ranks),
        seed=config.seed,
        dtype=model.x.dtype,
        rank=rank,
        ranks=ranks,
        draws=config.draws,
        time_only=place.time_only,
        pieces=config.reproducible,
        keeps=getattr(model, "keeps", None),
        weights=components.weights,
    )


def _begin_record(
    record: Record | None,
    job: Job,
    place: RankEnvironment,
    components: Components,
    rate: float,
    resumption: Resumption | None,
) -> None:
    """Start the record, or go on with that of a run that is resumed; nothing except on rank 0."""
    if record is None:
        return
    if resumption is None:
        settings = _settings_for_record(job, place, components, rate)
        record.start(settings, place.environment())
        return
    history = [Epoch(**epoch) for epoch in resumption.first["history"]]
    changes = changes_for_record(job, place, resumption)
    gone = bool(job.because) or job.survivors
    record.resume(changes, history, place.environment(), anyway=gone)


def _make_worker(
    place: RankEnvironment,
    job: Job,
    components: Components,
    batches: Batches,
    rate: float,
    record: Record | None,
    shown: Progress | None,
) -> Worker:
    """Make the worker, whose communicator counts its messages and traces them if asked. Collective."""
    comm, rank, ranks, config, folder = place.comm, place.rank, place.ranks, job.config, place.run

    def on_epoch(epoch: Epoch) -> None:
        if record is not None:
            record.epoch(epoch)
        if shown is not None:
            shown.epoch(epoch)

    origin = place.origin()
    spool = Spool(
        folder=folder,
        rank=rank,
        ranks=ranks if place.simulated else 1,
        visible=rank == 0 or folder is None or (folder / "config.json").is_file(),
        outage=None if record is None else record.outage,
    )
    events = Events(place.clock, event_limit(ranks)) if job.trace else None
    tracer = None if events is None else Tracer(events, comm)
    return Worker(
        comm=None if comm is None else Recorded(comm, tracer=tracer),
        model=components.model,
        data=components.data,
        batches=batches,
        update=components.update,
        schedule=components.schedule,
        rate=scaled_rate(rate, config.lr_scaling, ranks),
        epochs=config.epochs,
        on_divergence=config.on_divergence,
        metrics=job.metrics,
        replay=None if config.replay is None else Run(config.replay),
        on_step=shown.step if shown is not None else None,
        on_epoch=on_epoch if rank == 0 else None,
        clock=place.clock,
        meter=place.meter,
        in_step=_is_in_step(components.strategy),
        origin=origin,
        events=events,
        spool=spool,
    )


def _is_in_step(strategy: Strategy | Train) -> bool:
    return getattr(strategy, "in_step", True)


def _train_and_test(
    place: RankEnvironment,
    job: Job,
    me: Worker,
    strategy: Strategy | Train,
    record: Record | None,
    shown: Progress | None,
    saver: Saver | None,
) -> tuple[Collected, tuple[float | None, float | None]]:
    """Train, and test the model; return the totals of training, and the loss and accuracy on the test samples."""
    lost = seconds_without_core if not place.simulated else float  # simulated ranks are one process
    begin = time.perf_counter(), lost()
    _run_strategy(place, job, me, strategy, record, shown)
    me.end_training()
    _remark(me)
    took, without_core = time.perf_counter() - begin[0], lost() - begin[1]
    traffic = (0, 0) if me.comm is None else (me.comm.counts.bytes, me.comm.counts.messages)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # of a model that has diverged
        tested = me.test()
    me.stop_clock()
    if saver is not None:
        saver.wait()  # its thread reads the files of rows, which rank 0 removes once all ranks are here
    found = place.collect(me, traffic, in_step=_is_in_step(strategy), without_core=without_core)
    if place.has_cores:
        me.remarks += describe_other_programs(found.without_core / me.size, took)
    return found, tested


def _run_strategy(
    place: RankEnvironment,
    job: Job,
    me: Worker,
    strategy: Strategy | Train,
    record: Record | None,
    shown: Progress | None,
) -> None:
    """Train; if that ends before its time, close the record and the display."""
    try:
        with (
            place.accept_signals(me),
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),  # the guard describes it
        ):
            (strategy.train if isinstance(strategy, Strategy) else strategy)(me)
    except AgreedError:  # what only the ranks can know, such as too little shared memory
        if record is not None and me.beats == 0 and job.resume is None:
            record.discard()
        raise
    except StoppedError as stopped:
        if shown is not None:
            shown.close()
        if record is not None:
            record.stop(describe_stop(me, stopped, record.folder))
        me.close()
        stopped.run = place.run
        raise


def _summarize(me: Worker, found: Collected, saver: Saver | None) -> dict[str, Any]:
    """Return what the record of a run says about it besides its results."""
    layers, size = me.model.layers, me.model.x.size
    first = min(layers, key=lambda layer: layer.start, default=slice(0, size))
    return {
        "buffers": flat_buffers(me.model).size,
        "seconds_by_rank": [dict(zip(KINDS, map(float, row), strict=True)) for row in found.by_rank],
        "layers": len(layers),
        "first_layer": first.stop - first.start,  # its gradient is the last one that is ready
        "checkpoints": None if saver is None else {"saved": saver.written, "seconds": me.keeper.seconds},
    }


def _set_folder(me: Worker, fitted: Fitted, record: Record | None) -> Fitted:
    """Return the results with the folder in which rank 0 saved them, which is not the run's if that failed. Collective."""
    if fitted.run is None:
        return fitted
    mine = None if record is None else [record.moved, record.unsaved]
    moved, unsaved = json.loads(me.control.broadcast_text(json.dumps(mine)))
    if moved is not None:
        place, words = moved
        return replace(fitted, run=Path(place), remarks=(*fitted.remarks, words))
    return fitted if unsaved is None else replace(fitted, run=None, unsaved=unsaved)


def _expected_traffic(
    record: Record, job: Job, strategy: Strategy | Train, summary: dict[str, Any]
) -> dict[str, Any]:
    """Return the expected traffic of a user's own strategy; readers of records ask built-in ones themselves."""
    if not isinstance(strategy, Strategy) or find_built_in(job.name()) is not None or summary["ranks"] == 1:
        return {}
    try:
        run = Run(record.folder)
        load = Load.of(run.config, summary, Nodes(layout(run)))
    except UsageError:  # the folder was removed
        return {}
    return {"expected_traffic": asdict(strategy.traffic(load))}


def _settings_for_record(
    job: Job,
    place: RankEnvironment,
    components: Components,
    rate: float,
) -> dict[str, Any]:
    """Return the requested settings, for the record."""
    data, strategy = components.data, components.strategy
    facts: dict[str, Any] = {}
    if job.metrics:
        facts["metrics"] = sorted(job.metrics)
    if job.optimizer is not None:
        facts["update"] = describe_update(components.update)
    if isinstance(strategy, Strategy):
        facts["strategy_facts"] = Facts.of(strategy, ranks=place.ranks, update=job.config.update).as_json()
    return {
        **asdict(job.config),
        "lr": rate,
        "strategy": job.name(),
        "ranks": place.ranks,
        "asked": {
            "lr": job.config.lr,
            **{k: v for k, v in (job.program or {}).items() if k in ("strategy", "until")},
            **({"trace": True} if job.trace else {}),
            **place.describe_request(),
        },
        "objects": job.objects,
        "shape": data.shape,
        "label_shape": data.label_shape,
        "target": data.target,
        "classes": data.classes,
        "class_names": data.class_names,
        **_inputs_for_record(data),
        "samples": len(data.train),
        "code": job.code(),
        **({} if job.program is None else {"program": {k: job.program[k] for k in ("file", "arguments")}}),
        **facts,
        **place.describe(),
    }


def _inputs_for_record(data: Dataset) -> dict[str, Any]:
    """Return what a model must know about inputs that are not one array of floats, and about labels that are ignored."""
    found: dict[str, Any] = {}
    fields = fields_of(data.train)
    if has_several(data.train) or fields[0].dtype.kind in "biu":
        found["inputs"] = [
            {
                "name": field.name,
                "shape": field.shape,
                "dtype": "float32" if field.dtype.kind == "f" else field.dtype.name,
            }
            for field in fields
        ]
    if data.ignored is not None:
        found["ignored"] = data.ignored
    return found


def _outcome(
    me: Worker, found: Collected, test_loss: float | None, test_accuracy: float | None
) -> dict[str, Any]:
    """Return the results, by field of `Fitted`."""
    last = me.history[-1] if me.history else None
    epochs = me.last_epoch + 1  # fewer than asked for if the user's program has left its loop
    return {
        "ranks": me.size,
        "seed": me.seed,
        "epochs": epochs,
        "steps": epochs * me.steps_per_epoch,
        "data": me.data.name,
        "model": me.model,
        "parameters": me.model.x.size,
        "test_accuracy": test_accuracy,
        "test_loss": test_loss,
        "validation_accuracy": last.validation_accuracy if last else None,
        "loss": last.loss if last else None,
        "metrics": last.metrics if last else {},
        "test_metrics": me.test_metrics,
        "train_seconds": found.busy,
        "samples_per_second": found.samples / found.busy if found.samples and found.busy else None,
        "seconds": found.seconds,
        "bytes_sent": found.bytes_sent,
        "messages_sent": found.messages_sent,
        "diverged": me.diverged,
        "findings": me.findings,
        "remarks": (*me.data.remarks, *me.remarks),
        "history": tuple(me.history),
    }


def _gather_trace(me: Worker, events: Events) -> None:
    """Gather every rank's events in rank 0's tables. Collective."""
    table = gather_events(events, me.origin, me.control)
    if me.rank == 0:
        me.tables["trace"] = table
        cut = int((table["lost"] > 0).sum())
        if cut:
            kept = event_limit(me.size)
            me.remarks.append(
                f"the trace holds the first {kept:,} events of each rank; {cut} of {me.size} had more"
            )


def _remark(me: Worker) -> None:
    """Add the remarks that apply to any strategy."""
    if me.divergences:
        count = len(me.divergences)
        me.findings["divergences"] = me.divergences
        times = "once" if count == 1 else f"{count} times"
        me.remarks.append(f"training diverged {times}, the last time: {me.divergences[-1]}")
    if me.replay is not None:
        me.remarks.append(f"a replay of {me.replay.folder}")
