"""Requests: what a rank can wait for, with mpi4py's names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from paceline.vmpi import sites as _sites
from paceline.vmpi.buffers import memory_of, poison, put, type_of
from paceline.vmpi.constants import UNDEFINED, meant
from paceline.vmpi.errors import BufferChanged, MPIError

# ---- What is told of a message that was received.


class Status:
    """Where a message came from, with which tag, and how long it was.

    >>> status = Status()
    >>> tell(status, source=3, tag=7, nbytes=16)
    >>> status.Get_source(), status.Get_tag(), status.Get_count(), status.Get_count("d")
    (3, 7, 16, 2)
    """

    __slots__ = ("cancelled", "count", "error", "source", "tag")

    def __init__(self) -> None:
        self.source, self.tag, self.error, self.count = UNDEFINED, UNDEFINED, 0, 0
        self.cancelled = False

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_error(self) -> int:
        return self.error

    def Get_count(self, datatype: Any = "B") -> int:
        size = type_of(datatype)[1]
        return self.count // size if self.count % size == 0 else UNDEFINED

    Get_elements = Get_count

    def Is_cancelled(self) -> bool:
        return self.cancelled

    def Set_source(self, source: int) -> None:
        self.source = source

    def Set_tag(self, tag: int) -> None:
        self.tag = tag

    def Set_error(self, error: int) -> None:
        self.error = error


def tell(status: Any, source: int, tag: int, nbytes: int) -> None:
    """Fill a status: the simulator's, or mpi4py's own."""
    status.Set_source(source)
    status.Set_tag(tag)
    if isinstance(status, Status):
        status.count = nbytes
    else:
        module: Any = sys.modules["mpi4py.MPI"]
        status.Set_elements(getattr(module, "real", module).BYTE, nbytes)


# ---- Waiting for several requests at once.


class Several:
    """A request's calls for a list of requests; those that are done with, and null ones, are passed over."""

    __slots__ = ()

    @classmethod
    def Waitall(cls, requests: Sequence[Any], statuses: Any = None) -> bool:
        for number, request in enumerate(requests):
            request.Wait(_nth(statuses, number))
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> int:
        live = _live(requests)
        if not live:
            return UNDEFINED
        _until_some(live, "Waitany")
        for number, request in enumerate(requests):
            if request and request.done:
                request._finish(status)
                return number
        raise AssertionError("no request is done")

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> list[int] | None:
        live = _live(requests)
        if not live:
            return None
        _until_some(live, "Waitsome")
        return _finish_done(requests, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> bool:
        live = _live(requests)
        if live and not all(request.done for request in live):
            kernel = live[0].rank.kernel
            kernel.look(live[0].rank)
            if not all(request.done for request in live):
                kernel.polled(live[0].rank)
                return False
        for number, request in enumerate(requests):
            if request:
                request._finish(_nth(statuses, number))
        return True

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> tuple[int, bool]:
        live = _live(requests)
        if not live:
            return UNDEFINED, True
        rank = live[0].rank
        rank.kernel.look(rank)
        for number, request in enumerate(requests):
            if request and request.done:
                request._finish(status)
                return number, True
        rank.kernel.polled(rank)
        return UNDEFINED, False

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> list[int] | None:
        live = _live(requests)
        if not live:
            return None
        rank = live[0].rank
        rank.kernel.look(rank)
        done = _finish_done(requests, statuses)
        if not done:
            rank.kernel.polled(rank)
        return done

    @classmethod
    def waitall(cls, requests: Sequence[Any], statuses: Any = None) -> list[Any]:
        cls.Waitall(requests, statuses)
        return [request.message() for request in requests]

    @classmethod
    def waitany(cls, requests: Sequence[Any], status: Any = None) -> tuple[int, Any]:
        number = cls.Waitany(requests, status)
        return number, None if number == UNDEFINED else requests[number].message()

    @classmethod
    def testall(cls, requests: Sequence[Any], statuses: Any = None) -> tuple[bool, list[Any] | None]:
        done = cls.Testall(requests, statuses)
        return done, [request.message() for request in requests] if done else None

    @classmethod
    def testany(cls, requests: Sequence[Any], status: Any = None) -> tuple[int, bool, Any]:
        number, done = cls.Testany(requests, status)
        return number, done, None if number == UNDEFINED else requests[number].message()


def _nth(statuses: Any, number: int) -> Any:
    if not statuses and statuses is not None:
        statuses.extend(Status() for _ in range(number + 1))
    if statuses is None:
        return None
    while len(statuses) <= number:
        statuses.append(Status())
    return statuses[number]


def _live(requests: Sequence[Any]) -> list[Any]:
    return [request for request in requests if request]


def _until_some(live: list[Any], name: str) -> None:
    """Take in what has come; then, if nothing is done, what comes next, until something is."""
    rank = live[0].rank
    kernel = rank.kernel
    rank.doing = name
    kernel.look(rank)
    while not any([request.done for request in live]):  # noqa: C419 (a list is faster)
        kernel.progress(rank)


def _finish_done(requests: Sequence[Any], statuses: Any) -> list[int]:
    done = [number for number, request in enumerate(requests) if request and request.done]
    for place, number in enumerate(done):
        requests[number]._finish(_nth(statuses, place))
    return done


class Request(Several):
    """Something under way; `done` once it is, `spent` once it was waited for: then it is as MPI's null request."""

    __slots__ = ("done", "error", "made", "name", "rank", "spent")
    receives = False

    def __init__(self, rank: Any, name: str) -> None:
        self.rank = rank
        self.name = name
        self.done = self.spent = False
        self.error: BaseException | None = None
        self.made: Any = None
        if rank.kernel.strict:
            self.watch()

    def watch(self) -> None:
        """Note where it was made; it must be waited for."""
        self.made = _sites.site()
        self.rank.open[id(self)] = self

    # ---- for the kernel

    def arrive(self, rank: Any) -> None:
        """It is done: the rank has been told."""
        self.done = True

    def _finish(self, status: Any) -> None:
        """What is left to do once it is done, and the caller knows: to check it, to fill a status."""
        self.spent = True
        if self.made is not None:
            self.rank.open.pop(id(self), None)
        if self.error is not None:
            self._fail(self.error)
        if status is not None:
            tell(status, UNDEFINED, UNDEFINED, 0)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, MPIError) and error.pending:
            self.rank.kernel.look(self.rank)
            if self.error is None:  # a message has come for it after all
                self.rank.kernel.wait(self.rank, self)
                return
            self.spent = False
            if self.made is not None:
                self.rank.open[id(self)] = self
        raise error

    def spelled(self) -> str:
        return f"{self.name} of rank {self.rank.number} at {_sites.spelled(self.made)}"

    def wanted(self) -> str:
        """What it waits for, in words."""
        return self.name

    # ---- mpi4py's

    def Wait(self, status: Any = None) -> bool:
        if self.spent:
            return _nothing(status)
        if not self.done:
            rank = self.rank
            rank.doing = self
            rank.kernel.wait(rank, self)
        if self.made is None and self.error is None and status is None:  # the short way
            self.spent = True
        else:
            self._finish(status)
        return True

    def Test(self, status: Any = None) -> bool:
        if self.spent:
            return _nothing(status)
        rank = self.rank
        if not self.done:
            rank.kernel.look(rank)
            if not self.done:
                rank.kernel.polled(rank)
                return False
        self._finish(status)
        return True

    def Get_status(self, status: Any = None) -> bool:
        if not self.done:
            self.rank.kernel.look(self.rank)
            if not self.done:
                self.rank.kernel.polled(self.rank)
        return self.done

    def Free(self) -> None:
        """Forget it: it goes on, and nobody will know when it is done."""
        self.spent = True
        self.rank.open.pop(id(self), None)

    def __bool__(self) -> bool:
        return not self.spent

    # ---- mpi4py's for objects

    def message(self) -> Any:
        """The object that has come; None where it is none that was waited for."""
        return None

    def wait(self, status: Any = None) -> Any:
        self.Wait(status)
        return self.message()

    def test(self, status: Any = None) -> tuple[bool, Any]:
        done = self.Test(status)
        return done, self.message() if done else None


