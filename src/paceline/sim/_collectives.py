# ruff: noqa: N802 (mpi4py's names)
"""MPI's own collectives on simulated ranks that move what ranks give, in equal parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.sim._blocks import Memory, blocked, is_in_place, part
from paceline.sim._groups import Met, meet
from paceline.sim._reducing import Reducing
from paceline.sim._together import agreed, only
from paceline.sim._uneven import Uneven


class Collectives(Reducing, Uneven):
    """Calls that all ranks of a communicator make together; those that begin with I do not wait."""

    __slots__ = ()

    def Barrier(self) -> None:
        meet(self, "Barrier", None, lambda given: given).Wait()

    def Ibarrier(self) -> Met:
        return meet(self, "Ibarrier", None, lambda given: given)

    # ---- one to all, all to one

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self._bcast("Bcast", buf, root).Wait()

    def Ibcast(self, buf: Any, root: int = 0) -> Met:
        return self._bcast("Ibcast", buf, root)

    def _bcast(self, name: str, buf: Any, root: int) -> Met:
        self._check_root(root)
        mine = self.rank == root
        memory = Memory(buf, writing=not mine)
        return self._meet(
            name,
            memory if mine else None,
            lambda given: [bytes(given[root])] * self.size,
            into=None if mine else memory,
            arguments=(("root", root), *agreed(memory)),
            nbytes=memory.nbytes,
        )

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._gather("Gather", sendbuf, recvbuf, root).Wait()

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Met:
        return self._gather("Igather", sendbuf, recvbuf, root)

    def _gather(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> Met:
        self._check_root(root)
        into = None
        if self.rank == root:
            into = blocked(recvbuf, self.size, writing=True)
            send = part(into, root, self.size) if is_in_place(sendbuf) else Memory(sendbuf, writing=False)
            self._check_parts(name, send, into)
        else:
            send = Memory(sendbuf, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            return only(root, b"".join(given), self.size)

        return self._meet(
            name, send, finish, into=into, arguments=(("root", root), *agreed(send)), nbytes=send.nbytes
        )

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._scatter("Scatter", sendbuf, recvbuf, root).Wait()

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Met:
        return self._scatter("Iscatter", sendbuf, recvbuf, root)

    def _scatter(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> Met:
        self._check_root(root)
        send = into = None
        if self.rank == root:
            send = blocked(sendbuf, self.size, writing=False)
        if send is not None and is_in_place(recvbuf):
            each = part(send, root, self.size)
        else:
            each = into = Memory(recvbuf, writing=True)
            if send is not None:
                self._check_parts(name, into, send)
        nbytes = each.nbytes

        def finish(given: list[Any]) -> list[Any]:
            whole = bytes(given[root])
            return [whole[rank * nbytes : (rank + 1) * nbytes] for rank in range(self.size)]

        return self._meet(
            name,
            send,
            finish,
            into=into,
            arguments=(("root", root), *agreed(each)),
            nbytes=nbytes * self.size,
        )

    # ---- all to all

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._allgather("Allgather", sendbuf, recvbuf).Wait()

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Met:
        return self._allgather("Iallgather", sendbuf, recvbuf)

    def _allgather(self, name: str, sendbuf: Any, recvbuf: Any) -> Met:
        into = blocked(recvbuf, self.size, writing=True)
        send = part(into, self.rank, self.size) if is_in_place(sendbuf) else Memory(sendbuf, writing=False)
        self._check_parts(name, send, into)

        def finish(given: list[Any]) -> list[Any]:
            return [b"".join(given)] * self.size

        return self._meet(name, send, finish, into=into, arguments=agreed(send), nbytes=send.nbytes)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._alltoall("Alltoall", sendbuf, recvbuf).Wait()

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Met:
        return self._alltoall("Ialltoall", sendbuf, recvbuf)

    def _alltoall(self, name: str, sendbuf: Any, recvbuf: Any) -> Met:
        into = blocked(recvbuf, self.size, writing=True)
        send = into if is_in_place(sendbuf) else blocked(sendbuf, self.size, writing=False)
        self._check_same(name, send, into)
        each = into.nbytes // self.size

        def finish(given: list[Any]) -> list[Any]:
            table = np.frombuffer(b"".join(given), np.uint8).reshape(self.size, self.size, each)
            return [table[:, rank].tobytes() for rank in range(self.size)]

        return self._meet(name, send, finish, into=into, arguments=agreed(into), nbytes=into.nbytes)
