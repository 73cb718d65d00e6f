"""What ranks do in the tests of the parameter server."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config import Config, Safety
from paceline.data import Batch, load
from paceline.errors import StoppedError
from paceline.models.mlp import MLP
from paceline.record import Run
from paceline.training.rank import Fitted, Job, train
from paceline.worker.checkpoints import Keeper
from paceline.worker.evaluation import score
from tests.ranks import first
from tests.strategies.cases import CNN
from tests.strategies.watched import Watched

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp:16,activation=tanh,loss=cross-entropy",
    "batch": 25,
    "epochs": 3,
    "lr": 0.3,
    "dtype": "float64",
    "threads": 1,  # sums in another order would be other bits
}


def run(comm: Any, strategy: str, folder: str | None = None, network: Any = None, **more: Any) -> Fitted:
    config = Config(**{**SETTINGS, **more}, strategy=f"parameter-server:{strategy}")
    return train(Job(config=config, model=network, runs=None if folder is None else Path(folder)), comm)


def on(comm: Any, ranks: int, work: Any) -> Any:
    """Let the first ranks do something."""
    with first(comm, ranks) as group:
        return None if group is None else work(group)


def torch_models(comm: Any, folder: str) -> dict[str, Any]:
    """What is done with the network in NumPy, done with PyTorch's: in one job, for importing torch takes long."""
    pictures = {"model": "cnn", "data": "tests.strategies.cases:few_digits", "draws": 4, "lr": 0.1}
    return {
        "one worker": one_worker(comm, {"cnn": {**CNN, "threads": 1, "dtype": "float64"}}),
        "arrived": on(comm, 4, partial(_arrives, folder, "masters=2", pictures)),
        "batch norm": batch_norm(comm),
    }


def one_worker(comm: Any, models: dict[str, dict[str, Any]] | None = None) -> dict[str, float]:
    """With one worker and the plain rule the parameters are serial training's, to the bit."""
    found = {}
    for name, settings in (models or {"mlp": SETTINGS}).items():
        serial = train(Job(config=Config(**settings, strategy="serial"), runs=None), None)
        for masters, placement in ((1, "layers"), (2, "layers"), (3, "even")):
            strategy = f"masters={masters},placement={placement},rule=plain"

            def work(group: Any, strategy: str = strategy, settings: dict[str, Any] = settings) -> Fitted:
                return run(group, strategy, **settings)

            fitted = on(comm, masters + 1, work)
            if fitted is not None:
                found[f"{name} {strategy}"] = float(np.abs(fitted.model.x - serial.model.x).max())
                found[f"{name} {strategy} loss"] = abs(fitted.loss - serial.loss)
                found[f"{name} {strategy} accuracy"] = abs(fitted.test_accuracy - serial.test_accuracy)
    return found


def everything_arrives(comm: Any, folder: str, cases: list[tuple[str, int, dict[str, Any]]]) -> list[Any]:
    """For strategies on the first so many ranks: what became of all messages and gradients."""
    return [on(comm, ranks, partial(_arrives, folder, strategy, more)) for strategy, ranks, more in cases]


def _arrives(folder: str, strategy: str, more: dict[str, Any], comm: Any) -> dict[str, Any]:
    """What was sent, received and applied, and what the record says of it."""
    watched = Watched(comm)
    fitted = run(watched, strategy, folder=folder, **more)
    said = watched.report()
    if comm.rank == 0:
        assert fitted.run is not None
        recorded = Run(fitted.run)
        data = load(fitted.data)
        last = score(fitted.model, data.validation)
        said |= {
            "findings": fitted.findings,
            "validations": [epoch.validation_accuracy for epoch in fitted.history],
            "epochs": len(recorded.epochs),
            "last": last.correct / last.answers,
            "accuracy": fitted.test_accuracy,
            "steps": np.sort(recorded.steps["step"]).tolist(),
            "ranks": sorted(set(recorded.steps["rank"].tolist())),
            "updates": {name: column.tolist() for name, column in recorded.updates.items()},
            "same": bool((np.load(fitted.run / "model.npz")["x"] == fitted.model.x).all()),
        }
    return {
        **said,
        "x": float(fitted.model.x.sum()),
        "history": len(fitted.history),
        "bytes": fitted.bytes_sent,
    }


