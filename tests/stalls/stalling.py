"""Strategies whose ranks stop, hang or wait for each other, to be noticed by the watchdog."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.strategies.hogwild import Hogwild
from paceline.strategies.sync import Sync
from paceline.worker import Worker


def freeze(me: Worker, rank: int = 1) -> None:
    """Stop the process of a rank at its tenth step, after leaving its number in a file; then take the time to be seen."""

    def disturb() -> None:
        if me.rank == rank:
            Path(os.environ["FROZEN"]).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    _train(me, disturb)


@dataclass(frozen=True, kw_only=True)
class Hanging(Hogwild):
    """Processes that share x through torch, of which the last sleeps for ever."""

    backend: Literal["mpi", "torch"] = "torch"

    def train(self, me: Worker) -> None:
        me.broadcast()
        for epoch in me.epochs():
            for batch in me.turns(epoch):
                me.gradient(batch)
                if batch.step > 5 and me.rank == me.size - 1:
                    time.sleep(1e6)
            me.validate(epoch)


class Frozen(Sync):
    """Synchronous training in which rank 1 stops its process in the gradient of the tenth step, unless it is resumed."""

    def train(self, me: Worker) -> None:
        gradient = me.gradient

        def freeze(batch: Any, ready: Any = None) -> float:
            if me.rank == 1 and batch.step == 9 and "FROZEN" in os.environ:
                Path(os.environ["FROZEN"]).write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
            return gradient(batch, ready)

        me.gradient = freeze  # type: ignore[method-assign]
        super().train(me)


def deadlock(me: Worker) -> None:
    """Let every rank receive, and none send."""
    _train(me, lambda: me.comm.Recv(me.model.x, source=(me.rank + 1) % me.size))


def _train(me: Worker, disturb: Any) -> None:
    me.broadcast()
    for epoch in me.epochs():
        for batch in me.batches(epoch):
            me.gradient(batch)
            if batch.step == 9:
                disturb()
            time.sleep(0.3 * (batch.step > 9))
            me.allreduce(me.model.g)
            me.step(me.model.g, batch.total)
        me.validate(epoch)


def relay(comm: Any, asked: int) -> list[Any]:
    """Ask one rank to stop; return what the others are asked within a minute, and what is left of the watchdog."""
    import threading
    from types import SimpleNamespace

    from paceline.comm.clocks import Stopwatch
    from paceline.config import Safety
    from paceline.training.watchdog import Watchdog

    me: Any = SimpleNamespace(
        watch=Stopwatch(time.perf_counter), beats=0, current_step=0, stop_asked=0, remarks=[], keeper=None
    )
    with Watchdog(comm, Safety()) as watchdog:
        watchdog.follow(me, relay)
        if comm.Get_rank() == asked:
            me.stop_asked = signal.SIGUSR1
        until = time.monotonic() + 280
        while not me.stop_asked and time.monotonic() < until:
            time.sleep(0.01)
        comm.Barrier()
    return [me.stop_asked, [t.name for t in threading.enumerate() if t.name == "paceline-watchdog"]]
