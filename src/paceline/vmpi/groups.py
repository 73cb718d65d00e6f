"""Groups of ranks, the shared state of a communicator, and the collective calls in which its ranks meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, cached_property
from typing import Any

from paceline.vmpi.constants import IDENT, SIMILAR, UNDEFINED, UNEQUAL
from paceline.vmpi.errors import BufferChanged, CollectiveMismatch, find_site, format_site, mpi_error
from paceline.vmpi.handles import Handle, constant_name, constants
from paceline.vmpi.kernel import NOT_WAITING, Kernel
from paceline.vmpi.requests import Request


class Group(Handle):
    """An ordered set of ranks: mpi4py's MPI.Group. Members are numbered as in the world; None for the null group.

    >>> everyone = Group(range(6), me=1)
    >>> odd = everyone.Incl([1, 3, 5])
    >>> odd.Get_size(), odd.Get_rank(), odd.Translate_ranks([0, 2], everyone)
    (3, 0, [1, 5])
    """

    __slots__ = ("__weakref__", "_me", "_members")

    def __init__(self, members: Sequence[int] | Group | None = None, me: int = -1) -> None:
        self._me = me
        self._members: Sequence[int] | None
        if isinstance(members, Group):
            self._members, self._me = members._members, members._me
        elif members is None or isinstance(members, range):
            self._members = members
        else:
            self._members = tuple(members)

    @property
    def members(self) -> Sequence[int]:
        if self._members is None:
            raise mpi_error("ERR_GROUP", "the null group has no ranks")
        return self._members

    def Get_size(self) -> int:
        return len(self.members)

    def Get_rank(self) -> int:
        members = self.members
        return members.index(self._me) if self._me in members else UNDEFINED

    size = property(Get_size)
    rank = property(Get_rank)

    def Dup(self) -> Group:
        return Group(self.members, self._me)

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> Group:
        found: Group = session.Create_group(pset_name)
        return found

    def Incl(self, ranks: Sequence[int]) -> Group:
        self._check(ranks)
        return Group([self.members[rank] for rank in ranks], self._me)

    def Excl(self, ranks: Sequence[int]) -> Group:
        self._check(ranks)
        left_out = set(ranks)
        return Group([member for rank, member in enumerate(self.members) if rank not in left_out], self._me)

    def Range_incl(self, ranks: Sequence[Sequence[int]]) -> Group:
        return self.Incl(_spread(ranks))

    def Range_excl(self, ranks: Sequence[Sequence[int]]) -> Group:
        return self.Excl(_spread(ranks))

    def _check(self, ranks: Sequence[int]) -> None:
        size = len(self.members)
        for rank in ranks:
            if not 0 <= rank < size:
                raise mpi_error(
                    "ERR_RANK", f"rank {rank} does not exist; this group has ranks 0 to {size - 1}"
                )

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Return the ranks in the other group, by default the same, of these ranks of this group."""
        theirs = {member: place for place, member in enumerate((self if group is None else group).members)}
        wanted = range(len(self.members)) if ranks is None else ranks
        self._check([rank for rank in wanted if rank >= 0])
        return [rank if rank < 0 else theirs.get(self.members[rank], UNDEFINED) for rank in wanted]

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        known = set(group1.members)
        return cls(
            [*group1.members, *(one for one in group2.members if one not in known)], _find_me(group1, group2)
        )

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        known = set(group2.members)
        return cls([one for one in group1.members if one in known], _find_me(group1, group2))

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        known = set(group2.members)
        return cls([one for one in group1.members if one not in known], _find_me(group1, group2))

    def Compare(self, group: Group) -> int:
        mine, theirs = tuple(self.members), tuple(group.members)
        if mine == theirs:
            return IDENT
        return SIMILAR if sorted(mine) == sorted(theirs) else UNEQUAL

    def Free(self) -> None:
        if constant_name(self) == "GROUP_NULL" or self._members is None:
            raise mpi_error("ERR_GROUP", "the null group cannot be freed")
        self._members = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group) or self._members is None or getattr(other, "_members", None) is None:
            return isinstance(other, Group) and self._members is other._members
        return tuple(self._members) == tuple(other._members or ())

    def __bool__(self) -> bool:
        return self._members is not None

    __hash__ = None  # type: ignore[assignment]


