"""The virtual clock: the order in which ranks run, and the arrival of messages and their matching with receives.

    every rank has its own clock, and an inbox of what is on its way to it, ordered by arrival time
    computing and calls advance the clock of the rank that performs them
    a waiting rank takes in what arrives, in order of time, until what it waits for is there
    the rank with the earliest clock always runs next, so nothing can arrive in the past of another rank

Ranks are greenlets: only one runs at a time, and it runs until it waits. The same seed gives the same order of events;
another seed breaks ties between simultaneous events differently. With seed 0 the event that was scheduled first wins.

MPI's rules for matching:

    an arriving message goes to the first posted receive that matches it, or waits
    a posted receive takes the first arrived message that matches it, or waits
    between two ranks, messages of one communicator arrive in the order in which they were sent

Matching happens while the receiving rank is in a call of its communicator: no rank takes in messages while computing.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from greenlet import GreenletExit, getcurrent, greenlet
from greenlet import error as GreenletError  # noqa: N812

from paceline.vmpi.constants import special_numbers
from paceline.vmpi.errors import (
    BufferChanged,
    Deadlock,
    RankFailed,
    Truncated,
    TypeMismatch,
    Unfinished,
    Unmatched,
    format_list,
    format_site,
    frame_site,
)
from paceline.vmpi.handles import refuse_threads
from paceline.vmpi.requests import ReceiveRequest, Request

# After this many tests or probes that found nothing, check whether any rank could still send something.
POLLS_BEFORE_CHECK = 20_000
# After this many looks at the clock, or at shared memory, with nothing between, each takes time.
LOOKS = 1000
# A time and a tie that come before all others.
AT_ONCE = -1.0
# The `wake` of a rank that is not waiting: nothing that arrives wakes it.
NOT_WAITING = -inf
# The relative error of a time that is computed in another order.
ROUNDING = 1e-12


# A time, a number that decides between ranks with the same time, and the rank.
Entry = tuple[float, float, "Rank"]


class Rank:
    """One simulated rank: its clock, what is on its way to it, and what it is waiting for."""

    __slots__ = (
        "advancing",
        "alive",
        "behind",
        "doing",
        "drained",
        "empty_polls",
        "entry",
        "error",
        "greenlet",
        "inbox",
        "inside",
        "kernel",
        "latest",
        "looks",
        "messages_at_poll",
        "node",
        "number",
        "open",
        "pace",
        "posted",
        "slow",
        "steps",
        "t",
        "unexpected",
        "value",
        "wake",
        "wild",
    )  # fmt: skip

    def __init__(self, kernel: Kernel, number: int) -> None:
        self.kernel = kernel
        self.number = number
        self.node = kernel.wires.node[number]
        self.inside = kernel.wires.inside[self.node]
        """The costs of messages inside the node, by bytes: see `Wires`."""
        self.t = 0.0
        self.inbox: list[tuple[float, int, Any]] = []
        self.drained = -1.0
        """The arrival time up to which the rank has taken in what arrived."""
        self.entry: Any = None
        """What stands for the rank in the kernel's heap; other entries of the rank there are out of date."""
        self.wake = NOT_WAITING
        """When the rank goes on if nothing arrives before."""
        self.advancing: list[tuple[Any, int]] = []
        """Non-blocking collectives that need more calls of this rank, and its place in them."""
        self.greenlet: Any = None
        self.posted: dict[int, deque[Any]] = {}
        """Receives without a message yet, by their queue, in the order they were posted."""
        self.wild: dict[int, list[Any]] = {}
        """Receives from any source, by context, in the order they were posted."""
        self.unexpected: dict[int, deque[Any]] = {}
        """Messages that have arrived and match no receive yet."""
        self.open: dict[int, Any] = {}
        """Requests that are not done or have not been waited for."""
        self.latest: dict[int, float] = {}
        self.looks = (0.0, 0.0, 0)
        """Since when the rank has only looked at its clock, when it last did, and how often: see `Kernel.look`."""
        self.slow = 1.0
        self.pace: Callable[[float, float], float] | None = None
        """Set if faults slow this rank down or kill it: maps a start time and seconds of work to the end time."""
        self.steps = 0
        self.alive = True
        self.behind = False
        """Ranks with an earlier clock have run while this one let others begin."""
        self.doing: Any = ""
        """The call or request in which the rank is waiting, or last waited."""
        self.empty_polls = self.messages_at_poll = 0
        """Polls that found nothing since any rank last sent a message, and how many messages had been sent by then."""
        self.value: Any = None
        self.error: BaseException | None = None

    def __lt__(self, other: Rank) -> bool:
        """Order entries of the heap that have the same time and the same tie."""
        return self.number < other.number


