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

import math
import threading
from typing import Any, NoReturn

import mpi4py
from greenlet import getcurrent

from paceline.vmpi import buffers as _buffers
from paceline.vmpi import constants as _constants
from paceline.vmpi.buffers import DATATYPES, Datatype
from paceline.vmpi.collectives import OPERATIONS, Op
from paceline.vmpi.communicator import (
    COMM_NULL,
    MESSAGE_NO_PROC,
    MESSAGE_NULL,
    SESSION_NULL,
    Comm,
    Pickle,
    Session,
    current_pickle,
    current_world,
    make_comm,
)
from paceline.vmpi.communicator import MatchedMessage as Message
from paceline.vmpi.constants import THREAD_MULTIPLE, special_numbers
from paceline.vmpi.errors import MPIError as Exception  # noqa: A004 (mpi4py's name)
from paceline.vmpi.errors import error_codes as _error_codes
from paceline.vmpi.groups import GROUP_EMPTY, GROUP_NULL, CommState, Forming, Group, OwnState
from paceline.vmpi.handles import (
    ERRHANDLER_NULL,
    ERRORS_ABORT,
    ERRORS_ARE_FATAL,
    ERRORS_RETURN,
    INFO_ENV,
    INFO_NULL,
    Errhandler,
    Handle,
    Info,
    raise_unsupported,
)
from paceline.vmpi.handles import constants as _objects
from paceline.vmpi.intercommunicators import Intercomm
from paceline.vmpi.memory import (
    BOTTOM,
    BUFFER_AUTOMATIC,
    IN_PLACE,
    BottomType,
    BufferAutomaticType,
    InPlaceType,
    buffer,
    get_address,
)
from paceline.vmpi.requests import REQUEST_NULL, Status
from paceline.vmpi.requests import PublicGrequest as Grequest
from paceline.vmpi.requests import PublicPrequest as Prequest
from paceline.vmpi.requests import PublicRequest as Request
from paceline.vmpi.topologies import Cartcomm, Distgraphcomm, Graphcomm, Intracomm, Topocomm
from paceline.vmpi.windows import WIN_NULL
from paceline.vmpi.windows import Window as Win

__all__ = [
    "BOTTOM", "BUFFER_AUTOMATIC", "COMM_NULL", "COMM_SELF", "COMM_WORLD", "ERRHANDLER_NULL", "ERRORS_ABORT",
    "ERRORS_ARE_FATAL", "ERRORS_RETURN", "FILE_NULL", "GROUP_EMPTY", "GROUP_NULL", "INFO_ENV", "INFO_NULL", "IN_PLACE",
    "MESSAGE_NO_PROC", "MESSAGE_NULL", "REQUEST_NULL", "SESSION_NULL", "WIN_NULL", "BottomType", "BufferAutomaticType",
    "Cartcomm", "Comm", "Datatype", "Distgraphcomm", "Errhandler", "Exception", "File", "Graphcomm", "Grequest", "Group",
    "InPlaceType", "Info", "Intercomm", "Intracomm", "Message", "Op", "Pickle", "Prequest", "Request", "Session",
    "Status", "Topocomm", "Win", "buffer", "memory",
]  # fmt: skip


def enter(state: CommState, rank: int) -> Any:
    """Make a communicator the MPI.COMM_WORLD of the running rank."""
    state.permanent = True
    if state.kernel.forming is None:
        state.kernel.forming = Forming()
    running: Any = getcurrent()
    running.paceline_world = comm = make_comm(state, rank)
    return comm


def current_self() -> Any:
    """Return the MPI.COMM_SELF of the running rank."""
    running: Any = getcurrent()
    found = getattr(running, "paceline_self", None)
    if found is None:
        comm = current_world()
        state = CommState(comm.kernel, (comm.me.number,), "MPI_COMM_SELF")
        state.permanent = True
        running.paceline_self = found = make_comm(state, 0)
    return found


class WorldComm(Intracomm):
    """MPI.COMM_WORLD: one object for all ranks, which passes everything on to the running rank's communicator."""

    __slots__ = ()

    def __new__(cls) -> Any:
        return object.__new__(cls)

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


simulated = True
COMM_WORLD, COMM_SELF = WorldComm(), SelfComm()
memory = buffer
_typedict = _buffers.CODES
_objects.update(COMM_WORLD=COMM_WORLD, COMM_SELF=COMM_SELF)

globals().update(OPERATIONS)
globals().update(DATATYPES)
globals().update(
    {
        name: value
        for name, value in vars(_constants).items()
        if name.isupper()
        and name not in ("ANY_SOURCE", "ANY_TAG", "PROC_NULL", "FIRST_KEYVAL", "TAG_UB_VALUE")
    }
)


