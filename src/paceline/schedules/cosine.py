"""A learning rate that falls along half a cosine to the end of the run, after an optional warm-up.

    factor(t) = (t + 1) / warmup                                             while t < warmup
                final + (1 - final) (1 + cos(pi (t - warmup) / (T - warmup))) / 2    after it

T is the number of steps of the run. Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm
restarts", 2017, without the restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Rises to the full rate over `warmup` steps, then falls along half a cosine towards `final` times the full rate.

    >>> [round(Cosine(warmup=2, final=0.2).factor(step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.883, 0.6, 0.317]
    """

    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UsageError(f"warmup of cosine must be at least 0; got {self.warmup}")
        if not 0 <= self.final <= 1:
            raise UsageError(f"final of cosine must be from 0 to 1; got {self.final}")

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
