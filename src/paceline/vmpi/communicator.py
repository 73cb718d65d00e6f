"""The communicator of simulated ranks: mpi4py's interface, under the virtual clock.

mpi4py's lower-case calls send Python objects (`ObjectCalls`), which are pickled and unpickled in this process: every
rank gets its own copy, as it would from another process. A program without MPI.COMM_WORLD gets its communicators from a
`Session`.
"""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from heapq import heappush
from inspect import signature
from sys import maxsize
from typing import Any, NoReturn

import numpy as np
from greenlet import getcurrent

from paceline.vmpi import constants as c
from paceline.vmpi.buffers import ARRAY, ARRAY_KINDS, Elements, memory_of
from paceline.vmpi.collectives import SUM, CollectiveBase, CollectiveCalls, Op, give_root
from paceline.vmpi.constants import CONGRUENT, IDENT, SIMILAR, UNDEFINED, UNEQUAL
from paceline.vmpi.errors import Aborted, ReadOnly, error_codes, mpi_error
from paceline.vmpi.faults import SurvivalCalls
from paceline.vmpi.groups import CollectiveRequest, CommState, Group, meet
from paceline.vmpi.handles import (
    Attributes,
    Handle,
    Handled,
    Info,
    Settings,
    constant_name,
    constants,
    raise_unsupported,
    refuse_threads,
)
from paceline.vmpi.kernel import (
    NO_QUEUE,
    InFlight,
    Message,
    first_unexpected,
    match,
    post,
    queue_of,
    take_unexpected,
)
from paceline.vmpi.memory import BUFFER_AUTOMATIC, Placeholder, buffer, raw_memory
from paceline.vmpi.network import equal_part, equal_parts
from paceline.vmpi.requests import (
    JointRequest,
    PartitionedReceive,
    PartitionedSend,
    PersistentRequest,
    ReceiveRequest,
    Request,
    fill_status,
    receive_into,
    wait_for_both,
)
from paceline.vmpi.rounds import evaluate
from paceline.vmpi.windows import WindowCalls

# Calling `__init__` on a new object is faster than calling its class, which leaves the interpreter's loop.
new = object.__new__


class Probing:
    """A communicator's probes: they find messages that have arrived and that no receive has taken."""

    __slots__ = ()
    context: int
    kernel: Any
    me: Any
    reach: int

    def Iprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        found = self._find_message(source, tag)
        if found is None:
            self.kernel.count_poll(self.me)
            return False
        _tell(status, found)
        return True

    def Probe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        _tell(status, self._wait_for_message("Probe", source, tag))
        return True

    def Mprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> MatchedMessage:
        found = self._wait_for_message("Mprobe", source, tag)
        _tell(status, found)
        return MatchedMessage(found, self.me)

    def Improbe(
        self, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage | None:
        found = self._find_message(source, tag)
        if found is None:
            self.kernel.count_poll(self.me)
            return None
        _tell(status, found)
        return MatchedMessage(found, self.me)

    def _wait_for_message(self, name: str, source: int | None, tag: int | None) -> Message:
        self.me.doing = name
        while (found := self._find_message(source, tag)) is None:
            self.kernel.progress(self.me)
        return found

    def _find_message(self, source: int | None, tag: int | None) -> Message | None:
        """Return the message that a receive would take; from MPI.PROC_NULL that is an empty one."""
        kernel = self.kernel
        source = None if source == kernel.special.any_source else source
        if tag is not None and tag < 0:
            tag = self._read_tag(tag)
        if source is not None and not 0 <= source < self.reach:
            return self._empty_message(source)
        kernel.take_arrived(self.me)
        found = first_unexpected(self.me, self.context, source, tag)
        if found is None and kernel.faults is not None:
            kernel.faults.detector.check_probe(self, source)
        return found

    def _read_tag(self, tag: int) -> int | None:
        """Return the tag of messages to be received, None for any tag; any other negative tag is an error."""
        if tag == self.kernel.special.any_tag:
            return None
        if tag < 0:
            raise mpi_error("ERR_TAG", f"a tag must be at least 0, or ANY_TAG; got {tag}")
        return tag

    def _check_tag(self, tag: int) -> None:
        """Raise an error for a tag that no message can have."""
        if tag > c.TAG_UB_VALUE:
            raise OverflowError(f"a tag must be at most {c.TAG_UB_VALUE}, MPI.TAG_UB; got {tag}")
        if tag < 0:
            raise mpi_error("ERR_TAG", f"a tag must be at least 0; got {tag}")

    def _check_peer(self, peer: Any) -> None:
        """Raise an error for a rank that the communicator does not have; PROC_NULL is allowed."""
        if not 0 <= peer < self.reach and peer != self.kernel.special.proc_null:
            raise mpi_error(
                "ERR_RANK", f"rank {peer} does not exist; this communicator has ranks 0 to {self.reach - 1}"
            )

    def _empty_message(self, source: int) -> Message:
        special = self.kernel.special
        self._check_peer(source)
        empty = Message(self.me, "", source, NO_QUEUE, source, special.any_tag)
        empty.Free()
        return empty


def _tell(status: Any, found: Message) -> None:
    if status is not None:
        fill_status(status, found.source, found.tag, found.nbytes)


class MatchedMessage(Handle):
    """A message found by Mprobe: only this object can receive it. It is null when it has been received."""

    __slots__ = ("__weakref__", "_message", "_rank")

    def __init__(self, message: Any = None, rank: Any = None) -> None:
        self._rank, self._message = rank, message
        if isinstance(message, MatchedMessage):
            self._rank, self._message = message._rank, message._message
        elif message is not None and not isinstance(message, (Message, str)):
            raise TypeError(f"expected a message; got {type(message).__name__}")
        elif isinstance(message, Message):
            if message.name:
                take_unexpected(rank, message.context, message.source, message.tag)
            else:
                self._message = "MPI_MESSAGE_NO_PROC"

    def _take(self) -> tuple[Any, Message]:
        """Return the rank that receives and the message, and become null."""
        message: Any = self._message
        rank = self._rank or current_world().me
        if message is None:
            raise mpi_error("ERR_REQUEST", "the null message cannot be received")
        if isinstance(message, str):
            special = rank.kernel.special
            message = Message(rank, "", special.proc_null, NO_QUEUE, special.proc_null, special.any_tag)
            message.Free()
        if constant_name(self) is None:
            self._message = None
        return rank, message

    def Recv(self, buf: Any, status: Any = None) -> None:
        self.Irecv(buf).Wait(status)

    def Irecv(self, buf: Any) -> Request:
        rank, message = self._take()
        given = bytearray() if message.to == NO_QUEUE else buf
        receive = receive_into(rank, "Imrecv", given, message.source, message.tag)
        match(rank, receive, message)
        return receive

    Mrecv, Imrecv = Recv, Irecv

    def irecv(self) -> Request:
        return receive_matched(*self._take())

    def recv(self, status: Any = None) -> Any:
        return self.irecv().wait(status)

    @classmethod
    def Probe(cls, comm: Any, source: int | None = None, tag: int | None = None, status: Any = None) -> Any:
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(cls, comm: Any, source: int | None = None, tag: int | None = None, status: Any = None) -> Any:
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe

    def Free(self) -> None:
        """Forget the message."""
        self._message = None

    def __bool__(self) -> bool:
        return self._message is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MatchedMessage) and self._message is other._message

    __hash__ = None  # type: ignore[assignment]


