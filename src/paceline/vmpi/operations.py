"""Reduction operations: MPI's own, by name, and those made from a Python function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.operations import UFUNCS
from paceline.vmpi.buffers import BufferMemory

Function = Callable[[Any, Any, Any], None]


def _max(a: Any, b: Any) -> Any:
    return b if b > a else a


def _min(a: Any, b: Any) -> Any:
    return b if b < a else a


def _max_at(a: Any, b: Any) -> Any:
    if a[0] == b[0]:
        return a if a[1] <= b[1] else b
    return a if a[0] > b[0] else b


def _min_at(a: Any, b: Any) -> Any:
    if a[0] == b[0]:
        return a if a[1] <= b[1] else b
    return a if a[0] < b[0] else b


# The operations on Python objects.
OF_OBJECTS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PROD": operator.mul,
    "MAX": _max,
    "MIN": _min,
    "LAND": lambda a, b: bool(a) & bool(b),
    "LOR": lambda a, b: bool(a) | bool(b),
    "LXOR": lambda a, b: bool(a) ^ bool(b),
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
    "MAXLOC": _max_at,
    "MINLOC": _min_at,
    "REPLACE": lambda a, b: b,
    "NO_OP": lambda a, b: a,
}


class Op:
    """An operation: one of MPI's, or made from a function of two buffers and a type that writes into the second.

    >>> Op("SUM")(2, 3), Op("MAX")(2, 3)
    (5, 3)
    >>> total = np.array([1.0, 2.0])
    >>> Op("PROD").Reduce_local(np.array([5.0, 5.0]), total)
    >>> total.tolist()
    [5.0, 10.0]
    """

    __slots__ = ("_commutes", "_function", "name", "ufunc")

    def __init__(self, name: str = "", function: Function | None = None, commute: bool = True) -> None:
        self.name = name
        self._function = function
        self._commutes = commute
        self.ufunc: np.ufunc | None = UFUNCS.get(name)

    @classmethod
    def Create(cls, function: Function, commute: bool = False) -> Op:
        return cls("a user-defined operation", function, commute)

    def Free(self) -> None:
        self.name, self._function, self.ufunc = "", None, None

    def Is_commutative(self) -> bool:
        return self._commutes

    def Is_predefined(self) -> bool:
        return self.name in OF_OBJECTS or not self.name

    is_commutative = property(Is_commutative)
    is_predefined = property(Is_predefined)

    def __bool__(self) -> bool:
        return bool(self.name)

    def __call__(self, a: Any, b: Any) -> Any:
        """Apply the operation to two objects."""
        if self._function is not None:
            raise TypeError("an operation made from a function of buffers cannot be applied to objects")
        return OF_OBJECTS[self.name](a, b)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """inoutbuf <- inbuf op inoutbuf."""
        given, into = BufferMemory(inbuf, writing=False), BufferMemory(inoutbuf, writing=True)
        into.write(combine_all([given.view, into.view], self, into.kind))

    def into(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        """Compute `lower op upper` in the memory of one of them, and return that."""
        if self.ufunc is not None:
            self.ufunc(lower, upper, out=lower)
            return lower
        if self._function is not None:
            self._function(_bytes(lower), _bytes(upper), None)
            return upper
        if self.name == "NO_OP":
            return lower
        if self.name == "REPLACE":
            return upper
        raise TypeError(f"{self.name or 'a freed operation'} cannot combine these buffers")


class _Foreign:
    """An operation of the real mpi4py, if that has been imported."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self.name = "an operation of mpi4py"

    def into(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        self._op.Reduce_local(lower, upper)
        return upper


def check_op(op: Any, kind: str) -> Any:
    """Return an operation that can combine elements of this kind, or raise."""
    if op is None:
        return SUM
    if not isinstance(op, Op):
        if hasattr(op, "Reduce_local"):
            return _Foreign(op)
        raise TypeError(f"op must be an MPI.Op; got {type(op).__name__}")
    if not op:
        raise ValueError("op must be an operation; got a null or freed one")
    if op.ufunc is not None:
        _check(op.ufunc, kind, op.name)
    return op


SUM = Op("SUM")


@lru_cache(maxsize=256)
def _check(ufunc: np.ufunc, kind: str, name: str) -> None:
    nothing = np.empty(0, kind)
    try:
        ufunc(nothing, nothing, out=nothing)
    except TypeError:
        raise TypeError(f"{name} cannot combine elements of type {kind}") from None


def combine_all(rows: Sequence[Any], op: Any, kind: str) -> memoryview:
    """Combine the contributions of all ranks in rank order, and return the bytes.

    >>> combine_all([np.array([1, 2]), np.array([3, 4])], SUM, "i8").cast("q").tolist()
    [4, 6]
    """
    return _last(prefixes(rows, op, kind))


def _last(found: Iterator[NDArray[Any]]) -> memoryview:
    value = next(found)
    for value in found:  # noqa: B007 (only the last one is used)
        pass
    return _bytes(value)


def _bytes(values: Any) -> memoryview:
    return memoryview(values.view(np.uint8))


def prefixes(rows: Sequence[Any], op: Any, kind: str) -> Iterator[NDArray[Any]]:
    """Yield the first contribution, the first two combined, the first three … each overwritten by the next."""
    dtype = np.dtype(kind)
    sofar = np.frombuffer(rows[0], dtype).copy()
    yield sofar
    ufunc = getattr(op, "ufunc", None)
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            upper = np.frombuffer(row, dtype)
            if ufunc is not None:
                ufunc(sofar, upper, out=sofar)
            elif sofar.size:
                sofar = op.into(sofar, upper.copy())
            yield sofar
