"""What the ranks of one communicator share: who they are, and the calls in which all of them meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from paceline.sim import _sites
from paceline.sim._requests import Request
from paceline.sim.errors import CollectiveMismatch


class Group:
    """The members of one communicator, by their numbers in the world, and its context."""

    def __init__(self, kernel: Any, members: Sequence[int], name: str) -> None:
        self.kernel = kernel
        self.members = members
        self.context: int = next(kernel.contexts)
        self.name = name
        self.meetings: dict[int, Meeting] = {}
        self.freed = 0

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each member: one tuple for all of them."""
        node = self.kernel.wires.node
        return tuple(node[member] for member in self.members)


class Met(Request):
    """One rank's part in a call of all: done when everybody has come and the result is there."""

    __slots__ = ("result",)

    def __init__(self, rank: Any, name: str) -> None:
        super().__init__(rank, name)
        self.result: Any = None


class Meeting:
    """One call in which all members of a group take part."""

    __slots__ = ("arguments", "given", "latest", "missing", "requests")

    def __init__(self, arguments: tuple[Any, ...], size: int) -> None:
        self.arguments = arguments
        self.given: list[Any] = [None] * size
        self.requests: list[Met | None] = [None] * size
        self.latest = 0.0
        self.missing = size


def meet(
    comm: Any,
    name: str,
    given: Any,
    finish: Callable[[list[Any]], Sequence[Any]],
    *,
    arguments: tuple[Any, ...] = (),
    nbytes: int = 0,
    free_of_charge: bool = False,
) -> Met:
    """Come to the next meeting of a communicator with what one has; the request is done when all have come.

    `finish` makes everybody's result from what all have given, in rank order, once. `arguments` must be the same on
    every rank; `nbytes`: what one rank hands in, for the cost.
    """
    group: Group = comm.group
    rank = comm.me
    kernel = rank.kernel
    request = Met(rank, name)
    call = comm.calls
    comm.calls = call + 1
    meeting = group.meetings.get(call)
    asked = (name, *arguments)
    size = len(group.members)
    if meeting is None:
        meeting = group.meetings[call] = Meeting(asked, size)
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
    results = finish(meeting.given)
    end = meeting.latest
    if not free_of_charge and size > 1:
        end += kernel.wires.collective(name, group.members, nbytes)
    for member, met, result in zip(group.members, meeting.requests, results, strict=True):
        assert met is not None
        met.result = result
        kernel.put(kernel.ranks[member], end, met)
    return request


def _called(asked: tuple[Any, ...]) -> str:
    return asked[0] if len(asked) == 1 else f"{asked[0]}({', '.join(map(str, asked[1:]))})"
