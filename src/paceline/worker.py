"""What a strategy is handed: its communicator, model, batches, update, clock and record."""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm._control import Control
from paceline.data import Batch, Batches, Dataset, Split, chunks, piece
from paceline.models import Model
from paceline.schedules import Schedule
from paceline.stopwatch import Stopwatch
from paceline.updates import Update

Array = NDArray[Any]
WHOLE = slice(None)
log = logging.getLogger(__name__)
COLUMNS = ("step", "epoch", "loss", "count", "compute", "exchange", "update")


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What is known of the model at the end of an epoch."""

    epoch: int
    step: int
    loss: float
    """Mean training loss over the epoch's samples."""
    validation_loss: float | None
    validation_accuracy: float | None
    train_seconds: float
    """Since the start, evaluation left out."""


class Exchange:
    """A gradient exchange on the worker's clock; `part` is what this rank updates of the parameters."""

    def __init__(self, inner: Any, watch: Stopwatch) -> None:
        self._inner = inner
        self._watch = watch
        self.part: slice = inner.part

    def reduce(self) -> Array:
        """The gradients of all ranks, summed, for `part`: the caller may overwrite it."""
        g: Array = self._inner.reduce()
        self._watch.lap("exchange")
        return g

    def publish(self) -> None:
        """Make this rank's part of the parameters everybody's."""
        self._inner.publish()
        self._watch.lap("exchange")


