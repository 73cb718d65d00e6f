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
`Threads` is the one for processors, and `Forked` adds processes, which no interpreter lock holds up; one for a device
could compute all gradients of a list in a few kernels. With `Forked`:

    a rank begins a pass       its parameters are in memory that all processes share; what to compute is a short message
    processes                  take the next message, read the samples, compute, and write the gradient to shared memory
    the rank needs its result  this process waits for that one; the others are computed meanwhile, and so are the passes
                               that other ranks begin while this process goes on with the messages and updates of ranks

A pass depends on parameters, buffers and samples only, so any process computes the same bits, and one that fails can be
repeated here. That is what happens if a process dies, or if a module turns out to keep something of its own between
passes; threads compute what follows. The shared memory is anonymous: it has no name, and is gone with the last process.
Processes end when this one does, however it ends, because there is nothing more to read then.
"""

from __future__ import annotations

import gc
import logging
import marshal
import mmap
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from math import inf
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data import Batch, Dataset, Inputs, Split, buffers
from paceline.launch import apply_threads
from paceline.models import Model, at_once, can_run_apart, can_run_at_once, layer_by_layer, leave_trace, tally
from paceline.updates import Update

Array = NDArray[Any]
log = logging.getLogger(__name__)
# Seconds of a piece of work, simulated or measured, below which ranks are computed one by one. Calls of NumPy then spend
# more time on Python's lock than several threads save, and a rank that waits finds its parameters in the caches no more.
SHORT = 0.5e-3
# Seconds that a thread must have to compute, for waking it to pay.
LEAST = 2e-3
# Seconds of every piece of work in which other threads wait for Python's lock, about: a pass that takes n times as long
# keeps n threads busy.
LOCKED = 0.1e-3
# Seconds of computing for which processes are started: a simulation that is shorter does without.
WORTH_FORKING = 0.25
# Seconds of a pass below which messages to another process take longer than they save.
WORTH_SENDING = 0.15e-3
# Messages for each process that may be on their way: enough that none waits while this process is busy.
AHEAD = 4
SCRATCH = 256 << 20  # bytes of vectors for passes whose own vectors are not shared
LARGEST = 4 << 20  # bytes of a message; the system may allow less
# Seconds after which a process that says nothing counts as stuck: so many, and so many times what such a pass takes.
PATIENCE, TIMES = 120.0, 100.0
INDEX = np.uint32  # of samples
ENDED = "a process that computes gradients has ended"
MAP_NORESERVE = 0x4000  # on Linux


class Descent(NamedTuple):
    """A step of an update that keeps nothing: x <- update(x, scale g)."""

    update: Update
    eta: float
    scale: float

    def take(self, x: Any, g: Any) -> None:
        """Take the step; `g` is overwritten."""
        self.update.apply(x, g, self.eta, {}, self.scale)


class PendingWork:
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

    def begin(self, work: PendingWork) -> bool:
        """Compute this from now on, while ranks go on; False if it is to be computed when a result is needed."""
        ...

    def wait(self, work: PendingWork) -> None:
        """Wait for work that was begun."""
        ...

    def pays(self, work: PendingWork, outstanding: int) -> bool:
        """Return True if so much work like this is faster computed at once than each piece when its rank goes on."""
        ...

    def __call__(self, works: Sequence[PendingWork]) -> None:
        """Compute all of these, or begin them; each has a model of its own."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


