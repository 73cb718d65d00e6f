"""What a strategy is handed: its communicator, model, batches, update, clock and record."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm._control import Control
from paceline.data import Batch, Batches, Dataset
from paceline.evaluation import Epoch, Score, agree_on_buffers, ratio, score_together
from paceline.guard import Recovery
from paceline.models import Model, Ready, layer_by_layer
from paceline.schedules import Schedule
from paceline.shares import Shares
from paceline.stopwatch import Stopwatch
from paceline.updates import Update

Array = NDArray[Any]
WHOLE = slice(None)
COLUMNS = ("step", "epoch", "loss", "count", "compute", "exchange", "update")


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
    ) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank() if comm is not None else 0
        self.size: int = comm.Get_size() if comm is not None else 1
        self.model = model
        self.data = data
        self.update = update
        self.rate = rate
        self.seed = batches.seed
        self.shares = Shares(batches)
        self.steps_per_epoch = batches.steps_per_epoch
        self.steps = epochs * batches.steps_per_epoch
        self.on_divergence = on_divergence
        self.replay = replay
        """The run whose order of messages is to be repeated (a `paceline.record.Run`), if any."""
        self.history: list[Epoch] = []
        self.log = array("d")
        self.findings: dict[str, Any] = {}
        self.tables: dict[str, dict[str, Array]] = {}
        self.remarks: list[str] = []
        self.control = Control(comm)
        self.watch = Stopwatch(clock)
        self._schedule = schedule
        self._epochs = epochs
        self._on_step = on_step
        self._on_epoch = on_epoch
        self._states: dict[tuple[int | None, int | None], dict[str, Array]] = {}
        self._step = 0
        self._loss = 0.0
        self._epoch_loss = np.zeros(2)
        self._balanced = 0
        self._by_layer: Callable[[Batch, Ready], float] | None = None
        self._recovery = Recovery(on_divergence)

    # ---- the loop

    def epochs(self) -> Iterator[int]:
        """The numbers of the run's epochs, from 0; no more when training has diverged and is to stop."""
        self._recovery.keep(self.model.x)
        for epoch in range(self._epochs):
            if self.diverged is not None:
                return
            yield epoch

    @property
    def last_epoch(self) -> int:
        """The number of the run's last epoch."""
        return self._epochs - 1

    @property
    def epoch_loss(self) -> float:
        """The mean loss of this rank's own batches of the present epoch; 0 where it had none."""
        return ratio(*self._epoch_loss) or 0.0

    def batches(self, epoch: int, *, rank: int | None = None, ranks: int | None = None) -> Iterator[Batch]:
        """This rank's piece of each global batch of an epoch: of `size` pieces the `rank`-th, or as given."""
        mine = (self.rank if rank is None else rank, self.size if ranks is None else ranks)
        return self.logged(self.shares.pieces(epoch, *mine))

    def turns(self, epoch: int) -> Iterator[Batch]:
        """Whole batches of an epoch, dealt out to the ranks; each has as many turns, the last perhaps empty."""
        return self.logged(self.shares.dealt(epoch))

    def own_batches(self, epoch: int) -> Iterator[Batch]:
        """Whole batches of this rank's own part of the data; each rank has as many, the last perhaps empty."""
        return self.logged(self.shares.own(epoch), each=self.steps_per_epoch / self.shares.own_turns)

    def logged(self, batches: Iterable[Batch], *, each: float = 1) -> Iterator[Batch]:
        """Go through batches; each step is logged when the next one is asked for.

        `each`: how many batches of the run, those of the other ranks included, go by with a batch here.
        """
        seconds, log = self.watch.seconds, self.log
        self._epoch_loss[:] = 0
        for batch in batches:
            compute, exchange, update = seconds["compute"], seconds["exchange"], seconds["update"]
            self._step = int(batch.step * each)
            yield batch
            log.extend((
                batch.step, batch.epoch, self._loss, batch.count,
                seconds["compute"] - compute, seconds["exchange"] - exchange, seconds["update"] - update,
            ))  # fmt: skip
            self._epoch_loss += (self._loss, batch.count)
            if batch.count:
                self.tell(self._step, self._loss / batch.count)

    def tell(self, step: int, loss: float) -> None:
        """Show how far the run is: which of its batches was done, with what mean loss."""
        if self._on_step is not None:
            self._on_step(min(step, self.steps - 1), loss)

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `model.g` with the gradient summed over the batch's samples; return the summed loss.

        `ready(i)` is called as soon as the gradient of layer i is final, while the pass goes on.
        """
        if ready is not None:
            if self._by_layer is None:
                self._by_layer = layer_by_layer(self.model)
            self._loss = self._by_layer(batch, ready)
        elif batch.count:
            self._loss = self.model.gradient(batch)
        else:
            self.model.g.fill(0)
            self._loss = 0.0
        self.watch.lap("compute")
        return self._loss

    def eta(self, step: int | None = None) -> float:
        """The learning rate of the present step of the run, or of the one given."""
        return self.rate * self.shape(step)

    def shape(self, step: int | None = None) -> float:
        """What the schedule multiplies the learning rate by, at the present step of the run or at the one given."""
        return self._schedule.factor(self._step if step is None else step, self.steps)

    def step(self, g: Array, count: int, part: slice = WHOLE, *, x: Array | None = None) -> None:
        """x[part] <- update(x[part], g / count); `g` is used up. Nothing where `count` is 0: no samples, no step.

        `x`: the model's, or another vector (one that ranks share, say) in its place.
        """
        if count == 0:
            self.watch.lap("update")
            return
        x = (self.model.x if x is None else x)[part]
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

        batch = self.shares.batches.batch if factors else None
        inner = make_exchange(name, self.model, self.comm, batch)
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
            self.shares.balance(*self.control.everyones(typical).T)
        self.watch.lap("exchange")

    def validate(self, epoch: int, *, guarded: bool = True) -> bool:
        """Evaluate the model, which must be complete and the same on every rank, on the validation samples. Collective.

        Every rank computes its share. Returns whether training had diverged and `model.x` has been set back to the
        last good parameters (`--on-divergence halve`): what the strategy derived from them it must make anew.
        `guarded`: whether to look at the loss at all; a strategy whose ranks call `guard` themselves says no.
        """
        agree_on_buffers(self.model, self.control, trained=self._epoch_loss[1] > 0)
        sums = self.control.total(self._epoch_loss)
        found = score_together(self.model, self.data.validation, self.control)
        self.ended(epoch, ratio(sums[0], sums[1]) or 0.0, found)
        back = guarded and self.guard(epoch, self.history[-1].loss)
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
            loss=loss,
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

    def guard(self, epoch: int, loss: float) -> bool:
        """Act on a loss that has run away, on this rank alone; whether `model.x` was set back."""
        back = self._recovery.act(loss, self.model.x, f"epoch {epoch + 1}", told=self.rank == 0)
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
        diverged, history = json.loads(self.control.text_from_first(mine))
        if self.rank != 0:
            self._recovery.stopped, self.history = diverged, [Epoch(**epoch) for epoch in history]

    def close(self) -> None:
        """Wait for all ranks; free what is held of MPI."""
        self.control.close()
