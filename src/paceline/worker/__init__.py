"""The worker: a strategy's interface to one rank of a run.

| module | contents |
|---|---|
| `worker` | `Worker`: one rank of a run, with its communicator, model, batches, update and record; `TimedExchange`; |
| | `Mean`; `Steps`: the part of a Worker that needs no other rank: batches, gradients, steps, their log |
| `shared` | `SharedX`: parameters that the ranks of a node read and write without locks; `AgeCounts`: gradient ages |
| `checkpoints` | `Keeper`: when a rank saves its state or stops; `Resumption`: the states that it goes on from |
| `evaluation` | `Score`: the loss and accuracy of a model, on a part of the samples or on all ranks together |
| `divergence` | `Guard`: detects a loss that has diverged |
"""

from __future__ import annotations

from paceline.worker.checkpoints import Kept, Resumption, Saves
from paceline.worker.divergence import Guard
from paceline.worker.evaluation import Metrics, Score, check_metrics
from paceline.worker.shared import AgeCounts, SharedX
from paceline.worker.worker import Mean, Steps, TimedExchange, Worker, apply_update, start_update

__all__ = [
    "AgeCounts",
    "Guard",
    "Kept",
    "Mean",
    "Metrics",
    "Resumption",
    "Saves",
    "Score",
    "SharedX",
    "Steps",
    "TimedExchange",
    "Worker",
    "apply_update",
    "check_metrics",
    "start_update",
]
