"""The same learning rate throughout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A factor of 1 at every step.

    >>> Constant().factor(99, 100)
    1.0
    """

    def factor(self, step: int, steps: int) -> float:
        return 1.0
