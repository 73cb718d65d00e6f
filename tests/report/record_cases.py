"""Runs on real ranks for reports to be made of, several in one job: starting one takes long."""

from __future__ import annotations

from typing import Any

from paceline.config import Config
from paceline.training.job import Job
from paceline.training.rank import train
from tests.ranks import first

SETTINGS: dict[str, Any] = {
    "data": "iris",
    "model": "mlp:8",
    "epochs": 3,
    "batch": 10,
    "lr": 0.5,
    "threads": 1,
}


def recorded(comm: Any, folder: str, cases: list[tuple[str, int, int]]) -> None:
    """Runs of a strategy, on the first so many ranks, with a seed."""
    from pathlib import Path

    for strategy, ranks, seed in cases:
        with first(comm, ranks) as group:
            if group is not None:
                train(Job(config=Config(**SETTINGS, strategy=strategy, seed=seed), runs=Path(folder)), group)
