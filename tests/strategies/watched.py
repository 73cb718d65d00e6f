# ruff: noqa: N802 (names of mpi4py)
"""A communicator that keeps every request and message, to see that all were completed and received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.launch import mpi


def kept(request: Any, cancelled: Callable[[], None] | None = None) -> Any:
    """A request of a class that Python has made: whoever times it makes no other one of it."""

    def cancel(self: Any) -> None:
        mpi().Request.Cancel(self)
        assert cancelled is not None  # only receives are cancelled, and only those that nothing was sent for
        cancelled()

    Kept = type("Kept", (mpi().Request,), {"Cancel": cancel})
    return Kept.__new__(Kept, request)


class Watched:
    """An MPI communicator; its duplicates note into the same lists. `left`: messages that nobody received."""

    def __init__(self, comm: Any, notes: dict[str, Any] | None = None) -> None:
        self._comm = comm
        self.notes: dict[str, Any] = (
            {"requests": [], "sent": {}, "received": {}, "left": 0} if notes is None else notes
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Dup(self) -> Watched:
        return Watched(self._comm.Dup(), self.notes)

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:
        self.notes["sent"][dest] = self.notes["sent"].get(dest, 0) + 1
        request = kept(self._comm.Isend(buffer, dest, tag))
        self.notes["requests"].append(request)
        return request

    def Irecv(self, buffer: Any, source: int, tag: int = 0) -> Any:
        self.notes["received"][source] = self.notes["received"].get(source, 0) + 1
        request = kept(self._comm.Irecv(buffer, source, tag), cancelled=lambda: self._cancelled(source))
        self.notes["requests"].append(request)
        return request

    def _cancelled(self, source: int) -> None:
        self.notes["received"][source] -= 1

    def Free(self) -> None:
        self._comm.Barrier()
        self.notes["left"] += bool(self._comm.Iprobe())
        self._comm.Free()

    def report(self) -> dict[str, Any]:
        """Requests that are still under way; messages by the other rank's number."""
        return {
            "open": sum(not request.Test() if request else False for request in self.notes["requests"]),
            "sent": {str(rank): count for rank, count in self.notes["sent"].items()},
            "received": {str(rank): count for rank, count in self.notes["received"].items()},
            "left": self.notes["left"],
        }
