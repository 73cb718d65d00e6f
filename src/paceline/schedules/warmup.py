"""A learning rate that rises in equal steps and then stays; large batches may diverge without it.

    factor(t) = min(1, (t + 1) / steps)

Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Rises to the full rate over the first `steps` steps.

    >>> [Warmup(steps=4).factor(step, 100) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"steps of warmup must be at least 1; got {self.steps}")

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, (step + 1) / self.steps)