class Outstanding:
    """The work of all ranks of a simulation that was begun and not yet needed.

    >>> from paceline.models.mlp import MLP
    >>> outstanding = Outstanding(Threads(2))
    >>> works = [outstanding.add(PendingWork(MLP([2, 1]), lambda n=n: n * n)) for n in range(5)]
    >>> outstanding.result(works[3]), [work.done for work in works]       # how long they take is not known yet
    (9, [True, True, True, True, True])
    >>> works = [outstanding.add(PendingWork(MLP([2, 1]), lambda n=n: n * n)) for n in range(5)]
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
        self._works: dict[PendingWork, None] = {}

    def defers(self, kind: str, size: int) -> bool:
        """Return True if such work is long enough to be noted down: `gradient` or `evaluate`, for so many samples."""
        found = self._defers.get((kind, size))
        if found is None:
            found = self._defers[kind, size] = self._seconds(kind, size) >= SHORT
        return found

    def add(self, work: PendingWork) -> PendingWork:
        """Note down work that a rank has begun."""
        if (work.in_place and not self._ours) or not self._engine.begin(work):
            self._works[work] = None
        return work

    def result(self, work: PendingWork) -> Any:
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
        self._waiting: SimpleQueue[Iterator[PendingWork] | None] = SimpleQueue()
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

    def begin(self, work: PendingWork) -> bool:
        """Return False: threads compute what is handed to them together."""
        return False

    def wait(self, work: PendingWork) -> None:
        """Compute this; nothing else is begun."""
        work.compute()

    def recall_seconds(self, work: PendingWork) -> float:
        """Return how long such work takes at least; inf if that is not known yet."""
        return self._seconds.get(work.kind, inf)

    def note(self, work: PendingWork) -> None:
        """Note how long work has taken."""
        if work.seconds < self._seconds.get(work.kind, inf):
            self._seconds[work.kind] = work.seconds

    def pays(self, work: PendingWork, outstanding: int) -> bool:
        """Return True if several threads are to compute this and all other outstanding work."""
        if self._most == 1 or not can_run_at_once(work.model):  # a module says so after its first pass
            return False
        return self.count(self._seconds.get(work.kind, inf), outstanding) > 1

    def __call__(self, works: Sequence[PendingWork]) -> None:
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

    def _share(self, works: Sequence[PendingWork], others: int) -> None:
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


def find_obstacle(model: Model, threads: int) -> str:
    """Say why passes of a model, each on so many threads, cannot be computed in forked processes; "" if they can.

    >>> from paceline.models.mlp import MLP
    >>> find_obstacle(MLP([2, 1]), threads=2)
    'the threads of a gradient do not survive a fork'
    """
    torch = sys.modules.get("torch")
    if sys.platform != "linux":
        return f"{sys.platform} is not Linux"
    if threads > 1:
        return "the threads of a gradient do not survive a fork"
    if torch is not None and torch.cuda.is_initialized():
        return "a GPU that is in use does not survive a fork"
    if not can_run_apart(model):
        return f"it is not known what a {type(model).__name__} keeps from one gradient to the next"
    return ""


def sees_gpus() -> bool:
    """Return True if PyTorch sees GPUs: its first gradient then starts threads for them, which do not survive a fork."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.device_count() > 0  # asks without using them, unlike is_available


