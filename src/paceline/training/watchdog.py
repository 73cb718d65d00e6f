"""The watchdog: notices a rank that makes no progress, says which and where it is, and ends the run if that is wanted.

In every process of a run a thread looks at the training thread once a second: how many gradients it has computed, where in
the code it is, and whether it is waiting for other ranks. It only reads (attributes and `sys._current_frames`), so training
does nothing for it. `Observer` makes a `RankReport` of that.

The threads send their reports to rank 0's in UDP datagrams, each signed with the run's random key (`Watchdog`). There are
no connections that could break or must be closed, and a lost datagram is followed by another one a second later. Rank 0
answers with its own report. If it does not, the ranks turn to the lowest rank that answers, which takes over.

That rank judges the reports (`judge`): a rank is stalled if no report comes from it (it is stopped, its host or network is
lost), or if it makes no progress and does not wait for others. If all ranks wait, they wait for each other. What has taken
that long before is no stall: the time allowed is `--stall-timeout` plus the longest step so far. Nor is what takes long but
moves: evaluation, compilation in the first steps, reading data and writing the record.

Before all ranks have begun to watch and after one has ended, the launcher's supervisor notices a rank that is stopped.
The same messages carry a request to stop (`Worker.stop_asked`) from one rank to all.
"""

from __future__ import annotations

import fcntl
import gc
import hmac
import json
import linecache
import logging
import multiprocessing
import os
import re
import secrets
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline import launch, text
from paceline.comm.clocks import machine
from paceline.comm.control import broadcast_bytes
from paceline.comm.recording import COLLECTIVE_CALLS, RECEIVES, SENDS, WAITS, argument
from paceline.config import Safety
from paceline.errors import StoppedError, UsageError
from paceline.launch import STALLED
from paceline.record import Record, Run
from paceline.record.checkpoint import numbers
from paceline.training.resuming import describe_stop
from paceline.worker import Worker

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two looks at the training thread, and between two reports of a rank
REPORTS = 16  # that one rank receives in a second; with more ranks, each reports less often
BUSY = 10  # a rank whose code moves is allowed this many times as long
FIRST = 4  # gradients and steps during which the model may be compiled
SAVING = 120.0  # seconds for all ranks to save a checkpoint
REACH = 20.0  # seconds for the first message of every rank
PATIENCE = 5.0  # seconds that the thread may take to end
ROW = 256  # bytes of a rank's address
SHOWN = 8  # lines about waiting ranks in one message
WIDTH = 100  # characters of a line of code in it

# ---- what one rank says about itself


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What a rank is doing and since when; all times are in seconds, up to the moment of the report."""

    rank: int
    step: int = 0
    """The step of the run, from 0; -1 if the rank does not count steps: a master."""
    phase: str = "setup"
    """The kind of work on the rank's stopwatch; "setup" before and after training."""
    waiting: bool = False
    """True if the rank is in a call that waits for other ranks."""
    idle: float = 0.0
    """Time without progress."""
    still: float = 0.0
    """Time for which the code has not moved from where it is."""
    unbeaten: float = 0.0
    """Time without a gradient or a step."""
    longest: float = 0.0
    """The longest time between two gradients or steps of this rank so far."""
    line: str = ""
    """The line of the strategy."""
    inner: str = ""
    """The line that is being executed, if it is not the strategy's."""
    call: str = ""
    """The call in that line, if it is known."""
    peer: int | None = None
    """The rank that this one waits for, if the call says so."""
    standing: int = -1
    """See `Keeper.standing`."""
    replaces: bool = False
    """See `Worker.replaces`."""
    host: str = ""
    process: int = 0

    def where(self) -> str:
        """Describe the place in the code.

        >>> RankReport(rank=0, step=7, phase="wait", line="mine.py:3: comm.Recv(x, source=1)", call="Recv", peer=1).where()
        'in step 8, mine.py:3: comm.Recv(x, source=1), in Recv, which waits for rank 1'
        """
        when = "before or after training" if self.phase == "setup" else f"in step {self.step + 1:,}"
        line = [f"at {self.line}" if self.step < 0 else self.line] * bool(self.line)
        words = [*[when] * (self.step >= 0), *line]
        inner = f"{self.call} at {self.inner}" if self.call and self.inner else self.call or self.inner
        words += [f"in {inner}"] * bool(inner)
        words += [f"which waits for rank {self.peer}"] if self.peer is not None else []
        return ", ".join(words)


