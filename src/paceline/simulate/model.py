"""Models on simulated ranks: their computation is charged to the rank's clock."""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paceline.data import Batch, Inputs
from paceline.errors import UsageError
from paceline.models import FactoredModel, Model, PartGradient, Ready, Tally, layer_by_layer, tally
from paceline.simulate.together import Descent, Outstanding, PendingWork, Reads, read_first
from paceline.updates import Update
from paceline.vectors import Meter, charge_whole, vector

Array = NDArray[Any]
# The forward pass takes about a third of a gradient's time; the layers share the rest.
FORWARD = 1 / 3


def kind_of(model: Model, *, time_only: bool = False) -> type[Costed]:
    """Return the class of the object that `add_costs` returns for a model: a FactoredModel if the model is one.

    `time_only`: nothing is computed; x and g only have the right size, and ranks may share the model.
    """
    kinds = (TimeOnlyFactored, TimeOnly) if time_only else (CostedFactored, Costed)
    return kinds[not isinstance(model, FactoredModel)]


def add_costs(
    model: Model,
    comm: Any,
    kind: type[Costed] | None = None,
    before: Callable[[], None] | None = None,
    outstanding: Outstanding | None = None,
    reads: Reads | None = None,
) -> Model:
    """Wrap `model` to charge the clock of `comm`.

    `before` is called before every gradient. `outstanding`: the long passes of all ranks, computed together; other passes
    are computed when the rank asks for them. `reads`: what is read with a pass.
    """
    made = (kind_of(model) if kind is None else kind)(model, comm, before, outstanding, reads)
    return cast(Model, made)  # whose x and g are moved only with `place`


def copy_model(model: Model) -> Model:
    """Copy a model, with its own buffers; x and g may be the same arrays, so use `place` on the copy."""
    known = {id(model.x): model.x, id(model.g): model.g}
    try:
        return copy.deepcopy(model, known)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        name = type(model).__name__
        raise UsageError(
            f"the model, a {name}, cannot be copied for every simulated rank: {error}"
        ) from error


