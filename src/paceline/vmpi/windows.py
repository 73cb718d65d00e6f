"""Windows: memory that other ranks may access, by one-sided calls or, on one node, directly.

One-sided calls cost what messages of their size cost: Put and Accumulate one message to the target; Get, Fetch_and_op
and Compare_and_swap an empty one there and one of that size back; a lock, a post and a completion an empty message. The
target's clock does not move, but what copies the bytes (a GPU's link, or a processor) copies one access after the
other. An access takes effect in the order of the clocks of the ranks that make it, and its
origin waits for it in the call that ends the access: Flush, Unlock, Fence, Complete, or Wait of its request.

In a window of shared memory, loads and stores take no virtual time and are not observed. Ranks that communicate through
the memory call `Sync`, `Lock`, `Fence` or a barrier, as MPI requires; in these calls the rank with the earlier clock
goes first.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.vmpi import constants as c
from paceline.vmpi.buffers import Elements, Layout, committed_layout
from paceline.vmpi.collectives import SUM, Op, check_op, combine_all
from paceline.vmpi.constants import LOCK_EXCLUSIVE, LOCK_SHARED
from paceline.vmpi.errors import ReadOnly, find_site, format_site, mpi_error
from paceline.vmpi.groups import CommState, Group, meet
from paceline.vmpi.handles import Attributes, Handled, constants
from paceline.vmpi.memory import as_bytes, buffer, get_address, raw_memory
from paceline.vmpi.requests import Request

Bytes = NDArray[np.uint8]


class _Shared:
    """What all ranks of a window share: the memory of each, the locks, and the notices of Post and Complete."""

    def __init__(self, flavor: int, parts: list[Bytes], units: list[int]) -> None:
        self.flavor, self.parts, self.units = flavor, parts, units
        self.locks: dict[int, _Lock] = {}
        self.attached: list[dict[int, Bytes]] = [{} for _ in parts]
        """The memory that each rank has attached to a dynamic window, by address."""
        self.notices: dict[tuple[str, int, int], _Notices] = {}

    def notices_of(self, name: str, sender: int, receiver: int) -> _Notices:
        """Return the notices of one kind between two ranks."""
        return self.notices.setdefault((name, sender, receiver), _Notices())


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


class _Notices:
    """Notices from one rank to another: those on their way, and the request of a rank that waits for one."""

    def __init__(self) -> None:
        self.times: deque[float] = deque()
        self.waiting: Request | None = None

    def send(self, at: float) -> None:
        """Let a notice arrive at a time."""
        if self.waiting is None:
            self.times.append(at)
            return
        request, self.waiting = self.waiting, None
        request.rank.kernel.schedule(request.rank, at, request)

    def take(self, rank: Any, name: str) -> None:
        """Wait for a notice."""
        if not self.times:
            self.waiting = Request(rank, name)
            self.waiting.Wait()
            return
        _wait_until(rank, name, self.times.popleft())


class _Own:
    """One rank's side of a window."""

    def __init__(self, comm: Any, shared: _Shared) -> None:
        self.comm, self.shared = comm, shared
        self.name = ""
        self.attributes: dict[int, Any] = {}
        self.errhandler: Any = None
        self.hints: dict[str, str] = {}
        self.held: dict[int, bool] = {}
        """The parts that this rank has locked, and whether for itself alone."""
        self.ends: dict[int, float] = {}
        """When the accesses to each part that are not complete yet will be."""
        self.fenced = self.all_locked = False
        self.exposed: Group | None = None
        self.accessed: Group | None = None


