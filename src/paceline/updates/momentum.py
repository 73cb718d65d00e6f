"""SGD with heavy-ball momentum: the step is a running sum of past gradients, each counting less.

    v <- beta v + (g + lambda x)
    x <- x - eta v

lambda is the weight decay. Polyak, "Some methods of speeding up the convergence of iteration methods", 1964.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.updates import Array, State, check_below_one, check_not_negative, scale_and_decay


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """SGD with heavy-ball momentum.

    >>> x, update = np.zeros(1), Momentum(beta=0.5)
    >>> state = update.start(x)
    >>> for _ in range(2):
    ...     update.apply(x, np.ones(1), 1.0, state)
    >>> x, state["v"]
    (array([-2.5]), array([1.5]))
    """

    beta: float = 0.9
    """The share of the previous velocity in the new one."""
    weight_decay: float = 0.0
    """The fraction of the parameters that is added to the gradient (an L2 penalty)."""

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        check_below_one(f"beta of {name}", self.beta)
        check_not_negative(f"weight-decay of {name}", self.weight_decay)

    def default_rate(self, rate: float) -> float:
        """Return the rate to use where `rate` suits SGD: each gradient counts 1 / (1 - beta) times in all."""
        return rate * (1 - self.beta)

    def start(self, x: Array) -> State:
        return {"v": np.zeros_like(x)}

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        v = state["v"]
        scale_and_decay(g, float(scale), x, self.weight_decay)  #           g <- g + lambda x
        np.multiply(v, self.beta, v)
        np.add(v, g, v)  #                                                  v <- beta v + g
        np.multiply(v, float(eta), g)
        np.subtract(x, g, x)  #                                             x <- x - eta v
