"""The communicator of simulated ranks: mpi4py's interface, under the virtual clock."""

from __future__ import annotations

import itertools
from heapq import heappush
from typing import Any, NoReturn

import numpy as np

from paceline.vmpi.buffers import memory_of
from paceline.vmpi.collectives import CollectiveCalls
from paceline.vmpi.constants import COMM_TYPE_SHARED, UNDEFINED
from paceline.vmpi.errors import Aborted, mpi_error
from paceline.vmpi.failures import SurvivalCalls
from paceline.vmpi.groups import CONGRUENT, IDENT, SIMILAR, UNEQUAL, CollectiveRequest, CommState, Group, meet
from paceline.vmpi.matching import Message, first_unexpected, match, post, take_unexpected
from paceline.vmpi.objects import ObjectCalls, receive_matched
from paceline.vmpi.requests import PersistentRequest, ReceiveRequest, Request, fill_status
from paceline.vmpi.windows import WindowCalls


class Probing:
    """A communicator's probes: they find messages that have arrived and that no receive has taken."""

    __slots__ = ()
    context: int
    kernel: Any
    me: Any
    size: int

    def Iprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        found = self._find_message(source, tag)
        if found is None:
            self.kernel.count_poll(self.me)
            return False
        _tell(status, found)
        return True

    def Probe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        _tell(status, self._waited_for("Probe", source, tag))
        return True

    def Mprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> MatchedMessage:
        found = self._waited_for("Mprobe", source, tag)
        _tell(status, found)
        return MatchedMessage(self.me, found)

    def Improbe(
        self, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage | None:
        found = self._find_message(source, tag)
        if found is None:
            self.kernel.count_poll(self.me)
            return None
        _tell(status, found)
        return MatchedMessage(self.me, found)

    def _waited_for(self, name: str, source: int | None, tag: int | None) -> Message:
        self.me.doing = name
        while (found := self._find_message(source, tag)) is None:
            self.kernel.progress(self.me)
        return found

    def _find_message(self, source: int | None, tag: int | None) -> Message | None:
        """Return the message that a receive would take; from MPI.PROC_NULL that is an empty one."""
        kernel = self.kernel
        special = kernel.special
        source = None if source == special.any_source else source
        if source is not None and not 0 <= source < self.size:
            return self._empty_message(source)
        kernel.take_arrived(self.me)
        found = first_unexpected(self.me, self.context, source, None if tag == special.any_tag else tag)
        if found is None and kernel.faults is not None:
            kernel.faults.detector.probing(self, source)
        return found

    def _empty_message(self, source: int) -> Message:
        special = self.kernel.special
        if source != special.proc_null:
            raise mpi_error(
                "ERR_RANK", f"rank {source} does not exist; this communicator has ranks 0 to {self.size - 1}"
            )
        empty = Message(
            self.me, "", source, None, None, 0, "", (self.context, source), special.any_tag, True, 0.0
        )
        empty.Free()
        return empty


def _tell(status: Any, found: Message) -> None:
    if status is not None:
        fill_status(status, found.to[1], found.tag, found.nbytes)


class MatchedMessage:
    """A message found by Mprobe: only this object can receive it."""

    def __init__(self, rank: Any, message: Message) -> None:
        self._rank, self._message = rank, message
        if message.name:  # not the empty one of MPI.PROC_NULL
            take_unexpected(rank, *message.to, message.tag)

    def Recv(self, buf: Any, status: Any = None) -> None:
        self.Irecv(buf).Wait(status)

    def Irecv(self, buf: Any) -> Request:
        message = self._message
        receive = ReceiveRequest(self._rank, "Imrecv", buf, message.to[1], message.tag)
        match(self._rank, receive, message)
        return receive

    Mrecv, Imrecv = Recv, Irecv

    def irecv(self) -> Request:
        return receive_matched(self._rank, self._message)

    def recv(self, status: Any = None) -> Any:
        return self.irecv().wait(status)

    @classmethod
    def Probe(
        cls, comm: Any, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage:
        found: MatchedMessage = comm.Mprobe(source, tag, status)
        return found

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage | None:
        found: MatchedMessage | None = comm.Improbe(source, tag, status)
        return found


class PersistentCalls:
    """A communicator's persistent requests."""

    __slots__ = ()

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> PersistentRequest:
        return self._repeated("Isend", buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> PersistentRequest:
        return self._repeated("Issend", buf, dest, tag)

    Rsend_init = Bsend_init = Send_init

    def Recv_init(self, buf: Any, source: int | None = None, tag: int | None = None) -> PersistentRequest:
        return self._repeated("Irecv", buf, source, tag)

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Any = None, info: Any = None
    ) -> PersistentRequest:
        return self._repeated("Iallreduce", sendbuf, recvbuf, op)

    def Bcast_init(self, buf: Any, root: int = 0, info: Any = None) -> PersistentRequest:
        return self._repeated("Ibcast", buf, root)

    def Barrier_init(self, info: Any = None) -> PersistentRequest:
        return self._repeated("Ibarrier")

    def _repeated(self, name: str, *arguments: Any) -> PersistentRequest:
        comm: Any = self
        call = getattr(comm, name)
        return PersistentRequest(comm.me, lambda: call(*arguments))


class CommManagement:
    """A communicator's name, its group, and communicators made from groups."""

    __slots__ = ()
    state: Any
    kernel: Any
    me: Any
    members: Any
    name: str
    rank: int

    @property
    def MPI(self) -> Any:
        """The replacement of mpi4py.MPI during the run."""
        return self.kernel.MPI

    def Get_name(self) -> str:
        return self.name

    def Set_name(self, name: str) -> None:
        comm: Any = self
        comm.name = name

    def Is_intra(self) -> bool:
        return True

    is_inter, is_intra, is_topo = False, True, False

    def Get_topology(self) -> int:
        return UNDEFINED

    def Get_group(self) -> Group:
        return Group(self.members, self.me.number)

    def Create(self, group: Group) -> Any:
        """Make a communicator of the ranks of a group. All ranks of this communicator call it, with the same group."""

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

        met = meet(self, "Create", tuple(group.members), finish, free_of_charge=True)
        met.Wait()
        return self._make_comm(met.result)

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Make a communicator of the ranks of a group. Only the members of the group call it."""
        members = tuple(group.members)
        if self.me.number not in members:
            return self._make_comm(None)
        key, forming = (members, tag), self.state.forming
        made, missing = forming.get(key) or (CommState(self.kernel, members, ""), len(members))
        forming[key] = made, missing - 1
        if missing == 1:
            del forming[key]
        return self._make_comm((made, members.index(self.me.number)))

    def _make_comm(self, found: Any) -> Any:
        return COMM_NULL if found is None else Comm(*found)

    def Clone(self) -> Any:
        return self.Dup()  # type: ignore[attr-defined]

    def Dup_with_info(self, info: Any) -> Any:
        return self.Dup()  # type: ignore[attr-defined]

    def Idup(self, info: Any = None) -> tuple[Any, CollectiveRequest]:
        """Return a duplicate, which may be used when the request is done."""

        made: Any = Comm.__new__(Comm)

        def take(found: CommState) -> None:
            Comm.__init__(made, found, self.rank)

        def finish(given: list[Any]) -> list[CommState]:
            return [CommState(self.kernel, self.members, self.name)] * len(given)

        return made, meet(self, "Idup", None, finish, free_of_charge=True, take=take)

    @classmethod
    def Compare(cls, comm1: Any, comm2: Any) -> int:
        if comm1.state is comm2.state:
            return IDENT
        same = Group.Compare(Group(comm1.members), Group(comm2.members))
        return {IDENT: CONGRUENT, SIMILAR: SIMILAR}.get(same, UNEQUAL)

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the simulation, whatever the other ranks are doing."""
        raise Aborted(errorcode)

    def Get_parent(self) -> Any:
        return self._make_comm(None)

    def Set_errhandler(self, errhandler: Any) -> None:
        """Do nothing: errors are always exceptions."""

    def Delete_attr(self, keyval: int) -> None:
        self._attributes.pop(keyval, None)  # type: ignore[attr-defined]


_keys = itertools.count()
_deleters: dict[int, Any] = {}


class PointToPoint(Probing):
    """Messages between two ranks."""

    __slots__ = (
        "_attributes",
        "_free",
        "calls",
        "context",
        "kernel",
        "key",
        "me",
        "members",
        "name",
        "rank",
        "size",
        "state",
    )

    def __init__(self, state: CommState, rank: int) -> None:
        self.state = state
        self.kernel = state.kernel
        self.rank = rank
        self.members = state.members
        self.size = len(state.members)
        self.context = state.context
        self.key = (state.context, rank)
        self.me = state.kernel.ranks[state.members[rank]]
        self.name = state.name
        self.calls = 0
        self._attributes: dict[int, Any] = {}
        self._free = False

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
        if not 0 <= dest < self.size:
            return self._nothing(dest, name)
        if tag < 0:
            raise mpi_error("ERR_TAG", f"a tag must be at least 0; got {tag}")
        view, kind = memory_of(buf)
        nbytes = view.nbytes
        number, other = me.number, self.members[dest]
        wires = kernel.wires
        node = wires.node[number]
        eager = not (synchronous or kernel.rendezvous)
        if node == wires.node[other] and wires.uniform:  # most messages: `wires.send`, inlined
            eager = eager and nbytes <= wires.limit_inside
            costs = wires.inside[node].get(nbytes) or wires.inside_costs(node, nbytes)
            own, arrives, taking = costs[0 if eager else 1]
            me.t += own
            arrives += me.t
        else:
            eager = eager and wires.eager(number, other, nbytes)
            if eager:
                kernel.let_earlier_go(me)  # a network card is shared in the order of time
            me.t, arrives, taking = wires.send(number, other, nbytes, me.t, eager)
        data: Any = None
        if kernel.carries is None or kernel.carries(kind, nbytes):
            # An announced message stays in the sender's memory until the receiver fetches it.
            data = view.tobytes() if eager or kernel.strict else view
        message = Message(me, name, dest, view, data, nbytes, kind, self.key, tag, eager, taking)
        kernel.messages += 1
        kernel.bytes += nbytes
        latest = me.latest
        if arrives < latest.get(other, 0.0):  # messages between the same two ranks keep their order
            arrives = latest[other]
        else:
            latest[other] = arrives
        if kernel.faults is not None and kernel.faults.intercept(self, message, other, arrives):
            return message
        receiver = kernel.ranks[other]
        heappush(receiver.inbox, (arrives, next(kernel.sequence), message))
        if receiver.waiting and arrives < receiver.wake:  # `kernel.schedule`, inlined
            receiver.wake = arrives
            receiver.version = version = receiver.version + 1
            at = arrives if arrives > receiver.t else receiver.t
            heappush(kernel.heap, (at, kernel.tie(), other, version))
        return message

    Rsend, Irsend = Send, Isend

    def _nothing(self, peer: Any, name: str) -> Request:
        """Return the request of a message to or from MPI.PROC_NULL, which is done at once."""
        if peer != self.kernel.special.proc_null:
            raise mpi_error(
                "ERR_RANK", f"rank {peer} does not exist; this communicator has ranks 0 to {self.size - 1}"
            )
        if "recv" not in name.lower():
            return Message(self.me, name, peer, None, None, 0, "", self.key, 0, True, 0.0)
        request = ReceiveRequest(self.me, name, bytearray(), None, None)
        request.deliver(None, 0, peer, self.kernel.special.any_tag)
        return request

    # ---- receiving

    def Recv(self, buf: Any, source: int | None = None, tag: int | None = None, status: Any = None) -> None:
        self.Irecv(buf, source, tag, "Recv").Wait(status)

    def Irecv(
        self, buf: Any, source: int | None = None, tag: int | None = None, name: str = "Irecv"
    ) -> Request:
        kernel, me = self.kernel, self.me
        if source is not None and not 0 <= source < self.size:
            if source != kernel.special.any_source:
                return self._nothing(source, name)
            source = None
        if tag == kernel.special.any_tag:
            tag = None
        receive = ReceiveRequest(me, name, buf, source, tag)
        me.t += kernel.wires.post
        post(me, self.context, receive)
        if kernel.faults is not None:
            kernel.faults.detector.posted(self, receive)
        return receive

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int | None = None,
        recvtag: int | None = None, status: Any = None,
    ) -> None:  # fmt: skip
        receiving = self.Irecv(recvbuf, source, recvtag, "Sendrecv (recv)")
        sending = self.Isend(sendbuf, dest, sendtag, "Sendrecv (send)")
        receiving.Wait(status)
        sending.Wait()

    def Sendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int | None = None, recvtag: int | None = None,
        status: Any = None,
    ) -> None:  # fmt: skip
        out = np.array(memory_of(buf)[0])
        self.Sendrecv(out, dest, sendtag, buf, source, recvtag, status)

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

    def Pass(self) -> None:
        """Let ranks with an earlier clock run first; call this before accessing memory that ranks share."""
        self.kernel.let_earlier_go(self.me)

    def Step(self) -> None:
        """Begin the next step, as counted by `fail_at(step=…)`."""
        self.me.steps += 1
        at_step = self.kernel.at_step
        if at_step is not None:
            at_step(self.me)


