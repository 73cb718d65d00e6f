"""The private side of a communicator: a duplicate for paceline's messages, with its scratch and shared memory.

It is an attribute of the caller's communicator, created by the first collective and freed with that communicator. At the
end of the process nothing is freed: freeing is collective, and would hang the ranks that did not fail.

Collectives can go on in the background, while their rank computes:

    tasks = Tasks(channel)
    tasks.start(lambda: allreduce(x, x, lane))    # runs until it waits for a message
    ...                                           # compute, and now and then:
    tasks.advance()                               # goes on where messages have come
    tasks.finish()                                # waits for the rest

MPI moves most messages only inside its calls, so somebody has to call it during a computation: `advance` does, and a
backward pass calls it after every layer. No thread is needed, and the simulator runs the same code.

A task is a greenlet, and a lane is a channel of its own. In a lane `Wait` hands control back to whoever called `start`,
`advance` or `finish`, so a collective that is written with Isend, Irecv and Wait, or with one Allreduce, works here
as it is. All calls of MPI are made by that caller, never by the task itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet
from numpy.typing import DTypeLike, NDArray

from paceline.comm.operations import Charged, Operation, mpi_of, operation
from paceline.comm.recording import Recorded
from paceline.comm.shared import SharedMemory, split_node
from paceline.comm.tracing import Events
from paceline.vectors import carried, is_time_only, room

# Scratch memory above this size is released after the call.
KEEP_BYTES = 64 << 20


class _Kept:
    """The state shared by all views of one channel."""

    def __init__(self, bare: Any, name: str, node_color: int | None = None) -> None:
        self.name = name
        self.node_color = node_color
        self.work: Callable[[str, float], object] | None = getattr(bare, "Work", None)
        self.time_only = is_time_only(bare)
        self.MPI: Any = None
        self.scratch: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.shared: SharedMemory | None = None
        self.children: dict[str, Channel] = {}
        self.facts: dict[str | int, Any] = {}
        self.seen: tuple[Any, Channel] | None = None

    def is_lost(self, dtype: DTypeLike, nbytes: int) -> bool:
        """Return True if a message of `nbytes` bytes of this type is simulated without its contents."""
        return self.time_only and not carried(np.dtype(dtype).kind, nbytes)


class Channel:
    """A private duplicate of a communicator, with the calls that a collective needs, and scratch memory."""

    compares = True
    """True if the ranks compare the lengths and dtypes of their arrays before the first exchange of a kind."""

    def __init__(self, comm: Any, kept: _Kept, bare: Any = None) -> None:
        self.comm = comm
        self._kept = kept
        self.bare: Any = _find_bare(comm) if bare is None else bare
        """The duplicate itself, whose messages are not counted."""
        self.rank: int = self.bare.Get_rank()
        self.size: int = self.bare.Get_size()

    Isend: Any
    Irecv: Any
    Barrier: Any

    def __getattr__(self, name: str) -> Any:
        # Called once for each name: a simulated collective may need none of these calls.
        if name not in ("Isend", "Irecv", "Barrier"):
            raise AttributeError(name)
        found = self.__dict__[name] = getattr(self.comm, name)
        return found

    # Work that the simulator's clock is charged for; under MPI it takes real time.

    @property
    def time_only(self) -> bool:
        """True if only time is simulated; see `paceline.vectors`."""
        return self._kept.time_only

    @property
    def simulated(self) -> bool:
        """True if the ranks are simulated: the simulator itself checks what they pass."""
        return self._kept.work is not None

    def operation(self, op: Any, dtype: np.dtype[Any], nbytes: int) -> Operation:
        """Return the operation for `op` on arrays of `dtype`, `nbytes` bytes in all."""
        made = operation(op, dtype)
        work = self._kept.work
        if work is None or isinstance(made, Charged):
            return made
        return Charged(made, work, time_only=self._kept.is_lost(dtype, nbytes))

    def copy(self, into: NDArray[Any], values: NDArray[Any]) -> None:
        """Copy `values` into an array."""
        if not self._kept.is_lost(into.dtype, into.nbytes):
            np.asarray(into)[...] = np.asarray(values)  # not charged by the vectors themselves
        self.charge("copy", into.nbytes)

    def charge(self, kind: str, amount: float) -> None:
        """Charge the simulator's clock for work of a kind."""
        if self._kept.work is not None:
            self._kept.work(kind, amount)

    def evaluate(self, whole: Any, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> bool:
        """Let the simulator evaluate a collective (`paceline.collectives._buffers.Whole`) for all ranks at once.

        Return False if it cannot: then every rank does its part.
        """
        counted = self.comm if isinstance(self.comm, Recorded) else None
        if counted is not None and (counted.tracer is not None or counted.timer is not None):
            return False
        sent = self.bare.Evaluate(whole, send, recv, op)
        if sent is None:
            return False
        if counted is not None:
            counted.counts.point_to_point.add(*sent)
        return True

    def room(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return uninitialised memory that the caller may keep."""
        return room(self.bare, count, dtype)

    # Memory.

    def scratch(self, count: int, dtype: DTypeLike, messages: int = 1) -> NDArray[Any]:
        """Return uninitialised memory for one call, split into `messages` messages; the next call gets the same memory."""
        nbytes = count * np.dtype(dtype).itemsize
        if self._kept.is_lost(dtype, nbytes // messages):
            return room(self.bare, count, dtype)
        if nbytes > KEEP_BYTES:
            return np.empty(count, dtype)
        if nbytes > self._kept.scratch.size:
            self._kept.scratch = np.empty(nbytes, np.uint8)
        return self._kept.scratch[:nbytes].view(dtype)

    def shared(self, nbytes: int) -> SharedMemory:
        """Return at least `nbytes` of memory shared by all ranks, for one call. Collective."""
        kept = self._kept
        if kept.shared is None or kept.shared.nbytes < nbytes:
            if kept.shared is not None:
                kept.shared.free()
            kept.shared = SharedMemory(self.bare, nbytes, self.events)
        return kept.shared

    def child(self, name: str, make: Callable[[Any], Any]) -> Channel:
        """Return the channel of `make(communicator)`, with some of this one's ranks; it is created only once."""
        if name not in self._kept.children:
            made = make(self.bare)
            self._kept.children[name] = Channel(made, _Kept(made, name))
        return self._kept.children[name].count_with(self.comm)

    @property
    def MPI(self) -> Any:
        """The module that goes with the communicator: mpi4py.MPI or the simulator's."""
        if self._kept.MPI is None:
            self._kept.MPI = mpi_of(self.bare)
        return self._kept.MPI

    @property
    def node_of(self) -> tuple[int, ...] | None:
        """The node of every rank, if the communicator itself knows it."""
        return None if self._kept.node_color is not None else getattr(self.bare, "node_of", None)

    @property
    def node(self) -> Channel:
        """The channel of the ranks on this node."""
        color = self._kept.node_color
        return self.child("node", split_node if color is None else lambda c: c.Split(color, c.Get_rank()))

    def fact(self, name: str | int, find: Callable[[Channel], Any]) -> Any:
        """Return `find(channel)`, computed once. Collective the first time; its messages are not counted."""
        if name not in self._kept.facts:
            self._kept.facts[name] = find(self if self.comm is self.bare else Channel(self.bare, self._kept))
        return self._kept.facts[name]

    def count_with(self, comm: Any) -> Channel:
        """Return this channel with its messages counted together with those of `comm`."""
        if not isinstance(comm, Recorded):
            return self
        seen = self._kept.seen
        if seen is not None and seen[0] is comm and comm.tracer is None and self.comm is self.bare:
            return seen[1]
        tracer = None if comm.tracer is None else comm.tracer.of(self.bare, self._kept.name)
        found = Channel(Recorded(self.comm, comm.counts, tracer), self._kept)
        if self.comm is self.bare:
            self._kept.seen = (comm, found)
        return found

    @property
    def events(self) -> Events | None:
        """The record of this rank's events, if it is traced."""
        tracer = self.comm.tracer if isinstance(self.comm, Recorded) else None
        return None if tracer is None else tracer.events

    def free(self) -> None:
        """Free the duplicate and everything created from it. Collective."""
        if self._kept.shared is not None:
            self._kept.shared.free()
        for child in self._kept.children.values():
            child.free()
        self.bare.Free()

    def revoke(self) -> None:
        """Make calls on the duplicate, and on everything created from it, fail on all ranks."""
        for child in self._kept.children.values():
            child.revoke()
        self.bare.Revoke()

    def is_revoked(self) -> bool:
        """Return True if this rank knows that the duplicate, or anything created from it, was revoked."""
        return bool(self.bare.Is_revoked()) or any(
            child.is_revoked() for child in self._kept.children.values()
        )


def channel(comm: Any) -> Channel:
    """Return the channel of a communicator, or the channel itself. Collective the first time."""
    if isinstance(comm, Channel):
        return comm
    bare = _find_bare(comm)
    if not hasattr(bare, "Isend"):
        raise TypeError(f"comm must be a communicator; got {type(comm).__name__}")
    if not bare:
        raise ValueError("comm must be a live communicator; got a null or freed one")
    key = _key(bare)
    found: Channel | None = bare.Get_attr(key)
    if found is None:
        if bare.Is_inter():
            raise ValueError("comm must be an intracommunicator; got an intercommunicator")
        found = _attach(bare, key, None)
    return found.count_with(comm) if comm is not bare else found


def revoke(comm: Any) -> None:
    """Revoke a communicator (ULFM: `comm.Revoke`) and the one that paceline's collectives use for it.

    When a rank has died, only the ranks that wait for it get an error; this ends the waiting of all others, in any
    collective. Then `comm.Shrink()` gives a communicator of the survivors.
    """
    bare = _find_bare(comm)
    found: Channel | None = bare.Get_attr(_key(bare))
    if found is not None:
        found.revoke()
    bare.Revoke()


def is_revoked(comm: Any) -> bool:
    """Return True if this rank knows that a communicator, or the one that paceline's collectives use for it, was revoked.

    Each is revoked by a message of its own: a rank may know of one and not yet of the other.
    """
    bare = _find_bare(comm)
    if bare.Is_revoked():
        return True
    found: Channel | None = bare.Get_attr(_key(bare))
    return found is not None and found.is_revoked()


def pretend_nodes(comm: Any, node: int) -> Any:
    """Return a duplicate of `comm` that treats ranks with equal `node` as one node: many nodes on one machine.

    For tests and teaching. Collective; the caller frees it.
    """
    dup = comm.Dup()
    bare = _find_bare(dup)
    _attach(bare, _key(bare), node)
    return dup


def _attach(bare: Any, key: int, node_color: int | None) -> Channel:
    dup = bare.Dup()
    made = Channel(dup, _Kept(dup, "own", node_color))
    bare.Set_attr(key, made)
    return made


def _key(bare: Any) -> int:
    """Return the key under which this kind of communicator stores its channel."""
    kind: Any = type(bare)
    return _keyval_for(kind)


@cache
def _keyval_for(kind: Any) -> int:
    return _keyval(next(base for base in kind.__mro__ if "Create_keyval" in vars(base)))


@cache
def _keyval(kind: Any) -> int:
    key: int = kind.Create_keyval(delete_fn=lambda comm, key, channel: channel.free())
    return key


def _find_bare(comm: Any) -> Any:
    return comm.bare if isinstance(comm, Recorded) else comm


# ---- collectives in the background


class Tasks:
    """The tasks of one rank. If one fails, `start`, `advance` or `finish` raises its error, and all are lost."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: list[tuple[Any, Any]] = []
        """Tasks and the request that each of them waits for, in the order in which they were started."""

    def start(self, work: Callable[[], object]) -> None:
        """Start a task: run it until it waits for a message."""
        task: Any = greenlet(work)
        request = _run(task)
        if request is not None:
            self._waiting.append((task, request))

    def advance(self) -> None:
        """Go on with the tasks whose messages have come."""
        waiting = self._waiting
        for place, (task, request) in enumerate(waiting):
            while request is not None and request.Test():
                request = _run(task)
            waiting[place] = (task, request)
        self._waiting = [entry for entry in waiting if entry[1] is not None]

    def finish(self) -> None:
        """Wait until all tasks have ended."""
        waiting = self._waiting
        while waiting:
            first = self._channel.MPI.Request.Waitany([request for _, request in waiting])
            task, _ = waiting[first]
            if (request := _run(task)) is None:
                del waiting[first]
            else:
                waiting[first] = (task, request)


def _run(task: Any) -> Any:
    """Run a task until it waits, making its calls here; return the request that it waits for, None if it has ended."""
    task.parent = getcurrent()
    asked = task.switch()
    while not task.dead:
        if not isinstance(asked, _Call):
            return asked
        asked = task.switch(asked.function(*asked.arguments))
    if isinstance(asked, GreenletExit):  # a simulated rank was killed
        raise asked
    return None


class _Call:
    """A call that a task asks its caller to make."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Let the caller of the running task call a function; return its result."""
    return getcurrent().parent.switch(_Call(function, *arguments))


class _Later:
    """A request of a task."""

    __slots__ = ("bare",)

    def __init__(self, bare: Any) -> None:
        self.bare = bare

    def Wait(self) -> None:
        getcurrent().parent.switch(self.bare)


class _Handing:
    """A communicator whose calls are made by the caller of the running task; only these can be used in a lane."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.Get_rank, self.Get_size = comm.Get_rank, comm.Get_size

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> _Later:
        return _Later(_ask(self._comm.Isend, buffer, dest, tag))

    def Irecv(self, buffer: Any, source: int, tag: int = 0) -> _Later:
        return _Later(_ask(self._comm.Irecv, buffer, source, tag))

    def Allreduce(self, send: Any, recv: Any, op: Any) -> None:
        _Later(_ask(self._comm.Iallreduce, send, recv, op)).Wait()

    def Barrier(self) -> None:
        _Later(_ask(self._comm.Ibarrier)).Wait()


class Lane(Channel):
    """A channel for one task at a time, with a communicator and scratch memory of its own. Collective the first time.

    >>> from paceline import vmpi
    >>> import numpy as np
    >>> from paceline.collectives.ring import allreduce
    >>> def overlap(comm):
    ...     x, own = np.array([comm.Get_rank(), 1.0]), channel(comm)
    ...     tasks, lane = Tasks(own), Lane(own, 0)
    ...     tasks.start(lambda: allreduce(x, x, lane))
    ...     comm.Compute(1.0)
    ...     tasks.finish()
    ...     return x.tolist()
    >>> vmpi.run(overlap, ranks=3).values
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """

    compares = False

    def __init__(self, channel: Channel, number: int, *, counted: bool = True) -> None:
        """`counted`: its messages count together with those of the channel."""
        made = channel.child(f"lane {number}", lambda comm: comm.Dup())
        super().__init__(_Handing(made.comm if counted else made.bare), made._kept, made.bare)

    def meet(self, shared: SharedMemory) -> None:
        """Wait for the lane's ranks; what each wrote to shared memory before its call is visible to all after it."""
        _ask(shared.sync)
        self.Barrier()
        _ask(shared.sync)
