"""mpi4py's lower-case calls, which send Python objects.

Objects are pickled and unpickled in this process, so every rank gets its own copy, as it would from another process.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from sys import maxsize
from typing import Any

from paceline.vmpi.collectives import CollectiveBase, root_only
from paceline.vmpi.groups import CollectiveRequest, meet
from paceline.vmpi.matching import match, post
from paceline.vmpi.memory import buffer
from paceline.vmpi.network import equal_part, equal_parts
from paceline.vmpi.operations import SUM, Op
from paceline.vmpi.requests import ReceiveRequest, Request


def pickle_object(thing: Any) -> bytes:
    """Return the bytes that stand for an object in a message."""
    return pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)


def unpickle_object(data: bytes) -> Any:
    """Return a copy of the object that was sent; the bytes come from this very process."""
    return pickle.loads(data)


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


class ObjectReceiveRequest(ReceiveRequest):
    """The receive of an object, of any length."""

    __slots__ = ("_data",)

    def __init__(self, rank: Any, name: str, source: int | None, tag: int | None) -> None:
        Request.__init__(self, rank, name)
        self.saved = self.cancelled = None
        self.nbytes, self.kind = maxsize, "u1"
        self.wanted_source, self.wanted_tag = source, tag
        self._data: bytes | None = None

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
        return comm.Ibsend(pickle_object(obj), dest, tag)  # type: ignore[no-any-return]

    def _send_object(self, name: str, obj: Any, dest: int, tag: int) -> Request:
        comm: Any = self
        return comm.Isend(pickle_object(obj), dest, tag, name, synchronous="ss" in name)  # type: ignore[no-any-return]

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
        special = comm.kernel.special
        if source == special.any_source:
            source = None
        if source is not None and not 0 <= source < comm.reach:
            return comm._nothing(source, name)  # type: ignore[no-any-return]
        receive = ObjectReceiveRequest(comm.me, name, source, None if tag == special.any_tag else tag)
        comm.me.t += comm.kernel.wires.post
        post(comm.me, comm.context, receive)
        return receive

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int | None = None,
        recvtag: int | None = None, status: Any = None,
    ) -> Any:  # fmt: skip
        receive = self._receive_object("sendrecv (recv)", source, recvtag)
        send = self._send_object("sendrecv (send)", sendobj, dest, sendtag)
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
        data = self._meet_objects("bcast", given, lambda rows: [rows[root]] * self.size, root)
        return obj if self.rank == root else unpickle_object(data)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        root = self._check_root(root)
        found = self._meet_objects(
            "gather", pickle_object(sendobj), lambda rows: root_only(root, rows, self.size), root
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
        found = self._fold("reduce", sendobj, op, lambda sums: root_only(root, sums[-1], self.size), root)
        return None if found is None else unpickle_object(found)

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return unpickle_object(self._fold("allreduce", sendobj, op, lambda sums: [sums[-1]] * self.size))

    def scan(self, sendobj: Any, op: Any = None) -> Any:
        return unpickle_object(self._fold("scan", sendobj, op, lambda sums: sums))

    def exscan(self, sendobj: Any, op: Any = None) -> Any:
        found = self._fold("exscan", sendobj, op, lambda sums: [None, *sums[:-1]])
        return None if found is None else unpickle_object(found)

    def _fold(
        self, name: str, thing: Any, op: Any, finish: Callable[[list[bytes]], Sequence[Any]], root: int | None = None
    ) -> Any:  # fmt: skip
        """Combine the objects of all ranks in rank order; `finish` is given the result up to each rank."""
        operation: Callable[[Any, Any], Any] = SUM if op is None else op
        every = name in ("scan", "exscan")

        def fold(rows: list[bytes]) -> Sequence[Any]:
            sofar = unpickle_object(rows[0])
            sums = [rows[0]]
            for row in rows[1:]:
                sofar = operation(sofar, unpickle_object(row))
                if every:
                    sums.append(pickle_object(sofar))
            return finish(sums if every else [pickle_object(sofar)])

        called = op.name if isinstance(op, Op) else "SUM" if op is None else "a user-defined operation"
        return self._meet_objects(name, pickle_object(thing), fold, root, op=called)

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

    def _row(self, things: Sequence[Any]) -> list[bytes]:
        found = [pickle_object(thing) for thing in things]
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