class Window(Attributes, Handled):
    """Memory of the ranks of a communicator that the others may access.

    >>> from paceline import vmpi
    >>> def program(comm):
    ...     from mpi4py import MPI
    ...     window = MPI.Win.Allocate(8, 8, comm=comm)
    ...     np.frombuffer(window.tomemory(), np.int64)[0] = 0
    ...     window.Fence()
    ...     window.Accumulate(np.array([comm.rank]), 0)
    ...     window.Fence()
    ...     found = int(np.frombuffer(window.tomemory(), np.int64)[0])
    ...     window.Free()
    ...     return found
    >>> vmpi.run(program, ranks=4).values
    [6, 0, 0, 0]
    """

    __slots__ = ("__weakref__", "origin", "own")
    done, receives = True, False
    own: Any
    origin: Any

    def __new__(cls, win: Any = None) -> Any:
        if win is not None and not isinstance(win, Window):
            raise TypeError(f"expected a window; got {type(win).__name__}")
        found: Any = object.__new__(cls)
        found.own = None if win is None else win.own
        found.origin = None
        return found

    def __init__(self, *arguments: Any) -> None:
        """Do nothing: the state is set when the object is made."""

    # ---- creating

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Any:
        view = raw_memory(memory)
        if view.readonly and view.nbytes:
            raise ValueError("a window needs memory that can be written")
        own = _comm(comm)
        return own._make_window(cls, "Win.Create", as_bytes(view), disp_unit, c.WIN_FLAVOR_CREATE)

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Any:
        memory = np.zeros(_size(size), np.uint8)
        return _comm(comm)._make_window(cls, "Win.Allocate", memory, disp_unit, c.WIN_FLAVOR_ALLOCATE)

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Any:
        own = _comm(comm)
        window = own._make_shared_window(cls, _size(size), disp_unit)
        if own.kernel.strict:
            window.origin = find_site()
            own.me.open[id(window)] = window
        return window

    @classmethod
    def Create_dynamic(cls, info: Any = None, comm: Any = None) -> Any:
        empty = np.empty(0, np.uint8)
        return _comm(comm)._make_window(cls, "Win.Create_dynamic", empty, 1, c.WIN_FLAVOR_DYNAMIC)

    def Attach(self, memory: Any) -> None:
        """Let other ranks access some memory by its address, in a dynamic window."""
        own = self._unwrap()
        if own.shared.flavor != c.WIN_FLAVOR_DYNAMIC:
            raise mpi_error("ERR_RMA_FLAVOR", "memory can be attached to dynamic windows only")
        own.shared.attached[own.comm.rank][get_address(memory)] = as_bytes(raw_memory(memory))

    def Detach(self, memory: Any) -> None:
        own = self._unwrap()
        if own.shared.attached[own.comm.rank].pop(get_address(memory), None) is None:
            raise mpi_error("ERR_RMA_ATTACH", "this memory is not attached to the window")

    def Free(self) -> None:
        """Free the window. Views of its memory must no longer be used. Collective."""
        own = self._unwrap()
        self._delete_all()
        own.comm.me.open.pop(id(self), None)
        self._complete_all()
        meet(own.comm, "Win.Free", None, lambda given: given, free_of_charge=True).Wait()
        self.own = None

    # ---- what it is

    def _unwrap(self) -> _Own:
        """Return this rank's part of the window, or raise if the window is null."""
        if self.own is None:
            raise mpi_error("ERR_WIN", "the window is null or has been freed")
        found: _Own = self.own
        return found

    def _settings(self) -> Any:
        return self._unwrap()

    def _get_attributes(self) -> dict[int, Any]:
        return self._unwrap().attributes

    _fixed = (c.WIN_BASE, c.WIN_SIZE, c.WIN_DISP_UNIT, c.WIN_CREATE_FLAVOR, c.WIN_MODEL)

    def _fixed_attribute(self, keyval: int) -> Any:
        own = self._unwrap()
        memory = own.shared.parts[own.comm.rank]
        return {
            c.WIN_BASE: get_address(memory), c.WIN_SIZE: memory.nbytes, c.WIN_DISP_UNIT: own.shared.units[own.comm.rank],
            c.WIN_CREATE_FLAVOR: own.shared.flavor, c.WIN_MODEL: c.WIN_UNIFIED,
        }[keyval]  # fmt: skip

    @property
    def attrs(self) -> tuple[int, int, int]:
        """The address of this rank's memory, its bytes, and the bytes that a displacement counts."""
        return self.Get_attr(c.WIN_BASE), self.Get_attr(c.WIN_SIZE), self.Get_attr(c.WIN_DISP_UNIT)

    flavor = property(lambda self: self.Get_attr(c.WIN_CREATE_FLAVOR))
    model = property(lambda self: self.Get_attr(c.WIN_MODEL))

    def Get_name(self) -> str:
        return "MPI_WIN_NULL" if self.own is None else self.own.name

    def Set_name(self, name: str) -> None:
        self._unwrap().name = name

    name = property(Get_name, Set_name)

    def Get_group(self) -> Group:
        found: Group = self._unwrap().comm.Get_group()
        return found

    group = property(Get_group)
    group_size = property(lambda self: self._unwrap().comm.size)
    group_rank = property(lambda self: self._unwrap().comm.rank)

    def Shared_query(self, rank: int) -> tuple[Any, int]:
        """Return a rank's memory, which is empty if it is on another node, and the bytes that a displacement counts."""
        own = self._unwrap()
        parts = own.shared.parts
        if rank == own.comm.kernel.special.proc_null:  # the first rank with a part that is not empty
            rank = next((rank for rank, part in enumerate(parts) if part.nbytes), 0)
        if not 0 <= rank < len(parts):
            raise ValueError(f"rank {rank} does not exist; this window has ranks 0 to {len(parts) - 1}")
        nodes = own.comm.node_of
        near = own.shared.flavor == c.WIN_FLAVOR_SHARED or nodes[rank] == nodes[own.comm.rank]
        return (parts[rank] if near else parts[rank][:0]).view(buffer), own.shared.units[rank]

    def tomemory(self) -> Any:
        own = self._unwrap()
        return own.shared.parts[own.comm.rank].view(buffer)

    def __buffer__(self, flags: int) -> memoryview:
        """Return this rank's memory for memoryview(window), which Python asks for from version 3.12 on."""
        return memoryview(self.tomemory())

    def describe(self) -> str:
        """Describe the window and where it was allocated."""
        return f"window of rank {self._unwrap().comm.me.number}, allocated at {format_site(self.origin)}"

    def __bool__(self) -> bool:
        return self.own is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window) and self.own is other.own

    __hash__ = None  # type: ignore[assignment]

    # ---- access

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._put(origin, target_rank, target)

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        return self._request("Rput", self._put(origin, target_rank, target))

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        self._get(origin, target_rank, target)

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        return self._request("Rget", self._get(origin, target_rank, target))

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Any = None) -> None:
        self._accumulate(origin, None, target_rank, target, op)

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: Any = None) -> Request:
        return self._request("Raccumulate", self._accumulate(origin, None, target_rank, target, op))

    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Any = None
    ) -> None:
        self._accumulate(origin, result, target_rank, target, op)

    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Any = None
    ) -> Request:
        return self._request("Rget_accumulate", self._accumulate(origin, result, target_rank, target, op))

    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Any = None
    ) -> None:
        """Combine one element with the target's, and fetch what the target's was before."""
        if self._is_null_rank(target_rank):
            return
        given, found = Elements(origin), Elements(result)
        _check_single("Fetch_and_op", given, found)
        self._accumulate(given, found, target_rank, (target_disp, 1, None), op)

    def Compare_and_swap(
        self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0
    ) -> None:
        """Replace one element of the target if it is equal to `compare`, and fetch what it was before."""
        if self._is_null_rank(target_rank):
            return
        given, expected, found = Elements(origin), Elements(compare), Elements(result)
        _check_single("Compare_and_swap", given, expected, found)
        place = self._target(given, target_rank, (target_disp, 1, None))
        end = self._travel("Compare_and_swap", target_rank, 0, given.nbytes)
        before = bytes(place.read())
        found.write(before)
        if before == expected.pack().tobytes() and end < inf:
            place.write(given.pack().tobytes())

    def _put(self, origin: Any, target_rank: int, target: Any) -> float:
        if self._is_null_rank(target_rank):
            return self._clock()
        given = Elements(origin)
        place = self._target(given, target_rank, target)
        end = self._travel("Put", target_rank, given.nbytes, None)
        if end < inf:
            place.write(given.pack())
        return end

    def _get(self, origin: Any, target_rank: int, target: Any) -> float:
        if self._is_null_rank(target_rank):
            return self._clock()
        into = Elements(origin)
        if into.view.readonly and into.nbytes:
            raise ReadOnly("nothing can be got into a read-only buffer")
        place = self._target(into, target_rank, target)
        end = self._travel("Get", target_rank, 0, into.nbytes)
        into.write(place.read())
        return end

    def _accumulate(self, origin: Any, result: Any, target_rank: int, target: Any, op: Any) -> float:
        if self._is_null_rank(target_rank):
            return self._clock()
        given = origin if isinstance(origin, Elements) else Elements(origin)
        found = result if result is None or isinstance(result, Elements) else Elements(result)
        made = check_op(SUM if op is None else op, given.layout.kind, one_sided=True)
        if isinstance(made, Op) and not made.Is_predefined():
            raise mpi_error("ERR_OP", "one-sided calls combine by MPI's own operations only")
        shape = given if found is None or given.nbytes else found
        place = self._target(shape, target_rank, target)
        end = self._travel("Accumulate", target_rank, given.nbytes, None if found is None else found.nbytes)
        before = place.read().tobytes()
        if found is not None:
            found.write(before)
        if given.nbytes and end < inf and getattr(made, "name", "") != "NO_OP":
            if len(before) != given.nbytes:
                raise mpi_error(
                    "ERR_ARG", f"{given.nbytes} bytes cannot be combined with {len(before)} at the target"
                )
            place.write(combine_all([before, given.pack()], made, given.layout.kind))
        return end

    def _is_null_rank(self, rank: int) -> bool:
        own = self._unwrap()
        if 0 <= rank < own.comm.size:
            return False
        if rank != own.comm.kernel.special.proc_null:
            raise mpi_error(
                "ERR_RANK", f"rank {rank} does not exist; this window has ranks 0 to {own.comm.size - 1}"
            )
        return True

    def _clock(self) -> float:
        return self._unwrap().comm.me.t  # type: ignore[no-any-return]

    def _target(self, origin: Elements, rank: int, target: Any) -> _Place:
        """Return the elements at the target that an access with these elements at its origin means."""
        own = self._unwrap()
        if own.comm.kernel.strict and not (
            own.fenced or own.all_locked or rank in own.held or _has(own.accessed, own.comm.members[rank])
        ):
            raise mpi_error("ERR_RMA_SYNC", f"rank {own.comm.rank} accesses rank {rank} outside an epoch")
        displacement, count, datatype = 0, origin.count, None
        if isinstance(target, (list, tuple)):
            if len(target) > 3:
                raise ValueError(f"a target is (displacement, count, type); got {len(target)} items")
            given = [*target, None, None, None][:3]
            displacement = 0 if given[0] is None else int(given[0])
            count = origin.count if given[1] is None else int(given[1])
            datatype = given[2]
        elif target is not None:
            if not hasattr(target, "__int__"):
                raise ValueError(f"a target is a displacement or a list; got {type(target).__name__}")
            displacement = int(target)
        layout = origin.layout if datatype is None else committed_layout(datatype)
        if datatype is not None and isinstance(target, (list, tuple)) and target[1] is None:
            count = origin.nbytes // layout.size if layout.size else 0
        memory, start = own.shared.parts[rank], displacement * own.shared.units[rank]
        if own.shared.flavor == c.WIN_FLAVOR_DYNAMIC:
            memory, start = _find_attached(own.shared.attached[rank], displacement)
        end = start + max(count - 1, 0) * layout.extent + layout.true_bounds[1] if count else start
        if start + (layout.true_bounds[0] if count else 0) < 0 or end > memory.nbytes:
            raise mpi_error(
                "ERR_RMA_RANGE",
                f"bytes {start} to {end} are outside the {memory.nbytes} bytes of rank {rank}'s window",
            )
        return _Place(memory, layout, start, count)

    def _travel(self, name: str, rank: int, there: int, back: int | None) -> float:
        """Charge for bytes to a rank, and back if that is given; return when they have arrived, inf if they are lost."""
        own = self._unwrap()
        kernel, me = own.comm.kernel, own.comm.me
        kernel.let_earlier_go(me)  # what ranks with an earlier clock do comes first
        other = own.comm.members[rank]
        if kernel.faults is not None:
            kernel.faults.detector.check_access(own.comm, name, other)
        me.t, end = _transfer(kernel, me.number, other, there, me.t)
        if back is not None and end < inf:
            end = _transfer(kernel, other, me.number, back, end, origin=me.number)[1]
        if end > own.ends.get(rank, 0.0):
            own.ends[rank] = end
        return end

    def _request(self, name: str, end: float) -> Request:
        me = self._unwrap().comm.me
        request = Request(me, f"Win.{name}")
        me.kernel.schedule(me, max(end, me.t), request)
        return request

    # ---- synchronization

    def _complete(self, rank: int) -> None:
        own = self._unwrap()
        _wait_until(own.comm.me, "Win.Flush", own.ends.pop(rank, 0.0))

    def _complete_all(self) -> None:
        own = self._unwrap()
        if own.ends:
            _wait_until(own.comm.me, "Win.Flush", max(own.ends.values()))
            own.ends.clear()

    def _notify(self, rank: int) -> float:
        """Charge for an empty message to a rank, and return when it arrives."""
        own = self._unwrap()
        if own.shared.flavor == c.WIN_FLAVOR_SHARED:
            return own.comm.me.t  # type: ignore[no-any-return]
        me = own.comm.me
        me.t, arrives = _transfer(own.comm.kernel, me.number, own.comm.members[rank], 0, me.t)
        return arrives

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        own = self._unwrap()
        if self._is_null_rank(rank):
            return
        if rank in own.held:
            raise mpi_error("ERR_RMA_SYNC", f"this rank has already locked the part of rank {rank}")
        own.comm.kernel.let_earlier_go(own.comm.me)
        self._acquire(rank, lock_type != LOCK_SHARED, self._notify(rank))

    def _acquire(self, rank: int, alone: bool, at: float) -> None:
        own = self._unwrap()
        lock = own.shared.locks.setdefault(rank, _Lock())
        request = Request(own.comm.me, "Win.Lock")
        lock.queue.append((request, alone))
        lock.grant(at)
        request.Wait()
        own.held[rank] = alone

    def _release(self, rank: int, at: float) -> None:
        own = self._unwrap()
        lock = own.shared.locks[rank]
        if own.held.pop(rank):
            lock.exclusive = 0
        else:
            lock.shared -= 1
        lock.grant(at)

    def Unlock(self, rank: int) -> None:
        own = self._unwrap()
        if self._is_null_rank(rank):
            return
        if rank not in own.held:
            raise mpi_error("ERR_RMA_SYNC", f"this rank has not locked the part of rank {rank}")
        self._complete(rank)
        own.comm.kernel.let_earlier_go(own.comm.me)
        self._release(rank, self._notify(rank))

    def Sync(self) -> None:
        """Let ranks with an earlier clock run first: what they wrote is visible, what is written later is not."""
        me = self._unwrap().comm.me
        me.kernel.look(me, polls=True)
        me.kernel.let_earlier_go(me)

    def Lock_all(self, assertion: int = 0) -> None:
        own = self._unwrap()
        if own.shared.flavor != c.WIN_FLAVOR_SHARED:
            at = self._notify(own.comm.rank)
            for rank in range(own.comm.size):
                self._acquire(rank, False, at)
        own.all_locked = True

    def Unlock_all(self) -> None:
        own = self._unwrap()
        self._complete_all()
        if own.shared.flavor != c.WIN_FLAVOR_SHARED:
            at = self._notify(own.comm.rank)
            for rank in list(own.held):
                self._release(rank, at)
        own.all_locked = False

    def Flush(self, rank: int) -> None:
        self._complete(rank)
        self.Sync()

    Flush_local = Flush

    def Flush_all(self) -> None:
        self._complete_all()
        self.Sync()

    Flush_local_all = Flush_all

    def Fence(self, assertion: int = 0) -> None:
        own = self._unwrap()
        self._complete_all()
        own.comm.Barrier()
        own.fenced = not assertion & c.MODE_NOSUCCEED

    def Start(self, group: Group, assertion: int = 0) -> None:
        """Begin to access the ranks of a group, when each of them has called Post."""
        own = self._unwrap()
        for rank in self._places(group):
            own.shared.notices_of("post", rank, own.comm.rank).take(own.comm.me, "Win.Start")
        own.accessed = Group(group)

    def Complete(self) -> None:
        """End the accesses that Start began."""
        own = self._unwrap()
        if own.accessed is None:
            raise mpi_error("ERR_RMA_SYNC", "Complete was called without Start")
        self._complete_all()
        for rank in self._places(own.accessed):
            own.shared.notices_of("complete", own.comm.rank, rank).send(self._notify(rank))
        own.accessed = None

    def Post(self, group: Group, assertion: int = 0) -> None:
        """Let the ranks of a group access this rank's memory."""
        own = self._unwrap()
        for rank in self._places(group):
            own.shared.notices_of("post", own.comm.rank, rank).send(self._notify(rank))
        own.exposed = Group(group)

    def Wait(self) -> bool:
        """Wait until the ranks that Post named have called Complete."""
        own = self._unwrap()
        if own.exposed is None:
            raise mpi_error("ERR_RMA_SYNC", "Wait was called without Post")
        for rank in self._places(own.exposed):
            own.shared.notices_of("complete", rank, own.comm.rank).take(own.comm.me, "Win.Wait")
        own.exposed = None
        return True

    def Test(self) -> bool:
        """Return True if the ranks that Post named have called Complete."""
        own = self._unwrap()
        if own.exposed is None:
            raise mpi_error("ERR_RMA_SYNC", "Test was called without Post")
        me = own.comm.me
        me.kernel.let_earlier_go(me)
        notices = [
            own.shared.notices_of("complete", rank, own.comm.rank) for rank in self._places(own.exposed)
        ]
        if any(not each.times or each.times[0] > me.t for each in notices):
            me.kernel.count_poll(me)
            return False
        return self.Wait()

    def _places(self, group: Group) -> list[int]:
        """Return the ranks in the window of the members of a group."""
        members = list(self._unwrap().comm.members)
        return [members.index(member) for member in group.members]


