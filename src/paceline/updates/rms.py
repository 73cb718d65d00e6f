"""RMS-scaled SGD (RMSprop): each coordinate's step is divided by the root mean square of its recent gradients.

    s <- rho s + (1 - rho) g^2
    x <- x - eta g / (sqrt(s) + epsilon)

rho is the decay. Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.updates import Array, State, check_below_one, check_positive


@dataclass(frozen=True, kw_only=True)
class Rms:
    """RMSprop: the size of a step does not depend on that of the gradient, which limits the effect of stale gradients.

    >>> x, update = np.zeros(2), Rms(decay=0.75)
    >>> update.apply(x, np.array([100.0, 0.01]), 1.0, update.start(x))
    >>> x.round(3)
    array([-2., -2.])
    """

    decay: float = 0.99
    """The share of the previous mean of the squared gradients in the new one."""
    epsilon: float = 1e-8
    """Added to the root of that mean, so that nothing is divided by zero."""

    def __post_init__(self) -> None:
        check_below_one("decay of rms", self.decay)
        check_positive("epsilon of rms", self.epsilon)

    def default_rate(self, rate: float) -> float:
        """Return the rate to use where `rate` suits SGD: the size of a step hardly depends on the gradient's."""
        return 0.001

    def start(self, x: Array) -> State:
        return {"s": np.zeros_like(x), "_work": np.empty_like(x)}

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        s, work = state["s"], state["_work"]
        np.multiply(g, float(scale), g)
        np.multiply(s, self.decay, s)
        np.multiply(g, g, work)
        np.multiply(work, 1 - self.decay, work)
        np.add(s, work, s)  #                                               s <- rho s + (1 - rho) g^2
        np.sqrt(s, work)
        np.add(work, self.epsilon, work)
        np.divide(g, work, g)
        np.multiply(g, float(eta), g)
        np.subtract(x, g, x)  #                                             x <- x - eta g / (sqrt s + eps)
