"""Groups of ranks, the shared state of a communicator, and the collective calls in which its ranks meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from paceline.vmpi.constants import UNDEFINED
from paceline.vmpi.errors import BufferChanged, CollectiveMismatch, find_site, format_site
from paceline.vmpi.requests import Request

IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)


class Group:
    """An ordered set of ranks: mpi4py's MPI.Group. Members are numbered as in the world.

    >>> everyone = Group(range(6), me=1)
    >>> odd = everyone.Incl([1, 3, 5])
    >>> odd.Get_size(), odd.Get_rank(), odd.Translate_ranks([0, 2], everyone)
    (3, 0, [1, 5])
    """

    __slots__ = ("_me", "members")

    def __init__(self, members: Sequence[int] = (), me: int = -1) -> None:
        self.members, self._me = members if isinstance(members, range) else tuple(members), me

    def Get_size(self) -> int:
        return len(self.members)

    def Get_rank(self) -> int:
        return self.members.index(self._me) if self._me in self.members else UNDEFINED

    size = property(Get_size)
    rank = property(Get_rank)

    def Incl(self, ranks: Sequence[int]) -> Group:
        return Group([self.members[rank] for rank in ranks], self._me)

    def Excl(self, ranks: Sequence[int]) -> Group:
        left_out = set(ranks)
        return Group([member for rank, member in enumerate(self.members) if rank not in left_out], self._me)

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Return the ranks in the other group of these ranks of this group."""
        theirs = {} if group is None else {member: place for place, member in enumerate(group.members)}
        wanted = range(len(self.members)) if ranks is None else ranks
        return [rank if rank < 0 else theirs.get(self.members[rank], UNDEFINED) for rank in wanted]

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        known = set(group1.members)
        return cls([*group1.members, *(one for one in group2.members if one not in known)], group1._me)

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        known = set(group2.members)
        return cls([one for one in group1.members if one in known], group1._me)

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        known = set(group2.members)
        return cls([one for one in group1.members if one not in known], group1._me)

    @classmethod
    def Compare(cls, group1: Group, group2: Group) -> int:
        if tuple(group1.members) == tuple(group2.members):
            return IDENT
        return SIMILAR if sorted(group1.members) == sorted(group2.members) else UNEQUAL

    def Free(self) -> None:
        self.members = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and tuple(self.members) == tuple(other.members)

    def __bool__(self) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class CommState:
    """The shared state of one communicator: its members, by their numbers in the world, and its context."""

    def __init__(self, kernel: Any, members: Sequence[int], name: str) -> None:
        self.kernel = kernel
        self.members = members
        self.context: int = next(kernel.contexts)
        self.name = name
        self.meetings: dict[int, Meeting] = {}
        self.forming: dict[Any, tuple[CommState, int]] = {}
        """Communicators being created from some of the members, and how many have not called yet."""
        self.freed = 0
        kernel.states[self.context] = self

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each member: one tuple, shared by all ranks."""
        node = self.kernel.wires.node
        return tuple(node[member] for member in self.members)


class CollectiveRequest(Request):
    """One rank's part in a collective call: done when every rank has called, and `take` has received the result."""

    __slots__ = ("result", "take")

    def __init__(self, rank: Any, name: str, take: Callable[[Any], None] | None) -> None:
        super().__init__(rank, name)
        self.result: Any = None
        self.take = take

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
    request = CollectiveRequest(rank, name, take)
    call = comm.calls
    comm.calls = call + 1
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
    meeting.given[comm.rank] = given
    meeting.requests[comm.rank] = request
    if rank.t > meeting.latest:
        meeting.latest = rank.t
    meeting.missing -= 1
    if meeting.missing:
        return request
    del state.meetings[call]
    del kernel.meetings[meeting]
    try:
        results = finish(meeting.given)
    except Disagreement as found:
        raise CollectiveMismatch(_describe_disagreement(name, meeting, found)) from None
    end = meeting.latest
    if not free_of_charge and size > 1:
        handed = nbytes if isinstance(nbytes, int) else nbytes(meeting.given)
        end = kernel.wires.join(_blocking(name), state.members, handed, end)
        if kernel.faults is not None:
            end = kernel.faults.collective_delay(name, state.members, meeting.latest, end)
    for member, met, result in zip(state.members, meeting.requests, results, strict=True):
        assert met is not None
        met.result = result
        kernel.schedule(kernel.ranks[member], end, met)
    return request


def _blocking(name: str) -> str:
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
