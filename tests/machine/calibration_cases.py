"""What ranks measure of a job, on real MPI."""

from __future__ import annotations

from typing import Any

from paceline.config import Config
from paceline.machine.costs import measure
from paceline.training.job import Job


def work(comm: Any, *, strategies: list[str], model: str, data: str, batch: int) -> dict[str, Any]:
    """For each strategy: what was measured of each rank alone, and of the ranks together."""
    found = {}
    for strategy in strategies:
        config = Config(data=data, model=model, strategy=strategy, batch=batch)
        found[strategy] = measure(comm, job=Job(config=config, runs=None), data=None, seconds=0.05, threads=1)
    return found
