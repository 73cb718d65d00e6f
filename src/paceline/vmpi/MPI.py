# ruff: noqa: N999 (mpi4py's names)
"""The replacement of mpi4py.MPI on simulated ranks.

During a run (`paceline.vmpi.run`), `from mpi4py import MPI` provides these names, so programs written for mpi4py run
unchanged.

>>> from paceline import vmpi
>>> def program(comm):
...     from mpi4py import MPI
...     return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank(), op=MPI.MAX)
>>> vmpi.run(program, ranks=3).values
[2, 2, 2]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from greenlet import getcurrent

from paceline.vmpi import constants as _constants
from paceline.vmpi.buffers import IN_PLACE, Datatype, InPlaceType, make_datatypes
from paceline.vmpi.communicator import COMM_NULL, Comm
from paceline.vmpi.communicator import MatchedMessage as Message
from paceline.vmpi.constants import (
    COMM_TYPE_SHARED,
    LOCK_EXCLUSIVE,
    LOCK_SHARED,
    ROOT,
    TAG_UB,
    UNDEFINED,
    special_numbers,
)
from paceline.vmpi.errors import MPIError as Exception  # noqa: A004 (mpi4py's name)
from paceline.vmpi.groups import CONGRUENT, IDENT, SIMILAR, UNEQUAL, CommState, Group
from paceline.vmpi.operations import OF_OBJECTS, Op
from paceline.vmpi.requests import REQUEST_NULL, Request, Status
from paceline.vmpi.requests import PersistentRequest as Prequest
from paceline.vmpi.windows import Window as Win


def enter(comm: Comm) -> Comm:
    """Make `comm` the MPI.COMM_WORLD of the running rank."""
    getcurrent().paceline_world = comm
    return comm


def current_world() -> Comm:
    """Return the MPI.COMM_WORLD of the running rank."""
    found: Comm | None = getattr(getcurrent(), "paceline_world", None)
    if found is None:
        raise RuntimeError(
            "only a simulated rank has an MPI.COMM_WORLD; use it inside the function given to vmpi.run"
        )
    return found


def current_self() -> Comm:
    """Return the MPI.COMM_SELF of the running rank."""
    running: Any = getcurrent()
    found: Comm | None = getattr(running, "paceline_self", None)
    if found is None:
        comm = current_world()
        found = Comm(CommState(comm.kernel, (comm.me.number,), "MPI_COMM_SELF"), 0)
        running.paceline_self = found
    return found


class WorldComm(Comm):
    """MPI.COMM_WORLD: one object for all ranks, which passes everything on to the running rank's communicator."""

    __slots__ = ()

    def __init__(self) -> None:
        """Create it without state of its own."""

    def __getattribute__(self, name: str) -> Any:
        return (
            object.__getattribute__(self, name) if name.startswith("__") else getattr(current_world(), name)
        )

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(current_world(), name, value)


class SelfComm(WorldComm):
    """MPI.COMM_SELF."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else getattr(current_self(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(current_self(), name, value)


__all__ = [
    "COMM_NULL", "COMM_SELF", "COMM_TYPE_SHARED", "COMM_WORLD", "CONGRUENT", "IDENT", "IN_PLACE", "LOCK_EXCLUSIVE",
    "LOCK_SHARED", "REQUEST_NULL", "ROOT", "SIMILAR", "TAG_UB", "UNDEFINED", "UNEQUAL", "Comm", "Datatype", "Exception",
    "Group", "InPlaceType", "Info", "Intracomm", "Message", "Op", "Prequest", "Request", "Status", "Win",
]  # fmt: skip

simulated = True
Intracomm = Comm
COMM_WORLD, COMM_SELF = WorldComm(), SelfComm()
GROUP_EMPTY = Group()
OP_NULL = Op()
DATATYPE_NULL = Datatype("MPI_DATATYPE_NULL", "", 0)
MESSAGE_NULL = INFO_NULL = INFO_ENV = WIN_NULL = GROUP_NULL = BOTTOM = None
ERRORS_RETURN, ERRORS_ARE_FATAL, ERRORS_ABORT = "return", "are fatal", "abort"
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
MODE_NOCHECK, MODE_NOSTORE, MODE_NOPUT, MODE_NOPRECEDE, MODE_NOSUCCEED = (1 << place for place in range(5))
SUCCESS, KEYVAL_INVALID, BSEND_OVERHEAD = 0, -1, 0
VERSION, SUBVERSION = 4, 1
MAX_PROCESSOR_NAME = 256
buffer = memory = memoryview

globals().update({name: Op(name) for name in OF_OBJECTS})
globals().update(make_datatypes())
globals().update({name: value for name, value in vars(_constants).items() if name.startswith("ERR_")})


class Info(dict[str, str]):
    """Hints, which the simulator accepts and ignores."""

    @classmethod
    def Create(cls, items: Any = None) -> Info:
        return cls(items or {})

    def Set(self, key: str, value: str) -> None:
        self[key] = value

    def Get(self, key: str) -> str | None:
        return self.get(key)

    def Free(self) -> None:
        self.clear()


def numbers() -> dict[str, int]:
    """Return the constants that differ between MPI implementations, with their current values."""
    found = special_numbers()
    return {"ANY_SOURCE": found.any_source, "ANY_TAG": found.any_tag, "PROC_NULL": found.proc_null}


def __getattr__(name: str) -> Any:
    known = numbers()
    if name in known:
        return known[name]
    raise AttributeError(f"the simulator's MPI has no attribute {name!r}")


# ---- functions


def Wtime() -> float:
    """Return the running rank's clock, in virtual seconds."""
    return current_world().Wtime()


def Wtick() -> float:
    return 1e-9


def Get_processor_name() -> str:
    comm = current_world()
    return f"node{comm.kernel.wires.node[comm.me.number]}"


def Get_version() -> tuple[int, int]:
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    return "paceline.vmpi: simulated ranks in virtual time"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    return "paceline.vmpi", (0, 0, 0)


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return False


def Init() -> None:
    """Do nothing: MPI is initialized when a rank starts."""


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    return THREAD_MULTIPLE


def Query_thread() -> int:
    return THREAD_MULTIPLE


def Is_thread_main() -> bool:
    return True


def Finalize() -> None:
    """Do nothing: MPI ends when all ranks have ended."""


def Alloc_mem(size: int, info: Any = None) -> memoryview:
    return memoryview(bytearray(size))


def Free_mem(mem: Any) -> None:
    """Do nothing: Python frees the memory."""


def Get_error_class(errorcode: int) -> int:
    return errorcode


def Get_error_string(errorcode: int) -> str:
    known = {value: name for name, value in vars(_constants).items() if name.startswith("ERR_")}
    return f"MPI_{known.get(errorcode, 'SUCCESS')}"


def Compute_dims(nnodes: int, dims: int | list[int]) -> list[int]:
    """Return factors of `nnodes` that are as equal as possible, the largest first.

    >>> Compute_dims(12, 2), Compute_dims(12, [0, 3])
    ([4, 3], [4, 3])
    """
    wanted = [0] * dims if isinstance(dims, int) else list(dims)
    rest, more = divmod(nnodes, int(np.prod([each for each in wanted if each] or [1])))
    if more:
        raise ValueError(f"{nnodes} ranks cannot be laid out as {wanted}")
    free = [place for place, each in enumerate(wanted) if not each]
    found = [1] * len(free)
    factor = 2
    factors = []
    while rest > 1:
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
        factor += 1
    for each in reversed(factors):
        found[found.index(min(found))] *= each
    for place, each in zip(free, sorted(found, reverse=True), strict=True):
        wanted[place] = each
    return wanted
