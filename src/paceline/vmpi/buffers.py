"""The buffers of messages: arrays, anything with Python's buffer interface, and mpi4py's lists.

array                                  the whole array
[array, count], [array, type]          the first `count` elements, of this type
[array, count, type]
[array, (count, displacement), type]   from the element with this number on
[array, counts, displacements, type]   for the calls whose name ends in v: see `RankParts`
[array, counts, bytes, types]          for the calls whose name ends in w

Elements that are not next to each other in memory are packed into a message, and unpacked by its receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.vmpi.datatypes import KINDS, Datatype, Layout, find_letter, kind_of, named_layout
from paceline.vmpi.errors import ReadOnly
from paceline.vmpi.memory import BottomType, as_bytes, is_bottom, memory_at, raw_memory


def memory_of(given: Any) -> tuple[memoryview, str]:
    """Return the contiguous memory of a message's buffer and the type of its elements.

    >>> view, kind = memory_of([np.arange(6.0), 2])
    >>> view.nbytes, kind
    (16, 'f8')
    """
    if given.__class__ is not np.ndarray and (given is None or isinstance(given, (list, tuple))):
        elements = Elements(given)
        return elements.packed(), elements.layout.kind
    try:
        view: memoryview = memoryview(given)  # type: ignore[arg-type]
    except (TypeError, BufferError):
        view = raw_memory(given)
    if not view.c_contiguous:
        view = raw_memory(given)
    return view, KINDS.get(view.format) or kind_of(view.format)


# Arrays of these types need no memoryview, which takes longer than all else about a short message.
ARRAY: Any = np.ndarray
ARRAY_KINDS = {np.dtype(letter): memory_of(np.empty(0, letter))[1] for letter in "?bBhHiIlLqQfdFD"}


def write_bytes(view: memoryview, data: bytes, start: int = 0) -> None:
    """Write bytes into memory, starting at byte `start`."""
    if not data:
        return
    try:
        (view if view.format == "B" and view.ndim == 1 else view.cast("B"))[start : start + len(data)] = data
    except TypeError:  # complex numbers and records, which a memoryview cannot cast
        as_bytes(view)[start : start + len(data)] = np.frombuffer(data, np.uint8)


def unpack_spec(given: Any) -> tuple[Any, Any, Any, Any]:
    """Return the data, count, displacement and type of one of mpi4py's lists; None for what is missing.

    >>> unpack_spec(["data", 3, "d"]), unpack_spec(["data", (3, 1), "d"])
    (('data', 3, None, 'd'), ('data', 3, 1, 'd'))
    """
    if not 1 <= len(given) <= 4:
        raise ValueError(f"a message's buffer is [array, count, type]; got {len(given)} items: {given[1:]}")
    if len(given) == 4:
        return tuple(given)
    count = datatype = None
    if len(given) == 3:
        data, count, datatype = given
    elif len(given) == 1:
        data = given[0]
    elif _is_type(given[1]):
        data, datatype = given
    else:
        data, count = given
    if isinstance(count, tuple) and len(count) == 2:
        return data, *count, datatype
    return data, count, None, datatype


def _is_type(thing: Any) -> bool:
    return isinstance(thing, str) or hasattr(thing, "Get_size")


def type_of(datatype: Any) -> tuple[str, int]:
    """Return the kind and size of an element of an MPI datatype, or of one of NumPy's type letters.

    >>> type_of("d")
    ('f8', 8)
    """
    layout = layout_of(datatype)
    return layout.kind, layout.size


def layout_of(datatype: Any) -> Layout:
    """Return the layout of an MPI datatype, the simulator's or mpi4py's, or of one of NumPy's type letters."""
    if isinstance(datatype, Datatype):
        if datatype.layout is None:
            raise ValueError("a message cannot consist of elements of the null datatype")
        return datatype.layout
    if isinstance(datatype, str):
        found = find_letter(datatype)
        if found is None:
            raise KeyError(datatype)
        return found._used()
    if not hasattr(datatype, "Get_size"):
        raise TypeError(f"expected a datatype; got {type(datatype).__name__}")
    return _foreign(getattr(datatype, "typechar", "") or "", int(datatype.Get_size()))


@lru_cache(maxsize=256)
def _foreign(letter: str, size: int) -> Layout:
    """Return the layout of a datatype of the real mpi4py."""
    kind = KINDS.get(letter) or ("u1" if size == 1 else f"V{size}")
    return named_layout("", letter, size, kind)


@lru_cache(maxsize=256)
def _plain(code: str, itemsize: int) -> Layout:
    """Return the layout of the elements of a buffer, from its format."""
    found = find_letter(code) if code in KINDS else None
    if found is not None:
        return found._used()
    return named_layout("", "", itemsize, kind_of(code))


