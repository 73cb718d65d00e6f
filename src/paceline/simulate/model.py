"""A model on a simulated rank: what it computes is charged to the rank's clock."""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paceline.data import Batch
from paceline.errors import UsageError
from paceline.models import FactoredModel, Model, PartGradient, Ready, layer_by_layer
from paceline.vectors import Meter, vector

Array = NDArray[Any]
# Of the seconds of a gradient the forward pass takes about a third; the layers share the rest.
FORWARD = 1 / 3


def kind_of(model: Model, *, time_only: bool = False) -> type[Costed]:
    """Return the class that `costed` makes of the model: a FactoredModel if the model is one.

    `time_only`: nothing is computed; x and g are room of the right size, and other ranks may have the same model.
    """
    kinds = (TimeOnlyFactored, TimeOnly) if time_only else (CostedFactored, Costed)
    return kinds[not isinstance(model, FactoredModel)]


def costed(
    model: Model,
    comm: Any,
    kind: type[Costed] | None = None,
    before: Callable[[], None] | None = None,
) -> Model:
    """`model` on the clock of `comm`. `before` is called before every gradient."""
    made = (kind_of(model) if kind is None else kind)(model, comm, before)
    return cast(Model, made)  # whose x and g are moved with `place` alone


def copied(model: Model) -> Model:
    """Copy a model, with its own buffers; x and g may be the same arrays: place the copy elsewhere."""
    known = {id(model.x): model.x, id(model.g): model.g}
    try:
        return copy.deepcopy(model, known)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        name = type(model).__name__
        raise UsageError(
            f"the model, a {name}, cannot be copied for every simulated rank: {error}"
        ) from error


