"""Windows of shared memory: one array for the ranks of a node, and the calls that synchronize access to it.

Loads and stores take no virtual time and are not observed. Ranks that communicate through the memory call `Sync`,
`Lock`, `Fence` or a barrier, as MPI requires; in these calls the rank with the earlier clock goes first.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.vmpi.constants import LOCK_EXCLUSIVE, LOCK_SHARED
from paceline.vmpi.errors import find_site, format_site, mpi_error
from paceline.vmpi.groups import meet
from paceline.vmpi.requests import Request


class _Shared:
    """The memory and the locks of one window."""

    def __init__(self, sizes: list[int], units: list[int]) -> None:
        self.memory: NDArray[np.uint8] = np.zeros(max(sum(sizes), 1), np.uint8)
        stops = np.cumsum(sizes).tolist()
        self.parts = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        self.units = units
        self.locks: dict[int, _Lock] = {}


class _Lock:
    """The lock of one part of a window, and the ranks that wait for it."""

    def __init__(self) -> None:
        self.shared = self.exclusive = 0
        self.queue: deque[tuple[Request, bool]] = deque()

    def grant(self, at: float) -> None:
        """Grant the lock to the next waiting ranks that may have it."""
        while self.queue and not self.exclusive and not (self.queue[0][1] and self.shared):
            request, alone = self.queue.popleft()
            if alone:
                self.exclusive = 1
            else:
                self.shared += 1
            request.rank.kernel.schedule(request.rank, at, request)


class Window:
    """A window of shared memory, in which the parts of the ranks follow each other in rank order.

    >>> from paceline import vmpi
    >>> def program(comm):
    ...     window = comm.Allocate_shared(8)
    ...     mine = np.frombuffer(window.tomemory(), np.int64)
    ...     mine[0] = comm.rank ** 2
    ...     window.Fence()
    ...     last = np.frombuffer(window.Shared_query(comm.size - 1)[0], np.int64)
    ...     found = int(last[0])
    ...     window.Free()
    ...     return found
    >>> vmpi.run(program, ranks=3).values
    [4, 4, 4]
    """

    done, receives = True, False

    def __init__(self, comm: Any, shared: _Shared) -> None:
        self._comm, self._shared = comm, shared
        self._held: dict[int, bool] = {}
        self.origin: Any = None

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Any = None, *, comm: Any) -> Window:
        window: Window = comm.Allocate_shared(size, disp_unit)
        if comm.kernel.strict:
            window.origin = find_site()
            comm.me.open[id(window)] = window
        return window

    def Shared_query(self, rank: int) -> tuple[memoryview, int]:
        shared = self._used()
        if rank == self._comm.kernel.special.proc_null:  # the first rank with a part that is not empty
            parts = shared.parts
            rank = next((rank for rank, part in enumerate(parts) if part.stop > part.start), 0)
        if not 0 <= rank < len(shared.parts):
            raise ValueError(
                f"rank {rank} does not exist; this window has ranks 0 to {len(shared.parts) - 1}"
            )
        part: Any = shared.memory[shared.parts[rank]]
        return memoryview(part), shared.units[rank]

    def tomemory(self) -> memoryview:
        return self.Shared_query(self._comm.rank)[0]

    # ---- synchronization

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        shared = self._used()
        if rank in self._held:
            raise mpi_error("ERR_RMA_SYNC", f"this rank has already locked the part of rank {rank}")
        me, alone = self._comm.me, lock_type != LOCK_SHARED
        me.kernel.let_earlier_go(me)
        lock = shared.locks.setdefault(rank, _Lock())
        request = Request(me, "Win.Lock")
        lock.queue.append((request, alone))
        lock.grant(me.t)
        request.Wait()
        self._held[rank] = alone

    def Unlock(self, rank: int) -> None:
        shared = self._used()
        if rank not in self._held:
            raise mpi_error("ERR_RMA_SYNC", f"this rank has not locked the part of rank {rank}")
        me = self._comm.me
        me.kernel.let_earlier_go(me)
        lock = shared.locks[rank]
        if self._held.pop(rank):
            lock.exclusive = 0
        else:
            lock.shared -= 1
        lock.grant(me.t)

    def Sync(self) -> None:
        """Let ranks with an earlier clock run first: what they wrote is visible, what is written later is not."""
        self._used()
        me = self._comm.me
        me.kernel.let_earlier_go(me)

    def Lock_all(self, assertion: int = 0) -> None:
        self._used()

    def Unlock_all(self) -> None:
        self._used()

    def Flush(self, rank: int) -> None:
        self.Sync()

    Flush_local = Flush

    def Flush_all(self) -> None:
        self.Sync()

    Flush_local_all = Flush_all

    def Fence(self, assertion: int = 0) -> None:
        self._used()
        self._comm.Barrier()

    def Get_group(self) -> Any:
        return self._comm.Get_group()

    # ---- freeing

    def Free(self) -> None:
        """Free the memory. Views of it must no longer be used. Collective."""
        self._used()
        self._comm.me.open.pop(id(self), None)
        meet(self._comm, "Win.Free", None, lambda given: given, free_of_charge=True).Wait()
        self._shared = None  # type: ignore[assignment]

    def describe(self) -> str:
        return f"window of rank {self._comm.me.number}, allocated at {format_site(self.origin)}"

    def __bool__(self) -> bool:
        return self._shared is not None

    def _used(self) -> _Shared:
        if self._shared is None:
            raise mpi_error("ERR_WIN", "the window has been freed")
        return self._shared


class WindowCalls:
    """The call of a communicator that allocates a window."""

    __slots__ = ()

    def Allocate_shared(self, nbytes: int, disp_unit: int = 1) -> Window:
        """Allocate memory shared by the ranks of this communicator, all on one node; `nbytes` are this rank's part."""
        comm: Any = self
        if nbytes < 0:
            raise ValueError(f"nbytes must be at least 0; got {nbytes}")

        def finish(given: list[tuple[int, int]]) -> list[_Shared]:
            made = _Shared([size for size, _ in given], [unit for _, unit in given])
            return [made] * len(given)

        nodes = comm.node_of
        if any(node != nodes[0] for node in nodes):
            raise mpi_error(
                "ERR_RMA_SHARED",
                f"shared memory needs all ranks on one node; the {len(nodes)} ranks are on {len(set(nodes))} nodes",
            )
        met = meet(comm, "Win.Allocate_shared", (nbytes, disp_unit), finish, free_of_charge=True)
        met.Wait()
        return Window(comm, met.result)