class Kernel:
    """The ranks of one simulation."""

    def __init__(
        self,
        ranks: int,
        wires: Any,
        compute: Any = None,
        *,
        seed: int = 0,
        strict: bool = True,
        rendezvous: bool = False,
        carries: Callable[[str, int], bool] | None = None,
    ) -> None:
        self.wires = wires
        self.compute = compute
        self.strict, self.rendezvous = strict, rendezvous
        self.plain = wires.uniform and not rendezvous
        """True if a message inside a node costs what its bytes cost, and a short one does not wait for its receiver."""
        self.checks = strict
        """True if messages are watched, or faults or other messages may delay them."""
        self.carries = carries
        """In time-only simulation: True if a message of this kind and number of bytes carries its contents."""
        self.time_only = carries is not None
        self.seed = seed
        self.faults: Any = None
        """The faults of this run (`paceline.vmpi.faults.Faults`), if it has any."""
        self.states: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The communicators in use, by context."""
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.heap: list[Entry] = []
        """Every rank that can run."""
        self.ties: Iterator[float] = count() if seed == 0 else iter(random.Random(seed).random, None)
        self.sequence = count()
        self.contexts = count()
        self.messages = self.bytes = self.collectives = self.one_sided = 0
        self.meetings: dict[Any, Any] = {}
        """Collective calls that some ranks have not reached yet, and their communicators."""
        self.forming: Any = None
        """Communicators that some of the ranks are creating (`paceline.vmpi.groups.Forming`)."""
        self.special = special_numbers()
        self.evaluates = False
        """True if collectives may be evaluated for all ranks at once: see `paceline.vmpi.rounds`."""
        self.collectives_only = False
        """True if the ranks send no messages except in collectives that all of them call."""
        self.revises = False
        """True if messages that are sent later may slow down those on their way."""
        self.in_flight: dict[tuple[int, int], InFlight] = {}
        """Then: the last message from one rank to another."""
        self.gathering: Any = None
        """The collective that holds ranks until all have called it (`paceline.vmpi.rounds.Gathering`)."""
        self.evaluated = 0
        """Messages of collectives that were evaluated."""
        self.reserved: list[float] = []
        """When the card of each rank was last reserved by a message to it, in collectives that were evaluated."""
        self.at_step: Callable[[Rank], None] | None = None
        """Called for every step that a rank begins."""
        self.shared: dict[str, Any] = {}
        """What the programs of all ranks share, by name."""
        self.hub: Any = None
        self.MPI: Any = None
        """The replacement of mpi4py.MPI during the run."""
        self._failed: deque[Rank] = deque()
        self._began: list[Rank] = []
        """Ranks that have begun work whose result is not needed yet, in the order in which they began."""
        self._earliest: Rank | None = None
        """The one of them that needs its result first."""

    # ---- running

    def run(self, functions: Sequence[Callable[[], Any]]) -> None:
        """Run the function of every rank until all ranks have ended."""
        self.hub = getcurrent()
        for rank, function in zip(self.ranks, functions, strict=True):
            rank.greenlet = greenlet(self._body(rank, function), self.hub)
            rank.greenlet.switch()  # started here, its stack begins at the bottom and not on top of another rank's
            self.enter(rank, rank.t, next(self.ties))
        try:
            while (following := self._next()) is not None:
                following.greenlet.switch()
                while self._failed:
                    rank = self._failed.popleft()
                    assert rank.error is not None
                    if isinstance(rank.error, KeyboardInterrupt):
                        raise rank.error
                    raise RankFailed(rank.number, len(self.ranks), rank.error) from rank.error
            check_end(self)
        finally:
            self._end_all()

    def _body(self, rank: Rank, function: Callable[[], Any]) -> Callable[[], None]:
        def body() -> None:
            try:
                self.hub.switch()
                rank.value = function()
                self.advance(rank, waits=True)  # MPI's end advances what is left
                if self.faults is not None:
                    self.faults.check(rank)
            except GreenletExit:
                pass
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    self._let_others_come_as_far(rank)
                rank.error = error
                self._failed.append(rank)

        return body

    def _let_others_come_as_far(self, rank: Rank) -> None:
        """Let the other ranks do all that they do until the clock of one that fails: they may fail earlier, or print."""
        if self.gathering is not None:
            self.gathering.release()
        self.sleep(rank, rank.t)

    def _end_all(self) -> None:
        """Unwind the ranks that have not ended, by raising GreenletExit where they wait."""
        for rank in self.ranks:
            if rank.greenlet and not rank.greenlet.dead:
                rank.alive = False
                rank.greenlet.throw(GreenletExit)
            rank.greenlet = None
            rank.open.clear()

    def enter(self, rank: Rank, time: float, tie: float) -> None:
        """Let a rank run at this time; of ranks with the same time, the one with the lowest tie runs first."""
        rank.entry = entry = (time, tie, rank)
        heappush(self.heap, entry)

    def _next(self) -> Rank | None:
        """Return the rank that runs next, with its clock set, or None."""
        heap = self.heap
        while heap or self.gathering is not None:
            if not heap:
                self.gathering.release()  # nobody else will call
            entry = heappop(heap)
            time, _, rank = entry
            if rank.entry is entry and rank.alive:
                if time > rank.t:
                    rank.t = time
                return rank
        return None

    # ---- waiting

    def wait(self, rank: Rank, request: Any) -> None:
        """Take in what arrives for a rank, in order of time, until a request is done; other ranks run meanwhile.

        Written without helper functions: half the time of a simulation is spent here.
        """
        if self.revises:
            while not request.done:
                self.progress(rank)
            return
        if rank.advancing:
            self.advance(rank, waits=True)
        inbox, heap = rank.inbox, self.heap
        while not request.done:
            if inbox:
                at = inbox[0][0]
                if at < rank.t:
                    at = rank.t
                if not heap or heap[0][0] >= at:
                    rank.t = at
                    rank.drained, _, thing = heappop(inbox)
                    thing.arrive(rank)
                    continue
                rank.wake = at
                rank.entry = entry = (at, next(self.ties), rank)
                entry = heapreplace(heap, entry)
            else:
                rank.wake = inf
                rank.entry = None
                if not heap:
                    self.hub.switch()
                    rank.wake = NOT_WAITING
                    continue
                entry = heappop(heap)
            at, _, following = entry
            if following.entry is entry and following.alive:
                if at > following.t:
                    following.t = at
            else:
                following = self._next()  # type: ignore[assignment]
            if following is not rank:
                (self.hub if following is None else following.greenlet).switch()
            rank.wake = NOT_WAITING
            if inbox and inbox[0][0] <= rank.t:
                rank.drained, _, thing = heappop(inbox)
                thing.arrive(rank)

    def progress(self, rank: Rank) -> None:
        """Wait for the next thing to arrive for a rank, and take it in."""
        if rank.advancing:
            self.advance(rank, waits=True)
        inbox, heap, since = rank.inbox, self.heap, rank.t
        at = max(inbox[0][0], since) if inbox else inf
        if inbox and (not heap or heap[0][0] >= at):
            rank.t = at
        else:
            rank.wake = at
            self.sleep(rank, at)
            rank.wake = NOT_WAITING
        if self.revises and rank.t > since:
            copier = self.wires.copiers.get(rank.number)
            if copier is not None and copier.flows:
                copier.wait(since, rank.t)
        if inbox and inbox[0][0] <= rank.t:
            rank.drained, _, thing = heappop(inbox)
            thing.arrive(rank)

    def sleep(self, rank: Rank, until: float) -> None:
        """Let other ranks run; return at `until`, or when something arrives before `rank.wake`."""
        if until < inf:
            self.enter(rank, until, next(self.ties))
        else:
            rank.entry = None
        self.switch(rank)

    def let_earlier_go(self, rank: Rank) -> None:
        """Let every rank whose clock is earlier run first, also those that a collective holds."""
        if self.gathering is not None:
            self.gathering.release()
        heap = self.heap
        if rank.behind or (heap and heap[0][0] < rank.t):
            rank.behind = False
            self.sleep(rank, rank.t)

    def let_others_begin(self, rank: Rank) -> None:
        """Let ranks begin work until the clock of one that has called this is the earliest: its result is needed then.

        All ranks that have called this go on afterwards, in the order of their calls and before any other, as if none
        had waited: the order of what ranks do between their calls stays the same.
        """
        began, heap = self._began, self.heap
        rank.behind = bool(heap) and heap[0][0] < rank.t
        rank.entry = None
        began.append(rank)
        if self._earliest is None or rank.t < self._earliest.t:
            if self._earliest is not None:
                heap.remove(self._earliest.entry)
                heapify(heap)
            self._earliest = rank
            self.enter(rank, rank.t, AT_ONCE)
        self.switch(rank)
        if rank is self._earliest:
            for place, other in enumerate(began):
                self.enter(other, AT_ONCE, place)
            began.clear()
            self._earliest = None
            self.switch(rank)

    def switch(self, rank: Rank) -> None:
        """Let the next rank run, which may be this one."""
        following = self._next()
        if following is not rank:
            try:
                (self.hub if following is None else following.greenlet).switch()
                return
            except GreenletError:  # called by a thread: let the ranks themselves continue
                if following is not None:
                    self.enter(following, following.t, next(self.ties))
                rank.entry, rank.wake = None, NOT_WAITING
            refuse_threads()

    def take_arrived(self, rank: Rank) -> None:
        """Take in everything that has arrived for a rank by now."""
        self.let_earlier_go(rank)
        if rank.advancing:
            self.advance(rank, waits=False)
        inbox = rank.inbox
        while inbox and inbox[0][0] <= rank.t:
            heappop(inbox)[2].arrive(rank)
        rank.drained = rank.t

    def advance(self, rank: Rank, *, waits: bool) -> None:
        """Let a call of a rank advance its non-blocking collectives; `waits`: it stays in the call."""
        rank.advancing = [
            (one, place) for one, place in rank.advancing if not one.attend(place, rank.t, waits=waits)
        ]

    def count_poll(self, rank: Rank) -> None:
        """Charge a rank for a poll that found nothing, and check now and then whether anything can still arrive."""
        rank.t += self.wires.poll
        if rank.messages_at_poll != self.messages:
            rank.messages_at_poll, rank.empty_polls = self.messages, 0
        rank.empty_polls += 1
        if rank.empty_polls % POLLS_BEFORE_CHECK == 0:
            check_polling(self, POLLS_BEFORE_CHECK)

    def look(self, rank: Rank, *, polls: bool = False) -> None:
        """Count a look of a rank at its clock, or at shared memory (`polls`), which takes no time.

        A program may look until some time has passed, or until another rank has written. Its clock would stand still for
        ever. So after many looks with nothing between, each takes a microsecond, or a thousandth of the time since then.
        """
        since, latest, looks = rank.looks
        if rank.t != latest:
            since, looks = rank.t, 0
        elif looks > LOOKS:
            if polls:
                self.count_poll(rank)
            rank.t += max(1e-6, (rank.t - since) / 1000)
        rank.looks = since, rank.t, looks + 1

    def schedule(self, dest: Rank, at: float, thing: Any) -> None:
        """Schedule the arrival of something at a rank: its `arrive(rank)` is called when the rank processes it."""
        if at == inf:
            self.faults.lose(dest, thing)
            return
        heappush(dest.inbox, (at, next(self.sequence), thing))
        if at < dest.wake:
            dest.wake = at
            self.enter(dest, at if at > dest.t else dest.t, next(self.ties))


# ---- messages, and their matching with receives

ANY = None
# A queue of messages or receives has one number, which is found faster than a pair.
RANK_BITS = 20
NO_QUEUE = -1
CANCELLED = -1.0
"""The receiver's own time for a message that its sender has taken back."""