def _nothing(status: Any) -> bool:
    """There was nothing to wait for: MPI's empty status."""
    if status is not None:
        anything = meant()
        tell(status, anything.any_source, anything.any_tag, 0)
    return True


class Receiving(Request):
    """A message that is to come. Until it is done its buffer is the message's."""

    __slots__ = (
        "count",
        "kept",
        "kind",
        "nbytes",
        "order",
        "source",
        "tag",
        "view",
        "wanted_source",
        "wanted_tag",
    )
    receives = True
    order: int
    kept: bytes | None
    made: Any

    def __init__(self, rank: Any, name: str, buffer: Any, source: int | None, tag: int | None) -> None:
        self.rank, self.name = rank, name
        self.done = self.spent = False
        self.error = self.made = self.kept = None
        self.view, self.kind = view, _ = memory_of(buffer)
        if view.readonly:
            raise ValueError("a message cannot be received into a read-only buffer")
        self.nbytes = view.nbytes
        self.wanted_source, self.wanted_tag = source, tag
        if rank.kernel.strict:
            self.watch()
            if not rank.kernel.time_only:  # memory that nobody looks at is one for all ranks
                self._guard()

    def wanted(self) -> str:
        source = "any rank" if self.wanted_source is None else f"rank {self.wanted_source}"
        tag = "any tag" if self.wanted_tag is None else f"tag {self.wanted_tag}"
        return f"{self.name} from {source} with {tag}"

    def _guard(self) -> None:
        """Fill the buffer with what is no number: whoever reads it too early sees it, whoever writes it is seen."""
        if self.nbytes:
            self.kept = self.view.tobytes()
            put(self.view, poison(self.nbytes))

    def deliver(self, data: bytes | None, nbytes: int, source: int, tag: int) -> None:
        """The message is there."""
        view, kept = self.view, self.kept
        if kept is not None:
            if view.tobytes() != poison(self.nbytes):
                self.error = BufferChanged(
                    f"the buffer of an {self.spelled()} was changed before the message from rank {source} was there"
                )
            put(view, kept if data is None else kept[nbytes:], 0 if data is None else nbytes)
            self.kept = None
        if data:
            try:
                view.cast("B")[:nbytes] = data
            except TypeError:
                put(view, data)
        self.source, self.tag, self.count = source, tag, nbytes
        self.done = True

    def _finish(self, status: Any) -> None:
        super()._finish(None)
        if status is not None:
            tell(status, self.source, self.tag, self.count)

    def Cancel(self) -> None:
        """Take it back, if no message has come for it."""
        if not self.done:
            self.rank.kernel.look(self.rank)
        if not self.done:
            withdraw(self.rank, self)
            if self.kept is not None:
                put(self.view, self.kept)
                self.kept = None
            self.source, self.tag, self.count = UNDEFINED, UNDEFINED, 0
            self.done = True


