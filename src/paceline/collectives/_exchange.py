"""One step's exchange between the ranks of a synchronous run, with the fewest copies there can be.

    with make_exchange("auto", model, comm) as exchange:
        for batch in batches:
            model.gradient(batch)                      # g_i, in model.g
            g = exchange.reduce()                      # sum over i of g_i, of this rank's part
            update.apply(model.x[exchange.part], g)    # x_part <- x_part - eta g
            exchange.publish()                         # x complete everywhere

Through messages (`Replicated`) the part is everything. In shared memory (`Shared`) there is one x for the
node, each rank's g is a row of a shared window, and nothing is copied: each rank adds up its own columns
and updates its own part of x. With several nodes the owners of a part add up between the nodes what they
added up inside theirs.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from paceline.collectives._layout import cut, length
from paceline.collectives._named import prepared
from paceline.collectives._nodes import nodes, peers
from paceline.collectives.hierarchical import between
from paceline.comm import Channel, channel
from paceline.comm.shared import CACHE_LINE, SharedMemory, padded
from paceline.errors import UsageError
from paceline.models import FactoredModel, Model

if TYPE_CHECKING:
    from paceline.models import Model


Array = NDArray[Any]


class Exchange(Protocol):
    """What `sync` needs of an exchange. Making, `reduce`, `publish` and `close` are collective."""

    part: slice
    """The part of x that this rank updates; may be empty."""

    def reduce(self) -> Array:
        """With this rank's gradient in model.g: the sum of all ranks' over `part`. May be overwritten."""
        ...

    def publish(self) -> None:
        """With model.x[part] updated: makes model.x complete on every rank."""
        ...

    def close(self) -> None:
        """Move the model back into private memory and free what was shared."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_exchange(name: str, model: Model, comm: Any, batch: int | None = None) -> Exchange:
    """The exchange that the collective called `name` stands for. Collective; x becomes rank 0's.

    `batch`: samples in a global batch, from a caller that reads and writes no gradient but what `reduce`
    returns. The ranks of one node may then exchange factors, and model.g is not used.
    """

    if comm is None or comm.Get_size() == 1:
        return Replicated(model, comm, name)
    if name == "auto":
        layout = nodes(channel(comm))
        name = "shared-memory" if layout.count == 1 else "hierarchical" if layout.largest > 1 else "auto"
    alone = name == "shared-memory" and nodes(channel(comm)).count == 1
    if alone and batch and pays(model, batch, comm.Get_size()):
        return Factored(model, comm, batch)
    if name in ("shared-memory", "hierarchical"):
        return Shared(model, comm, across_nodes=name == "hierarchical")
    return Replicated(model, comm, name)


class _Closing:
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # closing is collective, and the other ranks may be elsewhere after an error
            self.close()


class Replicated(_Closing):
    """Every rank has its own x and g, and makes the whole update."""

    def __init__(self, model: Model, comm: Any, name: str) -> None:
        self._model, self._comm, self._name = model, comm, name
        self._channel = None if comm is None or comm.Get_size() == 1 else channel(comm)
        self.part = slice(0, model.x.size)
        self._prepare()

    def _prepare(self) -> None:
        self._g = self._model.g
        self._step = prepared(self._g, self._comm, self._name)

    def rehearse(self) -> None:
        """Reduce zeros: what MPI sets up at a first call is set up then. Collective."""
        self._model.g[...] = 0
        self.reduce()

    def reduce(self) -> Array:
        if self._model.g is not self._g:
            self._prepare()
        if self._channel is not None:
            self._channel.charge(
                "cold", self._g.nbytes
            )  # what computing has put out of the caches comes back
        self._step()
        return self._g

    def publish(self) -> None:
        pass


class InWindow(_Closing):
    """What the exchanges in shared memory have in common: one x for the node at the start of a window, and its fences.

    Where time alone is simulated one model serves all ranks: it is not moved.
    """

    def __init__(self, model: Model, node: Channel, more: int) -> None:
        """A window of x and `more` bytes, in `rest`; x is rank 0's, and not yet the model's."""
        x_bytes = padded(model.x.nbytes)
        self._shared = SharedMemory(node.bare, x_bytes + more, node.events)
        self._model, self._closed = model, False
        self._x = self._shared.memory[: model.x.nbytes].view(model.x.dtype)
        self._rest = self._shared.memory[x_bytes:]
        self._node = node
        if node.rank == 0:
            node.copy(self._x, model.x)
        self._shared.fence()
        node.copy(model.x, self._x)

    def publish(self) -> None:
        self._shared.fence()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._node.time_only:
            self._model.place(self._model.x.copy(), self._own_g())
        self._forget()
        del self._x, self._rest
        self._shared.fence()
        self._shared.free()

    def _own_g(self) -> Array:
        """Memory of this rank's own for the gradient."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Drop what else looks into the window."""
        raise NotImplementedError


