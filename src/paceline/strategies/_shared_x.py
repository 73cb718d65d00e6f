"""One x that all ranks of a node read and write without a lock, and what can be known of how they meet in it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives._nodes import nodes, peers
from paceline.comm._operation import operation
from paceline.collectives.hierarchical import between
from paceline.comm import channel
from paceline.comm._shared import CACHE_LINE, SharedMemory, padded

Array = NDArray[Any]
BEGUN, DONE = 0, 1


class SharedX:
    """A copy of `start`, the same on every rank, in memory of the node's ranks. Making and freeing are collective.

    Beside x each rank has a cache line with two counters that only it writes: how many updates it has begun and how
    many it has done. Reading all of them before and after costs microseconds and tells how old a gradient was when it
    was applied, and whether another update was under way at the same time.
    """

    def __init__(self, start: Array, comm: Any) -> None:
        own = channel(comm)
        node, layout = own.node, nodes(own)
        self._memory = SharedMemory(node.bare, padded(start.nbytes) + node.size * CACHE_LINE)
        self.x: Array = self._memory.memory[: start.nbytes].view(start.dtype)
        rows = self._memory.memory[padded(start.nbytes) :].view(np.int64).reshape(node.size, -1)
        self._counters: Array = rows[:, :2]
        self._mine = self._counters[node.rank]
        self._mine[...] = 0
        self._done_before = 0
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
            self.x[...] = start
        self.meet()

    def meet(self) -> None:
        """Wait for the node's ranks; what each wrote before is what everybody reads after."""
        self._memory.fence()

    def read(self, x: Array) -> None:
        """x <- the shared x, each number once, as it is at that moment."""
        self._done_before = self._others(DONE)
        np.copyto(x, self.x)

    @contextmanager
    def writing(self) -> Iterator[Array]:
        """The shared x, to be changed by what this rank has computed from its last `read`."""
        done = self._others(DONE)
        self.taus.append(done - self._done_before)
        self._mine[BEGUN] += 1
        yield self.x
        self._mine[DONE] += 1
        self.overlapping += self._others(BEGUN) > done

    def _others(self, which: int) -> int:
        return int(self._counters[:, which].sum()) - int(self._mine[which])

    def mean(self) -> tuple[Array, Array] | None:
        """This node's x as it was, and the nodes' mean of it, weighted by their ranks: on a node's first rank alone."""
        if self._peers is None or not self.is_first:
            return None
        was = self.x.copy()
        mean: Array = was * was.dtype.type(self._share)  # p_k / p x_k
        between(mean, self._peers, operation(np.add, mean.dtype))  # sum over k
        return was, mean

    def free(self) -> None:
        """Give the memory back."""
        self.meet()
        del self.x, self._counters, self._mine
        self._memory.free()
