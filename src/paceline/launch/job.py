"""Running a job on ranks: its output is passed on, it always ends, and its exit status is returned.

Launchers add paragraphs of their own when a rank fails; `Banners` removes those from the output and reads from them how
the ranks ended. A paragraph about a signal becomes one line, because the rank itself could print nothing. Everything else
passes at once and unchanged, unfinished lines too.

Ranks without MPI are started by `start_processes`, which is used instead of mpiexec. The processes are spawned (a fork
would copy locks that threads hold) and connected by pipes; the memory that they share is torch's. torch.multiprocessing
only adds the sending of tensors to Python's, so it is imported only where tensors are sent, which saves two seconds at
the start. The first process that fails ends the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import multiprocessing
import os
import re
import runpy
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from paceline.launch.guard import JOB_FOLDER, REQUESTS, TOGETHER, is_default, name_of_signal
from paceline.launch.hosts import Host, answering_hosts
from paceline.launch.library import allocated_nodes, clean, find, mpiexec
from paceline.launch.remote import LOST
from paceline.launch.resources import (
    check_ranks,
    core_variables,
    place_for_job,
    reserve_cores,
    take_cores,
    thread_variables,
    threads_per_rank,
)
from paceline.launch.supervise import KILLED

SUPERVISOR = Path(__file__).with_name("supervise.py")
PREFIX = "paceline-job-"
# A launcher gives rank 0 a pipe that never ends, even if its own input is empty: reading from it would wait for ever.
NO_INPUT = ("/bin/sh", "-c", 'exec "$@" < /dev/null', "sh")
ERASE = re.compile(rb"\x1b\[[02]?K")  # erases a line of a terminal
ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
REPEATED = re.compile(rb"(?m)^ ?\d+ more process(es have| has) sent help message help-mpi-ft[^\n]*\n")
LONG_LINE = 4096
UNEXPLAINED = 255  # MPICH's exit status if it loses the connection to a host
UNFINISHED = 0.2  # seconds for which the possible beginning of a launcher's paragraph is held back
# Seconds between two looks at signals and at the time limit. Python handles a signal that arrives just before a system call
# only when that call returns, so no call may wait for ever.
LOOK = 1.0


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
    hosts: Sequence[Host] = (),
    launcher: Literal["mpi", "torch"] = "mpi",
    also: Sequence[Path] = (),
    report: Callable[[JobOutcome], None] | None = None,
    survive: bool = False,
    stall_timeout: float | None = None,
    on_stall: str = "warn",
) -> int:
    """Run `command` on `ranks` ranks and return the exit status: the ranks' own, or 128 + the signal.

    The ranks' output goes to this process's stdout and stderr as it arrives, or line by line to `on_line`. SIGINT,
    SIGTERM and SIGUSR1 are passed on to ranks that can stop (`StopRequests`); a second one, or the first if there are no
    such ranks, ends the whole job at once (130, 143, 138). Handlers of the caller's own stay in place. The death of this
    process and `time_limit` seconds (124) end the job, too. Nothing of it is left behind: no process, no segment in
    /dev/shm, no temporary file; if this process is killed, the folders `also` are removed, too. With `bind`, idle cores
    are reserved for the ranks, which move to them with `take_cores`. With `one_node`, the ranks stay on this node of a
    Slurm allocation. With `hosts` (see `check_hosts`), they are started there, and are not bound. With
    `launcher="torch"`, they are processes of this machine without MPI, and `command` must be `python -m module ...`.
    `report` is called with a fuller account of how the job ended. With `survive`, ranks may go on when
    others die, if the MPI library can (Open MPI 5). A rank of this machine that is stopped (SIGSTOP) for `stall_timeout`
    seconds is reported or, unless `on_stall` is "warn", ended with the job (75), whenever the ranks do not watch each
    other (`watch_each_other`).

    >>> run(2, [sys.executable, "-c", "print('hello')"], on_line=print)
    hello
    hello
    0
    """
    nodes = 1 if one_node else len(hosts) or allocated_nodes()
    check_ranks(ranks, nodes)
    parent = place_for_job("torch" if launcher == "torch" else find().kind, -(-ranks // nodes))
    wanted = ranks * threads_per_rank(ranks, threads)
    alone = (one_node or allocated_nodes() == 1) and not hosts
    reservation = reserve_cores(wanted) if bind and alone else contextlib.nullcontext()
    with (
        _open_standard_streams(),
        job_folder(parent) as (folder, lock),
        reservation as cores,
        _duplicate_stderr(on_line) as stderr,
    ):
        given = {**(environment or {}), **core_variables(cores), JOB_FOLDER: str(folder)}
        survivable = survive and launcher == "mpi"
        stall = None if stall_timeout is None else f"{stall_timeout} {on_stall}"
        _prepare_folder(folder, ranks, also, alone=alone, survive=survivable, stall=stall)
        if launcher == "torch":
            argv, variables = process_command(ranks, command, threads, folder=folder, environment=given)
        else:
            argv, variables = mpiexec(
                ranks, [*NO_INPUT, *command], threads, folder=folder, environment=given,
                crowded=cores is None and bind and not hosts, one_node=one_node, hosts=hosts,
                terminal=on_line is None and os.isatty(2), survive=survive,
            )  # fmt: skip
        about = (os.getpid(), lock, folder, stderr)
        argv = [sys.executable, "-I", "-S", str(SUPERVISOR), *map(str, about), *argv]
        late = None if time_limit is None else time.monotonic() + time_limit
        with _Signals() as signals:
            end = _supervise(argv, variables, (lock, stderr), on_line, hosts, late, signals)
            end.explain(signals, hosts, folder)
            status = end.choose_status(signals, died=(folder / "said-lost").exists())
            outcome = JobOutcome(
                status=status, asked=signals.received[0] if signals.received else 0, run=_read_run(folder),
                dead=end.list_dead(folder), hosts=end.lost, cut=(folder / "cut").exists(),
                failed=(folder / "failed").exists(),
            )  # fmt: skip
    if report is not None:
        report(outcome)
    return status


def _prepare_folder(
    folder: Path, ranks: int, also: Sequence[Path], *, alone: bool, survive: bool, stall: str | None
) -> None:
    """Write into a job's folder what its supervisor and its ranks look for there.

    `alone`: all ranks are on this machine; `survive` and `stall` (the seconds, and what to do) are only for such jobs.
    """
    for name in ("stoppable", "watched", "started", "left"):
        (folder / name).mkdir()
    (folder / "also").write_bytes(b"".join(os.fsencode(path) + b"\n" for path in also))
    (folder / "ranks").write_text(str(ranks))
    if not alone:
        (folder / "stoppable" / "elsewhere").touch()
    if alone and survive:
        (folder / "survive").touch()
    if alone and stall is not None:
        (folder / "stall").write_text(stall)


def _read_run(folder: Path) -> Path | None:
    """Return where the run of a job is recorded, if it said so."""
    recorded = folder / "run"
    return Path(os.fsdecode(recorded.read_bytes())) if recorded.exists() else None


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """How a job ended."""

    status: int
    """Its exit status, as `run` returns it."""
    asked: int
    """The signal that this process received and passed on to the job; 0: none."""
    dead: tuple[int, ...]
    """The ranks that were ended by signals, as far as the launcher names them."""
    hosts: tuple[str, ...]
    """The hosts that were lost."""
    cut: bool = False
    """True if mpiexec ended the ranks and did not pass on their last output."""
    failed: bool = False
    """True if a program has failed while it trained (`announce_failure`)."""
    run: Path | None
    """Where the run of this job is recorded, if it said so (`announce_run`)."""


def _supervise(
    argv: Sequence[str],
    variables: Mapping[str, str],
    descriptors: Sequence[int],
    on_line: Callable[[str], None] | None,
    hosts: Sequence[Host],
    late: float | None,
    signals: _Signals,
) -> _End:
    """Run a job's supervisor and pass on its output until it ends.

    `descriptors`: those that it inherits; negative ones are not open. `late`: when its time is up.
    """
    with signals.block():  # the supervisor starts with these signals blocked, so that it misses none
        job = subprocess.Popen(
            argv, env=variables, start_new_session=True, bufsize=0,
            pass_fds=[number for number in descriptors if number >= 0],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    reported, broken = None, False
    with job:
        names = {os.uname().nodename, *(host.name for host in hosts)}
        streams = [_Stream(job.stdout, 1, on_line, names), _Stream(job.stderr, 2, on_line, names)]
        streams[0].banners.say = streams[1].pass_on  # MPICH reports on stdout, which has results
        signals.pass_to(job)
        try:
            reported = _relay(job, streams, late, signals)
        except BrokenPipeError:  # this process's output is no longer read
            broken = True
            job.send_signal(signal.SIGHUP)
        except BaseException:
            job.send_signal(signal.SIGHUP)
            raise
        status = job.wait()
    expired = late is not None and time.monotonic() > late
    if broken:
        status, reported = 128 + signal.SIGPIPE, 128 + signal.SIGPIPE
    lost = tuple(dict.fromkeys(host for stream in streams for host in stream.banners.lost))
    return _End(status, reported, streams, broken=broken, expired=expired, lost=lost)


@dataclass
class _End:
    """The end of a job's supervisor, and what its output says about the ranks."""

    status: int
    """The supervisor's."""
    reported: int | None
    """The exit status that the launcher reports, if it does."""
    streams: list[_Stream]
    _: KW_ONLY
    broken: bool
    """True if this process's output is no longer read."""
    expired: bool
    """True if the job's time was up."""
    lost: tuple[str, ...]
    """The hosts that were lost."""

    def explain(self, signals: _Signals, hosts: Sequence[Host], folder: Path) -> None:
        """Print what the user needs to know and nobody has printed."""
        status, streams = self.status, self.streams
        for stream in streams if status == 0 else ():
            stream.pass_on(stream.last)
        if not self.broken and (signals.received or status != 0):
            streams[1].end_line()
        if hosts and not self.lost and status == UNEXPLAINED and not signals.received:
            there = answering_hosts(hosts)
            self.lost = tuple(host.name for host in hosts if host not in there)
        quiet = self.reported is None and not self.lost and not any(stream.spoke for stream in streams)
        told = []
        if status < 0:
            told = [f"the job's supervisor was ended by {name_of_signal(-status)}; the job ended with it"]
        elif 128 < status < 128 + signal.NSIG and quiet and not self.expired:
            told = [f"a rank was ended by {name_of_signal(status - 128)}"]  # the launcher prints nothing
        banners = [stream.banners for stream in streams]
        if not (signals.received or self.expired or any(one.aborted for one in banners)):
            told += [
                f"rank {rank} ended with status {code} in the middle of its work, without an error (os._exit?)"
                for rank, code in dict.fromkeys(left for one in banners for left in one.exits)
                if (folder / f"working-{rank}").exists()
            ]
        if not signals.received:
            told += [f"host {host} is lost, and the ranks there with it" for host in self.lost]
        for line in told if not self.broken else ():
            streams[1].pass_on(f"{line}\n".encode())

    def list_dead(self, folder: Path) -> tuple[int, ...]:
        """Return the ranks that were ended by signals, as far as they are known."""
        dead = [rank for stream in self.streams for rank in stream.banners.dead]
        if (folder / "dead").exists():  # of processes without MPI
            dead.append(int((folder / "dead").read_text()))
        return tuple(dead)

    def choose_status(self, signals: _Signals, *, died: bool) -> int:
        """Return the exit status of the job; `died`: a rank has died without which the others could not go on."""
        status, asked = self.status, signals.received[0] if signals.received else 0
        if self.expired:
            status = 124
        elif self.lost and not asked:
            status = 1
        elif died and not asked:
            status = KILLED
        elif self.reported is not None and not (asked and status == 128 + asked):
            status = self.reported
        status = status if status >= 0 else 128 - status
        if asked and status == 128 + signal.SIGUSR1:  # which mpiexec passes on to ranks elsewhere
            status = 128 + asked
        return status


