"""Adam: momentum and RMS scaling, both corrected for their start at 0, with decoupled weight decay (AdamW).

    t <- t + 1
    m <- beta1 m + (1 - beta1) g              x <- x - eta lambda x
    v <- beta2 v + (1 - beta2) g^2            x <- x - eta m' / (sqrt(v') + epsilon)

with m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t). Kingma and Ba, "Adam: a method for stochastic
optimization", 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.updates import Array, State, check_below_one, check_not_negative, check_positive


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam, or AdamW when `weight_decay` is above 0.

    >>> x, update = np.zeros(2), Adam()
    >>> update.apply(x, np.array([100.0, 0.01]), 0.5, update.start(x))
    >>> x.round(3)
    array([-0.5, -0.5])
    """

    beta1: float = 0.9
    """The share of the previous mean of the gradients in the new one."""
    beta2: float = 0.999
    """The share of the previous mean of the squared gradients in the new one."""
    epsilon: float = 1e-8
    """Added to the root of that mean, so that nothing is divided by zero."""
    weight_decay: float = 0.0
    """The fraction by which the parameters shrink in a step, at a learning rate of 1 (decoupled weight decay)."""

    def __post_init__(self) -> None:
        check_below_one("beta1 of adam", self.beta1)
        check_below_one("beta2 of adam", self.beta2)
        check_positive("epsilon of adam", self.epsilon)
        check_not_negative("weight-decay of adam", self.weight_decay)

    def default_rate(self, rate: float) -> float:
        """Return the rate to use where `rate` suits SGD: the size of a step hardly depends on the gradient's."""
        return 0.001

    def start(self, x: Array) -> State:
        return {"m": np.zeros_like(x), "v": np.zeros_like(x), "t": np.zeros(1, np.int64)}

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        m, v = state["m"], state["v"]
        state["t"] += 1
        t = int(state["t"][0])
        if self.weight_decay:
            np.multiply(x, float(1 - eta * self.weight_decay), x)  #        x <- x - eta lambda x
        part = 1 - self.beta1
        np.multiply(g, float(scale * part), g)
        np.multiply(m, self.beta1, m)
        np.add(m, g, m)  #                                                  m <- beta1 m + (1 - beta1) g
        np.multiply(g, g, g)
        np.multiply(g, (1 - self.beta2) / (part * part), g)
        np.multiply(v, self.beta2, v)
        np.add(v, g, v)  #                                                  v <- beta2 v + (1 - beta2) g^2
        root = math.sqrt(1 - self.beta2**t)
        np.sqrt(v, g)
        np.add(g, self.epsilon * root, g)
        np.divide(m, g, g)
        np.multiply(g, float(eta * root / (1 - self.beta1**t)), g)
        np.subtract(x, g, x)  #                                             x <- x - eta m' / (sqrt v' + eps)
