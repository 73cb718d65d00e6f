"""mpi4py's lower-case calls: Python's objects as messages.

They are pickled, in memory, by this process for this process: every rank gets a copy of its own, as from another process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Any

from paceline.vmpi.collectives import only
from paceline.vmpi.groups import Met, meet
from paceline.vmpi.matching import match, post
from paceline.vmpi.operations import SUM, Op
from paceline.vmpi.requests import Receiving, Request


def _packed(thing: Any) -> bytes:
    return pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)


def _unpacked(data: bytes) -> Any:
    return pickle.loads(data)


class ReceivingObject(Receiving):
    """An object that is to come, however long its message is."""

    __slots__ = ("_data",)

    def __init__(self, rank: Any, name: str, source: int | None, tag: int | None) -> None:
        Request.__init__(self, rank, name)
        self.kept = None
        self.nbytes, self.kind = maxsize, "u1"
        self.wanted_source, self.wanted_tag = source, tag
        self._data: bytes | None = None

    def deliver(self, data: bytes | None, nbytes: int, source: int, tag: int) -> None:
        self._data = data
        self.source, self.tag, self.count = source, tag, nbytes
        self.done = True

    def message(self) -> Any:
        """The object: a copy of what was sent."""
        data, self._data = self._data, None
        return None if data is None else _unpacked(data)


class Objects:
    """A communicator's calls for objects."""

    __slots__ = ()
    rank: int
    size: int

    # ---- between two ranks

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send_object("send", obj, dest, tag).Wait()

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send_object("ssend", obj, dest, tag).Wait()

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._send_object("isend", obj, dest, tag)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._send_object("issend", obj, dest, tag)

    bsend, ibsend = send, isend

    def _send_object(self, name: str, obj: Any, dest: int, tag: int) -> Request:
        comm: Any = self
        return comm.Isend(_packed(obj), dest, tag, name, synchronous="ss" in name)  # type: ignore[no-any-return]

    def recv(
        self, buf: Any = None, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> Any:
        return self._receive_object("recv", source, tag).wait(status)

    def irecv(self, buf: Any = None, source: int | None = None, tag: int | None = None) -> Request:
        return self._receive_object("irecv", source, tag)

    def _receive_object(self, name: str, source: int | None, tag: int | None) -> Request:
        comm: Any = self
        meant = comm.kernel.meant
        if source == meant.any_source:
            source = None
        if source is not None and not 0 <= source < self.size:
            return comm._nothing(source, name)  # type: ignore[no-any-return]
        receive = ReceivingObject(comm.me, name, source, None if tag == meant.any_tag else tag)
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
        given = _packed(obj) if self.rank == self._checked(root) else None
        data = self._meet_objects("bcast", given, lambda rows: [rows[root]] * self.size, root)
        return obj if self.rank == root else _unpacked(data)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        self._checked(root)
        found = self._meet_objects("gather", _packed(sendobj), lambda rows: only(root, rows, self.size), root)
        return None if found is None else [_unpacked(row) for row in found]

    def allgather(self, sendobj: Any) -> list[Any]:
        rows = self._meet_objects("allgather", _packed(sendobj), lambda rows: [rows] * self.size)
        return [_unpacked(row) for row in rows]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        given = self._row(sendobj) if self.rank == self._checked(root) else None
        return _unpacked(self._meet_objects("scatter", given, lambda rows: rows[root], root))

    def alltoall(self, sendobj: Any) -> list[Any]:
        rows = self._meet_objects("alltoall", self._row(sendobj), lambda rows: list(zip(*rows, strict=True)))
        return [_unpacked(row) for row in rows]

    def reduce(self, sendobj: Any, op: Any = None, root: int = 0) -> Any:
        self._checked(root)
        found = self._fold("reduce", sendobj, op, lambda sums: only(root, sums[-1], self.size), root)
        return None if found is None else _unpacked(found)

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return _unpacked(self._fold("allreduce", sendobj, op, lambda sums: [sums[-1]] * self.size))

    def scan(self, sendobj: Any, op: Any = None) -> Any:
        return _unpacked(self._fold("scan", sendobj, op, lambda sums: sums))

    def exscan(self, sendobj: Any, op: Any = None) -> Any:
        found = self._fold("exscan", sendobj, op, lambda sums: [None, *sums[:-1]])
        return None if found is None else _unpacked(found)

    def _fold(
        self, name: str, thing: Any, op: Any, finish: Callable[[list[bytes]], Sequence[Any]], root: int | None = None
    ) -> Any:  # fmt: skip
        """Combine what all give, in the order of the ranks; `finish` has the result up to each rank."""
        operation: Callable[[Any, Any], Any] = SUM if op is None else op
        every = name in ("scan", "exscan")

        def fold(rows: list[bytes]) -> Sequence[Any]:
            sofar = _unpacked(rows[0])
            sums = [rows[0]]
            for row in rows[1:]:
                sofar = operation(sofar, _unpacked(row))
                if every:
                    sums.append(_packed(sofar))
            return finish(sums if every else [_packed(sofar)])

        called = op.name if isinstance(op, Op) else "SUM" if op is None else "an own operation"
        return self._meet_objects(name, _packed(thing), fold, root, op=called)

    def _meet_objects(
        self, name: str, given: Any, finish: Callable[[list[Any]], Sequence[Any]], root: int | None = None, **more: Any
    ) -> Any:  # fmt: skip
        arguments = ({} if root is None else {"root": root}) | more
        met: Met = meet(
            self, name, given, finish, arguments=tuple(arguments.items()), nbytes=_longest
        )  # fmt: skip
        met.Wait()
        return met.result

    def _row(self, things: Sequence[Any]) -> list[bytes]:
        found = [_packed(thing) for thing in things]
        if len(found) != self.size:
            raise ValueError(f"expected one object for each of the {self.size} ranks; got {len(found)}")
        return found

    def _checked(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise ValueError(f"root must be one of the {self.size} ranks, from 0; got {root}")
        return root


def _longest(given: list[Any]) -> int:
    return max(
        0 if row is None else len(row) if isinstance(row, bytes) else sum(map(len, row)) for row in given
    )


def received(rank: Any, message: Any) -> ReceivingObject:
    """An object whose message was found before: see `MatchedMessage`."""
    receive = ReceivingObject(rank, "irecv", message.to[1], message.tag)
    match(rank, receive, message)
    return receive
