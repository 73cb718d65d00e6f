"""Automatic timing of communicator calls on the clock of their rank.

Sends, receives and collectives are "exchange"; calls that wait for other ranks count as the stopwatch's kind for waiting.
Nothing is measured inside a block that is already timed: an exchange, an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from paceline.comm.clocks import CLOSED, Stopwatch
from paceline.comm.counting import COLLECTIVE_CALLS, RECEIVES, SENDS, plain_name

EXCHANGES = frozenset(
    {*SENDS, *RECEIVES, *COLLECTIVE_CALLS, *(f"I{name.lower()}" for name in COLLECTIVE_CALLS), "Iprobe"}
)
WAITS = frozenset({"Recv", "Probe", "Barrier"})
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
        if name not in EXCHANGES and name not in WAITS:
            return call
        watch, timed = self._watch, self._timed
        waits = name in WAITS or plain_name(name) == "Barrier"
        if name not in REQUESTED:
            return _timing(watch, call, waits=waits)

        def timing(*given: Any, **named: Any) -> Any:
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

        return timing


def _timing(watch: Stopwatch, call: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
    """Return a call during which a rank waits for others, or else exchanges."""

    def timing(*given: Any, **named: Any) -> Any:
        doing = watch.kind
        if doing in CLOSED:
            return call(*given, **named)
        watch.switch(watch.waits if waits else "exchange")
        try:
            return call(*given, **named)
        finally:
            watch.switch(doing)

    return timing


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
        found[name] = _timing(watch, getattr(kind, name), waits=waits)
        for several in ("all", "any", "some"):
            found[name + several] = staticmethod(_timing(watch, getattr(kind, name + several), waits=waits))
    return found


class Waiting:
    """A communicator all of whose calls count as waiting for other ranks, for small control messages."""

    def __init__(self, comm: Any, watch: Stopwatch) -> None:
        self._comm, self._watch = comm, watch

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._comm, name)
        if name not in EXCHANGES and name not in WAITS:
            return call
        made = self.__dict__[name] = _timing(self._watch, call, waits=True)
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
        return _timing(self._watch, self.bare.Wait, waits=True)(status)

    def Test(self, status: Any = None) -> Any:
        return _timing(self._watch, self.bare.Test, waits=False)(status)

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several("Waitall", requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _several("Waitany", requests, status)

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several("Waitsome", requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several("Testall", requests, statuses)

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _several("Testany", requests, status)

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several("Testsome", requests, statuses)


def _several(name: str, requests: Sequence[Any], statuses: Any) -> Any:
    watch = next(request._watch for request in requests if isinstance(request, Around))
    try:  # a master waits for a thousand requests at a time
        bare = [request.bare for request in requests]
    except AttributeError:  # some are null
        bare = [request.bare if isinstance(request, Around) else request for request in requests]
    call = getattr(type(bare[0]), name)
    return _timing(watch, call, waits=name.startswith("Wait"))(bare, statuses)
