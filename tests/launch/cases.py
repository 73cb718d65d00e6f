"""What ranks do in the tests of this folder."""

from __future__ import annotations

import os
from typing import Any

from paceline.launch import resources as _threads
from paceline.launch import threads_of_rank


def bound_shares(comm: Any) -> list[int]:
    """This rank's threads as if the node's ranks were bound, without and with a container's limit."""
    cores = set(range(4)) if comm.rank == 0 else set(range(4, 8))
    before = os.sched_getaffinity, _threads.cpu_quota
    try:
        os.sched_getaffinity = lambda _: cores  # type: ignore[assignment]
        _threads.cpu_quota = lambda: None  # type: ignore[assignment]
        free = threads_of_rank(comm)
        _threads.cpu_quota = lambda: 3.0 if comm.rank else 6.0  # type: ignore[assignment]
        return [free, threads_of_rank(comm)]
    finally:
        os.sched_getaffinity, _threads.cpu_quota = before
