"""Every rank the same verdict."""

from __future__ import annotations

from collections.abc import Callable
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


def shared_text(comm: Any, text: str, *, root: int = 0) -> str:
    """The text of rank `root`, on every rank."""
    if comm is None or comm.Get_size() == 1:
        return text
    letters = np.frombuffer(text.encode(), np.uint8).copy()
    size = np.array([letters.size])
    comm.Bcast(size, root=root)
    if comm.Get_rank() != root:
        letters = np.empty(int(size[0]), np.uint8)
    comm.Bcast(letters, root=root)
    return letters.tobytes().decode()
