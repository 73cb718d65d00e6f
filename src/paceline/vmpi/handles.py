"""What mpi4py's objects have in common: null objects, numbers for other languages, pickling, and cached attributes."""

from __future__ import annotations

import itertools
import sys
import traceback
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from paceline.vmpi.constants import FIRST_KEYVAL, KEYVAL_INVALID
from paceline.vmpi.errors import mpi_error

numbered: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The objects whose numbers were asked for."""
constants: dict[str, Any] = {}
"""The objects that MPI predefines, by name: those that a pickle refers to."""


def find_constant(name: str) -> Any:
    """Return one of MPI's predefined objects; a pickle of it names only this."""
    return constants[name]


class Numbered:
    """An object with a number that other languages know it by."""

    __slots__ = ()

    @property
    def handle(self) -> int:
        numbered[id(self)] = self
        return id(self)

    def toint(self) -> int:
        return self.handle

    def py2f(self) -> int:
        return self.handle


class Handle(Numbered):
    """An object of MPI: it can be null, is freed by `Free`, and has a number that other languages know it by."""

    __slots__ = ()

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return an object equal to the one with this number."""
        found = numbered[handle]
        return found.__class__(found)

    fromint = f2py = fromhandle

    def free(self) -> None:
        """Free the object, unless it is null or predefined."""
        if self and constant_name(self) is None:
            self.Free()  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        name = constant_name(self)
        if name is not None:
            return find_constant, (name,)
        for known in constants.values():
            if isinstance(known, Handle) and isinstance(self, _base(known)) and self == known:
                return self.__class__, (known,)
        raise ValueError(f"cannot pickle {type(self).__name__}")


def _base(known: Handle) -> type:
    """Return the class below Handle from which an object's class is derived."""
    mro = type(known).__mro__
    return mro[mro.index(Handle) - 1]


def constant_name(thing: Any) -> str | None:
    """Return the name of one of MPI's predefined objects; None for any other object."""
    return next((name for name, known in constants.items() if known is thing), None)


# ---- attributes

_keyvals = itertools.count(FIRST_KEYVAL)
_callbacks: dict[int, tuple[Any, Any]] = {}


class Attributes(Handle):
    """Values that programs cache on communicators, datatypes and windows, under numbers that they create.

    A class that has them stores them in `_attributes`, shared by all objects that denote the same thing.
    """

    __slots__ = ()
    _fixed: ClassVar[tuple[int, ...]] = ()
    """The numbers that MPI itself uses for attributes of this class."""

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        keyval = next(_keyvals)
        _callbacks[keyval] = copy_fn, delete_fn
        return keyval

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        _check_keyval(keyval)
        return KEYVAL_INVALID

    def _cached(self) -> dict[int, Any]:
        raise NotImplementedError

    def _fixed_attribute(self, keyval: int) -> Any:
        """Return the value of an attribute that MPI itself sets."""

    def Get_attr(self, keyval: int) -> Any:
        cached = self._cached()
        if keyval in self._fixed:
            return self._fixed_attribute(keyval)
        _check_keyval(keyval)
        return cached.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        _check_keyval(keyval)
        cached = self._cached()
        if keyval in cached:
            self.Delete_attr(keyval)
        cached[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        _check_keyval(keyval)
        cached = self._cached()
        if keyval in cached:
            value = cached.pop(keyval)
            delete = _callbacks[keyval][1]
            if delete is not None:
                call_back(delete, self, keyval, value)

    def _delete_all(self) -> None:
        """Delete the attributes of an object that is being freed, the latest first."""
        for keyval in reversed(list(self._cached())):
            self.Delete_attr(keyval)

    def _copy_all(self, other: Attributes) -> None:
        """Copy the attributes to a duplicate, as their copy functions say."""
        for keyval, value in list(self._cached().items()):
            copy = _callbacks[keyval][0]
            if copy is True:
                other._cached()[keyval] = value
            elif callable(copy):
                found = call_back(copy, self, keyval, value)
                if found is not NotImplemented:
                    other._cached()[keyval] = found


def _check_keyval(keyval: int) -> None:
    if keyval not in _callbacks:
        raise mpi_error("ERR_KEYVAL", f"{keyval} is not the number of an attribute")


def call_back(function: Any, *arguments: Any) -> Any:
    """Call a function that the program has given to MPI; what it raises is printed and becomes an MPI error."""
    try:
        return function(*arguments)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        if hasattr(error, "Get_error_class"):
            raise
        raise mpi_error("ERR_OTHER", f"a function of the program raised {type(error).__name__}") from error