HOME = str(Path(paceline.__file__).parent) + os.sep
COMMUNICATING = tuple(HOME + package + os.sep for package in ("comm", "collectives"))
PIPES = str(Path(multiprocessing.__file__).parent) + os.sep
WRAPPERS = tuple(f"{COMMUNICATING[0]}{name}.py" for name in ("recording", "tracing"))
MPI_CALLS = frozenset(
    {*SENDS, *RECEIVES, *COLLECTIVE_CALLS, *WAITS, "Mprobe", "Dup", "Split", "Split_type", "Fence", "Free"}
)
DEBUGGERS = ("/bdb.py", "/pdb.py", "/pydevd.py")
CALL = re.compile(r"(\w+)?[\])]*\.(\w+)\(")
# The position of the rank that a call names.
PEERS = {
    **dict.fromkeys(("Send", "Ssend", "Rsend", "Bsend"), (1, "dest")),
    **dict.fromkeys(("Recv", "Probe"), (1, "source")),
    **{"Bcast": (1, "root"), "Scatter": (2, "root"), "Scatterv": (2, "root")},
}


class Observer:
    """Looks at the thread that trains, from another thread."""

    def __init__(self, rank: int, thread: int, now: float) -> None:
        self._rank, self._thread = rank, thread
        self._host = os.uname().nodename
        self._me: Worker | None = None
        self._sources: tuple[str, ...] = ()
        self._seen: tuple[Any, ...] = ()
        self._moved = self._advanced = self._beaten = now
        self._longest = 0.0

    def follow(self, me: Worker, strategy: Any) -> None:
        """Observe this worker from now on; `strategy` is what it runs."""
        self._sources = sources(strategy)
        self._me = me

    def forgive(self, now: float) -> None:
        """Begin to count anew: this process itself was stopped for a while."""
        self._moved = self._advanced = self._beaten = now

    def look(self, now: float, patience: float) -> RankReport:
        """Return what the training thread is doing now."""
        with pause_collection():
            return self._look(now, patience)

    def _look(self, now: float, patience: float) -> RankReport:
        me = self._me
        phase, beats, switched, step = "setup", 0, 0.0, 0
        if me is not None:
            phase, beats, switched, step = me.watch.kind, me.beats, me.watch.last, me.current_step
            step = -1 if step == 0 and beats > 1 else step
        frame = sys._current_frames().get(self._thread)
        stack = hash(tuple(_walk(frame)))
        before, self._seen = self._seen, (stack, switched, beats)
        if not before or stack != before[0]:
            self._moved = now
        moves_on = phase in ("setup", "evaluation") or beats < FIRST
        if not before or switched != before[1] or (moves_on and self._moved == now):
            self._advanced = now
        if not before or beats != before[2] or (moves_on and self._moved == now):
            gap, self._beaten = now - self._beaten, now
            if gap <= patience + self._longest:  # else it was a stall
                self._longest = max(self._longest, gap)
        report = RankReport(
            rank=self._rank, step=step, phase=phase, idle=now - self._advanced, still=now - self._moved,
            unbeaten=now - self._beaten, longest=self._longest, host=self._host, process=os.getpid(),
            standing=-1 if me is None or me.keeper is None else me.keeper.standing,
            replaces=me is not None and me.keeper is not None and me.replaces,
        )  # fmt: skip
        return replace(report, **_place(frame, self._sources, settled=report.still > 2 * EVERY))


