"""The ranks' side of measuring a job."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from paceline.launch import limit_threads
from paceline.launch.cores import VARIABLE
from paceline.machine import _work as sync
from paceline.machine import _work as work
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.sync import Sync
from paceline.training.job import Job, Parts, made


def measure(
    comm: Any, *, job: Job, data: Any, seconds: float, threads: int, known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Seconds by kind and amount of the job's work, with all ranks of `comm` at it; collective.

    `alone`: what each does on its own, or as it is `known`; `more`: what the strategy makes of it.
    """
    from paceline.data import load

    job, config = replace(job, data=data), job.config
    data = load(config.data if data is None else data)
    strategy = job.chosen()
    with limit_threads(threads):
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
    return {"alone": found, "more": more, "bound": VARIABLE in os.environ}
