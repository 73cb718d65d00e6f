"""What ranks do in the tests of traces."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline import fit
from paceline.comm import mpi_of
from paceline.comm.clocks import common_start

SMALL: dict[str, Any] = {"epochs": 2, "batch": 12, "draws": 4, "quiet": True}
STRATEGIES = [
    "sync:allreduce=ring",
    "sync:allreduce=native",
    "sync",
    "main-worker",
    "local-sgd:every=2,allreduce=rabenseifner",
    "psgd:allreduce=recursive-doubling",
    "parameter-server:masters=2",
    "gossip",
    "hogwild",
    "every_call",
]


def traced(comm: Any, runs: str, strategies: list[str]) -> list[str]:
    """Runs of several strategies, each with its trace."""
    found = []
    for name in strategies:
        strategy: Any = every_call if name == "every_call" else name
        fitted = fit("mlp:8", "iris", strategy=strategy, comm=comm, runs=Path(runs), trace=True, **SMALL)
        found.append(str(fitted.run))
    return found


def every_call(me: Any) -> None:
    """A strategy that sends and waits in every way there is, and trains a little."""
    comm, MPI = me.comm.Split(0, -me.rank), mpi_of(me.comm)  # where everybody has another number
    r, p = comm.Get_rank(), comm.Get_size()
    left, right = (r - 1) % p, (r + 1) % p
    out, into = np.arange(3.0) + r, np.zeros(3)

    def pair(**wanted: Any) -> list[Any]:
        return [comm.Irecv(into, **wanted), comm.Isend(out, right, tag=wanted.get("tag", 0))]

    for epoch in me.epochs():
        for batch in me.batches(epoch):
            me.gradient(batch)
            me.step(me.model.g, batch.total)
            comm.Sendrecv(out, right, 1, into, left, 1)
            comm.Sendrecv_replace(into, dest=right, sendtag=2, source=left, recvtag=2)
        for kind in ("Waitall", "Testall", "Waitany", "Testany", "Waitsome", "Testsome"):
            for wanted in ({"source": left, "tag": 5}, {}):
                through(pair(**wanted), kind)
                comm.Barrier()  # a message from any rank is this one's and not the next one's
            assert into[0] == left
        receiving, sending = pair()
        while not receiving.Test():
            pass
        assert receiving.Test()  # there is nothing any more
        sending.Wait()
        assert not sending
        sending = comm.Issend(out, right)
        comm.Probe(source=left)
        comm.Recv(into)
        assert into[0] == left
        sending.Wait()
        sending = comm.Issend(out, right)
        comm.Recv(into, MPI.ANY_SOURCE, MPI.ANY_TAG, None)
        sending.Wait()
        comm.Bcast(into, root=p - 1)
        total = np.zeros(3)
        comm.Iallreduce(out, total).Wait()
        assert total[0] == p * (p - 1) / 2
        me.validate(epoch)
    comm.Free()


def through(requests: list[Any], kind: str) -> None:
    """Complete all requests with calls of one kind."""
    call = getattr(type(requests[0]), kind)
    open_ones = len(requests)
    while open_ones:
        answer = call(requests)
        if kind in ("Waitall", "Testall"):
            open_ones = 0 if answer else open_ones
        elif kind == "Testany":
            open_ones -= answer[1]
        else:
            open_ones -= 1 if kind == "Waitany" else len(answer or ())


def clocks(comm: Any) -> list[float]:
    """How far the common start is, on ranks whose clocks differ by an hour each, from where it truly is."""
    hour = 3600.0

    def clock() -> float:
        return time.perf_counter() + hour * comm.rank

    alike = common_start(comm, time.perf_counter)
    found = common_start(comm, clock, lambda: f"machine {comm.rank}")
    now = np.array([time.perf_counter()])
    comm.Bcast(now)
    return [found - hour * comm.rank - float(now[0]), alike - float(now[0])]