def queue_of(context: int, source: int) -> int:
    """Return the number of the queue of a communicator's messages from one rank.

    >>> queue_of(3, 5) >> RANK_BITS
    3
    """
    return (context << RANK_BITS) + source


class Message(Request):
    """One message, and the request of its sender.

    `data`: its bytes when it was sent; None if they are not carried; the memory itself if the message is only
    announced and buffers are not checked. The buffer must not change until the request has been waited for. `source`:
    the sender's rank in the communicator. `to`: the queue of that source (`queue_of`). An `eager` message arrives with
    its data; any other is announced, and its data are fetched by the receiver.
    """

    __slots__ = (
        "data", "dest", "eager", "kind", "nbytes", "order", "source", "tag", "taking", "to", "view",
    )  # fmt: skip

    order: int
    view: Any

    def __init__(self, rank: Any, name: str, dest: int, to: int, source: int, tag: int) -> None:
        """Make a message without contents; `PointToPoint.Isend` makes all others."""
        super().__init__(rank, name)
        self.dest, self.to, self.source, self.tag = dest, to, source, tag
        self.data: bytes | memoryview | None = None
        self.view = None
        self.nbytes, self.kind, self.taking = 0, "", 0.0
        self.done = self.eager = True

    @property
    def context(self) -> int:
        """The context of the communicator."""
        return self.to >> RANK_BITS

    @property
    def sender(self) -> Any:
        """The rank that sent the message."""
        return self.rank

    def _finish(self, status: Any) -> None:
        super()._finish(status)
        if self.origin is not None and self.data is not None and self.view is not None:
            if self.view.tobytes() != self.data:
                raise BufferChanged(
                    f"the buffer of {self.describe_request()}, to rank {self.dest}, was changed before the message "
                    "had been sent"
                )
            self.view = None
        if status is not None:
            self._tell(status)

    def describe_request(self) -> str:
        """Describe the request and where it was started."""
        return super().describe()

    def describe_wait(self) -> str:
        return f"{self.name} to rank {self.dest} with tag {self.tag}"

    def Cancel(self) -> None:
        """Take the message back, if the receiver has not matched it (deprecated in MPI 4)."""
        if self.dest < 0:
            return
        kernel = self.rank.kernel
        receiver = kernel.ranks[kernel.states[self.context].peer(self.rank.number, self.dest)]
        queue = receiver.unexpected.get(self.to, ())
        held = [entry for entry in receiver.inbox if self not in (entry[2], getattr(entry[2], "thing", None))]
        if self in queue:
            queue.remove(self)
        elif len(held) < len(receiver.inbox):
            receiver.inbox[:] = held
            heapify(receiver.inbox)
        else:
            return
        self.taking = CANCELLED
        self.done = True

    def _tell(self, status: Any) -> None:
        super()._tell(status)
        if self.taking == CANCELLED:
            status.Set_cancelled(True)

    def arrive(self, rank: Any) -> None:
        """Match the message with a receive, or queue it as unexpected."""
        queue = rank.posted.get(self.to)
        if queue and not rank.wild and ((wanted := queue[0].wanted_tag) is ANY or wanted == self.tag):
            receive, nbytes = queue.popleft(), self.nbytes  # most messages
            if self.eager and nbytes == receive.nbytes and self.kind == receive.kind:  # `match`, inlined
                rank.t += self.taking
                receive.deliver(self.data, nbytes, self.source, self.tag)
                return
        else:
            receive = _take_posted(rank, queue or (), self)
        if receive is not None:
            match(rank, receive, self)
            return
        self.order = next(rank.kernel.sequence)
        waiting = rank.unexpected.get(self.to)
        if waiting is None:
            waiting = rank.unexpected[self.to] = deque()
        waiting.append(self)

    def is_taken(self, rank: Any) -> bool:
        """Return False if the message has just been queued as unexpected."""
        waiting = rank.unexpected.get(self.to)
        return not waiting or waiting[-1] is not self

    def describe(self) -> str:
        """Describe the message and where it was sent."""
        return f"{self.nbytes:,} bytes with tag {self.tag} from {self.describe_request()}"


