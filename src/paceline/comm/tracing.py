"""The trace of each rank: spans of its time and its MPI calls, recorded up to a limit. Only used with `--trace`."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import KINDS
from paceline.comm.control import Control
from paceline.comm.operations import mpi_of
from paceline.comm.recording import (
    COLLECTIVE_CALLS,
    RECEIVES,
    SENDS,
    WAITS,
    argument,
    nbytes,
    plain_name,
    sent_buffer,
)

Array = NDArray[Any]
FENCE = "Fence"
"""A barrier of all ranks that share memory."""
CANCELLED = "Cancelled"
"""A receive that was cancelled, because no message would come."""
CALLS = (
    *SENDS,
    *RECEIVES,
    *WAITS,
    *COLLECTIVE_CALLS,
    *(f"I{name.lower()}" for name in COLLECTIVE_CALLS),
    FENCE,
    CANCELLED,
)
NAMES = (*KINDS, *CALLS)
CODES = {name: code for code, name in enumerate(NAMES)}
COLUMNS = ("kind", "peer", "tag", "bytes", "comm", "start", "end", "done")
TYPES = {
    "kind": np.uint8,
    "peer": np.int32,
    "tag": np.int32,
    "bytes": np.int64,
    "comm": np.uint32,
    "done": np.int64,
}
WIDTH = len(COLUMNS)
KIND, PEER, TAG, BYTES, DONE = (COLUMNS.index(name) for name in ("kind", "peer", "tag", "bytes", "done"))
# The most events of all ranks together and of one rank; every rank may keep at least MINIMUM.
MOST, MOST_PER_RANK, MINIMUM = 2_000_000, 200_000, 1_000


def event_limit(ranks: int) -> int:
    """Return the number of events, from the first, that each of `ranks` ranks stores.

    >>> event_limit(1), event_limit(100), event_limit(100_000)
    (200000, 20000, 1000)
    """
    return max(MINIMUM, min(MOST_PER_RANK, MOST // ranks))


class Events:
    """The events of one rank, in the order in which they ended.

    >>> events = Events(clock=lambda: 0.0, limit=2)
    >>> events.lap("compute", 0.0, 1.5)
    >>> [events.add("Isend", 1.5, 1.6, peer=3, nbytes=40), events.add("Wait", 1.6, 1.7), events.lost]
    [1, -1, 1]
    """

    def __init__(self, clock: Callable[[], float], limit: int) -> None:
        self.clock = clock
        self.rows = array("d")
        self.lost = 0
        """The number of events that were not kept because the limit was reached."""
        self._full = limit * WIDTH

    def add(
        self,
        name: str,
        start: float,
        end: float,
        peer: int = -1,
        tag: int = -1,
        nbytes: int = 0,
        comm: int = 0,
    ) -> int:
        """Record an event; return its number, or -1 if the limit is reached."""
        rows = self.rows
        if len(rows) >= self._full:
            self.lost += 1
            return -1
        rows.extend((CODES[name], peer, tag, nbytes, comm, start, end, -1))
        return len(rows) // WIDTH - 1

    def lap(self, kind: str, start: float, end: float) -> None:
        """Record a span of this rank's time, unless it is empty."""
        if end > start:
            self.add(kind, start, end)

    def note_completion(self, number: int, by: int, source: int = -1, tag: int = -1) -> None:
        """Record that event `by` completed what event `number` began and, if given, where its message came from."""
        if number >= 0:
            row = number * WIDTH
            self.rows[row + DONE] = by
            if source >= 0:
                self.rows[row + PEER], self.rows[row + TAG] = source, tag

    def note_cancellation(self, number: int, by: int) -> None:
        """Record that event `number`, a receive, was cancelled, and that event `by` completed it: it has no message."""
        self.note_completion(number, by)
        if number >= 0:
            row = number * WIDTH
            self.rows[row + KIND], self.rows[row + BYTES] = CODES[CANCELLED], 0

    def find_peer(self, number: int) -> tuple[int, int]:
        """Return the peer and the tag of an event, or (-1, -1) if it was not kept."""
        row = number * WIDTH
        return (-1, -1) if number < 0 else (int(self.rows[row + PEER]), int(self.rows[row + TAG]))

    def mark(self) -> tuple[int, int]:
        """Return a position for `forget`."""
        return len(self.rows), self.lost

    def forget(self, mark: tuple[int, int]) -> None:
        """Remove the events recorded since `mark`; nothing that began in between may complete later."""
        length, self.lost = mark
        del self.rows[length:]

    def record_calls(self, fence: Callable[[], None]) -> Callable[[], None]:
        """Return the same function with its calls recorded."""

        def call() -> None:
            start = self.clock()
            fence()
            self.add(FENCE, start, self.clock())

        return call


