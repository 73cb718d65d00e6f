"""Stopwatches of how a rank spends its time, and a common origin of time for all ranks."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("compute", "exchange", "wait", "update", "evaluation")
# During one of these, calls of the communicator count as part of it. The seconds of "setup" are not counted.
CLOSED = frozenset({"exchange", "wait", "evaluation", "setup"})


class Stopwatch:
    """A stopwatch that assigns every second to the current kind of work, so that none is lost or counted twice.

    The kind is "update" initially, and between calls that set another.

    >>> ticks = iter([0.0, 2.0, 5.0, 6.0])
    >>> watch = Stopwatch(lambda: next(ticks))
    >>> watch.switch("exchange"), watch.switch("update")
    ('update', 'exchange')
    >>> watch.lap("compute"), watch.seconds["update"], watch.seconds["exchange"], watch.seconds["compute"]
    (1.0, 2.0, 3.0, 1.0)
    """

    __slots__ = ("clock", "kind", "last", "seconds", "shortest", "waits")

    def __init__(self, clock: Callable[[], float], waits: str = "exchange", *, shortest: float = 0.0) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.kind = "update"
        """The current kind of work."""
        self.waits = waits
        """The kind of calls that wait for other ranks: "wait", or "exchange" if waiting is computed afterwards."""
        self.shortest = shortest
        """Spans shorter than this, such as Python code between two calls, are assigned to the kind that follows."""
        self.last = clock()

    def switch(self, kind: str) -> str:
        """Begin another kind of work; return the one that ends."""
        now, ended = self.clock(), self.kind
        self.kind = kind
        elapsed = now - self.last
        if elapsed >= self.shortest:
            if ended != "setup":
                self.seconds[ended] += elapsed
            self.last = now
        return ended

    def lap(self, kind: str) -> float:
        """Assign the time since the last switch or lap to `kind`, whatever the current kind."""
        now = self.clock()
        elapsed = now - self.last
        self.last = now
        self.seconds[kind] += elapsed
        return elapsed

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Assign the time of a block to `kind`, unless it is part of an exchange, an evaluation or the setup."""
        if self.kind in CLOSED:
            yield
            return
        before = self.switch(kind)
        try:
            yield
        finally:
            self.switch(before)

    def restart(self) -> None:
        """Discard the time since the last switch."""
        self.last = self.clock()

    def training(self) -> float:
        """Return the seconds of everything except evaluation."""
        return sum(seconds for kind, seconds in self.seconds.items() if kind != "evaluation")


class TracedStopwatch(Stopwatch):
    """A stopwatch that reports every span of time: its kind, when it began and when it ended.

    >>> ticks, spans = iter([0.0, 2.0, 3.0]), []
    >>> watch = TracedStopwatch(lambda: next(ticks), lambda *span: spans.append(span))
    >>> watch.switch("compute"), watch.lap("compute"), spans
    ('update', 1.0, [('update', 0.0, 2.0), ('compute', 2.0, 3.0)])
    """

    __slots__ = ("_report",)

    def __init__(
        self,
        clock: Callable[[], float],
        report: Callable[[str, float, float], None],
        waits: str = "exchange",
        *,
        shortest: float = 0.0,
    ) -> None:
        super().__init__(clock, waits, shortest=shortest)
        self._report = report

    def switch(self, kind: str) -> str:
        start = self.last
        ended = super().switch(kind)
        if ended != "setup":
            self._report(ended, start, self.last)
        return ended

    def lap(self, kind: str) -> float:
        start = self.last
        elapsed = super().lap(kind)
        self._report(kind, start, self.last)
        return elapsed


# Round trips between rank 0 and one rank of every other machine; the quickest is the most exact.
TRIES = 8
ID, READING = 16, np.dtype(np.float64)


def machine() -> str:
    """Return an identity shared by all processes that read the same clock: the machine's last boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return platform.node()


def common_start(comm: Any, clock: Callable[[], float], where: Callable[[], str] = machine) -> float:
    """Return the reading of this rank's `clock` at the common origin of time: now, on rank 0. Collective.

    Processes of one machine read the same clock. The clock of another machine is compared with rank 0's by round trips
    between the two; the error is at most half of the quickest round trip.

    >>> common_start(None, lambda: 2.5)
    2.5
    """
    now = clock()
    if comm is None or comm.Get_size() == 1:
        return now
    mine = np.frombuffer(
        hashlib.blake2b(where().encode(), digest_size=ID).digest() + np.float64(now).tobytes(), np.uint8
    )
    rows = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, rows)
    start = float(rows[0, ID:].copy().view(READING)[0])
    machines = [row[:ID].tobytes() for row in rows]
    first = {name: machines.index(name) for name in machines}  # the first rank of every machine
    if len(first) == 1:
        return start
    ahead = np.zeros(len(first))
    own = comm.Dup()
    for number, leader in enumerate(first.values()):
        if leader > 0 and own.Get_rank() == 0:
            ahead[number] = _compare(own, leader, clock)
        elif leader == own.Get_rank() > 0:
            _answer(own, clock)
    own.Bcast(ahead, root=0)
    own.Free()
    return start + float(ahead[list(first).index(machines[comm.Get_rank()])])


def _compare(comm: Any, other: int, clock: Callable[[], float]) -> float:
    """Return how far the clock of another rank is ahead of this one's."""
    reading, found = np.zeros(1), []
    for _ in range(TRIES):
        sent = clock()
        comm.Send(reading, dest=other)
        comm.Recv(reading, source=other)
        back = clock()
        found.append((back - sent, float(reading[0]) - (sent + back) / 2))
    return min(found)[1]


def _answer(comm: Any, clock: Callable[[], float]) -> None:
    reading = np.zeros(1)
    for _ in range(TRIES):
        comm.Recv(reading, source=0)
        reading[0] = clock()
        comm.Send(reading, dest=0)
