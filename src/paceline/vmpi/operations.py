"""Reduction operations: MPI's own, by name, and those made from a Python function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from greenlet import getcurrent
from numpy.typing import NDArray

from paceline.comm.operations import UFUNCS
from paceline.vmpi.buffers import BufferMemory
from paceline.vmpi.datatypes import DATATYPES, find_letter
from paceline.vmpi.errors import mpi_error
from paceline.vmpi.handles import Handle, constants
from paceline.vmpi.memory import buffer

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


# Operations that one process can have made from functions at a time, as in mpi4py.
MOST_FUNCTIONS = 32


class Op(Handle):
    """An operation: one of MPI's, or made from a function of two buffers and a type that writes into the second.

    >>> Op("SUM")(2, 3), Op("MAX")(2, 3)
    (5, 3)
    >>> total = np.array([1.0, 2.0])
    >>> Op("PROD").Reduce_local(np.array([5.0, 5.0]), total)
    >>> total.tolist()
    [5.0, 10.0]
    """

    __slots__ = ("__weakref__", "_commutes", "_counted", "_function", "name", "ufunc")

    def __init__(
        self, name: str | Op | None = "", function: Function | None = None, commute: bool = True
    ) -> None:
        self._counted: Any = None
        copied = name if isinstance(name, Op) else None
        self.name: str = copied.name if copied else str(name or "")
        self._function: Function | None = copied._function if copied else function
        self._commutes: bool = copied._commutes if copied else commute
        self.ufunc: np.ufunc | None = UFUNCS.get(self.name)

    @classmethod
    def Create(cls, function: Function, commute: bool = False) -> Op:
        running: Any = getcurrent()
        made = getattr(running, "paceline_operations", 0)
        if made == MOST_FUNCTIONS:
            raise RuntimeError(f"a process can have at most {MOST_FUNCTIONS} operations made from functions")
        running.paceline_operations = made + 1
        found = cls("a user-defined operation", lambda *arguments: function(*arguments), commute)
        found._counted = function, running
        return found

    def Free(self) -> None:
        if not self or self.Is_predefined():
            raise mpi_error("ERR_OP", "only an operation made from a function can be freed")
        if self._counted is not None:
            self._counted[1].paceline_operations -= 1
        self.name, self._function, self.ufunc, self._counted = "", None, None, None

    def toint(self) -> int:
        """Return the number of a predefined operation; -1 for a function, which has none."""
        return self.handle if self.Is_predefined() else -1

    py2f = toint

    def __reduce__(self) -> Any:
        if self._function is None:
            return super().__reduce__()
        if self._counted is None:
            raise ValueError("cannot pickle a copy of an operation made from a function")
        return type(self).Create, (self._counted[0], self._commutes)

    def Is_commutative(self) -> bool:
        return self._commutes

    def Is_predefined(self) -> bool:
        return self.name in OF_OBJECTS or not self.name

    is_commutative = property(Is_commutative)
    is_predefined = property(Is_predefined)

    def __bool__(self) -> bool:
        return bool(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and (self.name, self._function) == (other.name, other._function)

    def __hash__(self) -> int:
        return hash((self.name, self._function))

    def __call__(self, a: Any, b: Any) -> Any:
        """Apply the operation to two objects."""
        if self._function is not None:
            return self._function(a, b, None)
        if not self.name:
            raise ValueError("the null operation combines nothing")
        return OF_OBJECTS[self.name](a, b)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """inoutbuf <- inbuf op inoutbuf."""
        given, into = BufferMemory(inbuf, writing=False), BufferMemory(inoutbuf, writing=True)
        if (given.nbytes, given.kind) != (into.nbytes, into.kind):
            raise ValueError(
                f"{given.nbytes} bytes of {given.kind} cannot be combined with {into.nbytes} bytes of {into.kind}"
            )
        into.write(combine_all([given.view, into.view], self, into.kind))

    def into(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        """Compute `lower op upper` in the memory of one of them, and return that."""
        if self.ufunc is not None:
            self.ufunc(lower, upper, out=lower)
            return lower
        if self._function is not None:
            self._function(
                lower.view(np.uint8).view(buffer),
                upper.view(np.uint8).view(buffer),
                _datatype_of(upper.dtype),
            )
            return upper
        if self.name == "NO_OP":
            return lower
        if self.name == "REPLACE":
            return upper
        if self.name in ("MAXLOC", "MINLOC") and lower.dtype.names is not None:
            (value, place), better = lower.dtype.names, np.greater if self.name == "MAXLOC" else np.less
            take = better(upper[value], lower[value])
            take |= (upper[value] == lower[value]) & (upper[place] < lower[place])
            lower[take] = upper[take]
            return lower
        raise TypeError(f"{self.name or 'a freed operation'} cannot combine these buffers")


def _datatype_of(dtype: np.dtype[Any]) -> Any:
    """Return the datatype that an operation made from a function is told."""
    return find_letter(dtype.char) or DATATYPES["BYTE"]


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


OPERATIONS = {name: Op(name) for name in OF_OBJECTS} | {"OP_NULL": Op()}
constants.update(OPERATIONS)
SUM = OPERATIONS["SUM"]


@lru_cache(maxsize=256)
def _check(ufunc: np.ufunc, kind: str, name: str) -> None:
    try:
        nothing = np.empty(0, kind)
        ufunc(nothing, nothing, out=nothing)
    except TypeError:
        raise TypeError(f"{name} cannot combine elements of type {kind}") from None


def combine_all(rows: Sequence[Any], op: Any, kind: str) -> memoryview:
    """Combine the contributions of all ranks in rank order, and return the bytes.

    >>> combine_all([np.array([1, 2]), np.array([3, 4])], SUM, "i8").cast("q").tolist()
    [4, 6]
    """
    value = None
    for value in prefixes(rows, op, kind):  # noqa: B007 (only the last one is used)
        pass
    assert value is not None
    return memoryview(value.view(np.uint8))  # type: ignore[arg-type]


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