MESSAGE_NULL, MESSAGE_NO_PROC = MatchedMessage(), MatchedMessage("MPI_MESSAGE_NO_PROC")
constants.update(MESSAGE_NULL=MESSAGE_NULL, MESSAGE_NO_PROC=MESSAGE_NO_PROC)


def current_world() -> Any:
    """Return the communicator of all ranks, as the running rank has it."""
    found = getattr(getcurrent(), "paceline_world", None)
    if found is None:
        if threading.current_thread() is not threading.main_thread():
            refuse_threads()
        raise RuntimeError(
            "only a simulated rank has an MPI.COMM_WORLD; use it inside the function given to vmpi.run"
        )
    return found


class PersistentCalls:
    """A communicator's persistent requests: every Start repeats a call."""

    __slots__ = ()

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> PersistentRequest:
        return self._make_persistent("Isend", buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> PersistentRequest:
        return self._make_persistent("Issend", buf, dest, tag)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> PersistentRequest:
        return self._make_persistent("Ibsend", buf, dest, tag)

    Rsend_init = Send_init

    def Recv_init(self, buf: Any, source: int | None = None, tag: int | None = None) -> PersistentRequest:
        return self._make_persistent("Irecv", buf, source, tag)

    def Psend_init(
        self, buf: Any, partitions: int, dest: int, tag: int = 0, info: Any = None
    ) -> PersistentRequest:
        comm: Any = self
        self._check_persistent(buf, dest, tag, sends=True)
        if partitions < 0:
            raise mpi_error("ERR_ARG", f"partitions must be at least 0; got {partitions}")
        return PartitionedSend(comm.me, lambda: comm.Isend(buf, dest, tag, "Psend"), partitions)

    def Precv_init(
        self, buf: Any, partitions: int, source: int | None = None, tag: int | None = None, info: Any = None
    ) -> PersistentRequest:
        comm: Any = self
        self._check_persistent(buf, source, tag, sends=False)
        if partitions < 0:
            raise mpi_error("ERR_ARG", f"partitions must be at least 0; got {partitions}")
        return PartitionedReceive(comm.me, lambda: comm.Irecv(buf, source, tag, "Precv"))

    def _make_persistent(self, name: str, buf: Any, peer: int | None, tag: int | None) -> PersistentRequest:
        comm: Any = self
        self._check_persistent(buf, peer, tag, sends=name != "Irecv")
        call = getattr(comm, name)
        return PersistentRequest(comm.me, lambda: call(buf, peer, tag))

    def _check_persistent(self, buf: Any, peer: int | None, tag: int | None, *, sends: bool) -> None:
        """Raise an error for arguments that every Start would refuse."""
        comm: Any = self
        if tag is not None and tag < 0:
            (comm._check_tag if sends else comm._read_tag)(tag)
        if sends or (peer is not None and peer != comm.kernel.special.any_source):
            comm._check_peer(peer)
        if isinstance(buf, (list, tuple)):
            Elements(buf)


def add_persistent(cls: Any, *names: str) -> None:
    """Add the persistent form of non-blocking collectives to a class: `Bcast_init` for `Ibcast`."""

    def make(name: str) -> Any:
        def start_again(self: Any, *arguments: Any, info: Any = None, **options: Any) -> PersistentRequest:
            call = getattr(self, name)
            root = signature(call).bind(*arguments, **options).arguments.get("root")
            if root is not None:
                self._check_root(root)
            return PersistentRequest(self.me, lambda: call(*arguments, **options))

        start_again.__name__ = start_again.__qualname__ = f"{name[1:].capitalize()}_init"
        start_again.__doc__ = f"Return a request that calls {name} each time it is started."
        return start_again

    for name in names:
        call = make(name)
        setattr(cls, call.__name__, call)


add_persistent(
    PersistentCalls, "Ibarrier", "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Iallgather", "Iallgatherv",
    "Ialltoall", "Ialltoallv", "Ialltoallw", "Ireduce", "Iallreduce", "Ireduce_scatter", "Ireduce_scatter_block", "Iscan",
    "Iexscan",
)  # fmt: skip


COMM_KINDS: dict[str, Any] = {}
"""The classes of communicators: intra, inter, cart, graph, dist_graph."""


def make_comm(state: CommState, rank: int, kind: Any = None) -> Any:
    """Return the communicator of one rank, of the class that fits its state unless `kind` is given."""
    if kind is None:
        word = "inter" if state.groups else "intra" if state.topology is None else state.topology.kind
        kind = COMM_KINDS[word]
    found = object.__new__(kind)
    found._fill(state, rank)
    return found


def check_color(color: int) -> None:
    """Raise an error for a color that no communicator can be split by."""
    if color < 0 and color != UNDEFINED:
        raise mpi_error("ERR_ARG", f"a color must be at least 0, or UNDEFINED; got {color}")


class CommManagement(Attributes, Handled):
    """A communicator's name, its group, its attributes, and communicators made from it."""

    __slots__ = ()
    state: Any
    kernel: Any
    me: Any
    members: Any
    rank: int
    size: int
    place: int

    @property
    def MPI(self) -> Any:
        """The replacement of mpi4py.MPI during the run."""
        return self.kernel.MPI

    def _settings(self) -> Any:
        return self._unwrap().own_of(self.place)

    def _get_attributes(self) -> dict[int, Any]:
        return self._settings().attributes  # type: ignore[no-any-return]

    _fixed = (c.TAG_UB, c.IO, c.WTIME_IS_GLOBAL, c.APPNUM, c.LASTUSEDCODE, c.UNIVERSE_SIZE)

    def _fixed_attribute(self, keyval: int) -> Any:
        return {
            c.TAG_UB: c.TAG_UB_VALUE, c.IO: self.kernel.special.any_source, c.WTIME_IS_GLOBAL: 1, c.APPNUM: 0,
            c.LASTUSEDCODE: error_codes.latest, c.UNIVERSE_SIZE: len(self.kernel.ranks),
        }[keyval]  # fmt: skip

    def Get_name(self) -> str:
        if self.state is None:
            return "MPI_COMM_NULL"
        own = self.state.own.get(self.place)
        return self.state.name if own is None else own.name  # type: ignore[no-any-return]

    def Set_name(self, name: str) -> None:
        self._settings().name = name

    name = property(Get_name, Set_name)

    def Get_group(self) -> Group:
        return Group(self.members, self.me.number)

    group = property(Get_group)

    def Get_topology(self) -> int:
        topology = self._unwrap().topology
        return UNDEFINED if topology is None else topology.number

    def Is_inter(self) -> bool:
        return self._unwrap().groups is not None

    def Is_intra(self) -> bool:
        return not self.Is_inter()

    topology = property(Get_topology)
    is_inter = property(Is_inter)
    is_intra = property(Is_intra)
    is_topo = property(lambda self: self.Get_topology() != UNDEFINED)

    def _unwrap(self) -> CommState:
        """Return the state, or raise if the communicator is null."""
        if self.state is None:
            raise mpi_error("ERR_COMM", "the null communicator has no ranks")
        found: CommState = self.state
        return found

    def Compare(self, comm: Any) -> int:
        mine, theirs = self._unwrap(), comm._unwrap()
        if mine is theirs:
            return IDENT
        sides = [(self.Get_group(), comm.Get_group())]
        if mine.groups or theirs.groups:
            if not (mine.groups and theirs.groups):
                return UNEQUAL
            sides.append((Group(self.peers), Group(comm.peers)))  # type: ignore[attr-defined]
        found = max(one.Compare(other) for one, other in sides)
        return {IDENT: CONGRUENT, SIMILAR: SIMILAR}.get(found, UNEQUAL)

    # ---- other communicators

    def _agree(self, name: str, given: Any, finish: Any) -> Any:
        """Meet the other ranks in a call that takes no time, and return this rank's result."""
        met = meet(self, name, given, finish, free_of_charge=True)
        met.Wait()
        return met.result

    def _duplicate(self, given: list[Any]) -> list[CommState]:
        state = self.state
        made = CommState(self.kernel, state.members, "", state.groups, state.topology)
        return [made] * len(given)

    def Dup(self, info: Any = None) -> Any:
        made = make_comm(self._agree("Dup", None, self._duplicate), self.rank, type(self))
        if info:
            made.Set_info(info)
        self._copy_all(made)
        return made

    def Clone(self) -> Any:
        return self.Dup()

    def Dup_with_info(self, info: Any) -> Any:
        return self.Dup(info)

    def Idup(self, info: Any = None) -> tuple[Any, CollectiveRequest]:
        """Return a duplicate, which may be used when the request is done."""
        self._unwrap()
        made: Any = object.__new__(type(self))
        made.state = None

        def take(found: CommState) -> None:
            made._fill(found, self.rank)
            self._copy_all(made)

        return made, meet(self, "Idup", None, self._duplicate, free_of_charge=True, take=take)

    Idup_with_info = Idup

    def _make_null(self) -> Any:
        """Return a null communicator that will be filled, without a topology."""
        return COMM_KINDS["inter" if self._unwrap().groups else "intra"]()

    def Create(self, group: Group) -> Any:
        """Make a communicator of the ranks of a group. All ranks of this communicator call it, with the same group."""
        self._unwrap()

        def finish(given: list[Any]) -> list[Any]:
            made: dict[Any, CommState] = {}
            found: list[Any] = []
            for rank, members in enumerate(given):
                number = self.members[rank]
                if number not in members:
                    found.append(None)
                    continue
                if members not in made:
                    made[members] = CommState(self.kernel, members, "")
                found.append((made[members], members.index(number)))
            return found

        return self._make_comm(self._agree("Create", tuple(group.members), finish))

    def _make_comm(self, found: Any) -> Any:
        """Return this rank's communicator, found by its state and rank; a null one for None."""
        return self._make_null() if found is None else make_comm(*found)

    def Split(self, color: int = 0, key: int = 0) -> Any:
        self._unwrap()
        check_color(color)

        def finish(given: list[tuple[int, int]]) -> list[Any]:
            sides: dict[int, list[tuple[int, int]]] = {}
            for rank, (color, key) in enumerate(given):
                sides.setdefault(color, []).append((key, rank))
            found: list[Any] = [None] * self.size
            for color, side in sides.items():
                if color == UNDEFINED:
                    continue
                side.sort()
                group = CommState(self.kernel, tuple(self.members[rank] for _, rank in side), "")
                for number, (_, rank) in enumerate(side):
                    found[rank] = (group, number)
            return found

        return self._make_comm(self._agree("Split", (color, key), finish))

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Any:
        """Split by what ranks share: the memory of a node is all that the simulator knows."""
        resource = None if not info else info.Get("mpi_hw_resource_type")
        color = self.node_of[self.rank]  # type: ignore[attr-defined]
        if split_type == c.COMM_TYPE_HW_UNGUIDED:
            nodes = set(self.node_of)  # type: ignore[attr-defined]
            if len(nodes) > 1 and info:
                info.Set("mpi_hw_resource_type", "mpi_shared_memory")
            color = color if len(nodes) > 1 else UNDEFINED
        elif split_type in (c.COMM_TYPE_HW_GUIDED, c.COMM_TYPE_RESOURCE_GUIDED):
            color = color if resource == "mpi_shared_memory" else UNDEFINED
        elif split_type == UNDEFINED:
            color = UNDEFINED
        elif split_type != c.COMM_TYPE_SHARED:
            raise mpi_error("ERR_ARG", f"ranks cannot be split by type {split_type}")
        return self.Split(color, key)

    def Free(self) -> None:
        if self._unwrap().permanent:
            raise mpi_error("ERR_COMM", f"{self.Get_name()} cannot be freed")
        self._delete_all()
        meet(self, "Free", None, lambda given: given, free_of_charge=True).Wait()
        self._forget()  # type: ignore[attr-defined]

    def Disconnect(self) -> None:
        self.Free()

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the simulation, whatever the other ranks are doing."""
        raise Aborted(errorcode)

    @classmethod
    def Get_parent(cls) -> Any:
        return COMM_KINDS["inter"]()

    @classmethod
    def Join(cls, fd: int) -> NoReturn:
        raise_unsupported("connections between programs")

    # ---- buffers of Bsend, which the simulator does not need

    def Attach_buffer(self, buf: Any) -> None:
        if buf is not None and not isinstance(buf, Placeholder) and raw_memory(buf).readonly:
            raise ReadOnly("messages cannot be buffered in a read-only buffer")
        self._settings().buffer = buf

    def Detach_buffer(self) -> Any:
        return detach_buffer(self._settings())

    def Flush_buffer(self) -> None:
        """Do nothing: the simulator has sent what was buffered."""

    def Iflush_buffer(self) -> Request:
        return _make_finished(self.me, "Iflush_buffer")


def detach_buffer(owner: Any) -> Any:
    """Return the memory that was attached for buffered messages, and forget it."""
    found, owner.buffer = owner.buffer, None
    if found is None or found is BUFFER_AUTOMATIC:
        return found
    return buffer.frombuffer(found)


def _make_finished(rank: Any, name: str) -> Request:
    request = Request(rank, name)
    request.done = True
    return request


class PointToPoint(Probing):
    """Messages between two ranks. `peers` and `partners`: the ranks that they go to and come from, `reach` of them."""

    __slots__ = (
        "__weakref__",
        "base",
        "context",
        "kernel",
        "key",
        "me",
        "members",
        "partners",
        "peers",
        "place",
        "rank",
        "reach",
        "size",
        "state",
    )

    state: Any

    def _fill(self, state: CommState, rank: int) -> None:
        """Become the communicator of one rank."""
        self.state = state
        self.kernel = state.kernel
        self.rank = self.place = rank
        self.members = self.peers = state.members
        self.partners = state.ranks
        self.size = self.reach = len(state.members)
        self.context, self.base = state.context, queue_of(state.context, 0)
        self.key = queue_of(state.context, rank)
        self.me = state.kernel.ranks[state.members[rank]]

    def _forget(self) -> None:
        """Become null."""
        self.state = None
        for name in PointToPoint.__slots__:
            if name not in ("__weakref__", "state"):
                delattr(self, name)
        self.__class__ = _find_null_class(type(self))

    # ---- sending

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self.Isend(buf, dest, tag, "Issend", synchronous=True)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag, "Send").Wait()

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag, "Ssend", synchronous=True).Wait()

    def Isend(
        self, buf: Any, dest: int, tag: int = 0, name: str = "Isend", synchronous: bool = False
    ) -> Request:
        kernel, me = self.kernel, self.me
        if kernel.gathering is not None:
            kernel.let_earlier_go(me)
        if not 0 <= tag <= c.TAG_UB_VALUE:
            self._check_tag(tag)
        if not 0 <= dest < self.reach:
            return self._make_null_request(dest, name)
        try:
            receiver = self.partners[dest]
        except TypeError:  # mpi4py takes 1.0 for a rank
            return self.Isend(buf, int(dest), tag, name, synchronous)
        if (
            buf.__class__ is not ARRAY
            or not buf.flags.c_contiguous
            or not (kind := ARRAY_KINDS.get(buf.dtype))
        ):
            buf, kind = memory_of(buf)
        nbytes, other = buf.nbytes, receiver.number
        if (
            me.node == receiver.node and kernel.plain and not synchronous
        ):  # most messages: `wires.send`, inlined
            costs = me.inside.get(nbytes) or kernel.wires.inside_costs(me.node, nbytes)
            own, flight, taking, eager = costs[3]
            me.t = free = me.t + own
            arrives = free + flight
        else:
            eager = not (synchronous or kernel.rendezvous) and kernel.wires.eager(me.number, other, nbytes)
            if eager:
                kernel.let_earlier_go(me)  # a network card is shared in the order of time
            me.t, arrives, taking = kernel.wires.send(me.number, other, nbytes, me.t, eager)
        data: Any = None
        if kernel.carries is None or kernel.carries(kind, nbytes):
            # An announced message stays in the sender's memory until the receiver fetches it.
            data = buf.tobytes() if eager or kernel.strict else memoryview(buf)
        message: Message = new(Message)
        message.rank = me
        message.name = name
        message.dest = dest
        message.data = data
        message.nbytes = nbytes
        message.kind = kind
        message.to = self.key
        message.source = self.rank
        message.tag = tag
        message.done = message.eager = eager
        message.taking = taking
        message.spent = False
        message.origin = message.error = None
        kernel.messages += 1
        kernel.bytes += nbytes
        latest = me.latest
        if arrives < latest.get(other, 0.0):  # messages between the same two ranks keep their order
            arrives = latest[other]
        else:
            latest[other] = arrives
        thing: Any = message
        if kernel.checks:
            thing = self._check_message(message, buf, receiver, arrives)
            if thing is None:
                return message
        heappush(receiver.inbox, (arrives, next(kernel.sequence), thing))
        if arrives < receiver.wake:  # `kernel.schedule`, inlined
            receiver.wake = arrives
            receiver.entry = entry = (
                arrives if arrives > receiver.t else receiver.t, next(kernel.ties), receiver
            )  # fmt: skip
            heappush(kernel.heap, entry)
        return message

    def _check_message(self, message: Message, buf: Any, receiver: Any, arrives: float) -> Any:
        """Watch a message and let faults and other messages delay it; return what arrives, None if it is lost or late."""
        kernel, me, other = self.kernel, self.me, receiver.number
        if kernel.strict:
            message.view = buf
            message.watch()
        if kernel.faults is not None and kernel.faults.intercept(self, message, other, arrives):
            return None
        if kernel.revises and me.node != receiver.node:
            flow, order = kernel.wires.flow, kernel.in_flight
            thing = InFlight(
                message, arrives, None if flow is None else flow.arrives, order.get((me.number, other)), flow
            )
            order[me.number, other] = thing
            return thing
        return message

    Rsend, Irsend = Send, Isend

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Send a copy of the buffer, which is free at once."""
        if dest == self.kernel.special.proc_null:
            return self.Isend(buf, dest, tag, "Ibsend")
        view, kind = memory_of(buf)
        copy = view.tobytes()
        if copy and kind[0] not in "V?" and "," not in kind:
            self.Isend(np.frombuffer(copy, kind), dest, tag, "Ibsend").Free()
        else:
            self.Isend(copy, dest, tag, "Ibsend").Free()
        return _make_finished(self.me, "Ibsend")

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Ibsend(buf, dest, tag).Wait()

    def _make_null_request(self, peer: Any, name: str) -> Request:
        """Return the request of a message to or from MPI.PROC_NULL, which is done at once."""
        self._check_peer(peer)
        if self.kernel.faults is not None:
            self.kernel.faults.detector.refuse(self, name)
        if "recv" not in name.lower():
            return Message(self.me, name, peer, self.key, self.rank, 0)
        request = receive_into(self.me, name, bytearray(), None, None)
        request.deliver(None, 0, peer, self.kernel.special.any_tag)
        return request

    # ---- receiving

    def Recv(self, buf: Any, source: int | None = None, tag: int | None = None, status: Any = None) -> None:
        self.Irecv(buf, source, tag, "Recv").Wait(status)

    def Irecv(
        self, buf: Any, source: int | None = None, tag: int | None = None, name: str = "Irecv"
    ) -> Request:
        kernel, me = self.kernel, self.me
        if tag is not None and tag < 0:
            tag = self._read_tag(tag)
        if source is not None and not 0 <= source < self.reach:
            if source != kernel.special.any_source:
                return self._make_null_request(source, name)
            source = None
        receive: ReceiveRequest
        if buf.__class__ is ARRAY and buf.flags.carray and (kind := ARRAY_KINDS.get(buf.dtype)):
            receive = new(ReceiveRequest)
            receive.__init__(me, name, buf, kind, source, tag)  # type: ignore[misc]
        else:
            receive = receive_into(me, name, buf, source, tag)
        me.t += kernel.wires.post
        queue = None if source is None or me.wild else me.posted.get(key := self.base + source)
        if queue is None or me.unexpected.get(key):
            post(me, self.context, receive)
        else:  # most receives: `post`, inlined
            receive.order = 0
            queue.append(receive)
        if kernel.faults is not None:
            kernel.faults.detector.check_receive(self, receive)
        return receive

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int | None = None,
        recvtag: int | None = None, status: Any = None,
    ) -> None:  # fmt: skip
        receiving, sending = self._send_and_receive(
            "Sendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag
        )
        wait_for_both(receiving, sending, status)

    def Sendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int | None = None, recvtag: int | None = None,
        status: Any = None,
    ) -> None:  # fmt: skip
        self.Isendrecv_replace(buf, dest, sendtag, source, recvtag).Wait(status)

    def Isendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int | None = None,
        recvtag: int | None = None,
    ) -> Request:  # fmt: skip
        receiving, sending = self._send_and_receive(
            "Isendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag
        )
        return JointRequest(self.me, "Isendrecv", sending, receiving)

    def _send_and_receive(
        self, name: str, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int | None,
        recvtag: int | None,
    ) -> tuple[Request, Request]:  # fmt: skip
        """Start a receive and a send; if what is to be sent is refused, nothing is left to be received."""
        receiving = self.Irecv(recvbuf, source, recvtag, f"{name} (recv)")
        try:
            return receiving, self.Isend(sendbuf, dest, sendtag, f"{name} (send)")
        except Exception:
            receiving.Cancel()
            receiving.Free()
            raise

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int | None = None, recvtag: int | None = None
    ) -> Request:
        if dest == source == self.kernel.special.proc_null:
            return self.Isendrecv(None, dest, sendtag, None, source, recvtag)
        view, kind = memory_of(buf)
        out: Any = np.array(view) if view.nbytes else view
        if kind != memory_of(out)[1] and kind[0] not in "V?" and "," not in kind:
            out = np.frombuffer(view.tobytes(), kind)
        return self.Isendrecv(out, dest, sendtag, buf, source, recvtag)

    # ---- the clock

    def Wtime(self) -> float:
        """Return this rank's clock, in virtual seconds."""
        return self.me.t  # type: ignore[no-any-return]

    def Compute(self, seconds: float) -> None:
        """Let this rank compute for this many seconds."""
        if not seconds >= 0:
            raise ValueError(f"seconds must be at least 0; got {seconds}")
        me = self.me
        seconds *= me.slow
        me.t = me.t + seconds if me.pace is None else me.pace(me.t, seconds)

    def Work(self, kind: str, amount: float) -> None:
        """Let this rank do an amount of work, whose time the compute model defines."""
        me = self.me
        compute = self.kernel.compute
        if compute is not None:
            seconds = compute.seconds(kind, amount, me.number) * me.slow
            me.t = me.t + seconds if me.pace is None else me.pace(me.t, seconds)

    def WorkSeconds(self, kind: str, amount: float) -> float:
        """Return the seconds that this rank takes for an amount of work, this time; `Compute` lets it take them."""
        compute = self.kernel.compute
        return 0.0 if compute is None else compute.seconds(kind, amount, self.me.number)

    Evaluate = evaluate

    def Pass(self) -> None:
        """Let ranks with an earlier clock run first; call this before accessing memory that ranks share."""
        self.kernel.let_earlier_go(self.me)

    def LetOthersBegin(self) -> None:
        """Let other ranks begin work until the first of all results is needed; call this when the clock has advanced."""
        self.kernel.let_others_begin(self.me)

    def Step(self) -> None:
        """Begin the next step, as counted by `fail_at(step=…)`."""
        self.me.steps += 1
        at_step = self.kernel.at_step
        if at_step is not None:
            at_step(self.me)


