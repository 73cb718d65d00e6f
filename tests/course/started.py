"""The course's commands as a user starts them, on real ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paceline.launch import run
from tests.ranks import ROOT

COURSE = ROOT / "examples/course"


def started(ranks: int, program: Path, *words: str) -> tuple[int, list[str]]:
    """`mpiexec -n RANKS python3 PROGRAM WORDS`: the exit status and all that was said."""
    lines: list[str] = []
    command = [sys.executable, "-W", "error", str(program), *words]
    return run(ranks, command, on_line=lines.append, time_limit=120), lines


def alone(program: Path, *words: str) -> tuple[int, list[str]]:
    """The same without mpiexec."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()
