"""Groups of ranks: mpi4py's MPI.Group, by the ranks' numbers in the world."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.vmpi.constants import UNDEFINED

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