def _relay(
    job: subprocess.Popen[bytes], streams: list[_Stream], late: float | None, signals: _Signals
) -> int | None:
    """Pass the job's output on until it ends; return the exit status that the launcher reports, if it does."""
    noticed = 0  # signals
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.source, selectors.EVENT_READ, stream)
        while selector.get_map():
            if late is not None and time.monotonic() > late:
                job.send_signal(signal.SIGHUP)
                for stream in streams:
                    stream.banners.asked = True
            holds = any(stream.banners.holds for stream in streams)
            ready = selector.select(UNFINISHED if holds else LOOK)
            if len(signals.received) > noticed:
                noticed = len(signals.received)
                streams[1].end_line()  # the supervisor has something to say about it
                for stream in streams:
                    stream.banners.asked = True
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

    def __init__(
        self,
        source: IO[bytes] | None,
        target: int,
        on_line: Callable[[str], None] | None,
        hosts: Iterable[str] = (),
    ) -> None:
        assert source is not None
        self.source = source.fileno()
        self.target = target
        self.on_line = on_line
        self.banners = Banners(*hosts)
        self.line = b""  # the unfinished last line
        self.spoke = False
        self.last = b""

    def pass_on(self, data: bytes, *, end: bool = False) -> None:
        data = REPEATED.sub(b"", data)
        self.spoke |= bool(data.strip())
        if self.on_line is None:
            self.line = (self.line + data)[-LONG_LINE:].rpartition(b"\n")[2]
            try:
                while data:
                    data = data[os.write(self.target, data) :]
            except OSError as error:
                if self.target != 2 or isinstance(error, BrokenPipeError):
                    raise
                # The disk of a log is full: the job continues.
            return
        *lines, self.line = (self.line + data).split(b"\n")
        if end and self.line:
            lines.append(self.line)
        for line in lines:
            self.on_line(line.decode(errors="replace"))

    def finish(self) -> None:
        """Handle the end of the stream; whether an empty last line is a launcher's depends on the exit status."""
        rest = self.banners.flush(end=True)
        self.last = rest if rest == b"\n" else b""
        self.pass_on(b"" if self.last else rest, end=True)

    def end_line(self) -> None:
        """Leave an unfinished line on a terminal, like a progress bar, as it is: what comes next begins below it."""
        words = ESCAPE.sub(b"", ERASE.split(self.line)[-1]).split(b"\r")
        words = words[-2:]  # a bar may be erased with blanks
        if self.on_line is None and b"".join(words).strip() and os.isatty(self.target):
            with contextlib.suppress(OSError):
                self.pass_on(b"\n")


