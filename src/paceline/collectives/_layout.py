"""The node of each rank, and the division of a vector into parts: arithmetic with the same result on every rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise


@dataclass(frozen=True)
class Nodes:
    """The nodes of all ranks: `of[r]` is the node of rank r, in any numbering.

    >>> Nodes((0, 0, 0, 3, 3)).smallest
    2
    """

    of: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        """The number of nodes."""
        return len(self._sizes)

    @cached_property
    def smallest(self) -> int:
        """The fewest ranks on a node: this many parts can have an owner on every node."""
        return min(self._sizes.values())

    @cached_property
    def largest(self) -> int:
        """The most ranks on a node."""
        return max(self._sizes.values())

    def place(self, rank: int) -> int:
        """Return the position of a rank among the ranks of its node.

        >>> Nodes((0, 1, 0, 1)).place(3)
        1
        """
        return self._places[rank]

    def peers(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that have the same place on their nodes as this one, in order.

        >>> Nodes((0, 1, 0, 1, 1)).peers(3)
        (2, 3)
        """
        return self._with_place[self._places[rank]]

    def members(self, rank: int) -> tuple[int, ...]:
        """Return the ranks on the node of a rank, in order.

        >>> Nodes((0, 1, 0, 1)).members(3)
        (1, 3)
        """
        return tuple(other for other, node in enumerate(self.of) if node == self.of[rank])

    @cached_property
    def _sizes(self) -> Counter[int]:
        return Counter(self.of)

    @cached_property
    def _places(self) -> tuple[int, ...]:
        seen: Counter[int] = Counter()
        places = []
        for node in self.of:
            places.append(seen[node])
            seen[node] += 1
        return tuple(places)

    @cached_property
    def _with_place(self) -> dict[int, tuple[int, ...]]:
        ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank, place in enumerate(self._places):
            ranks[place].append(rank)
        return {place: tuple(among) for place, among in ranks.items()}


def one_node(ranks: int) -> Nodes:
    """Return the layout with all ranks on one node."""
    return Nodes((0,) * ranks)


@lru_cache(maxsize=256)
def cut(n: int, parts: int, align: int = 1) -> tuple[slice, ...]:
    """Cut n elements into `parts` adjacent slices, as even as possible, that start at multiples of `align`.

    >>> cut(10, 4)
    (slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None))
    >>> [part.stop for part in cut(100, 3, align=16)]
    [48, 80, 100]
    """
    units, rest = divmod(-(-n // align), parts)
    stops = [min(n, align * (units * k + min(k, rest))) for k in range(parts + 1)]
    return tuple(slice(a, b) for a, b in pairwise(stops))


def length(part: slice) -> int:
    """Return the number of elements in a slice made by `cut`.

    >>> [length(part) for part in cut(10, 4)]
    [3, 3, 2, 2]
    """
    return int(part.stop - part.start)
