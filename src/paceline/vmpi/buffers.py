"""The buffers of messages: arrays, anything with Python's buffer interface, mpi4py's lists, and the datatypes in them.

array                                  the whole array
[array, count], [array, type]          the first `count` elements, of this type
[array, count, type]
[array, (count, displacement), type]   from the element with this number on
[array, counts, displacements, type]   for the calls whose name ends in v: see `RankParts`
[array, counts, bytes, types]          for the calls whose name ends in w

A datatype is MPI's description of the elements of a buffer, predefined or built from others. An element is a list of
runs of bytes, at offsets from the start of the element; the next element begins `extent` bytes later. A message carries
only the runs, one after the other (`pack`, `unpack`), and costs what they weigh; its receiver unpacks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.vmpi import constants as c
from paceline.vmpi.errors import ReadOnly, mpi_error
from paceline.vmpi.handles import Attributes, constants
from paceline.vmpi.memory import BottomType, as_bytes, check_byte_order, is_bottom, memory_at, raw_memory

# ---- datatypes

# Each type of number, whatever C calls it: its kind and size, as NumPy writes them.
KINDS = {
    **{letter: np.dtype(letter).str[1:] for letter in "bBhHiIlLqQefdg?"},
    "c": "u1",
    "s": "u1",
    "F": "c8",
    "D": "c16",
    "G": np.dtype("G").str[1:],
    "p": "i8",
    "U": "u4",
    "u": "u4",
    "w": "u4",
    "Zf": "c8",
    "Zd": "c16",
    "Zg": np.dtype("G").str[1:],
}

# MPI's datatypes by NumPy's type letters, as in mpi4py on a 64-bit system.
LETTERS = {
    "c": "CHAR CHARACTER",
    "b": "SIGNED_CHAR INT8_T SINT8_T INTEGER1",
    "B": "UNSIGNED_CHAR BYTE UINT8_T PACKED",
    "h": "SHORT SIGNED_SHORT INT16_T SINT16_T INTEGER2 LOGICAL2",
    "H": "UNSIGNED_SHORT UINT16_T",
    "i": "INT SIGNED_INT INT32_T SINT32_T INTEGER INTEGER4 F_INT LOGICAL LOGICAL4 F_BOOL",
    "I": "UNSIGNED UNSIGNED_INT UINT32_T",
    "l": "LONG SIGNED_LONG INT64_T SINT64_T INTEGER8 LOGICAL8",
    "L": "UNSIGNED_LONG UINT64_T",
    "q": "LONG_LONG SIGNED_LONG_LONG",
    "Q": "UNSIGNED_LONG_LONG",
    "p": "AINT COUNT OFFSET",
    "U": "WCHAR",
    "?": "C_BOOL CXX_BOOL BOOL LOGICAL1",
    "e": "FLOAT16_T REAL2",
    "f": "FLOAT FLOAT32_T REAL REAL4 F_FLOAT",
    "d": "DOUBLE FLOAT64_T DOUBLE_PRECISION REAL8 F_DOUBLE",
    "g": "LONG_DOUBLE REAL16",
    "F": "C_FLOAT_COMPLEX C_COMPLEX COMPLEX COMPLEX8 F_COMPLEX CXX_FLOAT_COMPLEX F_FLOAT_COMPLEX",
    "D": "C_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16 F_DOUBLE_COMPLEX CXX_DOUBLE_COMPLEX",
    "G": "C_LONG_DOUBLE_COMPLEX COMPLEX32 CXX_LONG_DOUBLE_COMPLEX",
}
# The same type under several names: one object in mpi4py too.
ALIASES = {
    "SIGNED_SHORT": "SHORT", "SIGNED_INT": "INT", "SIGNED_LONG": "LONG", "SIGNED_LONG_LONG": "LONG_LONG",
    "UNSIGNED_INT": "UNSIGNED", "BOOL": "C_BOOL", "C_COMPLEX": "C_FLOAT_COMPLEX", "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T", "SINT32_T": "INT32_T", "SINT64_T": "INT64_T", "F_INT": "INTEGER", "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION", "F_COMPLEX": "COMPLEX", "F_FLOAT_COMPLEX": "COMPLEX", "F_BOOL": "LOGICAL",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}  # fmt: skip
# A value and the place where it was found, for MAXLOC and MINLOC.
PAIRS = {
    "SHORT_INT": "h", "INT_INT": "i", "LONG_INT": "l", "FLOAT_INT": "f", "DOUBLE_INT": "d", "LONG_DOUBLE_INT": "g",
}  # fmt: skip
ABSENT = ("BFLOAT16_T", "LOGICAL16", "INTEGER16", "COMPLEX4")
"""Types that neither NumPy nor this simulator has: null, as in an MPI without them."""

Run = tuple[int, int, str]
"""The offset of some bytes in an element, their number, and the kind of number that they are."""


COMMITTED = (
    c.COMBINER_NAMED, c.COMBINER_VALUE_INDEX, c.COMBINER_F90_INTEGER, c.COMBINER_F90_REAL, c.COMBINER_F90_COMPLEX,
)  # fmt: skip
"""How datatypes are made that messages may consist of without a call of `Commit`."""


class Layout:
    """What one element of a datatype looks like in memory, and how the datatype was built."""

    def __init__(self, combiner: int, base: Layout | None = None, **how: Any) -> None:
        self.combiner, self.base, self.how = combiner, base, how
        self.name = ""
        self.constant: str | None = None
        self.letter = ""
        self.attributes: dict[int, Any] = {}
        self.committed = combiner in COMMITTED

    # ---- what it consists of

    def blocks(self) -> Iterator[tuple[int, int, Layout]]:
        """Yield the offset, the number of elements and their layout, for each part that the datatype is built from."""
        how, base = self.how, self.base
        combiner = self.combiner
        if combiner in (c.COMBINER_STRUCT, c.COMBINER_VALUE_INDEX):
            yield from zip(how["at"], how["blocklengths"], how["layouts"], strict=True)
            return
        assert base is not None
        if combiner in (c.COMBINER_DUP, c.COMBINER_RESIZED, c.COMBINER_F90_INTEGER, c.COMBINER_F90_REAL,
                        c.COMBINER_F90_COMPLEX):  # fmt: skip
            yield 0, 1, base
        elif combiner == c.COMBINER_CONTIGUOUS:
            yield 0, how["count"], base
        elif combiner in (c.COMBINER_VECTOR, c.COMBINER_HVECTOR):
            unit = base.extent if combiner == c.COMBINER_VECTOR else 1
            for number in range(how["count"]):
                yield number * how["stride"] * unit, how["blocklength"], base
        elif combiner in (c.COMBINER_SUBARRAY, c.COMBINER_DARRAY):
            for place in how["places"]():
                yield place * base.extent, 1, base
        else:
            unit = 1 if combiner in (c.COMBINER_HINDEXED, c.COMBINER_HINDEXED_BLOCK) else base.extent
            lengths = how.get("blocklengths") or [how["blocklength"]] * len(how["displacements"])
            for at, length in zip(how["displacements"], lengths, strict=True):
                yield at * unit, length, base

    @cached_property
    def runs(self) -> list[Run]:
        """The bytes of an element, in the order in which a message carries them."""
        if self.combiner == c.COMBINER_NAMED:
            return [(0, self.how["size"], self.how["kind"])]
        found: list[Run] = []
        for at, count, base in self.blocks():
            inner = base.runs
            if len(inner) == 1 and inner[0][1] == base.extent:
                inner = [(inner[0][0], inner[0][1] * count, inner[0][2])] if count else []
                count = 1
            for number in range(count):
                for offset, length, kind in inner:
                    start = at + number * base.extent + offset
                    if found and found[-1][0] + found[-1][1] == start and found[-1][2] == kind:
                        found[-1] = (found[-1][0], found[-1][1] + length, kind)
                    elif length:
                        found.append((start, length, kind))
        return found

    # ---- sizes

    @cached_property
    def size(self) -> int:
        if self.combiner == c.COMBINER_NAMED:
            return int(self.how["size"])
        if self.combiner in (c.COMBINER_SUBARRAY, c.COMBINER_DARRAY):
            assert self.base is not None
            return int(self.how["elements"]() * self.base.size)
        return sum(count * base.size for _, count, base in self.blocks())

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lower and the upper bound of an element."""
        if self.combiner == c.COMBINER_NAMED:
            return 0, int(self.how["size"])
        if self.combiner == c.COMBINER_RESIZED:
            return self.how["lb"], self.how["lb"] + self.how["extent"]
        if self.combiner in (c.COMBINER_SUBARRAY, c.COMBINER_DARRAY):
            assert self.base is not None
            whole = self.how["sizes"] if self.combiner == c.COMBINER_SUBARRAY else self.how["gsizes"]
            return 0, prod(whole) * self.base.extent
        lower: list[int] = []
        upper: list[int] = []
        for at, count, base in self.blocks():
            if count:
                last = (count - 1) * base.extent
                lower.append(at + base.bounds[0] + min(0, last))
                upper.append(at + base.bounds[1] + max(0, last))
        if not lower:
            return 0, 0
        lb, ub = min(lower), max(upper)
        if self.combiner in (
            c.COMBINER_STRUCT,
            c.COMBINER_VALUE_INDEX,
        ):  # padded as a C compiler pads a struct
            ub += -(ub - lb) % self.alignment
        return lb, ub

    @cached_property
    def alignment(self) -> int:
        if self.combiner == c.COMBINER_NAMED:
            kind = self.how["kind"]
            return int(self.how["size"]) if kind[0] == "V" else np.dtype(kind).alignment
        return max((base.alignment for _, count, base in self.blocks() if count), default=1)

    @cached_property
    def extent(self) -> int:
        return self.bounds[1] - self.bounds[0]

    @cached_property
    def true_bounds(self) -> tuple[int, int]:
        runs = self.runs
        return min((at for at, *_ in runs), default=0), max(
            (at + length for at, length, _ in runs), default=0
        )

    @cached_property
    def kind(self) -> str:
        """The kind of number that the elements consist of; of mixed elements, their size in bytes."""
        kinds = {kind for *_, kind in self.runs}
        return kinds.pop() if len(kinds) == 1 else f"V{self.size}"

    @cached_property
    def dense(self) -> bool:
        """True if elements follow each other in memory without gaps, so that nothing has to be packed."""
        if self.combiner == c.COMBINER_NAMED:
            return True
        return self.bounds == (0, self.size) and [run[:2] for run in self.runs] in ([(0, self.size)], [])

    # ---- packing

    @cached_property
    def _index(self) -> tuple[int, NDArray[np.int64]]:
        """The size of a unit of memory, and the units of an element in the order in which a message carries them."""
        unit = gcd(*(number for at, length, _ in self.runs for number in (at, length)), self.extent) or 1
        pieces = [np.arange(at // unit, (at + length) // unit) for at, length, _ in self.runs]
        return unit, np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _places(
        self, memory: NDArray[np.uint8], start: int, count: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return memory in units, and which of them belong to `count` elements from byte `start` on."""
        unit, index = self._index
        lowest = start + self.true_bounds[0] + min(0, (count - 1) * self.extent)
        highest = start + max((count - 1) * self.extent, 0) + self.true_bounds[1]
        if self.size and count and (lowest < 0 or highest > memory.nbytes):
            raise ValueError(
                f"{count} elements from byte {start} on need bytes {lowest} to {highest}; "
                f"the buffer has {memory.nbytes}"
            )
        base = lowest % unit if self.size and count else 0
        whole = memory[base : base + (memory.nbytes - base) // unit * unit].view(f"V{unit}")
        steps = np.arange(count) * (self.extent // unit) + (start - base) // unit
        return whole, (steps[:, None] + index[None, :]).reshape(-1)

    def pack(self, memory: NDArray[np.uint8], start: int, count: int) -> NDArray[np.uint8]:
        """Return the bytes that a message of `count` elements carries, from byte `start` of a buffer on."""
        if not count or not self.size:
            return np.empty(0, np.uint8)
        if self.dense:
            return memory[start : start + count * self.size]
        whole, places = self._places(memory, start, count)
        return whole[places].view(np.uint8)

    def unpack(self, data: Any, memory: NDArray[np.uint8], start: int, count: int) -> None:
        """Write the bytes of a message to the elements of a buffer; a short message fills the first of them."""
        packed = np.frombuffer(data, np.uint8)
        if not packed.nbytes or not self.size:
            return
        if self.dense:
            memory[start : start + packed.nbytes] = packed
            return
        whole, places = self._places(memory, start, count)
        unit = self._index[0]
        whole[places[: packed.nbytes // unit]] = packed[: packed.nbytes // unit * unit].view(f"V{unit}")


def named_layout(name: str, letter: str, size: int, kind: str) -> Layout:
    """Return the layout of one of MPI's own datatypes."""
    found = Layout(c.COMBINER_NAMED, size=size, kind=kind)
    found.name, found.constant, found.letter = f"MPI_{name}", name, letter
    return found


class Datatype(Attributes):
    """MPI's description of the elements of a buffer: a number, or several at fixed distances.

    >>> from paceline.vmpi.MPI import DOUBLE
    >>> column = DOUBLE.Create_vector(3, 1, 4).Commit()
    >>> column.Get_size(), column.Get_extent(), column.decode()[1:]
    (24, (0, 72), ('VECTOR', {'count': 3, 'blocklength': 1, 'stride': 4}))
    """

    __slots__ = ("__weakref__", "layout")
    layout: Layout | None

    def __init__(self, datatype: Datatype | None = None) -> None:
        if datatype is not None and not isinstance(datatype, Datatype):
            raise TypeError(f"expected a datatype; got {type(datatype).__name__}")
        self.layout = None if datatype is None else datatype.layout

    @classmethod
    def _of(cls, layout: Layout) -> Datatype:
        found = cls()
        found.layout = layout
        return found

    def _unwrap(self) -> Layout:
        """Return the layout, or raise if the datatype is null."""
        if self.layout is None:
            raise mpi_error("ERR_TYPE", "the null datatype has no elements")
        return self.layout

    def _get_attributes(self) -> dict[int, Any]:
        return self._unwrap().attributes

    def __bool__(self) -> bool:
        return self.layout is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Datatype) and self.layout is other.layout

    def __hash__(self) -> int:
        return hash(id(self.layout))

    def __repr__(self) -> str:
        return f"<MPI datatype {self.Get_name() or self.typestr}>"

    def __reduce__(self) -> Any:
        layout = self.layout
        if layout is not None and layout.combiner != c.COMBINER_NAMED:
            base, combiner, how = self.decode()
            return _rebuild, (type(self), base, combiner, how)
        return super().__reduce__()

    # ---- sizes

    def Get_size(self) -> int:
        return self._unwrap().size

    def Get_extent(self) -> tuple[int, int]:
        lb, ub = self._unwrap().bounds
        return lb, ub - lb

    def Get_true_extent(self) -> tuple[int, int]:
        lb, ub = self._unwrap().true_bounds
        return lb, ub - lb

    size = property(Get_size)
    extent = property(lambda self: self.Get_extent()[1])
    lb = property(lambda self: self.Get_extent()[0])
    ub = property(lambda self: sum(self.Get_extent()))
    true_extent = property(lambda self: self.Get_true_extent()[1])
    true_lb = property(lambda self: self.Get_true_extent()[0])
    true_ub = property(lambda self: sum(self.Get_true_extent()))

    # ---- names

    def Get_name(self) -> str:
        return "MPI_DATATYPE_NULL" if self.layout is None else self.layout.name

    def Set_name(self, name: str) -> None:
        self._unwrap().name = name

    name = property(Get_name, Set_name)

    @property
    def typechar(self) -> str:
        """NumPy's letter for the type; V for one that it has no letter for."""
        return "" if self.layout is None else _letter(self.layout) or "V"

    @property
    def typestr(self) -> str:
        if self.layout is None:
            return ""
        letter = _letter(self.layout)
        return _typestr(letter) if letter else f"V{self.layout.extent}"

    def tocode(self) -> str:
        letter = "" if self.layout is None else _letter(self.layout)
        if not letter:
            raise ValueError(f"NumPy has no type that is {self.Get_name() or 'a derived datatype'}")
        return letter

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Return the datatype of a NumPy type, given by its letter or its name without the byte order."""
        found = CODES.get(code)
        if found is None:
            raise ValueError(f"no MPI datatype is called {code!r}")
        return found

    # ---- building

    def _build(self, combiner: int, **how: Any) -> Datatype:
        return type(self)._of(Layout(combiner, self._unwrap(), **how))

    def Dup(self) -> Datatype:
        found = self._build(c.COMBINER_DUP)
        found._unwrap().committed = self._unwrap().committed
        self._copy_all(found)
        return found

    def Create_dup(self) -> Datatype:
        return self.Dup()

    def Create_contiguous(self, count: int) -> Datatype:
        return self._build(c.COMBINER_CONTIGUOUS, count=_count(count))

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        return self._build(
            c.COMBINER_VECTOR,
            count=_count(count),
            blocklength=_count(blocklength, "ERR_ARG"),
            stride=int(stride),
        )

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        return self._build(
            c.COMBINER_HVECTOR,
            count=_count(count),
            blocklength=_count(blocklength, "ERR_ARG"),
            stride=int(stride),
        )

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        return self._build(c.COMBINER_INDEXED, **_list_blocks(blocklengths, displacements))

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        return self._build(c.COMBINER_HINDEXED, **_list_blocks(blocklengths, displacements))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        return self._build(
            c.COMBINER_INDEXED_BLOCK,
            blocklength=_count(blocklength, "ERR_ARG"),
            displacements=_numbers(displacements),
        )

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        return self._build(
            c.COMBINER_HINDEXED_BLOCK,
            blocklength=_count(blocklength, "ERR_ARG"),
            displacements=_numbers(displacements),
        )

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        if not len(blocklengths) == len(displacements) == len(datatypes):
            raise ValueError(
                f"a struct needs as many lengths as displacements and types; got {len(blocklengths)}, "
                f"{len(displacements)} and {len(datatypes)}"
            )
        return cls._of(
            Layout(
                c.COMBINER_STRUCT, blocklengths=_numbers(blocklengths), at=_numbers(displacements),
                layouts=[each._unwrap() for each in datatypes],
            )
        )  # fmt: skip

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = c.ORDER_C
    ) -> Datatype:
        sizes, subsizes, starts = _numbers(sizes), _numbers(subsizes), _numbers(starts)
        if not len(sizes) == len(subsizes) == len(starts):
            raise ValueError(
                f"a subarray of {len(sizes)} dimensions needs as many subsizes and starts; got {len(subsizes)} "
                f"and {len(starts)}"
            )
        for size, subsize, start in zip(sizes, subsizes, starts, strict=True):
            if subsize < 1 or start < 0 or start + subsize > size:
                raise mpi_error("ERR_ARG", f"{subsize} elements from {start} on are not within {size}")

        def places() -> Iterator[int]:
            axes = [range(start, start + subsize) for start, subsize in zip(starts, subsizes, strict=True)]
            return _iterate(sizes, axes, order)

        return self._build(
            c.COMBINER_SUBARRAY, sizes=sizes, subsizes=subsizes, starts=starts, order=order, places=places,
            elements=lambda: prod(subsizes),
        )  # fmt: skip

    def Create_darray(
        self, size: int, rank: int, gsizes: Sequence[int], distribs: Sequence[int], dargs: Sequence[int],
        psizes: Sequence[int], order: int = c.ORDER_C,
    ) -> Datatype:  # fmt: skip
        gsizes, psizes = _numbers(gsizes), _numbers(psizes)
        distribs, dargs = _numbers(distribs), _numbers(dargs)
        if prod(psizes) != size or not 0 <= rank < size:
            raise mpi_error("ERR_ARG", f"rank {rank} is not in a grid {psizes} of {size} ranks")
        coordinates = np.unravel_index(rank, psizes)
        axes = [
            _distribute(*each)
            for each in zip(gsizes, distribs, dargs, psizes, map(int, coordinates), strict=True)
        ]
        return self._build(
            c.COMBINER_DARRAY, size=int(size), rank=int(rank), gsizes=gsizes, distribs=distribs, dargs=dargs,
            psizes=psizes, order=order, places=lambda: _iterate(gsizes, axes, order),
            elements=lambda: prod(map(len, axes)),
        )  # fmt: skip

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        return self._build(c.COMBINER_RESIZED, lb=int(lb), extent=int(extent))

    Resized = Create_resized

    @classmethod
    def Create_f90_integer(cls, r: int) -> Datatype:
        name = "INTEGER1" if r <= 2 else "INTEGER2" if r <= 4 else "INTEGER4" if r <= 9 else "INTEGER8"
        return _f90(cls, c.COMBINER_F90_INTEGER, name, r=r)

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> Datatype:
        return _f90(cls, c.COMBINER_F90_REAL, "REAL4" if p <= 6 and r <= 37 else "REAL8", p=p, r=r)

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> Datatype:
        return _f90(cls, c.COMBINER_F90_COMPLEX, "COMPLEX8" if p <= 6 and r <= 37 else "COMPLEX16", p=p, r=r)

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Datatype:
        word = {
            c.TYPECLASS_INTEGER: "INTEGER", c.TYPECLASS_REAL: "REAL", c.TYPECLASS_COMPLEX: "COMPLEX",
            c.TYPECLASS_LOGICAL: "LOGICAL",
        }.get(typeclass)  # fmt: skip
        found: Datatype | None = constants.get(f"{word}{size}")
        if not found:
            raise mpi_error("ERR_ARG", f"there is no {word} of {size} bytes")
        return found

    @classmethod
    def Get_value_index(cls, value: Datatype, index: Datatype) -> Datatype:
        """Return the type of a value followed by an index; null if there is none."""
        if not value or not index:
            raise mpi_error("ERR_TYPE", "a pair needs two datatypes; got a null one")
        first, second = value._unwrap(), index._unwrap()
        if second.kind[0] not in "iu":
            return cls()
        if second.constant == "INT":
            for name, letter in PAIRS.items():
                found: Datatype = constants[name]
                if first is CODES[letter]._unwrap():
                    return found
        return cls._of(_pair(first, second))

    def Commit(self) -> Datatype:
        self._unwrap().committed = True
        return self

    def Free(self) -> None:
        layout = self._unwrap()
        if layout.combiner == c.COMBINER_NAMED:
            raise mpi_error("ERR_TYPE", f"{layout.name} is predefined and cannot be freed")
        self._delete_all()
        self.layout = None

    # ---- how it was built

    @property
    def combiner(self) -> int:
        return self._unwrap().combiner

    @property
    def is_named(self) -> bool:
        return self.layout is None or self.layout.combiner == c.COMBINER_NAMED

    @property
    def is_predefined(self) -> bool:
        return self.is_named or self.combiner in (
            c.COMBINER_F90_INTEGER, c.COMBINER_F90_REAL, c.COMBINER_F90_COMPLEX,
        )  # fmt: skip

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        numbers, addresses, counts, types = self._contents()
        return len(numbers), len(addresses), len(counts), len(types), self.combiner

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        if self.is_named:
            raise mpi_error("ERR_TYPE", f"{self.Get_name()} was not built from other datatypes")
        return self._contents()

    envelope = property(Get_envelope)
    contents = property(Get_contents)

    def _contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        layout = self._unwrap()
        how, combiner = layout.how, layout.combiner
        based = [] if layout.base is None else [find_datatype(layout.base)]
        if combiner == c.COMBINER_NAMED:
            return [], [], [], []
        if combiner == c.COMBINER_DUP:
            return [], [], [], based
        if combiner == c.COMBINER_RESIZED:
            return [], [how["lb"], how["extent"]], [], based
        if combiner == c.COMBINER_HVECTOR:
            return [how["count"], how["blocklength"]], [how["stride"]], [], based
        if combiner in (c.COMBINER_HINDEXED, c.COMBINER_HINDEXED_BLOCK):
            lengths = how.get("blocklengths") or [how["blocklength"]]
            return [len(how["displacements"]), *lengths], how["displacements"], [], based
        if combiner == c.COMBINER_STRUCT:
            return (
                [len(how["at"]), *how["blocklengths"]], how["at"], [], [find_datatype(each) for each in how["layouts"]],
            )  # fmt: skip
        if combiner == c.COMBINER_VALUE_INDEX:
            return [], [], [], [find_datatype(each) for each in how["layouts"]]
        if combiner in (c.COMBINER_F90_INTEGER, c.COMBINER_F90_REAL, c.COMBINER_F90_COMPLEX):
            return list(how.values()), [], [], []
        if combiner == c.COMBINER_SUBARRAY:
            numbers = [len(how["sizes"]), *how["sizes"], *how["subsizes"], *how["starts"], how["order"]]
        elif combiner == c.COMBINER_DARRAY:
            grid = (*how["gsizes"], *how["distribs"], *how["dargs"], *how["psizes"])
            numbers = [how["size"], how["rank"], len(how["gsizes"]), *grid, how["order"]]
        elif "displacements" in how:
            lengths = how.get("blocklengths") or [how["blocklength"]]
            numbers = [len(how["displacements"]), *lengths, *how["displacements"]]
        else:
            numbers = list(how.values())
        return numbers, [], [], based

    def decode(self) -> tuple[Datatype, str, dict[str, Any]]:
        """Return the datatype that this one was built from, how, and the arguments of the call that did."""
        layout = self._unwrap()
        if layout.combiner == c.COMBINER_NAMED:
            return self, "NAMED", {}
        how = {
            name: list(value) if isinstance(value, list) else value
            for name, value in layout.how.items()
            if not callable(value) and name not in ("at", "layouts")
        }
        if layout.combiner == c.COMBINER_STRUCT:
            how |= {"displacements": list(layout.how["at"])}
            how |= {"datatypes": [find_datatype(each) for each in layout.how["layouts"]]}
        elif layout.combiner == c.COMBINER_VALUE_INDEX:
            how = dict(zip(("value", "index"), map(find_datatype, layout.how["layouts"]), strict=True))
        free = layout.combiner in (
            c.COMBINER_F90_INTEGER, c.COMBINER_F90_REAL, c.COMBINER_F90_COMPLEX,
        )  # fmt: skip
        base = constants["DATATYPE_NULL"] if free or layout.base is None else find_datatype(layout.base)
        return base, _COMBINERS[layout.combiner], how

    # ---- packing

    def Pack_size(self, count: int, comm: Any) -> int:
        return count * self.Get_size()

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Append the elements of `inbuf` to `outbuf` at byte `position`, and return the position behind them."""
        return self._pack(inbuf, outbuf, position, swap=False)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        return self._unpack(inbuf, position, outbuf, swap=False)

    def Pack_external_size(self, datarep: str, count: int) -> int:
        _check_representation(datarep)
        return count * self.Get_size()

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Pack with the most significant byte first, as MPI's representation external32 wants it."""
        _check_representation(datarep)
        return self._pack(inbuf, outbuf, position, swap=True)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        _check_representation(datarep)
        return self._unpack(inbuf, position, outbuf, swap=True)

    def _pack(self, inbuf: Any, outbuf: Any, position: int, swap: bool) -> int:
        from_bytes, into = raw_bytes(inbuf), raw_bytes(outbuf, writing=True)
        packed = committed_layout(self).pack(from_bytes, 0, self._elements(from_bytes.nbytes))
        if swap:
            packed = self._swap(packed)
        end = position + packed.nbytes
        if position < 0 or end > into.nbytes:
            raise mpi_error("ERR_TRUNCATE", f"{packed.nbytes} bytes at {position} exceed {into.nbytes}")
        into[position:end] = packed
        return end

    def _unpack(self, inbuf: Any, position: int, outbuf: Any, swap: bool) -> int:
        given, into = raw_bytes(inbuf), raw_bytes(outbuf, writing=True)
        count = self._elements(into.nbytes)
        end = position + count * self.Get_size()
        if position < 0 or end > given.nbytes:
            raise mpi_error("ERR_TRUNCATE", f"{end - position} bytes at {position} exceed {given.nbytes}")
        data = given[position:end]
        committed_layout(self).unpack(self._swap(data) if swap else data, into, 0, count)
        return end

    def _elements(self, nbytes: int) -> int:
        extent = self._unwrap().extent
        if extent <= 0:
            raise ValueError(f"the number of elements of extent {extent} is unknown")
        return nbytes // extent

    def _swap(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Reverse the order of the bytes of each number."""
        found, at = packed.copy(), 0
        while at < found.nbytes:
            for _, length, kind in self._unwrap().runs:
                part = found[at : at + length]
                if kind[0] != "V" and np.dtype(kind).itemsize > 1:
                    part.view(kind).byteswap(inplace=True)
                at += length
        return found


_COMBINERS = {
    getattr(c, name): name.removeprefix("COMBINER_") for name in vars(c) if name.startswith("COMBINER_")
}


def _count(number: Any, kind: str = "ERR_COUNT") -> int:
    found = int(number)
    if found < 0:
        raise mpi_error(kind, f"a count must be at least 0; got {found}")
    return found


def _numbers(given: Sequence[int]) -> list[int]:
    return [int(number) for number in given]


def _list_blocks(blocklengths: Any, displacements: Sequence[int]) -> dict[str, list[int]]:
    at = _numbers(displacements)
    lengths = [int(blocklengths)] * len(at) if np.ndim(blocklengths) == 0 else _numbers(blocklengths)
    for length in lengths:
        _count(length, "ERR_ARG")
    if len(lengths) != len(at):
        raise ValueError(f"{len(at)} displacements need as many lengths; got {len(lengths)}")
    return {"blocklengths": lengths, "displacements": at}


def _iterate(sizes: list[int], axes: Sequence[Sequence[int]], order: int) -> Iterator[int]:
    """Yield the numbers of the elements of an array whose coordinates are on these axes, in memory order."""
    found = np.zeros(1, np.int64)
    pairs = list(zip(sizes, axes, strict=True))
    for size, axis in pairs if order == c.ORDER_C else reversed(pairs):
        found = (found[:, None] * size + np.array(axis, np.int64)[None, :]).reshape(-1)
    return iter(found.tolist())


def _distribute(size: int, how: int, argument: int, ranks: int, me: int) -> list[int]:
    """Return the coordinates that one rank has of an axis of an array that is distributed."""
    if how == c.DISTRIBUTE_NONE or ranks == 1:
        return list(range(size))
    if how == c.DISTRIBUTE_BLOCK:
        each = -(-size // ranks) if argument == c.DISTRIBUTE_DFLT_DARG else argument
        if each * ranks < size:
            raise mpi_error("ERR_ARG", f"{ranks} blocks of {each} elements do not cover {size}")
        return list(range(min(me * each, size), min((me + 1) * each, size)))
    each = 1 if argument == c.DISTRIBUTE_DFLT_DARG else argument
    return [place for place in range(size) if place // each % ranks == me]


def _pair(value: Layout, index: Layout) -> Layout:
    at = -(-value.size // index.alignment) * index.alignment
    return Layout(c.COMBINER_VALUE_INDEX, blocklengths=[1, 1], at=[0, at], layouts=[value, index])


def _f90(cls: type[Datatype], combiner: int, name: str, **how: int) -> Datatype:
    return cls._of(Layout(combiner, constants[name]._unwrap(), **how))


def find_datatype(layout: Layout) -> Datatype:
    """Return the datatype of a layout; one of MPI's own is always the same object."""
    found = Datatype._of(layout) if layout.constant is None else constants[layout.constant]
    assert isinstance(found, Datatype)
    return found


def _rebuild(cls: type[Datatype], base: Datatype, combiner: str, how: dict[str, Any]) -> Datatype:
    """Build a datatype again from what `Datatype.decode` returned."""
    if combiner == "VALUE_INDEX":
        return cls.Get_value_index(**how)
    found: Datatype = getattr(cls(base), f"Create_{combiner.lower()}")(**how)
    return found.Commit()


def _letter(layout: Layout) -> str:
    while layout.combiner in (
        c.COMBINER_DUP,
        c.COMBINER_F90_INTEGER,
        c.COMBINER_F90_REAL,
        c.COMBINER_F90_COMPLEX,
    ):
        assert layout.base is not None
        layout = layout.base
    return layout.letter


def _typestr(letter: str) -> str:
    special = {"c": "S1", "U": "U1", "p": KINDS["p"]}
    return special.get(letter) or np.dtype(letter).str[1:]


def _check_representation(datarep: str) -> None:
    if datarep != "external32":
        raise mpi_error("ERR_ARG", f"the only external representation is external32; got {datarep!r}")


def raw_bytes(given: Any, *, writing: bool = False) -> NDArray[np.uint8]:
    """Return the bytes of a buffer, without copying them."""
    view = raw_memory(given)
    if writing and view.readonly:
        raise ReadOnly("nothing can be written into a read-only buffer")
    return as_bytes(view)


def kind_of(code: str) -> str:
    """Return the type of a buffer's elements, from its format; raise KeyError, as mpi4py does, if MPI has none like it.

    >>> kind_of("l") == kind_of("q"), kind_of("f"), kind_of("<f")
    (True, 'f4', 'f4')
    >>> kind_of("O")
    Traceback (most recent call last):
    KeyError: "no MPI datatype is like elements of format 'O'; send them with a derived datatype, or as Python objects"
    """
    found = KINDS.get(code)
    if found is not None:
        return found
    check_byte_order(code[:1])
    found = KINDS.get(code.lstrip("@=<>!").removeprefix("1"))
    if found is None:
        raise KeyError(
            f"no MPI datatype is like elements of format {code!r}; "
            "send them with a derived datatype, or as Python objects"
        )
    return found


def make_datatypes() -> dict[str, Datatype]:
    """Return MPI's datatypes, by name."""
    found: dict[str, Datatype] = {}
    for letter, names in LETTERS.items():
        size = np.dtype(KINDS[letter]).itemsize
        for name in names.split():
            if name not in ALIASES:
                found[name] = Datatype._of(named_layout(name, letter, size, KINDS[letter]))
    found |= {alias: found[name] for alias, name in ALIASES.items()}
    for name, letter in PAIRS.items():
        value = next(each for each in found.values() if each.typechar == letter)
        pair = _pair(value._unwrap(), found["INT"]._unwrap())
        layout = PairLayout(pair)
        layout.name, layout.constant = f"MPI_{name}", name
        found[name] = Datatype._of(layout)
    found["TWOINT"] = found["INT_INT"]
    found |= {name: Datatype() for name in (*ABSENT, "DATATYPE_NULL")}
    return found


class PairLayout(Layout):
    """One of MPI's own pairs of a value and an index."""

    def __init__(self, pair: Layout) -> None:
        super().__init__(c.COMBINER_NAMED, size=pair.size, kind=f"V{pair.size}")
        self.runs, self.bounds, self.alignment = pair.runs, pair.bounds, pair.alignment
        self.dense = pair.dense
        self.kind = ",".join(kind for *_, kind in pair.runs) if len(pair.runs) == 2 else "i4,i4"


DATATYPES: dict[str, Datatype] = make_datatypes()
constants.update(DATATYPES)


def _name_codes() -> dict[str, Datatype]:
    """Return mpi4py's codes of datatypes: NumPy's letters and names of types, and those of Python's buffers."""
    found = {letter: names.split()[0] for letter, names in LETTERS.items()}
    found |= {f"i{size}": f"INT{8 * size}_T" for size in (1, 2, 4, 8)}
    found |= {f"u{size}": f"UINT{8 * size}_T" for size in (1, 2, 4, 8)}
    found |= {_typestr(letter): found[letter] for letter in "?efdgFDG"}
    found |= {f"Z{letter.lower()}": found[letter] for letter in "FDG"}
    found |= dict.fromkeys(("S", "S1", "a", "s", "1s"), "CHAR")
    found |= dict.fromkeys(("U1", "w", "1w"), "WCHAR")
    found |= dict.fromkeys(("u", "1u"), "UINT16_T")
    found |= dict.fromkeys(("M", "M8", "m", "m8"), "INT64_T")
    found |= {"n": "COUNT", "N": "UNSIGNED_LONG", "P": "UNSIGNED_LONG"}
    return {code: DATATYPES[name] for code, name in found.items()}


CODES: dict[str, Datatype] = _name_codes()


# ---- buffers


def memory_of(given: Any) -> tuple[memoryview, str]:
    """Return the contiguous memory of a message's buffer and the type of its elements.

    >>> view, kind = memory_of([np.arange(6.0), 2])
    >>> view.nbytes, kind
    (16, 'f8')
    """
    if given.__class__ is not np.ndarray and (given is None or isinstance(given, (list, tuple))):
        elements = Elements(given)
        return elements.pack(), elements.layout.kind
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


def write_bytes(memory: Any, data: bytes | memoryview) -> None:
    """Write bytes to the start of contiguous memory, whatever its elements are."""
    if data.__class__ is bytes:
        if data:  # memory for nothing may be read-only
            BytesIO(data).readinto(memory)  # half the time of a memoryview that is cast
    elif nbytes := memoryview(data).nbytes:
        as_bytes(memory)[:nbytes] = np.frombuffer(data, np.uint8)


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
    if isinstance(count, (tuple, list)) and len(count) == 2:
        return data, *count, datatype
    return data, count, None, datatype


def _is_type(thing: Any) -> bool:
    return isinstance(thing, str) or hasattr(thing, "Get_size")


def _check_known(datatype: Any) -> None:
    """Raise ValueError, as mpi4py does, if something is to be computed from the extent of the null datatype."""
    if isinstance(datatype, Datatype) and datatype.layout is None:
        raise ValueError("the null datatype has no extent: a count is needed, and no displacement")


def layout_of(datatype: Any) -> Layout:
    """Return the layout of an MPI datatype, the simulator's or mpi4py's, or of one of NumPy's type letters."""
    if isinstance(datatype, Datatype):
        if datatype.layout is None:
            raise mpi_error("ERR_TYPE", "a message cannot consist of elements of the null datatype")
        return datatype.layout
    if isinstance(datatype, str):
        return CODES[datatype]._unwrap()
    if not hasattr(datatype, "Get_size"):
        raise TypeError(f"expected a datatype; got {type(datatype).__name__}")
    return _foreign_layout(getattr(datatype, "typechar", "") or "", int(datatype.Get_size()))


def committed_layout(datatype: Any) -> Layout:
    """Return the layout of a datatype that a message is to consist of, which must be committed."""
    found = layout_of(datatype)
    if not found.committed:
        raise mpi_error(
            "ERR_TYPE", "a derived datatype must be committed (Commit) before it is used in a message"
        )
    return found


@lru_cache(maxsize=256)
def _foreign_layout(letter: str, size: int) -> Layout:
    """Return the layout of a datatype of the real mpi4py."""
    kind = KINDS.get(letter) or ("u1" if size == 1 else f"V{size}")
    return named_layout("", letter, size, kind)


@lru_cache(maxsize=256)
def _plain_layout(code: str, itemsize: int) -> Layout:
    """Return the layout of the elements of a buffer, from its format."""
    if code in LETTERS:
        return CODES[code]._unwrap()
    return named_layout("", "", itemsize, kind_of(code))


@lru_cache(maxsize=64)
def poison(nbytes: int) -> bytes:
    """Return the bytes that fill a buffer during a receive: floats read too early are NaN."""
    return b"\xff" * nbytes


class Elements:
    """Elements of a datatype in a buffer: what one rank sends or receives.

    >>> some = Elements([np.arange(6.0), (2, 3)])
    >>> some.nbytes, some.pack().tobytes() == np.array([3.0, 4.0]).tobytes()
    (16, True)
    """

    __slots__ = ("count", "layout", "nbytes", "start", "view")

    def __init__(self, given: Any, blocks: int = 1) -> None:
        """Read one of mpi4py's lists. With `blocks`, a given count is that of one of as many blocks."""
        if given is None:
            raise TypeError("a message cannot be in an object of type NoneType")
        data, count, displacement, datatype = (
            unpack_spec(given) if isinstance(given, (list, tuple)) else (given, None, None, None)
        )
        self.view = view = raw_memory(data)
        whole = view.nbytes
        if count is None or displacement:
            _check_known(datatype)
        self.layout = layout = (
            _plain_layout(view.format, view.itemsize) if datatype is None else committed_layout(datatype)
        )
        extent = layout.extent
        at = 0 if displacement is None else _as_whole_number("displacement", displacement)
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
            self.count = _as_whole_number("count", count) * blocks
            if self.count < 0:
                raise ValueError(f"a count must be at least 0; got {self.count}")
            if isinstance(data, BottomType):
                self.view, base = _find_at_bottom([(layout, self.start, self.count)])
                self.start -= base
                whole = self.view.nbytes
            _check_fits(layout, self.start, self.count, whole)
        self.nbytes = self.count * layout.size

    @property
    def dense(self) -> bool:
        """True if the elements are next to each other in memory."""
        return self.layout.dense

    def pack(self) -> memoryview:
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


def _find_at_bottom(parts: Sequence[tuple[Layout, int, int]]) -> tuple[memoryview, int]:
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


def _as_whole_number(name: str, number: Any) -> int:
    try:
        return number.__index__()  # type: ignore[no-any-return]
    except AttributeError:
        raise TypeError(f"a {name} must be a whole number; got {number!r}") from None


class BufferMemory:
    """The bytes of a buffer, not copied if they have no gaps; `kind` is the type of its elements.

    `layout`: what one element looks like, if the buffer was given as a list.
    """

    __slots__ = ("elements", "itemsize", "kind", "layout", "nbytes", "view")

    def __init__(self, given: Any, *, writing: bool, blocks: int = 1) -> None:
        self.elements: Elements | None = None
        self.layout: Layout | None = None
        if given.__class__ is np.ndarray and blocks == 1:
            self.view, self.kind = memory_of(given)
            self.itemsize = self.view.itemsize
        else:
            elements = Elements(given, blocks)
            self.view, self.kind, self.itemsize = (
                elements.pack(),
                elements.layout.kind,
                elements.layout.size,
            )
            self.layout = elements.layout
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
        found.layout, found.nbytes = None, memory.nbytes
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
        if types:
            units, chosen = 1, [committed_layout(each) for each in layouts]
        else:
            if counts is None:
                _check_known(layouts)
            one = (
                _plain_layout(whole.format, whole.itemsize) if layouts is None else committed_layout(layouts)
            )
            units, chosen = one.extent, [one] * members
        counts, offsets = _complete_places(counts, offsets, chosen, members, whole.nbytes, types=types)
        self._layouts = chosen
        self._places = [
            (_as_whole_number("displacement", at) * units, count)
            for at, count in zip(offsets, counts, strict=True)
        ]
        self.kinds = [each.kind for each in chosen]
        if isinstance(data, BottomType):
            whole, base = _find_at_bottom(
                [(each, *at) for each, at in zip(chosen, self._places, strict=True)]
            )
            self._places = [(start - base, count) for start, count in self._places]
        self.data = as_bytes(whole)
        for (start, count), each in zip(self._places, chosen, strict=True):
            if count < 0:
                raise mpi_error("ERR_COUNT", f"counts must be at least 0; got {counts}")
            if start < 0 and not isinstance(data, BottomType):
                raise ValueError(f"displacements must be at least 0; got {list(offsets)}")
            try:
                _check_fits(each, start, count, whole.nbytes)
            except ValueError:
                raise ValueError(_describe_misfit(counts, offsets, members, whole.nbytes)) from None
        self.memory, self.slices = self._pack()

    def _pack(self) -> tuple[BufferMemory, list[slice]]:
        """Return the bytes of all parts, and where each part is in them; only parts with gaps are copied."""
        parts = list(zip(self._places, self._layouts, strict=True))
        if all(each.dense for each in self._layouts):
            slices = [slice(start, start + count * each.size) for (start, count), each in parts]
            return BufferMemory.of_bytes(self.data), slices
        pieces = [each.pack(self.data, start, count) for (start, count), each in parts]
        packed = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
        stops = np.cumsum([piece.nbytes for piece in pieces]).tolist()
        slices = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        return BufferMemory.of_bytes(packed), slices

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


def _complete_places(
    counts: Any, offsets: Any, layouts: list[Layout], members: int, nbytes: int, *, types: bool
) -> tuple[list[int], Sequence[Any]]:
    """Return a count and a displacement for each rank; those that are not given follow from the others, as in mpi4py."""
    if types and counts is None and offsets is None:  # one element each, all at the start
        counts, offsets = [1] * members, [0] * members
    if counts is None:
        counts = _share(nbytes, layouts, members)
    elif not isinstance(counts, (list, tuple)) and np.ndim(counts) == 0:
        counts = [_as_whole_number("count", counts)] * members
    counts = [_as_whole_number("count", count) for count in counts]
    if offsets is None:
        extents = [each.extent for each in layouts] if types else [1] * len(counts)
        offsets = _sums([count * extent for count, extent in zip(counts, extents, strict=True)])
    elif not isinstance(offsets, (list, tuple)) and np.ndim(offsets) == 0:
        offsets = [_as_whole_number("displacement", offsets) * rank for rank in range(members)]
    if not len(counts) == len(offsets) == len(layouts) == members:
        raise ValueError(_describe_misfit(counts, offsets, members, nbytes))
    return counts, offsets


def _describe_misfit(counts: Sequence[int], offsets: Sequence[Any], members: int, nbytes: int) -> str:
    return f"counts {counts} at {list(offsets)} do not fit {members} ranks and {nbytes} bytes"


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
