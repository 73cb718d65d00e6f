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

Messages between nodes may be sent in other ways (`Sending`): the gradient of each bucket of layers as soon as the
backward pass has completed it (`model.gradient(batch, exchange.ready)`), and in fewer bytes. `ReplicatedBuckets` and
`SharedBuckets` do that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeGuard

import numpy as np

from paceline.collectives import auto, recursive_doubling
from paceline.collectives._buffers import Array, compare_arrays, find_allreduce, prepare_sum
from paceline.collectives._compression import (
    Compression,
    Total,
    Work,
    find_pieces,
    make_room,
    parse_compression,
)
from paceline.collectives._cost import Nodes, cut, length
from paceline.collectives._nodes import describe_room, has_room, nodes, peers, require_room
from paceline.collectives.hierarchical import NETWORK, allreduce_between_nodes
from paceline.comm import Channel, channel
from paceline.comm.channel import Lane, Tasks
from paceline.comm.operations import TreeSum
from paceline.comm.shared import CACHE_LINE, CommonFile, SharedMemory, make_common_file, pad_to_lines
from paceline.errors import AgreedError, UsageError
from paceline.models import FactoredModel, Model, Ready

log = logging.getLogger(__name__)


class Exchange(Protocol):
    """A gradient exchange for synchronous strategies. Its creation, `reduce`, `publish` and `close` are collective."""

    part: slice
    """The part of x that this rank updates. May be empty."""

    @property
    def ready(self) -> Ready | None:
        """What to call, in `model.gradient(batch, ready)`, when a layer's gradient is final; None if nothing is."""
        ...

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


@dataclass(frozen=True, kw_only=True)
class Sending:
    """How gradients are sent between nodes."""

    overlap: bool = False
    """Exchange each bucket of layers as soon as its gradient is final, while the backward pass continues."""
    bucket: int = 0
    """The bytes of a bucket; 0: see `choose_bucket`, or without a clock `cut_buckets`."""
    clock: Callable[[], float] | None = None
    """The clock by which to measure what buckets of a size cost."""
    trials: int = 5
    """The number of measurements, of which the shortest counts; 1: those of simulated ranks are exact."""
    compress: str = "none"
    """See `parse_compression`."""
    samples: int = 1
    """Samples in a global batch."""
    keep: Callable[..., Any] | None = None
    """Returns a namespace of these arrays that belongs to the state of the rank; None if there is none."""

    @property
    def plain(self) -> bool:
        """True if a gradient is sent whole, as it is."""
        return not self.overlap and self.compress == "none"


@dataclass(frozen=True, kw_only=True)
class ProgramNeeds:
    """What a program with a loop of its own needs of an exchange in shared memory: see `Divided`."""

    notes: int
    """The bytes that each rank tells the others in every step."""
    room: int
    """The bytes of memory, common to the ranks of a node, for the state of the update."""


PLAIN = Sending()
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
    sending: Sending = PLAIN,
    program: ProgramNeeds | None = None,
) -> Exchange:
    """Make the exchange that belongs to the collective called `name`. Collective; every rank gets rank 0's x.

    `batch`: samples in a global batch, given by a caller that uses no gradient except the one that `reduce` returns.
    The ranks of one node may then exchange factors, and model.g is not used.
    `whole`: every rank makes the whole update, so that `part` is everything.
    `in_order`: gradients are added in a fixed order: (0 + 1) + (2 + 3) ...; for one of IN_ORDER, and 2^k ranks.
    `sending`: how gradients are sent between nodes.
    `program`: x is used and changed by a program with a loop of its own, as if each rank had one for itself. Ranks of one
    node that share memory then divide the update (`Divided`); otherwise every rank makes the whole of it.
    """
    if comm is None or comm.Get_size() == 1:
        return Replicated(model, comm, name)
    if not sending.plain:
        whole = whole or program is not None
        return _make_buckets(name, model, comm, whole=whole, in_order=in_order, sending=sending)
    if in_order:
        return _make_ordered(name, model, comm, whole)
    if whole:
        return Replicated(model, comm, name)
    own = channel(comm)
    layout, chosen = nodes(own), name
    if name == "auto":
        chosen = "shared-memory" if layout.count == 1 else "hierarchical" if layout.largest > 1 else "auto"
    if chosen not in ("shared-memory", "hierarchical"):
        return Replicated(model, own, name)
    alone = chosen == "shared-memory" and layout.count == 1
    x_bytes = pad_to_lines(model.x.nbytes)
    if program is not None:
        if layout.count > 1:
            return Replicated(model, comm, name)
        if _find_room(own, Divided.size(model, layout.largest, program), name, "ring"):
            return Divided(model, comm, program)
        return Replicated(model, comm, "ring")
    if alone and batch and factors_pay(model, batch, comm.Get_size()):
        if _find_room(own, x_bytes + model.factor_bytes(batch), name, "ring"):
            return Factored(model, comm, batch)
    elif _find_room(own, x_bytes + layout.largest * pad_to_lines(model.g.nbytes), name, "ring"):
        return Shared(model, comm, across_nodes=chosen == "hierarchical")
    return Replicated(model, comm, "ring")


