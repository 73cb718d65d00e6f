"""SGD with Nesterov's momentum: the gradient counts as if taken where the momentum is about to lead.

    v <- beta v + (g + lambda x)
    x <- x - eta (g + lambda x + beta v)

lambda is the weight decay. Nesterov, "A method of solving a convex programming problem with convergence rate
O(1/k^2)", 1983, in the form of Sutskever et al., "On the importance of initialization and momentum", 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.updates import Array, State, scale_and_decay
from paceline.updates.momentum import Momentum


@dataclass(frozen=True, kw_only=True)
class Nesterov(Momentum):
    """SGD with Nesterov's momentum; its options, its state and its default rate are those of momentum.

    >>> x, update = np.zeros(1), Nesterov(beta=0.5)
    >>> update.apply(x, np.ones(1), 1.0, update.start(x))
    >>> x
    array([-1.5])
    """

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        v = state["v"]
        scale_and_decay(g, float(scale), x, self.weight_decay)  #           g <- g + lambda x
        np.multiply(v, self.beta, v)
        np.add(v, g, v)  #                                                  v <- beta v + g
        np.multiply(g, float(eta), g)
        np.subtract(x, g, x)  #                                             x <- x - eta g
        np.multiply(v, float(eta * self.beta), g)
        np.subtract(x, g, x)  #                                             x <- x - eta beta v
