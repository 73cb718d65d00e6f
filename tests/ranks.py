"""Runs a plain function of a communicator on real MPI ranks, from pytest, with no mpirun typed.

    results = on_ranks("tests.collectives.cases:sums", 4, algorithm="ring")

starts `mpiexec -n 4` with a time limit; each rank calls `sums(comm, algorithm="ring")`. Returns what each
rank returned (as JSON), in rank order. A failing rank fails the test with the job's output shown.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def on_ranks(case: str, ranks: int, *, time_limit: float = 120, **arguments: Any) -> list[Any]:
    from paceline.launch import run

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = [sys.executable, "-W", "error", "-m", "tests.ranks", case, json.dumps(arguments), str(answer)]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        said: list[str] = []
        status = run(ranks, child, environment=path, on_line=said.append, time_limit=time_limit)
        if status == 130:
            raise KeyboardInterrupt
        if status != 0 or not answer.exists():
            why = f"no end after {time_limit} s" if status == 124 else f"exit status {status}"
            raise AssertionError("\n".join([f"{case} on {ranks} ranks: {why}", *said]))
        return json.loads(answer.read_text())


def main() -> None:
    case, arguments, answer = sys.argv[1:]
    from mpi4py import MPI

    from paceline.launch import abort_on_error

    comm = MPI.COMM_WORLD
    with abort_on_error(comm):
        module, _, name = case.partition(":")
        result = getattr(importlib.import_module(module), name)(comm, **json.loads(arguments))
        results = comm.gather(result)
        if comm.rank == 0:
            Path(answer).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
