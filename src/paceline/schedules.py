"""Schedules: how the learning rate changes with the step; and how it grows with the number of ranks.

A name is a dataclass in lower case: `Cosine` is `cosine`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from paceline.errors import UsageError, unknown

ScalingRule = Literal["none", "linear", "square-root"]


@runtime_checkable
class Schedule(Protocol):
    """A factor on the base learning rate. Its fields are its hyper-parameters.

    >>> [round(Cosine().factor(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of step number `step`, counted from 0, in a run of `steps` steps."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate at every step.

    >>> Constant().factor(99, 100)
    1.0
    """

    def factor(self, step: int, steps: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Rises to the full rate over `warmup` steps, then falls along half a cosine towards `final` times the full rate.

        factor(t) = (t + 1) / warmup                                             while t < warmup
                    final + (1 - final) (1 + cos(pi (t - warmup) / (T - warmup))) / 2    after it

    T is the number of steps of the run. Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm
    restarts", 2017, without the restarts.

    >>> [round(Cosine(warmup=2, final=0.2).factor(step, 6), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.883, 0.6, 0.317]
    """

    warmup: int = 0
    """The number of steps over which the rate rises."""
    final: float = 0.0
    """The rate at the end of the run, as a fraction of the full rate."""

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


@dataclass(frozen=True, kw_only=True)
class Step:
    """Multiplies the rate by `times` after every `every` steps.

        factor(t) = times^floor(t / every)

    >>> [Step(every=2, times=0.5).factor(step, 6) for step in range(6)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    every: int
    """The number of steps between two changes of the rate."""
    times: float = 0.1
    """The factor of each change."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every of step must be at least 1; got {self.every}")
        if not 0 < self.times < math.inf:
            raise UsageError(f"times of step must be above 0; got {self.times}")

    def factor(self, step: int, steps: int) -> float:
        return float(self.times ** (step // self.every))


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Rises to the full rate over the first `steps` steps.

        factor(t) = min(1, (t + 1) / steps)

    Large batches may diverge without it. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017.

    >>> [Warmup(steps=4).factor(step, 100) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    steps: int = 100
    """The number of steps over which the rate rises."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"steps of warmup must be at least 1; got {self.steps}")

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, (step + 1) / self.steps)


def scaled_rate(rate: float, rule: ScalingRule, ranks: int) -> float:
    """Return the learning rate for a global batch that is `ranks` times as large.

    `linear` keeps the distance covered in an epoch (Goyal et al., "Accurate, large minibatch SGD", 2017);
    `square-root` keeps the spread of the steps, and suits adam and rms (Krizhevsky, "One weird trick for
    parallelizing convolutional neural networks", 2014).

    >>> [scaled_rate(0.1, rule, 4) for rule in ("none", "linear", "square-root")]
    [0.1, 0.4, 0.2]
    """
    if not 0 < rate < math.inf:
        raise UsageError(f"the learning rate must be above 0; got {rate}")
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {ranks}")
    if rule == "none":
        return rate
    if rule == "linear":
        return rate * ranks
    if rule == "square-root":
        return rate * math.sqrt(ranks)
    raise unknown("scaling rule of the learning rate", rule, get_args(ScalingRule))
