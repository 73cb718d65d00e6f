"""Requests to stop: the signals that ask a process to save its training and end.

SIGINT (Ctrl-C), SIGTERM and SIGUSR1 (Slurm's `--signal`) ask; the next one ends the process at once. `StopRequests` is the
block of a training process in which they do. `run` passes those that it receives on to the ranks of its job: each rank
has a file in the job's folder that says that it understands them (see `supervise`).

A rank may be inside MPI when a signal arrives, and Python would run a handler only after that call. So a thread reads
the signals' numbers from a pipe, which the interpreter fills as they arrive.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from paceline.launch.world import World, launcher_process, world

JOB_FOLDER = "PACELINE_JOB_FOLDER"
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
TOGETHER = 0.3  # seconds within which signals count as one: some senders, like timeout, send it twice
# Seconds after which a rank speaks of a signal. Other ranks of the node may have received it, too; and when a rank dies,
# Open MPI's mpiexec ends the others with SIGTERM, a quarter of a second before SIGKILL: of that it speaks itself.
MOMENT = 0.5
DELIVERY = 0.2  # seconds for the launcher to pass on the last output
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

    Inside it, `passed_to(ask)` is the block that trains: the first signal calls `ask(number)`, which must return at once.
    Before it the first signal ends the process, because there is nothing to save. After it the first signal is ignored:
    the run is over, and its results are being written. The second signal always ends the process.

    `own_process`: True if the process exists only for this training. Then it ends with 128 + the signal. In a user's
    program a KeyboardInterrupt is raised for SIGINT, and SystemExit for the others.

    >>> asked = []
    >>> with StopRequests(own_process=False) as requests, requests.passed_to(asked.append):
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
        handler = self._note if self._pipe is not None else self._came
        for number in REQUESTS:
            if is_default(signal.getsignal(number)):
                self._handlers[number] = signal.signal(number, handler)
        if self._job is not None:
            with contextlib.suppress(OSError):  # the folder is on another machine
                (self._job / "stoppable" / str(os.getpid())).touch()
            if self._relayed():  # before this process was ready
                signal.raise_signal(signal.SIGTERM)
        return self

    def __exit__(self, *_: object) -> None:
        self._tell()
        if self._job is not None and not self.first:  # what has been received is kept for the supervisor
            with contextlib.suppress(OSError):
                (self._job / "stoppable" / str(os.getpid())).unlink()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe[1])  # the thread ends
            self._pipe = None

    @contextlib.contextmanager
    def passed_to(self, ask: Callable[[int], None] | None) -> Iterator[None]:
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
            patience = max(0.0, self._when + MOMENT - time.monotonic()) if self._untold else None
            if not select.select([pipe], [], [], patience)[0]:
                self._tell()
            elif numbers := os.read(pipe, 64):
                for number in numbers:
                    if number in self._handlers:
                        self._came(number)
            else:
                os.close(pipe)
                return

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Do nothing: the thread has been told."""

    def _came(self, number: int, frame: FrameType | None = None) -> None:
        relayed = self._relayed()
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

    def _relayed(self) -> int:
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
            if told:
                time.sleep(DELIVERY if self.rank.rank == 0 else MOMENT)  # the first to exit ends the others
            else:
                time.sleep(max(0.0, self._when + MOMENT - time.monotonic()))
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
