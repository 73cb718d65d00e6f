"""The memory that messages are taken from and go to: whatever has Python's buffer interface, DLPack or CUDA's.

Also `buffer`, the memory that mpi4py itself allocates, and the constants that are passed instead of a buffer.
"""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.vmpi.handles import constants, find_constant


class buffer(np.ndarray[Any, np.dtype[np.uint8]]):  # noqa: N801 (mpi4py's name)
    """Bytes at an address: mpi4py's MPI.buffer.

    >>> memory = buffer.allocate(4)
    >>> memory[1:3] = b"ab"
    >>> memory.tobytes(), len(memory), memory.format
    (b'\\x00ab\\x00', 4, 'B')
    """

    format = "B"
    itemsize = 1

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        if nbytes < 0:
            raise ValueError(f"a number of bytes must be at least 0; got {nbytes}")
        return np.zeros(nbytes, np.uint8).view(buffer)

    @staticmethod
    def frombuffer(buf: Any, readonly: bool = False) -> buffer:
        found = as_bytes(raw_memory(buf)).view(buffer)
        if readonly:
            found.flags.writeable = False
        return found

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> buffer:
        return buffer.frombuffer(memory_at(address, nbytes, None), readonly)

    @property
    def address(self) -> int:
        return get_address(self)

    @property
    def obj(self) -> Any:
        return self.base

    @property
    def readonly(self) -> bool:
        return not self.flags.writeable

    def cast(self, format: str, *shape: Any) -> memoryview:  # noqa: A002 (memoryview's name)
        view: Any = memoryview(self)  # type: ignore[arg-type]
        found: memoryview = view.cast(format, *shape)
        return found

    def toreadonly(self) -> buffer:
        return buffer.frombuffer(self, readonly=True)

    def release(self) -> None:
        """Do nothing: Python frees the memory."""

    def __setitem__(self, where: Any, value: Any) -> None:
        if not isinstance(value, (int, np.integer, np.ndarray)):
            value = as_bytes(raw_memory(value))
        super().__setitem__(where, value)

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        return found if isinstance(where, slice) else int(found)

    def __bool__(self) -> bool:
        return self.size > 0

    def __eq__(self, other: object) -> Any:
        return isinstance(other, np.ndarray) and self.tobytes() == other.tobytes()

    __hash__ = None


def get_address(location: Any) -> int:
    """Return the address of a buffer; 0 if it is empty."""
    if isinstance(location, Placeholder):
        return int(location)
    view = raw_memory(location)
    return int(np.asarray(view).__array_interface__["data"][0]) if view.nbytes else 0


class Placeholder(int):
    """A constant that is passed instead of a buffer."""

    name = ""

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return find_constant, (self.name,)

    def __add__(self, other: object) -> Any:
        raise TypeError(f"nothing can be added to {self.name}")


class BottomType(Placeholder):
    """The type of BOTTOM: the start of memory, which no buffer has."""

    name = "BOTTOM"


class InPlaceType(Placeholder):
    """The type of IN_PLACE: the values are already in the buffer for the result."""

    name = "IN_PLACE"

    def __new__(cls) -> InPlaceType:
        return super().__new__(cls, -1)


class BufferAutomaticType(Placeholder):
    """The type of BUFFER_AUTOMATIC: memory for buffered messages is found when it is needed."""

    name = "BUFFER_AUTOMATIC"

    def __new__(cls) -> BufferAutomaticType:
        return super().__new__(cls, -2)


BOTTOM, IN_PLACE, BUFFER_AUTOMATIC = BottomType(), InPlaceType(), BufferAutomaticType()
constants.update(BOTTOM=BOTTOM, IN_PLACE=IN_PLACE, BUFFER_AUTOMATIC=BUFFER_AUTOMATIC)


def is_in_place(given: Any) -> bool:
    """Return True if this is IN_PLACE, the simulator's or mpi4py's, or None, which means the same.

    >>> is_in_place(IN_PLACE), is_in_place(None), is_in_place(-1)
    (True, True, False)
    """
    return given is None or type(given).__name__ == "InPlaceType"


def is_bottom(given: Any) -> bool:
    """Return True if there is no buffer: None or BOTTOM."""
    return given is None or type(given).__name__ == "BottomType"


def as_bytes(view: memoryview) -> NDArray[np.uint8]:
    """Return the bytes of contiguous memory, without copying them."""
    return np.asarray(view).reshape(-1).view(np.uint8) if view.nbytes else np.empty(0, np.uint8)


# ---- memory of other libraries


