"""Where a way of training stops scaling, and why: what buys most, once it costs nothing, is what it is lost to.

    T     seconds of a step as it is
    T_r   seconds of the same step in a world where r costs nothing
    the share of the step that is lost to r is (T - T_r) / T; without it the speedup would be T / T_r times as high

Shares need not add up: where two costs hide behind each other, taking away one alone buys little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# More ranks help as long as the speedup grows by more than this part of its best.
FLAT = 0.02
# Less than this part of a step is not worth naming.
LITTLE = 0.05
# A speedup by less than this part of the number of ranks is not what they were bought for.
HALF = 0.5
# Accuracy that may be missing.
POINT = 0.01


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one way of training would do on one number of ranks."""

    ranks: int
    step_seconds: float
    """Of a step that all ranks take together, or of a rank's own whole batch."""
    samples_per_second: float
    speedup: float
    """Against the simulated serial run."""
    messages: float = 0.0
    """Of all ranks together in a step."""
    bytes: float = 0.0
    steps: int = 1
    """How many were simulated."""
    without: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step in a world in which the cost of that name is none."""
    accuracy: float | None = None
    staleness: float | None = None
    """Mean number of updates that a gradient is late."""

    @property
    def efficiency(self) -> float:
        """Speedup a rank."""
        return self.speedup / self.ranks

    def lost(self) -> dict[str, float]:
        """What part of the step's time each cost takes, largest first.

        >>> point = Point(ranks=4, step_seconds=1.0, samples_per_second=1.0, speedup=2.0,
        ...               without={"latency": 0.4, "compute": 0.9, "memory": 1.0})
        >>> {reason: round(share, 2) for reason, share in point.lost().items()}
        {'latency': 0.6, 'compute': 0.1, 'memory': 0.0}
        """
        shares = {name: max(0.0, 1 - t / self.step_seconds) for name, t in self.without.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def speedup_without(self, reason: str) -> float:
        """What the speedup would be if that cost were none."""
        seconds = self.without[reason]
        return self.speedup * self.step_seconds / seconds if seconds else float("inf")


def measure_without(seconds: Callable[[str], float], reasons: Iterable[str]) -> dict[str, float]:
    """The step's seconds without each cost, by a function that simulates it.

    >>> measure_without({"latency": 0.25, "memory": 1.0}.__getitem__, ["memory", "latency"])
    {'memory': 1.0, 'latency': 0.25}
    """
    return {reason: seconds(reason) for reason in reasons}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Where a way of training stops scaling."""

    at: Point
    """More ranks than these bring nothing more, or nothing that is wanted."""
    shown: Point
    """Where it can be seen why: the same, or the next one where at the first nothing is lost yet."""
    rising: bool
    """Whether it was still getting faster at the largest number of ranks."""
    half: int | None
    """The number of ranks from which on less than half of them is used."""
    reason: str | None
    """What most is lost to where it can be seen; None where that is next to nothing, or not known."""
    only: bool = False
    """Whether there was one number of ranks, so that nothing rises or falls."""


def limit(points: Sequence[Point], accuracy: float | None = None) -> Limit:
    """Find where `points`, by rising numbers of ranks, stop scaling; `accuracy`: what they are held to.

    >>> def point(ranks, speedup):
    ...     return Point(ranks=ranks, step_seconds=1.0, samples_per_second=speedup, speedup=speedup)
    >>> found = limit([point(1, 1.0), point(2, 1.8), point(4, 2.4), point(8, 2.41), point(16, 1.9)])
    >>> found.at.ranks, found.rising, found.half
    (4, False, 8)
    """
    best = max(point.speedup for point in points)
    peak = next(place for place, point in enumerate(points) if point.speedup >= (1 - FLAT) * best)
    # Efficiency may rise again where masters get more workers: what counts is from where it stays low.
    above = [place for place, point in enumerate(points) if point.efficiency >= HALF]
    low = points[above[-1] + 1 :] if above else points
    half = low[0].ranks if low else None
    learned = _learned(points, peak, accuracy)
    if learned is not None:
        reason = "staleness" if any(point.staleness for point in points) else "accuracy"
        following = points[min(learned + 1, len(points) - 1)]
        return Limit(at=points[learned], shown=following, rising=False, half=half, reason=reason)
    at, rising = points[peak], peak == len(points) - 1
    # On the last rank that helps little may be lost yet; what the next one loses keeps it from helping.
    well = at.ranks == 1 or (bool(at.without) and main_reason(at) is None)
    shown = points[peak + 1] if well and not rising else at
    only = len(points) == 1
    return Limit(at=at, shown=shown, rising=rising, half=half, reason=main_reason(shown), only=only)


def main_reason(point: Point) -> str | None:
    """What a point loses most to; None where that is little."""
    name, share = next(iter(point.lost().items()), ("", 0.0))
    return name if share >= LITTLE else None


def _learned(points: Sequence[Point], peak: int, accuracy: float | None) -> int | None:
    """The last point before accuracy is a point too low, where that comes before the peak of speed."""
    if accuracy is None:
        return None
    worse = [
        place
        for place, point in enumerate(points)
        if point.accuracy is not None and point.accuracy < accuracy - POINT - 1e-9
    ]
    if not worse or worse[0] > peak:
        return None
    return max(worse[0] - 1, 0)
