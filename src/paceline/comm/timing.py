"""Automatic timing of communicator calls on the clock of their rank.

Sends, receives and collectives are "exchange"; calls that wait for other ranks count as the stopwatch's kind for waiting.
Nothing is measured inside a block that is already timed: an exchange, an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from paceline.comm.clocks import CLOSED, Stopwatch
from paceline.comm.counting import COLLECTIVE_CALLS, RECEIVES, SENDS, plain_name

EXCHANGES = frozenset(
    {*SENDS, *RECEIVES, *COLLECTIVE_CALLS, *(f"I{name.lower()}" for name in COLLECTIVE_CALLS), "Iprobe"}
)
WAITS = frozenset({"Recv", "Probe", "Barrier"})
REQUESTED = frozenset(name for name in EXCHANGES if name.startswith("I") and name != "Iprobe")


class Timer:
    """Wraps the calls of a communicator.

    >>> ticks = iter([0.0, 1.0, 4.0])
    >>> watch = Stopwatch(lambda: next(ticks), waits="wait")
    >>> Timer(watch).wrap("Recv", lambda buffer: None)(b"")
    >>> watch.seconds["wait"]
    3.0
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a timed version of a call, whose requests are timed too; return other methods unchanged."""
        if name not in EXCHANGES and name not in WAITS:
            return call
        watch, requests = self._watch, name in REQUESTED
        kind = watch.waits if name in WAITS or plain_name(name) == "Barrier" else "exchange"

        def timing(*given: Any, **named: Any) -> Any:
            doing = watch.kind
            if doing == "exchange":  # a collective's own messages: it waits for them itself
                return call(*given, **named)
            if doing in CLOSED:
                found = call(*given, **named)
            else:
                watch.switch(kind)
                try:
                    found = call(*given, **named)
                finally:
                    watch.switch(doing)
            return timed_request(found, watch) if requests else found

        return timing


def timed_request(request: Any, watch: Stopwatch) -> Any:
    """Return a request whose waiting is timed; an MPI request remains an instance of MPI's class."""
    kind: Any = type(request)
    if request is None or isinstance(request, str):
        return request
    if not _is_mpi(kind):
        return Around(request, watch)
    made = _of_mpi(kind, watch)
    try:
        request.__class__ = made  # an instance of a Python subclass: a traced one
    except TypeError:
        request = made.__new__(made, request)  # the same handle
    return request


@cache
def _is_mpi(kind: Any) -> bool:
    return any(base.__module__ == "mpi4py.MPI" for base in kind.__mro__)


@cache
def _of_mpi(kind: Any, watch: Stopwatch) -> Any:
    return type(f"Timed{kind.__name__}", (Timing, kind), {"__slots__": (), "_watch": watch})


class Waiting:
    """A communicator all of whose calls count as waiting for other ranks, for small control messages."""

    def __init__(self, comm: Any, watch: Stopwatch) -> None:
        self._comm, self._watch = comm, watch

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._comm, name)
        if name not in EXCHANGES and name not in WAITS:
            return call
        return lambda *given, **named: _waiting(self._watch, partial(call, **named), *given)


class Timing:
    """Timed versions of the calls that wait for requests."""

    __slots__ = ()
    _watch: Stopwatch

    def Wait(self, status: Any = None) -> Any:
        return _waiting(self._watch, super().Wait, status)  # type: ignore[misc]

    def Test(self, status: Any = None) -> Any:
        return _testing(self._watch, super().Test, status)  # type: ignore[misc]

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _waiting(cls._watch, super().Waitall, requests, statuses)  # type: ignore[misc]

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _waiting(cls._watch, super().Waitany, requests, status)  # type: ignore[misc]

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _waiting(cls._watch, super().Waitsome, requests, statuses)  # type: ignore[misc]

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _testing(cls._watch, super().Testall, requests, statuses)  # type: ignore[misc]

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _testing(cls._watch, super().Testany, requests, status)  # type: ignore[misc]

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _testing(cls._watch, super().Testsome, requests, statuses)  # type: ignore[misc]


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
        return _waiting(self._watch, self.bare.Wait, status)

    def Test(self, status: Any = None) -> Any:
        return _testing(self._watch, self.bare.Test, status)

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several(_waiting, "Waitall", requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _several(_waiting, "Waitany", requests, status)

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several(_waiting, "Waitsome", requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several(_testing, "Testall", requests, statuses)

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> Any:
        return _several(_testing, "Testany", requests, status)

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> Any:
        return _several(_testing, "Testsome", requests, statuses)


def _several(how: Callable[..., Any], name: str, requests: Sequence[Any], statuses: Any) -> Any:
    watch = next(request._watch for request in requests if isinstance(request, Around))
    bare = [request.bare if isinstance(request, Around) else request for request in requests]
    return how(watch, getattr(type(bare[0]), name), bare, statuses)


def _waiting(watch: Stopwatch, call: Callable[..., Any], *given: Any) -> Any:
    return _call(watch, watch.waits, call, given)


def _testing(watch: Stopwatch, call: Callable[..., Any], *given: Any) -> Any:
    return _call(watch, "exchange", call, given)


def _call(watch: Stopwatch, kind: str, call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    doing = watch.kind
    if doing in CLOSED:
        return call(*given)
    watch.switch(kind)
    try:
        return call(*given)
    finally:
        watch.switch(doing)
