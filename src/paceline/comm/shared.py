"""Memory that all ranks of a node read and write, and the communicator of the ranks on one node.

A communicator that is not MPI's (the simulator's, or torch processes') supplies both itself: a method
`Allocate_shared(nbytes)` that returns a window, and a constant `COMM_TYPE_SHARED` for its `Split_type`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.operations import mpi_of
from paceline.comm.tracing import Events

CACHE_LINE = 64


def split_node(comm: Any) -> Any:
    """Return the communicator of the ranks of `comm` that share memory with this one, in the same order."""
    kind = getattr(comm, "COMM_TYPE_SHARED", None)
    return comm.Split_type(mpi_of(comm).COMM_TYPE_SHARED if kind is None else kind, comm.Get_rank())


# Where Open MPI keeps its windows, if it was told so: paceline tells it when it starts a job.
BACKING = "OMPI_MCA_osc_sm_backing_directory"


def free_room(comm: Any) -> int | None:
    """Return the free bytes of the file system that shared memory comes from; None if there is no such limit."""
    own = hasattr(comm, "Allocate_shared")
    place = getattr(comm, "shared_folder", None) if own else os.environ.get(BACKING, "/dev/shm")
    if place is None:
        return None
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_frsize * found.f_bavail


class SharedMemory:
    """Bytes at a cache-line boundary (`memory`) that every rank of `comm` (all on one node) reads and writes.

    Creating and freeing it is collective. `events` records the fences, if given.
    """

    def __init__(self, comm: Any, nbytes: int, events: Events | None = None) -> None:
        mine = nbytes + CACHE_LINE if comm.Get_rank() == 0 else 0
        own = getattr(comm, "Allocate_shared", None)
        self._window = own(mine) if own else mpi_of(comm).Win.Allocate_shared(mine, 1, comm=comm)
        self._window.Lock_all()
        self._comm = comm
        self.nbytes = nbytes
        every: NDArray[np.uint8] = np.frombuffer(self._window.Shared_query(0)[0], np.uint8)
        # The same on every rank: all map the segment at a page boundary.
        start = -every.ctypes.data % CACHE_LINE
        self.memory: NDArray[np.uint8] = every[start : start + nbytes]
        self.fence: Callable[[], None] = self._fence if events is None else events.fenced(self._fence)
        """Wait for all ranks; what each wrote before its call is visible to all after it."""

    def _fence(self) -> None:
        self._window.Sync()
        self._comm.Barrier()
        self._window.Sync()

    def sync(self) -> None:
        """Make this rank's writes visible to the others, and theirs to it, on either side of a barrier of the caller's."""
        self._window.Sync()

    def free(self) -> None:
        """Release the memory. Views of it must not be used afterwards."""
        self._window.Unlock_all()
        del self.memory, self.fence
        self._window.Free()


def padded(nbytes: int) -> int:
    """Round `nbytes` up to whole cache lines.

    >>> padded(1), padded(64), padded(65)
    (64, 64, 128)
    """
    return -(-nbytes // CACHE_LINE) * CACHE_LINE