def _make_buckets(
    name: str, model: Model, comm: Any, *, whole: bool, in_order: bool, sending: Sending
) -> Exchange:
    own = channel(comm)
    layout = nodes(own)
    costs: BucketCosts | None = None
    if in_order:
        raise AgreedError("gradients that overlap or are compressed cannot be added in a fixed order")
    if name in ("auto", "hierarchical", "shared-memory"):
        if layout.count == 1 or name == "shared-memory":
            refuse_one_node(sending, name)
        if layout.largest > 1 or name == "hierarchical":
            rows = layout.largest + whole
            if _find_room(
                own, pad_to_lines(model.x.nbytes) + rows * pad_to_lines(model.g.nbytes), name, "ring"
            ):
                sending, costs = _choose_bucket(
                    model, own, sending, partial(_prepare_between_nodes, own, layout)
                )
                return _note(SharedBuckets(model, comm, sending, whole=whole), costs)
            name = "ring"
    sending, costs = _choose_bucket(model, own, sending, lambda values: prepare_sum(values, own, name))
    return _note(ReplicatedBuckets(model, comm, name, sending), costs)


def _note(exchange: ReplicatedBuckets | SharedBuckets, costs: BucketCosts | None) -> Exchange:
    """Add what was measured to what is recorded of an exchange."""
    if costs is not None:
        exchange.plan["measured"] = asdict(costs)
    return exchange


def refuse_one_node(sending: Sending, name: str) -> None:
    """Refuse a way of sending where the ranks of one node share memory, and so send nothing."""
    option = "overlap=true" if sending.overlap else f"compress={sending.compress}"
    raise AgreedError(
        f"{option} is for messages between nodes; with {name} the ranks of one node share memory and send none: "
        "leave it out, or choose a collective that sends messages, such as ring"
    )


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


def _make_ordered(name: str, model: Model, comm: Any, whole: bool) -> Exchange:
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
    need = pad_to_lines(model.x.nbytes) + layout.largest * pad_to_lines(model.g.nbytes)
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
    @property
    def ready(self) -> Ready | None:
        return None

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
        self._model, self._name, self._op = model, name, op
        self._channel = None if comm is None else channel(comm)
        self.part = slice(0, model.x.size)
        self._prepare()

    def _prepare(self) -> None:
        self._g = self._model.g
        self._step = prepare_sum(self._g, self._channel, self._name, self._op)

    def rehearse(self) -> None:
        """Reduce zeros, so that MPI sets up its connections now. Collective."""
        self._model.g[...] = 0
        self.reduce()

    def reduce(self) -> Array:
        if self._model.g is not self._g:
            self._prepare()
        if self._channel is not None and self._channel.size > 1:
            self._channel.charge("cold", self._g.nbytes)  # computing has evicted it from the caches
        self._step()
        return self._g

    def publish(self) -> None:
        pass


