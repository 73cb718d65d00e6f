"""Requests, which ranks wait for, with mpi4py's names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import compress, islice
from operator import attrgetter
from typing import Any

import numpy as np
from greenlet import getcurrent

from paceline.vmpi.buffers import (
    Elements,
    Layout,
    layout_of,
    memory_of,
    poison,
    write_bytes,
)
from paceline.vmpi.constants import ERR_IN_STATUS, SUCCESS, UNDEFINED, special_numbers
from paceline.vmpi.errors import (
    BufferChanged,
    MPIError,
    ReadOnly,
    Truncated,
    find_site,
    format_site,
    mpi_error,
)
from paceline.vmpi.handles import Handle, Numbered, call_back, constants, find_constant, numbered

_is_done = attrgetter("done")


class Status(Handle):
    """The source, tag and length of a received message.

    >>> status = Status()
    >>> fill_status(status, source=3, tag=7, nbytes=16)
    >>> status.Get_source(), status.Get_tag(), status.Get_count(), status.Get_count("d")
    (3, 7, 16, 2)
    """

    __slots__ = ("__weakref__", "cancelled", "count", "error", "source", "tag")

    def __init__(self, status: Status | None = None) -> None:
        if status is None:
            special = special_numbers()
            self.source, self.tag, self.error, self.count = special.any_source, special.any_tag, 0, 0
            self.cancelled = False
        elif isinstance(status, Status):
            self.source, self.tag, self.error, self.count = (
                status.source,
                status.tag,
                status.error,
                status.count,
            )
            self.cancelled = status.cancelled
        else:
            raise TypeError(f"expected a status; got {type(status).__name__}")

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_error(self) -> int:
        return self.error

    def Get_count(self, datatype: Any = "B") -> int:
        size = _element(datatype).size
        if not size:
            return 0 if not self.count else UNDEFINED
        return self.count // size if self.count % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Any = "B") -> int:
        """Return how many numbers were received; of a datatype with several, also a part of an element counts."""
        layout = _element(datatype)
        if not layout.size:
            return 0
        whole, rest = divmod(self.count, layout.size)
        sizes = [
            size
            for _, length, kind in layout.runs
            for size in [np.dtype(kind).itemsize] * (length // np.dtype(kind).itemsize)
        ]
        found = whole * len(sizes)
        for size in sizes:
            if rest < size:
                break
            rest -= size
            found += 1
        return UNDEFINED if rest else found

    def Set_elements(self, datatype: Any, count: int) -> None:
        self.count = count * _element(datatype).size

    def Is_cancelled(self) -> bool:
        return self.cancelled

    def Set_cancelled(self, flag: bool) -> None:
        self.cancelled = bool(flag)

    def Set_source(self, source: int) -> None:
        self.source = source

    def Set_tag(self, tag: int) -> None:
        self.tag = tag

    def Set_error(self, error: int) -> None:
        self.error = error

    def tomemory(self) -> StatusMemory:
        return StatusMemory(self)

    def py2f(self) -> list[int]:  # type: ignore[override]
        memory = StatusMemory(self)
        return [memory[place] for place in range(len(memory))]

    @classmethod
    def f2py(cls, arg: list[int]) -> Status:  # type: ignore[override]
        found = cls()
        found.source, found.tag, found.error, found.count, cancelled, _ = arg
        found.cancelled = bool(cancelled)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and self.py2f() == other.py2f()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return self.__class__.f2py, (self.py2f(),)


def _element(datatype: Any) -> Layout:
    if hasattr(datatype, "Get_size") and not datatype:
        raise mpi_error("ERR_TYPE", "nothing is counted in elements of the null datatype")
    return layout_of(datatype)


class StatusMemory:
    """The fields of a status as a sequence of numbers; writing one changes the status."""

    _fields = ("source", "tag", "error", "count", "cancelled")

    def __init__(self, status: Status) -> None:
        self._status = status

    def __len__(self) -> int:
        return len(self._fields) + 1

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return int(getattr(self._status, self._fields[place])) if place < len(self._fields) else 0

    def __setitem__(self, place: int, value: int) -> None:
        setattr(self._status, self._fields[place], value)


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
        failed = None
        for number, request in enumerate(requests):
            try:
                request.Wait(_find_status(statuses, number))
            except Truncated as error:
                failed = failed or error
                _set_error(statuses, number, error)
        if failed is not None:
            raise Truncated(str(failed), ERR_IN_STATUS)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[Any], status: Any = None) -> int:
        live = _select_live(requests)
        if not live:
            _return_empty(status)
            return UNDEFINED
        _wait_for_some(live, "Waitany")
        for number, request in enumerate(requests):
            if not request.spent and request.done:
                request._finish(status)
                return number
        raise AssertionError("no request is done")

    @classmethod
    def Waitsome(cls, requests: Sequence[Any], statuses: Any = None) -> list[int] | None:
        rank = _rank_of(requests)
        if rank is None:
            return None
        kernel, rank.doing = rank.kernel, "Waitsome"
        kernel.take_arrived(rank)
        while not (done := _find_done(requests)):
            kernel.progress(rank)
        return _finish(requests, done, statuses)

    @classmethod
    def Testall(cls, requests: Sequence[Any], statuses: Any = None) -> bool:
        live = _select_live(requests)
        if live and not all(request.done for request in live):
            kernel = live[0].rank.kernel
            kernel.take_arrived(live[0].rank)
            if not all(request.done for request in live):
                kernel.count_poll(live[0].rank)
                return False
        return cls.Waitall(requests, statuses)  # which has nothing to wait for

    @classmethod
    def Testany(cls, requests: Sequence[Any], status: Any = None) -> tuple[int, bool]:
        live = _select_live(requests)
        if not live:
            return UNDEFINED, _return_empty(status)
        rank = live[0].rank
        rank.kernel.take_arrived(rank)
        for number, request in enumerate(requests):
            if not request.spent and request.done:
                request._finish(status)
                return number, True
        rank.kernel.count_poll(rank)
        return UNDEFINED, False

    @classmethod
    def Testsome(cls, requests: Sequence[Any], statuses: Any = None) -> list[int] | None:
        rank = _rank_of(requests)
        if rank is None:
            return None
        rank.kernel.take_arrived(rank)
        done = _finish(requests, _find_done(requests), statuses)
        if not done:
            rank.kernel.count_poll(rank)
        return done

    @classmethod
    def Get_status_any(cls, requests: Sequence[Any], status: Any = None) -> tuple[int, bool]:
        live = _select_live(requests)
        if not live:
            return UNDEFINED, _return_empty(status)
        for number, request in enumerate(requests):
            if not request.spent and request.Get_status(status):
                return number, True
        return UNDEFINED, False

    @classmethod
    def Get_status_all(cls, requests: Sequence[Any], statuses: Any = None) -> bool:
        return all(
            [request.Get_status(_find_status(statuses, place)) for place, request in enumerate(requests)]  # noqa: C419
        )

    @classmethod
    def Get_status_some(cls, requests: Sequence[Any], statuses: Any = None) -> list[int] | None:
        if not _select_live(requests):
            return None
        done = [
            number for number, request in enumerate(requests) if not request.spent and request.Get_status()
        ]
        for place, number in enumerate(done):
            requests[number].Get_status(_find_status(statuses, place))
        return done

    get_status_any, get_status_all, get_status_some = Get_status_any, Get_status_all, Get_status_some

    @classmethod
    def waitsome(
        cls, requests: Sequence[Any], statuses: Any = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        done = cls.Waitsome(requests, statuses)
        return done, None if done is None else [requests[number].message() for number in done]

    @classmethod
    def testsome(
        cls, requests: Sequence[Any], statuses: Any = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        done = cls.Testsome(requests, statuses)
        return done, None if done is None else [requests[number].message() for number in done]

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


def _find_status(statuses: Any, number: int) -> Any:
    """Return the status of a request; a list that is too short grows, a tuple does not."""
    if statuses is None:
        return None
    if isinstance(statuses, tuple):
        return statuses[number] if number < len(statuses) else None
    while len(statuses) <= number:
        statuses.append(Status())
    return statuses[number]


def _select_live(requests: Sequence[Any]) -> list[Any]:
    return [request for request in requests if not request.spent]


def _wait_for_some(live: list[Any], name: str) -> None:
    """Wait until at least one request is done."""
    rank = live[0].rank
    kernel = rank.kernel
    rank.doing = name
    kernel.take_arrived(rank)
    while not any([request.done for request in live]):  # noqa: C419 (a list is faster)
        kernel.progress(rank)


def _rank_of(requests: Sequence[Any]) -> Any:
    """Return the rank of the first request that is not null or finished; None if there is none."""
    return next((request.rank for request in requests if not request.spent), None)


def _find_done(requests: Sequence[Any]) -> list[int]:
    """Return the numbers of the requests that are done: a master looks through a thousand of them for every message."""
    return [
        number
        for number in compress(range(len(requests)), map(_is_done, requests))
        if not requests[number].spent
    ]


def _finish(requests: Sequence[Any], done: list[int], statuses: Any) -> list[int]:
    failed = None
    for place, number in enumerate(done):
        try:
            requests[number]._finish(_find_status(statuses, place))
        except Truncated as error:
            failed = failed or error
            _set_error(statuses, place, error)
    if failed is not None:
        raise Truncated(str(failed), ERR_IN_STATUS)
    return done


def _set_error(statuses: Any, number: int, error: Truncated) -> None:
    """Note in the status of one of several requests that it failed; the call itself fails with ERR_IN_STATUS."""
    status = _find_status(statuses, number)
    if status is not None:
        status.Set_error(error.Get_error_class())


class Request(RequestLists, Numbered):
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
            _return_empty(status)

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
        """Describe the request and, if requests are watched, where it was started."""
        where = "" if self.origin is None else f" at {format_site(self.origin)}"
        return f"{self.name} of rank {self.rank.number}{where}"

    def describe_wait(self) -> str:
        """Describe what the request is waiting for."""
        return self.name

    # ---- calls of mpi4py

    def Wait(self, status: Any = None) -> bool:
        if self.spent:
            return _return_empty(status)
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
            return _return_empty(status)
        rank = self.rank
        if not self.done:
            rank.kernel.take_arrived(rank)
            if not self.done:
                rank.kernel.count_poll(rank)
                return False
        self._finish(status)
        return True

    def Get_status(self, status: Any = None) -> bool:
        """Return True if the request is done; it stays to be waited for."""
        if self.spent:
            return _return_empty(status)
        if not self.done:
            self.rank.kernel.take_arrived(self.rank)
            if not self.done:
                self.rank.kernel.count_poll(self.rank)
                return False
        if status is not None:
            self._tell(status)
        return True

    def get_status(self, status: Any = None) -> bool:
        return self.Get_status(status)

    def _tell(self, status: Any) -> None:
        """Fill the status of a request that is done."""
        _return_empty(status)

    def Cancel(self) -> None:
        """Cancel the operation, if that is still possible; the request has to be waited for all the same."""

    def cancel(self) -> None:
        self.Cancel()

    def free(self) -> None:
        if self:
            self.Free()

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return an object for the request with this number."""
        found = numbered[handle]
        if type.__instancecheck__(PublicRequest, found):
            return type(found)(found)
        if found is REQUEST_NULL:
            return found
        kind = PublicGrequest if isinstance(found, GeneralizedRequest) else PublicRequest
        return (PublicPrequest if isinstance(found, PersistentRequest) else kind)(found)

    fromint = f2py = fromhandle

    def Free(self) -> None:
        """Free the request; the operation continues."""
        self.spent = True
        self.rank.open.pop(id(self), None)

    def __bool__(self) -> bool:
        return not self.spent

    def __reduce__(self) -> Any:
        raise ValueError("cannot pickle a request")

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


