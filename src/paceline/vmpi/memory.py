"""The memory that messages are taken from and go to: whatever has Python's buffer interface, DLPack or CUDA's.

Also `buffer`, the memory that mpi4py itself allocates, and the constants that are passed instead of a buffer.
"""

from __future__ import annotations

import ctypes
import errno
import sys
import warnings
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
    _owner: Any = None
    """The object whose memory this is; None after `release`."""
    _out_of_reach = False
    """The memory belongs to a device: programs cannot read or write it here."""

    def __new__(cls, *given: Any) -> buffer:
        return cls.frombuffer(*given) if given else _make_empty()

    def __array_finalize__(self, other: Any) -> None:
        owner = getattr(other, "_owner", None)
        self._owner = other if owner is None else owner
        self._out_of_reach = getattr(other, "_out_of_reach", False)

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        if nbytes < 0:
            raise ValueError(f"a number of bytes must be at least 0; got {nbytes}")
        return np.zeros(nbytes, np.uint8).view(buffer)

    @staticmethod
    def frombuffer(buf: Any, readonly: bool = False) -> buffer:
        if buf is None:
            raise TypeError("a message cannot be in an object of type NoneType")
        found = as_bytes(raw_memory(buf)).view(buffer)
        found._owner = buf
        found._out_of_reach = _is_on_device(buf)
        if readonly:
            found.flags.writeable = False
        return found

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> buffer:
        if nbytes < 0 or (nbytes and not address):
            raise ValueError(f"there are no {nbytes} bytes at address {address}")
        return buffer.frombuffer(memory_at(address, nbytes, None), readonly)

    @property
    def address(self) -> int:
        return 0 if self._owner is None else int(self.__array_interface__["data"][0])

    @property
    def obj(self) -> Any:
        return self._owner

    @property
    def nbytes(self) -> int:
        return 0 if self._owner is None else self.size

    @property
    def readonly(self) -> bool:
        return self._owner is not None and not self.flags.writeable

    def cast(self, format: str, *shape: Any) -> memoryview:  # noqa: A002 (memoryview's name)
        self._check_reach()
        view: Any = memoryview(self)  # type: ignore[arg-type]
        found: memoryview = view.cast(format, *shape)
        return found

    def tobytes(self, order: Any = None) -> bytes:
        self._check_reach()
        return super().tobytes()

    def toreadonly(self) -> buffer:
        found = self[:]
        found.flags.writeable = False
        return found  # type: ignore[no-any-return]

    def release(self) -> None:
        """Give the memory up: it is freed when nothing else uses it."""
        self._owner = None

    def _check_reach(self) -> None:
        if self._out_of_reach:
            raise BufferError("the memory of a device cannot be read or written by a program")

    def __len__(self) -> int:
        return self.nbytes

    def __setitem__(self, where: Any, value: Any) -> None:
        self._check_reach()
        if self.readonly:
            raise TypeError("read-only memory cannot be written")
        _check_place(where)
        if not isinstance(value, (int, np.integer)):
            value = as_bytes(raw_memory(value))
            if isinstance(where, slice) and value.nbytes != len(range(*where.indices(self.nbytes))):
                raise ValueError(f"{value.nbytes} bytes do not fit the bytes {where.start} to {where.stop}")
        super().__setitem__(where, value)

    def __getitem__(self, where: Any) -> Any:
        self._check_reach()
        _check_place(where)
        found = super().__getitem__(where)
        return found if isinstance(where, slice) else int(found)

    def __delitem__(self, where: Any) -> None:
        raise NotImplementedError("bytes of memory cannot be deleted")

    def __bool__(self) -> bool:
        return self.nbytes > 0

    def __eq__(self, other: object) -> Any:
        return isinstance(other, np.ndarray) and self.tobytes() == other.tobytes()

    __hash__ = None


def _check_place(where: Any) -> None:
    if isinstance(where, slice):
        if where.step not in (None, 1):
            raise IndexError("the bytes of a slice of memory must follow each other")
    elif not hasattr(where, "__index__"):
        raise TypeError(f"bytes of memory have whole numbers; got {type(where).__name__}")


def _make_empty() -> buffer:
    found = np.empty(0, np.uint8).view(buffer)
    found.release()
    return found


def _is_on_device(given: Any) -> bool:
    try:
        memoryview(given)
    except (TypeError, BufferError):
        if hasattr(given, "__dlpack__"):
            return bool(given.__dlpack_device__()[0] != 1)
        return hasattr(given, "__cuda_array_interface__")
    return False


