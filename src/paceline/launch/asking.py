"""A question to ranks that are started for it, and their answer: both as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.launch.job import run


def ask(
    module: str, ranks: int, question: dict[str, Any], *, time_limit: float | None = None
) -> tuple[int, dict[str, Any] | None]:
    """Start `python -m module` on ranks with a core each; their exit status and, where there is one, their answer."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", module, json.dumps(question), str(answer)]
        status = run(ranks, command, threads=1, bind=True, time_limit=time_limit)
        if status != 0 or not answer.exists():
            return status or 1, None
        return 0, json.loads(answer.read_text())


def answer(measure: Callable[..., dict[str, Any]]) -> None:
    """On every rank of such a module: measure what the first argument asks; rank 0 writes the file of the second."""
    from paceline.comm import mpi
    from paceline.launch import abort_on_error, take_cores

    take_cores()
    comm = mpi().COMM_WORLD
    with abort_on_error(comm):
        found = measure(comm, **json.loads(sys.argv[1]))
        if comm.Get_rank() == 0:
            Path(sys.argv[2]).write_text(json.dumps(found))
