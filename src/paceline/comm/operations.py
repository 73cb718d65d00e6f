"""Reduction operations: any `op` is converted to a function `op(a, b, out)` that stores "a op b" in `out`.

`mpi_of` finds the MPI module of a communicator without importing or starting MPI: whoever has a communicator has the
module that it comes from, `mpi4py.MPI` or what the simulator has instead. Only `paceline.launch.mpi` starts MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# MPI's operations and the ufuncs that do the same; `native` reads this table the other way.
UFUNCS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}

# Columns combined over all rows at a time, so that the partial sums stay in the inner cache.
AT_ONCE = 64 << 10


def mpi_of(comm: Any) -> Any:
    """Return the module with the constants and classes of a communicator: mpi4py.MPI or the simulator's."""
    own = getattr(comm, "MPI", None)
    return sys.modules["mpi4py.MPI"] if own is None else own


def is_op(op: Any) -> bool:
    """Return True if `op` is an MPI.Op; it cannot be one if mpi4py.MPI was never imported."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and isinstance(op, module.Op)


class Operation:
    """`operation(a, b, out)` for 1-D arrays of one dtype; `out` may be `a` or `b`.

    `ufunc` is the NumPy ufunc that does it, if there is one.
    """

    def __init__(self, call: Callable[[Array, Array, Array], object], ufunc: np.ufunc | None) -> None:
        self._call = call
        self.ufunc = ufunc

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        self._call(a, b, out)

    def compute(self, a: Array, b: Array, out: Array) -> None:
        """Do the same as a call, off the simulator's clock."""
        self._call(a, b, out)

    def combine_onto_sent(self, a: Array, b: Array, out: Array) -> None:
        """Do the same as a call, if another rank of this node has just read `out`.

        The other core's copy of every cache line must be invalidated first, which takes most of the time: 437 kB on 16
        cores take 250 us, and 40 us if no other rank has read them.
        """
        self._call(a, b, out)

    def combine_rows(self, rows: Array, out: Array) -> None:
        """Combine the rows of a 2-D array in order: out = rows[0] op rows[1] op ...

        Floats are summed as a matrix product with ones: BLAS reads several rows at a time, NumPy one after the other,
        and most of the time goes into waiting for another core's cache. 16 rows of 437 kB, each written by its own core,
        on 16 cores: 40 us for a slice, against 95 us for `reduce`, 84 for einsum, 58 for a loop of adds; 16 rows of
        16 MiB: 1.6 ms against 2.1, 2.7 and 2.1.
        """
        if self.ufunc is np.add and out.dtype.char in "fd" and rows.strides[1] == out.itemsize:
            np.matmul(_ones(len(rows), out.dtype), rows, out)
            return
        for start in range(0, out.size, AT_ONCE):
            some, into = rows[:, start : start + AT_ONCE], out[start : start + AT_ONCE]
            if len(rows) == 1:
                into[...] = some[0]
            else:
                self._call(some[0], some[1], into)
                for row in some[2:]:
                    self._call(into, row, into)

    def view_as(self, dtype: np.dtype[Any]) -> Operation:
        """Return the same operation for arrays whose bytes are elements of `dtype` but have another declared dtype."""
        call = self._call
        return Operation(lambda a, b, out: call(a.view(dtype), b.view(dtype), out.view(dtype)), None)


class TreeSum(Operation):
    """A sum whose order of additions depends only on the number of rows: halves first, each summed in the same way.

    With 2^k rows it is the order of recursive doubling, so any 2^j of adjacent rows may have been summed before.

    >>> rows, out = np.array([[1e8], [1.0], [-1e8], [1.0]], np.float32), np.empty(1, np.float32)
    >>> TreeSum().combine_rows(rows, out)
    >>> out
    array([0.], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__(lambda a, b, out: np.add(a, b, out=out), np.add)

    def combine_rows(self, rows: Array, out: Array) -> None:
        for start in range(0, out.size, AT_ONCE):
            out[start : start + AT_ONCE] = _tree(rows[:, start : start + AT_ONCE])


def _tree(rows: Array) -> Array:
    """Return the sum of the rows: (0 + 1) + (2 + 3) ..."""
    half = len(rows) // 2
    total: Array = rows[0] if half == 0 else _tree(rows[:half]) + _tree(rows[half:])
    return total


class Charged(Operation):
    """An operation that charges its cost with `work(kind, amount)` to the simulator's clock. `time_only`: only that."""

    def __init__(self, inner: Operation, work: Callable[[str, float], object], *, time_only: bool) -> None:
        super().__init__(_do_nothing if time_only else inner._call, inner.ufunc)
        self._inner, self._work, self.time_only = inner, work, time_only

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        self._call(a, b, out)
        self._work("combine", out.nbytes)

    def combine_onto_sent(self, a: Array, b: Array, out: Array) -> None:
        self._call(a, b, out)
        self._work("recombine", out.nbytes)

    def combine_rows(self, rows: Array, out: Array) -> None:
        if not self.time_only:
            self._inner.combine_rows(rows, out)
        self._work("sum", rows.nbytes)

    def view_as(self, dtype: np.dtype[Any]) -> Operation:
        return Charged(self._inner.view_as(dtype), self._work, time_only=self.time_only)


