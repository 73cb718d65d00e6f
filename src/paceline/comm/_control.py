"""Small messages between the ranks of a run that are no part of its training: sums, gathering, waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm._agree import Saying, shared_text, who

Array = NDArray[Any]


class Control:
    """A private duplicate of a run's communicator, not counted as its traffic; one process alone needs none.

    >>> alone = Control(None)
    >>> alone.total(np.array([2.0])).tolist(), len(alone.gather(np.zeros((3, 2))))
    ([2.0], 1)
    """

    def __init__(self, comm: Any) -> None:
        self.size: int = 1 if comm is None else comm.Get_size()
        self.rank: int = 0 if comm is None else comm.Get_rank()
        self._comm = getattr(comm, "bare", comm).Dup() if self.size > 1 else None

    def total(self, values: Array) -> Array:
        """The sum of every rank's values, on every rank."""
        if self._comm is None:
            return values
        sums = np.empty_like(values)
        self._comm.Allreduce(values, sums)
        return sums

    def everyones(self, values: Array) -> Array:
        """Every rank's values, a row each, on every rank."""
        rows = np.empty((self.size, *values.shape), values.dtype)
        if self._comm is None:
            rows[0] = values
        else:
            self._comm.Allgather(values, rows)
        return rows

    def from_first(self, values: Array) -> Array:
        """Rank 0's values, put into the others' arrays."""
        if self._comm is not None:
            self._comm.Bcast(values, root=0)
        return values

    def text_from_first(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        return text if self._comm is None else shared_text(self._comm, text)

    def gather(self, rows: Array) -> list[Array]:
        """Each rank's rows, which may be of different number, on rank 0; other ranks get an empty list."""
        if self._comm is None:
            return [rows]
        counts = np.empty(
            self.size if self.rank == 0 else 0, np.int64
        )  # as long as there are ranks: the first's alone
        self._comm.Gather(np.array(rows.size, np.int64), counts if self.rank == 0 else None, root=0)
        everything = np.empty(int(counts.sum()), rows.dtype)
        mine = np.ascontiguousarray(rows)
        self._comm.Gatherv(mine, [everything, counts] if self.rank == 0 else None, root=0)
        if self.rank != 0:
            return []
        return [part.reshape(-1, *rows.shape[1:]) for part in np.split(everything, np.cumsum(counts)[:-1])]

    def who(self, says_so: bool) -> Saying:
        """How many ranks say so, and the first that does."""
        return who(self._comm, says_so)

    def wait(self) -> None:
        """Wait for all ranks."""
        if self._comm is not None:
            self._comm.Barrier()

    def close(self) -> None:
        """Wait for all ranks, so that what rank 0 has written is there for all; free the communicator."""
        if self._comm is not None:
            self._comm.Barrier()
            self._comm.Free()
            self._comm = None
