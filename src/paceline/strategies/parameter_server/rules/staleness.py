"""Staleness-aware SGD: a gradient that is tau updates old takes a step of eta / tau.

    x <- x - eta / max(1, tau) g(x_then)

Costs nothing. Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed deep learning", 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategies.parameter_server.rules import Array, Arrival, Rule, State


@dataclass(frozen=True, kw_only=True)
class Staleness(Rule):
    """Divide the learning rate by the staleness.

    >>> import numpy as np
    >>> x, g, rule = np.ones(3), np.ones(3), Staleness()
    >>> arrival = Arrival(worker=0, tau=4, drift=np.zeros(3), gap=0.0, scale=1.0, eta=0.1)
    >>> rule.correct(g, x, arrival, rule.start(x, workers=5))
    0.25
    """

    needs_drift: ClassVar[bool] = False

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        return 1.0 / max(1, arrival.tau)  #                                 eta / tau
