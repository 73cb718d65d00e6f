"""Requests, which ranks wait for, with mpi4py's names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from paceline.vmpi.buffers import memory_of, poison, type_of, write_bytes
from paceline.vmpi.constants import UNDEFINED, special_numbers
from paceline.vmpi.errors import BufferChanged, MPIError, find_site, format_site


class Status:
    """The source, tag and length of a received message.

    >>> status = Status()
    >>> fill_status(status, source=3, tag=7, nbytes=16)
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


def fill_status(status: Any, source: int, tag: int, nbytes: int) -> None:
    """Fill a status, the simulator's or mpi4py's own."""
    status.Set_source(source)
    status.Set_tag(tag)
    if isinstance(status, Status):
        status.count = nbytes
    else:
        module: Any = sys.modules["mpi4py.MPI"]
        status.Set_elements(getattr(module, "real", module).BYTE, nbytes)


class RequestLists:
    """The calls of a request that take a list of requests; null and finished requests are skipped."""

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
            kernel.take_arrived(live[0].rank)
            if not all(request.done for request in live):
                kernel.count_poll(live[0].rank)
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
        rank.kernel.take_arrived(rank)
        for number, request in enumerate(requests):
            if request and request.done:
                request._finish(status)
                return number, True
        rank.kernel.count_poll(rank)
        return UNDEFINED, False

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> list[int] | None:
        live = _live(requests)
        if not live:
            return None
        rank = live[0].rank
        rank.kernel.take_arrived(rank)
        done = _finish_done(requests, statuses)
        if not done:
            rank.kernel.count_poll(rank)
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
    """Wait until at least one request is done."""
    rank = live[0].rank
    kernel = rank.kernel
    rank.doing = name
    kernel.take_arrived(rank)
    while not any([request.done for request in live]):  # noqa: C419 (a list is faster)
        kernel.progress(rank)


def _finish_done(requests: Sequence[Any], statuses: Any) -> list[int]:
    done = [number for number, request in enumerate(requests) if request and request.done]
    for place, number in enumerate(done):
        requests[number]._finish(_nth(statuses, place))
    return done


class Request(RequestLists):
    """An operation in progress: `done` when it is complete, `spent` when it has been waited for (then it is null)."""

    __slots__ = ("done", "error", "name", "origin", "rank", "spent")
    receives = False

    def __init__(self, rank: Any, name: str) -> None:
        self.rank = rank
        self.name = name
        self.done = self.spent = False
        self.error: BaseException | None = None
        self.origin: Any = None
        if rank.kernel.strict:
            self.watch()

    def watch(self) -> None:
        """Remember where the request was started; it must be waited for."""
        self.origin = find_site()
        self.rank.open[id(self)] = self

    # ---- for the kernel

    def arrive(self, rank: Any) -> None:
        """Complete the request."""
        self.done = True

    def _finish(self, status: Any) -> None:
        """Finish a request that is done: raise its error, fill the status."""
        self.spent = True
        if self.origin is not None:
            self.rank.open.pop(id(self), None)
        if self.error is not None:
            self._fail(self.error)
        if status is not None:
            fill_status(status, UNDEFINED, UNDEFINED, 0)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, MPIError) and error.pending:
            self.rank.kernel.take_arrived(self.rank)
            if self.error is None:  # a message has arrived after all
                self.rank.kernel.wait(self.rank, self)
                return
            self.spent = False
            if self.origin is not None:
                self.rank.open[id(self)] = self
        raise error

    def describe(self) -> str:
        """Describe the request and where it was started."""
        return f"{self.name} of rank {self.rank.number} at {format_site(self.origin)}"

    def describe_wait(self) -> str:
        """Describe what the request is waiting for."""
        return self.name

    # ---- calls of mpi4py

    def Wait(self, status: Any = None) -> bool:
        if self.spent:
            return _nothing(status)
        if not self.done:
            rank = self.rank
            rank.doing = self
            rank.kernel.wait(rank, self)
        if self.origin is None and self.error is None and status is None:  # the common case
            self.spent = True
        else:
            self._finish(status)
        return True

    def Test(self, status: Any = None) -> bool:
        if self.spent:
            return _nothing(status)
        rank = self.rank
        if not self.done:
            rank.kernel.take_arrived(rank)
            if not self.done:
                rank.kernel.count_poll(rank)
                return False
        self._finish(status)
        return True

    def Get_status(self, status: Any = None) -> bool:
        if not self.done:
            self.rank.kernel.take_arrived(self.rank)
            if not self.done:
                self.rank.kernel.count_poll(self.rank)
        return self.done

    def Free(self) -> None:
        """Free the request; the operation continues."""
        self.spent = True
        self.rank.open.pop(id(self), None)

    def __bool__(self) -> bool:
        return not self.spent

    # ---- objects

    def message(self) -> Any:
        """Return the object that was received, if this is the receive of an object."""
        return None

    def wait(self, status: Any = None) -> Any:
        self.Wait(status)
        return self.message()

    def test(self, status: Any = None) -> tuple[bool, Any]:
        done = self.Test(status)
        return done, self.message() if done else None


