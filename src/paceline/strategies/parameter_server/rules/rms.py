"""RMS-scaled: each coordinate's gradient is divided by the root mean square of earlier ones; staleness is ignored.

    s <- rho s + (1 - rho) g^2
    x <- x - step g / (sqrt(s) + epsilon)

Eight passes over the piece. Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012; as a parameter server's rule, Dean et
al., "Large scale distributed deep networks", 2012 (there with Adagrad's sum instead of the mean).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.strategies.parameter_server.rules import Array, Arrival, Rule, State
from paceline.updates import check_below_one, check_positive


@dataclass(frozen=True, kw_only=True)
class Rms(Rule):
    """RMSprop at the master, with its own step size; of the learning rate only the schedule matters.

    >>> x, g, rule = np.zeros(2), np.array([100.0, 0.01]), Rms(step=0.5, decay=0.75)
    >>> arrival = Arrival(worker=0, tau=4, drift=np.zeros(2), gap=0.0, scale=1.0, eta=0.1)
    >>> factor = rule.correct(g, x, arrival, rule.start(x, workers=5))
    >>> (arrival.eta * factor * g).round(3)
    array([1., 1.])
    """

    needs_drift: ClassVar[bool] = False
    changes_fresh: ClassVar[bool] = True

    step: float = 0.002
    """The step of a coordinate for a gradient of typical size."""
    decay: float = 0.99
    """The share of the previous mean of the squared gradients in the new one."""
    epsilon: float = 1e-8
    """Added to the root of that mean, so that nothing is divided by zero."""

    def __post_init__(self) -> None:
        check_positive("step of rms", self.step)
        check_below_one("decay of rms", self.decay)
        check_positive("epsilon of rms", self.epsilon)

    def start(self, x: Array, workers: int) -> State:
        return {"s": np.zeros_like(x), "_work": np.empty_like(x)}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        s, work, scale = state["s"], state["_work"], float(arrival.scale)
        np.multiply(g, g, work)
        np.multiply(work, (1 - self.decay) * scale**2, work)
        np.multiply(s, self.decay, s)
        np.add(s, work, s)  #                                               s <- rho s + (1 - rho) g^2
        np.sqrt(s, work)
        np.add(work, self.epsilon, work)
        np.divide(g, work, g)  #                                            g / (sqrt(s) + epsilon)
        return float(self.step * arrival.shape / arrival.eta) if arrival.eta else 0.0