@lru_cache(maxsize=64)
def poison(nbytes: int) -> bytes:
    """Return the bytes that fill a buffer during a receive: floats read too early are NaN."""
    return b"\xff" * nbytes


class Elements:
    """Elements of a datatype in a buffer: what one rank sends or receives.

    >>> some = Elements([np.arange(6.0), (2, 3)])
    >>> some.nbytes, some.packed().tobytes() == np.array([3.0, 4.0]).tobytes()
    (16, True)
    """

    __slots__ = ("count", "layout", "nbytes", "start", "view")

    def __init__(self, given: Any, blocks: int = 1) -> None:
        """Read one of mpi4py's lists. With `blocks`, a given count is that of one of as many blocks."""
        data, count, displacement, datatype = (
            unpack_spec(given) if isinstance(given, (list, tuple)) else (given, None, None, None)
        )
        self.view = view = raw_memory(data)
        whole = view.nbytes
        self.layout = layout = _plain(view.format, view.itemsize) if datatype is None else layout_of(datatype)
        extent = layout.extent
        at = 0 if displacement is None else _whole("displacement", displacement)
        if at < 0:
            raise ValueError(f"a displacement must be at least 0; got {at}")
        if at and (is_bottom(data) or extent <= 0):
            raise ValueError(f"a displacement of {at} elements needs a buffer and elements of known extent")
        self.start = at * extent
        if self.start > whole:
            raise ValueError(f"element {at} is behind the end of the buffer of {whole} bytes")
        if count is None:
            if extent <= 0:
                if whole:
                    raise ValueError(f"the number of elements of extent {extent} in a buffer is unknown")
                self.count = 0
            else:
                self.count, rest = divmod(whole - self.start, extent)
                if rest:
                    raise ValueError(
                        f"a buffer of {whole} bytes is not a number of elements of {extent} bytes"
                    )
            if self.count % blocks:
                raise ValueError(f"{self.count} elements cannot be cut into {blocks} equal blocks")
        else:
            self.count = _whole("count", count) * blocks
            if self.count < 0:
                raise ValueError(f"a count must be at least 0; got {self.count}")
            if isinstance(data, BottomType):
                self.view, base = _at_bottom([(layout, self.start, self.count)])
                self.start -= base
                whole = self.view.nbytes
            _check_fits(layout, self.start, self.count, whole)
        self.nbytes = self.count * layout.size

    @property
    def dense(self) -> bool:
        """True if the elements are next to each other in memory."""
        return self.layout.dense

    def packed(self) -> memoryview:
        """Return the bytes of the elements: the memory itself if it has no gaps, else a copy."""
        if not self.nbytes:
            return memoryview(b"") if self.view.readonly else memoryview(bytearray())
        if not self.start and self.nbytes == self.view.nbytes and self.layout.dense:
            return self.view
        found = memoryview(self.layout.pack(as_bytes(self.view), self.start, self.count))  # type: ignore[arg-type]
        return found.toreadonly() if self.view.readonly else found

    def write(self, data: Any) -> None:
        """Write the bytes of a message to the elements."""
        if data is not None and len(data):
            self.layout.unpack(data, as_bytes(self.view), self.start, self.count)


def _at_bottom(parts: Sequence[tuple[Layout, int, int]]) -> tuple[memoryview, int]:
    """Return the memory of elements that are given by their addresses, and the address where it begins."""
    used = [(each, start, count) for each, start, count in parts if count and each.size]
    if not used:
        return memoryview(bytearray()), 0
    spans = [(start + min(0, (count - 1) * each.extent), each.true_bounds) for each, start, count in used]
    ends = [start + max(0, (count - 1) * each.extent) + each.true_bounds[1] for each, start, count in used]
    lowest = min(at + low for at, (low, _) in spans)
    return raw_memory(memory_at(lowest, max(ends) - lowest)), lowest


def _check_fits(layout: Layout, start: int, count: int, whole: int) -> None:
    if not count or not layout.size:
        return
    end = start + (count - 1) * max(layout.extent, 0) + layout.true_bounds[1]
    if layout.dense:
        end = start + count * layout.size
    if end > whole:
        raise ValueError(f"{count} elements from byte {start} on exceed the buffer of {whole} bytes")


def _whole(name: str, number: Any) -> int:
    try:
        return number.__index__()  # type: ignore[no-any-return]
    except AttributeError:
        raise TypeError(f"a {name} must be a whole number; got {number!r}") from None


