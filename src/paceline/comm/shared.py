"""Memory that all ranks of a node read and write, and who is on this node: the two things MPI alone can say.

A communicator that is not MPI's (the simulator's) supplies both itself: a method `Allocate_shared(nbytes)`
that returns a window, and a constant `COMM_TYPE_SHARED` for its `Split_type`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.events import Events
from paceline.comm.mpi import mpi_of

CACHE_LINE = 64


def split_node(comm: Any) -> Any:
    """The communicator of the ranks of `comm` that share memory with this one, in the same order."""
    kind = getattr(comm, "COMM_TYPE_SHARED", None)
    return comm.Split_type(mpi_of(comm).COMM_TYPE_SHARED if kind is None else kind, comm.Get_rank())


class SharedMemory:
    """`memory`: bytes at a cache-line boundary that every rank of `comm` (all on one node) reads and writes.

    Collective to make and to free. `events`: where fences are written down, if they are.
    """

    def __init__(self, comm: Any, nbytes: int, events: Events | None = None) -> None:
        mine = nbytes + CACHE_LINE if comm.Get_rank() == 0 else 0
        own = getattr(comm, "Allocate_shared", None)
        self._window = own(mine) if own else mpi_of(comm).Win.Allocate_shared(mine, 1, comm=comm)
        self._window.Lock_all()
        self._comm = comm
        self.nbytes = nbytes
        every: NDArray[np.uint8] = np.frombuffer(self._window.Shared_query(0)[0], np.uint8)
        start = (
            -every.ctypes.data % CACHE_LINE
        )  # the same on every rank: all map the segment at a page boundary
        self.memory: NDArray[np.uint8] = every[start : start + nbytes]
        self.fence: Callable[[], None] = self._fence if events is None else events.fenced(self._fence)
        """Wait for all; then what each wrote before its call is what everybody reads after it."""

    def _fence(self) -> None:
        self._window.Sync()
        self._comm.Barrier()
        self._window.Sync()

    def free(self) -> None:
        """Give the memory back. Views of it must not be used any more."""
        self._window.Unlock_all()
        del self.memory, self.fence
        self._window.Free()


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines.

    >>> padded(1), padded(64), padded(65)
    (64, 64, 128)
    """
    return -(-nbytes // CACHE_LINE) * CACHE_LINE
