"""The course's commands as a user starts them, on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from paceline.launch import run
from paceline.launch.prepare import ALONE
from tests.ranks import ROOT

COURSE = ROOT / "examples/course"


def run_on_ranks(ranks: int, program: Path, *words: str) -> tuple[int, list[str]]:
    """Run `mpiexec -n RANKS python3 PROGRAM WORDS`; return the exit status and all that it printed."""
    lines: list[str] = []
    command = [sys.executable, "-W", "error", str(program), *words]
    return run(ranks, command, on_line=lines.append, time_limit=280), lines


def run_alone(program: Path, *words: str) -> tuple[int, list[str]]:
    """Run a program without mpiexec."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


EACH = """
import json, os, runpy, sys, tempfile
program, *commands = sys.argv[1:]
sys.path[0] = program.rpartition("/")[0]
found, outputs = {}, (os.dup(1), os.dup(2))
for words in commands:
    sys.argv[:] = [program, *words.split()]
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            runpy.run_path(program, run_name="__main__")
            status = 0
        except SystemExit as leaving:
            status = leaving.code
        sys.stdout.flush()
        said.seek(0)
        found[words] = status, said.read().decode().splitlines()
    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
print(json.dumps(found))
"""


def run_each_alone(program: Path, commands: list[str]) -> dict[str, tuple[int, list[str]]]:
    """Run several commands that start nothing, one after the other in one process.

    Where a program lets mpi4py start MPI itself, Open MPI would leave a segment in /dev/shm.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EACH, str(program), *commands],
        env={**os.environ, **ALONE}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return {words: (status, lines) for words, (status, lines) in json.loads(done.stdout).items()}
