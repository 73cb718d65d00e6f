"""The guard around the work of every rank: a rank that fails ends the job at once and prints why."""

from __future__ import annotations

import array
import contextlib
import faulthandler
import io
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import AgreedError, StoppedError, UsageError
from paceline.launch.signals import JOB_FOLDER
from paceline.launch.world import world

AGREEMENT = 1.0  # seconds for the other ranks to end in the same way
MOMENT = 0.05  # seconds within which several failures count as one
PATIENCE = 5.0  # seconds that a rank waits for the others to end
GOOD, LEFT, REFUSED = range(3)  # how a rank ends
DELIVERY = 0.2  # seconds for the launcher to pass on the last output: it may end the job before it reads it


def write_whole_lines() -> None:
    """Let this rank write its output line by line, also with PYTHONUNBUFFERED.

    That writes a line in parts, and the launcher may put those of other ranks between them.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.write_through:
            stream.reconfigure(line_buffering=True, write_through=False)


@contextlib.contextmanager
def abort_on_error(comm: Any, *, usage_errors: bool = True) -> Iterator[None]:
    """End every rank of `comm` when one raises an exception, with its number and traceback on stderr.

    Otherwise the other ranks would wait for ever in whatever exchange they are. Ctrl-C ends the job with 130. What all
    ranks raise together (AgreedError, StoppedError) passes: each rank can end by itself. Other UsageErrors become one
    line and status 2 or, with `usage_errors=False`, pass if every rank raises one. `sys.exit` passes too; but if only
    some ranks exit with a status other than 0, or a rank exits with 0 while others go on, all ranks are ended, because
    they would wait for it.

    >>> with abort_on_error(None):
    ...     pass
    """
    if comm is None or comm.Get_size() == 1:
        yield
        return
    if (own := getattr(comm, "guard", None)) is not None:  # not MPI's: it ends its job itself
        with own():
            yield
        return
    forget_segments(comm)
    write_whole_lines()
    apart = comm.Dup()  # its messages cannot be confused with those of the work
    try:
        yield
    except (AgreedError, StoppedError):
        _all_end(apart, GOOD, AGREEMENT)
        raise
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        if status == 0 and not _all_end(apart, GOOD, PATIENCE):
            _say(
                f"rank {comm.Get_rank()} of {comm.Get_size()} called sys.exit while others went on; they are ended"
            )
            _abort(comm, 1)
        if status != 0 and not _all_end(apart, LEFT, AGREEMENT):
            if isinstance(leaving.code, str):
                _say(leaving.code)
            _abort(comm, status)
        raise
    except KeyboardInterrupt:
        if _is_first(apart):
            _say(
                f"rank {comm.Get_rank()} of {comm.Get_size()} on {os.uname().nodename} was interrupted (signal 2)"
            )
        _abort(comm, 130)
    except UsageError as error:
        if not usage_errors and _all_end(apart, REFUSED, AGREEMENT):
            raise
        if _is_first(apart):
            _say(f"paceline: rank {comm.Get_rank()}: {error}")
        else:
            time.sleep(PATIENCE)
        _abort(comm, 2)
    except BaseException as error:
        if _tells_of_death(error):  # and this rank cannot go on
            if is_first_to_say("lost"):
                _say("a rank has died, and the others cannot go on without it: they are ended")
            _abort(comm, 1)  # Open MPI would take the status of a signal for a death to be tolerated
        text = traceback.format_exc()
        if _is_first(apart):
            _say(f"rank {comm.Get_rank()} of {comm.Get_size()} on {os.uname().nodename} failed:\n{text}")
        else:
            time.sleep(PATIENCE)
        _abort(comm, 1)
    if _survivors:  # the others are not waited for
        return
    _all_end(apart, GOOD, None)
    announce_end()
    apart.Free()


@contextlib.contextmanager
def watch_each_other() -> Iterator[None]:
    """Tell the supervisor of this job that in this block the ranks themselves notice that one makes no progress."""
    if JOB_FOLDER not in os.environ:
        yield
        return
    mark = Path(os.environ[JOB_FOLDER], "watched", str(os.getpid()))
    with contextlib.suppress(OSError):  # it is on another machine
        mark.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def announce_start() -> None:
    """Tell the supervisor of this job that this rank has started MPI."""
    if JOB_FOLDER in os.environ:
        with contextlib.suppress(OSError):  # it is on another machine
            Path(os.environ[JOB_FOLDER], "started", str(os.getpid())).touch()


def announce_end() -> None:
    """Tell the supervisor of this job that all ranks have done their work."""
    if JOB_FOLDER in os.environ:
        with contextlib.suppress(OSError):
            Path(os.environ[JOB_FOLDER], "done").touch()


def is_first_to_say(what: str) -> bool:
    """Return True on one rank of this job (on each machine): that which is to print what several would.

    >>> is_first_to_say("anything")  # there is no job
    True
    """
    if JOB_FOLDER not in os.environ:
        return True
    try:
        Path(os.environ[JOB_FOLDER], f"said-{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # it is on another machine
        return True
    return True


_survivors: list[Any] = []


def note_survivors(comm: Any) -> None:
    """Note that ranks of this job have died, and that those of `comm` go on."""
    _survivors[:] = [comm]


def survivors(comm: Any) -> Any:
    """Return the communicator of the ranks that are left of those of `comm`: `comm` itself if none has died."""
    return _survivors[0] if _survivors else comm


def leave_survivors(status: int) -> None:
    """End this process if ranks of its job have died: MPI itself might wait for them. Collective on the survivors."""
    if _survivors:
        sys.stdout.flush()
        sys.stderr.flush()
        _survivors[0].Barrier()
        os._exit(status)


def forget_segments(comm: Any) -> None:
    """Unlink MPICH's segments in /dev/shm once every rank of the job has mapped them.

    The memory is then freed with the last process that uses it, even if that is killed; a name would stay behind. `comm`
    is None if this process is alone.
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
    """Return True if every rank ends, and in the same way, within `patience` seconds."""
    until = None if patience is None else time.monotonic() + patience
    mine, extremes = array.array("i", [how, -how]), array.array("i", [0, 0])
    request = apart.Iallreduce(mine, extremes, sys.modules["mpi4py.MPI"].MAX)
    while not request.Test():
        if until is not None and time.monotonic() > until:
            return False
        time.sleep(0.0005)
    return extremes[0] == -extremes[1]