@contextmanager
def pause_collection() -> Iterator[None]:
    """Keep the garbage collector from running in this block.

    CPython 3.11 makes the object of a frame when it is asked for, and that allocation may start a collection. Finalizers
    then run, and let the thread whose frame it is go on: when they return, the frame may be gone, and the process crashes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def sources(strategy: Any) -> tuple[str, ...]:
    """Return the files of a strategy and of those that it is derived from; the folder of one that is a package.

    >>> from paceline.strategies.sync import Sync
    >>> [Path(name).name for name in sources(Sync())]
    ['sync.py']
    """
    function = getattr(strategy, "func", strategy)
    if (code := getattr(function, "__code__", None)) is not None:
        return (code.co_filename,)
    modules = dict.fromkeys(kind.__module__ for kind in type(strategy).__mro__ if hasattr(kind, "train"))
    found = []
    for name in modules:
        file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        if not name.startswith("paceline.strategies._") and name != "paceline.strategies" and file.name:
            found.append(str(file.parent) + os.sep if file.name == "__init__.py" else str(file))
    return tuple(found)


def _walk(frame: FrameType | None) -> Iterable[tuple[int, int]]:
    while frame is not None:
        yield id(frame.f_code), frame.f_lasti
        frame = frame.f_back


def _place(frame: FrameType | None, source: tuple[str, ...], *, settled: bool) -> dict[str, Any]:
    """Return where a thread is, as fields of a Report.

    Source text is read for the files of paceline and of the strategy and, once the thread has `settled`, for any.
    Variables are read only from paceline's own wrappers of MPI calls, which keep nothing alive for long.
    """
    found: dict[str, Any] = {}
    while frame is not None:
        file = frame.f_code.co_filename
        if "waiting" not in found and not file.startswith(PIPES):
            found["waiting"] = file.startswith(COMMUNICATING)
        if file.endswith(DEBUGGERS):
            found["phase"] = "setup"
        if file in WRAPPERS:
            if "call" not in found:
                _read_wrapper(frame.f_locals, found)
        elif file.startswith(HOME) or file.startswith(source) or settled:
            line = frame.f_lineno or 0  # None within some instructions
            shown = f"{_shorten(file)}:{line}"
            words = linecache.getline(file, line, frame.f_globals).partition("  #")[0].strip()[:WIDTH]
            if "inner" not in found:
                found["inner"] = shown if file.startswith(HOME) else f"{shown}: {words}"
                calls = [name for on, name in CALL.findall(words) if _is_mpi(on, name)]
                if calls:
                    found["waiting"] = True
                    found.setdefault("call", calls[-1])
            if source and file.startswith(source):
                found["line"] = f"{shown}: {words}"
                if found["inner"].startswith(shown):
                    found["inner"] = ""
                break
        frame = frame.f_back
    return found


def _read_wrapper(variables: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Read the name of an MPI call, and the rank that it names, from the variables of a function that wraps it."""
    name = getattr(variables.get("call"), "__name__", "")
    if name in MPI_CALLS:
        found["call"] = name
        given = variables.get("given", variables.get("arguments", ()))
        position, word = PEERS.get(name, (99, ""))
        peer = argument(
            given, variables.get("named", {}), position, word, default=0 if word == "root" else None
        )
        if isinstance(peer, int) and peer >= 0:
            found["peer"] = peer


def _is_mpi(receiver: str, name: str) -> bool:
    """Return True if this is a call of MPI, or of mpi4py's calls for any object (`comm.recv`)."""
    small = name.capitalize() in MPI_CALLS and re.search("comm|req|world", receiver, re.IGNORECASE)
    return name in MPI_CALLS or bool(small)


def _shorten(file: str) -> str:
    for folder in (str(Path(HOME).parent) + os.sep, str(Path.cwd()) + os.sep):
        file = file.removeprefix(folder)
    return file


# ---- the verdict


class Heard(NamedTuple):
    """A rank's last report, and when it arrived; before the first, a report of nothing since the start."""

    report: RankReport
    at: float


class Stall(NamedTuple):
    """Ranks that hold up the run, with the time for which each has."""

    silent: dict[int, float]
    """Ranks from which no report comes."""
    stuck: dict[int, float]
    """Ranks that make no progress and do not wait for others."""
    deadlock: float
    """The time for which all ranks have been waiting for each other; 0: they do not."""

    @property
    def ranks(self) -> dict[int, float]:
        return self.silent | self.stuck