class Costed:
    """A model that charges `gradient` and `evaluate` to the rank's clock, by the number of samples.

    The time at which a layer's gradient is ready is estimated from its share of the parameters; it is reported after the
    pass, so that nothing is sent during the pass.
    """

    time_only = False
    _kind = "gradient"
    _in_place = False
    _total = 0
    """The samples of the last global batch."""

    def __init__(
        self,
        model: Model,
        comm: Any,
        before: Callable[[], None] | None = None,
        outstanding: Outstanding | None = None,
        reads: Reads | None = None,
    ) -> None:
        self.plain = model
        self._comm = comm
        self._before = before
        self._outstanding = outstanding
        self._reads = Reads() if reads is None else reads
        self._by_layer: Callable[[Batch, Ready], float] | None = None
        self._meter = Meter(comm.Work, self.time_only)
        self._see(model.x, model.g)

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not set yet: the object is being copied
            raise AttributeError(name)
        return getattr(self.plain, name)

    @property
    def x(self) -> Array:
        """The parameters, as a vector on the rank's clock."""
        self._refresh()
        return self._vectors[0]

    @x.setter
    def x(self, value: Array) -> None:
        self._check_same("x", value)

    @property
    def g(self) -> Array:
        """The gradient, as a vector on the rank's clock."""
        self._refresh()
        return self._vectors[1]

    @g.setter
    def g(self, value: Array) -> None:
        self._check_same("g", value)

    def _check_same(self, name: str, value: Array) -> None:
        """Accept only the assignment of the same vector, as in `model.g *= 2`."""
        if value is not getattr(self, name):
            raise AttributeError(f"{name} is changed in place, or moved with place(x, g)")

    def _refresh(self) -> None:
        """Wrap the memory that the model uses now."""
        if self._memory[0] is not self.plain.x or self._memory[1] is not self.plain.g:
            self._see(self.plain.x, self.plain.g)

    def _see(self, x: Array, g: Array) -> None:
        self._memory = (x, g)
        self._vectors = (vector(x, self._meter), vector(g, self._meter))

    @property
    def layers(self) -> Sequence[slice]:
        """Each layer's part of both."""
        return self.plain.layers

    @property
    def buffers(self) -> dict[str, Array]:
        """State that gradients do not change."""
        return self.plain.buffers

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient."""
        new, old = (np.asarray(x), np.asarray(g)), (self.plain.x, self.plain.g)
        if any(one.ctypes.data != other.ctypes.data for one, other in zip(new, old, strict=True)):
            self._in_place = True
        self.plain.place(*new)
        self._kind = "gradient"

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g`, charging the clock."""
        self._comm.Step()
        self._total = batch.total
        if self._before is not None:
            self._before()
        if ready is None:
            compute = partial(self._compute, batch)
            portable = self._kind == "gradient"
            result = self._begin(self._kind, compute, batch.inputs, batch.labels, batch, portable=portable)
            self._comm.Work(self._kind, batch.count)
            return float(result())
        order: list[int] = []
        in_order = partial(self._compute, batch, order.append)
        # The first pass of a module reports its layers in another order than the later ones.
        portable = self._kind == "gradient" and self._by_layer is not None
        result = self._begin(
            self._kind, in_order, batch.inputs, batch.labels, batch, portable=portable, order=order
        )
        seconds = self._comm.WorkSeconds(self._kind, batch.count)
        share: Callable[[int], float] | None = getattr(self.plain, "forward_share", None)
        forward = FORWARD if share is None else share(batch.count)
        self._comm.Compute(forward * seconds)
        loss = float(result())
        measured = getattr(self.plain, "charge_layer", None)
        for layer in order:
            if measured is None:
                self._comm.Compute((1 - forward) * seconds * self._backward_share(layer))
            else:
                measured(layer)
            ready(layer)
        return loss

    def descend(
        self, batch: Batch, update: Update, eta: float, scale: float
    ) -> tuple[float, Callable[[], None]]:
        """Compute a gradient and take the step of an update along it; return the loss, and what charges the step."""
        size = self._memory[0].size
        if (
            self._outstanding is None or self._in_place or self._kind != "gradient"
        ):  # each when its time comes
            loss = self.gradient(batch)
            step = partial(update.apply, eta=eta, state={}, scale=scale)
            return loss, partial(charge_whole, "update", size, step, self.x, self.g)
        self._comm.Step()
        if self._before is not None:
            self._before()
        descent = Descent(update, eta, scale)
        function = partial(self._compute_and_step, batch, descent)
        result = self._begin("gradient", function, batch.inputs, batch.labels, batch, step=descent)
        self._comm.Work("gradient", batch.count)
        return float(result()), partial(self._comm.Work, "update", size)

    def _compute_and_step(self, batch: Batch, step: Descent) -> float:
        loss, plain = self._compute(batch), self.plain
        step.take(plain.x, plain.g)
        return loss

    def _backward_share(self, layer: int) -> float:
        """Return the layer's part of the backward pass: as the model says, or else its part of the parameters."""
        known: Sequence[float] | None = getattr(self.plain, "backward_shares", None)
        if known is not None:
            return known[layer]
        part = self.layers[layer]
        return float((part.stop - part.start) / max(self.x.size, 1))

    def _begin(
        self, kind: str, function: Callable[[], Any], inputs: Inputs, labels: Array, batch: Batch | None = None, *,
        portable: bool = True, step: Descent | None = None, order: list[int] | None = None,
    ) -> Callable[[], Any]:  # fmt: skip
        """Begin a pass; return what returns its result, to be called when the clock has advanced by the pass's cost.

        `batch`: that of a gradient; None for an evaluation. `portable`: the pass changes nothing but the gradient and
        buffers, so that another process can compute it. `step`: taken with the gradient, by `function` too.
        `order`: to which the pass appends the layers whose gradients are ready.
        """
        size = len(labels) if batch is None else batch.count
        reads = self._reads.of(labels)
        function = read_first(reads, function)
        outstanding = self._outstanding
        if outstanding is None or not outstanding.defers(kind, size):
            found = function()
            return lambda: found
        read = reads[0] if portable and len(reads) == 1 else None
        if read is not None and (read.inputs is not inputs or read.labels is not labels):
            read = None
        make = None if batch is not None else Tally._make
        work = PendingWork(
            self.plain, function, batch, size, in_place=self._in_place, read=read, reads=self._reads, make=make,
            step=step, order=order,
        )  # fmt: skip
        outstanding.add(work)

        def result() -> Any:
            self._comm.LetOthersBegin()  # whose clock is earlier
            return outstanding.result(work)

        return result

    def _compute(self, batch: Batch, ready: Ready | None = None) -> float:
        if ready is None:
            return self.plain.gradient(batch)
        if self._by_layer is None:
            self._by_layer = layer_by_layer(self.plain)
        return self._by_layer(batch, ready)

    def predict(self, inputs: Inputs) -> Array:
        """Return scores for each sample, without charging the clock."""
        return self.plain.predict(inputs)

    def evaluate(self, inputs: Inputs, labels: Array) -> tuple[float, int]:
        """Return the loss and the number of correct answers, charging the clock."""
        found = self.tally(inputs, labels)
        return found.loss, found.right

    def tally(self, inputs: Inputs, labels: Array) -> Tally:
        """Return the loss and the answers, charging the clock."""
        result = self._begin("evaluate", partial(tally, self.plain, inputs, labels), inputs, labels)
        self._comm.Work("evaluate", len(labels))
        found: Tally = result()
        return found