def _spread(ranges: Sequence[Sequence[int]]) -> list[int]:
    """Return the ranks of ranges (first, last, step)."""
    found: list[int] = []
    for first, last, step in (each if len(each) == 3 else (*each, 1) for each in ranges):
        if not step:
            raise mpi_error("ERR_ARG", "the step of a range of ranks must not be 0")
        found += range(first, last + (1 if step > 0 else -1), step)
    return found


def _find_me(group1: Group, group2: Group) -> int:
    return group1._me if group1._me >= 0 else group2._me


GROUP_NULL, GROUP_EMPTY = Group(), Group(())
constants.update(GROUP_NULL=GROUP_NULL, GROUP_EMPTY=GROUP_EMPTY)


class CommState:
    """The shared state of one communicator: its members, by their numbers in the world, and its context.

    `groups`: the two sides of an intercommunicator, which together are the members; None for an intracommunicator.
    `topology`: the neighbours of its ranks, if it has any.
    """

    def __init__(
        self, kernel: Any, members: Sequence[int], name: str, groups: tuple[Any, Any] | None = None,
        topology: Any = None,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.members = members
        self.groups = groups
        self.topology = topology
        self.context: int = next(kernel.contexts)
        self.name = name
        self.meetings: dict[int, Meeting] = {}
        self.permanent = False
        """True for the communicators of the world and of each rank itself, which are never freed."""
        self.calls = [0] * len(members)
        """The collective calls that each member has made."""
        self.evaluations = [0] * len(members)
        """The collectives, evaluated for all ranks at once, that each member has called."""
        self.gatherings: dict[int, Any] = {}
        """Those that some members have not called yet."""
        self.own: dict[int, OwnState] = {}
        """What a member has set on its communicator; most never do."""
        kernel.states[self.context] = self

    def own_of(self, place: int) -> OwnState:
        """Return what a member has set on its communicator."""
        found = self.own.get(place)
        if found is None:
            found = self.own[place] = OwnState(self.name)
        return found

    def peer(self, number: int, dest: int) -> int:
        """Return the number in the world of the rank `dest` that a member sends to."""
        if self.groups is None:
            return self.members[dest]
        return int(self.groups[number in self.groups[0]][dest])

    @cached_property
    def ranks(self) -> list[Any]:
        """The members themselves."""
        ranks: list[Any] = self.kernel.ranks
        return ranks if self.is_world else [ranks[member] for member in self.members]

    @cached_property
    def is_world(self) -> bool:
        """True if the members are all ranks, in their order."""
        return self.groups is None and list(self.members) == list(range(len(self.kernel.ranks)))

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each member: one tuple, shared by all ranks."""
        node = self.kernel.wires.node
        return tuple(node[member] for member in self.members)


class Forming:
    """Communicators that ranks are creating without meeting: the first rank makes one, the others find it."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[CommState, int]] = {}
        self._turns: dict[Any, int] = {}

    def join(self, key: Any, me: int, ranks: int, make: Callable[[], CommState]) -> CommState:
        """Return the state of the communicator that `ranks` ranks create under a key, each as often as the others."""
        turn = self._turns[key, me] = self._turns.get((key, me), 0) + 1
        made, missing = self._made.get((key, turn)) or (make(), ranks)
        self._made[key, turn] = made, missing - 1
        if missing == 1:
            del self._made[key, turn]
        return made


class OwnState:
    """What one rank has set on its communicator: a name, attributes, an error handler, hints, a buffer, locks.

    `context`: a duplicate for the messages of mpi4py.util, its local communicator, and the last tag.
    """

    __slots__ = ("attributes", "buffer", "context", "errhandler", "hints", "locks", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[int, Any] = {}
        self.errhandler: Any = None
        self.hints: dict[str, str] = {}
        self.buffer: Any = None
        self.context: list[Any] | None = None
        self.locks: dict[Any, threading.Lock] | None = None
        """mpi4py's locks of collectives of objects, by their names; None as long as the program has not asked for them."""

    def lock(self, key: Any) -> Any:
        """Return the lock with this name, or one that does nothing if the program does not use them."""
        return nullcontext() if self.locks is None else self.locks.setdefault(key, threading.Lock())


class CollectiveRequest(Request):
    """One rank's part in a collective call: done when every rank has called, and `take` has received the result."""

    __slots__ = ("result", "take")

    def __init__(self, rank: Any, name: str, take: Callable[[Any], None] | None) -> None:
        self.rank = rank
        self.name = name
        self.done = self.spent = False
        self.error = self.origin = None
        self.result: Any = None
        self.take = take
        if rank.kernel.strict:
            self.watch()

    def arrive(self, rank: Any) -> None:
        take, self.take = self.take, None
        if take is not None:
            try:
                take(self.result)
            except BufferChanged as error:
                self.error = BufferChanged(f"a buffer of {self.describe()} {error}")
        self.done = True


class Disagreement(Exception):  # noqa: N818 (turned into a CollectiveMismatch)
    """Two ranks of a collective call contradict each other, which shows only when all have called."""

    def __init__(self, one: int, ones: str, other: int, others: str) -> None:
        super().__init__()
        self.sides = ((one, ones), (other, others))


class Advance:
    """A non-blocking collective that advances only while its ranks are in calls.

    The call that starts it, and every later call of a rank that does not wait, advance it by one round; a rank that waits
    takes part in all the rounds that are left. A round begins when the one before it is done and every rank has called.
    """

    __slots__ = ("_calls", "_complete", "_missing", "_shares")

    def __init__(self, size: int, shares: Sequence[float], complete: Callable[[Advance], None]) -> None:
        self._calls: list[list[float]] = [[] for _ in range(size)]
        self._shares, self._missing = shares, size
        self._complete = complete

    def attend(self, place: int, now: float, *, waits: bool) -> bool:
        """Note a call of a member; return True if no more of its calls are needed."""
        calls, rounds = self._calls[place], len(self._shares)
        calls.extend([now] * (rounds - len(calls) if waits else 1))
        if len(calls) < rounds:
            return False
        self._missing -= 1
        if not self._missing:
            self._complete(self)
        return True

    def delay(self, start: float, seconds: float) -> float:
        """Return how much later it ends than if its ranks had waited from `start` on."""
        end = start
        for number, share in enumerate(self._shares):
            end = max(end, *(calls[number] for calls in self._calls)) + share * seconds
        return max(0.0, end - (start + seconds))


class Meeting:
    """One collective call: the ranks that have called so far, and their contributions."""

    __slots__ = ("arguments", "given", "latest", "missing", "requests")

    def __init__(self, arguments: tuple[Any, ...], size: int) -> None:
        self.arguments = arguments
        self.given: list[Any] = [None] * size
        self.requests: list[CollectiveRequest | None] = [None] * size
        self.latest = 0.0
        self.missing = size

    def describe_missing(self, state: CommState) -> str:
        """Describe the ranks that have not made the call."""
        absent = [
            f"rank {number}"
            for number, request in zip(state.members, self.requests, strict=True)
            if request is None
        ]
        some = ", ".join(absent[:8]) + (f" and {len(absent) - 8:,} more" if len(absent) > 8 else "")
        return f"{_format_call(self.arguments)} of {len(state.members):,} ranks was not called by {some}"


def meet(
    comm: Any,
    name: str,
    given: Any,
    finish: Callable[[list[Any]], Sequence[Any]],
    *,
    arguments: tuple[Any, ...] = (),
    nbytes: int | Callable[[list[Any]], int] = 0,
    free_of_charge: bool = False,
    take: Callable[[Any], None] | None = None,
) -> CollectiveRequest:
    """Take part in the next collective call of a communicator; the request is done when every rank has called.

    `given`: this rank's contribution. `finish` is called once, with the contributions of all ranks in rank order, and
    returns the result of each. `arguments` must be the same on every rank. `nbytes`: the bytes that one rank
    contributes, for the cost, or a function that finds them in the contributions. `take` is called with this rank's
    result when it is there. `free_of_charge`: the call takes no time beyond waiting for the last rank.
    """
    state: CommState = comm.state
    rank = comm.me
    kernel = rank.kernel
    if kernel.faults is not None and kernel.faults.detector.begin(comm, name):
        left_out = CollectiveRequest(rank, name, None)
        left_out.done = True
        return left_out
    if kernel.gathering is not None:
        kernel.let_earlier_go(rank)
    if rank.advancing and name[0] != "I":  # a call that waits comes after what is in flight already
        kernel.advance(rank, waits=True)
    request = CollectiveRequest(rank, name, take)
    place = comm.place
    call = state.calls[place]
    state.calls[place] = call + 1
    meeting = state.meetings.get(call)
    asked = (name, *arguments)
    size = len(state.members)
    if meeting is None:
        meeting = state.meetings[call] = Meeting(asked, size)
        kernel.meetings[meeting] = state
    elif meeting.arguments != asked:
        other = next(found for found in meeting.requests if found is not None)
        raise CollectiveMismatch(
            f"rank {rank.number} calls {_format_call(asked)} at {format_site(find_site())}, but rank "
            f"{other.rank.number} calls {_format_call(meeting.arguments)} at {format_site(other.origin)}"
        )
    meeting.given[place] = given
    meeting.requests[place] = request
    if rank.t > meeting.latest:
        meeting.latest = rank.t
    meeting.missing -= 1
    if meeting.missing:
        return request
    del state.meetings[call]
    del kernel.meetings[meeting]
    _end(kernel, meeting, state.members, name, finish, nbytes, charged=not free_of_charge and size > 1)
    return request


def _end(
    kernel: Kernel,
    meeting: Meeting,
    members: Sequence[int],
    name: str,
    finish: Callable[[list[Any]], Sequence[Any]],
    nbytes: int | Callable[[list[Any]], int],
    *,
    charged: bool,
) -> None:
    """Complete a meeting that all members have come to: now, or when its rounds are over."""
    try:
        results = finish(meeting.given)
    except Disagreement as found:
        raise CollectiveMismatch(_describe_disagreement(name, meeting, found)) from None
    handed = nbytes if isinstance(nbytes, int) else nbytes(meeting.given)
    kernel.collectives += charged

    def complete(advance: Advance | None = None) -> None:
        end = meeting.latest
        if charged:
            priced = _blocking_name(name)
            if advance is not None:
                end += advance.delay(end, kernel.wires.collective(priced, members, handed))
            end = kernel.wires.join(priced, members, handed, end)
            if kernel.faults is not None:
                end = kernel.faults.collective_delay(name, members, meeting.latest, end)
        schedule = kernel.schedule
        for met, result in zip(meeting.requests, results, strict=True):
            assert met is not None
            met.result = result
            schedule(met.rank, end, met)

    if not (charged and name[0] == "I" and kernel.wires.needs_calls and kernel.faults is None):
        complete()
        return
    size = len(members)
    advance = Advance(size, kernel.wires.shares(size, handed), complete)
    for place, met in enumerate(meeting.requests):
        assert met is not None
        member = met.rank
        advance.attend(place, meeting.latest, waits=False)
        # A rank that is waiting already, or has ended, takes part in every round, from its own clock on: it may have
        # computed before it began to wait.
        if not (
            (member.wake != NOT_WAITING or member.greenlet.dead)
            and advance.attend(place, max(meeting.latest, member.t), waits=True)
        ):
            member.advancing.append((advance, place))


@cache
def _blocking_name(name: str) -> str:
    """Return the blocking call of this name: a non-blocking collective costs as much."""
    return name[1:].capitalize() if name[0] == "I" else name.capitalize()


def _format_call(asked: tuple[Any, ...]) -> str:
    """Format a call; an argument is a pair of its name and its value."""
    words = [f"{word[0]}={word[1]}" if isinstance(word, tuple) else str(word) for word in asked[1:]]
    return f"{asked[0]}({', '.join(words)})" if words else str(asked[0])


def _describe_disagreement(name: str, meeting: Meeting, found: Disagreement) -> str:
    sides = []
    for member, words in found.sides:
        request = meeting.requests[member]
        assert request is not None
        sides.append(f"rank {request.rank.number} {words} at {format_site(request.origin)}")
    return f"in {name}, " + ", but ".join(sides)
