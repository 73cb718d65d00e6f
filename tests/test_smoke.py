"""A little of everything: run again with the lowest versions of all dependencies, and with a newer Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from paceline import fit, load_model, predict
from paceline.cli import main
from paceline.names import names
from paceline.record import Run, find_runs
from tests.ranks import ROOT, on_ranks

STRATEGIES = [name for name in names("strategies") if name != "serial"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run of every strategy on two ranks, all in one job."""
    folder = tmp_path_factory.mktemp("runs")
    cases = [(strategy, 2, 0) for strategy in STRATEGIES]
    on_ranks("tests.report.record_cases:recorded", 2, folder=str(folder), cases=cases)
    return {run.config["strategy"]: run for run in find_runs([folder])}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_on_two_ranks_and_its_record_is_read_back(
    runs: dict[str, Run], strategy: str
) -> None:
    run = runs[strategy]
    assert run.epochs[-1]["loss"] < run.epochs[0]["loss"]
    assert set(run.steps["rank"]) <= {0, 1}
    assert predict(run.folder).accuracy == pytest.approx(run.summary["test_accuracy"])
    assert np.isfinite(load_model(run.folder).x).all()


def test_simulated_ranks(machine: str) -> None:
    settings = {"epochs": 1, "batch": 12, "quiet": True, "seed": 1}
    serial = fit("mlp:6", "iris", strategy="serial", **settings)
    simulated = fit("mlp:6", "iris", strategy="sync", ranks=3, on="sim", machine=machine, **settings)
    assert simulated.model.x == pytest.approx(serial.model.x, abs=1e-5)


@pytest.mark.once
@pytest.mark.mpi
def test_the_command_line_trains_predicts_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "train -n 2 --data iris --model mlp:8 --epochs 2 --batch 10 --json --quiet"
    trained = subprocess.run(
        [sys.executable, "-m", "paceline", *small.split()], env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=280, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)
    assert result["ranks"] == 2
    assert main(["predict", result["run"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(result["test_accuracy"])
    assert main(["report", "runs", "-o", "report.html"]) == 0
    assert "Where the time went" in (tmp_path / "report.html").read_text()


def test_the_lowest_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = (ROOT / "constraints-lowest.txt").read_text().split("\n\n")[0].splitlines()[1:]
    assert sorted(lowest) == sorted(line.replace(">=", "==") for line in project["dependencies"])
