"""A communicator that counts what it sends and, where that is wanted, writes its calls down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.comm.calls import MAKERS, SENDS, TOGETHER, argument, handed, nbytes, plain_name
from paceline.comm.tracing import Tracer


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

    def __init__(self, comm: Any, counts: Counts | None = None, tracer: Tracer | None = None) -> None:
        self.bare: Any = comm.bare if isinstance(comm, Recorded) else comm
        self.counts = Counts() if counts is None else counts
        self.tracer = tracer
        """Writes every call down, with its times; None: none is."""

    def __getattr__(self, name: str) -> Any:
        # Reached once a name: what is found is kept on the instance.
        if name == "bare":  # not made yet: a copy in the making
            raise AttributeError(name)
        call = getattr(self.bare, name)
        plain = plain_name(name)  # Iallreduce counts as Allreduce
        if name in SENDS:
            wrapped = self._counting_messages(call)
        elif plain in TOGETHER:
            wrapped = self._counting_calls(call, plain)
        elif name in MAKERS:
            wrapped = self._making(call)
        elif callable(call) and not isinstance(call, type):
            wrapped = call
        else:
            return call
        if self.tracer is not None:
            wrapped = self.tracer.wrap(name, wrapped)
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
            dest = named["dest"] if "dest" in named else argument(arguments, named, 1, "dest", default=-1)
            if dest >= 0:  # MPI.PROC_NULL is negative: nothing is sent
                buffer = arguments[0] if arguments else argument(arguments, named, 0, "buf", "sendbuf")
                self.counts.point_to_point.add(
                    buffer.nbytes if type(buffer) is np.ndarray else nbytes(buffer)  # most are: microseconds
                )
            return call(*arguments, **named)

        return counted

    def _counting_calls(self, call: Any, name: str) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.counts.collective.add(nbytes(handed(name, arguments, named, self.Get_rank())))
            return call(*arguments, **named)

        return counted

    def _making(self, call: Any) -> Any:
        def made(*arguments: Any, **named: Any) -> Any:
            comm = call(*arguments, **named)
            tracer = None if self.tracer is None else self.tracer.of_new(comm)
            return Recorded(comm, self.counts, tracer) if comm else comm

        return made
