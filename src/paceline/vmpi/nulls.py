"""MPI's nulls: a communicator of nobody, a request for nothing."""

from __future__ import annotations

from typing import Any

from paceline.vmpi.communicator import Comm
from paceline.vmpi.errors import mpi_error
from paceline.vmpi.requests import Request


class NullComm(Comm):
    """The communicator that a rank gets when it is in no part: equal to every communicator that was freed."""

    __slots__ = ()
    group = None  # type: ignore[assignment]

    def __init__(self) -> None:
        """Of nobody."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise mpi_error("ERR_COMM", f"the null communicator has no {name}")

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comm) and not other

    __hash__ = None


class NullRequest(Request):
    """The request that is done with: equal to every other that is."""

    __slots__ = ()

    def __init__(self) -> None:
        self.done = self.spent = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and not other

    __hash__ = None  # type: ignore[assignment]


COMM_NULL = NullComm()
REQUEST_NULL = NullRequest()
