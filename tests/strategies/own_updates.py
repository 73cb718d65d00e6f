"""Updates of the users' own, in the tests of strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.updates import Array, State


@dataclass(frozen=True, kw_only=True)
class Unmarked:
    """SGD with the norm of the mean gradient clipped, which does not say that it needs the whole vector."""

    norm: float = 0.01

    def start(self, x: Array) -> State:
        return {}

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        g *= scale
        x -= eta * min(1.0, self.norm / float(np.linalg.norm(g))) * g


@dataclass(frozen=True, kw_only=True)
class Clipped(Unmarked):
    """The same, which says so."""

    elementwise: ClassVar[bool] = False
