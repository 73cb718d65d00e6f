"""A constant learning rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate at every step.

    >>> Constant().factor(99, 100)
    1.0
    """

    def factor(self, step: int, steps: int) -> float:
        return 1.0