class InWindow(_Closing):
    """The common part of exchanges in shared memory: one x for the node at the start of a window, and its fences.

    In time-only simulation one model serves all ranks, and it is not moved.
    """

    def __init__(self, model: Model, node: Channel, more: int, file: CommonFile | None = None) -> None:
        """Allocate a window for x and `more` bytes, and copy rank 0's x into it; the model is not moved yet.

        `file`: where x is instead of in the window.
        """
        x_bytes = pad_to_lines(model.x.nbytes) if file is None else 0
        self._shared = SharedMemory(node.bare, x_bytes + more, node.events)
        self._model, self._closed = model, False
        memory = self._shared.memory if file is None else file.memory
        self._x = memory[: model.x.nbytes].view(model.x.dtype)
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

    def __init__(
        self, model: Model, comm: Any, *, across_nodes: bool, in_order: bool = False, whole: bool = False
    ) -> None:
        """`whole`: every rank has an x of its own and makes the whole update; the sums share one more row."""
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
        self._mine = mine = parts[r] if r < len(parts) else slice(n, n)
        self.part = slice(0, n) if whole else mine
        self._peers = peers(own) if layout.count > 1 else None

        row_bytes = pad_to_lines(model.g.nbytes)
        super().__init__(model, node, (p + whole) * row_bytes)
        rows = self._rest.reshape(p + whole, row_bytes)[:, : model.g.nbytes].view(model.g.dtype)
        if not node.time_only:
            model.place(model.x if whole else self._x, rows[r])
        self._shared.fence()
        self._columns = rows[:p, mine]
        self._add = node.operation(TreeSum() if in_order else np.add, model.g.dtype, model.g.nbytes)
        self._between = recursive_doubling.allreduce if in_order else None
        self._sum = rows[p, mine] if whole else node.room(length(mine), model.g.dtype)
        self._total_row = rows[p] if whole else None

    def reduce(self) -> Array:
        self._shared.fence()
        if length(self._mine):
            self._add.combine_rows(self._columns, self._sum)  # s_r = g_0 + g_1 + … + g_p-1, columns of part r
            if self._peers is not None:
                if self._between is None:
                    allreduce_between_nodes(
                        self._sum, self._peers, self._add
                    )  # s_r <- sum of s_r over the nodes
                else:
                    self._between(self._sum, self._sum, self._peers, self._add)
        return self._sum

    def _own_g(self) -> Array:
        return np.zeros_like(self._model.g)

    def _forget(self) -> None:
        del self._columns, self._sum, self._total_row


# The bytes of all gradients up to which a rank sums the parts of the others itself, rather than wait for their sums.
SUMMED_BY_ALL = 2**18


