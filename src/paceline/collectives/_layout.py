"""Which rank is on which node: pure arithmetic, the same on every rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Nodes:
    """`of[r]` is the node of rank r, under any numbering.

    >>> Nodes((0, 0, 0, 3, 3)).smallest
    2
    """

    of: tuple[int, ...]

    @property
    def count(self) -> int:
        """Nodes."""
        return len(set(self.of))

    @property
    def smallest(self) -> int:
        """Ranks on the node that has the fewest: so many parts can have an owner on every node."""
        return min(Counter(self.of).values())

    @property
    def largest(self) -> int:
        """Ranks on the node that has the most."""
        return max(Counter(self.of).values())

    def place(self, rank: int) -> int:
        """Which one of its node's ranks this is.

        >>> Nodes((0, 1, 0, 1)).place(3)
        1
        """
        return self.of[:rank].count(self.of[rank])

    def peers(self, rank: int) -> tuple[int, ...]:
        """The ranks with this one's place on every node, in order."""
        place = self.place(rank)
        return tuple(q for q in range(len(self.of)) if self.place(q) == place)


def one_node(ranks: int) -> Nodes:
    """All ranks on one node."""
    return Nodes((0,) * ranks)
