"""What ranks do in the tests of hogwild and gossip."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np

from paceline.comm import pretend_nodes
from paceline.comm.control import Control
from paceline.comm.shared import SharedMemory
from paceline.config import Config
from paceline.models.mlp import MLP
from paceline.strategies import _mail
from paceline.strategies._mail import Mail, merge
from paceline.training.rank import Fitted, Job, train
from tests.ranks import first
from tests.strategies.cases import CNN

DIGITS = {
    "data": "digits",
    "model": "mlp:16,activation=tanh,loss=cross-entropy",
    "batch": 25,
    "epochs": 10,
    "lr": 0.5,
    "dtype": "float64",
}
SAMPLES = 1437  # of digits, for training


def run(comm: Any, strategy: str, network: Any = None, **settings: Any) -> Fitted:
    return train(
        Job(
            config=Config(**{**DIGITS, **settings, "strategy": strategy}, threads=1), model=network, runs=None
        ),
        comm,
    )


def check_end(comm: Any, fitted: Fitted) -> dict[str, Any]:
    """Check what holds after every run: one model on all ranks, each in memory of its own, and no message left."""
    x = fitted.model.x
    same = all(np.array_equal(x, other) for other in comm.allgather(x))
    buffers = comm.allgather({name: np.array(value) for name, value in fitted.model.buffers.items()})
    same &= all(np.array_equal(buffers[0][name], other[name]) for other in buffers for name in other)
    before = x.copy()
    comm.Barrier()
    x += comm.rank + 1
    fitted.model.g.fill(comm.rank)
    comm.Barrier()
    own = np.array_equal(x, before + (comm.rank + 1)) and bool((fitted.model.g == comm.rank).all())
    x[...] = before
    return {
        "ranks": comm.size,
        "same": same,
        "own": own,
        "left": bool(comm.Iprobe()),
        "accuracy": fitted.test_accuracy,
        "losses": [epoch.loss for epoch in fitted.history],
        "samples": round(fitted.train_seconds * fitted.samples_per_second),
        "bytes": fitted.bytes_sent,
        "findings": comm.bcast(fitted.findings),
    }


def trains(world: Any, strategy: str) -> dict[str, Any]:
    """From 1 to 4 ranks beside serial; on one rank it is serial."""
    serial = run(None, "serial")
    found = []
    for ranks in (1, 2, 3, 4):
        with first(world, ranks) as comm:
            if comm is not None:
                fitted = run(comm, strategy)
                found.append(check_end(comm, fitted))
                if ranks == 1:
                    found[0]["same"] &= np.array_equal(fitted.model.x, serial.model.x)
    return {"serial": serial.test_accuracy, "found": found}


def uneven(world: Any, strategies: list[str]) -> dict[str, Any]:
    return {strategy: _uneven(world, strategy) for strategy in strategies}


def _uneven(world: Any, strategy: str) -> dict[str, Any]:
    """Batches that do not come out even, fewer batches than ranks, other updates, and torch networks."""
    import torch
    from torch import nn

    torch.manual_seed(world.rank)  # a start of its own on every rank
    norm = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    cnn = {**CNN, "draws": 9, "epochs": 2}
    return {
        "seven": check_end(world, run(world, strategy, draws=7, epochs=3)),
        "two": check_end(world, run(world, strategy, draws=2, epochs=3)),
        "momentum": check_end(world, run(world, strategy, update="momentum", lr=0.1, epochs=4)),
        "adam": check_end(world, run(world, strategy, update="adam", lr=0.01, epochs=4)),
        "cosine": check_end(world, run(world, strategy, schedule="cosine", epochs=4)),
        "norm": check_end(world, run(world, strategy, network=norm, epochs=4, lr=0.5)),
        "cnn": check_end(world, run(world, strategy, **cnn)),
    }


class Waiting(MLP):
    """On rank 1 the first gradient takes from rank 0's first to its last; on the last rank each takes long."""

    def prepare(self, world: Any, last: int) -> Waiting:
        self.world, self.last, self.computed = world.Dup(), last, 0
        return self

    def gradient(self, batch: Any) -> float:
        self.computed += 1
        rank = self.world.rank
        if rank == 0 and self.computed == 1:
            self.world.Recv(np.empty(1), source=1)
        if rank == 1 and self.computed == 1:
            self.world.Send(np.zeros(1), dest=0)
            self.world.Recv(np.empty(1), source=0)
        if rank == self.world.size - 1:
            time.sleep(0.002)  # ten times what the others take
        loss = super().gradient(batch)
        if rank == 0 and self.computed == self.last:
            self.world.Send(np.zeros(1), dest=1)
        return loss


def unhurried(world: Any, strategy: str) -> dict[str, Any]:
    """A rank that does not go on before another has finished its epoch: who waits within an epoch would hang here."""
    model = Waiting([64, 16, 10], dtype=np.float64, seed=3).prepare(world, last=30)
    found = check_end(world, run(world, strategy, network=model, draws=30 * world.size, epochs=1))
    model.world.Free()
    return found


