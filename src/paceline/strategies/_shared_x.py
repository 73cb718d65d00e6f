"""One x that all ranks of a node read and write without a lock, and what can be known of how they meet in it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.collectives._exchange import InWindow
from paceline.collectives._nodes import nodes, peers
from paceline.collectives._operation import operation
from paceline.collectives.hierarchical import between
from paceline.comm import channel
from paceline.comm._shared import CACHE_LINE

if TYPE_CHECKING:
    from paceline.models import Model

Array = NDArray[Any]
BEGUN, DONE = 0, 1


class SharedX(InWindow):
    """The model's x in a window of its node's ranks; its g stays private. Making and closing are collective.

    Beside x each rank has a cache line with two counters that only it writes: how many updates it has begun and how
    many it has done. Reading all of them before and after costs microseconds and tells how old a gradient was when it
    was applied, and whether another update was under way at the same time.
    """

    def __init__(self, model: Model, comm: Any) -> None:
        own = channel(comm)
        node, layout = own.node, nodes(own)
        super().__init__(model, node, node.size * CACHE_LINE)
        self._counters = self._rest.view(np.int64).reshape(node.size, -1)[:, :2]
        self._mine = self._counters[node.rank]
        self._mine[...] = 0
        self._done_before = 0
        self.taus = array("l")
        """For each update of this rank: how many others' were done while its gradient was computed."""
        self.overlapped = 0
        """Updates of this rank during which another of its node's ranks wrote x too."""
        self.several = layout.count > 1
        """Whether there are other nodes."""
        self._first = node.rank == 0
        self._share = node.size / own.size
        self._peers = peers(own) if self.several else None
        model.place(self._x, model.g)
        self.meet()  # from here on nobody puts a start into x

    def meet(self) -> None:
        """Wait for the node's ranks; what each wrote before is what everybody reads after."""
        self.publish()

    # ---- how old a gradient is, and which updates overlap

    def gradient_begins(self) -> None:
        """This rank starts to read x."""
        self._done_before = self._others(DONE)

    def update_begins(self) -> None:
        """This rank starts to write x, by a gradient of what it read."""
        done = self._others(DONE)
        self.taus.append(done - self._done_before)
        self._done_before = done
        self._mine[BEGUN] += 1

    def update_ends(self) -> None:
        """This rank has written x."""
        self._mine[DONE] += 1
        self.overlapped += self._others(BEGUN) > self._done_before

    def _others(self, which: int) -> int:
        return int(self._counters[:, which].sum()) - int(self._mine[which])

    # ---- between nodes

    def mean(self) -> tuple[Array, Array] | None:
        """This node's x as it was, and the nodes' mean of it, weighted by their ranks: on a node's first rank alone."""
        if self._peers is None or not self._first:
            return None
        was = self._x.copy()
        mean: Array = was * self._x.dtype.type(self._share)  # p_k / p x_k
        between(mean, self._peers, operation(np.add, mean.dtype))  # sum over k
        return was, mean

    # ---- parts of InWindow

    def _own_g(self) -> Array:
        return self._model.g

    def _forget(self) -> None:
        del self._counters, self._mine
