"""The cost of an allreduce: exact numbers of messages and bytes, and the alpha-beta-gamma model of its time.

    T = call + alpha * rounds + beta * bytes on the way + gamma * bytes combined or copied

call: seconds before the first message; alpha: seconds a message; beta: seconds a byte sent; gamma: seconds a byte
combined. Each algorithm's file has its own function `cost(case)`; without one there is no prediction.

Algorithms and their costs share the node of each rank (`Nodes`) and the division of a vector into parts (`cut`):
arithmetic with the same result on every rank.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from types import ModuleType

from paceline.names import find


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


# MPI counts elements in 31 bits: longer arrays are sent in pieces.
LONGEST = 1 << 30


@dataclass(frozen=True, kw_only=True)
class CostCase:
    """Rank r of p ranks, combining n elements of `itemsize` bytes; by default all ranks are on one node."""

    n: int
    p: int
    r: int = 0
    itemsize: int = 4
    nodes: Nodes = field(default=Nodes(()))

    def __post_init__(self) -> None:
        if len(self.nodes.of) != self.p:
            object.__setattr__(self, "nodes", one_node(self.p))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The work of one rank. `messages` and `sent` are exact; the others are what the last rank has to wait for."""

    messages: int = 0
    """Messages that the rank sends."""
    sent: int = 0
    """Elements in them."""
    rounds: int = 0
    """Messages one after the other, its own and those it waits for."""
    carried: int = 0
    """Elements in those."""
    touched: int = 0
    """Elements that the rank combines or copies."""

    def __add__(self, other: Cost) -> Cost:
        names = self.__dataclass_fields__
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """The alpha-beta-gamma model: seconds a message, a byte sent, a byte combined, and a call.

    >>> gigabit = CostModel(alpha=50e-6, beta=8e-9, gamma=0.2e-9)
    >>> round(gigabit.seconds(cost("ring", n=250_000, p=4), itemsize=4), 4)
    0.0125
    """

    alpha: float
    beta: float
    gamma: float
    call: float = 0.0

    def seconds(self, cost: Cost, itemsize: int) -> float:
        """Return the predicted time."""
        moved = self.beta * cost.carried + self.gamma * cost.touched
        return self.call + self.alpha * cost.rounds + itemsize * moved


def cost(name: str, *, n: int, p: int, r: int = 0, itemsize: int = 4, nodes: Nodes | None = None) -> Cost:
    """Return what the collective called `name` costs rank r.

    >>> both = cost("ring", n=1000, p=4)
    >>> both.messages, both.sent
    (6, 1500)
    """
    if not has_cost(name):
        raise ValueError(f"the collective {name} has no cost formula")
    module = _module(name)
    total = Cost()
    if n and p > 1:
        for piece in cut(n, -(-n // LONGEST)):
            case = CostCase(n=length(piece), p=p, r=r, itemsize=itemsize, nodes=nodes or one_node(p))
            total += module.cost(case)
    return total


def has_cost(name: str) -> bool:
    """Return True if the collective called `name` has a cost formula; those of other packages need not have one."""
    return hasattr(_module(name), "cost")


@cache
def _module(name: str) -> ModuleType:
    return sys.modules[find("collectives", name).__module__]
