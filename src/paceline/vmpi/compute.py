"""The costs of computing: seconds by kind and amount of work, and what slows ranks down.

A rank shares memory bandwidth and clock speed with the other ranks of its node, so costs depend on their number. More
ranks than cores take turns. In addition, a rank may be slow all the time, vary from one piece of work to the next, or
pause.

Measured costs are `Curves`: seconds by amount, for each number of ranks of a node that worked at the same time. Between
two amounts values are interpolated linearly; below the first amount the first value holds; above the last amount the
last line continues. Between two numbers of ranks values are interpolated linearly in log2 of the number; outside, the
nearest curve is used.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from paceline.errors import UsageError

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


# Passes over memory. Jitter is not applied to them: they vary little, and there are many of them.
MEMORY_PASSES = frozenset({"combine", "recombine", "sum", "copy", "cold"})
CACHED = 1 << 16  # amounts whose costs are cached


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The duration of work on the ranks of a simulation.

    `work`: for each kind of work `Curves`, or points `[[amount, seconds], …]` for any number of ranks, or the seconds
    of one unit. Work of a kind that is missing takes no time.

    >>> compute = Compute(work={"gradient": [[1, 1e-4], [64, 1e-3]], "update": 1e-9}, slow={1: 4.0})
    >>> ranks = compute.start(node=[0, 0])
    >>> ranks.seconds("gradient", 64, rank=0), ranks.seconds("gradient", 64, rank=1)
    (0.001, 0.004)
    >>> Compute(work={"gradient": 1e-3}, cores=2).start(node=[0] * 8).seconds("gradient", 1, rank=0)
    0.004
    """

    work: Mapping[str, Any] = field(default_factory=dict)
    cores: int | None = None
    """The cores of a node; None: enough for its ranks."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Ranks that take this many times as long."""
    jitter: float = 0.0
    """The time of each piece of work is multiplied by a log-normal random number with this sigma and mean 1."""
    spread: Curves | None = None
    """Where jitter is not 0, its sigma by the seconds of the work, for each number of ranks of a node."""
    pauses: tuple[float, float] | None = None
    """Pauses per second of computing, and the length of each."""

    def __post_init__(self) -> None:
        curves = {kind: _make_curves(kind, given) for kind, given in self.work.items()}
        object.__setattr__(self, "work", curves)
        if self.cores is not None and self.cores < 1:
            raise UsageError(f"cores must be at least 1; got {self.cores}")
        for rank, factor in self.slow.items():
            if rank < 0 or not 0 < factor < math.inf:
                raise UsageError(
                    f"a slow rank needs a number of at least 0 and a factor above 0; got {rank}: {factor}"
                )
        if not 0 <= self.jitter < math.inf:
            raise UsageError(f"jitter must be at least 0; got {self.jitter}")
        if self.pauses is not None and not all(0 < value < math.inf for value in self.pauses):
            raise UsageError(f"pauses need a rate and a length above 0; got {self.pauses}")

    def start(self, node: Sequence[int], seed: int = 0) -> RankCompute:
        """Start a run whose ranks are on these nodes; the same seed gives the same random numbers."""
        return RankCompute(self, node, seed)