class BufferMemory:
    """The bytes of a buffer, not copied if they have no gaps; `kind` is the type of its elements."""

    __slots__ = ("elements", "itemsize", "kind", "nbytes", "view")

    def __init__(self, given: Any, *, writing: bool, blocks: int = 1) -> None:
        self.elements: Elements | None = None
        if given.__class__ is np.ndarray and blocks == 1:
            self.view, self.kind = memory_of(given)
            self.itemsize = self.view.itemsize
        else:
            elements = Elements(given, blocks)
            self.view, self.kind, self.itemsize = (
                elements.packed(),
                elements.layout.kind,
                elements.layout.size,
            )
            if not elements.dense:
                self.elements = elements
        self.nbytes = self.view.nbytes
        if writing and self.nbytes and (self.elements or self).view.readonly:
            raise ReadOnly("a result cannot be put into a read-only buffer")

    @classmethod
    def of_bytes(cls, memory: NDArray[np.uint8]) -> BufferMemory:
        """Return the memory of an array of bytes."""
        found = cls.__new__(cls)
        found.elements, found.view, found.kind, found.itemsize = None, memoryview(memory), "u1", 1  # type: ignore[arg-type]
        found.nbytes = memory.nbytes
        return found

    def read(self) -> bytes:
        """Return a copy of the bytes."""
        return self.view.tobytes()

    def flat(self) -> NDArray[np.uint8]:
        """Return the bytes as an array, without copying them."""
        return as_bytes(self.view)

    def write(self, data: Any) -> None:
        """Write bytes to the start of the memory; None writes nothing."""
        if data is None:
            return
        if self.elements is not None:
            self.elements.write(data)
        else:
            write_bytes(self.view, data)


def equal_blocks(given: Any, members: int, *, writing: bool) -> BufferMemory:
    """Return the memory of a buffer with one block of equal length for each rank; a given count is that of a block.

    >>> equal_blocks([np.zeros(6), 2], 3, writing=True).nbytes
    48
    """
    memory = BufferMemory(given, writing=writing, blocks=members)
    if members and memory.nbytes % members:
        raise ValueError(f"{memory.nbytes} bytes cannot be cut into {members} equal blocks")
    return memory


def block(whole: BufferMemory, number: int, members: int) -> BufferMemory:
    """Return one of the equal blocks of a buffer, without copying it.

    >>> block(BufferMemory(np.arange(6.0), writing=True), 1, 3).view.tobytes() == np.array([2.0, 3.0]).tobytes()
    True
    """
    each, more = divmod(whole.nbytes, members)
    if more:
        raise ValueError(f"{whole.nbytes} bytes cannot be cut into {members} equal blocks")
    found = BufferMemory.of_bytes(whole.flat()[number * each : (number + 1) * each])
    found.kind, found.itemsize = whole.kind, whole.itemsize
    return found