class File(Handle):
    """MPI.File: the simulator has no file system, so a file cannot be opened."""

    __slots__ = ("__weakref__",)

    def __init__(self, file: File | None = None) -> None:
        """Create the null file."""

    @classmethod
    def Open(cls, *arguments: Any, **options: Any) -> NoReturn:
        raise_unsupported("files")

    Delete = Open

    def Close(self) -> NoReturn:
        raise Exception("MPI_ERR_FILE: the null file cannot be closed", _constants.ERR_FILE)

    def Get_errhandler(self) -> Errhandler:
        return Errhandler(ERRORS_RETURN)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Do nothing: files raise no errors."""

    def Call_errhandler(self, errorcode: int) -> None:
        """Do nothing: files raise no errors."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File)

    __hash__ = None  # type: ignore[assignment]


FILE_NULL = File()
_objects["FILE_NULL"] = FILE_NULL
MODE_RDONLY, MODE_RDWR, MODE_WRONLY, MODE_CREATE, MODE_EXCL = 2, 8, 4, 1, 64
MODE_DELETE_ON_CLOSE, MODE_UNIQUE_OPEN, MODE_SEQUENTIAL, MODE_APPEND = 16, 32, 256, 128
SEEK_SET, SEEK_CUR, SEEK_END, DISPLACEMENT_CURRENT = 600, 602, 604, -54278278
DISP_CUR = DISPLACEMENT_CURRENT


def numbers() -> dict[str, int]:
    """Return the constants that differ between MPI implementations, with their current values."""
    found = special_numbers()
    return {"ANY_SOURCE": found.any_source, "ANY_TAG": found.any_tag, "PROC_NULL": found.proc_null}


def __getattr__(name: str) -> Any:
    if name == "pickle":
        return current_pickle()
    known = numbers()
    if name in known:
        return known[name]
    raise AttributeError(f"the simulator's MPI has no attribute {name!r}")


# ---- functions


def _comm_lock_table(comm: Comm) -> dict[Any, threading.Lock]:
    """Return the locks of a rank's communicator, which collectives of objects take while they are under way."""
    own: OwnState = comm.state.own_of(comm.place)
    if own.locks is None:
        own.locks = {}
    return own.locks


def _comm_lock(comm: Comm, key: Any = None) -> threading.Lock:
    """Return the lock of a rank's communicator with this name."""
    return _comm_lock_table(comm).setdefault(key, threading.Lock())


# What mpi4py.util needs: a duplicate of a communicator, on which no message of the program can be mistaken for its own.


def _context(comm: Any, *, connects: bool) -> list[Any]:
    """Return [duplicate, local communicator, True if in its second group, tag of the next operation] of a rank's."""
    own: OwnState = comm.state.own_of(comm.place)
    if own.context is None:
        double, local, second = comm.Dup(), None, False
        if connects:
            second = double.members != double.state.groups[0]
            both = double.Merge(second)
            local = both.Split(int(second))
            both.Free()
        own.context = [double, local, second, 0]
    own.context[-1] = (own.context[-1] + 1) % _constants.TAG_UB_VALUE
    return own.context


def _commctx_intra(comm: Any) -> tuple[Any, int]:
    """Return the duplicate of an intracommunicator, and a tag for an operation."""
    double, *_, tag = _context(comm, connects=False)
    return double, tag


def _commctx_inter(comm: Any) -> tuple[Any, int, Any, bool]:
    """Return the duplicate of an intercommunicator, a tag, a communicator of this rank's group, and if it is the first."""
    double, local, second, tag = _context(comm, connects=True)
    return double, tag, local, not second


def _typecode(datatype: Datatype) -> str | None:
    """Return the character or string of a predefined datatype; None for any other."""
    try:
        return datatype.tocode()
    except ValueError:
        return None


def _typealign(datatype: Datatype) -> int | None:
    """Return the alignment of a predefined datatype; None for any other."""
    return datatype.layout.alignment if datatype.layout is not None and datatype.is_predefined else None


def Wtime() -> float:
    """Return the running rank's clock, in virtual seconds; it advances in a loop that waits for it."""
    me = current_world().me
    me.kernel.look(me)
    now: float = me.t
    return now


def Wtick() -> float:
    return 1e-9


def Get_processor_name() -> str:
    comm = current_world()
    return f"node{comm.kernel.wires.node[comm.me.number]}"


def Get_version() -> tuple[int, int]:
    return _constants.VERSION, _constants.SUBVERSION


