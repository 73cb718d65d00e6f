"""Running a job: its output passed on, its end made sure of, its exit status kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from paceline.launch.banners import Banners
from paceline.launch.command import allocated_nodes, mpiexec
from paceline.launch.cores import reserved
from paceline.launch.cores import variables as core_variables
from paceline.launch.processes import processes
from paceline.launch.resources import threads_per_rank

SUPERVISOR = Path(__file__).with_name("supervise.py")
PREFIX = "paceline-job-"
# A launcher gives rank 0 a pipe that never ends, also where its own input is empty: what reads it would wait.
NO_INPUT = ("/bin/sh", "-c", 'exec "$@" < /dev/null', "sh")
WIPE = b"\r\x1b[K"  # takes back what is on a terminal's line
LONG_LINE = 4096
UNFINISHED = 0.2  # seconds that the beginning of a launcher's paragraph is held back


def run(
    ranks: int,
    command: Sequence[str],
    *,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    time_limit: float | None = None,
    bind: bool = False,
    one_node: bool = False,
    launcher: Literal["mpi", "torch"] = "mpi",
) -> int:
    """Runs `command` on `ranks` ranks and returns the exit status: the ranks' own, or 128 + the signal.

    The ranks' output goes to this process's stdout and stderr as it comes, or line by line to `on_line`.
    SIGINT and SIGTERM end the whole job (130, 143), and so do the death of this process and `time_limit`
    seconds (124). Nothing of the job is left: no process, no segment in /dev/shm, no temporary file. With `bind`
    idle cores are reserved for the ranks, which go to them with `take_cores`. With `one_node` they stay on this node of a
    Slurm allocation. With `launcher="torch"` the ranks are
    processes of this machine without MPI, and `command` must be `python -m module …`.

    >>> run(2, [sys.executable, "-c", "print('hello')"], on_line=print)
    hello
    hello
    0
    """
    wanted = ranks * threads_per_rank(ranks, threads)
    alone = one_node or allocated_nodes() == 1
    reservation = reserved(wanted) if bind and alone else contextlib.nullcontext()
    with _standard_streams(), _folder() as (folder, lock), reservation as cores:
        given = {**(environment or {}), **core_variables(cores)}
        if launcher == "torch":
            argv, variables = processes(ranks, command, threads, folder=folder, environment=given)
        else:
            argv, variables = mpiexec(
                ranks, [*NO_INPUT, *command], threads, folder=folder, environment=given,
                crowded=cores is None and bind, one_node=one_node, terminal=on_line is None and os.isatty(2),
            )  # fmt: skip
        supervisor = [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), str(lock), str(folder)]
        told = None
        late = None if time_limit is None else time.monotonic() + time_limit
        with _Signals() as signals:
            job = subprocess.Popen(
                [*supervisor, *argv], env=variables, pass_fds=(lock,), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            )  # fmt: skip
            with job:
                streams = [_Stream(job.stdout, 1, on_line), _Stream(job.stderr, 2, on_line)]
                signals.end(job)
                try:
                    told = _relay(job, streams, late)
                except BrokenPipeError:  # nobody reads this process's output any more
                    signals.received.append(signal.SIGPIPE)
                    job.terminate()
                except BaseException:
                    job.terminate()
                    raise
                status = job.wait()
            for stream in streams if status == 0 else ():
                stream.pass_on(stream.last)
            if signals.received or status != 0:
                streams[1].end_line()
            quiet = told is None and not any(stream.spoke for stream in streams)
            if not signals.received and status > 128 and quiet and (late is None or time.monotonic() < late):
                streams[1].pass_on(
                    f"a rank was ended by {_name(status - 128)}\n".encode()
                )  # the launcher says nothing
            if not signals.received and status < 0:
                streams[1].pass_on(
                    f"the job's supervisor was ended by {_name(-status)}; the job ended with it\n".encode()
                )
    if signals.received:
        return 128 + signals.received[0]
    if late is not None and time.monotonic() > late:
        return 124
    if told is not None:
        return told
    return status if status >= 0 else 128 - status


def _name(number: int) -> str:
    return f"signal {number} ({signal.strsignal(number)})"


def _relay(job: subprocess.Popen[bytes], streams: list[_Stream], late: float | None) -> int | None:
    """Passes the job's output on until it ends; the exit status, if the launcher has said more than its own."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.source, selectors.EVENT_READ, stream)
        while selector.get_map():
            patience = UNFINISHED if any(stream.banners.holds for stream in streams) else None
            if late is not None:
                patience = min(patience or 1.0, 1.0)
                if time.monotonic() > late:
                    job.terminate()
            ready = selector.select(patience)
            for key, _ in ready:
                if data := os.read(key.fd, 65536):
                    key.data.pass_on(key.data.banners.feed(data))
                else:
                    selector.unregister(key.fd)
                    key.data.finish()
            if not ready:
                for stream in streams:
                    stream.pass_on(stream.banners.flush())
    return next((stream.banners.status for stream in streams if stream.banners.status is not None), None)


class _Stream:
    """One of the job's two outputs on its way out."""

    def __init__(self, source: IO[bytes] | None, target: int, on_line: Callable[[str], None] | None) -> None:
        assert source is not None
        self.source = source.fileno()
        self.target = target
        self.on_line = on_line
        self.banners = Banners()
        self.line = b""  # what has no end yet
        self.spoke = False
        self.last = b""

    def pass_on(self, data: bytes, *, end: bool = False) -> None:
        self.spoke |= bool(data.strip())
        if self.on_line is None:
            self.line = (self.line + data)[-LONG_LINE:].rpartition(b"\n")[2]
            while data:
                data = data[os.write(self.target, data) :]
            return
        *lines, self.line = (self.line + data).split(b"\n")
        if end and self.line:
            lines.append(self.line)
        for line in lines:
            self.on_line(line.decode(errors="replace"))

    def finish(self) -> None:
        """Nothing more comes. An empty line may have been the first of a launcher's paragraph: how it ended will tell."""
        rest = self.banners.flush(end=True)
        self.last = rest if rest == b"\n" else b""
        self.pass_on(b"" if self.last else rest, end=True)

    def end_line(self) -> None:
        """What stands unfinished on a terminal, like a bar, stays as it is: what comes next begins below it."""
        words = self.line.rpartition(WIPE)[2].split(b"\r")[-2:]  # a bar is taken back by blanks and a return
        if self.on_line is None and b"".join(words).strip() and os.isatty(self.target):
            with contextlib.suppress(OSError):
                self.pass_on(b"\n")


class _Signals:
    """While inside, Ctrl-C and SIGTERM end a job and not this process. They may come before the job is known."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.job: subprocess.Popen[bytes] | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self.before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def end(self, job: subprocess.Popen[bytes]) -> None:
        """This is the job that signals end, those too that have come already."""
        self.job = job
        if self.received:
            job.terminate()

    def _came(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self.job is not None:
            self.job.terminate()


@contextlib.contextmanager
def _standard_streams() -> Iterator[None]:
    """Where the caller has closed one of its three (`2>&-`), what is opened next would be taken for it."""
    opened: list[int] = []
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        opened.append(number)
    os.close(number)
    try:
        yield
    finally:
        for number in opened:
            os.close(number)


@contextlib.contextmanager
def _folder() -> Iterator[tuple[Path, int]]:
    """A folder of the job's own in shared memory, and the locked file in it that says that it is in use."""
    parent = Path("/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else tempfile.gettempdir())
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder, lock
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)  # gone already, unless the job never started


def _sweep(parent: Path) -> None:
    """Removes the folders of jobs whose supervisor was killed."""
    for folder in parent.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < 60:
                continue
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
