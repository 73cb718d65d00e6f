"""Collectives whose messages are evaluated for all ranks at once, round by round, instead of one by one.

    the first ranks to call are held; the last one evaluates the rounds for all, and every rank goes on at its own time
    a round is a few operations on arrays with an element for each rank: clocks, cards, arrival times

The result is that of sending the messages one by one, bit for bit, or there is none: wherever the order of events is not
clear from the rounds alone, and as soon as a rank that has not called sends something else, the ranks that are held go on
at the time of their call and send their messages. (A seed other than 0 draws the order of simultaneous events. The draws
are not the same with and without this.)

What makes the order clear: all ranks of the run take part, and either share one node, or each has a card for itself. A
message that arrives while its receiver waits for an earlier one is taken at once by the receive that follows; `drained` is
the arrival time up to which a rank has looked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop
from math import inf
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent
from numpy.typing import NDArray

from paceline.vmpi.groups import CollectiveRequest
from paceline.vmpi.network import PIECE

Times = NDArray[np.float64]
Ranks = NDArray[np.intp]
# Rounds whose arrivals and gaps are remembered: those of earlier ones are over when the first rank leaves.
REMEMBERED = 64


class Unclear(Exception):  # noqa: N818 (handled where it is raised)
    """The order of events cannot be told from the rounds."""


class Gathering:
    """One collective call of all ranks: those that are held, until the last one calls or any sends something else."""

    def __init__(self, kernel: Any, asked: tuple[Any, ...]) -> None:
        self.kernel = kernel
        self.asked = asked
        self.by_messages = not (_is_quiet(kernel) and is_independent(kernel, asked))
        """True if the ranks send their messages."""
        self.held = False
        """True if it has held ranks."""
        self.calls: dict[int, tuple[Any, Any]] = {}
        """What each rank gave: the array that it sends, and the one for the result."""
        self.sent: Sequence[Sequence[int]] = ()
        """The bytes and messages of every rank, when evaluated."""

    def release(self) -> None:
        """Let the ranks that are held send their messages, in the order and from the time of their calls on."""
        kernel = self.kernel
        kernel.gathering = None
        self.by_messages = True
        for place, number in enumerate(self.calls):
            rank = kernel.ranks[number]
            kernel.enter(rank, rank.t, place)  # before others that have the same time
        self.calls = {}


def evaluate(comm: Any, whole: Any, send: Any, recv: Any, op: Any) -> Sequence[int] | None:
    """Take part in a collective that is evaluated for all ranks at once.

    Return the bytes and messages that this rank has sent in it; None if it has to send them itself.
    """
    kernel, me = comm.kernel, comm.me
    state, place = comm.state, comm.place
    if not kernel.evaluates or not state.is_world or getcurrent() is not me.greenlet:
        return None
    asked = (whole, recv.size, send is recv, recv.dtype, op.ufunc)
    number = state.evaluations[place]
    state.evaluations[place] = number + 1
    gathering = state.gatherings.get(number)
    if gathering is None:
        gathering = state.gatherings[number] = Gathering(kernel, asked)
        state.gatherings.pop(number - 1, None)  # no rank can be here before all have called the one before
    if kernel.gathering is not None and (kernel.gathering is not gathering or gathering.asked != asked):
        kernel.let_earlier_go(me)
    if gathering.by_messages:
        if gathering.held:
            _catch_up(kernel, me)
        return None
    gathering.held = True
    gathering.calls[me.number] = send, recv
    me.entry = None
    me.doing = "a collective"
    if len(gathering.calls) < len(kernel.ranks):
        kernel.gathering = gathering
        kernel.switch(me)
    else:
        kernel.gathering = None
        _finish(kernel, gathering, whole, op)
        kernel.switch(me)
    if gathering.by_messages:
        _catch_up(kernel, me)
        return None
    sent: Sequence[int] = gathering.sent[me.number]
    return sent


def _catch_up(kernel: Any, rank: Any) -> None:
    """Take in what would have arrived in the rank's earlier calls, had no rank been held."""
    kernel.let_earlier_go(rank)
    inbox = rank.inbox
    while inbox and inbox[0][0] < rank.drained:
        heappop(inbox)[2].arrive(rank)


