"""DANA: each worker has its own momentum and receives the parameters that all momenta together predict.

    v_w <- gamma v_w + g                       w is the worker that sent g
    x   <- x - eta v_w
    send x - eta gamma (v_1 + … + v_W)

Five passes for a gradient, two for what is sent; W + 1 vectors of memory. With one worker it is Nesterov's momentum.
Hakimi, Barkai, Gabel and Schuster, "Taming momentum in a distributed asynchronous environment", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.strategies.parameter_server.rules import Array, Arrival, State
from paceline.updates import check_below_one


@dataclass(frozen=True, kw_only=True)
class Dana:
    """Per-worker momentum with look-ahead.

    As with any momentum, a suitable learning rate is about 1 - gamma times that of plain SGD.

    >>> x, g, rule = np.zeros(1), np.ones(1), Dana(gamma=0.5)
    >>> state, out = rule.start(x, workers=2), np.empty(1)
    >>> arrival = Arrival(worker=0, tau=0, drift=np.zeros(1), gap=0.0, scale=1.0, eta=0.1)
    >>> rule.correct(g, x, arrival, state)
    1.0
    >>> x -= 0.1 * g
    >>> rule.show(x, out, 0, state)
    >>> x.round(3), out.round(3)
    (array([-0.1]), array([-0.15]))
    """

    needs_drift: ClassVar[bool] = False
    own_momentum: ClassVar[bool] = True

    gamma: float = 0.9
    """The share of a worker's previous momentum in the new one."""

    def __post_init__(self) -> None:
        check_below_one("gamma of dana", self.gamma)

    def start(self, x: Array, workers: int) -> State:
        return {"v": np.zeros((workers, x.size), x.dtype), "sum": np.zeros_like(x), "eta": np.zeros(1)}

    def share_out(self, state: State, workers: int) -> State:
        """Divide the workers' momenta equally among another number of workers; their sum stays the same."""
        if len(state["v"]) == workers:
            return state
        equal = state["sum"] / workers
        return {**state, "v": np.broadcast_to(equal, (workers, equal.size))}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        v, total = state["v"][arrival.worker], state["sum"]
        state["eta"][0] = arrival.eta
        np.multiply(g, float(arrival.scale), g)
        np.subtract(total, v, total)
        np.multiply(v, self.gamma, v)
        np.add(v, g, v)  #                                                  v_w <- gamma v_w + g
        np.add(total, v, total)
        np.multiply(v, float(1 / arrival.scale), g)  #                      x <- x - eta v_w
        return 1.0

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        np.multiply(state["sum"], float(-state["eta"][0] * self.gamma), out)
        np.add(out, x, out)  #                                              x - eta gamma sum_j v_j
