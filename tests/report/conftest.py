"""Runs to report on: three real ones, and copies of them with other figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline import fit
from paceline.record import Run, find_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, runs=folder, quiet=True, seed=seed)
    return find_runs([folder])


def altered(run: Run, folder: Path, **changes: object) -> Run:
    """A copy of a run with other figures in its summary, configuration and environment."""
    copy = folder / f"copy-{len(list(folder.iterdir()))}"
    shutil.copytree(run.folder, copy)
    for name in ("config.json", "summary.json", "environment.json"):
        values = json.loads((copy / name).read_text())
        values |= {key: value for key, value in changes.items() if key in values}
        (copy / name).write_text(json.dumps(values))
    return Run(copy)