class Costed:
    """A model that charges the rank's clock with `gradient` and `evaluate`, by the samples.

    A layer's gradient is ready when, by its share of the parameters, it would be; it is reported after the pass, so that
    nothing is sent from inside of it.
    """

    time_only = False
    _kind = "gradient"

    def __init__(self, model: Model, comm: Any, before: Callable[[], None] | None = None) -> None:
        self.plain = model
        self._comm = comm
        self._before = before
        self._by_layer: Callable[[Batch, Ready], float] | None = None
        self._meter = Meter(comm.Work, self.time_only)
        self._see(model.x, model.g)

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not made yet: a copy in the making
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
        """Accept what `model.g *= 2` assigns, the vector itself."""
        if value is not getattr(self, name):
            raise AttributeError(f"{name} is changed in place, or moved with place(x, g)")

    def _refresh(self) -> None:
        """See the memory that the model has now."""
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
        """State that no gradient changes."""
        return self.plain.buffers

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient."""
        self.plain.place(np.asarray(x), np.asarray(g))
        self._kind = "gradient"

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g`, on the clock."""
        self._comm.Step()
        if self._before is not None:
            self._before()
        if ready is None:
            loss = self._compute(batch)
            self._comm.Work(self._kind, batch.count)
            return loss
        order: list[int] = []
        loss = self._compute(batch, order.append)
        compute = self._comm.kernel.compute
        seconds = 0.0 if compute is None else compute.seconds(self._kind, batch.count, self._comm.me.number)
        each = (1 - FORWARD) * seconds / max(self.x.size, 1)
        self._comm.Compute(FORWARD * seconds)
        for layer in order:
            part = self.layers[layer]
            self._comm.Compute(each * (part.stop - part.start))
            ready(layer)
        return loss

    def _compute(self, batch: Batch, ready: Ready | None = None) -> float:
        if ready is None:
            return self.plain.gradient(batch)
        if self._by_layer is None:
            self._by_layer = layer_by_layer(self.plain)
        return self._by_layer(batch, ready)

    def predict(self, inputs: Array) -> Array:
        """Scores for each sample, off the clock."""
        return self.plain.predict(inputs)

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Loss and right answers, on the clock."""
        found = self.plain.evaluate(inputs, labels)
        self._comm.Work("evaluate", len(labels))
        return found


class CostedFactored(Costed):
    """A model that, once it shares factors, charges `factors` by the samples and `part` by the multiply-adds."""

    plain: FactoredModel
    _total = 0

    def factor_bytes(self, batch: int) -> int:
        """Return the bytes of the factors of this many samples."""
        return self.plain.factor_bytes(batch)

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Leave factors in `memory` from now on."""
        self._kind = "factors"
        return _Part(self.plain.share_factors(memory, batch, rank, ranks), self)

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g`, or leave factors, on the clock."""
        self._total = batch.total
        return super().gradient(batch, ready)


class _Part:
    """A part of the gradient, multiplied out of all ranks' factors, on the clock."""

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

    def __init__(self, model: Model, comm: Any, before: Callable[[], None] | None = None) -> None:
        super().__init__(model, comm, None)
        self._backward = range(len(model.layers) - 1, -1, -1)

    def _refresh(self) -> None:
        """Keep what was shown: the model itself belongs to all ranks."""

    def place(self, x: Array, g: Array) -> None:
        """Show other memory."""
        self._see(np.asarray(x), np.asarray(g))
        self._kind = "gradient"

    def _compute(self, batch: Batch, ready: Ready | None = None) -> float:
        if ready is not None:
            for layer in self._backward:
                ready(layer)
        return math.nan if batch.count else 0.0

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Charge alone."""
        self._comm.Work("evaluate", len(labels))
        return math.nan, 0


class TimeOnlyFactored(TimeOnly, CostedFactored):
    """The same for a model that can share factors."""

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Nothing is left in `memory`."""
        self._kind = "factors"
        model = copied(self.plain)  # sharing would change the one that all ranks have
        assert isinstance(model, FactoredModel)
        return _Part(_Nothing(model.share_factors(memory, batch, rank, ranks).part, self._memory[1]), self)


class _Nothing:
    """A part of a gradient that is not computed."""

    def __init__(self, part: slice, like: Array) -> None:
        self.part = part
        self._room = np.zeros(part.stop - part.start, like.dtype)

    def __call__(self) -> Array:
        return self._room


# ---- The parameters of many ranks, in memory that is one for all of them as long as they are equal.
#
# one file in memory holds the latest parameters that some rank had
# every rank's x is a private mapping of such a file: pages that it has not written are the file's own
# before a gradient a rank compares its x with the latest: equal, it is mapped anew onto that file, and the pages
# it had written are given back; different, its x may become the latest
#
# A synchronous step makes the same x on every rank: the first rank writes the file, all others drop their copies. Ranks
# that differ always, as asynchronous ones do, are soon left alone: each attempt in vain doubles the wait for the next.
# From this many bytes of parameters on, all ranks together, memory is worth the time: mapping a copy of 437,544 bytes
# anew, and writing it again, takes 0.4 ms of a rank's step, writing it where it is 0.05 ms.
PAYS = 256 << 20
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
LONGEST_WAIT = 1 << 12


class Pool:
    """The latest parameters, in a file in memory, and when others may replace them.

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
        """How often a rank gave its copy back."""
        self.fd = -1
        self._joined = True
        self._wait = self._waited = 0
        self._write(start)

    def room(self) -> Room:
        """Return memory for one rank's x, with the latest values."""
        return Room(self, self._like.dtype)

    def join(self) -> None:
        """Count a rank that has found the latest parameters to be its own."""
        self.shared += 1
        self._joined, self._wait = True, 0

    def offer(self, x: Array) -> bool:
        """Take other parameters of a rank; return True if they are the latest from now on."""
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
        """Forget the file; the ranks' mappings of it stay as they are."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._view.close()


class Room:
    """One rank's x: its address stays the same, whichever pages are behind it."""

    def __init__(self, pool: Pool, dtype: Any) -> None:
        self._pool = pool
        # Without a file: Python would keep one open for each. It is unmapped with the last array that looks into it.
        whole = mmap.mmap(-1, _pages(pool.nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.x: Array = np.frombuffer(whole, dtype, count=pool.nbytes // np.dtype(dtype).itemsize)
        self._address = self.x.ctypes.data
        self.forget()

    def forget(self) -> None:
        """Give back what was written; x is the latest parameters."""
        pool = self._pool
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE
        found = _libc().mmap(self._address, _pages(pool.nbytes), protection, flags, pool.fd, 0)
        if found != self._address:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def settle(self) -> bool:
        """Share x with the ranks that have the same; return True if there were some."""
        pool = self._pool
        if _libc().memcmp(self._address, pool.address, pool.nbytes) == 0:
            pool.join()
            self.forget()
            return True
        if pool.offer(self.x):
            self.forget()
        return False


def moved(model: Model, pool: Pool) -> Room | None:
    """Move the model's parameters, equal to the pool's latest, into a room; return None if the system has no more."""
    try:
        room = pool.room()
    except OSError:  # as many mappings as a process may have
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