# ---- Python objects


class Pickle:
    """mpi4py's MPI.Pickle: how objects become bytes, and bytes objects.

    >>> some = Pickle()
    >>> some.loads(some.dumps([1, 2]))
    [1, 2]
    """

    def __init__(
        self, dumps: Any = pickle.dumps, loads: Any = pickle.loads, protocol: int | None = None,
        threshold: int = 1 << 18,
    ) -> None:  # fmt: skip
        self._dumps, self._loads = dumps, loads
        if protocol is None and dumps is pickle.dumps:
            protocol = pickle.HIGHEST_PROTOCOL
        self.PROTOCOL = protocol
        self.THRESHOLD = threshold

    def dumps(self, obj: Any) -> bytes:
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)  # type: ignore[no-any-return]

    def loads(self, data: Any) -> Any:
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[buffer]]:
        """Return an object's bytes, and the buffers of at least `THRESHOLD` bytes that are not among them."""
        apart: list[buffer] = []

        def keep(found: pickle.PickleBuffer) -> bool:
            view = buffer.frombuffer(found.raw())
            if view.nbytes >= self.THRESHOLD:
                apart.append(view)
                return False
            return True

        return self._dumps(obj, max(self.PROTOCOL or 5, 5), buffer_callback=keep), apart

    def loads_oob(self, data: Any, buffers: Any) -> Any:
        return self._loads(data, buffers=buffers)


