"""The buffers of messages: arrays, anything with Python's buffer interface, mpi4py's lists; and datatypes.

array                                  the whole array
[array, count], [array, type]          the first `count` elements, of this type
[array, count, type]
[array, counts, displacements, type]   for the calls whose name ends in v: see `blocks`
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

# Each type of number, whatever C calls it: its kind and size, as NumPy writes them.
KINDS = {
    **{letter: np.dtype(letter).str[1:] for letter in "bBhHiIlLqQefdg?"},
    "c": "u1",
    "F": "c8",
    "D": "c16",
    "G": np.dtype("G").str[1:],
    "p": "i8",
    "Zf": "c8",
    "Zd": "c16",
    "Zg": np.dtype("G").str[1:],
}


def kind_of(code: str) -> str:
    """Return the type of a buffer's elements, from its format.

    >>> kind_of("l") == kind_of("q"), kind_of("f"), kind_of("<f")
    (True, 'f4', 'f4')
    """
    found = KINDS.get(code)
    return found if found is not None else KINDS.get(code.lstrip("@=<>!"), code)


def memory_of(given: Any) -> tuple[memoryview, str]:
    """Return the contiguous memory of a message's buffer and the type of its elements.

    >>> view, kind = memory_of([np.arange(6.0), 2])
    >>> view.nbytes, kind
    (16, 'f8')
    """
    if given.__class__ is not np.ndarray and (given is None or isinstance(given, (list, tuple))):
        return _of_list(given)
    view: memoryview = memoryview(given)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise ValueError("a message's buffer must be contiguous")
    return view, KINDS.get(view.format) or kind_of(view.format)


def write_bytes(view: memoryview, data: bytes, start: int = 0) -> None:
    """Write bytes into memory, starting at byte `start`."""
    if not data:
        return
    try:
        view.cast("B")[start : start + len(data)] = data
    except TypeError:  # complex numbers and records, which a memoryview cannot cast
        _as_bytes(view)[start : start + len(data)] = np.frombuffer(data, np.uint8)


def _as_bytes(view: memoryview) -> NDArray[np.uint8]:
    return np.asarray(view).reshape(-1).view(np.uint8) if view.nbytes else np.empty(0, np.uint8)


def unpack_spec(given: Any) -> tuple[Any, Any, Any, Any]:
    """Return the data, count, displacement and type of one of mpi4py's lists; None for what is missing.

    >>> unpack_spec(["data", 3, "d"]), unpack_spec(["data", (3, 1), "d"])
    (('data', 3, None, 'd'), ('data', 3, 1, 'd'))
    """
    data, *rest = given
    datatype = rest.pop() if rest and (_is_type(rest[-1]) or len(rest) == 3) else None
    if len(rest) == 1 and isinstance(rest[0], tuple):
        rest = list(rest[0])
    if len(rest) > 2:
        raise ValueError(f"a message's buffer is [array, count, type]; got {len(given)} items: {given[1:]}")
    return data, rest[0] if rest else None, rest[1] if len(rest) > 1 else None, datatype


def _of_list(given: Any) -> tuple[memoryview, str]:
    """Return the memory of a buffer that is given as one of mpi4py's lists."""
    if given is None:
        return memoryview(b""), "u1"
    data, count, start, datatype = unpack_spec(given)
    whole = memoryview(data) if data is not None else memoryview(b"")
    if not whole.c_contiguous:
        raise ValueError("a message's buffer must be contiguous")
    kind, size = kind_of(whole.format), whole.itemsize
    if datatype is not None:
        kind, size = type_of(datatype)
    if not all(isinstance(number, (int, np.integer, NoneType)) for number in (count, start)):
        raise ValueError(f"a message's buffer is [array, count, type]; got {len(given)} items: {given[1:]}")
    first = int(start or 0) * size
    nbytes = max(whole.nbytes - first, 0) if count is None else int(count) * size
    if first < 0 or nbytes < 0 or first + nbytes > whole.nbytes:
        raise ValueError(f"{nbytes} bytes from byte {first} on exceed the buffer of {whole.nbytes} bytes")
    flat: Any = _as_bytes(whole)[first : first + nbytes] if nbytes else np.empty(0, np.uint8)
    return memoryview(flat), kind


def _is_type(thing: Any) -> bool:
    return isinstance(thing, str) or hasattr(thing, "Get_size")


