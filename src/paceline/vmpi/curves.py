"""Measured curves: seconds by amount, for each number of ranks that were at it together on a node.

Between two amounts a straight line; below the first amount the first value; above the last the last line goes on.
Between two numbers of ranks a straight line in log2 of the number; outside the nearest curve.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Table = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curves:
    """One table of (amount, seconds) for each number of ranks.

    >>> copying = Curves.of({1: [[0, 1.0], [10, 2.0]], 4: [[0, 3.0], [10, 4.0]]})
    >>> copying.at(5, ranks=1), copying.at(5, ranks=2), copying.at(20, ranks=64)
    (1.5, 2.5, 5.0)
    """

    tables: dict[int, Table]

    @classmethod
    def of(cls, by_ranks: Mapping[Any, Sequence[Sequence[float]]]) -> Curves:
        """From lists, as JSON has them; raises ValueError where they are no table."""
        tables = {int(ranks): _table(points) for ranks, points in by_ranks.items()}
        if not tables or min(tables) < 1:
            raise ValueError("a table needs a number of ranks that is at least 1")
        return cls(dict(sorted(tables.items())))

    def lists(self) -> dict[str, list[list[float]]]:
        """The same as JSON has it."""
        return {str(ranks): [list(point) for point in table] for ranks, table in self.tables.items()}

    def at(self, amount: float, ranks: int) -> float:
        """Seconds for `amount` when `ranks` ranks of a node are at it."""
        known = list(self.tables)
        above = bisect_left(known, ranks)
        if above == len(known):
            return at(self.tables[known[-1]], amount)
        more = known[above]
        if above == 0 or more == ranks:
            return at(self.tables[more], amount)
        fewer = known[above - 1]
        share = math.log2(ranks / fewer) / math.log2(more / fewer)
        low, high = at(self.tables[fewer], amount), at(self.tables[more], amount)
        return low + share * (high - low)


def at(table: Table, amount: float) -> float:
    """The value of one table; a table of one point is proportional to the amount.

    >>> at(((64, 0.5), (128, 1.0)), 96), at(((64, 0.5),), 128)
    (0.75, 1.0)
    """
    if len(table) == 1:
        ((known, seconds),) = table
        return seconds * amount / known if known else seconds
    if amount <= table[0][0]:
        return table[0][1]
    above = min(bisect_left(table, (amount,)), len(table) - 1)
    (a, low), (b, high) = table[above - 1], table[above]
    return low + (amount - a) / (b - a) * (high - low)


def rising(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Measured points, by amounts that rise, without what noise makes too high: more does not take less.

    >>> rising([[1, 5.0], [2, 3.0], [4, 4.0]])
    [[1, 3.0], [2, 3.0], [4, 4.0]]
    """
    least, found = math.inf, []
    for amount, seconds in reversed(points):
        least = min(least, seconds)
        found.append([amount, least])
    return found[::-1]


def _table(points: Sequence[Sequence[float]]) -> Table:
    table = tuple((float(amount), float(seconds)) for amount, seconds in points)
    if not table or any(b[0] <= a[0] for a, b in pairwise(table)):
        raise ValueError("a table needs amounts that rise")
    if any(not 0 <= value < math.inf for point in table for value in point):
        raise ValueError("a table needs amounts and seconds that are at least 0")
    return table