def is_independent(kernel: Any, asked: tuple[Any, ...]) -> bool:
    """Return False if ranks that copy long messages at the same time slow each other down."""
    whole, count, in_place, dtype, _ = asked
    if not kernel.wires.is_one_node:
        return True
    longest = int(np.max(next(whole.rounds(len(kernel.ranks), count, in_place)).elements)) * dtype.itemsize
    eager = longest <= kernel.wires.limit_inside and not kernel.rendezvous
    return eager or kernel.wires.inside_costs(0, longest)[2] is None


def _is_quiet(kernel: Any) -> bool:
    """Return True if no messages are on their way; results of collectives may be.

    Unless it is known that ranks send messages only in collectives, none may have been sent by then: ranks that leave an
    evaluated collective at the same time go on in the order of their numbers, which could decide whose message is first.
    """
    if kernel.messages != kernel.evaluated and not kernel.collectives_only:
        return False
    for rank in kernel.ranks:
        if rank.advancing or not rank.alive or rank.greenlet.dead:
            return False
        for _, _, thing in rank.inbox:
            if thing.__class__ is not CollectiveRequest:
                return False
    return True


def _finish(kernel: Any, gathering: Gathering, whole: Any, op: Any) -> None:
    """Evaluate the collective, and let all ranks go on; if that is not possible, let them send their messages."""
    calls, ranks = gathering.calls, kernel.ranks
    send, recv = calls[0]
    state = ClockState(
        np.array([rank.t for rank in ranks]),
        np.array([rank.drained for rank in ranks]),
        {rank.number: rank.latest for rank in ranks if rank.latest},
    )
    try:
        state, sent = pass_rounds(kernel, state, whole, recv, in_place=send is recv)
    except Unclear:
        gathering.release()
        return
    for rank, t, drained in zip(ranks, state.t.tolist(), state.drained.tolist(), strict=True):
        rank.t = t
        rank.drained = drained
        latest = state.latest.get(rank.number)
        if latest is not None:
            rank.latest = latest
    if not op.time_only:
        out = np.empty_like(recv)
        whole.total([calls[number][0] for number in range(len(ranks))], out, op)
        for _, into in calls.values():
            into[...] = out
    gathering.sent = sent.tolist()
    for rank in ranks:
        kernel.enter(rank, rank.t, next(kernel.ties))
    gathering.calls = {}


class ClockState(NamedTuple):
    """The ranks of a run between two collectives."""

    t: Times
    """The clock of each."""
    drained: Times
    """The arrival time up to which each has taken in what arrived."""
    latest: dict[int, dict[int, float]]
    """When the last message from one rank to another arrives, by their numbers; not of all pairs."""


def pass_rounds(
    kernel: Any, state: ClockState, whole: Any, recv: Any, *, in_place: bool
) -> tuple[ClockState, NDArray[np.int64]]:
    """Evaluate a collective of all ranks; return their state after it, and the bytes and messages that each has sent.

    Raise Unclear, with nothing changed, if the order of events cannot be told from the rounds.
    """
    clocks = _Clocks(kernel, recv.itemsize, state)
    for found in whole.rounds(len(state.t), recv.size, in_place):
        clocks.pass_round(found)
    clocks.finish()
    return clocks.commit()


def can_evaluate(kernel: Any) -> bool:
    """Return True if the order of a collective's messages can be clear on the network of a run."""
    wires, compute = kernel.wires, kernel.compute
    return (
        not kernel.strict
        and len(kernel.ranks) > 1
        and (wires.is_one_node or wires.has_own_cards)
        and (compute is None or not compute.pauses)
    )


