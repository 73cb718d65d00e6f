"""A communicator that counts what it sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Calls that put one message of their first argument on the way to `dest`.
POINT_TO_POINT = {
    *("Send", "Isend", "Ssend", "Issend", "Bsend", "Ibsend", "Rsend", "Irsend"),
    *("Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"),
}
# Collective calls, with an I before them or not, in which every rank hands its first argument to MPI …
COLLECTIVE = {
    *("Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *("Allgather", "Allgatherv", "Gather", "Gatherv", "Alltoall", "Alltoallv"),
}
# … in which only the root does (with the place of `root` among the arguments), and in which nobody does.
ROOTED = {"Bcast": 1, "Scatter": 2, "Scatterv": 2}
EMPTY = {"Barrier"}
TOGETHER = {*COLLECTIVE, *ROOTED, *EMPTY}
# Calls that make another communicator.
MAKERS = {
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph"),
}


@dataclass
class Traffic:
    """Messages and the bytes in them."""

    messages: int = 0
    bytes: int = 0

    def add(self, nbytes: int) -> None:
        self.messages += 1
        self.bytes += nbytes


@dataclass
class Counts:
    """What one rank sent: its own messages, and its calls of MPI's collectives with the bytes handed to them.

    What a collective of MPI's really sends is MPI's affair: only the call and the bytes given to it are
    known.
    """

    point_to_point: Traffic = field(default_factory=Traffic)
    collective: Traffic = field(default_factory=Traffic)

    @property
    def messages(self) -> int:
        return self.point_to_point.messages + self.collective.messages

    @property
    def bytes(self) -> int:
        return self.point_to_point.bytes + self.collective.bytes

    def clear(self) -> None:
        self.point_to_point, self.collective = Traffic(), Traffic()


class Recorded:
    """An mpi4py communicator, or one that looks like it, whose sent messages and bytes are counted.

    Communicators made from it (Dup, Split, Split_type …) count into the same `counts`, and so do paceline's
    collectives. Only the buffer interface (the capital-letter calls) is counted, persistent requests are not.

    >>> class Loopback:
    ...     def Isend(self, buffer, dest, tag=0):
    ...         return "request"
    >>> import numpy as np
    >>> comm = Recorded(Loopback())
    >>> comm.Isend(np.zeros(10, np.float32), dest=1)
    'request'
    >>> comm.counts.point_to_point
    Traffic(messages=1, bytes=40)
    """

    def __init__(self, comm: Any, counts: Counts | None = None) -> None:
        self.bare: Any = comm.bare if isinstance(comm, Recorded) else comm
        self.counts = Counts() if counts is None else counts

    def __getattr__(self, name: str) -> Any:
        # Reached once a name: what is found is kept on the instance.
        if name == "bare":  # not made yet: a copy in the making
            raise AttributeError(name)
        call = getattr(self.bare, name)
        plain = name[1:].capitalize() if name[:1] == "I" else name  # Iallreduce counts as Allreduce
        if name in POINT_TO_POINT:
            wrapped = self._counting_messages(call)
        elif plain in TOGETHER:
            wrapped = self._counting_calls(call, plain)
        elif name in MAKERS:
            wrapped = self._making(call)
        elif callable(call) and not isinstance(call, type):
            wrapped = call
        else:
            return call
        self.__dict__[name] = wrapped
        return wrapped

    def __bool__(self) -> bool:
        return bool(self.bare)

    def __eq__(self, other: object) -> bool:
        return bool(self.bare == (other.bare if isinstance(other, Recorded) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Recorded({self.bare!r}, {self.counts!r})"

    def _counting_messages(self, call: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            dest = named["dest"] if "dest" in named else _argument(arguments, named, 1, "dest", default=-1)
            if dest >= 0:  # MPI.PROC_NULL is negative: nothing is sent
                buffer = arguments[0] if arguments else _argument(arguments, named, 0, "buf", "sendbuf")
                self.counts.point_to_point.add(
                    buffer.nbytes if type(buffer) is np.ndarray else nbytes(buffer)  # most are: microseconds
                )
            return call(*arguments, **named)

        return counted

    def _counting_calls(self, call: Any, name: str) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            given = None
            if name in ROOTED:
                if _argument(arguments, named, ROOTED[name], "root", default=0) == self.Get_rank():
                    given = _argument(arguments, named, 0, "buf", "sendbuf")
            elif name in COLLECTIVE:
                given = _argument(arguments, named, 0, "sendbuf")
                if not _has_data(given):  # MPI.IN_PLACE: the second buffer is what is handed in
                    given = _argument(arguments, named, 1, "recvbuf")
            self.counts.collective.add(nbytes(given))
            return call(*arguments, **named)

        return counted

    def _making(self, call: Any) -> Any:
        def made(*arguments: Any, **named: Any) -> Any:
            comm = call(*arguments, **named)
            return Recorded(comm, self.counts) if comm else comm

        return made


def _argument(
    arguments: tuple[Any, ...], named: dict[str, Any], place: int, *names: str, default: Any = None
) -> Any:
    """An argument by its place or by one of mpi4py's names for it.

    A call without it is answered by mpi4py's own TypeError, when it is made.
    """
    if place < len(arguments):
        return arguments[place]
    return next((named[name] for name in names if name in named), default)


def nbytes(buffer: Any) -> int:
    """The bytes of an mpi4py buffer: an array, or [array, datatype], [array, count, datatype] …

    >>> import numpy as np
    >>> nbytes(np.zeros(3, np.float32)), nbytes([np.zeros(8), 2, "d"]), nbytes(None)
    (12, 16, 0)
    """
    if not isinstance(buffer, (list, tuple)):
        return memoryview(buffer).nbytes if _has_data(buffer) else 0
    data = memoryview(buffer[0])
    count = buffer[1] if len(buffer) > 1 else None
    if count is None or not isinstance(count, (int, list, tuple)):
        return data.nbytes
    if isinstance(count, (list, tuple)):  # counts for each rank, or (counts, displacements)
        counts = count[0] if isinstance(count[0], (list, tuple)) else count
        count = sum(counts)
    size = buffer[-1].Get_size() if hasattr(buffer[-1], "Get_size") else data.itemsize
    return int(count * size)


def _has_data(buffer: Any) -> bool:
    """Whether this is memory, and not MPI.IN_PLACE or MPI.BOTTOM."""
    kind = type(buffer)
    return not (buffer is None or issubclass(kind, int) or kind.__name__ in ("InPlaceType", "BottomType"))
