"""Gap-aware SGD: each coordinate's gradient is divided by its gap, the drift in units of typical steps.

    s <- rho s + (1 - rho) g^2                 running mean square, corrected for its start at 0
    C <- eta sqrt(s)                           a typical step
    G <- 1 + |x - x_then| / C                  the gap
    x <- x - eta g / G

Eight passes over the piece. Barkai, Hakimi and Schuster, "Gap-aware mitigation of gradient staleness", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.strategies.parameter_server.rules import Array, Arrival, Rule, State
from paceline.updates import check_below_one, check_positive


@dataclass(frozen=True, kw_only=True)
class GapAware(Rule):
    """Divide each step by the element-wise gap, with C from a running mean square.

    >>> x, g, rule = np.ones(2), np.array([3.0, 3.0]), GapAware()
    >>> arrival = Arrival(worker=0, tau=4, drift=np.array([0.0, 0.6]), gap=0.4, scale=1.0, eta=0.1)
    >>> rule.correct(g, x, arrival, rule.start(x, workers=5))
    1.0
    >>> g.round(6)                                     # the second has moved by two steps of 0.1 * 3
    array([3., 1.])
    """

    decay: float = 0.99
    """The share of the previous mean of the squared gradients in the new one."""
    epsilon: float = 1e-12
    """Added to both sides of a division, so that nothing is divided by zero."""

    def __post_init__(self) -> None:
        check_below_one("decay of gap-aware", self.decay)
        check_positive("epsilon of gap-aware", self.epsilon)

    def start(self, x: Array, workers: int) -> State:
        return {"s": np.zeros_like(x), "t": np.zeros(1, np.int64), "_work": np.empty_like(x)}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        s, work, drift = state["s"], state["_work"], arrival.drift
        state["t"] += 1
        part = (1 - self.decay) * arrival.scale**2
        np.multiply(g, g, work)
        np.multiply(work, float(part), work)
        np.multiply(s, self.decay, s)
        np.add(s, work, s)  #                                               s <- rho s + (1 - rho) g^2
        np.sqrt(s, work)
        step = arrival.eta / math.sqrt(1 - self.decay ** int(state["t"][0]))
        np.multiply(work, float(step), work)  #                             C <- eta sqrt(s)
        np.abs(drift, drift)
        np.add(drift, work, drift)
        np.add(drift, self.epsilon, drift)
        np.add(work, self.epsilon, work)
        np.divide(work, drift, work)  #                                     1 / G = C / (C + |x - x_then|)
        np.multiply(g, work, g)
        return 1.0
