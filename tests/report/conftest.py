"""Runs to report on: three real ones, and copies of them with other figures; and a matrix of real and simulated ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline import fit
from paceline.record import Run, find_runs
from paceline.report.document import Document, Table
from tests.ranks import on_ranks
from tests.report.record_cases import SETTINGS
from tests.simulate.costs import COSTS, PROCESSOR

MATRIX = [
    *(("sync:allreduce=ring", ranks, seed) for ranks in (2, 3, 4) for seed in (0, 1)),
    ("sync:allreduce=naive", 3, 0),
    ("main-worker", 3, 0),
    ("weight-average", 2, 0),
    ("weight-average", 3, 0),
    ("local-sgd:every=3,warmup=2,allreduce=rabenseifner", 4, 0),
    ("elastic:every=2", 3, 0),
    ("psgd", 2, 0),
    ("hogwild", 2, 0),
    ("parameter-server:masters=2,rule=plain", 4, 0),
    ("parameter-server:masters=2,rule=plain", 4, 1),
    ("gossip", 2, 0),
]
NODES = "10gbe:ranks-per-node=2"
FORETOLD = [
    ("serial", 1),
    *(("sync", ranks) for ranks in (2, 4, 8)),
    *(("weight-average", ranks) for ranks in (4, 8)),
    ("hogwild", 4),
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, runs=folder, quiet=True, seed=seed)
    return find_runs([folder])


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs of one problem, real ones and simulated ones, as if of one machine with 4 cores."""
    folder = tmp_path_factory.mktemp("matrix")
    on_ranks("tests.report.record_cases:recorded", 4, folder=str(folder), cases=MATRIX)
    one: dict[str, Any] = {**SETTINGS, "runs": folder, "quiet": True}
    for seed in (0, 1):
        fit(strategy="serial", seed=seed, **one)
    costs = folder / "costs.json"
    COSTS.save(costs)
    for strategy, ranks in FORETOLD:
        fit(strategy=strategy, ranks=ranks, on="sim", machine=str(costs), network=NODES, **one)
    fit(strategy="sync", ranks=4, on="sim", machine=str(costs), network="1gbe", compute=False, **one)
    for path in folder.glob("*/environment.json"):
        rewrite(path, processor=PROCESSOR, cores=4)
    return folder


def rewrite(path: Path, **changes: object) -> None:
    """Other values in a JSON file; where ranks were is told by `cores` alone, unless `nodes` is given."""
    values = json.loads(path.read_text())
    if "cores" in changes:
        values.pop("nodes", None)
    path.write_text(json.dumps({**values, **changes}))


def copy_run(run: Run, folder: Path, **changes: object) -> Run:
    """Copy a run, with other figures in its summary, configuration and environment."""
    copy = folder / f"copy-{len(list(folder.iterdir()))}"
    shutil.copytree(run.folder, copy)
    for name in ("config.json", "summary.json", "environment.json"):
        values = json.loads((copy / name).read_text())
        values |= {key: value for key, value in changes.items() if key in values}
        if {"cores", "ranks"} & set(changes) and "nodes" not in changes:
            values.pop("nodes", None)
        (copy / name).write_text(json.dumps(values))
    return Run(copy)


Way = tuple[object, ...]


def make_runs(runs: list[Run], folder: Path, *ways: Way) -> list[Run]:
    """Make a run of each way: strategy, ranks, seconds, accuracy from the first epoch on, seed (0), why it diverged."""
    found = []
    for strategy, ranks, took, accuracy, *more in ways:
        seed, why = (*more, *(0, None)[len(more) :])
        run = copy_run(runs[0], folder, strategy=strategy, ranks=ranks, cores=16, threads=1, train_seconds=took,
                       test_accuracy=accuracy, seed=seed, diverged=why)  # fmt: skip
        line = {"epoch": 0, "loss": 1.0, "validation_accuracy": accuracy, "train_seconds": took}
        (run.folder / "epochs.jsonl").write_text(json.dumps(line) + "\n")
        found.append(Run(run.folder))
    return found


def on_two_ranks(runs: list[Run], folder: Path, *ways: tuple[object, ...]) -> list[Run]:
    """A run of each strategy on two ranks, of serial on one, with its seconds, its accuracy, and why it diverged."""
    names = ("strategy", "train_seconds", "test_accuracy", "diverged")
    found = []
    for way in ways:
        one = dict(zip(names, way, strict=False))
        ranks = 1 if one["strategy"] == "serial" else 2
        run = copy_run(runs[0], folder, threads=1, cores=4, ranks=ranks, **one)
        scale = run.summary["train_seconds"] / runs[0].summary["train_seconds"]
        lines = [line | {"train_seconds": line["train_seconds"] * scale} for line in run.epochs]
        (run.folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found.append(Run(run.folder))
    return found


def table(page: Document, name: str) -> Table:
    """The page's table of this name."""
    return next(block for block in page.blocks() if isinstance(block, Table) and block.name == name)