def raw_memory(given: Any) -> memoryview:
    """Return the contiguous memory of an object that is a buffer, or raise.

    >>> raw_memory(np.arange(3.0)).nbytes, raw_memory(b"abc").format
    (24, 'B')
    """
    try:
        view = memoryview(given)
    except (TypeError, BufferError):
        if is_bottom(given):
            return memoryview(b"")
        view = _from_dlpack(given) if hasattr(given, "__dlpack__") else _from_cuda(given)
    if not view.c_contiguous:
        if view.f_contiguous:
            return memoryview(np.asarray(view).reshape(-1, order="A"))  # type: ignore[arg-type]
        raise ValueError("a message's buffer must be contiguous")
    return view


class _Tensor(ctypes.Structure):
    """DLPack's description of an array."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """The header that DLPack has since version 1."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}


def _from_dlpack(given: Any) -> memoryview:
    try:
        device = given.__dlpack_device__()[0]
        capsule = given.__dlpack__() if device == 1 else given.__dlpack__(stream=-1)
    except AttributeError:
        raise TypeError(f"a message cannot be in an object of type {type(given).__name__}") from None
    pointer, readonly = _capsule_pointer(), False
    if "dltensor_versioned" in repr(capsule):
        header = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        tensor, readonly = header.tensor, bool(header.flags & 1)
    else:
        try:
            tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
        except ValueError:
            raise BufferError("__dlpack__ did not return an array") from None
    code, itemsize = tensor.code, tensor.bits // 8 * tensor.lanes
    if code == 2 and tensor.lanes == 2:  # how older libraries describe complex numbers
        code = 5
    elif code not in _DLPACK_KINDS or tensor.lanes != 1 or tensor.bits % 8 or not tensor.bits:
        raise BufferError(f"elements of DLPack type {code} with {tensor.bits} bits are not supported")
    shape = tensor.shape[: tensor.ndim]
    _check_strides(shape, tensor.strides[: tensor.ndim] if tensor.strides else None, 1)
    nbytes = prod(shape) * itemsize
    reach = _main_memory_at if device == 1 else memory_at
    found = reach((tensor.data or 0) + tensor.byte_offset, nbytes, (given, capsule))
    return _typed(found, f"{_DLPACK_KINDS[code]}{itemsize}", readonly)


def _from_cuda(given: Any) -> memoryview:
    interface = getattr(given, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"a message cannot be in an object of type {type(given).__name__}")
    if interface.get("mask") is not None:
        raise BufferError("a message cannot be in an array with a mask")
    address, readonly = interface["data"]
    shape, typestr = interface["shape"], interface["typestr"]
    if typestr[0] == ">":
        raise BufferError("a message cannot be in an array of the other byte order")
    itemsize = int(typestr[2:])
    _check_strides(shape, interface.get("strides"), itemsize)
    nbytes = prod(shape) * itemsize
    return _typed(memory_at(address or 0, nbytes, given), typestr[1:], readonly)


def _check_strides(shape: Any, strides: Any, unit: int) -> None:
    if strides is None or 0 in shape:
        return
    for order in (reversed(range(len(shape))), range(len(shape))):
        expected = unit
        for axis in order:
            if shape[axis] != 1 and strides[axis] != expected:
                break
            expected *= shape[axis]
        else:
            return
    raise BufferError("a message's buffer must be contiguous")


def memory_at(address: int, nbytes: int, owner: Any = None) -> Any:
    """Return the bytes at an address, which `owner` keeps allocated."""
    # The system call fails for the memory of a device; reading it would end the process.
    if nbytes and _system_call("access")(ctypes.c_void_p(address), 0) and ctypes.get_errno() == errno.EFAULT:
        raise BufferError("the memory of a device cannot be reached from simulated ranks")
    return _main_memory_at(address, nbytes, owner)


def _main_memory_at(address: int, nbytes: int, owner: Any) -> Any:
    if not nbytes:
        return bytearray()
    found = (ctypes.c_ubyte * nbytes).from_address(address)
    found.owner = owner  # type: ignore[attr-defined]
    return found


@cache
def _system_call(name: str) -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), name)


@cache
def _capsule_pointer() -> Any:
    found = ctypes.pythonapi.PyCapsule_GetPointer
    found.restype, found.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return found


def _typed(memory: Any, kind: str, readonly: bool) -> memoryview:
    array = np.frombuffer(memory, "?" if kind == "b1" else kind)
    if readonly:
        array.flags.writeable = False
    return memoryview(array)  # type: ignore[arg-type]
