"""One x that all ranks of a node read and write without a lock, and what can be known of how they meet in it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import nodes, peers
from paceline.collectives.hierarchical import between
from paceline.comm import channel
from paceline.comm.shared import CACHE_LINE, SharedMemory, padded

if TYPE_CHECKING:
    from paceline.updates import State, Update

Array = NDArray[Any]
BEGUN, DONE = 0, 1


class SharedX:
    """A copy of `start`, the same on every rank, in memory of the node's ranks. Making and freeing are collective.

    Beside x each rank has a cache line with two counters that only it writes: how many updates it has begun and how
    many it has done. Reading all of them before and after costs microseconds and tells how old a gradient was when it
    was applied, and whether another update was under way at the same time.

    In the simulator only one rank runs at a time, until it waits, and no rank waits here. So before it looks at what others
    write, or writes, it lets those go first that are behind it in time; and what it does is done at the end of the time
    that it takes.
    """

    def __init__(self, start: Array, comm: Any) -> None:
        self._own = own = channel(comm)
        node, layout = own.node, nodes(own)
        self._memory = SharedMemory(node.bare, padded(start.nbytes) + node.size * CACHE_LINE, node.events)
        self.x: Array = self._memory.memory[: start.nbytes].view(start.dtype)
        rows = self._memory.memory[padded(start.nbytes) :].view(np.int64).reshape(node.size, -1)
        self._counters: Array = rows[:, :2]
        self._mine = self._counters[node.rank]
        self._mine[...] = 0
        self._done_before = 0
        self.let_others: Callable[[], object] = getattr(own.bare, "Pass", _go_on)
        """Let the ranks go first that are behind this one in simulated time."""
        self.taus = array("l")
        """For each update of this rank: how many others' were done between its read of x and its write."""
        self.overlapping = 0
        """Updates of this rank during which another of its node's ranks wrote x too."""
        self.several_nodes = layout.count > 1
        self.is_first = node.rank == 0
        """Whether this is the rank that speaks for its node."""
        self._share = node.size / own.size
        self._peers = peers(own) if self.several_nodes else None
        if self.is_first:
            own.copy(self.x, start)
        self.meet()

    def meet(self) -> None:
        """Wait for the node's ranks; what each wrote before is what everybody reads after."""
        self._memory.fence()

    def read(self, x: Array) -> None:
        """x <- the shared x, each number once, as it is at that moment."""
        self._take_time("copy", x.nbytes)
        self._done_before = self._others(DONE)
        if not self._own.time_only:
            np.copyto(x, self.x)

    @contextmanager
    def writing(self) -> Iterator[Array]:
        """The shared x, to be changed by what this rank has computed from its last `read`."""
        self.let_others()
        done = self._others(DONE)
        self.taus.append(done - self._done_before)
        self._mine[BEGUN] += 1
        yield self.x
        if self.let_others is not _go_on:  # simulated: the write was now, at the end of its time
            self.taus[-1] = self._others(DONE) - self._done_before
        self._mine[DONE] += 1
        self.overlapping += self._others(BEGUN) > done

    def _others(self, which: int) -> int:
        return int(self._counters[:, which].sum()) - int(self._mine[which])

    def mean(self) -> tuple[Array, Array] | None:
        """This node's x as it was, and the nodes' mean of it, weighted by their ranks: on a node's first rank alone."""
        if self._peers is None or not self.is_first:
            return None
        own, size, dtype = self._own, self.x.size, self.x.dtype
        was, mean = own.room(size, dtype), own.room(size, dtype)
        self._take_time("copy", 2 * self.x.nbytes)
        if not own.time_only:
            np.copyto(was, self.x)
            np.multiply(was, dtype.type(self._share), mean)  # p_k / p x_k
        between(mean, self._peers, own.operation(np.add, dtype, mean.nbytes))  # sum over k
        return was, mean

    def add(self, was: Array, mean: Array) -> None:
        """x <- x + (mean - was), while others write it; `mean` is used up."""
        self._take_time("combine", 2 * mean.nbytes)
        if not self._own.time_only:
            self.x += np.subtract(mean, was, mean)

    def put(self, x: Array) -> None:
        """x, where nobody else writes it."""
        self._own.copy(self.x, x)

    def in_time(self, update: Update) -> Update:
        """The update as it is to be made in the shared x."""
        plain = getattr(update, "plain", None)
        return update if plain is None else InTime(plain, self._take_time, time_only=self._own.time_only)

    def _take_time(self, kind: str, amount: float) -> None:
        self._own.charge(kind, amount)
        self.let_others()

    def free(self) -> None:
        """Give the memory back."""
        self.meet()
        del self.x, self._counters, self._mine
        self._memory.free()


class InTime:
    """An update in the simulator that takes its time first: no other rank may see it before it is over."""

    def __init__(self, update: Update, take_time: Callable[[str, float], None], *, time_only: bool) -> None:
        self._update, self._take_time, self._time_only = update, take_time, time_only

    def start(self, x: Array) -> State:
        return {} if self._time_only else self._update.start(x)

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        self._take_time("update", x.size)
        if not self._time_only:
            self._update.apply(x, g, eta, state, scale)


def _go_on() -> None:
    """Real ranks run all at once."""
