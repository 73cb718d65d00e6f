"""The exchange of a synchronous training step, with as few copies as possible.

    with make_exchange("auto", model, comm) as exchange:
        for batch in batches:
            model.gradient(batch)                      # g_i, in model.g
            g = exchange.reduce()                      # sum over i of g_i, of this rank's part
            update.apply(model.x[exchange.part], g)    # x_part <- x_part - eta g
            exchange.publish()                         # x complete everywhere

With messages (`Replicated`) the part is the whole vector. In shared memory (`Shared`) there is one x for the node,
each rank's g is a row of a shared window, and nothing is copied: each rank sums its own columns and updates its own
part of x. With several nodes, the owners of a part then sum it between the nodes. Small batches on one node exchange
factors instead of gradients (`Factored`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Protocol, Self, TypeGuard

import numpy as np

from paceline.collectives import recursive_doubling
from paceline.collectives._buffers import Array, prepare_sum
from paceline.collectives._layout import Nodes, cut, length
from paceline.collectives._nodes import describe_room, has_room, nodes, peers, require_room
from paceline.collectives.hierarchical import between
from paceline.comm import Channel, channel
from paceline.comm.operations import TreeSum
from paceline.comm.shared import CACHE_LINE, SharedMemory, padded
from paceline.errors import UsageError
from paceline.models import FactoredModel, Model

log = logging.getLogger(__name__)


class Exchange(Protocol):
    """A gradient exchange for synchronous strategies. Its creation, `reduce`, `publish` and `close` are collective."""

    part: slice
    """The part of x that this rank updates. May be empty."""

    def reduce(self) -> Array:
        """Return the sum of all ranks' gradients (model.g) over `part`. The result may be overwritten."""
        ...

    def publish(self) -> None:
        """Make model.x complete on every rank, after each has updated model.x[part]."""
        ...

    def close(self) -> None:
        """Move the model back into private memory and free the shared memory."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


# Collectives whose exchange can add in a fixed order.
IN_ORDER = ("auto", "hierarchical", "recursive-doubling", "shared-memory")


def make_exchange(
    name: str,
    model: Model,
    comm: Any,
    batch: int | None = None,
    *,
    whole: bool = False,
    in_order: bool = False,
) -> Exchange:
    """Make the exchange that belongs to the collective called `name`. Collective; every rank gets rank 0's x.

    `batch`: samples in a global batch, given by a caller that uses no gradient except the one that `reduce` returns.
    The ranks of one node may then exchange factors, and model.g is not used.
    `whole`: every rank makes the whole update, so that `part` is everything.
    `in_order`: gradients are added in a fixed order: (0 + 1) + (2 + 3) ...; for one of IN_ORDER, and 2^k ranks.
    """
    if comm is None or comm.Get_size() == 1:
        return Replicated(model, comm, name)
    if in_order:
        return _in_order(name, model, comm, whole)
    if whole:
        return Replicated(model, comm, name)
    own = channel(comm)
    layout, chosen = nodes(own), name
    if name == "auto":
        chosen = "shared-memory" if layout.count == 1 else "hierarchical" if layout.largest > 1 else "auto"
    if chosen not in ("shared-memory", "hierarchical"):
        return Replicated(model, comm, name)
    alone = chosen == "shared-memory" and layout.count == 1
    x_bytes = padded(model.x.nbytes)
    if alone and batch and factors_pay(model, batch, comm.Get_size()):
        if _find_room(own, x_bytes + model.factor_bytes(batch), name, "ring"):
            return Factored(model, comm, batch)
    elif _find_room(own, x_bytes + layout.largest * padded(model.g.nbytes), name, "ring"):
        return Shared(model, comm, across_nodes=chosen == "hierarchical")
    return Replicated(model, comm, "ring")


def _find_room(own: Channel, need: int, name: str, instead: str) -> bool:
    """Return True if there is room for an exchange in shared memory; for "auto" there is another one `instead`."""
    if name != "auto":
        require_room(own, need, f"an exchange by {name}", f"choose {instead}")
    elif not has_room(own, need):
        if own.rank == 0:
            log.warning(
                "%s; gradients are exchanged by %s", describe_room(own, need, "shared-memory"), instead
            )
        return False
    return True


def _in_order(name: str, model: Model, comm: Any, whole: bool) -> Exchange:
    """Make an exchange that adds in the order of recursive doubling: inside the nodes, then between them."""
    layout = nodes(channel(comm))
    alike, asked = layout.count == 1 or _is_regular(layout), name
    if name == "auto":
        name = "recursive-doubling" if layout.largest == 1 or not alike else "hierarchical"
    if name == "hierarchical" and not alike:
        raise UsageError(
            "reproducible sums with hierarchical need the same number of ranks, a power of two, on every node, "
            "and adjacent ranks on one node; choose recursive-doubling"
        )
    if name == "recursive-doubling" or (whole and layout.count > 1):
        return Replicated(model, comm, "recursive-doubling")
    need = padded(model.x.nbytes) + layout.largest * padded(model.g.nbytes)
    if not _find_room(channel(comm), need, asked, "recursive-doubling"):
        return Replicated(model, comm, "recursive-doubling")
    if whole:
        return Replicated(model, comm, "shared-memory", TreeSum())
    return Shared(model, comm, across_nodes=name == "hierarchical", in_order=True)


def _is_regular(layout: Nodes) -> bool:
    """Return True if every node has the same 2^k adjacent ranks."""
    each = layout.largest
    blocks = [set(layout.of[start : start + each]) for start in range(0, len(layout.of), each)]
    return each & (each - 1) == 0 and layout.smallest == each and all(len(block) == 1 for block in blocks)


class _Closing:
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # closing is collective: after an error the other ranks may not take part
            self.close()


class Replicated(_Closing):
    """Every rank has its own x and g, and performs the whole update."""

    def __init__(self, model: Model, comm: Any, name: str, op: Any = np.add) -> None:
        self._model, self._comm, self._name, self._op = model, comm, name, op
        self._channel = None if comm is None or comm.Get_size() == 1 else channel(comm)
        self.part = slice(0, model.x.size)
        self._prepare()

    def _prepare(self) -> None:
        self._g = self._model.g
        self._step = prepare_sum(self._g, self._comm, self._name, self._op)

    def rehearse(self) -> None:
        """Reduce zeros, so that MPI sets up its connections now. Collective."""
        self._model.g[...] = 0
        self.reduce()

    def reduce(self) -> Array:
        if self._model.g is not self._g:
            self._prepare()
        if self._channel is not None:
            self._channel.charge("cold", self._g.nbytes)  # computing has evicted it from the caches
        self._step()
        return self._g

    def publish(self) -> None:
        pass


class InWindow(_Closing):
    """The common part of exchanges in shared memory: one x for the node at the start of a window, and its fences.

    In time-only simulation one model serves all ranks, and it is not moved.
    """

    def __init__(self, model: Model, node: Channel, more: int) -> None:
        """Allocate a window for x and `more` bytes, and copy rank 0's x into it; the model is not moved yet."""
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
            self._model.place(np.array(self._model.x), self._own_g())
        self._forget()
        del self._x, self._rest
        self._shared.fence()
        self._shared.free()

    def _own_g(self) -> Array:
        """Return private memory for the gradient."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Drop all other views of the window."""
        raise NotImplementedError


