"""A job for tests of how jobs end: a parent that runs it, and ranks that do what they are told.

    python -m tests.launch.job parent WHAT RANKS
    python -m tests.launch.job rank WHAT

Each rank first says, in one line, who it is and what it and its launcher have put where.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from paceline.errors import AgreedError, UsageError
from paceline.launch import guard


def parent(what: str, ranks: int) -> int:
    from paceline.launch import run

    return run(ranks, [sys.executable, "-m", "tests.launch.job", "rank", what])


def rank(what: str) -> None:
    from paceline.launch import abort_on_error, mpi

    if what.startswith(("all", "exits")):  # agree or fail together, however late one comes on a busy machine
        guard.AGREEMENT = guard.PATIENCE = 100.0
        guard.MOMENT = 0.5
    guard.DELIVERY = 1.0
    MPI = mpi()
    comm = MPI.COMM_WORLD
    before = segments()
    with abort_on_error(comm, usage_errors="in turn" not in what):
        window = MPI.Win.Allocate_shared(1 << 16, 1, comm=comm)
        array = bytearray(1 << 20)
        comm.Allreduce(MPI.IN_PLACE, array, op=MPI.BOR)
        here = {"rank": comm.rank, "pid": os.getpid(), "segments": sorted(before | segments()), **ancestors()}
        said = comm.gather(here)
        if comm.rank == 0:
            print(json.dumps(said), flush=True)
        comm.Barrier()
        if ACTIONS[what](comm) != "alone":
            window.Free()


def segments() -> set[str]:
    """The files in shared memory that this process has mapped, by the names they have or had."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "/dev/shm/" in line}


def ancestors() -> dict[str, Any]:
    """The supervisor of this job and its folder, and the mpiexec below it."""
    process = os.getpid()
    below = process
    while process > 1:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if any(word.endswith(b"/supervise.py") for word in words):
            place = next(k for k, word in enumerate(words) if word.endswith(b"/supervise.py"))
            return {"supervisor": process, "folder": words[place + 3].decode(), "mpiexec": below}
        below, process = (
            process,
            int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1]),
        )
    return {"supervisor": 0, "folder": "", "mpiexec": 0}


def _waits(comm: Any) -> None:
    """Rank 1 computes for ever, the others wait for it."""
    if comm.rank == 1:
        time.sleep(600)
    comm.Barrier()


def _one(act: Any, who: int = 1) -> Any:
    """`act` on one rank, while the others wait for it in a barrier."""

    def action(comm: Any) -> None:
        if comm.rank == who:
            act()
        comm.Barrier()

    return action


def _leaves(comm: Any) -> None:
    """Rank 1 leaves, the others wait for it; patience is short, for the test's sake."""
    guard.PATIENCE = 0.5
    if comm.rank == 1:
        sys.exit(0)
    comm.Barrier()


def _all_but_one_leave(comm: Any) -> str:
    """Rank 1 has something left to do, for which it needs nobody."""
    if comm.rank != 1:
        sys.exit()
    time.sleep(0.3)
    return "alone"


def _raise(error: BaseException) -> None:
    raise error


def _speak_then_raise(comm: Any) -> None:
    print("words without an end", end="")
    raise RuntimeError(f"rank {comm.rank} has had enough")


ACTIONS: dict[str, Any] = {
    "ends well": lambda comm: None,
    "waits": _waits,
    "exits with 2": lambda comm: sys.exit(2),
    "one leaves": _leaves,
    "all but one leave": _all_but_one_leave,
    "one exits with 5": _one(lambda: sys.exit(5)),
    "one raises": _one(lambda: _raise(RuntimeError("this rank has had enough"))),
    "all raise": _speak_then_raise,
    "all raise in turn": lambda comm: (
        time.sleep(0.01 * (comm.size - comm.rank)),
        _raise(RuntimeError("enough")),
    ),
    "one interrupted": _one(lambda: _raise(KeyboardInterrupt())),
    "one refuses": _one(lambda: _raise(UsageError("no such file on this node"))),
    "one refuses in turn": _one(lambda: _raise(UsageError("no such file on this node"))),
    "all refuse in turn": lambda comm: _raise(UsageError("nobody can do that")),
    "all agree": lambda comm: _raise(AgreedError("it is not to be")),
    "one killed": _one(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "one vanishes": _one(lambda: os._exit(3)),
}

if __name__ == "__main__":
    if sys.argv[1] == "parent":
        sys.exit(parent(sys.argv[2], int(sys.argv[3])))
    try:
        rank(sys.argv[2])
    except AgreedError:
        sys.exit(2)
    except UsageError as caught:
        sys.stdout.write(f"caught: {caught}\n")
