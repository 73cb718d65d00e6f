"""Requests that can be started again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.vmpi.requests import Request


class Persistent(Request):
    """A call that is made anew by every Start; between its end and the next Start there is nothing to wait for."""

    __slots__ = ("_call", "_current")

    def __init__(self, rank: Any, call: Callable[[], Request]) -> None:
        self.rank, self.name = rank, "Start"
        self._call = call
        self._current: Request | None = None

    def Start(self) -> None:
        if self._current:
            raise ValueError("a persistent request must be waited for before it is started again")
        self._current = self._call()

    @classmethod
    def Startall(cls, requests: Sequence[Persistent]) -> None:
        for request in requests:
            request.Start()

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self._current is None or self._current.done

    @property
    def spent(self) -> bool:  # type: ignore[override]
        return not self._current

    def _finish(self, status: Any) -> None:
        if self._current is not None:
            self._current._finish(status)

    def Wait(self, status: Any = None) -> bool:
        return self._current is None or self._current.Wait(status)

    def Test(self, status: Any = None) -> bool:
        return self._current is None or self._current.Test(status)

    def Free(self) -> None:
        if self._current:
            self._current.Free()


class Repeated:
    """A communicator's persistent requests."""

    __slots__ = ()

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Persistent:
        return self._repeated("Isend", buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Persistent:
        return self._repeated("Issend", buf, dest, tag)

    Rsend_init = Bsend_init = Send_init

    def Recv_init(self, buf: Any, source: int | None = None, tag: int | None = None) -> Persistent:
        return self._repeated("Irecv", buf, source, tag)

    def Allreduce_init(self, sendbuf: Any, recvbuf: Any, op: Any = None, info: Any = None) -> Persistent:
        return self._repeated("Iallreduce", sendbuf, recvbuf, op)

    def Bcast_init(self, buf: Any, root: int = 0, info: Any = None) -> Persistent:
        return self._repeated("Ibcast", buf, root)

    def Barrier_init(self, info: Any = None) -> Persistent:
        return self._repeated("Ibarrier")

    def _repeated(self, name: str, *arguments: Any) -> Persistent:
        comm: Any = self
        call = getattr(comm, name)
        return Persistent(comm.me, lambda: call(*arguments))