# What launchers print when a rank ends with an error: a paragraph about themselves, where the line that the rank itself
# printed is what the user needs. Only known paragraphs are removed.

DASHES = b"-" * 74 + b"\n"  # Open MPI's: above and below
EQUALS = b"=" * 83 + b"\n=   BAD TERMINATION"  # MPICH's, with an empty line above
LONGEST = 16384

DROPPED = re.compile(
    rb"(prterun|mpirun|mpiexec) (detected that one or more processes exited with non-zero status"
    rb"|has exited due to process rank)"
    rb"|MPI_ABORT was invoked on rank"
    rb"|Primary job +terminated normally, but"
    rb"|PMIX ERROR: PMIX_ERR_(UNREACH|LOST_CONNECTION|COMM_FAILURE) "
    rb"|An MPI communication peer process has unexpectedly disconnected"
    rb"|plm:(ssh|rsh): Warning: setpgid"
    rb"|pmix_ptl_base: send_msg: write failed"
    rb"|The selected '[^']*' module '[^']*' is (not|insuficiently) tested (for|in) post-failure"
    rb"|\[warn\] Epoll [A-Z]+\(\d+\) on fd \d+ failed\."
    rb"|Sending Ctrl-C to processes as requested|Press Ctrl-C again to force abort"
    # What Hydra's processes print about each other's end, but not about a program that cannot be started.
    rb"|^\[(proxy:|mpiexec@)[^]]*\] \w+ \([^)]*\): (assert \(!\w*closed\) failed|(sock )?(read|write) error"
    rb"|callback returned error|.*error waiting for|one of the processes terminated badly)",
)
LOST_HOST = re.compile(
    re.escape(LOST.encode()) + rb"(\S+)"
    rb"|lost communication with a remote daemon.*Remote daemon: \S+ on node (\S+)",
    re.DOTALL,
)
EXIT = re.compile(
    rb"Process name: \[\S+,(\d+)\]\s+Exit code: +(\d+)|process rank (\d+) with PID \d+ on node \S+ exiting"
)
SIGNAL = re.compile(rb"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)")
CODES = re.compile(rb"\] Exit codes: \[(\S+)\] ([\d,]+)\n")