class Comm(
    CollectiveCalls, ObjectCalls, PersistentCalls, WindowCalls, CommManagement, SurvivalCalls, PointToPoint
):
    """A communicator of simulated ranks, with the interface of mpi4py's."""

    __slots__ = ()
    COMM_TYPE_SHARED = COMM_TYPE_SHARED

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

    # ---- all together

    def Dup(self, info: Any = None) -> Comm:
        def finish(given: list[Any]) -> list[CommState]:
            return [CommState(self.kernel, self.members, self.name)] * self.size

        met = meet(self, "Dup", None, finish, free_of_charge=True)
        met.Wait()
        return Comm(met.result, self.rank)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        def finish(given: list[tuple[int, int]]) -> list[Any]:
            sides: dict[int, list[tuple[int, int]]] = {}
            for rank, (color, key) in enumerate(given):
                sides.setdefault(color, []).append((key, rank))
            found: list[Any] = [None] * self.size
            for color, side in sides.items():
                if color == UNDEFINED:
                    continue
                side.sort()
                group = CommState(self.kernel, tuple(self.members[rank] for _, rank in side), self.name)
                for number, (_, rank) in enumerate(side):
                    found[rank] = (group, number)
            return found

        met = meet(self, "Split", (color, key), finish, free_of_charge=True)
        met.Wait()
        return self._make_comm(met.result)  # type: ignore[no-any-return]

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Comm:
        color = self.node_of[self.rank] if split_type != UNDEFINED else UNDEFINED
        return self.Split(color, key)

    def Free(self) -> None:
        for key, value in list(self._attributes.items()):
            delete = _deleters.get(key)
            if delete is not None:
                delete(self, key, value)
        self._attributes.clear()
        meet(self, "Free", None, lambda given: given, free_of_charge=True).Wait()
        self._free = True

    def __bool__(self) -> bool:
        return not self._free

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comm) and other.state is self.state

    __hash__ = None  # type: ignore[assignment]

    def Is_inter(self) -> bool:
        return False

    # ---- attributes

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        key = next(_keys)
        _deleters[key] = delete_fn
        return key

    def Get_attr(self, keyval: int) -> Any:
        return self._attributes.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._attributes[keyval] = attrval


class NullComm(Comm):
    """MPI.COMM_NULL, returned to ranks that are in no part of a split; equal to every freed communicator."""

    __slots__ = ()
    state = None  # type: ignore[assignment]

    def __init__(self) -> None:
        """Create a communicator without ranks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise mpi_error("ERR_COMM", f"the null communicator has no {name}")

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comm) and not other

    __hash__ = None


COMM_NULL = NullComm()
