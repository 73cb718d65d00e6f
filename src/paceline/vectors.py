"""The arrays that strategies work on.

Under MPI they are plain NumPy arrays. In the simulator they are `Vector`s: arrays whose operations advance the virtual
clock of their rank and, in time-only simulation, compute nothing.

A communicator for time-only simulation has `time_only = True`. It does not transfer the contents of long messages, so
there is no point in computing with them, and all of thousands of ranks use the same memory for such a vector. Short
messages are transferred: the next batch, the number of samples of a rank.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
# A time-only communicator transfers messages of up to this many bytes, whatever their type.
SHORT = 4096
# Operations on at most this many bytes, a cache line, are not charged.
FREE = 64


@dataclass(frozen=True, slots=True)
class Meter:
    """The meter to which operations of vectors are charged: `work(kind, amount)` advances a virtual clock.

    A pass over memory that reads one array is a `copy`, one that reads two is a `combine`, one that sums a whole array
    is a `sum`; amounts are in bytes.
    """

    work: Callable[[str, float], object]
    time_only: bool = False
    """Charge operations without computing anything."""


class Vector(np.ndarray[Any, np.dtype[Any]]):
    """An array whose operations are charged to a meter before they are computed.

    Operators, ufuncs, assignments, `copy`, `astype`, `np.copyto`, `np.dot` and `np.linalg.norm` are charged; views are
    free, and so is `np.asarray(vector)`, the same memory as a plain array, whose operations cost nothing.

    >>> charged = []
    >>> x = vector(np.ones(100, np.float32), Meter(lambda kind, amount: charged.append((kind, amount))))
    >>> start = x.copy()
    >>> x -= 0.5 * start                            # a pass for the product, one for the difference
    >>> x[:50] += 1                                 # in place: there is nothing left to assign
    >>> charged, float(x[0]), float(x[99])
    ([('copy', 400), ('copy', 400), ('combine', 400), ('copy', 200)], 1.5, 0.5)

    In time-only simulation results have a size and a type but no memory of their own, and a number that is read is NaN:

    >>> x = vector(np.ones(10_000), Meter(lambda kind, amount: None, time_only=True))
    >>> y = 2 * x + 1
    >>> y.shape, np.shares_memory(y, 3 * x), float(y[0]), float(y.sum())
    ((10000,), True, nan, nan)
    """

    meter: Meter | None
    _part_of: Vector | None
    """The vector of which this is a part."""

    def __array_finalize__(self, obj: Any) -> None:
        self.meter = getattr(obj, "meter", None)
        self._part_of = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        outputs: tuple[Any, ...] = named.get("out") or ()
        meter = _meter(*inputs, *outputs)
        arrays = [np.asarray(given) for given in inputs]
        if outputs:
            named["out"] = tuple(None if given is None else np.asarray(given) for given in outputs)
        if method == "reduce":
            _charge(meter, "sum", arrays[0].nbytes)
        elif method == "__call__":
            passed = named["out"][0] if outputs else max(arrays, key=np.size)
            _charge(meter, "combine" if sum(a.size > 1 for a in arrays) > 1 else "copy", passed.nbytes)
        if meter is not None and meter.time_only:
            return self._unknown(ufunc, method, inputs, outputs, meter, named)
        found = getattr(ufunc, method)(*(_plain(given) for given in inputs), **named)
        if len(outputs) == 1:
            return outputs[0]
        return tuple(_like(one, meter) for one in found) if isinstance(found, tuple) else _like(found, meter)

    @staticmethod
    def _unknown(
        ufunc: np.ufunc, method: str, inputs: Any, outputs: tuple[Any, ...], meter: Meter, named: Any
    ) -> Any:
        """Return the result of an operation without its values."""
        if outputs:
            return outputs[0] if len(outputs) == 1 else outputs
        arrays = [np.asarray(given) for given in inputs]
        if method != "__call__":
            axis = named.get("axis", 0)
            if arrays[0].ndim <= 1 or axis is None:
                return _nan(arrays[0].dtype)
            kept = tuple(n for place, n in enumerate(arrays[0].shape) if place != axis % arrays[0].ndim)
            return vector(shared_memory(kept, arrays[0].dtype), meter)
        one = [
            np.ones((1,) * a.ndim, a.dtype) if a.ndim else given
            for a, given in zip(arrays, inputs, strict=True)
        ]
        found = ufunc(*one, **{key: value for key, value in named.items() if key in ("dtype", "casting")})
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        made = [vector(shared_memory(shape, some.dtype), meter) for some in _tuple(found)]
        return made[0] if len(made) == 1 else tuple(made)

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        if function is np.copyto and len(arguments) == 2 and not named:
            arguments[0][...] = arguments[1]
            return None
        if function in _LIKE:
            return self._made_like(function, *arguments, **named)
        if function in _NUMBERS:
            meter = _meter(*arguments)
            _charge(meter, "sum", sum(np.asarray(given).nbytes for given in arguments))
            if meter is not None and meter.time_only:
                return _nan(np.asarray(arguments[0]).dtype)
            return function(*(_plain(given) for given in arguments), **named)
        return super().__array_function__(function, types, arguments, named)

    def _made_like(self, function: Any, like: Any, *values: Any, **named: Any) -> Any:
        meter = _meter(like)
        if meter is None or not meter.time_only:
            return _like(function(_plain(like), *values, **named), meter)
        shape, dtype = named.get("shape"), named.get("dtype")
        shape = like.shape if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
        return vector(shared_memory(shape, like.dtype if dtype is None else dtype), meter)

    def __setitem__(self, key: Any, value: Any) -> None:
        into, meter = np.asarray(self), self.meter
        target = into[key]
        if isinstance(value, Vector) and value._part_of is self and _same_memory(target, value):
            return  # already done by x[a:b] += y
        _charge(meter, "copy", target.nbytes)
        if meter is None or not meter.time_only:
            into[key] = _plain(value)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, Vector):
            found._part_of = self
        elif self.meter is not None and self.meter.time_only:
            return _nan(self.dtype)
        return found

    def copy(self, order: Any = "C") -> Any:
        """Return another vector with the same values."""
        made = np.empty_like(self)
        made[...] = self
        return made

    def astype(self, dtype: DTypeLike, *given: Any, **named: Any) -> Any:  # type: ignore[override]
        """Return another vector with the same values in another type."""
        made = np.empty_like(self, dtype=dtype)
        _charge(self.meter, "copy", made.nbytes)
        if self.meter is None or not self.meter.time_only:
            np.asarray(made)[...] = np.asarray(self).astype(dtype, *given, **named)
        return made


_LIKE = frozenset({np.empty_like, np.zeros_like, np.ones_like, np.full_like})
_NUMBERS = frozenset({np.dot, np.vdot, np.linalg.norm})


def vector(values: Array, meter: Meter | None) -> Array:
    """Return the same memory as a vector that is charged to `meter`; without a meter, the array itself.

    >>> x = np.ones(3)
    >>> vector(x, None) is x
    True
    """
    if meter is None:
        return values
    made = values.view(Vector)
    made.meter = meter
    return made


def charge_whole(
    kind: str, amount: float, function: Callable[..., object], x: Array, *arguments: Any
) -> None:
    """Call `function(x, ...)`, which changes x in place and is charged as a whole.

    It is given plain arrays. In time-only simulation it is charged and not called; under MPI it is just called.

    >>> charged = []
    >>> x = vector(np.ones(100), Meter(lambda kind, amount: charged.append((kind, amount))))
    >>> def halve(x):
    ...     x /= 2
    >>> charge_whole("update", x.size, halve, x)
    >>> charged, float(x[0])
    ([('update', 100)], 0.5)
    """
    if type(x) is np.ndarray:
        function(x, *arguments)
        return
    meter = _meter(x)
    if meter is not None:
        if amount:
            meter.work(kind, amount)
        if meter.time_only:
            return
    function(_plain(x), *(_plain(given) for given in arguments))


def is_unknown(x: Array) -> bool:
    """Return True if `x` is a vector of a time-only simulation, whose values are not known."""
    meter = _meter(x)
    return meter is not None and meter.time_only


def _meter(*arrays: Any) -> Meter | None:
    """Return the meter of the first vector that has one."""
    for given in arrays:
        if isinstance(given, Vector) and given.meter is not None:
            return given.meter
    return None


def _charge(meter: Meter | None, kind: str, nbytes: int) -> None:
    if meter is not None and nbytes > FREE:
        meter.work(kind, nbytes)


def _plain(given: Any) -> Any:
    return np.asarray(given) if isinstance(given, Vector) else given


def _like(found: Any, meter: Meter | None) -> Any:
    return vector(found, meter) if isinstance(found, np.ndarray) else found


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _nan(dtype: np.dtype[Any]) -> Any:
    """Return an unknown number; integers have none, so theirs is 0."""
    return dtype.type(np.nan if dtype.kind in "fc" else 0)


def _same_memory(one: Array, other: Array) -> bool:
    return (
        one.shape == other.shape
        and one.strides == other.strides
        and one.__array_interface__["data"][0] == other.__array_interface__["data"][0]
    )


# ---- memory in time-only simulation

MAP_NORESERVE = 0x4000  # on Linux; Python's own name for it is younger than the Python that is needed here
# The memory that all ranks of this process share, by its length, for as long as one of them uses it.
_lent: WeakValueDictionary[int, Array] = WeakValueDictionary()


def is_time_only(comm: Any) -> bool:
    """Return True if `comm` belongs to a time-only simulation.

    >>> is_time_only(None)
    False
    """
    return bool(getattr(comm, "time_only", False))


def carried(kind: str, nbytes: int) -> bool:
    """Return True if a time-only communicator transfers messages of this type and length.

    >>> carried("f4", 4096), carried("f4", 4100), carried("i4", 4100)
    (True, False, True)
    """
    return nbytes <= SHORT or kind[0] != "f"


def room(comm: Any, count: int, dtype: DTypeLike) -> Array:
    """Return uninitialised memory; in time-only simulation, if it is never read, one piece for all ranks.

    >>> room(None, 3, np.float32).shape
    (3,)
    """
    if is_time_only(comm):
        return shared_memory((count,), np.dtype(dtype))
    return np.empty(count, dtype)


def shared_memory(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return memory of a time-only simulation: shared by all ranks, unless messages transfer its contents.

    The rows of a matrix are one piece of memory too.

    >>> one, other = shared_memory((3, 10_000), "f4"), shared_memory((10_000,), "f4")
    >>> one.shape, np.shares_memory(one[2], other)
    ((3, 10000), True)
    """
    dtype = np.dtype(dtype)
    length = shape[-1] if shape else 1
    if carried(dtype.kind, length * dtype.itemsize):
        return np.empty(shape, dtype)
    one = _common(length * dtype.itemsize)[: length * dtype.itemsize].view(dtype)
    if len(shape) == 1:
        return one
    return np.lib.stride_tricks.as_strided(one, shape, (0,) * (len(shape) - 1) + (one.itemsize,))


def unwritten(nbytes: int) -> Array:
    """Return bytes whose pages take no memory until they are written: there may be more of them than memory.

    >>> unwritten(10**13)[-1]
    np.uint8(0)
    """
    if sys.platform != "linux":
        return np.zeros(nbytes, np.uint8)
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except (OSError, OverflowError) as refused:
        raise MemoryError(f"{nbytes:,} bytes of address space: {refused}") from None
    return np.frombuffer(memory, np.uint8)


def _common(nbytes: int) -> Array:
    length = 1 << (nbytes - 1).bit_length()
    memory = _lent.get(length)
    if memory is None:
        memory = _lent[length] = unwritten(length)
    return memory
