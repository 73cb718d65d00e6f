# ruff: noqa: N802 (mpi4py's names)
"""Requests that tell when they were waited for, in the place of those that a traced communicator gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.comm._tracing import Tracer


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
