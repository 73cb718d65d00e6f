"""What real ranks do in the tests of simulated training, and strategies of a user's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.config import Config
from paceline.training.rank import Job, train

SMALL = {"data": "digits", "model": "mlp:16,activation=tanh", "batch": 30, "draws": 6, "epochs": 2}


def trained(comm: Any, strategies: list[str]) -> list[str]:
    """The parameters that real ranks end with, as hexadecimal digits."""
    found = []
    for strategy in strategies:
        job = Job(config=Config(**SMALL, strategy=strategy, threads=1), runs=None)
        found.append(train(job, comm).model.x.tobytes().hex())
    return found


def average_once(me: Any) -> None:
    """A strategy that is a function: everybody alone, then one sum, with messages of its own."""
    for epoch in me.epochs():
        for batch in me.own_batches(epoch):
            me.gradient(batch)
            me.step(me.model.g, batch.count)
        total = np.zeros_like(me.model.x)
        me.comm.Allreduce(me.model.x / np.float32(me.size), total)
        me.model.x[:] = total
        me.validate(epoch)


def waits_for_ever(me: Any) -> None:
    """A strategy with a mistake: everybody waits for a message that nobody sends."""
    me.comm.Recv(np.empty(1), source=(me.rank + 1) % me.size)


def breaks(me: Any) -> None:
    """A strategy of which one rank fails."""
    if me.rank == 1:
        raise ZeroDivisionError("there is nothing to divide by")
    me.comm.Barrier()
