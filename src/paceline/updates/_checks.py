"""What hyper-parameters must satisfy."""

from __future__ import annotations

import math

from paceline.errors import UsageError


def not_negative(what: str, value: float) -> None:
    """
    >>> not_negative("weight-decay of sgd", -1)
    Traceback (most recent call last):
    paceline.errors.UsageError: weight-decay of sgd must be at least 0; got -1
    """
    if not 0 <= value < math.inf:
        raise UsageError(f"{what} must be at least 0; got {value}")


def positive(what: str, value: float) -> None:
    """
    >>> positive("epsilon of adam", 0)
    Traceback (most recent call last):
    paceline.errors.UsageError: epsilon of adam must be above 0; got 0
    """
    if not 0 < value < math.inf:
        raise UsageError(f"{what} must be above 0; got {value}")


def below_one(what: str, value: float) -> None:
    """
    >>> below_one("beta of momentum", 1)
    Traceback (most recent call last):
    paceline.errors.UsageError: beta of momentum must be at least 0 and below 1; got 1
    """
    if not 0 <= value < 1:
        raise UsageError(f"{what} must be at least 0 and below 1; got {value}")
