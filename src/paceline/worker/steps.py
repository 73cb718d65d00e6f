"""The local work of a rank: iterate over its batches, compute gradients, take steps, and log each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline import updates
from paceline.comm.clocks import Stopwatch, TracedStopwatch
from paceline.comm.tracing import Events
from paceline.data import Batch, Batches, Shares
from paceline.models import Model, Ready, layer_by_layer
from paceline.record import STEP_COLUMNS, RowLog
from paceline.schedules import Schedule
from paceline.updates import State, Update
from paceline.vectors import charge_whole, is_unknown
from paceline.worker.checkpoints import put
from paceline.worker.evaluation import ratio

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
        self._step_factor = 1.0
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
        self._schedule = schedule
        self._epochs = epochs
        self._on_step = on_step
        self.update_states: dict[tuple[int | None, int | None], dict[str, Array]] = {}
        """The states of the update, by the start and stop of the part of the parameters."""
        self.saved_updates: Callable[[int, int], State | None] | None = None
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
        """This rank's own factor on the learning rate, for strategies in which another rank takes the step."""
        return float(getattr(self.model, "step_factor", self._step_factor))

    @step_factor.setter
    def step_factor(self, factor: float) -> None:
        self._step_factor = factor

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
        return self.logged(self._ahead(self.shares.pieces(epoch, *mine, start=self._begin(epoch))))

    def turns(self, epoch: int) -> Iterator[Batch]:
        """Iterate over this rank's whole batches; all ranks have the same number of turns, and the last may be empty."""
        return self.logged(self._ahead(self.shares.dealt(epoch, self._begin(epoch))))

    def own_batches(self, epoch: int) -> Iterator[Batch]:
        """Iterate over whole batches of this rank's own data; all ranks have the same number, and the last may be empty."""
        start = self._begin(epoch)
        return self.logged(
            self._ahead(self.shares.own(epoch, start)), each=self.steps_per_epoch / self.shares.own_turns
        )

    def _ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches of an epoch; a model that reads its samples itself gets to know them in advance."""
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
            self.keeper.boundary()

    def logged(self, batches: Iterable[Batch], *, each: float = 1) -> Iterator[Batch]:
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
            if len(rows) >= full:
                log.spill()
            sums[0] += self._loss
            sums[1] += batch.count
            if batch.count:
                mean = self._loss / batch.count
                means[:] = means[0] + 1, means[1] + mean, means[2] + mean * mean
                self.tell(self._step, mean)
            self._end_batch()
        watch.lap("update")  # logging the last step is no computing: all of that is in steps
        watch.switch("update")

    def tell(self, step: int, loss: float) -> None:
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
        """x[part] <- update(x[part], g / count); `g` is overwritten. Without samples (`count` 0) do nothing.

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

    def update_state(self, part: slice = WHOLE, *, x: Array | None = None) -> State:
        """Return the state of the update for a part of the parameters; `x` as in `step`."""
        key = (part.start, part.stop)
        state = self.update_states.get(key)
        if state is None:
            values = (self.model.x if x is None else x)[part]
            state = self.update_states[key] = self._start_update(values, part)
        return state

    def _start_update(self, x: Array, part: slice) -> State:
        """Return the state of the update for a part of the parameters, as it was saved if the run is resumed."""
        start, stop, _ = part.indices(self.model.x.size)
        state = start_update(self.update, x, start)
        if self.saved_updates is not None:
            for name, value in (self.saved_updates(start, stop) or {}).items():
                if name in state:
                    put(f"the update's {name}", state[name], value)
        return state


def start_update(update: Update, x: Array, first: int = 0) -> State:
    """Return the state of an update before its first step on `x`, which begins with element `first` of the vector."""
    return {} if is_unknown(x) else updates.start_update(update, np.asarray(x), first)


def apply_update(update: Update, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
    """Apply one step of an update; the simulator charges it by the elements of x."""
    if type(x) is np.ndarray:
        update.apply(x, g, eta, state, scale)
    else:
        charge_whole("update", x.size, update.apply, x, g, eta, state, scale)
