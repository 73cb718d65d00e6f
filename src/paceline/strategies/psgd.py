"""Parallelised SGD, one-shot averaging: every rank trains alone on its own part of the data; at the end, one average.

    divide the data among the ranks, at random, once
    on every rank, from the same x:
        for each epoch, until the loss falls by less than `tolerance` of itself:
            for each batch B of this rank's part:  x_i <- x_i - eta grad f(x_i; B)
    x <- (x_1 + … + x_p) / p                           the only message

The common start matters: averaging networks that started from different weights destroys them.
Data that every rank can read (all that paceline loads is) need not be scattered: a rank reads its part of it.

Cost, n parameters: one allreduce of n + 1 numbers in the whole run; all ranks wait for the slowest.
Zinkevich, Weimer, Smola and Li, Parallelized stochastic gradient descent (2010).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.strategies import OnOwnData, check_collective
from paceline.updates import check_not_negative
from paceline.worker.evaluation import score

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker

Array = NDArray[Any]
COLUMNS = ("epochs", "loss", "converged", "diverged", "test_loss", "test_accuracy")


@dataclass(frozen=True, kw_only=True)
class Psgd(OnOwnData):
    """Every rank trains independently on its own part of the data; the weights are averaged at the end."""

    saves: ClassVar[Saves] = "alone"
    in_step: ClassVar[bool] = False
    colour: ClassVar[str] = "#009E73"
    marker: ClassVar[str] = "D"

    tolerance: float | None = None
    """A rank stops when its mean loss fell by less than this fraction in an epoch; none: after its last epoch."""
    allreduce: str = "auto"
    """The collective that averages the weights; `paceline list collectives` shows them."""

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            check_not_negative("tolerance of psgd", self.tolerance)
        check_collective(self.allreduce)

    def interval(self) -> None:
        return None

    def follows_values(self) -> bool:
        return self.tolerance is not None  # it ends when the loss stops falling

    def train(self, me: Worker) -> None:
        me.broadcast()  # x_1 = … = x_p
        x, average = me.model.x, me.mean(self.allreduce)
        now = me.keep("part", before=math.inf, moved=False)
        epoch, loss, converged = -1, math.nan, False
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                me.descend(batch)  # x_i <- x_i - eta grad f(x_i; B)
                now.moved |= batch.count > 0
            loss = me.epoch_loss
            back = me.guard(epoch, loss, same=me.stands_still())
            settled = (
                self.tolerance is not None and now.moved and now.before - loss < self.tolerance * now.before
            )
            converged = settled and not back and me.diverged is None
            if converged or me.diverged is not None or epoch == me.last_epoch:
                break
            me.end_epoch(epoch)
            now.before = math.inf if back else loss
        if epoch < 0:
            return
        me.may_stop(wait=True)
        healthy = now.moved and me.diverged is None
        counts = healthy if me.control.total(np.array([healthy]).astype(float))[0] else now.moved
        mean = average(x, counts)  # (x_1 + … + x_p) / p, of those that did not diverge
        with me.evaluation():
            alone = score(me.model, me.data.test).means()
            mine = (epoch + 1, loss if now.moved else None, converged, me.diverged is not None, *alone)
            parts = me.control.gather(np.array([[math.nan if value is None else value for value in mine]]))
            diverged = me.control.vote(me.diverged is not None)
        x[:] = mean  # x <- the average
        if diverged.ranks and me.diverged is None:
            me.stop(f"the loss of part {diverged.first} has run away or no longer changes")
        me.validate(epoch, guarded=False)
        tested = me.test()
        if me.rank == 0:
            report(me, np.concatenate(parts), tested, converging=self.tolerance is not None)


def report(me: Worker, parts: Array, average: tuple[float | None, float | None], *, converging: bool) -> None:
    """Report the test results of every rank's model and of the average: rank 0's findings and a remark."""
    kinds = {"epochs": int, "converged": bool, "diverged": bool}
    found: list[dict[str, Any]] = [
        {"rank": rank}
        | {
            name: None if math.isnan(value) else kinds.get(name, float)(value)
            for name, value in zip(COLUMNS, part, strict=True)
        }
        for rank, part in enumerate(parts)
    ]
    loss, accuracy = average
    me.findings["parts"] = found
    me.findings["average"] = {"test_loss": loss, "test_accuracy": accuracy}
    if loss is None:
        return
    if accuracy is None:
        word, spelling, best, column = "loss", "{:.4g}", loss, "test_loss"
    else:
        word, spelling, best, column = "accuracy", "{:.2%}", accuracy, "test_accuracy"
    alone = [part[column] for part in found if part["loss"] is not None and part[column] is not None]
    if not alone:
        return
    said = [spelling.format(value).replace("%", " %") for value in (best, min(alone), max(alone))]
    epochs = sorted({part["epochs"] for part in found})
    span = f"{epochs[0]} to {epochs[-1]}" if epochs[1:] else f"{epochs[0]}"
    converged = f"{sum(part['converged'] for part in found)} of {me.size} converged, " if converging else ""
    me.remarks.append(
        f"test {word}: {said[0]} for the average, {said[1]} to {said[2]} for its parts; "
        f"{converged}after {span} epoch{'s' if epochs[-1] > 1 else ''}"
    )