class Banners:
    """A filter for one output stream: `feed` it what arrives, pass on what it returns, `flush` it when nothing more came.

    >>> stream = Banners()
    >>> stream.feed(b"loss 0.2\\r")
    b'loss 0.2\\r'
    >>> stream.feed(DASHES + b"MPI_ABORT was invoked on rank 1\\n" + DASHES + b"bye")
    b'bye'
    """

    def __init__(self, *hosts: str) -> None:
        hosts = hosts or (os.uname().nodename,)
        self._ends = {
            DASHES: DASHES,
            EQUALS: b"debugging suggestions\n",
            **{f"[{host}:".encode(): b"\n" for host in hosts},  # Open MPI's single lines
            **{f"[mpiexec@{host}]".encode(): b"\n" for host in hosts},  # MPICH's
            b"[proxy:": b"\n",
            LOST.encode(): b"\n",
            b"[warn] Epoll ": b"\n",  # Open MPI's event loop, when a rank's output closes as the job ends
        }
        self._start = re.compile(rb"\n?(" + b"|".join(re.escape(start) for start in self._ends) + b")")
        self._held = b""
        self._dropped = False
        self._fresh = True  # at the beginning of a line
        self.lost: list[str] = []  # hosts that no longer answer
        self.status: int | None = None
        """The exit status that the launcher reports, 128 + the signal if there was one."""
        self.dead: list[int] = []  # the ranks that a signal ended
        self.exits: list[tuple[int, int]] = []
        """The ranks that the launcher names because they ended by themselves, and their exit statuses."""
        self.aborted = False
        """True if a rank has called MPI_Abort."""
        self.say: Callable[[bytes], None] | None = None
        """Takes the line about a signal, if it is not passed on here."""
        self.asked = False  # the job was asked to stop: it is no news that ranks end by SIGTERM

    @property
    def holds(self) -> bool:
        """True if bytes are held back that must not wait long (an empty line may)."""
        return self._held not in (b"", b"\n")

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on now that `data` has arrived."""
        out = self._sort(data)
        self._fresh = out.endswith(b"\n") if out else self._fresh
        return out

    def flush(self, *, end: bool = False) -> bytes:
        """Return what was held back, since nothing more came, for a while or (`end`) at all.

        An empty line is held on: MPICH's paragraph comes a while after the empty line above it.
        """
        if not end and not self.holds:
            return b""
        held, self._held = self._held, b""
        if held.lstrip(b"\n").startswith(EQUALS):  # a paragraph that was cut short with its launcher
            held = b""
        self._fresh = held.endswith(b"\n") if held else self._fresh
        return held

    def _sort(self, data: bytes) -> bytes:
        held, out = self._held + data, b""
        while found := self._start.search(held):
            start = found[1]
            place = found.start(0 if start == EQUALS else 1)  # with the empty line above it
            out, held = out + held[:place], held[place:]
            end = held.find(self._ends[start], len(start))
            if end < 0 and len(held) <= LONGEST:
                self._held = held
                return out
            if end < 0:  # too long to be a launcher's paragraph
                out, held = out + held[: len(start)], held[len(start) :]
                continue
            end += len(self._ends[start])
            instead = self._judge(held[:end])
            self._dropped |= instead != held[:end]
            out, held = out + instead, held[end:]
        if self._dropped:
            held = held.replace(b"\0", b"")  # Open MPI ends its paragraph with one
        kept = max(_overlap(held, start) for start in self._ends)
        if 0 < kept < len(held) and held[-kept - 1 : -kept] == b"\n":
            kept += 1  # the empty line above goes with it
        if held.endswith(b"\n\n") or (held == b"\n" and self._fresh and not out):
            kept = 1
        self._held = held[len(held) - kept :]
        return out + held[: len(held) - kept]

    def _judge(self, block: bytes) -> bytes:
        """Return what is printed instead of a whole paragraph."""
        if match := LOST_HOST.search(block):
            self.lost.append(next(filter(None, match.groups())).decode())
            return b""
        if match := SIGNAL.search(block):
            self.dead.append(int(match[1]))
            return self._report_end(f"rank {match[1].decode()} on {match[2].decode()}", int(match[3]))
        if match := CODES.search(block):
            return self._read_codes(match[1].decode(), [int(code) for code in match[2].split(b",")])
        if match := EXIT.search(block):
            self.exits.append((int(match[1] or match[3]), int(match[2] or 0)))
        self.aborted |= b"MPI_ABORT was invoked" in block or b'calling\n"abort"' in block
        return b"" if block.lstrip(b"\n").startswith(EQUALS) or DROPPED.search(block) else block

    def _read_codes(self, host: str, codes: list[int]) -> bytes:
        """Read MPICH's list of wait statuses: which ranks ended by themselves, and which the launcher ended for that."""
        signals = {rank: os.WTERMSIG(code) for rank, code in enumerate(codes) if os.WIFSIGNALED(code)}
        exits = [os.WEXITSTATUS(code) for code in codes if os.WIFEXITED(code) and os.WEXITSTATUS(code)]
        own = [rank for rank, number in signals.items() if number not in (signal.SIGKILL, signal.SIGTERM)]
        if exits and not own:
            self.status = exits[0]
            self.exits.append(
                (next(rank for rank, code in enumerate(codes) if os.WEXITSTATUS(code)), exits[0])
            )
            return b""
        who = own or [rank for rank, number in signals.items() if number == signal.SIGKILL] or list(signals)
        if not who:
            return b""
        name = f"rank {who[0]}" if len(who) == 1 or own else "a rank"
        self.dead += who[:1]
        return self._report_end(f"{name} on {host}", signals[who[0]])

    def _report_end(self, who: str, number: int) -> bytes:
        """Report a rank that a signal ended; return what is printed instead of the launcher's own words."""
        self.status = 128 + number
        if number == signal.SIGTERM and self.asked:
            return b""
        why = "; the kernel does this when memory runs out" if number == signal.SIGKILL else ""
        line = f"{who} was ended by {name_of_signal(number)}{why}\n".encode()
        if self.say is None:
            return line
        self.say(line)
        return b""