def get_address(location: Any) -> int:
    """Return the address of a buffer; 0 if it is empty."""
    if isinstance(location, Placeholder):
        return int(location)
    view = raw_memory(location)
    return int(as_bytes(view).__array_interface__["data"][0]) if view.nbytes else 0


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
    # As bytes at once: NumPy does not know its own format of a single record that is packed.
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


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
        raise BufferError("a message's buffer must be contiguous")
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
        device, number = given.__dlpack_device__()
        if not isinstance(device, int) or not isinstance(number, int):
            raise TypeError(f"a device of DLPack is two whole numbers; got {device!r} and {number!r}")
        capsule = given.__dlpack__() if device == 1 else given.__dlpack__(stream=-1)
    except AttributeError:
        raise TypeError(f"a message cannot be in an object of type {type(given).__name__}") from None
    pointer, readonly = _capsule_pointer(), False
    try:
        if "dltensor_versioned" in repr(capsule):
            header = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
            if header.major != 1:
                raise BufferError(f"DLPack version {header.major} is not supported")
            tensor, readonly = header.tensor, bool(header.flags & 1)
        else:
            tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    except ValueError:
        raise BufferError("__dlpack__ did not return an array, or one that is used already") from None
    if tensor.ndim < 0 or (tensor.ndim and not tensor.shape):
        raise BufferError(f"an array of {tensor.ndim} dimensions has no shape")
    code, itemsize = tensor.code, tensor.bits // 8 * tensor.lanes
    if code == 2 and tensor.lanes == 2:  # how older libraries describe complex numbers
        code = 5
    elif tensor.bits % 8 or not tensor.bits:
        raise BufferError(f"elements of DLPack type {code} with {tensor.bits} bits are not supported")
    shape = tensor.shape[: tensor.ndim]
    _check_shape(shape)
    _check_strides(shape, tensor.strides[: tensor.ndim] if tensor.strides else None, 1)
    nbytes = prod(shape) * itemsize
    reach = _main_memory_at if device == 1 else memory_at
    found = reach((tensor.data or 0) + tensor.byte_offset, nbytes, (given, capsule))
    known = code in _DLPACK_KINDS and (code == 5 or tensor.lanes == 1)
    return _cast(found, f"{_DLPACK_KINDS[code]}{itemsize}" if known else "u1", readonly)


def _from_cuda(given: Any) -> memoryview:
    interface = getattr(given, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"a message cannot be in an object of type {type(given).__name__}")
    if not isinstance(interface, dict):
        raise TypeError(f"__cuda_array_interface__ must be a dict; got {type(interface).__name__}")
    if interface.get("mask") is not None:
        raise BufferError("a message cannot be in an array with a mask")
    address, readonly = interface["data"]
    shape, typestr = interface["shape"], interface["typestr"]
    check_byte_order(typestr[0])
    if typestr[0] not in "<>|=":
        raise BufferError(f"a type begins with its byte order; got {typestr!r}")
    itemsize = int(typestr[2:])
    descr = interface.get("descr")
    if descr is not None and not isinstance(descr, list):
        raise TypeError(f"the descr of an array must be a list; got {type(descr).__name__}")
    if descr and descr != [("", typestr)]:
        warnings.warn("the descr of an array is ignored", RuntimeWarning, stacklevel=2)
    _check_shape(shape)
    _check_strides(shape, interface.get("strides"), itemsize)
    nbytes = prod(shape) * itemsize
    kind = "u1" if typestr[1] == "V" else typestr[1:]
    return _cast(memory_at(address or 0, nbytes, given), kind, readonly)


def check_byte_order(order: str) -> None:
    """Raise if numbers in this byte order, as NumPy writes it, are not this machine's own."""
    if order in (">!" if sys.byteorder == "little" else "<"):
        raise BufferError("a message cannot be in an array of the other byte order")


def _check_shape(shape: Any) -> None:
    if any(length < 0 for length in shape):
        raise BufferError(f"the lengths of an array must be at least 0; got {tuple(shape)}")


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


def _cast(memory: Any, kind: str, readonly: bool) -> memoryview:
    array = np.frombuffer(memory, "?" if kind == "b1" else kind)
    if readonly:
        array.flags.writeable = False
    return memoryview(array)  # type: ignore[arg-type]