def _nothing(status: Any) -> bool:
    """Return at once, with MPI's empty status."""
    if status is not None:
        anything = special_numbers()
        fill_status(status, anything.any_source, anything.any_tag, 0)
    return True


class ReceiveRequest(Request):
    """A receive. Its buffer belongs to it until it is done."""

    __slots__ = (
        "count",
        "kind",
        "nbytes",
        "order",
        "saved",
        "source",
        "tag",
        "view",
        "wanted_source",
        "wanted_tag",
    )
    receives = True
    order: int
    saved: bytes | None
    origin: Any

    def __init__(self, rank: Any, name: str, buffer: Any, source: int | None, tag: int | None) -> None:
        self.rank, self.name = rank, name
        self.done = self.spent = False
        self.error = self.origin = self.saved = None
        self.view, self.kind = view, _ = memory_of(buffer)
        if view.readonly:
            raise ValueError("a message cannot be received into a read-only buffer")
        self.nbytes = view.nbytes
        self.wanted_source, self.wanted_tag = source, tag
        if rank.kernel.strict:
            self.watch()
            if not rank.kernel.time_only:  # memory without contents is shared by all ranks
                self._guard()

    def describe_wait(self) -> str:
        source = "any rank" if self.wanted_source is None else f"rank {self.wanted_source}"
        tag = "any tag" if self.wanted_tag is None else f"tag {self.wanted_tag}"
        return f"{self.name} from {source} with {tag}"

    def _guard(self) -> None:
        """Fill the buffer with NaNs, so that reading it too early is visible and writing it is detected."""
        if self.nbytes:
            self.saved = self.view.tobytes()
            write_bytes(self.view, poison(self.nbytes))

    def deliver(self, data: bytes | None, nbytes: int, source: int, tag: int) -> None:
        """Complete the receive with the contents of a message."""
        view, kept = self.view, self.saved
        if kept is not None:
            if view.tobytes() != poison(self.nbytes):
                self.error = BufferChanged(
                    f"the buffer of {self.describe()} was changed before the message from rank {source} arrived"
                )
            write_bytes(view, kept if data is None else kept[nbytes:], 0 if data is None else nbytes)
            self.saved = None
        if data:
            try:
                view.cast("B")[:nbytes] = data
            except TypeError:
                write_bytes(view, data)
        self.source, self.tag, self.count = source, tag, nbytes
        self.done = True

    def _finish(self, status: Any) -> None:
        super()._finish(None)
        if status is not None:
            fill_status(status, self.source, self.tag, self.count)

    def Cancel(self) -> None:
        """Cancel the receive, if no message has arrived for it."""
        if not self.done:
            self.rank.kernel.take_arrived(self.rank)
        if not self.done:
            withdraw(self.rank, self)
            if self.saved is not None:
                write_bytes(self.view, self.saved)
                self.saved = None
            self.source, self.tag, self.count = UNDEFINED, UNDEFINED, 0
            self.done = True


def withdraw(rank: Any, receive: ReceiveRequest) -> None:
    """Remove a posted receive from the queues of its rank."""
    for queue in (*rank.posted.values(), *rank.wild.values()):
        if receive in queue:
            queue.remove(receive)
            return


class PersistentRequest(Request):
    """A call that every Start repeats; between its end and the next Start there is nothing to wait for."""

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
    def Startall(cls, requests: Sequence[PersistentRequest]) -> None:
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
    """MPI.REQUEST_NULL: equal to every request that has been waited for."""

    __slots__ = ()

    def __init__(self) -> None:
        self.done = self.spent = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and not other

    __hash__ = None  # type: ignore[assignment]


REQUEST_NULL = NullRequest()