def current_pickle() -> Pickle:
    """Return the MPI.pickle of the running rank, which the program may have changed."""
    running: Any = getcurrent()
    try:
        found: Pickle = running.paceline_pickle
    except AttributeError:
        running.paceline_pickle = found = Pickle()
    return found


def pickle_object(thing: Any) -> bytes:
    """Return the bytes that stand for an object in a message."""
    return current_pickle().dumps(thing)


def unpickle_object(data: bytes) -> Any:
    """Return a copy of the object that was sent; the bytes come from this very process."""
    return current_pickle().loads(data)


def combine_objects(rows: Sequence[bytes], op: Any) -> Any:
    """Combine pickled objects in mpi4py's order: neighbours first, then pairs of them, and so on.

    >>> rows = [pickle_object(each) for each in "abcde"]
    >>> combine_objects(rows, lambda a, b: f"({a}{b})")
    '(((ab)(cd))e)'
    """
    found = [unpickle_object(row) for row in rows]
    while len(found) > 1:
        pairs = [op(*pair) for pair in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[len(pairs) * 2 :]
    return found[0]


def scan_objects(rows: Sequence[bytes], op: Any, *, exclusive: bool) -> list[Any]:
    """Combine the pickled objects of the ranks up to each rank, or before it, in mpi4py's order.

    >>> rows = [pickle_object(each) for each in "abcd"]
    >>> scan_objects(rows, lambda a, b: f"({a}{b})", exclusive=False)
    ['a', '(ab)', '((ab)c)', '((ab)(cd))']
    >>> scan_objects(rows, lambda a, b: f"({a}{b})", exclusive=True)
    [None, 'a', '(ab)', '((ab)c)']
    """
    blocks = [unpickle_object(row) for row in rows]  # the ranks that have exchanged their objects so far
    found: list[Any] = [None] * len(rows) if exclusive else blocks[:]
    width = 1
    while width < len(rows):
        sent = [pickle_object(block) for block in blocks]
        for rank, block in enumerate(blocks):
            partner = rank ^ width
            if partner >= len(rows):
                continue
            theirs = unpickle_object(sent[partner])
            if partner > rank:
                blocks[rank] = op(block, theirs)
                continue
            blocks[rank] = op(theirs, block)
            first = exclusive and rank & (width - 1) == 0
            found[rank] = theirs if first else op(theirs, found[rank])
        width *= 2
    return found


class ObjectReceiveRequest(ReceiveRequest):
    """The receive of an object, of any length."""

    __slots__ = ("_data",)

    def __init__(self, rank: Any, name: str, source: int | None, tag: int | None) -> None:
        Request.__init__(self, rank, name)
        self.saved = self.cancelled = None
        self.nbytes, self.kind = maxsize, "u1"
        self.wanted_source, self.wanted_tag = source, tag
        self._data: bytes | None = None

    def fetch(self, data: memoryview) -> bytes:
        return data.tobytes()

    def deliver(self, data: bytes | None, nbytes: int, source: int, tag: int) -> None:
        self._data = data
        self.source, self.tag, self.count = source, tag, nbytes
        self.done = True

    def message(self) -> Any:
        """Return the object: a copy of what was sent."""
        data, self._data = self._data, None
        return unpickle_object(data) if data else None


class ObjectCalls(CollectiveBase):
    """A communicator's calls for objects."""

    __slots__ = ()

    # ---- between two ranks

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send_object("send", obj, dest, tag).Wait()

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send_object("ssend", obj, dest, tag).Wait()

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._send_object("isend", obj, dest, tag)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._send_object("issend", obj, dest, tag)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.ibsend(obj, dest, tag).Wait()

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        comm: Any = self
        return comm.Ibsend(self._pickle_for(dest, obj), dest, tag)  # type: ignore[no-any-return]

    def _send_object(self, name: str, obj: Any, dest: int, tag: int) -> Request:
        comm: Any = self
        return comm.Isend(self._pickle_for(dest, obj), dest, tag, name, synchronous="ss" in name)  # type: ignore[no-any-return]

    def _pickle_for(self, dest: int, obj: Any) -> bytes:
        """Return the bytes that stand for an object; none for MPI.PROC_NULL, which any object can be sent to."""
        return b"" if dest == self.kernel.special.proc_null else pickle_object(obj)

    def recv(
        self, buf: Any = None, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> Any:
        if buf is not None:
            warnings.warn("the buffer of recv is not used (deprecated in mpi4py)", UserWarning, stacklevel=2)
        return self._receive_object("recv", source, tag).wait(status)

    def irecv(self, buf: Any = None, source: int | None = None, tag: int | None = None) -> Request:
        return self._receive_object("irecv", source, tag)

    def _receive_object(self, name: str, source: int | None, tag: int | None) -> Request:
        comm: Any = self
        if tag is not None and tag < 0:
            tag = comm._read_tag(tag)
        if source == comm.kernel.special.any_source:
            source = None
        if source is not None and not 0 <= source < comm.reach:
            return comm._make_null_request(source, name)  # type: ignore[no-any-return]
        receive = ObjectReceiveRequest(comm.me, name, source, tag)
        comm.me.t += comm.kernel.wires.post
        post(comm.me, comm.context, receive)
        return receive

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int | None = None,
        recvtag: int | None = None, status: Any = None,
    ) -> Any:  # fmt: skip
        receive = self._receive_object("sendrecv (recv)", source, recvtag)
        try:
            send = self._send_object("sendrecv (send)", sendobj, dest, sendtag)
        except Exception:  # nothing is left to be received
            receive.Cancel()
            receive.Free()
            raise
        found = receive.wait(status)
        send.Wait()
        return found

    def probe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        comm: Any = self
        return comm.Probe(source, tag, status)  # type: ignore[no-any-return]

    def iprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        comm: Any = self
        return comm.Iprobe(source, tag, status)  # type: ignore[no-any-return]

    def mprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> Any:
        comm: Any = self
        return comm.Mprobe(source, tag, status)

    def improbe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> Any:
        comm: Any = self
        return comm.Improbe(source, tag, status)

    # ---- all together

    def barrier(self) -> None:
        comm: Any = self
        comm.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        root = self._check_root(root)
        given = pickle_object(obj) if self.rank == root else None
        return unpickle_object(
            self._meet_objects("bcast", given, lambda rows: [rows[root]] * self.size, root)
        )

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        root = self._check_root(root)
        found = self._meet_objects(
            "gather", pickle_object(sendobj), lambda rows: give_root(root, rows, self.size), root
        )
        return None if found is None else [unpickle_object(row) for row in found]

    def allgather(self, sendobj: Any) -> list[Any]:
        rows = self._meet_objects("allgather", pickle_object(sendobj), lambda rows: [rows] * self.size)
        return [unpickle_object(row) for row in rows]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        root = self._check_root(root)
        given = self._row(sendobj) if self.rank == root else None
        return unpickle_object(self._meet_objects("scatter", given, lambda rows: rows[root], root))

    def alltoall(self, sendobj: Any) -> list[Any]:
        rows = self._meet_objects("alltoall", self._row(sendobj), lambda rows: list(zip(*rows, strict=True)))
        return [unpickle_object(row) for row in rows]

    def reduce(self, sendobj: Any, op: Any = None, root: int = 0) -> Any:
        root = self._check_root(root)
        found = self._combine_objects(
            "reduce", sendobj, op, lambda sums: give_root(root, sums[0], self.size), root
        )
        return None if found is None else unpickle_object(found)

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return unpickle_object(self._combine_objects("allreduce", sendobj, op, lambda sums: sums * self.size))

    def scan(self, sendobj: Any, op: Any = None) -> Any:
        return unpickle_object(self._combine_objects("scan", sendobj, op, lambda sums: sums))

    def exscan(self, sendobj: Any, op: Any = None) -> Any:
        return unpickle_object(self._combine_objects("exscan", sendobj, op, lambda sums: sums))

    def _combine_objects(
        self, name: str, thing: Any, op: Any, finish: Callable[[list[bytes]], Sequence[Any]], root: int | None = None
    ) -> Any:  # fmt: skip
        """Combine the objects of all ranks in rank order; `finish` is given the result, or that of each rank."""
        operation: Callable[[Any, Any], Any] = SUM if op is None else op
        if isinstance(op, Op) and not op:
            raise ValueError("op must be an operation; got a null or freed one")

        def combine(rows: list[bytes]) -> Sequence[Any]:
            if name in ("scan", "exscan"):
                found = scan_objects(rows, operation, exclusive=name == "exscan")
            else:
                found = [combine_objects(rows, operation)]
            return finish([pickle_object(each) for each in found])

        called = op.name if isinstance(op, Op) else "SUM" if op is None else "a user-defined operation"
        return self._meet_objects(name, pickle_object(thing), combine, root, op=called)

    def _meet_objects(
        self, name: str, given: Any, finish: Callable[[list[Any]], Sequence[Any]], root: int | None = None, **more: Any
    ) -> Any:  # fmt: skip
        arguments = ({} if root is None else {"root": root}) | more
        comm: Any = self
        own = comm.state.own.get(comm.place)
        with nullcontext() if own is None else own.lock(name):
            met: CollectiveRequest = meet(
                self, name, given, finish,
                arguments=tuple(arguments.items()), nbytes=lambda rows: _weigh(name, rows, root, self._nodes()),
            )  # fmt: skip
            met.Wait()
        return met.result

    def _row(self, things: Sequence[Any] | None) -> list[bytes]:
        found = [pickle_object(thing) for thing in ([None] * self.size if things is None else things)]
        if len(found) != self.size:
            raise ValueError(f"expected one object for each of the {self.size} ranks; got {len(found)}")
        return found


def _weigh(name: str, rows: list[Any], root: int | None, nodes: list[int]) -> int:
    """Return the bytes of a collective of objects, for its cost."""
    if name in ("gather", "allgather"):
        return equal_part([len(row) for row in rows], nodes, root)
    if name == "scatter":
        assert root is not None
        return equal_part([len(part) for part in rows[root]], nodes, root) * len(rows)
    if name == "alltoall":
        return equal_parts([[len(part) for part in row] for row in rows], nodes)
    return max(0 if row is None else len(row) for row in rows)


def receive_matched(rank: Any, message: Any) -> ObjectReceiveRequest:
    """Return the receive of an object whose message was found by a probe: see `MatchedMessage`."""
    receive = ObjectReceiveRequest(rank, "irecv", message.source, message.tag)
    match(rank, receive, message)
    return receive


class Comm(
    CollectiveCalls, ObjectCalls, PersistentCalls, WindowCalls, CommManagement, SurvivalCalls, PointToPoint
):
    """A communicator of simulated ranks, with the interface of mpi4py's; without arguments, the null communicator."""

    __slots__ = ()
    COMM_TYPE_SHARED = c.COMM_TYPE_SHARED

    def __new__(cls, comm: Any = None) -> Any:
        if comm is not None and not isinstance(comm, Comm):
            raise TypeError(f"expected a communicator; got {type(comm).__name__}")
        found: Any
        if comm is None or comm.state is None:
            found = object.__new__(_find_null_class(cls))
            found.state = None
            return found
        if not cls._fits(comm.state):
            raise TypeError(f"expected {cls.__name__}; got {type(comm).__name__}")
        found = object.__new__(cls)
        found._fill(comm.state, comm.rank)
        return found

    def __init__(self, *arguments: Any) -> None:
        """Do nothing: the state is set when the object is made."""

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        """Return True if a communicator with this state can be of this class."""
        return True

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    @property
    def time_only(self) -> bool:
        """True if only time is simulated: nothing is computed, and some messages carry no contents."""
        return self.kernel.time_only  # type: ignore[no-any-return]

    @property
    def node_of(self) -> tuple[int, ...]:
        """The node of every rank of this communicator."""
        return self.state.node_of  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return self.state is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comm) and other.state is self.state

    __hash__ = None  # type: ignore[assignment]


