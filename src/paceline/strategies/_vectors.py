"""Vectors as long as the model's that a strategy has beside it: their memory, and what copying them costs.

Where time alone is simulated nothing is copied, and all ranks' vectors are one piece of memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.vectors import room

if TYPE_CHECKING:
    from paceline.worker import Worker

Array = NDArray[Any]


def put(me: Worker, into: Array, values: Array) -> None:
    """into <- values."""
    if not me.time_only:
        np.copyto(into, values)
    me.charge("copy", into.nbytes)


def copy_of(me: Worker, values: Array) -> Array:
    """Another vector with these values."""
    made = vector(me)
    put(me, made, values)
    return made


def vector(me: Worker, more: int = 0) -> Array:
    """Uninitialised memory, as long as the model's parameters and `more`."""
    x = me.model.x
    return room(me.comm, x.size + more, x.dtype)
