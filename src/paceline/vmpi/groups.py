"""What the ranks of one communicator share: who they are, and the calls in which all of them meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from paceline.vmpi import sites as _sites
from paceline.vmpi.constants import UNDEFINED
from paceline.vmpi.errors import BufferChanged, CollectiveMismatch
from paceline.vmpi.requests import Request

IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)


class Ranks:
    """Some ranks, in an order.

    >>> all_of_them = Ranks(range(6), me=1)
    >>> odd = all_of_them.Incl([1, 3, 5])
    >>> odd.Get_size(), odd.Get_rank(), odd.Translate_ranks([0, 2], all_of_them)
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

    def Incl(self, ranks: Sequence[int]) -> Ranks:
        return Ranks([self.members[rank] for rank in ranks], self._me)

    def Excl(self, ranks: Sequence[int]) -> Ranks:
        left_out = set(ranks)
        return Ranks([member for rank, member in enumerate(self.members) if rank not in left_out], self._me)

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Ranks | None = None) -> list[int]:
        """Which ranks of the other group these of this group are."""
        theirs = {} if group is None else {member: place for place, member in enumerate(group.members)}
        wanted = range(len(self.members)) if ranks is None else ranks
        return [rank if rank < 0 else theirs.get(self.members[rank], UNDEFINED) for rank in wanted]

    @classmethod
    def Union(cls, group1: Ranks, group2: Ranks) -> Ranks:
        known = set(group1.members)
        return cls([*group1.members, *(one for one in group2.members if one not in known)], group1._me)

    @classmethod
    def Intersection(cls, group1: Ranks, group2: Ranks) -> Ranks:
        known = set(group2.members)
        return cls([one for one in group1.members if one in known], group1._me)

    @classmethod
    def Difference(cls, group1: Ranks, group2: Ranks) -> Ranks:
        known = set(group2.members)
        return cls([one for one in group1.members if one not in known], group1._me)

    @classmethod
    def Compare(cls, group1: Ranks, group2: Ranks) -> int:
        if tuple(group1.members) == tuple(group2.members):
            return IDENT
        return SIMILAR if sorted(group1.members) == sorted(group2.members) else UNEQUAL

    def Free(self) -> None:
        self.members = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranks) and tuple(self.members) == tuple(other.members)

    def __bool__(self) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Group:
    """The members of one communicator, by their numbers in the world, and its context."""

    def __init__(self, kernel: Any, members: Sequence[int], name: str) -> None:
        self.kernel = kernel
        self.members = members
        self.context: int = next(kernel.contexts)
        self.name = name
        self.meetings: dict[int, Meeting] = {}
        self.forming: dict[Any, tuple[Group, int]] = {}
        """Groups of some of the members: who is not there yet."""
        self.freed = 0
        kernel.groups[self.context] = self

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each member: one tuple for all of them."""
        node = self.kernel.wires.node
        return tuple(node[member] for member in self.members)


class Met(Request):
    """One rank's part in a call of all: done when everybody has come and the result is there, and `take` has got it."""

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
                self.error = BufferChanged(f"a buffer of the {self.spelled()} {error}")
        self.done = True


class Disagree(Exception):  # noqa: N818 (it is no failure yet)
    """Two ranks of a call of all want different things, which shows only when all have come: who, and what each says."""

    def __init__(self, one: int, ones: str, other: int, others: str) -> None:
        super().__init__()
        self.sides = ((one, ones), (other, others))


class Meeting:
    """One call in which all members of a group take part."""

    __slots__ = ("arguments", "given", "latest", "missing", "requests")

    def __init__(self, arguments: tuple[Any, ...], size: int) -> None:
        self.arguments = arguments
        self.given: list[Any] = [None] * size
        self.requests: list[Met | None] = [None] * size
        self.latest = 0.0
        self.missing = size

    def lacking(self, group: Group) -> str:
        """Who has not come."""
        absent = [
            str(number)
            for number, request in zip(group.members, self.requests, strict=True)
            if request is None
        ]
        some = ", ".join(absent[:8]) + (f" and {len(absent) - 8:,} more" if len(absent) > 8 else "")
        return f"to {_called(self.arguments)} of {len(group.members):,} ranks did not come: rank {some}"


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
) -> Met:
    """Come to the next meeting of a communicator with what one has; the request is done when all have come.

    `finish` makes everybody's result from what all have given, in rank order, once. `arguments` must be the same on
    every rank; `nbytes`: what one rank hands in, for the cost, or how to find it in what all have given. `take` is
    called with this rank's result when it is there.
    """
    group: Group = comm.group
    rank = comm.me
    kernel = rank.kernel
    if kernel.faults is not None and kernel.faults.losses.begin(comm, name):
        left_out = Met(rank, name, None)
        left_out.done = True
        return left_out
    request = Met(rank, name, take)
    call = comm.calls
    comm.calls = call + 1
    meeting = group.meetings.get(call)
    asked = (name, *arguments)
    size = len(group.members)
    if meeting is None:
        meeting = group.meetings[call] = Meeting(asked, size)
        kernel.meetings[meeting] = group
    elif meeting.arguments != asked:
        other = next(found for found in meeting.requests if found is not None)
        raise CollectiveMismatch(
            f"rank {rank.number} calls {_called(asked)} at {_sites.spelled(_sites.site())} where rank "
            f"{other.rank.number} calls {_called(meeting.arguments)} at {_sites.spelled(other.made)}"
        )
    meeting.given[comm.rank] = given
    meeting.requests[comm.rank] = request
    if rank.t > meeting.latest:
        meeting.latest = rank.t
    meeting.missing -= 1
    if meeting.missing:
        return request
    del group.meetings[call]
    del kernel.meetings[meeting]
    try:
        results = finish(meeting.given)
    except Disagree as found:
        raise CollectiveMismatch(_disagreeing(name, meeting, found)) from None
    end = meeting.latest
    if not free_of_charge and size > 1:
        handed = nbytes if isinstance(nbytes, int) else nbytes(meeting.given)
        end += kernel.wires.collective(_blocking(name), group.members, handed)
        if kernel.faults is not None:
            end = kernel.faults.late_among(name, group.members, meeting.latest, end)
    for member, met, result in zip(group.members, meeting.requests, results, strict=True):
        assert met is not None
        met.result = result
        kernel.put(kernel.ranks[member], end, met)
    return request


def _blocking(name: str) -> str:
    """Which call's costs are this one's: a call that does not wait costs what the one that waits does."""
    return name[1:].capitalize() if name[0] == "I" else name.capitalize()


def _called(asked: tuple[Any, ...]) -> str:
    """A call in words; an argument is a pair of its name and its value."""
    words = [f"{word[0]}={word[1]}" if isinstance(word, tuple) else str(word) for word in asked[1:]]
    return f"{asked[0]}({', '.join(words)})" if words else str(asked[0])


def _disagreeing(name: str, meeting: Meeting, found: Disagree) -> str:
    said = []
    for member, words in found.sides:
        request = meeting.requests[member]
        assert request is not None
        said.append(f"rank {request.rank.number} {words} at {_sites.spelled(request.made)}")
    return f"in {name}, " + " where ".join(said)