class _Place:
    """Elements in the memory of a window."""

    __slots__ = ("_count", "_layout", "_memory", "_start")

    def __init__(self, memory: Bytes, layout: Layout, start: int, count: int) -> None:
        self._memory, self._layout, self._start, self._count = memory, layout, start, count

    def read(self) -> Any:
        return self._layout.pack(self._memory, self._start, self._count)

    def write(self, data: Any) -> None:
        self._layout.unpack(data, self._memory, self._start, self._count)


def _wait_until(rank: Any, name: str, at: float) -> None:
    """Let a rank wait until a time: for ever if what it waits for is lost."""
    if at == inf:
        Request(rank, name).Wait()
    rank.t = max(rank.t, at)


def _transfer(
    kernel: Any, source: int, dest: int, nbytes: int, now: float, origin: int | None = None
) -> tuple[float, float]:
    """Return when the sender of a transfer is free again, and when all bytes have arrived.

    `origin`: the rank whose call it is; None: the sender.
    """
    wires = kernel.wires
    kernel.one_sided += 1
    origin = source if origin is None else origin
    eager = wires.eager(source, dest, nbytes)
    free, arrives, taking = wires.send(source, dest, nbytes, now, eager)
    if not eager and arrives < inf:
        arrives, taking, _ = wires.fetch(source, dest, nbytes, arrives, origin)
    if arrives == inf:
        kernel.faults.note_loss(source, dest, f"a one-sided message of {nbytes:,} bytes")
        return free, inf
    if wires.revised and wires.contended(source, dest):
        arrives = wires.flow.arrives()  # as far as is known now
    return free, wires.copy_access(source, dest, origin, nbytes, arrives=arrives, taking=taking, eager=eager)


