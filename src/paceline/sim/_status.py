# ruff: noqa: N802 (mpi4py's names)
"""What is told of a message that was received."""

from __future__ import annotations

import sys
from typing import Any

from paceline.sim._buffers import type_of
from paceline.sim._constants import UNDEFINED


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
