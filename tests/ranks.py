"""Runs a plain function of a communicator on real MPI ranks, from pytest, with no mpirun typed.

    results = on_ranks("tests.collectives.cases:sums", 4, algorithm="ring")

starts `mpiexec -n 4` in a subprocess with a time limit; each rank calls `sums(comm, algorithm="ring")`. Returns what
each rank returned (as JSON), in rank order. A failing rank fails the test with the job's output shown.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def on_ranks(case: str, ranks: int, *, time_limit: float = 120, **arguments: Any) -> list[Any]:
    from paceline.launch import mpiexec

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = [sys.executable, "-m", "mpi4py", "-m", "tests.ranks", case, json.dumps(arguments), str(answer)]
        command, environment = mpiexec(ranks, child)
        try:
            done = subprocess.run(
                command, env=environment, cwd=ROOT, timeout=time_limit, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            said = late.stdout.decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
            raise AssertionError(f"{case} on {ranks} ranks: no end after {time_limit} s\n{said}") from None
        if done.returncode != 0 or not answer.exists():
            raise AssertionError(f"{case} on {ranks} ranks: exit status {done.returncode}\n{done.stdout}")
        return json.loads(answer.read_text())


def main() -> None:
    case, arguments, answer = sys.argv[1:]
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    module, _, name = case.partition(":")
    result = getattr(importlib.import_module(module), name)(comm, **json.loads(arguments))
    results = comm.gather(result)
    if comm.rank == 0:
        Path(answer).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
