"""What a strategy is handed: its communicator, model, batches, update, clock and record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import Stopwatch
from paceline.comm.control import Control
from paceline.comm.tracing import Events
from paceline.data import Batches, Dataset
from paceline.models import Model
from paceline.schedules import Schedule
from paceline.updates import Update
from paceline.worker.divergence import Recovery, alike
from paceline.worker.evaluation import Epoch, Score, agree_on_buffers, ratio, score_together
from paceline.worker.rehearsal import unrecorded
from paceline.worker.steps import COLUMNS, Steps, free_of_charge

Array = NDArray[Any]
# The part by which the square of the parameters' norm changes in an epoch in which they do not move.
UNMOVED = 1e-6
__all__ = ["COLUMNS", "Exchange", "Worker"]


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


class Worker(Steps):
    """One rank of a run, as strategies see it.

    A strategy is a function of a Worker: it walks through `epochs()` and `batches(epoch)`, computes with
    `gradient(batch)`, communicates over `comm` (mpi4py's buffer interface) or with `exchange(…)`, changes the
    parameters with `step(…)`, and calls `validate(epoch)` when the model is complete. What a strategy found out goes
    into `findings` (JSON values), `tables` (arrays) and `remarks` (lines to tell the user): rank 0's are recorded.

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
        replay: Any = None,
        on_step: Callable[[int, float], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        charge: Callable[[str, float], None] = free_of_charge,
        time_only: bool = False,
        origin: float | None = None,
        events: Events | None = None,
    ) -> None:
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
            charge=charge,
            origin=origin,
            events=events,
        )
        self.comm = comm
        self.data = data
        self.on_divergence = "ignore" if time_only else on_divergence
        self.replay = replay
        """The run whose order of messages is to be repeated (a `paceline.record.Run`), if any."""
        self.time_only = time_only
        """Whether nothing is computed and time alone simulated: there are no losses and no accuracies."""
        self.history: list[Epoch] = []
        self.findings: dict[str, Any] = {}
        self.tables: dict[str, dict[str, Array]] = {}
        self.remarks: list[str] = []
        self.control = Control(comm)
        self._on_epoch = on_epoch
        self._events = events
        self._real = comm is not None and charge is free_of_charge  # simulated ranks have nothing to set up
        self._balanced = 0
        self._sum: tuple[Array, str, Callable[[], None]] | None = None  # what was summed last, and how
        self._norm = 0.0
        self._recovery = Recovery(self.on_divergence)

    def epochs(self) -> Iterator[int]:
        """The numbers of the run's epochs, from 0; no more when training has diverged and is to stop."""
        self._recovery.keep(self.model.x)
        for epoch in range(self._epochs):
            if self.diverged is not None:
                return
            yield epoch

    # ---- together with the other ranks

    def broadcast(self) -> None:
        """Give rank 0's parameters and buffers to every rank."""
        self.control.broadcast(self.model.x)
        for buffer in self.model.buffers.values():
            buffer[...] = self.control.broadcast(np.array(buffer, order="C"))
        self.watch.lap("exchange")

    @contextmanager
    def exchange(self, name: str, *, factors: bool = False) -> Iterator[Exchange]:
        """The gradient exchange that a collective's name stands for; it decides where x and g live meanwhile.

        `factors`: the strategy reads and writes no gradient but what `reduce` returns, not `model.g`: then a small
        batch's gradient may be exchanged as its factors where that is faster.
        """
        from paceline.collectives import make_exchange

        batch = self.shares.batches.batch if factors else None
        inner = make_exchange(name, self.model, self.comm, batch)
        if self._real and (rehearse := getattr(inner, "rehearse", None)):
            with unrecorded(self.comm, self.watch, self._events):
                rehearse()
        self.watch.restart()  # what an exchange takes to set up is the start of a run, not a step of it
        yield Exchange(inner, self.watch)
        inner.close()

    def allreduce(self, values: Array, algorithm: str = "auto") -> None:
        """Sum an array over the ranks, in place, by the collective of that name, on the worker's clock."""
        from paceline.collectives import prepare_sum

        if self.comm is not None:
            if self._sum is None or self._sum[0] is not values or self._sum[1] != algorithm:
                self._sum = (values, algorithm, prepare_sum(values, self.comm, algorithm))
            self._sum[2]()
        self.watch.lap("exchange")

    def rehearse(self, values: Array, algorithm: str) -> None:
        """Sum an array of zeros before training, so that its first sum takes no longer than others. Collective."""
        if self._real:
            with unrecorded(self.comm, self.watch, self._events):
                values[...] = 0
                self.allreduce(values, algorithm)

    def balance(self) -> None:
        """Cut the coming batches so that every rank computes equally long, going by the steps since the last time.

        Which samples a batch holds does not change; who computes them does.
        """
        rows = np.array(self.log[self._balanced :]).reshape(-1, len(COLUMNS))
        self._balanced = len(self.log)
        if self.size > 1 and len(rows):
            typical = np.median(rows[:, [COLUMNS.index("count"), COLUMNS.index("compute")]], axis=0)
            self.shares.balance(*self.control.allgather(typical).T)
        self.watch.lap("exchange")

    def validate(self, epoch: int, *, guarded: bool = True) -> bool:
        """Evaluate the model, which must be complete and the same on every rank, on the validation samples. Collective.

        Every rank computes its share. Returns whether training had diverged and `model.x` has been set back to the
        last good parameters (`--on-divergence halve`): what the strategy derived from them it must make anew.
        `guarded`: whether to look at the loss at all; a strategy whose ranks call `guard` themselves says no.
        """
        agree_on_buffers(self.model, self.control, trained=self._epoch_sums[1] > 0)
        mine = [*self._epoch_sums, *self._epoch_losses, float(self._moved())]
        *sums, moved = self.control.total(np.array(mine))
        found = score_together(self.model, self.data.validation, self.control)
        loss = ratio(sums[0], sums[1]) or 0.0
        self.ended(epoch, loss, found)
        back = guarded and self.guard(epoch, loss, same=not moved and alike(*sums[2:]))
        if back:
            self.control.wait()  # where ranks share one x, nobody goes on before all have set it back
            self.watch.lap("evaluation")
        return back

    def ended(
        self,
        epoch: int,
        loss: float | None = None,
        validation: Score | None = None,
        train_seconds: float | None = None,
    ) -> None:
        """Record and show the end of an epoch.

        `loss`: its mean, by default that of this rank's own batches; `train_seconds`: when it ended, if not now.
        """
        loss = self.epoch_loss if loss is None else loss
        means = (None, None) if validation is None else validation.means(self.data.classes)
        at_end = Epoch(
            epoch=epoch,
            step=(epoch + 1) * self.steps_per_epoch,
            loss=None if self.time_only else loss,
            validation_loss=means[0],
            validation_accuracy=means[1],
            train_seconds=self.watch.training() if train_seconds is None else train_seconds,
        )
        self.watch.lap("evaluation")
        self.history.append(at_end)
        if self._on_epoch is not None:
            self._on_epoch(at_end)

    def test(self) -> tuple[float | None, float | None]:
        """Mean loss and accuracy on the test samples, every rank its share. Collective."""
        found = score_together(self.model, self.data.test, self.control).means(self.data.classes)
        self.watch.lap("evaluation")
        return found

    @property
    def diverged(self) -> str | None:
        """What went wrong, in words, once training has diverged and stopped."""
        return self._recovery.stopped

    def stop(self, why: str) -> None:
        """Training has diverged and ends here: `epochs` has no more. Every rank must say so."""
        self._recovery.stop(why, told=self.rank == 0)

    def stands_still(self) -> bool:
        """Whether all of this rank's batches of the epoch had one loss, and its parameters stayed as they were."""
        return not self._moved() and alike(*self._epoch_losses)

    def _moved(self) -> bool:
        """Whether the parameters are others than when this was last asked."""
        x = self.model.x
        norm, self._norm = self._norm, float(np.dot(x, x))
        return not abs(self._norm - norm) <= UNMOVED * norm

    def guard(self, epoch: int, loss: float, *, same: bool = False) -> bool:
        """Act on a loss that has run away, on this rank alone; whether `model.x` was set back.

        `same`: whether all batches of the epoch had this loss, and the parameters have stayed where they were.
        """
        if self.time_only:
            return False
        back = self._recovery.act(loss, self.model.x, f"epoch {epoch + 1}", told=self.rank == 0, same=same)
        if back:
            self.rate /= 2
            self._states.clear()
        return back

    @property
    def divergences(self) -> list[str]:
        """Every time that training diverged, and what was done about it, in words."""
        return self._recovery.told

    def follow_first(self) -> None:
        """Where rank 0 alone has known the epochs' ends, let every rank know them. Collective."""
        mine = json.dumps([self.diverged, [asdict(epoch) for epoch in self.history]])
        diverged, history = json.loads(self.control.broadcast_text(mine))
        if self.rank != 0:
            self._recovery.stopped, self.history = diverged, [Epoch(**epoch) for epoch in history]

    def close(self) -> None:
        """Wait for all ranks; free what is held of MPI."""
        self.control.close()
