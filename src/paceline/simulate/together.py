"""The computing of simulated ranks, done together: over all cores, and only when a rank needs a result.

    a rank asks for a gradient          its work is noted down; its clock advances by what the gradient costs
    ranks with an earlier clock run     and may ask for gradients too
    the first rank needs its result     everything that is outstanding is computed at once

At a moment of virtual time many ranks compute, so there is much to compute at once. What is computed with what, and on
how many threads, changes no bit: every piece of work has a model of its own, is computed by one thread with the same
calls as ever, and the order in which ranks go on is that of the virtual clock.

`Engine` is the seam: a function that is handed all outstanding work and computes it in whatever way is fastest.
`Threads` is the one for processors; one for a device could compute all gradients of a list in a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from paceline.data import Batch, Inputs, Split
from paceline.launch import apply_threads
from paceline.models import Model, at_once, can_run_at_once


class Work:
    """A piece of computing that a rank has begun: a pass of its model, whose result is not known yet."""

    __slots__ = ("_context", "batch", "done", "error", "function", "model", "value")

    def __init__(self, model: Model, function: Callable[[], Any], batch: Batch | None = None) -> None:
        self.model, self.function = model, function
        self.batch = batch
        """The batch whose gradient is computed; None for other work."""
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._context = copy_context()  # with NumPy's error handling of the rank

    def compute(self) -> None:
        """Compute the result; an error is kept for the rank that asked."""
        try:
            self.value = self._context.run(self.function)
        except BaseException as error:
            self.error = error
        self.done = True

    def result(self) -> Any:
        """Return the result, which is known, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Reads:
    """Samples that a rank is to read before its next pass, with that pass and on the same thread."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def add(self, read: Callable[[], None]) -> None:
        """Note down a read."""
        self._waiting.append(read)

    def before(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that reads what is to be read by now, and then calls `function`."""
        if not self._waiting:
            return function
        reads, self._waiting = self._waiting, []

        def read_first() -> Any:
            for read in reads:
                read()
            return function()

        return read_first


class LateSplit:
    """The samples of a split, read later, with the next pass of the rank that takes them.

    >>> from paceline.data import ArraySplit
    >>> import numpy as np
    >>> reads, inputs, labels = Reads(), np.zeros((1, 1)), np.zeros(1, np.int64)
    >>> LateSplit(ArraySplit(np.array([[0.5], [1.5]]), np.arange(2)), reads).take(np.array([1]), inputs, labels)
    >>> inputs.item(), reads.before(lambda: inputs.item())()
    (0.0, 1.5)
    """

    def __init__(self, split: Split, reads: Reads) -> None:
        self._split, self._reads = split, reads

    def __getattr__(self, name: str) -> Any:
        if name == "_split":  # not set yet: the object is being copied
            raise AttributeError(name)
        return getattr(self._split, name)

    def __len__(self) -> int:
        return len(self._split)

    def take(self, indices: Any, inputs: Inputs, labels: Any) -> None:
        """Note down that these samples are to be written into `inputs` and `labels`."""
        self._reads.add(partial(self._split.take, indices.copy(), inputs, labels))


class Engine(Protocol):
    """A way of computing everything that is outstanding."""

    def __call__(self, works: Sequence[Work]) -> None:
        """Compute all of these; each has a model of its own."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


class Outstanding:
    """The work of all ranks of a simulation that was begun and not yet needed.

    >>> from paceline.models.mlp import MLP
    >>> outstanding = Outstanding(Threads(2))
    >>> works = [outstanding.add(Work(MLP([2, 1]), lambda n=n: n * n)) for n in range(5)]
    >>> outstanding.result(works[3]), [work.done for work in works]
    (9, [True, True, True, True, True])
    >>> outstanding.close()
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._works: list[Work] = []

    def add(self, work: Work) -> Work:
        """Note down work that a rank has begun."""
        self._works.append(work)
        return work

    def result(self, work: Work) -> Any:
        """Return the result of some work, or raise its error; if it is not known, compute all that is outstanding."""
        if not work.done:
            works, self._works = self._works, []
            self._engine(works)
        return work.result()

    def close(self) -> None:
        """Drop what is outstanding, and close the engine."""
        self._works.clear()
        self._engine.close()


class Threads:
    """Compute work on this thread and `count - 1` others. Models that cannot run at once are computed one by one."""

    def __init__(self, count: int, blas_threads: int = 1) -> None:
        self._count, self._blas_threads = count, blas_threads
        self._waiting: SimpleQueue[Work | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._helpers: list[Thread] = []

    def __call__(self, works: Sequence[Work]) -> None:
        if self._count == 1 or len(works) == 1:
            for work in works:
                work.compute()
            return
        first = 0
        while first < len(works) and not can_run_at_once(works[first].model):
            works[first].compute()  # after which it may be known that copies can run at once
            first += 1
        rest = works[first:]
        if rest:
            with at_once([work.model for work in rest]):
                self._share(rest)

    def _share(self, works: Sequence[Work]) -> None:
        """Compute work on all threads."""
        if not self._helpers:
            self._helpers = [Thread(target=self._help, daemon=True) for _ in range(self._count - 1)]
            for helper in self._helpers:
                helper.start()
                self._done.get()
        for one in works:
            self._waiting.put(one)
        missing = len(works)
        try:
            while (work := self._take()) is not None:
                missing -= 1
                work.compute()
        finally:  # also if the user interrupts this thread
            while self._take() is not None:
                missing -= 1
            for _ in range(missing):
                self._done.get()

    def _take(self) -> Work | None:
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def _help(self) -> None:
        """Compute what is waiting, until a None comes."""
        apply_threads(self._blas_threads)  # OpenMP has a number for every thread
        self._done.put(None)
        while (work := self._waiting.get()) is not None:
            work.compute()
            self._done.put(None)

    def close(self) -> None:
        """End the other threads."""
        for _ in self._helpers:
            self._waiting.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers.clear()
