"""Gradients in fewer bytes, for messages between nodes.

    bfloat16, float16     every number in 2 bytes; partial sums are rounded, too
    topk:share=0.01       the largest entries, with their places; what is not sent is added to the next gradient
    powersgd:rank=4       each matrix as the product of two thin ones; what is lost is added to the next gradient

A compression prepares sums: `prepare(values, …)` returns a function that replaces `values` by their
sum over the ranks, the same bits on every rank. `total(array, op)` prepares an uncompressed sum of another array by
the collective that was chosen. The arrays that are summed, and so the bytes, are those of `sums`.

Lin et al., Deep gradient compression (2018); Karimireddy et al., Error feedback fixes SignSGD (2019);
Vogels, Karimireddy, Jaggi: PowerSGD (2019).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from paceline.collectives._buffers import Array
from paceline.comm import Channel
from paceline.comm.operations import Operation
from paceline.errors import UsageError, unknown
from paceline.vectors import carried

Work = Callable[[], None]
Total = Callable[[Array, Any], Work]
"""A function that prepares the sum of an array over the ranks, in place, with an operation."""
NAMES = ("bfloat16", "float16", "topk", "powersgd")
# Elements that are converted at a time, so that they stay in the inner cache.
AT_ONCE = 16 << 10
LARGEST = np.float32(65504)  # of float16


class MatrixPiece(NamedTuple):
    """Rows of a matrix in a part of a gradient, counted from the start of the part."""

    start: int
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        """The end of the rows."""
        return self.start + self.rows * self.columns


class Compression(ABC):
    """A way to send a gradient in fewer bytes."""

    remembers = False
    """True if what was not sent is added to the next gradient."""
    gathers = False
    """True if every rank gets the messages of all others, instead of their sum."""

    @abstractmethod
    def sums(self, length: int, pieces: Sequence[MatrixPiece], item: int) -> list[tuple[int, int]]:
        """Return the length and bytes per number of each array that is summed or gathered for a part of a gradient."""

    @abstractmethod
    def prepare(
        self,
        values: Array,
        pieces: Sequence[MatrixPiece],
        lane: Channel,
        total: Total,
        memory: Array,
        basis: Array,
    ) -> Work:
        """Return a function that replaces `values` by their sum over the ranks of `lane`.

        `memory`: as long as the values, what was not sent so far (if `remembers`); `basis`: see `basis_length`.
        """

    def basis_length(self, pieces: Sequence[MatrixPiece]) -> int:
        """Return the numbers that all ranks remember in common."""
        return 0


def parse_compression(text: str, *, samples: int = 1) -> Compression | None:
    """Return the compression called `text`; None if it is "none". `samples`: in a global batch.

    >>> parse_compression("topk:share=0.001")
    TopK(share=0.001)
    >>> parse_compression("powersgd").rank
    4
    >>> parse_compression("zip")
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown compression 'zip'; choose one of none, bfloat16, float16, topk, powersgd
    """
    name, _, option = text.partition(":")
    if name not in ("none", *NAMES):
        raise unknown("compression", name, ["none", *NAMES])
    key = {"topk": "share", "powersgd": "rank"}.get(name)
    given, equals, value = option.partition("=")
    if option and (key is None or given != key or not equals):
        takes = f"takes {name}:{key}=…" if key else "takes no options"
        raise UsageError(f"compress={name} {takes}; got {text!r}")
    if name == "topk":
        share = _number(text, value or "0.01", float)
        if not 0 < share <= 1:
            raise UsageError(f"share of compress=topk must be above 0 and at most 1; got {value}")
        return TopK(share)
    if name == "powersgd":
        rank = _number(text, value or "4", int)
        if not rank > 0:
            raise UsageError(f"rank of compress=powersgd must be at least 1; got {value}")
        return PowerSgd(rank)
    if name == "float16":  # sums over samples, which grow with the batch, would leave its range
        return Short(name, 2.0 ** -math.ceil(math.log2(max(samples, 1))))
    return Short(name) if name == "bfloat16" else None


def make_room(lane: Channel, count: int, dtype: DTypeLike) -> Array:
    """Return memory for messages; in time-only simulation, zeros if messages carry their contents."""
    made = lane.room(count, dtype)
    if lane.time_only and carried(made.dtype.kind, made.nbytes):
        made[...] = 0
    return made


def _number(text: str, value: str, kind: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        what = "a number" if kind is float else "a whole number"
        raise UsageError(f"compress={text} needs {what}; got {value!r}") from None


# ---- 2 bytes for each number


class Format(NamedTuple):
    """A format of 2 bytes: numbers times a factor, rounded to the nearest; back again; and sums, computed in float32."""

    narrow: Callable[[Array, Any, Array], None]
    widen: Callable[[Array, Any, Array], None]
    add: Callable[[Array, Array, Array], None]


def make_format(name: str) -> Format:
    """Return the format called bfloat16 or float16: in PyTorch if it is loaded, which is five times as fast.

    Both ways have the same bits.

    >>> values, short = np.array([1, 1 / 3, -1e-3, np.inf, np.nan], np.float32), np.empty(5, np.uint16)
    >>> for name in ("bfloat16", "float16"):
    ...     made = make_format(name)
    ...     made.narrow(values, np.float32(1), short)
    ...     made.widen(short, np.float32(1), values)
    ...     values
    array([ 1.0000000e+00,  3.3398438e-01, -9.9945068e-04,            inf,
                      nan], dtype=float32)
    array([ 1.0000000e+00,  3.3398438e-01, -9.9945068e-04,  6.5504000e+04,
                      nan], dtype=float32)
    """
    plain = _make_numpy_format(*NUMPY[name])
    return plain if "torch" not in sys.modules else _make_torch_format(sys.modules["torch"], name, plain)


def _to_brain(wide: Array, short: Array) -> None:
    bits = wide.view(np.uint32)
    odd = bits >> np.uint32(16)
    odd &= np.uint32(1)
    odd += np.uint32(0x7FFF)
    odd += bits  # half of the last place that is kept, or a little less: ties go to even numbers
    odd >>= np.uint32(16)
    short[...] = odd
    lost = np.isnan(wide)
    if lost.any():
        short[lost] = 0x7FC0  # adding may have carried into the sign


def _from_brain(short: Array, wide: Array) -> None:
    bits = wide.view(np.uint32)
    bits[...] = short
    bits <<= np.uint32(16)


def _to_half(wide: Array, short: Array) -> None:
    short.view(np.float16)[...] = np.clip(wide, -LARGEST, LARGEST)


def _from_half(short: Array, wide: Array) -> None:
    wide[...] = short.view(np.float16)


Convert = Callable[[Array, Array], None]
NUMPY: dict[str, tuple[Convert, Convert]] = {
    "bfloat16": (_to_brain, _from_brain),
    "float16": (_to_half, _from_half),
}


def _make_numpy_format(to_short: Convert, from_short: Convert) -> Format:
    first, second = np.empty(AT_ONCE, np.float32), np.empty(AT_ONCE, np.float32)

    def parts(array: Array) -> Iterator[tuple[slice, Array, Array]]:
        for start in range(0, array.size, AT_ONCE):
            size = min(AT_ONCE, array.size - start)
            yield slice(start, start + size), first[:size], second[:size]

    def narrow(values: Array, factor: Any, short: Array) -> None:
        for part, wide, _ in parts(short):
            np.multiply(values[part], factor, out=wide, casting="same_kind")
            to_short(wide, short[part])

    def widen(short: Array, factor: Any, values: Array) -> None:
        for part, wide, _ in parts(short):
            from_short(short[part], wide)
            np.multiply(wide, factor, out=values[part])

    def add(a: Array, b: Array, out: Array) -> None:
        for part, wide, other in parts(out):
            from_short(a[part], wide)
            from_short(b[part], other)
            wide += other
            to_short(wide, out[part])

    return Format(narrow, widen, add)


def _make_torch_format(torch: Any, name: str, plain: Format) -> Format:
    kind = getattr(torch, name)

    def see(short: Array) -> Any:
        return torch.from_numpy(short.view(np.int16)).view(kind)

    def limit(short: Any) -> None:
        if kind == torch.float16:
            short.clamp_(-float(LARGEST), float(LARGEST))

    def narrow(values: Array, factor: Any, short: Array) -> None:
        seen, wide = see(short), torch.from_numpy(values)
        seen.copy_(wide if factor == 1 else wide * float(factor))
        limit(seen)

    def widen(short: Array, factor: Any, values: Array) -> None:
        wide = torch.from_numpy(values)
        wide.copy_(see(short))
        if factor != 1:
            wide *= float(factor)

    def add(a: Array, b: Array, out: Array) -> None:
        if not (a.flags.writeable and b.flags.writeable):  # PyTorch takes no read-only memory
            plain.add(a, b, out)
            return
        seen = see(out)
        torch.add(see(a), see(b), out=seen)
        limit(seen)

    return Format(narrow, widen, add)


class Short(Compression):
    """Each number in 2 bytes. Sums are computed in float32 and rounded whenever they are sent on."""

    def __init__(self, name: str, scale: float = 1.0) -> None:
        self._name, self._scale = name, np.float32(scale)

    def sums(self, length: int, pieces: Sequence[MatrixPiece], item: int) -> list[tuple[int, int]]:
        return [(length, 2)]

    def prepare(
        self,
        values: Array,
        pieces: Sequence[MatrixPiece],
        lane: Channel,
        total: Total,
        memory: Array,
        basis: Array,
    ) -> Work:
        made = make_format(self._name)
        scale, back = self._scale, np.float32(1 / self._scale)
        if lane.time_only:  # only the number of bytes matters
            short = make_room(lane, values.size, np.float16)
            add_up = total(short, np.add)
        else:
            short = np.empty(values.size, np.uint16)
            add_up = total(short, Operation(made.add, None))

        def work() -> None:
            lane.charge("copy", values.nbytes)
            if not lane.time_only:
                made.narrow(values, scale, short)
            add_up()
            lane.charge("copy", values.nbytes)
            if not lane.time_only:
                made.widen(short, back, values)

        return work


# ---- the largest entries


@dataclass(frozen=True)
class TopK(Compression):
    """The entries that are largest in absolute value, each with its place, from every rank to every other."""

    share: float
    remembers = True
    gathers = True

    def count(self, length: int) -> int:
        """Return how many of `length` entries are sent.

        >>> TopK(0.01).count(1000), TopK(0.01).count(3)
        (10, 1)
        """
        return min(length, max(1, round(self.share * length)))

    def sums(self, length: int, pieces: Sequence[MatrixPiece], item: int) -> list[tuple[int, int]]:
        return [(self.count(length), 4 + item)]

    def prepare(
        self,
        values: Array,
        pieces: Sequence[MatrixPiece],
        lane: Channel,
        total: Total,
        memory: Array,
        basis: Array,
    ) -> Work:
        count, r, p = self.count(values.size), lane.rank, lane.size
        nbytes = count * (4 + values.itemsize)
        if lane.time_only:
            messages = make_room(lane, p * (nbytes // 4), np.float32).reshape(p, -1)
        else:
            messages = np.empty((p, nbytes), np.uint8)

        def places(message: Array) -> Array:
            return message[: 4 * count].view(np.int32)

        def entries(message: Array) -> Array:
            return message[4 * count :].view(values.dtype)

        def work() -> None:
            lane.charge("copy", 2 * values.nbytes)
            if not lane.time_only:
                memory[...] += values
                largest = np.argpartition(np.abs(memory), values.size - count)[values.size - count :]
                largest.sort()
                places(messages[r])[...] = largest
                entries(messages[r])[...] = memory[largest]
                memory[largest] = 0
            for k in range(p - 1):  # around a ring
                mine, other = (r - k) % p, (r - k - 1) % p
                sending = lane.Isend(messages[mine], (r + 1) % p)
                receiving = lane.Irecv(messages[other], (r - 1) % p)
                receiving.Wait()
                sending.Wait()
            lane.charge("combine", p * nbytes)
            if not lane.time_only:
                values[...] = 0
                for message in messages:  # in the same order on every rank
                    values[places(message)] += entries(message)

        return work


# ---- products of thin matrices


@dataclass(frozen=True)
class PowerSgd(Compression):
    """Each matrix M as P Q^T, with P and Q of `rank` columns, by one step of the power iteration.

    P <- sum over i of M_i Q; orthonormalise P; Q <- sum over i of M_i^T P; the sum of M_i is about P Q^T. What rank i
    did not send is M_i - P P^T M_i. Entries that are in no matrix, and matrices too thin for it, are sent as they are.
    """

    rank: int
    remembers = True

    def thin(self, pieces: Sequence[MatrixPiece]) -> list[MatrixPiece]:
        """Return the matrices that are sent as products."""
        return [p for p in pieces if self.rank * (p.rows + p.columns) < p.rows * p.columns]

    def basis_length(self, pieces: Sequence[MatrixPiece]) -> int:
        return sum(self.rank * piece.columns for piece in self.thin(pieces))

    def sums(self, length: int, pieces: Sequence[MatrixPiece], item: int) -> list[tuple[int, int]]:
        thin = self.thin(pieces)
        whole = length - sum(p.rows * p.columns for p in thin)
        first = whole + sum(self.rank * p.rows for p in thin)
        return [(first, item), (self.basis_length(pieces), item)] if thin else [(first, item)]

    def prepare(
        self,
        values: Array,
        pieces: Sequence[MatrixPiece],
        lane: Channel,
        total: Total,
        memory: Array,
        basis: Array,
    ) -> Work:
        thin, rank = self.thin(pieces), self.rank
        sizes = [size for size, _ in self.sums(values.size, pieces, values.itemsize)]
        first = make_room(lane, sizes[0], values.dtype)
        add_first = total(first, np.add)
        add_second = total(basis, np.add) if thin else None
        rest, at = [], 0
        for piece in [*thin, MatrixPiece(values.size, 0, 0)]:
            rest.append(slice(at, piece.start))
            at = piece.stop
        ps, qs, at, column = [], [], 0, 0
        for piece in thin:
            ps.append(first[at : at + rank * piece.rows].reshape(piece.rows, rank))
            qs.append(basis[column : column + rank * piece.columns].reshape(piece.columns, rank))
            at, column = at + rank * piece.rows, column + rank * piece.columns
        tail, start = first[at:], at

        def matrices(of: Array) -> list[Array]:
            return [of[p.start : p.stop].reshape(p.rows, p.columns) for p in thin]

        def work() -> None:
            computed = not lane.time_only
            lane.charge("copy", 4 * values.nbytes)
            if computed:
                memory[...] += values
                for m, p, q in zip(matrices(memory), ps, qs, strict=True):
                    np.matmul(m, q, out=p)  #                               P <- M_i Q
                np.concatenate([memory[part] for part in rest], out=tail)
            add_first()  #                                                  P <- sum over i
            if computed:
                for part in rest:
                    memory[part] = 0
                for m, p, q in zip(matrices(memory), ps, qs, strict=True):
                    p[...] = np.linalg.qr(p)[0]
                    np.matmul(m.T, p, out=q)  #                             Q <- M_i^T P
                    m -= p @ q.T  #                                         what is not sent
            if add_second is not None:
                add_second()  #                                             Q <- sum over i
            if computed:
                for m, p, q in zip(matrices(values), ps, qs, strict=True):
                    np.matmul(p, q.T, out=m)  #                             M <- P Q^T
                at = start
                for part in rest:
                    size = part.stop - part.start
                    values[part] = first[at : at + size]
                    at += size

        return work


def find_pieces(matrices: Sequence[tuple[int, tuple[int, int]]], part: slice) -> list[MatrixPiece]:
    """Return the whole rows of the matrices that lie in a part of a flat vector.

    `matrices`: where each begins, and its shape.

    >>> find_pieces([(0, (4, 3)), (15, (2, 2))], slice(2, 17))
    [MatrixPiece(start=1, rows=3, columns=3), MatrixPiece(start=13, rows=1, columns=2)]
    """
    found = []
    for begin, (rows, columns) in matrices:
        first = max(0, -(-(part.start - begin) // columns))
        last = min(rows, (part.stop - begin) // columns)
        if last > first:
            found.append(MatrixPiece(begin + first * columns - part.start, last - first, columns))
    return found
