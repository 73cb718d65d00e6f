"""How long a gradient takes by its samples: a part that is always there, and one for each sample.

The last batch of an epoch is smaller and takes far longer than the others on a real machine: caches and memory are laid out
for another size. So of the sizes in a log those count that come often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from paceline.sim._tables import Curves

# Numbers of samples must differ by so much for a line through them to mean anything.
APART = 1.5
# A size counts that has so many steps, and this part of those of the size that has most.
STEPS = 10
OFTEN = 0.1
# What a line through given costs is fitted to: so many times the samples of a step.
TIMES = (1, 4, 16, 64)
# From what a line is known: gradients that were timed, costs that a simulation was given, or one size alone.
Basis = Literal["timed", "given", "proportion"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds of a gradient: fixed + each * samples.

    >>> Line(fixed=20e-6, each=10e-6).samples_for(0.001)
    98
    """

    fixed: float
    each: float
    basis: Basis = "timed"
    """Where one number of samples was known, all is taken to be in proportion to them: it grows no faster than that."""
    rise: float = field(default=0.0, repr=False)
    """Of what it was fitted to: the part of the time of most samples by which fewest take less."""

    def seconds(self, samples: float) -> float:
        """Of a gradient of so many samples."""
        return self.fixed + self.each * samples

    def samples_for(self, seconds: float) -> int:
        """How many samples it takes to compute that long; at least one."""
        return max(1, int(np.ceil(round((seconds - self.fixed) / self.each, 6)))) if self.each > 0 else 1

    def through(self, samples: float, seconds: float) -> Line:
        """The same line, raised or lowered in proportion until it takes that long for so many samples."""
        here = self.seconds(samples)
        if here <= 0 or seconds <= 0:
            return self
        return replace(self, fixed=self.fixed * seconds / here, each=self.each * seconds / here)


def line_of(known: Iterable[Mapping[int, float]]) -> Line | None:
    """The line nearest to gradients of known length, every number of samples counting alike.

    >>> line_of([{64: 660e-6}, {16: 180e-6, 7: 90e-6}])
    Line(fixed=2e-05, each=1e-05, basis='timed')
    >>> line_of([{64: 660e-6}, {60: 620e-6}]) is None
    True
    """
    from paceline.bench._fit import fit_line

    points: dict[int, list[float]] = {}
    for table in known:
        for samples, seconds in table.items():
            if seconds > 0:
                points.setdefault(samples, []).append(seconds)
    if not points or max(points) < APART * min(points):
        return None
    sizes = tuple(sorted(points))
    fixed, each = fit_line(sizes, np.array([np.mean(points[size]) for size in sizes]))
    line = Line(fixed=float(f"{fixed:.6g}"), each=float(f"{each:.6g}"))
    longest = line.seconds(sizes[-1])
    return replace(line, rise=1 - line.seconds(sizes[0]) / longest if longest > 0 else 0.0)


def often(seconds: Mapping[int, float], steps: Mapping[int, int]) -> dict[int, float]:
    """Of the seconds of a gradient by its samples those that can be relied on: of sizes that come often.

    >>> often({29: 451e-6, 32: 71e-6}, {29: 3, 32: 132})
    {32: 7.1e-05}
    >>> often({10: 88e-6, 11: 90e-6}, {10: 138, 11: 264})
    {10: 8.8e-05, 11: 9e-05}
    """
    if not seconds:
        return {}
    most = max(seconds, key=lambda size: steps.get(size, 0))
    enough = max(STEPS, OFTEN * steps.get(most, 0))
    kept = {size: took for size, took in seconds.items() if size == most or steps.get(size, 0) >= enough}
    return {
        size: took
        for size, took in kept.items()
        if size >= most or took <= kept[most]  # smaller, rarer and slower: no cost of its samples
    }


def given_line(costs: Curves, samples: float, ranks: int) -> Line | None:
    """The line through the costs of a gradient that a simulation was given, from a step's samples on."""
    sizes = [max(1, round(samples)) * factor for factor in TIMES]
    line = line_of([{size: costs.at(size, ranks) for size in sizes}])
    return None if line is None else replace(line, basis="given")