def _take_posted(rank: Any, queue: Any, message: Message) -> Any:
    """Remove the first receive that takes a message, of those in a queue and those from any source, and return it."""
    receive, place = _first_of(queue, message.tag)
    wild: Any = rank.wild.get(message.to >> RANK_BITS, ())
    found, at = _first_of(wild, message.tag)
    if found is not None and (receive is None or found.order < receive.order):
        receive, queue, place = found, wild, at
    if receive is not None:
        del queue[place]
    return receive


def _first_of(receives: Any, tag: int) -> tuple[Any, int]:
    """Return the first receive that takes this tag, and its index."""
    for place, receive in enumerate(receives):
        if receive.wanted_tag is ANY or receive.wanted_tag == tag:
            return receive, place
    return None, 0


def post(rank: Any, context: int, receive: ReceiveRequest) -> None:
    """Post a receive: it takes a message that has already arrived, or waits for one."""
    source = receive.wanted_source
    if source is ANY:
        rank.kernel.take_arrived(rank)  # only what has arrived by now can be taken at once
        message = take_unexpected(rank, context, ANY, receive.wanted_tag)
        if message is None:
            receive.order = next(rank.kernel.sequence)
            rank.wild.setdefault(context, []).append(receive)
        else:
            match(rank, receive, message)
        return
    key = (context << RANK_BITS) + source
    if rank.unexpected.get(key):
        message = take_unexpected(rank, context, source, receive.wanted_tag)
        if message is not None:
            match(rank, receive, message)
            return
    # Receives from any source that are posted later have higher numbers.
    receive.order = next(rank.kernel.sequence) if rank.wild else 0
    queue = rank.posted.get(key)
    if queue is None:
        queue = rank.posted[key] = deque()
    queue.append(receive)