def withdraw(rank: Any, receive: Receiving) -> None:
    """Take back a receive for which nothing has come."""
    for queue in (*rank.posted.values(), *rank.wild.values()):
        if receive in queue:
            queue.remove(receive)
            return


class Persistent(Request):
    """A call that is made anew by every Start; between its end and the next Start there is nothing to wait for."""

    __slots__ = ("_call", "_current")

    def __init__(self, rank: Any, call: Callable[[], Request]) -> None:
        self.rank, self.name = rank, "Start"
        self._call = call
        self._current: Request | None = None

    def Start(self) -> None:
        if self._current:
            raise ValueError("a persistent request must be waited for before it is started again")
        self._current = self._call()

    @classmethod
    def Startall(cls, requests: Sequence[Persistent]) -> None:
        for request in requests:
            request.Start()

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self._current is None or self._current.done

    @property
    def spent(self) -> bool:  # type: ignore[override]
        return not self._current

    def _finish(self, status: Any) -> None:
        if self._current is not None:
            self._current._finish(status)

    def Wait(self, status: Any = None) -> bool:
        return self._current is None or self._current.Wait(status)

    def Test(self, status: Any = None) -> bool:
        return self._current is None or self._current.Test(status)

    def Free(self) -> None:
        if self._current:
            self._current.Free()


class NullRequest(Request):
    """The request that is done with: equal to every other that is."""

    __slots__ = ()

    def __init__(self) -> None:
        self.done = self.spent = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and not other

    __hash__ = None  # type: ignore[assignment]


REQUEST_NULL = NullRequest()