def _overlap(data: bytes, start: bytes) -> int:
    """Return how many bytes at the end of `data` may be the beginning of `start`."""
    return next((n for n in range(min(len(start) - 1, len(data)), 0, -1) if data.endswith(start[:n])), 0)


class _Signals:
    """A block inside which requests to stop go to a job instead of this process, even before the job is known."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.at_once = False  # True if the job was told to end at once
        self.job: subprocess.Popen[bytes] | None = None
        self.before: dict[int, Any] = {}
        self.last = -math.inf

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in REQUESTS:
                if is_default(signal.getsignal(number)):
                    self.before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Block the signals inside the block; those that arrive are handled after it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*REQUESTS, signal.SIGHUP))
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def pass_to(self, job: subprocess.Popen[bytes]) -> None:
        """Set the job that signals go to, with those that have already arrived."""
        self.job = job
        if self.received:
            job.send_signal(signal.SIGHUP if self.at_once else self.received[0])

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the job; a second one ends it at once."""
        again = time.monotonic() - self.last > TOGETHER
        if self.received and not again:
            return
        self.at_once = bool(self.received)
        self.received.append(number)
        self.last = time.monotonic()
        if self.job is not None:
            self.job.send_signal(signal.SIGHUP if self.at_once else number)


@contextlib.contextmanager
def _duplicate_stderr(on_line: Callable[[str], None] | None) -> Iterator[int]:
    """Yield a second descriptor of this process's stderr, for what is to be said when this process is no more."""
    number = -1 if on_line is not None else os.dup(2)
    try:
        yield number
    finally:
        if number >= 0:
            os.close(number)