class Divided(InWindow):
    """Every rank of a node updates a part of x, for a program with a loop of its own. One node.

    The program may read and change x between steps as if its rank had an x for itself. Where the system can find out what a
    rank has changed (`CommonFile`), all ranks share one x, and a rank's changes are its own until `take_changes`.
    Otherwise every rank has an x, and gets the other parts from their owners in each step.

    The program may want to see all of the gradient that its optimizer will use: `complete`. Before `reduce` each rank
    writes its row of `notes`, which all ranks read after it, so that they agree on what to do without another message.
    """

    @staticmethod
    def size(model: Model, ranks: int, needs: ProgramNeeds) -> int:
        """Return the bytes of the memory that the ranks share."""
        vectors = pad_to_lines(model.x.nbytes) + (ranks + 1) * pad_to_lines(model.g.nbytes)
        return vectors + ranks * pad_to_lines(needs.notes) + pad_to_lines(needs.room)

    def __init__(self, model: Model, comm: Any, needs: ProgramNeeds) -> None:
        node = channel(comm).node
        r, p, n = node.rank, node.size, model.x.size
        self._parts = cut(n, p, align=CACHE_LINE // model.g.itemsize)
        self.part = mine = self._parts[r]
        self._others = [part for part in (slice(0, mine.start), slice(mine.stop, n)) if length(part)]
        self._file = file = make_common_file(node.bare, model.x.nbytes)  # None on all ranks, or on none
        super().__init__(model, node, self.size(model, p, needs) - pad_to_lines(model.x.nbytes), file)
        row, note = pad_to_lines(model.g.nbytes), pad_to_lines(needs.notes)
        vectors, rest = np.split(self._rest, [(p + 1) * row])
        notes, memory = np.split(rest, [p * note])
        rows = vectors.reshape(p + 1, row)[:, : model.g.nbytes].view(model.g.dtype)
        self.notes = notes.reshape(p, note)[:, : needs.notes]
        """A row of bytes for each rank; valid between `reduce` and `publish`."""
        self.note = self.notes[r]
        """The row that this rank writes before `reduce`."""
        self.memory = memory[: needs.room]
        """The memory for the state of the update, zeros at first; each rank writes what belongs to its part."""
        self.before_close: Callable[[], None] | None = None
        self.note[...] = 0
        if r == 0:
            self.memory[...] = 0
        if file is None:
            model.place(model.x, rows[r])
        else:
            model.place(file.own[: model.x.nbytes].view(model.x.dtype), rows[r])
        self._shared.fence()
        self._rows, self._columns, self._sums = rows[:p], rows[:p, mine], rows[p]
        self._sum: Array = self._sums[mine]
        self._add = node.operation(np.add, model.g.dtype, model.g.nbytes)
        self._all = np.empty_like(model.g)

    @property
    def x(self) -> Array:
        """This rank's part of x, for the update to change."""
        values: Array = np.asarray(self._model.x if self._file is None else self._x)
        return values[self.part]

    def take_changes(self) -> None:
        """Take over what the program of this rank has changed in its part of x; changes of other parts are lost.

        The program's x then shows what the updates of all ranks make of it, so that it must not read it until `publish`.
        """
        if self._file is None:
            return
        changes, item = self._file.find_changes(), self._x.itemsize
        for change in changes:
            mine = _meet(slice(change.start // item, change.stop // item), self.part)
            self._node.copy(self._x[mine], self._model.x[mine])
        self._file.forget_changes(changes)

    @property
    def is_common(self) -> bool:
        """True if all ranks share one x."""
        return self._file is not None

    def meet(self) -> None:
        """Wait for all ranks: until their programs have read x as it is, before it changes. Collective."""
        self._shared.fence()

    def reduce(self) -> Array:
        self._shared.fence()
        if length(self.part):
            self._add.combine_rows(self._columns, self._sum)  # s_r = g_0 + g_1 + … + g_p-1, columns of part r
        return self._sum

    def complete(self) -> Array:
        """Return the sum of all ranks' gradients over all parts, in memory of its own. Collective; after `reduce`."""
        if self.is_common and self._rows.nbytes <= SUMMED_BY_ALL:
            for part in self._parts:
                if length(part):  # part by part, as their owners do, so that the bits are the same
                    self._add.combine_rows(self._rows[:, part], self._all[part])
            return self._all
        self._shared.fence()
        self._node.copy(self._all, self._sums)
        return self._all

    def publish(self) -> None:
        if self._file is not None:
            super().publish()
            return
        self._node.copy(self._x[self.part], self._model.x[self.part])
        super().publish()
        for part in self._others:
            self._node.copy(self._model.x[part], self._x[part])

    def close(self) -> None:
        if not self._closed and self.before_close is not None:
            self.before_close()
        super().close()

    def _own_g(self) -> Array:
        return np.zeros_like(self._model.g)

    def _forget(self) -> None:
        del self._rows, self._columns, self._sums, self._sum, self.notes, self.note, self.memory
        if self._file is not None:
            self._file.free()


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


# Buckets: each is exchanged by a task of its own, in the background if there is a backward pass to do it in.

# The time of a bucket's bytes should be at least this many times that of its messages.
WORTH = 16
# The elements of the gradients that are exchanged to measure what a bucket costs.
SHORT, LONG = 64, 2**19
# A gradient is cut into this many buckets, if they are then long enough: the last of them is not overlapped.
BUCKETS = 8


@dataclass(frozen=True, kw_only=True)
class BucketCosts:
    """What the exchange of a bucket was measured to cost, the same on all ranks, and the size chosen by it."""

    latency: float
    """Seconds of a bucket, however short."""
    seconds_per_byte: float
    bucket: int
    """Bytes."""


def choose_bucket(nbytes: int, latency: float, seconds_per_byte: float) -> int:
    """Return the bytes of a bucket, a power of two, with which the exchange of a gradient of `nbytes` delays a step least.

    With k buckets the last one, of nbytes / k, cannot be hidden behind the backward pass, and each costs its latency:
    k latency + nbytes seconds_per_byte / k is least for k^2 = nbytes seconds_per_byte / latency. A power of two, so
    that small errors of measurement do not change it, and with it the order of additions.

    >>> [choose_bucket(43_000_000, latency, 8e-9) for latency in (20e-6, 200e-6, 5e-3)]
    [262144, 1048576, 4194304]
    """
    best = math.sqrt(nbytes * latency / max(seconds_per_byte, 1e-15))
    return int(min(2 ** round(math.log2(max(best, 1))), nbytes))


def _choose_bucket(
    model: Model, own: Channel, sending: Sending, prepare: Callable[[Array], Work]
) -> tuple[Sending, BucketCosts | None]:
    """Measure what exchanges of a short and of a long gradient take, unless the size of buckets is given. Collective.

    `prepare`: returns the function that sums an array over the ranks.
    """
    if not sending.overlap or sending.bucket or sending.clock is None:
        return sending, None
    counts = [min(model.g.size, count) for count in (SHORT, LONG)]
    seconds = np.full(2, math.inf)
    for place, count in enumerate(counts):
        values = own.room(count, model.g.dtype)
        if not own.time_only:
            values[...] = 0
        work = prepare(values)
        for trial in range(sending.trials + (sending.trials > 1)):
            start = sending.clock()
            work()
            if trial or sending.trials == 1:  # the first sets up connections
                seconds[place] = min(seconds[place], sending.clock() - start)
    recursive_doubling.allreduce(seconds, seconds, own, np.maximum)
    short, long = (count * model.g.itemsize for count in counts)
    each = max(float(seconds[1] - seconds[0]), 0.0) / max(long - short, 1)
    bucket = choose_bucket(model.g.nbytes, float(seconds[0]), each)
    costs = BucketCosts(latency=float(seconds[0]), seconds_per_byte=each, bucket=bucket)
    return replace(sending, bucket=bucket), costs


def _prepare_between_nodes(own: Channel, layout: Nodes, values: Array) -> Work:
    """Return the function that sums this rank's part of an array over the nodes."""
    parts, place = cut(values.size, layout.smallest), layout.place(own.rank)
    if place >= len(parts) or not length(parts[place]):
        return lambda: None
    mine, others = values[parts[place]], peers(own)
    return partial(allreduce_between_nodes, mine, others, others.operation(np.add, mine.dtype, mine.nbytes))


def cut_buckets(layers: Sequence[slice], length: int, itemsize: int, nbytes: int = 0) -> list[slice]:
    """Return buckets of adjacent layers, from the last layer to the first, each of at least `nbytes` except the last.

    0, if costs are not measured: an eighth of the gradient, but at least as much as a network of 10 Gbit/s carries in
    16 times its latency (600 kB). A layer is never divided.

    >>> cut_buckets([slice(0, 10), slice(10, 40), slice(40, 50), slice(50, 100)], 100, 4, nbytes=160)
    [slice(50, 100, None), slice(10, 50, None), slice(0, 10, None)]
    """
    least = nbytes or max(length * itemsize / BUCKETS, WORTH * NETWORK.alpha / NETWORK.beta)
    found, stop = [], length
    for start in sorted({layer.start for layer in layers}, reverse=True):
        if start < stop and (stop - start) * itemsize >= least:
            found.append(slice(start, stop))
            stop = start
    if stop:
        found.append(slice(0, stop))
    return found


def find_matrices(model: Model) -> list[tuple[int, tuple[int, int]]]:
    """Return where the matrices of a model begin and their shapes; layers that declare none are about square."""
    declared = getattr(model, "matrices", None)
    if declared is not None:
        return [(begin, shape) for begin, shape in declared if shape[0] * shape[1]]
    sides = [(layer.start, math.isqrt(layer.stop - layer.start)) for layer in model.layers]
    return [(begin, (side, side)) for begin, side in sides if side]


class _Buckets:
    """The buckets of one rank's exchange: when each is started, how it is summed, and what is remembered of it."""

    def __init__(self, model: Model, own: Channel, sending: Sending, part: slice) -> None:
        """`part`: the part of the gradient that this rank sums."""
        n, item = model.g.size, model.g.itemsize
        whole = [slice(0, n)]
        self.buckets = cut_buckets(model.layers, n, item, sending.bucket) if sending.overlap else whole
        self.parts = [_meet(bucket, part) for bucket in self.buckets]
        self.compression: Compression | None = parse_compression(sending.compress, samples=sending.samples)
        self._matrices = find_matrices(model) if self.compression is not None else []
        layers = model.layers if sending.overlap else []
        self._of_layer = [
            [k for k, bucket in enumerate(self.buckets) if length(_meet(bucket, layer))] for layer in layers
        ]
        of_all = [k for some in self._of_layer for k in some]
        self._layers = [of_all.count(k) or 1 for k in range(len(self.buckets))]
        self._tasks = Tasks(own)
        self._error: Exception | None = None
        self._begin()
        self._remember(model, own, sending, part)
        self.works: list[Work] = []

    def _remember(self, model: Model, own: Channel, sending: Sending, part: slice) -> None:
        """Make room for what was not sent, and for what all ranks remember in common."""
        made, time_only = self.compression, own.time_only
        self._first, kept = part.start, made is not None and made.remembers
        self._pieces = [find_pieces(self._matrices, mine) for mine in self.parts]
        lengths = [0 if made is None else made.basis_length(pieces) for pieces in self._pieces]
        dtype = model.g.dtype
        self._ends = np.cumsum([0, *lengths]).tolist()
        if time_only:
            self._memory = own.room(length(part) if kept else 0, dtype)
            self._basis = make_room(own, self._ends[-1], dtype)
            return
        self._memory = np.zeros(length(part) if kept else 0, dtype)
        self._basis = np.random.default_rng(0).standard_normal(self._ends[-1]).astype(dtype)
        if kept and sending.keep is not None:
            # Named by the part: ranks of a resumed run that sum other parts start anew.
            name = f"compression of {part.start} to {part.stop}"
            state = sending.keep(name, error=self._memory, basis=self._basis)
            self._memory, self._basis = state.error, state.basis

    def prepare(self, number: int, values: Array, lane: Channel, total: Total) -> Work:
        """Return the function that sums bucket `number` of this rank's part, which is `values`, over the ranks."""
        if self.compression is None:
            return total(values, np.add)
        part, ends = self.parts[number], self._ends
        memory = self._memory[part.start - self._first : part.stop - self._first]
        basis = self._basis[ends[number] : ends[number + 1]]
        return self.compression.prepare(values, self._pieces[number], lane, total, memory, basis)

    def plan(self, parts: Sequence[slice], itemsize: int) -> dict[str, Any]:
        """Describe what is sent in one exchange, for the formula of the traffic: see `paceline.strategies`.

        `parts`: the parts of the gradient that the ranks of a node sum.
        """
        made, sums = self.compression, []
        for part in parts:
            mine = [_meet(bucket, part) for bucket in self.buckets]
            sums.append([
                [list(one) for one in made.sums(length(each), find_pieces(self._matrices, each), itemsize)]
                if made is not None
                else [[length(each), itemsize]]
                for each in mine
                if length(each)
            ])  # fmt: skip
        return {
            "buckets": len(self.buckets),
            "gathers": made is not None and made.gathers,
            "sums": [[one for some in place for one in some] for place in sums],
        }

    def _begin(self) -> None:
        self._missing, self._next = list(self._layers), 0

    def ready(self, layer: int) -> None:
        """Start the buckets that this layer completes, and go on with those that were started."""
        if self._error is not None:
            return
        try:
            for k in self._of_layer[layer]:
                self._missing[k] -= 1
            while self._next < len(self.works) and not self._missing[self._next]:
                self._next += 1
                self._tasks.start(self.works[self._next - 1])
            self._tasks.advance()
        except Exception as error:  # not in the middle of a backward pass: `finish` raises it
            self._error = error

    def finish(self) -> None:
        """Start what has not been started, and wait for everything."""
        if self._error is not None:
            raise self._error
        for work in self.works[self._next :]:
            self._tasks.start(work)
        self._tasks.finish()
        self._begin()


def _meet(one: slice, other: slice) -> slice:
    """Return what two parts of a vector have in common; it may be empty."""
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))


class ReplicatedBuckets(_Closing):
    """Every rank has its own x and g, and performs the whole update; g is summed bucket by bucket."""

    def __init__(self, model: Model, comm: Any, name: str, sending: Sending) -> None:
        own = channel(comm)
        self._model, self._own, self._name = model, own, name
        self.part = slice(0, model.x.size)
        self._overlap = sending.overlap
        if not hasattr(find_allreduce(name), "prepare"):
            raise AgreedError(f"overlap and compress need a collective made with @collective; {name} is not")
        compare_arrays(own, model.g)
        self._buckets = _Buckets(model, own, sending, self.part)
        self._lanes = [Lane(own, k) for k in range(len(self._buckets.buckets))]
        self.plan = self._buckets.plan([self.part], model.g.itemsize)
        self._prepare()

    def _prepare(self) -> None:
        self._g = self._model.g
        values = np.asarray(self._g)
        self._buckets.works = [
            partial(self._sum, self._buckets.prepare(k, values[part], lane, partial(self._total, lane)), part)
            for k, (part, lane) in enumerate(zip(self._buckets.parts, self._lanes, strict=True))
        ]

    def _total(self, lane: Lane, values: Array, op: Any) -> Work:
        name = self._name
        if name == "auto":
            name = auto.name_of(auto.choose(values.nbytes, lane.size, nodes(self._own)))
        return prepare_sum(values, lane, name, op)

    def _sum(self, work: Work, part: slice) -> None:
        self._own.charge("cold", length(part) * self._g.itemsize)  # computing has evicted it from the caches
        work()

    @property
    def ready(self) -> Ready | None:
        return self._ready if self._overlap else None

    def _ready(self, layer: int) -> None:
        if self._model.g is not self._g:
            self._prepare()
        self._buckets.ready(layer)

    def reduce(self) -> Array:
        if self._model.g is not self._g:
            self._prepare()
        self._buckets.finish()
        return self._g

    def rehearse(self) -> None:
        """Reduce zeros, so that MPI sets up its connections now. Collective."""
        self._model.g[...] = 0
        self.reduce()

    def publish(self) -> None:
        pass


class SharedBuckets(Shared):
    """`Shared` between nodes: each rank sums and sends its part of a bucket when the node's ranks have completed it."""

    def __init__(self, model: Model, comm: Any, sending: Sending, *, whole: bool) -> None:
        super().__init__(model, comm, across_nodes=True, whole=whole)
        own, n, mine = channel(comm), model.x.size, self._mine
        self._overlap = sending.overlap
        self._buckets = _Buckets(model, own, sending, mine)
        self._meeting = Lane(own.node, 0, counted=False)
        self._all = own.room(n if whole else 0, model.g.dtype)
        parts = cut(n, nodes(own).smallest, align=CACHE_LINE // model.g.itemsize)
        self.plan = self._buckets.plan(parts, model.g.itemsize)
        for k, part in enumerate(self._buckets.parts):
            here, work = slice(part.start - mine.start, part.stop - mine.start), None
            if length(part) and self._peers is not None:
                lane = Lane(self._peers, k)
                work = self._buckets.prepare(k, self._sum[here], lane, partial(self._total, lane))
            self._buckets.works.append(partial(self._work, here, work))

    def _total(self, lane: Lane, values: Array, op: Any) -> Work:
        return partial(allreduce_between_nodes, values, lane, lane.operation(op, values.dtype, values.nbytes))

    def _work(self, here: slice, work: Work | None) -> None:
        self._meeting.meet(self._shared)  # the node's ranks have completed the bucket
        if work is not None:
            self._add.combine_rows(
                self._columns[:, here], self._sum[here]
            )  # s_r = g_0 + … + g_p-1, columns of part r
            work()  # s_r <- sum of s_r over the nodes

    @property
    def ready(self) -> Ready | None:
        return self._buckets.ready if self._overlap else None

    def reduce(self) -> Array:
        self._buckets.finish()
        if self._total_row is None:
            return self._sum
        self._shared.fence()
        self._node.copy(self._all, self._total_row)
        return self._all

    def publish(self) -> None:
        if self._total_row is None:
            super().publish()

    def _forget(self) -> None:
        self._buckets.works.clear()
        super()._forget()
