"""A learning rate that falls at regular intervals.

factor(t) = times^floor(t / every)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Step:
    """Multiplies the rate by `times` after every `every` steps.

    >>> [Step(every=2, times=0.5).factor(step, 6) for step in range(6)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    every: int
    times: float = 0.1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every of step must be at least 1; got {self.every}")
        if not 0 < self.times < math.inf:
            raise UsageError(f"times of step must be above 0; got {self.times}")

    def factor(self, step: int, steps: int) -> float:
        return float(self.times ** (step // self.every))