@contextlib.contextmanager
def _open_standard_streams() -> Iterator[None]:
    """Open the standard streams that the caller has closed (`2>&-`): the next file opened would be used as one."""
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
def job_folder(parent: Path) -> Iterator[tuple[Path, int]]:
    """Yield a folder for a job below `parent`, and the locked file that marks it as in use; remove unused ones."""
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder, lock
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove the folders of jobs whose processes were killed before they could do so."""
    for folder in parent.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < 60:
                continue
            # A process that was killed as soon as it had made the folder left no lock in it.
            with (folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


# ---- ranks without MPI

START_PROCESSES = "import sys; from paceline.launch.job import start_processes; sys.exit(start_processes())"


def process_command(
    ranks: int, command: Sequence[str], threads: int | None, *, folder: Path, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that start `python -m module ...` on `ranks` processes.

    >>> argv, variables = process_command(2, ["python", "-m", "paceline", "list"], 3, folder=Path("/tmp"), environment={})
    >>> argv[3:], variables["OMP_NUM_THREADS"]
    (['/tmp', '2', 'paceline', 'list'], '3')
    """
    python, _, *module = command
    variables = clean(dict(os.environ)) | thread_variables(threads_per_rank(ranks, threads), ranks)
    return [python, "-c", START_PROCESSES, str(folder), str(ranks), *module], variables | dict(environment)


