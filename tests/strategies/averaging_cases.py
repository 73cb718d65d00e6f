"""What ranks do in the tests of averaging strategies, and the same written down again in a few lines of NumPy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline import names as spec
from paceline.config import Config
from paceline.data import Batches, partition
from paceline.launch import limit_threads
from paceline.schedules import Cosine
from paceline.training.rank import Fitted, Job, train
from paceline.worker.evaluation import score
from tests.ranks import first
from tests.strategies import cases

MLP = {**cases.MLP, "data": "digits", "batch": 60, "lr": 0.2, "dtype": "float64"}
DRAWN = {**MLP, "draws": 7, "batch": 20, "epochs": 3}
ODD = {**MLP, "batch": 359, "epochs": 4}
LONG = {**MLP, "epochs": 8, "lr": 0.4}
FEW = {**MLP, "draws": 2, "batch": 20, "epochs": 3}
CNN = {**cases.CNN, "draws": 5, "epochs": 2, "batch": 8, "dtype": "float64"}


class Again:
    """A run of p ranks, in one process: their parts of the data, gradients, and losses."""

    def __init__(self, settings: dict[str, Any], p: int) -> None:
        self.config = config = Config(**settings)
        self.p, self.eta = p, config.lr
        job = Job(config=config)
        self.data = data = job.check(1)[0]
        self.model = job.build(data)
        self.start = self.model.x.copy()
        draws = [None if config.draws is None else len(range(r, config.draws, p)) for r in range(p)]
        parts = [partition(data.train, r, p, seed=0) if p > 1 else data.train for r in range(p)]
        self.batches = [
            Batches(part, batch=config.batch, dtype=np.float64, draws=drawn or None)
            for part, drawn in zip(parts, draws, strict=True)
        ]
        self.turns = [
            0 if drawn == 0 else b.steps_per_epoch for b, drawn in zip(self.batches, draws, strict=True)
        ]
        self.losses = np.zeros((p, 2))

    def epochs(self) -> Iterator[Iterator[list[Any]]]:
        for epoch in range(self.config.epochs):
            self.losses[:] = 0
            yield self._epoch(epoch)

    def _epoch(self, epoch: int) -> Iterator[list[Any]]:
        for turn in range(self.turns[0]):
            found = []
            for r in range(self.p):
                batch = self.batches[r].at(epoch, turn) if turn < self.turns[r] else None
                if batch is not None:
                    batch.step, batch.offset = epoch * self.turns[0] + turn, r * self.config.batch
                found.append(batch)
            yield found

    def gradient(self, r: int, x: np.ndarray, batch: Any) -> np.ndarray:
        self.model.x[:] = x
        self.losses[r] += (self.model.gradient(batch), batch.count)
        return self.model.g / batch.count

    def accuracy(self, x: np.ndarray, split: Any) -> float:
        self.model.x[:] = x
        return score(self.model, split).means()[1]

    def validation(self, x: np.ndarray) -> float:
        return self.accuracy(x, self.data.validation)


def averaged_gradients(run: Again) -> tuple[np.ndarray, list[float]]:
    """What weight-average must be with sgd: the mean of the ranks' mean gradients, those that have a batch."""
    x, seen = run.start.copy(), []
    for epoch in run.epochs():
        for turn in epoch:
            x = x - run.eta * np.mean([run.gradient(r, x, b) for r, b in enumerate(turn) if b], axis=0)
        seen.append(run.validation(x))
    return x, seen


