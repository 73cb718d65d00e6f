"""Errors of a simulated program: mistakes that a real MPI may ignore, hang on, or crash with.

Each message names the ranks, the operations and the lines of the program (`Site`: where an operation was started, stored
compactly and formatted when an error needs it).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from paceline.vmpi import constants as _constants


class SimulationError(Exception):
    """A program on simulated ranks broke a rule of MPI."""


class Deadlock(SimulationError):  # noqa: N818
    """Ranks wait for each other, and nothing is on its way that could wake one of them."""


class BufferChanged(SimulationError):  # noqa: N818
    """A buffer was written while a message was being sent from it or received into it."""


class Unmatched(SimulationError):  # noqa: N818
    """A message was never received, or a receive never got a message."""


class Unfinished(SimulationError):  # noqa: N818
    """A request was never waited for, or tested until it was done."""


class ReadOnly(BufferError, ValueError):  # noqa: N818
    """A buffer cannot be written."""


class TypeMismatch(SimulationError):  # noqa: N818
    """A message of one type of number was received as another."""


class CollectiveMismatch(SimulationError):  # noqa: N818
    """Ranks of one communicator call different collectives, or the same one with different arguments."""


class RankFailed(SimulationError):  # noqa: N818
    """A rank raised an exception, which ends the simulation. The exception is the cause of this one."""

    def __init__(self, rank: int, ranks: int, error: BaseException) -> None:
        kind = (
            "" if isinstance(error, Deadlock) else f"{type(error).__name__}: "
        )  # its text begins with the word
        super().__init__(f"rank {rank} of {ranks} failed: {kind}{error}")
        self.rank = rank
        self.error = error


class Aborted(SystemExit):
    """A rank has called Abort, which ends all ranks."""

    def __str__(self) -> str:
        return f"Abort({self.code})"


class MPIError(RuntimeError):
    """An error that MPI itself reports and a program may catch: mpi4py's `MPI.Exception`, on simulated ranks.

    >>> error = mpi_error("ERR_PROC_FAILED", "rank 3 was killed")
    >>> error.Get_error_class() == _constants.ERR_PROC_FAILED, str(error)
    (True, 'MPI_ERR_PROC_FAILED: rank 3 was killed')
    >>> MPIError(_constants.ERR_ARG) == _constants.ERR_ARG
    True
    """

    pending = False
    """True if the request stays active: a receive from any source, when one of the possible senders has died."""

    def __init__(self, text: str | int = 0, error_class: int | None = None) -> None:
        """Create it from a text and a class, or as mpi4py does, from the number of an error alone."""
        if isinstance(text, int):
            error_class = text if text >= 0 else _constants.ERR_UNKNOWN
            text = error_codes.describe(error_class)
        RuntimeError.__init__(self, text)
        self._text, self._code = text, int(error_class or 0)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"MPI.Exception({self._code})"

    def __int__(self) -> int:
        return self._code

    def __bool__(self) -> bool:
        return self._code != _constants.SUCCESS

    def __hash__(self) -> int:
        return hash(self._code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, MPIError)) and self._code == int(other)

    def __lt__(self, other: Any) -> bool:
        return self._code < int(other)

    def __le__(self, other: Any) -> bool:
        return self._code <= int(other)

    def __gt__(self, other: Any) -> bool:
        return self._code > int(other)

    def __ge__(self, other: Any) -> bool:
        return self._code >= int(other)

    def Get_error_code(self) -> int:
        return self._code

    def Get_error_class(self) -> int:
        return error_codes.class_of(self._code)

    def Get_error_string(self) -> str:
        return self._text

    error_code = property(Get_error_code)
    error_class = property(Get_error_class)
    error_string = property(Get_error_string)


class Truncated(SimulationError, MPIError):  # noqa: N818
    """A message is longer than the buffer of its receive: an error of MPI, which a program may catch.

    >>> Truncated("message truncated: 80 bytes").Get_error_class() == _constants.ERR_TRUNCATE
    True
    """

    def __init__(self, text: str, error_class: int = _constants.ERR_TRUNCATE) -> None:
        MPIError.__init__(self, text, error_class)


class ErrorCodes:
    """The numbers of errors: MPI's own, and those that programs add.

    >>> codes = ErrorCodes()
    >>> code = codes.add(codes.add())
    >>> codes.texts[code] = "the tank is empty"
    >>> codes.describe(code), codes.describe(_constants.ERR_ARG)
    ('the tank is empty', 'MPI_ERR_ARG')
    """

    def __init__(self) -> None:
        self.names = {
            number: f"MPI_{name}" for name, number in vars(_constants).items() if name.startswith("ERR_")
        } | {_constants.SUCCESS: "MPI_SUCCESS"}
        self.classes: dict[int, int] = {}
        """The class of each number that was added; a class is its own."""
        self.texts: dict[int, str] = {}
        self.latest = _constants.ERR_LASTCODE

    def add(self, error_class: int | None = None) -> int:
        """Add a class, or a code of a class, and return its number."""
        self.latest += 1
        self.classes[self.latest] = self.latest if error_class is None else error_class
        return self.latest

    def remove(self, number: int, *, is_class: bool) -> None:
        """Remove a class or a code that was added and has no text and no codes of its own any more."""
        used = number in self.texts or any(
            of == number and code != number for code, of in self.classes.items()
        )
        if used or number not in self.classes or (self.classes[number] == number) is not is_class:
            raise mpi_error("ERR_OTHER", f"error number {number} cannot be removed")
        del self.classes[number]

    def class_of(self, number: int) -> int:
        return self.classes.get(number, number)

    def describe(self, number: int) -> str:
        if number in self.classes:
            return self.texts.get(number, "")
        return self.names.get(number, f"unknown error {number}")


error_codes = ErrorCodes()


def mpi_error(name: str, text: str) -> MPIError:
    """Create an error of this class; it is also an instance of the real mpi4py's, if that has been imported."""
    module = sys.modules.get("mpi4py.MPI")
    real = getattr(module, "Exception", None)
    message = f"MPI_{name}: {text}"
    if real is None or not hasattr(module, "Get_library_version") or issubclass(real, MPIError):
        return MPIError(message, getattr(_constants, name))
    found: MPIError = _make_class(real)(message, int(getattr(module, name)))
    return found