def start_processes() -> int:
    """Start the processes, wait for all or for the first that fails, and return the exit status of the job."""
    folder, ranks, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    tempfile.tempdir = str(folder)  # multiprocessing's files are removed with the job, however it ends
    multiprocessing.util.get_temp_dir()
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(1, ranks)]
    started: list[Any] = []
    try:
        for rank in range(ranks):
            ends = [pipe[0] for pipe in pipes] if rank == 0 else [pipes[rank - 1][1]]
            process = spawn.Process(
                target=_run_rank, args=(rank, ranks, ends, folder, words), name=f"process {rank}"
            )
            process.start()
            started.append(process)
        for pipe in pipes:  # so that a pipe is closed when the process at its other end exits
            for end in pipe:
                end.close()
        return _wait_for_end([*started], ranks, folder)
    except KeyboardInterrupt:
        os.write(2, b"the process that starts the others was interrupted (signal 2); they were ended\n")
        return 128 + signal.SIGINT
    finally:
        for process in started:
            process.kill()


def _wait_for_end(running: list[Any], ranks: int, folder: Path) -> int:
    """Wait for all processes or for the first that fails; report one that a signal ended."""
    while running:
        wait([process.sentinel for process in running])
        for process in [one for one in running if one.exitcode is not None]:
            running.remove(process)
            if process.exitcode < 0:
                ended = name_of_signal(-process.exitcode)
                text = f"{process.name} of {ranks} was ended by {ended}; the others were ended with it\n"
                os.write(2, text.encode())
                (folder / "dead").write_text(process.name.rpartition(" ")[2])
                return 128 - int(process.exitcode)
            if process.exitcode > 0:
                return int(process.exitcode)
    return 0


def _run_rank(
    rank: int, ranks: int, ends: list[Connection[Any, Any]], folder: Path, words: list[str]
) -> None:
    """Run one process: what `python -m` would run, with a communicator."""
    os.environ.update(PACELINE_RANK=str(rank), PACELINE_SIZE=str(ranks))
    take_cores()
    from paceline.comm.torch_processes import TorchProcesses

    comm = TorchProcesses(rank, ends, ranks, folder)
    vars(multiprocessing.current_process())["communicator"] = comm
    sys.argv = words
    status: Any = 0
    with comm.guard():
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            status = leaving.code
    sys.stdout.flush()
    comm.Barrier()  # no process is ended because of another's exit status before all have printed
    sys.exit(status)