def first_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """Return the unexpected message that arrived first among those that match."""
    found: Message | None = None
    keys = (
        [queue_of(context, source)]
        if source is not ANY
        else [key for key in rank.unexpected if key >> RANK_BITS == context]
    )
    for key in keys:
        for message in rank.unexpected.get(key, ()):
            if tag is ANY or message.tag == tag:
                if found is None or message.order < found.order:
                    found = message
                break
    return found


def take_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """Remove the unexpected message that arrived first among those that match, and return it."""
    found = first_unexpected(rank, context, source, tag)
    if found is not None:
        queue = rank.unexpected[found.to]
        if queue[0] is found:
            queue.popleft()
        else:
            queue.remove(found)
    return found


def match(rank: Any, receive: ReceiveRequest, message: Message) -> None:
    """Let a receive take a message."""
    kernel = rank.kernel
    receive.done, receive.error = False, None  # a receive from any source may have failed with a rank's death
    if message.nbytes > receive.nbytes:
        receive.error = Truncated(
            f"message truncated: {message.describe()} do not fit into the {receive.nbytes:,} bytes of "
            f"{receive.describe()}"
        )
    elif kernel.strict and message.kind != receive.kind and message.nbytes:
        receive.error = TypeMismatch(
            f"type mismatch: {message.describe()} are {message.kind}, but {receive.describe()} expects {receive.kind}"
        )
    data: Any = None if receive.error is not None else message.data
    length = min(message.nbytes, receive.nbytes)
    if message.eager:
        rank.t += message.taking
        receive.deliver(data, length, message.source, message.tag)
        return
    sender = message.sender
    contended = kernel.wires.contended(sender.number, rank.number)
    if contended or kernel.wires.slows_down(sender.number, rank.number, message.nbytes):
        kernel.let_earlier_go(rank)  # a network card, or a node's memory, is shared in the order of time
    arrives, taking, released = kernel.wires.fetch(sender.number, rank.number, message.nbytes, rank.t)
    if data.__class__ is memoryview and arrives < inf:
        data = receive.fetch(data)
    gone: Any = _Released(message)
    flow = kernel.wires.flow if kernel.revises and contended else None
    if flow is not None:
        gone = InFlight(gone, released, flow.leaves)
    kernel.schedule(sender, released, gone)
    if arrives <= rank.t:
        rank.t += taking
        receive.deliver(data, length, message.source, message.tag)
        return
    coming: Any = Data(receive, message, data, length, taking)
    if flow is not None:
        coming = InFlight(coming, arrives, flow.arrives, flow=flow)
    kernel.schedule(rank, arrives, coming)