def type_of(datatype: Any) -> tuple[str, int]:
    """Return the kind and size of an element of an MPI datatype, or of one of NumPy's type letters.

    >>> type_of("d")
    ('f8', 8)
    """
    if isinstance(datatype, str):
        return kind_of(datatype), np.dtype(datatype).itemsize
    letter = getattr(datatype, "typechar", None)
    size = int(datatype.Get_size())
    if letter and letter in KINDS:
        return KINDS[letter], size
    return ("u1" if size == 1 else f"V{size}"), size


@lru_cache(maxsize=64)
def poison(nbytes: int) -> bytes:
    """Return the bytes that fill a buffer during a receive: floats read too early are NaN."""
    return b"\xff" * nbytes


def blocks(given: Any, members: int, *, writing: bool) -> tuple[list[slice], NDArray[np.uint8], str]:
    """Return the part of a buffer for each of `members` ranks, in bytes, the bytes, and the type of the elements.

    >>> parts, data, kind = blocks([np.zeros(6), [1, 2, 3]], 3, writing=True)
    >>> [part.stop - part.start for part in parts], kind
    ([8, 16, 24], 'f8')
    """
    data, *rest = given if isinstance(given, (list, tuple)) else (given,)
    whole = memoryview(data)
    if not whole.c_contiguous:
        raise ValueError("a message's buffer must be contiguous")
    if writing and whole.readonly:
        raise ValueError("a message cannot be received into a read-only buffer")
    kind, size = kind_of(whole.format), whole.itemsize
    if rest and _is_type(rest[-1]):
        kind, size = type_of(rest.pop())
    counts: Any = rest[0] if rest else None
    offsets: Any = rest[1] if len(rest) > 1 else None
    if isinstance(counts, tuple) and len(counts) == 2 and not isinstance(counts[0], (int, np.integer)):
        counts, offsets = counts
    if counts is None:
        each, more = divmod(whole.nbytes // size, members)
        counts = [each + (rank < more) for rank in range(members)]
    elif isinstance(counts, (int, np.integer)):
        counts = [int(counts)] * members
    counts = [int(length) for length in counts]
    if offsets is None:
        offsets = _sums(counts)
    parts = [
        slice(int(at) * size, (int(at) + length) * size) for at, length in zip(offsets, counts, strict=True)
    ]
    if len(parts) != members or any(part.stop > whole.nbytes or part.start < 0 for part in parts):
        raise ValueError(
            f"counts {counts} at {list(offsets)} do not fit {members} ranks and {whole.nbytes} bytes"
        )
    return parts, _as_bytes(whole), kind


def _sums(counts: Sequence[int]) -> list[int]:
    found, total = [], 0
    for length in counts:
        found.append(total)
        total += length
    return found


class BufferMemory:
    """The bytes of a buffer, not copied; `kind` is the type of its elements."""

    __slots__ = ("kind", "nbytes", "view")

    def __init__(self, given: Any, *, writing: bool) -> None:
        self.view, self.kind = memory_of(given)
        self.nbytes = self.view.nbytes
        if writing and self.view.readonly:
            raise ValueError("a result cannot be put into a read-only buffer")

    def read(self) -> bytes:
        """Return a copy of the bytes."""
        return self.view.tobytes()

    def flat(self) -> NDArray[np.uint8]:
        """Return the bytes as an array, without copying them."""
        return np.asarray(self.view).reshape(-1).view(np.uint8) if self.nbytes else np.empty(0, np.uint8)

    def write(self, data: Any) -> None:
        """Write bytes to the start of the memory; None writes nothing."""
        if data is not None:
            write_bytes(self.view, data)


class InPlaceType(int):
    """The type of IN_PLACE: the values are already in the buffer for the result."""

    def __repr__(self) -> str:
        return "IN_PLACE"


IN_PLACE = InPlaceType(-1)


def is_in_place(given: Any) -> bool:
    """Return True if this is IN_PLACE, the simulator's or mpi4py's.

    >>> is_in_place(IN_PLACE), is_in_place(-1)
    (True, False)
    """
    return type(given).__name__ == "InPlaceType"


def equal_blocks(given: Any, members: int, *, writing: bool) -> BufferMemory:
    """Return the memory of a buffer with one block of equal length for each rank; a given count is that of a block.

    >>> equal_blocks([np.zeros(6), 2], 3, writing=True).nbytes
    48
    """
    if isinstance(given, (list, tuple)):
        data, count, start, datatype = unpack_spec(given)
        given = [data, None if count is None else int(count) * members, start, datatype]
    memory = BufferMemory(given, writing=writing)
    if memory.nbytes % members:
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
    found = BufferMemory(whole.flat()[number * each : (number + 1) * each], writing=False)
    found.kind = whole.kind
    return found


# MPI's datatypes by NumPy's type letters, as in mpi4py on a 64-bit system.
LETTERS = {
    "c": "CHAR",
    "b": "SIGNED_CHAR INT8_T SINT8_T INTEGER1",
    "B": "BYTE UNSIGNED_CHAR UINT8_T PACKED",
    "h": "SHORT SIGNED_SHORT INT16_T SINT16_T INTEGER2",
    "H": "UNSIGNED_SHORT UINT16_T",
    "i": "INT SIGNED_INT INT32_T SINT32_T INTEGER INTEGER4 F_INT",
    "I": "UNSIGNED UNSIGNED_INT UINT32_T",
    "l": "LONG SIGNED_LONG INT64_T SINT64_T INTEGER8",
    "L": "UNSIGNED_LONG UINT64_T",
    "q": "LONG_LONG SIGNED_LONG_LONG",
    "Q": "UNSIGNED_LONG_LONG",
    "p": "AINT COUNT OFFSET",
    "?": "C_BOOL CXX_BOOL BOOL LOGICAL1",
    "e": "FLOAT16_T",
    "f": "FLOAT FLOAT32_T REAL REAL4 F_FLOAT",
    "d": "DOUBLE FLOAT64_T DOUBLE_PRECISION REAL8 F_DOUBLE",
    "g": "LONG_DOUBLE",
    "F": "C_FLOAT_COMPLEX C_COMPLEX COMPLEX COMPLEX8 F_COMPLEX",
    "D": "C_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16 F_DOUBLE_COMPLEX",
    "G": "C_LONG_DOUBLE_COMPLEX",
}


class Datatype:
    """MPI's description of the elements of a buffer: a number, or several in a row.

    >>> DOUBLE = make_datatypes()["DOUBLE"]
    >>> three = DOUBLE.Create_contiguous(3).Commit()
    >>> DOUBLE.Get_size(), three.Get_size(), three.Get_extent(), DOUBLE.typechar
    (8, 24, (0, 24), 'd')
    """

    __slots__ = ("_predefined", "name", "size", "typechar")

    def __init__(self, name: str, typechar: str, size: int, predefined: bool = True) -> None:
        self.name, self.typechar, self.size, self._predefined = name, typechar, size, predefined

    def Get_size(self) -> int:
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        return 0, self.size

    def Get_name(self) -> str:
        return self.name

    def Set_name(self, name: str) -> None:
        self.name = name

    @property
    def extent(self) -> int:
        return self.size

    @property
    def is_predefined(self) -> bool:
        return self._predefined

    def Create_contiguous(self, count: int) -> Datatype:
        return Datatype("", self.typechar, self.size * count, predefined=False)

    def Dup(self) -> Datatype:
        return Datatype(self.name, self.typechar, self.size, predefined=False)

    Create_dup = Dup

    def Create_vector(self, *arguments: object) -> NoReturn:
        raise NotImplementedError(
            "the simulator has only contiguous datatypes; copy the elements into an array"
        )

    Create_hvector = Create_indexed = Create_hindexed = Create_struct = Create_subarray = Create_vector
    Create_resized = Create_darray = Create_indexed_block = Create_vector

    def Commit(self) -> Datatype:
        return self

    def Free(self) -> None:
        self.size = 0

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Return the datatype of a NumPy type."""
        letter = np.dtype(code).char
        found = next((made for made in make_datatypes().values() if made.typechar == letter), None)
        if found is None:
            raise ValueError(f"no MPI datatype is {code!r}")
        return found

    def tocode(self) -> str:
        return self.typechar

    def __bool__(self) -> bool:
        return bool(self.typechar)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Datatype) and (self.typechar, self.size) == (other.typechar, other.size)

    def __hash__(self) -> int:
        return hash((self.typechar, self.size))

    def __repr__(self) -> str:
        return f"<MPI datatype {self.name or self.typechar}>"


def make_datatypes() -> dict[str, Datatype]:
    """Return MPI's datatypes, by name."""
    return {
        name: Datatype(f"MPI_{name}", letter, 8 if letter == "p" else np.dtype(letter).itemsize)
        for letter, names in LETTERS.items()
        for name in names.split()
    }
