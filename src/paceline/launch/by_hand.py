"""Starting and ending MPI around a part of a program, for programs that control that themselves."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import UsageError
from paceline.launch.guard import _say, abort_on_error
from paceline.launch.prepare import prepared
from paceline.launch.resources import threads_of_rank
from paceline.launch.world import verify, world

MOMENT = 0.5  # seconds for rank 0 to print why all ranks exit
LONG = 10.0  # the same if the launcher ends all ranks when the first one exits, and rank 0 may be late


@contextlib.contextmanager
def by_hand(MPI: Any) -> Iterator[Any]:
    """Start MPI, yield a private communicator of all ranks, and end MPI.

    For a program that has set `mpi4py.rc(initialize=False, finalize=False)`; `MPI` is its `mpi4py.MPI`. Inside, a rank
    that fails ends all ranks, and each rank uses its share of the cores for its threads, or fewer if it was given fewer.
    An error that all ranks raise (`AgreedError`) becomes one line on stderr and exit status 2, after MPI has ended. If
    MPI is already running, it is used and left running.

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI

        with by_hand(MPI) as comm:
            comm.Allreduce(mine, total)
    """
    from paceline.launch.resources import limit_threads

    own = not MPI.Is_initialized()
    try:
        if MPI.Is_finalized():
            raise UsageError("MPI has already ended in this process and cannot be started again")
        if own:
            with prepared(*MPI.get_vendor()):
                MPI.Init_thread()  # not Init: with one thread, MPICH waits in a way that is slow on shared cores
    except UsageError as error:
        refuse(error)
    try:
        verify(MPI.COMM_WORLD.Get_size())
        comm = MPI.COMM_WORLD.Dup()
        with abort_on_error(comm), limit_threads(min(threads_of_rank(comm), _given())):
            try:
                yield comm
            except SystemExit as leaving:
                if isinstance(leaving.code, int) and leaving.code != 0:
                    _say(f"rank {comm.rank} of {comm.size} called sys.exit({leaving.code})")
                raise
        comm.Free()
    except UsageError as error:
        _say_first(error)  # the others wait in Finalize
        raise SystemExit(2) from None
    finally:
        if own:
            MPI.Finalize()


def refuse(why: object) -> NoReturn:
    """End this rank with status 2, without MPI, after an error that every rank finds; only rank 0 prints it.

    Open MPI's mpiexec ends all ranks when the first one exits, so the others wait until rank 0 has printed the error.
    """
    here = world()
    _say_first(why)
    if here is not None and here.rank != 0:
        time.sleep(LONG if here.launcher == "mpiexec of Open MPI" else MOMENT)
    raise SystemExit(2)


def _say_first(error: object) -> None:
    here = world()
    if here is None or here.rank == 0:
        _say(f"{Path(sys.argv[0]).name or 'paceline'}: {error}")


def _given() -> int:
    """Return the number of threads that this process's pools have now."""
    from threadpoolctl import threadpool_info

    return max((int(pool["num_threads"]) for pool in threadpool_info()), default=sys.maxsize)