class InFlight:
    """Something on its way over a connection that others may slow down: looked at again when it should be there.

    `find`: returns when it arrives, as far as is known. `before`: what was sent before, from the same rank to the same
    rank, and must arrive before. `flow`: of a message with its data, what may be copied while it is on its way.
    """

    __slots__ = ("at", "before", "find", "flow", "thing")

    def __init__(
        self,
        thing: Any,
        at: float,
        find: Callable[[], float] | None,
        before: InFlight | None = None,
        flow: Any = None,
    ) -> None:
        self.thing: Any = thing
        self.at, self.find, self.before = at, find, before
        self.flow = None if flow is None or flow.copier is None else flow
        if self.flow is not None:
            self.flow.copier.add(self.flow)

    def arrive(self, rank: Any) -> None:
        due = self.at if self.find is None else self.find()
        before = self.before
        if before is not None and before.thing is None:
            before = self.before = None
        if before is not None or due > self.at * (1 + ROUNDING):
            self.at = max(due, self.at, 0.0 if before is None else before.at)
            rank.kernel.schedule(rank, self.at, self)
            return
        thing, self.thing, self.find = self.thing, None, None
        if self.flow is not None:
            copied, whole = self.flow.copier.take(self.flow), thing.taking
            if copied:
                thing.taking = max(0.0, whole - copied)
                thing.arrive(rank)
                if not thing.is_taken(rank):
                    thing.taking = whole  # copied to where the receive wants it, later
                return
        thing.arrive(rank)