def local(
    run: Again,
    every: int | None = 10,
    warmup: int = 0,
    outer_momentum: float = 0.0,
    outer_lr: float = 1.0,
    beta: float = 0.0,
    cosine: bool = False,
) -> tuple[np.ndarray, list[float]]:
    """Local SGD with warm-up, outer Nesterov momentum, inner momentum `beta`, and a cosine schedule."""
    p, x, seen = run.p, [run.start.copy()] * run.p, []
    inner, outer, common = [np.zeros_like(x[0])] * p, np.zeros_like(x[0]), run.start
    t, steps, moved = 0, 0, set()
    whole = run.config.draws or -(-len(run.data.train) // run.config.batch)
    for epoch in run.epochs():
        for turn in epoch:
            done = t * whole // run.turns[0]
            eta = run.eta * (Cosine().factor(done, whole * run.config.epochs) if cosine else 1)
            g = {r: run.gradient(r, x[r], b) for r, b in enumerate(turn) if b}
            t += 1
            if t <= warmup:
                count = {r: turn[r].count for r in g}
                mean = sum(count[r] * g[r] for r in g) / sum(count.values())
                inner = [beta * v + mean for v in inner]
                x = [a - eta * v for a, v in zip(x, inner, strict=True)]
                common = x[0]
                continue
            for r in g:
                inner[r] = beta * inner[r] + g[r]
                x[r] = x[r] - eta * inner[r]
            steps, moved = steps + 1, moved | set(g)
            if steps == every or t == run.turns[0] * run.config.epochs:
                delta = common - np.mean([x[r] for r in moved], axis=0)
                outer = outer_momentum * outer + delta
                common = common - outer_lr * (delta + outer_momentum * outer)
                x, steps, moved = [common] * p, 0, set()
        seen.append(run.validation(np.mean([x[r] for r in moved or range(p)], axis=0)))
    return x[0], seen


def elastic(run: Again, every: int = 10, moving_rate: float | None = None) -> tuple[np.ndarray, list[float]]:
    alpha = 0.9 / run.p if moving_rate is None else moving_rate
    x, c, seen, t = [run.start.copy() for _ in range(run.p)], run.start.copy(), [], 0
    for epoch in run.epochs():
        for turn in epoch:
            x = [x[r] - run.eta * run.gradient(r, x[r], b) if b else x[r] for r, b in enumerate(turn)]
            t += 1
            if t % every == 0 or t == run.turns[0] * run.config.epochs:
                pulls = [alpha * (a - c) for a in x]
                x = [a - pull for a, pull in zip(x, pulls, strict=True)]
                c = c + sum(pulls)
        seen.append(run.validation(c))
    return c, seen


def psgd(run: Again, tolerance: float | None = None) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Each part by itself, one after the other."""
    ends, parts = [], []
    for r in range(run.p):
        x, before = run.start.copy(), np.inf
        converged, epochs, loss = False, 0, None
        for epoch in run.epochs():
            for turn in epoch:
                if turn[r]:
                    x = x - run.eta * run.gradient(r, x, turn[r])
            epochs += 1
            if run.turns[r]:
                loss = run.losses[r, 0] / run.losses[r, 1]
                converged = tolerance is not None and bool(before - loss < tolerance * before)
                before = loss
            if converged:
                break
        parts.append({
            "rank": r, "epochs": epochs, "loss": None if loss is None else float(loss), "converged": converged,
            "test_accuracy": run.accuracy(x, run.data.test),
        })  # fmt: skip
        ends += [x] if run.turns[r] else []
    return np.mean(ends, axis=0), parts


AGAIN = {
    "weight-average": averaged_gradients,
    "local-sgd": local,
    "elastic": elastic,
    "psgd": psgd,
}


def train_with(comm: Any, strategy: str, settings: dict[str, Any], **more: Any) -> Fitted:
    return train(Job(config=Config(**settings, **more, strategy=strategy), runs=None), comm)


def against_numpy(comm: Any, runs: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Train on the first p ranks; the parameters, and what was validated, must be what a few lines of NumPy say."""
    found = []
    for strategy, settings, p in runs:
        with first(comm, p) as group:
            if group is None:
                continue
            fitted = train_with(group, strategy, globals()[settings])
            with limit_threads(1):
                row = group.bcast(
                    compute_expected(strategy, globals()[settings], p) if comm.rank == 0 else None
                )
            row["off"] = float(np.abs(fitted.model.x - row.pop("x")).max())
            validated = [epoch.validation_accuracy for epoch in fitted.history]
            if "parts" in row:  # nobody speaks before the end, and then of the average
                row["validated"] = [None] * (row["parts"][comm.rank]["epochs"] - 1) + row["validated"]
            row["accuracies"] = list(zip(validated, row.pop("validated"), strict=True))
            if "parts" in row:
                told = group.bcast(fitted.findings)  # rank 0's
                row["parts"] = [told["parts"], row["parts"]]
                row["accuracies"].append((told["average"]["test_accuracy"], row.pop("average")))
            found.append(row)
    return found


def compute_expected(strategy: str, settings: dict[str, Any], p: int) -> dict[str, Any]:
    """Compute with NumPy what a run of p ranks must end with."""
    words, run = spec.parse("strategies", strategy), Again(settings, p)
    options = {name: value for name, value in words.options.items() if name != "allreduce"}
    x, seen = AGAIN[words.name](run, **options)
    row = {"x": x, "moved": float(np.abs(x - run.start).max()), "validated": seen}
    if words.name == "psgd":
        row |= {"parts": seen, "validated": [run.validation(x)], "average": run.accuracy(x, run.data.test)}
    return row


def to_the_bit(comm: Any) -> dict[str, bool]:
    """Pairs that must agree exactly, on any number of ranks."""
    found = {}
    for name, settings in {
        "mlp": MLP,
        "float32": {**MLP, "dtype": "float32"},
        "drawn": DRAWN,
        "few": FEW,
    }.items():
        for collective in ("auto", "native"):
            each = train_with(comm, f"weight-average:allreduce={collective}", settings).model.x
            one = train_with(comm, f"local-sgd:every=1,allreduce={collective}", settings).model.x
            found[f"{name}, {collective}, every=1"] = np.array_equal(each, one)
        once = train_with(comm, "psgd", settings).model.x
        never = train_with(comm, "local-sgd:every=none", settings).model.x
        found[f"{name}, every=none"] = np.array_equal(once, never)
        found[f"{name}, every=none is not every=1"] = not np.array_equal(once, one)
        others = np.empty((comm.size, once.size), once.dtype)
        for x in (one, once, train_with(comm, "elastic", settings).model.x):
            comm.Allgather(x, others)
            found[f"{name}, replicas"] = bool((others == others[0]).all()) and found.get(
                f"{name}, replicas", True
            )
    return found


def alone(comm: Any) -> dict[str, float]:
    """One rank is serial training; elastic's own parameters are, and its centre follows them."""
    serial = train_with(None, "serial", MLP, update="momentum").model.x
    names = ("weight-average", "local-sgd:every=3", "psgd", "local-sgd:every=3,warmup=4")
    return {
        name: float(np.abs(train_with(comm, name, MLP, update="momentum").model.x - serial).max())
        for name in names
    }


def with_memory(comm: Any) -> list[float]:
    """Momentum stays each rank's own; the schedule goes by the run's batches."""
    plain = train_with(comm, "local-sgd:every=3", MLP, update="momentum:beta=0.5").model.x
    warm = train_with(comm, "local-sgd:every=4,warmup=6", DRAWN, update="momentum:beta=0.5").model.x
    falling = train_with(comm, "local-sgd:every=3", DRAWN, schedule="cosine").model.x
    return [
        float(np.abs(plain - local(Again(MLP, comm.size), every=3, beta=0.5)[0]).max()),
        float(np.abs(warm - local(Again(DRAWN, comm.size), every=4, warmup=6, beta=0.5)[0]).max()),
        float(np.abs(falling - local(Again(DRAWN, comm.size), every=3, cosine=True)[0]).max()),
    ]


def traffic(comm: Any) -> dict[str, list[int]]:
    """Allreduces of the run, all ranks together, and bytes handed to them."""
    names = ("weight-average", "local-sgd:every=4", "local-sgd:every=4,warmup=2", "psgd", "elastic:every=5")
    found = {}
    for name in names:
        fitted = train_with(comm, name + (",", ":")[":" not in name] + "allreduce=native", DRAWN)
        number = (fitted.parameters + 1) * 8
        found[name] = [fitted.messages_sent, fitted.bytes_sent // number, fitted.bytes_sent % number]
    return found


def diverging(comm: Any) -> list[dict[str, Any]]:
    """A learning rate that is far too large: stopped, or halved until it is not."""
    from paceline.models import mlp

    class Fragile(mlp.MLP):
        """Breaks on a step that is too long."""

        before: Any = None

        def gradient(self, batch: Any, ready: Any = None) -> float:
            loss = super().gradient(batch)
            if self.before is not None and not np.abs(self.x - self.before).max() < 0.5:
                self.g.fill(np.nan)
                loss = np.nan
            self.before = None if np.isnan(loss) else self.x.copy()
            return loss

    logging.disable(logging.WARNING)
    found = []
    for strategy in (
        "weight-average",
        "local-sgd:every=5",
        "local-sgd:every=5,outer-momentum=0.5",
        "elastic:every=5",
        "psgd",
    ):
        words = {"data": "iris", "batch": 8, "lr": 16.0, "epochs": 12, "strategy": strategy}
        made = [Fragile([4, 8, 3], dtype=np.float64, seed=2) for _ in range(2)]
        stopped, halved = (
            train(Job(config=Config(**words, on_divergence=how), model=model, runs=None), comm)
            for how, model in zip(("stop", "halve"), made, strict=True)
        )
        everyones = np.empty((comm.size, halved.model.x.size))
        comm.Allgather(halved.model.x, everyones)
        found.append({
            "strategy": strategy, "stopped": stopped.diverged, "epochs": len(stopped.history),
            "halved": halved.diverged, "finite": bool(np.isfinite(halved.model.x).all()),
            "alike": bool((everyones == everyones[0]).all()), "accuracy": halved.test_accuracy,
        })  # fmt: skip
    return found


def torch_models(comm: Any, runs: list[tuple[str, str, int]]) -> list[list[dict[str, Any]]]:
    """Both that need PyTorch, which is slow to import."""
    return [against_numpy(comm, runs), statistics(comm)]


def statistics(comm: Any) -> list[dict[str, Any]]:
    """Replicas of a torch module end with the same parameters and the same, averaged, statistics."""
    import torch
    from torch import nn

    found = []
    for strategy in ("weight-average", "local-sgd:every=4", "elastic:every=4", "psgd"):
        torch.manual_seed(comm.rank)  # a start of its own on every rank
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        fitted = train(
            Job(config=Config(data="digits", batch=32, epochs=2, strategy=strategy), model=module, runs=None),
            comm,
        )
        means = next(value for name, value in fitted.model.buffers.items() if "mean" in name)
        found.append({"x": fitted.model.x.tolist(), "mean": means.tolist(), "test": fitted.test_accuracy})
    return found


def regression(comm: Any) -> list[Any]:
    """Real labels: no accuracy to speak of."""
    fitted = train_with(
        comm,
        "psgd",
        {"data": "synthetic:samples=200,classes=0", "model": "mlp:4", "batch": 10, "epochs": 1, "draws": 4},
    )
    return comm.bcast([fitted.findings.get("average"), fitted.remarks])