class Shared(InWindow):
    """One x for the node and a row of g for each of its ranks, in one window; each updates its part of x."""

    def __init__(self, model: Model, comm: Any, *, across_nodes: bool) -> None:
        own = channel(comm)
        layout = nodes(own)
        if layout.count > 1 and not across_nodes:
            raise UsageError(
                f"shared-memory needs all ranks on one node; {own.size} ranks are on {layout.count}; "
                "choose hierarchical"
            )
        node: Channel = own.node
        r, p, n = node.rank, node.size, model.x.size
        parts = cut(n, layout.smallest, align=CACHE_LINE // model.g.itemsize)
        self.part = parts[r] if r < len(parts) else slice(n, n)
        self._peers = peers(own) if layout.count > 1 else None

        row_bytes = padded(model.g.nbytes)
        super().__init__(model, node, p * row_bytes)
        rows = self._rest.reshape(p, row_bytes)[:, : model.g.nbytes].view(model.g.dtype)
        if not node.time_only:
            model.place(self._x, rows[r])
        self._shared.fence()
        self._columns = rows[:, self.part]
        self._add = node.operation(np.add, model.g.dtype, model.g.nbytes)
        self._sum = node.room(length(self.part), model.g.dtype)

    def reduce(self) -> Array:
        self._shared.fence()
        if length(self.part):
            self._add.over(self._columns, self._sum)  # s_r = g_0 + g_1 + … + g_p-1, columns of part r
            if self._peers is not None:
                between(self._sum, self._peers, self._add)  # s_r <- sum of s_r over the nodes
        return self._sum

    def _own_g(self) -> Array:
        return np.zeros_like(self._model.g)

    def _forget(self) -> None:
        del self._columns


# ---- The exchange of a small batch's gradient as its factors, between ranks that share memory.
#
# With few samples a gradient has low rank: the activations and deltas of a batch of 16 are a sixth as long as
# the reference network's gradient. So no rank forms a gradient of its own. Each leaves its samples' factors in
# a shared window, and after a barrier multiplies out its own part of the sum from everybody's. What goes from
# one core's cache to another's is the factors and the new x, and no gradient.
#
# Xie et al., "Distributed machine learning via sufficient factor broadcasting", 2015.


def pays(model: Model, batch: int, ranks: int) -> TypeGuard[FactoredModel]:
    """Whether `model` can leave the factors of a batch, and they are few enough beside a gradient's bytes.

    The more ranks, the smaller the part of the activations that each of them reads. On 16 cores, with the reference
    network, factors were ahead up to a batch of 128 with 4 ranks (392 against 408 us a step) and up to 256 with 16
    (408 against 461): `benchmarks/factored.py`.

    >>> from paceline.models.mlp import MLP
    >>> [pays(MLP([784, 128, 64, 10]), batch, ranks=4) for batch in (16, 132, 133)]
    [True, True, False]
    """
    if not isinstance(model, FactoredModel):
        return False
    return model.factor_bytes(batch) < model.g.nbytes * (1 + ranks / 8)


class Factored(InWindow):
    """One x and one batch's factors, in one window; each rank sums and updates its part of x. One node."""

    def __init__(self, model: FactoredModel, comm: Any, batch: int) -> None:
        node = channel(comm).node
        super().__init__(model, node, model.factor_bytes(batch))
        if not node.time_only:
            model.place(self._x, model.g)
        self._sum = model.share_factors(self._rest, batch, node.rank, node.size)
        self._shared.fence()
        self.part = self._sum.part

    def reduce(self) -> Array:
        self._shared.fence()
        return self._sum()  # sum over all samples of h^T d, rows of part r

    def _own_g(self) -> Array:
        return self._model.g

    def _forget(self) -> None:
        del self._sum