def judge(heard: Mapping[int, Heard], ranks: int, now: float, patience: float) -> Stall:
    """Return which of the ranks are stalled, given the last report of each.

    >>> report = RankReport(rank=0, phase="exchange", waiting=True, idle=9.0, still=9.0, unbeaten=9.0)
    >>> judge({0: Heard(report, 99.0), 1: Heard(replace(report, rank=1), 90.0)}, 2, now=100.0, patience=5.0)
    Stall(silent={1: 10.0}, stuck={}, deadlock=0.0)
    """
    allowed = patience + find_longest_step(heard)
    silent = {rank: now - last.at for rank, last in heard.items() if now - last.at > allowed}
    live = [last.report for rank, last in heard.items() if rank not in silent]
    stuck = {
        report.rank: report.idle
        for report in live
        if report.phase != "setup" and not report.waiting and report.idle > allowed
        if report.still > allowed or report.idle > BUSY * allowed
    }
    deadlock = 0.0
    if len(live) == ranks > 1 and not stuck:
        if all(report.waiting and min(report.idle, report.still) > allowed for report in live):
            deadlock = min(report.idle for report in live)
        elif all(report.unbeaten > BUSY * allowed and report.phase != "setup" for report in live):
            deadlock = min(report.unbeaten for report in live)  # some look for messages again and again
    return Stall(silent, stuck, deadlock)


def find_longest_step(heard: Mapping[int, Heard]) -> float:
    """Return the longest step of any rank so far."""
    return max((last.report.longest for last in heard.values()), default=0.0)


def describe(stall: Stall, heard: Mapping[int, Heard], states: Mapping[int, str]) -> str:
    """Return the message about a stall; `states` says what is known about the processes of silent ranks."""
    lines = []
    if stall.deadlock:
        waited = _seconds(stall.deadlock)
        lines = [f"no rank makes progress: all {len(heard)} have waited for each other for {waited}"]
        lines += _group_by_place({rank: last.report for rank, last in heard.items()})
        return "\n".join(lines)
    for rank, seconds in stall.ranks.items():
        report = heard[rank].report
        name = f"rank {rank} (process {report.process} on {report.host})"
        if rank in stall.silent:
            why = states.get(rank, "unknown")
            lines += [
                f"{name} has given no sign of life for {_seconds(seconds)}: {why}",
                f"  last seen {report.where()}",
            ]
        else:
            lines += [
                f"{name} has made no progress for {_seconds(seconds)}",
                f"  it is {report.where()}",
            ]
    waiting = {
        rank: last.report
        for rank, last in heard.items()
        if rank not in stall.ranks and last.report.waiting
        if 2 * last.report.idle > min(stall.ranks.values())  # not a master that waits for one of its workers
    }
    if waiting:
        lines += ["  waiting meanwhile:", *_group_by_place(waiting)]
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


def _group_by_place(reports: Mapping[int, RankReport]) -> list[str]:
    """Return one line for all ranks that are in the same place, with the time since the last of them came there."""
    places: dict[str, list[int]] = {}
    for rank, report in sorted(reports.items()):
        places.setdefault(report.where(), []).append(rank)
    lines = [
        f"  rank{'s' * (len(there) > 1)} {text.ranges(there)}: "
        f"for {_seconds(min(reports[rank].idle for rank in there))} {where}"
        for where, there in places.items()
    ]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  … and {len(lines) - SHOWN} other places"]


# ---- the thread and its messages


class Peers(NamedTuple):
    """The addresses of all ranks, and the key of their messages."""

    socket: socket.socket | None
    addresses: list[list[tuple[str, int]]]
    """Of every rank; several if it is unknown which of them can be reached."""
    here: list[bool]
    """True for ranks that this machine's loopback reaches."""
    processes: list[tuple[str, int]]
    """The host and the process of every rank."""
    key: bytes


