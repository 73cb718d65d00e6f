"""The virtual clock: which rank goes on next, and what comes to whom, when.

    every rank has its own clock, and an inbox of what is on its way to it, by the time of its arrival
    computing, and what calls cost, move the clock of the rank that does it
    who waits takes in what arrives, in order of time, until what it waits for is there
    always the rank that is earliest goes on: so nothing can arrive in anybody's past

Ranks are greenlets: only one runs at a time, and it runs until it waits. The same seed gives the same order of events,
another seed breaks ties between events at the same time differently; with seed 0 who came first goes first.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import count
from math import inf
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from greenlet import GreenletExit, getcurrent, greenlet

from paceline.vmpi import sites as _sites
from paceline.vmpi.constants import meant
from paceline.vmpi.errors import Deadlock, RankFailed, Unfinished, Unmatched

# ---- What is wrong when ranks cannot go on, or have ended and left something over.


def check_end(kernel: Any) -> None:
    """Nobody goes on any more: all must have ended, and nothing may be left over."""
    waiting = [rank for rank in kernel.ranks if rank.alive and not rank.greenlet.dead]
    if waiting:
        _stuck(
            kernel, waiting, f"{len(waiting):,} of {len(kernel.ranks):,} ranks wait, and nothing is under way"
        )
    if not kernel.strict or (kernel.faults is not None and kernel.faults.excuses()):
        return
    for rank in kernel.ranks:
        if rank.alive:
            _check_rank(rank)


def check_polling(kernel: Any, often: int) -> None:
    """Ranks look for what nobody sends: all that have not ended wait or have looked often, and nothing is on its way."""
    living = [rank for rank in kernel.ranks if rank.alive and not rank.greenlet.dead]
    for rank in living:
        if rank.inbox or not ((rank.waiting and rank.wake == inf) or rank.in_vain >= often):
            return
    looking = sum(rank.in_vain >= often for rank in living)
    _stuck(
        kernel, living,
        f"{looking:,} of {len(kernel.ranks):,} ranks look again and again for what nobody sends",
    )  # fmt: skip


def _stuck(kernel: Any, waiting: list[Any], why: str) -> NoReturn:
    said = []
    for rank in waiting:
        where = _sites.spelled(_place(rank))
        doing = rank.doing if isinstance(rank.doing, str) else rank.doing.wanted()
        how = "looks for messages" if rank.in_vain and not rank.waiting else f"waits in {doing or 'a call'}"
        said.append(f"rank {rank.number} {how} at {where}, {1e3 * rank.t:.6g} ms after the start")
        there = [message for queue in rank.unexpected.values() for message in queue]
        if there:
            more = f", and {len(there) - 1:,} more" if len(there) > 1 else ""
            said.append(f"  and has not asked for {there[0].spelled()}{more}")
    dead = [rank.number for rank in kernel.ranks if not rank.alive]
    gone = f" ({', '.join(f'rank {number}' for number in dead[:8])} had been killed)" if dead else ""
    lost = "" if kernel.faults is None else kernel.faults.told()
    lacking = "".join(f"\n  {meeting.lacking(group)}" for meeting, group in kernel.meetings.items())
    raise Deadlock(f"deadlock: {why}{gone}{_sites.listed(said)}{lacking}{lost}")


def _place(rank: Any) -> Any:
    """Where a rank is in the user's program."""
    if rank.greenlet is not getcurrent():
        return _sites.of_greenlet(rank.greenlet)
    return _sites.of_frame(sys._getframe(1))


def _check_rank(rank: Any) -> None:
    """Nothing may be left over of a rank that has ended."""
    while rank.inbox:  # what came for a receive that nobody has waited for is no message without a receive
        rank.inbox.pop(0)[2].arrive(rank)
    left = [message for queue in rank.unexpected.values() for message in queue]
    left = [message for message in left if message.sender.alive]
    if left:
        raise Unmatched(
            "unmatched: messages that nobody received" + _sites.listed(message.spelled() for message in left)
        )
    if rank.open:
        receives = [request for request in rank.open.values() if not request.done and request.receives]
        if receives:
            raise Unmatched(
                "unmatched: receives that no message came for"
                + _sites.listed(request.spelled() for request in receives)
            )
        raise Unfinished(
            "unfinished: what was never waited for, or freed"
            + _sites.listed(request.spelled() for request in rank.open.values())
        )


# After so many looks in vain it is looked into whether anybody could still send something.
IN_VAIN = 20_000


