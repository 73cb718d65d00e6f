"""Collectives: `allreduce` by several algorithms, one file each, and the exchange of a training step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives._exchange import Exchange, make_exchange
from paceline.collectives._named import named, prepared


def allreduce(
    send: NDArray[Any], recv: NDArray[Any], comm: Any, op: Any = np.add, *, algorithm: str = "auto"
) -> None:
    """Combine `send` of all ranks with `op` into `recv` on every rank, by the algorithm of this name.

    Arrays of any shape, order and numeric dtype; `send` may be `recv`. `op` is a NumPy ufunc, an MPI.Op or
    a Python function of two arrays that works element by element; it must be associative and commutative.
    `comm` is an mpi4py communicator, or one that looks like it; None is this process alone. Collective: every
    rank calls it with the same shape, dtype and op.

    >>> total = np.zeros(3)
    >>> allreduce(np.ones(3), total, None, algorithm="ring")
    >>> total
    array([1., 1., 1.])
    """
    named(algorithm)(send, recv, comm, op)


__all__ = ["Exchange", "allreduce", "make_exchange", "prepared"]