class CostedFactored(Costed):
    """A model that, once it shares factors, charges `factors` by the samples and `part` by the multiply-adds."""

    plain: FactoredModel

    def factor_bytes(self, batch: int) -> int:
        """Return the bytes of the factors of this many samples."""
        return self.plain.factor_bytes(batch)

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Write factors to `memory` from now on."""
        self._kind = "factors"
        return _Part(self.plain.share_factors(memory, batch, rank, ranks), self)


class _Part:
    """A part of the gradient, computed from all ranks' factors, charging the clock."""

    def __init__(self, inner: PartGradient, model: CostedFactored) -> None:
        self._inner, self._model = inner, model
        self.part = inner.part

    def __call__(self) -> Array:
        found = self._inner()
        self._model._comm.Work("part", self._model._total * (self.part.stop - self.part.start))
        return found


class TimeOnly(Costed):
    """A model that charges and computes nothing: its loss is NaN."""

    time_only = True

    def __init__(
        self,
        model: Model,
        comm: Any,
        before: Callable[[], None] | None = None,
        outstanding: Outstanding | None = None,
        reads: Reads | None = None,
    ) -> None:
        super().__init__(model, comm)
        self._backward = range(len(model.layers) - 1, -1, -1)

    def _refresh(self) -> None:
        """Keep the vectors: the model itself is shared by all ranks, which place it each for themselves."""

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Charge the clock without computing."""
        if ready is not None:
            return super().gradient(batch, ready)
        self._comm.Step()
        self._total = batch.total
        self._comm.Work(self._kind, batch.count)
        return math.nan if batch.count else 0.0

    def place(self, x: Array, g: Array) -> None:
        """Use other memory."""
        self._see(np.asarray(x), np.asarray(g))
        self._kind = "gradient"

    def _compute(self, batch: Batch, ready: Ready | None = None) -> float:
        if ready is not None:
            for layer in self._backward:
                ready(layer)
        return math.nan if batch.count else 0.0

    def tally(self, inputs: Inputs, labels: Array) -> Tally:
        """Charge the clock without computing."""
        self._comm.Work("evaluate", len(labels))
        return Tally(math.nan, 0.0, 0, 0)


class TimeOnlyFactored(TimeOnly, CostedFactored):
    """The same for a model that can share factors."""

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Share factors from now on, without writing anything to `memory`."""
        self._kind = "factors"
        model = copy_model(self.plain)  # sharing would change the model of all ranks
        assert isinstance(model, FactoredModel)
        return _Part(_Nothing(model.share_factors(memory, batch, rank, ranks).part, self._memory[1]), self)


class _Nothing:
    """A part of a gradient that is not computed."""

    def __init__(self, part: slice, like: Array) -> None:
        self.part = part
        self._room = np.zeros(part.stop - part.start, like.dtype)

    def __call__(self) -> Array:
        return self._room