def find_peers(comm: Any) -> Peers:
    """Open this rank's socket, and tell all ranks its address. Collective.

    Ranks of one machine use its loopback, which no other machine can reach.
    """
    mine = machine().strip()
    with suppress(OSError):  # containers of one machine cannot reach each other's loopback
        mine += "".join(f" {Path('/proc/self/ns', kind).stat().st_ino}" for kind in ("net", "pid"))
    nodes = _allgather(comm, mine)
    alone = len(set(nodes)) == 1
    addresses: list[tuple[str, int]] = []
    opened = None
    with suppress(OSError):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind(("127.0.0.1" if alone else "", 0))
        opened.setblocking(False)
        port = opened.getsockname()[1]
        addresses = [(host, port) for host in (["127.0.0.1"] if alone else interfaces())]
    if opened is not None and not addresses:
        opened.close()
        opened = None
    told = [
        json.loads(row)
        for row in _allgather(comm, json.dumps([addresses, os.uname().nodename[:60], os.getpid()]))
    ]
    return Peers(
        opened,
        [[(str(host), int(port)) for host, port in row[0]] for row in told],
        [node == mine for node in nodes],
        [(str(host), int(process)) for _, host, process in told],
        broadcast_bytes(comm, secrets.token_bytes(32)),
    )


def _allgather(comm: Any, words: str) -> list[str]:
    mine, rows = np.zeros(ROW, np.uint8), np.empty((comm.Get_size(), ROW), np.uint8)
    data = np.frombuffer(words.encode()[:ROW], np.uint8)
    mine[: data.size] = data
    comm.Allgather(mine, rows)
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]


