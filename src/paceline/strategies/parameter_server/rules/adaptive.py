"""The default: RMS-scaled steps that shorten with staleness, taken by a fast copy z; x is a running average of z.

    s <- rho s + (1 - rho) g^2                         running mean square, corrected for its start at 0
    f <- step eta^(1/4) / (1 + tau / patience)^(3/2)   tau: the recent mean staleness
    z <- z - f g / sqrt(s)                             the fast copy
    x <- x + (1 + r) / (k + r) (z - x)                 its k-th average; every fourth update is enough
    send y = (1 - b) z + b x                           workers compute between the two

x, s and y are stored, because z = (y - b x) / (1 - b) is never needed by itself: 7 passes over the piece for a gradient,
5 more every fourth time, and one copy to send. The scaling is RMSprop's; a learning rate that falls with staleness is
Zhang et al.'s (2015); the average and the interpolation follow Defazio et al., "The road less scheduled", 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.strategies.parameter_server.rules import Array, Arrival, State
from paceline.updates import check_below_one, check_not_negative, check_positive

# Mean squares are kept above this: a coordinate without gradients must not decay into denormal numbers, which are slow.
FLOOR = 1e-24
FLOOR_EVERY = 64
# The average is taken at each of the first updates, and then at every fourth.
BEGINNING, AVERAGED_EVERY = 16, 4


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Keeps most of its accuracy from 1 to about 30 workers with the same settings.

    It makes the whole step, so the run's update has no part in it. Of the learning rate only the fourth root counts (16
    times the rate doubles the step), and a schedule's factor in full.

    >>> rule = Adaptive(step=0.8, patience=4 / 3)
    >>> x, g = np.zeros(2), np.array([300.0, -0.03])
    >>> state = rule.start(x, workers=5)
    >>> arrival = Arrival(worker=0, tau=4, drift=np.zeros(2), gap=0.0, scale=0.25, eta=1.0)
    >>> rule.correct(g, x, arrival, state)
    0.0
    >>> x.round(3)                                                   # 0.8 / (1 + 3)^(3/2) in each
    array([-0.1,  0.1])
    """

    needs_drift: ClassVar[bool] = False
    whole_step: ClassVar[bool] = True

    step: float = 0.009
    """The step of a coordinate for a gradient of typical size, at a learning rate of 1 without staleness."""
    patience: float = 12.0
    """The staleness at which steps are 2^(3/2) times shorter."""
    decay: float = 0.98
    """rho: the share of the previous mean of the squared gradients in the new one."""
    recency: float = 6.0
    """r: the k-th point counts as k^r in the average; 0: all points count the same."""
    mix: float = 0.6
    """b: the point between the fast copy (0) and the average (1) at which gradients are computed."""

    def __post_init__(self) -> None:
        check_positive("step of adaptive", self.step)
        check_positive("patience of adaptive", self.patience)
        check_below_one("decay of adaptive", self.decay)
        check_not_negative("recency of adaptive", self.recency)
        check_below_one("mix of adaptive", self.mix)

    def start(self, x: Array, workers: int) -> State:
        return {
            "s": np.full_like(x, FLOOR),
            "y": x.copy(),
            "t": np.zeros(1, np.int64),
            "k": np.zeros(1, np.int64),
            "tau": np.array([workers - 1.0]),
            "_work": np.empty_like(x),
        }

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        if arrival.eta == 0:
            return 0.0
        s, y, work = state["s"], state["y"], state["_work"]
        rho, r, b = self.decay, self.recency, self.mix
        t, tau = int(state["t"][0]) + 1, float(state["tau"][0])
        tau += (arrival.tau - tau) / (4 + 4 * tau)  #                       mean of about the last four rounds
        state["t"][0], state["tau"][0] = t, tau
        damping = (1 + tau / self.patience) ** 1.5
        f = self.step * (arrival.eta / arrival.shape) ** 0.25 * arrival.shape / damping
        np.multiply(g, g, work)
        np.multiply(s, rho, s)
        np.add(s, work, s)  #                                               s <- rho s + g^2; (1 - rho) below
        if t % FLOOR_EVERY == 0:
            np.maximum(s, FLOOR, out=s)
        np.sqrt(s, work)
        np.divide(g, work, g)
        np.multiply(g, float((1 - b) * f * math.sqrt((1 - rho**t) / (1 - rho))), g)
        np.subtract(y, g, y)  #                                             z <- z - f g / sqrt(s), y's share
        if t > BEGINNING and t % AVERAGED_EVERY:
            return 0.0
        k = state["k"][0] = int(state["k"][0]) + 1
        np.subtract(y, x, g)  #                                             y - x = (1 - b) (z - x)
        np.multiply(g, float((1 + r) / (k + r) / (1 - b)), g)
        np.add(x, g, x)  #                                                  x <- x + (1 + r) / (k + r) (z - x)
        np.multiply(g, b, g)
        np.add(y, g, y)  #                                                  y moves with x
        return 0.0

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        np.copyto(out, state["y"])
