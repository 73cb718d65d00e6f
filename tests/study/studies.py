"""Small studies, and what is in a folder when they are done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from paceline.record import Run
from paceline.study.cells import read_request

ROOT = Path(__file__).parents[2]
SETTINGS = """
all_threads = false
[settings]
data = "iris"
model = "mlp:2"
epochs = 1
batch = 60
"""
PART = '[[matrix]]\nstrategy = "sync"\nranks = 1\n'


def write(folder: Path, text: str = "", name: str = "s.toml") -> Path:
    """A study's file."""
    path = folder / name
    path.write_text(text)
    return path


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "paceline", "study", *map(str, words)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_study(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `paceline study …` to its end."""
    return subprocess.run(
        command(*words), cwd=cwd, env=environment(), timeout=600, capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def start_study(*words: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """Start `paceline study …`; return its process."""
    return subprocess.Popen(
        command(*words), cwd=cwd, env=environment(), text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def records(folder: Path) -> Counter[str | None]:
    """How often each thing was asked for, of the runs that are there, complete or not."""
    runs = [Run(path) for path in folder.iterdir() if (path / "config.json").exists()]
    assert all(run.complete for run in runs), [run.folder for run in runs if not run.complete]
    return Counter(read_request(run.config) for run in runs)


def rest(folder: Path) -> set[str]:
    """What is in the folder beside its complete runs."""
    return {path.name for path in folder.iterdir() if not (path / "summary.json").exists()}


def processes(text: str, cwd: Path | None = None) -> list[int]:
    """Living processes with this in their command line, and in this folder, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_bytes()
                elsewhere = cwd is not None and (entry / "cwd").readlink() != cwd
            except OSError:
                continue
            if text.encode() in line and not elsewhere and state.rpartition(b") ")[2][:1] != b"Z":
                found.append(int(entry.name))
    return found


def nobody(*_: Any) -> None:
    """Shows nothing."""
