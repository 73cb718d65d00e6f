"""Noise: the times of several runs, their mean, its interval, and when a difference counts.

One rule for searches and reports. Noise multiplies times, so it is taken from their logarithms:

    spread of a row    the standard deviation over its runs, if there are at least three; of one or two runs, that of all
                       rows together (pooled), or that of the two if it is larger
    interval           95 %, by Student's t (of a quotient: Welch)
    a difference       counts if the interval of the quotient of two means does not contain 1

Two runs are close to each other by chance now and then, so their own spread says little. If there is one run of each row,
the noise is unknown, and a difference of less than a tenth does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance
from typing import Any, TypeVar

from paceline.text import count
from paceline.text import seconds as spell_seconds

# What is simpler is as fast if it takes at most so many times as long, and the difference does not count.
AS_FAST = 1.05
# Without any repeated run, rows whose times differ by less than this factor are as fast as each other.
SINGLE = 1.1
# So many runs have a spread of their own that says enough.
ENOUGH = 3
# Student's t for intervals that hold 95 % of the time, by degrees of freedom from 1.
STUDENT = (
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
NORMAL = 1.96
# An interval whose ends differ by more than this factor is not shown.
WIDE = 100.0
WITHIN = "the difference is within the noise"
T = TypeVar("T")


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
    """The seconds that the runs of a row or a candidate took, such as those of training until they reached a target.

    >>> timing = Timing(seconds=(2.0, 2.2, 2.1))
    >>> [round(end, 2) for end in timing.interval]
    [1.86, 2.36]
    """

    seconds: tuple[float, ...]
    missed: int = 0
    """The number of runs that did not reach it."""
    noise: tuple[float, int] | None = None
    """The spread of the logarithms in all rows together, and its degrees of freedom; None: unknown."""

    @property
    def mean(self) -> float:
        """The mean, as reports show it."""
        return fmean(self.seconds)

    @property
    def _centre(self) -> float:
        """The geometric mean, about which the intervals are: noise multiplies times."""
        return math.exp(fmean(map(math.log, self.seconds)))

    @property
    def key(self) -> tuple[bool, float]:
        """A key that is lowest for what is best: first what always reached the target, then what was fastest."""
        return self.missed > 0, self.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """An interval that holds the mean of many runs with 95 % confidence; None for a single run."""
        if len(self.seconds) < 2 or (error := self._error) is None:
            return None
        half = student(error[1]) * error[0]
        return self._centre * math.exp(-half), self._centre * math.exp(half)

    @property
    def _error(self) -> tuple[float, int] | None:
        """The standard error of the mean logarithm, and its degrees of freedom; None: unknown."""
        runs = len(self.seconds)
        if not min(self.seconds) > 0:
            return None
        spread, freedom = self.noise or (0.0, 0)
        if runs >= ENOUGH:
            spread, freedom = stdev(map(math.log, self.seconds)), runs - 1
        elif runs > 1:
            spread, freedom = max(spread, stdev(map(math.log, self.seconds))), max(freedom, runs - 1)
        return (spread / math.sqrt(runs), freedom) if freedom else None

    def times_as_fast(self, other: Timing) -> tuple[float, float] | None:
        """Return how many times as fast as another one it is, as a 95 % interval; None if the noise is unknown.

        >>> low, high = Timing(seconds=(1.0, 1.1, 1.05)).times_as_fast(Timing(seconds=(2.0, 2.1, 2.2))) or (0, 0)
        >>> bool(low > 1)
        True
        """
        ours, theirs = self._error, other._error
        if ours is None or theirs is None:
            return None
        ratio, whole = math.log(other._centre / self._centre), ours[0] ** 2 + theirs[0] ** 2
        if whole == 0:
            return math.exp(ratio), math.exp(ratio)
        freedom = whole**2 / (ours[0] ** 4 / ours[1] + theirs[0] ** 4 / theirs[1])
        if max(len(self.seconds), len(other.seconds)) < ENOUGH:  # both have the spread of all rows together
            freedom = min(ours[1], theirs[1])
        half = student(freedom) * math.sqrt(whole)
        return math.exp(ratio - half), math.exp(ratio + half)

    def __str__(self) -> str:
        """Return the mean, with its interval or, if two runs differ so much that it says nothing, with their times.

        >>> str(Timing(seconds=(0.008, 0.017)))
        '0.0125 s (0.00800 to 0.0170 s in 2 runs)'
        """
        found = f"{spell_seconds(self.mean)} s"
        if self.interval is not None:
            low, high = self.interval
            runs, how = count(len(self.seconds), "run"), " with 95 % confidence, "
            if high > WIDE * low:
                low, high, how = min(self.seconds), max(self.seconds), " in "
            found += f" ({spell_seconds(low)} to {spell_seconds(high)} s{how}{runs})"
        return found


def with_noise(timings: Mapping[T, Timing]) -> dict[T, Timing]:
    """Return the times with the noise that they show together; it remains unknown if each is that of one run.

    >>> with_noise({"a": Timing(seconds=(1.0, 1.0)), "b": Timing(seconds=(3.0,))})["b"].noise
    (0.0, 1)
    """
    several = [one.seconds for one in timings.values() if len(one.seconds) > 1 and min(one.seconds) > 0]
    freedom = sum(len(seconds) - 1 for seconds in several)
    if not freedom:
        return dict(timings)
    squares = sum((len(seconds) - 1) * variance(map(math.log, seconds)) for seconds in several)
    noise = math.sqrt(squares / freedom), freedom
    return {key: replace(one, noise=noise) for key, one in timings.items()}


def differ(first: Timing, second: Timing) -> bool:
    """Return True if one is faster than the other beyond doubt: the interval of their quotient does not contain 1.

    >>> differ(Timing(seconds=(1.0, 1.01)), Timing(seconds=(3.0, 3.01)))
    True
    >>> differ(Timing(seconds=(1.0,)), Timing(seconds=(3.0,)))
    False
    """
    if bool(first.missed) != bool(second.missed) and min(first.missed, second.missed) == 0:
        runs = min(len(first.seconds) + first.missed, len(second.seconds) + second.missed)
        if runs >= 3:
            return True
    ratio = first.times_as_fast(second)
    return ratio is not None and not ratio[0] <= 1 <= ratio[1]


def is_within_noise(first: Timing, second: Timing) -> bool:
    """Return True if the noise is known and explains their difference.

    >>> is_within_noise(Timing(seconds=(1.0, 1.2)), Timing(seconds=(1.1, 1.3)))
    True
    >>> is_within_noise(Timing(seconds=(1.0,)), Timing(seconds=(1.1,)))
    False
    """
    ratio = first.times_as_fast(second)
    return ratio is not None and ratio[0] <= 1 <= ratio[1]


def is_as_fast(first: Timing, second: Timing) -> bool:
    """Return True if the difference does not count: it is within the noise or, if that is unknown, less than a tenth.

    >>> [is_as_fast(Timing(seconds=(1.0,)), Timing(seconds=(other,))) for other in (1.05, 1.2)]
    [True, False]
    """
    if first.times_as_fast(second) is None:
        return max(first.mean, second.mean) < SINGLE * min(first.mean, second.mean)
    return is_within_noise(first, second)


def simplest(found: Mapping[T, Timing], best: T, effort: Callable[[T], Any]) -> T:
    """Return the fastest or, if one that takes less effort is as fast within the noise, that one.

    >>> noisy = with_noise({2: Timing(seconds=(1.0, 1.2)), 1: Timing(seconds=(1.02, 1.21))})
    >>> simplest(noisy, 2, effort=lambda ranks: ranks)
    1
    """
    near = [
        one
        for one, timing in found.items()
        if one != best
        and not differ(found[best], timing)
        and timing.mean <= AS_FAST * found[best].mean
        and timing.missed == 0
        and len(timing.seconds) > 1
    ]
    return min([best, *near], key=lambda one: (effort(one), found[one].mean))