class Worker:
    """One rank of a run, as strategies see it.

    A strategy is a function of a Worker: it walks through `epochs()` and `batches(epoch)`, computes with
    `gradient(batch)`, communicates over `comm` (mpi4py's buffer interface) or with `exchange(…)`, changes the
    parameters with `step(…)`, and calls `validate(epoch)` when the model is complete.

    >>> from paceline.data import load
    >>> from paceline.models.mlp import build
    >>> from paceline.schedules.constant import Constant
    >>> from paceline.updates.sgd import Sgd
    >>> iris = load("iris")
    >>> me = Worker(comm=None, model=build(iris, 8), data=iris, batches=Batches(iris.train, batch=10), update=Sgd(),
    ...             schedule=Constant(), rate=0.1, epochs=2)
    >>> for epoch in me.epochs():
    ...     for batch in me.batches(epoch):
    ...         _ = me.gradient(batch)
    ...         me.step(me.model.g, batch.total)
    ...     me.validate(epoch)
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
        on_step: Callable[[int, float], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank() if comm is not None else 0
        self.size: int = comm.Get_size() if comm is not None else 1
        self.model = model
        self.data = data
        self.update = update
        self.rate = rate
        self.steps = epochs * batches.steps_per_epoch
        self.history: list[Epoch] = []
        self.log = array("d")
        self._batches = batches
        self._schedule = schedule
        self._epochs = epochs
        self._on_step = on_step
        self._on_epoch = on_epoch
        self._states: dict[tuple[int | None, int | None], dict[str, Array]] = {}
        self.control = Control(comm)
        self._step = 0
        self._loss = 0.0
        self._epoch_loss = np.zeros(2)
        self._weights = np.full(self.size, 1 / self.size)
        self._balanced = 0
        self.watch = Stopwatch(clock)

    # ---- the loop

    def epochs(self) -> range:
        """The numbers of the run's epochs, from 0."""
        return range(self._epochs)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This rank's piece of each global batch of an epoch; each step is logged when the next one is asked for."""
        seconds, log = self.watch.seconds, self.log
        self._epoch_loss[:] = 0
        for batch in self._batches.epoch(epoch):
            compute, exchange, update = seconds["compute"], seconds["exchange"], seconds["update"]
            self._step = batch.step
            yield batch
            log.extend((
                batch.step, epoch, self._loss, batch.count,
                seconds["compute"] - compute, seconds["exchange"] - exchange, seconds["update"] - update,
            ))  # fmt: skip
            self._epoch_loss += (self._loss, batch.count)
            if self._on_step is not None:
                self._on_step(batch.step, self._loss / max(batch.count, 1))

    def gradient(self, batch: Batch) -> float:
        """Fill `model.g` with the gradient summed over the batch's samples; return the summed loss."""
        if batch.count:
            self._loss = self.model.gradient(batch)
        else:
            self.model.g.fill(0)
            self._loss = 0.0
        self.watch.lap("compute")
        return self._loss

    def eta(self) -> float:
        """The learning rate of the present step."""
        return self.rate * self._schedule.factor(self._step, self.steps)

    def step(self, g: Array, count: int, part: slice = WHOLE) -> None:
        """x[part] <- update(x[part], g / count); `g` is used up. Nothing where `count` is 0: no samples, no step."""
        if count == 0:
            self.watch.lap("update")
            return
        x = self.model.x[part]
        key = (part.start, part.stop)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self.update.start(x)
        self.update.apply(x, g, self.eta(), state, 1.0 / count)
        self.watch.lap("update")

    # ---- together with the other ranks

    def broadcast(self) -> None:
        """Give rank 0's parameters and buffers to every rank."""
        self.control.from_first(self.model.x)
        for buffer in self.model.buffers.values():
            buffer[...] = self.control.from_first(np.array(buffer, order="C"))
        self.watch.lap("exchange")

    @contextmanager
    def exchange(self, name: str, *, factors: bool = False) -> Iterator[Exchange]:
        """The gradient exchange that a collective's name stands for; it decides where x and g live meanwhile.

        `factors`: the strategy reads and writes no gradient but what `reduce` returns, not `model.g`: then a small
        batch's gradient may be exchanged as its factors where that is faster.
        """
        from paceline.collectives._exchange import make_exchange

        inner = make_exchange(name, self.model, self.comm, self._batches.batch if factors else None)
        self.watch.restart()  # what an exchange takes to set up is the start of a run, not a step of it
        yield Exchange(inner, self.watch)
        inner.close()

    def allreduce(self, values: Array, algorithm: str = "auto") -> None:
        """Sum an array over the ranks, in place, by the collective of that name, on the worker's clock."""
        from paceline.collectives import allreduce

        if self.comm is not None:
            allreduce(values, values, self.comm, algorithm=algorithm)
        self.watch.lap("exchange")

    def balance(self) -> None:
        """Cut the coming batches so that every rank computes equally long, going by the steps since the last time.

        Which samples a batch holds does not change; who computes them does.
        """
        rows = np.array(self.log[self._balanced :]).reshape(-1, len(COLUMNS))
        self._balanced = len(self.log)
        if self.size > 1 and len(rows):
            typical = np.median(rows[:, [COLUMNS.index("count"), COLUMNS.index("compute")]], axis=0)
            counts, took = self.control.everyones(typical).T
            # A rank that has had no samples has shown no speed; and new sizes cost memory anew.
            if counts.all() and took.max() > 1.05 * took.mean():
                speeds = counts / took
                self._weights = (self._weights + speeds / speeds.sum()) / 2  # half-way: seconds are noisy
                self._batches.share(self._weights)
        self.watch.lap("exchange")

    def validate(self, epoch: int) -> None:
        """Evaluate the model on the validation samples, every rank its share; the model must be complete."""
        self._agree_on_buffers()
        loss, correct, count = self._evaluate(self.data.validation)
        sums = self.control.total(np.array([*self._epoch_loss, loss, correct, count]))
        at_end = Epoch(
            epoch=epoch,
            step=self._step + 1,
            loss=_ratio(sums[0], sums[1]) or 0.0,
            validation_loss=_ratio(sums[2], sums[4]),
            validation_accuracy=_ratio(sums[3], sums[4]) if self.data.classes else None,
            train_seconds=self.watch.training(),
        )
        self.watch.lap("evaluation")
        if self.rank == 0 and not _finite(at_end) and all(map(_finite, self.history)):
            log.warning("training has diverged: the loss is %s; a smaller --lr may help", at_end.loss)
        self.history.append(at_end)
        if self._on_epoch is not None:
            self._on_epoch(at_end)

    def test(self) -> tuple[float | None, float | None]:
        """Mean loss and accuracy on the test samples, every rank its share."""
        loss, correct, count = self.control.total(np.array(self._evaluate(self.data.test)))
        self.watch.lap("evaluation")
        return _ratio(loss, count), _ratio(correct, count) if self.data.classes else None

    def close(self) -> None:
        """Wait for all ranks; free what is held of MPI."""
        self.control.close()

    # ---- parts of the above

    def _evaluate(self, split: Split) -> tuple[float, int, int]:
        start, stop = piece(len(split), self.rank, self.size)
        loss, correct = 0.0, 0
        for inputs, labels in chunks(split, dtype=self.model.x.dtype, start=start, stop=stop):
            some_loss, some_correct = self.model.evaluate(inputs, labels)
            loss, correct = loss + some_loss, correct + some_correct
        return loss, correct, stop - start

    def _agree_on_buffers(self) -> None:
        """Average the buffers that differ between ranks (BatchNorm's statistics); integers are rank 0's."""
        for buffer in self.model.buffers.values() if self.size > 1 else ():
            ours = np.array(buffer, np.float64 if buffer.dtype.kind == "f" else buffer.dtype, order="C")
            first = self.control.from_first(ours.copy())
            if buffer.dtype.kind == "f":
                difference = self.control.total(ours - first)  # equal buffers stay as they are, to the bit
                buffer[...] = first + difference / self.size
            else:
                buffer[...] = first


def _finite(epoch: Epoch) -> bool:
    return math.isfinite(epoch.loss)


def _ratio(value: float, count: float) -> float | None:
    return float(value) / float(count) if count else None
