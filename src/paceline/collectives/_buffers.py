"""Check and simplify the arguments of an allreduce, and find the algorithm by name.

Below the decorator `collective`, `send` and `recv` are 1-D, contiguous, in native byte order and not empty, and they
are either the same object or do not overlap; `comm` is the private channel of the caller's communicator, with at
least two ranks; `op(a, b, out)` works in place.

An algorithm may also describe its messages, of all ranks at once, round by round (`Whole`):

    in each round a rank receives at most one message and sends at most one
    Isend; Irecv; wait for what it receives; (combine); wait for what it sends; (combine)

A rank sends before it asks for its partner's message. Over TCP, a rank that asks first is sent all of a long message, and
its partner's own request waits behind that in their connection: the round takes up to twice as long.

The simulator evaluates such rounds for all ranks with a few operations on arrays, instead of message by message. An
algorithm's file that has `rounds` and `total` beside its `allreduce` describes the same messages and additions twice, and
a test holds them together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, wraps
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from paceline.collectives._cost import LONGEST, cut
from paceline.comm import Channel, Operation, channel
from paceline.comm.operations import operation
from paceline.names import find

Array = NDArray[Any]


Body = Callable[[Array, Array, Channel, Operation], None]
Allreduce = Callable[..., None]


@overload
def collective(body: Body) -> Allreduce: ...


@overload
def collective(*, whole: Whole) -> Callable[[Body], Allreduce]: ...


def collective(body: Body | None = None, *, whole: Whole | None = None) -> Any:
    """Turn an allreduce of simple arrays into one that accepts any arrays.

    `allreduce.prepare(…)` takes the same arguments, checks them once, and returns a function without arguments that
    performs the allreduce each time it is called. `whole`: what the simulator evaluates for all ranks at once.
    """
    return partial(_complete, whole=whole) if body is None else _complete(body, whole)


def _complete(body: Body, whole: Whole | None) -> Allreduce:

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
            return partial(_copy, send, recv, own) if not in_place else _do_nothing
        combine = own.operation(combine, dtype, recv.nbytes)
        halves = own.time_only  # then nothing is sent, and so any type can be
        if _is_plain(recv, halves) and (in_place or _is_plain(send, halves)):
            result = recv.reshape(-1)
            arrays = (result if in_place else send.reshape(-1), result)
            run = partial(body, *arrays, own, combine)
            if whole is not None and own.simulated and type(own) is Channel and combine.ufunc is not None:
                run = partial(_evaluate, whole, *arrays, own, combine, run)
        else:
            run = partial(_run_on_copies, body, send, recv, in_place, own, combine)
        if own.simulated or not own.compares:
            return run
        return partial(_check_and_run, describe_array(recv.size, dtype), own, run)

    allreduce.prepare = prepare  # type: ignore[attr-defined]
    return allreduce


def _evaluate(
    whole: Whole, send: Array, recv: Array, own: Channel, op: Operation, run: Callable[[], None]
) -> None:
    """Let the simulator evaluate the allreduce of all ranks at once; if it cannot, run this rank's part."""
    if not own.evaluate(whole, send, recv, op):
        run()


# One rank's array as a number that ranks compare: its length and the letter of its type.


def describe_array(size: int, dtype: np.dtype[Any]) -> int:
    """Return a number that arrays have in common if they can be combined.

    >>> describe_array(3, np.dtype("f4")) == describe_array(3, np.dtype("f8"))
    False
    """
    return size << 8 | ord(dtype.char)


def refuse_mismatch(found: Sequence[int], rank_of: Callable[[int], int] = int) -> None:
    """Raise the same ValueError on every rank if the descriptions of their arrays differ; `rank_of` a place is its rank.

    >>> refuse_mismatch([describe_array(3, np.dtype("f4")), describe_array(5, np.dtype("f8"))])
    Traceback (most recent call last):
    ValueError: all ranks must pass arrays of one length and dtype; rank 0 passed 3 of float32, rank 1 passed 5 of float64
    """
    other = next((place for place, what in enumerate(found) if what != found[0]), None)
    if other is not None:
        passed = [
            f"rank {rank_of(place)} passed {found[place] >> 8} of {np.dtype(chr(found[place] & 255))}"
            for place in (0, other)
        ]
        raise ValueError(f"all ranks must pass arrays of one length and dtype; {', '.join(passed)}")


def _check_and_run(description: int, own: Channel, run: Callable[[], None]) -> None:
    """Run an allreduce; the first of its length and dtype on a communicator compares them between the ranks."""
    own.fact(description, lambda channel: _compare(channel, description))
    run()


