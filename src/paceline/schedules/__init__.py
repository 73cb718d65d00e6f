"""Schedules: how the learning rate changes with the step, one file each; and how it grows with the number of ranks."""

from __future__ import annotations

import math
from typing import Literal, Protocol, get_args, runtime_checkable

from paceline.errors import UsageError, unknown

ScalingRule = Literal["none", "linear", "square-root"]


@runtime_checkable
class Schedule(Protocol):
    """A factor on the base learning rate. Its fields are its hyper-parameters.

    >>> from paceline.schedules.cosine import Cosine
    >>> [round(Cosine().factor(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of step number `step`, counted from 0, in a run of `steps` steps."""
        ...


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