def scratch_pairs(processes: int, nbytes: int) -> int:
    """Return the number of pairs of vectors, of `nbytes` each, for passes whose own vectors are not shared.

    One for each message that may be on its way, or fewer if vectors are long, but one for each process.

    >>> scratch_pairs(16, 437_544), scratch_pairs(16, 100_000_000)
    (64, 16)
    """
    return max(processes, min(AHEAD * processes, SCRATCH // (2 * max(nbytes, 1))))


class SharedVectors:
    """Vectors in memory that this process shares with those that it forks; pages take no memory until they are written.

    >>> vectors = SharedVectors(np.zeros(3, np.float32), 2)
    >>> vectors[1][:] = 5
    >>> vectors[0].tolist(), vectors[1].tolist()
    ([0.0, 0.0, 0.0], [5.0, 5.0, 5.0])
    """

    def __init__(self, like: Array, count: int) -> None:
        page = mmap.PAGESIZE
        self._bytes, self._length = max(-(-like.nbytes // page), 1) * page, like.size
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._memory, self._dtype = mmap.mmap(-1, self._bytes * count, flags=flags), like.dtype

    def __getitem__(self, number: int) -> Array:
        return np.frombuffer(self._memory, self._dtype, self._length, number * self._bytes)


class Forked:
    """Compute passes in `count` forked processes, and what they cannot compute on threads.

    `models`: those of the ranks. Of the `vectors`, the first `homes` are where parameters and gradients of ranks are, from
    rank 1 on, and two for each of the `scratch_pairs` are for those that are somewhere else. `passes`: how many gradients
    the ranks are going to compute, about.
    """

    def __init__(
        self,
        threads: Threads,
        count: int,
        models: Sequence[Model],
        data: Dataset,
        vectors: SharedVectors,
        homes: int,
        update: Update | None = None,
        passes: int = 0,
    ) -> None:
        self._threads, self._count, self._passes = threads, count, passes
        self._models, self._data, self._vectors, self._update = models, data, vectors, update
        # For each rank that is at home: 1 as soon as its new parameters are where its gradient was, and its loss.
        self._marks = SharedVectors(np.zeros(homes + 2), 1)[0].reshape(-1, 2)
        self._homes = {id(models[number // 2 + 1]): number for number in range(0, homes, 2)}
        pairs = scratch_pairs(count, models[0].x.nbytes)
        self._free = [homes + 2 * number for number in range(pairs)]
        self._spent, self._worth = 0.0, WORTH_FORKING
        self._at_once = sees_gpus()
        self.processes: list[int] = []
        """The numbers of the processes."""
        self._refused = False
        self._backlog: deque[PendingWork] = deque()
        self._begun: dict[int, tuple[PendingWork, int | None]] = {}
        self._number = 0
        self._silent = 0
        self._message = memoryview(bytearray(LARGEST))
        self._ends: tuple[socket.socket, ...] = ()

    # ---- as an engine

    def pays(self, work: PendingWork, outstanding: int) -> bool:
        """Return True if several threads are to compute this and all other outstanding work."""
        return self._threads.pays(work, outstanding)

    def __call__(self, works: Sequence[PendingWork]) -> None:
        """Compute work that was not begun, on threads; begin all but the first if it is worth starting processes."""
        if (
            len(works) > 1
            and works[0].read is not None
            and not self._refused
            and self._spent < self._worth < inf
        ):
            seconds = self._threads.recall_seconds(works[0])
            if seconds == inf:  # find out with one of them
                self._compute(works[:1])
                seconds, works = works[0].seconds, works[1:]
            count = len(works) if works[0].batch is None else max(len(works), self._passes)
            expected = 0.0 if seconds == inf else seconds * count
            if self._spent + expected >= self._worth:
                self._spent = max(self._spent, self._worth)
                if able := [work for work in works if self._can_send(work)]:
                    self.start(able)
                works = [work for work in works if not work.begun]
        if works:
            self._compute(works)

    def _compute(self, works: Sequence[PendingWork]) -> None:
        start = perf_counter()
        self._threads(works)
        self._spent += perf_counter() - start

    def begin(self, work: PendingWork) -> bool:
        """Let a process compute a pass as soon as one is free; False if it is to be computed here."""
        if self._at_once and not self._refused:  # before the first gradient is computed here
            self._at_once = False
            self.start()
        if not self._can_send(work):
            return False
        if not self.processes:
            if self._spent >= self._worth:
                self.start([work])
            return work.begun
        self._queue(work)
        self._send()
        return True

    def _can_send(self, work: PendingWork) -> bool:
        """Return True if another process can compute a pass, and it takes long enough."""
        if self._refused or work.read is None or self._threads.recall_seconds(work) < WORTH_SENDING:
            return False
        return work.step is None or work.step.update is self._update

    def _queue(self, work: PendingWork) -> None:
        assert work.read is not None
        work.begun = True
        if work.reads is not None:
            work.reads.read_elsewhere(work.read)
        self._backlog.append(work)

    def wait(self, work: PendingWork) -> None:
        """Wait until a pass that was begun is computed."""
        while not work.done:
            if self._refused:
                work.compute()
            else:
                self._receive()

    def close(self) -> None:
        """End the processes and the threads."""
        self._end(kill=bool(self._begun))
        self._backlog.clear()
        self._begun.clear()
        self._threads.close()

    # ---- messages

    def _send(self) -> None:
        """Send what is to be computed, as long as there are not too many messages on their way."""
        backlog, begun = self._backlog, self._begun
        while backlog and len(begun) < AHEAD * self._count:
            work = backlog[0]
            if (places := self._place(work)) is None:
                return
            x, g, scratch = places
            number = self._number = self._number + 1
            try:
                self._tasks.send(_describe(number, work, x, g))
            except OSError as error:
                if scratch is not None:
                    self._free.append(scratch)
                if isinstance(error, BlockingIOError):
                    return
                # too long a message, or nobody left to read it
                self._give_up(f"a pass cannot be sent to another process: {error}")
                return
            backlog.popleft()
            begun[number] = (work, scratch)

    def _place(self, work: PendingWork) -> tuple[int, int, int | None] | None:
        """Return the numbers of the vectors of a pass, and of the first of two to be released; None if none is free."""
        home = None if work.in_place else self._homes.get(id(work.model))
        if home is not None:
            self._marks[home // 2, 0] = 0
            return home, home + 1, None
        if not self._free:
            return None
        scratch = self._free.pop()
        np.copyto(self._vectors[scratch], work.model.x)
        return scratch, scratch + 1, scratch

    def _receive(self) -> None:
        """Wait for the result of any pass, and keep it."""
        if self._backlog:
            self._send()
            if self._refused:
                return
        try:
            length = self._results.recv_into(self._message)
        except BlockingIOError:
            self._await()
            return
        if not length:
            self._give_up(ENDED)
            return
        self._silent = 0
        number, seconds, value, changed = marshal.loads(self._message[:length])
        work, scratch = self._begun.pop(number)
        if scratch is not None:
            if seconds is not None and work.step is not None:
                np.copyto(work.model.x, self._vectors[scratch])
            elif seconds is not None and work.batch is not None:
                np.copyto(work.model.g, self._vectors[scratch + 1])
            self._free.append(scratch)
        if seconds is None:
            self._repeat(work, value)
            return
        if changed is not None:
            _put_buffers(work.model, changed)
        if work.order is not None:
            value, layers = value
            work.order += layers
        work.value = value if work.make is None else work.make(value)
        work.seconds, work.done = seconds, True
        self._threads.note(work)

    def _await(self) -> None:
        """Wait until there is a result to receive, or for a second."""
        if self._poll.poll(1000):
            return
        self._silent += 1
        known = [self._threads.recall_seconds(work) for work, _ in self._begun.values()]
        longest = max((seconds for seconds in known if seconds < inf), default=0.0)
        if self._reap(os.WNOHANG):
            self._give_up(ENDED)
        elif self._silent > PATIENCE + TIMES * longest:
            self._give_up(f"processes that compute gradients have not answered for {self._silent} s")

    # ---- what goes wrong

    def _repeat(self, work: PendingWork, why: str) -> None:
        """Compute a pass here that has failed in another process; an error is that of the rank, and processes go on."""
        work.compute()
        if work.error is None:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        """Compute everything here from now on; `wait` repeats what was begun and is not finished."""
        self._refused = True
        log.warning("%s; from now on one process computes the gradients of all ranks", why)
        self._end(kill=True)
        for work, scratch in self._begun.values():
            home = self._homes.get(id(work.model), 0)
            if work.step is not None and scratch is None and self._marks[home // 2, 0]:  # maybe half of it
                np.copyto(work.model.x, self._vectors[home + 1])
                work.value, work.done = float(self._marks[home // 2, 1]), True
        self._begun.clear()
        self._backlog.clear()

    # ---- processes

    def start(self, first: Sequence[PendingWork] = ()) -> bool:
        """Start the processes, which begin with the `first` passes; False if that cannot be done, or not yet."""
        values = [leave_trace(model)[0] for model in self._models]
        if any(value != values[0] for value in values):
            self._worth = 2 * self._spent  # perhaps only at the start
            log.info("no processes are started: the ranks' models differ in more than parameters and buffers")
            return False
        self._threads.close()  # a process is forked without them
        ours, theirs = zip(
            *(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)), strict=True
        )
        self._tasks, self._results = self._ends = ours
        for end in (*ours, *theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
        for end in ours:
            end.setblocking(False)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        for work in first:  # so that a process has something to do while the next one is started
            self._queue(work)
        self._send()
        try:
            for _ in range(0 if self._refused else self._count):
                with warnings.catch_warnings():
                    # Python warns if there are other threads. They hold no lock that a pass needs.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
                if pid == 0:
                    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # so that gradients start no threads for GPUs
                    for end in ours:
                        end.close()
                    _run(
                        lambda: Computing(
                            self._models[0], self._data, self._vectors, self._update, self._marks
                        ).serve(*theirs)
                    )
                self.processes.append(pid)
        except OSError as error:
            self._give_up(f"processes cannot be started: {error}")
        finally:
            for end in theirs:
                end.close()
        return not self._refused

    def _end(self, *, kill: bool) -> None:
        """End the processes: at once, or when they find nothing more to read."""
        for end in self._ends:
            end.close()
        self._ends = ()
        if kill:
            for pid in self.processes:
                os.kill(pid, signal.SIGKILL)
        self._reap()

    def _reap(self, how: int = 0) -> bool:
        """Wait for all processes to end, or (`os.WNOHANG`) see whether any has; return True if one has ended."""
        ended = [pid for pid in self.processes if os.waitpid(pid, how)[0]]
        self.processes = [pid for pid in self.processes if pid not in ended]
        return bool(ended)


def _describe(number: int, work: PendingWork, x: int, g: int) -> bytes:
    """Describe a pass to another process."""
    read, batch, model = work.read, work.batch, work.model
    assert read is not None
    where = (
        None
        if batch is None
        else (batch.count, batch.total, batch.offset, batch.step, batch.epoch, float(batch.weight))
    )
    state = [buffer.tobytes() for buffer in model.buffers.values()] if model.buffers else None
    step = None if work.step is None else (work.step.eta, work.step.scale)
    samples = read.indices.astype(INDEX).tobytes()
    return marshal.dumps((number, read.split, samples, where, step, work.order is not None, x, g, state))


def _put_buffers(model: Model, state: Sequence[bytes]) -> None:
    for buffer, content in zip(model.buffers.values(), state, strict=True):
        buffer[...] = np.frombuffer(content, buffer.dtype).reshape(buffer.shape)


class Computing:
    """What a forked process does: compute passes with a model of its own, until there is nothing more to read."""

    def __init__(
        self, model: Model, data: Dataset, vectors: SharedVectors, update: Update | None, marks: Array
    ) -> None:
        self._model, self._data, self._vectors, self._update, self._marks = (
            model,
            data,
            vectors,
            update,
            marks,
        )
        self._room: dict[str, tuple[Inputs, Array]] = {}
        model.place(np.empty_like(model.x), np.zeros_like(model.x))
        self._trace = leave_trace(model)
        self._changed = ""
        self._by_layer: Callable[[Batch, Callable[[int], None]], float] | None = None

    def serve(self, tasks: socket.socket, results: socket.socket) -> None:
        """Compute what comes."""
        parent, message = os.getppid(), memoryview(bytearray(LARGEST))
        while (length := tasks.recv_into(message)) and os.getppid() == parent:
            number, *task = marshal.loads(message[:length])
            start = perf_counter()
            answer: tuple[Any, ...]
            try:
                value, state = self.compute(*task)
                answer = (number, perf_counter() - start, value, state)
            except Exception as error:  # it is repeated where it was asked for, and raised there
                answer = (number, None, f"a gradient cannot be computed in another process: {error}", None)
            if self._changed:
                answer = (number, None, self._changed, None)
            results.send(marshal.dumps(answer))

    def compute(
        self, split: str, indices: bytes, where: Any, step: Any, ordered: bool, x: int, g: int, state: Any
    ) -> tuple[Any, Any]:
        """Compute a pass; return its value, and the buffers if there are any."""
        model = self._model
        np.copyto(model.x, self._vectors[x])
        if state is not None:
            _put_buffers(model, state)
        inputs, labels = self._read(split, np.frombuffer(indices, INDEX).astype(np.intp))
        value: Any
        if where is None:
            before = leave_trace(model, seeded=False)
            value = tuple(tally(model, inputs, labels))
            self._compare(before, leave_trace(model, seeded=False))
        else:
            batch = Batch(inputs, labels, *where)
            if ordered and self._by_layer is None:  # in its first pass a module finds out about its layers
                self._by_layer = layer_by_layer(model)
                self._by_layer(batch, lambda layer: None)
                if state is not None:
                    _put_buffers(model, state)
            layers: list[int] = []
            if ordered and self._by_layer is not None:
                value = loss = float(self._by_layer(batch, layers.append))
            else:
                value = loss = float(model.gradient(batch))
            if ordered:
                value = (loss, layers)
            self._compare(self._trace, leave_trace(model))
        kept = None if state is None else [buffer.tobytes() for buffer in model.buffers.values()]
        if state is not None and kept is not None:
            self._compare([len(content) for content in state], [len(content) for content in kept])
        if where is not None and not self._changed:
            self._write(loss, step, x, g)
        return value, kept

    def _write(self, loss: float, step: Any, x: int, g: int) -> None:
        """Write the gradient, or take a step with it and write the parameters."""
        model, found = self._model, self._vectors[g]
        if step is None:
            np.copyto(found, model.g)
            return
        assert self._update is not None
        Descent(self._update, *step).take(model.x, model.g)
        # If this process is killed while it writes, all of it can be found where the gradient was.
        np.copyto(found, model.x)
        mark = self._marks[min(x // 2, len(self._marks) - 1)]
        mark[1] = loss
        mark[0] = 1
        np.copyto(self._vectors[x], model.x)

    def _compare(self, before: object, after: object) -> None:
        if before != after:
            self._changed = (
                "the model keeps something of its own, besides buffers, from one gradient to the next"
            )

    def _read(self, name: str, indices: Array) -> tuple[Inputs, Array]:
        """Read samples."""
        split: Split = getattr(self._data, name)
        count, model = len(indices), self._model
        room = self._room.get(name)
        if room is None or count > len(room[1]):
            room = self._room[name] = buffers(split, count, model.x.dtype, getattr(model, "keeps", None))
        inputs, labels = room
        if count < len(labels):
            inputs, labels = inputs[:count], labels[:count]
        split.take(indices, inputs, labels)
        return inputs, labels


def _run(function: Callable[[], None]) -> None:
    """Call a function in a process that was just forked, and end the process."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that forked this one ends it
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        gc.freeze()  # what there is stays in the pages that processes share
        apply_threads(1)
        function()
        if sys.stdout is not None:
            sys.stdout.flush()
        status = 0
    except (BrokenPipeError, ConnectionResetError):  # nobody is left to read a result
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