class _Released:
    """A notification to the sender of an announced message that it was taken."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    def arrive(self, rank: Any) -> None:
        self.message.done = True


class Data:
    """The data of an announced message, in flight to the receiver."""

    __slots__ = ("data", "message", "nbytes", "receive", "taking")

    def __init__(
        self, receive: ReceiveRequest, message: Message, data: bytes | None, nbytes: int, taking: float
    ) -> None:
        self.receive, self.message = receive, message
        self.data, self.nbytes, self.taking = data, nbytes, taking

    def is_taken(self, rank: Any) -> bool:
        return True

    def arrive(self, rank: Any) -> None:
        rank.t += self.taking
        self.receive.deliver(self.data, self.nbytes, self.message.source, self.message.tag)


# ---- reports of deadlocks, and of messages and requests that finished ranks have left behind


def check_end(kernel: Any) -> None:
    """Raise if ranks are still waiting, or have left messages or requests behind, when no rank can continue."""
    waiting = [rank for rank in kernel.ranks if rank.alive and not rank.greenlet.dead]
    if waiting:
        are = "is" if len(waiting) == 1 else "are"
        count = f"{len(waiting):,} of {len(kernel.ranks):,} ranks"
        _report_deadlock(kernel, waiting, f"{count} {are} waiting, and no message is on its way")
    if not kernel.strict or (kernel.faults is not None and kernel.faults.excuses()):
        return
    for rank in kernel.ranks:
        if rank.alive:
            _check_rank(rank)


def check_polling(kernel: Any, often: int) -> None:
    """Raise if no rank can make progress: each one is waiting or has polled `often` times, and nothing is on its way."""
    living = [rank for rank in kernel.ranks if rank.alive and not rank.greenlet.dead]
    for rank in living:
        if rank.inbox or not (rank.wake == inf or rank.empty_polls >= often):
            return
    looking = sum(rank.empty_polls >= often for rank in living)
    keep = "keeps" if looking == 1 else "keep"
    count = f"{looking:,} of {len(kernel.ranks):,} ranks"
    _report_deadlock(kernel, living, f"{count} {keep} polling for messages that no rank sends")


def _report_deadlock(kernel: Any, waiting: list[Any], why: str) -> NoReturn:
    lines = []
    for rank in waiting:
        where = format_site(_place(rank))
        doing = rank.doing if isinstance(rank.doing, str) else rank.doing.describe_wait()
        polls = rank.empty_polls and rank.wake == NOT_WAITING
        how = "is polling for messages" if polls else f"is waiting in {doing or 'a call'}"
        lines.append(f"rank {rank.number} {how} at {where}, {1e3 * rank.t:.6g} ms after the start")
        there = [message for queue in rank.unexpected.values() for message in queue]
        if there:
            more = f", and {len(there) - 1:,} more" if len(there) > 1 else ""
            lines.append(f"  it has not received {there[0].describe()}{more}")
    dead = [rank.number for rank in kernel.ranks if not rank.alive]
    gone = f" (killed earlier: {', '.join(f'rank {number}' for number in dead[:8])})" if dead else ""
    lost = "" if kernel.faults is None else kernel.faults.describe_losses()
    missing = "".join(f"\n  {meeting.describe_missing(state)}" for meeting, state in kernel.meetings.items())
    raise Deadlock(f"deadlock: {why}{gone}{format_list(lines)}{missing}{lost}")


def _place(rank: Any) -> Any:
    """Return where a rank is in the user's program."""
    if rank.greenlet is not getcurrent():
        return frame_site(rank.greenlet.gr_frame)
    return frame_site(sys._getframe(1))


def _check_rank(rank: Any) -> None:
    """Raise if a rank that has ended left messages or requests behind."""
    while rank.inbox:  # a message for a receive that was never waited for does have a receive
        rank.inbox.pop(0)[2].arrive(rank)
    left = [message for queue in rank.unexpected.values() for message in queue]
    left = [message for message in left if message.sender.alive]
    if left:
        raise Unmatched(
            "unmatched messages, sent but never received:"
            + format_list(message.describe() for message in left)
        )
    if rank.open:
        receives = [request for request in rank.open.values() if not request.done and request.receives]
        if receives:
            raise Unmatched(
                "unmatched receives, for which no message was sent:"
                + format_list(request.describe() for request in receives)
            )
        raise Unfinished(
            "unfinished requests, never waited for or freed:"
            + format_list(request.describe() for request in rank.open.values())
        )
