# ruff: noqa: N802 (mpi4py's names)
"""MPI's own collectives on simulated ranks that combine what ranks give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.sim._blocks import Memory, is_in_place, part
from paceline.sim._groups import Disagree, Met
from paceline.sim._reductions import checked, running, total
from paceline.sim._together import Together, agreed, only


class Reducing(Together):
    """Reduce, and all that is like it; the order of the ranks is the order in which they are combined."""

    __slots__ = ()

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> None:
        self._reduce("Reduce", sendbuf, recvbuf, op, root).Wait()

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> Met:
        return self._reduce("Ireduce", sendbuf, recvbuf, op, root)

    def _reduce(self, name: str, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> Met:
        self._check_root(root)
        into = Memory(recvbuf, writing=True) if self.rank == root else None
        return self._combine(
            name, sendbuf, into, op, lambda made, given, kind: only(root, total(given, made, kind), self.size),
            (("root", root),),
        )  # fmt: skip

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._allreduce("Allreduce", sendbuf, recvbuf, op).Wait()

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> Met:
        return self._allreduce("Iallreduce", sendbuf, recvbuf, op)

    def _allreduce(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> Met:
        return self._combine(
            name, sendbuf, Memory(recvbuf, writing=True), op,
            lambda made, given, kind: [total(given, made, kind)] * self.size,
        )  # fmt: skip

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._scan("Scan", sendbuf, recvbuf, op).Wait()

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> Met:
        return self._scan("Iscan", sendbuf, recvbuf, op)

    def _scan(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> Met:
        return self._combine(
            name, sendbuf, Memory(recvbuf, writing=True), op,
            lambda made, given, kind: [sofar.tobytes() for sofar in running(given, made, kind)],
        )  # fmt: skip

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._exscan("Exscan", sendbuf, recvbuf, op).Wait()

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> Met:
        return self._exscan("Iexscan", sendbuf, recvbuf, op)

    def _exscan(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> Met:
        return self._combine(
            name, sendbuf, Memory(recvbuf, writing=True), op,
            lambda made, given, kind: [None, *(sofar.tobytes() for sofar in running(given[:-1], made, kind))]
            if len(given) > 1 else [None],
        )  # fmt: skip

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._reduce_scatter("Reduce_scatter_block", sendbuf, recvbuf, None, op).Wait()

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> Met:
        return self._reduce_scatter("Ireduce_scatter_block", sendbuf, recvbuf, None, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Any = None
    ) -> None:
        self._reduce_scatter("Reduce_scatter", sendbuf, recvbuf, recvcounts, op).Wait()

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Any = None
    ) -> Met:
        return self._reduce_scatter("Ireduce_scatter", sendbuf, recvbuf, recvcounts, op)

    def _reduce_scatter(
        self, name: str, sendbuf: Any, recvbuf: Any, counts: Sequence[int] | None, op: Any
    ) -> Met:
        into = Memory(recvbuf, writing=True)
        send = into if is_in_place(sendbuf) else Memory(sendbuf, writing=False)
        if counts is None and "block" in name:
            each = part(send, 0, self.size).nbytes
            ends = [each * (rank + 1) for rank in range(self.size)]
        elif counts is None:
            ends = []  # everybody's own length, known when all have come
        else:
            each = np.dtype(send.kind).itemsize
            ends = np.cumsum([int(count) * each for count in counts]).tolist()
        if ends and (len(ends) != self.size or ends[-1] != send.nbytes):
            raise ValueError(f"{name} of {send.nbytes} bytes cannot be cut into {self.size} parts {counts}")

        def finish(given: list[Any]) -> list[Any]:
            whole = total([data for data, _ in given], op, send.kind)
            stops = ends or np.cumsum([length for _, length in given]).tolist()
            for rank, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
                if stop - start > given[rank][1]:
                    raise Disagree(
                        self.rank, f"cuts it into {stop - start} bytes for rank {rank}",
                        rank, f"receives {given[rank][1]}",
                    )  # fmt: skip
            return [whole[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]

        op = checked(op, send.kind)
        return self._meet(
            name, send, finish, into=into, arguments=(("op", op.name), *agreed(send)), nbytes=send.nbytes,
            also=send.nbytes if send is into and not ends else into.nbytes,
        )  # fmt: skip

    def _combine(
        self, name: str, sendbuf: Any, into: Memory | None, op: Any,
        make: Callable[[Any, list[Any], str], Sequence[Any]], arguments: tuple[Any, ...] = (),
    ) -> Met:  # fmt: skip
        if is_in_place(sendbuf):
            if into is None:
                raise ValueError(f"only the root of a {name} gives its buffer in place")
            send = into
        else:
            send = Memory(sendbuf, writing=False)
            if into is not None:
                self._check_same(name, send, into)
        op = checked(op, send.kind)
        return self._meet(
            name, send, lambda given: make(op, given, send.kind), into=into,
            arguments=(*arguments, ("op", op.name), *agreed(send)), nbytes=send.nbytes,
        )  # fmt: skip
