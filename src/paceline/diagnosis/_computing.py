"""How long a gradient takes by its samples: a part that is always there, and one for each sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

# Numbers of samples must differ by so much for a line through them to mean anything.
APART = 1.5


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds of a gradient: fixed + each * samples.

    >>> Line(fixed=20e-6, each=10e-6).samples_for(0.001)
    98
    """

    fixed: float
    each: float
    fitted: bool = True
    """Whether several numbers of samples were known; else all is taken to be in proportion to the samples."""

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
    Line(fixed=2e-05, each=1e-05, fitted=True)
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
    return Line(fixed=float(f"{fixed:.6g}"), each=float(f"{each:.6g}"))