def _make_class(real: Any) -> Any:
    class Both(MPIError, real):  # type: ignore[misc]  # noqa: N818
        def __new__(cls, text: str, error_class: int) -> Any:
            return real.__new__(cls, error_class)

    Both.__name__ = Both.__qualname__ = "MPIError"
    return Both


Site = tuple[CodeType, int]
# Code that only passes calls on: the simulator, and the wrappers of communicators that count, time and trace.
_PASSES_ON = tuple(f"{Path(__file__).parent.parent / name}/" for name in ("vmpi", "comm"))
_inside: dict[CodeType, bool] = {}


def _is_inside(code: CodeType) -> bool:
    """Return True if this code only passes calls on."""
    found = _inside.get(code)
    if found is None:
        found = _inside[code] = code.co_filename.startswith(_PASSES_ON)
    return found


def find_site() -> Site:
    """Return the innermost place outside the simulator that is being executed."""
    frame: FrameType = sys._getframe(2)
    while True:
        code = frame.f_code
        inside = _inside.get(code)
        if inside is None:
            inside = _is_inside(code)
        if not inside or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


def frame_site(frame: FrameType | None) -> Site | None:
    """Return the innermost place outside the simulator, from a frame outwards."""
    while frame is not None and _is_inside(frame.f_code):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def format_site(where: Site | None) -> str:
    """Format a site as file:line.

    >>> format_site(None)
    'an unknown line'
    """
    if where is None:
        return "an unknown line"
    code, instruction = where
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= instruction < stop and number is not None:
            line = number
            break
    path = Path(code.co_filename)
    return f"{Path(path.parent.name) / path.name}:{line}"


def format_list(sentences: Iterable[str], most: int = 8) -> str:
    """Format sentences one per line; of a long list only the first ones.

    >>> format_list(["one", "two", "three"], most=2)
    '\\n  one\\n  two\\n  … and 1 more'
    """
    every = list(sentences)
    shown = every[:most]
    if len(every) > most:
        shown.append(f"… and {len(every) - most:,} more")
    return "".join(f"\n  {sentence}" for sentence in shown)
