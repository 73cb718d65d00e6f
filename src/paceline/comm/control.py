"""Small messages between the ranks of a run that are not part of its training: agreement, sums, gathering, waiting."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import Stopwatch
from paceline.comm.recording import Waiting
from paceline.errors import AgreedError, UsageError

Made = TypeVar("Made")


def agree(comm: Any, work: Callable[[], Made]) -> Made:
    """Do `work` on every rank; if any rank raises a UsageError, raise the lowest rank's on all, as an AgreedError.

    >>> agree(None, lambda: 3)
    3
    """
    made: Made | None = None
    refusal = ""
    try:
        made = work()
    except UsageError as error:
        refusal = str(error)
    refused = vote(comm, bool(refusal))
    if refused.ranks:
        refusal = broadcast_text(comm, refusal, root=refused.first)
    if refusal:
        raise AgreedError(refusal)
    return made  # type: ignore[return-value]


def check_same(comm: Any, values: Mapping[str, Any]) -> None:
    """Raise the same AgreedError on every rank if `values` differ between ranks, which would otherwise deadlock.

    >>> check_same(None, {"epochs": 3})
    """
    if comm is None or comm.Get_size() == 1:
        return
    # Each value as text, so that every difference between two ranks' digests is one of a value: 1 and 1.0 are equal.
    texts = {key: json.dumps(value, default=str, sort_keys=True) for key, value in values.items()}
    mine = json.dumps(texts)
    digest = hashlib.sha256(mine.encode()).digest()
    others = vote(comm, broadcast_bytes(comm, digest) != digest)
    if not others.ranks:
        return
    other = others.first
    first, theirs = (json.loads(broadcast_text(comm, mine, root=root)) for root in (0, other))
    name = next(key for key in [*first, *theirs] if first.get(key) != theirs.get(key))
    raise AgreedError(
        f"every rank must be given the same run; rank 0 has {name}={json.loads(first.get(name, 'null'))}, "
        f"rank {other} {name}={json.loads(theirs.get(name, 'null'))}"
    )


class Votes(NamedTuple):
    """The number of ranks that voted yes, and the first of them (-1 if none did)."""

    ranks: int
    first: int


def vote(comm: Any, yes: bool) -> Votes:
    """Return, on every rank, the number of ranks that vote yes and the first of them. Collective.

    Only rank 0 needs memory for every rank.

    >>> vote(None, True), vote(None, False)
    (Votes(ranks=1, first=0), Votes(ranks=0, first=-1))
    """
    if comm is None or comm.Get_size() == 1:
        return Votes(int(yes), 0 if yes else -1)
    found = np.empty(2, np.int64)
    mine = np.array([yes], np.uint8)
    if comm.Get_rank() == 0:
        flags = np.empty(comm.Get_size(), np.uint8)
        comm.Gather(mine, flags, root=0)
        found[:] = flags.sum(), flags.argmax() if flags.any() else -1
    else:
        comm.Gather(mine, None, root=0)
    comm.Bcast(found, root=0)
    return Votes(*found.tolist())


def broadcast_text(comm: Any, text: str, *, root: int = 0) -> str:
    """Return the text of rank `root` on every rank."""
    return broadcast_bytes(comm, text.encode(errors="surrogatepass"), root=root).decode(
        errors="surrogatepass"
    )


def broadcast_bytes(comm: Any, data: bytes, *, root: int = 0) -> bytes:
    """Return the bytes of rank `root` on every rank; those of other ranks are ignored."""
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
    """A private duplicate of a run's communicator whose messages are not counted; a single process needs none.

    >>> alone = Control(None)
    >>> alone.total(np.array([2.0])).tolist(), len(alone.gather(np.zeros((3, 2))))
    ([2.0], 1)
    """

    def __init__(self, comm: Any, watch: Stopwatch | None = None) -> None:
        """`watch`: the stopwatch on which calls are timed as waiting for other ranks."""
        self.size: int = 1 if comm is None else comm.Get_size()
        self.rank: int = 0 if comm is None else comm.Get_rank()
        self._comm = getattr(comm, "bare", comm).Dup() if self.size > 1 else None
        if self._comm is not None and watch is not None:
            self._comm = Waiting(self._comm, watch)

    def total(self, values: Array) -> Array:
        """Return the sum of all ranks' values on every rank."""
        if self._comm is None:
            return values
        sums = np.empty_like(values)
        self._comm.Allreduce(values, sums)
        return sums

    def allgather(self, values: Array) -> Array:
        """Return all ranks' values on every rank, one row per rank."""
        rows = np.empty((self.size, *values.shape), values.dtype)
        if self._comm is None:
            rows[0] = values
        else:
            self._comm.Allgather(values, rows)
        return rows

    def broadcast(self, values: Array) -> Array:
        """Copy rank 0's values into the arrays of the other ranks."""
        if self._comm is not None:
            self._comm.Bcast(values, root=0)
        return values

    def broadcast_text(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        return text if self._comm is None else broadcast_text(self._comm, text)

    def gather(self, rows: Array) -> list[Array]:
        """Return each rank's rows, which may differ in number, on rank 0, and an empty list elsewhere."""
        if self._comm is None:
            return [rows]
        counts = np.empty(self.size if self.rank == 0 else 0, np.int64)
        self._comm.Gather(np.array(rows.size, np.int64), counts if self.rank == 0 else None, root=0)
        everything = np.empty(int(counts.sum()), rows.dtype)
        mine = np.ascontiguousarray(rows)
        self._comm.Gatherv(mine, [everything, counts] if self.rank == 0 else None, root=0)
        if self.rank != 0:
            return []
        return [part.reshape(-1, *rows.shape[1:]) for part in np.split(everything, np.cumsum(counts)[:-1])]

    def gather_alike(self, values: Array) -> Array:
        """Return all ranks' values, of equal number, on rank 0, one row per rank, and no rows elsewhere."""
        if self._comm is None:
            return values[None]
        rows = np.empty((self.size if self.rank == 0 else 0, *values.shape), values.dtype)
        self._comm.Gather(np.ascontiguousarray(values), rows if self.rank == 0 else None, root=0)
        return rows

    def scatter(self, rows: Array, mine: Array) -> Array:
        """Copy this rank's row of rank 0's `rows`, one per rank, into `mine`; those of other ranks are ignored."""
        if self._comm is None:
            mine[...] = rows[0]
        else:
            self._comm.Scatter(rows if self.rank == 0 else None, mine, root=0)
        return mine

    def vote(self, yes: bool) -> Votes:
        """Return the number of ranks that vote yes, and the first of them."""
        return vote(self._comm, yes)

    def wait(self) -> None:
        """Wait for all ranks."""
        if self._comm is not None:
            self._comm.Barrier()

    def revoke(self) -> None:
        """Make all calls of all ranks on this communicator fail, because a rank has died (ULFM)."""
        if self._comm is not None:
            with contextlib.suppress(Exception):  # another rank may have done so
                self._comm.Revoke()

    def is_revoked(self) -> bool:
        """Return True if this rank knows that this communicator was revoked."""
        return self._comm is not None and bool(self._comm.Is_revoked())

    def begin_waiting(self) -> tuple[Any, Any]:
        """Begin to wait, on any rank but 0, until all ranks have called this or, rank 0, `end_waiting`.

        Return a request that is to be completed at the end, and the one that is complete when all have done so. MPI's
        Ibarrier cannot be used: when a rank dies, Open MPI's frees sends that are under way, which ends the job with
        MPI_ERR_REQUEST.
        """
        comm: Any = self._comm
        return comm.Isend(np.empty(0), dest=0), comm.Irecv(np.empty(0), source=0)

    def end_waiting(self) -> None:
        """As rank 0, wait until all other ranks have called `begin_waiting`, and let them know."""
        comm: Any = self._comm
        for request in [comm.Irecv(np.empty(0), source=other) for other in range(1, self.size)]:
            request.Wait()
        for request in [comm.Isend(np.empty(0), dest=other) for other in range(1, self.size)]:
            request.Wait()

    def close(self) -> None:
        """Wait for all ranks, so that all can see what rank 0 has written; free the communicator."""
        if self._comm is not None:
            self._comm.Barrier()
            self._comm.Free()
            self._comm = None
