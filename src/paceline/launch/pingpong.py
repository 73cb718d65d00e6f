"""Two ranks throw a message to and fro: what a message costs on this machine.

    python -m paceline.launch.pingpong SECONDS

under mpiexec prints one JSON object on rank 0: the job's size, the MPI library, latency and bandwidth.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from paceline.launch.world import loaded_library

SMALL, LARGE = 8, 4 << 20


def measure(comm: Any, seconds: float = 2.0) -> dict[str, float]:
    """Microseconds of a small message one way, and GB/s of a large one, between ranks 0 and 1: best of many.

    Every rank of `comm` calls it; ranks above 1 only wait.
    """
    latency = _one_way(comm, SMALL, seconds / 2)
    return {"latency_us": 1e6 * latency, "bandwidth_gbs": 1e-9 * LARGE / _one_way(comm, LARGE, seconds / 2)}


def _one_way(comm: Any, size: int, seconds: float) -> float:
    """The shortest time that a message of `size` bytes took, over rounds that fill `seconds`."""
    import numpy as np

    me = comm.Get_rank()
    message, go_on = np.zeros(size, np.uint8), np.ones(1, np.uint8)
    repeats = 100 if size == SMALL else 4
    best, until = float("inf"), time.perf_counter() + seconds
    while go_on[0]:
        comm.Barrier()
        if me < 2:
            start = time.perf_counter()
            for _ in range(repeats):
                if me == 0:
                    comm.Send(message, dest=1)
                    comm.Recv(message, source=1)
                else:
                    comm.Recv(message, source=0)
                    comm.Send(message, dest=0)
            best = min(best, (time.perf_counter() - start) / (2 * repeats))
        go_on[0] = time.perf_counter() < until
        comm.Bcast(go_on, root=0)
    return best


def figures(comm: Any, seconds: float) -> dict[str, Any]:
    """What a job is and what its messages cost."""
    measured = measure(comm, seconds) if comm.Get_size() > 1 else {}
    return {"size": comm.Get_size(), "library": loaded_library(sys.modules["mpi4py.MPI"]), **measured}


def main() -> None:
    from paceline.comm import mpi
    from paceline.launch import abort_on_error

    comm = mpi().COMM_WORLD
    with abort_on_error(comm):
        told = figures(comm, float(sys.argv[1]))
        if comm.Get_rank() == 0:
            sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
