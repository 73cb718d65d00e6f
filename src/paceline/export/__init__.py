"""Runs for other tools: TensorBoard's event files (`tensorboard`) and MLflow's runs (`mlflow`).

`values` reads what they are given from a record: settings, and figures at steps and times.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import UsageError
from paceline.files import exists
from paceline.record import Run, find_runs

TOOLS = ("tensorboard", "mlflow")


def check_installed(tool: str) -> None:
    """Refuse to export to a tool that is not installed, and name the command that installs it.

    >>> check_installed("tensorboard")
    """
    if find_spec(tool) is None:
        raise UsageError(
            f"export to {tool} needs the package {tool}, which is not installed; pip install 'paceline[{tool}]'"
        )


def runs_in(places: Iterable[str]) -> list[Run]:
    """Return the runs of some folders that are complete, or were cut and have a checkpoint.

    Refuse if there is none, or if one of the places is a damaged run.
    """
    places = list(places)
    for place in map(Path, places):
        if exists(place / "config.json"):
            Run(place).check()
    cut: list[Run] = []
    found = find_runs(places, cut=cut) + cut
    if not found:
        raise UsageError(
            f"there is no run in {', '.join(map(str, places))} that is complete or has a checkpoint"
        )
    return found