class RankCompute:
    """The computing of one run. The times of one rank do not depend on the order of the others' calls."""

    def __init__(self, compute: Compute, node: Sequence[int], seed: int) -> None:
        self._work = compute.work
        on_node = Counter(node)
        known: dict[int, dict[tuple[str, float], tuple[float, float]]] = {
            count: {} for count in on_node.values()
        }
        self._ranks = [on_node[n] for n in node]
        self._known = [known[count] for count in self._ranks]
        self._cores = compute.cores
        self.slow, self.pauses = dict(compute.slow), compute.pauses
        self._sigma, self._spread = compute.jitter, compute.spread
        self._even: dict[range, bool] = {}
        self._steady = not (self.slow or self._sigma or self.pauses)
        ranks = len(node) if self._sigma or self.pauses else 0
        self._drawn = [_mix(_mix(seed) + 2 * rank) for rank in range(ranks)]
        self._pause_drawn = [_mix(_mix(seed) + 2 * rank + 1) for rank in range(ranks)]
        self._until = [self._next_pause(rank) for rank in range(ranks)] if self.pauses else []

    def seconds(self, kind: str, amount: float, rank: int) -> float:
        """Return the seconds that this rank takes for `amount` of a kind of work, this time."""
        found = self._known[rank].get((kind, amount))
        seconds, sigma = self._find(kind, amount, rank) if found is None else found
        if self._steady:
            return seconds
        if rank in self.slow:
            seconds *= self.slow[rank]
        if sigma:
            self._drawn[rank] = drawn = (self._drawn[rank] + STEP) & MASK
            seconds *= math.exp(sigma * NORMAL(_uniform(drawn)) - sigma**2 / 2)
        if self.pauses is not None:
            self._until[rank] -= seconds
            while self._until[rank] <= 0:
                self._until[rank] += self._next_pause(rank)
                seconds += self.pauses[1]
        return seconds

    def seconds_of(self, kind: str, amount: float, ranks: range) -> Any:
        """Return what `seconds` does for each of these ranks: an array, or one number if it is the same for all."""
        found = self._known[ranks[0]].get((kind, amount))
        seconds, sigma = self._find(kind, amount, ranks[0]) if found is None else found
        if sigma or self.pauses is not None or not self._is_even(ranks):
            return np.array([self.seconds(kind, amount, rank) for rank in ranks])
        if not self.slow:
            return seconds
        return seconds * np.array([self.slow.get(rank, 1.0) for rank in ranks])

    def _is_even(self, ranks: range) -> bool:
        """Return True if these ranks share their nodes with equally many others."""
        if ranks not in self._even:
            self._even[ranks] = len(set(self._ranks[ranks.start : ranks.stop])) == 1
        return self._even[ranks]

    def plain_seconds(self, kind: str, amount: float) -> float:
        """Return the seconds of a pass over memory on a rank like the first one that nothing slows down."""
        found = self._known[0].get((kind, amount))
        return (self._find(kind, amount, 0) if found is None else found)[0]

    def _find(self, kind: str, amount: float, rank: int) -> tuple[float, float]:
        """Return the seconds of the work and the sigma of its variation."""
        known, ranks = self._known[rank], self._ranks[rank]
        curves = self._work.get(kind)
        busy = ranks if self._cores is None else min(ranks, self._cores)
        seconds = 0.0 if curves is None or amount <= 0 else curves.at(amount, busy) * (ranks / busy)
        if len(known) >= CACHED:
            known.clear()
        sigma = 0.0 if kind in MEMORY_PASSES else self._sigma
        if sigma and self._spread is not None:
            longest = max(table[-1][0] for table in self._spread.tables.values())
            sigma = self._spread.at(min(seconds, longest), busy)
        known[kind, amount] = found = (seconds, sigma)
        return found

    def _next_pause(self, rank: int) -> float:
        """Return the seconds of computing until the next pause."""
        assert self.pauses is not None
        self._pause_drawn[rank] = drawn = (self._pause_drawn[rank] + STEP) & MASK
        return -math.log(_uniform(drawn)) / self.pauses[0]


def _make_curves(kind: str, given: Any) -> Curves:
    if isinstance(given, Curves):
        return given
    try:
        return Curves.of({1: [[1, given]] if isinstance(given, int | float) else given})
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the cost of {kind} must be seconds, or points [[amount, seconds], …] with increasing amounts: {error}"
        ) from None


# Pseudo-random numbers from a counter: 16 bytes per rank, compared with 2,500 for random.Random.
# Steele, Lea, Flood, Fast splittable pseudorandom number generators (2014).
MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
NORMAL = NormalDist().inv_cdf


def _mix(number: int) -> int:
    number = (number + STEP) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def _uniform(number: int) -> float:
    """Return a number strictly between 0 and 1."""
    return ((_mix(number) >> 12) + 0.5) / (1 << 52)
