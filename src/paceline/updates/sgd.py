"""Stochastic gradient descent: a step against the mean gradient.

    x <- x - eta (g + lambda x)

lambda is the weight decay. Robbins and Monro, "A stochastic approximation method", 1951.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.updates import Array, State, check_not_negative


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Plain stochastic gradient descent.

    >>> x, update = np.array([1.0, 2.0]), Sgd()
    >>> update.apply(x, np.array([4.0, 8.0]), 0.5, update.start(x), scale=0.25)
    >>> x
    array([0.5, 1. ])
    """

    keeps_nothing: ClassVar[bool] = True
    weight_decay: float = 0.0
    """The fraction by which the parameters shrink in a step, at a learning rate of 1 (decoupled weight decay)."""

    def __post_init__(self) -> None:
        check_not_negative("weight-decay of sgd", self.weight_decay)

    def start(self, x: Array) -> State:
        return {}

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        if self.weight_decay:
            np.multiply(x, float(1 - eta * self.weight_decay), x)  #        x <- x - eta lambda x
        np.multiply(g, float(eta * scale), g)
        np.subtract(x, g, x)  #                                             x <- x - eta g