def _return_empty(status: Any) -> bool:
    """Fill a status with MPI's empty one, and return True: there is nothing to wait for."""
    if status is not None:
        anything = special_numbers()
        fill_status(status, anything.any_source, anything.any_tag, 0)
        status.Set_error(SUCCESS)
    return True


class ReceiveRequest(Request):
    """A receive. Its buffer belongs to it until it is done."""

    __slots__ = (
        "also",
        "cancelled",
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
    also: str
    """What else the buffer is used for, if that is known."""
    order: int
    saved: bytes | None
    origin: Any
    cancelled: Any

    def __init__(
        self, rank: Any, name: str, view: Any, kind: str, source: int | None, tag: int | None
    ) -> None:
        self.rank = rank
        self.name = name
        self.view = view
        self.nbytes = view.nbytes
        self.kind = kind
        self.done = self.spent = False
        self.error = self.origin = self.saved = self.cancelled = None
        self.wanted_source = source
        self.wanted_tag = tag
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
        self.also = ""
        if self.nbytes:
            self.saved = self.view.tobytes()
            if self.saved == poison(self.nbytes):
                self._find_other()
            write_bytes(self.view, poison(self.nbytes))

    def _find_other(self) -> None:
        """Note if another receive that is not done, one of the latest, has the same buffer."""
        for other in islice(reversed(self.rank.open.values()), 100):
            view = getattr(other, "view", None) if other.receives and other is not self else None
            if view is not None and not other.done and np.may_share_memory(view, self.view):
                self.also = (
                    f"is also that of {other.describe()}; receives in progress at the same time need a buffer each "
                    "(--no-strict, or strict=False, does not check this)"
                )

    def fetch(self, data: memoryview) -> bytes | None:
        """Copy the sender's memory, which it may soon change; return what `deliver` is to write."""
        if self.saved is not None:
            return data.tobytes()
        write_bytes(self.view, data)  # which the rank does not read before the message has arrived
        return None

    def deliver(self, data: bytes | None, nbytes: int, source: int, tag: int) -> None:
        """Complete the receive with the contents of a message."""
        view, kept = self.view, self.saved
        if kept is not None:
            if view.tobytes() != poison(self.nbytes):
                self.error = BufferChanged(
                    f"the buffer of {self.describe()} "
                    + (self.also or f"was changed before the message from rank {source} arrived")
                )
            data = kept if data is None else data + kept[nbytes:]
            self.saved = None
        if data:
            BytesIO(data).readinto(view)  # `write_bytes`, inlined
        self.source = source
        self.tag = tag
        self.count = nbytes
        self.done = True

    def _finish(self, status: Any) -> None:
        if status is not None and isinstance(self.error, Truncated):
            self._tell(status)
        super()._finish(None)
        if status is not None:
            self._tell(status)

    def _tell(self, status: Any) -> None:
        fill_status(status, self.source, self.tag, self.count)
        if self.cancelled:
            status.Set_cancelled(True)

    def Cancel(self) -> None:
        """Cancel the receive, if no message has arrived for it."""
        if not self.done:
            self.rank.kernel.take_arrived(self.rank)
        if not self.done:
            withdraw(self.rank, self)
            if self.saved is not None:
                write_bytes(self.view, self.saved)
                self.saved = None
            special = special_numbers()
            self.source, self.tag, self.count = special.any_source, special.any_tag, 0
            self.cancelled = True
            self.done = True


class ScatteredReceive(ReceiveRequest):
    """A receive into elements that are not next to each other in memory; the message is unpacked when it is there."""

    __slots__ = ("_into",)

    def __init__(self, rank: Any, name: str, buffer: Any, source: int | None, tag: int | None) -> None:
        self._into = Elements(buffer)
        _check_writable(self._into.view)
        super().__init__(
            rank, name, memoryview(bytearray(self._into.nbytes)), self._into.layout.kind, source, tag
        )

    def fetch(self, data: memoryview) -> bytes:
        return data.tobytes()  # to be unpacked when the message is there

    def deliver(self, data: bytes | None, nbytes: int, source: int, tag: int) -> None:
        super().deliver(data, nbytes, source, tag)
        if data is not None:
            self._into.write(data[:nbytes])


def receive_into(rank: Any, name: str, buffer: Any, source: int | None, tag: int | None) -> ReceiveRequest:
    """Return a receive into a buffer: an array, other memory, or one of mpi4py's lists."""
    if isinstance(buffer, (list, tuple)) and not Elements(buffer).dense:
        return ScatteredReceive(rank, name, buffer, source, tag)
    view, kind = memory_of(buffer)
    _check_writable(view)
    return ReceiveRequest(rank, name, view, kind, source, tag)


def _check_writable(view: memoryview) -> None:
    if view.readonly and view.nbytes:
        raise ReadOnly("a message cannot be received into a read-only buffer")


def withdraw(rank: Any, receive: ReceiveRequest) -> None:
    """Remove a posted receive from the queues of its rank."""
    for queue in (*rank.posted.values(), *rank.wild.values()):
        if receive in queue:
            queue.remove(receive)
            return


class PersistentRequest(Request):
    """A call that every Start repeats; between its end and the next Start there is nothing to wait for."""

    __slots__ = ("__weakref__", "_call", "_current", "_freed")

    def __init__(self, rank: Any, call: Callable[[], Request]) -> None:
        self.rank, self.name = rank, "Start"
        self._call = call
        self._current: Request | None = None
        self._freed = False

    def Start(self) -> None:
        if self._freed:
            raise mpi_error("ERR_REQUEST", "the persistent request has been freed")
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

    @property
    def error(self) -> Any:  # type: ignore[override]
        return None if self._current is None else self._current.error

    def _finish(self, status: Any) -> None:
        if self._current is not None:
            self._current._finish(status)

    def _tell(self, status: Any) -> None:
        if self._current is not None:
            self._current._tell(status)

    def Wait(self, status: Any = None) -> bool:
        return _return_empty(status) if self._current is None else self._current.Wait(status)

    def Test(self, status: Any = None) -> bool:
        return _return_empty(status) if self._current is None else self._current.Test(status)

    def Cancel(self) -> None:
        if self._current:
            self._current.Cancel()

    def Free(self) -> None:
        if self._freed:
            raise mpi_error("ERR_REQUEST", "the persistent request has been freed")
        if self._current:
            self._current.Free()
        self._freed = True

    def __bool__(self) -> bool:
        return not self._freed


class PartitionedSend(PersistentRequest):
    """A message whose partitions become ready one by one; it is sent when all are."""

    __slots__ = ("_missing", "_partitions")

    def __init__(self, rank: Any, call: Callable[[], Request], partitions: int) -> None:
        super().__init__(rank, call)
        self._partitions = partitions
        self._missing: set[int] = set()

    def Start(self) -> None:
        if self._current or self._missing:
            raise ValueError("a persistent request must be waited for before it is started again")
        self._current = Request(self.rank, "Psend")
        self._missing = set(range(self._partitions))
        if not self._partitions:
            self._send()

    def _send(self) -> None:
        assert self._current is not None
        self._current.Free()
        self._current = self._call()

    def Pready(self, partition: int) -> None:
        if partition not in self._missing:
            raise mpi_error("ERR_ARG", f"partition {partition} does not exist or was ready already")
        self._missing.remove(partition)
        if not self._missing:
            self._send()

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        for partition in range(partition_low, partition_high + 1):
            self.Pready(partition)

    def Pready_list(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self.Pready(partition)


class PartitionedReceive(PersistentRequest):
    """The receive of a message whose partitions are looked for one by one; they arrive together."""

    __slots__ = ()

    def Parrived(self, partition: int) -> bool:
        return self._current is None or self._current.spent or self._current.Get_status()


def wait_for_both(receiving: Request, sending: Request, status: Any) -> None:
    """Wait for a receive and a send; a receive whose message was truncated fails when both are done."""
    try:
        receiving.Wait(status)
    except Truncated:
        sending.Wait()
        raise
    sending.Wait()


class JointRequest(Request):
    """A send and a receive under one request, whose status is that of the receive."""

    __slots__ = ("_receiving", "_sending")

    def __init__(self, rank: Any, name: str, sending: Request, receiving: Request) -> None:
        self.rank, self.name = rank, name
        self._sending, self._receiving = sending, receiving
        self.spent, self.error, self.origin = False, None, None

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self._sending.done and self._receiving.done

    def _finish(self, status: Any) -> None:
        self.spent = True
        self._sending._finish(None)
        self._receiving._finish(status)

    def _tell(self, status: Any) -> None:
        self._receiving._tell(status)

    def Wait(self, status: Any = None) -> bool:
        if self.spent:
            return _return_empty(status)
        try:
            wait_for_both(self._receiving, self._sending, status)
        finally:
            self.spent = not (self._receiving or self._sending)  # a failed receive from any source stays
        return True

    def Free(self) -> None:
        self.spent = True
        self._sending.Free()
        self._receiving.Free()


class GeneralizedRequest(Request):
    """An operation of the program itself, which says when it is complete."""

    __slots__ = ("_cancel", "_free", "_query", "_result")

    def __init__(self, rank: Any, query_fn: Any, free_fn: Any, cancel_fn: Any) -> None:
        super().__init__(rank, "Grequest")
        self._query, self._free, self._cancel = query_fn, free_fn, cancel_fn
        self._result: Any = None

    def Wait(self, status: Any = None) -> bool:
        if self.spent:
            return _return_empty(status)
        self.rank.kernel.wait(self.rank, self)
        self._finish(status)
        return True

    def Complete(self) -> None:
        self.done = True

    def complete(self, obj: Any = None) -> None:
        self._result = obj
        self.Complete()

    def Cancel(self) -> None:
        if self._cancel is not None:
            call_back(self._cancel, self.done)

    def _finish(self, status: Any) -> None:
        found = Status() if status is None else status
        super()._finish(found)
        error = None
        for function, arguments in ((self._query, (found,)), (self._free, ())):
            if function is not None:
                try:
                    call_back(function, *arguments)
                except Exception as raised:
                    error = error or raised
        if error is not None:
            raise error

    def message(self) -> Any:
        result, self._result = self._result, None
        return result


class NullRequest(Request):
    """MPI.REQUEST_NULL: equal to every request that has been waited for."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        self.done = self.spent = True

    def Free(self) -> None:
        raise mpi_error("ERR_REQUEST", "the null request cannot be freed")

    Cancel = Free

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and not other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return find_constant, ("REQUEST_NULL",)


REQUEST_NULL = NullRequest()
constants["REQUEST_NULL"] = REQUEST_NULL


class _RequestType(type):
    """The type of MPI.Request, of which every request is an instance."""

    def __instancecheck__(cls, thing: Any) -> bool:
        return type.__instancecheck__(cls, thing) or (
            cls.__module__ == __name__ and isinstance(thing, cls._stands_for)  # type: ignore[attr-defined]
        )

    def __subclasscheck__(cls, kind: type) -> bool:
        return type.__subclasscheck__(cls, kind) or (
            cls.__module__ == __name__ and issubclass(kind, cls._stands_for)  # type: ignore[attr-defined]
        )


class PublicRequest(Request, metaclass=_RequestType):
    """mpi4py's MPI.Request: made from another request, it is that request under another type."""

    __slots__ = ("__weakref__", "_held")
    _stands_for: Any = Request
    _held: Any

    def __new__(cls, request: Any = None, *arguments: Any, **options: Any) -> Any:
        held: Any = REQUEST_NULL if request is None else request
        if type.__instancecheck__(PublicRequest, held):
            held = held._held
        if held is not REQUEST_NULL and not isinstance(held, cls._stands_for):
            raise TypeError(f"expected {cls.__name__.removeprefix('Public')}; got {type(held).__name__}")
        found: Any = object.__new__(cls)
        found._held = held
        return found

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Do nothing: the request is set when the object is made."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def _finish(self, status: Any) -> None:
        self._held._finish(status)

    def _tell(self, status: Any) -> None:
        self._held._tell(status)

    def Wait(self, status: Any = None) -> bool:
        return self._held.Wait(status)  # type: ignore[no-any-return]

    def Test(self, status: Any = None) -> bool:
        return self._held.Test(status)  # type: ignore[no-any-return]

    def Free(self) -> None:
        self._held.Free()

    def Cancel(self) -> None:
        self._held.Cancel()

    def message(self) -> Any:
        return self._held.message()

    def __bool__(self) -> bool:
        return bool(self._held)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return False
        held: Any = getattr(other, "_held", other)
        return held is self._held or not (held or self._held)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        if self._held is REQUEST_NULL:
            return type(self), (REQUEST_NULL,)
        raise ValueError("cannot pickle a request")


class PublicPrequest(PublicRequest):
    """mpi4py's MPI.Prequest."""

    __slots__ = ()
    _stands_for = PersistentRequest

    def Start(self) -> None:
        self._held.Start()

    @classmethod
    def Startall(cls, requests: Sequence[Any]) -> None:
        for request in requests:
            request.Start()


class PublicGrequest(PublicRequest):
    """mpi4py's MPI.Grequest: an operation of the program itself, started by `Start` and ended by `Complete`."""

    __slots__ = ()
    _stands_for = GeneralizedRequest

    @classmethod
    def Start(
        cls,
        query_fn: Any = None,
        free_fn: Any = None,
        cancel_fn: Any = None,
        args: Any = None,
        kargs: Any = None,
    ) -> Any:
        positional, named = args or (), kargs or {}

        def bind(function: Any) -> Any:
            return None if function is None else lambda *own: function(*own, *positional, **named)

        running: Any = getcurrent()
        return cls(
            GeneralizedRequest(running.paceline_world.me, bind(query_fn), bind(free_fn), bind(cancel_fn))
        )


for _public, _name in (
    (PublicRequest, "Request"),
    (PublicPrequest, "Prequest"),
    (PublicGrequest, "Grequest"),
):
    _public.__name__ = _public.__qualname__ = _name
