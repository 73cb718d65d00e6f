"""The virtual clock: the order in which ranks run, and the arrival of messages.

    every rank has its own clock, and an inbox of what is on its way to it, ordered by arrival time
    computing and calls advance the clock of the rank that performs them
    a waiting rank takes in what arrives, in order of time, until what it waits for is there
    the rank with the earliest clock always runs next, so nothing can arrive in the past of another rank

Ranks are greenlets: only one runs at a time, and it runs until it waits. The same seed gives the same order of events;
another seed breaks ties between simultaneous events differently. With seed 0 the event that was scheduled first wins.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heappushpop
from itertools import count
from math import inf
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from greenlet import GreenletExit, getcurrent, greenlet

from paceline.vmpi.constants import special_numbers
from paceline.vmpi.errors import (
    Deadlock,
    RankFailed,
    Unfinished,
    Unmatched,
    format_list,
    format_site,
    frame_site,
)

# Reports of deadlocks, and of messages and requests that finished ranks have left behind.


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
        if rank.inbox or not ((rank.waiting and rank.wake == inf) or rank.empty_polls >= often):
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
        polls = rank.empty_polls and not rank.waiting
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


# After this many tests or probes that found nothing, check whether any rank could still send something.
POLLS_BEFORE_CHECK = 20_000
# A time, and a tie, before all others.
AT_ONCE = -1.0


class Rank:
    """One simulated rank: its clock, what is on its way to it, and what it is waiting for."""

    __slots__ = (
        "advancing",
        "alive",
        "behind",
        "doing",
        "drained",
        "empty_polls",
        "error",
        "greenlet",
        "inbox",
        "inside",
        "kernel",
        "latest",
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
        "version",
        "waiting",
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
        self.waiting = False
        self.wake = inf
        self.version = 0
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
        self.carries = carries
        """In time-only simulation: True if a message of this kind and number of bytes carries its contents."""
        self.time_only = carries is not None
        self.seed = seed
        self.faults: Any = None
        """The faults of this run (`paceline.vmpi.failures.Faults`), if it has any."""
        self.states: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The communicators in use, by context."""
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.heap: list[tuple[float, float, int, int]] = []
        """(time, tie, rank, version) of every rank that can run."""
        self.tie = count().__next__ if seed == 0 else random.Random(seed).random
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
            heappush(self.heap, (rank.t, self.tie(), rank.number, rank.version))
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
                rank.error = error
                self._failed.append(rank)

        return body

    def _end_all(self) -> None:
        """Unwind the ranks that have not ended, by raising GreenletExit where they wait."""
        for rank in self.ranks:
            if rank.greenlet and not rank.greenlet.dead:
                rank.alive = False
                rank.greenlet.throw(GreenletExit)
            rank.greenlet = None
            rank.open.clear()

    def _next(self, entry: tuple[float, float, int, int] | None = None) -> Rank | None:
        """Return the rank that runs next, with its clock set, or None. `entry`: an entry already taken off the heap."""
        heap, ranks = self.heap, self.ranks
        while entry is not None or heap or self.gathering is not None:
            if entry is None and not heap:
                self.gathering.release()  # nobody else will call
            time, _, number, version = heappop(heap) if entry is None else entry
            entry = None
            rank = ranks[number]
            if rank.version == version and rank.alive:
                if time > rank.t:
                    rank.t = time
                rank.wake = inf
                return rank
        return None

    # ---- waiting

    def wait(self, rank: Rank, request: Any) -> None:
        """Take in what arrives for a rank, in order of time, until a request is done; other ranks run meanwhile.

        Written without helper functions: half the time of a simulation is spent here.
        """
        if rank.advancing:
            self.advance(rank, waits=True)
        inbox, heap, ranks = rank.inbox, self.heap, self.ranks
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
                rank.version = version = rank.version + 1
                rank.wake = at
                entry = heappushpop(heap, (at, self.tie(), rank.number, version))
            else:
                rank.version += 1
                rank.wake = inf
                if not heap:
                    rank.waiting = True
                    self.hub.switch()
                    rank.waiting = False
                    continue
                entry = heappop(heap)
            number = entry[2]
            following = ranks[number]
            if following.version == entry[3] and following.alive:
                if entry[0] > following.t:
                    following.t = entry[0]
                following.wake = inf
            else:
                following = self._next(entry)  # type: ignore[assignment]
            if following is not rank:
                rank.waiting = True
                (self.hub if following is None else following.greenlet).switch()
                rank.waiting = False
            if inbox and inbox[0][0] <= rank.t:
                rank.drained, _, thing = heappop(inbox)
                thing.arrive(rank)

    def progress(self, rank: Rank) -> None:
        """Wait for the next thing to arrive for a rank, and take it in."""
        if rank.advancing:
            self.advance(rank, waits=True)
        inbox, heap = rank.inbox, self.heap
        if inbox:
            at = max(inbox[0][0], rank.t)
            if not heap or heap[0][0] >= at:
                rank.t = at
                rank.drained, _, thing = heappop(inbox)
                thing.arrive(rank)
                return
        else:
            at = inf
        rank.waiting = True
        self.sleep(rank, at)
        rank.waiting = False
        if inbox and inbox[0][0] <= rank.t:
            rank.drained, _, thing = heappop(inbox)
            thing.arrive(rank)

    def sleep(self, rank: Rank, until: float) -> None:
        """Let other ranks run; return at `until`, or when something arrives for this rank while it is waiting."""
        rank.wake = until
        rank.version += 1
        if until < inf:
            heappush(self.heap, (until, self.tie(), rank.number, rank.version))
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
        rank.version += 1
        began.append(rank)
        if self._earliest is None or rank.t < self._earliest.t:
            if self._earliest is not None:
                heap.remove((self._earliest.t, AT_ONCE, self._earliest.number, self._earliest.version))
                heapify(heap)
            self._earliest = rank
            heappush(heap, (rank.t, AT_ONCE, rank.number, rank.version))
        self.switch(rank)
        if rank is self._earliest:
            for place, other in enumerate(began):
                heappush(heap, (AT_ONCE, place, other.number, other.version))
            began.clear()
            self._earliest = None
            self.switch(rank)

    def switch(self, rank: Rank) -> None:
        """Let the next rank run, which may be this one."""
        following = self._next()
        if following is not rank:
            (self.hub if following is None else following.greenlet).switch()

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

    def schedule(self, dest: Rank, at: float, thing: Any) -> None:
        """Schedule the arrival of something at a rank: its `arrive(rank)` is called when the rank processes it."""
        if at == inf:
            self.faults.lose(dest, thing)
            return
        heappush(dest.inbox, (at, next(self.sequence), thing))
        if dest.waiting and at < dest.wake:
            dest.wake = at
            dest.version = version = dest.version + 1
            heappush(self.heap, (at if at > dest.t else dest.t, self.tie(), dest.number, version))
