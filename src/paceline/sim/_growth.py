"""How many messages a case will take, before it is simulated: known from fewer ranks, and how it grew there."""

from __future__ import annotations

import math

from paceline.errors import UsageError
from paceline.sim._case import Length, Way

# As many steps as take no more messages than this, but one at least.
ENOUGH = 100_000


class Growth:
    """Messages of a step, by the numbers of ranks for which they are known.

    >>> growth = Growth()
    >>> growth.known.update({4: 24.0, 8: 112.0})               # a ring's: 2 (p - 1) p
    >>> round(growth.at(16))
    523
    """

    def __init__(self) -> None:
        self.known: dict[int, float] = {}

    def at(self, ranks: int) -> float:
        """The number, known or to be expected; 0 where nothing is known."""
        if ranks in self.known:
            return self.known[ranks]
        some = [(p, count) for p, count in sorted(self.known.items()) if p > 1 and count]
        if not some:
            return 0.0
        power = 2.0
        if len(some) > 1:
            (p, before), (q, after) = some[-2:]
            power = min(max(math.log(after / before) / math.log(q / p), 1.0), 2.5)
        last, count = some[-1]
        return float(count * (ranks / last) ** power)

    def of(self, way: Way, length: Length) -> float:
        """Messages of a run of this length."""
        return self.at(way.ranks) * length.batches / way.together

    def affordable(self, way: Way, most: int) -> Length:
        """As much of a run as may be simulated; a refusal where the least of it is too much."""
        length = self.shortened(way, way.length(), min(ENOUGH, most))
        if (expected := self.of(way, length)) > most:
            raise UsageError(
                f"would take about {expected:,.0f} messages; at most {most:,} are simulated (--messages)"
            )
        return length

    def shortened(self, way: Way, length: Length, most: float) -> Length:
        """A run that takes at most so many messages, or the least that says something."""
        if (expected := self.of(way, length)) <= most:
            return length
        return way.length(max(1, int(length.batches * most / expected)))
