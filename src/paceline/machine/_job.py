"""The ranks' side of measuring a job."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from paceline.data import load
from paceline.launch import limit_threads
from paceline.launch.cores import VARIABLE
from paceline.machine._server import serving
from paceline.machine._work import alone, together
from paceline.training.job import Job, Parts, made


def measure(
    comm: Any,
    *,
    job: Job,
    data: Any,
    seconds: float,
    threads: int,
    known: dict[str, Any] | None = None,
    own: bool = True,
) -> dict[str, Any]:
    """Measure seconds by kind and amount of the job's work, with all ranks of `comm` doing it; collective.

    `alone`: what each does on its own, or as it is `known`; `more`: what the strategy's own kinds of work take, if wanted.
    """
    job, config = replace(job, data=data), job.config
    data = load(config.data if data is None else data)
    strategy: Any = job.chosen()
    with limit_threads(threads):
        update, schedule = made("updates", config.update), made("schedules", config.schedule)
        parts = Parts(data, strategy, job.build(data), update, schedule)
        batch = min(config.own_batch(), len(data.train))
        found = known or alone(parts, comm, batch, seconds)
        more = {}
        if own and comm.Get_size() > 1:
            if getattr(strategy, "masters_option", ""):
                more = serving(parts, comm, strategy, batch, seconds, found["gradient"])
            elif getattr(strategy, "in_place", False):
                piece = config.batch_per_rank or max(1, batch // comm.Get_size())
                more = together(parts, comm, piece, seconds, strategy.allreduce)
    return {"alone": found, "more": more, "bound": VARIABLE in os.environ}