def _check_single(name: str, *elements: Elements) -> None:
    first = elements[0]
    for each in elements:
        if each.count != 1 or each.layout.kind != first.layout.kind or each.nbytes != first.nbytes:
            raise ValueError(f"{name} needs one element of the same type in every buffer")


def _find_attached(attached: dict[int, Bytes], address: int) -> tuple[Bytes, int]:
    for base, memory in attached.items():
        if base <= address < base + max(memory.nbytes, 1):
            return memory, address - base
    raise mpi_error("ERR_RMA_RANGE", f"no memory at address {address} is attached to the window")


def _has(group: Group | None, member: int) -> bool:
    return group is not None and member in group.members


def _comm(comm: Any) -> Any:
    return constants["COMM_SELF"] if comm is None else comm


def _size(nbytes: int) -> int:
    if nbytes < 0:
        raise ValueError(f"nbytes must be at least 0; got {nbytes}")
    return nbytes


WIN_NULL = Window()
constants["WIN_NULL"] = WIN_NULL


class WindowCalls:
    """The calls of a communicator that make windows."""

    __slots__ = ()

    def Allocate_shared(self, nbytes: int, disp_unit: int = 1) -> Window:
        """Allocate memory shared by the ranks of this communicator, all on one node; `nbytes` are this rank's part."""
        found: Window = self._make_shared_window(Window, _size(nbytes), disp_unit)
        return found

    def _make_shared_window(self, cls: Any, nbytes: int, disp_unit: int) -> Any:
        comm: Any = self
        nodes = comm.node_of
        if any(node != nodes[0] for node in nodes):
            raise mpi_error(
                "ERR_RMA_SHARED",
                f"shared memory needs all ranks on one node; the {len(nodes)} ranks are on {len(set(nodes))} nodes",
            )

        def share(given: list[tuple[int, int]]) -> _Shared:
            sizes = [size for size, _ in given]
            memory = np.zeros(max(sum(sizes), 1), np.uint8)
            stops = np.cumsum(sizes).tolist()
            parts = [memory[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
            return _Shared(c.WIN_FLAVOR_SHARED, parts, [unit for _, unit in given])

        return self._meet_window(cls, "Win.Allocate_shared", (nbytes, disp_unit), share)

    def _make_window(self, cls: Any, name: str, memory: Bytes, disp_unit: int, flavor: int) -> Any:
        if disp_unit < 1:
            raise mpi_error("ERR_DISP", f"a displacement must count at least 1 byte; got {disp_unit}")

        def share(given: list[tuple[Bytes, int]]) -> _Shared:
            return _Shared(flavor, [part for part, _ in given], [unit for _, unit in given])

        return self._meet_window(cls, name, (memory, disp_unit), share)

    def _meet_window(self, cls: Any, name: str, given: Any, share: Any) -> Any:
        comm: Any = self

        def finish(rows: list[Any]) -> list[Any]:
            made = share(rows), CommState(comm.kernel, comm.state.members, "")
            return [made] * len(rows)

        met = meet(comm, name, given, finish, free_of_charge=True)
        met.Wait()
        shared, state = met.result
        inner: Any = object.__new__(type(comm))
        inner._fill(state, comm.rank)
        found: Any = object.__new__(cls)
        found.own, found.origin = _Own(inner, shared), None
        return found
