"""Buffers of collectives: memory, and memory that is cut into one block a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.sim._buffers import memory_of, put, unpacked


class Memory:
    """The bytes of a buffer, where they lie; `kind` is the type of its elements."""

    __slots__ = ("kind", "nbytes", "view")

    def __init__(self, given: Any, *, writing: bool) -> None:
        self.view, self.kind = memory_of(given)
        self.nbytes = self.view.nbytes
        if writing and self.view.readonly:
            raise ValueError("a result cannot be put into a read-only buffer")

    def read(self) -> bytes:
        """A copy."""
        return self.view.tobytes()

    def flat(self) -> NDArray[np.uint8]:
        """The bytes, where they lie, as an array."""
        return np.asarray(self.view).reshape(-1).view(np.uint8) if self.nbytes else np.empty(0, np.uint8)

    def write(self, data: Any) -> None:
        """Put bytes into the memory, from its beginning on, where there are some."""
        if data is not None:
            put(self.view, data)


class InPlaceType(int):
    """What stands for "the values are in the buffer for the result already"."""

    def __repr__(self) -> str:
        return "IN_PLACE"


IN_PLACE = InPlaceType(-1)


def is_in_place(given: Any) -> bool:
    """Whether this is IN_PLACE, the simulator's or mpi4py's.

    >>> is_in_place(IN_PLACE), is_in_place(-1)
    (True, False)
    """
    return type(given).__name__ == "InPlaceType"


def blocked(given: Any, members: int, *, writing: bool) -> Memory:
    """A buffer for one block a rank, all of one length: a count that is given with it is a block's.

    >>> blocked([np.zeros(6), 2], 3, writing=True).nbytes
    48
    """
    if isinstance(given, (list, tuple)):
        data, count, start, datatype = unpacked(given)
        given = [data, None if count is None else int(count) * members, start, datatype]
    memory = Memory(given, writing=writing)
    if memory.nbytes % members:
        raise ValueError(f"{memory.nbytes} bytes cannot be cut into {members} equal blocks")
    return memory


def part(whole: Memory, number: int, members: int) -> Memory:
    """One of the equal parts of a buffer, where it lies.

    >>> part(Memory(np.arange(6.0), writing=True), 1, 3).view.tobytes() == np.array([2.0, 3.0]).tobytes()
    True
    """
    each, more = divmod(whole.nbytes, members)
    if more:
        raise ValueError(f"{whole.nbytes} bytes cannot be cut into {members} equal blocks")
    found = Memory(whole.flat()[number * each : (number + 1) * each], writing=False)
    found.kind = whole.kind
    return found
