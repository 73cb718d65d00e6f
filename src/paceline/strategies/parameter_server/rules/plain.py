"""Plain asynchronous SGD: a stale gradient is applied like a fresh one.

    x <- x - eta g(x_then)

Recht et al., Hogwild! (2011); Dean et al., Large scale distributed deep networks (2012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.strategies.parameter_server.rules import Array, Arrival, State


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Apply the update to every gradient without correction."""

    needs_drift: ClassVar[bool] = False

    def start(self, x: Array, workers: int) -> State:
        return {}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        return 1.0

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        np.copyto(out, x)
