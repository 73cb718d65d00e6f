"""The private side of a communicator: a duplicate for our messages alone, and the memory kept with it.

It is an attribute of the caller's communicator, made at the first collective and freed with that
communicator. At the end of the process nothing is freed: that would be collective, and would hang the ranks
that did not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline.comm.counting import Recorded
from paceline.comm.events import Events
from paceline.comm.mpi import mpi_of
from paceline.comm.operations import Charged, Operation, operation
from paceline.comm.shared import SharedMemory, split_node
from paceline.vectors import carried, is_time_only, room

# Scratch memory above this is given back after the call.
KEEP_BYTES = 64 << 20


class _Kept:
    """What the views of one channel share."""

    def __init__(self, bare: Any, name: str, node_color: int | None = None) -> None:
        self.name = name
        self.node_color = node_color
        self.work: Callable[[str, float], object] | None = getattr(bare, "Work", None)
        self.time_only = is_time_only(bare)
        self.MPI: Any = None
        self.scratch: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.shared: SharedMemory | None = None
        self.children: dict[str, Channel] = {}
        self.facts: dict[str, Any] = {}

    def is_lost(self, dtype: DTypeLike, nbytes: int) -> bool:
        """Whether numbers of this type, so many bytes in a message, would not be carried."""
        return self.time_only and not carried(np.dtype(dtype).kind, nbytes)


class Channel:
    """A private duplicate of a communicator, with the calls that a collective needs, and scratch memory."""

    def __init__(self, comm: Any, kept: _Kept) -> None:
        self.comm = comm
        self._kept = kept
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.Isend, self.Irecv, self.Barrier = comm.Isend, comm.Irecv, comm.Barrier

    # ---- work on the simulator's clock; under MPI it takes the time that it takes

    @property
    def time_only(self) -> bool:
        """Whether time alone is simulated: see `paceline.vectors`."""
        return self._kept.time_only

    def operation(self, op: Any, dtype: np.dtype[Any], nbytes: int) -> Operation:
        """What `op` stands for on arrays of `dtype`, `nbytes` long in all; an operation stays what it is."""
        made = operation(op, dtype)
        work = self._kept.work
        if work is None or isinstance(made, Charged):
            return made
        return Charged(made, work, time_only=self._kept.is_lost(dtype, nbytes))

    def copy(self, into: NDArray[Any], values: NDArray[Any]) -> None:
        """into <- values."""
        if not self._kept.is_lost(into.dtype, into.nbytes):
            into[...] = values
        self.charge("copy", into.nbytes)

    def charge(self, kind: str, amount: float) -> None:
        """Work of a kind was done, of this amount."""
        if self._kept.work is not None:
            self._kept.work(kind, amount)

    def room(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Uninitialised memory to keep."""
        return room(self.bare, count, dtype)

    # ---- memory

    def scratch(self, count: int, dtype: DTypeLike, messages: int = 1) -> NDArray[Any]:
        """Uninitialised memory for one call; the next call gets the same. It is for so many messages at a time."""
        nbytes = count * np.dtype(dtype).itemsize
        if self._kept.is_lost(dtype, nbytes // messages):
            return room(self.bare, count, dtype)
        if nbytes > KEEP_BYTES:
            return np.empty(count, dtype)
        if nbytes > self._kept.scratch.size:
            self._kept.scratch = np.empty(nbytes, np.uint8)
        return self._kept.scratch[:nbytes].view(dtype)

    def shared(self, nbytes: int) -> SharedMemory:
        """At least `nbytes` of memory shared by all ranks, for one call. Collective."""
        kept = self._kept
        if kept.shared is None or kept.shared.nbytes < nbytes:
            if kept.shared is not None:
                kept.shared.free()
            kept.shared = SharedMemory(self.bare, nbytes, self.events)
        return kept.shared

    def child(self, name: str, make: Callable[[Any], Any]) -> Channel:
        """The channel over `make(communicator)`, a part of this one's ranks, made once."""
        if name not in self._kept.children:
            made = make(self.bare)
            self._kept.children[name] = Channel(made, _Kept(made, name))
        return self._kept.children[name].seen_by(self.comm)

    @property
    def bare(self) -> Any:
        """The duplicate itself, not counting."""
        return _bare(self.comm)

    @property
    def MPI(self) -> Any:
        """The names that go with the communicator: mpi4py.MPI, or what the simulator has in its place."""
        if self._kept.MPI is None:
            self._kept.MPI = mpi_of(self.bare)
        return self._kept.MPI

    @property
    def node_of(self) -> tuple[int, ...] | None:
        """The node of every rank, where the communicator itself says it."""
        return None if self._kept.node_color is not None else getattr(self.bare, "node_of", None)

    @property
    def node(self) -> Channel:
        """The ranks of this node."""
        color = self._kept.node_color
        return self.child("node", split_node if color is None else lambda c: c.Split(color, c.Get_rank()))

    def fact(self, name: str, find: Callable[[Channel], Any]) -> Any:
        """`find(channel)`, found once. Collective the first time; its messages are not counted."""
        if name not in self._kept.facts:
            self._kept.facts[name] = find(Channel(self.bare, self._kept))
        return self._kept.facts[name]

    def seen_by(self, comm: Any) -> Channel:
        """This channel, its messages counted where those of `comm` are."""
        if not isinstance(comm, Recorded):
            return self
        tracer = None if comm.tracer is None else comm.tracer.of(self.bare, self._kept.name)
        return Channel(Recorded(self.comm, comm.counts, tracer), self._kept)

    @property
    def events(self) -> Events | None:
        """Where what this rank does is written down, if it is."""
        tracer = self.comm.tracer if isinstance(self.comm, Recorded) else None
        return None if tracer is None else tracer.events

    def free(self) -> None:
        """Free the duplicate and everything that was made from it. Collective."""
        if self._kept.shared is not None:
            self._kept.shared.free()
        for child in self._kept.children.values():
            child.free()
        self.bare.Free()

    def revoke(self) -> None:
        """Let calls on the duplicate, and on everything that was made from it, fail on all ranks."""
        for child in self._kept.children.values():
            child.revoke()
        self.bare.Revoke()


def channel(comm: Any) -> Channel:
    """The channel of a communicator, or the channel itself. Collective the first time."""
    if isinstance(comm, Channel):
        return comm
    bare = _bare(comm)
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
    return found.seen_by(comm) if comm is not bare else found


def revoke(comm: Any) -> None:
    """Revoke a communicator (ULFM: `comm.Revoke`) and what paceline's collectives use in its place.

    When a rank has died only those that wait for it are told; this ends the waiting of all others, in any collective. Then
    `comm.Shrink()` is a communicator of those who live.
    """
    bare = _bare(comm)
    found: Channel | None = bare.Get_attr(_key(bare))
    if found is not None:
        found.revoke()
    bare.Revoke()


def pretend_nodes(comm: Any, node: int) -> Any:
    """A duplicate of `comm` that takes ranks with equal `node` for one node: many nodes on one machine.

    For tests and teaching. Collective; the caller frees it.
    """
    dup = comm.Dup()
    bare = _bare(dup)
    _attach(bare, _key(bare), node)
    return dup


def _attach(bare: Any, key: int, node_color: int | None) -> Channel:
    dup = bare.Dup()
    made = Channel(dup, _Kept(dup, "own", node_color))
    bare.Set_attr(key, made)
    return made


def _key(bare: Any) -> int:
    """The number under which this kind of communicator, and those derived from it, keep their channel."""
    kind: Any = type(bare)
    return _keyval_for(kind)


@cache
def _keyval_for(kind: Any) -> int:
    return _keyval(next(base for base in kind.__mro__ if "Create_keyval" in vars(base)))


@cache
def _keyval(kind: Any) -> int:
    key: int = kind.Create_keyval(delete_fn=lambda comm, key, channel: channel.free())
    return key


def _bare(comm: Any) -> Any:
    return comm.bare if isinstance(comm, Recorded) else comm