class RankParts:
    """A buffer with a part for every rank, of any length and at any place.

    >>> parts = RankParts([np.zeros(6), [1, 2, 3]], 3, writing=True)
    >>> parts.lengths(), parts.kinds[0]
    ([8, 16, 24], 'f8')
    """

    __slots__ = ("_layouts", "_places", "data", "kinds", "memory", "slices")

    def __init__(self, given: Any, members: int, *, writing: bool, types: bool = False) -> None:
        """Read one of mpi4py's lists; with `types`, every part has its own type, and places are in bytes."""
        data, counts, offsets, layouts = _split_w(given) if types else _split_v(given)
        if types and is_bottom(data) and (counts is None or offsets is None):
            raise ValueError("without a buffer, counts and displacements must be given")
        if is_bottom(data) and counts is None:
            counts = [0] * members
        whole = raw_memory(data)
        if writing and whole.readonly and whole.nbytes:
            raise ReadOnly("a message cannot be received into a read-only buffer")
        if not types:
            one = _plain(whole.format, whole.itemsize) if layouts is None else layout_of(layouts)
            units, chosen = one.extent, [one] * members
        else:
            units, chosen = 1, [layout_of(each) for each in layouts]
        if (
            types and counts is None and offsets is None
        ):  # mpi4py's default: one element each, all at the start
            counts, offsets = [1] * members, [0] * members
        if counts is None:
            counts = _share(whole.nbytes, chosen, members)
        elif not isinstance(counts, (list, tuple)) and np.ndim(counts) == 0:
            counts = [_whole("count", counts)] * members
        counts = [_whole("count", count) for count in counts]
        if offsets is None:
            lengths = (
                counts if not types else [n * each.extent for n, each in zip(counts, chosen, strict=True)]
            )
            offsets = _sums(lengths)
        elif not isinstance(offsets, (list, tuple)) and np.ndim(offsets) == 0:
            offsets = [_whole("displacement", offsets) * rank for rank in range(members)]
        if not len(counts) == len(offsets) == len(chosen) == members:
            raise ValueError(
                f"counts {counts} at {list(offsets)} do not fit {members} ranks and {whole.nbytes} bytes"
            )
        self._layouts = chosen
        self._places = [
            (_whole("displacement", at) * units, count) for at, count in zip(offsets, counts, strict=True)
        ]
        self.kinds = [each.kind for each in chosen]
        if isinstance(data, BottomType):
            whole, base = _at_bottom([(each, *at) for each, at in zip(chosen, self._places, strict=True)])
            self._places = [(start - base, count) for start, count in self._places]
        self.data = as_bytes(whole)
        dense = True
        for (start, count), each in zip(self._places, chosen, strict=True):
            if count < 0 or (start < 0 and not isinstance(data, BottomType)):
                raise ValueError(f"counts {counts} at {list(offsets)} must not be negative")
            if not each.dense:
                dense = False
            try:
                _check_fits(each, start, count, whole.nbytes)
            except ValueError:
                raise ValueError(
                    f"counts {counts} at {list(offsets)} do not fit {members} ranks and {whole.nbytes} bytes"
                ) from None
        if dense:
            packed = self.data
            self.slices = [
                slice(start, start + count * each.size)
                for (start, count), each in zip(self._places, chosen, strict=True)
            ]
        else:
            pieces = [
                each.pack(self.data, start, count)
                for (start, count), each in zip(self._places, chosen, strict=True)
            ]
            packed = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
            stops = np.cumsum([piece.nbytes for piece in pieces]).tolist()
            self.slices = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        self.memory = BufferMemory.of_bytes(packed)

    @property
    def kind(self) -> str:
        """The type of the elements, which all parts have in common."""
        return self.kinds[0] if self.kinds else "u1"

    def lengths(self) -> list[int]:
        return [each.stop - each.start for each in self.slices]

    def of(self, rank: int) -> BufferMemory:
        """Return the part of one rank, without copying it."""
        found = BufferMemory.of_bytes(self.memory.flat()[self.slices[rank]])
        found.kind = self.kinds[rank]
        return found

    def take(self, rows: Any) -> None:
        """Write every rank's bytes into its part."""
        if rows is None:
            return
        view = memoryview(self.data)  # type: ignore[arg-type]
        for (start, count), layout, row in zip(self._places, self._layouts, rows, strict=True):
            if row.__class__ is bytes and layout.dense:
                view[start : start + len(row)] = row
            elif row is not None and len(row):
                layout.unpack(row, self.data, start, count)


def _split_v(given: Any) -> tuple[Any, Any, Any, Any]:
    data, *rest = given if isinstance(given, (list, tuple)) else (given,)
    datatype = rest.pop() if rest and (_is_type(rest[-1]) or len(rest) == 3) else None
    if datatype is None and len(rest) == 2 and rest[-1] is None:
        rest.pop()
    counts: Any = rest[0] if rest else None
    offsets: Any = rest[1] if len(rest) > 1 else None
    if isinstance(counts, tuple) and len(counts) == 2:
        counts, offsets = counts
    if len(rest) > 2:
        raise ValueError(
            f"a message's buffer is [array, counts, displacements, type]; got {len(given)} items"
        )
    return data, counts, offsets, datatype


def _split_w(given: Any) -> tuple[Any, Any, Any, Any]:
    if not isinstance(given, (list, tuple)) or not 2 <= len(given) <= 4:
        raise ValueError("a message's buffer is [array, counts, displacements, types]")
    data, *rest = given
    types = rest.pop()
    pair = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) and len(rest[0]) == 2 else None
    if pair is not None and (pair[0] is None or np.ndim(pair[0])):
        rest = list(pair)
    return data, rest[0] if rest else None, rest[1] if len(rest) > 1 else None, types


def _share(nbytes: int, layouts: list[Layout], members: int) -> list[int]:
    extent = layouts[0].extent if layouts else 1
    if nbytes and extent <= 0:
        raise ValueError(f"the number of elements of extent {extent} in a buffer is unknown")
    items, rest = divmod(nbytes, extent) if nbytes else (0, 0)
    if rest:
        raise ValueError(f"a buffer of {nbytes} bytes is not a number of elements of {extent} bytes")
    each, more = divmod(items, members) if members else (0, 0)
    return [each + (rank < more) for rank in range(members)]


def _sums(counts: Sequence[int]) -> list[int]:
    found, total = [], 0
    for length in counts:
        found.append(total)
        total += length
    return found
