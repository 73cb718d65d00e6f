"""The ranks' side of measuring a job: `python -m paceline.machine._job`, inside `paceline.launch.serve`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import cloudpickle

from paceline.comm.control import shared_bytes
from paceline.launch.resources import held_to
from paceline.machine import _work as sync
from paceline.machine import _work as work
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.sync import Sync
from paceline.training.job import Job, Parts, made


def measure(
    job: Job, comm: Any, *, seconds: float, threads: int, known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Seconds by kind and amount of the job's work, with all ranks of `comm` at it; collective.

    `alone`: what each does on its own, or as it is `known`; `more`: what the strategy makes of it.
    """
    from paceline.data import load

    config = job.config
    data = load(config.data if job.data is None else job.data)
    strategy = job.chosen()
    with held_to(threads):
        update, schedule = made("updates", config.update), made("schedules", config.schedule)
        parts = Parts(data, strategy, job.build(data), update, schedule)
        batch = min(config.own_batch(), len(data.train))
        found = known or work.alone(parts, comm, batch, seconds)
        more = {}
        if comm.Get_size() > 1:
            if isinstance(strategy, Sync):
                piece = config.batch_per_rank or max(1, batch // comm.Get_size())
                more = sync.together(parts, comm, piece, seconds, strategy.allreduce)
            elif isinstance(strategy, ParameterServer):
                from paceline.machine._server import serving

                more = serving(parts, comm, strategy, batch, seconds, found["gradient"])
    return {"alone": found, "more": more}


def main() -> int:
    """One rank of such a measurement."""
    from paceline import launch
    from paceline.comm import mpi
    from paceline.launch.cores import VARIABLE

    launch.take_cores()
    comm = mpi().COMM_WORLD
    with launch.abort_on_error(comm):
        up = None
        payload = b""
        if comm.Get_rank() == 0:
            payload, up = launch.receive()
        packed, arguments = cloudpickle.loads(shared_bytes(comm, payload))
        sys.path[:], data, rest, *_ = cloudpickle.loads(packed)
        job = replace(cloudpickle.loads(rest), data=cloudpickle.loads(data))
        found = measure(job, comm, **arguments)
        if up is not None:
            up.send({**found, "bound": VARIABLE in os.environ})
            up.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
