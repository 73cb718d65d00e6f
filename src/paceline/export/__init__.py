"""Runs for other tools: TensorBoard's event files (`tensorboard`) and MLflow's runs (`mlflow`).

Both receive the same values of a run: its settings, and its figures by step and time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.errors import UsageError
from paceline.files import exists, read_text
from paceline.record import Run, find_runs

TOOLS = ("tensorboard", "mlflow")
# The record's own small files.
FILES = ("config.json", "environment.json", "epochs.jsonl", "summary.json")
# From runs with more steps than this, only some batches' losses are exported.
BATCHES = 1000
# The summary's figures, and their names in other tools.
FINAL = {
    "test_loss": "test/loss",
    "test_accuracy": "test/accuracy",
    "train_seconds": "seconds/training",
    "samples_per_second": "samples per second",
    "bytes_sent": "sent/bytes",
    "messages_sent": "sent/messages",
}
SIMULATED = ("network", "slow", "jitter", "compute", "rendezvous")
OMITTED = (
    "format", "objects", "asked", "class_names", "shape", "label_shape", "inputs", "simulated", "strategy_facts",
    "code", "program",
)  # fmt: skip


def check_installed(tool: str) -> None:
    """Refuse to export to a tool that is not installed, and name the command that installs it.

    >>> check_installed("tensorboard")
    """
    if find_spec(tool) is None:
        raise UsageError(
            f"export to {tool} needs the package {tool}, which is not installed; pip install 'paceline[{tool}]'"
        )


def runs_in(places: Iterable[Path]) -> list[Run]:
    """Return the runs of some folders that are complete, or were cut and have a checkpoint.

    Refuse if there is none, or if one of the places is a damaged run.
    """
    places = list(places)
    for place in places:
        if exists(place / "config.json"):
            Run(place).check()
    cut: list[Run] = []
    found = find_runs(places, cut=cut) + cut
    if not found:
        raise UsageError(
            f"there is no run in {', '.join(map(str, places))} that is complete or has a checkpoint"
        )
    return found


class MetricValue(NamedTuple):
    """A figure at a step of the run; `seconds` of training after its start."""

    name: str
    step: int
    seconds: float
    value: Any


def identity(run: Run) -> str:
    """Return a digest of a run, by which an earlier export of it is recognised."""
    content = "".join(
        read_text(run.folder / name)
        for name in ("config.json", "environment.json", "summary.json")
        if run.cut is None or name != "summary.json"
    )
    if run.cut is not None:
        content += f"{run.cut}, {run.summary['train_seconds']}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def start_time(run: Run) -> float:
    """Return when the run began, in seconds since 1970: when its first file was written."""
    return (run.folder / "config.json").stat().st_mtime


def settings(run: Run) -> dict[str, bool | int | float | str]:
    """Return the settings of a run as plain values, without those that were not given."""
    values = {name: value for name, value in run.config.items() if name not in OMITTED}
    simulated = run.simulated or {}
    values |= {f"simulated.{name}": simulated.get(name) for name in SIMULATED if run.simulated is not None}
    values["cut"] = run.cut
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}


def points(run: Run) -> Iterator[MetricValue]:
    """Yield every figure of the run that is finite; those of runs that diverged or computed nothing may not be."""
    for point in _points(run):
        if point.value is not None and math.isfinite(point.value):
            yield point._replace(value=float(point.value))


def _points(run: Run) -> Iterator[MetricValue]:
    yield from _batches(run)
    for epoch in run.epochs:
        at = (epoch["step"] or 0, epoch["train_seconds"])
        yield MetricValue("loss/epoch", *at, epoch["loss"])
        yield MetricValue("validation/loss", *at, epoch["validation_loss"])
        yield MetricValue("validation/accuracy", *at, epoch["validation_accuracy"])
        for name, value in epoch["metrics"].items():
            yield MetricValue(f"validation/{name}", *at, value)
    summary = run.summary
    end: tuple[int, float] = (summary.get("steps") or 0, summary["train_seconds"])
    for key, name in FINAL.items():
        yield MetricValue(name, *end, summary.get(key))
    for name, value in (summary.get("test_metrics") or {}).items():
        yield MetricValue(f"test/{name}", *end, value)
    for kind, seconds in summary["seconds"].items():
        yield MetricValue(f"seconds/{kind}", *end, seconds)
    ages: dict[str, Any] = summary["findings"].get("staleness") or {}
    for name in ("mean", "largest"):
        yield MetricValue(f"staleness/{name}", *end, ages.get(name))


def _batches(run: Run) -> Iterator[MetricValue]:
    """Yield the mean loss of each step's batch over all ranks, at the time when it was known, if recorded."""
    columns = run.steps
    if not len(columns["step"]):
        return
    steps, place = np.unique(columns["step"], return_inverse=True)
    count = np.bincount(place, columns["count"])
    loss = np.bincount(place, columns["loss"])
    spent = sum(columns[kind].astype(np.float64) for kind in ("compute", "exchange", "update"))
    when = np.zeros(len(count))
    np.maximum.at(when, place, columns["start"] + spent if "start" in columns else 0.0)
    known = np.flatnonzero(count)
    for at in known[:: max(1, -(-len(known) // BATCHES))].tolist():
        yield MetricValue("loss/batch", int(steps[at]), float(when[at]), float(loss[at] / count[at]))


def staleness(run: Run) -> list[int] | None:
    """Return how many updates had a staleness of 0, 1, 2 …; None if it was not recorded."""
    counts = (run.summary["findings"].get("staleness") or {}).get("histogram")
    if isinstance(counts, dict):
        last = max(map(int, counts), default=-1)
        counts = [counts.get(str(tau), 0) for tau in range(last + 1)] if last < BATCHES else None
    return counts or None
