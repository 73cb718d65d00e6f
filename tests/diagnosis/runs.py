"""Simulated runs in which computing costs what a case says, so that it is provoked exactly."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paceline import fit
from paceline.diagnosis import Cause, Diagnosis, diagnose
from paceline.diagnosis.case import Case, cases_of
from paceline.machine import Costs
from paceline.record import Run, find_runs
from paceline.vmpi import Curves

US = 1e-6
LOOPBACK: dict[str, Any] = {"network": "loopback"}
TIME_ALONE: dict[str, Any] = {"network": "loopback", "compute": False}
SERIAL = ("serial", 1)


def costs(folder: Path, *, fixed: float = 20 * US, each: float = 10 * US, slower: float = 1.0, update: float = 1e-9,
          cores: int = 32, **more: float) -> str:  # fmt: skip
    """A file of what computing costs: a gradient fixed + each a sample, `slower` times that beside 15 others."""

    def line(factor: float) -> list[list[float]]:
        return [[1, factor * (fixed + each)], [1024, factor * (fixed + 1024 * each)]]

    work = {"gradient": Curves.of({1: line(1), 16: line(slower)}), "update": Curves.of({1: [[1, update]]})}
    work |= {kind: Curves.of({1: [[1, seconds]]}) for kind, seconds in more.items()}
    path = folder / "costs.json"
    Costs(work=work, cores=cores, processor="a processor").save(path)
    return str(path)


def simulate_runs(
    folder: Path, *runs: tuple[Any, ...], given: dict[str, float] | None = None, **settings: Any
) -> list[Run]:
    """Simulate runs of one problem, each with a strategy, a number of ranks and perhaps settings of its own.

    A run that another test has simulated is copied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = costs(folder, **(given or {}))  # type: ignore[arg-type]
    for strategy, ranks, *own in runs:
        chosen = {
            "model": "mlp:30",
            "data": "digits",
            "epochs": 1,
            "batch": 64,
            "jitter": 0.0,
            "network": "1gbe",
        }
        chosen |= settings | dict(*own)
        if strategy == "serial":
            chosen.pop("slow", None)
        key = repr((strategy, ranks, given, sorted(chosen.items())))
        if key not in _kept:
            kept = tempfile.mkdtemp(dir=os.environ["PACELINE_CACHE"])
            fitted = fit(
                strategy=strategy, ranks=ranks, on="sim", machine=machine, runs=kept, quiet=True, **chosen
            )
            assert fitted.run is not None
            _kept[key] = fitted.run
        number = len(find_runs([folder / "runs"])) if (folder / "runs").exists() else 0
        shutil.copytree(_kept[key], folder / "runs" / f"{number:03}-{_kept[key].name}")
    return find_runs([folder / "runs"])


_kept: dict[str, Path] = {}


def only(runs: list[Run]) -> Diagnosis:
    """The diagnosis of the one strategy there is."""
    (found,) = diagnose(runs)
    return found


def case_of(runs: list[Run]) -> Case:
    """What its rules looked at."""
    (found,) = cases_of(runs)
    return found


def cause(found: Diagnosis, rule: str) -> Cause | None:
    return next((each for each in found.causes if each.rule == rule), None)


def parse_advice(advice: str) -> list[dict[str, str]]:
    """Return the settings of each thing that an advice says to try."""
    return [dict(re.findall(r"(?:^|[ (])--?([a-z][a-z-]*) ([^\s(),]\S*?)(?=[,)]? |[,)]?$)", part)) for part in
            re.split(r", (?:or|and) ", re.sub(r"\([^()]*\)", "", advice))]  # fmt: skip


def as_real(runs: list[Run], *, cores: int = 2, seconds: dict[int, float] | None = None) -> list[Run]:
    """The same runs as if they had been real, on one node: a batch of another size than most takes six times as long.

    `seconds`: what computing takes by the samples instead.
    """
    for run in runs:
        run.config.pop("simulated", None)
        run.environment["cores"] = cores
        samples, took = run.steps["count"], run.steps["compute"].copy()
        usual = np.bincount(samples).argmax()
        took[samples != usual] *= 6
        for size, fixed in (seconds or {}).items():
            took[samples == size] = fixed
        run.steps["compute"] = took
    return runs
