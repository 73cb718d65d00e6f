"""The worker: one rank of a run, with its communicator, model, batches, update and record.

Its local work, which needs no other rank, is that of `Steps`: iterate over its batches, compute gradients, take steps,
and log each step.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline import updates
from paceline.collectives import Divided, Sending, make_exchange, prepare_sum
from paceline.comm import Recorded, is_revoked, revoke
from paceline.comm.clocks import Stopwatch, TracedStopwatch
from paceline.comm.control import Control
from paceline.comm.recording import Timer
from paceline.comm.tracing import Events
from paceline.config import Interval
from paceline.data import Batch, Batches, Dataset, Shares, Split
from paceline.errors import StoppedError
from paceline.models import Model, Ready, layer_by_layer
from paceline.record import EPOCHS, STEP_COLUMNS, Epoch, RowLog, Spool, gather_rows
from paceline.record.checkpoint import Saver, State
from paceline.schedules import Schedule
from paceline.updates import Update, is_elementwise
from paceline.vectors import Meter, Vector, charge_whole, is_unknown, vector
from paceline.worker.checkpoints import (
    Keeper,
    Kept,
    Regroup,
    Resumption,
    Saves,
    put,
    restore_worker,
    state_of_worker,
    understand_state,
)
from paceline.worker.divergence import Recovery, all_equal
from paceline.worker.evaluation import Metrics, Score, agree_on_buffers, ratio, score_together
from paceline.worker.shared import AgeCounts, SharedX

Array = NDArray[Any]
WHOLE = slice(None)
# Spans of real time shorter than this are not recorded.
SHORTEST = 1e-6


class Steps:
    """The part of a Worker that needs no other rank."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        model: Model,
        batches: Batches,
        update: Update,
        schedule: Schedule,
        rate: float,
        epochs: int,
        on_step: Callable[[int, float], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        in_step: bool = True,
        simulated: bool = False,
        origin: float | None = None,
        events: Events | None = None,
        log: RowLog | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.model = model
        self.update = update
        self.rate = rate
        self.seed = batches.seed
        self.shares = Shares(batches)
        self.steps_per_epoch = batches.steps_per_epoch
        self.steps = epochs * batches.steps_per_epoch
        self.log = RowLog(STEP_COLUMNS) if log is None else log
        """A row of STEP_COLUMNS for every step of this rank."""
        # If ranks work in step, waiting times are computed from their exchanges at the end of the run.
        waits, shortest = "exchange" if in_step else "wait", 0.0 if simulated else SHORTEST
        self.watch = (
            Stopwatch(clock, waits, shortest=shortest)
            if events is None
            else TracedStopwatch(clock, events.lap, waits, shortest=shortest)
        )
        self.origin = self.watch.last if origin is None else origin
        """The clock's reading at time zero of the log: the same moment on all ranks."""
        self._spill_at = math.inf if simulated else self.watch.last + SPILL
        self._schedule = schedule
        self._epochs = epochs
        self._on_step = on_step
        self.update_states: dict[tuple[int | None, int | None], dict[str, Array]] = {}
        """The states of the update, by the start and stop of the part of the parameters."""
        self.saved_updates: Callable[[int, int], updates.State | None] | None = None
        """Returns the saved state of the update for a part of the parameters, if the run is resumed."""
        self.keeper: Any = None
        """Saves this rank's state between two batches; None if it is not saved."""
        self.position = (0, 0)
        """The current epoch and the number of batches that this rank has had in it."""
        self._resume_at = (0, 0)
        self.stop_asked = 0
        """The number of a signal that asks the run to save a checkpoint and stop; 0: none has come."""
        self.beats = 0
        """Gradients computed and steps shown so far: it stands still when training does."""
        self.changed = True
        """True if this rank has changed its parameters since its last batch ended, or if it is not in a batch."""
        self._step = 0
        self._loss = 0.0
        self.epoch_sums = [0.0, 0]
        """The sum of the losses of this rank's samples in the epoch, and their number."""
        self.epoch_losses = [0.0, 0.0, 0.0]
        """The number of the batches' mean losses in the epoch, their sum, and the sum of their squares."""
        self._piece_sums: list[Array] = []
        self._by_layer: Callable[[Batch, Ready], float] | None = None

    @property
    def step_factor(self) -> float:
        """The model's own factor on the learning rate, for strategies in which another rank takes the step."""
        return float(getattr(self.model, "step_factor", 1.0))

    @property
    def last_epoch(self) -> int:
        """The number of the run's last epoch."""
        return self._epochs - 1

    @property
    def current_step(self) -> int:
        """The step of the run that this rank is at, from 0."""
        return max(self._step, self.position[0] * self.steps_per_epoch + self.position[1])

    @property
    def epoch_loss(self) -> float:
        """The mean loss of this rank's own batches of the current epoch; 0 if it had none."""
        return ratio(*self.epoch_sums) or 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds so far by kind: compute, exchange, wait, update, evaluation."""
        return dict(self.watch.seconds)

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run, the same moment on all ranks, until this rank's last change of work."""
        return self.watch.last - self.origin

    @property
    def train_seconds(self) -> float:
        """Seconds so far, without evaluation."""
        return self.watch.training()

    def vector(self, more: int = 0, *, dtype: DTypeLike | None = None) -> Array:
        """Return an uninitialised vector as long as `model.x` plus `more` elements, by default of the same type."""
        x = self.model.x
        return np.empty_like(x, dtype=dtype, shape=(x.size + more,))

    def vectors(self, count: int) -> Array:
        """Return `count` such vectors as the rows of a matrix."""
        x = self.model.x
        return np.empty_like(x, shape=(count, x.size))

    def preparation(self) -> AbstractContextManager[None]:
        """Exclude this block from the run's seconds: it is part of the start-up, not of a step."""
        return self.watch.during("setup")

    def evaluation(self) -> AbstractContextManager[None]:
        """Count this block as evaluation, not as training."""
        return self.watch.during("evaluation")

    def batches(self, epoch: int, *, rank: int | None = None, ranks: int | None = None) -> Iterator[Batch]:
        """Iterate over this rank's piece of each global batch: by default piece `rank` of `size`."""
        mine = (self.rank if rank is None else rank, self.size if ranks is None else ranks)
        return self.log_steps(self._announce(self.shares.pieces(epoch, *mine, start=self._begin(epoch))))

    def turns(self, epoch: int) -> Iterator[Batch]:
        """Iterate over this rank's whole batches; all ranks have the same number of turns, and the last may be empty."""
        return self.log_steps(self._announce(self.shares.deal(epoch, self._begin(epoch))))

    def own_batches(self, epoch: int) -> Iterator[Batch]:
        """Iterate over whole batches of this rank's own data; all ranks have the same number, and the last may be empty."""
        start = self._begin(epoch)
        return self.log_steps(
            self._announce(self.shares.own(epoch, start)), each=self.steps_per_epoch / self.shares.own_turns
        )

    def _announce(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches of an epoch, of which a model that reads its samples itself learns in advance."""
        look = getattr(self.model, "look_ahead", None)
        return batches if look is None else look(batches)

    def rounds(self, epoch: int) -> Iterator[int]:
        """Iterate over the steps of an epoch, counted from the start of the run, on a rank that computes no batches."""
        for turn in range(self._begin(epoch), self.steps_per_epoch):
            self.changed = True  # this rank's way of changing them is its own
            yield epoch * self.steps_per_epoch + turn
            self._end_batch()

    @property
    def turn(self) -> int:
        """The number of batches that this rank has had in the current epoch."""
        return self.position[1]

    def _begin(self, epoch: int) -> int:
        """Begin an epoch; return its first turn: 0, unless the run is resumed in the middle of this epoch."""
        start = self._resume_at[1] if epoch == self._resume_at[0] else 0
        self.position = (epoch, start)
        self.changed = False
        if start == 0:
            self.epoch_sums[:], self.epoch_losses[:] = (0.0, 0), (0.0, 0.0, 0.0)
        return start

    def _end_batch(self) -> None:
        """Count a batch that is done; a checkpoint may be saved now."""
        self.position = (self.position[0], self.position[1] + 1)
        self.changed = False
        if self.keeper is not None:
            self.keeper.end_batch()

    def log_steps(self, batches: Iterable[Batch], *, each: float = 1) -> Iterator[Batch]:
        """Iterate over batches, logging each step when the next one is requested.

        `each`: the batches of all ranks per batch of this rank.
        """
        watch, seconds, log, origin = self.watch, self.watch.seconds, self.log, self.origin
        rows, pack, full = log.buffer, log.pack, log.full
        sums, means = self.epoch_sums, self.epoch_losses
        watch.switch("compute")  # fetching samples counts as computing
        for batch in batches:
            compute, exchange, update = seconds["compute"], seconds["exchange"], seconds["update"]
            wait, start = seconds["wait"], watch.last - origin
            self._step = int(batch.step * each)
            watch.switch("update")
            yield batch
            watch.switch("compute")
            rows.append(pack(
                batch.step, batch.epoch, self._loss, batch.count,
                seconds["compute"] - compute, seconds["exchange"] - exchange, seconds["update"] - update,
                seconds["wait"] - wait, start,
            ))  # fmt: skip
            if len(rows) >= full or watch.last >= self._spill_at:
                log.spill()
                self._spill_at = watch.last + SPILL
            sums[0] += self._loss
            sums[1] += batch.count
            if batch.count:
                mean = self._loss / batch.count
                means[:] = means[0] + 1, means[1] + mean, means[2] + mean * mean
                self.show_progress(self._step, mean)
            self._end_batch()
        watch.lap("update")  # logging the last step is no computing: all of that is in steps
        watch.switch("update")

    def show_progress(self, step: int, loss: float) -> None:
        """Show the run's progress: the batch that was completed, and its mean loss."""
        self.beats += 1
        if self._on_step is not None:
            self._on_step(min(step, self.steps - 1), loss)

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `model.g` with the gradient summed over the batch's samples; return the summed loss.

        `ready(i)` is called as soon as the gradient of layer i is final, while the pass continues.
        """
        watch = self.watch
        self.beats += 1
        watch.switch("compute")
        if ready is not None:
            if self._by_layer is None:
                self._by_layer = layer_by_layer(self.model)
            self._loss = self._by_layer(batch, ready)
        elif self.shares.batches.pieces is not None:
            self._loss = self._sum_pieces(batch)
        elif batch.count or (batch.total and getattr(self.model, "takes_empty", False)):
            self._loss = self.model.gradient(batch)
        else:
            self.model.g.fill(0)
            self._loss = 0.0
        watch.switch("update")
        return self._loss

    def _sum_pieces(self, batch: Batch) -> float:
        """Fill `model.g` piece by piece, in a fixed order of additions: (0 + 1) + (2 + 3) ...; return the summed loss."""
        batches, g, loss = self.shares.batches, self.model.g, 0.0
        levels = ((batches.pieces or 1) // batches.ranks).bit_length() - 1
        if len(self._piece_sums) != levels:
            self._piece_sums = [self.vector() for _ in range(levels)]
        sums = self._piece_sums  # sums[k]: the last sum of 2^k pieces
        for number, part in enumerate(batches.parts(batch)):
            if part.count:
                loss += self.model.gradient(part)
            else:
                g[:] = 0
            level = 0
            while number >> level & 1:
                g += sums[level]
                level += 1
            if level < levels:
                sums[level][:] = g
        return loss

    def eta(self, step: int | None = None) -> float:
        """Return the learning rate of the current step of the run, or of the given one."""
        return self.rate * self.shape(step)

    def shape(self, step: int | None = None) -> float:
        """Return the schedule's factor on the learning rate for the current step of the run, or for the given one."""
        return self._schedule.factor(self._step if step is None else step, self.steps)

    def step(self, g: Array, count: float, part: slice = WHOLE, *, x: Array | None = None) -> None:
        """Take a step: x[part] <- update(x[part], g / count); `g` is overwritten. Do nothing without samples (`count` 0).

        `x`: another vector than the model's, such as one that ranks share.
        """
        self.changed = True
        if count == 0:
            return
        state = self.update_state(part, x=x)
        x = self.model.x if x is None else x
        if part.start or part.stop not in (None, x.size):
            x = x[part]
        apply_update(self.update, x, g, self.eta(), state, 1.0 / count)

    def descend(self, batch: Batch) -> float:
        """Take a step along the gradient of a batch: `gradient`, then `step` with all of it; return the summed loss.

        `model.g` is not defined afterwards. No message may be using `model.x` meanwhile.
        """
        # A simulated rank's model may do both in another process.
        descend, update = getattr(self.model, "descend", None), self.update
        if (
            descend is None
            or not batch.count
            or self.shares.batches.pieces is not None
            or not getattr(update, "keeps_nothing", False)
        ):
            loss = self.gradient(batch)
            self.step(self.model.g, batch.count)
            return loss
        watch = self.watch
        self.beats += 1
        self.changed = True
        self.update_state()
        watch.switch("compute")
        self._loss, charge = descend(batch, update, self.eta(), 1.0 / batch.count)
        watch.switch("update")
        charge()
        return self._loss

    def update_state(self, part: slice = WHOLE, *, x: Array | None = None) -> updates.State:
        """Return the state of the update for a part of the parameters; `x` as in `step`."""
        key = (part.start, part.stop)
        state = self.update_states.get(key)
        if state is None:
            values = (self.model.x if x is None else x)[part]
            state = self.update_states[key] = self._start_update(values, part)
        return state

    def _start_update(self, x: Array, part: slice) -> updates.State:
        """Return the state of the update for a part of the parameters, as it was saved if the run is resumed."""
        start, stop, _ = part.indices(self.model.x.size)
        state = start_update(self.update, x, start)
        if self.saved_updates is not None:
            for name, value in (self.saved_updates(start, stop) or {}).items():
                if name in state:
                    put(f"the update's {name}", state[name], value)
        return state


def start_update(update: Update, x: Array, first: int = 0) -> updates.State:
    """Return the state of an update before its first step on `x`, which begins with element `first` of the vector."""
    return {} if is_unknown(x) else updates.start_update(update, np.asarray(x), first)


def apply_update(
    update: Update, x: Array, g: Array, eta: float, state: updates.State, scale: float = 1.0
) -> None:
    """Apply one step of an update; the simulator charges it by the elements of x."""
    if type(x) is np.ndarray:
        update.apply(x, g, eta, state, scale)
    else:
        charge_whole("update", x.size, update.apply, x, g, eta, state, scale)


# Seconds after which the steps so far are written to the run's folder at the end of an epoch, and in the middle of one.
PUBLISH, SPILL = 1.0, 10.0
# A smaller relative change of the parameters' squared norm in an epoch counts as no movement.
UNMOVED = 1e-6
# The name of the size of buckets in a rank's state; it is the same on all ranks.
BUCKET = "bucket"
# The number of steps, at most, by which batches are balanced.
TYPICAL = 4096


class TimedExchange:
    """A gradient exchange on the worker's clock; `part` is the slice of the parameters that this rank updates."""

    def __init__(self, inner: Any, watch: Stopwatch, meter: Meter | None) -> None:
        self._inner = inner
        self._watch, self._meter = watch, meter
        self.part: slice = inner.part
        self.ready: Ready | None = None if inner.ready is None else self._ready
        """For `gradient(batch, exchange.ready)`: sends the gradient of a layer; None if `reduce` sends everything."""

    def _ready(self, layer: int) -> None:
        watch = self._watch
        doing = watch.kind
        watch.switch("exchange")
        self._inner.ready(layer)
        watch.switch(doing)

    def reduce(self) -> Array:
        """Return the sum of all ranks' gradients over `part`; the caller may overwrite it."""
        self._watch.switch("exchange")
        g: Array = self._inner.reduce()
        self._watch.switch("update")
        return g if self._meter is None or isinstance(g, Vector) else vector(g, self._meter)

    def publish(self) -> None:
        """Send this rank's part of the parameters to every rank."""
        self._watch.switch("exchange")
        self._inner.publish()
        self._watch.switch("update")


class Mean:
    """Averages of vectors as long as the model's, created by `Worker.mean`. Results are valid until the next call.

    The last element of the message is a count, so that a rank that had nothing to do is left out without another message,
    and without other ranks having to know.
    """

    def __init__(
        self,
        message: Array,
        allreduce: Callable[[Array, str], None],
        algorithm: str,
        control: Control,
        watch: Stopwatch,
    ) -> None:
        self._message, self._allreduce, self._algorithm = message, allreduce, algorithm
        self._control, self._watch = control, watch

    def __call__(self, values: Array, counts: bool = True) -> Array:
        """Return the mean over the ranks whose values count; there must be at least one. Collective."""
        with self._watch.during("exchange"):
            total, count = self.total(values if counts else np.zeros((), values.dtype), int(counts))
            total /= count
        return total

    def total(self, values: Array, count: int) -> tuple[Array, float]:
        """Return the sums of every rank's values and count. Collective."""
        message = self._message
        with self._watch.during("exchange"):
            message[:-1] = values
            message[-1] = count
            self._allreduce(message, self._algorithm)
        return message[:-1], float(message[-1])

    def preview(self, values: Array, counts: bool = True) -> Array:
        """Return the mean for evaluation only; its bytes and seconds do not count as training. Collective."""
        message = self._message
        with self._watch.during("evaluation"):
            message[:-1] = values if counts else 0
            message[-1] = counts
            total = self._control.total(message)
            total[:-1] /= total[-1]
        return total[:-1]

    def rehearse(self) -> None:
        """Sum zeros. Collective."""
        self._message[...] = 0
        self._allreduce(self._message, self._algorithm)


class Worker(Steps):
    """One rank of a run, as strategies see it.

    A strategy is a function of a Worker: it iterates over `epochs()` and `batches(epoch)`, computes with
    `gradient(batch)`, communicates over `comm` (mpi4py's buffer interface) or with `exchange(…)`, changes the
    parameters with `step(…)`, and calls `validate(epoch)` when the model is complete. Its results go
    into `findings` (JSON values), `tables` (arrays) and `remarks` (lines for the user): those of rank 0 are recorded.

    >>> from paceline.data import load
    >>> from paceline.models.mlp import build
    >>> from paceline.schedules import Constant
    >>> from paceline.updates.sgd import Sgd
    >>> iris = load("iris")
    >>> me = Worker(comm=None, model=build(iris, 8), data=iris, batches=Batches(iris.train, batch=10), update=Sgd(),
    ...             schedule=Constant(), rate=0.1, epochs=2)
    >>> for epoch in me.epochs():
    ...     for batch in me.batches(epoch):
    ...         _ = me.gradient(batch)
    ...         me.step(me.model.g, batch.total)
    ...     _ = me.validate(epoch)
    >>> me.history[1].loss < me.history[0].loss
    True
    """

    def __init__(
        self,
        *,
        comm: Any,
        model: Model,
        data: Dataset,
        batches: Batches,
        update: Update,
        schedule: Schedule,
        rate: float,
        epochs: int,
        on_divergence: str = "stop",
        metrics: Metrics | None = None,
        replay: Any = None,
        on_step: Callable[[int, float], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        meter: Meter | None = None,
        in_step: bool = True,
        origin: float | None = None,
        events: Events | None = None,
        spool: Spool | None = None,
    ) -> None:
        """`meter`: charges the operations of simulated vectors; None on real ranks. `spool`: where tables grow."""
        self._spool = Spool() if spool is None else spool
        super().__init__(
            rank=comm.Get_rank() if comm is not None else 0,
            size=comm.Get_size() if comm is not None else 1,
            model=model,
            batches=batches,
            update=update,
            schedule=schedule,
            rate=rate,
            epochs=epochs,
            on_step=on_step,
            clock=clock,
            in_step=in_step,
            simulated=meter is not None,
            origin=origin,
            events=events,
            log=self._spool.log("steps", STEP_COLUMNS),
        )
        self.logs = {"steps": self.log}
        """The tables of this rank that grow with its steps, by name."""
        self._off_clock = comm if comm is None or isinstance(comm, Recorded) else Recorded(comm)
        self.comm: Any = comm
        if self._off_clock is not None:
            counts, tracer = self._off_clock.counts, self._off_clock.tracer
            self.comm = Recorded(self._off_clock, counts, tracer, Timer(self.watch), self._off_clock.made)
        self.data = data
        self._meter = meter
        self._publish_at = time.monotonic() + PUBLISH
        self._time_only = meter is not None and meter.time_only
        self.on_divergence = "ignore" if self._time_only else on_divergence
        self.metrics = metrics
        """The user's own metrics: functions of outputs and labels, by name."""
        self.replay = replay
        """The run whose order of messages is repeated (a `paceline.record.Run`), if any."""
        self.history: list[Epoch] = []
        """The epochs that have ended; beyond EPOCHS, only every second one of the earlier."""
        self.findings: dict[str, Any] = {}
        self.tables: dict[str, Mapping[str, Array]] = {}
        self.remarks: list[str] = []
        self.control = Control(comm, self.watch)
        self._on_epoch = on_epoch
        self.events = events
        self._rehearses = comm is not None and meter is None  # simulated ranks have nothing to set up
        self._tested: tuple[float | None, float | None] | None = None
        self.test_metrics: dict[str, float] = {}
        """The user's own metrics on the test samples, after `test`."""
        self._balanced = 0
        # The last array that was summed, the collective, and what sums it.
        self._sum: tuple[Array, str, Callable[[], None]] | None = None
        self._norm = 0.0
        self._recovery = Recovery(self.on_divergence)
        self.exchanges = 0
        """The number of sums over all ranks so far."""
        self.kept_values: dict[str, Kept] = {}
        """The values of the strategy that belong to its state, by name."""
        self._resumption: Resumption | None = None
        self._restored = False
        self._replicas = self._whole_updates = False
        self.regroup: Regroup | None = None
        self.survives = False
        """True if the run goes on when other ranks die."""
        self.watch.restart()  # opening channels to the other ranks is no part of training

    def epochs(self) -> Iterator[int]:
        """Iterate over the epochs of the run, from 0; stop early if training has diverged."""
        self._recovery.keep(np.asarray(self.model.x))
        if self.keeper is not None:
            self.keeper.begin()
        self.watch.restart()  # preparation belongs to the start of a run, not to a step
        for epoch in range(self._resume_at[0], self._epochs):
            if self.diverged is not None or epoch > self.last_epoch:
                return
            yield epoch
            self._publish_steps()
            if epoch != self.last_epoch and self.diverged is None:
                self.position = (epoch + 1, 0)
                if self.keeper is not None:
                    self.keeper.end_epoch()

    def _publish_steps(self) -> None:
        """Write the steps so far to the run's folder, for those who watch; not for simulated ranks, which may be many."""
        if self._meter is not None or self.log.path is None or time.monotonic() < self._publish_at:
            return
        with self.evaluation():
            self.log.flush()
        self._publish_at = time.monotonic() + PUBLISH

    # ---- checkpoints

    def keep(self, name: str, **values: Any) -> Kept:
        """Return a namespace of values that belong to this rank's state, as they were saved if the run is resumed.

        Values are arrays, numbers, texts, random generators, and dicts of these. Arrays and generators are restored in
        place. If the number of ranks has changed, arrays of floats are averaged over the earlier ranks and other values
        are those of rank 0.
        """
        if self._resumption is not None and name not in self.kept_values:
            saved = self._resumption.find("kept", name) or {}
            values = {
                key: put(f"{name}.{key}", value, saved[key]) if key in saved else value
                for key, value in values.items()
            }
        self.kept_values[name] = Kept(**values)
        return self.kept_values[name]

    @property
    def resumption(self) -> Resumption | None:
        """The states of the run that is resumed; None if none is."""
        return self._resumption

    @property
    def resumed_from(self) -> int:
        """The number of ranks of the run that is resumed; 0 if none is."""
        return 0 if self._resumption is None else self._resumption.ranks

    def start_saving(
        self,
        saves: Saves | None,
        interval: Interval,
        saver: Saver | None,
        *,
        replicas: bool,
        whole_updates: bool,
    ) -> None:
        """Save this rank's state at intervals; see `paceline.worker.checkpoints`."""
        self._replicas, self._whole_updates = replicas, whole_updates
        self.keeper = Keeper(self, saves, interval, saver)

    def resume(self, resumption: Resumption, kind: str) -> None:
        """Go on from a saved state; call this after `start_saving`, before training."""
        self._resumption, self._restored = resumption, True
        with understand_state():
            self._resume_at = self.position = restore_worker(self, resumption, kind)

    def state(self, rank: int | None = None) -> State:
        """Return this rank's state, as references to what it is now, or what is known here of the state of another."""
        return state_of_worker(self, rank, replicas=self._replicas, whole_updates=self._whole_updates)

    @property
    def replaces(self) -> bool:
        """True if this rank's state holds all that matters of any other's: parameters and the states of the update."""
        parts = [part for part, state in self.update_states.items() if state and part != (None, None)]
        return self._replicas and self._whole_updates and not parts and not self.kept_values.keys() - {BUCKET}

    def may_stop(self, *, wait: bool = False) -> None:
        """Stop here if a rank has been asked to; for strategies whose ranks are saved alone. Collective.

        `wait`: wait for all ranks in any case.
        """
        if self.keeper is not None and self.keeper.saves == "alone":
            self.keeper.may_stop()
        elif wait:
            self.control.wait()

    def save_together(self) -> None:
        """Save checkpoints at common steps, although the strategy's ranks are usually saved alone."""
        if self.keeper is not None:
            self.keeper.saves = "together"

    def before_saving(self, work: Callable[[], object]) -> None:
        """Call `work` whenever this rank's state is about to be saved."""
        if self.keeper is not None:
            self.keeper.before.append(work)

    def note_end(self) -> None:
        """Call what was given to `before_saving` a last time: the state is that of the end of training."""
        if self.keeper is not None:
            for work in self.keeper.before:
                work()

    def before_stopping(self, work: Callable[[], object]) -> None:
        """Call `work` on every rank once all have agreed to stop, before their states are saved. It may be collective."""
        if self.keeper is not None:
            self.keeper.before_stop.append(work)

    def survive(self, *, every_step: bool) -> None:
        """Keep the states after the last two exchanges, so that the run can go on when another rank dies.

        `every_step`: the strategy exchanges something at every step; otherwise, its sums over all ranks are counted.
        """
        self.survives = True
        if self.keeper is not None and self.keeper.saves == "together":
            self.keeper.memory = deque()
            self.keeper.every_step = every_step

    def when_ranks_die(self, regroup: Regroup) -> None:
        """Call `regroup` on all survivors when ranks have died, to complete the states from which they go on."""
        self.regroup = regroup if self.survives else None

    def revoke(self) -> None:
        """Make all calls of all ranks on this run's communicators fail, because a rank has died (ULFM)."""
        if self._off_clock is None:
            return
        self.control.revoke()
        for comm in (*self._off_clock.made, self._off_clock):
            with suppress(Exception):  # freed, or revoked by another rank
                revoke(comm)

    def is_revoked(self) -> bool:
        """Return True if this rank knows that one of this run's communicators was revoked."""
        if self._off_clock is None:
            return False
        if self.control.is_revoked():
            return True
        for comm in (*self._off_clock.made, self._off_clock):
            with suppress(Exception):  # freed
                if is_revoked(comm):
                    return True
        return False

    @property
    def traffic(self) -> list[int]:
        """The messages and bytes that this rank has sent itself, and those of its collective calls."""
        if self._off_clock is None:
            return [0, 0, 0, 0]
        own, together = self._off_clock.counts.point_to_point, self._off_clock.counts.collective
        return [own.messages, own.bytes, together.messages, together.bytes]

    @traffic.setter
    def traffic(self, values: list[int]) -> None:
        if self._off_clock is not None:
            own, together = self._off_clock.counts.point_to_point, self._off_clock.counts.collective
            own.messages, own.bytes, together.messages, together.bytes = (int(value) for value in values)

    def recovery_state(self) -> State:
        """Return the state of the response to divergence."""
        return {**vars(self._recovery), "_guard": vars(self._recovery._guard), "norm": self._norm}

    def restore_recovery(self, state: State | None) -> None:
        """Restore the state of the response to divergence, if it is known."""
        if state is None:
            return
        self._norm = state["norm"]
        for known, saved in ((vars(self._recovery._guard), state["_guard"]), (vars(self._recovery), state)):
            known.update(
                {
                    name: saved.get(name)
                    for name in known
                    if name not in ("_guard", "_kind", "horizon", "_begun")
                }
            )
        for name in ("_good", "_start"):
            if state.get(name) is not None:
                put(name, self.model.x.copy(), state[name])

    # ---- tables

    def open_table(
        self, name: str, columns: Sequence[str], *, observe: Callable[[Array], None] | None = None
    ) -> RowLog:
        """Create a table to which this rank appends rows, in constant memory; a resumed run continues it.

        `observe`: a function called once with every row, in chunks. At the end, `gather_table` gives rank 0 the rows of all
        ranks, for `tables[name]`.
        """
        log = self.logs[name] = self._spool.log(name, columns, observe=observe)
        if self._resumption is not None:
            self._resumption.continue_log(name, log, self.rank, self.size)
        return log

    def gather_table(self, name: str) -> list[RowLog]:
        """Return every rank's rows of a table on rank 0, and an empty list elsewhere. Collective."""
        return gather_rows(self.logs[name], self.control, self._spool.folder, name)

    # ---- together with the other ranks

    def broadcast(self) -> None:
        """Send rank 0's parameters and buffers to every rank; if the run is resumed, every rank has its own already."""
        if self._restored:
            self._restored = False
            return
        with self.watch.during("exchange"):
            self.control.broadcast(self.model.x)
            for buffer in self.model.buffers.values():
                buffer[...] = self.control.broadcast(np.array(buffer, order="C"))

    @contextmanager
    def exchange(
        self,
        name: str,
        *,
        factors: bool = False,
        overlap: bool = False,
        bucket: float = 0,
        compress: str = "none",
    ) -> Iterator[TimedExchange]:
        """Open the gradient exchange of the named collective; it decides where x and g are stored meanwhile.

        `factors`: the strategy uses only the gradient that `reduce` returns, never `model.g`, so that the gradient of a
        small batch may be exchanged as its factors where that is faster. An update that needs the whole vector gets
        an exchange whose `part` is everything.
        `overlap`: send the gradient of each bucket of layers (of `bucket` megabytes; 0: as measured costs suggest) during
        the backward pass, which calls `exchange.ready`. `compress`: send gradients in fewer bytes. Both are for messages
        between nodes.
        """
        # If ranks may die, none has a part of the update's state that no other has.
        divisible = is_elementwise(self.update) and not getattr(self.update, "wants_whole", False)
        whole = not divisible or (self.survives and bool(self.update.start(np.zeros(1))))
        in_order = self.shares.batches.pieces is not None
        samples = self.shares.batches.batch
        size, chosen = round(bucket * 1e6), self.keep(BUCKET, nbytes=0) if overlap and not bucket else None
        if chosen is not None:  # a run that is resumed goes on with the same order of additions
            size = int(chosen.nbytes)
        sending = Sending(
            overlap=overlap, bucket=size, compress=compress, samples=samples, keep=self.keep,
            clock=self.watch.clock, trials=1 if self._meter is not None else 5,
        )  # fmt: skip
        tries = overlap and not size  # how long messages take
        with pause_recording(self.comm, self.watch, self.events) if tries else nullcontext():
            inner = make_exchange(
                name, self.model, self._off_clock, samples if factors and not in_order else None,
                whole=whole, in_order=in_order, sending=sending, program=getattr(self.update, "needs", None),
            )  # fmt: skip
        if isinstance(inner, Divided):
            self.update.join(inner)  # type: ignore[attr-defined]
        if (plan := getattr(inner, "plan", None)) is not None:
            self.findings["exchange"] = plan
            if chosen is not None and "measured" in plan:
                chosen.nbytes = plan["measured"]["bucket"]
        if self._rehearses and (rehearse := getattr(inner, "rehearse", None)):
            with pause_recording(self.comm, self.watch, self.events):
                rehearse()
        self.watch.restart()
        try:
            yield TimedExchange(inner, self.watch, self._meter)
        except StoppedError:  # on every rank
            inner.close()
            raise
        inner.close()

    def allreduce(self, values: Array, algorithm: str = "auto") -> None:
        """Sum an array over the ranks, in place, with the named collective."""
        if self.comm is None:
            return
        if self._sum is None or self._sum[0] is not values or self._sum[1] != algorithm:
            self._sum = (values, algorithm, prepare_sum(values, self._off_clock, algorithm))
        with self.watch.during("exchange"):
            self._sum[2]()
        self.exchanges += 1

    def mean(self, algorithm: str = "auto") -> Mean:
        """Prepare averages, over the ranks, of vectors as long as the model's, with the named collective. Collective."""
        made = Mean(self.vector(more=1), self.allreduce, algorithm, self.control, self.watch)
        if self._rehearses:  # sum zeros, so that the first real sum takes no longer than others
            with pause_recording(self.comm, self.watch, self.events):
                made.rehearse()
        return made

    @contextmanager
    def shared_x(self) -> Iterator[SharedX]:
        """Copy the parameters, the same on every rank, into memory shared by the ranks of a node. Collective."""
        with self.preparation():
            ages = AgeCounts()
            log = self.open_table("staleness", ("tau",), observe=lambda rows: ages.add(rows[:, 0]))
            shared = SharedX(np.asarray(self.model.x), self._off_clock, self.watch, log, ages)
        try:
            yield shared
        except StoppedError:  # on every rank
            shared.free()
            raise
        shared.free()

    def perform(
        self, kind: str, amount: float, function: Callable[..., object], x: Array, *arguments: Any
    ) -> None:
        """Call `function(x, ...)`, which changes x in place and whose cost is measured and charged as a whole.

        See `paceline.vectors.charge_whole`.
        """
        charge_whole(kind, amount, function, x, *arguments)

    def overhead(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`; the Python time of a call is measured on real ranks and charged in the simulator as `kind`."""
        if self._meter is None:
            return function
        work = self._meter.work

        def charge(*arguments: Any) -> Any:
            work(kind, 1)
            return function(*arguments)

        return charge

    def balance(self) -> None:
        """Divide future batches so that all ranks compute for the same time, based on the steps since the last call.

        The samples of a batch do not change, only the ranks that compute them.
        """
        rows = self.log.read(max(self._balanced, self.log.kept - TYPICAL))
        self._balanced = self.log.kept
        with self.watch.during("exchange"):
            if self.size > 1 and len(rows):
                typical = np.median(
                    rows[:, [STEP_COLUMNS.index("count"), STEP_COLUMNS.index("compute")]], axis=0
                )
                self.shares.balance(*self.control.allgather(typical).T)

    # ---- the end of an epoch

    @property
    def epochs_ended(self) -> int:
        """The number of epochs that have ended."""
        return self.history[-1].epoch + 1 if self.history else 0

    def validate(self, epoch: int, *, shown: Array | None = None, guarded: bool = True) -> bool:
        """Evaluate the model, which must be complete and the same on every rank, on the validation samples. Collective.

        Every rank computes its share. Return True if training had diverged and `model.x` was restored to the last good
        parameters (`--on-divergence halve`): the strategy must then recompute whatever it derived from them.

        `shown`: evaluate these parameters instead of `model.x`, which is unchanged afterwards; but if training ends here,
        the model keeps them.
        `guarded`: False if the ranks call `guard` themselves.
        """
        self.changed = True  # the history changes
        with self.evaluation():
            own = None
            if shown is not None and not self._time_only:
                x = np.asarray(self.model.x)
                own, x[:] = x.copy(), np.asarray(shown)
            back = self._validate(epoch, guarded)
            if own is not None and not back and self.diverged is None and epoch != self.last_epoch:
                x[:] = own
        return back

    def _validate(self, epoch: int, guarded: bool) -> bool:
        agree_on_buffers(self.model, self.control, trained=self.epoch_sums[1] > 0)
        mine = [*self.epoch_sums, *self.epoch_losses, float(self._has_moved())]
        *sums, moved = self.control.total(np.array(mine))
        found = self._score(self.data.validation)
        loss = ratio(sums[0], sums[1]) or 0.0
        self.end_epoch(epoch, loss, found)
        if getattr(self.model, "judge", None) is not None:
            leaving = np.array([float(self.model.wants_stop)])  # type: ignore[attr-defined]
            if self.control.total(leaving)[0]:
                self.end_after(epoch)
        back = guarded and self.guard(epoch, loss, same=not moved and all_equal(*sums[2:]))
        if back:
            self.control.wait()  # if ranks share one x, all restore it before any continues
        return back

    def end_epoch(
        self,
        epoch: int,
        loss: float | None = None,
        validation: Score | None = None,
        train_seconds: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Record and show the end of an epoch.

        `loss`: its mean loss, by default that of this rank's own batches; `train_seconds`: when it ended, by default now;
        `metrics`: the user's own, on the validation samples; by default those in `validation`.
        """
        with self.evaluation():
            loss = self.epoch_loss if loss is None else loss
            means = (None, None) if validation is None else validation.means()
            if metrics is None:
                metrics = self.judge(epoch)
            at_end = Epoch(
                epoch=epoch,
                step=(epoch + 1) * self.steps_per_epoch,
                loss=None if self._time_only else loss,
                validation_loss=metrics.get("loss") if means[0] is None else means[0],
                validation_accuracy=metrics.get("accuracy") if means[1] is None else means[1],
                train_seconds=float(self.train_seconds if train_seconds is None else train_seconds),
                metrics=dict(metrics or ({} if validation is None else validation.metrics)),
            )
            self.history.append(at_end)
            if len(self.history) > EPOCHS:
                del self.history[1:-1:2]
            if self._on_epoch is not None:
                self._on_epoch(at_end)

    def judge(self, epoch: int) -> dict[str, float]:
        """Return the metrics of a model that is evaluated by the user's own program; none if it is not."""
        own = getattr(self.model, "judge", None)
        return {} if own is None else own(epoch)

    def end_after(self, epoch: int) -> None:
        """Make this epoch the last one of the run. Every rank must call it."""
        self._epochs = epoch + 1

    def test(self) -> tuple[float | None, float | None]:
        """Return the trained model's mean loss and accuracy on the test samples, divided among the ranks. Collective.

        Call this when training is over: the first result is stored and returned again.
        """
        if self._tested is None:
            with self.evaluation():
                found = self._score(self.data.test)
                self._tested, self.test_metrics = found.means(), found.metrics
        return self._tested

    def _score(self, split: Split) -> Score:
        return score_together(
            self.model,
            split,
            self.control,
            self.shares.batches.pieces,
            None if self._time_only else self.metrics,
        )

    # ---- divergence

    @property
    def diverged(self) -> str | None:
        """A description of the problem, once training has diverged and stopped."""
        return self._recovery.stopped

    @property
    def divergences(self) -> list[str]:
        """A message for each divergence and the response to it."""
        return self._recovery.messages

    def stop(self, why: str) -> None:
        """End training after divergence: `epochs` stops. Every rank must call it."""
        self._recovery.stop(why, warn=self.rank == 0)

    def stands_still(self) -> bool:
        """Return True if all batches of this rank in the epoch had the same loss and its parameters did not change."""
        return not self._has_moved() and all_equal(*self.epoch_losses)

    def _has_moved(self) -> bool:
        """Return True if the parameters have changed since the last call, or are not known."""
        if self._time_only:
            return True
        x = np.asarray(self.model.x)
        norm, self._norm = self._norm, float(np.dot(x, x))
        return not abs(self._norm - norm) <= UNMOVED * norm

    def guard(self, epoch: int, loss: float, *, same: bool = False) -> bool:
        """React to a diverged loss, on this rank only; return True if `model.x` was restored.

        `same`: all batches of the epoch had this loss, and the parameters did not change.
        """
        if self._time_only:
            return False
        x = np.asarray(self.model.x)
        with self.evaluation():
            back = self._recovery.act(loss, x, f"epoch {epoch + 1}", warn=self.rank == 0, same=same)
        if back:
            self.rate /= 2
            self.update_states.clear()
            self.saved_updates = None
        return back

    # ---- the end

    def end_training(self) -> None:
        """End training: work since the last exchange or step, such as freeing memory, does not count."""
        if self.keeper is not None:  # what they use may have been freed
            self.keeper.before.clear()
            self.keeper.before_stop.clear()
        self.watch.lap("evaluation")

    def stop_clock(self) -> None:
        """Stop measuring: what follows is the record of the run."""
        self.watch.restart()
        self.watch.switch("setup")

    def follow_first(self) -> None:
        """Send rank 0's history to all ranks, if only rank 0 knew when epochs ended. Collective."""
        mine = json.dumps([self.diverged, [asdict(epoch) for epoch in self.history]])
        diverged, history = json.loads(self.control.broadcast_text(mine))
        if self.rank != 0:
            self._recovery.stopped, self.history = diverged, [Epoch(**epoch) for epoch in history]

    def close(self) -> None:
        """Wait for all ranks, then free all MPI objects."""
        self.control.close()


@contextmanager
def pause_recording(comm: Any, watch: Stopwatch, events: Events | None) -> Iterator[None]:
    """Exclude this block from the record: its messages, its seconds and its trace events.

    MPI connects two ranks when they exchange their first message, and sets up a collective at its first call: 70 ms on
    some machines. That belongs to the start of a run, like windows and communicators, and not to its first step. Requests
    must be completed before the block ends.

    >>> from paceline.comm.recording import Recorded
    >>> import numpy as np
    >>> class Loopback:
    ...     def Isend(self, buffer, dest, tag=0):
    ...         return "request"
    >>> comm, watch = Recorded(Loopback()), Stopwatch(lambda: 0.0)
    >>> with pause_recording(comm, watch, None):
    ...     _ = comm.Isend(np.zeros(10), dest=1)
    >>> comm.counts.bytes
    0
    """
    counts = getattr(comm, "counts", None)
    before = (copy(counts.point_to_point), copy(counts.collective)) if counts is not None else None
    seconds, mark = dict(watch.seconds), None if events is None else events.mark()
    yield
    if counts is not None and before is not None:
        counts.point_to_point, counts.collective = before
    if events is not None and mark is not None:
        events.forget(mark)
    watch.seconds.update(seconds)
    watch.restart()
