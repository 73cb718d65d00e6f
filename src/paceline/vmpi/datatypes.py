"""MPI's datatypes: what the elements of a buffer are."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

# By NumPy's letters, as mpi4py gives them for a 64-bit system.
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
    """A number, or several in a row.

    >>> DOUBLE = named()["DOUBLE"]
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
        raise NotImplementedError("the simulator's datatypes are contiguous: copy the elements into an array")

    Create_hvector = Create_indexed = Create_hindexed = Create_struct = Create_subarray = Create_vector
    Create_resized = Create_darray = Create_indexed_block = Create_vector

    def Commit(self) -> Datatype:
        return self

    def Free(self) -> None:
        self.size = 0

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """The datatype of a NumPy type."""
        letter = np.dtype(code).char
        found = next((made for made in named().values() if made.typechar == letter), None)
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


def named() -> dict[str, Datatype]:
    """MPI's datatypes, by name."""
    return {
        name: Datatype(f"MPI_{name}", letter, 8 if letter == "p" else np.dtype(letter).itemsize)
        for letter, names in LETTERS.items()
        for name in names.split()
    }