def gather_events(events: Events, origin: float, control: Control) -> dict[str, Array]:
    """Return the events of all ranks as columns on rank 0, and empty columns elsewhere. Collective.

    Times are counted from `origin` of each rank's clock.
    """
    rows = np.array(events.rows).reshape(-1, WIDTH)
    for time in ("start", "end"):
        rows[:, COLUMNS.index(time)] -= origin
    parts, lost = control.gather(rows), control.gather(np.array([events.lost]))
    every = np.concatenate(parts) if parts else np.empty((0, WIDTH))
    counts = [len(part) for part in parts]
    return {
        "names": np.array(NAMES),
        "rank": np.repeat(np.arange(len(parts), dtype=np.uint32), counts),
        **{name: every[:, n].astype(TYPES.get(name, np.float64)) for n, name in enumerate(COLUMNS)},
        "lost": np.concatenate(lost) if lost else np.empty(0, np.int64),
    }


class TracedRequest:
    """A request that records when and with which call it was completed. Unsuccessful polls are not recorded."""

    tracer: Tracer
    begun: list[tuple[int, bool]]
    """The events that it completes, each with True if the source of its message is not known yet."""
    cancelling = False
    """True if it has been asked to be cancelled; a message that has arrived is received nevertheless."""

    def _follow(self, tracer: Tracer, number: int, *, wild: bool, second: tuple[int, bool] | None) -> None:
        self.tracer = tracer
        self.begun = [(number, wild)] if second is None else [(number, False), second]

    def _own_method(self, name: str) -> Callable[..., Any]:
        """Return a method of the request itself."""
        return getattr(super(), name)  # type: ignore[no-any-return]

    @classmethod
    def _own_class_method(cls, name: str, requests: Sequence[Any]) -> Callable[..., Any]:
        """Return a class method of the requests themselves, bound to `requests`."""
        call = getattr(super(), name)
        return lambda *given: call(requests, *given)

    def _needs_status(self) -> bool:
        return self.cancelling or any(wild for _, wild in self.begun)

    def _note_end(self, by: int, status: Any) -> None:
        cancelled = self.cancelling and status is not None and status.Is_cancelled()
        for number, wild in self.begun:
            if cancelled:
                self.tracer.events.note_cancellation(number, by)
            elif wild and status is not None:
                self.tracer.record_source(number, by, status)
            else:
                self.tracer.events.note_completion(number, by)
        self.begun = []

    def _single_call(self, name: str, status: Any) -> bool:
        tracer, events = self.tracer, self.tracer.events
        if status is None and self._needs_status():
            status = tracer.status()
        start = events.clock()
        done: bool = self._own_method(name)(status)
        if done:
            peer, tag = events.find_peer(self.begun[0][0] if self.begun else -1)
            self._note_end(events.add(name, start, events.clock(), peer, tag, 0, tracer.number), status)
        return done

    def Cancel(self) -> None:
        self._own_method("Cancel")()
        self.cancelling = True

    def Wait(self, status: Any = None) -> bool:
        return self._single_call("Wait", status)

    def Test(self, status: Any = None) -> bool:
        return self._single_call("Test", status)

    @classmethod
    def _together_call(
        cls, name: str, requests: Sequence[Any], statuses: Any, done: Callable[[Any], Any]
    ) -> Any:
        """Make one call for several requests; `done(answer)` gives the positions of the completed ones."""
        ours = [request for request in requests if isinstance(request, TracedRequest)]
        single = name.endswith("any")
        if statuses is None and any(request._needs_status() for request in ours):
            statuses = ours[0].tracer.status() if single else [ours[0].tracer.status() for _ in requests]
        events = ours[0].tracer.events
        start = events.clock()
        answer = cls._own_class_method(name, requests)(statuses)
        places = done(answer)
        if places:
            by = events.add(name, start, events.clock(), comm=ours[0].tracer.number)
            for order, place in enumerate(places):
                request = requests[place]
                if isinstance(request, TracedRequest):
                    status = statuses if single or statuses is None else statuses[order]
                    request._note_end(by, status)
        return answer

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._together_call("Waitall", requests, statuses, lambda _: range(len(requests)))

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._together_call(
            "Testall", requests, statuses, lambda over: range(len(requests)) if over else ()
        )

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return cls._together_call("Waitany", requests, status, lambda place: [place] if place >= 0 else ())

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return cls._together_call(
            "Testany", requests, status, lambda found: [found[0]] if found[1] and found[0] >= 0 else ()
        )

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._together_call("Waitsome", requests, statuses, lambda places: places or ())

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._together_call("Testsome", requests, statuses, lambda places: places or ())


