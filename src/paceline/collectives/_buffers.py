"""What every collective does with its arguments, once for all: check them, and make them simple.

Below the decorator `collective`, `send` and `recv` are 1-D, contiguous, native, not empty, and the same
object or apart; `comm` is the private channel of the caller's communicator, of two ranks or more; `op(a, b,
out)` works in place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives._cost import LONGEST
from paceline.collectives._layout import cut
from paceline.comm import Channel, Operation, channel
from paceline.comm.operations import operation

Array = NDArray[Any]
Body = Callable[[Array, Array, Channel, Operation], None]
Allreduce = Callable[..., None]


def collective(body: Body) -> Allreduce:
    """Make `allreduce(send, recv, comm, op)` for any arrays out of one for simple arrays.

    `allreduce.prepare(…)` takes the same arguments, checks them, and returns a function that does it, again
    and again.
    """

    @wraps(body)
    def allreduce(send: Array, recv: Array, comm: Any, op: Any = np.add) -> None:
        prepare(send, recv, comm, op)()

    def prepare(send: Array, recv: Array, comm: Any, op: Any = np.add) -> Callable[[], None]:
        in_place = check(send, recv)
        send, recv = np.asarray(send), np.asarray(recv)  # a matrix would not become flat
        dtype = recv.dtype.newbyteorder("=")
        combine = operation(op, dtype)
        own = None if comm is None else channel(comm)
        if own is None or own.size == 1 or recv.size == 0:
            return partial(_copy, send, recv, own) if not in_place else _nothing
        combine = own.operation(combine, dtype, recv.nbytes)
        if _plain(recv) and (in_place or _plain(send)):
            result = recv.reshape(-1)
            return partial(body, result if in_place else send.reshape(-1), result, own, combine)
        return partial(_around, body, send, recv, in_place, own, combine)

    allreduce.prepare = prepare  # type: ignore[attr-defined]
    return allreduce


def _nothing() -> None:
    """What one rank does in place."""


def _copy(send: Array, recv: Array, own: Channel | None) -> None:
    if own is None:
        recv[...] = send
    else:
        own.copy(recv, send)


def _around(body: Body, send: Array, recv: Array, in_place: bool, own: Channel, combine: Operation) -> None:
    """The body on simple arrays made from these, and its result put where it belongs."""
    direct = _simple(recv)
    result = recv.reshape(-1) if direct else np.empty(recv.size, recv.dtype.newbyteorder("="))
    if not in_place and _simple(send):
        source = send.reshape(-1)
    else:
        source = result
        if not (in_place and direct):
            own.copy(result.reshape(recv.shape), send)
    _run(body, source, result, own, combine)
    if not direct:
        own.copy(recv, result.reshape(recv.shape))


def _run(body: Body, source: Array, result: Array, own: Channel, combine: Operation) -> None:
    """The body on pieces that MPI can count, of types that MPI can send."""
    in_place = source is result
    if result.dtype.char == "e":  # MPI has no float16: two bytes travel as what they are
        combine = combine.seen_as(result.dtype)
        source, result = source.view(np.uint16), result.view(np.uint16)
    for piece in cut(result.size, -(-result.size // LONGEST)):
        into = result[piece]
        body(into if in_place else source[piece], into, own, combine)


def check(send: Any, recv: Any) -> bool:
    """Raise if these cannot be the arrays of an allreduce; say whether they are the same memory."""
    for name, array in (("send", send), ("recv", recv)):
        if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} must be a NumPy array; got {type(array).__name__}")
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} must hold numbers; got dtype {array.dtype}")
    if send.dtype != recv.dtype:
        raise TypeError(f"send and recv must have the same dtype; got {send.dtype} and {recv.dtype}")
    if send.shape != recv.shape:
        raise ValueError(f"send and recv must have the same shape; got {send.shape} and {recv.shape}")
    if not recv.flags.writeable:
        raise ValueError("recv must be writeable; got a read-only array")
    if not recv.flags.c_contiguous and _meets_itself(recv):
        raise ValueError("recv must not overlap itself; got an array with several elements at one address")
    if send is recv:
        return True
    if not np.may_share_memory(send, recv):
        return False
    if send.ctypes.data == recv.ctypes.data and send.strides == recv.strides:
        return True
    try:
        overlap = np.shares_memory(send, recv, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        overlap = True
    if overlap:
        raise ValueError("send and recv must be the same array or apart; got overlapping views")
    return False


def _simple(array: Array) -> bool:
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _plain(array: Array) -> bool:
    """Whether a body can use it as it is: MPI can send its type and count its elements."""
    return _simple(array) and array.dtype.char != "e" and array.size <= LONGEST


def _meets_itself(array: Array) -> bool:
    """Whether two elements lie at one address: strides, sorted, must each step over all that is below."""
    reach = array.itemsize
    for step, count in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach = step * (count - 1) + reach
    return False