def _find_null_class(cls: Any) -> Any:
    """Return the class of the null communicators of a class: using what they do not have is an MPI error.

    They have a class of their own because `__getattr__` slows down every access to an attribute, also to those that exist.
    """
    found = vars(cls).get("_null_class")
    if found is None:

        def fill(self: Any, state: CommState, rank: int) -> None:
            """Become a communicator that has been created meanwhile."""
            _set_class(self, cls)
            self._fill(state, rank)

        names = {
            "__slots__": (),
            "__getattr__": _refuse,
            "__class__": property(lambda self: cls),
            "_fill": fill,
        }
        found = type(cls)(cls.__name__, (cls,), names)
        cls._null_class = found
    return found


_set_class = vars(object)["__class__"].__set__


def _refuse(comm: Any, name: str) -> Any:
    if name.startswith("__") or name not in PointToPoint.__slots__:
        raise AttributeError(f"{type(comm).__name__!r} object has no attribute {name!r}")
    raise mpi_error("ERR_COMM", f"the null communicator has no {name}")


COMM_NULL = Comm()
constants["COMM_NULL"] = COMM_NULL


# ---- sessions

# The sets of processes that a rank knows: the world and itself.
SETS = ("mpi://WORLD", "mpi://SELF")


class _SessionSettings(Settings):
    """What a rank has set on a session."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        super().__init__()
        self.buffer: Any = None


class Session(Handled):
    """A session of one rank: `Create_group` and `Intracomm.Create_from_group` lead from it to a communicator."""

    __slots__ = ("__weakref__", "_own")

    def __init__(self, session: Session | None = None) -> None:
        self._own: _SessionSettings | None = None if session is None else session._own

    @classmethod
    def Init(cls, info: Any = None, errhandler: Any = None) -> Session:
        found = cls()
        found._own = _SessionSettings()
        if errhandler:
            found.Set_errhandler(errhandler)
        return found

    def Finalize(self) -> None:
        self._settings()
        self._own = None

    def free(self) -> None:
        """End the session, unless it is null."""
        if self:
            self.Finalize()

    def _settings(self) -> _SessionSettings:
        if self._own is None:
            raise mpi_error("ERR_SESSION", "the session is null or has ended")
        return self._own

    def Get_info(self) -> Info:
        self._settings()
        found: Info = Info.Create({"thread_level": "MPI_THREAD_MULTIPLE"})
        return found

    def Get_num_psets(self, info: Any = None) -> int:
        self._settings()
        return len(SETS)

    def Get_nth_pset(self, n: int, info: Any = None) -> str:
        self._settings()
        if not 0 <= n < len(SETS):
            raise mpi_error("ERR_ARG", f"there are {len(SETS)} sets of processes; got number {n}")
        return SETS[n]

    def Get_pset_info(self, pset_name: str) -> Info:
        found: Info = Info.Create({"mpi_size": str(self.Create_group(pset_name).size)})
        return found

    def Create_group(self, pset_name: str) -> Group:
        self._settings()
        world = current_world()
        if pset_name not in SETS:
            raise mpi_error(
                "ERR_ARG", f"unknown set of processes {pset_name!r}; choose one of {', '.join(SETS)}"
            )
        return world.Get_group() if pset_name == SETS[0] else Group((world.me.number,), world.me.number)

    def Attach_buffer(self, buf: Any) -> None:
        self._settings().buffer = buf

    def Detach_buffer(self) -> Any:
        return detach_buffer(self._settings())

    def Flush_buffer(self) -> None:
        """Do nothing: the simulator has sent what was buffered."""

    def Iflush_buffer(self) -> Request:
        return _make_finished(current_world().me, "Iflush_buffer")

    def __bool__(self) -> bool:
        return self._own is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and self._own is other._own

    __hash__ = None  # type: ignore[assignment]


SESSION_NULL = Session()
constants["SESSION_NULL"] = SESSION_NULL
