"""Parameters that all ranks of a node read and write without locks, with statistics of staleness and overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import nodes, peers, require_room
from paceline.collectives.hierarchical import allreduce_between_nodes
from paceline.comm import channel
from paceline.comm.clocks import Stopwatch
from paceline.comm.shared import CACHE_LINE, SharedMemory, pad_to_lines
from paceline.record import RowLog
from paceline.vectors import Meter, vector

Array = NDArray[Any]
BEGUN, DONE = 0, 1


class SharedX:
    """A copy of `start`, the same on every rank, in shared memory of the node. Creation and `free` are collective.

    Next to x each rank has a cache line with two counters that only it writes: the updates that it has begun, and those
    that it has completed. Reading all of them before and after an update takes microseconds, and shows how old the
    gradient was when it was applied, and whether another update took place at the same time.

    In the simulator only one rank runs at a time, until it waits, and no rank waits here. So before a rank reads or
    writes shared memory, it yields to the ranks whose clocks are behind its own, and its write takes effect at the end
    of the time that it takes.
    """

    def __init__(
        self,
        start: Array,
        comm: Any,
        watch: Stopwatch,
        taus: RowLog | None = None,
        ages: AgeCounts | None = None,
    ) -> None:
        self._watch = watch
        self._own = own = channel(comm)
        self._time_only = own.time_only
        node, layout = own.node, nodes(own)
        nbytes = pad_to_lines(start.nbytes) + node.size * CACHE_LINE
        require_room(
            own, pad_to_lines(start.nbytes) + layout.largest * CACHE_LINE, "one x for all ranks of a node"
        )
        self._memory = SharedMemory(node.bare, nbytes, node.events)
        self._x: Array = self._memory.memory[: start.nbytes].view(start.dtype)
        rows = self._memory.memory[pad_to_lines(start.nbytes) :].view(np.int64).reshape(node.size, -1)
        self._counters: Array = rows[:, :2]
        self._mine = self._counters[node.rank]
        self._mine[...] = 0
        self._done_before = 0
        self._freed = False
        self._let_others: Callable[[], object] | None = getattr(own.bare, "Pass", None)
        self.x = self._x
        """The shared parameters; in the simulator, their operations yield to ranks that are behind in time."""
        if self._let_others is not None:
            self.x = vector(self._x, Meter(self._take_time, self._time_only))
        self.taus = RowLog(("tau",)) if taus is None else taus
        """For each update of this rank, the number of updates by others between its read and its write of x."""
        self.ages = AgeCounts() if ages is None else ages
        """The same, counted."""
        self.overlapping = 0
        """Updates of this rank during which another of its node's ranks wrote x too."""
        self.several_nodes = layout.count > 1
        self.is_first = node.rank == 0
        """True on the first rank of each node."""
        self._share = node.size / own.size
        self._peers = peers(own) if self.several_nodes else None
        if self.is_first:
            own.copy(self._x, start)
        self.meet()

    def meet(self) -> None:
        """Wait for the node's ranks; afterwards all see what each wrote before."""
        with self._watch.during("wait"):
            self._memory.fence()

    def read(self, x: Array) -> None:
        """Copy the shared x into x, reading each number once while others may write it; do nothing after `free`."""
        if self._freed:
            return
        self._watch.switch("exchange")
        self._take_time("copy", x.nbytes)
        self._done_before = self._count_others(DONE)
        if not self._time_only:
            np.copyto(np.asarray(x), self._x)
        self._watch.switch("update")

    @contextmanager
    def write(self) -> Iterator[Array]:
        """Yield the shared x, to be updated with what this rank computed from its last `read`."""
        if self._let_others is not None:
            self._let_others()
        done = self._count_others(DONE)
        tau = done - self._done_before
        self._mine[BEGUN] += 1
        yield self.x
        if self._let_others is not None:  # simulated: the write takes effect now, at the end of its time
            tau = self._count_others(DONE) - self._done_before
        self._mine[DONE] += 1
        self.taus.append((tau,))
        self.overlapping += self._count_others(BEGUN) > done

    def _count_others(self, which: int) -> int:
        return int(self._counters[:, which].sum()) - int(self._mine[which])

    def average(self, *, at_rest: bool = False) -> None:
        """Average x over the nodes while others write it: x <- x + (mean - x as it was).

        The mean is weighted by the nodes' ranks. `at_rest`: no rank writes, so x <- mean, the same bits on every node.
        Only the first rank of each of several nodes does anything.
        """
        if self._peers is None or not self.is_first:
            return
        own, size, dtype = self._own, self._x.size, self._x.dtype
        with self._watch.during("exchange"):
            was, mean = own.room(size, dtype), own.room(size, dtype)
            self._take_time("copy", 2 * self._x.nbytes)
            if not self._time_only:
                np.copyto(was, self._x)
                np.multiply(was, dtype.type(self._share), mean)  # p_k / p x_k
            add = own.operation(np.add, dtype, mean.nbytes)
            allreduce_between_nodes(mean, self._peers, add)  # sum over k
            if at_rest:
                own.copy(self._x, mean)
                return
            self._take_time("combine", 2 * mean.nbytes)
            if not self._time_only:
                self._x += np.subtract(mean, was, mean)

    def put(self, x: Array) -> None:
        """Copy x into the shared x, on the first rank of each node, while no rank reads or writes it."""
        if self.is_first:
            self._own.copy(self._x, x)

    def _take_time(self, kind: str, amount: float) -> None:
        self._own.charge(kind, amount)
        if self._let_others is not None:
            self._let_others()

    def free(self) -> None:
        """Free the memory."""
        self._memory.fence()
        self._freed = True
        del self.x, self._x, self._counters, self._mine
        self._memory.free()


class AgeCounts:
    """Counts of the gradients that were 0, 1, 2 … updates old when they were applied, without keeping their ages.

    >>> ages = AgeCounts()
    >>> ages.add(np.array([0, 1, 1, 4]))
    >>> ages.summary()
    {'mean': 1.5, 'median': 1.0, 'largest': 4, 'histogram': [1, 2, 0, 0, 1]}
    """

    def __init__(self, counts: Array | None = None) -> None:
        self.counts: Array = np.zeros(0, np.int64) if counts is None else counts

    def add(self, tau: Array) -> None:
        """Count gradients of these ages."""
        self.add_counts(np.bincount(tau.astype(np.int64)))

    def add_counts(self, counts: Array) -> None:
        """Add the counts of another rank."""
        if len(counts) > len(self.counts):
            self.counts, counts = counts.copy(), self.counts
        self.counts[: len(counts)] += counts

    @property
    def total(self) -> int:
        """The number of gradients."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean age."""
        return float(self.counts @ np.arange(len(self.counts))) / (self.total or 1)

    @property
    def largest(self) -> int:
        """The largest age."""
        return len(self.counts) - 1 if len(self.counts) else 0

    def summary(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "mean": self.mean,
            "median": self._median(),
            "largest": self.largest,
            "histogram": self.counts.tolist(),
        }

    def _median(self) -> float:
        if not self.total:
            return 0.0
        upto = np.cumsum(self.counts)
        low, high = (
            int(np.searchsorted(upto, place, side="right"))
            for place in ((self.total - 1) // 2, self.total // 2)
        )
        return (low + high) / 2