def interfaces() -> list[str]:
    """Return the IPv4 addresses of this machine's interfaces, except the loopback; the first six."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                asked = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(asked[20:24]))
    return [address for address in found if not address.startswith("127.")][:6]


class Watchdog:
    """The watchdog of one process of a run, as a context manager around its training. Entering it is collective.

    >>> with Watchdog(None, Safety(stall_timeout="30s")) as watchdog:
    ...     watchdog.alive
    True
    >>> watchdog.alive
    False
    """

    def __init__(self, comm: Any, safety: Safety, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._comm, self._safety, self._clock = comm, safety, clock
        self._rank: int = 0 if comm is None else comm.Get_rank()
        self._ranks: int = 1 if comm is None else comm.Get_size()
        self._patience = safety.patience
        self._every = max(EVERY, self._ranks / REPORTS)
        if self._patience is not None:
            self._every = min(self._every, self._patience / 4)
        self._me: Worker | None = None
        self._folder: Path | None = None
        self._stop = 0
        self._peers: Peers | None = None
        self._heard: dict[int, Heard] = {}
        self._reached: dict[int, tuple[str, int]] = {}  # the address from which a rank's last message came
        self._gone: set[int] = set()
        self._checked = False
        # When the stalls that have been reported began, by rank; -1: that of all ranks.
        self._told: dict[int, float] = {}
        self._leader, self._answered, self._trusted, self._led = 0, clock(), True, clock()
        self._saved: dict[int, bool] = {}
        self._notes: dict[str, str] = {}  # remarks for the record, by what they are about
        self._observer = Observer(self._rank, threading.get_ident(), clock())
        self._thread = threading.Thread(target=self._run, name="paceline-watchdog", daemon=True)

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def __enter__(self) -> Watchdog:
        now = self._answered = self._led = self._clock()
        if self._ranks > 1:
            self._peers = peers = find_peers(self._comm)
            lost = [rank for rank, addresses in enumerate(peers.addresses) if not addresses]
            if peers.socket is None:
                self._leader = self._rank  # it can only judge itself
            else:
                reachable = (rank for rank in range(self._ranks) if peers.here[rank] and rank not in lost)
                for rank in reachable:
                    host, process = peers.processes[rank]
                    self._heard[rank] = Heard(RankReport(rank=rank, host=host, process=process), now)
        self._bell, self._ear = socket.socketpair()
        self._thread.start()
        return self

    @property
    def _socket(self) -> socket.socket | None:
        """The socket of this rank; None if it has none, or if there are no other ranks."""
        return None if self._peers is None else self._peers.socket

    def __exit__(self, *_: object) -> None:
        self._bell.close()
        self._thread.join(PATIENCE)
        if self.alive:  # it cannot print: its stderr is full
            return
        self._ear.close()
        for rank in range(self._ranks) if self._leader == self._rank else (self._leader,):
            self._send(rank, {"bye": self._rank})
        if self._socket is not None:
            self._socket.close()

    def follow(self, me: Worker, strategy: Any, folder: Path | None = None) -> None:
        """Observe the training of `me`, and set its `stop_asked` when another rank is asked to stop.

        `folder`: the run's.
        """
        self._me, self._folder = me, folder
        me.stop_asked = me.stop_asked or self._stop
        self._observer.follow(me, strategy)

    def forget(self, ranks: Collection[int]) -> None:
        """Expect nothing more of these ranks: they have ended."""
        self._gone |= set(ranks)

    # ---- the loop

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # training goes on without a watchdog
            log.warning("rank %d: the watchdog ends: %s: %s", self._rank, type(error).__name__, error)

    def _watch(self) -> None:
        patience = self._patience
        begun = due = reported = looked = self._clock()
        self._report = self._observer.look(looked, patience or 0.0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            if self._socket is not None:
                selector.register(self._socket, selectors.EVENT_READ)
            while True:
                ready = selector.select(max(0.0, due - self._clock()))
                if any(key.fileobj is self._ear for key, _ in ready):  # closed: training is over
                    return
                now = self._clock()
                if now - looked > EVERY + max(2 * EVERY, (patience or 0.0) / 2):
                    self._forgive(now)
                self._receive(now)
                if now < due:
                    continue
                looked, due = now, now + min(EVERY, self._every)
                self._report = self._observer.look(now, patience or 0.0)
                self._heard[self._rank] = Heard(self._report, now)
                if self._rank == 0 and not self._checked and now - begun > REACH:
                    self._say_unreached()
                asked = self._relay(0)
                if self._socket is not None and (asked or now - reported >= self._every - EVERY / 2):
                    reported = now
                    self._choose_leader(now)
                    self._send_report()
                    if asked:
                        self._spread()
                if patience is not None and self._leader == self._rank and now - self._led >= 4 * self._every:
                    self._judge(now, patience)

    def _forgive(self, now: float) -> None:
        """Begin to count anew after this process itself was stopped, perhaps together with all others."""
        self._observer.forgive(now)
        self._answered = now
        self._heard = {rank: last._replace(at=now) for rank, last in self._heard.items()}

    def _say_unreached(self) -> None:
        """Say, once, from which ranks no message has ever come."""
        self._checked = True
        lost = [rank for rank in range(self._ranks) if rank not in self._heard]
        if lost:
            words = f"rank{'s' * (len(lost) > 1)} {text.ranges(lost)}"
            log.warning("the watchdog cannot reach %s: a stall there will not be noticed", words)

    def _relay(self, number: int) -> bool:
        """Take over a request to stop, from this rank's worker or from another rank; return True if it is new."""
        me, before = self._me, self._stop
        self._stop = self._stop or number or (0 if me is None else me.stop_asked)
        if me is not None and self._stop and not me.stop_asked:
            me.stop_asked = self._stop
        return self._stop != before

    # ---- messages

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        if self._peers is None or self._peers.socket is None:
            return
        data = json.dumps({**message, "stop": self._stop, "leader": self._leader}).encode()
        data = hmac.digest(self._peers.key, data, "sha256") + data
        known = self._reached.get(rank)
        for address in [known] if known is not None else self._peers.addresses[rank]:
            with suppress(OSError):
                self._peers.socket.sendto(data, address)

    def _send_report(self) -> None:
        """Send this rank's report to the leader; as the leader, to the lower ranks that have not answered."""
        to = range(self._rank) if self._leader == self._rank else (self._leader,)
        for rank in to:
            if rank not in self._gone:
                self._send(rank, {"report": asdict(self._report), "notes": self._notes})

    def _answer(self, rank: int) -> None:
        self._send(rank, {"report": asdict(self._report), "answer": True})

    def _receive(self, now: float) -> None:
        """Handle all messages that have arrived."""
        if self._peers is None or self._peers.socket is None:
            return
        while True:
            try:
                data, address = self._peers.socket.recvfrom(65536)
            except OSError:
                return
            if not hmac.compare_digest(data[:32], hmac.digest(self._peers.key, data[32:], "sha256")):
                continue
            message = json.loads(data[32:])
            if "end" in message:
                self._end(None)
            if "save" in message:
                saved = self._save_own(message["save"])
                self._send(message["leader"], {"saved": [self._rank, saved]})
                continue
            if "saved" in message:
                rank, self._saved[rank] = message["saved"]
                continue
            if "bye" in message:
                self.forget([message["bye"]])
                continue
            theirs = RankReport(**message["report"])
            self._heard[theirs.rank] = Heard(theirs, now)
            self._reached[theirs.rank] = address
            asked = self._relay(message["stop"])
            if not message.get("answer"):
                self._note(message["notes"])
                self._answer(theirs.rank)
            elif theirs.rank <= self._leader:
                self._turn_to(theirs.rank, now)
                self._answered, self._trusted = now, True
                if message["leader"] < self._leader:  # it has an older leader again
                    self._turn_to(message["leader"], now)
            if asked:
                self._spread()

    def _spread(self) -> None:
        """As the leader, tell all ranks at once that the run is asked to stop."""
        for rank in range(self._ranks) if self._leader == self._rank else ():
            if rank != self._rank:
                self._answer(rank)

    def _choose_leader(self, now: float) -> None:
        """Turn to the next rank if the leader does not answer; the last resort is this rank itself."""
        assert self._peers is not None
        if self._leader >= self._rank or not (self._reached or self._peers.here[self._leader]):
            return
        allowed = (
            (self._patience or 60.0) + find_longest_step(self._heard) if self._trusted else 3 * self._every
        )
        if now - self._answered > allowed or self._leader in self._gone:
            self._turn_to(self._leader + 1, now)

    def _turn_to(self, leader: int, now: float) -> None:
        """Report to another rank from now on, or judge the others' reports if it is this one."""
        if leader == self._leader:
            return
        if leader in self._told:
            self._say_recovery(leader, now - self._told[leader])
        self._told.clear()
        self._leader, self._answered, self._trusted, self._led = leader, now, False, now
        if leader == self._rank:  # ranks that reported to others have not been silent
            self._heard = {
                rank: last if rank < self._rank and rank in self._reached else last._replace(at=now)
                for rank, last in self._heard.items()
            }

    def _note(self, notes: Mapping[str, str]) -> None:
        """Add remarks to the record, or correct them, if this is rank 0; else send them there with the next report."""
        for about, words in notes.items():
            before = self._notes.get(about)
            self._notes[about] = words
            if self._me is not None and self._me.rank == 0 and words != before:
                self._me.remarks[:] = [one for one in self._me.remarks if one != before] + [words]

    # ---- stalls

    def _judge(self, now: float, patience: float) -> None:
        heard = {rank: last for rank, last in self._heard.items() if rank not in self._gone}
        stall = judge(heard, self._ranks - len(self._gone), now, patience)
        states = {rank: self._state(rank) for rank in stall.silent}
        self._gone |= {rank for rank, state in states.items() if state == "ended"}
        for rank in [
            rank for rank in self._told if rank not in stall.ranks and (rank >= 0 or not stall.deadlock)
        ]:
            self._say_recovery(rank, now - self._told[rank])
            del self._told[rank]
        new = stall._replace(
            silent={r: t for r, t in stall.silent.items() if r not in self._told and r not in self._gone},
            stuck={r: t for r, t in stall.stuck.items() if r not in self._told},
        )
        if not new.ranks and not (new.deadlock and -1 not in self._told):
            return
        began = new.ranks or {-1: new.deadlock}
        self._told |= {rank: now - seconds for rank, seconds in began.items()}
        for rank, seconds in began.items():
            self._remark(rank, f"for {_seconds(seconds)} or more")
        log.warning("%s", describe(new, heard, states))
        if self._safety.on_stall != "warn":
            self._end(new)

    def _state(self, rank: int) -> str:
        """Return what the system says about the process of a silent rank, if it is on this machine."""
        report = self._heard[rank].report
        if self._peers is None or not self._peers.here[rank]:
            return "it is stopped, or its host or network is down"
        try:
            state = Path(f"/proc/{report.process}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return "ended"
        return {
            "T": "its process is stopped (SIGSTOP; `kill -CONT` continues it)",
            "t": "a debugger has stopped its process",
            "D": "its process waits for a disk or network file system",
            "Z": "ended",
            "X": "ended",
        }.get(state, "its process lives, but its code lets no other thread run")

    def _say_recovery(self, rank: int, seconds: float) -> None:
        who, goes = ("all ranks", "go") if rank < 0 else (f"rank {rank}", "goes")
        log.warning("%s %s on again after %s", who, goes, _seconds(seconds))
        self._remark(rank, f"for {_seconds(seconds)} and then went on")

    def _remark(self, rank: int, words: str) -> None:
        """Add a remark on the current stall of a rank, or of all (-1), instead of an earlier one."""
        who = "the ranks" if rank < 0 else f"rank {rank}"
        self._note({f"{rank} {self._told[rank]:.3f}": f"{who} made no progress {words}"})

    def _end(self, stall: Stall | None) -> None:
        """End the run; `stall` is None if another rank has said why."""
        if stall is not None:
            saved = self._safety.on_stall == "checkpoint-abort" and self._save(stall)
            words = f"the run ends with status {STALLED} (--on-stall {self._safety.on_stall})"
            log.warning("%s; %s", words, self._close_record(stall, saved))
            for rank in self._heard.keys() - stall.silent.keys() - {self._rank}:
                self._send(rank, {"end": True})
        launch.end_ranks(self._comm, STALLED)

    def _save(self, stall: Stall) -> bool:
        """Save a checkpoint of all ranks, if each that lives can be saved where it is; return True if that succeeded."""
        reports = [last.report for rank, last in self._heard.items() if rank not in stall.silent]
        standing = {report.standing for report in reports}
        if len(reports) + len(stall.silent) < self._ranks or len(standing) != 1 or -1 in standing:
            return False
        alone = standing == {-2}
        if stall.silent and not alone and not all(report.replaces for report in reports):
            return False
        others = {report.rank for report in reports if not (alone and report.waiting)} - {self._rank}
        for rank in others:
            self._send(rank, {"save": []})
        saved = self._save_own(sorted(stall.silent))
        until = self._clock() + SAVING
        while self._socket is not None and others - self._saved.keys() and self._clock() < until:
            time.sleep(0.05)
            self._receive(self._clock())
        return saved and all(self._saved.get(rank) for rank in others)

    def _save_own(self, absent: list[int]) -> bool:
        """Save this rank's state; if ranks are saved alone, wait until its batch has ended."""
        keeper = None if self._me is None else self._me.keeper
        if keeper is None:
            return False
        if keeper.standing != -2:
            try:
                return bool(keeper.save_standing(absent))
            except Exception as error:  # the run must end nevertheless
                log.warning("rank %d cannot be saved: %s: %s", self._rank, type(error).__name__, error)
                return False
        keeper.asked, written, until = True, keeper.saver.written, self._clock() + PATIENCE
        while keeper.saver.written == written and self._clock() < until:
            time.sleep(0.01)
        return bool(keeper.saver.written > written)

    def _close_record(self, stall: Stall, saved: bool) -> str:
        """Say in the run's folder why the run ends; return how to go on with it."""
        if self._folder is None or self._me is None:
            return "nothing was saved"
        if Run(self._folder).complete:
            return f"training was over, and its record is complete: {self._folder}"
        there = saved or bool(numbers(self._folder, 0))
        stopped = describe_stop(self._me, StoppedError(signal.SIGTERM, saved=saved), self._folder)
        who = text.ranges(sorted(stall.ranks)) if stall.ranks else "all"
        with suppress(OSError, UsageError):
            Record(self._folder).stop({**stopped, "signal": None, "stalled_ranks": who})
        resume = f"continue with: {stopped['resume']}"
        if saved:
            return f"a checkpoint has been saved; {resume}"
        return f"the last checkpoint is older; {resume}" if there else "there is no checkpoint"


@contextmanager
def watch_ranks(comm: Any, safety: Safety) -> Iterator[Watchdog | None]:
    """Watch the ranks of `comm` in this block, except simulated ones: their time is not ours. Entering it is collective."""
    if getattr(comm, "Work", None) is not None:
        yield None
        return
    together = comm is not None and comm.Get_size() > 1
    with Watchdog(comm, safety) as watchdog, launch.watch_each_other() if together else nullcontext():
        yield watchdog