class _Card:
    """One direction of every rank's card: see `paceline.vmpi.network`."""

    def __init__(self, free: list[float], gaps: dict[int, list[tuple[float, float]]]) -> None:
        self.free = np.array(free)
        self._gaps = gaps
        self._gap_end = np.full(len(free), -inf)
        for card, kept in gaps.items():
            self._gap_end[card] = max((end for _, end in kept), default=-inf)
        self._new: deque[tuple[Ranks, Times, Times]] = deque()
        self._forgotten = -inf

    def reserve(self, cards: Ranks, ready: Times, passing: Any, now: Times, early: Any) -> Times:
        """Reserve cards, all different; return when each message can begin to pass."""
        begin = self.free[cards]
        at_once = ready >= begin
        if not at_once.all():
            if (~at_once & (ready + passing <= self._gap_end[cards])).any():
                raise Unclear
            begins = np.where(at_once, ready, begin)
        else:
            begins = ready
        self.free[cards] = begins + passing
        gap = (ready > begin) & early
        if gap.any():
            where, end = cards[gap], ready[gap]
            self._gap_end[where] = np.maximum(self._gap_end[where], end)
            self._new.append((where, np.maximum(begin, now)[gap], end))
            if len(self._new) > REMEMBERED:
                self._forgotten = max(self._forgotten, float(self._new.popleft()[2].max()))
        return begins

    def settle(self, leaving: float) -> None:
        """Raise Unclear if a gap was forgotten that can still be used after the first rank has left."""
        if self._forgotten > leaving:
            raise Unclear

    def commit(self, free: list[float], leaving: float) -> None:
        free[:] = self.free.tolist()
        for where, starts, ends in self._new:
            late = ends > leaving
            if late.any():
                some = zip(where[late].tolist(), starts[late].tolist(), ends[late].tolist(), strict=True)
                for card, start, end in some:
                    self._gaps.setdefault(card, []).append((start, end))


class _Passed(NamedTuple):
    """What passes through the cards that receive, in one round or inserted between rounds: at most one message each."""

    reserved: Times
    """When a card was last reserved, in this round or before."""
    begin: Times
    """When the message of this round begins to pass; inf: there is none."""
    free: Times
    """When the card is free again."""
    has_gap: NDArray[np.bool_]
    """Whether a later message may pass before, because the card was reserved ahead of time."""