def _is_first(apart: Any) -> bool:
    """Return True on the rank that prints its error if several fail: the first; of those within a moment, the lowest."""
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


def _tells_of_death(error: BaseException) -> bool:
    """Return True for an error of MPI that says that another rank has died, or that one has noticed that (ULFM)."""
    kind, MPI = getattr(error, "Get_error_class", None), sys.modules.get("mpi4py.MPI")
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    return kind is not None and MPI is not None and kind() in {getattr(MPI, name, None) for name in names}


def _say(text: str) -> None:
    """Write text in one piece, so that the output of other ranks does not mix with it."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    data = text.rstrip("\n").encode(errors="replace") + b"\n"
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
    time.sleep(DELIVERY)


def end_ranks(comm: Any, status: int) -> NoReturn:
    """End this process and every other rank of `comm` at once, from any thread, even while another one is inside MPI.

    Ranks that cannot be reached end because their launcher ends them. `comm` is None if this process is alone.
    """
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    time.sleep(DELIVERY)
    if comm is None or comm.Get_size() == 1 or not hasattr(comm, "Abort"):
        os._exit(status)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=nowhere)  # if MPI does not return
        _abort(comm, status)


def _abort(comm: Any, status: int) -> NoReturn:
    """End every rank, without MPI's own messages about it."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    comm.Abort(status)
    os._exit(status)