def Get_library_version() -> str:
    return "paceline.vmpi: simulated ranks in virtual time"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    return "paceline.vmpi", (0, 0, 0)


def Is_initialized() -> bool:
    """Return True, unless the program has set `mpi4py.rc.initialize` to False and this rank has not called Init yet."""
    if getattr(getcurrent(), "paceline_phase", ""):
        return True
    settings = getattr(mpi4py, "rc", None)  # which a program may have deleted
    return getattr(settings, "initialize", True) is not False


def Is_finalized() -> bool:
    return getattr(getcurrent(), "paceline_phase", "") == "finalized"


def Init() -> None:
    """Note that the rank has called Init: the simulator itself starts when the ranks do."""
    running: Any = getcurrent()
    running.paceline_phase = "initialized"


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    Init()
    return THREAD_MULTIPLE


def Query_thread() -> int:
    return THREAD_MULTIPLE


def Is_thread_main() -> bool:
    return True


def Finalize() -> None:
    """Note that the rank has called Finalize: the simulator itself ends when all ranks have ended."""
    running: Any = getcurrent()
    running.paceline_phase = "finalized"


def Pcontrol(level: int) -> None:
    """Do nothing: the simulator has no profiler."""


def Get_hw_resource_info() -> Any:
    return Info.Create({"mpi_shared_memory": "true"})


# ---- memory


def Alloc_mem(size: int, info: Any = None) -> buffer:
    if size < 0:
        raise Exception(f"MPI_ERR_ARG: a number of bytes must be at least 0; got {size}", _constants.ERR_ARG)
    return buffer.allocate(size)


def Free_mem(mem: Any) -> None:
    if isinstance(mem, buffer):
        mem.release()


def Get_address(location: Any) -> int:
    return get_address(location)


def Aint_add(base: int, disp: int) -> int:
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    return addr1 - addr2


def Attach_buffer(buf: Any) -> None:
    current_self().Attach_buffer(buf)


def Detach_buffer() -> Any:
    return current_self().Detach_buffer()


def Flush_buffer() -> None:
    """Do nothing: the simulator has sent what was buffered."""


def Iflush_buffer() -> Any:
    return current_self().Iflush_buffer()


# ---- errors


def Get_error_class(errorcode: int) -> int:
    _check_error(errorcode)
    return _error_codes.class_of(errorcode)


def Get_error_string(errorcode: int) -> str:
    _check_error(errorcode)
    return _error_codes.describe(errorcode)


def _check_error(errorcode: int) -> None:
    if not 0 <= errorcode <= max(_error_codes.latest, _constants.ERR_LASTCODE):
        raise Exception(f"MPI_ERR_ARG: there is no error number {errorcode}", _constants.ERR_ARG)


def Add_error_class() -> int:
    return _error_codes.add()


def Add_error_code(errorclass: int) -> int:
    return _error_codes.add(errorclass)


def Add_error_string(errorcode: int, string: str) -> None:
    _error_codes.texts[errorcode] = string


def Remove_error_class(errorclass: int) -> None:
    _error_codes.remove(errorclass, is_class=True)


def Remove_error_code(errorcode: int) -> None:
    _error_codes.remove(errorcode, is_class=False)


def Remove_error_string(errorcode: int) -> None:
    if _error_codes.texts.pop(errorcode, None) is None:
        raise Exception(f"MPI_ERR_ARG: error {errorcode} has no text that was added", _constants.ERR_ARG)


# ---- what the simulator does not have


def Open_port(info: Any = None) -> NoReturn:
    raise_unsupported("connections between programs")


Close_port = Publish_name = Unpublish_name = Lookup_name = Open_port


def Register_datarep(*arguments: Any) -> NoReturn:
    raise_unsupported("files")


def Compute_dims(nnodes: int, dims: int | list[int]) -> list[int]:
    """Return factors of `nnodes` that are as equal as possible, the largest first.

    >>> Compute_dims(12, 2), Compute_dims(12, [0, 3])
    ([4, 3], [4, 3])
    """
    if isinstance(dims, int) and dims < 0:
        raise ValueError(f"the number of dimensions must be at least 0; got {dims}")
    wanted = [0] * dims if isinstance(dims, int) else list(dims)
    fixed = math.prod(each for each in wanted if each)
    if nnodes < 1 or min(wanted, default=0) < 0 or nnodes % fixed or (all(wanted) and nnodes != fixed):
        raise Exception(f"MPI_ERR_DIMS: {nnodes} ranks cannot be laid out as {wanted}", _constants.ERR_DIMS)
    rest = nnodes // fixed
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
