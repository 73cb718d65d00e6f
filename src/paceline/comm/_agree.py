"""Every rank the same verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from paceline.errors import AgreedError, UsageError

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
    if comm is not None and comm.Get_size() > 1:
        flags = np.zeros(comm.Get_size(), np.uint8)
        comm.Allgather(np.array([bool(refusal)], np.uint8), flags)
        if flags.any():
            refusal = shared_text(comm, refusal, root=int(flags.argmax()))
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
    digests = np.empty((comm.Get_size(), 32), np.uint8)
    comm.Allgather(np.frombuffer(hashlib.sha256(mine.encode()).digest(), np.uint8).copy(), digests)
    others = np.flatnonzero((digests != digests[0]).any(axis=1))
    if not others.size:
        return
    other = int(others[0])
    first, theirs = (json.loads(shared_text(comm, mine, root=root)) for root in (0, other))
    name = next(key for key in [*first, *theirs] if first.get(key) != theirs.get(key))
    raise AgreedError(
        f"every rank must be given the same run; rank 0 has {name}={first.get(name)}, "
        f"rank {other} {name}={theirs.get(name)}"
    )


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
