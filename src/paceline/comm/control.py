"""Small messages between the ranks of a run that are no part of its training: sums, gathering, waiting."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.errors import AgreedError, UsageError

# ---- Every rank the same verdict.

Made = TypeVar("Made")


def agreed(comm: Any, work: Callable[[], Made]) -> Made:
    """Do `work` on every rank; if any refuses with a UsageError, every rank raises the lowest such rank's, as an
    AgreedError.

    >>> agreed(None, lambda: 3)
    3
    """
    made: Made | None = None
    refusal = ""
    try:
        made = work()
    except UsageError as error:
        refusal = str(error)
    refused = who(comm, bool(refusal))
    if refused.ranks:
        refusal = shared_text(comm, refusal, root=refused.first)
    if refusal:
        raise AgreedError(refusal)
    return made  # type: ignore[return-value]


def same(comm: Any, values: Mapping[str, Any]) -> None:
    """Refuse, on every rank with the same AgreedError, what is not the same on every rank: they would wait for ever.

    >>> same(None, {"epochs": 3})
    """
    if comm is None or comm.Get_size() == 1:
        return
    mine = json.dumps(values, default=str)
    digest = hashlib.sha256(mine.encode()).digest()
    others = who(comm, shared_bytes(comm, digest) != digest)
    if not others.ranks:
        return
    other = others.first
    first, theirs = (json.loads(shared_text(comm, mine, root=root)) for root in (0, other))
    name = next(key for key in [*first, *theirs] if first.get(key) != theirs.get(key))
    raise AgreedError(
        f"every rank must be given the same run; rank 0 has {name}={first.get(name)}, "
        f"rank {other} {name}={theirs.get(name)}"
    )


class Saying(NamedTuple):
    """Who says so: how many ranks, and the first of them (-1: none)."""

    ranks: int
    first: int


def who(comm: Any, says_so: bool) -> Saying:
    """Which ranks say so, known on every rank; only rank 0 hears of each one. Collective.

    >>> who(None, True), who(None, False)
    (Saying(ranks=1, first=0), Saying(ranks=0, first=-1))
    """
    if comm is None or comm.Get_size() == 1:
        return Saying(int(says_so), 0 if says_so else -1)
    found = np.empty(2, np.int64)
    mine = np.array([says_so], np.uint8)
    if comm.Get_rank() == 0:
        flags = np.empty(comm.Get_size(), np.uint8)
        comm.Gather(mine, flags, root=0)
        found[:] = flags.sum(), flags.argmax() if flags.any() else -1
    else:
        comm.Gather(mine, None, root=0)
    comm.Bcast(found, root=0)
    return Saying(*found.tolist())


def shared_text(comm: Any, text: str, *, root: int = 0) -> str:
    """The text of rank `root`, on every rank."""
    return shared_bytes(comm, text.encode(errors="surrogatepass"), root=root).decode(errors="surrogatepass")


def shared_bytes(comm: Any, data: bytes, *, root: int = 0) -> bytes:
    """The bytes of rank `root`, on every rank; what the others give does not matter."""
    if comm is None or comm.Get_size() == 1:
        return data
    room = np.frombuffer(data, np.uint8).copy()
    size = np.array([room.size])
    comm.Bcast(size, root=root)
    if comm.Get_rank() != root:
        room = np.empty(int(size[0]), np.uint8)
    comm.Bcast(room, root=root)
    return room.tobytes()


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
