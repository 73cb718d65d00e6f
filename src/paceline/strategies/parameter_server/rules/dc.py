"""Delay-compensated SGD: the gradient at x is estimated from the one at x_then, with its square as the Hessian.

    s <- m s + (1 - m) g^2                     running mean square (variant=adaptive)
    lambda <- lambda_0 / sqrt(s + epsilon)     or lambda_0 (variant=constant)
    x <- x - eta (g + lambda g^2 (x - x_then))

Nine passes over the piece (constant: four). Zheng et al., "Asynchronous stochastic gradient descent with delay
compensation", 2017: DC-ASGD-a and DC-ASGD-c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.errors import unknown
from paceline.strategies.parameter_server.rules import Array, Arrival, Rule, State
from paceline.updates import check_below_one, check_not_negative, check_positive

# lambda_0 of the paper's experiments on CIFAR-10.
STRENGTH = {"adaptive": 2.0, "constant": 0.04}


@dataclass(frozen=True, kw_only=True)
class Dc(Rule):
    """Delay compensation; `strength` is lambda_0: 2 for the adaptive variant, 0.04 for the constant one.

    >>> x, g, rule = np.ones(2), np.array([4.0, 4.0]), Dc(variant="constant", strength=0.5)
    >>> arrival = Arrival(worker=0, tau=4, drift=np.array([0.0, 0.5]), gap=0.4, scale=0.5, eta=0.1)
    >>> rule.correct(g, x, arrival, rule.start(x, workers=5))
    1.0
    >>> g                                              # mean gradient 2: 2 + 0.5 * 2^2 * 0.5 = 3
    array([4., 6.])
    """

    variant: Literal["adaptive", "constant"] = "adaptive"
    """adaptive: the correction is divided by the gradient's typical size; constant: it is not."""
    strength: float | None = None
    """The strength of the correction, lambda_0; by default 2 if adaptive, 0.04 if constant."""
    decay: float = 0.95
    """The share of the previous mean of the squared gradients in the new one."""
    epsilon: float = 1e-7
    """Added to that mean, so that nothing is divided by zero."""

    def __post_init__(self) -> None:
        if self.variant not in STRENGTH:
            raise unknown("variant of dc", self.variant, list(STRENGTH))
        if self.strength is not None:
            check_not_negative("strength of dc", self.strength)
        check_below_one("decay of dc", self.decay)
        check_positive("epsilon of dc", self.epsilon)

    def start(self, x: Array, workers: int) -> State:
        if self.variant == "constant":
            return {}
        return {"s": np.zeros_like(x), "_work": np.empty_like(x)}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        drift, scale = arrival.drift, float(arrival.scale)
        strength = STRENGTH[self.variant] if self.strength is None else self.strength
        np.multiply(drift, g, drift)
        np.multiply(drift, float(strength * scale), drift)
        if self.variant == "adaptive":
            s, work = state["s"], state["_work"]
            np.multiply(g, g, work)
            np.multiply(work, float((1 - self.decay) * scale**2), work)
            np.multiply(s, self.decay, s)
            np.add(s, work, s)  #                                           s <- m s + (1 - m) g^2
            np.add(s, self.epsilon, work)
            np.sqrt(work, work)
            np.divide(drift, work, drift)  #                                lambda_0 / sqrt(s + epsilon)
        np.multiply(drift, g, drift)
        np.add(g, drift, g)  #                                              g <- g + lambda g^2 (x - x_then)
        return 1.0
