"""How the ranks of a job end: all at once if one fails, and after they have saved their work if they are asked to stop.

`abort_on_error` is the guard around the work of every rank: a rank that fails ends the job at once and prints why.

SIGINT (Ctrl-C), SIGTERM and SIGUSR1 (Slurm's `--signal`) ask a process to save its training and end; the next one ends
the process at once. `StopRequests` is the block of a training process in which they do. `run` passes those that it
receives on to the ranks of its job: each rank has a file in the job's folder that says that it understands them (see
`supervise`).

A rank may be inside MPI when a signal arrives, and Python would run a handler only after that call. So a thread reads
the signals' numbers from a pipe, which the interpreter fills as they arrive.
"""

from __future__ import annotations

import array
import contextlib
import faulthandler
import io
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from paceline.errors import AgreedError, StoppedError, UsageError
from paceline.launch.world import World, launcher_process, world

JOB_FOLDER = "PACELINE_JOB_FOLDER"
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
        with _mark_work():
            yield
    except (AgreedError, StoppedError):
        _all_end(apart, GOOD, AGREEMENT)
        raise
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        alone = not (_all_end(apart, LEFT, AGREEMENT) if status else _all_end(apart, GOOD, PATIENCE))
        if alone and isinstance(leaving.code, str):
            _say(leaving.code)
        elif alone:
            call = f"sys.exit({status})" if status else "sys.exit"
            _say(
                f"rank {comm.Get_rank()} of {comm.Get_size()} called {call} while others continued; they are ended"
            )
        if alone:
            _abort(comm, status or 1)
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
                _say("a rank has died, and the others cannot continue without it: they are ended")
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


def watch_each_other() -> contextlib.AbstractContextManager[None]:
    """Tell the supervisor of this job that in this block the ranks themselves notice that one makes no progress."""
    return _mark("watched", str(os.getpid()))


def _mark_work() -> contextlib.AbstractContextManager[None]:
    """Tell the process that started this job which of its ranks are in this block: one that vanishes never leaves it."""
    here = world()
    return contextlib.nullcontext() if here is None else _mark(f"working-{here.rank}")


@contextlib.contextmanager
def _mark(*path: str) -> Iterator[None]:
    """Keep an empty file in the job's folder during this block, if this process has been started for a job."""
    if JOB_FOLDER not in os.environ:
        yield
        return
    mark = Path(os.environ[JOB_FOLDER], *path)
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
    names = {name for name in _list_mapped() if name.startswith("/dev/shm/mpich_shm_")}
    if comm is not None:
        if here is None or comm.Get_size() != here.size:
            return
        comm.Barrier()
    for name in names:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _list_mapped() -> set[str]:
    """Return the files in /dev/shm that this process has mapped."""
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


# ---- requests to stop

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
TOGETHER = 0.3  # seconds within which signals count as one: some senders, like timeout, send it twice
# Seconds after which a rank speaks of a signal. Other ranks of the node may have received it, too; and when a rank dies,
# Open MPI's mpiexec ends the others with SIGTERM, a quarter of a second before SIGKILL: of that it speaks itself.
SPEAK_AFTER = 0.5
BEFORE, TRAINING, AFTER = range(3)


def name_of_signal(number: int) -> str:
    """Return a signal's number and name.

    >>> name_of_signal(15)
    'signal 15 (Terminated)'
    """
    return f"signal {number} ({signal.strsignal(number)})"


def is_default(handler: Any) -> bool:
    """Return True if a signal has the handler that every Python program starts with."""
    return handler in (signal.SIG_DFL, signal.default_int_handler)