class WrappedRequest(TracedRequest):
    """A traced request that is not MPI's own but the simulator's."""

    def __init__(self, bare: Any) -> None:
        self.bare = bare

    def __getattr__(self, name: str) -> Any:
        if name == "bare":
            raise AttributeError(name)
        return getattr(self.bare, name)

    def __bool__(self) -> bool:
        return bool(self.bare)

    def _own_method(self, name: str) -> Callable[..., Any]:
        return getattr(self.bare, name)  # type: ignore[no-any-return]

    @classmethod
    def _own_class_method(cls, name: str, requests: Sequence[Any]) -> Callable[..., Any]:
        bare = [request.bare if isinstance(request, WrappedRequest) else request for request in requests]
        call = getattr(type(bare[0]), name)
        return lambda *given: call(bare, *given)


def trace_request(
    request: Any, tracer: Tracer, number: int, *, wild: bool = False, second: Any = None
) -> Any:
    """Return a traced request for `request`; one of MPI's remains an instance of its class."""
    kind: Any = type(request)
    own = kind.__module__ == "mpi4py.MPI"
    made = (
        _kind(kind).__new__(_kind(kind), request) if own else WrappedRequest(request)
    )  # the same handle, or a wrapper
    made._follow(tracer, number, wild=wild, second=second)
    return made


@cache
def _kind(kind: Any) -> Any:
    return type(f"TracedRequest{kind.__name__}", (TracedRequest, kind), {})


# The position of `root` among the arguments of a collective call that has one.
ROOTS = {"Bcast": 1, "Scatter": 2, "Scatterv": 2, "Gather": 2, "Gatherv": 2, "Reduce": 3}
# The positions of the buffer, source and tag of the receiving half of a call that also sends.
HALVES = {
    **dict.fromkeys(("Sendrecv", "Isendrecv"), (3, 4, 5)),
    **dict.fromkeys(("Sendrecv_replace", "Isendrecv_replace"), (0, 3, 4)),
}


