"""MPI started and ended by hand around a part of a program: before and after it there is none."""

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

MOMENT = 0.5  # seconds for rank 0 to say why all leave
LONG = 10.0  # the same where a launcher ends all ranks with the first that leaves, and rank 0 may be late


@contextlib.contextmanager
def by_hand(MPI: Any) -> Iterator[Any]:
    """Start MPI, give a communicator of all ranks that is nobody else's, and end MPI.

    For a program that was told `mpi4py.rc(initialize=False, finalize=False)`; `MPI` is its `mpi4py.MPI`. Inside, a rank
    that fails ends them all, and each rank has its share of the cores' threads, or fewer where it was given fewer. A
    refusal that every rank makes (`AgreedError`) is one line on stderr and exit status 2, MPI being ended first. MPI that
    somebody else has started is used as it is and left running.

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI

        with by_hand(MPI) as comm:
            comm.Allreduce(mine, total)
    """
    from paceline.launch.resources import held_to

    own = not MPI.Is_initialized()
    try:
        if MPI.Is_finalized():
            raise UsageError("MPI has been ended in this process, and cannot be started a second time")
        if own:
            with prepared(*MPI.get_vendor()):
                MPI.Init_thread()  # Init would ask for one thread: MPICH then waits in a way that is slow on shared cores
    except UsageError as error:
        refuse(error)
    try:
        verify(MPI.COMM_WORLD.Get_size())
        comm = MPI.COMM_WORLD.Dup()
        with abort_on_error(comm), held_to(min(threads_of_rank(comm), _given())):
            try:
                yield comm
            except SystemExit as leaving:
                if isinstance(leaving.code, int) and leaving.code != 0:
                    _say(f"rank {comm.rank} of {comm.size} left with sys.exit({leaving.code})")
                raise
        comm.Free()
    except UsageError as error:
        _say_first(error)  # the others wait for it in Finalize
        raise SystemExit(2) from None
    finally:
        if own:
            MPI.Finalize()


def refuse(why: object) -> NoReturn:
    """End every rank with status 2, without MPI, each having found the same to be wrong: rank 0 says what, once.

    Open MPI's mpiexec ends all ranks with the first that leaves, so that the others wait until rank 0 has spoken, however
    late it comes; other launchers let it come.
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
    """The threads that this process's pools have so far."""
    from threadpoolctl import threadpool_info

    return max((int(pool["num_threads"]) for pool in threadpool_info()), default=sys.maxsize)
