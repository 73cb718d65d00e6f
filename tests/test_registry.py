"""Names that other packages add."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''
"""Another package's things."""

from dataclasses import dataclass

import numpy as np

from paceline.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Lazy(Strategy):
    """Does nothing, so many times."""

    times: int = 1

    def train(self, me):
        for epoch in me.epochs():
            me.validate(epoch)


def net(data, *, width: int = 4, seed=0, dtype="float32"):
    """A network of another package."""
    from paceline import MLP

    return MLP([4, width, 3], seed=seed, dtype=dtype)


def flowers(*, samples: int = 30):
    """Data of another package."""
    labels = np.arange(samples) % 3
    return np.eye(3, 4)[labels], labels


def allreduce(send, recv, comm, op):
    """A collective of another package."""
    comm.Allreduce(send.copy() if send is recv else send, recv)
'''
ENTRIES = """
[paceline.strategies]
lazy = other_package:Lazy
[paceline.models]
net = other_package:net
[paceline.data]
flowers = other_package:flowers
[paceline.collectives]
theirs = other_package:allreduce
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process for which another package is installed."""
    (tmp_path / "other_package.py").write_text(MODULE)
    information = tmp_path / "other_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRIES)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def paceline(environment: dict[str, str], cwd: Path, *words: str) -> str:
    command = [sys.executable, "-m", "paceline", *words]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_things_of_other_packages_are_listed_and_used(installed: dict[str, str], tmp_path: Path) -> None:
    found = json.loads(paceline(installed, tmp_path, "list", "--json"))
    names = {kind: {thing["name"]: thing for thing in things} for kind, things in found.items()}
    assert names["strategies"]["lazy"]["options"] == [
        {"name": "times", "type": "whole number", "default": "1", "about": ""}
    ]
    assert names["models"]["net"]["about"] == "A network of another package."
    assert "flowers" in names["data"]
    assert "theirs" in names["collectives"]

    words = (
        "train",
        "--data",
        "flowers:samples=60",
        "--model",
        "net:width=5",
        "--batch",
        "6",
        "--epochs",
        "1",
    )
    lazy = json.loads(
        paceline(installed, tmp_path, *words, "--strategy", "lazy:times=3", "--json", "--quiet")
    )
    assert lazy["strategy"] == "lazy:times=3"
    assert lazy["parameters"] == 4 * 5 + 5 + 5 * 3 + 3
    both = json.loads(
        paceline(
            installed, tmp_path, *words, "--strategy", "sync:allreduce=theirs", "-n", "2", "--json", "--quiet"
        )
    )
    assert both["ranks"] == 2
