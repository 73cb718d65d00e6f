"""A communicator that counts its messages and bytes, times its calls and, if requested, traces them.

The first part knows mpi4py's buffer interface: the names of its calls and what their arguments mean.

Calls are timed on the clock of their rank: sends, receives and collectives are "exchange"; calls that wait for other
ranks count as the stopwatch's kind for waiting. Nothing is measured inside a block that is already timed: an exchange,
an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.comm.clocks import CLOSED, Stopwatch

if TYPE_CHECKING:
    from paceline.comm.tracing import Tracer


# Calls of mpi4py's buffer interface that send their first argument to `dest`, that receive, that wait for requests.
SENDS = (
    *("Send", "Isend", "Ssend", "Issend", "Bsend", "Ibsend", "Rsend", "Irsend"),
    *("Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"),
)
RECEIVES = ("Recv", "Irecv")
WAITS = ("Wait", "Test", "Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome", "Probe")
# Collective calls (and their nonblocking forms) to which every rank gives its first argument ...
COLLECTIVE = (
    *("Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *("Allgather", "Allgatherv", "Gather", "Gatherv", "Alltoall", "Alltoallv"),
)
# ... to which only the root does (with the position of `root` among the arguments), and to which no rank does.
ROOTED = {"Bcast": 1, "Scatter": 2, "Scatterv": 2}
EMPTY = ("Barrier",)
COLLECTIVE_CALLS = (*COLLECTIVE, *ROOTED, *EMPTY)
# Calls that create another communicator.
CONSTRUCTORS = (
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph"),
)


def plain_name(name: str) -> str:
    """Return the name of the blocking call of the same kind as a collective one.

    >>> plain_name("Iallreduce"), plain_name("Bcast")
    ('Allreduce', 'Bcast')
    """
    return name[1:].capitalize() if name[:1] == "I" else name


def sent_buffer(name: str, arguments: tuple[Any, ...], named: dict[str, Any], rank: int) -> Any:
    """Return the buffer that a rank gives to MPI in a collective call of this (plain) name, or None."""
    if name in ROOTED:
        root = argument(arguments, named, ROOTED[name], "root", default=0)
        return argument(arguments, named, 0, "buf", "sendbuf") if root == rank else None
    if name not in COLLECTIVE:
        return None
    given = argument(arguments, named, 0, "sendbuf")
    if not _has_data(given):  # MPI.IN_PLACE: the second buffer is the one given
        given = argument(arguments, named, 1, "recvbuf")
    return given


def argument(
    arguments: tuple[Any, ...], named: dict[str, Any], place: int, *names: str, default: Any = None
) -> Any:
    """Return an argument by its position or by one of mpi4py's names for it.

    If it is missing, mpi4py raises its own TypeError when the call is made.
    """
    if place < len(arguments):
        return arguments[place]
    return next((named[name] for name in names if name in named), default)


def nbytes(buffer: Any) -> int:
    """Return the bytes of an mpi4py buffer: an array, [array, datatype], [array, count, datatype] ...

    >>> nbytes(np.zeros(3, np.float32)), nbytes([np.zeros(8), 2, "d"]), nbytes(None)
    (12, 16, 0)
    >>> nbytes([np.zeros(8), (2, 5), "f"]), nbytes([np.zeros(8), [1, 2]]), nbytes([np.zeros(8), "d"])
    (8, 24, 64)
    """
    if not isinstance(buffer, (list, tuple)):
        return _length_and_size(buffer)[0]
    length, size = _length_and_size(buffer[0])
    count, kind = buffer[1] if len(buffer) > 1 else None, buffer[-1]
    if isinstance(count, tuple) and len(count) == 2:  # (count, displacement), or (counts, displacements)
        count = count[0]
    if count is None or isinstance(count, str) or hasattr(count, "Get_size"):
        return length
    if hasattr(kind, "Get_size"):
        size = kind.Get_size()
    elif isinstance(kind, str):
        size = np.dtype(kind).itemsize
    return int(sum(count) if isinstance(count, (list, tuple, np.ndarray)) else count) * size


def _length_and_size(data: Any) -> tuple[int, int]:
    """Return the bytes of an array, and of each of its elements."""
    if not _has_data(data):
        return 0, 0
    try:
        view: Any = memoryview(data)
    except TypeError:  # of another library, such as PyTorch, whose arrays have the same attributes
        view = data
    return int(view.nbytes), int(view.itemsize)


def _has_data(buffer: Any) -> bool:
    """Return True if this is memory and not MPI.IN_PLACE or MPI.BOTTOM."""
    kind = type(buffer)
    return not (buffer is None or issubclass(kind, int) or kind.__name__ in ("InPlaceType", "BottomType"))


@dataclass
class MessageCount:
    """Messages and the bytes in them."""

    messages: int = 0
    bytes: int = 0

    def add(self, nbytes: int, messages: int = 1) -> None:
        self.messages += messages
        self.bytes += nbytes


@dataclass
class Counts:
    """The traffic of one rank: its own messages, and its calls of MPI's collectives with the bytes passed to them.

    The actual messages of an MPI collective are unknown; only the call and the bytes passed to it are counted.
    """

    point_to_point: MessageCount = field(default_factory=MessageCount)
    collective: MessageCount = field(default_factory=MessageCount)

    @property
    def messages(self) -> int:
        return self.point_to_point.messages + self.collective.messages

    @property
    def bytes(self) -> int:
        return self.point_to_point.bytes + self.collective.bytes

    def clear(self) -> None:
        self.point_to_point, self.collective = MessageCount(), MessageCount()


class Recorded:
    """An mpi4py communicator, or one with the same interface, whose messages and bytes sent are counted.

    Communicators made from it (Dup, Split, Split_type ...) count into the same `counts`, and so do paceline's
    collectives. Only the buffer interface (calls with a capital letter) is counted; persistent requests are not.

    >>> class Loopback:
    ...     def Isend(self, buffer, dest, tag=0):
    ...         return "request"
    >>> import numpy as np
    >>> comm = Recorded(Loopback())
    >>> comm.Isend(np.zeros(10, np.float32), dest=1)
    'request'
    >>> comm.counts.point_to_point
    MessageCount(messages=1, bytes=40)
    """

    def __init__(
        self,
        comm: Any,
        counts: Counts | None = None,
        tracer: Tracer | None = None,
        timer: Timer | None = None,
        made: list[Any] | None = None,
    ) -> None:
        self.made: list[Any] = [] if made is None else made
        """The communicators made from this one, from those, and so on."""
        self.bare: Any = comm.bare if isinstance(comm, Recorded) else comm
        self.counts = Counts() if counts is None else counts
        self.tracer = tracer
        """Records every call with its times; None if calls are not traced."""
        self.timer = timer
        """Times the calls of this communicator and of those made from it; None if they are not timed."""

    def __getattr__(self, name: str) -> Any:
        # Called once for each name: the result is stored on the instance.
        if name == "bare":  # not set yet: a copy is being made
            raise AttributeError(name)
        call = getattr(self.bare, name)
        plain = plain_name(name)  # Iallreduce counts as Allreduce
        if name in SENDS:
            wrapped = self._count_messages(call)
        elif plain in COLLECTIVE_CALLS:
            wrapped = self._count_calls(call, plain)
        elif name in CONSTRUCTORS:
            wrapped = self._wrap_constructor(call)
        elif callable(call) and not isinstance(call, type):
            wrapped = call
        else:
            return call
        if self.tracer is not None:
            wrapped = self.tracer.wrap(name, wrapped)
        if self.timer is not None:
            wrapped = self.timer.wrap(name, wrapped)
        self.__dict__[name] = wrapped
        return wrapped

    def Get_rank(self) -> int:
        return self.bare.Get_rank()  # type: ignore[no-any-return]

    def Get_size(self) -> int:
        return self.bare.Get_size()  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.bare)

    def __eq__(self, other: object) -> bool:
        return bool(self.bare == (other.bare if isinstance(other, Recorded) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Recorded({self.bare!r}, {self.counts!r})"

    def _count_messages(self, call: Any) -> Any:
        """Return a call that counts the messages it sends."""

        def count(*arguments: Any, **named: Any) -> Any:
            dest = named["dest"] if "dest" in named else argument(arguments, named, 1, "dest", default=-1)
            if dest >= 0:  # MPI.PROC_NULL is negative: nothing is sent
                buffer = arguments[0] if arguments else argument(arguments, named, 0, "buf", "sendbuf")
                self.counts.point_to_point.add(
                    buffer.nbytes
                    if type(buffer) is np.ndarray
                    else nbytes(buffer)  # the usual case, kept fast
                )
            return call(*arguments, **named)

        return count

    def _count_calls(self, call: Any, name: str) -> Any:
        """Return a collective call that counts what this rank gives to it."""

        def count(*arguments: Any, **named: Any) -> Any:
            self.counts.collective.add(nbytes(sent_buffer(name, arguments, named, self.Get_rank())))
            return call(*arguments, **named)

        return count

    def _wrap_constructor(self, call: Any) -> Any:
        """Return a call that makes a communicator whose messages are recorded too."""

        def derive(*arguments: Any, **named: Any) -> Any:
            comm = call(*arguments, **named)
            tracer = None if self.tracer is None else self.tracer.of_new(comm)
            if not comm:
                return comm
            self.made.append(comm)
            return Recorded(comm, self.counts, tracer, self.timer, self.made)

        return derive


# ---- timing

EXCHANGES = frozenset(
    {*SENDS, *RECEIVES, *COLLECTIVE_CALLS, *(f"I{name.lower()}" for name in COLLECTIVE_CALLS), "Iprobe"}
)
WAITING = frozenset({"Recv", "Probe", "Barrier"})
REQUESTED = frozenset(name for name in EXCHANGES if name.startswith("I") and name != "Iprobe")


class Timer:
    """Wraps the calls of a communicator, so that its rank's stopwatch knows what is under way.

    >>> ticks = iter([0.0, 1.0, 4.0])
    >>> watch = Stopwatch(lambda: next(ticks), waits="wait")
    >>> Timer(watch).wrap("Recv", lambda buffer: None)(b"")
    >>> watch.seconds["wait"]
    3.0
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._timed: dict[
            type, Callable[[Any], Any]
        ] = {}  # by class: what makes a timed request of a request

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is timed, and whose requests are; other methods as they are."""
        if name not in EXCHANGES and name not in WAITING:
            return call
        watch, timed = self._watch, self._timed
        waits = name in WAITING or plain_name(name) == "Barrier"
        if name not in REQUESTED:
            return _time_call(watch, call, waits=waits)

        def call_timed(*given: Any, **named: Any) -> Any:
            doing = watch.kind
            if doing == "exchange":  # a collective's own messages: it waits for them itself
                return call(*given, **named)
            if doing in CLOSED:
                request = call(*given, **named)
            else:
                watch.switch(watch.waits if waits else "exchange")
                try:
                    request = call(*given, **named)
                finally:
                    watch.switch(doing)
            kind = type(request)
            make = timed.get(kind)
            if make is None:
                make = timed[kind] = _maker(kind, watch)
            return make(request)

        return call_timed


def _time_call(watch: Stopwatch, call: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
    """Return a call during which a rank waits for others, or else exchanges."""

    def call_timed(*given: Any, **named: Any) -> Any:
        doing = watch.kind
        if doing in CLOSED:
            return call(*given, **named)
        watch.switch(watch.waits if waits else "exchange")
        try:
            return call(*given, **named)
        finally:
            watch.switch(doing)

    return call_timed


def _maker(kind: Any, watch: Stopwatch) -> Callable[[Any], Any]:
    """Return a function that makes timed requests of requests of this class; one of MPI's stays one of MPI's."""
    if kind in (type(None), str):
        return lambda request: request
    if not any(base.__module__ == "mpi4py.MPI" for base in kind.__mro__):
        return lambda request: Around(request, watch)
    made: Any = type(f"Timed{kind.__name__}", (kind,), {"__slots__": (), **_waits(kind, watch)})
    if kind.__module__ == "mpi4py.MPI":
        return partial(made.__new__, made)  # the same handle

    def change(request: Any) -> Any:  # a class of Python's: a traced request
        request.__class__ = made
        return request

    return change


def _waits(kind: Any, watch: Stopwatch) -> dict[str, Any]:
    """Return the calls with which requests of a class are waited for, timed."""
    found: dict[str, Any] = {}
    for name, waits in (("Wait", True), ("Test", False)):
        found[name] = _time_call(watch, getattr(kind, name), waits=waits)
        for several in ("all", "any", "some"):
            found[name + several] = staticmethod(
                _time_call(watch, getattr(kind, name + several), waits=waits)
            )
    return found


class Waiting:
    """A communicator all of whose calls count as waiting for other ranks, for small control messages."""

    def __init__(self, comm: Any, watch: Stopwatch) -> None:
        self._comm, self._watch = comm, watch

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._comm, name)
        if name not in EXCHANGES and name not in WAITING:
            return call
        made = self.__dict__[name] = _time_call(self._watch, call, waits=True)
        return made


class Around:
    """A timed wrapper of a request that is not MPI's (the simulator's)."""

    __slots__ = ("_watch", "bare")

    def __init__(self, bare: Any, watch: Stopwatch) -> None:
        self.bare, self._watch = bare, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)

    def __bool__(self) -> bool:
        return bool(self.bare)

    def Wait(self, status: Any = None) -> Any:
        return _time_call(self._watch, self.bare.Wait, waits=True)(status)

    def Test(self, status: Any = None) -> Any:
        return _time_call(self._watch, self.bare.Test, waits=False)(status)

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _complete_together("Waitall", requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _complete_together("Waitany", requests, status)

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _complete_together("Waitsome", requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _complete_together("Testall", requests, statuses)

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _complete_together("Testany", requests, status)

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _complete_together("Testsome", requests, statuses)


_get_bare = attrgetter("bare")


def _complete_together(name: str, requests: Sequence[Any], statuses: Any) -> Any:
    """Make one timed call for several requests."""
    watch = next(request._watch for request in requests if isinstance(request, Around))
    try:  # a master waits for a thousand requests at a time
        bare = list(map(_get_bare, requests))
    except AttributeError:  # some are null
        bare = [request.bare if isinstance(request, Around) else request for request in requests]
    call = getattr(type(bare[0]), name)
    return _time_call(watch, call, waits=name.startswith("Wait"))(bare, statuses)