def diverging(world: Any, strategy: str) -> dict[str, Any]:
    """Losses that run away: stop, on every rank at the same time; or go back, on every rank to the same."""
    relu = {
        "model": "mlp:16,activation=relu,loss=cross-entropy",
        "epochs": 4,
        "draws": 12,
        "lr": 1e30,
        "dtype": "float32",
    }
    with np.errstate(all="ignore"):
        stopped = run(world, strategy, **relu)
        halved = run(world, strategy, **relu, on_divergence="halve")
    return {
        "stopped": [stopped.diverged is not None, len(stopped.history)],
        "halved": [bool(np.isfinite(halved.model.x).all()), len(halved.history)],
        "same": all(np.array_equal(halved.model.x, other) for other in world.allgather(halved.model.x)),
    }


# ---- hogwild


class Constant:
    """A model whose gradient is 1 everywhere: what x has moved counts the updates that are in it."""

    def __init__(self, size: int, pause: float) -> None:
        self.x, self.g, self.layers, self.buffers = np.zeros(size), np.zeros(size), [slice(0, size)], {}
        self.pause = pause

    def place(self, x: np.ndarray, g: np.ndarray) -> None:
        x[...], g[...] = self.x, self.g
        self.x, self.g = x, g

    def gradient(self, batch: Any) -> float:
        before = self.x.copy()
        time.sleep(self.pause)
        assert np.array_equal(self.x, before)  # a gradient is of one x, whatever others write meanwhile
        self.g.fill(batch.count)
        return 0.0

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.zeros((len(inputs), 10))

    def evaluate(self, inputs: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
        return 0.0, 0


def nodes(world: Any) -> list[dict[str, Any]]:
    """How far x moves, in updates: all of a node's; of several nodes their mean, weighted by their ranks."""
    found = []
    for layout in ([0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 2, 3]):
        there = pretend_nodes(world, layout[world.rank])
        for every in (1, 3, 100):
            model = Constant(3000, pause=0.0003 * (1 + world.rank))
            fitted = run(there, f"hogwild:every={every}", network=model, draws=41, epochs=2, lr=1.0)
            counts = [11, 10, 10, 10]  # of 41 batches
            by_node = {
                node: sum(c for c, n in zip(counts, layout, strict=True) if n == node) for node in layout
            }
            expected = 2 * sum(by_node[node] for node in layout) / world.size
            moved = -fitted.model.x
            found.append({
                "layout": layout,
                "every": every,
                "expected": expected,
                "moved": float(np.median(moved)),
                "most": float(moved.max()),
                "far": float(np.mean(moved > 1.001 * expected)),
                "messages": fitted.messages_sent,
                **check_end(there, fitted),
            })  # fmt: skip
        there.Free()
    return found


def windows(world: Any) -> list[int]:
    """Shared memory made and given back, on a communicator of its own that is freed at the end."""
    counts = {"made": 0, "freed": 0}
    make, free = SharedMemory.__init__, SharedMemory.free

    def counted(self: Any, *arguments: Any) -> None:
        counts["made"] += 1
        make(self, *arguments)

    def freed(self: Any) -> None:
        counts["freed"] += 1
        free(self)

    SharedMemory.__init__, SharedMemory.free = counted, freed  # type: ignore[method-assign]
    comm = world.Dup()
    for _ in range(3):
        run(comm, "hogwild", epochs=1, draws=4)
    between = dict(counts)
    comm.Free()
    SharedMemory.__init__, SharedMemory.free = make, free  # type: ignore[method-assign]
    return [between["made"], between["freed"], counts["made"] - counts["freed"]]


# ---- gossip


def talk(world: Any, rounds: int, few: int) -> list[dict[str, Any]]:
    """Sum-weight gossip with no training: nothing of what there was is lost, and all come to the mean."""
    with patch.object(_mail, "FEW", few):
        return _talk(world, rounds)


def _talk(world: Any, rounds: int) -> list[dict[str, Any]]:
    found = []
    control = Control(world)
    for dtype, size in ((np.float64, 5000), (np.float32, 1)):
        draw = np.random.default_rng((5, world.rank))
        start = draw.normal(size=size).astype(dtype)
        x, w = start.copy(), 1 / world.size
        mail = Mail(lambda more, x=x: np.empty(x.size + more, x.dtype), world, slots=1 + world.rank % 2)
        for _ in range(rounds):
            while (message := mail.next()) is not None:
                w = merge(x, w, message)
            envelope = mail.find_free()
            if envelope is not None and w > 1e-3 / world.size:
                w /= 2
                envelope.x[...], envelope.weight[...] = x, w
                mail.send(envelope, dest=(world.rank + int(draw.integers(1, world.size))) % world.size)
            world.Barrier()  # however busy the machine is, all have a word
        for message in mail.receive_rest(control):
            w = merge(x, w, message)
        mail.flush()
        mean = world.allreduce(start.astype(np.float64)) / world.size
        kept = world.allreduce(w * x.astype(np.float64))
        found.append({
            "weight": world.allreduce(w) - 1,
            "lost": float(np.abs(kept - mean).max()),
            "apart": float(np.abs(x - mean).max() / np.abs(start - mean).max()),
            "under_way": int(world.allreduce(mail.sent.total()) - world.allreduce(mail.received)),
            "sent": mail.sent.total(),
            "to_itself": mail.sent[world.rank],
            "left": bool(world.Iprobe()),
        })  # fmt: skip
        world.Barrier()
    control.close()
    return found
