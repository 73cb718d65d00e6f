"""Memory that all ranks of a node read and write, and the communicator of the ranks on one node.

A communicator that is not MPI's (the simulator's, or torch processes') supplies both itself: a method
`Allocate_shared(nbytes)` that returns a window, and a constant `COMM_TYPE_SHARED` for its `Split_type`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
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
        self._comm, self._is_shared = comm, comm.Get_size() > 1
        self.nbytes = nbytes
        every: NDArray[np.uint8] = np.frombuffer(self._window.Shared_query(0)[0], np.uint8)
        # The same on every rank: all map the segment at a page boundary.
        start = -every.ctypes.data % CACHE_LINE
        self.memory: NDArray[np.uint8] = every[start : start + nbytes]
        self.fence: Callable[[], None] = self._fence if events is None else events.record_calls(self._fence)
        """Wait for all ranks; what each wrote before its call is visible to all after it."""

    def _fence(self) -> None:
        if self._is_shared:
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


# What Linux says about each page of this process: 8 bytes, of which the upper 3 bits say that the page is in memory, that
# it is in swap, and that it belongs to a file.
PAGEMAP = "/proc/self/pagemap"
UPPER, OF_FILE = np.uint64(61), np.uint64(1)


class CommonFile:
    """Memory that the ranks of a node map twice, so that a program can use it as if it were its own.

    All ranks read and write `memory`. `own` shows the same bytes, and what others write there, until this rank writes to
    it: the pages that it writes to become copies of its own. `find_changes` finds them; `forget_changes` drops them, so
    that they show the common bytes again.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        """`descriptor`: of the file, whose length is `length_of(nbytes)`; it may be closed afterwards."""
        size = self.length_of(nbytes)
        self.nbytes = nbytes
        self.memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self._map = mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        self.own: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._entries = np.zeros(size // mmap.PAGESIZE, np.uint64)
        self._pagemap = os.open(PAGEMAP, os.O_RDONLY)

    @staticmethod
    def length_of(nbytes: int) -> int:
        """Return the length of the file: whole pages, and one more for `check`."""
        return (-(-nbytes // mmap.PAGESIZE) + 1) * mmap.PAGESIZE

    def find_changes(self) -> list[slice]:
        """Return the bytes that this rank has written to in `own`, as whole pages."""
        first = self.own.ctypes.data // mmap.PAGESIZE
        if os.preadv(self._pagemap, [self._entries.data], first * 8) != self._entries.nbytes:
            raise OSError(f"{PAGEMAP} ended early")
        kinds = self._entries >> UPPER
        pages = np.flatnonzero((kinds != 0) & (kinds & OF_FILE == 0))
        if not pages.size:
            return []
        runs = np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1)
        return [slice(int(run[0]) * mmap.PAGESIZE, (int(run[-1]) + 1) * mmap.PAGESIZE) for run in runs]

    def forget_changes(self, changes: Iterable[slice]) -> None:
        """Show the common bytes in these pages of `own` again."""
        for change in changes:
            self._map.madvise(mmap.MADV_DONTNEED, change.start, change.stop - change.start)

    def check(self, meet: Callable[[], object], *, first: bool) -> bool:
        """Return True if this system does all that is said here. Collective; `first`: on one of the ranks."""
        last = slice(self.own.size - mmap.PAGESIZE, self.own.size)
        before = int(self.own[-1])  # has been read, so that it is not just read anew
        meet()
        if first:
            self.memory[-1] = 1
        meet()
        found = before == 0 and self.own[-1] == 1 and not self.find_changes()
        self.own[-1] = 2
        found = found and self.memory[-1] == 1 and self.find_changes() == [last]
        self.forget_changes([last])
        return bool(found and self.own[-1] == 1 and not self.find_changes())

    def free(self) -> None:
        """Release the memory, as soon as nothing is a view of it."""
        os.close(self._pagemap)
        del self.memory, self.own, self._map


def make_common_file(comm: Any, nbytes: int) -> CommonFile | None:
    """Map memory twice on the ranks of `comm`, all on one node; None on all if a rank's system cannot. Collective."""
    where, made, found = np.zeros(4, np.int64), None, False
    descriptor = -1
    try:
        if comm.Get_rank() == 0 and hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("paceline")
            # too little memory is an error now, not when it is written to
            os.posix_fallocate(descriptor, 0, CommonFile.length_of(nbytes))
            status = os.fstat(descriptor)
            where[:] = os.getpid(), descriptor, status.st_dev, status.st_ino
    except OSError:
        where[:] = 0
    comm.Bcast(where, 0)
    try:
        if where[0] and comm.Get_rank() != 0:
            descriptor = os.open(f"/proc/{where[0]}/fd/{where[1]}", os.O_RDWR)
        if where[0]:
            status = os.fstat(descriptor)
            # in another container, the number may be another process's
            if (status.st_dev, status.st_ino) == tuple(where[2:].tolist()):
                made = CommonFile(descriptor, nbytes)
    except OSError:
        made = None
    if _is_true_on_all(comm, made is not None):
        assert made is not None
        try:
            found = made.check(comm.Barrier, first=comm.Get_rank() == 0)
        except OSError:
            found = False
    if descriptor >= 0:
        os.close(descriptor)
    if _is_true_on_all(comm, found):
        return made
    if made is not None:
        made.free()
    return None


def _is_true_on_all(comm: Any, value: bool) -> bool:
    """Return True if `value` is True on all ranks. Collective."""
    total = np.zeros(1, np.int64)
    comm.Allreduce(np.array([int(value)], np.int64), total)
    return bool(total[0] == comm.Get_size())


def pad_to_lines(nbytes: int) -> int:
    """Round `nbytes` up to whole cache lines.

    >>> pad_to_lines(1), pad_to_lines(64), pad_to_lines(65)
    (64, 64, 128)
    """
    return -(-nbytes // CACHE_LINE) * CACHE_LINE
