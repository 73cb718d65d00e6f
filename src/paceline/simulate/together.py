"""The computing of simulated ranks, done together: over all cores, and only when a rank needs a result.

    a rank asks for a gradient          a short one is computed; a longer one is noted down, and the rank's clock
                                        advances by what it costs
    ranks with an earlier clock run     and may ask for gradients too
    the first rank needs its result     everything that is outstanding is computed at once, if that is faster;
                                        otherwise this result alone, which its rank then finds in the caches

At a moment of virtual time many ranks compute, so there is much to compute at once. What is short is decided by the
simulated costs, because ranks that wait go on in another order where their clocks are equal. All else changes no bit, and
may follow measured time: what is computed with what, and on how many threads. Every piece of work has a model of its
own, is computed by one thread with the same calls as ever, and the order in which ranks go on is that of the virtual
clock; a rank that accesses memory of others by MPI waits until their results are known.

`Engine` is the seam: it says whether to compute all outstanding work, and computes it in whatever way is fastest.
`Threads` is the one for processors, and `paceline.simulate.forked.Forked` adds processes; one for a device could compute
all gradients of a list in a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from math import inf
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from paceline.data import Batch, Inputs, Split
from paceline.launch import apply_threads
from paceline.models import Model, at_once, can_run_at_once
from paceline.updates import Update

# Seconds of a piece of work, simulated or measured, below which ranks are computed one by one. Calls of NumPy then spend
# more time on Python's lock than several threads save, and a rank that waits finds its parameters in the caches no more.
SHORT = 0.5e-3
# Seconds that a thread must have to compute, for waking it to pay.
LEAST = 2e-3
# Seconds of every piece of work in which other threads wait for Python's lock, about: a pass that takes n times as long
# keeps n threads busy.
LOCKED = 0.1e-3


class Descent(NamedTuple):
    """A step of an update that keeps nothing: x <- update(x, scale g)."""

    update: Update
    eta: float
    scale: float

    def take(self, x: Any, g: Any) -> None:
        """Take the step; `g` is overwritten."""
        self.update.apply(x, g, self.eta, {}, self.scale)


class Work:
    """A piece of computing that a rank has begun: a pass of its model, whose result is not known yet.

    `size`: its number of samples; passes of the same kind and size take about as long.
    """

    __slots__ = (
        "_context",
        "batch",
        "begun",
        "done",
        "error",
        "function",
        "in_place",
        "kind",
        "make",
        "model",
        "order",
        "read",
        "reads",
        "seconds",
        "step",
        "value",
    )

    def __init__(
        self,
        model: Model,
        function: Callable[[], Any],
        batch: Batch | None = None,
        size: int = 0,
        *,
        in_place: bool = False,
        read: Read | None = None,
        reads: Reads | None = None,
        make: Callable[[Any], Any] | None = None,
        step: Descent | None = None,
        order: list[int] | None = None,
    ) -> None:
        self.model, self.function = model, function
        self.read = read
        """The read whose samples the pass computes, if another process can compute it: a gradient or an evaluation."""
        self.reads = reads
        """Of which this is one: they note what is read elsewhere."""
        self.make = make
        """Makes the value of the pass from the tuple of its numbers; None if it is one number."""
        self.step = step
        """The step that is taken with the gradient; None if only the gradient is wanted."""
        self.order = order
        """To which the pass appends the layers whose gradients are ready; None if nobody wants to know."""
        self.begun = False
        """Whether it is being computed, in another process."""
        self.in_place = in_place
        """Whether parameters or gradient are in memory that the strategy chose, and that ranks may share."""
        self.batch = batch
        """The batch whose gradient is computed; None for other work."""
        self.kind = (batch is None, size)
        """What its time depends on."""
        self.done = False
        self.seconds = inf
        """How long it took."""
        self.value: Any = None
        self.error: BaseException | None = None
        self._context = copy_context()  # with NumPy's error handling of the rank

    def compute(self) -> None:
        """Compute the result; an error is kept for the rank that asked."""
        start = perf_counter()
        try:
            self.value = self._context.run(self.function)
            self.seconds = perf_counter() - start
        except BaseException as error:
            self.error = error
        self.done = True

    def result(self) -> Any:
        """Return the result, which is known, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Read(NamedTuple):
    """Samples that are to be read: which of a split, and where to."""

    split: str
    """The name of the split in its data set."""
    take: Callable[[Any, Inputs, Any], None]
    indices: Any
    inputs: Inputs
    labels: Any

    def __call__(self) -> None:
        """Read the samples."""
        self.take(self.indices, self.inputs, self.labels)

    def fills(self, labels: Any) -> bool:
        """Return True if it writes to the memory of these labels."""
        mine: Any = self.labels if self.labels.base is None else self.labels.base
        return mine is (labels if labels.base is None else labels.base)


