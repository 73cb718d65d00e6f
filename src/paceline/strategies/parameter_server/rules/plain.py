"""Plain asynchronous SGD: a stale gradient is applied like a fresh one.

    x <- x - eta g(x_then)

Recht et al., Hogwild! (2011); Dean et al., Large scale distributed deep networks (2012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategies.parameter_server.rules import Array, Arrival, Rule, State


@dataclass(frozen=True, kw_only=True)
class Plain(Rule):
    """Apply the update to every gradient without correction."""

    needs_drift: ClassVar[bool] = False

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        return 1.0
