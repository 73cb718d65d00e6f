"""Norm clipping: a gradient longer than a limit is shortened to it.

    x <- x - eta g min(1, norm / ||g||)

One pass over the piece. Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.strategies.parameter_server.rules import Array, Arrival, Rule, State
from paceline.updates import check_positive


@dataclass(frozen=True, kw_only=True)
class Clip(Rule):
    """Limit the norm of the mean gradient to `norm` in each piece separately: no master sees the whole gradient.

    M pieces at the limit form a gradient of norm sqrt(M) times `norm`, so the result depends on the placement.

    >>> x, g, rule = np.ones(2), np.array([30.0, 40.0]), Clip(norm=2.5)
    >>> arrival = Arrival(worker=0, tau=4, drift=np.zeros(2), gap=0.0, scale=0.1, eta=0.1)
    >>> rule.correct(g, x, arrival, rule.start(x, workers=5))
    0.5
    """

    needs_drift: ClassVar[bool] = False
    changes_fresh: ClassVar[bool] = True

    norm: float = 0.125
    """The largest norm of the mean gradient of a piece."""

    def __post_init__(self) -> None:
        check_positive("norm of clip", self.norm)

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        length = float(arrival.scale) * math.sqrt(float(np.dot(g, g)))
        return self.norm / length if length > self.norm else 1.0  #         min(1, norm / ||g||)
