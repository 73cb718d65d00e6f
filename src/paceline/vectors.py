"""Communicators that keep time alone (the simulator's, without computing): what they carry, and memory for the rest.

Such a communicator has `time_only = True`: numbers in long messages are not carried, so nothing is worth computing with
them, and a vector that each of thousands of ranks would have for itself is one piece of memory for all. Everything else is
carried: who has how many, which batch is next.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
# Messages of so many bytes are carried whatever is in them.
SHORT = 4096


# The memory that all ranks of this process have together, by its length, as long as somebody has it.
_lent: WeakValueDictionary[int, Array] = WeakValueDictionary()


def is_time_only(comm: Any) -> bool:
    """Whether `comm` keeps time alone.

    >>> is_time_only(None)
    False
    """
    return bool(getattr(comm, "time_only", False))


def carried(kind: str, nbytes: int) -> bool:
    """Whether a time_only communicator carries so many bytes of this type.

    >>> carried("f4", 4096), carried("f4", 4100), carried("i4", 4100)
    (True, False, True)
    """
    return nbytes <= SHORT or kind[0] != "f"


def room(comm: Any, count: int, dtype: DTypeLike) -> Array:
    """Uninitialised memory of this rank's own; where it would never be looked at, all ranks' together.

    >>> room(None, 3, np.float32).shape
    (3,)
    """
    dtype = np.dtype(dtype)
    if is_time_only(comm) and not carried(dtype.kind, count * dtype.itemsize):
        return _common(count * dtype.itemsize)[: count * dtype.itemsize].view(dtype)
    return np.empty(count, dtype)


def rows(comm: Any, count: int, like: Array) -> Array:
    """`count` rows as long as the vector `like`, uninitialised; where they would never be looked at, all in one place.

    >>> rows(None, 2, np.ones(3)).shape
    (2, 3)
    """
    if is_time_only(comm) and not carried(like.dtype.kind, like.nbytes):
        one = room(comm, like.size, like.dtype)
        return np.lib.stride_tricks.as_strided(one, (count, like.size), (0, like.itemsize))
    return np.empty((count, like.size), like.dtype)


def _common(nbytes: int) -> Array:
    length = 1 << (nbytes - 1).bit_length()
    memory = _lent.get(length)
    if memory is None:
        memory = _lent[length] = np.zeros(length, np.uint8)
    return memory
