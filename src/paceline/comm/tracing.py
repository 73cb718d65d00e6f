"""The calls of a communicator, written down with what they were about; nothing of this is there without `--trace`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from paceline.comm.calls import RECEIVES, SENDS, TOGETHER, argument, handed, nbytes, plain_name
from paceline.comm.events import Events
from paceline.comm.mpi import mpi_of

# ---- Requests that tell when they were waited for, in the place of those that a traced communicator gives.


class Following:
    """A request that tells when it was waited for, and with what call. What is polled in vain is not told."""

    tracer: Tracer
    begun: list[tuple[int, bool]]
    """What it completes: numbers of events, and of each whether its source is yet to be found out."""

    def _follow(self, tracer: Tracer, number: int, *, wild: bool, second: tuple[int, bool] | None) -> None:
        self.tracer = tracer
        self.begun = [(number, wild)] if second is None else [(number, False), second]

    def _its(self, name: str) -> Callable[..., Any]:
        """A method of the request itself."""
        return getattr(super(), name)  # type: ignore[no-any-return]

    @classmethod
    def _theirs(cls, name: str, requests: Sequence[Any]) -> Callable[..., Any]:
        """A class method of the requests themselves, for these."""
        call = getattr(super(), name)
        return lambda *given: call(requests, *given)

    def _wild(self) -> bool:
        return any(wild for _, wild in self.begun)

    def _ended(self, by: int, status: Any) -> None:
        for number, wild in self.begun:
            if wild and status is not None:
                self.tracer.tell(number, by, status)
            else:
                self.tracer.events.completed(number, by)
        self.begun = []

    def _alone(self, name: str, status: Any) -> bool:
        tracer, events = self.tracer, self.tracer.events
        if status is None and self._wild():
            status = tracer.status()
        start = events.clock()
        done: bool = self._its(name)(status)
        if done:
            peer, tag = events.about(self.begun[0][0] if self.begun else -1)
            self._ended(events.add(name, start, events.clock(), peer, tag, 0, tracer.number), status)
        return done

    def Wait(self, status: Any = None) -> bool:
        return self._alone("Wait", status)

    def Test(self, status: Any = None) -> bool:
        return self._alone("Test", status)

    @classmethod
    def _several(cls, name: str, requests: Sequence[Any], statuses: Any, done: Callable[[Any], Any]) -> Any:
        """One call for several requests; `done(answer)` are the places of those that are over."""
        ours = [request for request in requests if isinstance(request, Following)]
        single = name.endswith("any")
        if statuses is None and any(request._wild() for request in ours):
            statuses = ours[0].tracer.status() if single else [ours[0].tracer.status() for _ in requests]
        events = ours[0].tracer.events
        start = events.clock()
        answer = cls._theirs(name, requests)(statuses)
        places = done(answer)
        if places:
            by = events.add(name, start, events.clock(), comm=ours[0].tracer.number)
            for order, place in enumerate(places):
                request = requests[place]
                if isinstance(request, Following):
                    told = statuses if single or statuses is None else statuses[order]
                    request._ended(by, told)
        return answer

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._several("Waitall", requests, statuses, lambda _: range(len(requests)))

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._several("Testall", requests, statuses, lambda over: range(len(requests)) if over else ())

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return cls._several("Waitany", requests, status, lambda place: [place] if place >= 0 else ())

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return cls._several(
            "Testany", requests, status, lambda found: [found[0]] if found[1] and found[0] >= 0 else ()
        )

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._several("Waitsome", requests, statuses, lambda places: places or ())

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return cls._several("Testsome", requests, statuses, lambda places: places or ())


class Around(Following):
    """A request that is not MPI's own (the simulator's), and what it tells."""

    def __init__(self, bare: Any) -> None:
        self.bare = bare

    def __getattr__(self, name: str) -> Any:
        if name == "bare":
            raise AttributeError(name)
        return getattr(self.bare, name)

    def __bool__(self) -> bool:
        return bool(self.bare)

    def _its(self, name: str) -> Callable[..., Any]:
        return getattr(self.bare, name)  # type: ignore[no-any-return]

    @classmethod
    def _theirs(cls, name: str, requests: Sequence[Any]) -> Callable[..., Any]:
        bare = [request.bare if isinstance(request, Around) else request for request in requests]
        call = getattr(type(bare[0]), name)
        return lambda *given: call(bare, *given)


def following(request: Any, tracer: Tracer, number: int, *, wild: bool = False, second: Any = None) -> Any:
    """A request in whose place this one stands: it is one of MPI's still, and is taken wherever one is."""
    kind: Any = type(request)
    own = kind.__module__ == "mpi4py.MPI"
    made = (
        _kind(kind).__new__(_kind(kind), request) if own else Around(request)
    )  # the same handle, or the same thing
    made._follow(tracer, number, wild=wild, second=second)
    return made


@cache
def _kind(kind: Any) -> Any:
    return type(f"Following{kind.__name__}", (Following, kind), {})