class StopRequests:
    """A block in which signals ask this process to stop, unless the program has handlers of its own for them.

    Inside it, `pass_to(ask)` is the block that trains: the first signal calls `ask(number)`, which must return at once.
    Before it the first signal ends the process, because there is nothing to save. After it the first signal is ignored:
    the run is over, and its results are being written. The second signal always ends the process.

    `own_process`: True if the process exists only for this training. Then it ends with 128 + the signal. In a user's
    program a KeyboardInterrupt is raised for SIGINT, and SystemExit for the others.

    >>> asked = []
    >>> with StopRequests(own_process=False) as requests, requests.pass_to(asked.append):
    ...     signal.raise_signal(signal.SIGTERM)
    >>> asked
    [15]
    """

    def __init__(self, *, own_process: bool) -> None:
        self.first = 0  # the first signal that was received
        self.rank: World | None = world() if own_process else None
        self._own = own_process
        self._when = 0.0
        self._phase = BEFORE
        self._ask: Callable[[int], None] | None = None
        self._handlers: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._receipt: socket.socket | None = None
        self._untold = ""
        self._job = Path(os.environ[JOB_FOLDER]) if self.rank and JOB_FOLDER in os.environ else None

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the main thread's
        if self.rank is not None:
            self._listen()
        handler = self._note if self._pipe is not None else self._receive
        for number in REQUESTS:
            if is_default(signal.getsignal(number)):
                self._handlers[number] = signal.signal(number, handler)
        if self._job is not None:
            with contextlib.suppress(OSError):  # the folder is on another machine
                (self._job / "stoppable" / str(os.getpid())).touch()
            if self._read_relayed():  # before this process was ready
                signal.raise_signal(signal.SIGTERM)
        return self

    def __exit__(self, *_: object) -> None:
        self._tell()
        if self._job is not None and not self.first:  # what has been received is kept for the supervisor
            with contextlib.suppress(OSError):
                (self._job / "stoppable" / str(os.getpid())).unlink()
        elif self._job is not None:
            with contextlib.suppress(OSError):
                (self._job / "left" / str(os.getpid())).touch()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe[1])  # the thread ends
            self._pipe = None

    @contextlib.contextmanager
    def pass_to(self, ask: Callable[[int], None] | None) -> Iterator[None]:
        """Inside the block, call `ask` with the first signal; None: what runs there cannot be stopped, and is ended."""
        self._ask, self._phase = ask, TRAINING
        try:
            yield
        finally:
            self._ask, self._phase = None, AFTER
            self._tell()

    def _listen(self) -> None:
        """Start the thread that reads the signals."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:  # another library's: a handler must do
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._pipe = reading, writing
        threading.Thread(target=self._read, args=(reading,), name="paceline-signals", daemon=True).start()

    def _read(self, pipe: int) -> None:
        """Handle signals as they arrive, and speak of the first one after a moment."""
        while True:
            patience = max(0.0, self._when + SPEAK_AFTER - time.monotonic()) if self._untold else None
            if not select.select([pipe], [], [], patience)[0]:
                self._tell()
            elif numbers := os.read(pipe, 64):
                for number in numbers:
                    if number in self._handlers:
                        self._receive(number)
            else:
                os.close(pipe)
                return

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: the thread has been told."""

    def _receive(self, number: int, frame: FrameType | None = None) -> None:
        """Pass the first signal on; end this process at a later one."""
        relayed = self._read_relayed()
        number = relayed or number
        if self.first:
            if time.monotonic() - self._when > TOGETHER:
                self._end(self.first, told=bool(relayed))
            return
        self.first, self._when = number, time.monotonic()
        if self.rank is not None:
            self._receipt = _receipt(self.rank.local_rank)
        if self._job is not None and not relayed:
            with contextlib.suppress(OSError):
                (self._job / "stoppable" / str(os.getpid())).write_text(str(number))
        if self._phase == BEFORE:
            self._end(number, " before training began", told=bool(relayed))
        if self._ask is not None:
            self._ask(number)
        elif self._phase == TRAINING:
            self._end(number, "; nothing was saved", told=False)
        if self.rank is not None and not relayed:
            does = "stops after a checkpoint" if self._phase == TRAINING else "is over, and writes its record"
            self._untold = f"received {name_of_signal(number)}; the run {does}"

    def _read_relayed(self) -> int:
        """Return the signal that the process which started the job has received and passed on; 0: none."""
        if self._job is None:
            return 0
        try:
            return int((self._job / "stop").read_text())
        except (OSError, ValueError):
            return 0

    def _end(self, number: int, when: str = "", *, told: bool) -> None:
        """End the process at once; `told`: another one says so."""
        if self.rank is not None:
            if told and when and self.rank.rank == 0:
                _write(f"ended{when}")
            if told:  # the first to exit ends the others
                time.sleep(DELIVERY if self.rank.rank == 0 else SPEAK_AFTER)
            else:
                time.sleep(max(0.0, self._when + SPEAK_AFTER - time.monotonic()))
                self._untold = f"was ended by {name_of_signal(number)}{when}"
                self._tell()
                time.sleep(DELIVERY)
            os._exit(128 + number)
        self.__exit__()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._own:
            _write(f"ended by {name_of_signal(number)}{when}")
        raise SystemExit(128 + number)

    def _tell(self) -> None:
        """Say what happened to this rank, unless a lower rank of the node has received the same signal and says it."""
        what, self._untold, rank = self._untold, "", self.rank
        if rank is None or not what:
            return
        here = f"on {os.uname().nodename}"
        others = [_has_receipt(other) for other in range(rank.local_size) if other != rank.local_rank]
        if any(others[: rank.local_rank]):
            return
        if others and all(others):
            _write(f"all {rank.local_size} ranks {here} {what.replace('was ended', 'were ended')}")
        else:
            _write(f"rank {rank.rank} {here} {what}")


# The ranks of a node tell each other which of them have received a signal by names in the kernel (abstract sockets),
# which vanish with the process.


def _receipt_name(local_rank: int) -> str:
    return f"\0paceline-signal-{launcher_process()}-{local_rank}"


def _receipt(local_rank: int) -> socket.socket:
    """Take the name that says that this rank has received a signal; it is kept until the process ends."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        name.bind(_receipt_name(local_rank))
    return name


def _has_receipt(local_rank: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        try:
            name.connect(_receipt_name(local_rank))
        except OSError:
            return False
    return True


def announce_run(folder: Path) -> None:
    """Tell the process that started this job where its run is recorded."""
    if JOB_FOLDER in os.environ:
        with contextlib.suppress(OSError):  # it is on another machine
            Path(os.environ[JOB_FOLDER], "run").write_bytes(os.fsencode(folder.absolute()))


def announce_failure() -> None:
    """Tell the process that started this job that a program has failed while it trained."""
    if JOB_FOLDER in os.environ:
        with contextlib.suppress(OSError):
            Path(os.environ[JOB_FOLDER], "failed").touch()


def _write(text: str) -> None:
    """Write a line in one piece."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


def leave(number: int) -> NoReturn:
    """End a program that a signal has asked to stop: raise KeyboardInterrupt for SIGINT, SystemExit for others.

    >>> leave(15)
    Traceback (most recent call last):
    SystemExit: 143
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
