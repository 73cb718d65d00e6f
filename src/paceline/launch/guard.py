"""What every rank of a job runs inside: a rank that fails ends the job at once, and says why."""

from __future__ import annotations

import array
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import AgreedError, UsageError
from paceline.launch.world import world

AGREEMENT = 1.0  # seconds for the other ranks to come to the same end
MOMENT = 0.05  # seconds within which failures count as one
PATIENCE = 5.0  # seconds that a rank waits for another one's end, of the job or of its own work
GOOD, LEFT, REFUSED = range(3)  # how a rank comes to its end
DELIVERY = 0.2  # seconds for the launcher to pass on the last words: it may end the job before it reads them


@contextlib.contextmanager
def abort_on_error(comm: Any, *, usage_errors: bool = True) -> Iterator[None]:
    """An exception on any rank ends every rank of `comm`, with that rank's number and traceback on stderr.

    Without it the other ranks would wait for ever, in whatever exchange they are. Ctrl-C ends the job quietly
    with 130. Errors that all ranks have agreed on (AgreedError) pass: each rank can end by itself. Other
    UsageErrors are one line and status 2, or, with `usage_errors=False`, pass if every rank raises one.
    `sys.exit` passes too, except that a status other than 0 on some ranks only ends the others with it, and so
    does a rank that leaves with 0 while others do not come to their end: they would wait for it.

    >>> with abort_on_error(None):
    ...     pass
    """
    if comm is None or comm.Get_size() == 1:
        yield
        return
    if (own := getattr(comm, "guard", None)) is not None:  # not MPI's: it knows how its job is ended
        with own():
            yield
        return
    forget_segments(comm)
    apart = comm.Dup()  # nothing that the ranks still wait for can be mistaken for what is said here
    try:
        yield
    except AgreedError:
        _all_end(apart, GOOD, AGREEMENT)
        raise
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        if status == 0 and not _all_end(apart, GOOD, PATIENCE):
            _say(
                f"rank {comm.Get_rank()} of {comm.Get_size()} left with sys.exit while others went on; they are ended"
            )
            _abort(comm, 1)
        if status != 0 and not _all_end(apart, LEFT, AGREEMENT):
            if isinstance(leaving.code, str):
                _say(leaving.code)
            _abort(comm, status)
        raise
    except KeyboardInterrupt:
        _abort(comm, 130)
    except UsageError as error:
        if not usage_errors and _all_end(apart, REFUSED, AGREEMENT):
            raise
        if _is_first(apart):
            _say(f"paceline: rank {comm.Get_rank()}: {error}")
        else:
            time.sleep(PATIENCE)
        _abort(comm, 2)
    except BaseException:
        text = traceback.format_exc()
        if _is_first(apart):
            _say(f"rank {comm.Get_rank()} of {comm.Get_size()} on {os.uname().nodename} failed:\n{text}")
        else:
            time.sleep(PATIENCE)
        _abort(comm, 1)
    _all_end(apart, GOOD, None)
    apart.Free()


def forget_segments(comm: Any) -> None:
    """Takes the names of MPICH's segments out of /dev/shm, once every rank of the job has them mapped.

    The memory goes with the last process that has it, however that ends; after a kill a name would stay.
    `comm` is None where this process is alone.
    """
    here = world()
    names = {name for name in _mapped() if name.startswith("/dev/shm/mpich_shm_")}
    if comm is not None:
        if here is None or comm.Get_size() != here.size:
            return
        comm.Barrier()
    for name in names:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _mapped() -> set[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}


def _all_end(apart: Any, how: int, patience: float | None) -> bool:
    """Whether every rank comes to its end, and to the same one, before patience ends."""
    until = None if patience is None else time.monotonic() + patience
    mine, extremes = array.array("i", [how, -how]), array.array("i", [0, 0])
    request = apart.Iallreduce(mine, extremes, sys.modules["mpi4py.MPI"].MAX)
    while not request.Test():
        if until is not None and time.monotonic() > until:
            return False
        time.sleep(0.0005)
    return extremes[0] == -extremes[1]


def _is_first(apart: Any) -> bool:
    """Where several ranks fail at once, one speaks: the first; of those within a moment, the lowest."""
    me, size = apart.Get_rank(), apart.Get_size()
    with contextlib.suppress(Exception):  # MPI itself may be what failed
        if apart.Iprobe():
            return False
        sent = [apart.Isend(bytearray(1), dest=other) for other in range(size) if other != me]
        until = time.monotonic() + MOMENT
        while time.monotonic() < until:
            if any(apart.Iprobe(source=other) for other in range(me)):
                return False
            time.sleep(0.001)
        del sent
    return True


def _say(text: str) -> None:
    """In one piece, so that no other rank's words come in between."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    data = text.rstrip("\n").encode(errors="replace") + b"\n"
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
    time.sleep(DELIVERY)


def _abort(comm: Any, status: int) -> NoReturn:
    """Ends every rank; MPI's own words about it go nowhere."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    comm.Abort(status)
    os._exit(status)
