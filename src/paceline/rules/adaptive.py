"""RMS-scaled with a step that falls with staleness: the default.

s <- rho s + (1 - rho) g^2                 running mean square, corrected for its start at 0
x <- x - step / (1 + tau / patience) g / sqrt(s)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.rules import Array, Arrival, State
from paceline.updates._checks import below_one, positive


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Needs no tuning from 1 worker to 31."""

    step: float = 0.006
    patience: float = 6.0
    decay: float = 0.99
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        positive("step of adaptive", self.step)
        positive("patience of adaptive", self.patience)
        below_one("decay of adaptive", self.decay)
        positive("epsilon of adaptive", self.epsilon)

    def start(self, x: Array, workers: int) -> State:
        return {"s": np.zeros_like(x), "t": np.zeros(1, np.int64), "_work": np.empty_like(x)}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        s, work, scale = state["s"], state["_work"], float(arrival.scale)
        state["t"] += 1
        np.multiply(g, g, work)
        np.multiply(work, (1 - self.decay) * scale**2, work)
        np.multiply(s, self.decay, s)
        np.add(s, work, s)  #                                               s <- rho s + (1 - rho) g^2
        np.sqrt(s, work)
        np.add(work, self.epsilon, work)
        np.divide(g, work, g)
        unbiased = math.sqrt(1 - self.decay ** int(state["t"][0]))
        step = self.step * arrival.shape * unbiased / (1 + arrival.tau / self.patience)
        return step / arrival.eta if arrival.eta else 0.0

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        np.copyto(out, x)
