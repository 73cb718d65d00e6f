"""Sessions: MPI without MPI.COMM_WORLD. A simulated rank knows two sets of processes, the world and itself."""

from __future__ import annotations

from typing import Any

from paceline.vmpi.communicator import current_comm, detach_buffer
from paceline.vmpi.errors import mpi_error
from paceline.vmpi.groups import Group
from paceline.vmpi.handles import constants
from paceline.vmpi.information import Handled, Info, Settings
from paceline.vmpi.requests import Request

SETS = ("mpi://WORLD", "mpi://SELF")


class _SessionSettings(Settings):
    """What a rank has set on a session."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        super().__init__()
        self.buffer: Any = None


class Session(Handled):
    """A session of one rank: `Create_group` and `Intracomm.Create_from_group` lead from it to a communicator."""

    __slots__ = ("__weakref__", "_own")

    def __init__(self, session: Session | None = None) -> None:
        self._own: _SessionSettings | None = None if session is None else session._own

    @classmethod
    def Init(cls, info: Any = None, errhandler: Any = None) -> Session:
        found = cls()
        found._own = _SessionSettings()
        if errhandler:
            found.Set_errhandler(errhandler)
        return found

    def Finalize(self) -> None:
        self._settings()
        self._own = None

    def free(self) -> None:
        """End the session, unless it is null."""
        if self:
            self.Finalize()

    def _settings(self) -> _SessionSettings:
        if self._own is None:
            raise mpi_error("ERR_SESSION", "the session is null or has ended")
        return self._own

    def Get_info(self) -> Info:
        self._settings()
        found: Info = Info.Create({"thread_level": "MPI_THREAD_MULTIPLE"})
        return found

    def Get_num_psets(self, info: Any = None) -> int:
        self._settings()
        return len(SETS)

    def Get_nth_pset(self, n: int, info: Any = None) -> str:
        self._settings()
        if not 0 <= n < len(SETS):
            raise mpi_error("ERR_ARG", f"there are {len(SETS)} sets of processes; got number {n}")
        return SETS[n]

    def Get_pset_info(self, pset_name: str) -> Info:
        found: Info = Info.Create({"mpi_size": str(self.Create_group(pset_name).size)})
        return found

    def Create_group(self, pset_name: str) -> Group:
        self._settings()
        world = current_comm()
        if pset_name not in SETS:
            raise mpi_error(
                "ERR_ARG", f"unknown set of processes {pset_name!r}; choose one of {', '.join(SETS)}"
            )
        return world.Get_group() if pset_name == SETS[0] else Group((world.me.number,), world.me.number)

    def Attach_buffer(self, buf: Any) -> None:
        self._settings().buffer = buf

    def Detach_buffer(self) -> Any:
        return detach_buffer(self._settings())

    def Flush_buffer(self) -> None:
        """Do nothing: the simulator has sent what was buffered."""

    def Iflush_buffer(self) -> Request:
        request = Request(current_comm().me, "Iflush_buffer")
        request.done = True
        return request

    def __bool__(self) -> bool:
        return self._own is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and self._own is other._own

    __hash__ = None  # type: ignore[assignment]


SESSION_NULL = Session()
constants["SESSION_NULL"] = SESSION_NULL
