# ruff: noqa: N802 (mpi4py's names)
"""MPI's own collectives on simulated ranks whose parts have different lengths: those whose name ends in v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.sim._blocks import Memory, is_in_place
from paceline.sim._buffers import blocks
from paceline.sim._groups import Disagree, Met
from paceline.sim._together import Together, only


class Parts:
    """A buffer with a part for every rank: which bytes are whose."""

    __slots__ = ("data", "kind", "memory", "slices")

    def __init__(self, given: Any, members: int, *, writing: bool) -> None:
        self.slices, self.data, self.kind = blocks(given, members, writing=writing)
        self.memory = Memory(self.data, writing=False)

    def lengths(self) -> list[int]:
        return [each.stop - each.start for each in self.slices]

    def of(self, rank: int) -> Memory:
        """The part of one rank, where it lies."""
        found = Memory(self.data[self.slices[rank]], writing=False)
        found.kind = self.kind
        return found

    def take(self, rows: Any) -> None:
        """Put every rank's bytes into its part."""
        if rows is not None:
            for where, row in zip(self.slices, rows, strict=True):
                self.data[where] = _bytes(row)


def _bytes(row: Any) -> NDArray[np.uint8]:
    return np.frombuffer(row, np.uint8)


def _check(sender: int, sent: int, sent_kind: str, receiver: int, wanted: int, kind: str) -> None:
    """What one rank sends another must be what that expects."""
    if sent != wanted or (sent and sent_kind != kind):
        raise Disagree(
            sender, f"sends rank {receiver} {sent} bytes of {sent_kind}",
            receiver, f"expects {wanted} bytes of {kind} from rank {sender}",
        )  # fmt: skip


def _longest(given: list[Any]) -> int:
    return max(int(also[0]) for _, also in given)


class Uneven(Together):
    """Gatherv, Scatterv, Allgatherv, Alltoallv."""

    __slots__ = ()

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._gatherv("Gatherv", sendbuf, recvbuf, root).Wait()

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Met:
        return self._gatherv("Igatherv", sendbuf, recvbuf, root)

    def _gatherv(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> Met:
        self._check_root(root)
        parts = Parts(recvbuf, self.size, writing=True) if self.rank == root else None
        send = parts.of(root) if parts and is_in_place(sendbuf) else Memory(sendbuf, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            wanted, kind = given[root][1][2:]
            for rank, (_, (sent, sent_kind, *_)) in enumerate(given):
                _check(rank, sent, sent_kind, root, wanted[rank], kind)
            return only(root, [data for data, _ in given], self.size)

        return self._meet_parts(
            name, send, finish, parts, (("root", root),),
            (send.nbytes, send.kind, parts.lengths() if parts else None, parts.kind if parts else None),
        )  # fmt: skip

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._scatterv("Scatterv", sendbuf, recvbuf, root).Wait()

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Met:
        return self._scatterv("Iscatterv", sendbuf, recvbuf, root)

    def _scatterv(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> Met:
        self._check_root(root)
        parts = Parts(sendbuf, self.size, writing=False) if self.rank == root else None
        into = None if parts and is_in_place(recvbuf) else Memory(recvbuf, writing=True)
        each = parts.of(root) if parts and into is None else into
        assert each is not None

        def finish(given: list[Any]) -> list[Any]:
            data, (_, _, _, slices, kind) = given[root]
            for rank, (_, (_, wanted, wanted_kind, *_)) in enumerate(given):
                length = slices[rank].stop - slices[rank].start
                _check(root, length, kind, rank, wanted, wanted_kind)
            whole = bytes(data)
            return [whole[where] for where in slices]

        return self._meet(
            name, parts.memory if parts else None, finish, into=into, arguments=(("root", root),),
            nbytes=_longest,
            also=(
                sum(parts.lengths()) if parts else 0, each.nbytes, each.kind,
                parts.slices if parts else None, parts.kind if parts else None,
            ),
        )  # fmt: skip

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._allgatherv("Allgatherv", sendbuf, recvbuf).Wait()

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Met:
        return self._allgatherv("Iallgatherv", sendbuf, recvbuf)

    def _allgatherv(self, name: str, sendbuf: Any, recvbuf: Any) -> Met:
        parts = Parts(recvbuf, self.size, writing=True)
        send = parts.of(self.rank) if is_in_place(sendbuf) else Memory(sendbuf, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            for receiver, (_, (_, _, wanted, kind)) in enumerate(given):
                for rank, (_, (sent, sent_kind, *_)) in enumerate(given):
                    _check(rank, sent, sent_kind, receiver, wanted[rank], kind)
            rows = [bytes(data) for data, _ in given]
            return [rows] * self.size

        return self._meet_parts(
            name, send, finish, parts, (), (send.nbytes, send.kind, parts.lengths(), parts.kind)
        )

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._alltoallv("Alltoallv", sendbuf, recvbuf).Wait()

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Met:
        return self._alltoallv("Ialltoallv", sendbuf, recvbuf)

    def _alltoallv(self, name: str, sendbuf: Any, recvbuf: Any) -> Met:
        parts = Parts(recvbuf, self.size, writing=True)
        send = parts if is_in_place(sendbuf) else Parts(sendbuf, self.size, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            rows: list[list[bytes]] = [[] for _ in given]
            for sender, (data, (_, sent_kind, slices, *_)) in enumerate(given):
                whole = bytes(data)
                for receiver, where in enumerate(slices):
                    wanted, kind = given[receiver][1][3:]
                    _check(sender, where.stop - where.start, sent_kind, receiver, wanted[sender], kind)
                    rows[receiver].append(whole[where])
            return rows

        return self._meet_parts(
            name, send.memory, finish, parts, (),
            (sum(send.lengths()), send.kind, send.slices, parts.lengths(), parts.kind),
        )  # fmt: skip

    def _meet_parts(
        self, name: str, send: Memory, finish: Callable[[list[Any]], list[Any]], parts: Parts | None,
        arguments: tuple[Any, ...], also: tuple[Any, ...],
    ) -> Met:  # fmt: skip
        return self._meet(
            name, send, finish, into=parts.memory if parts else None, take=parts.take if parts else None,
            arguments=arguments, nbytes=_longest, also=also,
        )  # fmt: skip
