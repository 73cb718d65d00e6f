# ruff: noqa: N802 (mpi4py's names)
"""Waiting for several requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.sim._constants import UNDEFINED
from paceline.sim._status import Status


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