def _do_nothing(a: Array, b: Array, out: Array) -> None:
    """Compute nothing: the numbers were never sent."""


def operation(op: Any, dtype: np.dtype[Any]) -> Operation:
    """Return the operation that `op` (a ufunc, an MPI.Op or a Python function of two arrays) denotes for `dtype`.

    >>> total = np.zeros(2)
    >>> operation(lambda a, b: a + 2 * b, total.dtype)(np.ones(2), np.ones(2), total)
    >>> total
    array([3., 3.])
    """
    if isinstance(op, Operation):
        return op
    if isinstance(op, np.ufunc):
        return _from_ufunc(op, dtype)
    if is_op(op) or hasattr(op, "Reduce_local"):
        return _from_mpi(op, dtype)
    if callable(op):
        made = Operation(_Function(op), None)
        # Try it once, so that an error is raised on every rank, and not in the middle of an exchange. On two
        # elements: `max` of arrays of one element is not an error.
        one = np.ones(2, dtype)
        made(one, one.copy(), one.copy())
        return made
    raise TypeError(
        f"op must be a function of two arrays, a NumPy ufunc or an MPI.Op; got {type(op).__name__}"
    )


@lru_cache(maxsize=64)
def _ones(count: int, dtype: np.dtype[Any]) -> Array:
    return np.ones(count, dtype)


@lru_cache(maxsize=128)
def _from_ufunc(op: np.ufunc, dtype: np.dtype[Any]) -> Operation:
    if op.nin != 2 or op.nout != 1 or op.signature is not None:
        raise TypeError(f"op must take two arrays and give one; got the ufunc {op.__name__}")
    nothing = np.empty(0, dtype)
    op(nothing, nothing, out=nothing)  # raises TypeError if the ufunc cannot give this dtype

    def call(a: Array, b: Array, out: Array) -> None:
        op(a, b, out=out)  # maximum and minimum take no third positional argument

    return Operation(call, op)


def _from_mpi(op: Any, dtype: np.dtype[Any]) -> Operation:
    """Convert an MPI.Op, or one of the simulator's, which has its ufunc as an attribute."""
    if is_op(op):
        MPI = sys.modules["mpi4py.MPI"]
        ufunc = next((ufunc for name, ufunc in UFUNCS.items() if op == getattr(MPI, name)), None)
        unknown = op == MPI.OP_NULL or op.is_predefined
    else:
        ufunc, unknown = getattr(op, "ufunc", None), getattr(op, "is_predefined", False)
    if ufunc is not None:
        return _from_ufunc(ufunc, dtype)
    if unknown:
        raise TypeError(f"op must be one of {', '.join(UFUNCS)} or made with MPI.Op.Create; got {op!r}")
    if not op.Is_commutative():
        raise ValueError("op must be commutative; got an MPI.Op made without commute=True")
    if dtype.char == "e":
        raise TypeError("MPI has no float16: give op as a NumPy ufunc or a function of two arrays")

    def reduce_local(a: Array, b: Array, out: Array) -> None:
        total = b if out is b else b.copy()
        op.Reduce_local(a, total)
        if total is not out:
            out[...] = total

    return Operation(reduce_local, None)


class _Function:
    """A user's function of two arrays whose result is checked."""

    def __init__(self, function: Callable[[Array, Array], Array]) -> None:
        self.function = function

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        result = self.function(a, b)
        if np.shape(result) != out.shape:
            raise ValueError(
                f"op must return an array of its arguments' shape {out.shape}; got {np.shape(result)}"
            )
        np.copyto(out, result, casting="same_kind")