def _compare(own: Channel, description: int) -> None:
    found = np.zeros(own.size, np.int64)
    own.bare.Allgather(np.array([description]), found)
    refuse_mismatch(found.tolist())


def compare_arrays(own: Channel, values: Array) -> None:
    """Raise the same ValueError on every rank if their arrays differ in length or dtype. Collective the first time."""
    if not own.simulated:
        description = describe_array(values.size, values.dtype)
        own.fact(description, lambda channel: _compare(channel, description))


def _do_nothing() -> None:
    """Do nothing: the result of a single rank in place is there already."""


def _copy(send: Array, recv: Array, own: Channel | None) -> None:
    if own is None:
        recv[...] = send
    else:
        own.copy(recv, send)


def _run_on_copies(
    body: Body, send: Array, recv: Array, in_place: bool, own: Channel, combine: Operation
) -> None:
    """Run the body on simple copies of these arrays where they are not simple, and copy the result back."""
    direct = _is_simple(recv)
    result = recv.reshape(-1) if direct else np.empty(recv.size, recv.dtype.newbyteorder("="))
    if not in_place and _is_simple(send):
        source = send.reshape(-1)
    else:
        source = result
        if not (in_place and direct):
            own.copy(result.reshape(recv.shape), send)
    _run(body, source, result, own, combine)
    if not direct:
        own.copy(recv, result.reshape(recv.shape))


def _run(body: Body, source: Array, result: Array, own: Channel, combine: Operation) -> None:
    """Run the body on pieces that MPI can count and types that MPI can send."""
    in_place = source is result
    if (
        result.dtype.char == "e" and not own.time_only
    ):  # MPI has no float16: two bytes travel as what they are
        combine = combine.view_as(result.dtype)
        source, result = source.view(np.uint16), result.view(np.uint16)
    for piece in cut(result.size, -(-result.size // LONGEST)):
        into = result[piece]
        body(into if in_place else source[piece], into, own, combine)


def check(send: Any, recv: Any) -> bool:
    """Raise if these cannot be the arrays of an allreduce; return True if they are the same memory."""
    masked: Any = sys.modules.get("numpy.ma")  # importing it takes 20 ms
    for name, array in (("send", send), ("recv", recv)):
        if not isinstance(array, np.ndarray) or (masked and isinstance(array, masked.MaskedArray)):
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


def _is_simple(array: Array) -> bool:
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _is_plain(array: Array, halves: bool) -> bool:
    """Return True if a body can use the array as it is: MPI can send its type and count its elements.

    `halves`: float16 can be sent.
    """
    return _is_simple(array) and (halves or array.dtype.char != "e") and array.size <= LONGEST


def _meets_itself(array: Array) -> bool:
    """Return True if two elements share an address: each stride must step over everything that the smaller ones reach."""
    reach = array.itemsize
    for step, count in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach = step * (count - 1) + reach
    return False


@cache
def find_allreduce(algorithm: str) -> Allreduce:
    """Return the allreduce function of this name."""
    return find("collectives", algorithm)  # looks into folders: 0.2 ms


def prepare_sum(values: Array, comm: Any, algorithm: str, op: Any = np.add) -> Callable[[], None]:
    """Return a function that sums this array over the ranks, in place, each time it is called.

    The arguments are checked here, once: with cold caches that takes tens of microseconds. Only calling the function
    that is returned is collective.

    >>> values = np.ones(3)
    >>> add_up = prepare_sum(values, None, "ring")
    >>> add_up()
    >>> values
    array([1., 1., 1.])
    """
    found = find_allreduce(algorithm)
    prepare: Callable[..., Callable[[], None]] | None = getattr(found, "prepare", None)
    if prepare is None:  # a function of another package, which is given a communicator
        return partial(found, values, values, comm.comm if isinstance(comm, Channel) else comm, op)
    return prepare(values, values, comm, op)


# ---- the messages of all ranks at once

Ranks = NDArray[np.intp]


class MessageRound(NamedTuple):
    """Message i goes from rank `senders[i]` to rank `receivers[i]`; both have each rank at most once."""

    senders: Ranks
    receivers: Ranks
    elements: int | Ranks
    """In each message."""
    work: Sequence[tuple[str, Ranks | slice]] = ()
    """Kinds of work on the elements that came, and the messages whose receivers do it."""
    works_first: bool = False
    """True if that is done before waiting for the message that was sent."""


class Whole(NamedTuple):
    """A collective as seen from outside."""

    rounds: Callable[[int, int, bool], Iterator[MessageRound]]
    """The rounds for a number of ranks and of elements; whether the result replaces what was given."""
    total: Callable[[Sequence[Array], Array, Operation], None]
    """Combines the arrays of all ranks, in the same order of operations."""