# ---- Memory for the parameters of many ranks, shared by all of them as long as they are equal.
#
# An in-memory file holds the latest parameters of some rank. Every rank's x is a private mapping of such a file, so
# pages that the rank has not written are shared. Before a gradient a rank compares its x with the latest parameters: if
# they are equal, x is mapped onto that file again, which frees the pages that it had written; otherwise its x may
# become the latest.
#
# A synchronous step leaves the same x on every rank: the first rank writes the file, and all others drop their copies.
# If ranks always differ, as asynchronous ones do, every failed attempt doubles the wait until the next.

# The total bytes of parameters, over all ranks, above which saving memory is worth the time: mapping a copy of 437,544
# bytes again and rewriting it takes 0.4 ms of a rank's step, compared with 0.05 ms to write it in place.
PAYS = 256 << 20
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
LONGEST_WAIT = 1 << 12


class Pool:
    """The latest parameters, in an in-memory file, and the policy for replacing them.

    >>> pool = Pool(np.ones(2000, np.float32))
    >>> one, other = pool.room(), pool.room()
    >>> one.x += 1
    >>> other.x += 1
    >>> one.settle(), other.settle(), pool.shared       # the first writes what the second finds
    (False, True, 1)
    >>> bool((one.x == 2).all() and (other.x == 2).all())
    True
    >>> pool.close()
    """

    def __init__(self, start: Array) -> None:
        self._like = start
        self.nbytes = start.nbytes
        self.shared = 0
        """The number of times that a rank dropped its copy."""
        self.fd = -1
        self._joined = True
        self._wait = self._waited = 0
        self._write(start)

    def room(self) -> Room:
        """Return memory for one rank's x, with the latest values."""
        return Room(self, self._like.dtype)

    def join(self) -> None:
        """Count a rank whose parameters equal the latest."""
        self.shared += 1
        self._joined, self._wait = True, 0

    def offer(self, x: Array) -> bool:
        """Offer a rank's parameters; return True if they become the latest."""
        if not self._joined:
            self._waited += 1
            if self._waited < self._wait:
                return False
            self._wait = min(2 * self._wait + 1, LONGEST_WAIT)
        self._waited, self._joined = 0, False
        self._write(x)
        return True

    def _write(self, x: Array) -> None:
        self.close()
        self.fd = os.memfd_create("paceline-parameters")
        rest = x.view(np.uint8).data
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        os.ftruncate(self.fd, _pages(self.nbytes))
        self._view = mmap.mmap(self.fd, _pages(self.nbytes), prot=mmap.PROT_READ)
        self.address = np.frombuffer(self._view, np.uint8).ctypes.data

    def close(self) -> None:
        """Close the file; the ranks' mappings of it remain valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._view.close()


class Room:
    """Memory for one rank's x, at a fixed address, whichever pages it is mapped to."""

    def __init__(self, pool: Pool, dtype: Any) -> None:
        self._pool = pool
        # Anonymous, because Python would keep a file open for each. It is unmapped with the last array that uses it.
        whole = mmap.mmap(-1, _pages(pool.nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.x: Array = np.frombuffer(whole, dtype, count=pool.nbytes // np.dtype(dtype).itemsize)
        self._address = self.x.ctypes.data
        self.forget()

    def forget(self) -> None:
        """Discard what was written; x becomes the latest parameters."""
        pool = self._pool
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE
        found = _libc().mmap(self._address, _pages(pool.nbytes), protection, flags, pool.fd, 0)
        if found != self._address:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def settle(self) -> bool:
        """Share x with the ranks that have equal parameters; return True if there are any."""
        pool = self._pool
        if _libc().memcmp(self._address, pool.address, pool.nbytes) == 0:
            pool.join()
            self.forget()
            return True
        if pool.offer(self.x):
            self.forget()
        return False


def move_into_room(model: Model, pool: Pool) -> Room | None:
    """Move the model's parameters, equal to the pool's latest, into a new room; return None if no mapping is left."""
    try:
        room = pool.room()
    except OSError:  # the limit on mappings per process
        return None
    model.place(room.x, np.zeros(model.x.size, model.x.dtype))
    room.forget()
    return room


def _pages(nbytes: int) -> int:
    return max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    integer = ctypes.c_int
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, integer, integer, integer, ctypes.c_long]
    libc.memcmp.restype = ctypes.c_int
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return libc
