# ruff: noqa: N802 (names of mpi4py)
"""What ranks do in the tests of rehearsals."""

from __future__ import annotations

from typing import Any

from paceline.config import Config
from paceline.launch import limit_threads
from paceline.training.rank import Job, train


def trained(comm: Any, *, strategy: str, trace: bool) -> dict[str, Any]:
    sums: list[float] = []

    class Calls(type(comm)):  # type: ignore[misc]
        """A communicator whose arrays' sums are kept; so are those of its duplicates."""

        def Allreduce(self, send: Any, recv: Any, *op: Any) -> None:
            super().Allreduce(send, recv, *op)
            sums.append(float(abs(recv).max()) if len(recv) > 30 else -1.0)  # -1: of the record's own

    config = Config(data="iris", model="mlp:8", strategy=strategy, epochs=2, batch=20, threads=1)
    with limit_threads(1):
        fitted = train(Job(config=config, trace=trace), comm=Calls(comm), progress=None)
    return {
        "sums": [value for value in sums if value >= 0],
        "messages": fitted.messages_sent,
    }