class _Clocks:
    """The clocks of all ranks in one collective, its messages' arrivals, and the cards."""

    def __init__(self, kernel: Any, itemsize: int, state: ClockState) -> None:
        ranks, wires = len(state.t), kernel.wires
        self._kernel, self._wires, self._itemsize = kernel, wires, itemsize
        self._t, self._drained, self._latest = state.t.copy(), state.drained.copy(), state.latest
        self._inside = wires.is_one_node
        if not self._inside:
            self._out, self._in = (_Card(*card) for card in wires.directions)
            self._reserved = np.array(kernel.reserved or [-inf] * ranks)
            start = _Passed(self._reserved, self._reserved, self._in.free.copy(), np.zeros(ranks, bool))
            self._passed = [start]
            self._last_gap = -inf
        self._slow = np.ones(ranks)
        for rank, factor in () if kernel.compute is None else kernel.compute.slow.items():
            if rank < ranks:
                self._slow[rank] = factor
        # Messages between the same two ranks keep their order.
        earlier = [
            (sender * ranks + dest, at)
            for sender, latest in state.latest.items()
            for dest, at in latest.items()
            if at > state.t[sender]
        ]
        self._pairs = np.array(sorted(earlier)).reshape(-1, 2)
        for pair in [pair for pair, (_, end) in wires.passing.items() if end <= state.t[pair[0]]]:
            del wires.passing[pair]
        if wires.passing:
            raise Unclear  # requests may have to wait for data that was asked for before
        self._arrivals: dict[bytes, Times] = {}
        self._key: tuple[Any, bytes] = (None, b"")
        self._recent: deque[tuple[Ranks, Ranks, Times]] = deque()
        self._forgotten = -inf
        self._eager_event = -inf
        self._sent = np.zeros((ranks, 2), np.int64)
        self.leaving = -inf

    # ---- one round

    def pass_round(self, found: Any) -> None:
        """Let every rank receive and send its message of this round, and work."""
        senders, receivers = found.senders, found.receivers
        nbytes = found.elements * self._itemsize
        self._sent[senders, 0] += nbytes
        self._sent[senders, 1] += 1
        longest, shortest = np.max(nbytes), np.min(nbytes)
        wires, kernel = self._wires, self._kernel
        limit = wires.limit_inside if self._inside else wires.limit
        eager = not kernel.rendezvous and longest <= limit
        if not eager and not kernel.rendezvous and shortest <= limit:
            raise Unclear
        step = self._pass_inside if self._inside else self._pass_eager if eager else self._pass_announced
        released = step(found, senders, receivers, nbytes, eager)
        if found.works_first:
            self._work(found, nbytes)
        if released is not None:
            self._t[senders] = np.maximum(self._t[senders], released)
            self._drained[senders] = np.maximum(self._drained[senders], released)
        if not found.works_first:
            self._work(found, nbytes)

    def _pass_inside(
        self, found: Any, senders: Ranks, receivers: Ranks, nbytes: Any, eager: bool
    ) -> Times | None:
        """Send messages inside the node."""
        own, flight, taking = self._costs_inside(nbytes, eager)
        t = self._t
        free = t[senders] + own
        arrives = self._order(senders, receivers, flight + free)
        early = self._is_early(found, receivers, arrives)
        self._remember(senders, receivers, arrives)
        t[senders] = free
        t[receivers] += self._wires.post
        matched = t[receivers]
        _add_where(t, receivers, early, taking)
        waited = np.maximum(t[receivers], arrives)
        t[receivers] = np.where(early, t[receivers], waited + taking)
        self._drained[receivers] = np.where(early, self._drained[receivers], arrives)
        if eager:
            return None
        released: Times = np.where(early, matched, waited) + taking + flight
        return released

    def _pass_eager(
        self, found: Any, senders: Ranks, receivers: Ranks, nbytes: Any, eager: bool
    ) -> Times | None:
        """Send messages between nodes, with their data."""
        wires = self._wires
        copying, first, passing = self._parts(nbytes)
        taking = wires.overhead + copying
        more = np.maximum(passing - copying, 0.0)
        t, out, into = self._t, self._out.free, self._in.free
        now = t[senders]
        ready = now + wires.overhead + first
        leaves = np.maximum(out[senders], ready)
        there = np.maximum(into[receivers], leaves + wires.latency)
        ahead = np.flatnonzero(now < self._reserved[receivers])  # of messages of earlier rounds
        if len(ahead):
            there[ahead] = leaves[ahead] + wires.latency
        arrives = self._order(senders, receivers, there + first + more)
        early = self._is_early(found, receivers, arrives)
        leaves = self._out.reserve(senders, ready, passing, now, False)
        if len(ahead) and (leaves > ready)[ahead].any():
            raise Unclear
        others = np.delete(np.arange(len(receivers)), ahead)
        each = np.broadcast_to(passing, len(receivers))
        self._insert_in(receivers[ahead], there[ahead], each[ahead], now[ahead])
        self._eager_event = max(self._eager_event, float(now.max()))
        at, late = leaves[others] + wires.latency, (leaves > ready)[others]
        self._reserve_in(found, receivers[others], at, each[others], now[others], late)
        self._remember(senders, receivers, arrives)
        t[senders] = now + wires.overhead + copying
        t[receivers] += wires.post
        _add_where(t, receivers, early, taking)
        t[receivers] = np.where(early, t[receivers], np.maximum(t[receivers], arrives) + taking)
        self._drained[receivers] = np.where(early, self._drained[receivers], arrives)
        return None

    def _pass_announced(
        self, found: Any, senders: Ranks, receivers: Ranks, nbytes: Any, eager: bool
    ) -> Times:
        """Announce messages to other nodes; the receivers fetch them."""
        wires = self._wires
        copying, first, passing = self._parts(nbytes)
        free = self._t[senders] + wires.overhead
        arrives = self._order(senders, receivers, free + wires.latency)
        early = self._is_early(found, receivers, arrives)
        self._remember(senders, receivers, arrives)
        self._t[senders] = free
        self._t[receivers] += wires.post
        sent = self._t[receivers]
        now = np.where(early, sent, np.maximum(sent, arrives))
        asked = now + wires.overhead + wires.latency
        late = self._are_behind(senders, receivers, free + wires.latency, asked)
        if late is None:
            leaves = self._out.reserve(senders, asked + wires.overhead + first, passing, now, True)
        else:
            leaves = self._pass_behind(senders, receivers, now, asked, late, first, passing)
        there = self._reserve_in(found, receivers, leaves + wires.latency, passing, now, True)
        comes = there + first + np.maximum(passing - copying, 0.0)
        if (comes <= now).any():
            raise Unclear
        self._drained[receivers] = np.maximum(self._drained[receivers], comes)
        self._t[receivers] = np.maximum(sent, comes) + (wires.overhead + copying)
        released: Times = leaves + passing
        return released

    def _are_behind(
        self, senders: Ranks, receivers: Ranks, announced: Times, asked: Times
    ) -> NDArray[np.bool_] | None:
        """Return which messages are announced to ranks that were asked for their own by the sender before; None: none."""
        if not self._wires.in_order:
            return None
        there = self._place_of(senders)[receivers]  # the message of each receiver, -1 if it sends none
        late: NDArray[np.bool_] = (there >= 0) & (receivers[there] == senders) & (asked[there] <= announced)
        return late if late.any() else None

    def _pass_behind(
        self, senders: Ranks, receivers: Ranks, now: Times, asked: Times, late: Any, first: Any, passing: Any
    ) -> Times:
        """Reserve the senders' cards where some requests wait for data; return when each message leaves."""
        wires, leaves = self._wires, np.empty(len(senders))
        first, passing = np.broadcast_to(first, len(senders)), np.broadcast_to(passing, len(senders))
        # Of two ranks that exchange messages, at most one has to wait.
        for some in (np.flatnonzero(~late), np.flatnonzero(late)):
            if late[some[0]]:
                there = self._place_of(senders)[receivers[some]]
                asks = np.maximum(now[some] + wires.overhead, leaves[there] + passing[there])
                asked[some] = asks + wires.latency
            ready = asked[some] + wires.overhead + first[some]
            leaves[some] = self._out.reserve(senders[some], ready, passing[some], now[some], True)
        return leaves

    def _place_of(self, senders: Ranks) -> Ranks:
        place = np.full(len(self._t), -1)
        place[senders] = np.arange(len(senders))
        return place

    def _is_early(self, found: Any, receivers: Ranks, arrives: Times) -> NDArray[np.bool_]:
        """Return which messages have been looked at when their receives are posted."""
        drained = self._drained[receivers]
        if found.senders is not self._key[0] and (arrives == drained).any():
            raise Unclear  # the message that was sent first comes first
        early: NDArray[np.bool_] = arrives < drained
        return early

    def _order(self, senders: Ranks, receivers: Ranks, arrives: Times) -> Times:
        """Return the arrival times, none before that of an earlier message between the same two ranks."""
        if len(self._pairs):
            pairs = (senders * len(self._t) + receivers).astype(float)
            place = np.minimum(np.searchsorted(self._pairs[:, 0], pairs), len(self._pairs) - 1)
            known = self._pairs[place, 0] == pairs
            arrives = np.where(known, np.maximum(arrives, self._pairs[place, 1]), arrives)
        earlier = self._arrivals.get(self._key_of(senders))
        return arrives if earlier is None else np.maximum(arrives, earlier)

    def _key_of(self, senders: Ranks) -> bytes:
        return self._key[1] if senders is self._key[0] else senders.tobytes()

    def _remember(self, senders: Ranks, receivers: Ranks, arrives: Times) -> None:
        self._key = (senders, self._key_of(senders))
        self._arrivals[self._key[1]] = arrives
        self._recent.append((senders, receivers, arrives))
        if len(self._recent) > REMEMBERED:
            self._forgotten = max(self._forgotten, float(self._recent.popleft()[2].max()))

    def _reserve_in(
        self, found: Any, receivers: Ranks, ready: Times, passing: Any, now: Times, early: Any
    ) -> Times:
        """Reserve the receivers' cards, after those of earlier rounds or else raise Unclear; return when messages pass."""
        before = self._reserved[receivers]
        if (now < before).any() or (found.senders is not self._key[0] and (now == before).any()):
            raise Unclear
        begins = self._in.reserve(receivers, ready, passing, now, early)
        self._note(len(self._passed), receivers, now, begins, self._in.free[receivers], early)
        self._reserved = self._passed[-1].reserved
        del self._passed[:-REMEMBERED]
        return begins

    def _note(
        self, place: int, receivers: Ranks, now: Times, begins: Times, ends: Times, has_gap: Any
    ) -> None:
        """Note messages that pass after those of the places before."""
        before = self._passed[place - 1]
        passed = _Passed(
            before.reserved.copy(), np.full(len(self._t), inf), before.free.copy(), before.has_gap.copy()
        )
        passed.reserved[receivers], passed.begin[receivers] = now, begins
        passed.free[receivers], passed.has_gap[receivers] = ends, has_gap
        self._passed.insert(place, passed)

    def _insert_in(self, receivers: Ranks, ready: Times, passing: Times, now: Times) -> None:
        """Let messages pass that were sent before those of earlier rounds; raise Unclear if one delays another."""
        ends, following = ready + passing, np.full(len(receivers), inf)
        for place in range(len(self._passed), 0, -1):
            if not len(receivers):
                return
            passed = self._passed[place - 1]
            reserved, begin, free = (
                passed.reserved[receivers],
                passed.begin[receivers],
                passed.free[receivers],
            )
            has_gap = passed.has_gap[receivers]
            after, fits = now > reserved, ready >= free
            here = after & fits
            # At the same time as another, or it has to wait for another, or another for it.
            if ((now == reserved) | after & ~fits & ~has_gap | here & (ends > following)).any():
                raise Unclear
            if here.any():
                self._note(place, receivers[here], now[here], ready[here], ends[here], False)
            left = ~here
            following = np.minimum(following, begin)[left]
            self._last_gap = np.max(begin, where=left & has_gap & (begin < inf), initial=self._last_gap)
            receivers, ready, ends, now = receivers[left], ready[left], ends[left], now[left]
        if len(receivers):
            raise Unclear

    def _costs_inside(self, nbytes: Any, eager: bool) -> tuple[Any, Any, Any]:
        def of(n: int) -> tuple[float, float, float]:
            costs = wires.inside[0].get(n) or wires.inside_costs(0, n)
            if not eager and costs[2] is not None:
                raise Unclear  # ranks that copy at the same time slow each other down
            found: tuple[float, float, float] = costs[0] if eager else costs[1]
            return found

        wires = self._wires
        if isinstance(nbytes, int):
            return of(nbytes)
        sizes, which = np.unique(nbytes, return_inverse=True)
        own, flight, taking = np.array([of(n) for n in sizes.tolist()]).T[:, which]
        return own, flight, taking

    def _parts(self, nbytes: Any) -> tuple[Any, Any, Any]:
        """Return what `Wires._parts` does, for each message."""
        wires = self._wires
        copied = wires.per_copied
        return nbytes * copied, np.minimum(nbytes, PIECE) * copied, nbytes * wires.per_byte

    def _work(self, found: Any, nbytes: Any) -> None:
        """Let the receivers do the work of a round."""
        compute = self._kernel.compute
        if compute is None:
            return
        for kind, messages in found.work:
            ranks = found.receivers[messages]
            if len(ranks):
                if isinstance(nbytes, int):
                    seconds = compute.plain_seconds(kind, nbytes)
                else:
                    sizes, which = np.unique(nbytes[messages], return_inverse=True)
                    seconds = np.array([compute.plain_seconds(kind, n) for n in sizes.tolist()])[which]
                self._t[ranks] += seconds * self._slow[ranks]

    # ---- the end

    def finish(self) -> None:
        """Raise Unclear if a rank could send something else while others are still in the collective."""
        self.leaving = float(self._t.min())
        if self._forgotten > self.leaving:
            raise Unclear
        latest = self._drained.max()
        if not self._inside:
            if self._last_gap > self.leaving:  # of which some was used
                raise Unclear
            self._out.settle(self.leaving)
            self._in.settle(self.leaving)
            latest = max(latest, self._reserved.max())
        # An eager message reserves the card of its receiver, which may still be in the collective.
        if latest > self.leaving and not (
            self._kernel.collectives_only and self._eager_event <= self.leaving
        ):
            raise Unclear

    def commit(self) -> tuple[ClockState, NDArray[np.int64]]:
        """Set the cards and the counts; return the clocks, and the bytes and messages that every rank has sent."""
        kernel, leaving = self._kernel, self._t
        for senders, receivers, arrives in self._recent:
            late = arrives > leaving[senders]
            if late.any():
                some = zip(
                    senders[late].tolist(), receivers[late].tolist(), arrives[late].tolist(), strict=True
                )
                for sender, receiver, at in some:
                    self._latest.setdefault(sender, {})[receiver] = at
        if not self._inside:
            for card, (free, _) in zip((self._out, self._in), self._wires.directions, strict=True):
                card.commit(free, self.leaving)
            kernel.reserved = self._reserved.tolist()
        messages = int(self._sent[:, 1].sum())
        kernel.messages += messages
        kernel.evaluated += messages
        kernel.bytes += int(self._sent[:, 0].sum())
        return ClockState(leaving, self._drained, self._latest), self._sent


def _add_where(t: Times, ranks: Ranks, which: NDArray[np.bool_], seconds: Any) -> None:
    """Let some of these ranks take a message."""
    if which.any():
        t[ranks] += np.where(which, seconds, 0.0)
