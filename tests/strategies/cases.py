"""What ranks do in the tests of strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline import names as registry
from paceline.config import Config
from paceline.data import chunks, load
from paceline.record import STEP_COLUMNS, Run
from paceline.strategies.sync import Sync
from paceline.training.rank import Job, train
from tests.ranks import first

MLP = {
    "data": "tests.strategies.cases:some_digits",
    "model": "mlp:16,activation=tanh,loss=cross-entropy",
    "batch": 25,
    "epochs": 2,
    "lr": 0.3,
}
CNN = {
    "data": "tests.strategies.cases:few_digits",
    "model": "cnn",
    "batch": 10,
    "draws": 4,
    "epochs": 1,
    "lr": 0.1,
}


def some_digits() -> Any:
    """A part of `digits`, with fewer samples in the last batch of an epoch: what holds for its steps holds for more."""
    return _some("digits", 190)


def few_digits() -> Any:
    """A little of MNIST: evaluating all of it with a convolutional network takes longer than the training here."""
    return _some("mnist", 60)


def _some(name: str, size: int) -> Any:
    data = load(name)
    return tuple(
        next(chunks(split, size=size, dtype=np.float64)) for split in (data.train, data.validation, data.test)
    )


def losses(folder: Path) -> np.ndarray:
    """The mean loss of every global batch of a run, from all ranks' logs."""
    steps = Run(folder).steps
    sums = np.bincount(steps["step"], steps["loss"])
    return sums / np.bincount(steps["step"], steps["count"])


def sync_against_serial(
    comm: Any, folder: str, sizes: list[int], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Train with every collective on the first p ranks, for several p; compare to serial training."""
    found = []
    base = Config(**settings, dtype="float64", strategy="serial")
    serial = train(Job(config=base, runs=Path(folder) / f"serial-{comm.rank}"), None)
    start = train(
        Job(config=Config(**{**settings, "epochs": 0}, dtype="float64", strategy="serial"), runs=None), None
    )
    for size in sizes:
        with first(comm, size) as group:
            for name in registry.names("collectives") if group is not None else []:
                config = Config(**settings, dtype="float64", strategy=f"sync:allreduce={name}")
                # Each rank's own seed would start it elsewhere: x must come from rank 0.
                parallel = train(Job(config=config, runs=Path(folder)), group)
                found.append({
                    "ranks": size,
                    "collective": name,
                    "moved": float(np.abs(serial.model.x - start.model.x).max()),
                    "x": float(np.abs(parallel.model.x - serial.model.x).max()),
                    "loss": float(np.abs(losses(parallel.run) - losses(serial.run)).max()),
                    "accuracy": abs(parallel.test_accuracy - serial.test_accuracy),
                    "steps": len(losses(parallel.run)),
                })  # fmt: skip
    return found


def updates_on_slices(comm: Any) -> list[float]:
    """Every update gives the same parameters whether each rank changes all of x or its own part of a shared x."""
    worst = []
    for update in registry.names("updates"):
        settings = {**MLP, "update": update, "lr": 0.01, "epochs": 1}
        both = [
            train(
                Job(config=Config(**settings, dtype="float64", strategy=f"sync:allreduce={name}"), runs=None),
                comm,
            )
            for name in ("native", "shared-memory")
        ]
        worst.append(float(np.abs(both[0].model.x - both[1].model.x).max()))
    return worst


def weak_scaling(comm: Any) -> list[float]:
    """Fixed batch a rank: p ranks of b samples equal serial at batch p b; a scaled rate is the serial rate times p."""
    common = {"data": "digits", "model": "mlp:16", "epochs": 1, "dtype": "float64"}
    weak = Config(**common, batch_per_rank=8, lr=0.1, lr_scaling="linear", strategy="sync")
    wide = Config(**common, batch=8 * comm.size, lr=0.1 * comm.size, strategy="serial")
    parallel, serial = train(Job(config=weak, runs=None), comm), train(Job(config=wide, runs=None), None)
    return [float(np.abs(parallel.model.x - serial.model.x).max()), parallel.global_batch]


def empty_pieces(comm: Any) -> float:
    """A batch smaller than the number of ranks leaves some with nothing, and all with the right sum."""
    settings = {**MLP, "batch": 2, "draws": 20, "dtype": "float64"}
    parallel = train(Job(config=Config(**settings, strategy="sync"), runs=None), comm)
    serial = train(Job(config=Config(**settings, strategy="serial"), runs=None), None)
    return float(np.abs(parallel.model.x - serial.model.x).max())


def balanced(comm: Any) -> dict[str, Any]:
    """One rank is slower than the others: it gets smaller pieces, and the result is serial's."""
    import time

    from paceline.models.mlp import MLP

    class Slow(MLP):
        def gradient(self, batch: Any) -> float:
            if comm.rank == 1:
                time.sleep(batch.count * 0.001)
            return super().gradient(batch)

    settings = {"data": "digits", "batch": 60, "epochs": 3, "lr": 0.5, "dtype": "float64"}
    counts: list[int] = []

    def train_and_see(me: Any) -> None:
        Sync(balance=True).train(me)
        counts.extend(int(count) for count in me.log.read()[:, STEP_COLUMNS.index("count")])

    slow = Slow([64, 16, 10], dtype=np.float64, seed=3)
    job = Job(config=Config(**settings), model=slow, strategy=train_and_see, runs=None)
    parallel = train(job, comm)
    model = MLP([64, 16, 10], dtype=np.float64, seed=3)
    serial = train(Job(config=Config(**settings, strategy="serial"), model=model, runs=None), None)
    return {
        "difference": float(np.abs(parallel.model.x - serial.model.x).max()),
        "first": counts[0],
        "last": counts[-2],
    }


def batch_norm(comm: Any) -> dict[str, Any]:
    """Replicas that saw different samples have the same statistics after training."""
    import torch
    from torch import nn

    torch.manual_seed(comm.rank)  # a start of its own on every rank
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    fitted = train(Job(config=Config(data="digits", batch=32, epochs=2), model=module, runs=None), comm)
    buffers = fitted.model.buffers
    return {name: np.asarray(value).ravel().tolist() for name, value in buffers.items()} | {
        "x": fitted.model.x.tolist()
    }


def own_strategies(comm: Any) -> dict[str, Any]:
    """A function of a worker, and a class from the user's own module."""

    def alone(me: Any) -> None:
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)
                me.comm.Allreduce(np.array([1.0]), np.empty(1))
                me.step(me.model.g, batch.count)
            me.validate(epoch)

    config = Config(data="iris", model="mlp:4", epochs=1, batch=10)
    own = train(Job(config=config, strategy=alone, runs=None), comm)
    vote = Config(data="iris", model="mlp:4", epochs=1, batch=10, strategy="examples.own_strategy:SignVote")
    return {"name": own.strategy, "vote": train(Job(config=vote, runs=None), comm).strategy}


def empty_steps(comm: Any) -> float:
    """A strategy that steps with its own piece's count, which may be 0: no sample, no step."""

    def alone(me: Any) -> None:
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)
                me.step(me.model.g, batch.count)
            me.validate(epoch)

    config = Config(data="iris", model="mlp:4", epochs=1, batch=1, draws=8, dtype="float64")
    start = train(Job(config=Config(data="iris", model="mlp:4", epochs=0, dtype="float64"), runs=None), comm)
    return float(
        np.abs(train(Job(config=config, strategy=alone, runs=None), comm).model.x - start.model.x).max()
    )