# Where the root stands among the arguments of a collective call that has one.
ROOTS = {"Bcast": 1, "Scatter": 2, "Scatterv": 2, "Gather": 2, "Gatherv": 2, "Reduce": 3}
# The same for the receiving half of a call that sends too: its source and its tag.
HALVES = {
    **dict.fromkeys(("Sendrecv", "Isendrecv"), (3, 4, 5)),
    **dict.fromkeys(("Sendrecv_replace", "Isendrecv_replace"), (0, 3, 4)),
}


class Tracer:
    """Wraps the calls of one communicator; `path` names it in the same way on all its ranks."""

    def __init__(self, events: Events, bare: Any, above: Tracer | None = None, path: str = "") -> None:
        self.events, self._bare = events, bare
        self.number = zlib.crc32(path.encode())
        self._path = path
        self._world: Any = bare if above is None else above._world
        self._known: dict[str, Tracer] = {} if above is None else above._known
        self._made = 0
        self._members: list[int] | None = None

    def of(self, bare: Any, name: str) -> Tracer:
        """That of a communicator that belongs to this one: the only one of this name."""
        path = f"{self._path}/{name}"
        if path not in self._known:
            self._known[path] = Tracer(self.events, bare, self, path)
        return self._known[path]

    def of_new(self, bare: Any) -> Tracer:
        """That of a communicator that was just made from this one: all its ranks have made as many before."""
        self._made += 1
        return self.of(bare, str(self._made))

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, written down; calls of no interest as they are."""
        if name in SENDS:
            return self._sending(name, call)
        if name in RECEIVES:
            return self._receiving(name, call)
        if plain_name(name) in TOGETHER:
            return self._together(name, call)
        return self._probing(call) if name == "Probe" else call

    def world_rank(self, rank: int | None) -> int:
        """A rank of this communicator by its number in the job; -1 for any or none."""
        if rank is None or rank < 0:
            return -1
        if self._members is None:
            group = getattr(self._bare, "Get_group", None)
            if group is None:
                return rank
            self._members = list(group().Translate_ranks(None, self._world.Get_group()))
        return self._members[rank]

    def status(self) -> Any:
        """An empty status of this communicator's kind."""
        return mpi_of(self._bare).Status()

    def _sending(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, events, replies = self.events.clock, self.events, name in HALVES

        def traced(*given: Any, **named: Any) -> Any:
            start = clock()
            made = call(*given, **named)
            end = clock()
            dest = argument(given, named, 1, "dest", default=-1)
            number = -1
            if dest is not None and dest >= 0:
                tag = argument(given, named, 2, "sendtag" if replies else "tag", default=0)
                size = nbytes(argument(given, named, 0, "buf", "sendbuf"))
                number = events.add(name, start, end, self.world_rank(dest), tag, size, self.number)
            second = self._second_half(name, given, named, start, end) if replies else None
            return made if made is None else following(made, self, number, second=second)

        return traced

    def _second_half(
        self, name: str, given: Any, named: Any, start: float, end: float
    ) -> tuple[int, bool] | None:
        """The message that such a call receives, as an event of its own."""
        buffer, source, tag = HALVES[name]
        wanted = argument(given, named, source, "source")
        tagged = argument(given, named, tag, "recvtag")
        size = nbytes(argument(given, named, buffer, "recvbuf", "buf"))
        peer = self.world_rank(wanted)
        number = self.events.add("Recv", start, end, peer, _tag(tagged), size, self.number)
        return number, peer < 0 or _tag(tagged) < 0

    def _receiving(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, events, blocking = self.events.clock, self.events, name == "Recv"

        def traced(*given: Any, **named: Any) -> Any:
            source, tag = argument(given, named, 1, "source"), _tag(argument(given, named, 2, "tag"))
            peer = self.world_rank(source)
            wild = peer < 0 or tag < 0
            status = argument(given, named, 3, "status") if blocking else None
            if wild and blocking and status is None:
                status = named["status"] = self.status()
            start = clock()
            made = call(*given, **named)
            end = clock()
            size = nbytes(argument(given, named, 0, "buf"))
            number = events.add(name, start, end, peer, tag, size, self.number)
            if not blocking:
                return following(made, self, number, wild=wild)
            if wild:
                self.tell(number, -1, status)
            return made

        return traced

    def tell(self, number: int, by: int, status: Any) -> None:
        """From whom a message came that could have come from several."""
        self.events.completed(number, by, self.world_rank(status.Get_source()), status.Get_tag())

    def _together(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, events, plain = self.events.clock, self.events, plain_name(name)
        rank = self._bare.Get_rank()

        def traced(*given: Any, **named: Any) -> Any:
            start = clock()
            made = call(*given, **named)
            end = clock()
            root = argument(given, named, ROOTS[plain], "root", default=0) if plain in ROOTS else -1
            size = nbytes(handed(plain, given, named, rank))
            number = events.add(name, start, end, self.world_rank(root), -1, size, self.number)
            return made if made is None else following(made, self, number)

        return traced

    def _probing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*given: Any, **named: Any) -> Any:
            start = self.events.clock()
            found = call(*given, **named)
            source = self.world_rank(argument(given, named, 0, "source"))
            tag = _tag(argument(given, named, 1, "tag"))
            self.events.add("Probe", start, self.events.clock(), source, tag, 0, self.number)
            return found

        return traced


def _tag(tag: int | None) -> int:
    return -1 if tag is None or tag < 0 else tag
