"""The communicators that a program finds without being given one: those of the simulated rank that is running."""

from __future__ import annotations

from typing import Any

from greenlet import getcurrent

from paceline.vmpi.communicator import Comm
from paceline.vmpi.groups import Group


def entered(comm: Comm) -> Comm:
    """From now on the running rank's world is `comm`."""
    getcurrent().paceline_world = comm
    return comm


def world() -> Comm:
    """The communicator of all simulated ranks, of the one that is running."""
    found: Comm | None = getattr(getcurrent(), "paceline_world", None)
    if found is None:
        raise RuntimeError(
            "only a simulated rank has an MPI.COMM_WORLD here: use it in the function given to sim.run"
        )
    return found


def own() -> Comm:
    """The communicator of the running rank alone."""
    running: Any = getcurrent()
    found: Comm | None = getattr(running, "paceline_self", None)
    if found is None:
        comm = world()
        found = Comm(Group(comm.kernel, (comm.me.number,), "MPI_COMM_SELF"), 0)
        running.paceline_self = found
    return found


class World(Comm):
    """MPI.COMM_WORLD: one object for all ranks, which is for each of them its own communicator."""

    __slots__ = ()

    def __init__(self) -> None:
        """Nothing of its own."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else getattr(world(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(world(), name, value)


class Own(World):
    """MPI.COMM_SELF."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else getattr(own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(own(), name, value)