class Tracer:
    """A wrapper that records the calls of one communicator; `path` is its name, the same on all its ranks."""

    def __init__(self, events: Events, bare: Any, above: Tracer | None = None, path: str = "") -> None:
        self.events, self._bare = events, bare
        self.number = zlib.crc32(path.encode())
        self._path = path
        self._world: Any = bare if above is None else above._world
        self._known: dict[str, Tracer] = {} if above is None else above._known
        self._made = 0
        self._members: list[int] | None = None

    def of(self, bare: Any, name: str) -> Tracer:
        """Return the tracer of a communicator derived from this one under a name."""
        path = f"{self._path}/{name}"
        if path not in self._known:
            self._known[path] = Tracer(self.events, bare, self, path)
        return self._known[path]

    def of_new(self, bare: Any) -> Tracer:
        """Return the tracer of a communicator just created from this one; all ranks create them in the same order."""
        self._made += 1
        return self.of(bare, str(self._made))

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with recording added, if it is one that is recorded."""
        if name in SENDS:
            return self._trace_send(name, call)
        if name in RECEIVES:
            return self._trace_receive(name, call)
        if plain_name(name) in COLLECTIVE_CALLS:
            return self._trace_collective(name, call)
        return self._trace_probe(call) if name == "Probe" else call

    def world_rank(self, rank: int | None) -> int:
        """Return the number in the job of a rank of this communicator, or -1 for any or none."""
        if rank is None or rank < 0:
            return -1
        if self._members is None:
            group = getattr(self._bare, "Get_group", None)
            if group is None:
                return rank
            self._members = list(group().Translate_ranks(None, self._world.Get_group()))
        return self._members[rank]

    def status(self) -> Any:
        """Return an empty status of this communicator's kind."""
        return mpi_of(self._bare).Status()

    def _trace_send(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, events, replies = self.events.clock, self.events, name in HALVES

        def call_traced(*given: Any, **named: Any) -> Any:
            start = clock()
            made = call(*given, **named)
            end = clock()
            dest = argument(given, named, 1, "dest", default=-1)
            number = -1
            if dest is not None and dest >= 0:
                tag = argument(given, named, 2, "sendtag" if replies else "tag", default=0)
                size = nbytes(argument(given, named, 0, "buf", "sendbuf"))
                number = events.add(name, start, end, self.world_rank(dest), tag, size, self.number)
            second = self._record_second_half(name, given, named, start, end) if replies else None
            return made if made is None else trace_request(made, self, number, second=second)

        return call_traced

    def _record_second_half(
        self, name: str, given: Any, named: Any, start: float, end: float
    ) -> tuple[int, bool] | None:
        """Record the message that such a call receives as an event of its own."""
        buffer, source, tag = HALVES[name]
        wanted = argument(given, named, source, "source")
        tagged = argument(given, named, tag, "recvtag")
        size = nbytes(argument(given, named, buffer, "recvbuf", "buf"))
        peer = self.world_rank(wanted)
        number = self.events.add("Recv", start, end, peer, _tag(tagged), size, self.number)
        return number, peer < 0 or _tag(tagged) < 0

    def _trace_receive(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, events, blocking = self.events.clock, self.events, name == "Recv"

        def call_traced(*given: Any, **named: Any) -> Any:
            source, tag = argument(given, named, 1, "source"), _tag(argument(given, named, 2, "tag"))
            peer = self.world_rank(source)
            wild = peer < 0 or tag < 0
            status = argument(given, named, 3, "status") if blocking else None
            if wild and blocking and status is None:
                status = self.status()
                given, named = given[:3], {**named, "status": status}
            start = clock()
            made = call(*given, **named)
            end = clock()
            size = nbytes(argument(given, named, 0, "buf"))
            number = events.add(name, start, end, peer, tag, size, self.number)
            if not blocking:
                return trace_request(made, self, number, wild=wild)
            if wild:
                self.record_source(number, -1, status)
            return made

        return call_traced

    def record_source(self, number: int, by: int, status: Any) -> None:
        """Record where a message came from that could have come from any of several ranks."""
        self.events.note_completion(number, by, self.world_rank(status.Get_source()), status.Get_tag())

    def _trace_collective(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, events, plain = self.events.clock, self.events, plain_name(name)
        rank = self._bare.Get_rank()

        def call_traced(*given: Any, **named: Any) -> Any:
            start = clock()
            made = call(*given, **named)
            end = clock()
            root = argument(given, named, ROOTS[plain], "root", default=0) if plain in ROOTS else -1
            size = nbytes(sent_buffer(plain, given, named, rank))
            number = events.add(name, start, end, self.world_rank(root), -1, size, self.number)
            return made if made is None else trace_request(made, self, number)

        return call_traced

    def _trace_probe(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_traced(*given: Any, **named: Any) -> Any:
            start = self.events.clock()
            found = call(*given, **named)
            source = self.world_rank(argument(given, named, 0, "source"))
            tag = _tag(argument(given, named, 1, "tag"))
            self.events.add("Probe", start, self.events.clock(), source, tag, 0, self.number)
            return found

        return call_traced


def _tag(tag: int | None) -> int:
    return -1 if tag is None or tag < 0 else tag