class Reads:
    """Samples that a rank is to read before its next pass, with that pass and on the same thread."""

    def __init__(self) -> None:
        self._waiting: list[Read] = []
        self._elsewhere: list[Read] = []
        """What another process has read, so that a rank that needs it again must read it."""

    def add(self, read: Read) -> None:
        """Note down a read."""
        self._waiting.append(read)
        if self._elsewhere:
            self._elsewhere = [old for old in self._elsewhere if not old.fills(read.labels)]

    def of(self, labels: Any) -> list[Read]:
        """Return the reads to be done before a pass over samples with these labels; they are noted down no more."""
        reads, self._waiting = self._waiting, []
        if self._elsewhere:
            again = [read for read in self._elsewhere if read.fills(labels)]
            if again:
                self._elsewhere = [read for read in self._elsewhere if read not in again]
                reads = again + reads
        return reads

    def read_elsewhere(self, read: Read) -> None:
        """Note that another process reads these samples, so that they are not here."""
        self._elsewhere.append(read)


def read_first(reads: Sequence[Read], function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that reads samples and then calls `function`."""
    if not reads:
        return function

    def read_and_call() -> Any:
        for read in reads:
            read()
        return function()

    return read_and_call


class LateSplit:
    """The samples of a split, read later, with the next pass of the rank that takes them, if they are so many.

    `name`: that of the split in its data set.

    >>> from paceline.data import ArraySplit
    >>> import numpy as np
    >>> reads, inputs, labels = Reads(), np.zeros((1, 1)), np.zeros(1, np.int64)
    >>> split = ArraySplit(np.array([[0.5], [1.5]]), np.arange(2))
    >>> LateSplit("train", split, reads, lambda count: count > 0).take(np.array([1]), inputs, labels)
    >>> inputs.item(), read_first(reads.of(labels), lambda: inputs.item())()
    (0.0, 1.5)
    """

    def __init__(self, name: str, split: Split, reads: Reads, defers: Callable[[int], bool]) -> None:
        self._name, self._split, self._reads, self._defers = name, split, reads, defers

    def __getattr__(self, name: str) -> Any:
        if name == "_split":  # not set yet: the object is being copied
            raise AttributeError(name)
        return getattr(self._split, name)

    def __len__(self) -> int:
        return len(self._split)

    def take(self, indices: Any, inputs: Inputs, labels: Any) -> None:
        """Write samples into `inputs` and `labels`, or note down that they are to be written."""
        if not self._defers(len(indices)):
            self._split.take(indices, inputs, labels)
            return
        self._reads.add(Read(self._name, self._split.take, indices.copy(), inputs, labels))


class Engine(Protocol):
    """A way of computing everything that is outstanding."""

    def begin(self, work: Work) -> bool:
        """Compute this from now on, while ranks go on; False if it is to be computed when a result is needed."""
        ...

    def wait(self, work: Work) -> None:
        """Wait for work that was begun."""
        ...

    def pays(self, work: Work, outstanding: int) -> bool:
        """Return True if so much work like this is faster computed at once than each piece when its rank goes on."""
        ...

    def __call__(self, works: Sequence[Work]) -> None:
        """Compute all of these, or begin them; each has a model of its own."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


class Outstanding:
    """The work of all ranks of a simulation that was begun and not yet needed.

    >>> from paceline.models.mlp import MLP
    >>> outstanding = Outstanding(Threads(2))
    >>> works = [outstanding.add(Work(MLP([2, 1]), lambda n=n: n * n)) for n in range(5)]
    >>> outstanding.result(works[3]), [work.done for work in works]       # how long they take is not known yet
    (9, [True, True, True, True, True])
    >>> works = [outstanding.add(Work(MLP([2, 1]), lambda n=n: n * n)) for n in range(5)]
    >>> outstanding.result(works[3]), [work.done for work in works]       # too short to be shared
    (9, [False, False, False, True, False])
    >>> outstanding.close()
    """

    def __init__(
        self, engine: Engine, seconds: Callable[[str, int], float] = lambda *_: inf, *, ours: bool = True
    ) -> None:
        self._engine = engine
        self._seconds = seconds  # the simulated cost of a kind of work, by its number of samples
        self._ours = ours  # a strategy of paceline: no rank changes parameters with which others compute
        self._defers: dict[tuple[str, int], bool] = {}
        self._works: dict[Work, None] = {}

    def defers(self, kind: str, size: int) -> bool:
        """Return True if such work is long enough to be noted down: `gradient` or `evaluate`, for so many samples."""
        found = self._defers.get((kind, size))
        if found is None:
            found = self._defers[kind, size] = self._seconds(kind, size) >= SHORT
        return found

    def add(self, work: Work) -> Work:
        """Note down work that a rank has begun."""
        if (work.in_place and not self._ours) or not self._engine.begin(work):
            self._works[work] = None
        return work

    def result(self, work: Work) -> Any:
        """Return the result of some work, or raise its error; compute it if it is not known, and what else pays."""
        if not work.done and not work.begun:
            if (work.in_place and not self._ours) or self._engine.pays(work, len(self._works)):
                works, self._works = list(self._works), {}
            else:
                del self._works[work]
                works = [work]
            self._engine(works)
        if work.begun:
            self._engine.wait(work)
        return work.result()

    def close(self) -> None:
        """Drop what is outstanding, and close the engine."""
        self._works.clear()
        self._engine.close()


class Threads:
    """Compute work on this thread and up to `most - 1` others, on as many as the time of such work keeps busy.

    Work is computed at once where it is known to take long, or not known how long. Models that cannot run at once are
    computed one by one.
    """

    def __init__(self, most: int, blas_threads: int = 1) -> None:
        self._most, self._blas_threads = most, blas_threads
        self._seconds: dict[tuple[bool, int], float] = {}  # the shortest of each kind
        self._waiting: SimpleQueue[Iterator[Work] | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._helpers: list[Thread] = []

    def count(self, seconds: float, works: int) -> int:
        """Return the number of threads for so many pieces of work that take so long.

        >>> threads = Threads(16)
        >>> threads.count(0.2e-3, works=64), threads.count(1e-3, works=64), threads.count(1e-3, works=6)
        (1, 10, 3)
        >>> threads.count(10e-3, works=64), threads.count(10e-3, works=2)
        (16, 2)
        """
        if seconds < SHORT:
            return 1
        return int(max(min(self._most, works, seconds / LOCKED, works * seconds / LEAST), 1))

    def begin(self, work: Work) -> bool:
        """Return False: threads compute what is handed to them together."""
        return False

    def wait(self, work: Work) -> None:
        """Compute this; nothing else is begun."""
        work.compute()

    def known(self, work: Work) -> float:
        """Return how long such work takes at least; inf if that is not known yet."""
        return self._seconds.get(work.kind, inf)

    def note(self, work: Work) -> None:
        """Note how long work has taken."""
        if work.seconds < self._seconds.get(work.kind, inf):
            self._seconds[work.kind] = work.seconds

    def pays(self, work: Work, outstanding: int) -> bool:
        """Return True if several threads are to compute this and all other outstanding work."""
        if self._most == 1 or not can_run_at_once(work.model):  # a module says so after its first pass
            return False
        return self.count(self._seconds.get(work.kind, inf), outstanding) > 1

    def __call__(self, works: Sequence[Work]) -> None:
        count = 1
        if self._most > 1 and len(works) > 1 and all(can_run_at_once(work.model) for work in works):
            count = self.count(self._seconds.get(works[0].kind, inf), len(works))
        if count > 1:
            with at_once([work.model for work in works]):
                self._share(works, count - 1)
        else:
            for work in works:
                work.compute()
        if self._most > 1:
            for work in works:
                self.note(work)

    def _share(self, works: Sequence[Work], others: int) -> None:
        """Compute work on this thread and `others`; each takes the next piece when it has finished one."""
        while len(self._helpers) < others:
            helper = Thread(target=self._help, daemon=True)
            helper.start()
            self._done.get()
            self._helpers.append(helper)
        rest = iter(works)  # from which several threads may take
        for _ in range(others):
            self._waiting.put(rest)
        try:
            for work in rest:
                work.compute()
        finally:  # also if the user interrupts this thread
            for _ in rest:
                pass
            for _ in range(others):
                self._done.get()

    def _help(self) -> None:
        """Compute what is waiting, until a None comes."""
        apply_threads(self._blas_threads)  # OpenMP has a number for every thread
        self._done.put(None)
        while (works := self._waiting.get()) is not None:
            for work in works:
                work.compute()
            self._done.put(None)

    def close(self) -> None:
        """End the other threads."""
        for _ in self._helpers:
            self._waiting.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers.clear()
