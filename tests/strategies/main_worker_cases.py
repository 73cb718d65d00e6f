"""What ranks do in the tests of main-worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.config import Config
from paceline.training.rank import Fitted, Job, train
from tests.strategies.cases import CNN, MLP
from tests.strategies.lockfree_cases import first


def run(comm: Any, strategy: str, settings: dict[str, Any], network: Any = None) -> Fitted:
    config = Config(**{"dtype": "float64", **settings}, strategy=strategy, threads=1)
    return train(Job(config=config, model=network, runs=None), comm)


def norm(seed: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    ).double()


def against_serial(world: Any) -> list[dict[str, Any]]:
    """Changes that are added up are the step of the whole batch."""
    found = []
    cases = {
        "mlp": (MLP, (2, 3, 4)),
        "decay": ({**MLP, "update": "sgd:weight-decay=0.01", "schedule": "cosine"}, (3,)),
        "fewer samples than workers": ({**MLP, "batch": 2, "draws": 20}, (4,)),
        "cnn": (CNN, (3,)),
        "adam, one worker": ({**MLP, "update": "adam", "lr": 0.01}, (2,)),
        "norm, one worker": ({**MLP, "model": "norm"}, (2,)),
    }
    for name, (settings, sizes) in cases.items():
        given = {"network": norm(0)} if settings["model"] == "norm" else {}
        settings = {key: value for key, value in settings.items() if value != "norm"}
        serial = run(None, "serial", settings, **given)
        start = run(None, "serial", {**settings, "epochs": 0}, **({"network": norm(0)} if given else {}))
        for ranks in sizes:
            with first(world, ranks) as comm:
                if comm is None:
                    continue
                given = {"network": norm(comm.rank)} if given else {}  # rank 0's start is what counts
                parallel = run(comm, "main-worker", settings, **given)
                x, buffers = parallel.model.x, parallel.model.buffers
                found.append({
                    "case": name,
                    "ranks": ranks,
                    "moved": float(np.abs(serial.model.x - start.model.x).max()),
                    "x": float(np.abs(x - serial.model.x).max()),
                    "same": all(np.array_equal(x, other) for other in comm.allgather(x)),
                    "loss": max(
                        abs(a.loss - b.loss) for a, b in zip(parallel.history, serial.history, strict=True)
                    ),
                    "buffers": max(
                        (float(np.abs(serial.model.buffers[key] - buffers[key]).max()) for key in buffers),
                        default=0.0,
                    ),
                    "accuracy": abs(parallel.test_accuracy - serial.test_accuracy),
                    "samples": round(parallel.samples_per_second * parallel.train_seconds),
                    "serial_samples": round(serial.samples_per_second * serial.train_seconds),
                    "messages": parallel.messages_sent / parallel.steps,
                    "numbers": parallel.bytes_sent / parallel.steps / x.itemsize / x.size,
                    "left": bool(comm.Iprobe()),
                })  # fmt: skip
    return found


def shown(world: Any) -> dict[str, Any]:
    """What rank 0 shows while it runs: every batch once, with its mean loss; and buffers are the workers' mean."""
    from paceline.training.progress import Progress

    seen: list[tuple[int, float]] = []

    class Seen(Progress):
        def __init__(self) -> None: ...

        def step(self, step: int, loss: float) -> None:
            seen.append((step, loss))

        def epoch(self, epoch: Any) -> None: ...

        def close(self) -> None: ...

    config = Config(**{**MLP, "draws": 6}, dtype="float64", strategy="main-worker")
    fitted = train(Job(config=config, runs=None), world, progress=lambda *_: Seen())
    return {"seen": seen, "losses": [epoch.loss for epoch in fitted.history]}