class Shared(InWindow):
    """One x for the node and a row of g for each of its ranks, in one window; each rank updates its part of x."""

    def __init__(self, model: Model, comm: Any, *, across_nodes: bool, in_order: bool = False) -> None:
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
        self._add = node.operation(TreeSum() if in_order else np.add, model.g.dtype, model.g.nbytes)
        self._between = recursive_doubling.allreduce if in_order else None
        self._sum = node.room(length(self.part), model.g.dtype)

    def reduce(self) -> Array:
        self._shared.fence()
        if length(self.part):
            self._add.over(self._columns, self._sum)  # s_r = g_0 + g_1 + … + g_p-1, columns of part r
            if self._peers is not None:
                if self._between is None:
                    between(self._sum, self._peers, self._add)  # s_r <- sum of s_r over the nodes
                else:
                    self._between(self._sum, self._sum, self._peers, self._add)
        return self._sum

    def _own_g(self) -> Array:
        return np.zeros_like(self._model.g)

    def _forget(self) -> None:
        del self._columns


# Small batches: factors instead of gradients, between ranks that share memory.
#
# The gradient of a few samples has low rank: the activations and deltas of a batch of 16 are a sixth as long as the
# reference network's gradient. So no rank computes a gradient of its own. Each rank puts the factors of its samples
# into a shared window, and after a barrier multiplies out its own part of the sum from everyone's factors. Only the
# factors and the new x move between the cores' caches.
#
# Xie et al., "Distributed machine learning via sufficient factor broadcasting", 2015.


def factors_pay(model: Model, batch: int, ranks: int) -> TypeGuard[FactoredModel]:
    """Return True if `model` can provide the factors of a batch, and they are short enough compared with a gradient.

    The more ranks there are, the smaller the part of the activations that each of them reads. On 16 cores, with the
    reference network, factors were ahead up to a batch of 128 with 4 ranks (392 against 408 us a step) and up to 256
    with 16 (408 against 461): `benchmarks/factored.py`.

    >>> from paceline.models.mlp import MLP
    >>> [factors_pay(MLP([784, 128, 64, 10]), batch, ranks=4) for batch in (16, 132, 133)]
    [True, True, False]
    """
    if not isinstance(model, FactoredModel):
        return False
    return model.factor_bytes(batch) < model.g.nbytes * (1 + ranks / 8)


class Factored(InWindow):
    """One x and the factors of one batch, in one window; each rank sums and updates its part of x. One node."""

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
