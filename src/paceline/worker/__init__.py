"""What a strategy is handed.

| module | what it holds |
|---|---|
| `worker` | `Worker`: one rank of a run, with its communicator, model, batches, update and record; `Exchange`; `Mean` |
| `steps` | `Steps`: the part of a Worker that needs no other rank: batches, gradients, steps, their log |
| `shared` | `SharedX`: parameters that the ranks of a node read and write without a lock |
| `evaluation` | `Score`: how good a model is, on a part of the samples or on all ranks together |
| `divergence` | `Guard`: notices a loss that has run away |
"""

from __future__ import annotations

from paceline.worker.divergence import Guard
from paceline.worker.evaluation import Score
from paceline.worker.shared import SharedX
from paceline.worker.steps import Steps, apply_update, start_update
from paceline.worker.worker import Exchange, Mean, Worker

__all__ = [
    "Exchange",
    "Guard",
    "Mean",
    "Score",
    "SharedX",
    "Steps",
    "Worker",
    "apply_update",
    "start_update",
]
