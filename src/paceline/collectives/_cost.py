"""The cost of an allreduce: exact numbers of messages and bytes, and the alpha-beta-gamma model of its time.

    T = call + alpha * rounds + beta * bytes on the way + gamma * bytes combined or copied

call: seconds before the first message; alpha: seconds a message; beta: seconds a byte sent; gamma: seconds a byte
combined. Each algorithm's file has its own function `cost(case)`; without one there is no prediction.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

from paceline.collectives._layout import Nodes, cut, length, one_node
from paceline.names import find

# MPI counts elements in 31 bits: longer arrays are sent in pieces.
LONGEST = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Case:
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
            case = Case(n=length(piece), p=p, r=r, itemsize=itemsize, nodes=nodes or one_node(p))
            total += module.cost(case)
    return total


def has_cost(name: str) -> bool:
    """Return True if the collective called `name` has a cost formula; those of other packages need not have one."""
    return hasattr(_module(name), "cost")


@cache
def _module(name: str) -> ModuleType:
    return sys.modules[find("collectives", name).__module__]
