"""Measured curves: seconds by amount, for each number of ranks of a node that worked at the same time.

Between two amounts values are interpolated linearly; below the first amount the first value holds; above the last
amount the last line continues. Between two numbers of ranks values are interpolated linearly in log2 of the number;
outside, the nearest curve is used.
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
        """Make curves from lists, as in JSON; raise ValueError if they are not valid tables."""
        tables = {int(ranks): _table(points) for ranks, points in by_ranks.items()}
        if not tables or min(tables) < 1:
            raise ValueError("a table needs a number of ranks that is at least 1")
        return cls(dict(sorted(tables.items())))

    def lists(self) -> dict[str, list[list[float]]]:
        """Return the curves as lists, for JSON."""
        return {str(ranks): [list(point) for point in table] for ranks, table in self.tables.items()}

    def at(self, amount: float, ranks: int) -> float:
        """Return the seconds for `amount` when `ranks` ranks of a node work at the same time."""
        known = list(self.tables)
        above = bisect_left(known, ranks)
        if above == len(known):
            return interpolate(self.tables[known[-1]], amount)
        more = known[above]
        if above == 0 or more == ranks:
            return interpolate(self.tables[more], amount)
        fewer = known[above - 1]
        share = math.log2(ranks / fewer) / math.log2(more / fewer)
        low, high = interpolate(self.tables[fewer], amount), interpolate(self.tables[more], amount)
        return low + share * (high - low)


def interpolate(table: Table, amount: float) -> float:
    """Return the value of one table at `amount`; a table of one point is proportional to the amount.

    >>> interpolate(((64, 0.5), (128, 1.0)), 96), interpolate(((64, 0.5),), 128)
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


def make_monotonic(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Lower the points that noise made too high: a larger amount cannot take less time.

    >>> make_monotonic([[1, 5.0], [2, 3.0], [4, 4.0]])
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
        raise ValueError("a table needs increasing amounts")
    if any(not 0 <= value < math.inf for point in table for value in point):
        raise ValueError("a table needs amounts and seconds that are at least 0")
    return table
