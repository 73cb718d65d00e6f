"""What mpi4py's objects have in common: null objects, numbers for other languages, pickling, and cached attributes.

Also the two objects that programs hand to communicators and windows: hints (`Info`) and error handlers (`Errhandler`).
"""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn
from weakref import WeakValueDictionary

from greenlet import getcurrent

from paceline.vmpi.constants import FIRST_KEYVAL, KEYVAL_INVALID, SUCCESS
from paceline.vmpi.errors import Aborted, mpi_error

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

    def _get_attributes(self) -> dict[int, Any]:
        """Return the values of the attributes that have been set, by key."""
        raise NotImplementedError

    def _fixed_attribute(self, keyval: int) -> Any:
        """Return the value of an attribute that MPI itself sets."""

    def Get_attr(self, keyval: int) -> Any:
        cached = self._get_attributes()
        if keyval in self._fixed:
            return self._fixed_attribute(keyval)
        _check_keyval(keyval)
        return cached.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        _check_keyval(keyval)
        cached = self._get_attributes()
        if keyval in cached:
            self.Delete_attr(keyval)
        cached[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        _check_keyval(keyval)
        cached = self._get_attributes()
        if keyval in cached:
            value = cached.pop(keyval)
            delete = _callbacks[keyval][1]
            if delete is not None:
                call_back(delete, self, keyval, value)

    def _delete_all(self) -> None:
        """Delete the attributes of an object that is being freed, the latest first."""
        for keyval in reversed(list(self._get_attributes())):
            self.Delete_attr(keyval)

    def _copy_all(self, other: Attributes) -> None:
        """Copy the attributes to a duplicate, as their copy functions say."""
        for keyval, value in list(self._get_attributes().items()):
            copy = _callbacks[keyval][0]
            if copy is True:
                other._get_attributes()[keyval] = value
            elif callable(copy):
                found = call_back(copy, self, keyval, value)
                if found is not NotImplemented:
                    other._get_attributes()[keyval] = found


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


# ---- hints and error handlers

_MISSING: Any = object()


class Info(Handle):
    """Hints, with the interface of a dictionary. The simulator keeps them and uses none.

    >>> hints = Info.Create({"a": "1"})
    >>> hints["b"] = "2"
    >>> hints.items(), hints.Get_nkeys(), "a" in hints
    ([('a', '1'), ('b', '2')], 2, True)
    """

    __slots__ = ("__weakref__", "_items")

    _items: dict[str, str] | None

    def __new__(cls, info: Info | None = None) -> Any:
        if info is not None and not isinstance(info, Info):
            raise TypeError(f"expected hints; got {type(info).__name__}")
        found = object.__new__(cls)
        found._items = None if info is None else info._items
        return found

    def __init__(self, *arguments: Any) -> None:
        """Do nothing: the hints are set when the object is made."""

    @classmethod
    def Create(cls, items: Any = None) -> Any:
        found = cls()
        found._items = {}
        if items is not None:
            found.update(items)
        return found

    @classmethod
    def Create_env(cls, args: Any = None) -> Any:
        return cls.Create(dict(INFO_ENV.items()))

    def _unwrap(self) -> dict[str, str]:
        """Return the hints, or raise if the object is null."""
        if self._items is None:
            raise mpi_error("ERR_INFO", "the null object has no hints")
        return self._items

    def Free(self) -> None:
        self._unwrap()
        self._items = None

    def Dup(self) -> Any:
        return type(self).Create(dict(self._unwrap()))

    def Get(self, key: str) -> str | None:
        return self._unwrap().get(key)

    def Set(self, key: str, value: str) -> None:
        if not key:
            raise mpi_error("ERR_INFO_KEY", "the name of a hint must not be empty")
        self._unwrap()[key] = value

    def Delete(self, key: str) -> None:
        if key not in self._unwrap():
            raise mpi_error("ERR_INFO_NOKEY", f"there is no hint {key!r}")
        del self._unwrap()[key]

    def Get_nkeys(self) -> int:
        return len(self._unwrap())

    def Get_nthkey(self, n: int) -> str:
        keys = list(self._unwrap())
        if not 0 <= n < len(keys):
            raise mpi_error("ERR_ARG", f"there are {len(keys)} hints; got number {n}")
        return keys[n]

    # ---- a dictionary

    def __len__(self) -> int:
        return len(self._items or ())

    def __contains__(self, key: object) -> bool:
        return key in (self._items or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> str:
        return (self._items or {})[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._writable(key)[key] = value

    def __delitem__(self, key: str) -> None:
        del self._writable(key)[key]

    def _writable(self, key: Any) -> dict[str, str]:
        if self._items is None:
            raise KeyError(key)
        return self._items

    def get(self, key: str, default: Any = None) -> Any:
        return (self._items or {}).get(key, default)

    def keys(self) -> list[str]:
        return list(self._items or ())

    def values(self) -> list[str]:
        return list((self._items or {}).values())

    def items(self) -> list[tuple[str, str]]:
        return list((self._items or {}).items())

    def update(self, items: Any = (), **more: str) -> None:
        self._writable("").update(items, **more)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        if self._items is None:
            if default is _MISSING:
                raise KeyError(key)
            return default
        return self._items.pop(key) if default is _MISSING else self._items.pop(key, default)

    def popitem(self) -> tuple[str, str]:
        return self._writable("").popitem()

    def copy(self) -> Any:
        return type(self)() if self._items is None else self.Dup()

    def clear(self) -> None:
        if self._items is not None:
            self._items.clear()

    def __bool__(self) -> bool:
        return self._items is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Info) and self._items is other._items

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        if self._items is None or self._items is INFO_ENV._items:
            return super().__reduce__()
        return type(self).Create, (dict(self._items),)


INFO_NULL, INFO_ENV = (
    Info(),
    Info.Create({"command": "", "maxprocs": "1", "thread_level": "MPI_THREAD_MULTIPLE"}),
)
constants.update(INFO_NULL=INFO_NULL, INFO_ENV=INFO_ENV)

# Error handlers made from functions that one process can have for each kind of object, as in mpi4py.
MOST_FUNCTIONS = 32


class Errhandler(Handle):
    """What is done with an error of MPI: one of MPI's own handlers, or a function.

    Simulated ranks raise every error as an exception, as mpi4py does; a handler is called by `Call_errhandler`.
    """

    __slots__ = ("__weakref__", "_counted", "_does")

    def __init__(self, errhandler: Errhandler | None = None) -> None:
        self._does: Any = None if errhandler is None else errhandler._does
        self._counted: Any = None

    @classmethod
    def _of(cls, does: Any) -> Errhandler:
        found = cls()
        found._does = does
        return found

    @classmethod
    def _from_function(cls, function: Any, owner: str) -> Errhandler:
        running: Any = getcurrent()
        made = getattr(running, "paceline_errhandlers", None)
        if made is None:
            made = running.paceline_errhandlers = {}
        if made.get(owner, 0) == MOST_FUNCTIONS:
            raise RuntimeError(
                f"a process can have at most {MOST_FUNCTIONS} error handlers made from functions"
            )
        made[owner] = made.get(owner, 0) + 1
        found = cls._of(lambda thing, code: function(thing, code))
        found._counted = made, owner
        return found

    def call(self, thing: Any, code: int) -> None:
        """Handle an error of an object."""
        if callable(self._does):
            self._does(thing, code)
        elif self._does != "MPI_ERRORS_RETURN" and code != SUCCESS:
            raise Aborted(code)

    def Free(self) -> None:
        if self._does is None:
            raise mpi_error("ERR_ERRHANDLER", "the null error handler cannot be freed")
        if self._counted is not None:
            made, owner = self._counted
            made[owner] -= 1
        self._does = self._counted = None

    def __bool__(self) -> bool:
        return self._does is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Errhandler) and self._does is other._does

    __hash__ = None  # type: ignore[assignment]


ERRHANDLER_NULL = Errhandler()
ERRORS_RETURN = Errhandler._of("MPI_ERRORS_RETURN")
ERRORS_ARE_FATAL = Errhandler._of("MPI_ERRORS_ARE_FATAL")
ERRORS_ABORT = Errhandler._of("MPI_ERRORS_ABORT")
constants.update(
    ERRHANDLER_NULL=ERRHANDLER_NULL, ERRORS_RETURN=ERRORS_RETURN, ERRORS_ARE_FATAL=ERRORS_ARE_FATAL,
    ERRORS_ABORT=ERRORS_ABORT,
)  # fmt: skip


class Handled(Handle):
    """An object with an error handler and hints: a communicator, a window or a session."""

    __slots__ = ()

    def _settings(self) -> Any:
        """Return what stores `errhandler` and `hints`."""
        raise NotImplementedError

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Any) -> Errhandler:
        return Errhandler._from_function(errhandler_fn, cls.__mro__[-1].__name__ + _kind(cls))

    def Get_errhandler(self) -> Errhandler:
        return Errhandler(self._settings().errhandler or ERRORS_RETURN)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set what `Call_errhandler` calls. Errors of other calls are exceptions whatever it is."""
        settings = self._settings()
        if isinstance(errhandler, Errhandler):
            if not errhandler:
                raise mpi_error("ERR_ERRHANDLER", "the null error handler handles nothing")
            settings.errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        (self._settings().errhandler or ERRORS_RETURN).call(self, errorcode)

    def Get_info(self) -> Info:
        found: Info = Info.Create(dict(self._settings().hints))
        return found

    def Set_info(self, info: Info) -> None:
        self._settings().hints.update(info.items())

    info = property(Get_info, Set_info)


def _kind(cls: type) -> str:
    return next((base.__name__ for base in cls.__mro__ if base.__name__ in ("Comm", "Window", "Session")), "")


class Settings:
    """The error handler and the hints of a window or a session."""

    __slots__ = ("errhandler", "hints")

    def __init__(self) -> None:
        self.errhandler: Errhandler | None = None
        self.hints: dict[str, str] = {}


def raise_unsupported(what: str) -> NoReturn:
    """Raise the error of a call that the simulator does not have."""
    raise NotImplementedError(f"the simulator has no {what}")


def refuse_threads() -> NoReturn:
    """Raise the error of a thread that calls MPI."""
    raise_unsupported("threads that call MPI: only the ranks themselves can")
