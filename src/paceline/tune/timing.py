"""Times to a target over several runs: their mean, its interval, and whether they differ by more than the noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from paceline.text import count
from paceline.text import seconds as spell_seconds

# Student's t for intervals that hold 95 % of the time, by degrees of freedom from 1.
STUDENT = (
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
NORMAL = 1.96


def student(freedom: float) -> float:
    """Return the factor on the standard error for a 95 % interval.

    >>> student(4), student(1000), round(student(1.5), 1)
    (2.776, 1.96, 7.1)
    """
    if freedom >= len(STUDENT):
        return NORMAL if freedom > 2 * len(STUDENT) else STUDENT[-1]
    at = max(1, math.floor(freedom))
    low, high = STUDENT[at - 1 : at + 1]
    return low + (high - low) * (1 / at - 1 / max(1.0, freedom)) / (1 / at - 1 / (at + 1))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The seconds of training after which the runs of a candidate reached the target.

    >>> timing = Timing(seconds=(2.0, 2.2, 2.1))
    >>> [round(end, 2) for end in timing.interval]
    [1.86, 2.36]
    """

    seconds: tuple[float, ...]
    missed: int = 0
    """The number of runs that did not reach it."""
    noise: tuple[float, int] | None = None
    """The spread of the logarithms between seeds, as other candidates showed it, and its degrees of freedom: for a
    candidate that was run once."""

    @property
    def mean(self) -> float:
        """The geometric mean."""
        return math.exp(fmean(map(math.log, self.seconds)))

    @property
    def key(self) -> tuple[bool, float]:
        """A key that is lowest for what is best: first what always reached the target, then what was fastest."""
        return self.missed > 0, self.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """An interval that holds the mean of many runs with 95 % confidence; None for a single run."""
        if len(self.seconds) < 2:
            return None
        error, freedom = self._error
        half = student(freedom) * error
        return self.mean * math.exp(-half), self.mean * math.exp(half)

    @property
    def _error(self) -> tuple[float, int]:
        """The standard error of the mean logarithm, and its degrees of freedom."""
        if len(self.seconds) < 2:
            assert self.noise is not None
            return self.noise
        return stdev(map(math.log, self.seconds)) / math.sqrt(len(self.seconds)), len(self.seconds) - 1

    def times_as_fast(self, other: Timing) -> tuple[float, float] | None:
        """Return how many times as fast as another one it is, as a 95 % interval (Welch); None if the noise is unknown.

        >>> low, high = Timing(seconds=(1.0, 1.1, 1.05)).times_as_fast(Timing(seconds=(2.0, 2.1, 2.2))) or (0, 0)
        >>> bool(low > 1)
        True
        """
        if any(len(one.seconds) < 2 and one.noise is None for one in (self, other)):
            return None
        (ours, own), (theirs, others) = self._error, other._error
        ratio, whole = math.log(other.mean / self.mean), ours**2 + theirs**2
        if whole == 0:
            return math.exp(ratio), math.exp(ratio)
        half = student(whole**2 / (ours**4 / own + theirs**4 / others)) * math.sqrt(whole)
        return math.exp(ratio - half), math.exp(ratio + half)

    def __str__(self) -> str:
        found = f"{spell_seconds(self.mean)} s"
        if self.interval is not None:
            low, high = map(spell_seconds, self.interval)
            found += f" ({low} to {high} s with 95 % confidence, {count(len(self.seconds), 'run')})"
        return found


def pooled_noise(timings: Iterable[Timing]) -> tuple[float, int] | None:
    """Return the spread of the logarithms within candidates that were run several times, and its degrees of freedom.

    >>> pooled_noise([Timing(seconds=(1.0, 1.0)), Timing(seconds=(3.0,))])
    (0.0, 1)
    """
    several = [timing.seconds for timing in timings if len(timing.seconds) > 1]
    freedom = sum(len(seconds) - 1 for seconds in several)
    if not freedom:
        return None
    squares = sum((len(seconds) - 1) * variance(map(math.log, seconds)) for seconds in several)
    return math.sqrt(squares / freedom), freedom


def parted(first: Timing, second: Timing) -> bool:
    """Return True if one is faster than the other beyond doubt: their ratio's interval does not contain 1.

    >>> parted(Timing(seconds=(1.0, 1.01)), Timing(seconds=(3.0, 3.01)))
    True
    >>> parted(Timing(seconds=(1.0,)), Timing(seconds=(3.0,)))
    False
    """
    if bool(first.missed) != bool(second.missed) and min(first.missed, second.missed) == 0:
        runs = min(len(first.seconds) + first.missed, len(second.seconds) + second.missed)
        if runs >= 3:
            return True
    ratio = first.times_as_fast(second)
    return ratio is not None and not ratio[0] <= 1 <= ratio[1]
