"""Main and workers: rank 0 holds the weights and does not train; it adds up the workers' changes and sends x back.

    for each global batch B, cut into pieces B_1 … B_p-1:
        worker i:  d_i <- (its own step from x by its piece) - x
                   send |B_i|/|B| d_i to the main rank, receive the new x
        main:      x <- x + |B_1|/|B| d_1 + … + |B_p-1|/|B| d_p-1        in rank order
                   send x to each worker

With plain SGD the weighted changes add up to the step of the whole batch: serial SGD, up to rounding.

Cost per step, n parameters: 2 (p - 1) messages of n numbers, all of them through rank 0, with blocking Send and Recv: every
worker waits for the slowest one and then for its turn. This is the obvious first design; use sync instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import UsageError
from paceline.strategies import Load, Strategy, Traffic

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker


@dataclass(frozen=True, kw_only=True)
class MainWorker(Strategy):
    """Rank 0 holds the weights and does not train; workers send it their changes and receive the new weights.

    >>> MainWorker().check(1)
    Traceback (most recent call last):
    paceline.errors.UsageError: main-worker needs at least 2 ranks (1 main + 1 worker); the job has 1
    """

    saves: ClassVar[Saves] = "together"
    in_step: ClassVar[bool] = False
    colour: ClassVar[str] = "#882255"
    marker: ClassVar[str] = "<"

    def check(self, ranks: int) -> None:
        if ranks < 2:
            raise UsageError(f"main-worker needs at least 2 ranks (1 main + 1 worker); the job has {ranks}")

    def role(self, rank: int, ranks: int) -> str:
        return "main" if rank == 0 else "worker"

    def traffic(self, load: Load) -> Traffic:
        messages, numbers = 2 * (load.ranks - 1) * load.steps, (load.ranks - 1) * (2 * load.parameters + 1)
        words = f"{load.per_epoch(load.steps)} x (p - 1) (2 n + 1): at every batch"
        return Traffic(bytes=numbers * load.itemsize * load.steps, messages=messages, words=words)

    def train(self, me: Worker) -> None:
        me.broadcast()  # x the same on every rank
        for epoch in me.epochs():
            if me.rank == 0:
                self._main(me, epoch)
            else:
                self._work(me, epoch)
            me.validate(epoch)

    def _main(self, me: Worker, epoch: int) -> None:
        x = me.model.x
        message = me.vector(more=1)  # a change and, for progress output, the piece's part of the mean loss
        for step in me.rounds(epoch):
            loss = 0.0
            for worker in range(1, me.size):
                me.comm.Recv(message, source=worker)
                x += message[:-1]  # x <- x + |B_i|/|B| d_i
                loss += float(message[-1])
            for worker in range(1, me.size):
                me.comm.Send(x, dest=worker)
            me.show_progress(step, loss)

    def _work(self, me: Worker, epoch: int) -> None:
        x = me.model.x
        start, message = me.vector(), me.vector(more=1)
        for batch in me.batches(epoch, rank=me.rank - 1, ranks=me.size - 1):
            start[:] = x
            loss = me.descend(batch)  # x_i <- x - eta g_i / |B_i|, g_i the sum over B_i of grad f(x)
            message[:-1] = x - start  # d_i <- x_i - x
            message[:-1] *= batch.count / batch.total  # |B_i|/|B| d_i
            message[-1] = loss / batch.total
            me.comm.Send(message, dest=0)
            me.comm.Recv(x, source=0)
