"""What every update's hyper-parameters must satisfy."""

from __future__ import annotations

import math

from paceline.errors import UsageError


def not_negative(what: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise UsageError(f"{what} must be a number of at least 0; got {value}")


def positive(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UsageError(f"{what} must be a number above 0; got {value}")


def below_one(what: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UsageError(f"{what} must be at least 0 and below 1; got {value}")
