"""The calls of a communicator, written down with what they were about; nothing of this is there without `--trace`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from paceline.comm._calls import RECEIVES, SENDS, TOGETHER, argument, handed, nbytes, plain_name
from paceline.comm._events import Events
from paceline.comm._following import following
from paceline.comm._mpi import mpi

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
        own = getattr(self._bare, "MPI", None)
        return (mpi() if own is None else own).Status()

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