class Slow(MLP):
    """A network that takes long on one rank."""

    rank = -1
    seconds = 0.03

    def gradient(self, batch: Batch, ready: Any = None) -> float:
        time.sleep(self.seconds if self.rank == 1 else self.seconds / 30)
        return super().gradient(batch, ready=ready)


def slow_worker(comm: Any, folder: str, strategy: str) -> dict[str, Any]:
    """One worker of several is much slower than the others, also if these wait for a core now and then."""
    model = Slow([64, 16, 10], activation="tanh", loss="cross-entropy")
    model.rank = comm.rank
    fitted = run(comm, strategy, folder=folder, network=model)
    if comm.rank != 0:
        return {}
    assert fitted.run is not None
    steps = Run(fitted.run).steps
    updates = Run(fitted.run).updates
    return {
        "accuracy": fitted.test_accuracy,
        "done": np.bincount(steps["rank"], minlength=comm.size).tolist(),
        "findings": fitted.findings,
        "workers": updates["worker"].tolist(),
        "events": updates["event"].tolist(),
    }


def replayed(comm: Any, folder: str, cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The same order gives the same parameters."""
    return [_replayed(comm, folder, strategy, more) for strategy, more in cases]


def _replayed(comm: Any, folder: str, strategy: str, more: dict[str, Any]) -> dict[str, Any]:
    first = run(comm, strategy, folder=folder, **more)
    again = run(comm, strategy, folder=folder, replay=str(first.run), **more)
    names = ("master", "event", "piece", "worker", "step", "tau")
    both = [Run(fitted.run).updates for fitted in (first, again) if fitted.run is not None]
    return {
        "equal": bool((first.model.x == again.model.x).all()),
        "order": all((both[0][name] == both[1][name]).all() for name in names),
        "events": np.bincount(both[0]["event"], minlength=4).tolist(),
        "loss": first.loss == again.loss,
    }


def diverging(comm: Any, folder: str, on_divergence: str, lr: float) -> dict[str, Any]:
    """A learning rate that is far too large."""
    fitted = run(
        comm, "rule=plain", folder=folder, lr=lr, epochs=6, on_divergence=on_divergence, batch=5,
        model="mlp:16,activation=relu,loss=squared-error",
    )  # fmt: skip
    return {"diverged": fitted.diverged, "finite": bool(np.isfinite(fitted.model.x).all()),
            "loss": fitted.loss, "history": len(fitted.history),
            "remarks": list(fitted.remarks),
            "applied": fitted.findings.get("gradients_applied")}  # fmt: skip


def batch_norm(comm: Any) -> dict[str, Any]:
    """The workers' statistics reach rank 0, and rank 0's reach everybody."""
    import torch
    from torch import nn

    torch.manual_seed(comm.rank)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    fitted = run(comm, "masters=2", network=module, epochs=6)
    buffers = {name: np.asarray(value).ravel().tolist() for name, value in fitted.model.buffers.items()}
    return {"buffers": buffers, "x": fitted.model.x.tolist(), "accuracy": fitted.test_accuracy}


def cut_and_resumed(comm: Any, folder: str) -> dict[str, Any]:
    """Checkpoints, a stop in the middle, and the rest of the run, in one job."""
    watched = Watched(comm)
    config = Config(**{**SETTINGS, "draws": 20}, strategy="parameter-server:masters=2,bound=1")
    job = Job(config=config, runs=Path(folder), run_name="run", safety=Safety(checkpoint_every="9 steps"))
    is_due = Keeper.is_due

    def due(keeper: Keeper, done: int) -> bool:
        if done >= 31:
            keeper.me.stop_asked = 15
        return is_due(keeper, done)

    Keeper.is_due = due  # type: ignore[method-assign]
    saved = False
    try:
        train(job, watched)
    except StoppedError as stopped:
        saved = stopped.saved
    Keeper.is_due = is_due  # type: ignore[method-assign]
    fitted = train(replace(job, resume=Path(folder) / "run"), watched)
    found = {**watched.report(), "saved": saved}
    if comm.rank == 0:
        assert fitted.run is not None
        run = Run(fitted.run)
        found["steps"] = sorted(run.steps["step"].tolist())
        found["applied"] = sorted(run.updates["step"][run.updates["piece"] == 1].tolist())
        found["applied"] = [step for step in found["applied"] if step >= 0]
        found["history"], found["accuracy"] = len(fitted.history), fitted.test_accuracy
    return found