class Rank:
    """One simulated rank: its clock, what is on its way to it, and what it waits for."""

    __slots__ = (
        "alive", "doing", "error", "greenlet", "in_vain", "inbox", "kernel", "latest", "number", "open", "pace", "posted",
        "sent_then", "slow",
        "steps", "t", "unexpected", "value", "version", "waiting", "wake", "wild",
    )  # fmt: skip

    def __init__(self, kernel: Kernel, number: int) -> None:
        self.kernel = kernel
        self.number = number
        self.t = 0.0
        self.inbox: list[tuple[float, int, Any]] = []
        self.waiting = False
        self.wake = inf
        self.version = 0
        self.greenlet: Any = None
        self.posted: dict[tuple[int, int], deque[Any]] = {}
        """Receives that wait for a message, by context and source, in the order they were posted."""
        self.wild: dict[int, list[Any]] = {}
        """Receives from any source, by context, in the order they were posted."""
        self.unexpected: dict[tuple[int, int], deque[Any]] = {}
        """Messages that have arrived and that no receive has asked for."""
        self.open: dict[int, Any] = {}
        """Requests that are not done or were not waited for."""
        self.latest: dict[int, float] = {}
        self.slow = 1.0
        self.pace: Callable[[float, float], float] | None = None
        """Where faults change how fast it computes, or end it: when work of so many seconds is done."""
        self.steps = 0
        self.alive = True
        self.doing: Any = ""
        """What it waits in, or last waited in: a name, or the request."""
        self.in_vain = self.sent_then = 0
        """How often it has looked in vain since anybody sent anything, and how many messages had been sent by then."""
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
        """In time-only simulation: whether a message of this kind and number of bytes carries its contents."""
        self.time_only = carries is not None
        self.seed = seed
        self.faults: Any = None
        """What goes wrong (`paceline.vmpi.failures.Faults`), in runs where something does."""
        self.groups: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The groups of communicators that are in use, by context."""
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.heap: list[tuple[float, float, int, int]] = []
        """(time, tie, rank, version) of every rank that will go on."""
        self.tie = count().__next__ if seed == 0 else random.Random(seed).random
        self.sequence = count()
        self.contexts = count()
        self.messages = self.bytes = 0
        self.meetings: dict[Any, Any] = {}
        """Calls of all ranks of a group to which not all have come, and the group."""
        self.meant = meant()
        self.at_step: Callable[[Rank], None] | None = None
        """Told of every step that a rank begins."""
        self.hub: Any = None
        self.MPI: Any = None
        """The module that stands in for mpi4py.MPI during the run."""
        self._failed: deque[Rank] = deque()

    # ---- running

    def run(self, functions: Sequence[Callable[[], Any]]) -> None:
        """Let every rank run its function, to the end of all of them."""
        self.hub = getcurrent()
        for rank, function in zip(self.ranks, functions, strict=True):
            rank.greenlet = greenlet(self._body(rank, function), self.hub)
            rank.greenlet.switch()  # begun here, its stack starts at the bottom, not where another one happens to be
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
                if self.faults is not None:
                    self.faults.check(rank)
            except GreenletExit:
                pass
            except BaseException as error:
                rank.error = error
                self._failed.append(rank)

        return body

    def _end_all(self) -> None:
        """Unwind the ranks that have not ended: they get a GreenletExit where they wait."""
        for rank in self.ranks:
            if rank.greenlet and not rank.greenlet.dead:
                rank.alive = False
                rank.greenlet.throw(GreenletExit)
            rank.greenlet = None
            rank.open.clear()

    def _next(self, entry: tuple[float, float, int, int] | None = None) -> Rank | None:
        """The rank that goes on, at its time; None where nobody will. `entry`: the first of the heap, taken off it."""
        heap, ranks = self.heap, self.ranks
        while entry is not None or heap:
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
        """Take in what comes to a rank, in order of time, until a request is done; meanwhile others go on.

        Written out at length: half of all time of a simulation is spent here.
        """
        inbox, heap, ranks = rank.inbox, self.heap, self.ranks
        while not request.done:
            if inbox:
                at = inbox[0][0]
                if at < rank.t:
                    at = rank.t
                if not heap or heap[0][0] >= at:
                    rank.t = at
                    heappop(inbox)[2].arrive(rank)
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
                heappop(inbox)[2].arrive(rank)

    def progress(self, rank: Rank) -> None:
        """Take in the next thing that comes to a rank, when it comes."""
        inbox, heap = rank.inbox, self.heap
        if inbox:
            at = max(inbox[0][0], rank.t)
            if not heap or heap[0][0] >= at:
                rank.t = at
                heappop(inbox)[2].arrive(rank)
                return
        else:
            at = inf
        rank.waiting = True
        self.sleep(rank, at)
        rank.waiting = False
        if inbox and inbox[0][0] <= rank.t:
            heappop(inbox)[2].arrive(rank)

    def sleep(self, rank: Rank, until: float) -> None:
        """Let others go on; come back at `until`, or when something arrives for a rank that is waiting."""
        rank.wake = until
        rank.version += 1
        if until < inf:
            heappush(self.heap, (until, self.tie(), rank.number, rank.version))
        following = self._next()
        if following is not rank:
            (self.hub if following is None else following.greenlet).switch()

    def go_first(self, rank: Rank) -> None:
        """Let every rank that is earlier than this one go first."""
        heap = self.heap
        if heap and heap[0][0] < rank.t:
            self.sleep(rank, rank.t)

    def look(self, rank: Rank) -> None:
        """Take in everything that has come to a rank by now."""
        self.go_first(rank)
        inbox = rank.inbox
        while inbox and inbox[0][0] <= rank.t:
            heappop(inbox)[2].arrive(rank)

    def polled(self, rank: Rank) -> None:
        """A rank has looked for something in vain: that takes time, and cannot go on for ever when nobody sends."""
        rank.t += self.wires.poll
        if rank.sent_then != self.messages:
            rank.sent_then, rank.in_vain = self.messages, 0
        rank.in_vain += 1
        if rank.in_vain % IN_VAIN == 0:
            check_polling(self, IN_VAIN)

    def put(self, dest: Rank, at: float, thing: Any) -> None:
        """Put something on its way to a rank: its `arrive(rank)` is called when the rank takes it in."""
        if at == inf:
            self.faults.lose(dest, thing)
            return
        heappush(dest.inbox, (at, next(self.sequence), thing))
        if dest.waiting and at < dest.wake:
            dest.wake = at
            dest.version = version = dest.version + 1
            heappush(self.heap, (at if at > dest.t else dest.t, self.tie(), dest.number, version))
